"""Looking through partition folders while other cores delete in theirs."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest
import trio

from tests.broker.plain_disk import PlainDisk
from tpc_broker.broker.storage_folders import list_partitions
from tpc_broker.log.files import encode_partition_metadata
from tpc_broker.model import TopicId

TOPIC_ID = TopicId(uuid.UUID(bytes=bytes(range(16))))
OLD, NEW = "00000000000000000000.log", "00000000000000000007.log"


class ChangingDisk(PlainDisk):
    """Before the first look at the size of a file something happens to the folder."""

    def __init__(self, happens) -> None:
        self.happens = happens

    async def stat(self, path):
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        return await super().stat(path)


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    folder = tmp_path / "orders-0"
    folder.mkdir()
    (folder / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    for name in (OLD, NEW):
        (folder / name).write_bytes(b"x" * 10)
    return tmp_path


def sizes(topics: Path, happens) -> list[list[tuple[int, int]]]:
    found = trio.run(list_partitions, ChangingDisk(happens), topics)
    return [[(segment.base_offset, segment.size_bytes) for segment in listing.segments] for listing in found.values()]


def test_a_segment_that_goes_meanwhile_is_not_listed(topics: Path) -> None:
    def happens() -> None:
        (topics / "orders-0" / OLD).unlink()
        (topics / "orders-0" / NEW).rename(topics / "orders-0" / "00000000000000000009.log")

    assert sizes(topics, happens) == [[(9, 10)]]


def test_a_folder_that_goes_meanwhile_is_not_listed(topics: Path) -> None:
    assert sizes(topics, lambda: shutil.rmtree(topics / "orders-0")) == []


def test_a_file_that_is_named_and_never_there_is_an_error(topics: Path) -> None:
    (topics / "orders-0" / OLD).unlink()
    (topics / "orders-0" / OLD).symlink_to(topics / "nowhere")
    with pytest.raises(FileNotFoundError):
        sizes(topics, None)
