"""The supervisor's cleaners: started when a core has a job for one, `log.cleaner.threads` at most.

Cores and cleaners share a pair of sockets that only they have (`cleaner_door`): a core sends its end of a conversation
into it, a cleaner takes the next one out. What nobody takes is a job that waits, which the supervisor sees. So a broker
that compacts nothing has no cleaner, and one that dies is started again only when there is something for it, with
back-off. Cleaners have nothing that could be lost, and are killed when they are too many or the broker drains. When
none comes up, again and again, who waits is told so.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker import limits
from tpc_broker.cleaner.cleaner_door import make_door, take_out
from tpc_broker.cleaner.cleaner_frames import Failure, encode_failure
from tpc_broker.cleaner.cleaner_process import CleanerOptions
from tpc_broker.cleaner.shared_pace import SharedPace
from tpc_broker.metadata.cleaner_settings import cleaning_bounds
from tpc_broker.process.started_process import describe_exit, start_process, wait_for

if TYPE_CHECKING:
    import socket
    import subprocess
    from collections.abc import Sequence

    from tpc_broker.metadata.broker_config import Settings

log = logging.getLogger(__name__)

COMMAND: Final = (sys.executable, "-m", "tpc_broker.cleaner.cleaner_process")
LACKING_AFTER: Final = 3
"""Cleaners that did not come up, one after the other: then there are none for now."""
_REAP_S: Final = 0.05
_TAKEN_WITHIN_S: Final = 0.2
"""By a cleaner that is idle: who waits for longer needs another one."""


class Cleaners:
    """All of a node. `command`: of one, without its options."""

    def __init__(self, command: Sequence[str] = COMMAND, *, idle_s: float = limits.CLEANER_IDLE_S) -> None:
        self._command = command
        self._idle_s = idle_s
        self._pace = SharedPace.make()
        self._waiting, self._door = make_door()
        self._threads = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._changed = trio.Event()
        self._delay_ms = self._failures_count = 0
        self._not_before_s = 0.0

    @property
    def door_fd(self) -> int:
        """To be handed to each core."""
        return self._door.fileno()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def follow(self, settings: Settings) -> None:
        """As they are now."""
        self.set_bounds(cleaning_bounds(settings).threads, settings.log_cleaner_io_max_bytes_per_second)

    def set_bounds(self, threads: int, bytes_per_second: float) -> None:
        """How many cleaners there may be, and what they read and write together."""
        self._pace.set_rate(bytes_per_second)
        self._threads = threads
        for process in self._processes[threads:]:
            process.kill()
        self._has_changed()

    def end(self) -> None:
        """For good: none is started any more."""
        self.set_bounds(0, 0.0)

    async def run(self) -> None:
        """Until cancelled; then they are gone, and so is the door."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await self._wait_wanted()
                    if trio.current_time() < self._not_before_s:
                        await trio.sleep_until(self._not_before_s)
                    elif (started := self._started()) is not None:
                        nursery.start_soon(self._live, *started)
        finally:
            self.end()
            self._waiting.close()
            self._door.close()
            self._pace.close()

    async def _wait_wanted(self) -> None:
        """Until a job waits that no cleaner takes, and there may be one more of them."""
        while True:
            while len(self._processes) >= self._threads:
                await self._changed.wait()
            await trio.lowlevel.wait_readable(self._waiting)
            if self._processes:
                with trio.move_on_after(_TAKEN_WITHIN_S):
                    await self._changed.wait()
            if len(self._processes) < self._threads and _has_waiting(self._waiting):
                return

    def _started(self) -> tuple[subprocess.Popen[bytes], int] | None:
        options = CleanerOptions(self._waiting.fileno(), self._pace.fd, os.getpid(), self._idle_s)
        command = [*self._command, options.to_argument()]
        try:
            process, life_fd = start_process(command, [options.door_fd, options.pace_fd])
        except OSError as error:  # descriptors, processes or memory are short
            self._failed(f"a cleaner could not be started: {error}")
            return None
        self._processes.append(process)
        return process, life_fd

    async def _live(self, process: subprocess.Popen[bytes], life_fd: int) -> None:
        """Wait for its end, and reap it."""
        began_s = trio.current_time()
        try:
            code = await wait_for(process, life_fd)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(life_fd)
            is_surplus = self._processes.index(process) >= self._threads
            self._processes.remove(process)
        if (trio.current_time() - began_s) * 1000 >= limits.CORE_HEALTHY_MS:
            self._delay_ms = self._failures_count = 0
        if code != 0 and not is_surplus:
            self._failed(f"a cleaner ended ({describe_exit(code)}); one is started again when there is a job")
        self._has_changed()
        await _reap_group(process.pid)

    def _failed(self, reason: str) -> None:
        """The next one waits, longer each time."""
        self._failures_count += 1
        log.error("%s", reason)
        if self._failures_count >= LACKING_AFTER:
            self._refuse(f"{reason}; that was {self._failures_count} times in a row")
        doubled_ms = max(2 * self._delay_ms, limits.CORE_RESTART_DELAY_MS_MIN)
        self._delay_ms = min(doubled_ms, limits.CORE_RESTART_DELAY_MS_MAX)
        self._not_before_s = trio.current_time() + self._delay_ms / 1000

    def _refuse(self, reason: str) -> None:
        """Whoever waits asks again later."""
        refusal = encode_failure(Failure(reason))
        while _has_waiting(self._waiting):
            with suppress(OSError):  # descriptors are short, or the core has gone
                if (waits := take_out(self._waiting)) is not None:
                    with waits:
                        waits.sendall(refusal)

    def _has_changed(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()


async def _reap_group(group: int) -> None:
    """A job whose cleaner was killed is killed by the kernel. Where the supervisor is PID 1, it is its parent then."""
    while True:
        try:
            pid, _status = os.waitpid(-group, os.WNOHANG)  # noqa: ASYNC222 (it does not wait)
        except ChildProcessError:
            return
        if not pid:
            await trio.sleep(_REAP_S)


def _has_waiting(waiting: socket.socket) -> bool:
    poll = select.poll()
    poll.register(waiting, select.POLLIN)
    return bool(poll.poll(0))
