"""For whom another core's requests are: the subject of a stream, told before its first request. With all features."""

import socket
import struct
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
import trio

from tests.broker.test_dispatch import SlowHandlers
from tests.engine.test_links import ANSWER, CLIENT, CLOSE, FORWARD_PRODUCE, HELLO, HandMadeLink
from tests.engine.test_plane_fetch import asks, parts_of
from tests.support.connection_bench import frame_of
from tests.support.plane_bench import produce_body, read_produce_answer, records_of
from tpc_broker._ring import lib
from tpc_broker.auth.principals import ANONYMOUS, NOBODY, USER, Principal, Subject
from tpc_broker.broker.access import AccessControl
from tpc_broker.engine.client_connections import ClientConnections
from tpc_broker.engine.connections import Stage
from tpc_broker.engine.links import Links
from tpc_broker.error_codes import ErrorCode as E
from tpc_broker.process.core import CoreProcessMain

SUBJECT = 8
ALICE, BOB = (b"User:alice", b"10.0.0.1"), (b"User:bob", b"10.0.0.2")
REFUSED = (CLOSE, lib.TPC_CLOSE_AUTHENTICATION, 0, CLIENT, b"")


def said(principal, host):
    return struct.pack("<H", len(principal)) + principal + host


def names_at_once(core):
    """As the broker does: whoever comes is named as soon as Python hears of it. Who was named is kept."""
    named = {}

    def opened(connection, _peer, listener):
        names = core.connections.carried_subject(connection)
        if names is not None:
            named[connection] = (*names, listener)
            number = len(named)
            assert core.connections.let_in(connection, number, 0, names[0].decode(), names[1].decode())

    core.connections.on_opened = opened
    return named


# -- the end that takes requests, spoken to by hand --------------------------------------------------------------------


@pytest.fixture
def link(make_node):
    core = make_node(1).cores[0]
    made = HandMadeLink(core)
    made.hello()
    core.make("t")
    made.named = names_at_once(core)
    return made


def end_of(link):
    return link.core.plane.state(link.core.partitions["t", 0].handle).log_end_offset


def test_a_stream_is_its_clients(link):
    link.core.connections.require_subject(on=True)
    link.send(SUBJECT, said(*ALICE), detail=3)
    link.produce(0, ("t", 0, records_of(1)))
    assert link.read()[:4] == (ANSWER, 0, 0, CLIENT)
    ((stream, told),) = link.named.items()
    assert told == (*ALICE, 3)
    assert link.core.connections.subject_number_of(stream) == 1
    link.send(SUBJECT, said(*BOB), stream=6)
    link.send(FORWARD_PRODUCE, frame_of(produce_body([("t", 0, records_of(1))]), api_key=0, api_version=7), stream=6)
    assert link.read()[:4] == (ANSWER, 0, 0, 6)
    assert list(link.named.values()) == [(*ALICE, 3), (*BOB, 0)]
    assert not link.core.left, "C has answered both, though Python had to name them first"


def test_nothing_of_a_stream_is_looked_at_before_python_has_named_it(link):
    opened = []
    link.core.connections.on_opened = lambda connection, *_facts: opened.append(connection)
    link.send(SUBJECT, said(*ALICE))
    link.produce(0, ("t", 0, records_of(1)))
    link.produce(1, ("t", 0, records_of(1, value=bytes(200_000))))
    link.core.until(lambda: opened)
    for _ in range(5):
        link.core.turn()
    assert (end_of(link), link.core.connections.statistics().requests) == (0, 0)
    link.core.connections.let_in(opened[0], 1, 0, "User:alice", "10.0.0.1")
    assert [link.read()[:4] for _ in range(2)] == [(ANSWER, 0, number, CLIENT) for number in range(2)]


