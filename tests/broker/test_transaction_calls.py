"""What coordinators are asked while the transaction before is ending: answered when that is over, and no later."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio

from tests.support.memory_node import running_node
from tests.support.transaction_clients import (
    Producer,
    coordinator_core,
    node_with_transactions,
    owner,
)
from tpc_broker.broker import transaction_calls
from tpc_broker.broker.handlers.transactional import WHILE_ENDING_S
from tpc_broker.broker.ports import ProduceFallback
from tpc_broker.broker.transaction_calls import AGAIN_S, FIRST_S, Asked
from tpc_broker.error_codes import ErrorCode
from tpc_broker.model import coordinator_partition

NONE, CONCURRENT = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS


@asynccontextmanager
async def ending(within_s=0.01, **how):
    """A transaction whose marker is written, and durable only when `within_s` are over."""
    async with node_with_transactions() as node:
        producer = Producer(node, **how)
        await producer.init()
        await producer.add("data", 0)
        plane = node.lives[owner(node, "data", 0)].plane
        assert owner(node, "data", 0) != coordinator_core(node, "t"), "whose own log is not to be held"
        plane.holds = True
        assert await producer.end() is NONE
        async with trio.open_nursery() as nursery:

            async def release():
                await trio.sleep(within_s)
                plane.holds = False
                plane.make_durable()

            nursery.start_soon(release)
            yield node, producer


def question_of(producer, **how):
    return Asked(producer.name, producer.producer_id, producer.epoch, adds=True, **how)


async def asked(node, core, producer, **how):
    """By a core: what it is told, and after how many seconds."""
    began_s = trio.current_time()
    calls, partition = node.lives[core].core.transactions.calls, ("data", 1)
    told = await calls.verify(question_of(producer, **how), [partition])
    return told[partition], trio.current_time() - began_s


@pytest.mark.parametrize("core", range(2))
async def test_who_asks_is_answered_when_the_transaction_before_has_ended(autojump_clock, core):
    async with ending(within_s=0.05) as (node, producer):
        told, after_s = await asked(node, core, producer)
        assert told is CONCURRENT
        assert after_s == pytest.approx(FIRST_S), "which holds up others"
        told, after_s = await asked(node, core, producer, again=True)
        assert told is CONCURRENT
        assert after_s == pytest.approx(0.05 - FIRST_S)
        assert (await asked(node, core, producer, again=True))[0] is NONE


async def test_who_asks_is_answered_in_any_case(autojump_clock):
    async with ending(within_s=60.0) as (node, producer):
        told, after_s = await asked(node, coordinator_core(node, "t"), producer, again=True)
        assert told is CONCURRENT
        assert after_s == pytest.approx(AGAIN_S)


@pytest.mark.parametrize("version", [1, 2])
async def test_a_client_that_goes_on_is_answered_when_the_transaction_before_has_ended(autojump_clock, version):
    async with ending(within_s=0.05, version=version) as (_node, producer):
        began_s = trio.current_time()
        assert await producer.add("data", 1) is NONE
        assert trio.current_time() - began_s == pytest.approx(0.05)
        assert await producer.add_offsets("g") is NONE


async def test_a_client_that_goes_on_is_answered_in_any_case(autojump_clock):
    async with ending(within_s=60.0) as (_node, producer):
        began_s = trio.current_time()
        assert await producer.add_offsets("g") is CONCURRENT
        assert trio.current_time() - began_s == pytest.approx(WHILE_ENDING_S)


class Counted:
    """The questions that a core asks others."""

    def __init__(self, node, core, monkeypatch):
        self.rows = []
        calls = node[core].transactions.calls._calls
        ask = calls.ask

        async def counted(place, rows):
            self.rows.append((place.core, sorted((name, len(partitions)) for name, *_how, partitions in rows)))
            return await ask(place, rows)

        monkeypatch.setattr(calls, "ask", counted)


async def test_what_is_asked_in_one_turn_goes_together_to_each_core(autojump_clock, monkeypatch):
    async with node_with_transactions() as node:
        producers = [Producer(node, name) for name in ("a", "b", "c", "d", "e")]
        for producer in producers:
            await producer.init()
        counted, told = Counted(node, 0, monkeypatch), []

        async def ask(producer, index):
            found = await node[0].transactions.calls.verify(question_of(producer), [("data", index)])
            told.append(found["data", index])

        async with trio.open_nursery() as nursery:
            for producer in producers:
                for index in range(3):
                    nursery.start_soon(ask, producer, index)
        assert told == [NONE] * 15
        expected = {0: [], 1: []}
        for one in producers:
            expected[coordinator_core(node, one.name)].append((one.name, 3))
        assert all(expected.values())
        assert sorted(counted.rows) == sorted(expected.items()), "each once, with all its partitions"


async def test_an_id_whose_log_is_slow_holds_up_no_other_for_long(autojump_clock):
    async with node_with_transactions() as node:
        names = [name for name in map(str, range(99)) if coordinator_core(node, name) == 1]
        producers = [Producer(node, name) for name in names[:8]]
        for producer in producers:
            await producer.init()
        await producers[0].add("data", 0)
        node.lives[1].plane.holds = True
        took_s = []

        async def ask(producer):
            began_s = trio.current_time()
            told = await node[0].transactions.calls.verify(question_of(producer), [("data", 0)])
            took_s.append((told["data", 0], round(trio.current_time() - began_s, 6)))

        async with trio.open_nursery() as nursery:
            for producer in producers:
                nursery.start_soon(ask, producer)
        assert sorted(took_s) == [(NONE, FIRST_S)] + [(ErrorCode.REQUEST_TIMED_OUT, FIRST_S)] * 7
        node.lives[1].plane.make_durable()
        assert (await producers[1].describe()).transaction_state == "Ongoing", "it has come to be all the same"
        node.lives[1].plane.holds = False


async def test_more_partitions_than_go_into_one_call_go_in_several(autojump_clock, monkeypatch):
    monkeypatch.setattr(transaction_calls, "PARTITIONS_PER_CALL", 4)
    monkeypatch.setattr(transaction_calls, "QUESTIONS_PER_CALL", 2)
    async with node_with_transactions() as node:
        names = [name for name in map(str, range(99)) if coordinator_core(node, name) == 1]
        producers = [Producer(node, name) for name in names[:5]]
        for producer in producers:
            await producer.init()
        counted = Counted(node, 0, monkeypatch)

        async def ask(producer, count):
            partitions = [("data", index) for index in range(count)]
            await node[0].transactions.calls.verify(question_of(producer), partitions)

        async with trio.open_nursery() as nursery:
            for producer, count in zip(producers, (3, 3, 1, 1, 1), strict=True):
                nursery.start_soon(ask, producer, count)
        sizes = sorted(sum(count for _name, count in rows) for _core, rows in counted.rows)
        assert sum(sizes) == 9
        assert sizes[-1] <= 4
        assert all(len(rows) <= 2 for _core, rows in counted.rows)


async def test_below_a_topic_of_transactions_nobody_is_asked(autojump_clock):
    async with running_node() as node:
        told = await node[0].transactions.calls.verify(Asked("t", 1, 0, adds=True), [("data", 0)])
        assert told == {("data", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}


@pytest.mark.parametrize(("why", "tried"), [(ProduceFallback.VERIFY, 1), (ProduceFallback.NONE, 2)])
async def test_a_batch_that_is_left_to_be_verified_is_verified_first(autojump_clock, monkeypatch, why, tried):
    """It would be left once more, with all that is found out of its partitions before."""
    async with node_with_transactions() as node:
        producer = Producer(node)
        await producer.init()
        core = node.lives[owner(node, "data", 0)].core
        tries, produce_with = [], core.plane.produce_with

        def produce_now(request):
            request.fallback_reason = why
            return False

        def counted(request, verdicts, endpoints):
            tries.append(verdicts)
            return produce_with(request, verdicts, endpoints)

        monkeypatch.setattr(core, "produce_now", produce_now)
        monkeypatch.setattr(core.plane, "produce_with", counted)
        assert await producer.produce("data", 0) == (NONE, 0)
        assert len(tries) == tried


async def test_who_waits_for_a_transaction_to_end_costs_others_nothing(autojump_clock, monkeypatch):
    """A thousand may, for a partition without a leader."""
    async with ending(within_s=60.0) as (node, stuck):
        core, own = coordinator_core(node, "t"), coordinator_partition("t", 4)
        coordinator = node[core].transactions.coordinator_of("t")
        name = next(name for name in map(str, range(1_000)) if coordinator_partition(name, 4) == own)
        index = next(index for index in range(4) if owner(node, "data", index) == core)
        other, looked_at = Producer(node, name, connection=70), []
        await other.init()
        is_pending = coordinator.machine.is_pending
        monkeypatch.setattr(coordinator.machine, "is_pending", lambda each: looked_at.append(each) or is_pending(each))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(coordinator.until_settled, "t")
            await trio.sleep(0.1)
            assert looked_at == ["t"]
            assert await other.add("data", index) is NONE
            assert await other.end() is NONE
            assert await other.until_complete() == "CompleteCommit"
            assert looked_at.count("t") == 1
            assert await stuck.until_complete() == "CompleteCommit"
        assert looked_at.count("t") > 1, "it was told"
