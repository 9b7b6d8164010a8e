"""`connect` and the `Client` it gives: everything a program asks of a cluster, in one place."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tpc_broker.client.net.fleet import Fleet, FleetSettings
from tpc_broker.client.net.settings import fleet_settings
from tpc_broker.client.net.tasks import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import TaskGroup

    from tpc_broker.client.codecs.codec import Codec
    from tpc_broker.client.codecs.topics import Topic
    from tpc_broker.client.net.fleet import Dial
    from tpc_broker.client.net.settings import AuthSettings
    from tpc_broker.client.security import TlsSettings

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
async def connect(  # noqa: PLR0913 - what there is to say, by keyword
    bootstrap: str,
    *,
    client_id: str = "tpc",
    tls: TlsSettings | bool | None = None,
    auth: AuthSettings | None = None,
    rack: str = "",
    connect_seconds: float = 10.0,
    request_seconds: float = 30.0,
    retry_seconds: float = 120.0,
) -> AsyncIterator[Client]:
    """A client of the cluster that has a broker at ``bootstrap`` (host:port, several with commas).

    ``client_id`` names the program to the brokers (quotas, logs). ``tls``: True for TLS with the certificates that the
    system trusts, or `TlsSettings`; a broker that cannot prove its name is not talked to. ``auth``: `SaslSettings` for
    PLAIN and SCRAM, `OAuthSettings` for tokens; without ``tls``, PLAIN and tokens can be read by the network. ``rack``:
    where this program runs, for reading from replicas nearby.

    Times in seconds: ``connect_seconds`` for one connection with TLS and login, ``request_seconds`` for one answer,
    ``retry_seconds`` for an operation with all its repetitions: what may be tried again is an error only after that.

    `ValueError` says what is wrong with an argument. `AuthenticationError`: certificates or a key cannot be used.
    Nothing is sent before something is asked for.
    """
    settings = fleet_settings(
        bootstrap, client_id=client_id, tls=tls, auth=auth, rack=rack,
        connect_seconds=connect_seconds, request_seconds=request_seconds, retry_seconds=retry_seconds,
    )  # fmt: skip
    async with opened(settings) as client:
        yield client


@asynccontextmanager
async def opened(settings: FleetSettings, dial: Dial | None = None) -> AsyncIterator[Client]:
    """`connect` with all settings; ``dial``: another way to the brokers than the network."""
    async with background_tasks() as tasks:
        fleet = Fleet(settings, tasks) if dial is None else Fleet(settings, tasks, dial)
        try:
            yield Client(fleet, tasks)
        finally:
            fleet.close()
