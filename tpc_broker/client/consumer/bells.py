"""Waking a task that waits for something to be different."""

from __future__ import annotations

import anyio


class Bell:
    """One task waits, any rings. A ring that nobody waits for is kept for the next `wait`."""

    def __init__(self) -> None:
        self._rung = anyio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self) -> None:
        await self._rung.wait()
        self._rung = anyio.Event()
