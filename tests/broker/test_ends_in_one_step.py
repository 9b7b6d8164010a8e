"""Ends in one step on cores in memory: what is appended, in which order, and what a crash leaves of it."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio

from tests.support.transaction_clients import Producer, markers_in, node_with_transactions, produced
from tpc_broker import limits
from tpc_broker.broker.partition import Partition
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import LeadershipLostError
from tpc_broker.model import TRANSACTION_STATE_TOPIC
from tpc_broker.testing.plane import MemoryPlane

NONE = ErrorCode.NONE
STATE, FIRST, SECOND = (TRANSACTION_STATE_TOPIC, None), ("data", 0), ("data", 1)


@asynccontextmanager
async def open_transaction(monkeypatch, **how):
    """A node of one core with a record in each of two partitions, in one transaction; and what is appended from then
    on, in its order, as topic and partition.
    """
    async with node_with_transactions(partitions=2, cores=1, **how) as node:
        producer, appended = Producer(node), []
        assert await producer.init() is NONE
        for index in range(2):
            assert (await producer.produce("data", index))[0] is NONE
        append = MemoryPlane.append

        def watched(plane, handle, data):
            result = append(plane, handle, data)
            files = plane._files[handle]
            appended.append((files.topic, None if files.topic == TRANSACTION_STATE_TOPIC else files.key.partition))
            plane_order.append(handle)
            return result

        plane_order = []
        monkeypatch.setattr(MemoryPlane, "append", watched)
        producer.plane_order = plane_order
        yield node, producer, appended


async def asked_to_end(node, producer, nursery, *, commit=True):
    """Its answer, later; everything that can be appended is."""
    told = []

    async def end():
        told.append(await producer.end(commit=commit))

    node.lives[0].plane.holds = True
    nursery.start_soon(end)
    await trio.testing.wait_all_tasks_blocked()
    return told


@pytest.mark.parametrize("commit", [True, False])
async def test_all_of_it_is_appended_at_once_and_in_its_order(autojump_clock, monkeypatch, commit):
    async with open_transaction(monkeypatch) as (node, producer, appended), trio.open_nursery() as nursery:
        told = await asked_to_end(node, producer, nursery, commit=commit)
        assert appended == [STATE, FIRST, SECOND, STATE]
        assert told == [], "nothing is certain yet"
        assert markers_in(node, "data", 0) == []
        node.lives[0].plane.holds = False
        node.lives[0].plane.make_durable()
        await trio.testing.wait_all_tasks_blocked()
        assert told == [NONE]
        assert await producer.state() == ("CompleteCommit" if commit else "CompleteAbort")
        assert [markers_in(node, "data", index) for index in range(2)] == [[(producer.producer_id, 1, commit)]] * 2
        sent = node[0].transactions.statistics()
        assert (sent.markers_written, sent.markers_owed, sent.committed + sent.aborted) == (2, 0, 1)


@pytest.mark.parametrize("durable", range(5))
@pytest.mark.parametrize("commit", [True, False])
async def test_a_crash_leaves_what_was_appended_first(autojump_clock, monkeypatch, durable, commit):
    """Whatever that is, both partitions have one end, and it is the one that was asked for if it was certain."""
    async with open_transaction(monkeypatch) as (node, producer, appended):
        async with trio.open_nursery() as nursery:
            told = await asked_to_end(node, producer, nursery, commit=commit)
            assert len(appended) == 4
            plane = node.lives[0].plane
            for handle in producer.plane_order[:durable]:
                plane.logs[handle].high_watermark += 1
            await node.crash(0)
            assert told == []
            nursery.cancel_scope.cancel()
        await node.start(0)
        await trio.sleep(5)
        if durable == 0:
            assert await producer.state() == "Ongoing"
            await trio.sleep(120)  # its time is over
        assert await producer.until_complete() == ("CompleteCommit" if commit and durable else "CompleteAbort")
        await trio.sleep(5)
        ends = [markers_in(node, "data", index) for index in range(2)]
        assert all(ends), "one is not ended"
        assert {commits for each in ends for _producer_id, _epoch, commits in each} == {bool(commit and durable)}


async def test_where_a_quorum_decides_markers_wait_until_the_end_is_certain(autojump_clock, monkeypatch):
    for topic in (TRANSACTION_STATE_TOPIC, "data"):
        async with open_transaction(monkeypatch) as (node, producer, appended), trio.open_nursery() as nursery:
            for partition in node[0].partitions.opened():
                if partition.topic_name == topic:
                    partition.is_replicated, partition.led_epoch = True, partition.leader_epoch
            told = await asked_to_end(node, producer, nursery)
            assert appended == [STATE]
            assert told == []
            nursery.cancel_scope.cancel()


async def test_a_marker_that_finds_no_room_is_sent_as_ever(autojump_clock, monkeypatch):
    append, refused = Partition.append_marker_nowait, []

    def without_room(partition, marker):
        if partition.index == 1 and not refused:
            refused.append(marker)
            return None
        return append(partition, marker)

    monkeypatch.setattr(Partition, "append_marker_nowait", without_room)
    async with open_transaction(monkeypatch) as (node, producer, appended):
        assert await producer.end() is NONE
        assert await producer.until_complete() == "CompleteCommit"
        assert appended[:2] == [STATE, FIRST], "the last record does not go without all markers"
        assert appended[-1] == STATE
        assert [len(markers_in(node, "data", index)) for index in range(2)] == [2, 1]


async def test_the_last_record_that_is_not_committed_has_the_markers_sent_as_ever(autojump_clock, monkeypatch):
    failed = []

    async def not_committed(_partition, result):
        failed.append(result)
        raise LeadershipLostError("nobody knows")

    monkeypatch.setattr(Partition, "until_committed", not_committed)
    async with open_transaction(monkeypatch) as (node, producer, _appended):
        assert await producer.end() is NONE
        assert len(failed) == 1
        assert await producer.until_complete() == "CompleteCommit"
        assert [len(markers_in(node, "data", index)) for index in range(2)] == [2, 2]


async def test_an_end_that_is_refused_for_its_size_leaves_nothing(autojump_clock, monkeypatch):
    """Its last record, which names no partitions, would find room."""
    async with open_transaction(monkeypatch) as (node, producer, appended):
        with monkeypatch.context() as small:
            small.setattr(limits, "COORDINATOR_WRITES_BYTES_MAX", 120)
            assert await producer.end() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert appended == []
        assert await producer.state() == "Ongoing"
        assert (await produced(producer.send("data", 0)))[0] is NONE
        assert await producer.end(commit=False) is NONE
        assert await producer.until_complete() == "CompleteAbort"
        assert [markers_in(node, "data", index) for index in range(2)] == [[(producer.producer_id, 1, False)]] * 2
