"""Datagrams in C: batches, acknowledgements, what is refused and counted, forwarding. Also with 5.8 only."""

import select
import socket
import struct
import uuid

import pytest
import trio
import trio.testing

from tests.support.plane_bench import NOW_MS, topic_id_of
from tests.support.plane_values import PartitionFlag
from tests.support.record_batches import crc32c, read_batches
from tests.support.waiting import in_one_go, patiently
from tpc_broker import limits
from tpc_broker._ring import lib
from tpc_broker.engine import datagrams as lib_module
from tpc_broker.engine import trio_ring
from tpc_broker.engine.datagrams import CoreDatagrams
from tpc_broker.error_codes import ErrorCode as E
from tpc_broker.model import NOT_HERE

ACKNOWLEDGE, HAS_KEY, HAS_TIMESTAMP, ANSWER = 1, 2, 4, 128
HEADER = struct.Struct(">BBHIII")
ROOM_S = 0.5
"""For so long a batch waits for room (ROOM_WAIT_NS)."""
MANY = 200


def datagram(topic, partition, value=b"", *, request_id=0, key=None, timestamp=None, flags=ACKNOWLEDGE, version=1):
    flags |= (key is not None) * HAS_KEY | (timestamp is not None) * HAS_TIMESTAMP
    head = HEADER.pack(version, flags, len(key or b""), crc32c(topic.encode()), partition, request_id)
    return head + (b"" if timestamp is None else struct.pack(">q", timestamp)) + (key or b"") + value


class Port:
    """A core's end of the datagram port, and a client of it."""

    def __init__(self, bench, core=0, *, receive_bytes=None):
        self.bench = bench
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.bind(("127.0.0.1", 0))
        self.datagrams = CoreDatagrams(bench.plane.pointer, self.socket.fileno(), core)
        self.datagrams.start()
        self.client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.client.bind(("127.0.0.1", 0))
        self.client.connect(self.socket.getsockname())
        self.client.setblocking(False)
        free, bench.plane.free = bench.plane.free, lambda: (self.end(), free())

    def route(self, topic, owners=(0,)):
        self.datagrams.set_owners(topic, uuid.UUID(bytes=topic_id_of(topic)), owners)

    def send(self, *arguments, **fields):
        self.client.send(datagram(*arguments, **fields))

    def answer(self):
        """(error code, partition, request id)."""
        found = []

        def is_there():
            try:
                found.append(self.client.recv(100))
            except BlockingIOError:
                return False
            return True

        self.bench.until(is_there)
        assert len(found[0]) == HEADER.size
        version, flags, code, _topic, partition, request_id = HEADER.unpack(found[0])
        assert (version, flags) == (1, ANSWER)
        return code, partition, request_id

    def hears_nothing(self):
        for _ in range(5):
            self.bench.turn()
        return not select.select([self.client], [], [], 0)[0]

    def is_silent(self):
        assert self.hears_nothing()

    def counts(self):
        return self.datagrams.statistics()

    def until_counted(self, **counts):
        self.bench.until(lambda: all(self.counts()[name] == count for name, count in counts.items()))

    def end(self):
        self.datagrams.stop()
        self.bench.until(lambda: self.datagrams.quiet)
        self.datagrams.free()
        self.socket.close()
        self.client.close()


@pytest.fixture
def port(bench):
    return Port(bench)


def records_in(bench, handle):
    """(key, value, time stamp) of each record in memory."""
    slices = bench.plane.read(handle, 0, 1 << 30)
    return [
        (key, value, one["base_timestamp"] + delta)
        for one in read_batches(bytes(slices))
        for _offset, delta, key, value, *_ in one["records"]
    ]


def test_a_record_is_appended_and_acknowledged_when_it_is_durable(bench, port):
    handle = bench.lead("t", 3)
    port.route("t", (9, 9, 9, 0))
    port.send("t", 3, b"value", request_id=77)
    assert port.answer() == (E.NONE, 3, 77)
    assert bench.plane.state(handle).high_watermark == 1
    assert records_in(bench, handle) == [(None, b"value", NOW_MS)]
    assert port.counts()["acknowledged"] == port.counts()["appended"] == 1