@pytest.mark.parametrize("place", ["is free", "is another's"])
def test_what_came_whole_before_its_client_went_is_appended_when_it_is_known_whose_it_is(link, place):
    """With acks=0 a client sends and goes, before Python has named its stream. Another has its place perhaps."""
    connections, opened = link.core.connections, []
    connections.require_subject(on=True)
    connections.on_opened = lambda connection, *_facts: opened.append(connection)
    link.send(SUBJECT, said(*ALICE))
    link.produce(0, ("t", 0, records_of(1)), acks=0)
    link.produce(1, ("t", 0, records_of(1, value=bytes(200_000))), acks=0)
    link.send(CLOSE)
    if place == "is another's":
        link.send(SUBJECT, said(*BOB), stream=CLIENT + (1 << 32))
    link.core.until(lambda: len(opened) == 1 + (place == "is another's"))
    for _ in range(5):
        link.core.turn()
    assert end_of(link) == 0
    assert connections.let_in(opened[0], 1, 0, "User:alice", "10.0.0.1")
    assert link.read() == (CLOSE, lib.TPC_CLOSE_PEER, 0, CLIENT, b""), "nothing is answered"
    assert end_of(link) == 2
    assert link.core.link_counts()["streams"] == len(opened) - 1


def test_a_stream_whose_place_is_another_s_goes_with_its_link(link):
    connections, closed = link.core.connections, []
    connections.on_opened = lambda *_facts: None
    connections.on_closed = lambda connection, *_facts: closed.append(connection)
    for client, names in ((CLIENT, ALICE), (CLIENT + (1 << 32), BOB)):
        link.send(SUBJECT, said(*names), stream=client)
        produce = frame_of(produce_body([("t", 0, records_of(1))], acks=0), api_key=0, api_version=7)
        link.send(FORWARD_PRODUCE, produce, stream=client)
    link.core.until(lambda: link.core.link_counts()["streams"] == 2)
    link.sock.close()
    link.core.until(lambda: len(closed) == 2)
    assert (end_of(link), link.core.link_counts()["streams"], link.core.link_counts()["pages"]) == (0, 0, 0)


@pytest.mark.parametrize("why", ["rights are asked for", "its listener asks for authentication"])
def test_a_stream_without_a_subject_is_refused(link, why):
    if why == "rights are asked for":
        link.core.connections.require_subject(on=True)
    else:
        link.core.connections.begin_in(0, Stage.SASL)
    link.produce(0, ("t", 0, records_of(1)))
    assert link.read() == REFUSED
    link.produce(1, ("t", 0, records_of(1)))  # was on its way
    counts = link.core.link_counts()
    assert (end_of(link), counts["streams"], counts["refused"], counts["lost"]) == (0, 0, 1, 0)
    link.send(SUBJECT, said(*ALICE), stream=6)
    link.send(FORWARD_PRODUCE, frame_of(produce_body([("t", 0, records_of(1))]), api_key=0, api_version=7), stream=6)
    assert link.read()[:4] == (ANSWER, 0, 0, 6), "the others of this link are served"


@pytest.mark.parametrize("behind", [0, 1], ids=["before a request", "behind one"])
def test_a_stream_that_is_named_twice_ends(link, behind):
    link.core.connections.require_subject(on=True)
    link.send(SUBJECT, said(*ALICE))
    for number in range(behind):
        link.produce(number, ("t", 0, records_of(1)))
        assert link.read()[0] == ANSWER
    link.send(SUBJECT, said(*BOB))
    link.produce(behind, ("t", 0, records_of(1)))
    assert link.read() == REFUSED
    assert end_of(link) == behind
    assert link.core.link_counts()["lost"] == 0


def test_a_stream_that_had_none_gets_none_later(link):
    link.produce(0, ("t", 0, records_of(1)))
    assert link.read()[0] == ANSWER
    link.send(SUBJECT, said(*ALICE))
    assert link.read() == REFUSED


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\1",
        said(b"", b"10.0.0.1"),
        struct.pack("<H", 11) + b"User:alice",
        struct.pack("<H", 2**16 - 1) + b"User:alice",
        said(b"User:" + b"a" * 508, b""),
        said(b"User:alice", b"h" * 65),
        said(b"User:alice\n", b"10.0.0.1"),
        said(b"User:alice", b"10.0.0.1\0"),
        said(b"User:" + b"a" * 507, b"h" * 65),
        said(*ALICE) + bytes(70_000),
    ],
)
def test_a_malformed_subject_names_nobody(link, payload):
    link.core.connections.require_subject(on=True)
    link.send(SUBJECT, payload)
    link.produce(0, ("t", 0, records_of(1)))
    assert [link.read() for _ in range(2)] == [REFUSED, REFUSED]
    assert (end_of(link), link.core.link_counts()["streams"], link.named) == (0, 0, {})


