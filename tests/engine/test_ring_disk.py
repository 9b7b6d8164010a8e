"""The disk port on the ring: whole transfers, errors with errno and path, nothing left open when cancelled."""

import errno
import fcntl
import os
from pathlib import Path

import pytest
import trio

from tests.support.backends import on_io_uring
from tests.support.contents import content
from tests.support.waiting import PATIENCE_S
from tpc_broker.bench.page_cache import cached_share, drop_cached
from tpc_broker.engine import disk as disk_module
from tpc_broker.engine import trio_ring
from tpc_broker.engine.disk import RingDisk
from tpc_broker.engine.ring import Backend, Feature, Ring
from tpc_broker.engine.trio_ring import RingOptions, current_ring
from tpc_broker.storage.disk_watch import DiskWatch
from tpc_broker.storage.ports import Disk, FileSpace, FileWrite

HOW = {
    "all-features": RingOptions(hidden=frozenset(), backend=Backend.IO_URING, stall_ms=0),
    "as-5.8": RingOptions(hidden=frozenset(Feature), backend=Backend.IO_URING, stall_ms=0),
    "plain": RingOptions(hidden=frozenset(), backend=Backend.PLAIN, stall_ms=0),
}


@pytest.fixture(params=[name if name == "plain" else on_io_uring(name) for name in HOW])
def run(request):
    def run_with_disk(function, *arguments):
        async def main():
            disk: Disk = RingDisk(current_ring())
            return await function(disk, *arguments)

        return trio_ring.run(main, options=HOW[request.param])

    return run_with_disk


def test_what_is_read_ahead_comes_into_the_page_cache(run, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(4 << 20))
    drop_cached(tmp_path)
    before = cached_share(tmp_path)
    if not before < 1:
        pytest.skip("the file system keeps it, or this kernel does not say")

    async def main(disk):
        fd = await disk.open(path, os.O_RDONLY)
        await disk.read_ahead(fd, 3 << 20, 1 << 20)
        with trio.fail_after(PATIENCE_S):
            while cached_share(tmp_path) < 0.75:
                await trio.sleep(0.01)
        await disk.close(fd)

    run(main)


def test_a_file_from_creation_to_removal(run, tmp_path):
    async def main(disk):
        folder = tmp_path / "topic-0"
        await disk.mkdir(folder)
        path = folder / "00000000000000000000.log"
        fd = await disk.open(path, os.O_RDWR | os.O_CREAT)
        await disk.fallocate(fd, 0, 1 << 16, keep_size=True)
        await disk.write_at(fd, b"0123456789", 0)
        await disk.durable_write(fd, memoryview(b"abcdef"), 10)
        await disk.write_fdatasync(fd, bytearray(b"ghi"), 16)
        await disk.fdatasync(fd)
        await disk.fsync_directory(folder)
        await disk.syncfs(fd)
        assert await disk.read(fd, 4, 8) == b"89ab"
        assert await disk.read(fd, 100, 15) == b"fghi"
        assert await disk.read(fd, 100, 19) == b""
        status = await disk.stat(path)
        assert (status.size_bytes, status.is_directory) == (19, False)
        await disk.truncate(fd, 5)
        assert await disk.read(fd, 100, 0) == b"01234"
        await disk.close(fd)
        await disk.rename(path, folder / "new")
        assert await disk.listdir(folder) == ["new"]
        assert (await disk.stat(folder)).is_directory
        assert (await disk.statvfs(folder)).available_bytes > 0
        await disk.unlink(folder / "new")
        await disk.rmdir(folder)
        assert not folder.exists()

    run(main)


