"""The disk in memory and the one of plain calls keep what the real one keeps: the same bodies run on all of them."""

import os
import random
from collections import Counter
from pathlib import Path

import pytest
import trio

from tests.simulator.nodes_network import Wire
from tests.storage.disk_contract import PROMISES
from tests.support.backends import on_io_uring
from tests.support.disk_operations import OPERATIONS
from tests.support.fake_disk import SECTOR_BYTES, FakeDisk
from tests.support.plain_disk import PlainDisk
from tests.support.simulated_disk import SimulatedDisk
from tests.support.simulated_ring import SimulatedSystem
from tpc_broker.engine import trio_ring
from tpc_broker.engine.clocks import SystemClock
from tpc_broker.engine.disk import RingDisk
from tpc_broker.engine.ring import Backend, Feature
from tpc_broker.engine.trio_ring import RingOptions, current_ring
from tpc_broker.storage.ports import Disk

each = pytest.mark.parametrize("body", PROMISES, ids=lambda body: body.__name__)


OPTIONS = {"misaligned_is_bug": False, "now_ms": SystemClock().wall_ms}


def disk_with(folder, disk=None):
    disk = disk or FakeDisk(**OPTIONS)
    for parent in (*reversed(folder.parents), folder):
        disk.put_folder(parent)
    return disk


@each
async def test_the_disk_in_memory(body, tmp_path):
    await body(disk_with(tmp_path), tmp_path)


@each
async def test_the_simulated_disk(body, tmp_path, autojump_clock):
    wire, chance = Wire(), random.Random(body.__name__)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.run)
        system = SimulatedSystem(lambda: int(trio.current_time() * 1e9), SystemClock().wall_ms, chance)
        await body(disk_with(tmp_path, SimulatedDisk(system, wire.after, chance, **OPTIONS)), tmp_path)
        nursery.cancel_scope.cancel()


@each
async def test_the_disk_of_plain_calls(body, tmp_path):
    await body(PlainDisk(), tmp_path)


@pytest.mark.parametrize(
    ("hidden", "backend"),
    [
        on_io_uring(frozenset(), Backend.IO_URING, name="all-features"),
        on_io_uring(frozenset(Feature), Backend.IO_URING, name="as-5.8"),
        pytest.param(frozenset(), Backend.PLAIN, id="plain"),
    ],
)
@each
def test_the_real_disk(body, hidden, backend, tmp_path):
    async def main():
        disk: Disk = RingDisk(current_ring())
        await body(disk, tmp_path)

    trio_ring.run(main, options=RingOptions(hidden=hidden, backend=backend, stall_ms=0))


async def test_every_operation_of_the_port_is_in_a_promise():
    asked = Counter()
    for body in PROMISES:
        disk = disk_with(Path("/folder"))
        await body(disk, Path("/folder"))
        asked += disk.counts
    assert set(asked) == OPERATIONS


SYNCED, NOT_SYNCED = (b"1" * SECTOR_BYTES * 4, b"2" * SECTOR_BYTES * 4)


@pytest.mark.parametrize("sync", ["fdatasync", "syncfs", "durable_write"])
async def test_a_disk_in_memory_keeps_what_was_synced_when_its_power_goes_and_no_more_is_sure(sync):
    """What the real one does then, tests/durability finds out."""

    async def content_after(seed):
        disk, path = FakeDisk(), Path("/a")
        fd = await disk.open(path, os.O_RDWR | os.O_CREAT)
        if sync == "durable_write":
            await disk.durable_write(fd, SYNCED, 0)
        else:
            await disk.write_at(fd, SYNCED, 0)
            await getattr(disk, sync)(fd)
        if sync != "syncfs":
            await disk.fsync_directory(path.parent)
        await disk.write_at(fd, NOT_SYNCED, len(SYNCED))
        await disk.rename(path, Path("/b"))
        disk.crash(random.Random(seed))
        [name] = await disk.listdir(Path("/"))
        with pytest.raises(OSError, match="Bad file descriptor"):
            await disk.read(fd, 1, 0)
        return name, await disk.read(await disk.open(Path("/") / name, os.O_RDONLY), 1 << 20, 0)

    found = {await content_after(seed) for seed in range(50)}
    assert {name for name, _content in found} == {"a", "b"}
    assert all(content.startswith(SYNCED) for _name, content in found)
    behind = {content[len(SYNCED) :] for _name, content in found}
    assert behind > {b"", NOT_SYNCED}, "all of it, none of it, some sectors"
