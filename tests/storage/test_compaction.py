"""What is to be compacted, when, and what becomes of the jobs: with the cleaner's real run over files."""

import logging
import os
import uuid
from dataclasses import replace
from random import Random

import pytest
import trio

from tests.log.log_batches import batch, marker, record
from tests.support.cleaners import ThreadCleaner
from tests.support.cleaning_jobs import REPORT, a_group
from tests.support.plain_disk import PlainDisk
from tests.support.waiting import PATIENCE_S
from tpc_broker.kafka.records import read_records
from tpc_broker.log.batch import walk_headers
from tpc_broker.log.files import SEAL_SUFFIX, cleaned_file_name, parse_cleaned_file_name
from tpc_broker.log.segment import LogSettings
from tpc_broker.metadata.cleaner_settings import cleaning_bounds
from tpc_broker.metadata.settings import load_settings
from tpc_broker.metadata.topic_config import TopicConfig
from tpc_broker.model import TopicPartition
from tpc_broker.storage.ports import Bounds, CleanerAwayError, CleaningFailedError, JobVoidError
from tpc_broker.storage.segments.files import FileCache
from tpc_broker.storage.segments.folders import create_partition, log_settings
from tpc_broker.storage.segments.leader_partition import LeaderPartition
from tpc_broker.storage.segments.segment_reader import SegmentReader
from tpc_broker.storage.upkeep import cleanings
from tpc_broker.storage.upkeep.cleaning_status import LACK_TOLD_AFTER, CleaningBook
from tpc_broker.storage.upkeep.cleanings import Cleanings
from tpc_broker.storage.upkeep.compaction import NEVER_MS, kept_producers, make_job, measure
from tpc_broker.storage.upkeep.maintenance_requests import MaintenanceRequests

SETTINGS = LogSettings(
    segment_bytes=4000, index_interval_bytes=200, cleanup_delete=False, cleanup_compact=True, retention_ms=-1
)
NOW_MS = 1_700_000_000_000
KEYS = 7


class Plane:
    """Everything that is written is committed, but for what `upto` holds back."""

    def __init__(self):
        self.files, self.upto, self.replaced = {}, {}, []

    def bounds(self, handle):
        files = self.files[handle]
        end = files.written_end_offset
        stable = self.upto.get(handle, end)
        return Bounds(files.log_start_offset, stable, end, end)

    def segments_replaced(self, handle, upto_offset):
        self.replaced.append((handle, upto_offset))


class Space:
    left, is_full = 10**12, False

    async def is_nearly_full(self):
        await trio.lowlevel.checkpoint()
        return self.is_full

    async def bytes_left(self):
        await trio.lowlevel.checkpoint()
        return self.left


class Retention:
    def __init__(self):
        self.asked = []

    async def retain(self, files, _handle, _now_ms):
        await trio.lowlevel.checkpoint()
        self.asked.append(files.label)


class Clock:
    def __init__(self):
        self.ms = NOW_MS

    def wall_ms(self):
        return self.ms

    def monotonic_ms(self):
        return self.ms


class World:
    def __init__(self, folder):
        self.topics = folder / "topics"
        self.topics.mkdir()
        self.cache = FileCache(PlainDisk())
        self.plane, self.clock, self.space, self.retention = Plane(), Clock(), Space(), Retention()
        self.requests, self.led = MaintenanceRequests(), {}
        self.cleanings = Cleanings(
            self.plane, self.clock, self.led, space=self.space, retention=self.retention, requests=self.requests
        )
        self.cleanings.cleaner = self.cleaner = ThreadCleaner()
        self.cleanings.bounds = cleaning_bounds(load_settings().settings)
        self.cleanings.may_clean = True
        self.told = []

    async def make(self, settings=SETTINGS):
        number = len(self.led)
        key = TopicPartition(uuid.UUID(int=5), number)
        files = await create_partition(self.cache, self.topics, "t", key, settings)
        self.led[number] = LeaderPartition(files, number, trio.Lock(), is_internal=False)
        self.plane.files[number] = files
        files.on_cleaned = lambda: self.told.append((number, files.cleaned))
        return files

    async def close(self):
        await self.cache.close()


