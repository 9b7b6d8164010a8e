"""Random logs with transactions, read by fetches of committed records: in C, and in Python, with the same memory and
segments.

A model knows what each transaction became. Each answer has no record above the last stable offset, tells exactly the
aborted transactions that reach into its records, and a consumer that goes by them sees exactly the committed ones.
Memory is written behind and evicted, segments roll, the log is opened again, its appends are lost, a follower's end is
cut, its start moves.

`--seed` replays a failure.
"""

import uuid
from dataclasses import dataclass
from random import Random

import pytest
import trio

from tests.support.definitions import decode_response
from tests.support.fetch_bench import FetchBench
from tests.support.plain_disk import PlainDisk
from tests.support.plane_bench import NOW_MS, settings_with, topic_id_of
from tests.support.record_batches import TRANSACTIONAL, Record, batch
from tpc_broker._ring import lib
from tpc_broker.broker.handlers.fetch import handle_fetch
from tpc_broker.broker.partition import Partition
from tpc_broker.client.isolation import AbortedTransactions
from tpc_broker.kafka.records import ControlType, control_batch, read_batches
from tpc_broker.log.segment import LogSettings
from tpc_broker.log.state import encode_producers
from tpc_broker.metadata.topic_config import TopicConfig
from tpc_broker.model import TopicPartition
from tpc_broker.storage.segments.files import FileCache
from tpc_broker.storage.segments.folders import create_partition

STEPS = 110
PRODUCERS = 5
ROLES = ("alone", "leader", "follower")
SETTINGS = LogSettings(segment_bytes=9_000, index_interval_bytes=400, retention_ms=-1)
TAIL_BYTES = 12_000
"""Of what is written behind memory keeps so much: the rest is read from segments."""


@dataclass
class Stored:
    """A batch of the model."""

    base_offset: int
    next_offset: int
    producer_id: int
    is_transactional: bool
    ends: bool | None
    """None: no marker; whether it commits."""
    values: tuple[bytes, ...]

    @property
    def last_offset(self):
        return self.next_offset - 1

    @property
    def is_control(self):
        return self.ends is not None


class ReadBench(FetchBench):
    """Python's handler may wait, for its locks."""

    def _handle(self, request, message):
        return trio.run(handle_fetch, self.core, request, message)


