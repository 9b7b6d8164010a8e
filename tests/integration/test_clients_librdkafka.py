"""librdkafka's own tests of transactions and of reading what was committed, against three nodes as it wants them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.cluster_nodes import Cluster, cluster
from tests.support.librdkafka_suite import LibrdkafkaUnavailableError, build_suite, run_suite

pytestmark = pytest.mark.clients

FEW: Final = {"offsets.topic.num.partitions": "5", "transaction.state.log.num.partitions": "5"}


@pytest.fixture(scope="module")
def suite() -> Path:
    try:
        return build_suite()
    except LibrdkafkaUnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def three_nodes(module_tmp_path) -> Iterator[Cluster]:
    with cluster(module_tmp_path / "nodes") as made:
        for node in made.nodes:
            node.overrides |= FEW
        made.start()
        yield made


@pytest.mark.parametrize(
    "names",
    [
        {"0061_consumer_lag"},
        {"0103_transactions", "0103_transactions_local"},
        {"0129_fetch_aborted_msgs"},
        {"0137_barrier_batch_consume"},
    ],
    ids=min,
)
def test_its_own_tests_pass(suite, three_nodes, tmp_path, names):
    passed, said = run_suite(suite, three_nodes.bootstrap, tmp_path, min(names)[:4])
    assert passed == names, said[-5000:]
