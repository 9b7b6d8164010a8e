"""What a cleaning is told of transactions: all that were aborted, wherever their markers are."""

from tests.storage.checkpointed_core import CheckpointedCore
from tests.storage.test_core_recovery import live, small_journal  # noqa: F401 - a fixture
from tests.support.record_batches import CONTROL, TRANSACTIONAL, Record, batch
from tpc_broker.metadata.cleaner_settings import NO_CLEANING
from tpc_broker.storage.compaction import make_job, measure
from tpc_broker.storage.ports import Bounds

PRODUCER = 9
ABORT = Record(b"\0\0\0\0\0\0", b"\0\0\0\0")


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
