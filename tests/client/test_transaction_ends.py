"""Who owns a transactional id, and how transactions end, whatever is lost: over a script that keeps them."""

from __future__ import annotations

import anyio
import pytest

from tests.support.both_loops import on_both_loops, on_loops_in_turn
from tests.support.cancelled import at_each_await, cancelled_at
from tests.support.scripted_transactions import Lost, modelled_client
from tpc_broker.client.consumer.ports import GroupIdentity, Position
from tpc_broker.client.errors import (
    FencedError,
    RefusedError,
    TransactionAbortedError,
    TransactionInDoubtError,
)
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.transaction import owner as owners
from tpc_broker.client.transaction.owner import Outcome, Owner
from tpc_broker.kafka import ApiKey, ErrorCode

NOBODY = GroupIdentity("g", -1, "", None)
PLACE = TopicPartition("t", 0)
LEVELS = pytest.mark.parametrize("level", [1, 2])


async def opened(client, name="id"):
    owner = Owner(client.fleet, name)
    await write(owner, 1)
    return owner


async def write(owner, offset):
    """A transaction that is open, and has this offset."""
    transaction = await owner.begin(60_000)
    await owner.coordination.commit_offsets(transaction, NOBODY, {PLACE: Position(offset)})


@LEVELS
@on_both_loops
async def test_one_id_is_used_again_without_asking_anew(level):
    async with modelled_client(level) as (client, model):
        owner = await opened(client)
        for offset in (2, 3, 4):
            assert await owner.commit() == (Outcome.COMMITTED, None)
            assert model.offsets("g") == {PLACE: offset - 1}
            await write(owner, offset)
        assert len(model.brokers.asked_of(ApiKey.INIT_PRODUCER_ID)) == 1
        assert await owner.abort() is None
        assert model.offsets("g") == {PLACE: 3}
        await write(owner, 5)
        assert await owner.commit() == (Outcome.COMMITTED, None)
        asked_anew = len(model.brokers.asked_of(ApiKey.INIT_PRODUCER_ID)) - 1
        assert asked_anew == (1 if level < 2 else 0), "an epoch is raised by an abort, or asked for after it"
        assert len(model.brokers.asked_of(ApiKey.ADD_OFFSETS_TO_TXN)) == (5 if level < 2 else 0)
        assert len(model.brokers.asked_of(ApiKey.TXN_OFFSET_COMMIT)) == 5
        assert {one.version for one in model.brokers.asked_of(ApiKey.END_TXN)} == {4 if level < 2 else 5}


@LEVELS
@pytest.mark.parametrize("lost", Lost)
@on_loops_in_turn("commits", [True, False])
async def test_an_end_whose_answer_is_lost_is_asked_for_again(level, lost, commits):
    async with modelled_client(level) as (client, model):
        owner = await opened(client)
        model.lose = {(ApiKey.END_TXN, 0): lost}
        if commits:
            assert await owner.commit() == (Outcome.COMMITTED, None)
        else:
            assert await owner.abort() is None
        assert len(model.brokers.asked_of(ApiKey.END_TXN)) == 2
        assert model.offsets("g") == ({PLACE: 1} if commits else {})
        await write(owner, 2)
        assert await owner.commit() == (Outcome.COMMITTED, None)
        assert model.offsets("g") == {PLACE: 2}


@LEVELS
@on_both_loops
async def test_a_commit_that_is_never_answered_is_in_doubt(level, clock_of):
    clock = clock_of("net.fleet", "net.channel", "transaction.coordination")
    async with modelled_client(level, retry_seconds=1000) as (client, model), anyio.create_task_group() as tasks:
        owner = await opened(client)
        model.lose = {(ApiKey.END_TXN, number): Lost.AFTER for number in range(99)}

        async def be_over():
            await model.brokers.wait_asked(ApiKey.END_TXN, 2)
            clock.passes(1001)

        tasks.start_soon(be_over)
        outcome, error = await owner.commit()
        assert outcome is Outcome.UNKNOWN
        assert isinstance(error, TransactionInDoubtError)
        assert "transactional id id: whether it is committed is not known" in str(error)
        model.lose.clear()
        await write(owner, 2)
        assert await owner.commit() == (Outcome.COMMITTED, None)
        assert model.offsets("g") == {PLACE: 2}


@LEVELS
@on_both_loops
async def test_a_second_client_fences_the_first(level):
    async with modelled_client(level) as (client, model):
        first, second = await opened(client), Owner(client.fleet, "id")
        await write(second, 7)
        assert model.offsets("g") == {}
        outcome, error = await first.commit()
        assert outcome is Outcome.ABORTED
        assert isinstance(error, FencedError)
        assert error.transactional_id == "id"
        with pytest.raises(FencedError, match="transactional id id: another client has taken it over"):
            await first.begin(60_000)
        assert await second.commit() == (Outcome.COMMITTED, None)
        assert model.offsets("g") == {PLACE: 7}


