"""Kafka and our broker get the same requests in the same order; their decoded answers are compared field by field.

One Kafka runs for the session, and one broker of ours per number of cores. A failure shows the request, the paths
that differ and both whole answers. With TPC_TEST_BROKER=kafka a second Kafka takes the place of ours: then nothing
may differ at all, which is the proof that the normaliser hides what differs by nature and that scenarios are
deterministic.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.integration.differential import (
    scenarios_admin,
    scenarios_data,
    scenarios_groups,
    scenarios_protocol,
    scenarios_topics,
    scenarios_unset,
    scenarios_users,
)
from tests.integration.differential.comparison import Referee, Side
from tests.integration.differential.dialogue import SCENARIOS, first_epoch_of, warm_up
from tests.integration.differential.intended import INTENDED
from tests.support.broker_process import TpcBroker
from tests.support.kafka_peer import KafkaPeer
from tests.support.server_process import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]

assert scenarios_admin
assert scenarios_data
assert scenarios_groups
assert scenarios_protocol
assert scenarios_topics
assert scenarios_unset
assert scenarios_users

_AGAINST_KAFKA = os.environ.get("TPC_TEST_BROKER") == "kafka"
_CORES = [1] if _AGAINST_KAFKA else [1, 2]


_referee = Referee(None if _AGAINST_KAFKA else INTENDED)


def _started(peer: Broker) -> Side:
    peer.start()
    warm_up(peer)
    return Side(peer, first_epoch_of(peer), SCENARIOS)


@pytest.fixture(scope="session")
def kafka(kafka_tools, tmp_path_factory) -> Iterator[Side]:
    side = _started(KafkaPeer(tmp_path_factory.mktemp("kafka")))
    yield side
    side.peer.stop()


@pytest.fixture(scope="session")
def ours_by_cores(tmp_path_factory) -> Iterator[dict[int, Side]]:
    sides: dict[int, Side] = {}
    yield sides
    for side in sides.values():
        side.peer.stop()


@pytest.fixture
def ours(ours_by_cores, cores_count, tmp_path_factory) -> Side:
    if cores_count not in ours_by_cores:
        folder = tmp_path_factory.mktemp(f"ours-{cores_count}")
        ours = TpcBroker(folder, cores_count, {"group.initial.rebalance.delay.ms": "0"})
        peer = KafkaPeer(folder) if _AGAINST_KAFKA else ours
        ours_by_cores[cores_count] = _started(peer)
    return ours_by_cores[cores_count]


@pytest.mark.parametrize("name", sorted(SCENARIOS))
@pytest.mark.parametrize("cores_count", _CORES)
def test_same_answers(kafka, ours, name, cores_count):
    _referee.judge(name, kafka, ours, (name, cores_count))


def test_every_intended_difference_still_occurs():
    if _AGAINST_KAFKA or len(_referee.completed) < len(SCENARIOS) * len(_CORES):
        pytest.skip("only after a complete run against our broker")
    gone = {one.name for one in INTENDED if one.occurs} - _referee.seen
    assert not gone, f"these differences are listed, but no longer there: {sorted(gone)}"
