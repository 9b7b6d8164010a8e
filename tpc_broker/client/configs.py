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


def describe(cluster: Cluster, kind: Resource, name: str) -> list[Setting]:
    """All settings of one thing of this kind, by name. Of brokers: by the id ("": what was altered for all of them)."""
    request = messages.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(resource_type=int(kind), resource_name=name, configuration_keys=None)
    message = request(resources=[resource], include_synonyms=True, include_documentation=True)

    def ask() -> list[Setting]:
        response = _place(cluster, kind, name).call(ApiKey.DESCRIBE_CONFIGS, in_any_version(message))
        (result,) = response.results
        _check(result)
        return sorted((_setting(row) for row in result.configs), key=lambda one: one.name)

    return cluster.answered(ask)


def alter(
    cluster: Cluster, kind: Resource, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
) -> None:
    """Set, or where the value is None, unset; all of it or nothing."""
    request = messages.IncrementalAlterConfigsRequest
    rows = [
        request.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
        for key, value in changes.items()
    ]
    resource = request.AlterConfigsResource(resource_type=int(kind), resource_name=name, configs=rows)
    message = request(resources=[resource], validate_only=validate_only)

    def ask() -> None:
        response = _place(cluster, kind, name).call(ApiKey.INCREMENTAL_ALTER_CONFIGS, in_any_version(message))
        for result in response.responses:
            _check(result)

    cluster.answered(ask)


def _place(cluster: Cluster, kind: Resource, name: str) -> Connection:
    """A broker answers for itself alone; one that is not known is asked for at any, which says so."""
    if kind is Resource.BROKER and name.isdecimal():
        return cluster.connection_to_broker(int(name)) or cluster.any_connection()
    return cluster.any_connection()


def _check(result: Any) -> None:
    if result.error_code:
        raise RefusedError(result.error_code, result.error_message or f"settings of {result.resource_name}")


def _setting(row: Any) -> Setting:
    source = SOURCES.get(row.config_source, str(row.config_source))
    default = next((one.value for one in row.synonyms if one.source == 5), None)
    return Setting(row.name, row.value, source, default, row.read_only, row.documentation or "")
