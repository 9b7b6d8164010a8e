"""What a deleted topic has left under its name does not keep the next topic of that name from being made."""

from __future__ import annotations

import errno
import os
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.engine.in_place_core import KEY, Bench, on_core
from tpc_broker.engine import disk as runtime_disk
from tpc_broker.errors import PartitionNotMadeError
from tpc_broker.log.files import PARTITION_METADATA_FILE, encode_partition_metadata
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.model import PartitionIndex, TopicId, TopicPartition
from tpc_broker.process import assembly
from tpc_broker.storage.lost_and_found import LOST_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

NEW = TopicPartition(TopicId(uuid.UUID(int=99)), PartitionIndex(0))


class Started(Bench):
    """Whose partition is not opened."""

    async def open(self) -> None:
        self.config = self.make_config()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a partition with records. There is no metadata log beside it, which a start would ask for."""
    monkeypatch.setattr(assembly, "metadata_problem", lambda _recovered, _folders: None)

    async def body(bench: Bench) -> None:
        await bench.append(1000)
        await bench.storage.write_behind(all_of_it=True)
        assert await bench.storage.checkpoint()

    on_core(tmp_path, body)
    return tmp_path / "data" / "topics" / "topic-0"


def is_there(path: Path) -> bool:
    return path.exists()


def refuse(monkeypatch: pytest.MonkeyPatch, refused: Path) -> None:
    read = runtime_disk._read_file

    def read_or_refuse(path: str) -> bytes:
        if path == str(refused):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return read(path)

    monkeypatch.setattr(runtime_disk, "_read_file", read_or_refuse)


@pytest.mark.parametrize("is_well_again", [False, True])
def test_a_deletion_that_the_disk_refuses_is_tried_again_and_then_puts_the_files_aside(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_well_again: bool
) -> None:
    async def body(bench: Started) -> None:
        storage = bench.storage
        assert storage.damaged() == [KEY]
        await storage.delete_offline(KEY)
        assert is_there(folder), "at the first attempt it may come to itself"
        if is_well_again:
            patched.undo()
        await storage._deletions.free_at_once()
        assert not is_there(folder)
        await storage.open(NEW, "topic", bench.config)
        assert (folder / PARTITION_METADATA_FILE).read_bytes() == encode_partition_metadata(NEW.topic_id)

    with monkeypatch.context() as patched:
        refuse(patched, folder / PARTITION_METADATA_FILE)
        on_core(tmp_path, body, Started)
    aside = list((tmp_path / "data" / LOST_FOLDER).glob("topic-0.*.deleted"))
    assert len(aside) == (not is_well_again)
    assert [path.name for one in aside for path in one.glob("*.log")] == [f"{0:020d}.log"] * len(aside)


def test_a_folder_that_a_deleted_topic_has_left_gives_its_name_up(tmp_path: Path, folder: Path) -> None:
    left = tmp_path / "other" / "data" / "topics" / "more-0"
    left.parent.mkdir(parents=True)
    folder.rename(left)  # nothing but the folder tells of it there

    async def body(bench: Started) -> None:
        storage = bench.storage
        for image in (ClusterImage(), ClusterImage(deleted=frozenset({KEY.topic_id}))):
            assert is_there(left)
            with pytest.raises(PartitionNotMadeError, match=f"belongs to topic id {KEY.topic_id}"):
                await storage.open(NEW, "more", bench.config)
            await storage.forget_unclaimed(image)
        await storage.open(NEW, "more", bench.config)
        assert (left / PARTITION_METADATA_FILE).read_bytes() == encode_partition_metadata(NEW.topic_id)

    on_core(tmp_path / "other", body, Started)
