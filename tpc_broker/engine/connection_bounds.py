"""The bounds of a core's client connections: those of the settings, within what the process may have."""

from __future__ import annotations

import logging
import resource
from dataclasses import replace
from typing import TYPE_CHECKING

from tpc_broker import limits
from tpc_broker.engine.connections import ConnectionLimits
from tpc_broker.storage.segments.files import FILE_DESCRIPTORS_MAX, most_open_files

if TYPE_CHECKING:
    from tpc_broker.engine.connections import Connections
    from tpc_broker.metadata.broker_config import Settings

log = logging.getLogger(__name__)


def connections_bound(descriptors_max: int) -> int:
    """How many connections a core holds at most that may have so many descriptors: what its segments and its own
    sockets need is left, so that clients alone never keep it from its files.
    """
    if descriptors_max == resource.RLIM_INFINITY:
        return limits.CONNECTIONS_MAX
    files = FILE_DESCRIPTORS_MAX * most_open_files(descriptors_max)
    room = descriptors_max - files - limits.DESCRIPTORS_KEPT
    return min(limits.CONNECTIONS_MAX, max(room, descriptors_max // 4))


def connections_max(settings: Settings) -> int:
    """How many a core holds now; a line says so where that is not what was set."""
    descriptors_max, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    bound, wanted = connections_bound(descriptors_max), min(settings.max_connections, limits.CONNECTIONS_MAX)
    if bound < wanted:
        log.log(
            logging.INFO if settings.max_connections > limits.CONNECTIONS_MAX else logging.WARNING,
            "a core holds %d connections at most, not %d (max.connections): it may have %d descriptors; "
            "tpc-broker doctor says how to raise that", bound, wanted, descriptors_max,
        )  # fmt: skip
    least = min(limits.CONNECTIONS_MIN, bound)
    if wanted < least:
        log.warning(
            "a core holds %d connections all the same, not %d (max.connections): that would lock everybody out",
            least, wanted,
        )  # fmt: skip
    return max(least, min(wanted, bound))


def connections_per_ip_max(settings: Settings) -> int:
    wanted, least = settings.max_connections_per_ip, limits.CONNECTIONS_PER_IP_MIN
    if wanted < least:
        log.warning(
            "a core holds %d connections of an address all the same, not %d (max.connections.per.ip): "
            "that would lock everybody out", least, wanted,
        )  # fmt: skip
    return max(least, wanted)


def connection_limits(settings: Settings) -> ConnectionLimits:
    return ConnectionLimits(
        connections_max=connections_max(settings),
        connections_per_ip_max=connections_per_ip_max(settings),
        request_bytes_max=settings.socket_request_max_bytes,
        authentication_bytes_max=settings.sasl_server_max_receive_size,
        pipelined_requests_max=limits.PIPELINED_REQUESTS_MAX,
        send_deadline_ms=limits.SEND_DEADLINE_MS,
        idle_ms_max=max(0, settings.connections_max_idle_ms),
        budget_bytes=max(limits.CORE_BUDGET_BYTES, settings.socket_request_max_bytes * 2),
    )


# Rule: Limits of connections act at once where they are altered, on all cores, and never lock everybody out. Those of
# an address count everybody who is there, also from before. See also native/net/peer_counts.c. Held by
# tests/engine/test_connections_bound.py, tests/engine/test_connections_per_ip.py.
class ConnectionBounds:
    """Of one core: what may change of them while it runs."""

    def __init__(self, connections: Connections, settings: Settings) -> None:
        """`settings`: those that the connections were made with."""
        self._connections = connections
        self._obeyed = _set(settings)

    def follow(self, settings: Settings) -> None:
        """Obey what is set now. Connections above a bound that has become lower stay."""
        if _set(settings) == self._obeyed:
            return
        self._obeyed = _set(settings)
        before = self._connections.limits
        now = replace(
            before,
            connections_max=connections_max(settings),
            connections_per_ip_max=connections_per_ip_max(settings),
        )
        if now == before:
            return
        self._connections.set_limits(now)
        log.info(
            "a core holds %d connections at most now (max.connections), and %d of one address (max.connections.per.ip)",
            now.connections_max, now.connections_per_ip_max,
        )  # fmt: skip


def _set(settings: Settings) -> tuple[int, int]:
    return settings.max_connections, settings.max_connections_per_ip
