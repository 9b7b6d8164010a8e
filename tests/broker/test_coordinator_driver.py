"""What drives the machine of a coordinator, with a machine of a few lines: replay, writes, timers."""

from __future__ import annotations

import random
from itertools import count

import pytest
import trio
import trio.testing

from tests.support.compacted_records import BatchCleaner
from tests.support.driven_machine import Cells, CellsLog, coordinating, core_of, driving, put_all, runs_ahead
from tests.support.memory_node import MemoryClock
from tpc_broker import limits
from tpc_broker.broker import coordinator_driver, log_replay
from tpc_broker.broker.coordinator_driver import MachineDriver
from tpc_broker.coordinator import Effects
from tpc_broker.coordinator import Record as Change
from tpc_broker.error_codes import ErrorCode
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
            assert turns >= 1_000 // log_replay.LOAD_STEP
        nursery.cancel_scope.cancel()


async def put(driver, key, value):
    """Whether it is stored."""
    return await driver.call(bool, lambda token, _now_ms: driver.machine.set([Change(key, value)], token))


class Watched(CellsLog):
    """At every moment at which its records could be cut off, a replay gives what is stored: the service's newest
    machine says what that is. `ever`: all that was in the log.
    """

    def __init__(self):
        super().__init__()
        self.service, self.ever, self.chance = None, set(), random.Random(1)
        self.cleaner = BatchCleaner(self.chance)

    def check(self, cut_off=()):
        replayed, expected = {}, dict(self.service.machines[-1].durable)
        put_all(replayed, self.records())
        put_all(replayed, cut_off)
        put_all(expected, cut_off)
        assert replayed == expected

    def add(self, data):
        records = list(read_records(data))
        for length in range(len(records)):
            self.check(records[:length])
        super().add(data)
        self.ever.update((record.key, record.value) for record in records)
        if self.chance.random() < 0.1:
            self.cleaner.clean(self.log)


@pytest.mark.parametrize("keys", ["0123456789", "~0 ~1 ~2 ~3 ~4 ~5", "~0 ~1 ~2 ~3 4 5 6 7"])
@pytest.mark.parametrize("seed", range(8))
async def test_a_crash_after_any_record_recovers_what_is_stored(seed, keys, autojump_clock):
    """Also where writes fail meanwhile, which are nowhere then, and answers are about what is durable alone. It goes on
    until the log was cleaned some times, and there were failed writes, and machines that were loaded again.
    """
    chooser, log, values, told, is_over = random.Random(seed), Watched(), count(), [], False
    names = [key.encode() for key in (keys.split() if " " in keys else keys)]
    machines_min = 2 if any(map(runs_ahead, names)) else 1

    async def write(service):
        while not is_over:
            key, driver = chooser.choice(names), service.coordinator_of("any")
            if isinstance(driver, ErrorCode):
                await service.wait_coordinator("any")
                continue
            is_there = key in driver.machine.cells
            value = None if chooser.random() < 0.3 and is_there else b"%d" % next(values)
            told.append(await put(driver, key, value))
            assert value is None or told[-1] == ((key, value) in log.ever)
            await trio.sleep(chooser.choice([0, 0, 0.01]))

    async with coordinating(log) as service:
        log.service = service
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(write, service)
            while log.cleaner.passes < 10 or False not in told or len(service.machines) < machines_min:
                await service.wait_coordinator("any")
                await trio.sleep(chooser.uniform(0, 0.3))
                log.refuses = len(service.loaded())
            is_over = True
        await service.wait_coordinator("any")
        log.check()
        assert service.machines[-1].cells == service.machines[-1].durable
        assert len(service.machines) == 1 or machines_min == 2
    assert True in told


async def set_together(service, *changes):
    """Handed in at once, in this order: by key and value, whether it is stored."""
    told, driver = {}, service.coordinator_of("any")

    async def one(change):
        told[change] = await put(driver, *change)

    async with trio.open_nursery() as nursery:
        for change in changes:
            nursery.start_soon(one, change)
            await trio.testing.wait_all_tasks_blocked()
    return told