@pytest.mark.parametrize("names", [(b"User:" + b"a" * 507, b"h" * 64), (b"User:alice", b"")])
def test_the_longest_names_and_no_host_are_taken(link, names):
    link.send(SUBJECT, said(*names))
    link.produce(0, ("t", 0, records_of(1)))
    assert link.read()[0] == ANSWER
    assert list(link.named.values()) == [(*names, 0)]


def test_a_subject_of_no_possible_client_cuts_the_link_off(link):
    link.send(SUBJECT, said(*ALICE), stream=0)
    assert link.ends()
    assert link.core.link_counts()["streams"] == 0


def test_who_takes_over_a_place_is_not_who_had_it(link):
    link.core.connections.require_subject(on=True)
    link.send(SUBJECT, said(*ALICE))
    link.produce(0, ("t", 0, records_of(1)))
    assert link.read()[0] == ANSWER
    request = frame_of(produce_body([("t", 0, records_of(1))]), api_key=0, api_version=7)
    link.send(FORWARD_PRODUCE, request, stream=CLIENT + (1 << 32))
    assert link.read() == (CLOSE, lib.TPC_CLOSE_PEER, 0, CLIENT, b"")
    assert link.read() == (CLOSE, lib.TPC_CLOSE_AUTHENTICATION, 0, CLIENT + (1 << 32), b"")
    link.send(SUBJECT, said(*BOB), stream=CLIENT + (2 << 32))
    link.send(FORWARD_PRODUCE, request, stream=CLIENT + (2 << 32))
    assert link.read()[:4] == (ANSWER, 0, 0, CLIENT + (2 << 32))
    assert [names[:2] for names in link.named.values()] == [ALICE, BOB]
    assert end_of(link) == 2


def test_streams_without_a_subject_end_where_rights_begin_to_be_asked_for(link):
    link.produce(0, ("t", 0, records_of(1)))
    assert link.read()[0] == ANSWER
    link.send(SUBJECT, said(*ALICE), stream=6)
    link.core.until(lambda: link.named)
    link.core.connections.require_subject(on=True)
    assert link.read() == (CLOSE, lib.TPC_CLOSE_LOCAL, 0, CLIENT, b"")
    link.send(FORWARD_PRODUCE, frame_of(produce_body([("t", 0, records_of(1))]), api_key=0, api_version=7), stream=6)
    assert link.read()[:4] == (ANSWER, 0, 0, 6)


def test_memory_of_names_goes_with_their_streams(link):
    used = []
    for _ in range(3):
        for number in range(1, 50):
            link.send(SUBJECT, said(*ALICE), stream=number)
        link.core.until(lambda: link.core.link_counts()["streams"] == 49)
        for number in range(1, 50):
            link.send(CLOSE, stream=number)
        link.core.until(lambda: link.core.link_counts()["streams"] == 0)
        for _ in range(49):
            assert link.read()[0] == CLOSE
        used.append(link.core.connections.statistics().budget_bytes_used)
    assert used[2] <= used[0]


# -- both ends ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(node):
    """A front and an owner that ask for rights; the front names its clients alice. What the owner was told."""
    front, owner = node.cores
    node.make("t", [1, 0])
    for core in node.cores:
        core.connections.require_subject(on=True)
    told = names_at_once(owner)

    def opened(connection, _peer, _listener):
        names = front.connections.carried_subject(connection)
        names = ALICE_AT_FRONT if names is None else map(bytes.decode, names)
        assert front.connections.let_in(connection, 1, 0, *names)

    front.connections.on_opened = opened
    return front, owner, told