def test_an_acknowledgement_leaves_when_nothing_else_happens(bench, port):
    bench.lead("t")
    port.route("t")
    bench.settle()
    for number in range(3):
        port.send("t", 0, b"value", request_id=number)
        assert bench.is_sent_without_a_deadline(port.client)
        assert port.answer() == (E.NONE, 0, number)


def test_keys_time_stamps_and_empty_values(bench, port):
    handle = bench.lead("t")
    port.route("t")
    sent = [(b"k", b"v", NOW_MS), (b"", b"", NOW_MS - 5), (None, b"x" * 300, NOW_MS + 900), (b"long" * 99, b"", 0)]
    for number, (key, value, timestamp) in enumerate(sent):
        port.send("t", 0, value, key=key, timestamp=timestamp, request_id=number)
    assert sorted(port.answer()[2] for _ in sent) == [0, 1, 2, 3]
    assert records_in(bench, handle) == sent


def test_those_of_one_turn_are_one_batch_a_partition(bench, port):
    handles = [bench.lead("t", index) for index in range(3)]
    port.route("t", (0, 0, 0))
    for number in range(60):
        port.send("t", number % 3, b"%d" % number, request_id=number)
    answers = sorted(port.answer()[1:] for _ in range(60))
    assert answers == sorted((number % 3, number) for number in range(60))
    for index, handle in enumerate(handles):
        assert [value for _, value, _ in records_in(bench, handle)] == [b"%d" % n for n in range(index, 60, 3)]
    assert port.counts()["batches"] <= 9, "a turn or few"


def test_more_than_a_batch_holds(bench, port):
    handle = bench.lead("t")
    port.route("t")
    for number in range(12):
        port.send("t", 0, b"x" * 10_000, request_id=number)
    assert sorted(port.answer() for _ in range(12)) == [(E.NONE, 0, number) for number in range(12)]
    assert len(records_in(bench, handle)) == 12
    assert port.counts()["batches"] > 1


def test_who_asks_for_nothing_is_told_nothing(bench, port):
    handle = bench.lead("t")
    port.route("t")
    port.send("t", 0, b"v", flags=0)
    port.send("absent", 0, b"v", flags=0)
    port.until_counted(appended=1, unknown=1)
    bench.until(lambda: bench.plane.state(handle).high_watermark == 1)
    port.is_silent()


def test_nobody_is_told_anything_when_answers_are_off(bench, port):
    port.datagrams.set_answers(on=False)
    bench.lead("t")
    port.route("t")
    port.send("t", 0, b"v")
    port.send("absent", 0, b"v")
    port.until_counted(appended=1, unknown=1, acknowledged=0, refused=0)
    port.is_silent()


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("short", b"\1\1\0\0"),
        ("another version", datagram("t", 0, b"v", version=2)),
        ("an answer", datagram("t", 0, flags=ANSWER)),
        ("nothing", b""),
    ],
)
def test_what_has_no_header_is_counted_only(bench, port, name, sent):
    bench.lead("t")
    port.route("t")
    port.client.send(sent)
    port.until_counted(malformed=1)
    port.is_silent()


def refused(port, data, *counted):
    before = port.counts()
    port.client.send(data)
    code, _partition, request_id = port.answer()
    assert request_id == 5
    after = port.counts()
    assert [name for name in counted if after[name] != before[name] + 1] == []
    assert after["refused"] == before["refused"] + 1
    return code


def test_what_is_refused_is_answered_with_its_reason_and_spoils_no_other(bench, port):
    bench.lead("t")
    port.route("t", (0, 0))
    ask = {"request_id": 5}
    assert refused(port, datagram("t", 0, flags=ACKNOWLEDGE | 64, **ask), "malformed") == E.INVALID_REQUEST
    assert refused(port, datagram("t", 0, key=b"long", **ask)[:-1], "malformed") == E.INVALID_REQUEST
    assert refused(port, datagram("absent", 0, **ask), "unknown") == E.UNKNOWN_TOPIC_OR_PARTITION
    assert refused(port, datagram("t", 2, **ask), "unknown") == E.UNKNOWN_TOPIC_OR_PARTITION
    assert refused(port, datagram("t", 1, **ask), "unowned") == E.NOT_LEADER_OR_FOLLOWER
    large = datagram("t", 0, bytes(lib.TPC_DATAGRAM_BYTES_MAX - HEADER.size + 1), **ask)
    assert refused(port, large, "oversized") == E.MESSAGE_TOO_LARGE
    assert port.counts()["appended"] == 0
    port.client.send(large[:-1])
    assert port.answer() == (E.NONE, 0, 5)


