"""A node's cores in memory (`tpc_broker.testing.node`), as tests want it: crashed and started again over what was
durable, with calls and writes that take their time, all from a seed.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tests.support.fake_disk import FakeDisk
from tests.support.memory_core import MemoryStorage
from tests.support.memory_plane import MemoryPlane
from tpc_broker.model import CoreId
from tpc_broker.testing import connections, node, surroundings

BEGAN_MS = 1_700_000_000_000
LIFE_S = 3600.0


class MemoryClock(surroundings.MemoryClock):
    """Its wall clock begins with `BEGAN_MS`."""

    def wall_ms(self):
        return BEGAN_MS + super().wall_ms()


class MemoryConnections(connections.MemoryConnections):
    """It keeps who was muted, and whose time was spent."""

    def __init__(self):
        super().__init__()
        self.muted, self.time_spent = [], []

    def mute(self, connection, milliseconds):
        self.muted.append((connection, milliseconds))

    def spent(self, connection, client_id, spent_ns):
        self.time_spent.append((connection, client_id, spent_ns))


def half_full_disk(folder):
    """Requests ask for its size, and write nothing."""
    disk = FakeDisk(1000, available_bytes=500)
    disk.put_folder(folder)
    return disk


class MemoryNode(node.MemoryNode):
    """Use `running_node`. `delay_s_max`: of a call between two cores; `write_s_max`: of a write to the disk."""

    def __init__(self, nursery, cores, settings, seed):
        super().__init__(nursery, cores, settings, random.Random(seed), MemoryClock(), "here")
        self.delay_s_max = self.write_s_max = 0.0

    def make_connections(self):
        return MemoryConnections()

    def make_plane(self, connections):
        return MemoryPlane(connections, self.clock)

    def make_storage(self, plane, number):
        return MemoryStorage(plane, self.files[number], self.folders)

    def make_disk(self):
        return half_full_disk(Path("/data"))

    def make_life(self, number, nursery):
        life = super().make_life(number, nursery)
        nursery.start_soon(self._write, life.plane)
        return life

    def delay_s(self):
        return self.chance.uniform(0, self.delay_s_max)

    async def _write(self, plane):
        """Make durable what a slow disk has taken."""
        while True:
            plane.holds = plane.holds or self.write_s_max > 0
            await trio.sleep(self.chance.uniform(0, self.write_s_max) or 1)
            if self.write_s_max:
                plane.make_durable()

    async def crash(self, number):
        """What was not durable is gone."""
        life = self.lives.pop(CoreId(number))
        life.mailboxes.close()
        life.nursery.cancel_scope.cancel()
        for files in self.files[number].values():
            files.log.crash()
        await self.tell_who_is_up()

    async def restart(self, number):
        await self.crash(number)
        return await self.start(number)


@asynccontextmanager
async def running_node(cores=2, settings=(), seed=1):
    """A node whose cores serve, for an hour of trio's time: what waits for ever fails at once where the clock jumps."""
    with trio.fail_after(LIFE_S):
        async with trio.open_nursery() as nursery:
            node = MemoryNode(nursery, cores, settings, seed)
            for number in range(cores):
                await node.start(number)
            yield node
            nursery.cancel_scope.cancel()
