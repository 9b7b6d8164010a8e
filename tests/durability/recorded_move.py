"""Partitions handed between two cores and back, with every write and flush recorded (as `recorded_core`, whose marks it
uses). Two cores do not run in one process, so they take turns, on one directory and in one record.

Run as a program: ``python -m tests.durability.recorded_move FOLDER RECORD SEED MUTANT``.
"""

from __future__ import annotations

import os
import random
import sys
import uuid
import zlib
from functools import partial
from pathlib import Path

import trio

from tests.durability.recorded_core import DIRECT_BYTES_MIN, JOURNAL_BYTES, SEGMENT_BYTES, RecordingDisk, mark
from tests.log.log_batches import batch
from tpc_broker._ring import lib
from tpc_broker.engine.trio_ring import run as run_on_ring
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.log import journal
from tpc_broker.log.checkpoint import decode_entry
from tpc_broker.log.journal import EntryKind
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.options import CoreOptions
from tpc_broker.process import assembly
from tpc_broker.storage import core_moves
from tpc_broker.storage.recovery import checkpoint, handed_producers
from tpc_broker.storage.segments import segment_appender
from tpc_broker.storage.upkeep import write_behind
from tpc_broker.storage.upkeep.journal_upkeep import JournalUpkeep

CORES = (1, 2)
"""Core 0 would ask for the cluster's metadata."""
TURNS, PARTITIONS, APPENDS_A_TURN = 4, 3, 60
MUTANTS = ("none", "released without a sync", "adopted without an entry", "producers without a sync")


class MovesUnderWay:
    """What outlasts the turns: where partitions are, and what is on its way."""

    def __init__(self, seed: int) -> None:
        self.chooser = random.Random(seed)
        configuration = load_settings("", ("log.segment.bytes=1048576",))
        self.config = configuration.topic_config({}, is_internal=False)
        object.__setattr__(self.config, "segment_bytes", SEGMENT_BYTES)
        self.topics = {
            TopicPartition(TopicId(uuid.UUID(int=self.chooser.getrandbits(128))), PartitionIndex(0)): f"topic{number}"
            for number in range(PARTITIONS)
        }
        self.owners = dict.fromkeys(self.topics, CORES[0])
        self.released: dict[TopicPartition, bytes] = {}
        self.moves = 0


class Turn:
    """One core's."""

    def __init__(self, world: MovesUnderWay, core: int, assembled: assembly.CoreAssembly) -> None:
        self.world, self.core = world, core
        self.storage, self.plane = assembled.storage, assembled.plane
        self.led: dict[TopicPartition, tuple[object, int]] = {}
        self.appends_left = APPENDS_A_TURN

    async def open(self, key: TopicPartition) -> None:
        files = await self.storage.open(key, self.world.topics[key], self.world.config)
        await self.storage.begin_epoch(files)
        self.led[key] = files, self.storage.register(files, self.world.config, is_internal=False)

    async def append(self) -> None:
        chooser = self.world.chooser
        while self.appends_left > 0 and self.led:
            self.appends_left -= 1
            key, (files, handle) = chooser.choice(list(self.led.items()))
            values = [chooser.randbytes(chooser.choice([10, 300, 3000, 7000])) for _ in range(3)]
            data = batch(0, values)
            try:
                await self.storage.make_room(files, handle, len(data))
                while (result := self.plane.append(handle, data)) is None:
                    await trio.sleep(0.001)
                if result.error_code:
                    continue  # it is leaving
                what = key.topic_id.hex, result.base_offset, result.base_offset + len(values), zlib.crc32(data[21:])
                mark("asked", *what)
                await self.plane.wait_committed(handle, result.end_offset, result.leader_epoch)
                mark("acknowledged", *what)
            except PartitionOfflineError:
                continue
            await trio.sleep(chooser.uniform(0, 0.003))

    async def release_some(self) -> None:
        """While the others are appended to."""
        target = sum(CORES) - self.core
        for key in self.world.chooser.sample(sorted(self.led, key=str), max(1, len(self.led) - 1)):
            await trio.sleep(self.world.chooser.uniform(0, 0.03))
            self.world.moves += 1
            _files, handle = self.led[key]
            gone = partial(self.led.pop, key, None)
            released = await self.storage.release(handle, CoreId(target), self.world.moves, gone)
            self.world.owners[key], self.world.released[key] = target, released.encode()

    async def checkpoint(self) -> None:
        while True:
            await trio.sleep(self.world.chooser.uniform(0.01, 0.06))
            await self.storage.checkpoint()

    async def run(self) -> None:
        world = self.world
        for key, owner in world.owners.items():
            if owner != self.core:
                if self.storage.released(key) is not None and world.chooser.random() < 0.5 and not world.released:
                    self.storage.forget_release(key)
                continue
            if key in world.released:
                await self.storage.adopt(decode_entry(world.released.pop(key)), world.config)
            await self.open(key)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.storage.run_maintenance)
            nursery.start_soon(self.checkpoint)
            async with trio.open_nursery() as working:
                working.start_soon(self.release_some)
                for _ in range(3):
                    working.start_soon(self.append)
            nursery.cancel_scope.cancel()


