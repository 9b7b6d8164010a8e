"""A reader that looks for a sealed segment's indexes while others are at work."""

import contextlib
import os

import pytest
import trio

from tests.log.log_batches import batch
from tests.storage.test_partition_storage import fill, make
from tpc_broker.log.batch import BatchDamageError, walk_headers
from tpc_broker.log.files import segment_file_name
from tpc_broker.storage.segments.segment_reader import SegmentReader

OPERATIONS = ("open", "stat", "read", "read_view", "writev", "truncate", "unlink", "rename")


class Stop:
    """Holds one task up in front of a numbered operation on the disk, until `go_on`."""

    def __init__(self, disk, number):
        self.task, self._number, self._count = None, number, 0
        self.reached, self._go_on = trio.Event(), trio.Event()
        for name in OPERATIONS:
            setattr(disk, name, self._stopping(getattr(disk, name)))

    def _stopping(self, operation):
        async def stopping(*arguments, **more):
            if trio.lowlevel.current_task() is self.task:
                self._count += 1
                if self._count == self._number:
                    self.reached.set()
                    await self._go_on.wait()
            return await operation(*arguments, **more)

        return stopping

    def go_on(self):
        self._go_on.set()


async def read_all(storage):
    found, offset = {}, storage.segments[0].base_offset
    while offset < storage.written_end_offset:
        data = await storage.read(offset, 1)
        header, place = next(walk_headers(data))
        assert header.base_offset == offset
        found[offset] = data[place : place + header.size_bytes]
        offset = header.next_offset
    return found


async def look(storage, segment):
    with contextlib.suppress(FileNotFoundError):  # it is gone
        await SegmentReader(storage).load(segment)


async def cut(storage, segment):
    await storage.truncate(segment.base_offset + 6)


async def remove(storage, segment):
    await storage.advance_log_start(storage.end_of(segment), 0)


async def stopped_at(number, is_damaged, first, second):
    """`first` is stopped in front of one of its steps, and `second` begins there, and goes as far as it can. The
    storage, the segment they work on, and whether there was such a step.
    """
    storage = await make()
    await fill(storage)
    segment = storage.segments[2]
    for one in storage.segments[:-1]:
        one.indexes, one.flushed_bytes = None, [0, 0, 0]
    if is_damaged:
        path = storage.folder.path / segment.file_names[1]
        del storage.folder.disk.names[path].content[-3:]
    stop, ended = Stop(storage.folder.disk, number), []

    async def run(function):
        if function is first:
            stop.task = trio.lowlevel.current_task()
        await function(storage, segment)
        ended.append(function)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, first)
        await trio.testing.wait_all_tasks_blocked()
        if segment in storage.segments:
            nursery.start_soon(run, second)
            await trio.testing.wait_all_tasks_blocked()
        stop.go_on()
    assert first in ended
    return storage, segment, stop.reached.is_set()


async def at_every_step(is_damaged, first, second, check):
    number, more = 0, True
    while more:
        number += 1
        storage, segment, more = await stopped_at(number, is_damaged, first, second)
        await check(storage, segment)
    assert number > 6


async def check_indexes(storage, segment):
    """They are right in memory, and the same in their files."""
    indexes, folder = segment.indexes, storage.folder
    assert indexes.offsets.problem(segment.size_bytes) is None
    assert indexes.times.problem(storage.end_of(segment)) is None
    for name, content in zip(segment.file_names[1:3], (indexes.offsets.data, indexes.times.data), strict=True):
        inode = folder.disk.names.get(folder.path / name)
        assert bytes(inode.content if inode else b"") == content


both = pytest.mark.parametrize("is_damaged", [False, True], ids=["stored", "damaged"])


@both
@pytest.mark.parametrize(("first", "second"), [(look, cut), (cut, look)])
async def test_a_cut_while_a_reader_loads_leaves_the_log_whole(first, second, is_damaged):
    """Entries of batches that are gone would lead readers astray, and the index files would get a hole."""

    async def check(storage, segment):
        cut_offset = segment.base_offset + 6
        assert storage.active is segment
        assert storage.written_end_offset == cut_offset
        made = {offset: batch(offset, [b"z" * 90]) for offset in range(cut_offset, cut_offset + 20)}
        for data in made.values():
            await storage.append([data])
        await storage.roll()
        for one in [one for one in storage.segments if one.base_offset >= segment.base_offset][:-1]:
            await check_indexes(storage, one)
        found = await read_all(storage)
        assert {offset: data for offset, data in found.items() if offset >= cut_offset} == made

    await at_every_step(is_damaged, first, second, check)


@both
@pytest.mark.parametrize(("first", "second"), [(look, remove), (remove, look)])
async def test_a_segment_that_goes_while_a_reader_loads_leaves_no_files(first, second, is_damaged):
    async def check(storage, segment):
        assert segment not in storage.segments
        names = await storage.folder.disk.listdir(storage.folder.path)
        stem = segment_file_name(segment.base_offset, "")
        assert {name for name in names if name.startswith(stem)} <= {name + ".deleted" for name in segment.file_names}

    await at_every_step(is_damaged, first, second, check)


async def test_of_two_readers_one_replaces_the_files():
    async def look_too(storage, segment):
        await look(storage, segment)

    async def check(storage, segment):
        await check_indexes(storage, segment)
        assert len(await read_all(storage)) == 40

    await at_every_step(True, look, look_too, check)


@pytest.mark.parametrize("kept_bytes", [0, 30, 61, 100])
async def test_a_segment_whose_file_ends_early_is_damaged(kept_bytes):
    """As a damaged file system may have left it: no part of a batch is given out, and nobody searches without end."""
    storage = await make()
    made = await fill(storage)
    segment = storage.segments[0]
    assert await storage.read(0, 1) == made[0]
    file = await storage.folder.disk.open(storage.folder.path / segment.log_name, os.O_RDWR)
    await storage.folder.disk.truncate(file, kept_bytes)
    with pytest.raises(BatchDamageError, match="in the midst of a batch"):
        await storage.read(0, 1)
    behind = storage.segments[1].base_offset
    assert await storage.read(behind, 1) == made[behind // 3]
