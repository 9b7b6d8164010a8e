"""Which core has a partition, and what partitions cost their cores, as each node tells it: at any listener."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.cli.info import CORES_PER_NODE
from tpc_broker.cli.told_facts import facts_told
from tpc_broker.client.errors import ClientError
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.routing import CoreUse, loads_between

if TYPE_CHECKING:
    from tpc_broker.client.cluster import Cluster

LOADS_TAG: Final = 10_001
TRIES_S: Final = 15.0
AGAIN_S: Final = 0.2


class NodeUse(NamedTuple):
    """One node at one moment. `owners`: the core of each partition that the node has."""

    node: int
    uses: dict[int, CoreUse[TopicPartition]]
    owners: dict[TopicPartition, int]


def node_uses(client: Cluster) -> list[NodeUse]:
    """Of every node, by its number."""
    answer = client.any_connection().call(ApiKey.DESCRIBE_CLUSTER, _asked)
    brokers = sorted(row.broker_id for row in answer.brokers)
    first = {broker // CORES_PER_NODE: broker for broker in reversed(brokers)}
    return [_node_use(client, broker) for _node, broker in sorted(first.items())]


def loads_measured(client: Cluster, seconds: float) -> list[tuple[NodeUse, dict[TopicPartition, float]]]:
    """The nodes as they are after so many seconds, and what of a CPU each of their partitions took meanwhile."""
    before, began_s = {one.node: one for one in node_uses(client)}, time.monotonic()
    time.sleep(seconds)
    after, took_s = node_uses(client), time.monotonic() - began_s
    return [(one, _loads(before[one.node], one, took_s) if one.node in before else {}) for one in after]


def _loads(before: NodeUse, after: NodeUse, seconds: float) -> dict[TopicPartition, float]:
    loads: dict[TopicPartition, float] = {}
    for core, use in after.uses.items():
        if core in before.uses:
            loads.update(loads_between(before.uses[core], use, seconds))
    return loads


def _asked(_version: int) -> Any:
    return messages.DescribeClusterRequest()


def _node_use(client: Cluster, broker: int) -> NodeUse:
    give_up_s = time.monotonic() + TRIES_S
    while True:
        connection = client.connection_to_broker(broker) or client.any_connection()
        _answer, frame = connection.call_tagged(ApiKey.DESCRIBE_CLUSTER, _asked, LOADS_TAG)
        facts = facts_told(frame, LOADS_TAG)
        if facts is not None:
            return _decoded(facts)
        if time.monotonic() > give_up_s:
            raise ClientError(
                f"node {broker // CORES_PER_NODE} does not say what its cores have to do: one of them is not up, or "
                "it runs an earlier release"
            )
        time.sleep(AGAIN_S)


def _decoded(facts: dict[str, Any]) -> NodeUse:
    uses = {}
    for row in facts["cores"]:
        costs = {TopicPartition(topic, index): cost for topic, index, cost in row["costs_ns"]}
        uses[row["core"]] = CoreUse(row["cpu_ns"], costs)
    owners = {
        TopicPartition(topic, index): core
        for topic, cores in facts["owners"].items()
        for index, core in enumerate(cores)
        if core >= 0  # else it has no replica there
    }
    return NodeUse(facts["node"], uses, owners)

