"""Links between cores: frames, streams, and requests that go over them. With all features and with 5.8's."""

import contextlib
import resource
import struct
from pathlib import Path

import pytest

from tests.engine.test_plane_fetch import asks, parts_of
from tests.support.connection_bench import frame_of
from tests.support.plane_bench import produce_body, read_produce_answer, records_of
from tests.support.plane_values import PartitionFlag, Verdict
from tpc_broker import limits
from tpc_broker._ring import lib
from tpc_broker.error_codes import ErrorCode as E

HEADER = struct.Struct("<BBHIQ")
HELLO, FORWARD_PRODUCE, FORWARD_FETCH, ANSWER, RELEASE, CLOSE = range(1, 7)
CLIENT = 9 << 32 | 5


# -- the end that takes requests, spoken to by hand --------------------------------------------------------------------


class HandMadeLink:
    """The other end of a link."""

    def __init__(self, core):
        self.core = core
        self.sock, theirs = core.world.socketpair()
        core.clients.append(self.sock)
        assert core.adopt_link(theirs, 1, dialled=False) == 0

    def send(self, kind, payload=b"", *, version=1, detail=0, sequence=0, stream=CLIENT):
        frame = HEADER.pack(version, kind, detail, sequence, stream) + payload
        self.core.feed(self.sock, len(frame).to_bytes(4) + frame)

    def hello(self, core=1, magic=b"TLNK", life=1):
        self.send(HELLO, magic + struct.pack("<HHIIQ", 1, 0, core, 0, life), stream=0)
        kind, _detail, _sequence, _stream, payload = self.read()
        assert (kind, payload[:4], struct.unpack_from("<I", payload, 8)) == (HELLO, b"TLNK", (self.core.core_id,))

    def produce(self, sequence, *parts, correlation_id=1, **fields):
        request = frame_of(produce_body(parts, **fields), api_key=0, api_version=7, correlation_id=correlation_id)
        self.send(FORWARD_PRODUCE, request, sequence=sequence)

    def read(self):
        frame = self.core.read_frame(self.sock)
        _version, *head = HEADER.unpack_from(frame)
        return (*head, frame[HEADER.size :])

    def ends(self):
        return self.core.read_end(self.sock)


@pytest.fixture
def link(make_node):
    core = make_node(1).cores[0]
    return HandMadeLink(core)


def test_requests_of_a_stream_are_answered_in_their_order(link):
    link.hello()
    link.core.make("t")
    for number in range(3):
        link.produce(number, ("t", 0, records_of(1)), correlation_id=number)
    for number in range(3):
        kind, _detail, sequence, stream, payload = link.read()
        assert (kind, sequence, stream) == (ANSWER, number, CLIENT)
        correlation_id, ((_topic, _partition, error, offset, *_),) = read_produce_answer(payload[4:])
        assert (correlation_id, error, offset) == (number, E.NONE, number)
    counts = link.core.link_counts()
    assert (counts["streams"], counts["served"], counts["held_bytes"]) == (1, 3, 0)


def test_a_request_in_many_pieces_and_a_large_one(link):
    link.hello()
    handle = link.core.make("t")
    request = frame_of(produce_body([("t", 0, records_of(1))]), api_key=0, api_version=7)
    frame = HEADER.pack(1, FORWARD_PRODUCE, 0, 0, CLIENT) + request
    for byte in len(frame).to_bytes(4) + frame:
        link.core.feed(link.sock, bytes([byte]))
    assert link.read()[0] == ANSWER
    for number in range(1, 4):
        link.produce(number, ("t", 0, records_of(1, value=bytes(700_000))))
        assert link.read()[:3] == (ANSWER, 0, number)
    assert link.core.plane.state(handle).high_watermark == 4


def test_acks_zero_is_told_without_bytes_and_its_error_closes_the_stream_only(link):
    link.hello()
    link.core.make("t")
    link.produce(0, ("t", 0, records_of(1)), acks=0)
    assert link.read() == (ANSWER, 0, 0, CLIENT, b"")
    link.produce(1, ("t", 0, b"\0" * 61), acks=0)
    assert link.read() == (CLOSE, lib.TPC_CLOSE_REQUEST_INVALID, 0, CLIENT, b"")
    link.produce(2, ("t", 0, records_of(1)))  # was on its way when the stream ended
    link.produce(0, ("t", 0, records_of(1)))
    assert link.read()[:4] == (ANSWER, 0, 0, CLIENT)


