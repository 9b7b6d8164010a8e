"""The data plane in memory keeps what the real one keeps: the same bodies run on both."""

import inspect
import os
import uuid

import pytest
import trio

from tests.log.log_batches import batch
from tests.support.storage_plane import JOURNAL_USE, MemoryStoragePlane, params_of
from tpc_broker.engine import trio_ring
from tpc_broker.engine.connections import ConnectionLimits, Connections
from tpc_broker.engine.data_plane import JournalStart, RingDataPlane
from tpc_broker.engine.trio_ring import RingOptions, current_ring
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.log.journal import BLOCK_BYTES, REGION_BLOCK_FIRST, EntryKind, JournalMode
from tpc_broker.log.state import LogState
from tpc_broker.model import TopicPartition
from tpc_broker.storage.ports import StoragePlane

BLOCKS = JOURNAL_USE.region_blocks
DATA = batch(0, [b"v" * 100])
PROMISES = []


def promise(body):
    PROMISES.append(body)
    return body


def key_of(number):
    return TopicPartition(uuid.UUID(int=9), number)


def registered(plane, count, *, admitted=1 << 20, log_end_offset=0):
    handles = [plane.register(params_of(key_of(number), log_end_offset), LogState()) for number in range(count)]
    for handle in handles:
        plane.admit(handle, admitted)
    return handles


async def appended(plane, handle, count=1):
    for _batch in range(count):
        assert plane.append(handle, DATA) is not None
    await plane.wait_settled(handle)


@promise
async def a_partition_begins_where_its_files_end(plane):
    first, second = registered(plane, 2, admitted=0, log_end_offset=7)
    assert first != second
    for handle in (first, second):
        state = plane.state(handle)
        assert (state.high_watermark, state.durable_offset, state.written_offset) == (7, 7, 7)
        assert (state.unwritten_bytes, state.dirty_bytes, state.bytes_admitted) == (0, 0, 0)
        assert (state.in_place_end_offset, state.leader_epoch) == (-1, 3)


@promise
async def what_is_admitted_is_used_up_by_appends_and_no_more_is_taken(plane):
    (handle,) = registered(plane, 1, admitted=2 * len(DATA), log_end_offset=5)
    assert plane.append(handle, DATA)[:] == (5, 6, 3, 0)
    assert plane.state(handle).bytes_admitted == len(DATA)
    assert plane.append(handle, DATA)[:2] == (6, 7)
    assert plane.append(handle, DATA) is None
    plane.admit(handle, len(DATA) - 1)
    assert plane.append(handle, DATA) is None
    plane.admit(handle, 1)
    assert plane.append(handle, DATA)[:2] == (7, 8)
    plane.admit(handle, 10)
    plane.admit(handle, -4)
    assert plane.state(handle).bytes_admitted == 6
    assert plane.state(handle).unwritten_bytes == 3 * len(DATA)


@promise
async def what_is_settled_is_durable_and_not_written(plane):
    (handle,) = registered(plane, 1)
    await plane.wait_settled(handle)
    await appended(plane, handle, 2)
    state = plane.state(handle)
    assert (state.high_watermark, state.durable_offset, state.written_offset) == (2, 2, 0)
    assert state.unwritten_bytes == state.dirty_bytes == 2 * len(DATA)


@promise
async def a_partition_that_was_withdrawn_is_not_known(plane):
    gone, other = registered(plane, 2)
    plane.withdraw(gone)
    plane.admit(gone, 100)
    for call in (lambda: plane.state(gone), lambda: plane.append(gone, DATA)):
        with pytest.raises(PartitionOfflineError):
            call()
    with pytest.raises(PartitionOfflineError):
        await plane.wait_settled(gone)
    (again,) = registered(plane, 1)
    assert again not in (gone, other), "handles never come twice"
    await appended(plane, other)


@promise
async def entries_have_sequences_in_their_order_and_become_durable(plane):
    sequences, told = [], []
    for number in range(3):
        sequences.append(plane.journal_append(EntryKind.PARTITION_DELETED, key_of(number), 0, 0))
    assert sequences == sorted(sequences)
    await plane.wait_durable(sequences[-1], lambda: told.append("last"))
    await plane.wait_durable(sequences[0])
    assert told == ["last"]
    assert plane.journal_error() == 0
    use = plane.journal_use()
    assert (use.region_blocks, use.blocks_wanted, use.is_refused) == (BLOCKS, 0, False)
    assert 0 <= use.blocks_used <= BLOCKS


@promise
async def the_cursor_is_behind_what_is_durable(plane):
    for count in range(3):
        assert plane.durable_cursor()[:3] == (1 + count, REGION_BLOCK_FIRST + count, count)
        sequence = plane.journal_append(EntryKind.PARTITION_DELETED, key_of(count), 0, 0)
        assert sequence == 1 + count
        await plane.wait_durable(sequence)


