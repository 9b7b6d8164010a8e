"""Nobody is told that records are at offsets where they are not: what would say so is refused, counted and told."""

from __future__ import annotations

import pytest

from tests.support.plane_bench import records_of
from tests.support.plane_values import ProducerBatch, ProducerState
from tpc_broker.error_codes import ErrorCode as E

TERM = 3
MINE, OTHER = 7, 8
REFUSED = [(E.KAFKA_STORAGE_ERROR, -1)]


def numbered(sequence, count=2, producer=MINE):
    return "t", 0, records_of(count, producer=(producer, 0, sequence))


@pytest.fixture
def handle(bench):
    """A replicated partition that is led here, in which `MINE` has appended two records, which are not committed."""
    made = bench.lead("t", is_led=False)
    bench.plane.set_replicated(made)
    bench.plane.arm(made, TERM)
    client = bench.connect()
    bench.send(client, [numbered(0)])
    bench.until(lambda: bench.plane.state(made).durable_offset == 2)
    bench.plane.disarm(made)
    assert bench.answer(client) == [(E.NOT_LEADER_OR_FOLLOWER, -1)]
    return made


def doubted(bench):
    return bench.plane.statistics()["answers_doubted"]


def commit(bench, handle, term, end_offset):
    bench.until(lambda: bench.plane.state(handle).durable_offset == end_offset)
    bench.plane.commit(handle, term, end_offset)


def test_producers_of_a_log_that_was_cut_are_not_believed_until_they_are_found_again(bench, handle, capfd):
    """Were it led in between, the batch that was cut would be acknowledged, and never be there."""
    bench.plane.truncate(handle, 0, 0)
    bench.plane.arm(handle, TERM + 1)
    client = bench.connect()
    for count, sequence in enumerate([0, 2, 0], start=1):  # the batch that was cut, and what its client sent behind it
        assert bench.produce(client, numbered(sequence)) == REFUSED
        assert doubted(bench) == count
    told = capfd.readouterr().err
    assert told.count("t-0 in leader epoch 4: refused, instead of acknowledged") == 2, "after one, two, four, eight"
    bench.plane.reset_producers(handle, [])
    bench.send(client, [numbered(0)])
    commit(bench, handle, TERM + 1, 2)
    assert bench.answer(client) == [(E.NONE, 0)]
    assert doubted(bench) == 3


@pytest.mark.parametrize(
    ("base_offset", "count"), [(2, 2), (1, 2), (0, 1), (0, 3), (1 << 40, 2)],
    ids=["behind the end", "across the end", "of a longer batch", "of a shorter batch", "far behind the end"],
)  # fmt: skip
def test_a_repeat_is_not_acknowledged_where_the_log_has_another_batch_or_none(bench, handle, base_offset, count):
    bench.plane.truncate(handle, 0, 0)
    bench.plane.reset_producers(handle, [])
    bench.plane.arm(handle, TERM + 1)
    client = bench.connect()
    bench.send(client, [numbered(0, producer=OTHER)])
    commit(bench, handle, TERM + 1, 2)
    assert bench.answer(client) == [(E.NONE, 0)]
    batch = ProducerBatch(base_offset, base_offset + count - 1, 0, 0, count - 1)
    bench.plane.reset_producers(handle, [ProducerState(MINE, 0, 0, (batch,))])
    assert bench.produce(client, numbered(0, count)) == REFUSED
    assert doubted(bench) == 1
    assert bench.produce(client, numbered(0, producer=OTHER)) == [(E.NONE, 0)], "this one is there"
    assert doubted(bench) == 1


def test_a_repeat_of_what_is_not_committed_yet_is_acknowledged_when_it_is(bench, handle):
    bench.plane.arm(handle, TERM + 1)
    client = bench.connect()
    bench.send(client, [numbered(0)])
    bench.until(lambda: bench.plane.statistics()["duplicates"] == 1)
    assert bench.plane.statistics()["produces_pending"] == 1
    commit(bench, handle, TERM + 1, 2)
    assert bench.answer(client) == [(E.NONE, 0)]
    assert doubted(bench) == 0


def test_a_repeat_of_what_only_segments_have_is_acknowledged(bench):
    made = bench.lead("t", log_end_offset=2)
    batch = ProducerBatch(0, 1, 0, 0, 1)
    bench.plane.reset_producers(made, [ProducerState(MINE, 0, 0, (batch,))])
    assert bench.produce(bench.connect(), numbered(0)) == [(E.NONE, 0)]
    assert doubted(bench) == 0
