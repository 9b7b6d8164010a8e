"""A socket on asyncio that stays registered with the loop: what it receives is cut and answered within the loop's
callback, without a task that is woken for it and without two system calls to register it anew each time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tpc_broker.client.net.wires import PlainWire, broken

if TYPE_CHECKING:
    from tpc_broker.client.net.wires import Receiver


class AsyncioWire(PlainWire):
    """`receive_into` is there as well, for TLS, which is shaken before anything is pushed."""

    _loop: asyncio.AbstractEventLoop | None = None
    _ended: asyncio.Future[None]
    _error: Exception | None = None

    async def push_to(self, receiver: Receiver) -> None:
        loop = asyncio.get_running_loop()
        ended = self._ended = loop.create_future()
        connected = self._socket

        def on_readable() -> None:
            try:
                count = connected.recv_into(receiver.buffer())
                if count:
                    receiver.received(count)
                else:
                    self._end(None)
            except BlockingIOError:
                return
            except OSError as error:
                self._end(broken(self.node, error))
            except Exception as error:  # noqa: BLE001 - it is raised by this coroutine, whatever it is
                self._end(error)

        try:
            loop.add_reader(connected, on_readable)
        except NotImplementedError:  # Windows: as anyio does it there
            while count := await self.receive_into(receiver.buffer()):
                receiver.received(count)
            return
        self._loop = loop
        try:
            await ended
        finally:
            self._unregister()
        if self._error is not None:
            raise self._error

    def _end(self, error: Exception | None) -> None:
        self._unregister()
        if not self._ended.done():
            self._error = error
            self._ended.set_result(None)

    def _unregister(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._socket)
            self._loop = None

    def close(self) -> None:
        if self._loop is not None:
            self._end(None)
        super().close()
