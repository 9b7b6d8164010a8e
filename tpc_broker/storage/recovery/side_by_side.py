"""The same action for many things, several at a time: a start with thousands of partitions waits for the disk once for
sixteen of them instead of once for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")
AT_ONCE: Final = 16
FEW: Final = 64
"""Up to so many things are taken one after the other, in their order."""


async def for_each(items: Sequence[T], action: Callable[[T], Awaitable[object]], *, few: int = FEW) -> None:
    """Carry the action out for all; the first error stops those that have not begun, and is raised as it is."""
    if len(items) <= few:
        for item in items:
            await action(item)
        return
    waiting = iter(items)
    failures: list[BaseException] = []

    async def work() -> None:
        for item in waiting:
            try:
                await action(item)
            except trio.Cancelled:
                raise
            except BaseException as error:  # noqa: BLE001  (raised below, and not as a group that hides it from callers)
                failures.append(error)
            if failures:
                return

    async with trio.open_nursery() as nursery:
        for _ in range(min(AT_ONCE, len(items))):
            nursery.start_soon(work)
    if failures:
        raise failures[0]
