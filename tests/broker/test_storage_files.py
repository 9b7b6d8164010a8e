"""The cache of open files: its limit holds, and costs nothing while files cannot be closed."""

from collections import OrderedDict
from pathlib import Path

import trio

from tests.broker.plain_disk import PlainDisk
from tpc_broker.broker.storage_files import FileCache

FILES = 64
MAX = 16


class CountedFiles(OrderedDict):
    """Counts how often all files are gone through."""

    scans = 0

    def items(self):
        self.scans += 1
        return super().items()


def test_dirty_files_over_the_limit_are_not_gone_through_at_each_use(tmp_path: Path) -> None:
    trio.run(_use_dirty_files, tmp_path)


async def _use_dirty_files(tmp_path: Path) -> None:
    cache = FileCache(PlainDisk(), MAX)
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
    async with cache.use(paths[0]):
        pass
    assert len(cache) == MAX
    await cache.close()