ALICE_AT_FRONT = ("User:alice", "127.0.0.1")


def test_the_owner_hears_for_whom_it_appends_and_reads(pair):
    front, owner, told = pair
    client = front.connect()
    for number in range(3):
        assert front.produce(client, ("t", 0, records_of(1))) == [(E.NONE, number)]
    (part,) = parts_of(front.fetch(client, 12, asks(("t", 0, 0))))
    assert part["ErrorCode"] == E.NONE
    assert part["Records"]
    assert list(told.values()) == [(b"User:alice", b"127.0.0.1", 0)]
    assert not owner.left
    front.connect()
    another = front.connect()
    front.produce(another, ("t", 0, records_of(1)))
    assert len(told) == 2, "each client is named, and only when it asks for something of that core"


def test_a_request_for_both_cores_is_asked_for_by_the_same_subject(pair):
    front, _owner, told = pair
    client = front.connect()
    answers = front.produce(client, ("t", 0, records_of(1)), ("t", 1, records_of(1)))
    assert answers == [(E.NONE, 0), (E.NONE, 0)]
    assert list(told.values()) == [(b"User:alice", b"127.0.0.1", 0)]


def test_a_client_that_the_owner_refuses_is_cut_off(node):
    """Its core does not ask for rights, and so it names nobody."""
    front, owner = node.cores
    (handle,) = node.make("t", [1])
    owner.connections.require_subject(on=True)
    client = front.connect()
    front.send(client, [("t", 0, records_of(1))])
    assert front.read_end(client)
    assert owner.plane.state(handle).log_end_offset == 0


class OwnerSpokenToByHand(HandMadeLink):
    """Core 5, which `core` dials, and which understands so much."""

    def __init__(self, core, level):
        self.core = core
        self.sock, theirs = socket.socketpair()
        core.clients.append(self.sock)
        assert core.adopt_link(theirs, 5, dialled=True) == 0
        self.send(HELLO, b"TLNK" + struct.pack("<HHIIQ", level, 0, 5, 0, 1), stream=0)
        core.until(lambda: core.is_linked(5))
        assert self.read()[0] == HELLO


def front_that_dials(make_node, level):
    front = make_node(1).cores[0]
    owner = OwnerSpokenToByHand(front, level)
    front.route("t", [5])
    let_in = front.connections.let_in
    front.connections.on_opened = lambda connection, *_facts: let_in(connection, 1, 0, *ALICE_AT_FRONT)
    return front, owner


def test_what_is_said_of_a_client_and_when(make_node):
    front, owner = front_that_dials(make_node, 3)
    client = front.connect()
    front.turn()
    for number in range(2):
        front.send(client, [("t", 0, records_of(1))], correlation_id=number)
    kind, listener, sequence, stream, payload = owner.read()
    assert (kind, listener, sequence, payload) == (SUBJECT, 0, 0, said(b"User:alice", b"127.0.0.1"))
    assert [owner.read()[:4] for _ in range(2)] == [(FORWARD_PRODUCE, 0, number, stream) for number in range(2)]
    owner.send(CLOSE, detail=lib.TPC_CLOSE_LOCAL, stream=stream)
    for _ in range(2):
        assert read_produce_answer(front.read_frame(client))[1][0][2] == E.NOT_LEADER_OR_FOLLOWER
    front.send(client, [("t", 0, records_of(1))])
    assert [owner.read()[0] for _ in range(2)] == [SUBJECT, FORWARD_PRODUCE], "a new stream is named anew"
    owner.send(CLOSE, detail=lib.TPC_CLOSE_AUTHENTICATION, stream=stream)
    assert front.read_end(client)


