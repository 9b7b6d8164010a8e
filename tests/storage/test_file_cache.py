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


def open_count() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class SlowDisk(CountingDisk):
    """Between two steps of a joint opening others have their turn: `meanwhile`."""

    meanwhile = None

    async def open_many(self, paths: Sequence[Path], flags: int) -> list[int | OSError]:
        found = await super().open_many(paths, flags)
        if self.meanwhile is not None:
            await self.meanwhile()
        return found


async def test_what_is_opened_together_is_open_once_and_goes_with_its_folder(tmp_path: Path) -> None:
    disk = SlowDisk()
    cache = FileCache(disk)
    folder = tmp_path / "folder"
    folder.mkdir()
    paths = [folder / "a", folder / "b", tmp_path / "nowhere" / "c", tmp_path / "d"]

    async def use_one() -> None:
        async with cache.use(paths[1], create=True):
            pass

    disk.meanwhile = use_one
    descriptors = open_count()
    await cache.open_many(paths)
    assert [cache.begin_use_nowait(path) is not None for path in paths] == [True, True, False, True]
    assert disk.closed == [1], "it was opened meanwhile: once is enough"
    assert open_count() == descriptors + 3
    assert sorted(cache.paths_in(folder)) == paths[:2]
    disk.meanwhile = None
    await cache.open_many(paths[:2])
    assert disk.closed == [1], "nothing is opened again"
    for path in (*paths[:2], paths[3]):
        cache.end_use_nowait(cache._files[path])
    await cache.close()
    assert open_count() == descriptors