def test_a_stream_that_python_answers_holds_up_itself_only(link):
    link.hello()
    link.core.make("t")
    link.core.make("slow", 0, 0, PartitionFlag.PYTHON_VALIDATES)
    link.produce(0, ("slow", 0, records_of(1)))
    link.core.until(lambda: link.core.left)
    link.send(FORWARD_PRODUCE, frame_of(produce_body([("t", 0, records_of(1))]), api_key=0, api_version=7), stream=6)
    assert link.read()[:4] == (ANSWER, 0, 0, 6)
    ((_reason, request),) = link.core.left
    assert link.core.connections.describe_connection(request.connection).peer == "core 1:5"
    link.core.connections.answer(request, b"late")
    assert link.read() == (ANSWER, 0, 0, CLIENT, b"\0\0\0\4late")
    link.core.left.clear()


def test_a_client_that_goes_takes_its_stream_with_it(link):
    link.hello()
    link.core.make("t")
    link.produce(0, ("t", 0, records_of(1)))
    assert link.read()[0] == ANSWER
    link.send(CLOSE)
    link.core.until(lambda: link.core.link_counts()["streams"] == 0)


def test_too_many_unanswered_bytes_pause_the_link(link):
    link.hello()
    link.core.make("slow", 0, 0, PartitionFlag.PYTHON_VALIDATES)
    lib.tpc_links_set_share(link.core.connections.pointer, 3000)
    for number in range(10):
        link.produce(number, ("slow", 0, records_of(1, value=bytes(1000))))
    link.core.until(lambda: link.core.link_counts()["pauses"])
    assert len(link.core.left) < 10
    for number in range(10):
        link.core.until(lambda: link.core.left)
        link.core.connections.answer(link.core.left.pop(0)[1], b"%d" % number)
        assert link.read()[2:] == (number, CLIENT, b"\0\0\0\1%d" % number)
    assert link.core.link_counts()["held_bytes"] == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda link: link.send(HELLO, b"XXXX" + bytes(20)),
        lambda link: link.send(HELLO, b"TLNK" + bytes(19)),
        lambda link: link.send(HELLO, b"TLNK" + bytes(20), version=2),
        lambda link: link.hello(core=5000),
        lambda link: link.produce(0, ("t", 0, records_of(1))),
        lambda link: (link.hello(), link.send(HELLO, b"TLNK" + bytes(20))),
        lambda link: (link.hello(), link.send(ANSWER)),
        lambda link: (link.hello(), link.send(0)),
        lambda link: (link.hello(), link.produce(0, ("t", 0, records_of(1))), link.produce(0, ("t", 0, records_of(1)))),
        lambda link: (link.hello(), link.core.feed(link.sock, (15).to_bytes(4) + bytes(15))),
        lambda link: (link.hello(), link.core.feed(link.sock, b"\xff\xff\xff\xff")),
        lambda link: (link.hello(), link.core.feed(link.sock, bytes(4))),
    ],
)  # fmt: skip
def test_who_does_not_keep_to_the_protocol_is_cut_off(link, spoil):
    link.core.make("t")
    with contextlib.suppress(OSError, EOFError):
        spoil(link)
    link.core.until(lambda: link.core.link_counts()["lost"] == 1)
    assert link.core.link_counts()["streams"] == 0


@pytest.mark.parametrize("place", [lib.TPC_LINK_PLACES_MAX, 1 << 31, (1 << 32) - 1])
def test_a_link_that_brings_a_stream_of_no_possible_client_is_refused(link, place):
    link.hello()
    link.send(FORWARD_PRODUCE, sequence=1, stream=9 << 32 | place)
    assert link.ends()
    assert link.core.link_counts()["streams"] == 0


def test_a_stream_may_have_any_place_of_a_core_with_many_clients(link):
    assert lib.TPC_LINK_PLACES_MAX > limits.CORES_MAX * (limits.CONNECTIONS_MAX + limits.SWIM_MEMBERS_MAX + 2)
    link.hello()
    link.core.make("t")
    stream = 9 << 32 | limits.CONNECTIONS_MAX * 10
    link.send(
        FORWARD_PRODUCE, frame_of(produce_body([("t", 0, records_of(1))]), api_key=0, api_version=7), stream=stream
    )
    assert link.read()[:4] == (ANSWER, 0, 0, stream)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_stream_takes_memory_for_itself_and_not_for_all_places_below_it(link):
    link.hello()
    link.core.make("t")
    before = resident_bytes()
    request = frame_of(produce_body([("t", 0, records_of(1))]), api_key=0, api_version=7)
    link.send(FORWARD_PRODUCE, request, stream=9 << 32 | (lib.TPC_LINK_PLACES_MAX - 1))
    assert link.read()[:4] == (ANSWER, 0, 0, 9 << 32 | (lib.TPC_LINK_PLACES_MAX - 1))
    assert resident_bytes() - before < 32 << 20
    assert link.core.link_counts()["pages"] == 1


