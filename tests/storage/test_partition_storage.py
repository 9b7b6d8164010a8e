"""One partition's segments: reads from any offset, by time, cuts at every boundary, retention, space, bad indexes."""

import dataclasses
import errno
import random
import uuid
from pathlib import Path

import pytest

from tests.log.log_batches import batch, marker
from tests.support.disk_operations import outcome
from tests.support.fake_disk import FakeDisk
from tpc_broker.engine.journal_lock import JournalLockedError, wait_lock
from tpc_broker.errors import StorageFailedError
from tpc_broker.log.batch import CONTROL_ABORT, CONTROL_COMMIT, decode_header, walk_headers
from tpc_broker.log.files import TRANSACTION_INDEX_SUFFIX, segment_file_name
from tpc_broker.log.indexes import TRANSACTION_ENTRY_BYTES, TransactionIndex
from tpc_broker.log.segment import LogSettings
from tpc_broker.model import TopicPartition
from tpc_broker.storage.recovery.checkpoint import JournalFile, ensure_ballast, release_ballast
from tpc_broker.storage.segments.files import FileCache
from tpc_broker.storage.segments.folders import create_partition
from tpc_broker.storage.segments.reserved_space import RESERVE_STEP_BYTES
from tpc_broker.storage.segments.segment_log import OffsetOutOfRangeError

KEY = TopicPartition(uuid.UUID(int=9), 0)
TOPICS = Path("/topics")
SETTINGS = LogSettings(segment_bytes=2000, index_interval_bytes=300, retention_ms=-1, file_delete_delay_ms=50)


async def make(settings=SETTINGS, disk=None, open_files_max=100):
    disk = disk or FakeDisk()
    disk.put_folder(TOPICS)
    return await create_partition(FileCache(disk, open_files_max), TOPICS, "t", KEY, settings)


async def fill(storage, count=40, first=0, size=100):
    """Batches of three records; the timestamp of each is 1000 + 10 times its base offset."""
    made = [batch(offset, [b"a" * (size + offset % 90), b"b", b"c"], timestamp=1000 + 10 * offset)
            for offset in range(first, first + 3 * count, 3)]
    for data in made:
        await storage.append([data])
    return made


