"""Background tasks of an ``async with`` block."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from anyio.abc import TaskGroup


@asynccontextmanager
async def background_tasks() -> AsyncIterator[TaskGroup]:
    """Tasks that end with the block. What the block raises is raised as it is, without a group around it, and a note of
    what tasks raised beside it; a task that fails cancels the block, and its error is raised the same way when it is
    the only one.
    """
    raised: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except BaseException as error:
                raised = error
                raise
            finally:
                tasks.cancel_scope.cancel()
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