def test_two_topics_with_one_hash_take_none(bench, port):
    bench.lead("t")
    port.route("t")
    other = uuid.UUID(int=5)
    port.datagrams.set_owners("t", other, (0,))
    port.send("t", 0)
    assert port.answer()[0] == E.UNKNOWN_TOPIC_OR_PARTITION
    port.datagrams.set_owners("t", other, ())
    port.send("t", 0)
    assert port.answer()[0] == E.NONE


def test_topics_that_do_not_take_a_record(make_bench):
    bench = make_bench()
    port = Port(bench)
    for name, flag in (
        ("internal", PartitionFlag.INTERNAL), ("compacted", PartitionFlag.COMPACTED),
        ("python", PartitionFlag.PYTHON_VALIDATES),
    ):  # fmt: skip
        bench.lead(name, settings=bench_settings(flag))
        port.route(name)
    bench.lead("strict", settings=bench_settings(timestamp_before_ms_max=1000, timestamp_after_ms_max=1000))
    port.route("strict")
    bench.lead("small", settings=bench_settings(batch_bytes_max=200))
    port.route("small")
    ask = {"request_id": 5}
    assert refused(port, datagram("internal", 0, **ask), "invalid") == E.INVALID_TOPIC_EXCEPTION
    assert refused(port, datagram("compacted", 0, **ask), "invalid") == E.INVALID_RECORD
    assert refused(port, datagram("python", 0, **ask), "invalid") == E.INVALID_CONFIG
    for stamp in (NOW_MS - 1001, NOW_MS + 1001):
        assert refused(port, datagram("strict", 0, timestamp=stamp, **ask), "invalid") == E.INVALID_TIMESTAMP
    assert refused(port, datagram("small", 0, bytes(200), **ask), "oversized") == E.MESSAGE_TOO_LARGE
    for data in (
        datagram("compacted", 0, key=b"k", **ask), datagram("strict", 0, timestamp=NOW_MS - 1000, **ask),
        datagram("strict", 0, timestamp=NOW_MS + 1000, **ask), datagram("small", 0, bytes(100), **ask),
    ):  # fmt: skip
        port.client.send(data)
        assert port.answer() == (E.NONE, 0, 5)


def bench_settings(*flags, **values):
    from tests.support.plane_bench import settings_with  # noqa: PLC0415

    return settings_with(*flags, **values)


def test_without_room_in_the_segment_a_batch_waits_for_it(bench, port):
    port.route("t", (0,) * MANY)
    partitions = iter(range(MANY))

    def wait_and_go():
        """In a partition of its own: whether it waited, the answers, the number of batches."""
        index, before = next(partitions), port.counts()
        handle = bench.lead("t", index, bytes_admitted=0)
        port.send("t", index, b"first", request_id=1)
        port.until_counted(received=before["received"] + 1)
        waited = port.hears_nothing()
        port.send("t", index, b"second", request_id=2)
        port.until_counted(received=before["received"] + 2)
        bench.plane.admit(handle, 10_000)
        told = [(code, number) for code, _index, number in sorted(port.answer() for _ in range(2))]
        return waited, told, port.counts()["batches"] - before["batches"]

    assert in_one_go(wait_and_go, ROOM_S, "two wait") == (True, [(E.NONE, 1), (E.NONE, 2)], 1)


def test_and_not_for_ever(bench, port):
    bench.lead("t", bytes_admitted=0)
    port.route("t")
    port.send("t", 0, b"first", request_id=1)
    assert port.answer() == (E.KAFKA_STORAGE_ERROR, 0, 1)
    assert port.counts()["without_room"] == 1


def test_a_failing_journal_is_no_acknowledgement(bench, port):
    handle = bench.lead("t")
    port.route("t")
    bench.break_disk()
    port.send("t", 0, b"lost", request_id=1)
    assert port.answer() == (E.KAFKA_STORAGE_ERROR, 0, 1)
    assert bench.plane.state(handle).log_end_offset == 0
    assert port.counts()["failed"] == 1


