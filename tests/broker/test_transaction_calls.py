"""What coordinators are asked while the transaction before is ending: answered when that is over, and no later."""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import count
from types import SimpleNamespace

import pytest
import trio

from tests.support.transaction_clients import (
    Producer,
    coordinator_core,
    node_with_transactions,
    owner,
    speak_transactions,
)
from tpc_broker.broker.ports import AskedPart, AskedProduce
from tpc_broker.broker.transaction_calls import WHILE_CHANGING_S
from tpc_broker.broker.verification import VERSION_THAT_ADDS, Verification
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka.records import Record, build_batch

NONE, CONCURRENT = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.fixture(autouse=True)
def _with_transactions(monkeypatch):
    speak_transactions(monkeypatch)


@asynccontextmanager
async def ending(within_s=0.01):
    """A transaction whose marker is written, and durable only when `within_s` are over."""
    async with node_with_transactions() as node:
        producer = Producer(node)
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


async def asked(node, core, producer):
    """By a core: what it is told, and after how many seconds."""
    began_s = trio.current_time()
    calls, partition = node.lives[core].core.transactions.calls, ("data", 1)
    told = await calls.verify("t", producer.producer_id, producer.epoch, [partition], adds=True)
    return told[partition], trio.current_time() - began_s


@pytest.mark.parametrize("core", range(2))
async def test_who_asks_is_answered_when_the_transaction_before_has_ended(autojump_clock, core):
    async with ending(within_s=0.05) as (node, producer):
        told, after_s = await asked(node, core, producer)
        assert told is CONCURRENT
        assert 0.05 <= after_s < WHILE_CHANGING_S
        assert (await asked(node, core, producer))[0] is NONE


async def test_who_asks_is_answered_in_any_case(autojump_clock):
    async with ending(within_s=60.0) as (node, producer):
        told, after_s = await asked(node, coordinator_core(node, "t"), producer)
        assert told is CONCURRENT
        assert after_s == pytest.approx(WHILE_CHANGING_S)


async def test_a_batch_is_verified_anew_when_the_transaction_before_has_ended(autojump_clock, monkeypatch):
    """The marker that ended it has the epoch of this one, and took the guard that stood."""
    async with ending() as (node, producer):
        index = next(index for index in range(4) if owner(node, "data", index) == coordinator_core(node, "t"))
        core = node.lives[coordinator_core(node, "t")].core
        batch = build_batch(
            [Record(b"v")], producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=0,
            is_transactional=True,
        )  # fmt: skip
        guards, ended = count(1), []
        monkeypatch.setattr(core.plane, "begin_verification", lambda *_asked, **_how: next(guards))
        monkeypatch.setattr(core.plane, "end_verification", lambda _handle, _producer_id, guard: ended.append(guard))
        request = SimpleNamespace(body=batch, api_version=VERSION_THAT_ADDS)
        verification = Verification(
            core, request, AskedProduce([AskedPart("data", index, 0, len(batch))], 1000, "t")
        )
        await verification.ask(core.clock.monotonic_ms() + 1000)
        assert (verification.guards, verification.errors, ended) == ({0: 2}, {}, [1])
        verification.end()
        assert ended == [1, 2]
