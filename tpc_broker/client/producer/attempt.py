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

_PRODUCE: Final = ApiKey.PRODUCE
ALONE_BYTES_MAX: Final = 16 * 1024
"""Of a request with one record that is written in one go."""


class Link:
    """A channel as the sender sees it."""

    __slots__ = (
        "_arounds", "_make_request", "channel", "on_answer", "ready", "requests_count", "room", "version", "written",
    )  # fmt: skip

    def __init__(
        self, channel: Channel, make_request: Callable[..., Any], on_answer: Callable[[Attempt, Any], None]
    ) -> None:
        self.channel = channel
        self._make_request = make_request
        self.on_answer = on_answer
        self.version = channel.version(ApiKey.PRODUCE)
        self.ready: OrderedDict[Lane, None] = OrderedDict()
        self.requests_count = 0
        """Under way."""
        self._arounds: dict[Lane, Around] = {}
        self.room = ffi.new("uint8_t[]", ALONE_BYTES_MAX)
        """For a request to be written, and what is there."""
        self.written = ffi.buffer(self.room)

    @property
    def is_usable(self) -> bool:
        return not self.channel.is_closed

    def around(self, lane: Lane, version_max: int) -> Around:
        """For a batch of a lane, in a version that the session allows."""
        found = self._arounds.get(lane)
        if found is None or found.version_max != version_max:
            version = min(self.version, version_max)
            found = self._arounds[lane] = Around(self.channel, lane, version, self._make_request)
            found.version_max = version_max
        return found


class Around:
    """What lies around a partition's batch in the requests of one connection, and around its place in their answers:
    the same each time.
    """

    __slots__ = ("_kept", "alone", "expected", "request", "version", "version_max")

    version_max: int
    """When it was made."""

    def __init__(self, channel: Channel, lane: Lane, version: int, make_request: Callable[..., Any]) -> None:
        where = lane.where
        self.version = version
        self.request = request = channel.prepare(ApiKey.PRODUCE, version, lambda blob: make_request({where: blob}))
        self.expected = requests.appended_answer(where, version)
        self.alone = alone = ffi.new("tpc_packed_around *")
        alone.head, alone.head_bytes, head = pinned(request.head)
        alone.tail, alone.tail_bytes, tail = pinned(request.tail)
        alone.is_compact = request.is_compact
        self._kept = head, tail


class Attempt(Request):
    """To deliver batches, one of a lane. Its answer is a tuple when it is what one of a single batch is to be: base
    offset, and time of appending in ms. ``around`` is for a single one only; more are in ``message``.
    """

    __slots__ = ("_around", "link", "taken")

    def __init__(self, link: Link, version: int, taken: list[tuple[Lane, Batch]], around: Around | None) -> None:
        self.key = _PRODUCE
        self.version = version
        self.link = link
        self.taken = taken
        self._around = around

    def frame(self, correlation_id: int, client_id: str) -> list[Any]:
        around = self._around
        if around is None:
            return super().frame(correlation_id, client_id)
        batch, link = self.taken[0][1], self.link
        if batch.data is None:
            used = batch.write_alone(link.room, ALONE_BYTES_MAX, around.alone, correlation_id)
            if used > 0:
                return [link.written[:used]]
        return around.request.frame(correlation_id, batch.encoded())

    def read(self, frame: Any) -> Any:
        if self._around is not None:
            numbers = self._around.expected.read(frame, self.correlation_id)
            if numbers is not None:
                return numbers
        return super().read(frame)

    def answered(self, given: Any) -> None:
        self.link.on_answer(self, given)