@LEVELS
@on_both_loops
async def test_who_was_fenced_behind_a_lost_answer_does_not_know_of_the_commit(level):
    async with modelled_client(level) as (client, model):
        first = await opened(client)
        model.lose = {(ApiKey.END_TXN, 0): Lost.AFTER}
        ask = first.coordination.end

        async def end(transaction, on_unanswered, *, commits):
            def taken_over():
                on_unanswered()
                model.ids["id"].epoch += 5

            return await ask(transaction, taken_over, commits=commits)

        first.coordination.end = end
        outcome, error = await first.commit()
        assert outcome is Outcome.UNKNOWN
        assert isinstance(error, FencedError)


@LEVELS
@on_both_loops
async def test_a_time_that_is_over_is_told_from_another_client(level):
    async with modelled_client(level) as (client, model):
        owner = await opened(client)
        model.time_out("id")
        outcome, error = await owner.commit()
        assert outcome is Outcome.ABORTED
        assert isinstance(error, TransactionAbortedError)
        assert "timeout_seconds=60" in str(error)
        await write(owner, 2)
        model.time_out("id")
        assert "timeout_seconds=60" in str(await owner.abort())
        await write(owner, 3)
        assert await owner.commit() == (Outcome.COMMITTED, None)
        assert model.offsets("g") == {PLACE: 3}


@LEVELS
@pytest.mark.parametrize("code", [ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED])
@on_both_loops
async def test_a_commit_that_is_refused_is_aborted(level, code):
    async with modelled_client(level) as (client, model):
        owner = await opened(client)
        model.refuse = {(ApiKey.END_TXN, 0): code}
        outcome, error = await owner.commit()
        assert outcome is Outcome.ABORTED
        wanted = TransactionAbortedError if code == ErrorCode.TRANSACTION_ABORTABLE else RefusedError
        assert isinstance(error, wanted)
        assert code.name in str(error)
        assert [one.message.committed for one in model.brokers.asked_of(ApiKey.END_TXN)] == [True, False]
        await write(owner, 2)
        assert await owner.commit() == (Outcome.COMMITTED, None)


@LEVELS
@on_both_loops
async def test_an_id_that_the_coordinator_has_given_up_begins_anew(level):
    async with modelled_client(level) as (client, model):
        owner = await opened(client)
        assert await owner.commit() == (Outcome.COMMITTED, None)
        model.refuse = {(ApiKey.INIT_PRODUCER_ID, 1): ErrorCode.INVALID_PRODUCER_ID_MAPPING}
        await owner.begin(30_000)  # another time-out asks anew
        assert [one.message.producer_id < 0 for one in model.brokers.asked_of(ApiKey.INIT_PRODUCER_ID)] == [
            True, False, True,
        ]  # fmt: skip


@LEVELS
@on_both_loops
async def test_the_transaction_before_may_still_be_ending(level):
    async with modelled_client(level) as (client, model):
        owner = await opened(client)
        assert await owner.commit() == (Outcome.COMMITTED, None)
        model.busy = 3
        await write(owner, 2)
        assert await owner.commit() == (Outcome.COMMITTED, None)
        assert model.offsets("g") == {PLACE: 2}


@LEVELS
@on_both_loops
async def test_a_commit_that_is_cancelled_is_known(level):
    """It is committed, as a request may have left; and it is known."""
    async with modelled_client(level) as (client, model):
        owner = Owner(client.fleet, "id")
        offset = 0

        async def one():
            nonlocal offset
            offset += 1
            await write(owner, offset)
            found.append(await owner.commit())

        found = []
        async for cancelled in at_each_await(one):
            if found:
                assert found.pop() == (Outcome.COMMITTED, None)
                assert model.offsets("g") == {PLACE: offset}
            else:
                assert not cancelled.is_done
                assert model.offsets("g").get(PLACE) != offset


@on_both_loops
async def test_a_cancelled_commit_waits_for_its_end_within_bounds(monkeypatch):
    monkeypatch.setattr(owners, "END_SECONDS", 0.05)
    async with modelled_client(2) as (client, model):
        owner = await opened(client)
        model.lose = {(ApiKey.END_TXN, number): Lost.BEFORE for number in range(999)}
        found = []

        async def one():
            found.append(await owner.commit())

        assert not (await cancelled_at(1, one)).is_done
        ((outcome, error),) = found
        assert outcome is Outcome.UNKNOWN
        assert "after the cancellation" in str(error)
        assert await owner.abort() is None, "it ends within bounds as well"
