"""A segment is its files and not their names: readers beside a swap find all of the old one or all of the new one."""

import contextlib

import pytest
import trio
import trio.testing

from tests.log.log_batches import batch, marker
from tests.storage.test_partition_storage import make
from tests.storage.test_segment_reader import Stop
from tests.support.cleaned_copies import cleanable, cleaned_copy, sources_of, swap_copy
from tests.support.disk_operations import Held
from tpc_broker.log.batch import BATCH_HEADER_BYTES, decode_header, walk_headers
from tpc_broker.log.indexes import OFFSET_ENTRY_BYTES, OffsetIndex
from tpc_broker.storage.segments.segment_reader import SegmentReader
from tpc_broker.storage.segments.swap_guard import SegmentReplacedError

BATCHES = 60


async def made(*, is_loaded=False):
    """A partition with sealed segments below a checkpoint; every tenth batch aborts what the one before it began."""
    storage, batches = await make(), []
    for offset in range(BATCHES):
        timestamp = 1000 + 10 * (offset ^ 3)
        if offset % 10 == 8:
            data = batch(offset, [b"t" * 90], timestamp=timestamp, producer=(offset, 0, 0), transactional=True)
        elif offset % 10 == 9:
            data = marker(offset, 0, offset - 1, timestamp=timestamp)
        else:
            data = batch(offset, [b"v" * (60 + offset)], timestamp=timestamp)
        batches.append(data)
    await storage.append(batches)
    storage.mark_checkpointed(await storage.capture())
    await storage.sync()
    await storage.folder.close()
    for segment in storage.segments[:-1]:
        if not is_loaded:
            segment.indexes, segment.flushed_bytes = None, [0, 0, 0]
    assert len(cleanable(storage)) > 3
    return storage


def keep(header):
    """Of every three batches one goes, and none of a transaction; so every position behind it is another."""
    return header.base_offset % 10 >= 8 or header.base_offset % 3 != 1


async def swap(storage):
    await swap_copy(storage, cleanable(storage)[1:3], keep=keep)


async def read_window(storage, offset):
    """What the data plane would find by itself, by each entry and from the beginning; None: there is no window."""
    try:
        async with storage.window(offset) as window:
            length = window.end_position - window.from_position
            data = bytes(await storage.folder.disk.read(window.descriptor, length, window.from_position))
    except SegmentReplacedError:
        return None
    index = OffsetIndex(window.segment_base_offset, window.entries)
    assert len(window.entries) % OFFSET_ENTRY_BYTES == 0
    for number in range(len(index)):
        entry = index[number]
        at = entry.position - window.from_position
        assert decode_header(data[at : at + BATCH_HEADER_BYTES]).last_offset == entry.offset
    return [header.base_offset for header, _place in walk_headers(data)], window.from_offset, window.upto_offset


async def plan(storage):
    found, start = await storage.plan_retention(10**12, storage.written_end_offset)
    return found.segments_count > 0, start


READERS = {
    "read": lambda storage: storage.read(17, 400),
    "read of a gap": lambda storage: storage.read(22, 1),
    "one batch at a time": lambda storage: storage.read(13, 1),
    "by timestamp": lambda storage: storage.offset_for_timestamp(1250, 5),
    "largest timestamp": lambda storage: storage.largest_timestamp(3, 33),
    "aborted transactions": lambda storage: storage.aborted_transactions(0, BATCHES),
    "window": lambda storage: read_window(storage, 17),
    "retention": plan,
}
each_reader = pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
loaded = pytest.mark.parametrize("is_loaded", [False, True], ids=["to be loaded", "loaded"])


async def run_beside(number, first, second, *, is_loaded, is_damaged=False):
    """`first` is stopped in front of its step `number`, `second` goes as far as it can, then both end. What they
    returned, the storage, and whether there was such a step.
    """
    storage = await made(is_loaded=is_loaded)
    if is_damaged:
        for segment in cleanable(storage)[1:3]:
            del storage.folder.disk.names[storage.folder.path / segment.file_names[1]].content[-3:]
    stop, results = Stop(storage.folder.disk, number), {}

    async def run(function):
        if function is first:
            stop.task = trio.lowlevel.current_task()
        results[function] = await function(storage)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, first)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(run, second)
        await trio.testing.wait_all_tasks_blocked()
        stop.go_on()
    return results, storage, stop.reached.is_set()


async def found_in_peace(reader, *, is_swapped):
    storage = await made()
    if is_swapped:
        await swap(storage)
    return await reader(storage)


