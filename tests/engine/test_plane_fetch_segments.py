"""Fetches below the tail: C reads the segments that Python opened to it, and answers as Python does.

Two planes on the same segments: one answers in C what it can, the other everything in Python. `--seed`
replays a failure.
"""

import os
import socket
import uuid
from random import Random

import pytest
import trio

from tests.log.log_batches import batch
from tests.support.definitions import decode_response
from tests.support.descriptors import open_descriptors
from tests.support.fetch_bench import FetchBench
from tests.support.plain_disk import PlainDisk
from tests.support.plane_bench import records_of
from tests.support.record_batches import read_batches
from tests.support.seccomp import WAYS, called_under
from tpc_broker._ring import lib
from tpc_broker.error_codes import ErrorCode as E
from tpc_broker.log.segment import LogSettings
from tpc_broker.model import TopicPartition
from tpc_broker.storage.segments.files import FileCache
from tpc_broker.storage.segments.folders import create_partition

SETTINGS = LogSettings(segment_bytes=400_000, index_interval_bytes=2_000, retention_ms=-1)


class Stored:
    """The segments of one partition, and the bytes that a reader of all of it must get."""

    def __init__(self, folder, random, sizes, count):
        self.random, self.sizes, self.data = random, sizes, b""
        folder.mkdir()
        key = TopicPartition(uuid.UUID(int=7), 0)
        self.files = trio.run(create_partition, FileCache(PlainDisk(waits=False)), folder, "t", key, SETTINGS)
        self.append(count)

    def append(self, count):
        batches, offset = [], self.files.written_end_offset
        for _ in range(count):
            records = self.random.choice([1, 1, 3])
            batches.append(batch(offset, [bytes([offset & 255]) * self.random.choice(self.sizes)] * records))
            offset += records
        trio.run(self.files.append, batches)
        self.data += b"".join(batches)

    def drop_from_cache(self):
        for path in self.files.folder.path.glob("*.log"):
            descriptor = os.open(path, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


@pytest.fixture
def stored(tmp_path, seed):
    stored = Stored(tmp_path / "topics", Random(seed), [5, 400, 3_000, 30_000], 250)
    yield stored
    trio.run(stored.files.folder.close)


@pytest.fixture
def bench(features, tmp_path, stored):
    bench = FetchBench(tmp_path / "c.journal", in_c=True, region_blocks=1024)
    bench.make("t", files=stored.files)
    yield bench
    bench.shut()


@pytest.fixture
def make_bench(tmp_path):
    benches = []

    def make(name, **how):
        benches.append(FetchBench(tmp_path / name, **how))
        return benches[-1]

    yield make
    for made in benches:
        made.shut()


def asks(offset, bytes_max=1 << 20, **more):
    part = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": bytes_max}
    topic = {"Topic": "t", "Partitions": [part]}
    limits = {"MaxWaitMs": 0, "MinBytes": 1, "MaxBytes": 1 << 24}
    return {**limits, "SessionId": 0, "SessionEpoch": -1, "Topics": [topic], **more}


def part_of(answer):
    return answer["Responses"][0]["Partitions"][0]


def read_all(bench, client, bytes_max, upto, version=12):
    """All records from the start, as a consumer reads them."""
    data, offset = b"", 0
    while offset < upto:
        records = part_of(bench.fetch(client, version, asks(offset, bytes_max)))["Records"]
        assert records, offset
        data += records
        last = read_batches(records)[-1]
        offset = last["base_offset"] + len(last["records"])
    return data


def test_everything_is_read_once_and_python_only_opens_windows(bench, stored):
    client = bench.connect()
    assert read_all(bench, client, 50_000, stored.files.written_end_offset) == stored.data
    segments = len(stored.files.segments)
    assert segments > 3
    counts = bench.fetch_counts()
    assert bench.handled == counts.left["segment"] + counts.left["cold"]
    assert counts.left["segment"] <= segments
    assert counts.segment_bytes > len(stored.data) * 0.7


def test_what_is_not_in_the_page_cache_is_read_through_the_ring(bench, stored):
    client = bench.connect()
    read_all(bench, client, 1 << 20, stored.files.written_end_offset)  # opens the windows
    before = bench.connections.statistics().reads_of_files
    stored.drop_from_cache()
    assert read_all(bench, client, 300_000, stored.files.written_end_offset) == stored.data
    if bench.fetch_counts().left["cold"] == 0:  # the kernel may keep, or read ahead, what it likes
        assert bench.connections.statistics().reads_of_files >= before


@pytest.mark.parametrize("version", [4, 7, 11, 12])
def test_a_stretch_that_has_to_be_read_may_be_the_last_of_its_answer(tmp_path, stored, monkeypatch, version):
    """In the versions without tagged fields nothing follows the records of the last partition. Where the kernel cannot
    say what is in the page cache each stretch is read."""
    monkeypatch.setenv("TPC_HIDE_FEATURES", "cachestat")
    bench = FetchBench(tmp_path / "c.journal", in_c=True, region_blocks=1024)
    try:
        bench.make("t", files=stored.files)
        client = bench.connect()
        for bytes_max in (300_000, 1 << 20, 2_000):
            assert read_all(bench, client, bytes_max, stored.files.written_end_offset, version) == stored.data
        assert bench.connections.statistics().reads_of_files > 0
    finally:
        bench.shut()


@pytest.mark.usefixtures("system_call_filters")
def test_where_sendfile_is_refused_each_stretch_is_read(tmp_path, stored):
    def read():
        bench = FetchBench(tmp_path / "s.journal", in_c=True, region_blocks=1024)
        try:
            bench.make("t", files=stored.files)
            data = read_all(bench, bench.connect(), 300_000, stored.files.written_end_offset)
            return data, bench.connections.statistics()
        finally:
            bench.shut()

    data, counts = called_under(WAYS["sendfile"], read)
    assert data == stored.data
    assert counts.sends_of_files == 0
    assert counts.reads_of_files > 0


def test_both_answer_alike(make_bench, stored, seed):
    random = Random(seed)
    benches = [make_bench(f"{in_c}.journal", in_c=in_c) for in_c in (True, False)]
    clients = [bench.connect() for bench in benches]
    for bench in benches:
        bench.make("t", files=stored.files)
    end, offset = stored.files.written_end_offset, 0
    for _ in range(400):
        offset = random.choice([offset, offset, random.randrange(end + 1), random.randrange(end)])
        bytes_max = random.choice([0, 1, 70, 2_000, 10_000, 100_000, 1 << 20])
        more = {"IsolationLevel": random.choice([0, 1]), "MaxBytes": random.choice([1, 9_000, 1 << 24])}
        values = asks(offset, bytes_max, **more)
        answers = []
        for bench, client in zip(benches, clients, strict=True):
            bench.send_fetch(client, 12, values)
            answers.append(bench.read_frame(client))
        assert answers[0] == answers[1], (values, *(part_of(decode_response("Fetch", 12, a)[1]) for a in answers))
        batches = read_batches(part_of(decode_response("Fetch", 12, answers[0])[1])["Records"])
        if batches:
            offset = batches[-1]["base_offset"] + len(batches[-1]["records"])
    assert benches[0].fetch_counts().taken > 300, benches[0].fetch_counts()


def test_segments_that_hold_more_than_is_committed_show_only_that(make_bench, stored, seed):
    random = Random(seed)
    ends = [one["base_offset"] for one in read_batches(stored.data)] + [stored.files.written_end_offset]
    bench = make_bench("c.journal", in_c=True)
    handle = bench.make("t", files=stored.files, high_watermark=0, is_led=False)
    bench.plane.set_replicated(handle)
    bench.plane.arm(handle, 0)
    client = bench.connect()
    for high_watermark in sorted(random.sample(ends[1:], 60)):
        bench.plane.commit(handle, 0, high_watermark)
        for _ in range(4):
            offset = random.choice([one for one in ends if one < high_watermark])
            bytes_max = random.choice([1, 10_000, 1 << 20])
            batches = read_batches(part_of(bench.fetch(client, 12, asks(offset, bytes_max)))["Records"])
            assert batches[0]["base_offset"] == offset
            assert batches[-1]["base_offset"] + len(batches[-1]["records"]) <= high_watermark
    counts = bench.fetch_counts()
    assert counts.taken > 100, counts


def test_segments_of_a_log_that_was_cut_are_opened_anew(make_bench, stored):
    """Behind the cut other batches will lie, and at other places."""
    ends = [one["base_offset"] for one in read_batches(stored.data)]
    bench = make_bench("c.journal", in_c=True)
    handle = bench.make("t", files=stored.files, high_watermark=0, is_led=False)
    bench.plane.set_replicated(handle)
    bench.plane.follow(handle, 1)
    bench.plane.commit(handle, 1, ends[2])
    partition = bench.partitions["t", 0]
    partition.is_replicated, partition.followed_epoch = True, 1
    bench.face.serve_reads(handle, 1)
    client = bench.connect()

    def first():
        return read_batches(part_of(bench.fetch(client, 12, asks(0)))["Records"])[0]["base_offset"]

    assert first() == 0
    handled = bench.handled
    assert first() == 0
    assert bench.handled == handled, "C has a window by now"
    bench.plane.truncate(handle, ends[5], 1)
    assert first() == 0
    assert bench.handled == handled + 1


def test_a_growing_segment_is_followed(bench, stored):
    client, producer = bench.connect(), bench.connect()
    handle = bench.partitions["t", 0].handle
    bench.plane.set_tail_bytes_max(0)
    start = stored.files.written_end_offset
    for number in range(20):
        bench.fill(producer, "t", 0, [1], b"new%d" % number)
        bench.settle()
        trio.run(stored.files.append, [bytes(bench.plane.read(handle, start + number, 1 << 20))])
        bench.plane.write_behind_done(handle, start + number + 1)
        records = part_of(bench.fetch(client, 12, asks(start)))["Records"]
        assert [b["records"][0][3][:3] for b in read_batches(records)] == [b"new"] * (number + 1)
    assert bench.fetch_counts().segment_bytes == 0 or bench.fetch_counts().taken


def test_retention_takes_the_windows_with_it(bench, stored):
    client = bench.connect()
    descriptors = len(open_descriptors())
    read_all(bench, client, 1 << 20, stored.files.written_end_offset)
    windows = bench.fetch_counts().windows
    assert windows == len(stored.files.segments)
    last = stored.files.active.base_offset
    handle = bench.partitions["t", 0].handle
    trio.run(stored.files.advance_log_start, last, 0)
    lib.tpc_partition_set_log_start(bench.plane.pointer, handle, last)
    assert bench.fetch_counts().windows == 1
    assert E(part_of(bench.fetch(client, 12, asks(0)))["ErrorCode"]) is E.OFFSET_OUT_OF_RANGE
    assert part_of(bench.fetch(client, 12, asks(last)))["Records"]
    bench.delete("t")
    assert bench.fetch_counts().windows == 0
    bench.turn()
    assert len(open_descriptors()) <= descriptors + 10, "Python's own cache of open files"


@pytest.mark.parametrize("closes", [False, True])
def test_a_slow_reader_gets_every_byte_and_a_vanished_one_keeps_nothing(bench, stored, closes):
    warm = bench.connect()
    assert read_all(bench, warm, 1 << 20, stored.files.written_end_offset) == stored.data
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(bench.address)
    bench.clients.append(slow)
    bench.turn()
    frames = bench.connections.statistics().frames
    first = stored.files.segments[0].size_bytes
    for number in range(20):
        bench.send_fetch(slow, 12, asks(0, 1 << 20), correlation_id=number)
    for _ in range(50):
        bench.turn(1)
    assert bench.connections.statistics().answer_bytes_unsent > first
    if closes:
        slow.close()
        bench.until(lambda: bench.connections.statistics().connections == 1)
    else:
        for number in range(20):
            correlation_id, answer = decode_response("Fetch", 12, bench.read_frame(slow))
            assert (correlation_id, part_of(answer)["Records"]) == (number, stored.data[:first])
    bench.until(lambda: bench.connections.statistics().sends_in_kernel == 0)
    bench.until(lambda: bench.connections.statistics().frames <= frames)


def test_more_requests_than_are_taken_at_once_are_all_answered(bench, stored):
    client = bench.connect()
    read_all(bench, client, 1 << 20, stored.files.written_end_offset)
    for number in range(300):
        bench.send_fetch(client, 12, asks(0, 20_000), correlation_id=number)
    for number in range(300):
        assert decode_response("Fetch", 12, bench.read_frame(client))[0] == number
    assert bench.connections.statistics().pauses > 0


def test_two_partitions_in_one_answer_and_records_in_memory_behind_it(bench, stored):
    bench.make("m")
    client = bench.connect()
    bench.fill(client, "m", 0, [2])
    read_all(bench, client, 1 << 20, stored.files.written_end_offset)
    values = asks(0)
    memory = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 99_999}
    values["Topics"].append({"Topic": "m", "Partitions": [memory]})
    bench.send_fetch(client, 12, values, correlation_id=1)
    bench.send(client, [("m", 0, records_of(1))], correlation_id=2)
    answer = decode_response("Fetch", 12, bench.read_frame(client))[1]
    stretch, memory = (topic["Partitions"][0]["Records"] for topic in answer["Responses"])
    assert stretch == stored.data[: stored.files.segments[0].size_bytes]
    assert len(read_batches(memory)[0]["records"]) == 2
    assert bench.read_frame(client)[:4] == b"\0\0\0\2"