def test_a_partition_that_is_withdrawn_answers_who_waits(stalled):
    port = Port(stalled)
    handle = stalled.lead("t")
    port.route("t")
    port.send("t", 0, b"v", request_id=1)
    port.until_counted(waiting=1)
    stalled.plane.withdraw(handle)
    assert port.answer() == (E.NOT_LEADER_OR_FOLLOWER, 0, 1)
    assert port.counts()["waiting"] == 0


def test_a_burst_is_taken_in_bounded_turns(bench):
    port = Port(bench, receive_bytes=8 << 20)
    handle = bench.lead("t")
    port.route("t")
    for number in range(1009):
        port.send("t", 0, b"%d" % number, request_id=number, flags=0)
    served = []
    for _ in patiently("all are received or dropped"):
        if sum(port.counts()[name] for name in ("received", "kernel_drops")) >= 1009:
            break
        before = port.counts()["received"]
        bench.ring.serve()  # one turn: what is queued is submitted, and what has come is handled
        served.append(port.counts()["received"] - before)
    assert max(served) <= lib.TPC_DATAGRAMS_A_TURN
    bench.until(lambda: bench.plane.state(handle).high_watermark == port.counts()["received"])


def test_what_comes_while_the_journal_writes_joins_one_batch(stalled):
    port = Port(stalled)
    handles = [stalled.lead("t", index) for index in range(2)]
    port.route("t", (0, 0))
    port.send("t", 0, b"first", request_id=99)
    port.until_counted(waiting=1)
    for number in range(20):
        port.send("t", number % 2, b"%d" % number, request_id=number)
        port.until_counted(received=number + 2)
    assert port.counts()["batches"] == 1
    stalled.let_go()
    assert sorted(port.answer() for _ in range(21)) == sorted(
        [(E.NONE, 0, 99), *((E.NONE, number % 2, number) for number in range(20))]
    )
    assert port.counts()["batches"] == 3
    assert [value for _, value, _ in records_in(stalled, handles[1])] == [b"%d" % n for n in range(1, 20, 2)]


@pytest.mark.parametrize(("edge", "clock_moves"), [(-1000, 1), (1000, -1)], ids=["oldest", "newest"])
def test_one_at_the_edge_of_the_time_limits_is_judged_when_it_comes_only(stalled, edge, clock_moves):
    """Its batch is appended later, by another clock: it must not spoil that."""
    port = Port(stalled)
    handle = stalled.lead("t", settings=bench_settings(timestamp_before_ms_max=1000, timestamp_after_ms_max=1000))
    port.route("t")
    port.send("t", 0, b"first", request_id=99)
    port.until_counted(waiting=1)
    sent = [(b"0", NOW_MS), (b"edge", NOW_MS + edge), (b"1", NOW_MS)]
    for number, (value, timestamp) in enumerate(sent):
        port.send("t", 0, value, timestamp=timestamp, request_id=number)
        port.until_counted(received=number + 2)
    lib.tpc_plane_set_clock(stalled.plane.pointer, NOW_MS + clock_moves)
    port.send("t", 0, b"late", timestamp=NOW_MS + edge, request_id=98)
    assert port.answer() == (E.INVALID_TIMESTAMP, 0, 98)
    stalled.let_go()
    assert sorted(port.answer() for _ in range(4)) == [(E.NONE, 0, number) for number in (0, 1, 2, 99)]
    assert records_in(stalled, handle)[1:] == [(None, *one) for one in sent]
    assert port.counts()["invalid"] == 1


def test_the_told_time_is_not_kept_where_the_topic_stamped_when_the_record_came(stalled):
    """Also when it stamps no more by the time of the append: nobody has judged what was told."""
    port = Port(stalled)
    handle = stalled.lead("t", settings=bench_settings(PartitionFlag.LOG_APPEND_TIME))
    port.route("t")
    port.send("t", 0, b"first", request_id=99)
    port.until_counted(waiting=1)
    port.send("t", 0, b"old", timestamp=5, request_id=1)
    port.until_counted(received=2)
    stalled.plane.update(handle, bench_settings(timestamp_before_ms_max=1000, timestamp_after_ms_max=1000))
    stalled.let_go()
    assert sorted(port.answer() for _ in range(2)) == [(E.NONE, 0, 1), (E.NONE, 0, 99)]
    assert records_in(stalled, handle)[1:] == [(None, b"old", NOW_MS)]


