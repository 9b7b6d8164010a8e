"""Transactions of the asynchronous client over a script that keeps them: what is lost, cancelled, refused."""

from __future__ import annotations

import pytest

from tests.support.both_loops import on_both_loops, on_loops_in_turn
from tests.support.cancelled import at_each_await
from tests.support.scripted_transactions import Lost, modelled_client
from tpc_broker.client.consumer.ports import GroupIdentity
from tpc_broker.client.errors import (
    DeliveryError,
    FencedError,
    TransactionAbortedError,
    TransactionError,
    TransactionInUseError,
)
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.transaction import front
from tpc_broker.client.transaction.owner import Outcome
from tpc_broker.kafka import ApiKey, ErrorCode

LEVELS = pytest.mark.parametrize("level", [1, 2])


class Held:
    """A stream of a group that goes through generations, and its ledger."""

    def __init__(self, *generations):
        self._generations = list(generations)
        self.committed = []
        self.has_lost = False

    @property
    def identity(self):
        generation = self._generations.pop(0) if len(self._generations) > 1 else self._generations[0]
        return GroupIdentity("g", generation, "member", None)

    @property
    def ledger(self):
        return self

    def hold(self, where, first_offset, after):
        return where, first_offset, after

    def is_held_still(self, _held):
        return not self.has_lost

    def commit_held(self, held, next_offset):
        self.committed.append((held, next_offset))

    def take_back_held(self, held):
        self.committed.append((held, None))


PLACE = TopicPartition("t", 0)


@LEVELS
@on_both_loops
async def test_what_was_sent_is_shown_when_it_is_committed(level):
    async with modelled_client(level) as (client, model):
        for number in range(3):
            async with client.transaction("id") as tx:
                await tx.send("t", b"a%d" % number, partition=0)
                await tx.post("t", b"b%d" % number, partition=1)
                await tx.send_all("t", [b"c", b"d"], partition=1)
                assert tx.outcome is Outcome.OPEN
                assert len(model.shown("t", 1)) == 3 * number
            assert tx.outcome is Outcome.COMMITTED
        assert model.shown("t", 0) == [b"a0", b"a1", b"a2"]
        assert model.shown("t", 1) == [b"b0", b"c", b"d", b"b1", b"c", b"d", b"b2", b"c", b"d"]
        assert len(model.brokers.asked_of(ApiKey.INIT_PRODUCER_ID)) == 1
        assert {one.version for one in model.brokers.asked_of(ApiKey.PRODUCE)} == {11 if level < 2 else 12}


@LEVELS
@on_both_loops
async def test_an_error_aborts_and_comes_out(level):
    async with modelled_client(level) as (client, model):
        with pytest.raises(ZeroDivisionError):
            async with client.transaction("id") as tx:
                await tx.send("t", b"lost", partition=0)
                await tx.post("t", b"lost", partition=1)
                raise ZeroDivisionError
        assert tx.outcome is Outcome.ABORTED
        async with client.transaction("id") as tx:
            await tx.send("t", b"kept", partition=0)
        assert model.shown("t", 0) == [b"kept"]
        assert model.shown("t", 1) == []
        with pytest.raises(TransactionError, match=r"the transaction is over \(committed\)"):
            await tx.send("t", b"late")


@LEVELS
@on_both_loops
async def test_nothing_is_asked_for_an_empty_transaction(level):
    async with modelled_client(level) as (client, model):
        for _ in range(2):
            async with client.transaction("id") as tx:
                pass
            assert tx.outcome is Outcome.COMMITTED
        with pytest.raises(ZeroDivisionError):
            async with client.transaction("id") as tx:
                raise ZeroDivisionError
        assert tx.outcome is Outcome.ABORTED
        assert model.brokers.asked_of(ApiKey.END_TXN) == []
        assert len(model.brokers.asked_of(ApiKey.INIT_PRODUCER_ID)) == 1