async def test_a_write_that_runs_ahead_and_fails_takes_the_machine_with_it(autojump_clock):
    """Nothing that was decided since is written, though the disk takes the next write."""
    log = CellsLog()
    async with coordinating(log) as service:
        assert await set_together(service, (b"~a", b"1")) == {(b"~a", b"1"): True}
        before, log.refuses = service.coordinator_of("any"), 1
        changes = [(b"~a", b"2"), (b"~b", b"1"), (b"c", b"1"), (b"~a", b"3")]
        assert await set_together(service, *changes) == dict.fromkeys(changes, False)
        assert service.coordinator_of("any") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert service.is_loading
        await service.wait_coordinator("any")
        assert not service.is_loading
        driver = service.coordinator_of("any")
        assert driver is not before
        assert driver.machine.cells == {b"~a": b"1"}
        assert [(record.key, record.value) for record in log.records()] == [(b"~a", b"1")]
        assert await put(driver, b"~b", b"2")
    async with driving(log) as driver:
        assert driver.machine.cells == {b"~a": b"1", b"~b": b"2"}


async def test_while_no_write_succeeds_a_machine_is_loaded_once_a_second(autojump_clock):
    log = CellsLog()
    log.refuses = 1_000
    async with coordinating(log) as service:
        while trio.current_time() < 10:
            await service.wait_coordinator("any")
            assert not await put(service.coordinator_of("any"), b"~a", b"1")
        assert 9 <= len(service.machines) <= 12


class BrokenError(Exception):
    """What a machine of these tests raises."""


def breaking(step):
    """It does what it is to do, and raises then: what it asked for is lost."""

    def broken(*arguments):
        step(*arguments)
        raise BrokenError

    return broken


@pytest.mark.parametrize("unload_raises", [False, True])
@pytest.mark.parametrize("name", ["set", "written", "write_failed", "on_deadline"])
async def test_a_machine_that_raises_is_loaded_again_and_nothing_of_that_step_is_kept(
    name, unload_raises, autojump_clock, caplog
):
    """Whoever waits hears of it, also those of whom the machine has forgotten; and the driver goes on."""
    log, told = CellsLog(), []
    async with coordinating(log) as service:
        before = service.coordinator_of("any")
        assert await put(before, b"~a", b"1")
        setattr(before.machine, name, breaking(getattr(before.machine, name)))
        if unload_raises:
            before.machine.unload = breaking(before.machine.unload)
        log.refuses, log.write_s = int(name == "write_failed"), 0.1

        async def one(key):
            try:
                told.append(await put(before, key, b"2"))
            except coordinator_driver.MachineFailedError:
                told.append(None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, b"b")
            await trio.testing.wait_all_tasks_blocked()
            if name == "on_deadline":
                before.machine.timers.set("now", before.now_ms())
                before.timer_changed()
        assert told
        assert all(not each for each in told)
        assert service.coordinator_of("any") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await service.wait_coordinator("any")
        after = service.coordinator_of("any")
        assert after is not before
        is_stored = name in {"written", "on_deadline"}  # it was on its way to the disk
        assert after.machine.cells == ({b"~a": b"1", b"b": b"2"} if is_stored else {b"~a": b"1"})
        assert await put(after, b"~a", b"3")
    assert "its cells raised, and are loaded again" in caplog.text
    assert "BrokenError" in caplog.text


async def test_whoever_waits_hears_of_it_when_a_machine_raises_as_its_partition_goes(autojump_clock):
    log = CellsLog()
    log.write_s = 50
    async with coordinating(log) as service, trio.open_nursery() as nursery:
        driver = service.coordinator_of("any")
        driver.machine.unload = breaking(driver.machine.unload)

        async def one():
            with pytest.raises(coordinator_driver.MachineFailedError):
                await put(driver, b"a", b"1")

        nursery.start_soon(one)
        await trio.testing.wait_all_tasks_blocked()
        service.end(service.key)
    assert log.records() == []


async def test_a_machine_that_always_raises_is_loaded_once_a_second(autojump_clock, caplog):
    async with coordinating(CellsLog()) as service:
        while trio.current_time() < 10:
            await service.wait_coordinator("any")
            driver = service.coordinator_of("any")
            driver.machine.set = breaking(driver.machine.set)
            driver.machine.unload = Effects  # it has forgotten who waits
            with pytest.raises(coordinator_driver.MachineFailedError):
                await put(driver, b"~a", b"1")
        assert 9 <= len(service.machines) <= 12


