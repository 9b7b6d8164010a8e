"""Requests of transactions that are too many, too large, or nonsense: refused, and what is stored does not change."""

from __future__ import annotations

import random
import time

import pytest
import trio

from tests.support.stored_records import stored_records
from tests.support.transaction_clients import (
    NONE,
    Producer,
    coordinator_core,
    node_with_transactions,
)
from tpc_broker import limits
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

A_MILLION = 999_000
"""With what is beside them: a message has a million elements at most."""


def stored(node):
    """All ids as their coordinators have them, and what is under way."""
    machines = [each.machine for life in node.lives.values() for each in life.core.transactions.loaded()]
    records = sorted(record for machine in machines for record in stored_records(machine))
    return records, sum(machine.statistics().writes_pending for machine in machines)


async def with_open_transaction(node):
    producer = Producer(node)
    assert await producer.init() is NONE
    assert await producer.add("data", 0, 1) is NONE
    return producer


@pytest.mark.parametrize("version", [3, 5])
async def test_a_million_partitions_are_not_added(version, autojump_clock):
    async with node_with_transactions() as node:
        producer = await with_open_transaction(node)
        before = stored(node)
        kind = messages.AddPartitionsToTxnRequest
        topics = [kind.AddPartitionsToTxnTopic(name="data", partitions=list(range(A_MILLION)))]
        if version == 3:
            asked = kind(
                v3_and_below_transactional_id="t", v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.epoch, v3_and_below_topics=topics,
            )  # fmt: skip
        else:
            asked = kind(transactions=[kind.AddPartitionsToTxnTransaction(
                transactional_id="t", producer_id=producer.producer_id, producer_epoch=producer.epoch, topics=topics
            )])  # fmt: skip
        core, began_s = coordinator_core(node, "t"), time.thread_time()
        answer = await node.ask(core, asked, version)
        spent_s = time.thread_time() - began_s
        if version == 3:
            [topic] = answer.results_by_topic_v3_and_below
            [row] = topic.results_by_partition
            assert (topic.name, row.partition_index) == ("data", 0)
            assert row.partition_error_code == ErrorCode.POLICY_VIOLATION
        else:
            assert (answer.error_code, answer.results_by_transaction) == (ErrorCode.POLICY_VIOLATION, [])
        assert spent_s < 1, "it takes seconds to make something of each"
        assert stored(node) == before
        assert await producer.end() is NONE


async def test_as_many_partitions_as_a_transaction_may_have_are_looked_at(autojump_clock):
    async with node_with_transactions() as node:
        producer = await with_open_transaction(node)
        found = await producer.add("data", *range(limits.TRANSACTION_PARTITIONS_MAX))
        assert set(found.values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED}
        assert len(found) == limits.TRANSACTION_PARTITIONS_MAX


async def test_who_asks_for_a_million_at_once_is_not_heard(autojump_clock):
    async with node_with_transactions() as node:
        producer = await with_open_transaction(node)
        before = stored(node)
        core = coordinator_core(node, "t")
        describe = messages.DescribeTransactionsRequest(transactional_ids=["t"] * A_MILLION)
        assert await node.ask(core, describe, 0) is None
        kind = messages.WriteTxnMarkersRequest
        topic = kind.WritableTxnMarkerTopic(name="data", partition_indexes=[0] * A_MILLION)
        marker = kind.WritableTxnMarker(
            producer_id=producer.producer_id, producer_epoch=producer.epoch, transaction_result=False, topics=[topic],
            coordinator_epoch=99,
        )  # fmt: skip
        assert await node.ask(core, kind(markers=[marker]), 1) is None
        assert stored(node) == before
        assert await producer.end() is NONE


async def test_a_storm_of_ends_changes_nothing(autojump_clock):
    """Of ids that nobody has, of other producers and of other epochs; from one connection each."""
    chance = random.Random(7)
    async with node_with_transactions() as node:
        producer = await with_open_transaction(node)
        before, errors = stored(node), []

        async def end(number):
            name, producer_id, epoch = chance.choice([
                (str(number), producer.producer_id, producer.epoch), ("t", chance.randrange(1 << 40, 1 << 60), 0),
                ("t", producer.producer_id, chance.choice([e for e in range(-1, 9) if e != producer.epoch])),
                ("", producer.producer_id, producer.epoch),
            ])  # fmt: skip
            asked = messages.EndTxnRequest(
                transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=chance.random() < 0.5
            )
            core, version = coordinator_core(node, name), chance.choice([3, 5])
            answer = await node.ask(core, asked, version, connection=1_000 + number)
            errors.append(ErrorCode(answer.error_code))

        async with trio.open_nursery() as nursery:
            for number in range(2_000):
                nursery.start_soon(end, number)
        assert set(errors) == {
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_REQUEST
        }
        assert len(errors) == 2_000
        assert stored(node) == before
        assert await producer.state() == "Ongoing"
        assert await producer.end() is NONE


async def test_random_ids_fill_no_coordinator(autojump_clock):
    async with node_with_transactions(settings=("transactional.ids.max=20",)) as node:
        producer = await with_open_transaction(node)
        for number in range(400):
            error = await Producer(node, f"random-{number}", connection=100 + number % 7).init()
            assert error in (NONE, ErrorCode.POLICY_VIOLATION)
        full, _pending = stored(node)
        assert len(full) == 4 * 20
        errors = {await Producer(node, f"more-{number}").init() for number in range(100)}
        assert errors == {ErrorCode.POLICY_VIOLATION}
        assert stored(node) == (full, 0)
        assert await producer.end() is NONE, "who is known goes on"
        assert await producer.until(producer.init) is NONE
