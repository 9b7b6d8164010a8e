"""Markers on their way over the cores of a node in memory: what is in their way, and what they find there."""

from __future__ import annotations

import pytest
import trio

from tests.support.memory_clients import create_topic
from tests.support.transaction_clients import (
    Producer,
    coordinator_core,
    markers_in,
    node_with_transactions,
    owner,
)
from tpc_broker.broker import marker_sender
from tpc_broker.broker.partition import Partition
from tpc_broker.broker.producers_port import EndMarker
from tpc_broker.broker.view import ClusterView
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import NotDeliveredError
from tpc_broker.kafka import messages

NONE = ErrorCode.NONE


def on_core(node, core, topic="data"):
    """A partition that a core owns."""
    return next(index for index in range(4) if owner(node, topic, index) == core)


async def test_a_marker_for_a_core_that_is_away_is_written_when_it_comes_back(autojump_clock):
    async with node_with_transactions() as node:
        producer, here = Producer(node), coordinator_core(node, "t")
        await producer.init()
        near, far = on_core(node, here), on_core(node, 1 - here)
        await producer.add("data", near, far)
        await node.crash(1 - here)
        assert await producer.end() is NONE
        await trio.sleep(60)
        assert await producer.state() == "PrepareCommit"
        assert await producer.add("data", near) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert node[here].transactions.markers.statistics().sent_again > 3
        assert len(markers_in(node, "data", near)) == 1, "what is written is not written again"
        await node.start(1 - here)
        assert await producer.until_complete() == "CompleteCommit"
        assert len(markers_in(node, "data", far)) == 1


async def test_a_call_that_is_lost_is_made_again(autojump_clock):
    async with node_with_transactions() as node:
        producer, here = Producer(node), coordinator_core(node, "t")
        await producer.init()
        far = on_core(node, 1 - here)
        await producer.add("data", far)
        node[here].mailboxes.lost.add(marker_sender.WRITE)
        assert await producer.end(commit=False) is NONE
        await trio.sleep(5)
        assert await producer.state() == "PrepareAbort"
        node[here].mailboxes.lost.clear()
        assert await producer.until_complete() == "CompleteAbort"


async def test_an_answer_that_is_lost_has_the_marker_written_twice(autojump_clock, monkeypatch):
    async with node_with_transactions() as node:
        producer, here = Producer(node), coordinator_core(node, "t")
        await producer.init()
        far = on_core(node, 1 - here)
        await producer.add("data", far)
        call, lost = node[here].mailboxes.call, []

        async def lose_one(core, method, payload, *blobs, **how):
            answer = await call(core, method, payload, *blobs, **how)
            if method == marker_sender.WRITE and not lost:
                lost.append(answer)
                raise NotDeliveredError("so it seems")
            return answer

        monkeypatch.setattr(node[here].mailboxes, "call", lose_one)
        assert await producer.end() is NONE
        assert await producer.until_complete() == "CompleteCommit"
        assert markers_in(node, "data", far) == [(producer.producer_id, 1, True)] * 2


async def test_after_a_restart_the_markers_of_ends_are_sent_again(autojump_clock):
    async with node_with_transactions() as node:
        producers = [Producer(node, f"t{number}") for number in range(8)]
        for number, producer in enumerate(producers):
            await producer.init()
            await producer.add("data", number % 4)
        for core in range(2):
            node[core].mailboxes.lost.add(marker_sender.WRITE)
            node[core].transactions.markers._sort = lambda _owed: None
        for number, producer in enumerate(producers):
            assert await producer.end(commit=number < 4) is NONE
        for producer in producers:
            assert (await producer.state()).startswith("Prepare")
        await node.restart(0)
        await node.restart(1)
        for number, producer in enumerate(producers):
            await trio.sleep(1)
            assert await producer.until_complete() == ("CompleteCommit" if number < 4 else "CompleteAbort")
        assert [len(markers_in(node, "data", index)) for index in range(4)] == [2] * 4


async def test_of_a_topic_that_this_core_does_not_know_yet_markers_are_written_all_the_same(
    autojump_clock, monkeypatch
):
    """An image that is late must not let a transaction hang."""
    async with node_with_transactions() as node:
        producer, here = Producer(node), coordinator_core(node, "t")
        await producer.init()
        await producer.add("data", 0, 1)
        view, topic = node[here].view, ClusterView.topic
        is_late = [True]

        def late(self, key):
            return None if self is view and key == "data" and is_late[0] else topic(self, key)

        monkeypatch.setattr(ClusterView, "topic", late)
        take_newest = node[here].metadata.take_newest

        async def take_what_is_missing():
            await take_newest()
            is_late[0] = False

        monkeypatch.setattr(node[here].metadata, "take_newest", take_what_is_missing)
        assert await producer.end() is NONE
        assert await producer.until_complete() == "CompleteCommit"
        assert [len(markers_in(node, "data", index)) for index in range(2)] == [1, 1]