@LEVELS
@on_both_loops
async def test_cancelled_anywhere_it_is_committed_or_aborted_as_a_whole(level):
    async with modelled_client(level) as (client, model):
        seen = []
        stream = Held(1)

        async def one():
            async with client.transaction("id") as tx:
                seen.append(tx)
                value = b"%d" % len(seen)
                await tx.send("t", value, partition=0)
                await tx.post("t", value, partition=1)
                tx.done({PLACE: len(seen)}, stream=stream)

        outcomes = set()
        async for cancelled in at_each_await(one):
            if not seen:
                assert not cancelled.is_done
                continue
            value, outcome = b"%d" % len(seen), seen[-1].outcome
            outcomes.add(outcome)
            shown = [value in model.shown("t", partition) for partition in range(2)]
            assert shown == [outcome is Outcome.COMMITTED] * 2, (cancelled, outcome)
            assert (model.offsets("g").get(PLACE) == len(seen)) is (outcome is Outcome.COMMITTED)
            assert not cancelled.is_done or outcome is Outcome.COMMITTED
        assert outcomes == {Outcome.COMMITTED, Outcome.ABORTED}


@on_both_loops
async def test_one_transaction_of_an_id_at_a_time():
    async with modelled_client() as (client, _model), client.transaction("id"):
        with pytest.raises(TransactionInUseError, match="id id: this client has a transaction of it open"):
            async with client.transaction("id"):
                raise AssertionError
        async with client.transaction("other") as other:
            await other.send("t", b"x")


@LEVELS
@on_both_loops
async def test_a_refused_record_spoils_the_transaction(level):
    async with modelled_client(level) as (client, model):
        model.refuse = {(ApiKey.PRODUCE, 0): ErrorCode.INVALID_RECORD}
        with pytest.raises(TransactionAbortedError, match=r"id id: it was aborted: .*INVALID_RECORD"):
            async with client.transaction("id") as tx:
                with pytest.raises(DeliveryError, match="INVALID_RECORD"):
                    await tx.send("t", b"bad", partition=0)
                with pytest.raises(TransactionAbortedError, match=r"can only be aborted: .*INVALID_RECORD"):
                    await tx.send("t", b"good", partition=1)
        assert tx.outcome is Outcome.ABORTED
        async with client.transaction("id") as tx:
            await tx.send("t", b"good", partition=0)
        assert model.shown("t", 0) == [b"good"]


@LEVELS
@on_both_loops
async def test_who_was_fenced_is_told_so_and_stays_so(level):
    async with modelled_client(level) as (client, model):
        async with client.transaction("id") as tx:
            await tx.send("t", b"before", partition=0)
        with pytest.raises(FencedError, match="transactional id id: another client has taken it over"):
            async with client.transaction("id") as tx:
                await tx.send("t", b"zombie", partition=0)
                model.take_over("id")
        assert tx.outcome is Outcome.ABORTED
        with pytest.raises(FencedError):
            async with client.transaction("id"):
                raise AssertionError
        with pytest.raises(FencedError):  # also where the first batch hears of it
            async with client.transaction("other") as tx:
                model.take_over("other")
                await tx.send("t", b"zombie", partition=0)
        assert model.shown("t", 0) == [b"before"]


@LEVELS
@on_both_loops
async def test_of_many_ids_those_used_last_keep_their_producers(level, monkeypatch):
    monkeypatch.setattr(front, "IDLE_MAX", 2)
    async with modelled_client(level) as (client, model):

        async def write(*names):
            before = len(model.brokers.asked_of(ApiKey.INIT_PRODUCER_ID))
            for name in names:
                async with client.transaction(name) as tx:
                    await tx.send("t", name.encode(), partition=0)
            return len(model.brokers.asked_of(ApiKey.INIT_PRODUCER_ID)) - before

        async with client.transaction("open") as tx:
            await tx.send("t", b"first", partition=1)
            assert await write("a", "b", "c") == 3
            assert await write("b", "c") == 0
            assert await write("a") == 1
            await tx.send("t", b"second", partition=1)
        await write(*"abcd")
        assert b"".join(model.shown("t", 0)) == b"abcbcaabcd"
        assert model.shown("t", 1) == [b"first", b"second"]
        model.take_over("a")
        with pytest.raises(FencedError):  # though it has no producer any more
            async with client.transaction("a"):
                raise AssertionError


