"""The bytes of a producer's batches, and what its budget lets through."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.producer_model import Story
from tpc_broker.client.batches import ProducerIdentity
from tpc_broker.client.conversation import Conversation
from tpc_broker.client.producer.attempt import ALONE_BYTES_MAX, Attempt, Link
from tpc_broker.client.producer.batch import Batch, header_pairs, record_size
from tpc_broker.client.producer.budget import Budget
from tpc_broker.client.producer.settings import bytes_of
from tpc_broker.client.requests import TopicPartition, produce_request
from tpc_broker.client.values import Fate
from tpc_broker.kafka import ApiKey
from tpc_broker.kafka.compression import Compression
from tpc_broker.kafka.protocol import encode_request_frame
from tpc_broker.kafka.records import Record, build_batch, read_batches

WHERE = TopicPartition("t", 0)
CELLS = st.none() | st.binary(max_size=20) | st.just(b"x" * 300)
HEADERS = st.lists(st.tuples(st.text(max_size=5), CELLS), max_size=3).map(tuple)
RECORDS = st.lists(
    st.builds(
        Record, value=CELLS, key=CELLS, headers=st.just(()) | HEADERS,
        timestamp_ms=st.integers(0, 5) | st.integers(0, 2**62), offset=st.just(-1), leader_epoch=st.just(-1),
    ), min_size=1, max_size=8,
)  # fmt: skip


def filled(records):
    batch = Batch(WHERE, 0.0)
    for record in records:
        headers = header_pairs(record.headers)
        size = record_size(record.key, record.value, headers)
        batch.add(record.key, record.value, headers, record.timestamp_ms, size)
    return batch


@settings(max_examples=300, deadline=None)
@given(RECORDS, st.sampled_from(list(Compression)), st.booleans())
def test_a_batch_has_the_bytes_of_the_plain_encoder(records, codec, is_transactional):
    batch = filled(records)
    batch.seal(codec, ProducerIdentity(2**40, 7), 2**31 - 1, transactional=is_transactional)
    same = {
        "compression": codec, "producer_id": 2**40, "base_sequence": 2**31 - 1, "is_transactional": is_transactional,
    }  # fmt: skip
    assert batch.encoded() == build_batch(records, producer_epoch=7, **same)
    batch.renumber(ProducerIdentity(2**40, 8), 2**31 - 1)
    assert batch.encoded() == build_batch(records, producer_epoch=8, **same)


@pytest.mark.parametrize("version", [3, 8, 9, 12])
@settings(max_examples=50, deadline=None)
@given(CELLS, CELLS | st.just(b"l" * 5000) | st.just(b"x" * ALONE_BYTES_MAX), st.booleans())
def test_a_lone_record_is_written_into_each_request_as_any_batch_is(version, key, value, is_transactional):
    def make(batches):
        return produce_request(batches, 30_000, "t" if is_transactional else None)

    conversation, lane = Conversation("client"), Story().lane
    produce = SimpleNamespace(api_key=ApiKey.PRODUCE, min_version=3, max_version=99)
    conversation.agree(SimpleNamespace(error_code=0, api_keys=[produce]))
    link = Link(conversation, make, print)
    batch = filled([Record(value, key, timestamp_ms=5)])
    batch.seal(Compression.NONE, ProducerIdentity(7, 0), 3, transactional=is_transactional)
    for epoch, correlation_id in ((0, 0), (1, 2**31 - 1)):
        batch.renumber(ProducerIdentity(7, epoch), 3)
        message = make({WHERE: batch.encoded()})
        whole = encode_request_frame(ApiKey.PRODUCE, version, correlation_id, "client", message)
        attempt = Attempt(link, version, [(lane, batch)], link.around(lane, version))
        assert b"".join(attempt.frame(correlation_id, "client")) == b"".join(whole)
    (read,) = read_batches(batch.encoded())
    assert (read.producer_epoch, [(one.key, one.value) for one in read.records()]) == (1, [(key, value)])


@settings(max_examples=100, deadline=None)
@given(RECORDS.filter(lambda records: len(records) > 1), st.sampled_from(list(Compression)), st.data())
def test_what_is_left_after_withdrawals_is_told_row_by_row_also_in_halves(records, codec, data):
    batch = filled(records)
    gone = data.draw(st.sets(st.integers(0, len(records) - 1), max_size=len(records) - 2))
    for row in gone:
        record = records[row]
        assert batch.withdraw(row, record_size(record.key, record.value, header_pairs(record.headers)))
    left = [record for row, record in enumerate(records) if row not in gone]
    batch.seal(codec, ProducerIdentity(1, 0), 2**31 - 1, transactional=False)
    first, second = batch.split()
    assert second.base_sequence == first.count - 1
    found = [record for part in (first, second) for read in read_batches(part.encoded()) for record in read.records()]
    assert [one[:4] for one in found] == [one[:4] for one in left]
    first.deliver(100, -1)
    assert not batch.is_decided
    second.deliver(500, 77)
    assert batch.is_decided
    offsets = [*range(100, 100 + first.count), *range(500, 500 + second.count)]
    rows = [row for row in range(len(records)) if row not in gone]
    assert [batch.result_of(row).offset for row in rows] == offsets
    assert {batch.fate_of(row) for row in gone} <= {Fate.WITHDRAWN}


def test_one_lane_gets_half_of_the_budget_and_two_a_third_each():
    budget = Budget(1200)
    lanes = [Story().lane for _lane in range(2)]
    while budget.try_take(lanes[0], 10):
        pass
    assert lanes[0].bytes_held == 600
    while budget.try_take(lanes[1], 10):
        pass
    assert lanes[1].bytes_held == 300
    budget.release(lanes[0], 600)
    assert budget.try_take(lanes[0], 900)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_large_record_gets_room_beside_busy_lanes(is_given_up):
    """They would take whatever becomes free for ever; and they go on when it has its room, or waits no longer."""
    budget = Budget(1000)
    large, *lanes = [Story().lane for _lane in range(7)]
    held = deque()

    def fill():
        for lane in lanes:
            while budget.try_take(lane, 10):
                held.append(lane)

    fill()
    waiter = budget.wait(large, 500)
    for _ in range(1000):
        if waiter.is_admitted:
            break
        budget.release(held.popleft(), 10)
        if is_given_up and len(held) < 70:
            budget.give_up(large, waiter)
            break
        fill()
    assert waiter.is_admitted != is_given_up
    if waiter.is_admitted:
        budget.release(large, 500)
    before = len(held)
    fill()
    assert len(held) > before


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 120), st.booleans()), max_size=60))
def test_who_waits_for_room_gets_it_in_turn(steps):
    budget = Budget(300)
    lanes = [Story().lane for _lane in range(3)]
    held, waiting = [], {0: [], 1: [], 2: []}
    for which, size, gives_back in steps:
        lane = lanes[which]
        if gives_back and held:
            freed, freed_size = held.pop(0)
            budget.release(freed, freed_size)
        elif budget.try_take(lane, size):
            assert not waiting[which], "somebody was overtaken"
            held.append((lane, size))
        else:
            waiting[which].append(budget.wait(lane, size))
        for number, waiters in waiting.items():
            while waiters and waiters[0].is_admitted:
                held.append((lanes[number], waiters.pop(0).size))
            assert not any(waiter.is_admitted for waiter in waiters), "out of turn"
        assert budget.bytes_used == sum(size for _lane, size in held) <= 300
    while held:
        freed, freed_size = held.pop(0)
        budget.release(freed, freed_size)
        for number, waiters in waiting.items():
            while waiters and waiters[0].is_admitted:
                held.append((lanes[number], waiters.pop(0).size))
    assert budget.waiting_count == 0 == budget.bytes_used


def test_sizes_are_read_as_people_write_them():
    sizes = ["1", " 2 KiB", "1.5MiB", "3 gib", "10MB", 7]
    assert [bytes_of(size) for size in sizes] == [1, 2048, 1_572_864, 3 * 2**30, 10**7, 7]
