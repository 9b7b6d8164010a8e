"""Background tasks of an ``async with`` block."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import anyio

from tpc_broker.client.net.loops import keep_interrupts_off

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator


class Background(Protocol):
    """What may be asked to run something beside its caller: `Tasks`, or a task group."""

    def start_soon(self, work: Callable[..., Awaitable[Any]], /, *arguments: Any) -> None: ...


class Tasks:
    """Of a block. They go on while it is being cancelled, and until it is left: what it does on its way out may need
    them.
    """

    def __init__(self, start: Callable[..., object]) -> None:
        self._start = start
        self._scopes: set[anyio.CancelScope] = set()
        self._is_over = False

    def start_soon(self, work: Callable[..., Awaitable[Any]], /, *arguments: Any) -> None:
        """`RuntimeError`: the block has been left."""
        self._start(self._carry_out, work, arguments)

    async def _carry_out(self, work: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> None:
        with anyio.CancelScope(shield=True) as scope:
            if self._is_over:
                scope.cancel()
            self._scopes.add(scope)
            try:
                await work(*arguments)
            finally:
                self._scopes.discard(scope)

    def end(self) -> None:
        self._is_over = True
        for scope in list(self._scopes):
            scope.cancel()


@asynccontextmanager
async def background_tasks() -> AsyncIterator[Tasks]:
    """Tasks that end with the block. What the block raises is raised as it is, without a group around it, and a note of
    what tasks raised beside it; a task that fails cancels the block, and its error is raised the same way when it is
    the only one.
    """
    keep_interrupts_off(Tasks._carry_out, Tasks.end)  # noqa: SLF001 - an end that is cut short is waited for for ever
    raised: BaseException | None = None
    try:
        async with anyio.create_task_group() as group_of_tasks:
            tasks = Tasks(group_of_tasks.start_soon)
            try:
                yield tasks
            except BaseException as error:
                raised = error
                raise
            finally:
                tasks.end()
                group_of_tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        others = [error for error in _leaves(group, raised) if not _is_cancellation(error)]
        if raised is not None and not _is_cancellation(raised):
            for other in others:
                raised.add_note(f"a background task failed as well: {other!r}")
            _raise(raised)
        if len(others) == 1:
            _raise(others[0])
        raise


def _leaves(group: BaseExceptionGroup[BaseException], whole: BaseException | None) -> Iterator[BaseException]:
    """What is in a group, without ``whole``, which may be a group itself."""
    for error in group.exceptions:
        if error is whole:
            continue
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error, whole)
        else:
            yield error


def _is_cancellation(error: BaseException) -> bool:
    return isinstance(error, anyio.get_cancelled_exc_class())


def _raise(error: BaseException) -> NoReturn:
    """As it is: without what is handled here as its context."""
    context, cause, is_suppressed = error.__context__, error.__cause__, error.__suppress_context__
    try:
        raise error
    finally:
        error.__context__, error.__cause__, error.__suppress_context__ = context, cause, is_suppressed
