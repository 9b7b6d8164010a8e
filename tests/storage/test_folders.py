"""Looking through partition folders while other cores delete in theirs."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.plain_disk import PlainDisk
from tpc_broker.engine import disk
from tpc_broker.log.files import encode_partition_metadata
from tpc_broker.model import TopicId
from tpc_broker.storage.segments.folders import list_partitions, remove_deleted_folders

TOPIC_ID = TopicId(uuid.UUID(bytes=bytes(range(16))))
OLD, NEW = "00000000000000000000.log", "00000000000000000007.log"


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    folder = tmp_path / "orders-0"
    folder.mkdir()
    (folder / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    for name in (OLD, NEW):
        (folder / name).write_bytes(b"x" * 10)
    return tmp_path


@pytest.fixture
def when_first_looked_into(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Lets something happen to the folder between its names and the contents of its files."""

    def install(happens: Callable[[], object]) -> None:
        pending, read_file = [happens], disk._read_file

        def read_file_later(path: str) -> bytes:
            while pending:
                pending.pop()()
            return read_file(path)

        monkeypatch.setattr(disk, "_read_file", read_file_later)

    return install


async def sizes(topics: Path) -> list[list[tuple[int, int]]]:
    found = await list_partitions(PlainDisk(), topics)
    return [[(segment.base_offset, segment.size_bytes) for segment in listing.segments] for listing in found.values()]


async def test_a_folder_that_goes_meanwhile_is_not_listed(topics: Path, when_first_looked_into) -> None:
    when_first_looked_into(lambda: shutil.rmtree(topics / "orders-0"))
    assert await sizes(topics) == []


async def test_a_folder_that_changes_meanwhile_is_looked_at_again(topics: Path, when_first_looked_into) -> None:
    """Here its topic's deletion begins, and the folder is made again with other files."""

    def happens() -> None:
        shutil.rmtree(topics / "orders-0")
        (topics / "orders-0").mkdir()
        (topics / "orders-0" / "00000000000000000009.log").write_bytes(b"y" * 5)
        (topics / "orders-0" / "00000000000000000009.index").touch()

    when_first_looked_into(happens)
    assert await sizes(topics) == []
    (topics / "orders-0" / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    assert await sizes(topics) == [[(9, 5)]]


async def test_a_file_that_is_named_and_never_there_is_an_error(topics: Path) -> None:
    (topics / "orders-0" / OLD).unlink()
    (topics / "orders-0" / OLD).symlink_to(topics / "nowhere")
    with pytest.raises(FileNotFoundError):
        await sizes(topics)


async def one_step_behind(go, *_path):
    """Another core removes the same folder: everything that this one is about to remove is gone by then."""
    await go()
    await go()


async def test_two_cores_may_remove_a_deleted_topic_s_folder_at_once(topics: Path) -> None:
    (topics / "orders-0").rename(topics / "orders-0.0123-delete")
    disk = PlainDisk()
    disk.during("unlink", "rmdir", do=one_step_behind)
    await remove_deleted_folders(disk, topics)
    assert list(topics.iterdir()) == []  # noqa: ASYNC240
