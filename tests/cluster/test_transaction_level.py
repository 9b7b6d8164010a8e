"""Transactions on a cluster at a level that has none: clients are told what is to be done, and are served from when the
level is raised.
"""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException, Producer

from tests.cluster.test_releases import features
from tests.support.cluster_nodes import cluster, consume, create_topic, eventually, run_tpc
from tests.support.waiting import PATIENCE_S
from tpc_broker.feature_levels import FIRST_OF_CLUSTERS, FIRST_WITH_TRANSACTIONS

pytestmark = pytest.mark.cluster

REASON = "This cluster has no transactions below feature level 5: tpc cluster level --raise 5"


def producer_of(bootstrap: str) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "log_level": 0})


def test_transactions_are_refused_below_the_level_and_served_from_it_on(tmp_path):
    with cluster(tmp_path) as made:
        for node in made.nodes:
            node.environment["TPC_TEST_FEATURE_LEVELS"] = f"{FIRST_OF_CLUSTERS}-{FIRST_WITH_TRANSACTIONS - 1}"
            node.overrides["transaction.state.log.num.partitions"] = "3"
        made.start()
        for node in made.nodes:
            node.stop()
            node.environment.clear()
            made.start(node.number)
        create_topic(made.bootstrap, "late", 1, replicas=3)
        assert features(made, 1, "transaction.version") == (0, (0, 2)), "as it was founded"
        with pytest.raises(KafkaException, match=REASON) as caught:
            producer_of(made.bootstrap).init_transactions(PATIENCE_S)
        assert caught.value.args[0].fatal()
        code, said = run_tpc("cluster", "level", "--raise", str(FIRST_WITH_TRANSACTIONS), "--bootstrap", made.bootstrap)
        assert code == 0, said
        for node in made.nodes:
            eventually(lambda node=node: features(made, node.number, "transaction.version")[0] == 2, "all have it")
        producer = producer_of(made.bootstrap)
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("late", b"moved", partition=0)
        producer.commit_transaction(PATIENCE_S)
        assert consume(made.bootstrap, "late", 1, "reader") == ["moved"]
