"""A cleaner's process: ``python -m tpc_broker.cleaner.cleaner_process OPTIONS``, started by `cleaner_lives`.

It takes one conversation after the other out of the door (`cleaner_door`), and forks for each. The child says that it
is ready, gets the job, and carries it out in one thread (`CleaningConversation`): at niceness 19, or 0 for a job
that is urgent, with a bound on its memory that the job gives, first of all processes of the node to go when the
machine has no memory left, and killed by the kernel when it gives no sign of life. It sees within a chunk, or a tenth
of a second while it waits, that the core has closed the connection.

A group that the core was told of is the core's: whether it is being put in place only the core knows. So when the core
is gone then, the process ends where it stands, and nothing that cleans up behind an error touches the group's files.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from tpc_broker import limits
from tpc_broker.cleaner.cleaner_door import take_out
from tpc_broker.cleaner.cleaner_frames import (
    Failure,
    Frame,
    FrameError,
    FrameReader,
    Kind,
    decode_job,
    encode_failure,
    encode_frame,
    encode_group,
    encode_report,
)
from tpc_broker.cleaner.shared_pace import SharedPace
from tpc_broker.engine.parent_death import die_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.log.cleaning_job import CleanedGroup, CleaningJob, CleaningReport

    Clean = Callable[
        [CleaningJob, Callable[[CleanedGroup], None], Callable[[int], None], Callable[[], bool]], CleaningReport
    ]
    """`cleaning_run.clean`: the job, take, pace, should_stop."""

EXIT_OK, EXIT_FAILED = 0, 1
_IGNORED_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A terminal sends them to the whole group; the supervisor ends its cleaners by itself."""
_NICE: Final = 19
_LOOK_S: Final = 0.02
"""Between two looks whether the core is there still."""
_PROGRESS_S: Final = 1.0
_RECEIVE_BYTES: Final = 1 << 18


class CoreGoneError(ConnectionError):
    """The core has closed the connection: the job, or the rest of it, is not wanted."""


@dataclass(frozen=True, slots=True)
class CleanerOptions:
    """What the supervisor tells a cleaner. Nothing in it is secret."""

    door_fd: int
    pace_fd: int
    supervisor_pid: int
    idle_s: float = limits.CLEANER_IDLE_S

    def to_argument(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, argument: str) -> CleanerOptions:
        return cls(**json.loads(argument))


class Work(NamedTuple):
    """What a cleaner does (`cleaning_run`), and what that raises when the segments are not those of the job."""

    clean: Clean
    void: type[Exception]


# Rule: A cleaner touches nothing of a group any more that it has told a core of: a core that is gone may have made the
# seal durable, and its next life finishes the swap with these files. Held by tests/cleaner/test_cleaner_client.py.
class CleaningConversation:
    """One connection: one job. The socket blocks."""

    def __init__(
        self,
        connection: socket.socket,
        pace: SharedPace,
        clean: Clean,
        *,
        end: Callable[[], NoReturn],
        void: type[Exception],
    ) -> None:
        """`end`: of the process, at once. `void`: what `clean` raises when the segments are not those of the job."""
        self._connection = connection
        self._pace = pace
        self._clean = clean
        self._end = end
        self._void = void
        self._frames = FrameReader(limits.CLEANER_JOB_BYTES_MAX)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN | select.POLLRDHUP)
        self._looked_s = self._told_s = time.monotonic()
        self._bytes = 0
        self._is_gone = False

    def serve(self, prepare: Callable[[CleaningJob], None]) -> None:
        """The whole job; `prepare` makes the process ready for it. CoreGoneError, FrameError: the core is to blame."""
        self._send(encode_frame(Kind.READY))
        self._connection.settimeout(limits.CLEANER_HELD_S)
        job = decode_job(self._expect(Kind.JOB))
        self._connection.settimeout(None)
        answer = self._answer(job, prepare)
        if not self._should_stop():
            self._send(answer)

    def _answer(self, job: CleaningJob, prepare: Callable[[CleaningJob], None]) -> bytes:
        """What became of a job. CoreGoneError."""
        _alive()
        try:
            prepare(job)
            return encode_report(self._clean(job, self._take, self._spend, self._should_stop))
        except CoreGoneError:
            raise
        except self._void as error:
            failure = Failure(str(error), is_void=True)
        except MemoryError:
            failure = Failure("it needs more memory than a cleaner may have")
        except OSError as error:
            failure = Failure(f"{error.strerror or error}: {error.filename or job.folder}", error.errno or 0)
        except ValueError as error:
            failure = Failure(str(error))
        except Exception as error:  # a bug of ours: the core is told, and logs it
            if self._is_gone:  # that is what ended it
                raise CoreGoneError("the core is gone") from error
            traceback.print_exc()
            failure = Failure(f"{type(error).__name__}: {error}")
        return encode_failure(failure)

    # -- what `clean` is given -------------------------------------------------------------------------------------

    def _take(self, group: CleanedGroup) -> None:
        """Returns when the core has put it in place."""
        data = encode_group(group)
        _alive(for_ever=True)  # the core takes the time that it needs
        try:
            self._send(data)
            self._expect(Kind.TAKEN)
        except (CoreGoneError, FrameError):
            self._end()
        _alive()

    def _spend(self, count: int) -> None:
        """Before so many bytes are read or written."""
        _alive()
        self._bytes += count
        if time.monotonic() - self._told_s >= _PROGRESS_S:
            self._told_s = time.monotonic()
            self._send(encode_frame(Kind.PROGRESS, {"bytes": self._bytes}))
        self._pace.spend(count, self._wait)
        _alive()

    def _should_stop(self) -> bool:
        _alive()
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return self._is_gone
        self._looked_s = now_s
        return self._wait(0)

    def _wait(self, seconds: float) -> bool:
        """Until the core is gone, which is returned, or so long. Nothing is to come from it now."""
        _alive()
        self._is_gone = self._is_gone or bool(self._poll.poll(seconds * 1000))
        return self._is_gone

    # -- frames ----------------------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        try:
            self._connection.sendall(data)
        except ConnectionError as error:
            self._is_gone = True
            raise CoreGoneError("the core is gone") from error

    def _expect(self, kind: Kind) -> Frame:
        while (frame := self._frames.next_frame()) is None:
            try:
                data = self._connection.recv(_RECEIVE_BYTES)
            except (ConnectionError, TimeoutError):
                data = b""
            if not data:
                self._is_gone = True
                raise CoreGoneError("the core is gone")
            self._frames.feed(data)
        if frame.kind is not kind:
            raise FrameError(f"{frame.kind.name} where {kind.name} has to be")
        return frame


