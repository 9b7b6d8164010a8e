"""What surfaces when a program's own handler fails."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import anyio

from tpc_broker.client.errors import ClientError

if TYPE_CHECKING:
    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.client.values import Record


class HandlerError(ClientError):
    """A handler of the program raised, and what it was given is not finished. The cause is what it raised.

    ``offset`` is the record's; -1 where a handler of a whole partition failed before it was given one.
    """

    def __init__(self, text: str, where: TopicPartition, offset: int) -> None:
        super().__init__(text)
        self.topic, self.partition = where
        self.offset = offset


class DeadLetterError(HandlerError):
    """A record could not be handled, and its dead letter not be written. The cause is what the producer raised."""


class PartitionRevokedError(ClientError):
    """There is no next item: the partition is being given to another member. `for_each_partition` takes it as the end
    of a handler.
    """


def as_error(raised: BaseException) -> Exception | None:
    """None: it ends the task. On asyncio a handler may raise a cancellation that nobody asked of it, as of a future
    that it awaited: the task would end as if it had been cancelled, and nobody would hear of it.
    """
    if isinstance(raised, Exception):
        return raised
    if not isinstance(raised, anyio.get_cancelled_exc_class()) or anyio.current_effective_deadline() == -inf:
        return None
    error = RuntimeError("what the handler awaited was cancelled")
    error.__cause__ = raised
    return error


def place_of(record: Record) -> str:
    """Which record: never its contents."""
    key = "no key" if record.key is None else f"a key of {len(record.key)} bytes"
    return f"{record.topic}-{record.partition} at offset {record.offset} ({key})"


def said_by(error: BaseException) -> str:
    """Class and text, as in a traceback's last line."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class FirstFailure:
    """Of tasks that fail side by side: the first error is raised, with a note of each later one."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def add(self, error: Exception, cause: BaseException | None) -> None:
        error.__cause__ = cause
        if self.error is None:
            self.error = error
        else:
            self.error.add_note(f"beside it, {error}")

    def surface(self, group: BaseExceptionGroup[BaseException] | None = None) -> None:
        """Raise it. ``group``: what a task group raised beside it, raised without a group when it is alone."""
        errors = [] if group is None else list(group.exceptions)
        if self.error is not None:
            errors.append(self.error)
        if len(errors) == 1:
            raise errors[0] from errors[0].__cause__
        if errors:
            raise BaseExceptionGroup("several tasks of a stream failed", errors) from None
