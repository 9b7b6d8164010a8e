"""A core's way to the cleaners: the port `storage.ports.Cleaner` over a conversation for each job.

It waits in the door (`cleaner_door`) until a cleaner is free. It is closed whenever the core does not want the job any
more, and with it the cleaner's side of the job ends.
"""

from __future__ import annotations

import errno
import os
import socket
from array import array
from collections import Counter
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker import limits
from tpc_broker.cleaner.cleaner_door import MESSAGE
from tpc_broker.cleaner.cleaner_frames import (
    Failure,
    Frame,
    FrameError,
    FrameReader,
    Kind,
    decode_failure,
    decode_group,
    decode_report,
    encode_frame,
    encode_job,
    progress_bytes,
)
from tpc_broker.log.cleaning_job import CleanedGroup, CleaningReport
from tpc_broker.storage.ports import CleanerAwayError, CleaningFailedError, JobVoidError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tpc_broker.log.cleaning_job import CleaningJob

DEATHS_MAX: Final = 3
"""Of cleaners in one partition's jobs, one after the other: then it is taken for the job's doing."""
_HELD_S: Final = limits.CLEANER_HELD_S / 2
_RECEIVE_BYTES: Final = 65536
_OF_THE_MACHINE: Final = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN,
})  # fmt: skip
"""Errors that are over one day without anything being done to the log."""


_ANSWERS: Final[Mapping[Kind, Callable[[Frame], int | CleanedGroup | CleaningReport | Failure]]] = {
    Kind.PROGRESS: progress_bytes,
    Kind.GROUP: decode_group,
    Kind.REPORT: decode_report,
    Kind.FAILED: decode_failure,
}
_ENDS: Final = (Kind.REPORT, Kind.FAILED)


async def put_in(door_fd: int) -> socket.socket:
    """A conversation that waits in the door: our end. OSError: it cannot be made, or nobody will ever take it out."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with theirs, trio.socket.from_stdlib_socket(socket.socket(fileno=os.dup(door_fd))) as door:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [theirs.fileno()]))
            await door.sendmsg([MESSAGE], [rights])
    except BaseException:
        ours.close()
        raise
    return ours


class _Connection:
    """Of one job, from its first end to its last."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = trio.socket.from_stdlib_socket(sock)
        self._stream = trio.SocketStream(self._sock)
        self._frames = FrameReader(limits.CLEANER_ANSWER_BYTES_MAX)
        self.ready_s = 0.0

    async def wait_ready(self) -> None:
        """Returns when a cleaner is ready for a job. CleanerAwayError: also when the supervisor says why none comes."""
        frame = await self.frame()
        if frame.kind is Kind.FAILED:
            raise CleanerAwayError(str(frame.fields.get("reason")))
        if frame.kind is not Kind.READY:
            raise CleanerAwayError(f"the cleaner begins with {frame.kind.name}")
        self.ready_s = trio.current_time()

    def close(self) -> None:
        self._sock.close()

    async def send(self, data: bytes) -> None:
        """CleanerAwayError."""
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise CleanerAwayError("the cleaner went away") from error

    async def frame(self) -> Frame:
        """CleanerAwayError: it went, or does not speak as it should."""
        try:
            while (found := self._frames.next_frame()) is None:
                data = await self._stream.receive_some(_RECEIVE_BYTES)
                if not data:
                    raise CleanerAwayError("the cleaner went away")
                self._frames.feed(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise CleanerAwayError("the cleaner went away") from error
        except FrameError as error:
            raise CleanerAwayError(f"the cleaner said what cannot be: {error}") from error
        return found


def _error_of(failure: Failure) -> CleanerAwayError | CleaningFailedError:
    if failure.is_void:
        return JobVoidError(failure.reason)
    return (CleanerAwayError if failure.errno in _OF_THE_MACHINE else CleaningFailedError)(failure.reason)


class CleanerClient:
    """Of one core. `door_fd`: the supervisor's door; -1: there are no cleaners."""

    def __init__(self, door_fd: int) -> None:
        self._door_fd = door_fd
        self._held: _Connection | None = None
        self._deaths: Counter[str] = Counter()
        self.under_way: dict[str, int] = {}
        """Bytes read and written so far, by the label of the job."""

    async def ready(self) -> None:
        """Until a cleaner is free, which then waits for this core's next job, for some seconds. Who asks before it
        makes the job finds the log as it is when the job begins. CleanerAwayError.
        """
        if self._held is None or trio.current_time() - self._held.ready_s > _HELD_S:
            self.let_go()
            self._held = await self._ready_connection()

    def let_go(self) -> None:
        """Of a cleaner that waits: there is nothing to do for it."""
        if self._held is not None:
            self._held.close()
            self._held = None

    async def clean(self, job: CleaningJob, take: Callable[[CleanedGroup], Awaitable[None]]) -> CleaningReport:
        """`storage.ports.Cleaner.clean`."""
        try:
            encoded = encode_job(job)
        except FrameError as error:
            raise CleaningFailedError(f"its producers and aborted transactions are too many: {error}") from error
        await self.ready()
        assert self._held is not None
        connection, self._held = self._held, None
        self.under_way[job.label] = 0
        try:
            await connection.send(encoded)
            return await self._converse(connection, job.label, take)
        finally:
            connection.close()
            self.under_way.pop(job.label, None)

    async def _converse(
        self, connection: _Connection, label: str, take: Callable[[CleanedGroup], Awaitable[None]]
    ) -> CleaningReport:
        while True:
            told = await self._next_told(connection, label)
            match told:
                case int():
                    self.under_way[label] = told
                case CleanedGroup():
                    await take(told)
                    await connection.send(encode_frame(Kind.TAKEN))
                case CleaningReport():
                    return told
                case Failure():
                    raise _error_of(told)

    async def _next_told(
        self, connection: _Connection, label: str
    ) -> int | CleanedGroup | CleaningReport | Failure:
        """A cleaner that dies is no fault of the log's; one that dies in the same job again and again is."""
        try:
            frame = await connection.frame()
        except CleanerAwayError:
            self._deaths[label] += 1
            if self._deaths[label] < DEATHS_MAX:
                raise
            del self._deaths[label]
            raise CleaningFailedError(f"the cleaner died in it, {DEATHS_MAX} times") from None
        if frame.kind in _ENDS:
            self._deaths.pop(label, None)
        decode = _ANSWERS.get(frame.kind)
        try:
            if decode is not None:
                return decode(frame)
        except FrameError as error:
            raise CleanerAwayError(f"the cleaner said what cannot be: {error}") from error
        raise CleanerAwayError(f"the cleaner said {frame.kind.name} in the middle of a job")

    async def _ready_connection(self) -> _Connection:
        if self._door_fd < 0:
            raise CleanerAwayError("there are no cleaners")
        try:
            connection = _Connection(await put_in(self._door_fd))
        except OSError as error:
            raise CleanerAwayError(f"no cleaner can be reached: {error.strerror}") from error
        try:
            await connection.wait_ready()
        except BaseException:
            connection.close()
            raise
        return connection
