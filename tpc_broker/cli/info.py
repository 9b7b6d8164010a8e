"""``tpc info``: what the cluster consists of, and what it can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tpc_broker.cli.connection import common_options, print_json, print_table
from tpc_broker.cli.own_client import own_client
from tpc_broker.cli.told_facts import facts_told
from tpc_broker.client import configs
from tpc_broker.client.configs import Resource
from tpc_broker.client.errors import ClientError, RefusedError
from tpc_broker.client.requests import in_any_version, metadata_request
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.kafka.api_keys import api

if TYPE_CHECKING:
    from tpc_broker.client.cluster import Cluster
    from tpc_broker.client.connection import Connection

CORES_PER_NODE = 1024
OURS = "durability.default"
"""A setting that only tpc-broker has."""
RELEASES_TAG = 10_002
COLUMNS = ("Broker", "Node", "Core", "Address", "Rack", "Leads", "Controller", "Release")


@click.command()
@click.option("--apis", is_flag=True, help="Each API that is offered, with its versions.")
@common_options
def info(apis: bool, bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Nodes, their cores, addresses and releases, what is offered, and how much there is."""
    with own_client(bootstrap) as cluster:
        told = _look(cluster)
    if as_json:
        print_json(told)
        return
    if apis:
        print_table(("API", "Versions"), [(one["name"], f"{one['first']}-{one['last']}") for one in told["apis"]])
        return
    facts = [
        ("Cluster", told["cluster_id"]),
        ("Broker", told["software"]),
        ("Brokers", len(told["brokers"])),
        ("Topics", told["topics"]),
        ("Partitions", f"{told['partitions']} ({told['partitions_without_leader']} without a leader)"),
        ("APIs", len(told["apis"])),
        *((f"Feature {one['name']}", _of_feature(one)) for one in told["features"]),
    ]
    print_table(("", ""), facts)
    rows = [{**row, "controller": "yes" if row["controller"] else ""} for row in told["brokers"]]
    print_table(COLUMNS, [tuple(row.values()) for row in rows])


def _look(cluster: Cluster) -> dict[str, Any]:
    connection = cluster.any_connection()
    offered = connection.call(ApiKey.API_VERSIONS, _asked_versions)
    everything = connection.call(ApiKey.METADATA, in_any_version(metadata_request(None)))
    is_ours = _is_ours(cluster, everything.brokers[0].node_id)
    releases = _releases(connection) if is_ours else {}
    levels = {row.name: row.max_version_level for row in offered.finalized_features}
    partitions = [partition for topic in everything.topics for partition in topic.partitions]
    leaders = [partition.leader_id for partition in partitions]
    return {
        "cluster_id": everything.cluster_id,
        "software": "tpc-broker" if is_ours else "another that speaks the Kafka protocol",
        "topics": sum(not topic.is_internal for topic in everything.topics),
        "partitions": len(partitions),
        "partitions_without_leader": leaders.count(-1),
        "brokers": [
            {**(told := _broker(row, leaders, everything.controller_id, is_ours=is_ours)),
             "release": releases.get(str(told["node"]))}
            for row in everything.brokers
        ],
        "apis": [
            {"name": api(row.api_key).name if row.api_key in _KNOWN else f"API {row.api_key}",
             "first": row.min_version, "last": row.max_version}
            for row in offered.api_keys
        ],
        "features": [
            {"name": row.name, "first": row.min_version, "last": row.max_version, "level": levels.get(row.name)}
            for row in offered.supported_features
        ],
    }  # fmt: skip


def _of_feature(one: dict[str, Any]) -> str:
    """What is spoken there, and where the cluster is."""
    level = "" if one["level"] is None else f"; the cluster is at {one['level']}"
    return f"{one['first']}-{one['last']}{level}"


def _releases(connection: Connection) -> dict[str, str]:
    """By the node's number; nothing of an earlier release."""
    try:
        _answer, frame = connection.call_tagged(ApiKey.DESCRIBE_CLUSTER, _asked_cluster, RELEASES_TAG)
    except ClientError:
        return {}
    found: dict[str, str] = (facts_told(frame, RELEASES_TAG) or {}).get("releases", {})
    return found


def _asked_cluster(_version: int) -> Any:
    return messages.DescribeClusterRequest()


_KNOWN = frozenset(int(key) for key in ApiKey)


def _asked_versions(_version: int) -> Any:
    return messages.ApiVersionsRequest(client_software_name="tpc", client_software_version="1")


def _is_ours(cluster: Cluster, broker_id: int) -> bool:
    try:
        return any(one.name == OURS for one in configs.describe(cluster, Resource.BROKER, str(broker_id)))
    except RefusedError:  # not let in to see settings
        return False


def _broker(row: Any, leaders: list[int], controller_id: int, *, is_ours: bool) -> dict[str, Any]:
    node, core = divmod(row.node_id, CORES_PER_NODE) if is_ours else (row.node_id, None)
    return {
        "broker": row.node_id,
        "node": node,
        "core": core,
        "address": f"{row.host}:{row.port}",
        "rack": row.rack,
        "leads": leaders.count(row.node_id),
        "controller": row.node_id == controller_id,
    }
