"""Kafka and ours have compacted topics, and clean them while they are asked, as in `test_differential`.

With TPC_TEST_BROKER=kafka a second Kafka takes the place of ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.integration.differential.comparison import Referee, Side
from tests.integration.differential.dialogue import first_epoch_of, warm_up
from tests.integration.differential.intended import INTENDED
from tests.integration.differential.intended_of_compaction import INTENDED_OF_COMPACTION
from tests.integration.differential.intended_of_transactions import INTENDED_OF_TRANSACTIONS
from tests.integration.differential.scenarios_compaction import COMPACTION_SCENARIOS, OF_KAFKA, SETTINGS
from tests.support.broker_process import TpcBroker
from tests.support.kafka_peer import KafkaPeer
from tests.support.server_process import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]

_AGAINST_KAFKA = os.environ.get("TPC_TEST_BROKER") == "kafka"
_referee = Referee(None if _AGAINST_KAFKA else [*INTENDED, *INTENDED_OF_TRANSACTIONS, *INTENDED_OF_COMPACTION])


def _started(peer: Broker) -> Iterator[Side]:
    peer.start()
    try:
        warm_up(peer)
        yield Side(peer, first_epoch_of(peer), COMPACTION_SCENARIOS)
    finally:
        peer.stop()


@pytest.fixture(scope="module")
def kafka(kafka_tools, tmp_path_factory) -> Iterator[Side]:
    yield from _started(KafkaPeer(tmp_path_factory.mktemp("kafka"), SETTINGS | OF_KAFKA))


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Iterator[Side]:
    folder = tmp_path_factory.mktemp("ours")
    other = KafkaPeer(folder, SETTINGS | OF_KAFKA) if _AGAINST_KAFKA else TpcBroker(folder, 2, SETTINGS)
    yield from _started(other)


@pytest.mark.parametrize("name", sorted(COMPACTION_SCENARIOS))
def test_same_answers(kafka, ours, name):
    _referee.judge(name, kafka, ours)


def test_every_intended_difference_still_occurs():
    if _AGAINST_KAFKA or len(_referee.completed) < len(COMPACTION_SCENARIOS):
        pytest.skip("only after a complete run against our broker")
    gone = {one.name for one in INTENDED_OF_COMPACTION if one.occurs} - _referee.seen
    assert not gone, f"these differences are listed, but no longer there: {sorted(gone)}"