@pytest.fixture
async def world(tmp_path):
    world = World(tmp_path)
    yield world
    await world.close()


async def fill(files, count, *, timestamp=1000, seed=1):
    """Records of a few keys, one in each batch."""
    rng = Random(seed)
    first = files.written_end_offset
    for offset in range(first, first + count):
        data = record(0, b"v%d-" % offset + bytes(80), key=b"k%d" % rng.randrange(KEYS))
        await files.append([batch(offset, timestamp=timestamp + offset, records=[data])])


async def checkpointed(files):
    state = await files.capture()
    await files.sync()
    files.mark_checkpointed(state)


async def records_of(files):
    """(offset, key, value) of all that are there."""
    found, offset = [], files.log_start_offset
    while offset < files.written_end_offset:
        data = bytes(await files.read(offset, 1 << 20))
        if not data:
            break
        for header, place in walk_headers(data):
            if not header.is_control:
                batch_bytes = data[place : place + header.size_bytes]
                found += [(one.offset, one.key, one.value) for one in read_records(batch_bytes)]
            offset = header.next_offset
    return found


def newest(records):
    return {key: (offset, value) for offset, key, value in records}


async def test_a_log_is_cleaned_and_read_and_cleaned_again(world):
    files = await world.make()
    await fill(files, 200)
    await checkpointed(files)
    await fill(files, 20, seed=2)
    before = await records_of(files)
    assert await world.cleanings.clean_next()
    after = await records_of(files)
    assert newest(after) == newest(before)
    [job] = world.cleaner.jobs
    upto = job.sources[-1].end_offset
    assert [one for one in after if one[0] >= upto] == [one for one in before if one[0] >= upto]
    assert sum(offset < upto for offset, _key, _value in after) <= KEYS
    assert files.cleaned.first_dirty_offset == files.cleaned.end_offset == upto
    assert world.told[-1] == (0, files.cleaned)
    assert world.plane.replaced[-1] == (0, upto)
    assert not [name for name in names_of(files) if parse_cleaned_file_name(name)]
    status = world.cleanings.book.status_of(files.key)
    assert (status.cleanings_count, status.is_cleaning) == (1, False)
    assert status.bytes_saved > 0
    assert not await world.cleanings.clean_next(), "nothing is dirty"
    await fill(files, 100, seed=3)
    await checkpointed(files)
    before = await records_of(files)
    assert await world.cleanings.clean_next()
    assert newest(await records_of(files)) == newest(before)
    assert world.cleaner.jobs[1].first_dirty_offset == upto
    assert world.cleaner.jobs[1].sources[0].is_cleaned
    for segment in files.segments[:-1]:
        assert await SegmentReader(files).load(segment) is not None


async def test_when_a_log_was_cleaned_is_known_behind_a_start(world):
    files, never = await world.make(), await world.make()
    await fill(files, 200)
    await checkpointed(files)
    assert await world.cleanings.clean_next()
    assert world.cleanings.book.status_of(files.key).last_cleaned_ms == NOW_MS
    world.cleanings.book = CleaningBook()
    seals = [files.folder.path / name for name in names_of(files) if name.endswith(SEAL_SUFFIX)]
    os.utime(max(seals), ns=(0, 7_000 * 1_000_000))
    assert not await world.cleanings.clean_next()
    assert world.cleanings.book.status_of(files.key).last_cleaned_ms == 7_000
    assert world.cleanings.book.status_of(never.key).last_cleaned_ms == -1
    max(seals).unlink()  # it is asked for once
    assert not await world.cleanings.clean_next()


def names_of(files):
    return [path.name for path in files.folder.path.iterdir()]


async def bounds_and_measure(world, files, handle=0):
    return await measure(files, world.plane.bounds(handle), NOW_MS)