def test_streams_that_ended_leave_no_memory_behind(link):
    link.hello()
    link.core.make("t")
    request = frame_of(produce_body([("t", 0, records_of(1))]), api_key=0, api_version=7)

    def comes_and_goes(place):
        stream = 9 << 32 | place
        link.send(FORWARD_PRODUCE, stream=stream, sequence=1)  # of one that this end has closed
        link.send(FORWARD_PRODUCE, request, stream=stream + 1)
        assert link.read()[:4] == (ANSWER, 0, 0, stream + 1)
        link.send(CLOSE, stream=stream + 1)
        assert link.read()[:4] == (CLOSE, lib.TPC_CLOSE_PEER, 0, stream + 1)

    comes_and_goes(lib.TPC_LINK_PLACES_MAX - 2)
    for number in range(900):
        comes_and_goes(number * 1024)
    assert link.core.link_counts()["pages"] == 0


def test_a_client_takes_over_the_place_of_one_before(link):
    link.hello()
    link.core.make("slow", 0, 0, PartitionFlag.PYTHON_VALIDATES)
    link.core.make("t")
    link.produce(0, ("slow", 0, records_of(1)))
    link.core.until(lambda: link.core.left)
    request = frame_of(produce_body([("t", 0, records_of(1))]), api_key=0, api_version=7)
    link.send(FORWARD_PRODUCE, request, stream=CLIENT + (1 << 32))
    assert link.read() == (CLOSE, lib.TPC_CLOSE_PEER, 0, CLIENT, b"")
    assert link.read()[:4] == (ANSWER, 0, 0, CLIENT + (1 << 32))
    assert link.core.link_counts()["streams"] == 1
    link.send(CLOSE)  # of the one before: nothing
    link.send(FORWARD_PRODUCE, request, stream=CLIENT + (1 << 32), sequence=1)
    assert link.read()[:4] == (ANSWER, 0, 1, CLIENT + (1 << 32))
    link.core.left.clear()


def test_kinds_of_a_later_version_are_passed_over(link):
    link.hello()
    link.core.make("t")
    link.send(200, b"whatever")
    link.send(RELEASE)
    link.send(CLOSE)
    link.produce(0, ("t", 0, records_of(1)))
    assert link.read()[0] == ANSWER


# -- Produce -----------------------------------------------------------------------------------------------------------


def test_a_produce_goes_to_its_owner_and_its_answer_comes_back(node):
    front, owner = node.cores
    (handle,) = node.make("t", [1])
    client = front.connect()
    for number in range(5):
        assert front.produce(client, ("t", 0, records_of(1))) == [(E.NONE, number)]
    assert owner.plane.state(handle).high_watermark == 5
    assert (front.forward_counts()["produces"], front.forward_counts()["under_way"]) == (5, 0)
    assert (front.link_counts()["forwarded"], front.link_counts()["answered"]) == (5, 5)
    assert not front.left
    assert not owner.left


def test_the_answer_to_a_repeat_comes_back_with_the_place_that_the_log_has(node):
    front, owner = node.cores
    (handle,) = node.make("t", [1])
    for sequence in (0, 1, 0, 2, 1, 0):
        client = front.connect()
        records = records_of(1, value=b"%d:" % sequence, producer=(7, 0, sequence))
        assert front.produce(client, ("t", 0, records)) == [(E.NONE, sequence)]
    assert owner.readable(handle) == [(sequence, [b"%d:0" % sequence]) for sequence in range(3)]


def test_what_is_led_here_goes_over_no_link(node):
    front = node.cores[0]
    node.make("t", [0, 1])
    client = front.connect()
    assert front.produce(client, ("t", 0, records_of(1))) == [(E.NONE, 0)]
    assert front.link_counts()["forwarded"] == 0


def test_a_listener_of_one_core_forwards_nothing(node):
    front = node.cores[0]
    node.make("t", [1])
    lib.tpc_forward_open(front.plane.pointer, 0, 0)
    client = front.connect()
    front.send(client, [("t", 0, records_of(1))])
    front.until(lambda: front.left)
    assert front.link_counts()["forwarded"] == 0
    front.connections.answer_none(front.left.pop()[1])


