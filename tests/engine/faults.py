"""A core's journal and disk failing on purpose."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

import trio

from tests.engine.interference import disturbed
from tpc_broker.engine.disk import _stat, _statvfs, read_folders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.in_place_core import Bench

TAKES_SPACE: Final = frozenset(
    {"fallocate", "reserve_many", "write_at", "write_zeros", "writev", "write_many", "mkdir", "make_folders"}
)

PIPE_BYTES: Final = 4096


class BrokenJournal:
    """Every write of the journal fails with EBADF in this block: its descriptor is one for reading."""

    def __init__(self, bench: Bench) -> None:
        self._descriptor, _mode = bench.storage._reopen_journal_file()
        self._path = f"/proc/self/fd/{self._descriptor}"

    def __enter__(self) -> Self:
        self._kept = os.dup(self._descriptor)
        reading = os.open(self._path, os.O_RDONLY | os.O_DIRECT)
        os.dup2(reading, self._descriptor, inheritable=False)
        os.close(reading)
        return self

    def __exit__(self, *_: object) -> None:
        os.dup2(self._kept, self._descriptor, inheritable=False)
        os.close(self._kept)


class HungJournal(BrokenJournal):
    """No write of the journal completes in this block, and none fails: it is to a pipe that nobody reads. Those that
    wait fail at its end.
    """

    def __enter__(self) -> Self:
        self._kept = os.dup(self._descriptor)
        self._reading, writing = os.pipe2(os.O_CLOEXEC)
        os.write(writing, bytes(fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)))
        os.dup2(writing, self._descriptor, inheritable=False)
        os.close(writing)
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        os.close(self._reading)


class HungDisk:
    """The disk of a core hangs at the `at`-th of what would change it, counted from the beginning of this block, and at
    everything behind that; nothing fails. It answers again at the end of the block. Reads go on, as in a file system
    that is frozen. `hung`: what hung first.
    """

    def __init__(self, node, at: int = 1) -> None:
        self._node, self._at = node, at
        self.count, self.hung = 0, ""
        self._journal: HungJournal | None = None

    def __enter__(self) -> Self:
        self._node.ask(self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        self._node.ask(self._end)

    def _begin(self) -> None:
        disk = self._node.core.disk
        self._goes_on = trio.Event()
        self._ring, self._in_thread = disk._ring, disk._in_thread
        disk._ring, disk._in_thread = _HangingRing(self._ring, self._before), self._work

    def _end(self) -> None:
        disk = self._node.core.disk
        disk._ring = self._ring
        del disk._in_thread
        if self._journal is not None:
            self._journal.__exit__()
        self._goes_on.set()

    async def _work(self, function, *arguments):
        if function not in (_stat, _statvfs, os.listdir, read_folders):
            await self._before(getattr(function, "__name__", "a job of C"))
        return await self._in_thread(function, *arguments)

    async def _before(self, name: str) -> None:
        self.count += 1
        if self.count < self._at:
            return
        if not self.hung:
            self.hung = name
            self._journal = HungJournal(self._node)
            self._journal.__enter__()
        await self._goes_on.wait()


class _HangingRing:
    CHANGING: Final = frozenset(
        {"open", "write", "write_in_parts", "writev", "write_fdatasync", "fsync", "fdatasync", "fallocate", "ftruncate",
         "unlink", "close_fd"}
    )  # fmt: skip

    def __init__(self, ring, before) -> None:
        self._ring, self._before = ring, before

    def __getattr__(self, name: str):
        found = getattr(self._ring, name)
        if name not in self.CHANGING:
            return found

        async def changing(*arguments, **options):
            if name != "open" or arguments[1] & (os.O_CREAT | os.O_TRUNC):
                await self._before(name)
            return await found(*arguments, **options)

        return changing


@contextmanager
def failing(bench: Bench, what: str, at: int) -> Iterator[list[int]]:
    """From the at-th point on the journal, or the space, fails; of `segment` only that one call. Yields the points.

    Point 0 is in front of everything.
    """
    points: list[int] = [0]
    broken: list[BrokenJournal] = []

    def break_journal() -> None:
        if what == "journal" and not broken:
            broken.append(BrokenJournal(bench).__enter__())

    def before(name: str) -> None:
        points[0] += 1
        if points[0] < at:
            return
        break_journal()
        if what == "space" and name in TAKES_SPACE:
            raise OSError(errno.ENOSPC, "no space, for a test")
        if what == "segment" and points[0] == at and name != "close":
            raise OSError(errno.EIO, "for a test")

    if at == 0:
        break_journal()
    try:
        with disturbed(bench.core.disk, before):
            yield points
    finally:
        if broken:
            broken[0].__exit__()