async def test_only_what_is_below_the_durable_checkpoint_and_stable_is_cleaned(world):
    files = await world.make()
    await fill(files, 100)
    found = await bounds_and_measure(world, files)
    assert not found.sources
    assert found.held_back_bytes > 0
    assert found.waits_for_checkpoint(0.5)
    assert not await world.cleanings.clean_next()
    with trio.fail_after(PATIENCE_S):
        await world.requests.checkpoint.wait()
    await checkpointed(files)
    bases = [segment.base_offset for segment in files.segments]
    found = await bounds_and_measure(world, files)
    assert [segment.base_offset for segment in found.sources] == bases[:-1]
    assert found.held_back_bytes == 0
    world.plane.upto[0] = bases[2] + 1
    assert [segment.base_offset for segment in (await bounds_and_measure(world, files)).sources] == bases[:2]
    world.plane.upto[0] = bases[1] - 1
    assert not (await bounds_and_measure(world, files)).sources
    world.plane.upto.clear()
    files.checkpointed = replace(files.checkpointed, commit_offset=bases[2], notes=((1, b""),))
    assert [segment.base_offset for segment in (await bounds_and_measure(world, files)).sources] == bases[:2]


async def test_the_end_of_a_log_stays_as_it_is_until_something_follows(world):
    files = await world.make()
    await fill(files, 100)
    await files.roll()
    await checkpointed(files)
    *bases, end = [segment.base_offset for segment in files.segments]
    assert end == files.written_end_offset
    assert [segment.base_offset for segment in (await bounds_and_measure(world, files)).sources] == bases[:-1]
    await fill(files, 1)
    assert [segment.base_offset for segment in (await bounds_and_measure(world, files)).sources] == bases


async def test_ratio_lags_and_the_filthiest_come_as_kafka_has_them(world):
    files = await world.make()
    await fill(files, 150, timestamp=NOW_MS - 5_000)
    await checkpointed(files)
    assert await world.cleanings.clean_next()
    clean_bytes = sum(segment.size_bytes for segment in files.segments[:-1])
    await fill(files, 40, timestamp=NOW_MS - 5_000)
    await checkpointed(files)
    found = await bounds_and_measure(world, files)
    assert found.clean_bytes == clean_bytes
    assert found.dirty_ratio == found.dirty_bytes / (found.dirty_bytes + clean_bytes)
    assert found.is_due(0.5)
    assert not found.is_due(1.0)
    files.settings = replace(files.settings, max_compaction_lag_ms=100)
    assert (await bounds_and_measure(world, files)).is_due(1.0), "its oldest dirty record is older than that"
    files.settings = replace(files.settings, max_compaction_lag_ms=1_000_000)
    assert not (await bounds_and_measure(world, files)).is_due(1.0)
    files.settings = replace(files.settings, min_compaction_lag_ms=1_000_000, max_compaction_lag_ms=2**63 - 1)
    found = await bounds_and_measure(world, files)
    assert (found.dirty_bytes, found.clean_bytes) == (0, clean_bytes)
    filthier = await world.make()
    await fill(filthier, 100)
    await checkpointed(filthier)
    files.settings = replace(files.settings, min_compaction_lag_ms=0)
    assert await world.cleanings.clean_next()
    assert world.cleaner.jobs[-1].label == "t-1"
    assert await world.cleanings.clean_next()
    assert world.cleaner.jobs[-1].label == "t-0"
    assert not await world.cleanings.clean_next()


def test_segments_of_compacted_topics_are_sealed_in_time_to_be_cleaned():
    config = TopicConfig(cleanup_policy=("compact",), segment_ms=10_000, max_compaction_lag_ms=3_000)
    assert log_settings(config).segment_ms == 3_000
    assert log_settings(replace(config, cleanup_policy=("delete",))).segment_ms == 10_000
    assert log_settings(replace(config, max_compaction_lag_ms=20_000)).segment_ms == 10_000


@pytest.mark.parametrize("why", ["level", "off", "no cleaner", "leaves", "failed", "deleted", "no space", "policy"])
async def test_nothing_is_cleaned_when_it_may_not_be(world, why, monkeypatch):
    files = await world.make()
    await fill(files, 100)
    await checkpointed(files)
    cleaner = world.cleaner
    if why == "level":
        world.cleanings.may_clean = False
    elif why == "off":
        world.cleanings.bounds = world.cleanings.bounds._replace(is_on=False)
    elif why == "no cleaner":
        monkeypatch.setattr(cleaner, "ready", away)
    elif why == "leaves":
        world.led[0].is_leaving = True
    elif why == "failed":
        files.fail("a test")
    elif why == "deleted":
        del world.led[0]
    elif why == "no space":
        world.space.left = 3999
    else:
        files.settings = replace(files.settings, cleanup_compact=False)
    for _ in range(LACK_TOLD_AFTER):
        assert not await world.cleanings.clean_next()
    assert not cleaner.jobs
    assert files.cleaned.end_offset == 0
    assert world.cleanings.book.no_cleaner == ("a test" if why == "no cleaner" else None)


