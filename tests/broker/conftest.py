"""What tests of the broker's coroutines have in common."""

from __future__ import annotations

import pytest
import trio


@pytest.fixture(autouse=True)
def no_helper_threads(monkeypatch):
    """A clock that jumps does not wait for a thread: what one would do is done at once."""

    async def run_sync(function, *arguments, limiter=None):
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
