"""A question to a broker and what its answer means, as one value without I/O.

Whoever has a connection asks: a blocking one with `over`, a channel of the asynchronous client with `through`. Modules
of one subject (`configs`, `users`, `transactions` …) make exchanges in functions called ``to_…``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.client.connection import Connection
    from tpc_broker.client.net.channel import Channel
    from tpc_broker.kafka import ApiKey

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Exchange(Generic[T]):
    """``make`` gives the request in a version, ``read`` the meaning of the answer; it raises `RefusedError`."""

    key: ApiKey
    make: Callable[[int], Any]
    read: Callable[[Any], T]

    def over(self, connection: Connection) -> T:
        return self.read(connection.call(self.key, self.make))

    async def through(self, channel: Channel, version_max: int | None = None) -> T:
        return self.read(await channel.call(self.key, self.make, version_max))
