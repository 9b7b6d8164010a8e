"""`connect` and the `Client` it gives: everything a program asks of a cluster, in one place."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tpc_broker.client.net.fleet import Fleet, FleetSettings
from tpc_broker.client.net.tasks import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import TaskGroup

    from tpc_broker.client.codecs.codec import Codec
    from tpc_broker.client.codecs.topics import Topic

K = TypeVar("K")
V = TypeVar("V")


class Client:
    """Made by `connect`. All of its tasks belong to one event loop."""

    def __init__(self, fleet: Fleet, tasks: TaskGroup) -> None:
        self.fleet = fleet
        self._tasks = tasks

    @overload
    def topic(self, name: str) -> Topic[bytes, bytes | None]: ...
    @overload
    def topic(self, name: str, *, value: Codec[V]) -> Topic[bytes, V]: ...
    @overload
    def topic(self, name: str, *, key: Codec[K]) -> Topic[K, bytes | None]: ...
    @overload
    def topic(self, name: str, *, key: Codec[K], value: Codec[V]) -> Topic[K, V]: ...
    def topic(self, name: str, *, key: Codec[Any] | None = None, value: Codec[Any] | None = None) -> Topic[Any, Any]:
        """A topic whose keys and values have types, to send to and read from: `tpc_broker.client.codecs`.

        Without a codec they are bytes. A key may always be missing; a value that may be null has the codec
        ``Nullable(…)``. Nothing is asked of the cluster yet.
        """
        from tpc_broker.client.codecs import Bytes  # noqa: PLC0415 - who sends bytes needs none
        from tpc_broker.client.codecs.topics import Topic  # noqa: PLC0415

        return Topic(self, name, Bytes() if key is None else key, Bytes() if value is None else value)


@asynccontextmanager
async def connect(bootstrap: str, *, client_id: str = "tpc") -> AsyncIterator[Client]:
    """A client of the cluster that has a broker at ``bootstrap`` (host:port, several with commas).

    `ValueError` for an address that is none. Nothing is sent before something is asked for.
    """
    settings = FleetSettings(bootstrap, client_id)
    async with background_tasks() as tasks:
        fleet = Fleet(settings, tasks)
        try:
            yield Client(fleet, tasks)
        finally:
            fleet.close()