@pytest.mark.parametrize("keys", [(None,), (None, b"k"), (b"", None, b"k", None, b"l"), (b"k", b"l")])
def test_when_a_topic_becomes_compacted_what_has_no_key_spoils_no_record_that_has_one(stalled, keys):
    """They came while it was not, and wait in one batch with what comes when it is."""
    port = Port(stalled)
    handle = stalled.lead("t", settings=bench_settings(timestamp_before_ms_max=1 << 40))
    port.route("t")
    port.send("t", 0, b"first", request_id=99)
    port.until_counted(waiting=1)
    sent = [(key, b"%d" % number, NOW_MS - (number << 30)) for number, key in enumerate(keys)]
    for number, (key, value, timestamp) in enumerate(sent):
        flags = 0 if number == 2 else ACKNOWLEDGE
        port.send("t", 0, value, key=key, timestamp=timestamp, request_id=number, flags=flags)
        port.until_counted(received=number + 2)
    stalled.plane.update(handle, bench_settings(PartitionFlag.COMPACTED, timestamp_before_ms_max=1000))
    port.send("t", 0, b"last", key=b"m", timestamp=NOW_MS, request_id=98)
    port.until_counted(received=len(sent) + 2)
    stalled.let_go()
    told = [number for number in range(len(keys)) if number != 2]
    expected = [(E.NONE if keys[number] is not None else E.INVALID_RECORD, 0, number) for number in told]
    assert sorted(port.answer() for _ in range(len(told) + 2)) == sorted([(E.NONE, 0, 98), (E.NONE, 0, 99), *expected])
    keyed = [one for one in sent if one[0] is not None]
    assert records_in(stalled, handle)[1:] == [*keyed, (b"m", b"last", NOW_MS)]
    assert port.counts()["invalid"] == len(sent) - len(keyed)
    assert port.counts()["without_room"] == 0


@pytest.mark.parametrize("bytes_each", [10, 100, 400])
def test_what_has_no_key_is_left_out_of_a_large_batch_too(stalled, bytes_each):
    """Its frame is made smaller then, by what was left out."""
    port = Port(stalled)
    handle = stalled.lead("t", settings=bench_settings(timestamp_before_ms_max=1 << 40))
    port.route("t")
    port.send("t", 0, b"first", request_id=99)
    port.until_counted(waiting=1)
    for number in range(150):
        port.send("t", 0, b"x" * bytes_each, timestamp=NOW_MS, request_id=number, flags=0)
        port.until_counted(received=number + 2)
    stalled.plane.update(handle, bench_settings(PartitionFlag.COMPACTED))
    port.send("t", 0, b"last", key=b"m", timestamp=NOW_MS, request_id=98)
    port.until_counted(received=152)
    stalled.let_go()
    assert sorted(port.answer() for _ in range(2)) == [(E.NONE, 0, 98), (E.NONE, 0, 99)]
    assert records_in(stalled, handle)[1:] == [(b"m", b"last", NOW_MS)]
    assert port.counts()["invalid"] == 150


def test_a_relaxed_topic_s_records_do_not_wait_for_the_journal(stalled):
    port = Port(stalled)
    stalled.lead("t")
    stalled.lead("relaxed", settings=bench_settings(PartitionFlag.RELAXED))
    port.route("t")
    port.route("relaxed")
    port.send("t", 0, b"first", request_id=99)
    port.until_counted(waiting=1)
    port.send("relaxed", 0, b"v", request_id=3)
    assert port.answer() == (E.NONE, 0, 3)


def test_what_the_socket_cannot_hold_is_counted(bench):
    port = Port(bench, receive_bytes=4096)
    bench.lead("t")
    port.route("t")
    for _ in range(300):
        port.send("t", 0, bytes(1000), flags=0)
    bench.until(lambda: port.counts()["received"] + port.counts()["kernel_drops"] == 300)
    assert port.counts()["kernel_drops"] > 0


