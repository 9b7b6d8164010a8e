"""Which transaction hangs in a partition: what the client makes of what it is told."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tpc_broker.client import transactions
from tpc_broker.client.cluster import Cluster
from tpc_broker.client.errors import RefusedError, UnreachableError
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.transactions import (
    Hanging,
    ListedTransaction,
    PartitionProducer,
    Transaction,
    find_hanging,
    to_tell_producers,
)
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
KNOWN = Transaction("mover", "Ongoing", 0, 7, 3, 60_000, 1, (HERE,))
OPEN = PartitionProducer(7, 3, 0, 5, 1, 100)


@pytest.mark.parametrize(
    ("transaction", "has_it"),
    [
        (KNOWN, True),
        (replace(KNOWN, partitions=(THERE,)), False),
        (replace(KNOWN, partitions=(HERE, THERE)), True),
        (replace(KNOWN, producer_id=8), False),
        (replace(KNOWN, producer_epoch=4), False),  # the transaction after it
        (replace(KNOWN, producer_epoch=4, state="PrepareCommit"), True),  # which has raised it
        (replace(KNOWN, producer_epoch=4, state="PrepareAbort"), True),
        (replace(KNOWN, state="CompleteAbort"), False),
        (replace(KNOWN, state="Empty"), False),
    ],
)
def test_what_a_coordinator_has_open(transaction, has_it):
    assert transaction.has_open(HERE, OPEN) is has_it


@pytest.mark.parametrize(
    ("known", "after", "hangs"),
    [
        (KNOWN, OPEN, False),
        (None, OPEN, True),
        (replace(KNOWN, state="Empty", partitions=()), OPEN, True),
        (None, None, False),  # its marker came in between
        (None, replace(OPEN, first_offset=200), False),  # and it has begun another since
    ],
)
def test_what_is_open_before_and_after_hangs_where_no_coordinator_has_it(monkeypatch, known, after, hangs):
    told = iter([[OPEN, replace(OPEN, producer_id=9, first_offset=None)], [] if after is None else [after]])
    monkeypatch.setattr(transactions, "partition_producers", lambda _cluster, asked: {one: next(told) for one in asked})
    listed = [] if known is None else [ListedTransaction("mover", known.state, 7, 0)]
    asked = []
    monkeypatch.setattr(transactions, "list_transactions", lambda *given: asked.append(given[2]) or listed)
    monkeypatch.setattr(transactions, "describe_transactions", lambda _cluster, names: dict.fromkeys(names, known))
    monkeypatch.setattr(transactions, "_coordinators", lambda _cluster: {0: 1})
    cluster = SimpleNamespace(answered=lambda ask: ask())
    assert find_hanging(cluster, [HERE]) == ([Hanging(HERE, OPEN, known)] if hangs else [])
    assert asked == [[7]] * (2 if known is None else 1), "one that has nothing open is of no interest"


class Coordinated:
    """A cluster with one coordinator, at one broker after the other; 0: it is away."""

    def __init__(self, *places):
        self.places = iter(places)
        self.at = 0
        self.refusals = []

    def forget_topics(self):
        self.at = next(self.places)

    def topic(self, _name):
        return SimpleNamespace(leaders={0: self.at})

    def partitions(self, name):
        return [TopicPartition(name, 0)]

    def connection_to_leader(self, where):
        if not self.at:
            raise UnreachableError(f"{where} has no leader now")

    def attempts(self, _retry_seconds):
        return itertools.repeat(self.refusals.append)

    answered = Cluster.answered


@pytest.mark.parametrize(
    ("places", "told_in", "refusals"),
    [((1, 1), 1, 0), ((1, 2, 2, 2), 2, 1), ((0, 1, 1), 1, 1), ((1, 0, 0, 2, 2), 2, 2)],
)
def test_nothing_hangs_because_its_coordinator_was_not_asked(monkeypatch, places, told_in, refusals):
    """It has the transaction open, and tells so when it is back."""
    monkeypatch.setattr(transactions, "partition_producers", lambda _cluster, asked: {one: [OPEN] for one in asked})
    monkeypatch.setattr(transactions, "describe_transactions", lambda _cluster, names: dict.fromkeys(names, KNOWN))
    cluster, rounds = Coordinated(*places), itertools.count()
    monkeypatch.setattr(
        transactions, "list_transactions",
        lambda *_asked: [ListedTransaction("mover", "Ongoing", 7, 0)] if next(rounds) == told_in else [],
    )  # fmt: skip
    assert find_hanging(cluster, [HERE]) == []
    assert len(cluster.refusals) == refusals


def test_coordinators_are_not_asked_where_nothing_is_open(monkeypatch):
    monkeypatch.setattr(transactions, "partition_producers", lambda _cluster, places: {one: [] for one in places})
    assert find_hanging(None, [HERE, THERE]) == []


def test_what_is_told_in_part_is_asked_for_by_itself():
    """Of one partition more than that is not told."""
    kind = messages.DescribeProducersResponse
    one = kind.PartitionResponse(partition_index=HERE.partition, error_message="as many as fit")
    other = kind.PartitionResponse(partition_index=HERE.partition + 1)
    answer = kind(topics=[kind.TopicResponse(name=HERE.topic, partitions=[one, other])])
    beside = TopicPartition(HERE.topic, HERE.partition + 1)
    found = to_tell_producers([HERE, beside]).read(answer)
    assert isinstance(found[HERE], RefusedError)
    assert found[HERE].code == ErrorCode.INVALID_REQUEST
    assert found[beside] == []
    answer.topics[0].partitions = [one]
    assert to_tell_producers([HERE]).read(answer) == {HERE: []}
