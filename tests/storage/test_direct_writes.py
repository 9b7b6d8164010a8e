"""Long runs past the page cache: the files are what they would be without it, block by block, and after any crash."""

import errno
import logging
import random

import pytest

from tests.log.log_batches import batch
from tests.storage.direct_writes import append_past_the_page_cache
from tests.storage.test_partition_storage import make
from tests.support.fake_disk import FakeDisk
from tpc_broker.errors import StorageFailedError
from tpc_broker.log.batch import walk_headers
from tpc_broker.log.segment import LogSettings
from tpc_broker.storage.segments import segment_appender as storage_module

SETTINGS = LogSettings(segment_bytes=100_000, index_interval_bytes=4096, retention_ms=-1)


@pytest.fixture
def index_lag():
    return 1, 1


@pytest.fixture(autouse=True)
def short_runs_are_long(monkeypatch):
    monkeypatch.setattr(storage_module, "DIRECT_BYTES_MIN", 4096)


def made_batches(chooser, count):
    return [
        batch(offset, [chooser.randbytes(chooser.choice([10, 900, 5000, 20_000]))], timestamp=1000 + offset)
        for offset in range(count)
    ]


async def write_all(storage, batches, chooser):
    """In runs of any length, in both ways; how many were direct."""
    done = direct = 0
    while done < len(batches):
        run = batches[done : done + chooser.randint(1, 12)]
        count = await append_past_the_page_cache(storage, run) if chooser.random() < 0.7 else 0
        if count == 0:
            count = chooser.randint(1, len(run))
            await storage.append(run[:count])
        else:
            direct += 1
        done += count
        if chooser.random() < 0.1:
            await storage.capture()
            await storage.sync()
    return direct


def contents(disk):
    return {path.name: bytes(inode.content) for path, inode in disk.names.items() if inode is not None}


async def written_and_empty(batches):
    """Two disks, a partition with the batches on the first, an empty one on the second, which takes direct writes."""
    plain, disk = FakeDisk(), FakeDisk()
    one, other = await make(SETTINGS, plain), await make(SETTINGS, disk)
    for data in batches:
        await one.append([data])
    return plain, disk, one, other


async def test_files_are_the_same_either_way():
    for seed in range(30):
        chooser = random.Random(seed)
        batches = made_batches(chooser, 80)
        plain, disk, one, other = await written_and_empty(batches)
        assert await write_all(other, batches, chooser) > 2, seed
        assert await other.read(0, 1) == batches[0]
        for storage in (one, other):
            await storage.capture()
            await storage.sync()
            await storage.close()
        assert contents(plain) == contents(disk), seed
        assert len(one.segments) > 3


async def test_no_block_is_written_in_both_ways():
    disk = FakeDisk()
    chooser = random.Random(3)
    storage = await make(LogSettings(segment_bytes=10**8, index_interval_bytes=4096), disk)
    await write_all(storage, made_batches(chooser, 300), chooser)
    ways = disk.ways()
    assert ways[("direct",)] > 50
    assert ways[("cached",)] > 20
    assert ("cached", "direct") not in ways


async def test_a_batch_that_reaches_beyond_the_last_block_is_not_there_yet():
    disk = FakeDisk()
    storage = await make(SETTINGS, disk)
    batches = [batch(number, [b"x" * 3000]) for number in range(4)]
    assert await append_past_the_page_cache(storage, batches) == 2
    written, active = storage.written_end_offset, storage.active
    assert active.written_end_position == len(b"".join(batches)) // 4096 * 4096 > active.size_bytes
    assert [header.base_offset for header, _place in walk_headers(await storage.read(0, 10**6))] == list(range(written))
    assert await storage.read(written, 10**6) == b""
    await storage.append(batches[written:])
    assert await storage.read(0, 10**6) == b"".join(batches)
    assert ("cached", "direct") not in disk.ways()


async def test_a_sealed_segment_ends_with_its_last_batch_also_after_a_crash():
    for seed in range(20):
        disk = FakeDisk()
        storage = await make(SETTINGS, disk)
        batches = [batch(number, [b"x" * 3000]) for number in range(4)]
        await append_past_the_page_cache(storage, batches)
        sealed = storage.active
        assert sealed.written_end_position > sealed.size_bytes
        await storage.sync()  # what was written direct is durable, its surplus too
        await storage.roll()
        await storage.capture()
        await storage.sync()
        inode = disk.names[storage.folder.path / sealed.log_name]
        inode.crash(random.Random(seed))
        assert len(inode.durable) == sealed.size_bytes


@pytest.mark.parametrize("refuses", ["open", "write"])
async def test_a_file_system_without_direct_writes_gets_the_same(refuses, caplog):
    caplog.set_level(logging.INFO)
    disk = FakeDisk(refuses=refuses)
    chooser = random.Random(1)
    batches = made_batches(chooser, 60)
    storage = await make(LogSettings(segment_bytes=10**8), disk)
    await write_all(storage, batches, chooser)
    assert await storage.read(0, 10**8) == b"".join(batches)
    assert storage.direct_reach(10**6) == 0
    assert ("direct",) not in disk.ways()
    assert len([record for record in caplog.records if "refuses direct writes" in record.message]) == 1


async def test_a_direct_write_that_fails_takes_the_partition_out_of_service():
    for wrong, doubtful in ((errno.EIO, True), (errno.ENOSPC, False)):
        disk = FakeDisk()
        storage = await make(SETTINGS, disk)
        disk.fail_with, disk.fail_at = wrong, disk.effects + 2  # the first is the file's name
        with pytest.raises(StorageFailedError):
            await append_past_the_page_cache(storage, [batch(0, [b"x" * 9000])])
        assert storage.written_end_offset == 0
        assert storage.failed is not None
        assert storage.life.pages_in_doubt == doubtful


async def test_a_cut_voids_the_beginning_of_a_batch_that_was_written_already():
    storage = await make(SETTINGS, FakeDisk())
    kept, cut, other = batch(0, [b"x" * 100]), batch(1, [b"x" * 5000]), batch(1, [b"y" * 5000])
    assert await append_past_the_page_cache(storage, [kept, cut]) == 1
    assert storage.active.written_end_position > storage.active.size_bytes
    await storage.truncate(1)
    await storage.append([other])
    assert await storage.read(0, 10**6) == kept + other


async def test_a_roll_meanwhile_is_noticed():
    storage = await make(SETTINGS, FakeDisk())
    before = storage.active
    await storage.append([batch(0, [b"x" * 100])])
    await storage.roll()
    assert not await storage.append_direct(before, memoryview(bytes(4096)), 0)
    assert storage.written_end_offset == 1
