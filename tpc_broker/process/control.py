"""The control channel between the supervisor and one core: JSON lines over a Unix socket pair.

Supervisor to core: ``drain`` (with a deadline), ``cores`` (which cores are up), ``status`` (asks for counters),
``backup`` (see `backup_hold`), ``renew`` (read certificates and keys of tokens again). Core to supervisor: ``opened``,
``ready``, ``owned`` (partitions of a topic, for datagrams), ``cleaners`` (core 0's: how many there may be, and how
fast), ``status`` (its counters), ``drained``, ``cannot_run`` (a reason that a restart does not mend).

End of file from the supervisor's side means that it is gone, and the core ends at once: no core
outlives its supervisor.
"""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import trio

from tpc_broker import limits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Message = dict[str, Any]

TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Sent to every process of a terminal's group or of a service; cores ignore them and drain when the channel says so."""


class ControlChannel:
    """One end. ``send`` is whole lines, one sender at a time; ``receive`` iterates until end of file."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._stream = trio.SocketStream(sock)
        self._lock = trio.Lock()

    async def send(self, kind: str, **fields: object) -> bool:
        """False when the other side is gone."""
        line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        try:
            async with self._lock:
                await self._stream.send_all(line)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    async def receive(self) -> AsyncIterator[Message]:
        buffered = b""
        while True:
            try:
                data = await self._stream.receive_some(65536)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if not data:
                return
            buffered += data
            if len(buffered) > limits.CONTROL_LINE_BYTES_MAX:
                raise RuntimeError("control channel: a line is longer than its limit")
            *lines, buffered = buffered.split(b"\n")
            for line in lines:
                yield json.loads(line)

    async def close(self) -> None:
        await self._stream.aclose()
