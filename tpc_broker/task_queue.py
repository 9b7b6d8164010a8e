"""Which queue of a core a task belongs to. The queues share the core's CPU time by their shares.

A task and whatever it starts stay in the queue that it was started in; who says nothing is in `clients`. The choice
itself is made by the loop (`engine/task_queues.py`); here is only what every part may say.
"""

from __future__ import annotations

from contextvars import ContextVar
from enum import IntEnum
from typing import Final


class TaskQueue(IntEnum):
    """In the order in which equals are chosen."""

    CLIENTS = 0
    """Requests, and all that C does."""
    REPLICATION = 1
    """What keeps the replicas of other nodes up to date, and these up to date with them."""
    COORDINATORS = 2
    """Groups: their requests, deadlines and log."""
    MAINTENANCE = 3
    """What clients wait for in the end: write-behind, checkpoints, the space of journal and segments."""
    BACKGROUND = 4
    """What nobody waits for: retention, moves, what is looked through."""


SHARES_MIN: Final = 1
SHARES_MAX: Final = 1000
SHARES_DEFAULT: Final = {
    TaskQueue.CLIENTS: 1000,
    TaskQueue.REPLICATION: 1000,
    TaskQueue.COORDINATORS: 1000,
    TaskQueue.MAINTENANCE: 500,
    TaskQueue.BACKGROUND: 50,
}

task_queue: Final[ContextVar[TaskQueue]] = ContextVar("task_queue")
"""Unset: CLIENTS."""


class in_queue:  # noqa: N801 (used as a `with` statement reads)
    """Tasks that are started inside belong to `queue`, and so does the task itself from its next wait on."""

    __slots__ = ("_queue", "_token")

    def __init__(self, queue: TaskQueue) -> None:
        self._queue = queue

    def __enter__(self) -> None:
        self._token = task_queue.set(self._queue)

    def __exit__(self, *_: object) -> None:
        task_queue.reset(self._token)
