"""What drives the machine of a coordinator, with a machine of a few lines: replay, writes, timers, snapshots."""

from __future__ import annotations

import pytest
import trio

from tests.support.driven_machine import Cells, CellsLog, driving
from tpc_broker.broker import coordinator_driver
from tpc_broker.kafka.records import ControlType, Record, build_batch, control_batch
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

    async def count():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        async with driving(log):
            assert turns >= 1_000 // coordinator_driver.LOAD_STEP
        nursery.cancel_scope.cancel()
