"""What a cleaning is told of transactions: all that were aborted, wherever their markers are."""

import contextlib

from tests.storage.checkpointed_core import DATA, SETTINGS, CheckpointedCore
from tests.storage.test_core_recovery import live, small_journal  # noqa: F401 - a fixture
from tests.support.cleaned_copies import cleanable, read_file, swap_copy
from tests.support.record_batches import CONTROL, TRANSACTIONAL, Record, batch
from tpc_broker.log.files import SNAPSHOT_SUFFIX, segment_file_name
from tpc_broker.log.producer_state import ProducerState
from tpc_broker.metadata.cleaner_settings import NO_CLEANING
from tpc_broker.storage.ports import Bounds
from tpc_broker.storage.recovery.filled_folders import make_filling_folder
from tpc_broker.storage.replicas.filled_logs import FilledLog
from tpc_broker.storage.upkeep.compaction import make_job, measure

PRODUCER = 9
ABORT = Record(b"\0\0\0\0\0\0", b"\0\0\0\0")
COMMIT = Record(b"\0\0\0\0\0\0", b"\0\0\0\1")


async def world_with_an_open_transaction():
    """Its one batch is in the first of two sealed segments."""
    world = CheckpointedCore(5, partitions=1)
    await world.open()
    storage = world.storages[world.partitions[0].key]
    place = (PRODUCER, 0, 0)
    await storage.append([batch([Record(b"aborted", b"k")], attributes=TRANSACTIONAL, producer=place, leader_epoch=0)])
    for offset in (1, 2):
        await world.roll()
        await storage.append([batch([Record(b"v", b"k")], base_offset=offset, leader_epoch=0)])
    return world, storage


async def test_a_job_knows_of_a_transaction_whose_marker_is_behind_its_segments():
    world, storage = await world_with_an_open_transaction()
    marker = batch(
        [ABORT], base_offset=3, attributes=TRANSACTIONAL | CONTROL, producer=(PRODUCER, 1, -1), leader_epoch=0
    )
    await storage.append([marker])
    await world.checkpoint()
    measured = await measure(storage, Bounds(0, 4, 4, 4), now_ms=0)
    assert [segment.base_offset for segment in measured.sources] == [0, 1]
    job = (await make_job(storage, measured, 0, NO_CLEANING, now_ms=0)).job
    assert [(one.producer_id, one.first_offset, one.last_offset) for one in job.aborted] == [(PRODUCER, 0, 3)]


async def test_nothing_is_cleaned_of_a_transaction_whose_marker_is_in_no_file():
    world, storage = await world_with_an_open_transaction()
    await world.checkpoint()
    assert not (await measure(storage, Bounds(0, 4, 4, 4), now_ms=0)).sources


async def filled_from(world, storage, *, removed_upto):
    """Who is filled with two segments that were cleaned: the first one had the only batch of a transaction, and the
    second one its marker. What it takes for the last stable offset.
    """
    end = batch([COMMIT], base_offset=3, attributes=TRANSACTIONAL | CONTROL, producer=(PRODUCER, 1, -1), leader_epoch=0)
    await storage.append([end])
    await world.roll()
    await storage.append([batch([Record(b"v", b"k")], base_offset=4, leader_epoch=0)])
    await world.checkpoint()
    first, *others = cleanable(storage)
    await swap_copy(storage, [first], keep=lambda _header: False)
    await swap_copy(storage, others, keep=lambda header: header.base_offset < 3, removed_upto=removed_upto)
    path = await make_filling_folder(world.disk, DATA, 0, "made")
    for segment in storage.segments[:2]:
        for name in segment.file_names:
            with contextlib.suppress(FileNotFoundError):
                await world.disk.link(storage.folder.path / name, path / name)
    filled = await FilledLog.begin(world.core.files, path, storage.topic, storage.key, SETTINGS, starts=0, ends=4)
    state = await filled.settle()
    await filled.close()
    snapshot = await read_file(world.disk, path / segment_file_name(4, SNAPSHOT_SUFFIX))
    assert ProducerState.decode_snapshot(snapshot).last_stable_offset(4) == state.producers.last_stable_offset(4)
    return state.producers.last_stable_offset(4)


async def test_a_transaction_whose_marker_was_cleaned_away_is_over_for_who_is_filled():
    assert await filled_from(*await world_with_an_open_transaction(), removed_upto=4) == 4


async def test_one_whose_marker_may_still_come_is_not():
    assert await filled_from(*await world_with_an_open_transaction(), removed_upto=1) == 0