async def put_until_stored(service, key, value):
    """By whichever machine takes it."""
    while True:
        driver = service.coordinator_of("any")
        if isinstance(driver, MachineDriver) and await put(driver, key, value):
            return
        await trio.sleep(0.1)


def break_of(machine, name):
    """From now on."""
    setattr(machine, name, breaking(getattr(machine, name)))


@pytest.mark.parametrize("name", ["next_deadline_ms", "clock_was_set"])
async def test_a_machine_that_raises_when_nobody_asked_is_loaded_again(name, autojump_clock, caplog):
    log = CellsLog()
    async with coordinating(log) as service:
        before = service.coordinator_of("any")
        assert await put(before, b"~a", b"1")
        break_of(before.machine, name)
        if name == "clock_was_set":
            service.core.clock.wall_ahead_ms = 5_000
        before._timer_changed.set()  # the keeper of time looks
        await trio.testing.wait_all_tasks_blocked()
        for number in range(10):
            await put_until_stored(service, b"~b", b"%d" % number)
        after = service.coordinator_of("any")
        assert after is not before
        assert after.machine.cells == {b"~a": b"1", b"~b": b"9"}
        assert len(service.core.machines_raised) == len(service.machines) - 1 == 1
    assert caplog.text.count("its cells raised, and are loaded again") == 1
    async with driving(log) as driver:
        assert driver.machine.cells == {b"~a": b"1", b"~b": b"9"}


@pytest.mark.parametrize("name", ["replay", "finish_loading", "next_deadline_ms"])
async def test_a_machine_that_raises_at_its_beginning_is_tried_again_more_and_more_rarely(name, autojump_clock):
    """And serves when it does not any more, as after another release was installed."""
    log, broken = CellsLog(), {name}
    log.add(batch((b"~a", b"1")))

    def begin(machine):
        for each in broken:
            break_of(machine, each)

    async with coordinating(log, begin) as service:
        await trio.sleep(1_000)
        assert 15 <= len(service.machines) <= 25
        assert len(service.core.machines_raised) == len(service.machines)
        assert service.coordinator_of("any") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert not service.is_loading, "those that are not for a while"
        broken.clear()
        await trio.sleep(61)
        assert service.coordinator_of("any").machine.cells == {b"~a": b"1"}


async def test_who_comes_to_a_machine_that_is_not_loaded_is_refused(autojump_clock):
    """Nothing that it is told is written, so nobody would hear of it."""
    log = CellsLog()

    async def told(driver):
        with pytest.raises(coordinator_driver.NotLoadedError) as raised:
            await put(driver, b"~a", b"1")
        return raised.value.error_code

    async with coordinating(log) as service:
        before, log.refuses = service.coordinator_of("any"), 1
        assert not await put(before, b"~a", b"1")
        assert await told(before) is ErrorCode.COORDINATOR_NOT_AVAILABLE, "another machine is being loaded"
        await service.wait_coordinator("any")
        assert await told(before) is ErrorCode.NOT_COORDINATOR
        after = service.coordinator_of("any")
        service.end(service.key)
        assert await told(after) is ErrorCode.NOT_COORDINATOR
        assert log.records() == []
    new = MachineDriver(core_of(MemoryClock()), log, Cells(), "cells")
    assert await told(new) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_a_write_that_does_not_run_ahead_fails_alone(autojump_clock):
    log = CellsLog()
    async with coordinating(log) as service:
        before, log.refuses = service.coordinator_of("any"), 1
        assert await set_together(service, (b"a", b"1"), (b"b", b"1")) == {(b"a", b"1"): False, (b"b", b"1"): True}
        assert service.coordinator_of("any") is before
        assert before.machine.cells == {b"b": b"1"}


