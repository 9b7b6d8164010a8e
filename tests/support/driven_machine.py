"""A small machine with its log in memory, for tests of what drives machines: values by key.

`Cells` keeps the contract `coordinator.Machine`; `CellsLog` is what a `Partition` is to a driver; `driving` runs a
driver of both until the body has ended, `coordinating` the service that begins drivers.
"""

from __future__ import annotations

import gc
import time
import uuid
from bisect import bisect_right
from contextlib import asynccontextmanager, contextmanager
from itertools import accumulate
from types import SimpleNamespace

import trio

from tests.support.memory_node import MemoryClock
from tpc_broker.broker.coordinator_driver import MachineDriver
from tpc_broker.broker.coordinators import Coordinators
from tpc_broker.broker.log_limiter import LogLimiter
from tpc_broker.coordinator import Effects, Record
from tpc_broker.coordinator.effects import Timers, Writes
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.kafka.records import ControlType, control_batch, read_records
from tpc_broker.log.batch import decode_header
from tpc_broker.log.seals import CleanedState
from tpc_broker.metadata.cleaner_settings import CleanerSettings
from tpc_broker.metadata.topic_config import TopicConfig
from tpc_broker.model import PartitionIndex, TopicId, TopicPartition
from tpc_broker.testing.logs import MemoryLog

RUNS = 3
"""In which steps are measured."""


def runs_ahead(key):
    return key.startswith(b"~")


def put_all(cells, records):
    for record in records:
        if record.value is None:
            cells.pop(record.key, None)
        else:
            cells[record.key] = record.value


class Cells:
    """`cells` is what is seen, `durable` what is stored: keys that begin with `~` run ahead of the disk, others do not.
    Whoever sets something is told whether it is stored, when that is certain.
    """

    def __init__(self):
        self.cells, self.durable = {}, {}
        self.timers, self.ended = Timers(), []
        self._writes = Writes()

    def set(self, records, token):
        def tell(is_stored):
            return lambda later, *_why: later.reply(token, is_stored)

        effects, ahead = Effects(), runs_ahead(records[0].key)
        if ahead:
            put_all(self.cells, records)
        self._writes.begin(effects, records, tell(True), tell(False), runs_ahead=ahead)
        return effects

    def replay(self, key, value):
        put_all(self.cells, [Record(key, value)])
        put_all(self.durable, [Record(key, value)])

    def finish_loading(self, _now_ms):
        return Effects()

    def written(self, write_id, now_ms):
        effects, write = Effects(), self._writes.end(write_id)
        put_all(self.durable, write.records)
        if not runs_ahead(write.records[0].key):
            put_all(self.cells, write.records)
        write.on_written(effects, now_ms)
        return effects

    def write_failed(self, write_id, error, now_ms):
        effects = Effects()
        self._writes.fail(write_id).on_failed(effects, error, now_ms)
        return effects

    def next_deadline_ms(self):
        return self.timers.next_deadline_ms()

    def on_deadline(self, now_ms):
        while (key := self.timers.pop_due(now_ms)) is not None:
            self.ended.append(key)
        return Effects()

    def clock_was_set(self, by_ms):
        self.timers.shift(by_ms)

    def unload(self):
        effects = Effects()
        while self._writes:
            self._writes.fail(self._writes.oldest).on_failed(effects, None, 0)
        return effects


class CellsLog:
    """`refuses`: so many appends are not taken. `write_s`: for one that is."""

    label, is_led, is_replicated = "cells-0", True, False

    def __init__(self):
        self.log = MemoryLog()
        self.refuses, self.write_s, self.fenced = 0, 0.001, {}
        self.config = TopicConfig()
        self.cleaned_upto, self.generations = 0, frozenset()

    def add(self, batch):
        """As another coordinator has left it."""
        self.log.append(batch, 0)
        self.log.high_watermark = self.log.log_end_offset

    def skip(self, offsets):
        """Nothing is there any more."""
        self.log.log_end_offset += offsets
        self.log.high_watermark = self.cleaned_upto = self.log.log_end_offset

    def clean(self, batches):
        """These are what is left of all that is there."""
        self.log.batches, self.cleaned_upto = batches, self.log.log_end_offset
        self.generations |= {f"{len(self.generations):016x}"}

    def records(self):
        """All that a coordinator which loads now would replay."""
        return [record for batch in self.log.batches for record in read_records(batch)]

    # -- what a driver asks --------------------------------------------------------------------------------------------

    def bounds(self):
        return self.log.bounds

    def cleaned(self):
        return CleanedState(self.cleaned_upto, self.cleaned_upto, 0), self.generations

    async def read_bytes(self, offset, upto, bytes_max):
        await trio.lowlevel.checkpoint()
        found, size = [], 0
        for batch in self.log.batches:
            header = decode_header(batch)
            if header.next_offset <= offset:
                continue
            if header.base_offset >= upto or (found and size + len(batch) > bytes_max):
                break
            found.append(batch)
            size += len(batch)
        return b"".join(found)

    async def append_durably(self, batch):
        await trio.sleep(self.write_s)
        if self.refuses:
            self.refuses -= 1
            raise PartitionOfflineError("no space, for a test")
        self.add(batch)

    async def append_markers(self, markers):
        """Those of producers in `fenced` are refused."""
        await trio.sleep(self.write_s)
        if self.refuses:
            self.refuses -= 1
            raise PartitionOfflineError("no space, for a test")
        errors = [self.fenced.get(marker.producer_id, ErrorCode.NONE) for marker in markers]
        for marker, error in zip(markers, errors, strict=True):
            if not error:
                self.add(control_batch(
                    ControlType.COMMIT if marker.commits else ControlType.ABORT, producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch, coordinator_epoch=marker.coordinator_epoch, timestamp_ms=0,
                ))  # fmt: skip
        return errors


