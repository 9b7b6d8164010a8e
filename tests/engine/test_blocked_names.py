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
from tpc_broker.metadata.image import ClusterImage, TopicImage
from tpc_broker.model import CoreId, MetadataVersion, PartitionIndex, TopicId, TopicPartition
from tpc_broker.process import assembly
from tpc_broker.routing.assignment import Assignment
from tpc_broker.storage.recovery.lost_and_found import LOST_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

    from tpc_broker.storage.journalled_storage import JournalledStorage

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


@pytest.fixture
def left(tmp_path: Path, folder: Path) -> Path:
    """The same with another name, where nothing but the folder tells of it."""
    left = tmp_path / "other" / "data" / "topics" / "more-0"
    left.parent.mkdir(parents=True)
    folder.rename(left)
    return left


def test_a_folder_that_a_deleted_topic_has_left_gives_its_name_up(tmp_path: Path, left: Path) -> None:
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


async def make(storage: JournalledStorage, bench: Started) -> None:
    """A partition, as the broker does."""
    assert await storage.is_left_over(NEW, "more"), "other cores are asked first"
    await storage.open(NEW, "more", bench.config)


UNSURE = r"holds records, and its partition.metadata cannot be read \(\[Errno 5\].*; tried again; .* move the folder"


def test_records_of_which_the_disk_does_not_say_whose_they_are_make_way_for_a_topic_made_since_the_start(
    tmp_path: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(bench: Started) -> None:
        storage = bench.storage
        await storage.forget_unclaimed(ClusterImage(version=MetadataVersion(1)))
        with pytest.raises(PartitionNotMadeError, match=UNSURE):
            await make(storage, bench)
        await make(storage, bench)
        assert not await storage.is_left_over(NEW, "more")

    refuse(monkeypatch, left / PARTITION_METADATA_FILE)
    on_core(tmp_path / "other", body, Started)
    monkeypatch.undo()
    aside = tmp_path / "other" / "data" / LOST_FOLDER / "more-0.unknown"
    assert (aside / PARTITION_METADATA_FILE).read_bytes() == encode_partition_metadata(KEY.topic_id)
    assert (aside / f"{0:020d}.log").stat().st_size
    assert "cannot be read" in (aside / "reason").read_text()
    assert (left / PARTITION_METADATA_FILE).read_bytes() == encode_partition_metadata(NEW.topic_id)


def test_of_a_topic_that_was_there_before_they_may_be_and_stay_until_the_disk_says_whose(
    tmp_path: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = TopicImage("more", NEW.topic_id, Assignment((CoreId(0),)), created_ms=0)
    image = ClusterImage(MetadataVersion(1), topics={NEW.topic_id: topic}, deleted={KEY.topic_id: None})

    async def body(bench: Started) -> None:
        storage = bench.storage
        await storage.forget_unclaimed(image)
        for _again in range(3):
            with pytest.raises(PartitionNotMadeError, match=UNSURE):
                await make(storage, bench)
            assert is_there(left / f"{0:020d}.log")
        patched.undo()
        assert not await storage.is_left_over(NEW, "more"), "it is another's"
        await storage.open(NEW, "more", bench.config)

    with monkeypatch.context() as patched:
        refuse(patched, left / PARTITION_METADATA_FILE)
        on_core(tmp_path / "other", body, Started)
    assert (left / PARTITION_METADATA_FILE).read_bytes() == encode_partition_metadata(NEW.topic_id)


def test_a_folder_without_records_is_taken_whatever_its_lost_file_said(
    tmp_path: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in left.iterdir():
        if path.name != PARTITION_METADATA_FILE:
            path.unlink()

    async def body(bench: Started) -> None:
        await make(bench.storage, bench)

    with monkeypatch.context() as patched:
        refuse(patched, left / PARTITION_METADATA_FILE)
        on_core(tmp_path / "other", body, Started)
    assert (left / PARTITION_METADATA_FILE).read_bytes() == encode_partition_metadata(NEW.topic_id)