async def test_one_that_has_no_room_lets_others_have_the_cleaner_and_their_turn(world, monkeypatch):
    monkeypatch.setattr(cleanings, "bytes_wanted", lambda job: 100 if job.label.endswith("-0") else 10)
    large, small = await world.make(), await world.make()
    await fill(large, 300)
    await fill(small, 200)
    for files in (large, small):
        await checkpointed(files)
    await fill(small, 1)
    world.space.left = 50
    for _ in range(3):
        if await world.cleanings.clean_next():
            break
        assert not world.cleaner.is_held, "it waits for others"
        world.clock.ms += world.cleanings.bounds.backoff_ms
    assert [job.label for job in world.cleaner.jobs] == [small.label]
    world.space.left = 200
    world.clock.ms += cleanings.NO_ROOM_MS_MAX
    assert await world.cleanings.clean_next()
    assert [job.label for job in world.cleaner.jobs] == [small.label, large.label]


async def test_ten_thousand_partitions_are_not_measured_in_one_step(world):
    files = await world.make()
    for number in range(1, 200):
        world.led[number] = LeaderPartition(files, number, trio.Lock(), is_internal=False)
        world.plane.files[number] = files
    turns = 0

    async def turn():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        assert not await world.cleanings.clean_next()
        nursery.cancel_scope.cancel()
    assert turns > 200 // cleanings.MEASURED_AT_ONCE // 2


async def away():
    await trio.lowlevel.checkpoint()
    raise CleanerAwayError("a test")


async def test_what_is_overdue_is_urgent_and_so_is_all_on_a_full_disk(world):
    files = await world.make()
    for is_overdue, is_full in ((False, False), (True, False), (False, True)):
        await fill(files, 100, timestamp=NOW_MS - 10_000)
        await checkpointed(files)
        files.settings = replace(files.settings, max_compaction_lag_ms=100 if is_overdue else 10**9)
        world.space.is_full = is_full
        assert await world.cleanings.clean_next()
        assert world.cleaner.jobs[-1].is_urgent == (is_overdue or is_full)


async def test_below_the_level_the_log_says_once_a_day_that_logs_grow(world, caplog):
    world.cleanings.may_clean = False
    assert not await world.cleanings.clean_next()
    assert not caplog.records, "nothing is to be compacted"
    await world.make()
    for ms, told in ((0, 1), (cleanings.UNCLEANABLE_MS - 1, 1), (1, 2)):
        world.clock.ms += ms
        assert not await world.cleanings.clean_next()
        assert caplog.text.count("such as t-0, are not compacted, and grow") == told
    assert "tpc cluster level --raise 7" in caplog.text
    world.cleanings.may_clean = True
    world.clock.ms += cleanings.UNCLEANABLE_MS
    assert not await world.cleanings.clean_next()
    assert caplog.text.count("are not compacted") == 2


async def test_the_age_of_a_segment_is_read_once(world, monkeypatch):
    files = await world.make()
    await fill(files, 100)
    await checkpointed(files)
    files.settings, reads, read = replace(files.settings, max_compaction_lag_ms=10**15), [], files.folder.read

    async def counted(*where):
        reads.append(where)
        return await read(*where)

    monkeypatch.setattr(files.folder, "read", counted)
    first = await bounds_and_measure(world, files)
    assert len(reads) == len(first.sources) > 1
    assert await bounds_and_measure(world, files) == first
    assert len(reads) == len(first.sources)
    files.settings = replace(files.settings, max_compaction_lag_ms=100)
    assert (await bounds_and_measure(world, files)).is_overdue