def test_nothing_is_sent_over_a_link_that_cannot_say_for_whom(make_node):
    """One to an older process, where rights are asked for; elsewhere it is not said."""
    front, owner = front_that_dials(make_node, 2)
    front.connections.require_subject(on=True)
    client = front.connect()
    assert front.produce(client, ("t", 0, records_of(1))) == [(E.NOT_LEADER_OR_FOLLOWER, -1)]
    assert front.link_counts()["forwarded"] == 0
    front.connections.require_subject(on=False)
    front.send(client, [("t", 0, records_of(1))])
    kind, _listener, _sequence, stream, _payload = owner.read()
    assert kind == FORWARD_PRODUCE
    owner.send(CLOSE, detail=lib.TPC_CLOSE_LOCAL, stream=stream)
    assert front.answer(client) == [(E.NOT_LEADER_OR_FOLLOWER, -1)]


# -- with the broker's own part of it ----------------------------------------------------------------------------------


class BrokersPart:
    """The dispatcher and the access control of a core, over its connections in C."""

    def __init__(self, core, authenticated=()):
        bench = SlowHandlers(SimpleNamespace(start_soon=lambda *_task: None), {})
        self.dispatcher, made = bench.dispatcher, bench.dispatcher._core
        made.connections, made.dispatcher = ClientConnections(core.connections), self.dispatcher
        made.settings = SimpleNamespace(has_authorizer=False)
        made.authentication = SimpleNamespace(session_of=lambda _listener: None)
        made.plane = Mock()
        made.access = self.access = AccessControl(made)
        made.connections.attend(self.dispatcher, self.access, authenticated)

    def subjects(self):
        return sorted(self.dispatcher.subjects())


def test_from_a_login_at_one_core_to_the_rights_at_another(node):
    front, owner = node.cores
    (handle,) = node.make("t", [1])
    alice = Subject(Principal(USER, "alice"), "10.1.2.3")
    parts = [BrokersPart(core, authenticated={0}) for core in node.cores]
    for part in parts:
        part.access.authorizer = SimpleNamespace()
    client = front.connect()
    front.until(lambda: parts[0].subjects() == [NOBODY])
    (connection,) = parts[0].dispatcher._connections
    parts[0].dispatcher.let_in(connection, alice, 0)
    assert front.produce(client, ("t", 0, records_of(1))) == [(E.NONE, 0)]
    assert [part.subjects() for part in parts] == [[alice], [alice]]
    (stream,) = parts[1].dispatcher._connections
    number = owner.connections.subject_number_of(stream)
    assert parts[1].access.subject_of_number(number) == alice
    assert owner.plane.state(handle).log_end_offset == 1
    client.close()
    front.until(lambda: not parts[1].subjects())


def test_a_client_of_an_open_listener_is_anonymous_at_its_own_address_everywhere(node):
    front, _owner = node.cores
    node.make("t", [1])
    parts = [BrokersPart(core) for core in node.cores]
    client = front.connect()
    assert front.produce(client, ("t", 0, records_of(1))) == [(E.NONE, 0)]
    for part in parts:
        part.access.authorizer = SimpleNamespace()
    front.turn()
    assert front.produce(client, ("t", 0, records_of(1))) == [(E.NONE, 1)]
    assert [part.subjects() for part in parts] == [[Subject(ANONYMOUS, "127.0.0.1")]] * 2


def test_streams_are_attended_to_before_other_cores_can_send_any():
    async def main():
        steps = []
        control = SimpleNamespace(send=AsyncMock(side_effect=steps.append))
        process = CoreProcessMain(SimpleNamespace(core=1, listeners=()), control)
        process._up = [1]
        process._links = SimpleNamespace(let_in=lambda: steps.append("links"), wait_linked=AsyncMock())
        connections = SimpleNamespace(attend=lambda *_to: steps.append("attended"))
        core = SimpleNamespace(dispatcher=None, access=None, cores_changed=AsyncMock())
        await process._join_the_others(connections, core)
        assert steps == ["attended", "links", "opened"]

    trio.run(main)


def test_who_dials_for_a_link_too_early_is_hung_up_on(make_node):
    mailboxes = SimpleNamespace(on_link=None)
    links = Links(make_node(1).cores[0].connections, 0, mailboxes)
    assert mailboxes.on_link is None, "mailboxes close what nobody takes"
    links.let_in()
    assert mailboxes.on_link is not None
