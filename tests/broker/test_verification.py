"""Batches that begin a transaction, on cores in memory: what their coordinator is asked, and what comes of its word."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager

import pytest
import trio

from tests.log.log_batches import batch
from tests.support.memory_clients import create_topic, produce_request_of
from tests.support.transaction_clients import (
    Producer,
    coordinator_core,
    markers_in,
    move,
    node_with_transactions,
    owner,
    produced,
)
from tpc_broker.broker import verification
from tpc_broker.broker.additions import Additions
from tpc_broker.broker.producers_port import EndMarker
from tpc_broker.error_codes import ErrorCode as E
from tpc_broker.model import TRANSACTION_STATE_TOPIC, coordinator_partition
from tpc_broker.testing.node import answer_of

WITHOUT_INDEX = -1


@asynccontextmanager
async def running():
    async with node_with_transactions() as node:
        yield node
        await trio.sleep(30)
        assert not any(life.plane.guards.standing for life in node.lives.values()), "a guard outlives its request"


def on_core(node, core):
    return next(index for index in range(4) if owner(node, "data", index) == core)


def places(node, producer):
    """A partition beside its coordinator, and one on the other core."""
    here = coordinator_core(node, producer.name)
    return on_core(node, here), on_core(node, 1 - here)


async def begun(node, name="t", **how):
    producer = Producer(node, name, **how)
    assert await producer.init() is E.NONE
    return producer


class Asked:
    """What coordinators were asked to verify, and by what core."""

    def __init__(self, monkeypatch):
        self.rows, hand_in = [], Additions._hand_in

        def counted(additions, number, request):
            self.rows.append((additions._service._core.core_id, request.transactional_id))
            hand_in(additions, number, request)

        monkeypatch.setattr(Additions, "_hand_in", counted)


async def test_from_version_12_on_partitions_are_added_wherever_their_coordinator_is(autojump_clock, monkeypatch):
    async with running() as node:
        producer = await begun(node)
        near, far = places(node, producer)
        asked = Asked(monkeypatch)
        for index in (near, far):
            assert await producer.produce("data", index) == (E.NONE, 0)
            assert await producer.produce("data", index) == (E.NONE, 1), "which nobody need be asked about"
        assert asked.rows == [(coordinator_core(node, "t"), "t")] * 2
        found = await producer.describe()
        assert [(one.topic, one.partitions) for one in found.topics] == [("data", [near, far])]
        assert await producer.end() is E.NONE
        assert await producer.until_complete() == "CompleteCommit"
        assert [len(markers_in(node, "data", index)) for index in (near, far)] == [1, 1]
        assert await producer.produce("data", near) == (E.NONE, 3), "of the next transaction, with the next epoch"


@pytest.mark.parametrize(("api", "told"), [(11, E.TRANSACTION_ABORTABLE), (10, E.INVALID_TXN_STATE)])
async def test_before_version_12_a_partition_has_to_be_added_by_the_client(autojump_clock, api, told):
    async with running() as node:
        producer = await begun(node, version=1)
        for index in places(node, producer):
            assert await producer.produce("data", index, sequence=0, api=api) == (told, -1)
            await producer.add("data", index)
            assert await producer.produce("data", index, sequence=0, api=api) == (E.NONE, 0)


async def test_a_batch_waits_while_the_transaction_before_it_ends(autojump_clock):
    """Its client would wait for 100 ms, each time."""
    async with running() as node:
        producer = await begun(node)
        near, far = places(node, producer)
        assert await producer.produce("data", far) == (E.NONE, 0)
        plane = node.lives[owner(node, "data", far)].plane
        plane.holds = True
        assert await producer.end() is E.NONE
        request = producer.send("data", near)
        await trio.sleep(1)
        assert not request.done.is_set()
        plane.holds = False
        plane.make_durable()
        assert await produced(request) == (E.NONE, 0)


async def test_the_marker_that_a_batch_waited_for_does_not_count_against_it(autojump_clock, monkeypatch):
    """From version 2 on it has the batch's epoch, and has ended what had begun to be verified before it came."""
    async with running() as node:
        producer = await begun(node)
        _near, far = places(node, producer)
        assert await producer.produce("data", far) == (E.NONE, 0)
        plane = node.lives[owner(node, "data", far)].plane
        plane.holds = True
        tries, produce_with = [], plane.produce_with
        monkeypatch.setattr(plane, "produce_with", lambda *what: tries.append(what) or produce_with(*what))
        assert await producer.end() is E.NONE
        request = producer.send("data", far)
        await trio.sleep(1)
        plane.holds = False
        plane.make_durable()
        assert await produced(request) == (E.NONE, 2)
        assert len(tries) == 2, "it is left to be verified, and then taken"


