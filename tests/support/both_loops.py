"""A coroutine as a test on both event loops: trio and asyncio."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest

from tests.support.waiting import PATIENCE_S

BACKENDS = ("trio", "asyncio")
TEST_SECONDS = 2.0 * PATIENCE_S
"""A test that hangs ends then, with what every task waited for."""


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Any:
    """``@on_both_loops async def test_…(fixtures): …``: run once with `anyio.run` on each loop."""
    return pytest.mark.parametrize("backend", BACKENDS)(_on_its_loop(test))


def on_loops_in_turn(
    name: str, cases: Sequence[Any], ids: Callable[[Any], str] | None = None
) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """``@on_loops_in_turn("code", CODES) async def test_…(code)``: each case on one of the loops, for cases that differ
    in what is asked and answered, which the loops have nothing to do with.
    """

    def decorated(test: Callable[..., Awaitable[None]]) -> Any:
        rows = list(zip(cases, itertools.cycle(BACKENDS), strict=False))
        names = None if ids is None else [f"{backend}-{ids(case)}" for case, backend in rows]
        return pytest.mark.parametrize((name, "backend"), rows, ids=names)(_on_its_loop(test))

    return decorated


def _on_its_loop(test: Callable[..., Awaitable[None]]) -> Any:
    """A function of `backend` and of what the test has."""

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
    return run
