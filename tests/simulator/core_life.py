"""One core on a simulated disk, from its start to its end: the storage and the C that ship, without clients."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import trio

from tests.support.ring_turns import now_ns
from tests.support.simulated_disk import OWNER
from tests.support.simulated_ring import SimulatedRing
from tpc_broker._ring import ffi, lib
from tpc_broker.engine.connections import ConnectionLimits, Connections
from tpc_broker.engine.data_plane import JournalStart, RingDataPlane
from tpc_broker.engine.journal_probe import FLAGS
from tpc_broker.errors import PartitionOfflineError, StorageFailedError
from tpc_broker.log.files import journal_file_name
from tpc_broker.model import CoreId
from tpc_broker.storage.journalled_storage import JournalledStorage
from tpc_broker.storage.recovery.recovery import recover_core

DATA = Path("/data")
CORE = CoreId(0)
WALL_MS = 1_700_000_000_000
REFUSALS = (PartitionOfflineError, StorageFailedError, OSError)
"""What an operation may end with while the disk fails."""
PRODUCE_VERSION = 9
CLOSED_S = 5.0


class WorldClock:
    """`Clock` of the run's time."""

    def wall_ms(self):
        return WALL_MS + self.monotonic_ms()

    def monotonic_ms(self):
        return now_ns() // 1_000_000


class CoreLife:
    """Opened, used, and ended: in order, or with its process. `offline`: what could not be recovered."""

    def __init__(self, world):
        self._world, self.disk = world, world.disk
        self.ring = self.plane = self.storage = self.recovered = None
        self.is_over = False

    async def open(self, mutants=0):
        """In a task of which it is the owner. OSError: the disk."""
        OWNER.set(self)
        world = self._world
        await self.disk.wait_landed()
        self.recovered = recovered = await recover_core(
            self.disk, DATA, CORE, new_journal_id=world.chance.randbytes(16),
            journal_bytes_max=world.journal_bytes,
        )  # fmt: skip
        await recovered.journal_file.set_mode(world.mode)
        self._journal_fd = await self.disk.open(
            DATA / "journals" / journal_file_name(CORE), os.O_RDWR | FLAGS[world.mode]
        )
        self.ring = SimulatedRing(world.system)
        self._connections = Connections(self.ring, ConnectionLimits())
        self.plane = RingDataPlane(self.ring, self._connections, self._journal_start())
        self.plane.take_transactions(on=True)
        if mutants:
            assert lib.tpc_journal_set_mutants(self.plane._journal, mutants) == 0, "built without TPC_MUTANTS"
        self.storage = JournalledStorage(
            recovered, self.plane, self.disk, DATA, WorldClock(), new_run_id=self._new_run_id,
            reopen_journal_file=lambda: (self._journal_fd, int(world.mode)),
        )  # fmt: skip
        world.turns.add(self.ring)

    def _new_run_id(self):
        return self._world.chance.getrandbits(63)

    def _journal_start(self):
        superblock, place = self.recovered.journal_file.superblock, self.recovered.scan.next
        return JournalStart(
            self._journal_fd, int(self._world.mode), superblock.journal_id, self._new_run_id(),
            superblock.initialised_blocks, superblock.region_blocks, place.sequence, place.block, place.previous_crc,
        )  # fmt: skip

    def produce(self, handle, data):
        """One request of a producer, judged by C: as (base offset, end offset, epoch, error); None: there is no room.
        PartitionOfflineError.
        """
        result = ffi.new("tpc_append_result *")
        found = lib.tpc_plane_produce_records(self.plane._plane, handle, data, len(data), PRODUCE_VERSION, result)
        if found in (-errno.EAGAIN, -errno.ENOSPC):
            return None
        if found < 0:
            raise PartitionOfflineError(os.strerror(-found))
        return result.base_offset, result.next_offset, result.leader_epoch, result.error_code

    def end(self):
        """When its tasks are over, however they ended: what it had in memory goes."""
        self.is_over = True
        if self.ring is None:
            return
        self._world.turns.remove(self.ring)
        if self.storage is not None:
            self._world.load.count(self)
            self.ring.abandon()
            self.plane.close()
            self._connections.free()
        self.ring.close()
        self.ring = None

    async def stop(self):
        """In order; whether all of it came to the disk."""
        is_whole = await self.storage.drain()
        while not self.plane.is_quiet():
            await trio.sleep(0.001)
        await self.recovered.close()
        await self.disk.close(self._journal_fd)
        return is_whole