def test_what_waits_when_it_ends_is_forgotten(stalled):
    port = Port(stalled)
    stalled.lead("t")
    port.route("t")
    port.send("t", 0, b"v", request_id=1)
    port.until_counted(waiting=1)


def test_the_supervisor_is_told_what_is_owned_here(monkeypatch):
    """The latest word on each topic, within a line of the control channel."""
    monkeypatch.setattr(lib_module, "lib", FakeLibrary())
    told = []

    async def tell(kind, **fields):
        told.append((kind, fields["topic"], len(fields["partitions"]), max(fields["partitions"], default=None)))

    async def main():
        datagrams = CoreDatagrams(None, -1, 1)
        count = limits.DATAGRAM_PARTITIONS_TOLD_MAX + 5
        datagrams.set_owners("large", uuid.UUID(int=9), (1,) * count)
        datagrams.set_owners("t", uuid.UUID(int=8), (0, 1, 0, 1))
        datagrams.set_owners("t", uuid.UUID(int=8), (1, 0, 0, NOT_HERE))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(datagrams.tell_owned, tell)
            await trio.testing.wait_all_tasks_blocked()
            assert told == [("owned", crc32c(b"large"), count - 5, count - 6), ("owned", crc32c(b"t"), 1, 0)]
            datagrams.set_owners("t", uuid.UUID(int=8), ())
            await trio.testing.wait_all_tasks_blocked()
            assert told[2:] == [("owned", crc32c(b"t"), 0, None)]
            nursery.cancel_scope.cancel()

    trio_ring.run(main)


class FakeLibrary:
    """Takes everything."""

    def __getattr__(self, name):
        return lambda *_arguments: 0


# -- between cores -----------------------------------------------------------------------------------------------------


def test_one_for_another_core_goes_there_once_and_is_answered_from_there(make_node):
    node = make_node(2)
    ports = [Port(core, number) for number, core in enumerate(node.cores)]
    (handle,) = [node.cores[1].make("t", 0)]
    for port in ports:
        port.route("t", (1,))
    ports[0].send("t", 0, b"v", request_id=3)
    found = []
    ports[0].client.close()
    ports[0].client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # not connected: the answer is another socket's
    ports[0].client.bind(("127.0.0.1", 0))
    ports[0].client.setblocking(False)
    ports[0].client.sendto(datagram("t", 0, b"w", request_id=4), ports[0].socket.getsockname())

    def is_there():
        try:
            found.append(ports[0].client.recvfrom(100))
        except BlockingIOError:
            return False
        return True

    node.cores[0].until(is_there)
    data, sender = found[0]
    assert HEADER.unpack(data)[2:] == (E.NONE, crc32c(b"t"), 0, 4)
    assert sender == ports[1].socket.getsockname()
    assert [value for _, value, _ in records_in(node.cores[1], handle)] == [b"v", b"w"]
    assert (ports[0].counts()["forwarded"], ports[1].counts()["forwarded_here"]) == (2, 2)


def test_one_that_was_forwarded_is_not_sent_on(make_node):
    node = make_node(2)
    ports = [Port(core, number) for number, core in enumerate(node.cores)]
    ports[0].route("t", (1,))
    ports[1].route("t", (0,))  # they do not agree: a move is under way
    ports[0].send("t", 0, b"v", request_id=3, flags=0)
    ports[1].until_counted(forwarded_here=1, unowned=1)
    assert ports[0].counts()["forwarded_here"] == 0


def test_what_no_core_of_the_node_has_is_refused(bench, port):
    port.route("t", (NOT_HERE,))
    port.send("t", 0, b"v", request_id=3)
    assert port.answer() == (E.NOT_LEADER_OR_FOLLOWER, 0, 3)
    assert port.counts()["forward_failures"] == 1


def test_without_a_link_it_is_refused(make_node):
    node = make_node(1)
    port = Port(node.cores[0])
    port.route("t", (1,))
    port.send("t", 0, b"v", request_id=3)
    assert port.answer() == (E.NOT_LEADER_OR_FOLLOWER, 0, 3)
    assert port.counts()["forward_failures"] == 1
