"""A checkpoint leaves few new entries of an active segment's indexes unwritten; nothing that is read needs them."""

import random

import pytest

from tests.log.log_batches import batch, marker
from tests.storage.checkpointed_core import CheckpointedCore
from tests.storage.test_captures import files_of, written
from tests.storage.test_partition_storage import make
from tests.support.fake_disk import FakeDisk
from tpc_broker.log.batch import CONTROL_ABORT
from tpc_broker.log.files import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX
from tpc_broker.log.segment import LogSettings
from tpc_broker.storage.segments import segments

SETTINGS = LogSettings(segment_bytes=1_000_000, index_interval_bytes=200, retention_ms=-1)
LAG = 4


@pytest.fixture
def index_lag():
    return LAG, 1


def suffixes(storage):
    found = files_of(storage.folder.disk)
    return {path.suffix for path in found if path.parent == storage.folder.path} - {".metadata"}


async def append(storage, count):
    for _ in range(count):
        offset = storage.written_end_offset
        await storage.append([batch(offset, [b"x" * 300], timestamp=offset + 1)])


async def test_few_entries_wait_and_then_all_of_them_are_written():
    storage = await make(SETTINGS)
    await append(storage, LAG)
    state = await storage.capture()
    assert (state.index_bytes, state.time_index_bytes) == (0, 0)
    assert suffixes(storage) == {LOG_SUFFIX}
    await append(storage, 1)
    indexes = storage.active.indexes
    state = await storage.capture()
    assert (state.index_bytes, state.time_index_bytes) == (len(indexes.offsets.data), len(indexes.times.data))
    assert suffixes(storage) == {LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX}
    await append(storage, LAG - 1)
    assert (await storage.capture()).index_bytes == state.index_bytes
    await append(storage, 1)
    assert (await storage.capture()).index_bytes == len(indexes.offsets.data) > state.index_bytes


async def test_a_sealed_segment_has_them_all():
    storage = await make(SETTINGS)
    await append(storage, LAG)
    await storage.roll()
    assert {INDEX_SUFFIX, TIME_INDEX_SUFFIX} <= suffixes(storage)
    [sealed, _active] = storage.segments
    assert sealed.flushed_bytes[0] == 8 * (LAG - 1)


async def test_aborted_transactions_never_wait():
    storage = await make(SETTINGS)
    await storage.append([batch(0, producer=(7, 0, 0), transactional=True), marker(1, CONTROL_ABORT, 7)])
    state = await storage.capture()
    assert state.transaction_index_bytes > 0
    assert TRANSACTION_INDEX_SUFFIX in suffixes(storage)


async def test_not_all_partitions_write_them_at_the_same_time(monkeypatch):
    monkeypatch.setattr(segments, "INDEX_LAG_SPREAD", 20)
    storages = [(await written(FakeDisk(), 1))[0] for _ in range(40)]
    for number, storage in enumerate(storages):
        storage.folder.path = storage.folder.path.with_name(f"t-{number}")
        storage.folder.disk.names[storage.folder.path] = None
    have = []
    for _round in range(LAG + 20):
        states = []
        for storage in storages:
            await append(storage, 1)
            states.append(await storage.capture())
        have.append(sum(state.index_bytes > 0 for state in states))
    assert have[LAG - 2] == 0
    assert have[-1] == 40
    assert len(set(have)) > 10


@pytest.mark.parametrize("seed", range(10))
async def test_after_a_crash_everything_is_found_without_them(seed):
    world = CheckpointedCore(seed, partitions=3)
    await world.open()
    chooser = random.Random(seed)
    for _ in range(3):
        for _ in range(chooser.randint(1, 25)):
            await world.append()
            if chooser.random() < 0.3:
                await world.write_behind(everything=True)
            if chooser.random() < 0.2:
                await world.checkpoint()
        await world.checkpoint()
        world.disk.crash(world.rng)
        await world.open()
        for partition in world.partitions:
            storage = world.storages[partition.key]
            for offset, data in partition.acknowledged:
                if offset >= storage.log_start_offset:
                    found = await storage.read(offset, 1)
                    assert found.startswith(data[:20]) or data in found
