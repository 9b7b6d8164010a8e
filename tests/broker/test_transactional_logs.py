"""Offsets in transactions by random histories, through the real driver and the real machine, against a small model.

Whatever comes between: crashes, writes that fail, a cleaner. At every moment at which the log could be cut off, who
loads it tells what the model tells, which knows of the log's order and of nothing else.
"""

from __future__ import annotations

import random
from functools import partial
from itertools import chain, count

import pytest
import trio
import trio.testing

from tests.support.compacted_records import BatchCleaner
from tests.support.driven_machine import CellsLog, driving
from tpc_broker.broker.coordinator_driver import NotLoadedError
from tpc_broker.broker.log_replay import replayed
from tpc_broker.coordinator import GroupCoordinator, Producer, TransactionEnd
from tpc_broker.coordinator.latest import LatestRecords
from tpc_broker.coordinator.messages import (
    MarkerResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetToCommit,
    TxnOffsetCommitRequest,
)
from tpc_broker.coordinator.records import read_key, read_offset
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka.records import read_batches, read_control

GROUPS, PARTITIONS, PRODUCERS = "gh", range(3), (1, 2, 3)
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


class Model:
    """Where each offset stands in the log decides (Kafka's `recordOffset`)."""

    def __init__(self):
        self.position, self.committed, self.pending = 0, {}, {}

    def take(self, batch):
        for record in batch.records():
            self.position += 1
            if batch.is_control:
                self.end(batch.producer_id, commit=bool(read_control(record)[0]))
                continue
            key = tuple(read_key(record.key))
            offset = None if record.value is None else read_offset(record.value).offset
            if batch.is_transactional:
                self.pending.setdefault(batch.producer_id, {})[key] = (self.position, offset)
            elif offset is None:
                self.committed.pop(key, None)
                for pending in self.pending.values():
                    pending.pop(key, None)
            else:
                self.committed[key] = (self.position, offset)

    def end(self, producer_id, *, commit):
        for key, placed in self.pending.pop(producer_id, {}).items():
            if commit and placed > self.committed.get(key, (0, 0)):
                self.committed[key] = placed

    def told(self):
        """By group and partition: the offset, and whether it is stable."""
        unstable = {key for pending in self.pending.values() for key in pending}
        keys = [(group, "t", partition) for group in GROUPS for partition in PARTITIONS]
        return {key: (self.committed.get(key, (0, -1))[1], key not in unstable) for key in keys}


def told(machine):
    found = {}
    for group in GROUPS:
        wanted = [("t", partition) for partition in PARTITIONS]
        offsets = machine.offset_fetch(group, wanted).offsets
        stable = machine.offset_fetch(group, wanted, require_stable=True).offsets
        for one, other in zip(offsets, stable, strict=True):
            found[group, "t", one.partition] = (one.offset, other.error_code != UNSTABLE)
    return found


class ModelledLog(CellsLog):
    def __init__(self, chance):
        super().__init__()
        self.model, self.cleaner = Model(), BatchCleaner(chance)

    def add(self, data):
        for batch in read_batches(data):
            self.model.take(batch)
            super().add(bytes(batch.data))
            self.check()

    def check(self):
        machine = GroupCoordinator()
        latest = LatestRecords(machine)
        for _step in chain(replayed(b"".join(self.log.batches), latest), latest.given()):
            pass
        machine.finish_loading(0)
        assert told(machine) == self.model.told()

class Clients:
    def __init__(self, driver, chooser, offsets):
        self.driver, self.random, self.offsets = driver, chooser, offsets
        self.codes = set()

    async def run(self, work):
        while True:
            try:
                await work()
            except NotLoadedError:
                return
            await trio.sleep(self.random.choice([0, 0.001, 0.01]))

    def some(self, count_max):
        group = self.random.choice(GROUPS)
        partitions = self.random.sample(PARTITIONS, self.random.randint(1, count_max))
        return group, tuple(
            OffsetToCommit(topic="t", partition=partition, offset=next(self.offsets)) for partition in partitions
        )

    async def plain(self):
        group, offsets = self.some(2)
        request, machine = OffsetCommitRequest(group_id=group, offsets=offsets), self.driver.machine
        await self.driver.call(OffsetCommitResponse, partial(machine.offset_commit, request))

    async def delete(self):
        group, machine = self.random.choice(GROUPS), self.driver.machine
        wanted = [("t", self.random.choice(PARTITIONS))]
        answer = await self.driver.call(OffsetDeleteResponse, partial(machine.offset_delete, group, wanted))
        self.codes.update(each.error_code for each in answer.partitions)

    def transactions_of(self, producer_id):
        producer, machine = Producer(producer_id, 0), self.driver.machine

        async def work():
            for _ in range(self.random.randint(1, 3)):
                group, offsets = self.some(3)
                request = TxnOffsetCommitRequest(group_id=group, offsets=offsets, producer=producer)
                step = partial(machine.txn_offset_commit, request)
                await self.driver.call(OffsetCommitResponse, step)
                await trio.sleep(self.random.choice([0, 0.001, 0.02]))
            end = TransactionEnd(producer, self.random.random() < 0.6, 0)
            while (await self.driver.call(MarkerResponse, lambda token, _now: machine.marker(end, token))).error_code:
                await trio.sleep(0.001)

        return work


async def live(log, chooser, offsets, seconds, *, fails):
    """One life of a coordinator, with clients that do not pause; it ends in a crash."""
    async with driving(log, GroupCoordinator()) as driver, trio.open_nursery() as nursery:
        clients = Clients(driver, chooser, offsets)
        for work in (clients.plain, clients.delete, *map(clients.transactions_of, PRODUCERS)):
            nursery.start_soon(clients.run, work)
        for _ in range(10):
            await trio.sleep(seconds / 10)
            log.refuses = int(fails and chooser.random() < 0.3)
            if chooser.random() < 0.5:
                log.cleaner.clean(log.log)
                log.check()
        log.check()
        nursery.cancel_scope.cancel()
    return clients.codes


@pytest.mark.usefixtures("autojump_clock")
@pytest.mark.parametrize("seed", range(8))
async def test_whoever_loads_the_log_tells_what_the_model_tells(seed):
    chooser = random.Random(seed)
    log, offsets = ModelledLog(chooser), count(1)
    for _ in range(4):
        await live(log, chooser, offsets, chooser.choice([0.05, 0.2]), fails=True)
    assert log.cleaner.records.removed > 10
