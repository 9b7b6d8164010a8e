"""A coroutine cancelled at each of its awaits in turn, on both loops, without a clock.

    async for cancelled in at_each_await(lambda: client.fleet.leader(where)):
        assert …                          # what holds however far it had come

`cancelled.place` is the number of the await, from 1 on; `cancelled.is_done` of the last turn only, in which it was not
reached any more, and `cancelled.result` what the coroutine gave then. Only suspensions are counted: awaits that really
hand control to the loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

import anyio

AWAITS_MAX: Final = 10_000


class _Watched:
    """An awaitable that calls ``reached`` before its n-th suspension."""

    def __init__(self, made: Awaitable[Any], place: int, reached: Callable[[], None]) -> None:
        self._made, self._place, self._reached = made, place, reached

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._made.__await__()
        step: Callable[[], Any] = lambda: next(inner)  # noqa: E731
        for count in itertools.count(1):
            try:
                suspended = step()
            except StopIteration as ended:
                return ended.value
            if count == self._place:
                self._reached()
            try:
                given = yield suspended
            except BaseException as error:
                step = _thrower(inner, error)
            else:
                step = _sender(inner, given)
        raise AssertionError


def _sender(inner: Any, given: Any) -> Callable[[], Any]:
    return lambda: inner.send(given)


def _thrower(inner: Any, error: BaseException) -> Callable[[], Any]:
    return lambda: inner.throw(error)


@dataclass
class Cancelled:
    place: int
    is_done: bool
    result: Any = None


async def cancelled_at(place: int, make: Callable[[], Awaitable[Any]]) -> Cancelled:
    """Once, at the n-th await."""
    with anyio.CancelScope() as scope:
        result = await _Watched(make(), place, scope.cancel)
        if not scope.cancel_called:
            return Cancelled(place, is_done=True, result=result)
        return Cancelled(place, is_done=False, result=result)  # it was cancelled, and ended all the same
    return Cancelled(place, is_done=False)


async def at_each_await(make: Callable[[], Awaitable[Any]]) -> AsyncIterator[Cancelled]:
    """Until it ends before it is cancelled."""
    for place in range(1, AWAITS_MAX):
        found = await cancelled_at(place, make)
        yield found
        if found.is_done:
            return
    raise AssertionError(f"more than {AWAITS_MAX} awaits")


async def natively_cancelled_at_each_await(make: Callable[[], Awaitable[Any]]) -> AsyncIterator[asyncio.Task[Any]]:
    """A task of asyncio's own, cancelled at each await in turn with its `cancel`, until one ends before that. Each is
    done when it is given; one that was cancelled and ended as if nothing had been fails the test.
    """
    for place in range(1, AWAITS_MAX):
        task, has_reached = _natively_cancelled_at(place, make)
        await asyncio.wait([task])
        assert not has_reached or task.cancelled() or task.exception(), f"await {place}: the cancellation was lost"
        yield task
        if not has_reached:
            return
    raise AssertionError(f"more than {AWAITS_MAX} awaits")


def _natively_cancelled_at(place: int, make: Callable[[], Awaitable[Any]]) -> tuple[asyncio.Task[Any], list[bool]]:
    """The list is empty until the await is reached."""
    has_reached: list[bool] = []

    def cancel() -> None:
        has_reached.append(True)
        task.cancel()

    async def watched() -> Any:
        return await _Watched(make(), place, cancel)

    task = asyncio.ensure_future(watched())
    return task, has_reached
