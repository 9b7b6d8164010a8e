"""A core with journal, partitions and clients, turned by hand: what the tests of the plane share."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct

from tests.support.connection_bench import Bench, frame_of
from tests.support.journal_file import APPEND, BLOCK_BYTES, read_chain
from tests.support.plane_face import (
    Plane,
)
from tests.support.plane_values import (
    JournalMode,
    JournalStart,
    PartitionFlag,
    PartitionSettings,
    PlaneLimits,
)
from tests.support.record_batches import Record, batch, read_batches
from tpc_broker._ring import lib
from tpc_broker.engine.connections import ConnectionLimits

JOURNAL_ID = bytes(range(16))
NOW_MS = 1_700_000_000_000


def topic_id_of(topic):
    return topic.encode().ljust(16, b"!")


def settings_with(*flags, **values):
    combined = PartitionFlag(0)
    for flag in flags:
        combined |= flag
    return PartitionSettings(flags=combined, **values)


def records_of(count, *, value=b"value", **header):
    return batch([Record(value + b"%d" % index) for index in range(count)], **header)


def _string(text):
    return struct.pack(">h", -1) if text is None else struct.pack(">h", len(text)) + text.encode()


def produce_body(parts, *, acks=-1, timeout_ms=30_000, transactional_id=None):
    """A Produce request of version 7; `parts` is (topic, partition, records) each."""
    body = _string(transactional_id) + struct.pack(">hii", acks, timeout_ms, len(parts))
    for topic, partition, records in parts:
        body += _string(topic) + struct.pack(">iii", 1, partition, len(records)) + records
    return body


def read_produce_answer(data):
    """Version 7: correlation id and (topic, partition, error, base offset, append time, log start) each."""
    (correlation_id, topics), position = struct.unpack_from(">ii", data), 8
    answers = []
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", data, position)
        topic = data[position + 2 : position + 2 + length].decode()
        (count,) = struct.unpack_from(">i", data, position + 2 + length)
        position += 6 + length
        for _ in range(count):
            answers.append((topic, *struct.unpack_from(">ihqqq", data, position)))
            position += 30
    assert position + 4 == len(data)
    return correlation_id, answers


class PlaneBench(Bench):
    """A `Bench` whose Produce requests go to the plane; those it leaves stand in `left`."""

    def __init__(self, path, *, region_blocks=256, mode=JournalMode.DIRECT_DSYNC, limits=None, **journal):
        super().__init__(ConnectionLimits())
        self.path, self.region_blocks = path, region_blocks
        if not path.exists():
            path.write_bytes(bytes((2 + region_blocks) * BLOCK_BYTES))
        self.direct = os.O_DIRECT if mode is JournalMode.DIRECT_DSYNC else 0
        self.descriptor = os.open(path, os.O_RDWR | self.direct)
        self.mode = mode
        start = JournalStart(self.descriptor, mode, JOURNAL_ID, 1, region_blocks, **journal)
        self.plane = Plane(self.ring, self.connections, start, limits or PlaneLimits())
        lib.tpc_plane_set_clock(self.plane.pointer, NOW_MS)
        lib.tpc_plane_set_monotonic(self.plane.pointer, NOW_MS)
        self.failures, self.spaces, self.advanced = [], [], []
        self.plane.on_journal_failed = lambda *event: self.failures.append(event)
        self.plane.on_journal_space = lambda *event: self.spaces.append(event)
        self.plane.on_advanced = lambda *event: self.advanced.append(event)
        self.left = []
        self.on_request = self.offer

    def offer(self, request):
        if not self.plane.produce(request):
            self.left.append((self.plane.fallback_reason, request))

    def lead(self, topic, partition=0, settings=None, **values):
        return self.plane.register(topic, topic_id_of(topic), partition, settings=settings, **values)

    def send(self, client, parts, correlation_id=1, **fields):
        body = produce_body(parts, **fields)
        client.sendall(frame_of(body, api_key=0, api_version=7, correlation_id=correlation_id))

    def answer(self, client):
        """(error, base offset) of each partition in the next answer."""
        return [answer[2:4] for answer in read_produce_answer(self.read_frame(client))[1]]

    def produce(self, client, *parts, **fields):
        self.send(client, parts, **fields)
        return self.answer(client)

    def settle(self):
        self.until(lambda: self.plane.idle)

    def readable(self, handle, offset=0):
        """Base offsets and record values of what a consumer would get from memory."""
        slices = self.plane.read(handle, offset, 1 << 30)
        if slices is None:
            return None
        return [(b["base_offset"], [r[3] for r in b["records"]]) for b in read_batches(bytes(slices))]

    def journal_entries(self):
        chain = read_chain(self.path.read_bytes(), 2, 1, 0, self.region_blocks)
        return [entry for commit in chain for entry in commit.entries]

    def journal_records(self):
        """The same, a batch each: how many of them share an entry depends on how the turns fall."""
        for entry in self.journal_entries():
            batches = read_batches(entry.payload) if entry.kind == APPEND else ()
            for one in batches:
                yield (entry.kind, entry.topic_id, entry.partition, one["base_offset"], one)
            if not batches:
                yield entry

    def break_disk(self):
        """Every journal write from now on fails with EBADF: the descriptor is one for reading."""
        reading = os.open(self.path, os.O_RDONLY | self.direct)
        os.dup2(reading, self.descriptor)
        os.close(reading)

    def mend_disk(self):
        writing = os.open(self.path, os.O_RDWR | self.direct)
        os.dup2(writing, self.descriptor)
        os.close(writing)

    def shut(self):
        self.settle()
        self.plane.free()
        self.close()
        os.close(self.descriptor)


class StalledBench(PlaneBench):
    """A core whose journal is a full pipe: a write neither fails nor ends before :meth:`let_go`."""

    def __init__(self, path):
        super().__init__(path, mode=JournalMode.BUFFERED_DSYNC)
        self.reading, writing = os.pipe2(os.O_CLOEXEC)
        size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        os.write(writing, bytes(size))
        os.dup2(writing, self.descriptor)
        os.close(writing)

    def let_go(self):
        """The write that waits, and those that follow it."""
        os.set_blocking(self.reading, False)

        def is_settled():
            with contextlib.suppress(BlockingIOError):
                os.read(self.reading, 1 << 20)
            return self.plane.idle

        self.until(is_settled)

    def shut(self):
        super().shut()
        os.close(self.reading)