class World:
    def __init__(self, path, seed, role):
        self.random, self.role, self.runs = Random(seed), role, 1
        self.bench = ReadBench(path / "journal", in_c=True, region_blocks=16_384)
        self.plane = self.bench.plane
        lib.tpc_plane_set_tail_bytes_max(self.plane.pointer, TAIL_BYTES)
        folder = path / "topics"
        folder.mkdir()
        key = TopicPartition(uuid.UUID(bytes=topic_id_of("t")), 0)
        self.files = trio.run(create_partition, FileCache(PlainDisk(waits=False)), folder, "t", key, SETTINGS)
        self.files.notes = {1: b""} if role != "alone" else {}
        self.batches: list[Stored] = []
        self.term = self.start = self.end = self.durable = self.seen = self.written = 0
        self.epochs = [0] * PRODUCERS
        self.is_stale = False
        self.client = self.bench.connect()
        self.place, self.found, self.counts = 0, [], dict.fromkeys(("c", "python", "told"), 0)
        self.register()

    @property
    def is_replicated(self):
        return self.role != "alone"

    def register(self):
        self.handle = self.plane.register(
            "t", topic_id_of("t"), 0, log_start_offset=self.start, log_end_offset=self.end, high_watermark=self.seen,
            settings=settings_with(leader_epoch=self.term), is_led=False,
        )  # fmt: skip
        state = self.files.log_state
        self.plane.load_producers(self.handle, encode_producers(state.producers, state.ended))
        self.bench.partitions["t", 0] = Partition(
            topic_id_of("t"), "t", 0, TopicConfig(), plane=self.bench.face, storage=None, files=self.files,
            handle=self.handle, is_internal=False, is_replicated=self.is_replicated,
        )  # fmt: skip
        if self.is_replicated:
            self.plane.set_replicated(self.handle)
        self.begin_term()

    def begin_term(self):
        self.term = self.plane.state(self.handle).leader_epoch + 1
        partition = self.bench.partitions["t", 0]
        if self.role == "follower":
            self.plane.follow(self.handle, self.term)
            self.bench.face.serve_reads(self.handle, self.term)
            partition.followed_epoch = self.term
        else:
            self.plane.arm(self.handle, self.term)
            partition.led_epoch = self.term

    # -- the model -----------------------------------------------------------------------------------------------------

    def transactions(self):
        """(producer, first offset, marker's offset or None, whether it commits), by the log."""
        found, is_open = [], {}
        for one in self.batches:
            if one.is_control:
                first = is_open.pop(one.producer_id, None)
                if first is not None:
                    found.append((one.producer_id, first, one.base_offset, one.ends))
            elif one.is_transactional:
                is_open.setdefault(one.producer_id, one.base_offset)
        return found + [(producer_id, first, None, None) for producer_id, first in is_open.items()]

    def last_stable(self):
        held = [first for _id, first, last, _commits in self.transactions() if last is None or last >= self.seen]
        return max(min([self.seen, *held]), self.start)

    def aborted(self):
        return [(one[0], one[1], one[2]) for one in self.transactions() if one[3] is False]

    def committed_values(self, begin, end):
        aborted = self.aborted()
        return [
            value
            for one in self.batches
            if not one.is_control and begin <= one.last_offset and one.next_offset <= end
            and not (one.is_transactional and any(
                one.producer_id == producer_id and first <= one.base_offset < last
                for producer_id, first, last in aborted
            ))
            for value in one.values
        ]  # fmt: skip

    # -- appends -------------------------------------------------------------------------------------------------------

    def keep(self, producer_id, *, is_transactional, ends, values):
        count = max(1, len(values))
        self.batches.append(Stored(self.end, self.end + count, producer_id, is_transactional, ends, values))
        self.end += count

    def is_open(self, producer_id):
        return any(one[0] == producer_id and one[2] is None for one in self.transactions())

    def append(self):
        random, producer_id = self.random, self.random.randrange(-1, PRODUCERS)
        size = random.choice([5, 60, 700])
        values = tuple(random.randbytes(8) + bytes(size) for _ in range(random.choice([1, 1, 3])))
        producer = (-1, -1, -1) if producer_id < 0 else (producer_id, self.epochs[producer_id], 0)
        is_transactional = producer_id >= 0 and (self.is_open(producer_id) or random.random() < 0.8)
        self.send(batch(
            [Record(value) for value in values], base_offset=self.end, leader_epoch=self.term, producer=producer,
            attributes=TRANSACTIONAL if is_transactional else 0, base_timestamp_ms=NOW_MS,
        ))  # fmt: skip
        self.keep(producer_id, is_transactional=is_transactional, ends=None, values=values)

    def send(self, data):
        if self.role == "follower":
            self.plane.append_replica(self.handle, self.term, data)
        else:
            self.plane.append(self.handle, data)

    def end_one(self):
        producer_id = self.random.randrange(PRODUCERS)
        commits = self.random.random() < 0.5
        if self.role != "follower" and not self.is_open(producer_id):
            return
        self.epochs[producer_id] += 1
        epoch = self.epochs[producer_id]
        if self.role == "follower":
            self.send(control_batch(
                ControlType.COMMIT if commits else ControlType.ABORT, producer_id=producer_id, producer_epoch=epoch,
                coordinator_epoch=0, timestamp_ms=NOW_MS, base_offset=self.end, partition_leader_epoch=self.term,
            ))  # fmt: skip
        else:
            appended = self.plane.append_marker(self.handle, (producer_id, epoch), 0, commits=commits)
            assert appended.error_code == 0
        self.keep(producer_id, is_transactional=True, ends=commits, values=())

    def append_some(self):
        for _ in range(self.random.choice([1, 2, 6])):
            self.random.choice([self.append, self.append, self.end_one])()

    # -- what becomes of them ------------------------------------------------------------------------------------------

    def settle(self):
        self.bench.settle()
        self.durable = self.end
        if not self.is_replicated:
            self.seen = self.end

    def commit(self):
        ends = [one.next_offset for one in self.batches if self.seen < one.next_offset <= self.durable]
        if self.is_replicated and ends:
            self.seen = self.random.choice(ends)
            self.plane.commit(self.handle, self.term, self.seen)

    def write_behind(self, bytes_max=None):
        taken = self.plane.write_behind_take(self.handle, bytes_max or self.random.choice([1, 500, 5_000]))
        if taken:
            trio.run(self.files.append, [bytes(one.data) for one in taken])
            self.written = taken[-1].next_offset
            self.plane.write_behind_done(self.handle, self.written)

    def roll(self):
        if self.files.active.size_bytes:
            trio.run(self.files.roll)

    def open_again(self):
        """As after a restart: all of it is in segments, whose indexes nobody has looked at."""
        self.settle()
        if self.is_stale:
            return
        while self.written < self.end:
            self.write_behind(1 << 20)
        self.bench.plane.withdraw(self.handle)
        for segment in self.files.segments[:-1]:
            segment.indexes = None
        self.register()

    def cut_to(self, offset):
        self.batches = [one for one in self.batches if one.base_offset < offset]
        self.end = self.durable = offset

    def cut(self):
        """As a follower whose leader has another log; producers are found out anew, perhaps later."""
        self.settle()
        if self.role != "follower" or self.is_stale:
            return
        ends = [one.next_offset for one in self.batches if one.next_offset >= self.seen]
        if not ends:
            return
        offset = self.random.choice(ends)
        self.plane.truncate(self.handle, offset, self.term)
        self.bench.settle()
        trio.run(self.files.truncate, offset)
        self.written = min(self.written, offset)
        self.cut_to(offset)
        self.is_stale = True
        self.begin_term()

    def find_out(self):
        if self.is_stale and self.durable == self.end:
            state = self.files.log_state
            self.plane.reset_producers(self.handle, encode_producers(state.producers, state.ended))
            self.is_stale = False

    def lose(self):
        """What is on its way to the journal."""
        self.settle()
        self.bench.break_disk()
        failures = len(self.bench.failures)
        self.append()
        self.append_some()
        self.bench.until(lambda: len(self.bench.failures) > failures)
        self.cut_to(self.durable)
        self.bench.mend_disk()
        self.runs += 1
        self.plane.reopen_journal(self.bench.descriptor, self.bench.mode, self.runs)
        self.bench.settle()
        if self.is_replicated:
            self.begin_term()
        else:
            self.term = self.plane.state(self.handle).leader_epoch

    def move_start(self):
        self.start = self.random.randrange(self.start, min(self.seen, self.start + 20) + 1)
        self.plane.set_log_start(self.handle, self.start)

    # -- reading -------------------------------------------------------------------------------------------------------

    def ask(self, offset, bytes_max, isolation, *, in_c):
        self.plane.set_hot(on=in_c)
        before = self.bench.handled
        part = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": bytes_max, "CurrentLeaderEpoch": -1}
        self.bench.send_fetch(self.client, 12, {
            "MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 24, "IsolationLevel": isolation, "SessionId": 0,
            "SessionEpoch": -1, "Topics": [{"Topic": "t", "Partitions": [part]}],
        })  # fmt: skip
        frame = self.bench.read_frame(self.client)
        self.counts["python" if self.bench.handled > before else "c"] += in_c
        ((part,),) = ([*topic["Partitions"]] for topic in decode_response("Fetch", 12, frame)[1]["Responses"])
        return part

    def read(self, offset, bytes_max, isolation=1, *, in_c=True):
        """Checked against the model: the committed values, and where to go on."""
        part = self.ask(offset, bytes_max, isolation, in_c=in_c)
        assert part["ErrorCode"] == 0, (offset, part)
        told = part["AbortedTransactions"]
        stable = part["LastStableOffset"]
        if not self.is_stale:
            assert stable == self.last_stable()
        assert stable <= self.last_stable()
        upto = stable if isolation == 1 else self.seen
        batches = list(read_batches(part["Records"])) if part["Records"] else []
        end = batches[-1].last_offset + 1 if batches else offset
        assert end <= max(upto, offset)
        expected = [one for one in self.batches if one.last_offset >= offset and one.next_offset <= upto]
        assert [(one.base_offset, one.last_offset) for one in batches] == [
            (one.base_offset, one.last_offset) for one in expected[: len(batches)]
        ]
        assert batches or not expected or bytes_max == 0 or part["Records"] is None or offset >= upto
        if isolation != 1:
            assert told is None
            return [], end
        reaching = [one[:2] for one in self.aborted() if one[2] >= offset and one[1] < end] if batches else []
        assert sorted((one["ProducerId"], one["FirstOffset"]) for one in told) == sorted(reaching), (offset, end)
        self.counts["told"] += bool(told)
        walk = AbortedTransactions((one["ProducerId"], one["FirstOffset"]) for one in told)
        values = []
        for one in batches:
            is_abort = one.is_control and next(iter(one.records())).key == b"\0\0\0\0"
            if walk.admits(one, is_abort=is_abort):
                values += [record.value for record in one.records()]
        assert values == self.committed_values(offset, end), (offset, end)
        return values, end

    def look(self):
        """The same by both, and by a consumer that goes on from where it was."""
        random = self.random
        self.settle()
        for _ in range(2):
            offset = random.choice([self.start, self.seen, random.randrange(self.start, self.end + 1)])
            bytes_max, isolation = random.choice([0, 1, 300, 3_000, 1 << 20]), random.choice([0, 1, 1, 1])
            both = [self.read(offset, bytes_max, isolation, in_c=in_c) for in_c in (True, False)]
            assert both[0] == both[1]
        self.place = max(self.place, self.start)
        self.place = max(self.place, self.read(self.place, 2_000)[1])

    def step(self):
        roll = self.random.random()
        if roll < 0.02:
            self.lose()
        elif roll < 0.2:
            self.settle()
        elif roll < 0.5:
            self.append_some()
        elif roll < 0.6:
            self.commit()
        elif roll < 0.72:
            self.write_behind()
        else:
            self.random.choice([self.roll, self.cut, self.find_out, self.find_out, self.open_again, self.move_start,
                                self.look, self.look, self.look])()  # fmt: skip
        self.look()


@pytest.mark.parametrize("role", ROLES)
def test_who_reads_committed_records_sees_those_and_no_others(tmp_path, seed, role):
    world = World(tmp_path, seed, role)
    try:
        for _step in range(STEPS):
            world.step()
        assert world.counts["c"] > STEPS / 2, world.counts
        assert world.counts["told"] > STEPS / 10, world.counts
    finally:
        world.bench.shut()
        trio.run(world.files.folder.close)
