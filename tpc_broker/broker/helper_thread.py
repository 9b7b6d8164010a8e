"""Short jobs of a helper thread: what would hold up the loop for too long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class InThread(Protocol):
    """A port: where a run has to be repeatable, the job is done at once, and in its turn."""

    async def __call__(self, function: Callable[..., T], /, *arguments: Any) -> T: ...


async def in_thread(function: Callable[..., T], /, *arguments: Any) -> T:
    """The core goes on meanwhile. Whoever is cancelled waits for it."""
    return await trio.to_thread.run_sync(function, *arguments)