async def test_what_is_deleted_too_is_deleted_first(world):
    files = await world.make(replace(SETTINGS, cleanup_delete=True))
    await fill(files, 100)
    await checkpointed(files)
    assert await world.cleanings.clean_next()
    assert world.retention.asked == [files.label]


async def test_a_log_that_fails_three_times_is_tried_once_a_day(world, caplog):
    files = await world.make()
    await fill(files, 100)
    await checkpointed(files)
    world.cleaner.failures += [CleaningFailedError("it is bad")] * 4
    for _attempt in range(3):
        assert not await world.cleanings.clean_next()
        world.clock.ms += world.cleanings.bounds.backoff_ms
    assert world.cleanings.book.status_of(files.key).uncleanable == "it is bad"
    assert "t-0 is uncleanable: it is bad" in caplog.text
    jobs = len(world.cleaner.jobs)
    world.clock.ms += cleanings.UNCLEANABLE_MS - 3 * world.cleanings.bounds.backoff_ms
    assert not await world.cleanings.clean_next()
    assert len(world.cleaner.jobs) == jobs
    world.clock.ms += 3 * world.cleanings.bounds.backoff_ms
    assert not await world.cleanings.clean_next()
    assert len(world.cleaner.jobs) == jobs + 1
    world.clock.ms += cleanings.UNCLEANABLE_MS
    assert await world.cleanings.clean_next()
    assert world.cleanings.book.status_of(files.key).uncleanable is None


@pytest.mark.parametrize("error", [CleanerAwayError("away"), JobVoidError("void"), OSError(5, "io")])
async def test_what_is_not_the_logs_doing_is_tried_again(world, error):
    files = await world.make()
    await fill(files, 100)
    await checkpointed(files)
    world.cleaner.failures.append(error)
    assert not await world.cleanings.clean_next()
    assert not await world.cleanings.clean_next(), "not at once"
    world.clock.ms += world.cleanings.bounds.backoff_ms
    assert await world.cleanings.clean_next()


@pytest.mark.parametrize("change", ["retention", "delete", "fail", "leave", "release", "policy", "roll", "append"])
async def test_changes_beside_a_job(world, change, caplog):
    """Before a group is taken. What the job began with is there, or it is void; nothing is lost in any case."""
    caplog.set_level(logging.INFO)
    files = await world.make()
    await fill(files, 100)
    await checkpointed(files)
    before = await records_of(files)

    async def changed(_group):
        if change == "retention":
            await files.advance_log_start(files.segments[1].base_offset, 0)
        elif change == "delete":
            world.led.pop(0)
            files.begin_deletion()
        elif change == "fail":
            files.fail("a test")
        elif change == "leave":
            world.led[0].is_leaving = True
        elif change == "release":
            world.led.pop(0)
            files.release()
        elif change == "policy":
            files.settings = replace(files.settings, cleanup_compact=False)
        elif change == "roll":
            await files.roll()
        else:
            await fill(files, 5, seed=9)

    world.cleaner.before_take = changed
    is_done = await world.cleanings.clean_next()
    assert is_done == (change in {"roll", "append"})
    found = await records_of(files)
    if change == "retention":
        assert found == [one for one in before if one[0] >= files.log_start_offset]
    elif change not in {"roll", "append"}:
        assert found == before
    else:
        assert newest(found) == {**newest(before), **newest(found[-5:] if change == "append" else [])}
    assert not [name for name in names_of(files) if parse_cleaned_file_name(name)] or change not in {"roll", "append"}


async def test_a_policy_that_changes_while_a_swap_waits_for_the_lock_keeps_every_record(world):
    files = await world.make()
    await fill(files, 100)
    await checkpointed(files)
    before = await records_of(files)

    swap = files.swap

    def swapped(*what):
        files.settings = replace(files.settings, cleanup_compact=False)
        return swap(*what)

    files.swap = swapped
    assert not await world.cleanings.clean_next()
    assert await records_of(files) == before


