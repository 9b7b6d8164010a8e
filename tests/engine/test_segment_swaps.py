"""Segments give way to others while C reads them: windows, memory and aborted transactions are of one version.

A plane whose Fetches are answered in C where they can be, on files that are swapped for byte-equal or cleaned ones.
"""

from random import Random

import pytest
import trio

from tests.engine.test_plane_fetch_segments import asks, bench, make_bench, part_of, read_all, stored  # noqa: F401
from tests.engine.test_read_committed import asks as asks_committed
from tests.engine.test_read_committed import end, sent, told, write_behind
from tests.support.cleaned_copies import cleanable, some_of, swap_copy
from tests.support.definitions import decode_response
from tests.support.descriptors import open_descriptors
from tests.support.fetch_bench import FetchBench
from tests.support.plane_bench import records_of
from tests.support.record_batches import read_batches
from tpc_broker._ring import lib


async def checkpointed(files):
    state = await files.capture()
    await files.sync()
    files.mark_checkpointed(state)


class Swapped:
    """Swaps of a partition's segments, told to its plane as storage tells it."""

    def __init__(self, bench, files, handle):  # noqa: F811
        self._bench, self._files, self._handle = bench, files, handle
        trio.run(checkpointed, files)

    def swap(self, segments, **how):
        async def swap():
            seal = await swap_copy(self._files, segments, self._publish(segments), **how)
            assert self._files.segments[self._files.segment_number(seal.base_offset)].seal is seal

        trio.run(swap)

    def _publish(self, segments):
        upto = self._files.end_of(segments[-1])
        return lambda: self._bench.face.segments_replaced(self._handle, upto)


@pytest.fixture
def swapped(bench, stored):  # noqa: F811
    return Swapped(bench, stored.files, bench.partitions["t", 0].handle)


def test_byte_equal_segments_are_read_on_by_new_windows(bench, stored, swapped, seed):  # noqa: F811
    random, client = Random(seed), bench.connect()
    end_offset, offset = stored.files.written_end_offset, 0
    assert read_all(bench, client, 50_000, end_offset) == stored.data
    descriptors = len(open_descriptors())
    batches = {one["base_offset"]: one for one in read_batches(stored.data)}
    for _ in range(150):
        if random.random() < 0.2:
            swapped.swap(some_of(cleanable(stored.files), random, 2))
            assert bench.fetch_counts().windows == 0
        offset = random.choice([offset, random.choice(list(batches))])
        wanted = asks(offset, random.choice([1, 5_000, 1 << 20]))
        found = read_batches(part_of(bench.fetch(client, 12, wanted))["Records"])
        assert found
        assert found == [batches[one["base_offset"]] for one in found]
        offset = found[-1]["base_offset"] + len(found[-1]["records"])
        offset = 0 if offset >= end_offset else offset
    assert read_all(bench, client, 50_000, end_offset) == stored.data
    assert len(open_descriptors()) <= descriptors + 10, "nothing keeps the old ones open"


def test_answers_under_way_are_of_the_segments_that_they_began_with(bench, stored, swapped):  # noqa: F811
    client = bench.connect()
    read_all(bench, client, 1 << 20, stored.files.written_end_offset)
    first = stored.files.segments[0]
    before = stored.data[: first.size_bytes]
    for number in range(20):
        bench.send_fetch(client, 12, asks(0, 1 << 20), correlation_id=number)
    bench.turn(1)
    swapped.swap([first], keep=lambda header: header.base_offset % 2)
    kept = [one["base_offset"] for one in read_batches(before) if one["base_offset"] % 2]
    for _number in range(20):
        records = part_of(decode_response("Fetch", 12, bench.read_frame(client))[1])["Records"]
        assert records == before or [one["base_offset"] for one in read_batches(records)] == kept
    assert [one["base_offset"] for one in read_batches(part_of(bench.fetch(client, 12, asks(0)))["Records"])] == kept


def test_gaps_are_read_across_by_windows_and_by_python(bench, stored, swapped):  # noqa: F811
    client = bench.connect()
    data = {one["base_offset"]: one for one in read_batches(stored.data)}
    segments = cleanable(stored.files)
    upto = stored.files.end_of(segments[1])
    swapped.swap(segments[:2], keep=lambda header: header.base_offset % 5 == 0)
    wanted = [offset for offset in data if offset >= upto or offset % 5 == 0]
    for bytes_max in (1, 5_000, 1 << 20):
        for _twice in range(2):
            found, offset = [], 0
            while offset < stored.files.written_end_offset:
                batches = read_batches(part_of(bench.fetch(client, 12, asks(offset, bytes_max)))["Records"])
                assert batches, offset
                found += batches
                offset = batches[-1]["base_offset"] + len(batches[-1]["records"])
            assert [one["base_offset"] for one in found] == wanted
            assert found == [data[offset] for offset in wanted]
    for offset in range(0, upto, 7):
        batches = read_batches(part_of(bench.fetch(client, 12, asks(offset, 1)))["Records"])
        assert batches[0] == data[max([one for one in wanted if one <= offset < one + len(data[one]["records"])]
                                      or [min(one for one in wanted if one > offset)])]  # fmt: skip


def test_a_segment_of_which_nothing_is_left_is_read_across(bench, stored, swapped):  # noqa: F811
    client = bench.connect()
    segments = cleanable(stored.files)
    upto = stored.files.end_of(segments[0])
    swapped.swap(segments[:1], keep=lambda _header: False)
    for offset in (0, 1, upto - 1, upto):
        for _twice in range(2):
            batches = read_batches(part_of(bench.fetch(client, 12, asks(offset)))["Records"])
            assert batches[0]["base_offset"] == upto


def test_memory_and_aborted_transactions_below_the_end_go_with_the_segments(features, tmp_path):
    """Else the aborted data would come from memory, with a list that may have lost them."""
    bench = FetchBench(tmp_path / "c.journal", in_c=True, region_blocks=1024)  # noqa: F811
    try:
        client = bench.connect()
        handle = bench.make("t")
        bench.plane.append(handle, sent(1))
        end(bench, handle, 1, commits=False)
        bench.settle()
        bench.plane.append(handle, records_of(1))
        bench.settle()
        bench.plane.append(handle, sent(2))
        end(bench, handle, 2, commits=False)
        bench.settle()
        write_behind(bench, handle, 3)
        bench.partitions["t", 0].files.written_end_offset = 0  # of files that hold nothing of it

        def read(offset):
            answer = bench.fetch(client, 12, asks_committed(offset))
            return told(answer["Responses"][0]["Partitions"][0])

        assert read(0) == ([0, 1, 2, 3, 4], [(1, 0), (2, 3)])
        assert lib.tpc_partition_replaced(bench.plane.pointer, handle, 4) == -22, "not more than is written"
        assert lib.tpc_partition_replaced(bench.plane.pointer, handle, 2) == 0
        rows, from_offset, _room = bench.plane.known_aborted(handle)
        assert ([row[:3] for row in rows], from_offset) == ([(2, 3, 4)], 3), "what segments have is theirs to tell"
        assert read(0) == ([], []), "it is not in memory any more"
        assert read(2) == ([2, 3, 4], [(2, 3)])
        assert read(3) == ([3, 4], [(2, 3)])
        assert lib.tpc_partition_replaced(bench.plane.pointer, handle + 1, 2) == -2
    finally:
        bench.shut()