async def _take_turn(options: CoreOptions, world: MovesUnderWay) -> None:
    async with assembly.open_assembly(options) as assembled:
        await Turn(world, options.core, assembled).run()


async def _without_sync(_moves, _files):
    await trio.lowlevel.checkpoint()


APPEND_AT_LAST = JournalUpkeep.append_at_last


async def _without_adoption(upkeep, kind, key, argument, payload, then):
    if kind == EntryKind.ADOPTED:
        then()
    else:
        await APPEND_AT_LAST(upkeep, kind, key, argument, payload, then)


async def _without_their_sync(disk, path, data):
    fd = await disk.open(path, os.O_RDWR | os.O_CREAT)
    await disk.write_at(fd, data, 0)
    await disk.close(fd)


def main(folder: str, record: str, seed: str, mutant: str) -> None:
    assert mutant in MUTANTS, mutant
    assembly.probe_journal_mode = lambda *_: journal.JournalMode.DIRECT_DSYNC
    journal.JOURNAL_BYTES_MIN = JOURNAL_BYTES
    journal.FILE_SYSTEM_SHARE_MAX = 0.0
    checkpoint.BALLAST_BYTES = 4096
    assembly.RingDisk = RecordingDisk
    write_behind.INTERVAL_S = 0.01
    segment_appender.DIRECT_BYTES_MIN = write_behind.BYTES_MIN = DIRECT_BYTES_MIN
    write_behind.FEW_PARTITIONS = 0
    if mutant == "released without a sync":
        core_moves.CoreMoves._sync = _without_sync
    if mutant == "adopted without an entry":
        JournalUpkeep.append_at_last = _without_adoption
    if mutant == "producers without a sync":
        handed_producers._write = _without_their_sync
    if mutant == "producers without a sync" or int(seed) % 2:
        handed_producers.PRODUCERS_IN_ENTRY_MAX = -1
        handed_producers.HandedProducers.may_write = True
    for name in ("journals", "topics"):
        (Path(folder) / name).mkdir(parents=True)
    assert lib.tpc_recorder_start(record.encode()) == 0
    world = MovesUnderWay(int(seed))
    nowhere = dict.fromkeys(("mailbox_fd", "control_fd"), -1)
    for number in range(TURNS):
        options = CoreOptions(
            core=CoreId(CORES[number % 2]), cores=3, data=folder, **nowhere, mailbox_names=(), listeners=(),
            listen_fds=(), cpu=None, settings="", overrides=(), log_style="json", log_level="warning",
            supervisor_pid=os.getpid(),
        )  # fmt: skip
        run_on_ring(_take_turn, options, world)
    lib.tpc_recorder_stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