async def test_what_a_job_has_left_in_the_folder_of_the_next_topic_of_its_name_goes(world):
    files = await world.make()
    await fill(files, 100)
    await checkpointed(files)
    left = cleaned_file_name(files.segments[0].log_name, f"{7:016x}")

    async def deleted(_group):
        world.led[1] = LeaderPartition(files, 1, trio.Lock(), is_internal=False)
        del world.led[0]

    world.cleaner.before_take = deleted
    assert not await world.cleanings.clean_next()
    files.settings = replace(files.settings, cleanup_compact=False)
    (files.folder.path / left).write_bytes(b"what came late")
    await world.cleanings.clean_next()
    assert left not in names_of(files)


async def test_a_log_whose_segments_go_before_a_job_begins_has_not_failed(world):
    files = await world.make()
    await fill(files, 100)
    await checkpointed(files)

    async def bytes_left():
        await files.advance_log_start(files.segments[1].base_offset, 0)
        return 10**12

    world.space.bytes_left = bytes_left
    assert not await world.cleanings.clean_next()
    assert not world.cleanings.book.totals.cleanings_failed


async def test_who_holds_swaps_lets_the_job_wait(world):
    files, events = await world.make(), []
    await fill(files, 100)
    await checkpointed(files)

    async def hold(_group):
        async def let_go():
            async with files.swaps_held():
                begun.set()
                await trio.testing.wait_all_tasks_blocked(0.01)
                events.append(files.cleaned.end_offset)

        begun = trio.Event()
        nursery.start_soon(let_go)
        await begun.wait()

    world.cleaner.before_take = hold
    async with trio.open_nursery() as nursery:
        assert await world.cleanings.clean_next()
    assert events[0] == 0


async def test_a_job_names_aborted_transactions_and_producers_as_kafka_keeps_them(world):
    files = await world.make()
    await fill(files, 60)
    end = files.written_end_offset
    data = record(0, b"x", key=b"k")
    await files.append([batch(end, records=[data], producer=(5, 0, 0), transactional=True)])
    await files.append([marker(end + 1, 0, 5)])
    await files.append([batch(end + 2, records=[data], producer=(6, 0, 0), transactional=True)])
    await files.append([marker(end + 3, 1, 6, producer_epoch=1)])
    await fill(files, 60)
    await files.append([batch(files.written_end_offset, records=[data], producer=(7, 0, 0))])
    await checkpointed(files)
    measured = await bounds_and_measure(world, files)
    job, sources = await make_job(files, measured, 0, world.cleanings.bounds, NOW_MS)
    assert [(one.producer_id, one.first_offset, one.last_offset) for one in job.aborted] == [(5, end, end + 1)]
    assert list(job.producers) == [(5, end, -1), (6, -1, end + 3)], "the last one's batch is not among the sources"
    assert [source.base_offset for source in job.sources] == list(sources)
    assert job.sources[-1].end_offset == files.active.base_offset
    assert {one.producer_id for one in kept_producers(files, 10**9)} == {5, 6, 7}
    [raised] = [one for one in files.producers if one.producer_id == 6]
    raised.marker_offset = -1  # as after a start: neither a checkpoint nor a snapshot says it
    assert (6, -1, -1) in kept_producers(files, 10**9)


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("lag_ms", [1, NEVER_MS])
async def test_a_job_is_urgent_when_records_are_too_old_or_the_disk_is_nearly_full(world, is_full, lag_ms):
    files = await world.make(replace(SETTINGS, max_compaction_lag_ms=lag_ms))
    await fill(files, 100)
    await checkpointed(files)
    jobs = []

    class Asked(ThreadCleaner):
        async def clean(self, job, take):
            jobs.append(job)
            return REPORT

    world.cleanings.cleaner, world.space.is_full = Asked(), is_full
    assert await world.cleanings.clean_next()
    assert [job.is_urgent for job in jobs] == [is_full or lag_ms == 1]


async def test_a_group_that_was_not_asked_for_is_no_swap(world):
    files = await world.make()
    await fill(files, 100)
    await checkpointed(files)

    class Liar(ThreadCleaner):
        async def clean(self, job, take):
            await take(a_group(12345, 12346))
            return REPORT

    world.cleanings.cleaner = Liar()
    before = await records_of(files)
    assert not await world.cleanings.clean_next()
    assert await records_of(files) == before
