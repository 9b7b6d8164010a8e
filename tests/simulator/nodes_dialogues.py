"""Connections of clients to the cores of simulated nodes: requests and answers as bytes, as a client library's."""

from __future__ import annotations

import trio

from tests.simulator.nodes_network import NodeNetwork
from tpc_broker.kafka.protocol import decode_response_frame, encode_request, encode_request_header
from tpc_broker.kafka.source import uvarint

HOST = "clients"
"""Of all of them: its ways are never cut."""
CLIENT_ID = "a-client"
SIZE_BYTES = ID_BYTES = 4
ENDS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel)


class Dialogues:
    """One client's, one connection to each core, which ends with that core. One request is under way at a time."""

    def __init__(self, network, name):
        self._network = NodeNetwork(network, HOST, f"client {name}", gives_up_s=None)
        self._streams: dict[tuple[str, int], _Frames] = {}
        self._asked = 0

    async def ask(self, place, key, version, message, answer_s, tag=None):
        """What the core at that host and port answers. None: there was no connection, or it has ended, or no answer
        came in time; then the connection is closed.
        """
        self._asked += 1
        body = _tagged(encode_request(key, version, message), tag)
        data = encode_request_header(key, version, self._asked, CLIENT_ID) + body
        with trio.move_on_after(answer_s):
            try:
                return await self._exchange(place, data, key, version)
            except ENDS:
                pass
        await self.close(place)
        return None

    async def _exchange(self, place, data, key, version):
        if place not in self._streams:
            self._streams[place] = _Frames(await self._network.dial(*place))
        frames = self._streams[place]
        await frames.send(data)
        while True:
            answer = await frames.receive()
            if int.from_bytes(answer[:ID_BYTES]) == self._asked:  # not one to a question that was given up
                return decode_response_frame(key, version, answer)[1]

    async def close(self, place):
        found = self._streams.pop(place, None)
        if found is not None:
            await found.stream.aclose()


class _Frames:
    def __init__(self, stream):
        self.stream, self._data = stream, bytearray()

    async def send(self, data):
        await self.stream.send_all(len(data).to_bytes(SIZE_BYTES) + data)

    async def receive(self):
        return await self._take(int.from_bytes(await self._take(SIZE_BYTES)))

    async def _take(self, size):
        while len(self._data) < size:
            data = await self.stream.receive_some()
            if not data:
                raise trio.EndOfChannel
            self._data += data
        taken = bytes(self._data[:size])
        del self._data[:size]
        return taken


def _tagged(body, tag):
    """With an empty tagged field; the request ends with the number of such fields, which is none."""
    return body if tag is None else body[:-1] + b"\1" + uvarint(tag) + b"\0"