def test_answers_keep_the_order_of_their_connection(node):
    front = node.cores[0]
    node.make("t", [1, 0])
    client = front.connect()
    for number in range(40):
        front.send(client, [("t", number % 2, records_of(1))], correlation_id=number)
    answers = [read_produce_answer(front.read_frame(client)) for _ in range(40)]
    assert [(a[0], a[1][0][1], a[1][0][3]) for a in answers] == [(n, n % 2, n // 2) for n in range(40)]


def test_a_large_produce_is_forwarded(node):
    front, owner = node.cores
    (handle,) = node.make("t", [1])
    client = front.connect()
    for number in range(3):
        records = records_of(1, value=bytes([number]) * 900_000)
        client.setblocking(False)
        front.feed(client, frame_of(produce_body([("t", 0, records)]), api_key=0, api_version=7))
        assert front.answer(client) == [(E.NONE, number)]
    assert [len(values[0]) for _offset, values in owner.readable(handle)] == [900_001] * 3


@pytest.mark.parametrize("value_bytes", [5, 3000])
def test_a_produce_to_several_cores_is_one_answer(make_node, value_bytes):
    node = make_node(3)
    front = node.cores[0]
    handles = node.make("t", [0, 1, 2, 1, 0])
    node.make("u", [2])
    client = front.connect()
    records = records_of(2, value=bytes(value_bytes))
    parts = [("t", index, records) for index in (3, 0, 4, 2, 1)] + [("u", 0, records), ("t", 0, b"\0" * 61)]
    front.send(client, parts, correlation_id=77)
    correlation_id, answers = read_produce_answer(front.read_frame(client))
    assert correlation_id == 77
    assert [a[:2] for a in answers] == [part[:2] for part in parts]
    assert [a[2:4] for a in answers] == [(E.NONE, 0)] * 6 + [(E.CORRUPT_MESSAGE, -1)]
    for handle, owner in zip(handles, [0, 1, 2, 1, 0], strict=True):
        assert node.cores[owner].plane.state(handle).high_watermark == 2
    assert front.forward_counts()["parts"] == 3


def test_what_no_metadata_know_is_the_front_cores_own(node):
    front = node.cores[0]
    node.make("t", [1])
    client = front.connect()
    front.send(client, [("t", 0, records_of(1)), ("unknown", 0, records_of(1))])
    front.until(lambda: front.left)
    ((_reason, request),) = front.left
    assert front.plane.produce_with(request, [Verdict()])
    front.left.clear()
    assert front.answer(client) == [(E.NONE, 0), (E.NOT_LEADER_OR_FOLLOWER, -1)]


def test_acks_zero_is_forwarded_and_its_error_closes_the_client(node):
    front, owner = node.cores
    (handle,) = node.make("t", [1])
    client = front.connect()
    front.send(client, [("t", 0, records_of(2))], acks=0)
    assert front.produce(client, ("t", 0, records_of(1))) == [(E.NONE, 2)]
    front.send(client, [("t", 0, b"\0" * 61)], acks=0)
    assert front.read_end(client)
    assert owner.plane.state(handle).log_end_offset == 3
    front.until(lambda: owner.link_counts()["streams"] == 0)


def test_an_owner_without_a_link_is_answered_for(node):
    front, owner = node.cores
    node.make("t", [1, 0])
    client = front.connect()
    front.connections.close_all()
    front.until(lambda: not front.is_linked(1))
    node.dial(front, front)
    client = front.connect()
    assert front.produce(client, ("t", 0, records_of(1))) == [(E.NOT_LEADER_OR_FOLLOWER, -1)]
    both = front.produce(client, ("t", 0, records_of(1)), ("t", 1, records_of(1)))
    assert both == [(E.NOT_LEADER_OR_FOLLOWER, -1), (E.NONE, 0)]
    (answer,) = parts_of(front.fetch(client, 12, asks(("t", 0, 0))))
    assert answer["ErrorCode"] == E.NOT_LEADER_OR_FOLLOWER
    node.dial(front, owner)
    assert front.produce(client, ("t", 0, records_of(1))) == [(E.NONE, 0)]
    assert front.links[-1] == (1, 1, 1)


def test_an_owner_that_dies_with_a_request_is_answered_for(node):
    front, owner = node.cores
    node.make("slow", [1])
    lib.tpc_partition_withdraw(owner.plane.pointer, owner.partitions["slow", 0].handle)
    client = front.connect()
    front.send(client, [("slow", 0, records_of(1))])
    front.until(lambda: owner.left)
    owner.connections.close_all()
    assert front.answer(client) == [(E.NOT_LEADER_OR_FOLLOWER, -1)]
    assert front.forward_counts()["under_way"] == 0
    owner.left.clear()


def test_a_client_that_goes_is_forgotten_everywhere(node):
    front, owner = node.cores
    node.make("t", [1])
    lib.tpc_partition_withdraw(owner.plane.pointer, owner.partitions["t", 0].handle)
    client = front.connect()
    front.send(client, [("t", 0, records_of(1))])
    front.until(lambda: owner.left)
    client.close()
    front.until(lambda: owner.link_counts()["streams"] == 0)
    assert front.forward_counts()["under_way"] == 0
    owner.left.clear()
