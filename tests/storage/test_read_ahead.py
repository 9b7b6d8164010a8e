"""How much is read in front of readers of segments: by where they came from."""

import errno
import uuid
from pathlib import Path

import pytest
import trio

from tests.log.log_batches import batch
from tests.support.fake_disk import FakeDisk
from tpc_broker.log.batch import walk_headers
from tpc_broker.log.segment import LogSettings
from tpc_broker.model import PartitionIndex, TopicId, TopicPartition
from tpc_broker.storage.segments.files import FileCache
from tpc_broker.storage.segments.folders import create_partition
from tpc_broker.storage.segments.read_ahead import BYTES_MAX, FIRST_BYTES, READERS_MAX, ReadAhead

MIB = 1 << 20
END = 1 << 30


def key(index):
    return TopicPartition(TopicId(uuid.UUID(int=1)), PartitionIndex(index))


def lap(ahead, positions, base_offset=0, end=END):
    return [ahead.bytes_from(key(0), base_offset, position, MIB, end) for position in positions]


def cold_lap(ahead, end, base_offset=0):
    """What is asked for by a reader to whom all is cold that was not asked for; where, and how much."""
    position, found = 0, []
    while position < end:
        length = ahead.bytes_from(key(0), base_offset, position, MIB, end)
        found.append((position, length))
        position += max(length, MIB)
    return found


def test_a_reader_that_goes_on_gets_more_each_time():
    found = cold_lap(ReadAhead(), 64 * MIB)
    assert [length // MIB for _position, length in found] == [0, 4, 8, 16, 16, 16, 3]
    assert BYTES_MAX == 16 * MIB


def test_so_does_one_whom_the_kernel_read_more_for():
    assert lap(ReadAhead(), [0, 10 * MIB, 22 * MIB]) == [0, 4 * MIB, 8 * MIB]


def test_nothing_is_asked_for_again_that_is_on_its_way():
    assert lap(ReadAhead(), [0, 2 * MIB, 3 * MIB, 4 * MIB, 5 * MIB]) == [0, 4 * MIB, 0, 8 * MIB, 0]


@pytest.mark.parametrize("positions", [[5 * MIB, 0], [0, 100 * MIB, 7 * MIB, 300 * MIB], [8 * MIB, 8 * MIB]])
def test_one_who_reads_here_and_there_gets_nothing_more(positions):
    assert lap(ReadAhead(), positions) == [0] * len(positions)


def test_one_who_goes_back_begins_anew():
    assert lap(ReadAhead(), [5 * MIB, 0, 2 * MIB]) == [0, 0, 4 * MIB]


def test_it_goes_on_in_the_next_segment():
    ahead = ReadAhead()
    lap(ahead, [0, 2 * MIB, 6 * MIB])
    assert lap(ahead, [0], base_offset=1000) == [16 * MIB]
    assert lap(ahead, [0], base_offset=0) == [0], "that was the one before"


def test_nothing_is_read_behind_a_segments_end():
    assert lap(ReadAhead(), [0, 2 * MIB], end=5 * MIB) == [0, 3 * MIB]
    assert lap(ReadAhead(), [0, 2 * MIB], end=2 * MIB + 100) == [0, 0]


def test_the_one_who_has_not_read_for_longest_begins_anew():
    ahead = ReadAhead()
    for index in range(READERS_MAX + 1):
        assert ahead.bytes_from(key(index), 0, 0, MIB, END) == 0
    assert ahead.bytes_from(key(0), 0, FIRST_BYTES, MIB, END) == 0
    assert ahead.bytes_from(key(READERS_MAX), 0, FIRST_BYTES, MIB, END) == 4 * MIB


async def written(disk):
    topics = Path("/topics")
    disk.names.setdefault(topics, None)
    storage = await create_partition(FileCache(disk), topics, "t", key(0), LogSettings(segment_bytes=64 * MIB))
    for offset in range(60):
        await storage.append([batch(offset, [b"a" * 100_000])])
    return storage


async def read_through(storage):
    """The base offsets of all batches, as a reader gets them."""
    found = []
    while len(found) < 60:
        found += [header.base_offset for header, _place in walk_headers(await storage.read(len(found), MIB))]
    return found


async def test_who_reads_a_segment_through_has_it_read_ahead_to_its_end():
    disk = FakeDisk()
    storage = await written(disk)
    assert await read_through(storage) == list(range(60))
    end, asked = storage.segments[0].size_bytes, disk.read_ahead_of
    positions = [position for position, _length in asked]
    assert positions, "nothing was read ahead"
    assert positions == sorted(positions)
    assert all(MIB < length <= end - position for position, length in asked)
    assert sum(asked[-1]) == end


async def test_what_cannot_be_read_ahead_is_read_all_the_same(monkeypatch):
    async def refuse(*_arguments):
        await trio.lowlevel.checkpoint()
        refused.append(OSError(errno.EINVAL, "not here"))
        raise refused[-1]

    refused = []
    storage = await written(FakeDisk())
    monkeypatch.setattr(FakeDisk, "read_ahead", refuse)
    assert await read_through(storage) == list(range(60))
    assert refused