@pytest.mark.parametrize("timeout_ms", [1000, 3000])
async def test_when_its_time_is_over_a_batch_waits_no_more(autojump_clock, timeout_ms):
    async with running() as node:
        producer = await begun(node)
        near, far = places(node, producer)
        assert await producer.produce("data", far) == (E.NONE, 0)
        plane = node.lives[owner(node, "data", far)].plane
        plane.holds = True
        assert await producer.end() is E.NONE
        began_s = trio.current_time()
        assert await producer.produce("data", near, timeout_ms=timeout_ms) == (E.NOT_ENOUGH_REPLICAS, -1)
        assert timeout_ms / 1000 <= trio.current_time() - began_s < timeout_ms / 1000 + 0.2
        plane.holds = False
        plane.make_durable()


async def test_a_coordinator_that_does_not_answer_holds_a_batch_no_longer_than_its_time(autojump_clock, monkeypatch):
    async with running() as node:
        producer = await begun(node)
        _near, far = places(node, producer)
        service = node[coordinator_core(node, "t")].transactions

        async def confirm(_name):
            await trio.sleep(60)

        monkeypatch.setattr(service, "confirm", confirm)
        await producer.add("data", far)
        began_s = trio.current_time()
        assert await producer.produce("data", far, timeout_ms=2000) == (E.NOT_ENOUGH_REPLICAS, -1)
        assert 2 <= trio.current_time() - began_s < 2.2


async def test_while_its_coordinators_core_is_away_a_batch_is_to_come_again(autojump_clock):
    async with running() as node:
        producer = await begun(node)
        _near, far = places(node, producer)
        here = coordinator_core(node, "t")
        await node.crash(here)
        assert await producer.produce("data", far, sequence=0) == (E.NOT_ENOUGH_REPLICAS, -1)
        await node.start(here)
        told = E.NOT_ENOUGH_REPLICAS
        while told is E.NOT_ENOUGH_REPLICAS:
            told, offset = await producer.produce("data", far, sequence=0)
        assert (told, offset) == (E.NONE, 0)


async def test_a_coordinator_is_asked_where_it_moved_to(autojump_clock):
    async with running() as node:
        producer = await begun(node)
        near, far = places(node, producer)
        assert await producer.produce("data", near) == (E.NONE, 0)
        was = coordinator_core(node, "t")
        await move(node, TRANSACTION_STATE_TOPIC, coordinator_partition("t", 4), 1 - was)
        assert await producer.produce("data", far) == (E.NONE, 0)
        found = await producer.describe()
        assert [(one.topic, one.partitions) for one in found.topics] == [("data", [near, far])]


class HeldQuestion:
    """Questions of a core that its coordinator has answered, but whose answers have not come."""

    def __init__(self, node, core, monkeypatch):
        self.has_answer, self.may_come = trio.Event(), trio.Event()
        calls = node[core].transactions.calls
        ask = calls.verify

        async def held(*what, **how):
            answer = await ask(*what, **how)
            self.has_answer.set()
            await self.may_come.wait()
            return answer

        monkeypatch.setattr(calls, "verify", held)


@pytest.mark.parametrize("version", [1, 2])
async def test_a_batch_whose_transaction_ended_while_it_was_verified_is_refused(autojump_clock, monkeypatch, version):
    """It was part of it when its coordinator was asked; its marker came first."""
    async with running() as node:
        producer = await begun(node, version=version)
        _near, far = places(node, producer)
        await producer.add("data", far)
        held = HeldQuestion(node, owner(node, "data", far), monkeypatch)
        request = producer.send("data", far)
        await held.has_answer.wait()
        assert await producer.end(commit=False) is E.NONE
        await producer.until_complete()
        assert len(markers_in(node, "data", far)) == 1
        held.may_come.set()
        told = E.INVALID_PRODUCER_EPOCH if version == 2 else E.INVALID_TXN_STATE
        assert await produced(request) == (told, -1), "the epoch is judged first: INVALID_TXN_STATE is fatal"


async def test_a_marker_of_the_transaction_before_that_comes_twice_has_the_coordinator_asked_again(
    autojump_clock, monkeypatch
):
    async with running() as node:
        producer = await begun(node)
        _near, far = places(node, producer)
        await producer.produce("data", far)
        await producer.end()
        await producer.until_complete()
        held = HeldQuestion(node, owner(node, "data", far), monkeypatch)
        request = producer.send("data", far)
        await held.has_answer.wait()
        partition = node[owner(node, "data", far)].partitions.find("data", far)
        (known,) = partition.producers(9)
        named = producer.producer_id, producer.epoch, known.coordinator_epoch
        marker = EndMarker(*named, commits=True, transaction_version=2)
        assert await partition.append_marker(marker) is E.NONE
        held.may_come.set()
        assert await produced(request) == (E.NONE, 3)


