"""What takes longer than others may wait, done in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Generator

T = TypeVar("T")
PRODUCERS_AT_ONCE: Final = 500
"""A microsecond or two each."""


async def in_short_steps(parts: Generator[None, None, T]) -> T:
    """What it returns in the end; others have their turn whenever it yields."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            found: T = end.value
            return found
        await trio.lowlevel.checkpoint()
