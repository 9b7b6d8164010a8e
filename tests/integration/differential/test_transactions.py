"""Kafka and ours have transactional ids, as in `test_differential`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.differential import scenarios_transaction_states
from tests.integration.differential.comparison import Referee, Side
from tests.integration.differential.dialogue import first_epoch_of, warm_up
from tests.integration.differential.intended import INTENDED
from tests.integration.differential.intended_of_transactions import INTENDED_OF_TRANSACTIONS
from tests.integration.differential.scenarios_transactions import SETTINGS, TRANSACTION_SCENARIOS
from tests.support.broker_process import TpcBroker
from tests.support.kafka_peer import KafkaPeer
from tests.support.server_process import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]

assert scenarios_transaction_states

_referee = Referee([*INTENDED, *INTENDED_OF_TRANSACTIONS])


def _started(peer: Broker) -> Iterator[Side]:
    peer.start()
    try:
        warm_up(peer)
        yield Side(peer, first_epoch_of(peer), TRANSACTION_SCENARIOS)
    finally:
        peer.stop()


@pytest.fixture(scope="module")
def kafka(kafka_tools, tmp_path_factory) -> Iterator[Side]:
    yield from _started(KafkaPeer(tmp_path_factory.mktemp("kafka"), SETTINGS))


@pytest.fixture(scope="module", params=[1, 2])
def ours(request, tmp_path_factory) -> Iterator[Side]:
    broker = TpcBroker(tmp_path_factory.mktemp(f"ours-{request.param}"), request.param, SETTINGS)
    yield from _started(broker)


@pytest.mark.parametrize("name", sorted(TRANSACTION_SCENARIOS))
def test_same_answers(kafka, ours, name):
    _referee.judge(name, kafka, ours)


def test_every_intended_difference_still_occurs():
    if len(_referee.completed) < len(TRANSACTION_SCENARIOS):
        pytest.skip("only after a complete run")
    gone = {one.name for one in INTENDED_OF_TRANSACTIONS if one.occurs} - _referee.seen
    assert not gone, f"these differences are listed, but no longer there: {sorted(gone)}"
