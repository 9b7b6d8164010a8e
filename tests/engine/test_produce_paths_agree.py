"""The ways of a Produce through a core agree: random requests, valid and not, sent to three cores at once.

In one a request arrives whole and is carried out where it was received; in one it comes in pieces, so that it is put
together first; in one the hot handler is off and Python hands every request to the plane. Bytes answered, connections
closed, offsets, producers, journal and what readers get must be the same.
"""

import random
import struct
from uuid import UUID

import pytest

from tests.support.connection_bench import frame_of, header_of
from tests.support.plane_bench import NOW_MS, settings_with, topic_id_of
from tests.support.plane_values import Left, PartitionFlag, Verdict
from tests.support.record_batches import GZIP, LOG_APPEND_TIME, TRANSACTIONAL, Record, batch, old_message
from tpc_broker.broker.ports import ProduceFallback
from tpc_broker.engine.connections import CloseReason, CloseWhen
from tpc_broker.engine.produces import asked_produce
from tpc_broker.kafka.errors import DecodeError, UnsupportedVersionError
from tpc_broker.kafka.protocol import decode_request

EXCHANGES = 120
TOPIC_IDS_FROM = 13
PROBE = 18
NAMES = ("plain", "relaxed", "stamped", "internal", "validated", "small", "scarce")


def compact(data):
    """Bytes with their unsigned varint length plus one; None is 0."""
    value, out = 0 if data is None else len(data) + 1, bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value]) + (data or b"")


def classic(data, form):
    return struct.pack(form, -1) if data is None else struct.pack(form, len(data)) + data


def produce_request(version, topics, *, acks, timeout_ms, transactional_id, correlation_id):
    """A frame of any version; `topics` is (name, [(partition, records)])."""
    flexible, by_id = version >= 9, version >= 13
    tags = b"\0" if flexible else b""
    string = compact if flexible else lambda data: classic(data, ">h")
    records_of = compact if flexible else lambda data: classic(data, ">i")

    def count(items):
        return bytes([len(items) + 1]) if flexible else struct.pack(">i", len(items))

    body = string(transactional_id) + struct.pack(">hi", acks, timeout_ms) + count(topics)
    for name, parts in topics:
        body += (topic_id_of(name) if by_id else string(name.encode())) + count(parts)
        for partition, records in parts:
            body += struct.pack(">i", partition) + records_of(records) + tags
        body += tags
    header = header_of(api_key=0, api_version=version, correlation_id=correlation_id, client_id="test")
    return header + tags + body + tags


