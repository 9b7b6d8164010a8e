"""A proxy in front of a broker that holds requests of one kind: its client may be long gone when they come."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Final

from tests.support.waiting import PATIENCE_S

_SIZE: Final = struct.Struct(">i")
_API_KEY: Final = struct.Struct(">h")


class HoldingProxy:
    """Of one connection at a time, whose requests are answered one by one."""

    def __init__(self, target: str, holds: int) -> None:
        """`target`: the broker's address. `holds`: the API whose requests are held."""
        self._target, self._holds = target, holds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._held: SimpleQueue[bytes] = SimpleQueue()
        self._thread = threading.Thread(target=self._run)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def wait_held(self) -> bytes:
        """The next request that is held, as it came."""
        return self._held.get(timeout=PATIENCE_S)

    def deliver(self, request: bytes) -> bytes:
        """Send it on, however late, by a connection of its own; the answer, which nobody but the caller hears."""
        host, port = self._target.rsplit(":", 1)
        with socket.create_connection((host, int(port)), PATIENCE_S) as broker:
            broker.sendall(_SIZE.pack(len(request)) + request)
            answer = _frame(broker)
        assert answer is not None, "the broker has closed"
        return answer

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _address = self._listener.accept()
                with client:
                    self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        while (request := _frame(client)) is not None:
            if _API_KEY.unpack_from(request)[0] == self._holds:
                self._held.put(request)
                continue
            answer = self.deliver(request)
            client.sendall(_SIZE.pack(len(answer)) + answer)

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # while a thread accepts, closing it does not end that
        self._listener.close()
        self._thread.join(PATIENCE_S)

    @classmethod
    @contextlib.contextmanager
    def between(cls, target: str, holds: int) -> Iterator[HoldingProxy]:
        made = cls(target, holds)
        made._thread.start()
        try:
            yield made
        finally:
            made._close()


def _frame(sock: socket.socket) -> bytes | None:
    """None: it has ended."""
    head = sock.recv(_SIZE.size, socket.MSG_WAITALL)
    if len(head) < _SIZE.size:
        return None
    size = _SIZE.unpack(head)[0]
    found = sock.recv(size, socket.MSG_WAITALL)
    return found if len(found) == size else None
