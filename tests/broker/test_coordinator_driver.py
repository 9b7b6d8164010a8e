"""What drives the machine of a coordinator, with a machine of a few lines: replay, writes, timers, snapshots."""

from __future__ import annotations

import random
from itertools import count

import pytest
import trio

from tests.support.driven_machine import Cells, CellsLog, driving
from tpc_broker.broker import coordinator_driver
from tpc_broker.coordinator import Record as Change
from tpc_broker.kafka.records import ControlType, Record, build_batch, control_batch, read_records
from tpc_broker.log.batch import empty_batch


def batch(*records):
    return build_batch([Record(value, key, 0) for key, value in records])


def marker():
    return control_batch(ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0)


def add_marker(log):
    log.add(marker())


def add_empty(log):
    log.add(empty_batch(0, 7, 0))


def add_gap(log):
    log.skip(7)


@pytest.mark.parametrize("load_bytes", [1, 1 << 20])
@pytest.mark.parametrize("add", [add_marker, add_empty, add_gap])
async def test_what_holds_no_records_is_passed_over(add, load_bytes, autojump_clock, monkeypatch):
    """In front, between, behind; and where a read begins with it, has nothing else, or ends with it."""
    monkeypatch.setattr(coordinator_driver, "LOAD_BYTES", load_bytes)
    log = CellsLog()
    add(log)
    log.add(batch((b"a", b"1"), (b"b", b"1")))
    add(log)
    add(log)
    log.add(batch((b"a", b"2"), (b"c", b"1"), (b"b", None)))
    if add is not add_gap:
        add(log)
    async with driving(log) as driver:
        assert driver.machine.cells == {b"a": b"2", b"c": b"1"}


async def test_a_control_batch_is_no_record_of_the_machine(autojump_clock):
    log, replayed = CellsLog(), []

    class Noted(Cells):
        def replay(self, key, value):
            replayed.append((key, value))

    add_marker(log)
    log.add(batch((b"a", b"1")))
    add_marker(log)
    async with driving(log, Noted()):
        assert replayed == [(b"a", b"1")]


@pytest.mark.parametrize("add", [add_marker, add_empty])
async def test_nothing_but_passed_over_batches_is_replayed_in_small_steps(add, autojump_clock):
    """However many of them there are, whatever else the core has to do comes in between."""
    log, turns = CellsLog(), 0
    for _ in range(1_000):
        add(log)

    async def count_turns():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        async with driving(log):
            assert turns >= 1_000 // coordinator_driver.LOAD_STEP
        nursery.cancel_scope.cancel()


async def put(driver, key, value):
    """Whether it is stored."""
    return await driver.call(bool, lambda token, _now_ms: driver.machine.set([Change(key, value)], token))


def set_sizes(monkeypatch, growth, part):
    monkeypatch.setattr(coordinator_driver, "SNAPSHOT_GROWTH_RECORDS", growth)
    monkeypatch.setattr(coordinator_driver, "SNAPSHOT_PART_RECORDS", part)


@pytest.mark.parametrize("clients", [2, 200])
async def test_under_writes_that_never_pause_the_log_is_bounded_and_nobody_waits_long(
    clients, autojump_clock, monkeypatch
):
    """Two clients: another write waits whenever one ends. Many: each wait for the disk is for a hundred records."""
    live, growth, part = 1_000, 100, 20
    set_sizes(monkeypatch, growth, part)
    log, lengths, waits_s, values = CellsLog(), [], [], count()
    log.write_s = 0.01
    log.add(batch(*((b"%d" % key, b"old") for key in range(live))))

    async def write(driver, chooser):
        while True:
            began_s = trio.current_time()
            assert await put(driver, b"%d" % chooser.randrange(live), b"%d" % next(values))
            waits_s.append(trio.current_time() - began_s)
            lengths.append(log.log.log_end_offset - log.log.log_start_offset)

    async with driving(log) as driver, trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(write, driver, random.Random(number))
        while next(values) < 6_000:
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert max(lengths) <= 4 * live + growth + 2 * clients
    parts = 1 + clients // part  # at most, between two waits for the disk; and the move of the log's start
    assert max(waits_s) <= (2 + parts + 1) * log.write_s + 1e-6


class Watched(CellsLog):
    """At every moment at which its records could be cut off, a replay gives what is stored."""

    machine = None

    def check(self, cut_off=()):
        replayed, expected = Cells(), Cells()
        for record in (*self.records(), *cut_off):
            replayed.replay(record.key, record.value)
        expected.cells = dict(self.machine.cells)
        for record in cut_off:
            expected.replay(record.key, record.value)
        assert replayed.cells == expected.cells

    def add(self, data):
        records = list(read_records(data))
        for length in range(len(records)):
            self.check(records[:length])
        super().add(data)

    async def move_log_start(self, offset):
        self.check()
        await super().move_log_start(offset)
        self.check()


@pytest.mark.parametrize("seed", range(30))
async def test_a_crash_after_any_record_of_a_snapshot_recovers_what_is_stored(seed, autojump_clock, monkeypatch):
    set_sizes(monkeypatch, growth=20, part=3)
    chooser, log, values, told, moved = random.Random(seed), Watched(), count(), [], []
    log.machine, move = Cells(), log.move_log_start

    async def moving(offset):
        moved.append(offset)
        await move(offset)

    async def write(driver):
        for _ in range(40):
            key, value = b"%d" % chooser.randrange(12), b"%d" % next(values)
            told.append(await put(driver, key, None if chooser.random() < 0.3 and key in log.machine.cells else value))
            await trio.sleep(chooser.choice([0, 0, 0.01]))

    log.move_log_start = moving
    async with driving(log, log.machine) as driver:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(write, driver)
            for _ in range(4):
                await trio.sleep(chooser.uniform(0, 0.02))
                log.refuses = True
                await trio.sleep(chooser.uniform(0, 0.01))
                log.refuses = False
        log.check()
    assert len(moved) >= 2
    assert {True} <= set(told) <= {True, False}


async def test_a_snapshot_of_nothing_leaves_nothing(autojump_clock, monkeypatch):
    set_sizes(monkeypatch, growth=4, part=3)
    log = CellsLog()
    log.add(batch((b"a", b"1"), (b"b", b"1"), (b"a", None)))
    async with driving(log) as driver:
        assert await put(driver, b"b", None)
        await trio.sleep(1)
        assert log.records() == []
        assert await put(driver, b"c", b"1")
    async with driving(log) as driver:
        assert driver.machine.cells == {b"c": b"1"}
