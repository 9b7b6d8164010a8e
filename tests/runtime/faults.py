"""A core's journal and disk failing on purpose."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from tests.runtime.interference import disturbed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.runtime.in_place_core import Bench

TAKES_SPACE: Final = frozenset(
    {"fallocate", "reserve_many", "write_at", "writev", "write_many", "mkdir", "make_folders"}
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
