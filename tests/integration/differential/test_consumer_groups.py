"""Kafka and ours serve consumer groups of KIP-848, and groups that change their kind, as in `test_differential`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.integration.differential import (
    scenarios_consumer_groups,
    scenarios_consumer_patterns,
    scenarios_group_kinds,
    scenarios_group_migrations,
)
from tests.integration.differential.comparison import Referee, Side
from tests.integration.differential.consumer_members import CONSUMER_SCENARIOS, SETTINGS
from tests.integration.differential.dialogue import first_epoch_of, warm_up
from tests.integration.differential.intended import INTENDED
from tests.integration.differential.intended_of_consumer_groups import INTENDED_OF_CONSUMER_GROUPS
from tests.support.broker_process import TpcBroker
from tests.support.kafka_peer import KafkaPeer
from tests.support.server_process import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]

assert scenarios_consumer_groups
assert scenarios_consumer_patterns
assert scenarios_group_kinds
assert scenarios_group_migrations

_AGAINST_KAFKA = os.environ.get("TPC_TEST_BROKER") == "kafka"
_CORES = [1] if _AGAINST_KAFKA else [1, 2]
_referee = Referee(None if _AGAINST_KAFKA else [*INTENDED, *INTENDED_OF_CONSUMER_GROUPS])


def _started(peer: Broker) -> Iterator[Side]:
    peer.start()
    try:
        warm_up(peer)
        yield Side(peer, first_epoch_of(peer), CONSUMER_SCENARIOS)
    finally:
        peer.stop()


@pytest.fixture(scope="module")
def kafka(kafka_tools, tmp_path_factory) -> Iterator[Side]:
    yield from _started(KafkaPeer(tmp_path_factory.mktemp("kafka"), SETTINGS))


@pytest.fixture(scope="module", params=_CORES)
def ours(request, tmp_path_factory) -> Iterator[Side]:
    folder = tmp_path_factory.mktemp(f"ours-{request.param}")
    if _AGAINST_KAFKA:
        yield from _started(KafkaPeer(folder, SETTINGS))
        return
    yield from _started(TpcBroker(folder, request.param, {"group.initial.rebalance.delay.ms": "0", **SETTINGS}))


@pytest.mark.parametrize("name", sorted(CONSUMER_SCENARIOS))
def test_same_answers(kafka, ours, name):
    _referee.judge(name, kafka, ours)


def test_every_intended_difference_still_occurs():
    if _AGAINST_KAFKA or len(_referee.completed) < len(CONSUMER_SCENARIOS):
        pytest.skip("only after a complete run against our broker")
    gone = {one.name for one in INTENDED_OF_CONSUMER_GROUPS if one.occurs} - _referee.seen
    assert not gone, f"these differences are listed, but no longer there: {sorted(gone)}"
