"""`connect` and the `Client` it gives: everything a program asks of a cluster, in one place."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from tpc_broker.client.net.fleet import Fleet, FleetSettings
from tpc_broker.client.net.tasks import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import TaskGroup

    from tpc_broker.client.net.fleet import Dial


class Reachable(Protocol):
    """What `connect` takes in place of an address: where, and a way there of its own (`tpc_broker.testing`)."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def dial(self) -> Dial: ...


class Client:
    """Made by `connect`. All of its tasks belong to one event loop."""

    def __init__(self, fleet: Fleet, tasks: TaskGroup) -> None:
        self.fleet = fleet
        self._tasks = tasks


@asynccontextmanager
async def connect(bootstrap: str | Reachable, *, client_id: str = "tpc") -> AsyncIterator[Client]:
    """A client of the cluster that has a broker at ``bootstrap`` (host:port, several with commas; or a `MemoryBroker`).

    `ValueError` for an address that is none. Nothing is sent before something is asked for.
    """
    where, dial = (bootstrap, None) if isinstance(bootstrap, str) else (bootstrap.bootstrap, bootstrap.dial)
    async with opened(FleetSettings(where, client_id), dial) as client:
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
