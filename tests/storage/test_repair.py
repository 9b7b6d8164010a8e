"""Repair of one partition: what is sound comes back whole, with the indexes and producers that it had."""

import random
import uuid
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.log.log_batches import batch
from tests.storage.checkpointed_core import DATA, FakeDisk, JournalWriter
from tests.support.fake_disk import PowerLoss, at_every_effect
from tpc_broker.log.batch import empty_batch, walk_headers
from tpc_broker.log.indexes import OFFSET_ENTRY_BYTES
from tpc_broker.log.segment import LogSettings
from tpc_broker.model import TopicPartition
from tpc_broker.storage.recovery.checkpoint import Checkpointer
from tpc_broker.storage.recovery.recovery import recover_core
from tpc_broker.storage.recovery.repair import repair_partition
from tpc_broker.storage.segments.folders import OFFLINE_FILE, create_partition, list_partitions
from tpc_broker.storage.segments.readable_runs import READ_BYTES

KEY = TopicPartition(uuid.UUID(int=5), 0)
SETTINGS = LogSettings(retention_ms=-1)


async def nothing_left(_place):
    return None


async def recover(disk):
    return await recover_core(disk, DATA, 0, new_journal_id=bytes(16), settings_of=lambda _topic: SETTINGS,
                              journal_bytes_max=256 * 1024)  # fmt: skip


async def write_and_set_aside(disk, buffers):
    """A partition that holds the batches and is marked offline; its state as the checkpoint has it."""
    disk.put_folder(DATA)
    core = await recover(disk)
    storage = await create_partition(core.files, DATA / "topics", "events", KEY, SETTINGS)
    core.storages[KEY] = storage
    await storage.append(buffers)
    journal = JournalWriter(disk, core.journal_file, core.scan)
    assert await Checkpointer(core.journal_file, journal, core.storages).run(nothing_left)
    await storage.folder.write_file(OFFLINE_FILE, b"somebody says so")
    await storage.sync()
    await core.close()
    return storage.checkpointed


async def repair(disk):
    core = await recover(disk)
    listing = (await list_partitions(disk, DATA / "topics"))[KEY]
    report = await repair_partition(core, core.offline[KEY], DATA, listing)
    await core.close()
    return report


async def repaired(buffers, damage=lambda _disk: None):
    """The state before, the report, and the storage as the next start opens it."""
    disk = FakeDisk()
    before = await write_and_set_aside(disk, buffers)
    damage(disk)
    report = await repair(disk)
    core = await recover(disk)
    assert not core.offline
    return before, report, core.storages[KEY]


async def everything(storage):
    """Every batch that a reader gets, from the log's start on."""
    found, offset = [], storage.log_start_offset
    while offset < storage.written_end_offset and (data := await storage.read(offset, 5000)):
        for header, place in walk_headers(data):
            found.append(bytes(data[place : place + header.size_bytes]))
            offset = header.next_offset
    return found


