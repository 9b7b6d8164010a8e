"""What handlers are given, and what they give back."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tpc_broker.kafka.message import Message

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tpc_broker.auth.principals import Subject


class Request(Protocol):
    """One request as the connections hand it over; its bytes are valid until it is answered."""

    connection: int
    api_key: int
    api_version: int
    correlation_id: int
    received_ns: int  # by the monotonic clock
    listener: int
    """Number of the listener that its connection came to: addresses in the answer are those of this listener."""
    fallback_reason: int
    """Why the data plane has left a Produce just now (`ports.ProduceFallback`); 0: it was not asked."""
    throttle_ms: int  # to be said in the answer, by who is connected to the client
    subject: Subject
    """Who asks, from when the dispatcher has begun with it; NOBODY before. A closed connection does not change it."""

    @property
    def client_id(self) -> str | None: ...
    @property
    def body(self) -> memoryview: ...


@dataclass(slots=True)
class ForwardedRequest:
    """What a handler sees of a request that came from another core."""

    api_key: int
    api_version: int
    client_id: str | None
    body: memoryview
    listener: int
    """Its number on the node that the request came to."""
    peer: str
    """The client's address, as its own core knows it."""
    listener_name: str
    subject: Subject
    """Who asks."""
    connection: int = -1
    correlation_id: int = -1
    received_ns: int = 0
    fallback_reason: int = 0
    throttle_ms: int = 0
    is_from_node: bool = False
    """It came from another node, which takes this one for the leader of the metadata."""


@dataclass(frozen=True, slots=True)
class EncodedResponse:
    """A response body that is encoded already."""

    body: bytes


Handled = Message | EncodedResponse | None
"""A handler's result: the response, or None when it has answered by itself."""


async def settled(result: Handled | Awaitable[Handled]) -> Handled:
    """Of a handler that waits, or of one that does not."""
    return await result if inspect.isawaitable(result) else result