def _alive(*, for_ever: bool = False) -> None:
    """The kernel ends this process (SIGALRM) when it does not come here again in time."""
    if _is_watched:
        signal.setitimer(signal.ITIMER_REAL, 0 if for_ever else limits.CLEANER_SILENT_S)


_is_watched = False


# -- the process -------------------------------------------------------------------------------------------------------


def set_nice(niceness: int) -> bool:
    """Whether the process may have it; a higher one it always may."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    except OSError:
        return False
    return True


def memory_bytes_of(job: CleaningJob) -> int:
    """What a job may take at most: its map; a batch as it is stored, unpacked, and as it is written, of which each
    record may take 13 bytes more than its 7 at least; what it was told, and what it has made of that.
    """
    told = 1024 * (len(job.producers) + len(job.aborted) + len(job.sources))
    batch = 5 * job.decompressed_bytes_max + 3 * max(job.batch_bytes_max, limits.REQUEST_BYTES_MAX)
    return job.dedupe_bytes + batch + told + limits.CLEANER_MEMORY_BYTES_BESIDE


def _bound_memory(job: CleaningJob) -> None:
    """What is asked for above it is refused, and ends the job."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _address_space_bytes() + memory_bytes_of(job)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


def _address_space_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as sizes:  # noqa: PTH123 (pathlib is not imported otherwise)
        return int(sizes.read().split()[0]) * resource.getpagesize()


def _first_to_go() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:  # noqa: PTH123
            score.write("500")
    except OSError:
        pass


def _prepare(job: CleaningJob) -> None:
    """In the job's own process, whose niceness is that of the broker until here: it can be raised by anybody, and
    lowered by the privileged alone.
    """
    if not job.is_urgent:
        set_nice(_NICE)
    _first_to_go()
    _bound_memory(job)


def _serve_in_child(connection: socket.socket, pace: SharedPace, work: Work, parent_pid: int) -> int:
    """The exit code."""
    global _is_watched  # noqa: PLW0603 (a process has one alarm)
    if not die_with(parent_pid):
        return EXIT_FAILED
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _is_watched = True
    try:
        CleaningConversation(
            connection, pace, work.clean, end=partial(os._exit, EXIT_FAILED), void=work.void
        ).serve(_prepare)
    except CoreGoneError:
        return EXIT_FAILED
    return EXIT_OK


def run(options: CleanerOptions, work: Work) -> int:
    """Until nobody has come for `idle_s`. Returns the exit code. The process has a group of its own, by which the
    supervisor knows what it leaves behind when it is killed.
    """
    os.setpgid(0, 0)
    door, pace = socket.socket(fileno=options.door_fd), SharedPace(options.pace_fd)
    parent_pid = os.getpid()
    waiting = select.poll()
    waiting.register(door, select.POLLIN)
    while waiting.poll(options.idle_s * 1000):
        try:
            connection = take_out(door)
        except EOFError:
            break
        if connection is None:
            continue
        with connection:
            child = os.fork()
            if child == 0:
                code = EXIT_FAILED
                try:
                    door.close()
                    code = _serve_in_child(connection, pace, work, parent_pid)
                except BaseException:  # noqa: BLE001 (nothing of it may get into the loop above)
                    traceback.print_exc()
                finally:
                    os._exit(code)
        os.waitpid(child, 0)
    return EXIT_OK


def main(arguments: list[str]) -> int:
    options = CleanerOptions.from_argument(arguments[0])
    if not die_with(options.supervisor_pid):
        return EXIT_FAILED
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED_SIGNALS)  # blocked by the supervisor, for the time up to here
    from tpc_broker.cleaner.cleaning_run import (  # noqa: PLC0415 (what the jobs' processes share)
        SourceChangedError,
        clean,
    )

    return run(options, Work(clean, SourceChangedError))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