# -- what the disk has done to segments ------------------------------------------------------------------------------


def header_place(stored, number):
    """(path, position, base offset, bytes) of a batch, the first segments' first."""
    for path in sorted(stored.files.folder.path.glob("*.log")):
        data = path.read_bytes()
        position = 0
        for one in read_batches(data):
            size = int.from_bytes(data[position + 8 : position + 12]) + 12
            if number == 0:
                return path, position, one["base_offset"], size
            number -= 1
            position += size
    raise AssertionError


def damage(stored, number, base_offset):
    path, position, *_ = header_place(stored, number)
    with path.open("r+b") as file:
        file.seek(position)
        file.write(base_offset.to_bytes(8, signed=True))


@pytest.mark.parametrize("base_offset", [1 << 40, -1, (1 << 63) - 10])
@pytest.mark.parametrize("fits", [True, False], ids=["read", "behind what is read"])
def test_the_place_of_records_is_never_believed_of_a_damaged_header(bench, stored, base_offset, fits):
    """It has no checksum. Python reads such a batch, or says that it cannot: the core goes on."""
    client = bench.connect()
    read_all(bench, client, 50_000, stored.files.written_end_offset)
    (_, _, first, first_bytes), (_, _, _, second_bytes) = header_place(stored, 5), header_place(stored, 6)
    damage(stored, 6, base_offset)
    bytes_max = first_bytes + second_bytes if fits else first_bytes + second_bytes - 1
    told = []
    bench.core.note_damaged = lambda *what: told.append(what)
    part = part_of(bench.fetch(client, 12, asks(first, bytes_max)))
    assert part["ErrorCode"] == (E.CORRUPT_MESSAGE if told else E.NONE)
    assert told or read_batches(part["Records"])[0]["base_offset"] == first
    last = stored.files.written_end_offset - 1
    assert part_of(bench.fetch(client, 12, asks(last)))["ErrorCode"] == E.NONE