def test_a_write_in_parts_is_whole_or_says_how_far_it_came(run, tmp_path):
    async def main(_disk):
        ring, data = current_ring(), content(300_001)
        fd = await ring.open(str(tmp_path / "f"), os.O_RDWR | os.O_CREAT)
        for part_bytes in (65_536, 300_000, 300_001, 1 << 20):
            await ring.ftruncate(fd, 0)
            before = ring.statistics().completions
            assert await ring.write_in_parts(fd, data, 7, part_bytes) == len(data)
            assert ring.statistics().completions - before == -(-len(data) // part_bytes)
            assert (tmp_path / "f").read_bytes() == bytes(7) + data
        await ring.close_fd(fd)

        full = os.memfd_create("full", os.MFD_ALLOW_SEALING)
        os.ftruncate(full, 100_000)
        fcntl.fcntl(full, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        written = await ring.write_in_parts(full, data, 0, 65_536)
        assert 65_536 <= written <= 100_000, "the second part was short, or failed"
        assert os.pread(full, written, 0) == data[:written]
        with pytest.raises(OSError, match="not permitted"):
            await ring.write_in_parts(full, data, 100_000, 65_536)
        os.close(full)

    run(main)


def test_transfers_are_cut_into_chunks_and_put_together_again(run, tmp_path, monkeypatch):
    monkeypatch.setattr(disk_module, "CHUNK_BYTES_MAX", 1000)
    monkeypatch.setattr(disk_module, "PARTS_MAX", 3)

    async def main(disk):
        data = content(12_345)
        fd = await disk.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
        await disk.write_at(fd, data, 7)
        assert await disk.read(fd, 12_345, 7) == data
        pieces = [data[start : start + 777] for start in range(0, len(data), 777)]
        await disk.writev(fd, [b"", *pieces, b""], 0)
        assert await disk.read(fd, 12_345, 0) == data
        await disk.close(fd)

    run(main)


def test_short_transfers_are_continued(run, tmp_path, monkeypatch):
    """A kernel that moves at most ten bytes per call."""
    write, writev, read = Ring.write, Ring.writev, Ring.read

    async def short_write(self, fd, data, position, *, durable=False):
        return await write(self, fd, memoryview(data)[:10], position, durable=durable)

    async def short_writev(self, fd, data, position, *, durable=False):
        return await writev(self, fd, [memoryview(data[0])[:10]], position, durable=durable)

    async def short_read(self, fd, into, position):
        return await read(self, fd, memoryview(into)[:10], position)

    for name, method in (("write", short_write), ("writev", short_writev), ("read", short_read)):
        monkeypatch.setattr(Ring, name, method)

    async def main(disk):
        fd = await disk.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
        await disk.write_at(fd, b"x" * 35, 0)
        await disk.writev(fd, [b"y" * 25, b"z" * 3], 35)
        assert await disk.read(fd, 100, 0) == b"x" * 35 + b"y" * 25 + b"z" * 3
        await disk.close(fd)

    run(main)


def test_a_write_without_progress_is_an_error(run, tmp_path, monkeypatch):
    async def no_progress(*_, **__):
        await trio.lowlevel.checkpoint()
        return 0

    monkeypatch.setattr(Ring, "write", no_progress)

    async def main(disk):
        with pytest.raises(OSError) as caught:
            await disk.write_at(1, b"x", 0)
        assert caught.value.errno == errno.EIO

    run(main)


def test_errors_carry_errno_and_path(run, tmp_path):
    async def main(disk):
        missing = tmp_path / "missing"
        for operation in (
            disk.unlink(missing),
            disk.open(missing, os.O_RDONLY),
            disk.rmdir(missing),
            disk.stat(missing),
            disk.listdir(missing),
            disk.rename(missing, tmp_path / "x"),
            disk.fsync_directory(missing),
        ):
            with pytest.raises(FileNotFoundError) as caught:
                await operation
            assert str(caught.value.filename) == str(missing)
        full = await disk.open(Path("/dev/full"), os.O_WRONLY)
        for operation, number in (
            (disk.write_at(full, b"x", 0), errno.ENOSPC),
            (disk.writev(full, [b"x"], 0), errno.ENOSPC),
            (disk.write_fdatasync(full, b"x", 0), errno.ENOSPC),
            (disk.read(full, 1, 0), errno.EBADF),
            (disk.fdatasync(full), errno.EINVAL),
            (disk.truncate(full, 0), errno.EINVAL),
            (disk.fallocate(full, 0, 1, keep_size=True), errno.ENODEV),
        ):
            with pytest.raises(OSError) as caught:
                await operation
            assert (caught.value.errno, caught.value.filename) == (number, "/dev/full")
        (refused,) = await disk.write_many([FileWrite(full, b"x", 0)])
        assert (refused.errno, refused.filename) == (errno.ENOSPC, "/dev/full")
        await disk.close(full)
        with pytest.raises(OSError) as caught:
            await disk.syncfs(-1)
        assert caught.value.errno == errno.EBADF

    run(main)


def test_close_closes_also_in_a_cancelled_task(run, tmp_path):
    async def main(disk):
        fd = await disk.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
        with trio.CancelScope() as scope:
            scope.cancel()
            await disk.close(fd)
        with pytest.raises(OSError):
            os.fstat(fd)

    run(main)


def test_space_for_many_files_in_one_job_and_what_came_of_each(run, tmp_path):
    async def main(disk):
        fds = [await disk.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(2)]
        read_only = await disk.open(tmp_path / "0", os.O_RDONLY)
        spaces = [FileSpace(fds[0], 0, 65536), FileSpace(read_only, 0, 4096), FileSpace(fds[1], 8192, 131072)]
        outcomes = await disk.reserve_many(spaces)
        assert [error and error.errno for error in outcomes] == [None, errno.EBADF, None]
        assert await disk.reserve_many([]) == []
        for fd in (*fds, read_only):
            await disk.close(fd)

    run(main)
    found = [(tmp_path / str(number)).stat() for number in range(2)]
    assert [one.st_size for one in found] == [0, 0]
    assert [one.st_blocks * 512 for one in found] == [65536, 131072]


def test_many_writes_in_one_job_and_what_came_of_each(run, tmp_path):
    async def main(disk):
        fds = [await disk.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(3)]
        read_only = await disk.open(tmp_path / "0", os.O_RDONLY)
        writes = [
            FileWrite(fds[0], b"first", 2),
            FileWrite(read_only, b"refused", 0),
            FileWrite(fds[1], memoryview(bytearray(b"x" * 3_000_000)), 0),
            FileWrite(fds[2], b"", 0),
            FileWrite(fds[0], b"second", 7),
        ]
        outcomes = await disk.write_many(writes)
        assert [error and error.errno for error in outcomes] == [None, errno.EBADF, None, None, None]
        assert await disk.write_many([]) == []
        for fd in (*fds, read_only):
            await disk.close(fd)

    run(main)
    assert [(tmp_path / str(number)).read_bytes() for number in range(3)] == [b"\0\0firstsecond", b"x" * 3_000_000, b""]


MANY = disk_module.TOGETHER_MAX * 2 + 1
JOBS = [disk_module.TOGETHER_MAX] * 2 + [1]


class Jobs(DiskWatch):
    """How many files each operation was for; `ended` is called after the first."""

    def __init__(self, ended=lambda: None):
        super().__init__()
        self.sizes = []
        self._ended = ended

    def begin(self, name, what, *, is_long=False):
        self.sizes.append(len(what))
        return super().begin(name, what, is_long=is_long)

    def end(self, number):
        super().end(number)
        if len(self.sizes) == 1:
            self._ended()


def paths_of(folder):
    return [folder / f"{number}" for number in range(MANY)]


def test_the_disk_makes_many_folders_without_seeming_to_hang(run, tmp_path):
    async def main(disk):
        disk.watch, paths = Jobs(), paths_of(tmp_path)
        paths[1].mkdir()
        assert await disk.make_folders(paths, "name", b"content") == [path != paths[1] for path in paths]
        assert {(path / "name").read_bytes() for path in paths if path != paths[1]} == {b"content"}
        assert disk.watch.sizes == JOBS
        assert await disk.make_folders([], "name", b"content") == []

    run(main)


def test_the_disk_writes_many_files_without_seeming_to_hang(run, tmp_path):
    async def main(disk):
        paths = paths_of(tmp_path)
        fds = await disk.open_many(paths, os.O_RDWR | os.O_CREAT)
        disk.watch = Jobs()
        assert await disk.reserve_many([FileSpace(fd, 0, 4096) for fd in fds]) == [None] * MANY
        writes = [FileWrite(fd, b"%d" % number, 0) for number, fd in enumerate([*fds[:-1], -1])]
        failures = await disk.write_many(writes)
        assert [failure and failure.errno for failure in failures] == [None] * (MANY - 1) + [errno.EBADF]
        assert disk.watch.sizes == JOBS * 2
        await disk.close_many(fds)
        assert [path.read_bytes() for path in paths[:-1]] == [b"%d" % number for number in range(MANY - 1)]

    run(main)


def test_who_is_cancelled_while_many_files_are_opened_has_all_of_them(run, tmp_path):
    async def main(disk):
        with trio.CancelScope() as scope:
            disk.watch = Jobs(ended=scope.cancel)
            opened = await disk.open_many(paths_of(tmp_path), os.O_RDWR | os.O_CREAT)
        assert scope.cancel_called
        assert disk.watch.sizes == JOBS
        assert len(set(opened)) == MANY
        await disk.close_many(opened)

    run(main)