class Requests:
    """Random requests; producers' sequences mostly follow."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.sequences = {}
        self.alone = None

    def records(self, name, partition):
        chance, count = self.random.random(), self.random.randint(1, 4)
        records = [Record(self.random.randbytes(self.random.choice((5, 40, 400))), b"k") for _ in range(count)]
        fields = {"base_timestamp_ms": NOW_MS + self.random.choice((0, -5, 3_600_001 if chance < 0.1 else 1))}
        if self.random.random() < 0.5:
            fields["producer"] = self.producer(name, partition, count)
        if chance < 0.5:
            return batch(records, **fields)
        wrong = self.random.choice(
            [
                {"crc": 1},
                {"records_count": count + 1},
                {"attributes": TRANSACTIONAL, "producer": (1, 0, 0)},
                {"attributes": GZIP},
                {"attributes": LOG_APPEND_TIME},
                {},
            ]
        )
        made = batch(records, **{**fields, **wrong})
        kind = self.random.randrange(8)
        if kind == 0:
            return made[: self.random.randrange(len(made))]
        if kind == 1:
            return made + made
        if kind == 2:
            place = self.random.randrange(len(made))
            return made[:place] + bytes([made[place] ^ 1 << self.random.randrange(8)]) + made[place + 1 :]
        if kind == 3:
            return self.random.choice((b"", None, old_message(b"old", 1), bytes(61)))
        if kind == 4:  # larger than what is copied, and than one receive
            return batch([Record(bytes(self.random.choice((5_000, 30_000))))])
        return made

    def producer(self, name, partition, count):
        producer_id, epoch = self.random.randint(1, 3), self.random.choice((0, 0, 0, 1))
        key = (name, partition, producer_id, epoch)
        following = self.sequences.get(key, 0)
        if self.random.random() < 0.8:
            self.sequences[key] = following + count
        return (producer_id, epoch, max(0, following + self.random.choice((0, 0, 0, 0, -count, 1))))

    def next(self, correlation_id):
        """A frame, and whether it may end its connection."""
        version = self.random.choice((3, 5, 7, 8, 9, 10, 12, 13))
        topics = []
        for name in self.random.sample([*NAMES, *NAMES, "plain", "unknown"], self.random.choice((1, 1, 1, 2, 3))):
            partitions = self.random.sample((0, 0, 0, 1, 1, 2), self.random.choice((1, 1, 2)))
            topics.append((name, [(partition, self.records(name, partition)) for partition in partitions]))
        acks = self.random.choice((-1, -1, -1, -1, 1, 1, 0, 2))
        made = produce_request(
            version, topics, acks=acks,
            timeout_ms=self.random.choice((0, 30_000)),
            transactional_id=b"tx" if self.random.random() < 0.05 else None, correlation_id=correlation_id,
        )  # fmt: skip
        damage = self.random.random()
        if damage < 0.04:
            place = self.random.randrange(8, len(made))
            made = made[:place] + bytes([self.random.randrange(256)]) + made[place + 1 :]
        elif damage < 0.07:
            made = made[: self.random.randrange(8, len(made))]
        return struct.pack(">i", len(made)) + made, acks == 0 or damage < 0.07

    def together(self, first, count):
        """Some that may be sent at once. One that may end its connection goes alone: whether what stands before it is
        still answered, and what stands behind it carried out, depends on how the turns fall.
        """
        if self.alone is not None:
            frame, self.alone = self.alone, None
            return [frame]
        frames = []
        while len(frames) < count and self.alone is None:
            frame, ends = self.next(first + len(frames))
            if not ends:
                frames.append(frame)
            elif frames:
                self.alone = frame
            else:
                return [frame]
        return frames


class Core:
    """One of the three; what Python decides of a request is the same in each."""

    def __init__(self, bench, *, hot, pieces):
        self.bench, self.pieces, self.run = bench, pieces, 1
        flags = {
            "relaxed": PartitionFlag.RELAXED, "stamped": PartitionFlag.LOG_APPEND_TIME,
            "internal": PartitionFlag.INTERNAL, "validated": PartitionFlag.PYTHON_VALIDATES,
        }  # fmt: skip
        self.handles = {}
        for name in NAMES:
            settings = settings_with(*[flags[name]] if name in flags else [], leader_epoch=3)
            if name == "small":
                settings = settings_with(batch_bytes_max=200)
            for partition in range(2):
                admitted = {"bytes_admitted": 1000} if name == "scarce" else {}
                self.handles[name, partition] = bench.lead(name, partition, settings=settings, **admitted)
        self.left = dict.fromkeys(Left, 0)
        bench.on_request = self.take
        bench.on_closed = lambda *event: None
        bench.plane.set_hot(on=hot)
        self.client = bench.connect()

    def take(self, request):
        if request.api_key == PROBE:
            self.bench.connections.answer(request, b"probe")
            return
        plane = self.bench.plane
        if plane.produce(request):
            return
        self.left[plane.fallback_reason] += 1
        self.read_as_python_reads_it(request)
        if plane.fallback_reason in (Left.MALFORMED, Left.VERSION):
            connections = self.bench.connections
            connections.close(request.connection, CloseReason.REQUEST_INVALID, CloseWhen.AFTER_ANSWERED)
            return
        while not self.taken_with_verdicts(request):
            for partition in range(2):
                plane.admit(self.handles["scarce", partition], 1000)

    def read_as_python_reads_it(self, request):
        """What C tells of the request is what Python's codec finds in it."""
        found = asked_produce(self.bench.plane.pointer, request)
        try:
            message = decode_request(request.api_key, request.api_version, request.body)
        except DecodeError:
            assert found is ProduceFallback.MALFORMED
            return
        except UnsupportedVersionError:
            assert found is ProduceFallback.VERSION
            return
        by_id = request.api_version >= TOPIC_IDS_FROM
        assert found.timeout_ms == message.timeout_ms
        assert [(*part[:2], bytes(request.body[part[2] : part[2] + part[3]])) for part in found.parts] == [
            (UUID(bytes=bytes(topic.topic_id)) if by_id else topic.name, part.index, bytes(part.records or b""))
            for topic in message.topic_data
            for part in topic.partition_data
        ]

    def taken_with_verdicts(self, request):
        """With a verdict for each partition, however many the request has."""
        for count in range(1, 9):
            try:
                return self.bench.plane.produce_with(request, [Verdict()] * count)
            except ValueError:
                continue
        return False

    def exchange(self, frames, cut):
        """What comes back for some requests sent together, up to the probe's answer or the end of the connection."""
        sent = b"".join(frames) + frame_of(b"", api_key=PROBE, api_version=0)
        answers = []
        try:
            if self.pieces:
                self.client.sendall(sent[:cut])
                for _ in range(3):
                    self.bench.turn(1)
                sent = sent[cut:]
            self.client.sendall(sent)
            while not answers or answers[-1] != b"probe":
                answers.append(self.bench.read_frame(self.client))
        except (EOFError, ConnectionError):
            answers.append("closed")
            self.client.close()
            self.bench.clients.remove(self.client)
            self.client = self.bench.connect()
        return answers

    def mend(self):
        self.bench.settle()  # what failed in a thread is known then, also where the answer did not wait for it
        self.bench.mend_disk()
        if self.bench.plane.journal_statistics()["error"]:
            self.run += 1
            self.bench.plane.reopen_journal(self.bench.descriptor, self.bench.mode, self.run)
        self.bench.settle()

    def everything(self):
        self.bench.settle()
        plane = self.bench.plane
        producers = {key: sorted(plane.dump_producers(one), key=str) for key, one in self.handles.items()}
        states = {key: plane.state(handle) for key, handle in self.handles.items()}
        tails = {key: bytes(plane.read(handle, 0, 1 << 30)) for key, handle in self.handles.items()}
        numbers = plane.statistics()
        counted = {name: numbers[name] for name in ("appends", "append_bytes", "partition_errors", "duplicates")}
        return producers, states, tails, counted


