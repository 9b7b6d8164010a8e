"""Settings of topics, brokers, groups and client metrics: DescribeConfigs with the explanation of each, and
IncrementalAlterConfigs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from tpc_broker.client.cluster import Cluster
from tpc_broker.client.connection import Connection
from tpc_broker.client.errors import RefusedError
from tpc_broker.client.exchange import Exchange
from tpc_broker.client.requests import in_any_version
from tpc_broker.kafka import ApiKey, messages

_SET, _DELETE = 0, 1


class Resource(IntEnum):
    """What has settings."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


SOURCES: Final = {
    1: "topic", 2: "broker, altered", 3: "all brokers, altered", 4: "broker, given at the start", 5: "default",
    6: "broker logger", 7: "client metrics", 8: "group",
}  # fmt: skip
"""Where a value comes from, by Kafka's number."""


@dataclass(frozen=True, slots=True)
class Setting:
    """`value` and `default` are None where there is none, or it is a secret."""

    name: str
    value: str | None
    source: str
    default: str | None
    read_only: bool
    documentation: str


def to_describe(kind: Resource, name: str) -> Exchange[list[Setting]]:
    request = messages.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(resource_type=int(kind), resource_name=name, configuration_keys=None)
    message = request(resources=[resource], include_synonyms=True, include_documentation=True)

    def read(response: messages.DescribeConfigsResponse) -> list[Setting]:
        (result,) = response.results
        _check(result)
        return sorted((_setting(row) for row in result.configs), key=lambda one: one.name)

    return Exchange(ApiKey.DESCRIBE_CONFIGS, in_any_version(message), read)


def to_alter(
    kind: Resource, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
) -> Exchange[None]:
    request = messages.IncrementalAlterConfigsRequest
    rows = [
        request.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
        for key, value in changes.items()
    ]
    resource = request.AlterConfigsResource(resource_type=int(kind), resource_name=name, configs=rows)
    message = request(resources=[resource], validate_only=validate_only)

    def read(response: messages.IncrementalAlterConfigsResponse) -> None:
        for result in response.responses:
            _check(result)

    return Exchange(ApiKey.INCREMENTAL_ALTER_CONFIGS, in_any_version(message), read)


def broker_asked(kind: Resource, name: str) -> int | None:
    """A broker answers for itself alone. None: any can be asked."""
    return int(name) if kind is Resource.BROKER and name.isdecimal() else None


def describe(cluster: Cluster, kind: Resource, name: str) -> list[Setting]:
    """All settings of one thing of this kind, by name. Of brokers: by the id ("": what was altered for all of them)."""
    return cluster.answered(lambda: to_describe(kind, name).over(_place(cluster, kind, name)))


def alter(
    cluster: Cluster, kind: Resource, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
) -> None:
    """Set, or where the value is None, unset; all of it or nothing."""
    exchange = to_alter(kind, name, changes, validate_only=validate_only)
    cluster.answered(lambda: exchange.over(_place(cluster, kind, name)))


def _place(cluster: Cluster, kind: Resource, name: str) -> Connection:
    """A broker that is not known is asked for at any, which says so."""
    broker_id = broker_asked(kind, name)
    found = None if broker_id is None else cluster.connection_to_broker(broker_id)
    return found or cluster.any_connection()


def _check(result: Any) -> None:
    if result.error_code:
        raise RefusedError(result.error_code, result.error_message or f"settings of {result.resource_name}")


def _setting(row: Any) -> Setting:
    source = SOURCES.get(row.config_source, str(row.config_source))
    default = next((one.value for one in row.synonyms if one.source == 5), None)
    return Setting(row.name, row.value, source, default, row.read_only, row.documentation or "")