class LongLog(CellsLog):
    """Its batches, which are there from the beginning, are found without looking at all of them."""

    def __init__(self, batches):
        super().__init__()
        begin = 0
        for data in batches:
            self.log.batches.append(begin.to_bytes(8) + data[8:])
            begin = decode_header(self.log.batches[-1]).next_offset
        self.log.log_end_offset = self.log.high_watermark = begin
        self._whole = b"".join(self.log.batches)
        self._begins = [0, *accumulate(map(len, self.log.batches))]
        self._offsets = [decode_header(data).base_offset for data in self.log.batches]

    async def read_bytes(self, offset, _upto, bytes_max):
        await trio.lowlevel.checkpoint()
        begin = self._begins[bisect_right(self._offsets, offset) - 1]
        return self._whole[begin : self._begins[bisect_right(self._begins, begin + bytes_max) - 1]]


class _Steps(trio.abc.Instrument):
    def __init__(self):
        self.ms, self.began = [], time.thread_time_ns()

    def before_task_step(self, _task):
        self.began = time.thread_time_ns()

    def after_task_step(self, _task):
        self.ms.append((time.thread_time_ns() - self.began) / 1e6)


@contextmanager
def measured_steps():
    """How many milliseconds of a processor each step of a task takes in the block, with what was there before left out
    of the collector's sight, as a core has it.
    """
    gc.collect()
    gc.freeze()
    steps = _Steps()
    trio.lowlevel.add_instrument(steps)
    try:
        yield steps.ms
    finally:
        trio.lowlevel.remove_instrument(steps)
        gc.unfreeze()


async def least_steps_ms(work):
    """How many milliseconds of a processor its steps take, longest first: of each place the least of some runs. Who
    shares the processor makes now this step longer and now that one, and none shorter; what is long by itself is so in
    each run.
    """
    runs = []
    for _run in range(RUNS):
        with measured_steps() as steps_ms:
            await work()
        runs.append(sorted(steps_ms, reverse=True))
    return [min(places) for places in zip(*runs, strict=False)]


def core_of(clock, settings=None):
    """As much of a `Core` as a driver asks."""
    raised = []
    return SimpleNamespace(
        clock=clock,
        settings=settings or CleanerSettings(),
        log_limiter=LogLimiter(trio.current_time),
        dispatcher=SimpleNamespace(wait_caught_up=trio.lowlevel.checkpoint),
        note_machine_raised=lambda: raised.append(trio.current_time()),
        machines_raised=raised,
    )


@asynccontextmanager
async def driving(partition, machine=None, clock=None, settings=None):
    """A driver that has loaded what is in the log."""
    driver = MachineDriver(core_of(clock or MemoryClock(), settings), partition, machine or Cells(), "cells")
    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.run)
            await driver.has_loaded.wait()
            yield driver
            nursery.cancel_scope.cancel()


class CellsService(Coordinators):
    """Of the only partition of a topic. `machines`: all that were made, of which `begin` was told."""

    def __init__(self, nursery, partition, begin):
        core, topic_id = core_of(MemoryClock()), TopicId(uuid.UUID(int=1))
        self.core, self._begin_machine = core, begin
        self.key = TopicPartition(topic_id, PartitionIndex(0))
        topic = SimpleNamespace(topic_id=topic_id, partitions_count=1, is_replicated=lambda _index: False)
        core.view = SimpleNamespace(topic=lambda _name: topic)
        core.partitions, core.replicated = {self.key: partition}, None
        self.machines = []
        super().__init__(core, nursery, "cells")

    def _new_coordinator(self, partition):
        self.machines.append(Cells())
        self._begin_machine(self.machines[-1])
        return MachineDriver(self._core, partition, self.machines[-1], "cells")


@asynccontextmanager
async def coordinating(partition, begin=lambda _machine: None):
    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            service = CellsService(nursery, partition, begin)
            service.begin_if_coordinates(service.key)
            await service.wait_coordinator("any")
            yield service
            nursery.cancel_scope.cancel()