async def test_no_more_markers_are_under_way_than_allowed(autojump_clock, monkeypatch):
    monkeypatch.setattr(marker_sender, "UNDER_WAY_MAX", 40)
    monkeypatch.setattr(marker_sender, "MARKERS_PER_CALL", 10)
    async with node_with_transactions() as node:
        await create_topic(node, 0, "wide", 300)
        here = coordinator_core(node, "t")
        producer, sender, seen = Producer(node), node[here].transactions.markers, []
        await producer.init()
        await producer.add("wide", *range(300))
        write = marker_sender.write_markers

        async def watched(core, markers):
            seen.append((len(markers), sender.statistics().under_way))
            await trio.sleep(0.1)
            return await write(core, markers)

        monkeypatch.setattr(marker_sender, "write_markers", watched)
        assert await producer.end() is NONE
        assert await producer.until_complete() == "CompleteCommit"
        assert {size for size, _under_way in seen} == {10}
        assert max(under_way for _size, under_way in seen) == 40
        assert len(seen) == 30
        assert sender.statistics().under_way == 0


async def test_a_partition_that_is_slow_to_commit_holds_up_no_other_transaction(autojump_clock):
    async with node_with_transactions() as node:
        here = coordinator_core(node, "t")
        held, free = Producer(node, "t"), next(
            Producer(node, name) for name in map(str, range(99)) if coordinator_core(node, name) == here
        )
        for producer, index in ((held, on_core(node, 1 - here)), (free, on_core(node, here))):
            await producer.init()
            await producer.add("data", index)
        node.lives[1 - here].plane.holds = True
        assert await held.end() is NONE
        assert await free.end() is NONE
        await trio.sleep(1)
        assert await free.state() == "CompleteCommit"
        assert await held.state() == "PrepareCommit"
        await trio.sleep(10)
        node.lives[1 - here].plane.holds = False
        node.lives[1 - here].plane.make_durable()
        assert await held.until_complete() == "CompleteCommit"