async def test_what_was_under_way_when_another_write_found_no_room_is_loaded_again(autojump_clock, monkeypatch):
    """Whoever asked is refused, but it becomes durable: the next machine waits for that before it loads."""
    monkeypatch.setattr(limits, "COORDINATOR_WRITES_MAX", 1)
    log = CellsLog()
    log.write_s = 10
    async with coordinating(log) as service:
        changes = [(b"~a", b"1"), (b"~b", b"1"), (b"~c", b"1")]
        began_s = trio.current_time()
        assert await set_together(service, *changes) == dict.fromkeys(changes, False)
        assert trio.current_time() < began_s + log.write_s, "nobody waits for what is under way"
        assert service.coordinator_of("any") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await trio.sleep(2 * log.write_s)
        assert service.coordinator_of("any").machine.cells == {b"~a": b"1"}


class StalledClock(MemoryClock):
    """Of a process that stood still for so long, and of its computer."""

    stalled_ms = 0

    def wall_ms(self):
        return super().wall_ms() + self.stalled_ms

    def monotonic_ms(self):
        return super().monotonic_ms() + self.stalled_ms


async def test_a_deadline_that_is_put_off_wakes_nobody(autojump_clock, monkeypatch):
    cells = Cells()
    async with driving(CellsLog(), cells) as driver:
        await trio.testing.wait_all_tasks_blocked()
        cells.timers.set("session", driver.now_ms() + 1_000)
        driver.timer_changed()
        await trio.testing.wait_all_tasks_blocked()
        looked = count()
        now_ms = driver.now_ms
        monkeypatch.setattr(driver, "now_ms", lambda: (next(looked), now_ms())[1])
        for later in range(1_000):
            cells.timers.set("session", now_ms() + 1_000 + later)
            driver.timer_changed()
            await trio.testing.wait_all_tasks_blocked()
        assert next(looked) == 0
        await trio.sleep(1.5)
        assert cells.ended == []
        await trio.sleep(1)
        assert cells.ended == ["session"]


@pytest.mark.parametrize("set_by_ms", [0, 1_000_000, -1_000_000])
async def test_an_earlier_deadline_is_heard_whatever_the_clock_was_set_to(set_by_ms, autojump_clock):
    clock, cells = MemoryClock(), Cells()
    async with driving(CellsLog(), cells, clock) as driver:
        cells.timers.set("session", driver.now_ms() + 100_000)
        driver.timer_changed()
        await trio.testing.wait_all_tasks_blocked()
        clock.wall_ahead_ms += set_by_ms
        cells.timers.set("round", driver.now_ms() + 1_000)
        driver.timer_changed()
        await trio.sleep(1.5)
        assert cells.ended == ["round"]


async def test_who_is_answered_at_once_waits_for_nothing(autojump_clock):
    async with driving(CellsLog(), Cells()) as driver:
        await trio.testing.wait_all_tasks_blocked()

        def told(token, _now_ms):
            effects = Effects()
            effects.reply(token, 7)
            return effects

        assert driver.ask(int, told) == 7
        with pytest.raises(coordinator_driver.MachineFailedError):
            driver.ask(int, lambda _token, _now_ms: 1 // 0)


async def test_after_a_stall_clients_are_heard_before_what_is_overdue_ends(autojump_clock):
    clock, cells = StalledClock(), Cells()
    cells.timers.set("session", clock.wall_ms() + 10_000)
    async with driving(CellsLog(), cells, clock) as driver:
        await trio.sleep(9)
        clock.stalled_ms = 60_000
        await trio.sleep(4)
        assert cells.ended == []
        cells.timers.set("session", clock.wall_ms() + 10_000)
        driver.timer_changed()
        await trio.sleep(9)
        assert cells.ended == []
        await trio.sleep(2)
        assert cells.ended == ["session"]


async def test_what_was_sent_in_time_is_heard_before_a_deadline(autojump_clock):
    clock, cells, is_heard = MemoryClock(), Cells(), trio.Event()
    cells.timers.set("session", clock.wall_ms() + 1_000)
    async with driving(CellsLog(), cells, clock) as driver:
        driver._core.dispatcher.wait_caught_up = is_heard.wait
        await trio.sleep(2)
        assert cells.ended == []
        cells.timers.set("session", clock.wall_ms() + 10_000)
        is_heard.set()
        await trio.sleep(5)
        assert cells.ended == []
