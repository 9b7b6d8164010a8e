"""A socket on trio, which is waited for by trio itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import trio

from tpc_broker.client.net.wires import PlainWire, broken

if TYPE_CHECKING:
    from tpc_broker.client.net.wires import Receiver


class TrioWire(PlainWire):
    async def receive_into(self, buffer: memoryview) -> int:
        while True:
            try:
                return self._socket.recv_into(buffer)
            except BlockingIOError:
                await self._readable()
            except OSError as error:
                raise broken(self.node, error) from error

    async def push_to(self, receiver: Receiver) -> None:
        """What did not fill the buffer was all there is: the kernel is not asked a second time for each answer."""
        is_more = False
        while True:
            if self._socket.fileno() < 0:  # the receiver may have closed it
                raise anyio.ClosedResourceError
            buffer = receiver.buffer()
            try:
                if not is_more:
                    await trio.lowlevel.wait_readable(self._socket)
                count = self._socket.recv_into(buffer)
            except BlockingIOError:
                count = -1
            except trio.ClosedResourceError:
                raise anyio.ClosedResourceError from None
            except OSError as error:
                raise broken(self.node, error) from error
            if count > 0:
                receiver.received(count)
            elif not count:
                return
            is_more = count == len(buffer)

    async def _readable(self) -> None:
        try:
            await trio.lowlevel.wait_readable(self._socket)
        except trio.ClosedResourceError:
            raise anyio.ClosedResourceError from None
