"""Bounds of a core at which clients are turned away in C: looked at with every beat of the core."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.engine.connections import CloseReason
from tpc_broker.storage.upkeep.refusals import Refusals

if TYPE_CHECKING:
    from tpc_broker.engine.connections import Connections


class Turned(NamedTuple):
    """How many were turned away since the start, for one reason, and what is to be known about it now."""

    times: int
    reason: str


class RefusalWatch:
    """Of one core's connections."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._states = (
            Refusals("the limit of connections is reached", what="connections"),
            Refusals("an address has as many connections as one may have", what="connections"),
            Refusals("connections cannot be accepted", what="attempts"),
            Refusals("memory is short", what="connections"),
        )
        self._seen = [turned.times for turned in self._turned()]

    def _turned(self) -> tuple[Turned, ...]:
        now, bounds = self._connections.statistics(), self._connections.limits
        return (
            Turned(now.refused - now.refused_per_ip, f"max.connections is {bounds.connections_max}"),
            Turned(now.refused_per_ip, f"max.connections.per.ip is {bounds.connections_per_ip_max}"),
            Turned(now.accept_failures, "the process has no more file descriptors, or the machine no memory"),
            Turned(
                now.closed_by_reason[CloseReason.BUDGET],
                f"{now.budget_bytes_used} of {bounds.budget_bytes} bytes are in use; unfinished requests are closed",
            ),
        )

    def look(self) -> None:
        for index, (turned, state) in enumerate(zip(self._turned(), self._states, strict=True)):
            before, self._seen[index] = self._seen[index], turned.times
            if turned.times > before:
                state.refused(turned.reason, turned.times - before)
            else:
                state.succeeded()