@promise
async def short_runs_are_all_of_a_partition_in_the_order_of_the_handles(plane):
    first, empty, second = registered(plane, 3, log_end_offset=4)
    await appended(plane, first, 2)
    await appended(plane, second)
    memory = memoryview(bytearray(10_000))
    one, none, other = plane.short_runs_take([first, empty, second], 5000, memory)
    assert none is None
    assert (len(one.batches), one.end_offset) == (2 * len(DATA), 6)
    assert (len(other.batches), other.end_offset) == (len(DATA), 5)
    assert memory[: 3 * len(DATA)] == bytes(one.batches) + bytes(other.batches)
    assert bytes(one.batches[:8]) == (4).to_bytes(8), "with their offsets"
    assert plane.short_runs_take([first], 5000, memory)[0].end_offset == 6, "until they are done"


@promise
async def a_run_that_is_too_long_is_left_and_full_memory_ends_it(plane):
    long, first, second = registered(plane, 3)
    await appended(plane, long, 3)
    await appended(plane, first)
    await appended(plane, second)
    size = len(DATA)
    memory = memoryview(bytearray(2 * size))
    assert [run and run.end_offset for run in plane.short_runs_take([long, first], 2 * size, memory)] == [None, 1]
    memory = memoryview(bytearray(3 * size))
    found = plane.short_runs_take([first, long, second], 3 * size, memory)
    assert [run.end_offset for run in found] == [1], "fewer than there are handles"


@promise
async def what_is_done_is_written_and_only_that(plane):
    first, second = registered(plane, 2, admitted=1000)
    for handle in (first, second):
        await appended(plane, handle, 3)
    size, left = len(DATA), 1000 - 3 * len(DATA)
    assert plane.short_runs_done([(first, 3), (second, 2)]) == [(3 * size, left), (2 * size, left)]
    assert [plane.state(handle).written_offset for handle in (first, second)] == [3, 2]
    assert [plane.state(handle).unwritten_bytes for handle in (first, second)] == [0, size]
    [none, rest] = plane.short_runs_take([first, second], 5000, memoryview(bytearray(5000)))
    assert (none, len(rest.batches), rest.end_offset) == (None, size, 3)
    assert plane.short_runs_done([]) == []


@promise
async def no_in_place_window_is_there_before_one_is_opened(plane):
    (handle,) = registered(plane, 1)
    assert not plane.set_in_place_space(handle, 1 << 20)
    plane.close_in_place_window(handle)
    await appended(plane, handle)
    assert plane.state(handle).in_place_end_offset == -1


@promise
async def segments_that_gave_way_take_nothing_along_that_is_not_written(plane):
    (handle,) = registered(plane, 1)
    await appended(plane, handle, 3)
    plane.short_runs_done([(handle, 1)])
    before = plane.state(handle)
    plane.close_windows(handle)
    plane.segments_replaced(handle, 1)
    plane.segments_replaced(handle + 1, 1)  # it has gone
    assert plane.state(handle) == before
    [rest] = plane.short_runs_take([handle], 5000, memoryview(bytearray(5000)))
    assert (len(rest.batches), rest.end_offset) == (2 * len(DATA), 3)


CALLS = sorted(set(dir(StoragePlane)) & set(dir(MemoryStoragePlane)) - set(dir(object)))


@pytest.mark.parametrize("name", [name for name in CALLS if name[0] != "_"])
async def test_every_call_of_the_plane_in_memory_is_that_of_the_port_and_in_a_promise(name, monkeypatch):
    wanted, found, asked = getattr(StoragePlane, name), getattr(MemoryStoragePlane, name), []
    assert len(inspect.signature(wanted).parameters) == len(inspect.signature(found).parameters)
    assert inspect.iscoroutinefunction(wanted) == inspect.iscoroutinefunction(found)

    def noted(*arguments):
        asked.append(arguments)
        return found(*arguments)

    monkeypatch.setattr(MemoryStoragePlane, name, noted)
    for body in PROMISES:
        await body(MemoryStoragePlane())
    assert asked


each = pytest.mark.parametrize("body", PROMISES, ids=lambda body: body.__name__)


@each
async def test_the_plane_in_memory(body):
    await body(MemoryStoragePlane())


@each
async def test_the_plane_in_memory_that_waits(body):
    """What it holds becomes durable a little later."""
    plane = MemoryStoragePlane()
    plane.holds = True

    async def write():
        while True:
            await trio.lowlevel.checkpoint()
            plane.make_durable()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await body(plane)
        nursery.cancel_scope.cancel()


@each
def test_the_real_plane(body, tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(bytes((REGION_BLOCK_FIRST + BLOCKS) * BLOCK_BYTES))
    descriptor = os.open(path, os.O_RDWR)

    async def main():
        ring = current_ring()
        connections = Connections(ring, ConnectionLimits())
        start = JournalStart(
            descriptor, JournalMode.BUFFERED_DSYNC, bytes(range(16)), 1, BLOCKS, BLOCKS, 1, REGION_BLOCK_FIRST, 0
        )
        plane = RingDataPlane(ring, connections, start)
        try:
            await body(plane)
            while not plane.is_quiet() or not plane.is_settled():
                await trio.sleep(0.001)
        finally:
            plane.close()
            connections.free()

    try:
        trio_ring.run(main, options=RingOptions(stall_ms=0))
    finally:
        os.close(descriptor)
