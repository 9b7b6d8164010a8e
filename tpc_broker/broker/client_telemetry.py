"""Metrics that clients push to this core (KIP-714): between its requests and the machine of `tpc_broker.telemetry`.

What is pushed is decompressed and read in a helper thread, one push of this core at a time: a client may make that take
long, and then the next push waits and not everybody's requests. When too many wait, clients are told to come later;
what a connection has pushed that is gone meanwhile is not read.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from tpc_broker import limits
from tpc_broker.broker.client_software import ClientSoftware
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.telemetry.pushed.instances import Given, Instances, Push, TelemetryStatistics
from tpc_broker.telemetry.pushed.payload import PayloadError, read_push
from tpc_broker.telemetry.pushed.subscriptions import client_of

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from tpc_broker.broker.dispatch import CoreWithClients
    from tpc_broker.broker.handled import Request
    from tpc_broker.telemetry.pushed.aggregates import Gauge
    from tpc_broker.telemetry.pushed.subscriptions import Client

log = logging.getLogger(__name__)


class ClientTelemetry:
    def __init__(self, core: CoreWithClients) -> None:
        self._core = core
        self.software = ClientSoftware(
            core.connections, lambda: core.plane.forget_answers(int(ApiKey.API_VERSIONS))
        )
        self._instances = Instances()
        self._reading = trio.Lock()
        self._unread = 0
        """Pushes that were taken, with the one that is being read."""

    def follow(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Other subscriptions."""
        for name, fault in self._instances.follow(configs).items():
            text = f"client metrics subscription {name} is for nobody: {fault}"
            self._core.log_limiter.say(log, "client metrics", name, text)

    def closed(self, connection: int) -> None:
        self._instances.closed(connection)

    def ask(self, request: Request, instance_id: uuid.UUID) -> Given | ErrorCode:
        core = self._core
        return self._instances.ask(
            instance_id, request.connection, lambda found: self._describe(request, found), core.chance.uuid, self._now()
        )

    def push(self, request: Request, push: Push) -> ErrorCode:
        """NONE: it is taken, and `read` is to follow."""
        if self._unread > limits.TELEMETRY_PUSHES_WAITING_MAX:
            return self._instances.too_many()
        error = self._instances.push(
            push, request.connection, lambda found: self._describe(request, found), self.bytes_max, self._now()
        )
        self._unread += not error
        return error

    async def read(self, request: Request, push: Push, data: memoryview) -> ErrorCode:
        try:
            pushed = None
            if data:
                async with self._reading:
                    if not self._core.dispatcher.is_open(request.connection):
                        return ErrorCode.NONE  # nobody hears it
                    bytes_max = min(self.bytes_max, limits.TELEMETRY_BYTES_MAX)
                    pushed = await self._core.in_thread(read_push, push.compression, data, bytes_max)
        except PayloadError as error:
            client = str(push.instance_id)
            text = f"metrics that a client has pushed cannot be read: {error} (client instance {client})"
            self._core.log_limiter.say(log, "metrics of a client", client, text)
            return self._instances.unreadable(push)
        finally:
            self._unread -= 1
        self._instances.taken(push, pushed)
        return ErrorCode.NONE

    @property
    def bytes_max(self) -> int:
        """Of one push, as it comes and decompressed."""
        return self._core.settings.telemetry_max_bytes

    def statistics(self) -> TelemetryStatistics:
        return self._instances.statistics(self._now())

    def gauges(self) -> dict[str, Gauge]:
        """What all instances of this core say together, by names of `telemetry.pushed.standard`."""
        return self._instances.aggregates.gauges()

    def growths(self) -> dict[str, float]:
        return self._instances.aggregates.growths()

    def _describe(self, request: Request, instance_id: uuid.UUID) -> Client:
        peer = self._core.dispatcher.peer_of(request.connection)
        return client_of(instance_id, request.client_id, self.software.of(request.connection), peer)

    def _now(self) -> int:
        return self._core.clock.monotonic_ms()