@pytest.mark.parametrize("batches", [
    [batch(offset, producer=(offset, 0, 0)) for offset in range(100)],
    [batch(0, [bytes(READ_BYTES)]), *(batch(offset, [bytes(4096)]) for offset in range(1, 2500))],
    [batch(offset, producer=(offset % 200, 0, offset // 200), epoch=offset // 700) for offset in range(3000)],
], ids=["100 producers", "2,500 index entries in one window", "producers and epochs"])  # fmt: skip
async def test_more_producers_or_index_entries_than_a_step_has_room_for_are_no_damage(batches):
    before, report, after = await repaired([b"".join(batches)])
    assert report.lost == ()
    assert after.written_end_offset == len(batches)
    epoch = max(before.leader_epoch, *(entry.epoch for entry in before.epochs), 0)
    assert after.state() == replace(before, leader_epoch=epoch)
    assert len(after.active.indexes.offsets) == before.index_bytes // OFFSET_ENTRY_BYTES


async def test_a_damaged_offset_costs_nothing_but_its_batch():
    """The checksum does not cover a batch's offset."""
    batches = [batch(offset, [bytes(3000)], producer=(offset, 0, 0), epoch=offset // 5) for offset in range(10)]

    def damage(disk):
        (path,) = [path for path in disk.names if path.name.endswith(".log")]
        disk.names[path].content[7 * len(batches[0]) + 2] = 1

    _before, report, after = await repaired([b"".join(batches)], damage)
    assert report.lost == ((7, 8),)
    assert after.written_end_offset == 10
    assert await everything(after) == [*batches[:7], *batches[8:]]


def segment(disk, base_offset=0):
    return disk.names[DATA / "topics" / "events-0" / f"{base_offset:020d}.log"].content


def kept_files(disk):
    return {path.name: bytes(inode.content) for path, inode in disk.names.items()
            if inode and "lost+found" in path.parts}  # fmt: skip


TEN = [batch(offset, [bytes([offset]) * 300], producer=(offset % 3, 0, offset // 3)) for offset in range(10)]


@pytest.mark.parametrize("where", ["records", "length", "magic", "zeros"])
async def test_damage_costs_only_its_batch_and_what_was_there_is_kept(where):
    place, seen = 4 * len(TEN[0]), []

    def damage(disk):
        data = segment(disk)
        match where:
            case "records":
                data[place + 200] ^= 1
            case "length":
                data[place + 8 : place + 12] = b"\xff" * 4
            case "magic":
                data[place + 16] = 7
            case "zeros":
                data[place : place + len(TEN[0])] = bytes(len(TEN[0]))
        seen.extend([bytes(data), disk])

    _before, report, after = await repaired([b"".join(TEN)], damage)
    assert report.lost == ((4, 5),)
    assert await everything(after) == [*TEN[:4], *TEN[5:]]
    assert after.written_end_offset == 10
    assert kept_files(seen[1]) == {f"{0:020d}.log": seen[0]}


async def test_a_lost_end_is_not_given_out_again():
    def damage(disk):
        del segment(disk)[-10:]

    _before, report, after = await repaired([b"".join(TEN)], damage)
    assert (report.log_end_offset, report.lost) == (10, ((9, 10),))
    assert after.written_end_offset == 10
    assert await everything(after) == [*TEN[:9], empty_batch(9, 10, 0)]

    await after.append([batch(10)])
    assert await everything(after) == [*TEN[:9], empty_batch(9, 10, 0), batch(10)]


async def test_the_journals_part_fills_the_hole():
    def damage(disk):
        data, salvage = segment(disk), disk.names[DATA / "topics" / "events-0" / "offline"]
        data[4 * len(TEN[0]) + 100] ^= 1
        copy = type(salvage)()
        copy.content += b"".join([*TEN[3:6], batch(10), batch(11)])
        copy.sync()
        disk.names[DATA / "topics" / "events-0" / "salvage-3"] = copy

    _before, report, after = await repaired([b"".join(TEN)], damage)
    assert (report.salvaged_count, report.lost, report.log_end_offset) == (3, (), 12)
    assert await everything(after) == [*TEN, batch(10), batch(11)]


async def test_a_repair_that_is_cut_short_is_done_again_with_the_same_result():
    expected = [*TEN[:4], *TEN[5:]]

    async def run(effect):
        disk = FakeDisk()
        await write_and_set_aside(disk, [b"".join(TEN)])
        data = segment(disk)
        data[4 * len(TEN[0]) + 100] ^= 1
        disk.names[DATA / "topics" / "events-0" / f"{0:020d}.log"].durable[:] = data
        damaged, disk.effects, disk.lose_power_at = bytes(data), 0, effect
        with suppress(PowerLoss):
            await repair(disk)
            return False
        disk.crash(random.Random(effect))
        core = await recover(disk)
        is_offline = bool(core.offline)
        await core.close()
        if is_offline:
            await repair(disk)
        core = await recover(disk)
        assert not core.offline
        assert await everything(core.storages[KEY]) == expected
        assert core.storages[KEY].written_end_offset == 10
        assert damaged in kept_files(disk).values()
        return True

    assert await at_every_effect(run) > 20
