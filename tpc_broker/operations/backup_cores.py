"""A backup's ends of the connections to the cores of the broker: the other ends are in `backup_hold`."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker import limits
from tpc_broker.model import CoreId
from tpc_broker.operations.backup_hold import PACKET_BYTES, peer_is_trusted
from tpc_broker.operations.backup_node import NodeCopy, joined_image
from tpc_broker.options import StartError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from tpc_broker.metadata.image import ClusterImage

MOMENT_ATTEMPTS: Final = 20
MOMENT_RETRY_S: Final = 0.1
HOLD_PATIENCE_S: Final = 60.0
"""For the cores to make their checkpoints."""
CATCH_UP_PATIENCE_S: Final = HOLD_PATIENCE_S + limits.BACKUP_CATCH_UP_MS / 1000


class JournalEnd(NamedTuple):
    """Where a core's journal was durable at the moment: the commit with this number, at this block, is not in it."""

    block: int
    sequence: int


@contextmanager
def of_cores() -> Iterator[None]:
    """What goes wrong between them and the backup, as StartError."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StartError(f"the cores' part of the backup failed: {error}; see the broker's log") from error


class HeldCores:
    """All of them, from their connections on. Errors: OSError (TimeoutError), ValueError, KeyError."""

    def __init__(self, listening: socket.socket, count: int) -> None:
        self._listening = listening
        self._count = count
        self._connections: list[socket.socket] = []
        self._cores: dict[socket.socket, CoreId] = {}
        self.stood_still_ms = 0.0
        """The one that did for longest. A core that comes late to "freeze" works until then."""

    def connect(self) -> None:
        self._listening.settimeout(HOLD_PATIENCE_S)
        for _core in range(self._count):
            connection, _address = self._listening.accept()
            self._connections.append(connection)
            if not peer_is_trusted(connection):
                raise ValueError("another user's process answered instead of a core")
            connection.settimeout(HOLD_PATIENCE_S)

    def catch_up(self, node: NodeCopy) -> None:
        """Of a cluster's node: its replicas have what their leaders have, those first whose records name others'."""
        for first in (True, False):
            for connection in self._connections:
                _send(connection, "catch_up", first=first)
            for connection in self._connections:
                connection.settimeout(CATCH_UP_PATIENCE_S)
                while (told := _receive(connection, "replicas", "caught_up"))["kind"] == "replicas":
                    node.note(told["rows"])
        for connection in self._connections:
            connection.settimeout(HOLD_PATIENCE_S)
            _send(connection, "hold")

    def wait_held(self) -> None:
        for connection in self._connections:
            self._cores[connection] = CoreId(int(_receive(connection, "held")["core"]))

    def fix_moment(self) -> dict[CoreId, JournalEnd]:
        """How far each journal was durable while all cores stood still. TimeoutError: they never did all at once."""
        for connection in self._connections:
            connection.settimeout(2 * limits.BACKUP_FREEZE_MS / 1000)
        for _attempt in range(MOMENT_ATTEMPTS):
            ends = self._try_moment()
            if ends is not None:
                return ends
            time.sleep(MOMENT_RETRY_S)
        raise TimeoutError(f"the machine is too busy: {MOMENT_ATTEMPTS} times the cores did not stand still at once")

    def _try_moment(self) -> dict[CoreId, JournalEnd] | None:
        began_s = time.monotonic()
        for connection in self._connections:
            _send(connection, "freeze")
        ends, late = {}, []
        for connection in self._connections:
            try:
                told = _receive(connection, "frozen")
                ends[self._cores[connection]] = JournalEnd(int(told["block"]), int(told["sequence"]))
            except TimeoutError:
                late.append(connection)
        for connection in self._connections:
            _send(connection, "abort" if late else "go")
        for connection in late:  # it comes to it in the end, finds "abort", and says both
            connection.settimeout(HOLD_PATIENCE_S)
            _receive(connection, "frozen")
            connection.settimeout(2 * limits.BACKUP_FREEZE_MS / 1000)
        went = [_receive(connection, "went") for connection in self._connections]
        at_most_ms = (time.monotonic() - began_s) * 1000  # earlier releases do not say more
        self.stood_still_ms = max(float(one.get("stood_still_ms", at_most_ms)) for one in went)
        return ends if all(one["in_time"] for one in went) else None

    def _check_still_held(self) -> None:
        for connection in self._connections:
            connection.setblocking(False)  # noqa: FBT003
            try:
                connection.recv(PACKET_BYTES)
            except BlockingIOError:
                continue
            raise ValueError(f"core {self._cores[connection]} waited for over {limits.BACKUP_HOLD_MS} ms and went on")

    def take_image(self) -> ClusterImage:
        """The metadata as core 0 had them at the moment."""
        connection = next(each for each, core in self._cores.items() if core == 0)
        connection.settimeout(HOLD_PATIENCE_S)
        _send(connection, "image")

        def parts() -> Iterator[str]:
            while part := str(_receive(connection, "image")["part"]):
                yield part

        return joined_image(parts())

    def release(self) -> None:
        """They make checkpoints again. ValueError: one does so already, so that its journal may be another by now."""
        self._check_still_held()
        for connection in self._connections:
            _send(connection, "release")

    def cuts(self) -> int:
        """How many logs of replicas were cut since they were held."""
        for connection in self._connections:
            connection.settimeout(HOLD_PATIENCE_S)
            _send(connection, "cuts")
        return sum(int(_receive(connection, "cuts")["count"]) for connection in self._connections)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


def _send(connection: socket.socket, kind: str, **fields: Any) -> None:
    connection.send(json.dumps({"kind": kind, **fields}).encode())


def _receive(connection: socket.socket, *kinds: str) -> dict[str, Any]:
    packet = connection.recv(PACKET_BYTES)
    if not packet:
        raise ValueError("a core went away")
    told: dict[str, Any] = json.loads(packet)
    if told["kind"] not in kinds:
        raise ValueError(f"a core said {told['kind']!r} instead of {' or '.join(map(repr, kinds))}")
    return told
