"""Kafka and ours have a listener whose clients log in, as in `test_differential`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.differential.comparison import Referee, Side
from tests.integration.differential.intended_of_sasl import INTENDED_OF_SASL
from tests.integration.differential.scenarios_sasl import SASL_SCENARIOS, SETTINGS
from tests.support.sasl_brokers import LoginLine, SaslBroker, SaslKafka, make_users
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]

_referee = Referee(INTENDED_OF_SASL)


def _started(peer: SaslBroker | SaslKafka) -> Iterator[Side]:
    peer.start()
    try:
        make_users(peer.bootstrap)

        def are_known() -> bool:
            """Kafka answers before its broker has them."""
            with LoginLine(peer) as line:
                return line.log_in("bob", mechanism="SCRAM-SHA-512")["ErrorCode"] == 0

        eventually(are_known, "the users can log in")
        yield Side(peer, 0, SASL_SCENARIOS)
    finally:
        peer.stop()


@pytest.fixture(scope="module")
def kafka(kafka_tools, tmp_path_factory) -> Iterator[Side]:
    yield from _started(SaslKafka(tmp_path_factory.mktemp("kafka"), SETTINGS))


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Iterator[Side]:
    yield from _started(SaslBroker(tmp_path_factory.mktemp("ours"), 1, SETTINGS))


@pytest.mark.parametrize("name", sorted(SASL_SCENARIOS))
def test_same_answers(kafka, ours, name):
    _referee.judge(name, kafka, ours)


def test_every_intended_difference_still_occurs():
    if len(_referee.completed) < len(SASL_SCENARIOS):
        pytest.skip("only after a complete run")
    gone = {one.name for one in INTENDED_OF_SASL if one.occurs} - _referee.seen
    assert not gone, f"these differences are listed, but no longer there: {sorted(gone)}"