async def test_of_an_earlier_epoch_nobody_is_asked(autojump_clock, monkeypatch):
    async with running() as node:
        producer = await begun(node)
        _near, far = places(node, producer)
        assert await producer.produce("data", far) == (E.NONE, 0)
        assert await producer.end() is E.NONE
        await producer.until_complete()
        asked = Asked(monkeypatch)
        assert await producer.produce("data", far, epoch=0, sequence=1) == (E.INVALID_PRODUCER_EPOCH, -1)
        assert not asked.rows


async def test_a_producer_that_was_fenced_is_told_so(autojump_clock):
    async with running() as node:
        old = await begun(node)
        near, far = places(node, old)
        assert await old.produce("data", far) == (E.NONE, 0)
        new = Producer(node, connection=51)
        await new.until(new.init)
        assert await old.produce("data", near) == (E.INVALID_PRODUCER_EPOCH, -1)
        assert await old.produce("data", far) == (E.INVALID_PRODUCER_EPOCH, -1)
        assert await new.produce("data", far) == (E.NONE, 2)


async def test_a_partition_that_moves_meanwhile_takes_nothing_where_it_was(autojump_clock, monkeypatch):
    async with running() as node:
        producer = await begun(node)
        _near, far = places(node, producer)
        was = owner(node, "data", far)
        held = HeldQuestion(node, was, monkeypatch)
        request = producer.send("data", far)
        await held.has_answer.wait()
        await move(node, "data", far, 1 - was)
        held.may_come.set()
        assert await produced(request) == (E.NOT_LEADER_OR_FOLLOWER, -1)
        assert await producer.produce("data", far, sequence=0) == (E.NONE, 0)


async def test_a_client_that_goes_while_its_coordinator_is_asked_leaves_nothing_behind(autojump_clock, monkeypatch):
    async with running() as node:
        producer = await begun(node)
        _near, far = places(node, producer)
        core = owner(node, "data", far)
        held = HeldQuestion(node, core, monkeypatch)
        request = producer.send("data", far, connection=77)
        await held.has_answer.wait()
        node.lives[core].connections.close(77, "it goes")
        assert await produced(request) is None
        assert not node.lives[core].plane.guards.standing
        held.may_come.set()
        assert await producer.produce("data", far, sequence=0) == (E.NONE, 0)


async def test_an_id_that_is_another_producers_is_refused(autojump_clock):
    async with running() as node:
        one, other = await begun(node), await begun(node, "other")
        _near, far = places(node, one)
        one.name = "other"
        assert await one.produce("data", far) == (E.INVALID_PRODUCER_ID_MAPPING, -1)
        one.name = None
        assert await one.produce("data", far) == (E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)
        assert await other.produce("data", far) == (E.NONE, 0)
        assert await Producer(node, "never").describe()


async def test_a_produce_to_many_partitions_holds_its_core_for_no_longer_than_a_step(autojump_clock, monkeypatch):
    monkeypatch.setattr(verification, "STEP", 4)
    async with running() as node:
        await create_topic(node, 0, "wide", 40)
        producer = await begun(node)
        core = coordinator_core(node, "t")
        indexes = [index for index in range(40) if owner(node, "wide", index) == core]
        plane, turns, begun_in = node.lives[core].plane, [0], []
        begin = plane.begin_verification

        def noted(*what, **how):
            begun_in.append(turns[0])
            return begin(*what, **how)

        async def count_turns():
            while True:
                await trio.lowlevel.checkpoint()
                turns[0] += 1

        monkeypatch.setattr(plane, "begin_verification", noted)
        batches = {index: batch(0, producer=(producer.producer_id, 0, 0), transactional=True) for index in indexes}
        message = produce_request_of("wide", batches, transactional_id="t", timeout_ms=30_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count_turns)
            request = node.send(core, message, 12)
            await request.done.wait()
            nursery.cancel_scope.cancel()
        errors = {one.error_code for one in answer_of(request).responses[0].partition_responses}
        assert errors == {0}
        assert len(begun_in) == len(indexes)
        assert max(Counter(begun_in).values()) <= 2 * verification.STEP, "of two tasks one may run twice in a row"


async def test_a_partition_whose_epoch_clients_are_not_told_yet_is_verified_all_the_same(autojump_clock, monkeypatch):
    """The data plane leads it by then, and leaves each of its batches to be verified: without a wait for anything."""
    async with running() as node:
        producer = await begun(node)
        _near, far = places(node, producer)
        partitions = node[owner(node, "data", far)].partitions
        partition = partitions.find("data", far)
        monkeypatch.setattr(partitions, "find", lambda *_key: E.NOT_LEADER_OR_FOLLOWER)
        monkeypatch.setattr(partitions, "find_written", lambda *_key: partition)
        assert await producer.produce("data", far, timeout_ms=1000) == (E.NONE, 0)
        monkeypatch.undo()
