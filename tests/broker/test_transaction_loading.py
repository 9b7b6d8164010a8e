"""Transactional ids are loaded from a long log: in short steps, and only what counts is looked at."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import trio

from tests.support.driven_machine import CellsLog, LongLog, core_of, least_steps_ms
from tests.support.memory_node import MemoryClock
from tests.support.stored_records import stored_records
from tpc_broker.broker.coordinator_driver import GIVEN_AT_ONCE
from tpc_broker.broker.log_replay import LOAD_STEP
from tpc_broker.broker.transaction_service import LoadedTransactions
from tpc_broker.coordinator.transactions import TransactionCoordinator, TransactionLimits
from tpc_broker.coordinator.transactions import stored as transactions_stored
from tpc_broker.coordinator.transactions.machine import Ended
from tpc_broker.coordinator.transactions.records import transaction_key, transaction_record
from tpc_broker.coordinator.transactions.states import State
from tpc_broker.coordinator.transactions.transaction import TopicPartition, Transaction
from tpc_broker.kafka.compression import Compression
from tpc_broker.kafka.records import ControlType, Record, build_batch, control_batch
from tpc_broker.log.batch import empty_batch

PARTITIONS = tuple(TopicPartition("data", index) for index in range(3))


def driver_of(log):
    log.leader_epoch = 3
    core = core_of(MemoryClock())
    core.producer_ids = SimpleNamespace(take_nowait=lambda: None)
    core.view = SimpleNamespace(image=SimpleNamespace(level=5))
    core.transactions = SimpleNamespace(markers=SimpleNamespace(send=lambda *_what: None))
    return LoadedTransactions(core, log, TransactionLimits(), Ended())


async def loaded(log):
    driver = driver_of(log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.run)
        await driver.has_loaded.wait()
        assert driver.is_loaded
        nursery.cancel_scope.cancel()
    return driver.machine


def record(name, state, changed_ms=0):
    partitions = PARTITIONS if state is State.ONGOING or state is State.PREPARE_COMMIT else ()
    found = transaction_record(name, Transaction(
        7, 1, state, 60_000, changed_ms, changed_ms if state is not State.EMPTY else -1, partitions, client_version=2
    ))  # fmt: skip
    return Record(found.value, found.key, 0)


def log_of(records, per_batch):
    log = CellsLog()
    for begin in range(0, len(records), per_batch):
        log.add(build_batch(records[begin : begin + per_batch]))
    return log


def told(machine):
    return machine.statistics(), sorted(stored_records(machine)), machine.next_deadline_ms()


@pytest.mark.parametrize("per_batch", [1, 7, 1_000])
async def test_what_is_loaded_is_what_every_record_in_order_gives(per_batch, autojump_clock):
    chance = random.Random(per_batch)
    states = [each for each in State if each not in (State.DEAD, State.PREPARE_EPOCH_FENCE)]
    records = []
    for number in range(2_000):
        name = str(chance.randrange(300))
        one = record(name, chance.choice(states), number)
        records.append(one if chance.random() < 0.9 else Record(None, one.key, 0))
    log = log_of(records, per_batch)
    log.add(control_batch(ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0))
    log.add(empty_batch(0, 7, 0))
    log.skip(5)
    log.add(build_batch([record("compressed", State.EMPTY)], compression=Compression.GZIP))
    expected = TransactionCoordinator(3, lambda: None)
    for one in [*records, record("compressed", State.EMPTY)]:
        expected.replay(one.key, one.value)
    expected.finish_loading(MemoryClock().wall_ms())
    assert told(await loaded(log)) == told(expected)


async def test_of_what_is_at_rest_nothing_is_decoded(autojump_clock, monkeypatch):
    decoded = []
    read = transactions_stored.read_transaction
    monkeypatch.setattr(transactions_stored, "read_transaction", lambda value: decoded.append(value) or read(value))
    records = [record(str(number % 100), State.ONGOING) for number in range(1_000)]
    records += [record(str(number), State.COMPLETE_ABORT) for number in range(99)]
    machine = await loaded(log_of(records, 50))
    assert decoded == [records[999].value]
    assert machine.describe("1").state == "CompleteAbort"


async def test_others_have_their_turn_between_short_steps(autojump_clock):
    records = [record(str(number % 5_000), State.ONGOING) for number in range(20_000)]
    log, turns = log_of(records, 500), 0

    async def count_turns():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        await loaded(log)
        nursery.cancel_scope.cancel()
    assert turns >= 20_000 // LOAD_STEP + 5_000 // GIVEN_AT_ONCE + 5_000 // 16


@pytest.mark.machine
async def test_a_million_records_of_100_000_ids_are_loaded_in_two_seconds():
    """Of a processor's time; and no step is above a millisecond, but for a few that the machine itself held up."""
    chance = random.Random(1)
    states = [State.ONGOING, State.PREPARE_COMMIT, State.COMPLETE_COMMIT]
    names = [f"an-application-with-a-name-{number}-0_{number % 60}" for number in range(100_000)]
    values = {state: record("t", state).value for state in states}
    records = [Record(values[chance.choice(states)], transaction_key(chance.choice(names)), 0) for _ in range(900_000)]
    records += [Record(values[State.COMPLETE_COMMIT], transaction_key(name), 0) for name in names]
    log = LongLog(build_batch(records[begin : begin + 20]) for begin in range(0, len(records), 20))
    del records

    async def load():
        machine = await loaded(log)
        assert machine.statistics().ids_count == 100_000

    steps_ms = await least_steps_ms(load)
    assert sum(steps_ms) < 2_000
    assert steps_ms[4] < 1
