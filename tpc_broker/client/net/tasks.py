"""Background tasks of an ``async with`` block."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import TaskGroup


@asynccontextmanager
async def background_tasks() -> AsyncIterator[TaskGroup]:
    """Tasks that end with the block. What the block raises is raised as it is, without a group around it; a task that
    fails cancels the block, and its error is raised the same way when it is the only one.
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
        if raised is not None and not isinstance(raised, anyio.get_cancelled_exc_class()):
            raise raised from raised.__cause__
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