@LEVELS
@on_both_loops
async def test_a_time_that_is_over_aborts_and_the_id_goes_on(level):
    async with modelled_client(level) as (client, model):
        with pytest.raises(TransactionAbortedError, match="timeout_seconds=700"):
            async with client.transaction("id", timeout_seconds=700) as tx:
                await tx.send("t", b"slow", partition=0)
                model.time_out("id")
                await tx.send("t", b"slower", partition=0)
        assert tx.outcome is Outcome.ABORTED
        async with client.transaction("id", timeout_seconds=700) as tx:
            await tx.send("t", b"quick", partition=0)
        assert model.shown("t", 0) == [b"quick"]


@LEVELS
@on_both_loops
async def test_what_was_done_is_committed_in_the_next_generation_too(level):
    async with modelled_client(level) as (client, model):
        model.refuse = {(ApiKey.TXN_OFFSET_COMMIT, 0): ErrorCode.ILLEGAL_GENERATION}
        stream = Held(1, 1, 1, 2)
        async with client.transaction("id") as tx:
            tx.done({PLACE: 5}, stream=stream)
        assert tx.outcome is Outcome.COMMITTED
        assert model.offsets("g") == {PLACE: 5}
        assert stream.committed == [((PLACE, None, None), 5)]
        asked = model.brokers.asked_of(ApiKey.TXN_OFFSET_COMMIT)
        assert [one.message.generation_id_or_member_epoch for one in asked] == [1, 2]
        assert {one.message.member_id for one in asked} == {"member"}


@LEVELS
@on_both_loops
async def test_what_another_member_has_by_now_aborts(level):
    async with modelled_client(level) as (client, model):
        stream = Held(1)
        with pytest.raises(TransactionAbortedError, match="it was aborted: t-0 went to another member"):
            async with client.transaction("id") as tx:
                await tx.send("t", b"x", partition=0)
                tx.done({PLACE: 5}, stream=stream)
                stream.has_lost = True
        assert tx.outcome is Outcome.ABORTED
        model.refuse = {(ApiKey.TXN_OFFSET_COMMIT, 0): ErrorCode.UNKNOWN_MEMBER_ID}
        stream.has_lost = False
        with pytest.raises(TransactionAbortedError, match="UNKNOWN_MEMBER_ID"):
            async with client.transaction("id") as tx:
                await tx.send("t", b"x", partition=0)
                tx.done({PLACE: 5}, stream=stream)
        assert stream.committed == [((PLACE, None, None), None)] * 2
        assert model.shown("t", 0) == []
        assert model.offsets("g") == {}


@LEVELS
@pytest.mark.parametrize("lost", Lost)
@on_loops_in_turn("key", [ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN])
async def test_each_lost_answer_changes_nothing(level, lost, key):
    async with modelled_client(level) as (client, model):
        model.lose = {(key, 0): lost}
        for number in range(2):
            async with client.transaction("id") as tx:
                await tx.send("t", b"%d" % number, partition=0)
            assert tx.outcome is Outcome.COMMITTED
        assert model.shown("t", 0) == [b"0", b"1"]


@pytest.mark.parametrize(
    ("transactional_id", "seconds", "says"),
    [("", 60, "at least one character"), ("id", 0, "timeout_seconds is 0"), ("id", -1, "timeout_seconds is -1")],
)
@on_both_loops
async def test_what_cannot_be(transactional_id, seconds, says):
    async with modelled_client() as (client, _model):
        with pytest.raises(ValueError, match=says):
            client.transaction(transactional_id, timeout_seconds=seconds)
