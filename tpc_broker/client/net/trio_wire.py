"""A socket on trio, which is waited for by trio itself."""

from __future__ import annotations

import anyio
import trio

from tpc_broker.client.net.wires import PlainWire, broken


class TrioWire(PlainWire):
    async def receive_into(self, buffer: memoryview) -> int:
        while True:
            try:
                return self._socket.recv_into(buffer)
            except BlockingIOError:
                try:
                    await trio.lowlevel.wait_readable(self._socket)
                except trio.ClosedResourceError:
                    raise anyio.ClosedResourceError from None
            except OSError as error:
                raise broken(self.node, error) from error
