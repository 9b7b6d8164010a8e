"""What was aborted stays so over restarts and repairs, also for a transaction that began in front of the segment with
its marker, and when nothing beside that segment says so but its index of transactions.
"""

import random
from contextlib import suppress

import pytest

from tests.log.log_batches import batch, marker
from tests.storage.checkpointed_core import DATA, FakeDisk, JournalWriter
from tests.storage.test_repair import KEY, SETTINGS, nothing_left, recover, repair
from tests.support.cleaned_copies import cleanable, swap_copy
from tests.support.fake_disk import PowerLoss, at_every_effect
from tests.support.journal_file import encode_entry
from tpc_broker.log.files import (
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file_name,
)
from tpc_broker.log.indexes import TRANSACTION_ENTRY_BYTES, AbortedTransaction, TransactionIndex
from tpc_broker.log.journal import EntryKind
from tpc_broker.log.producer_state import CONTROL_ABORT, CONTROL_COMMIT, ProducerState
from tpc_broker.storage.recovery.checkpoint import Checkpointer
from tpc_broker.storage.segments.folders import OFFLINE_FILE, create_partition

PRODUCER = 7
FOLDER = DATA / "topics" / "events-0"
OPENED = batch(0, producer=(PRODUCER, 0, 0), transactional=True)
WENT_ON = batch(1, producer=(PRODUCER, 0, 1), transactional=True)
ABORTED = [(PRODUCER, 0, 2)]


async def checkpoint(core):
    journal = JournalWriter(core.journal_file.disk, core.journal_file, core.scan)
    assert await Checkpointer(core.journal_file, journal, core.storages).run(nothing_left)


async def begun(disk):
    """A transaction's first batch, alone in its segment."""
    disk.put_folder(DATA)
    core = await recover(disk)
    storage = core.storages[KEY] = await create_partition(core.files, DATA / "topics", "events", KEY, SETTINGS)
    await storage.append([OPENED])
    return core, storage


async def aborted_after_restart(disk, core):
    """What a reader of committed records is told after a checkpoint and a restart."""
    await checkpoint(core)
    await core.close()
    core = await recover(disk)
    assert not core.offline
    return await aborted(core)


async def aborted(core):
    storage = core.storages[KEY]
    found = await storage.aborted_transactions(0, storage.written_end_offset)
    return [(one.producer_id, one.first_offset, one.last_offset) for one in found]


def file(disk, base_offset, suffix):
    return disk.names[FOLDER / segment_file_name(base_offset, suffix)].content


def damage(disk, base_offset, suffix):
    file(disk, base_offset, suffix)[-1] ^= 1


@pytest.mark.parametrize("more", [WENT_ON, batch(1)], ids=["some of it", "its marker only"])
@pytest.mark.parametrize("snapshot", ["whole", "damaged", "missing"])
async def test_a_short_active_segment_keeps_what_was_aborted_in_it(snapshot, more):
    disk = FakeDisk()
    core, storage = await begun(disk)
    await storage.roll()
    await storage.append([more, marker(2, CONTROL_ABORT, PRODUCER)])
    if snapshot == "damaged":
        damage(disk, 1, SNAPSHOT_SUFFIX)
    elif snapshot == "missing":
        del disk.names[FOLDER / segment_file_name(1, SNAPSHOT_SUFFIX)]
    assert await aborted_after_restart(disk, core) == ABORTED


@pytest.mark.parametrize(("kind", "expected"), [(CONTROL_ABORT, ABORTED), (CONTROL_COMMIT, [])])
async def test_what_an_index_says_is_believed_of_markers_that_abort(kind, expected):
    disk = FakeDisk()
    _core, storage = await begun(disk)
    await storage.roll()
    await storage.append([WENT_ON, marker(2, kind, PRODUCER)])
    del disk.names[FOLDER / segment_file_name(1, SNAPSHOT_SUFFIX)]
    entry = TransactionIndex([AbortedTransaction(PRODUCER, 0, 2, 3)])
    await storage.folder.write_file(segment_file_name(1, TRANSACTION_INDEX_SUFFIX), entry.encode())
    indexes = await storage.folder.indexes_by_log(storage.active, SETTINGS.index_interval_bytes)
    assert [one[:3] for one in indexes.transactions.entries] == expected


async def test_a_sealed_segment_with_other_damaged_indexes_keeps_it():
    disk = FakeDisk()
    core, storage = await begun(disk)
    await storage.roll()
    await storage.append([WENT_ON, marker(2, CONTROL_ABORT, PRODUCER)])
    await storage.roll()
    damage(disk, 1, SNAPSHOT_SUFFIX)
    del file(disk, 1, TIME_INDEX_SUFFIX)[-1:]
    assert await aborted_after_restart(disk, core) == ABORTED


@pytest.mark.parametrize("place", [9, 17, 25, 33, 40], ids=["producer", "first", "last", "stable", "checksum"])
async def test_a_flipped_bit_of_a_sealed_index_of_transactions_is_seen_and_mended(place):
    disk = FakeDisk()
    core, storage = await begun(disk)
    await storage.roll()
    await storage.append([WENT_ON, marker(2, CONTROL_ABORT, PRODUCER)])
    await storage.roll()
    right = bytes(file(disk, 1, TRANSACTION_INDEX_SUFFIX))
    file(disk, 1, TRANSACTION_INDEX_SUFFIX)[place] ^= 2
    assert await aborted_after_restart(disk, core) == ABORTED
    assert file(disk, 1, TRANSACTION_INDEX_SUFFIX) == right


