"""Repair of one partition: what is sound comes back whole, with the indexes and producers that it had."""

import uuid
from dataclasses import replace

import pytest
import trio

from tests.broker.storage_world import DATA, FakeDisk, JournalWriter
from tests.log.log_batches import batch
from tpc_broker.broker.storage_checkpoint import Checkpointer
from tpc_broker.broker.storage_folders import OFFLINE_FILE, create_partition, list_partitions
from tpc_broker.broker.storage_recovery import recover_core
from tpc_broker.broker.storage_repair import READ_BYTES, repair_partition
from tpc_broker.log.indexes import OFFSET_ENTRY_BYTES
from tpc_broker.log.segment import LogSettings
from tpc_broker.model import TopicPartition

KEY = TopicPartition(uuid.UUID(int=5), 0)
SETTINGS = LogSettings(retention_ms=-1)


async def recover(disk):
    return await recover_core(disk, DATA, 0, new_journal_id=bytes(16), settings_of=lambda _topic: SETTINGS,
                              journal_bytes_max=256 * 1024)  # fmt: skip


async def write_and_set_aside(disk, buffers):
    """A partition that holds the batches and is marked offline; its state as the checkpoint has it."""
    disk.names[DATA] = disk.durable_names[DATA] = None
    core = await recover(disk)
    storage = await create_partition(core.files, DATA / "topics", "events", KEY, SETTINGS)
    core.storages[KEY] = storage
    await storage.append(buffers)
    journal = JournalWriter(disk, core.journal_file, core.scan)
    assert await Checkpointer(core.journal_file, journal, core.storages).run(trio.lowlevel.checkpoint)
    await storage.folder.write_file(OFFLINE_FILE, b"somebody says so")
    await core.close()
    return storage.checkpointed


async def repair(disk):
    core = await recover(disk)
    listing = (await list_partitions(disk, DATA / "topics"))[KEY]
    report = await repair_partition(core, core.offline[KEY], DATA, listing)
    await core.close()
    return report


def repaired(buffers, damage=lambda _disk: None):
    """The state before, the report, and the storage as the next start opens it."""

    async def run():
        disk = FakeDisk()
        before = await write_and_set_aside(disk, buffers)
        damage(disk)
        report = await repair(disk)
        core = await recover(disk)
        assert not core.offline
        return before, report, core.storages[KEY]

    return trio.run(run)


@pytest.mark.parametrize("batches", [
    [batch(offset, producer=(offset, 0, 0)) for offset in range(100)],
    [batch(0, [bytes(READ_BYTES)]), *(batch(offset, [bytes(4096)]) for offset in range(1, 2500))],
    [batch(offset, producer=(offset % 200, 0, offset // 200), epoch=offset // 700) for offset in range(3000)],
], ids=["100 producers", "2,500 index entries in one window", "producers and epochs"])  # fmt: skip
def test_more_producers_or_index_entries_than_a_step_has_room_for_are_no_damage(batches):
    before, report, after = repaired([b"".join(batches)])
    assert report.lost == ()
    assert after.written_end_offset == len(batches)
    epoch = max(before.leader_epoch, *(entry.epoch for entry in before.epochs), 0)
    assert after.state() == replace(before, leader_epoch=epoch)
    assert len(after.active.indexes.offsets) == before.index_bytes // OFFSET_ENTRY_BYTES


def test_a_damaged_offset_costs_nothing_in_front_of_it():
    """The checksum does not cover a batch's offset."""
    batches = [batch(offset, [bytes(3000)], producer=(offset, 0, 0), epoch=offset // 5) for offset in range(10)]

    def damage(disk):
        (path,) = [path for path in disk.names if path.name.endswith(".log")]
        disk.names[path].content[7 * len(batches[0]) + 2] = 1

    _before, report, after = repaired([b"".join(batches)], damage)
    assert report.lost == ((7, 10),)
    whole, _report, expected = repaired([b"".join(batches[:7])])
    assert whole.log_end_offset == 7
    assert after.state() == expected.state()
