"""When cleaned segments may take the place of others, and what readers of these do.

A `Segment` is the files that it was made for, not their names. Before the first of its names goes to another file it is
marked (`Segment.give_way`), and who opens one of its files by name asks for the mark behind the opening, when no more
can happen in between: it has what it wanted, or `SegmentReplacedError`. A reader that has a file open goes on with it;
one that has not waits until the swap is over and begins again with the version of then.

Who makes second names of a partition's files, one after the other, keeps swaps away meanwhile (`SwapGuard.held`).
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


class SegmentReplacedError(LookupError):
    """The segment's files have gone, or go, to a cleaned one: begin again when the swap is over."""


class SwapGuard:
    """Of one partition."""

    __slots__ = ("_free", "_holds", "_over")

    def __init__(self) -> None:
        self._holds = 0
        self._free: trio.Event | None = None
        self._over: trio.Event | None = None

    @property
    def is_held(self) -> bool:
        return self._holds > 0

    @property
    def is_under_way(self) -> bool:
        return self._over is not None

    def held(self) -> _Hold:
        """`async with`: in the block no segment gives way to a cleaned one. What is under way is waited for; not for
        who holds the partition's lock during a swap, which is nobody else.
        """
        return _Hold(self)

    def _hold(self) -> None:
        self._holds += 1

    def _let_go(self) -> None:
        self._holds -= 1
        if not self._holds and self._free is not None:
            self._free.set()
            self._free = None

    async def wait_free(self) -> None:
        """Until nobody holds swaps: may be over again when this returns, so `is_held` is asked behind every await."""
        while self._holds:
            if self._free is None:
                self._free = trio.Event()
            await self._free.wait()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Around a swap, begun under the partition's lock; one at a time."""
        assert self._over is None
        assert not self._holds
        over = self._over = trio.Event()
        try:
            yield
        finally:
            self._over = None
            over.set()

    async def wait_over(self) -> None:
        """Until no swap is under way."""
        while self._over is not None:
            await self._over.wait()


class _Hold:
    __slots__ = ("_guard",)

    def __init__(self, guard: SwapGuard) -> None:
        self._guard = guard

    async def __aenter__(self) -> None:
        self._guard._hold()  # noqa: SLF001
        try:
            await self._guard.wait_over()
        except BaseException:
            self._guard._let_go()  # noqa: SLF001
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._guard._let_go()  # noqa: SLF001


def in_the_midst(why: str) -> OSError:
    """What a reader is told of a swap that has failed, until it is finished."""
    return OSError(errno.EIO, f"cleaned segments are only in part in their place: {why}")
