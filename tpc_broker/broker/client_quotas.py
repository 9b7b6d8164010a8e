"""Quotas of clients on one core: from the image to the connections, the time of requests, and what answers say.

The connections count bytes and mute whoever is above a quota (`native/net/connection_quota.c`). Here is what only
Python knows: the time that it takes itself, changes of topics (on the core that decides them), and which of its answers
say how long their client is throttled.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.broker.handled import EncodedResponse
from tpc_broker.broker.quotas_port import QuotaRow
from tpc_broker.kafka.api_keys import ApiKey, api
from tpc_broker.kafka.codec import codec
from tpc_broker.metadata.mutation_quotas import MutationQuotas, MutationTicket
from tpc_broker.metadata.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaIndex,
)
from tpc_broker.metadata.records import CLIENT_ID, IP, USER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping

    from tpc_broker.broker.core_ground import CoreGround
    from tpc_broker.broker.handled import Handled, Request
    from tpc_broker.kafka.message import Message
    from tpc_broker.metadata.image import ClusterImage, QuotaEntity

    Handle = Callable[[Request], Handled | Awaitable[Handled]]

_MUTATIONS: Final = frozenset((ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_TOPICS))
"""Their answers may say that their client is throttled, whichever core has decided."""
_STRICT_FROM: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.CREATE_PARTITIONS: 3, ApiKey.DELETE_TOPICS: 5}


class ClientQuotas:
    def __init__(self, core: CoreGround) -> None:
        self._core = core
        self._index = QuotaIndex({})
        self._mutations = MutationQuotas()
        self.counts_time = False
        """Whether there is a quota of the time of requests."""

    def follow(self, before: ClusterImage, after: ClusterImage) -> None:
        if before.client_quotas == after.client_quotas:
            return
        self._index = QuotaIndex(after.client_quotas)
        self.counts_time = REQUEST_PERCENTAGE in self._index.keys
        settings = self._core.settings
        windows = settings.quota_window_num, float(settings.quota_window_size_seconds)
        self._core.connections.set_quotas(windows, _rows(after.client_quotas), _addresses(after.client_quotas))

    def mutation(self, request: Request) -> MutationTicket:
        """For a request that changes topics, on the core that decides: whoever asked, on whichever core and node."""
        settings, core = self._core.settings, self._core
        principal = request.subject.principal
        burst_s = float(settings.controller_quota_window_num * settings.controller_quota_window_size_seconds)
        strict = request.api_version >= _STRICT_FROM[ApiKey(request.api_key)]
        return self._mutations.ticket(
            self._index, principal.name, request.client_id or "", core.clock.monotonic_ms(), burst_s, strict=strict
        )

    # -- what answers say ----------------------------------------------------------------------------------------------

    def told(self, request: Request, version: int, response: Message | EncodedResponse) -> Message | EncodedResponse:
        """The answer with the time for which the client is throttled; who has decided may have said some, too, and then
        the connection is muted for it.
        """
        may_wait = request.api_key in _MUTATIONS and CONTROLLER_MUTATION_RATE in self._index.keys
        if not request.throttle_ms and not may_wait:
            return response
        if not isinstance(response, EncodedResponse):
            self._tell(request, response)
            return response
        kind = codec(api(request.api_key).response_name, version)
        message = kind.decode(memoryview(response.body))
        self._tell(request, message)
        return EncodedResponse(b"".join(kind.encode_parts(message)))

    def _tell(self, request: Request, message: Message) -> None:
        said_ms: int | None = getattr(message, "throttle_time_ms", None)
        if said_ms is None:
            return
        if said_ms > request.throttle_ms:
            self._core.connections.mute(request.connection, said_ms)
        else:
            message.throttle_time_ms = request.throttle_ms  # type: ignore[attr-defined]

    # -- time ----------------------------------------------------------------------------------------------------------

    def timed(self, request: Request, handle: Handle) -> Handled | Awaitable[Handled]:
        """The result of a handler, whose time in Python is counted; what it waits for is not."""
        connection, client_id = request.connection, request.client_id or ""
        cpu_ns = self._core.clock.cpu_ns

        def count(began_ns: int) -> None:
            self._core.connections.spent(connection, client_id, cpu_ns() - began_ns)

        began_ns = cpu_ns()
        try:
            result = handle(request)
        finally:
            count(began_ns)
        return _Timed(result, cpu_ns, count) if inspect.isawaitable(result) else result


class _Timed:
    """Something to be awaited, each of whose steps is counted."""

    def __init__(self, waits: Awaitable[Handled], cpu_ns: Callable[[], int], count: Callable[[int], None]) -> None:
        self._waits, self._cpu_ns, self._count = waits, cpu_ns, count

    def __await__(self) -> Generator[Any, Any, Handled]:
        steps = self._waits.__await__()
        thrown: BaseException | None = None
        sent: Any = None
        while True:
            began_ns = self._cpu_ns()
            try:
                if thrown is not None and hasattr(steps, "throw"):
                    wanted = steps.throw(thrown)
                elif thrown is not None:
                    raise thrown
                else:
                    wanted = steps.send(sent) if hasattr(steps, "send") else next(steps)
            except StopIteration as done:
                result: Handled = done.value
                return result
            finally:
                self._count(began_ns)
            thrown, sent = None, None
            try:
                sent = yield wanted
            except BaseException as error:  # noqa: BLE001  (it is the waiting one's to handle)
                thrown = error


def _rows(quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> list[QuotaRow]:
    rows = []
    for entity, values in quotas.items():
        names = dict(entity)
        limits = tuple(values.get(key, 0.0) for key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE))
        if IP not in names and any(limits):
            rows.append(QuotaRow(_form(names, USER), _form(names, CLIENT_ID), *limits))
    return rows


def _form(names: Mapping[str, str | None], of_type: str) -> str | None:
    """None: it names none; "": any."""
    return (names[of_type] or "") if of_type in names else None


def _addresses(quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> dict[str | None, float]:
    """Of those that are about addresses."""
    found = {}
    for entity, values in quotas.items():
        names = dict(entity)
        if IP in names and CONNECTION_CREATION_RATE in values:
            found[names[IP]] = values[CONNECTION_CREATION_RATE]
    return found
