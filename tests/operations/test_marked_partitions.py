"""A partition that an earlier run set aside without a folder, of which nothing but its mark tells any more, is not made
anew in place of what lies beside the journals.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.engine.in_place_core import Bench, on_core
from tpc_broker.cluster.founding import Founding
from tpc_broker.errors import PartitionNotMadeError, PartitionOfflineError
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.model import NodeId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.node.membership.identity import IdentityFile
from tpc_broker.operations.repair import RepairRequest, repair
from tpc_broker.options import StartError
from tpc_broker.raft.items import Voter
from tpc_broker.storage import journalled_storage
from tpc_broker.storage.journalled_storage import NEW_FOLDERS_FEW
from tpc_broker.storage.segments.folders import LOST_MARK_FILE, OFFLINE_FILE, LostMark, lost_folder_name

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [TopicPartition(TopicId(uuid.UUID(int=88)), PartitionIndex(number)) for number in range(NEW_FOLDERS_FEW + 2)]
MARKED = KEYS[0]
OTHER = TopicPartition(TopicId(uuid.UUID(int=99)), PartitionIndex(0))


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "journals" / lost_folder_name(MARKED)
    folder.mkdir(parents=True)
    (folder / LOST_MARK_FILE).write_bytes(LostMark("", "somebody says so").encode())
    (folder / "salvage-1").write_bytes(b"records")
    return folder


def test_it_is_offline_while_others_are_made(tmp_path: Path, marked: Path) -> None:
    async def body(bench: Bench) -> None:
        storage = bench.storage
        await storage.prepare([(key, "more") for key in KEYS])
        for key in KEYS[1:]:
            await storage.open(key, "more", bench.config)
        for _ in range(2):
            with pytest.raises(PartitionOfflineError, match="somebody says so") as refused:
                await storage.open(MARKED, "more", bench.config)
            assert not isinstance(refused.value, PartitionNotMadeError)
        assert storage.damaged() == [MARKED]
        assert await storage.checkpoint()
        assert not list((tmp_path / "data" / "topics").glob("more-0"))

    on_core(tmp_path, body)
    assert marked.is_dir()


def test_it_can_be_deleted_and_made_anew(tmp_path: Path, marked: Path) -> None:
    async def body(bench: Bench) -> None:
        with pytest.raises(PartitionOfflineError):
            await bench.storage.open(MARKED, "more", bench.config)
        await bench.storage.delete_offline(MARKED)
        assert marked.name not in await bench.core.disk.listdir(marked.parent)
        await bench.storage.open(MARKED, "more", bench.config)

    on_core(tmp_path, body)


def test_a_mark_that_another_core_has_removed_since_the_start_is_not_obeyed(tmp_path: Path, marked: Path) -> None:
    async def body(bench: Bench) -> None:
        (marked / LOST_MARK_FILE).unlink()
        await bench.storage.open(MARKED, "more", bench.config)
        assert bench.storage.damaged() == []

    on_core(tmp_path, body)


def test_another_replica_takes_the_place_of_the_one_that_was_set_aside(tmp_path: Path, marked: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.storage.forget_mark(MARKED)
        await bench.storage.open(MARKED, "more", bench.config)
        await bench.storage.forget_mark(KEYS[1])

    on_core(tmp_path, body)


def test_what_cannot_be_asked_now_is_not_made_and_asked_again(
    tmp_path: Path, marked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(bench: Bench) -> None:
        async def refused(*_arguments: object) -> None:
            raise OSError("no descriptor")

        with monkeypatch.context() as patched:
            patched.setattr(journalled_storage, "lost_marks", refused)
            patched.setattr(journalled_storage, "remove_folder", refused)
            with pytest.raises(PartitionNotMadeError, match="no descriptor"):
                await bench.storage.open(MARKED, "more", bench.config)
            with pytest.raises(PartitionNotMadeError, match="no descriptor"):
                await bench.storage.forget_mark(MARKED)
        with pytest.raises(PartitionOfflineError, match="somebody says so"):
            await bench.storage.open(MARKED, "more", bench.config)

    on_core(tmp_path, body)


@pytest.mark.parametrize("file", [LOST_MARK_FILE, OFFLINE_FILE])
def test_those_of_deleted_topics_go_at_the_first_image(tmp_path: Path, marked: Path, file: str) -> None:
    (marked / LOST_MARK_FILE).rename(marked / file)

    async def body(bench: Bench) -> None:
        for image, is_there in ((ClusterImage(), True), (ClusterImage(deleted=frozenset({MARKED.topic_id})), False)):
            await bench.storage.forget_unclaimed(image)
            assert (marked.name in await bench.core.disk.listdir(marked.parent)) is is_there

    on_core(tmp_path, body)


async def _nothing(_bench: Bench) -> None:
    """A core that starts and ends."""


def marks_listed(data: Path) -> list[str]:
    listed = json.loads(repair(data, RepairRequest(as_json=True)))["offline"]
    return [one["partition"] for one in listed if one["reason"] == "somebody says so"]


@pytest.mark.parametrize("in_cluster", [False, True])
def test_a_repair_of_all_passes_over_it(tmp_path: Path, marked: Path, *, in_cluster: bool) -> None:
    on_core(tmp_path, _nothing)
    data = tmp_path / "data"
    if in_cluster:
        identity = IdentityFile(data)
        identity.open(1, 1)
        identity.joined(Founding("the-cluster", (Voter(NodeId(1), 1), Voter(NodeId(2), 1))))
    (label,) = marks_listed(data)
    assert label == f"{MARKED.topic_id}-0"
    repair(data, RepairRequest(every_partition=True, apply=True, accept_loss=True))
    with pytest.raises(StartError, match="nothing tells the name"):
        repair(data, RepairRequest(partition=label, apply=True, accept_loss=True))
    assert not list((data / "topics").glob(f"*{MARKED.topic_id}*"))
    assert not (data / "topics" / "more-0").exists()


def test_it_comes_back_under_its_topics_name_when_a_broker_has_told_it(tmp_path: Path, marked: Path) -> None:
    async def body(bench: Bench) -> None:
        with pytest.raises(PartitionOfflineError, match="somebody says so"):
            await bench.storage.open(MARKED, "more", bench.config)

    on_core(tmp_path, body)
    data = tmp_path / "data"
    assert marks_listed(data) == ["more-0"]
    repair(data, RepairRequest(partition="more-0", apply=True, accept_loss=True))
    assert (data / "topics" / "more-0").is_dir()
    assert marks_listed(data) == []
    assert (marked / "salvage-1").exists()


def test_without_a_name_of_its_own_it_does_not_come_back(tmp_path: Path, marked: Path) -> None:
    on_core(tmp_path, _nothing)
    data, second = tmp_path / "data", marked.with_name(lost_folder_name(OTHER))
    second.mkdir()
    for folder in (marked, second):
        (folder / LOST_MARK_FILE).write_bytes(LostMark("more", "somebody says so").encode())
    with pytest.raises(StartError, match="several"):
        repair(data, RepairRequest(partition="more-0", apply=True, accept_loss=True))
    (data / "topics" / "more-0").mkdir()
    with pytest.raises(StartError, match="another partition has its name"):
        repair(data, RepairRequest(partition="more-0", apply=True, accept_loss=True))
    assert not list((data / "topics" / "more-0").iterdir())
