"""Requests that carry batches to a broker: how they are written, and how their answers are read."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.client import requests
from tpc_broker.client.conversation import Request
from tpc_broker.kafka import ApiKey
from tpc_broker.native_bytes import ffi, pinned

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.client.net.channel import Channel
    from tpc_broker.client.producer.batch import Batch
    from tpc_broker.client.producer.lane import Lane

ALONE_BYTES_MAX: Final = 16 * 1024
"""Of a request with one record that is written in one go."""


class Link:
    """A channel as the sender sees it."""

    __slots__ = ("_arounds", "_make_request", "_room", "channel", "ready", "requests_count", "version")

    def __init__(self, channel: Channel, make_request: Callable[..., Any]) -> None:
        self.channel = channel
        self._make_request = make_request
        self.version = channel.version(ApiKey.PRODUCE)
        self.ready: OrderedDict[Lane, None] = OrderedDict()
        self.requests_count = 0
        """Under way."""
        self._arounds: dict[Lane, Around] = {}
        self._room = ffi.new("uint8_t[]", ALONE_BYTES_MAX)

    @property
    def is_usable(self) -> bool:
        return not self.channel.is_closed

    def around(self, lane: Lane, version: int) -> Around:
        found = self._arounds.get(lane)
        if found is None or found.version != version:
            found = self._arounds[lane] = Around(self.channel, lane, version, self._make_request, self._room)
        return found


class Around:
    """What lies around a partition's batch in the requests of one connection, and around its place in their answers:
    the same each time.
    """

    __slots__ = ("_alone", "_kept", "_request", "_room", "_written", "expected", "version")

    def __init__(
        self, channel: Channel, lane: Lane, version: int, make_request: Callable[..., Any], room: Any
    ) -> None:
        where = lane.where
        self.version = version
        self._request = request = channel.prepare(ApiKey.PRODUCE, version, lambda blob: make_request({where: blob}))
        self.expected = requests.appended_answer(where, version)
        self._alone = alone = ffi.new("tpc_packed_around *")
        alone.head, alone.head_bytes, head = pinned(request.head)
        alone.tail, alone.tail_bytes, tail = pinned(request.tail)
        alone.is_compact = request.is_compact
        self._kept = head, tail
        self._room, self._written = room, ffi.buffer(room)

    def frame(self, correlation_id: int, batch: Batch) -> list[Any]:
        """Of the request with a batch."""
        if batch.data is None:
            used = batch.write_alone(self._room, ALONE_BYTES_MAX, self._alone, correlation_id)
            if used > 0:
                return [self._written[:used]]
        return self._request.frame(correlation_id, batch.encoded())


class Attempt(Request):
    """To deliver batches, one of a lane. Its answer is a tuple when it is what one of a single batch is to be: base
    offset, and time of appending in ms. ``around`` is for a single one only; more are in ``message``.
    """

    __slots__ = ("_around", "_on_answer", "link", "taken")

    def __init__(
        self,
        on_answer: Callable[[Attempt, Any], None],
        link: Link,
        version: int,
        taken: list[tuple[Lane, Batch]],
        around: Around | None,
    ) -> None:
        self.key = ApiKey.PRODUCE
        self.version = version
        self._on_answer = on_answer
        self.link = link
        self.taken = taken
        self._around = around

    def frame(self, correlation_id: int, client_id: str) -> list[Any]:
        if self._around is None:
            return super().frame(correlation_id, client_id)
        return self._around.frame(correlation_id, self.taken[0][1])

    def read(self, frame: Any) -> Any:
        if self._around is not None:
            numbers = self._around.expected.read(frame, self.correlation_id)
            if numbers is not None:
                return numbers
        return super().read(frame)

    def answered(self, given: Any) -> None:
        self._on_answer(self, given)
