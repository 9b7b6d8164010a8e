"""Three Kafka nodes and three of ours get the same administrative requests, as in `test_differential`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.integration.differential import scenarios_clusters
from tests.integration.differential.cluster_dialogue import BROKERS, CLUSTER_SCENARIOS, ClusterDialogue
from tests.integration.differential.comparison import Referee, Side
from tests.integration.differential.intended import INTENDED
from tests.integration.differential.intended_of_clusters import INTENDED_OF_CLUSTERS
from tests.support.cluster_nodes import brokers, cluster, eventually
from tests.support.kafka_peer import KafkaCluster
from tests.support.server_process import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]

assert scenarios_clusters

_AGAINST_KAFKA = os.environ.get("TPC_TEST_BROKER") == "kafka"
_SAME = {"default.replication.factor": "3", "auto.leader.rebalance.enable": "false"}
_referee = Referee(None if _AGAINST_KAFKA else [*INTENDED, *INTENDED_OF_CLUSTERS])


class OwnCluster:
    """Three nodes of ours as one peer; their first brokers have the ids of Kafka's."""

    name = "tpc"

    def __init__(self, nodes) -> None:
        self.nodes = nodes

    @property
    def ports(self) -> list[int]:
        return [node.ports[0] for node in self.nodes]


def _side(peer: Broker) -> Side:
    bootstrap = f"127.0.0.1:{peer.ports[0]}"
    eventually(lambda: brokers(bootstrap) == set(BROKERS), "all nodes are there")
    return Side(peer, 0, CLUSTER_SCENARIOS, ClusterDialogue)


def _kafka(folder) -> Iterator[Side]:
    peer = KafkaCluster(folder, BROKERS, _SAME)
    try:
        peer.start()
        yield _side(peer)
    finally:
        peer.kill()


@pytest.fixture(scope="module")
def kafka(kafka_tools, tmp_path_factory) -> Iterator[Side]:
    yield from _kafka(tmp_path_factory.mktemp("kafka"))


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Iterator[Side]:
    if _AGAINST_KAFKA:
        yield from _kafka(tmp_path_factory.mktemp("another"))
        return
    with cluster(tmp_path_factory.mktemp("ours")) as made:
        for node in made.nodes:
            node.overrides |= _SAME
            node.rack = f"rack {node.broker_id}"
        made.start()
        yield _side(OwnCluster(made.nodes))


@pytest.mark.parametrize("name", sorted(CLUSTER_SCENARIOS))
def test_same_answers(kafka, ours, name):
    _referee.judge(name, kafka, ours)


def test_every_intended_difference_still_occurs():
    if _AGAINST_KAFKA or len(_referee.completed) < len(CLUSTER_SCENARIOS):
        pytest.skip("only after a complete run against our nodes")
    gone = {one.name for one in INTENDED_OF_CLUSTERS if one.occurs} - _referee.seen
    assert not gone, f"these differences are listed, but no longer there: {sorted(gone)}"
