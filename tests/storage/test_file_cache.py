"""The cache of open files: its limit holds, and costs nothing while files cannot be closed."""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from tests.storage.plain_disk import PlainDisk
from tpc_broker.storage.files import FileCache

FILES = 64
MAX = 16


class CountedFiles(OrderedDict):
    """Counts how often all files are gone through."""

    scans = 0

    def values(self):
        self.scans += 1
        return super().values()


class CountingDisk(PlainDisk):
    """How many descriptors each call closed."""

    def __init__(self) -> None:
        self.closed: list[int] = []

    async def close(self, fd: int) -> None:
        self.closed.append(1)
        await super().close(fd)

    async def close_many(self, descriptors: Sequence[int]) -> None:
        self.closed.append(len(descriptors))
        for fd in descriptors:
            await super().close(fd)


async def test_dirty_files_over_the_limit_are_not_gone_through_at_each_use(tmp_path: Path) -> None:
    cache = FileCache(CountingDisk(), MAX)
    cache._files = files = CountedFiles()
    paths = [tmp_path / str(number) for number in range(FILES)]

    async def write_all() -> None:
        for path in paths:
            async with cache.use(path, create=True) as file:
                file.dirty = True

    await write_all()
    assert len(cache) == FILES, "none of them may be closed"
    assert files.scans <= FILES // (MAX // 8)
    files.scans = 0
    for _ in range(10):
        await write_all()
    assert files.scans == 0
    for path in paths:
        cache.mark_synced(path)
    cache.disk.closed.clear()
    async with cache.use(paths[0]):
        pass
    assert len(cache) == MAX
    assert cache.disk.closed == [FILES - MAX], "all of them by one job"
    await cache.close()
