"""A task that asyncio itself cancels, not a scope of anyio's: the cancellation comes once, and is not to be lost."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.cancelled import natively_cancelled_at_each_await
from tests.support.scripted_transactions import modelled_client
from tests.support.waiting import PATIENCE_S
from tpc_broker.client.transaction.owner import Outcome

TEST_SECONDS = 2 * PATIENCE_S


@pytest.mark.parametrize("level", [1, 2])
def test_a_transaction_that_is_cancelled_natively_ends_cancelled(level):
    """Also where its commit is carried out in spite of it: else ``asyncio.TaskGroup`` would wait for ever."""

    async def run():
        async with modelled_client(level) as (client, model):
            opened = []

            async def one():
                async with client.transaction("id") as transaction:
                    opened.append(transaction)
                    await transaction.send("t", b"%d" % len(opened), partition=0)

            await one()  # what is asked only once is asked
            outcomes = set()
            async for task in natively_cancelled_at_each_await(one):
                transaction = opened[-1] if opened else None
                outcomes.add(None if transaction is None else transaction.outcome)
                if transaction is not None:
                    is_there = b"%d" % len(opened) in model.shown("t", 0)
                    assert is_there == (transaction.outcome is Outcome.COMMITTED)
                assert task.cancelled() or task.exception() is None
            assert outcomes >= {Outcome.COMMITTED, Outcome.ABORTED}

    asyncio.run(asyncio.wait_for(run(), TEST_SECONDS))
