"""Quotas of clients: DescribeClientQuotas and AlterClientQuotas (KIP-546)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tpc_broker.client.cluster import Cluster
from tpc_broker.client.errors import refusal_of
from tpc_broker.client.exchange import Exchange
from tpc_broker.client.requests import in_any_version
from tpc_broker.kafka import ApiKey, messages

USER, CLIENT_ID, IP = "user", "client-id", "ip"
_EXACT, _DEFAULT, _ANY = range(3)

Entity = Mapping[str, str | None]
"""Of whom quotas are: types with names, None for whoever has none of its own."""

QUOTAS: Final = {
    "producer_byte_rate": "bytes a second that producers send",
    "consumer_byte_rate": "bytes a second that consumers get",
    "request_percentage": "percent of a core's time",
    "controller_mutation_rate": "partitions a second that are made or deleted",
    "connection_creation_rate": "new connections a second",
}
"""By Kafka's names."""


@dataclass(frozen=True, slots=True)
class ClientQuota:
    entity: Entity
    values: Mapping[str, float]


def describe_quotas(cluster: Cluster, entity: Entity) -> list[ClientQuota]:
    """Those that name all of these types with these names, and perhaps others too; without any, all there are."""
    return cluster.answered(lambda: to_describe(entity).over(cluster.any_connection()))


def alter_quotas(
    cluster: Cluster, entity: Entity, changes: Mapping[str, float | None], *, validate_only: bool = False
) -> None:
    """Set, or where the value is None, remove; all of it or nothing. RefusedError: the broker does not take it."""
    exchange = to_alter(entity, changes, validate_only=validate_only)
    cluster.answered(lambda: exchange.over(cluster.any_connection()))


def to_describe(entity: Entity) -> Exchange[list[ClientQuota]]:
    kind = messages.DescribeClientQuotasRequest
    components = [
        kind.ComponentData(entity_type=of_type, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for of_type, name in entity.items()
    ]
    message = kind(components=components, strict=False)

    def read(answer: messages.DescribeClientQuotasResponse) -> list[ClientQuota]:
        if answer.error_code:
            raise refusal_of(answer, "quotas")
        return [
            ClientQuota(
                {one.entity_type: one.entity_name for one in entry.entity}, {one.key: one.value for one in entry.values}
            )
            for entry in answer.entries or ()
        ]

    return Exchange(ApiKey.DESCRIBE_CLIENT_QUOTAS, in_any_version(message), read)


def to_alter(
    entity: Entity, changes: Mapping[str, float | None], *, validate_only: bool = False
) -> Exchange[None]:
    kind = messages.AlterClientQuotasRequest
    entry = kind.EntryData(
        entity=[kind.EntityData(entity_type=of_type, entity_name=name) for of_type, name in entity.items()],
        ops=[kind.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items()],
    )
    message = kind(entries=[entry], validate_only=validate_only)

    def read(answer: messages.AlterClientQuotasResponse) -> None:
        for one in answer.entries:
            if one.error_code:
                raise refusal_of(one, "quota")

    return Exchange(ApiKey.ALTER_CLIENT_QUOTAS, in_any_version(message), read)
