"""The walk in C over appended batches against a model that goes batch by batch in Python."""

import random

import pytest

from tests.log.log_batches import batch, marker
from tpc_broker.log import segment
from tpc_broker.log.batch import BatchDamageError, walk_headers
from tpc_broker.log.files import EpochStart
from tpc_broker.log.segment import AppendWalk, LogSettings, SegmentIndexes, WalkStop
from tpc_broker.log.state import LogState

SETTINGS = LogSettings(segment_bytes=6000, segment_ms=200, segment_index_bytes=120, index_interval_bytes=300)


class Result:
    """What is known after some appends: segments' indexes, producers, epochs, and what each segment holds."""

    def __init__(self):
        self.state = LogState()
        self.segments, self.contents = [SegmentIndexes(0, SETTINGS.index_interval_bytes)], [b""]

    def roll(self, base_offset):
        self.segments.append(SegmentIndexes(base_offset, SETTINGS.index_interval_bytes))
        self.contents.append(b"")

    def view(self):
        return [
            (one.base_offset, bytes(one.offsets.data), bytes(one.times.data), one.transactions.encode(),
             one.largest_timestamp, one.largest_timestamp_offset, one.first_timestamp, one.bytes_since_entry, content)
            for one, content in zip(self.segments, self.contents, strict=True)
        ], self.state.producers, self.state.epochs.entries  # fmt: skip


def roll_is_due(indexes, size_bytes, header):
    if size_bytes == 0:
        return header.last_offset - indexes.base_offset > 2**31 - 1
    return (
        header.last_offset - indexes.base_offset > 2**31 - 1
        or size_bytes + header.size_bytes > SETTINGS.segment_bytes
        or (indexes.first_timestamp >= 0 and header.max_timestamp - indexes.first_timestamp > SETTINGS.segment_ms)
        or len(indexes.offsets) >= SETTINGS.segment_index_bytes // 8
        or len(indexes.times) >= SETTINGS.segment_index_bytes // 12 - 1
    )


def by_python(buffers):
    result = Result()
    for data in buffers:
        for header, place in walk_headers(data):
            if roll_is_due(result.segments[-1], len(result.contents[-1]), header):
                result.roll(header.base_offset)
            aborted = result.state.take(header, data, place)
            result.segments[-1].add(header, len(result.contents[-1]), aborted)
            result.contents[-1] += data[place : place + header.size_bytes]
    return result


def by_c(buffers):
    result, next_offset = Result(), 0
    for data in buffers:
        walk, taken = AppendWalk(memoryview(data), SETTINGS, next_offset, result.state), 0
        walk.use(result.segments[-1], len(result.contents[-1]))
        while (stop := walk.step()) is not WalkStop.END:
            if stop is WalkStop.ROLL:
                result.contents[-1] += data[taken : walk.place]
                assert len(result.contents[-1]) == walk.position
                taken = walk.place
                result.roll(walk.header.base_offset)
                walk.use(result.segments[-1], 0)
            else:
                walk.take_stop(stop)
        result.contents[-1] += data[taken:]
        next_offset = walk.next_offset
    return result


def history(rng):
    """Buffers of batches: producers with epochs, transactions and markers, gaps, late timestamps, leader epochs."""
    offset, buffers, epochs, leader_epoch = 0, [], {}, 0
    for _buffer in range(rng.randint(1, 6)):
        data = b""
        for _batch in range(rng.randint(0, 60)):
            producer = rng.choice([-1, -1, -2, 1, 1, 1, 2, *range(3, 9)])
            if rng.random() < 0.05:
                epochs[producer] = epochs.get(producer, 0) + 1
            leader_epoch += rng.random() < 0.03
            timestamp = rng.choice([-1, 1000 + rng.randint(0, 60), 1000 + offset])
            if producer >= 0 and rng.random() < 0.1:
                data += marker(offset, producer, epochs.get(producer, 0), rng.random() < 0.5, timestamp=timestamp,
                               epoch=leader_epoch)
                offset += 1
                continue
            count = rng.randint(1, 3)
            sequence = rng.choice([0, 5, 2**31 - 1]) if producer >= 0 else -1
            producer_epoch = epochs.get(producer, 0) if producer >= 0 else -1
            data += batch(offset, [rng.randbytes(rng.randint(1, 300)) for _ in range(count)], timestamp=timestamp,
                          epoch=leader_epoch, producer=(producer, producer_epoch, sequence),
                          transactional=producer >= 0 and rng.random() < 0.3)
            offset += count + (rng.random() < 0.05) * rng.choice([7, 2**31])
        buffers.append(data)
    return buffers


@pytest.mark.parametrize(("entries", "producers"), [(1024, 64), (1, 1), (3, 2)])
def test_the_walk_in_c_decides_as_the_model_does(entries, producers, monkeypatch):
    monkeypatch.setattr(segment, "ENTRIES_PER_STEP", entries)
    monkeypatch.setattr(segment, "PRODUCERS_PER_STEP", producers)
    for seed in range(150):
        buffers = history(random.Random(seed))
        assert by_c(buffers).view() == by_python(buffers).view(), f"seed {seed}"


def test_what_was_written_before_is_passed_over():
    data = batch(0, [b"a"]) + batch(1, [b"b"]) + batch(2, [b"c"])
    walk = AppendWalk(memoryview(data), SETTINGS, 2, LogState([EpochStart(0, 0)]))
    walk.use(SegmentIndexes(0, 100), 1000)
    assert walk.step() is WalkStop.END
    assert (walk.begin, walk.next_offset) == (2 * len(data) // 3, 3)
    assert walk.position == 1000 + len(data) // 3


@pytest.mark.parametrize("data", [
    batch(4, [b"a"]) + batch(4, [b"b"]), batch(1, [b"a", b"b", b"c", b"d"]), batch(4)[:-1], batch(4)[:30],
    batch(4)[:16] + b"\x01" + batch(4)[17:], batch(4) + bytes(61),
], ids=["overlap", "across the end", "cut", "half a header", "magic", "zeros"])  # fmt: skip
def test_what_does_not_follow_is_refused(data):
    walk = AppendWalk(memoryview(data), SETTINGS, 3, LogState([EpochStart(0, 0)]))
    walk.use(SegmentIndexes(0, 100), 1000)
    with pytest.raises(BatchDamageError, match="that follows offset"):
        walk.step()
