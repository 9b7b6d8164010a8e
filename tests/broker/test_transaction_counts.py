"""What a core counts of transactions, for `tpc-broker status` and its metrics."""

from __future__ import annotations

import trio

from tests.support.transaction_clients import Producer, coordinator_core, node_with_transactions
from tpc_broker.error_codes import ErrorCode

NONE = ErrorCode.NONE


def counted(node):
    """Of both cores together, without what is 0."""
    told = [life.core.transactions.statistics() for life in node.lives.values()]
    sums = {name: sum(getattr(each, name) for each in told) for name in told[0].__slots__}
    return {name: count for name, count in sums.items() if count}


async def test_transactions_are_counted_by_how_they_end(autojump_clock):
    async with node_with_transactions() as node:
        assert counted(node) == {}
        brief, other = Producer(node, timeout_ms=5_000), Producer(node, "other")
        assert await brief.init() is await other.init() is NONE
        assert counted(node) == {"ids": 2}
        await brief.until(lambda: brief.add("data", 0, 1))
        await other.until(lambda: other.add("data", 2))
        assert counted(node) == {"ids": 2, "open": 2}
        assert await other.end() is NONE
        await other.until_complete()
        committed = {"ids": 2, "committed": 1, "markers_written": 1}
        assert counted(node) == {**committed, "open": 1}
        await brief.until_complete()
        timed_out = {**committed, "aborted": 1, "timed_out": 1, "markers_written": 3}
        assert counted(node) == timed_out
        await other.until(lambda: other.add("data", 2))
        assert await other.end(commit=False) is NONE
        await other.until_complete()
        assert counted(node) == {**timed_out, "aborted": 2, "markers_written": 4}


async def test_markers_that_nobody_takes_are_owed_and_sent_again(autojump_clock):
    async with node_with_transactions() as node:
        producer = Producer(node)
        assert await producer.init() is NONE
        await producer.until(lambda: producer.add("data", *range(4)))
        away = 1 - coordinator_core(node, "t")
        await node.crash(away)
        assert await producer.end() is NONE
        await trio.sleep(5)
        found = counted(node)
        assert (found["ending"], found.get("committed", 0)) == (1, 0)
        assert found["markers_owed"] > 0
        assert found["markers_sent_again"] > 0


async def test_what_is_open_is_found_again_by_the_next_coordinator(autojump_clock):
    """And what was counted stays, though the machine that ended it is gone."""
    async with node_with_transactions() as node:
        producer = Producer(node)
        assert await producer.init() is NONE
        await producer.until(lambda: producer.add("data", 0))
        assert await producer.end() is NONE
        await producer.until_complete()
        await producer.until(lambda: producer.add("data", 0))
        service = node.lives[coordinator_core(node, "t")].core.transactions
        for key in list(service._coordinators):
            service.end(key)
            service.begin_if_coordinates(key)
        while service.is_loading:
            await trio.sleep(0.1)
        assert counted(node) == {"ids": 1, "open": 1, "committed": 1, "markers_written": 1}
