"""A coroutine as a test on both event loops: trio and asyncio."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

BACKENDS = ("trio", "asyncio")
TEST_SECONDS = 120.0
"""A test that hangs ends then, with what every task waited for."""


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Any:
    """``@on_both_loops async def test_…(fixtures): …``: run once with `anyio.run` on each loop."""

    async def bounded(arguments: dict[str, Any]) -> None:
        with anyio.fail_after(TEST_SECONDS):
            await test(**arguments)

    def run(*, backend: str, **arguments: Any) -> None:
        anyio.run(bounded, arguments, backend=backend)

    functools.update_wrapper(run, test)
    del run.__wrapped__  # type: ignore[attr-defined]
    given = inspect.signature(test)
    first = inspect.Parameter("backend", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = given.replace(parameters=[*given.parameters.values(), first], return_annotation=None)  # type: ignore[attr-defined]
    return pytest.mark.parametrize("backend", BACKENDS)(run)
