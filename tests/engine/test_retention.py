"""Retention of a core whose partitions are not all well."""

from __future__ import annotations

import dataclasses
import uuid
from types import SimpleNamespace

import pytest

from tests.engine.in_place_core import on_core
from tests.log.log_batches import batch
from tests.support import today
from tests.support.waiting import monotonic_ns
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.log.files import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from tpc_broker.model import PartitionIndex, TopicId, TopicPartition
from tpc_broker.storage.upkeep.retention import HELD_BACK_LINE_MS

OTHER = TopicPartition(TopicId(uuid.UUID(int=78)), PartitionIndex(0))
SEGMENTS, BATCHES = 4, 3
RETENTION_MS = 600_000


async def fill_segments(bench, files, handle):
    """All segments but the last are to go, and none of their indexes is loaded."""
    for _ in range(SEGMENTS):
        if files.active.size_bytes:
            await files.roll()
        for _ in range(BATCHES):
            data = batch(0, [b"x" * 5000], epoch=files.leader_epoch)
            await bench.storage.make_room(files, handle, len(data))
            result = bench.plane.append(handle, data)
            await bench.plane.wait_committed(handle, result.end_offset, result.leader_epoch)
        await bench.storage.write_behind()
    assert [segment.base_offset for segment in files.segments] == list(range(0, SEGMENTS * BATCHES, BATCHES))
    for segment in files.segments[:-1]:
        segment.indexes = None
    files.settings = dataclasses.replace(files.settings, retention_ms=-1, retention_bytes=1)


def damage(files, segment, place):
    """Of the second batch a byte is another. The index is gone, so the log is walked through."""
    path = files.folder.path / segment.log_name
    path.with_suffix(INDEX_SUFFIX).unlink()
    path.with_suffix(TIME_INDEX_SUFFIX).unlink()
    data = bytearray(path.read_bytes())
    data[len(data) // BATCHES + place] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("place", [3, 7, 16, 23], ids=["far offset", "near offset", "magic", "offset delta"])
def test_a_damaged_segment_keeps_its_partition_and_no_other(tmp_path, place):
    """The core would end, and again in each round."""

    async def body(bench):
        await fill_segments(bench, bench.files, bench.handle)
        damage(bench.files, bench.files.segments[1], place)
        other = await bench.storage.open(OTHER, "other", bench.config)
        await bench.storage.begin_epoch(other)
        handle = bench.storage.register(other, bench.config, is_internal=False)
        await fill_segments(bench, other, handle)
        for _round in range(2):
            with pytest.raises(PartitionOfflineError, match=r"a segment is damaged \(.*batch"):
                await bench.storage.retain(bench.files, bench.handle, 0)
        assert len(bench.files.segments) == SEGMENTS
        assert await bench.storage.retain(other, handle, 0) == SEGMENTS - 1
        start = bench.files.log_start_offset = bench.files.segments[2].base_offset
        bench.plane.set_log_start(bench.handle, start)  # as after a crash: the entry was durable, and no segment gone
        with pytest.raises(PartitionOfflineError):
            await bench.storage.retain(bench.files, bench.handle, 0)
        assert bench.files.segments[0].base_offset == start, "damaged or not, it lies below the log's start"
        assert await bench.storage.retain(bench.files, bench.handle, 0) == 1

    on_core(tmp_path, body)


async def append_dated(bench, timestamp):
    data = batch(0, epoch=bench.files.leader_epoch, timestamp=timestamp)
    await bench.storage.make_room(bench.files, bench.handle, len(data))
    result = bench.plane.append(bench.handle, data)
    await bench.plane.wait_committed(bench.handle, result.end_offset, result.leader_epoch)
    await bench.storage.write_behind()


@pytest.mark.parametrize(
    ("dated_ms", "until", "dated"),
    [
        (4_000_000_000_000, "2096-10-02T07:16:40Z", "2096-10-02T07:06:40Z"),
        (2**61, f"the end of time ({2**61 + RETENTION_MS} ms)", f"the end of time ({2**61} ms)"),
    ],
)
def test_a_record_dated_ahead_is_told_once_an_hour(tmp_path, caplog, dated_ms, until, dated):
    """It holds a whole partition back from retention.ms, as in Kafka."""

    async def body(bench):
        files, clock = bench.files, SimpleNamespace(monotonic_ms=lambda: bench.monotonic_ms)
        files.settings = dataclasses.replace(files.settings, retention_ms=RETENTION_MS)
        bench.monotonic_ms, bench.storage._retention._clock = 0, clock
        clock.wall_ms = today.now_ms

        async def lines(now_ms):
            caplog.clear()
            assert await bench.storage.retain(files, bench.handle, now_ms) == 0
            assert all(record.levelname == "WARNING" for record in caplog.records)
            return [record.getMessage() for record in caplog.records]

        appended_ms = today.now_ms()
        await append_dated(bench, dated_ms)
        assert await lines(appended_ms) == [], "it was not due yet"
        due_ms = appended_ms + 2 * RETENTION_MS
        (line,) = await lines(due_ms)
        assert line == (
            f"topic-0: from offset 0 on nothing goes by age before {until}: a record there is dated {dated}, after it "
            "came, and retention.ms counts from the dates of records; segment.age.ms counts from the last append (said "
            "once an hour)"
        )
        bench.monotonic_ms = HELD_BACK_LINE_MS - 1
        assert await lines(due_ms) == []
        bench.monotonic_ms = HELD_BACK_LINE_MS
        assert len(await lines(due_ms)) == 1
        assert await lines(due_ms) == []

    on_core(tmp_path, body)


def test_a_producer_of_old_records_stays_in_what_is_stored(tmp_path):
    """A move or a restart would hand the partition over without it."""

    async def body(bench):
        data = batch(0, producer=(7, 0, 0), epoch=bench.files.leader_epoch, timestamp=1000)
        await bench.storage.make_room(bench.files, bench.handle, len(data))
        result = bench.plane.append(bench.handle, data)
        await bench.plane.wait_committed(bench.handle, result.end_offset, result.leader_epoch)
        await bench.storage.write_behind()
        now_ms = today.now_ms()
        await bench.storage.retain(bench.files, bench.handle, now_ms)
        assert list(bench.files.producers.producers) == [7]
        silent_ms = bench.files.settings.producer_id_expiration_ms
        await bench.storage.retain(bench.files, bench.handle, now_ms + silent_ms)
        assert list(bench.files.producers.producers) == [7], "the clock was set, and nothing else"
        later_ms = monotonic_ns() // 1_000_000 + silent_ms
        bench.storage._retention._clock = SimpleNamespace(wall_ms=lambda: now_ms, monotonic_ms=lambda: later_ms)
        await bench.storage.retain(bench.files, bench.handle, now_ms)
        assert not bench.files.producers

    on_core(tmp_path, body)
