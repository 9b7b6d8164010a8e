"""Which brokers coordinate groups and transactional ids."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.client.errors import RefusedError, refusal_of
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import ApiKey, messages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.client.cluster import Cluster
    from tpc_broker.client.connection import Connection

_MANY_VERSION: Final = 4
"""Of FindCoordinator: from it on, several at once."""


class CoordinatorKind(IntEnum):
    """Kafka's `key_type`."""

    GROUP = 0
    TRANSACTION = 1

    def __str__(self) -> str:
        return "group" if self is CoordinatorKind.GROUP else "transactional id"


class Coordinator(NamedTuple):
    broker_id: int
    host: str
    port: int


def find_coordinators(cluster: Cluster, kind: CoordinatorKind, names: Iterable[str]) -> dict[str, Coordinator]:
    """Asked once, without trying again. Of several names where the broker knows the question (Kafka 3.0)."""
    asked = list(names)

    def make(version: int) -> Any:
        if version >= _MANY_VERSION:
            return messages.FindCoordinatorRequest(key_type=kind, coordinator_keys=asked)
        (one,) = asked
        return messages.FindCoordinatorRequest(key=one, key_type=kind)

    answer = cluster.any_connection().call(ApiKey.FIND_COORDINATOR, make)
    found = {}
    for row in answer.coordinators or [answer]:
        name = row.key if answer.coordinators else asked[0]
        if row.error_code:
            raise refusal_of(row, f"the coordinator of {kind} {name}")
        found[name] = Coordinator(row.node_id, row.host, row.port)
    return found


def connections_to_coordinators(
    cluster: Cluster, kind: CoordinatorKind, names: Iterable[str]
) -> dict[tuple[int, Connection], list[str]]:
    """Brokers with an idle connection to each, and which of the names belong there. Asked once."""
    found: dict[tuple[int, Connection], list[str]] = {}
    for name, coordinator in find_coordinators(cluster, kind, names).items():
        connection = cluster.connection_to_broker(coordinator.broker_id)
        if connection is None:
            text = f"{kind} {name}: broker {coordinator.broker_id} is not in the cluster"
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        found.setdefault((coordinator.broker_id, connection), []).append(name)
    return found


def connection_to_coordinator(cluster: Cluster, kind: CoordinatorKind, name: str) -> Connection:
    ((_broker_id, connection),) = connections_to_coordinators(cluster, kind, [name])
    return connection
