"""Kafka and ours with an authorizer, as in `test_differential`: rules of access, and what they decide."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.integration.differential import scenarios_acls, scenarios_rights, scenarios_rules
from tests.integration.differential.access_dialogue import ACCESS_SCENARIOS, SETTINGS, AccessDialogue, Peer, begin
from tests.integration.differential.comparison import Referee, Side
from tests.integration.differential.intended import INTENDED
from tests.integration.differential.intended_of_acls import INTENDED_OF_ACLS
from tests.support.sasl_brokers import SaslBroker, SaslKafka

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]

assert scenarios_acls
assert scenarios_rights
assert scenarios_rules

_AGAINST_KAFKA = os.environ.get("TPC_TEST_BROKER") == "kafka"
_CORES = [1] if _AGAINST_KAFKA else [1, 2]
_referee = Referee(None if _AGAINST_KAFKA else [*INTENDED, *INTENDED_OF_ACLS])


def _started(peer: Peer) -> Iterator[Side]:
    try:
        yield Side(peer, begin(peer), ACCESS_SCENARIOS, AccessDialogue)
    finally:
        peer.stop()


@pytest.fixture(scope="module")
def kafka(kafka_tools, tmp_path_factory) -> Iterator[Side]:
    yield from _started(SaslKafka(tmp_path_factory.mktemp("kafka"), SETTINGS))


@pytest.fixture(scope="module", params=_CORES)
def ours(request, tmp_path_factory) -> Iterator[Side]:
    folder = tmp_path_factory.mktemp(f"ours-{request.param}")
    if _AGAINST_KAFKA:
        yield from _started(SaslKafka(folder, SETTINGS))
        return
    yield from _started(SaslBroker(folder, request.param, {"group.initial.rebalance.delay.ms": "0", **SETTINGS}))


@pytest.mark.parametrize("name", sorted(ACCESS_SCENARIOS))
def test_same_answers(kafka, ours, name):
    _referee.judge(name, kafka, ours)


def test_every_intended_difference_still_occurs():
    if _AGAINST_KAFKA or len(_referee.completed) < len(ACCESS_SCENARIOS):
        pytest.skip("only after a complete run against our broker")
    gone = {one.name for one in INTENDED_OF_ACLS if one.occurs} - _referee.seen
    assert not gone, f"these differences are listed, but no longer there: {sorted(gone)}"