async def test_a_read_begins_with_the_batch_that_holds_the_offset():
    storage = await make(open_files_max=2)
    made = await fill(storage)
    assert len(storage.segments) > 3
    for offset in range(120):
        data = await storage.read(offset, 1)
        assert data == made[offset // 3], offset
        data = await storage.read(offset, 700)
        found = [header.base_offset for header, _place in walk_headers(data)]
        assert found == list(range(offset // 3 * 3, found[-1] + 1, 3))
        assert len(data) <= 700
    assert await storage.read(120, 100) == b""
    assert await storage.read(10, 10_000, upto_offset=13) == made[3] + made[4]
    assert await storage.read(10, 10_000, upto_offset=10) == b""
    await storage.advance_log_start(60, 0)
    with pytest.raises(OffsetOutOfRangeError):
        await storage.read(0, 100)


async def test_a_batch_larger_than_the_limit_comes_whole():
    storage = await make(LogSettings(segment_bytes=10**6))
    made = await fill(storage, count=6, size=90_000)
    assert await storage.read(7, 1000) == made[2]


async def test_offsets_by_time():
    storage = await make()
    made = await fill(storage)
    for timestamp in range(900, 2171, 7):
        match = await storage.offset_for_timestamp(timestamp, 0)
        assert match.batch == made[max(0, -(-(timestamp - 1000) // 30))]
    assert await storage.offset_for_timestamp(2171, 0) is None
    assert (await storage.offset_for_timestamp(0, 50)).header.base_offset == 48
    assert (await storage.largest_timestamp(0, 120)).header.base_offset == 117


@pytest.mark.parametrize("reload_indexes", [False, True])
async def test_the_largest_timestamp_is_of_the_batches_asked_about(reload_indexes):
    """Records that are written and not committed, or deleted, are not among them."""
    storage, chance = await make(), random.Random(5)
    stamps = [chance.randrange(1000, 1010) + number // 4 for number in range(40)]
    for number, stamp in enumerate(stamps):
        await storage.append([batch(3 * number, [bytes(100), b"b", b"c"], timestamp=stamp)])
    assert len(storage.segments) > 3
    for first in range(40):
        for upto in range(first, 41):
            if reload_indexes:
                for segment in storage.segments[:-1]:
                    segment.indexes = None
            match = await storage.largest_timestamp(3 * first + first % 3, 3 * upto)
            wanted = max(stamps[first:upto], default=None)
            if wanted is None:
                assert match is None
            else:
                assert match.header.base_offset == 3 * stamps.index(wanted, first), (first, upto)


@pytest.mark.parametrize("reload_indexes", [False, True])
async def test_a_cut_at_every_boundary_then_append(reload_indexes):
    for boundary in range(0, 61, 3):
        storage = await make()
        made = await fill(storage, count=20)
        if reload_indexes:
            for segment in storage.segments[:-1]:
                segment.indexes = None
        await storage.truncate(boundary)
        assert storage.written_end_offset == boundary
        more = await fill(storage, count=10, first=boundary)
        wanted = made[: boundary // 3] + more
        found = b""
        while (place := sum(1 for _ in walk_headers(found)) * 3) < storage.written_end_offset:
            found += await storage.read(place, 600)
        assert found == b"".join(wanted)
        assert (await storage.largest_timestamp(0, boundary + 30)).batch == wanted[-1]
        for segment in storage.segments:
            assert segment.indexes is None or segment.indexes.offsets.problem(segment.size_bytes) is None


@pytest.mark.parametrize("count", range(12, 18))
async def test_behind_a_cut_the_last_batches_of_a_producer_are_known_as_far_as_they_were(count):
    """Also where they reach back behind the beginning of the segment: its snapshot has one of each producer."""
    for boundary in range(count + 1):
        storage = await make(LogSettings(segment_bytes=1000))
        for offset in range(count):
            epoch = int(offset >= 3)
            await storage.append([batch(offset, [bytes(100)], producer=(7, epoch, offset - 3 * epoch))])
        assert len(storage.segments) > 2
        await storage.truncate(boundary)
        known = [one.last_offset for producer in storage.producers for one in producer.batches]
        wanted = list(range(3 if boundary > 3 else 0, boundary))[-5:]
        assert known == wanted[len(wanted) - len(known) :], boundary
        assert set(wanted[-1:]) | set(range(count - 5, boundary)) <= set(known), boundary


async def test_a_cut_inside_a_batch_is_refused():
    storage = await make()
    await fill(storage)
    with pytest.raises(ValueError, match="does not end a batch"):
        await storage.truncate(10)


@pytest.mark.parametrize("damage", ["missing", "short", "zeros", "wrong"])
async def test_wrong_indexes_are_made_again(damage):
    storage = await make()
    made = await fill(storage)
    segment = storage.segments[1]
    disk = storage.folder.disk
    right = {name: bytes(disk.names[storage.folder.path / name].content) for name in segment.file_names[1:3]}
    for name, content in right.items():
        path = storage.folder.path / name
        if damage == "missing":
            await storage.folder.remove(name)
        elif damage == "short":
            del disk.names[path].content[-3:]
        elif damage == "zeros":
            disk.names[path].content[-12:] = bytes(12)
        else:
            disk.names[path].content[-5] ^= 1
        assert content
    segment.indexes = None
    first = segment.base_offset // 3
    assert await storage.read(segment.base_offset + 7, 1) == made[first + 2]
    assert {name: bytes(disk.names[storage.folder.path / name].content) for name in right} == right


async def test_retention_keeps_to_its_segments_when_others_go_while_it_looks():
    storage = await make(LogSettings(segment_bytes=2000, retention_ms=500))
    for number in range(4):
        await storage.append([batch(number, [b"x" * 300], timestamp=1000 * number)])
        await storage.roll()
    first, stored_indexes = storage.segments[0], storage.folder.stored_indexes
    first.indexes = None

    async def deleted_meanwhile(segment, *arguments):
        indexes = await stored_indexes(segment, *arguments)
        if segment is first:
            await storage.advance_log_start(1, 0)
        return indexes

    storage.folder.stored_indexes = deleted_meanwhile
    _plan, log_start = await storage.plan_retention(600, storage.written_end_offset)
    assert log_start == 1, "only the first one is old"


@pytest.mark.parametrize(("settings", "timestamp"), [({"segment_age_ms": 500}, 1000), ({"retention_ms": 500}, -1)])
@pytest.mark.parametrize("is_short_run", [False, True])
async def test_a_segment_that_is_appended_to_while_retention_looks_is_not_old(settings, timestamp, is_short_run):
    """What was acknowledged a moment ago would go, by the time of the append before."""
    storage = await make(dataclasses.replace(SETTINGS, segment_bytes=1_000_000, **settings))
    await storage.append([batch(0, [b"x"], timestamp=timestamp)])
    modified_ms = storage.folder.modified_ms
    assert (await storage.plan_retention(600, 2))[1] == 1

    async def append_meanwhile(segment):
        appended_ms = await modified_ms(segment)
        data = batch(1, [b"x"], timestamp=timestamp)
        if is_short_run:
            run = storage.begin_run(data)
            storage.end_run(run, await outcome(storage.folder.disk.writev(run.write.fd, [data], run.write.position)))
        else:
            await storage.append([data])
        return appended_ms

    storage.folder.modified_ms = append_meanwhile
    plan, log_start = await storage.plan_retention(600, 2)
    assert (plan.reasons, plan.roll, log_start) == ((), False, 0)
    storage.folder.modified_ms = modified_ms
    assert (await storage.plan_retention(600, 2))[1] == 2


async def test_retention_of_whole_segments_frees_their_files():
    storage = await make(LogSettings(segment_bytes=2000, retention_ms=500, file_delete_delay_ms=50))
    await fill(storage)
    plan, log_start = await storage.plan_retention(1000 + 1100, storage.written_end_offset)
    kept = [segment.base_offset for segment in storage.segments if segment.base_offset >= log_start]
    assert plan.segments_count > 1
    assert not plan.roll
    assert await storage.advance_log_start(log_start, 10_000) == plan.segments_count
    assert [segment.base_offset for segment in storage.segments] == kept
    names = await storage.folder.disk.listdir(storage.folder.path)
    assert sum(name.endswith(".log.deleted") for name in names) == plan.segments_count
    await storage.purge(10_049)
    assert len(await storage.folder.disk.listdir(storage.folder.path)) == len(names)
    await storage.purge(10_050)
    assert not any(name.endswith(".deleted") for name in await storage.folder.disk.listdir(storage.folder.path))
    plan, log_start = await storage.plan_retention(10**6, storage.written_end_offset)
    assert plan.roll
    assert log_start == storage.written_end_offset
    await storage.advance_log_start(log_start, 0)
    assert (len(storage.segments), storage.size_bytes) == (1, 0)
    assert await fill(storage, first=log_start)


async def test_no_reservation_no_append():
    storage = await make(LogSettings(segment_bytes=3 * 1024 * 1024))
    storage.folder.disk.allocatable_bytes = 2 * 1024 * 1024
    await storage.reserve(1000)
    assert storage.reserved_bytes == RESERVE_STEP_BYTES
    assert storage.folder.disk.allocatable_bytes == 2 * 1024 * 1024 - RESERVE_STEP_BYTES
    await storage.reserve(1000)
    assert storage.folder.disk.allocatable_bytes == 2 * 1024 * 1024 - RESERVE_STEP_BYTES
    with pytest.raises(OSError, match="No space left"):
        await storage.reserve(3 * 1024 * 1024)
    await fill(storage, count=5)
    assert storage.reserved_bytes < RESERVE_STEP_BYTES


async def test_space_for_the_time_after_the_roll_lies_in_a_spare_file():
    storage = await make()
    await storage.reserve(1500)
    await fill(storage, count=10)
    await storage.reserve(10_000)
    assert storage.reserved_bytes >= 10_000
    before = len(storage.segments)
    await fill(storage, count=10, first=30)
    assert len(storage.segments) > before
    await storage.close()
    assert "next-segment.spare" not in await storage.folder.disk.listdir(storage.folder.path)


async def test_a_roll_lets_others_in_while_its_many_producers_are_encoded():
    disk = FakeDisk()
    storage = await make(LogSettings(retention_ms=-1), disk)
    await storage.append([batch(offset, producer=(offset, 0, 0)) for offset in range(3000)])
    disk.counts.clear()
    await storage.roll()
    assert len(storage.segments) == 2
    assert disk.counts["poll_ring"] >= 6


async def test_after_a_failed_write_nothing_more_is_taken():
    storage = await make()
    await fill(storage, count=3)
    disk = storage.folder.disk
    disk.fail_at, disk.fail_with = disk.effects + 1, errno.ENOSPC
    with pytest.raises(StorageFailedError):
        await storage.append([batch(9)])
    assert storage.written_end_offset == 9
    with pytest.raises(StorageFailedError):
        await storage.capture()
    assert decode_header(await storage.read(0, 1)).base_offset == 0


async def test_a_checkpoint_says_nothing_of_what_was_captured_during_it():
    """A move between cores captures too. If the partition counted as unchanged afterwards, the next checkpoint would
    name the older state, and the journal's entries behind it would be recycled.
    """
    storage = await make()
    await fill(storage, count=3)
    in_checkpoint = await storage.capture()
    await fill(storage, count=1, first=9)
    of_move = await storage.capture()
    storage.mark_checkpointed(in_checkpoint)
    assert storage.checkpointed.log_end_offset == 9
    assert storage.changed
    storage.mark_checkpointed(of_move)
    assert not storage.changed


async def test_aborted_transactions_come_from_the_index():
    storage = await make()
    for offset in range(0, 40, 2):
        await storage.append([batch(offset, [b"x" * 400], producer=(1, 0, offset), transactional=True),
                              marker(offset + 1, CONTROL_ABORT, 1)])
    for segment in storage.segments[:-1]:
        segment.indexes = None
    found = await storage.aborted_transactions(5, 12)
    assert [(one.first_offset, one.last_offset) for one in found] == [(4, 5), (6, 7), (8, 9), (10, 11)]
    assert storage.log_state.last_stable_offset(40) == 40
    await storage.append([batch(40, producer=(1, 0, 40), transactional=True), batch(41)])
    assert storage.log_state.last_stable_offset(42) == 40


async def test_a_cut_forgets_no_aborted_transaction_in_front_of_it():
    """The index file has those of the last checkpoint: what was aborted since is in memory alone."""
    storage = await make()
    await fill(storage, count=3)
    aborted = [[batch(offset, timestamp=2000, producer=(1, 0, offset), transactional=True),
                marker(offset + 1, CONTROL_ABORT, 1, timestamp=2000)] for offset in (9, 11, 13)]  # fmt: skip
    await storage.append(aborted[0])
    storage.mark_checkpointed(await storage.capture())
    assert all(storage.active.flushed_bytes)
    await storage.append(aborted[1] + aborted[2])
    await storage.truncate(13)
    found = await storage.aborted_transactions(0, 13)
    assert [(one.first_offset, one.last_offset) for one in found] == [(9, 10), (11, 12)]
    data = await storage.folder.read_file(segment_file_name(0, TRANSACTION_INDEX_SUFFIX))
    assert TransactionIndex.decode(data).entries == found[:1], "who reads files beside the broker needs it"
    await storage.append(aborted[2])
    assert (await storage.capture()).transaction_index_bytes == 3 * TRANSACTION_ENTRY_BYTES


async def test_what_has_ended_above_the_commit_survives_a_cut_and_a_checkpoint():
    """Its marker may lie in front of the snapshot from which the cut finds the producers."""
    storage = await make()
    storage.notes, committed = {1: b""}, 1
    storage.commit_offset = lambda: committed
    await storage.append([batch(0), batch(1, producer=(1, 0, 0), transactional=True), marker(2, CONTROL_COMMIT, 1)])
    await storage.roll()
    await storage.append([batch(3, producer=(2, 0, 0), transactional=True), marker(4, CONTROL_COMMIT, 2)])
    assert [one.first_offset for one in storage.state().ended] == [1, 3]
    await storage.truncate(4)
    assert storage.log_state.last_stable_offset(2) == 1
    assert [one.first_offset for one in storage.state().ended] == [1]
    assert storage.log_state.last_stable_offset(4) == 3
    committed = 3
    assert storage.state().ended == ()
    assert storage.log_state.ended, "until a checkpoint says so: readers may begin at the one before"
    storage.mark_checkpointed(storage.state())
    assert not storage.log_state.ended


async def test_the_journal_grows_step_by_step():
    disk = FakeDisk()
    disk.put_folder(TOPICS)
    file = await JournalFile.create(disk, TOPICS, 0, journal_id=bytes(16), bytes_max=24 * 1024 * 1024)
    region = file.superblock.region_blocks
    assert file.superblock.initialised_blocks < region
    while await file.extend():
        again = await JournalFile.open(disk, TOPICS, 0)
        assert again.superblock == file.superblock
    assert file.superblock.initialised_blocks == region


async def test_the_ballast_gives_way():
    disk = FakeDisk()
    disk.put_folder(Path("/data"))
    assert await ensure_ballast(disk, Path("/data"), 1000)
    assert await release_ballast(disk, Path("/data"))
    assert not await release_ballast(disk, Path("/data"))
    disk.allocatable_bytes = 10
    assert not await ensure_ballast(disk, Path("/data"), 1000)


async def test_a_journal_has_one_holder(tmp_path, autojump_clock):
    with (tmp_path / "j").open("w") as one, (tmp_path / "j").open("w") as two:
        await wait_lock(one.fileno())
        with pytest.raises(JournalLockedError):
            await wait_lock(two.fileno(), 0.03)
        one.close()
        await wait_lock(two.fileno(), 1)