async def write_markers(node, core, producer, index, *, topic="data", coordinator_epoch=0, version=2, epoch=None):
    kind = messages.WriteTxnMarkersRequest
    marker = kind.WritableTxnMarker(
        producer_id=producer.producer_id, producer_epoch=producer.epoch if epoch is None else epoch,
        transaction_result=False, coordinator_epoch=coordinator_epoch, transaction_version=version,
        topics=[kind.WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
    )  # fmt: skip
    (answer,) = (await node.ask(core, kind(markers=[marker]), 2)).markers
    assert answer.producer_id == producer.producer_id
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def test_what_stands_behind_a_marker_that_is_not_committed_in_time_is_told_as_it_is(autojump_clock, monkeypatch):
    committed = Partition.marker_committed

    async def first_is_not(partition, result):
        if partition.index == first:
            await trio.sleep_forever()
        return await committed(partition, result)

    async with node_with_transactions() as node:
        first, second = (index for index in range(4) if owner(node, "data", index) == 0)
        core, marker = node[0], EndMarker(7, 0, 1, True, 2)
        monkeypatch.setattr(core.plane, "wait_committed", _at_once)
        monkeypatch.setattr(Partition, "marker_committed", first_is_not)
        began_s = trio.current_time()
        told = await marker_sender.write_markers(core, [("data", index, marker) for index in (first, second)])
        assert told == [ErrorCode.REQUEST_TIMED_OUT, NONE]
        assert trio.current_time() - began_s == pytest.approx(marker_sender.COMMIT_S)
        assert [len(markers_in(node, "data", index)) for index in (first, second)] == [1, 1]


async def _at_once(_handle, _end_offset, _leader_epoch):
    """As the plane in C, where it is committed already."""


async def test_a_tool_writes_markers_by_any_core_of_the_node(autojump_clock):
    async with node_with_transactions() as node:
        producer = Producer(node)
        await producer.init()
        for core in range(2):
            for index in range(4):
                assert await write_markers(node, core, producer, index, coordinator_epoch=7) is NONE
        for index in range(4):
            assert markers_in(node, "data", index) == [(producer.producer_id, 0, False)] * 2
        fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert await write_markers(node, 0, producer, 0, coordinator_epoch=6) is fenced
        assert await write_markers(node, 0, producer, 9) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await write_markers(node, 0, producer, 0, topic="none") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await write_markers(node, 0, producer, 0, epoch=-1) is ErrorCode.INVALID_REQUEST


async def test_one_partition_that_refuses_a_coordinator_costs_the_others_nothing(autojump_clock, caplog):
    """Somebody has written a marker of an epoch that no coordinator has had; nobody else coordinates."""
    async with node_with_transactions() as node:
        producer, here = Producer(node), coordinator_core(node, "t")
        other = next(Producer(node, name) for name in map(str, range(99)) if coordinator_core(node, name) == here)
        await producer.init()
        await other.init()
        await producer.add("data", 0, 1)
        assert await write_markers(node, 0, producer, 0, coordinator_epoch=1 << 20) is NONE
        assert await producer.end() is NONE
        await trio.sleep(30)
        assert await producer.state() == "PrepareCommit"
        assert len(markers_in(node, "data", 1)) == 1
        assert "data-0 refuses the marker that ends a transaction of 't': TRANSACTION_COORDINATOR_FENCED" in caplog.text
        await other.add("data", 0)
        assert await other.end() is NONE
        assert await other.until_complete() == "CompleteCommit"


async def test_a_coordinator_that_was_replaced_ends_when_a_partition_says_so(autojump_clock, monkeypatch):
    async with node_with_transactions() as node:
        producer, here = Producer(node), coordinator_core(node, "t")
        await producer.init()
        await producer.add("data", 0)
        await write_markers(node, 0, producer, 0, coordinator_epoch=1 << 20)
        service = node[here].transactions

        async def confirm(_name):
            await trio.lowlevel.checkpoint()
            return False

        monkeypatch.setattr(service, "confirm", confirm)
        assert await producer.end() is NONE
        await trio.sleep(1)
        assert service.coordinator_of("t") is ErrorCode.NOT_COORDINATOR


async def test_a_marker_that_fails_in_an_unforeseen_way_is_tried_again_and_its_core_goes_on(
    autojump_clock, monkeypatch, caplog
):
    async with node_with_transactions() as node:
        producer, here = Producer(node), coordinator_core(node, "t")
        await producer.init()
        near = on_core(node, here)
        await producer.add("data", near)
        append, failures = node.lives[here].plane.append_marker, [ValueError("a bug"), ValueError("a bug")]

        def fail_twice(handle, marker):
            if failures:
                raise failures.pop()
            return append(handle, marker)

        monkeypatch.setattr(node.lives[here].plane, "append_marker", fail_twice)
        assert await producer.end() is NONE
        assert await producer.until_complete() == "CompleteCommit"
        assert "a marker failed: ValueError('a bug')" in caplog.text


async def test_many_transactions_in_one_request_are_answered_in_their_order(autojump_clock):
    async with node_with_transactions() as node:
        here, kind = coordinator_core(node, "t"), messages.AddPartitionsToTxnRequest
        names = [name for name in map(str, range(1200)) if coordinator_core(node, name) == here][:250]
        producers = [Producer(node, name) for name in names]
        for producer in producers[::2]:
            await producer.init()
        asked = [
            kind.AddPartitionsToTxnTransaction(
                transactional_id=one.name, producer_id=one.producer_id, producer_epoch=one.epoch,
                topics=[kind.AddPartitionsToTxnTopic(name="data", partitions=[0])],
            )
            for one in producers
        ]  # fmt: skip
        results = (await node.ask(here, kind(transactions=asked), 5)).results_by_transaction
        assert [one.transactional_id for one in results] == names
        codes = [one.topic_results[0].results_by_partition[0].partition_error_code for one in results]
        assert codes == [0 if one.producer_id >= 0 else ErrorCode.INVALID_PRODUCER_ID_MAPPING for one in producers]


async def test_markers_that_come_in_a_turn_are_sent_some_at_a_time(autojump_clock, monkeypatch):
    """A transaction may have thousands, and others have their turn between them."""
    sort, sizes = marker_sender.MarkerSender._sort, []
    monkeypatch.setattr(marker_sender, "SORTED_AT_ONCE", 2)
    monkeypatch.setattr(
        marker_sender.MarkerSender, "_sort", lambda sender, owed: sizes.append(len(owed)) or sort(sender, owed)
    )
    async with node_with_transactions() as node:
        producer = Producer(node)
        await producer.init()
        await producer.add("data", 0, 1, 2, 3)
        assert await producer.end() is NONE
        assert await producer.until_complete() == "CompleteCommit"
        assert all(len(markers_in(node, "data", index)) == 1 for index in range(4))
    assert sizes == [2, 2]
