"""The cache of open files: its limit holds, and costs nothing while files cannot be closed."""

import os
import resource
from collections import OrderedDict
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.support.descriptors import open_descriptors
from tests.support.disk_operations import Held
from tests.support.plain_disk import PlainDisk
from tpc_broker.storage.segments.files import FileCache, most_open_files

FILES = 64
MAX = 16


class CountedFiles(OrderedDict):
    """Counts how often all files are gone through."""

    scans = 0

    def values(self):
        self.scans += 1
        return super().values()


def counting_disk() -> tuple[PlainDisk, list[int]]:
    """And how many descriptors each call closed."""
    disk, closed = PlainDisk(), []

    async def close(go, _fd):
        closed.append(1)
        await go()

    async def close_many(go, descriptors):
        closed.append(len(descriptors))
        await go()

    disk.during("close", do=close)
    disk.during("close_many", do=close_many)
    return disk, closed


async def test_dirty_files_over_the_limit_are_not_gone_through_at_each_use(tmp_path: Path) -> None:
    disk, closed = counting_disk()
    cache = FileCache(disk, MAX)
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
    closed.clear()
    async with cache.use(paths[0]):
        pass
    assert len(cache) == MAX
    assert closed == [FILES - MAX], "all of them by one job"
    await cache.close()


async def test_what_is_opened_together_is_open_once_and_goes_with_its_folder(tmp_path: Path) -> None:
    disk, closed = counting_disk()
    cache = FileCache(disk)
    folder = tmp_path / "folder"
    folder.mkdir()
    paths = [folder / "a", folder / "b", tmp_path / "nowhere" / "c", tmp_path / "d"]

    async def use_one_meanwhile(go, *_arguments):
        found = await go()
        async with cache.use(paths[1], create=True):
            pass
        return found

    disk.during("open_many", do=use_one_meanwhile)
    descriptors = len(open_descriptors())
    await cache.open_many(paths)
    assert [cache.begin_use_nowait(path) is not None for path in paths] == [True, True, False, True]
    assert closed == [1], "it was opened meanwhile: once is enough"
    assert len(open_descriptors()) == descriptors + 3
    assert sorted(cache.paths_in(folder)) == paths[:2]
    disk.during("open_many", do=None)
    await cache.open_many(paths[:2])
    assert closed == [1], "nothing is opened again"
    for path in (*paths[:2], paths[3]):
        cache.end_use_nowait(cache._files[path])
    await cache.close()
    assert len(open_descriptors()) == descriptors


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("only_file", [False, True])
async def test_what_is_opened_while_its_name_is_given_up_is_no_other_files(tmp_path, together, only_file):
    """A folder goes, and another one comes under its name: what is written there is not to land in the old one."""
    disk, late = PlainDisk(), Held(afterwards=True)
    cache = FileCache(disk)
    folder, gone = tmp_path / "t-0", tmp_path / "t-0-delete"
    path = folder / "0.log"
    folder.mkdir()
    descriptors = len(open_descriptors())
    disk.during("open", "open_many", do=late)

    async def open_the_old() -> None:
        if together:
            await cache.open_many([path])
        else:
            async with cache.use(path, create=True) as file:
                os.write(file.fd, b"old")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_the_old)
        await late.waiting.wait()
        await (cache.forget(path) if only_file else cache.forget_folder(folder))
        folder.rename(gone)
        folder.mkdir()
        disk.during("open", "open_many", do=None)
        async with cache.use(path, create=True) as file:
            os.write(file.fd, b"new")
        late.may_go.set()
    async with cache.use(path) as file:
        assert os.pread(file.fd, 100, 0) == b"new"
    assert path.read_bytes() == b"new"
    assert (gone / "0.log").read_bytes() == (b"" if together else b"old")
    assert not cache._openings
    await cache.close()
    assert len(open_descriptors()) == descriptors


async def test_a_file_that_two_have_opened_stays_open_while_one_of_them_closes_its_own(tmp_path):
    """Meanwhile its name is given up."""
    disk, late = PlainDisk(), Held(afterwards=True)
    cache = FileCache(disk)
    path = tmp_path / "0.log"
    disk.during("open", "open_many", do=late)

    async def write_late() -> None:
        async with cache.use(path, create=True) as file:
            os.write(file.fd, b"late")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write_late)
        await late.waiting.wait()
        disk.during("open", "open_many", do=None)
        async with cache.use(path, create=True):
            pass

        async def forget_and_close(go, _fd):
            disk.during("close", do=None)
            await cache.forget(path)
            await go()

        disk.during("close", do=forget_and_close)
        late.may_go.set()
    assert path.read_bytes() == b"late"


@pytest.mark.parametrize(
    ("descriptors", "files"),
    [
        (256, 64),
        (1024, 256),
        (8192, 2048),
        (16_384, 2048),
        (20_000, 2500),
        (1 << 20, 8192),
        (resource.RLIM_INFINITY, 8192),
    ],
)
def test_how_many_stay_open_depends_on_the_descriptors_there_are(descriptors: int, files: int) -> None:
    assert most_open_files(descriptors) == files


async def test_files_that_are_used_in_turn_never_take_all_descriptors(tmp_path: Path) -> None:
    bound = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = 2 * max(open_descriptors()) + 200  # a quarter of them are files, with two each
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, bound[1]))
    try:
        cache = FileCache(PlainDisk())
        for number in range(2 * allowed):
            async with cache.use(tmp_path / str(number), create=True) as file:
                await cache.direct_descriptor(file)
        await cache.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, bound)


async def test_uses_that_end_while_their_folder_is_given_up_close_their_files_and_nobody_else(tmp_path):
    """A descriptor that is closed twice may be another file's by then."""

    async def close_slowly(go, fd):
        closing.set()
        await may_close.wait()
        closed.append(fd)
        await go()

    closing, may_close, closed, descriptors = trio.Event(), trio.Event(), [], []
    disk = PlainDisk()
    disk.during("close", do=close_slowly)
    cache = FileCache(disk)
    async with trio.open_nursery() as nursery:
        for number in range(10):
            async with cache.use(tmp_path / f"{number}.log", create=True) as idle:
                descriptors.append(idle.fd)
        async with AsyncExitStack() as uses:
            for number in range(10):
                used = await uses.enter_async_context(cache.use(tmp_path / f"{number}.index", create=True))
                descriptors.append(used.fd)
            nursery.start_soon(cache.forget_folder, tmp_path)
            await closing.wait()
            may_close.set()
    assert sorted(closed) == sorted(descriptors)


async def test_of_two_who_want_a_file_past_the_page_cache_one_opens_it(tmp_path):
    async def open_late(_go, path, flags):
        await trio.testing.wait_all_tasks_blocked()
        return os.open(path, flags & ~os.O_DIRECT | os.O_CLOEXEC, 0o644)

    disk, found = PlainDisk(), []
    disk.during("open", do=open_late)
    cache = FileCache(disk)

    async def want() -> None:
        found.append(await cache.direct_descriptor(file))

    descriptors = len(open_descriptors())
    async with cache.use(tmp_path / "0.log", create=True) as file, trio.open_nursery() as nursery:
        nursery.start_soon(want)
        nursery.start_soon(want)
    assert found == [file.direct_fd] * 2
    await cache.close()
    assert len(open_descriptors()) == descriptors