@pytest.mark.parametrize("seed", range(4))
def test_all_ways_agree(make_bench, seed):
    made, chance = Requests(seed), random.Random(-seed)
    ways = ({"hot": True, "pieces": False}, {"hot": True, "pieces": True}, {"hot": False, "pieces": False})
    cores = [Core(make_bench(region_blocks=4096), **way) for way in ways]
    closed = 0
    for number in range(EXCHANGES):
        broken = chance.random() < 0.1
        if broken:
            for core in cores:
                core.bench.settle()  # a relaxed answer may have come before its commit was written
                core.bench.break_disk()
        # With a broken disk, what is sent together with what fails shares its fate or not, as the turns fall.
        frames = made.together(8 * number, 1 if broken else chance.randint(1, 5))
        cut = chance.randrange(1, sum(map(len, frames)))
        answers = [core.exchange(frames, cut) for core in cores]
        assert answers[0] == answers[1] == answers[2], number
        closed += answers[0][-1] == "closed"
        if broken:
            for core in cores:
                core.mend()
    found = [core.everything() for core in cores]
    assert found[0] == found[1] == found[2]
    journals = [list(core.bench.journal_records()) for core in cores]
    assert journals[0] == journals[1] == journals[2]
    _, states, _, counted = found[0]
    assert sum(state.log_end_offset for state in states.values()) > 50, "some were good"
    assert counted["partition_errors"] > 50, "and some were not"
    assert closed > 5
    hot = [core.bench.connections.statistics().requests_hot for core in cores]
    assert hot[0] > EXCHANGES / 2, "in place"
    assert hot[1] > EXCHANGES / 2, "put together first"
    assert hot[2] == 0
    for core in cores:
        numbers, left = core.bench.plane.statistics(), sum(core.left.values())
        # What is malformed is left for good, and nothing of it is kept: it is not among the taken.
        for_good = core.left[Left.MALFORMED] + core.left[Left.VERSION]
        assert numbers["produces_decoded"] <= numbers["produces_taken"] + left + 2 * for_good
    assert min(cores[2].left[why] for why in (Left.UNKNOWN, Left.PYTHON_VALIDATES, Left.NOT_ADMITTED)) > 0