async def at_every_step(reader, first, second, **how):
    allowed = [await found_in_peace(reader, is_swapped=False), await found_in_peace(reader, is_swapped=True), None]
    number, more = 0, True
    while more:
        number += 1
        results, storage, more = await run_beside(number, first, second, **how)
        assert results[reader] in allowed, number
        again = await reader(storage)
        assert again == allowed[1], "what comes later is of the new one"
        await check_content(storage)
        await check_index_files(storage)
    return number


async def check_content(storage):
    found, offset = [], 0
    while offset < storage.written_end_offset:
        headers = [header for header, _place in walk_headers(await storage.read(offset, 10**6))]
        found += [header.base_offset for header in headers]
        offset = headers[-1].next_offset
    swapped = next(segment for segment in storage.segments if segment.seal is not None)
    end_offset = storage.end_of(swapped)
    assert found == [
        offset for offset in range(BATCHES)
        if not swapped.base_offset <= offset < end_offset or offset % 10 >= 8 or offset % 3 != 1
    ]  # fmt: skip


async def check_index_files(storage):
    """They are the new segment's, and nobody has written those of the old one over them."""
    segment = next(segment for segment in storage.segments if segment.seal is not None)
    end_offset, interval_bytes = storage.end_of(segment), storage.settings.index_interval_bytes
    stored = await storage.folder.stored_indexes(segment, end_offset, interval_bytes)
    assert stored is not None
    assert (await SegmentReader(storage).load(segment)).offsets.data == stored[0].offsets.data


@loaded
@each_reader
async def test_a_reader_that_a_swap_overtakes_anywhere(reader, is_loaded):
    assert await at_every_step(reader, reader, swap, is_loaded=is_loaded) > (not is_loaded)


@each_reader
async def test_a_reader_that_makes_indexes_anew_and_is_overtaken(reader):
    assert await at_every_step(reader, reader, swap, is_loaded=False, is_damaged=True) > 1


@each_reader
async def test_a_reader_that_begins_in_the_midst_of_a_swap(reader):
    assert await at_every_step(reader, swap, reader, is_loaded=False) > 10


async def test_who_has_a_file_open_goes_on_with_it():
    storage = await made()
    segment = cleanable(storage)[1]
    before = bytes(storage.folder.disk.names[storage.folder.path / segment.log_name].content)
    async with storage.folder.use_log(segment) as file:
        await swap(storage)
        assert await storage.folder.disk.read(file.fd, 10**6, 0) == before
        assert await storage.folder.files.direct_descriptor(file) is None, "its name is another file's"
    with pytest.raises(SegmentReplacedError):
        async with storage.folder.use_log(segment):
            pass


async def test_what_is_opened_during_a_swap_is_not_kept_for_later():
    storage = await made()
    segment, disk = cleanable(storage)[1], storage.folder.disk
    held = Held(afterwards=True, when=lambda path, *_flags: path.name == segment.log_name)

    async def read_early():
        with contextlib.suppress(SegmentReplacedError):
            await storage.read_once(segment.base_offset, 100)

    async with trio.open_nursery() as nursery:
        sources = await sources_of(storage, cleanable(storage)[1:3])
        seal = await cleaned_copy(storage, cleanable(storage)[1:3], keep=keep)
        await storage.folder.close()
        disk.during("open", do=held)
        nursery.start_soon(read_early)
        await held.waiting.wait()
        disk.during("open", do=None)
        await storage.swap(sources, seal, lambda: None)
        held.may_go.set()
    await check_content(storage)


async def test_who_holds_swaps_keeps_them_away_and_waits_for_one_under_way():
    storage, told = await made(), []

    async def hold():
        async with storage.swaps_held():
            told.append(("held", cleanable(storage)[1].seal))
            await trio.testing.wait_all_tasks_blocked()
            told.append(("let go", cleanable(storage)[1].seal))

    async def swap_now():
        await swap(storage)
        told.append(("swapped", cleanable(storage)[1].seal is not None))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        await trio.testing.wait_all_tasks_blocked(0.0)
        nursery.start_soon(swap_now)
    assert told == [("held", None), ("let go", None), ("swapped", True)]
    held = Held(when=lambda source, _target: source.name.endswith(".seal.tmp"))
    storage.folder.disk.during("rename", do=held)
    told.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(swap_copy, storage, cleanable(storage)[1:3])
        await held.waiting.wait()
        nursery.start_soon(hold)
        await trio.testing.wait_all_tasks_blocked(0.0)
        assert not told
        storage.folder.disk.during("rename", do=None)
        held.may_go.set()
    assert [name for name, _seal in told] == ["held", "let go"]