async def test_an_index_of_transactions_of_an_earlier_release_is_read_and_left():
    disk = FakeDisk()
    core, storage = await begun(disk)
    await storage.roll()
    await storage.append([WENT_ON, marker(2, CONTROL_ABORT, PRODUCER)])
    await storage.roll()
    del file(disk, 1, TRANSACTION_INDEX_SUFFIX)[TRANSACTION_ENTRY_BYTES:]
    assert await aborted_after_restart(disk, core) == ABORTED
    assert len(file(disk, 1, TRANSACTION_INDEX_SUFFIX)) == TRANSACTION_ENTRY_BYTES


async def test_a_segment_that_is_the_last_one_again_goes_on_with_its_index():
    """Behind a cut: what a sealed file ends with gives way to the next entry."""
    disk = FakeDisk()
    core, storage = await begun(disk)
    await storage.append([WENT_ON, marker(2, CONTROL_ABORT, PRODUCER)])
    await storage.roll()
    await storage.append([batch(3)])
    await storage.truncate(3)
    await storage.append([
        batch(3, producer=(PRODUCER, 0, 2), transactional=True), marker(4, CONTROL_ABORT, PRODUCER),
    ])  # fmt: skip
    both = [*ABORTED, (PRODUCER, 3, 4)]
    assert await aborted(core) == both
    assert await aborted_after_restart(disk, core) == both


async def repaired(disk, core, damage_it):
    """The core behind a checkpoint, damage and a repair."""
    await checkpoint(core)
    await core.storages[KEY].folder.write_file(OFFLINE_FILE, b"somebody says so")
    await core.storages[KEY].sync()
    await core.close()
    damage_it()
    await repair(disk)
    return await recover(disk)


async def test_a_new_last_segment_behind_a_repair_knows_of_what_is_open():
    disk = FakeDisk()
    core, storage = await begun(disk)
    await storage.append([WENT_ON])
    core = await repaired(disk, core, lambda: damage(disk, 0, LOG_SUFFIX))
    storage = core.storages[KEY]
    assert storage.active.base_offset == 1
    snapshot = ProducerState.decode_snapshot(bytes(file(disk, 1, SNAPSHOT_SUFFIX)))
    assert snapshot.open_since(PRODUCER) == 0
    await storage.append([marker(2, CONTROL_ABORT, PRODUCER)])
    assert await aborted_after_restart(disk, core) == ABORTED


async def test_a_repaired_segment_whose_snapshot_was_damaged_too_knows_it():
    """Its indexes are gone with the repair: a reader makes them anew."""
    disk = FakeDisk()
    core, storage = await begun(disk)
    await storage.roll()
    await storage.append([WENT_ON, marker(2, CONTROL_ABORT, PRODUCER), batch(3)])
    await storage.roll()
    await storage.append([batch(4)])

    def damage_it():
        damage(disk, 1, LOG_SUFFIX)
        damage(disk, 1, SNAPSHOT_SUFFIX)

    assert await aborted(await repaired(disk, core, damage_it)) == ABORTED


async def test_a_cut_from_before_a_restart_keeps_what_is_in_front_of_it():
    disk = FakeDisk()
    core, storage = await begun(disk)
    await storage.roll()
    await storage.append([WENT_ON, marker(2, CONTROL_ABORT, PRODUCER), batch(3)])
    await checkpoint(core)
    journal = JournalWriter(disk, core.journal_file, core.scan)
    assert await journal.commit([encode_entry(EntryKind.CUT, KEY, 3)])
    await core.close()
    damage(disk, 1, SNAPSHOT_SUFFIX)
    core = await recover(disk)
    assert core.storages[KEY].written_end_offset == 3
    assert await aborted(core) == ABORTED


@pytest.mark.parametrize("end", [FakeDisk.kill, lambda disk: disk.crash(random.Random(3))], ids=["kill", "power loss"])
async def test_an_opening_that_is_cut_short_loses_nothing_of_it(end):
    async def run(effect):
        disk = FakeDisk()
        core, storage = await begun(disk)
        await storage.roll()
        await storage.append([WENT_ON, marker(2, CONTROL_ABORT, PRODUCER)])
        await checkpoint(core)
        await core.close()
        for names in (disk.names, disk.durable_names):
            del names[FOLDER / segment_file_name(1, SNAPSHOT_SUFFIX)]
        disk.effects, disk.lose_power_at = 0, effect
        with suppress(PowerLoss):
            await recover(disk)
            return False
        end(disk)
        assert await aborted(await recover(disk)) == ABORTED
        return True

    assert await at_every_effect(run) > 3


async def test_a_transaction_whose_marker_was_cleaned_away_is_over_behind_a_repair():
    disk = FakeDisk()
    core, storage = await begun(disk)
    await storage.roll()
    await storage.append([batch(1), marker(2, CONTROL_COMMIT, PRODUCER), batch(3)])
    await storage.roll()
    await storage.append([batch(4)])
    await checkpoint(core)
    await swap_copy(storage, cleanable(storage)[1:], keep=lambda header: not header.is_control, removed_upto=4)
    storage = (await repaired(disk, core, lambda: None)).storages[KEY]
    assert storage.producers.last_stable_offset(5) == 5
