"""Connections that have not said who they are: what they may send, how much they may hold, and for how long; and those
that are let in, until their session is over. With all features, and with those of kernel 5.8.
"""

import contextlib
import errno
import socket
import struct
from types import SimpleNamespace

import pytest

from tests.support.connection_bench import frame_of, header_of
from tests.support.plane_bench import produce_body, records_of
from tests.support.tls_clients import TlsClient, client_context, material_of
from tpc_broker._ring import lib
from tpc_broker.auth.principals import Principal, Subject
from tpc_broker.engine.client_connections import ClientConnections
from tpc_broker.engine.clocks import SystemClock
from tpc_broker.engine.connections import CloseReason, CloseWhen, Stage
from tpc_broker.engine.quotas import ClientQuotasOfConnections
from tpc_broker.engine.tls import secure

KIB = 1024
METADATA, HANDSHAKE, API_VERSIONS, AUTHENTICATE = 3, 17, 18, 36
MAY_ASK = {HANDSHAKE, API_VERSIONS, AUTHENTICATE}
LONG_AGO_NS, FOR_EVER_NS = 1, 2**63 - 1


def make_strict(make_connections, **limits):
    bench = make_connections(**limits)
    bench.connections.begin_in(0, Stage.SASL)
    return bench


def id_of(bench, client):
    """The connection's id at the core."""
    name = "{}:{}".format(*client.getsockname())
    return next(connection for connection, peer, _listener in bench.opened if peer == name)


def let_in(bench, client, *, deadline_ns=0, number=1):
    assert bench.connections.let_in(id_of(bench, client), number, deadline_ns, "User:alice", "127.0.0.1")


def handshake(body=b"\0\5PLAIN", **header):
    return frame_of(body, api_key=HANDSHAKE, api_version=1, **header)


# -- what they may ask -------------------------------------------------------------------------------------------------


def test_only_what_authentication_takes_reaches_python(make_connections):
    bench = make_strict(make_connections)
    for key in (-1, -(2**15), *range(100), 2**15 - 1):
        client = bench.connect()
        client.sendall(frame_of(b"\0body", api_key=key, api_version=0))
        if key in MAY_ASK:
            request = bench.next_request()
            assert request.api_key == key
            bench.connections.answer_none(request)
        else:
            assert bench.next_closed()[1:] == (CloseReason.UNAUTHENTICATED, 0)
            assert bench.read_end(client)
    assert not bench.requests


def test_the_next_request_waits_unparsed_until_the_one_before_is_answered(make_connections):
    bench = make_strict(make_connections)
    client = bench.connect()
    client.sendall(b"".join(handshake(correlation_id=number) for number in range(3)))
    for number in range(3):
        request = bench.next_request()
        assert request.correlation_id == number
        for _ in range(3):
            bench.turn()
        assert not bench.requests
        assert bench.connections.statistics().requests == number + 1
        bench.connections.answer(request, b"%d" % number)
        assert bench.read_frame(client) == b"%d" % number


def test_what_waits_behind_a_login_is_served_when_it_was_let_in(make_connections):
    bench = make_strict(make_connections)
    client = bench.connect()
    client.sendall(handshake() + frame_of(b"1") + frame_of(b"2"))
    request = bench.next_request()
    let_in(bench, client)
    bench.connections.answer(request, b"welcome")
    assert bench.read_frame(client) == b"welcome"
    assert [bytes(bench.next_request().body) for _ in range(2)] == [b"1", b"2"]


def test_what_waits_behind_a_login_that_failed_is_never_looked_at(make_connections):
    bench = make_strict(make_connections)
    client = bench.connect()
    client.sendall(handshake() + frame_of(b"1"))
    request = bench.next_request()
    bench.connections.answer(request, b"no")
    bench.connections.close(request.connection, CloseReason.AUTHENTICATION, CloseWhen.AFTER_ANSWERED)
    assert bench.read_frame(client) == b"no"
    assert bench.read_end(client)
    assert bench.next_closed()[1] == CloseReason.AUTHENTICATION
    assert not bench.requests


def test_a_listener_that_asks_for_nothing_has_no_strangers(make_connections):
    bench = make_strict(make_connections)
    open_to_all = bench.connect(bench.listen())
    bench.exchange(open_to_all)
    assert [listener for *_who, listener in bench.opened] == [1]


def test_a_listener_that_begins_to_ask_does_so_of_who_comes_later(make_connections):
    bench = make_connections()
    before = bench.connect()
    bench.connections.begin_in(0, Stage.SASL)
    bench.exchange(before)
    after = bench.connect()
    after.sendall(frame_of(b""))
    assert bench.next_closed()[1] == CloseReason.UNAUTHENTICATED
    bench.exchange(before)


def test_an_adopted_socket_is_of_the_listener_that_was_named(make_connections):
    bench = make_connections()
    bench.connections.begin_in(5, Stage.SASL)
    ours, theirs = socket.socketpair()
    with ours:
        connection = bench.connections.adopt(theirs.detach(), 5)
        bench.until(lambda: bench.opened)
        assert bench.opened == [(connection, "unix", 5)]
        ours.sendall(frame_of(b""))
        assert bench.next_closed() == (connection, CloseReason.UNAUTHENTICATED, 0)
    with pytest.raises(OSError) as refused:
        bench.connections.adopt(0, 64)
    assert refused.value.errno == errno.EINVAL


def test_no_listener_begins_in_a_stage_that_there_is_not(make_connections):
    bench = make_connections()
    for listener, stage in ((64, 0), (0, -1), (0, lib.TPC_STAGES_COUNT)):
        assert lib.tpc_connections_listener_stage(bench.connections.pointer, listener, stage) == -errno.EINVAL


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_tokens_come_whole_and_their_answers_go_as_they_are(make_connections):
    bench = make_strict(make_connections)
    client = bench.connect()
    token = b"\0alice\0secret"
    client.sendall(frame_of(b"\0\5PLAIN", api_key=HANDSHAKE, api_version=0) + struct.pack(">i", len(token)) + token)
    request = bench.next_request()
    assert bench.connections.expect_tokens(request.connection, on=True)
    bench.connections.answer(request, b"\0\0\0\1ok")
    assert bench.read_frame(client) == b"\0\0\0\1ok"
    taken = bench.next_request()
    assert (taken.api_key, taken.client_id, bytes(taken.body)) == (-1, None, token)
    let_in(bench, client)
    bench.connections.answer(taken, b"welcome")
    assert bench.read_frame(client) == b"welcome"
    bench.exchange(client)
    assert not bench.connections.expect_tokens(request.connection, on=True), "it is no stranger any more"
    assert all(slow.api_key >= 0 for slow in bench.connections.slowest_requests())


def test_a_request_where_a_token_is_due_is_a_token(make_connections):
    bench = make_strict(make_connections)
    client = bench.connect()
    client.sendall(handshake())
    request = bench.next_request()
    bench.connections.expect_tokens(request.connection, on=True)
    bench.connections.answer(request, b"ok")
    client.sendall(frame_of(b"all topics", api_key=METADATA))
    taken = bench.next_request()
    assert (taken.api_key, bytes(taken.body)) == (-1, header_of(api_key=METADATA) + b"all topics")
    bench.connections.expect_tokens(request.connection, on=False)
    bench.connections.answer(taken, b"ok")
    client.sendall(frame_of(b"", api_key=METADATA))
    assert bench.next_closed()[1] == CloseReason.UNAUTHENTICATED


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("announced", "reason"),
    [
        (512 * KIB + 1, CloseReason.STRANGER_TOO_LARGE),
        (100 * KIB * KIB, CloseReason.STRANGER_TOO_LARGE),
        (100 * KIB * KIB + 1, CloseReason.FRAME_TOO_LARGE),
        (-1, CloseReason.FRAME_NEGATIVE),
        (0, CloseReason.FRAME_EMPTY),
    ],
)
def test_a_wrong_length_closes_before_memory_is_taken(make_connections, announced, reason):
    bench = make_strict(make_connections)
    client = bench.connect()
    before = bench.connections.statistics().budget_bytes_peak
    client.sendall(struct.pack(">i", announced) + header_of(api_key=HANDSHAKE) + bytes(1000))
    assert bench.next_closed()[1] == reason
    assert bench.connections.statistics().budget_bytes_peak == before


def test_the_largest_request_of_a_stranger_passes_and_a_larger_one_of_who_was_let_in(make_connections):
    bench = make_strict(make_connections)
    client = bench.connect()
    bench.feed(client, handshake(bytes(512 * KIB - len(header_of()))))
    request = bench.next_request()
    let_in(bench, client)
    bench.connections.answer(request, b"welcome")
    bench.feed(client, frame_of(bytes(513 * KIB)))
    assert len(bench.next_request().body) == 513 * KIB


def flexible(tags, body=b""):
    """SaslAuthenticate 2, whose header has tagged fields."""
    payload = header_of(api_key=AUTHENTICATE, api_version=2, correlation_id=1) + tags + body
    return struct.pack(">i", len(payload)) + payload


@pytest.mark.parametrize(
    "tags",
    [
        b"\xff\xff\xff\xff\x07",  # 2^31 - 1 of them
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x01\x00\xff\xff\xff\xff\x07",  # one that is as long
        b"\x02\x00\x00",  # one too few
    ],
)
def test_tags_that_are_not_there_close_the_connection(make_connections, tags):
    bench = make_strict(make_connections)
    bench.connect().sendall(flexible(tags))
    assert bench.next_closed()[1] == CloseReason.HEADER_MALFORMED
    assert not bench.requests


def test_as_many_tags_as_a_request_may_hold_are_passed_over(make_connections):
    bench = make_strict(make_connections)
    client = bench.connect()
    count = 250_000
    tags = bytes([count & 127 | 128, count >> 7 & 127 | 128, count >> 14]) + b"\x05\x00" * count
    bench.feed(client, flexible(tags, b"body"))
    request = bench.next_request()
    assert (request.api_key, bytes(request.body)) == (AUTHENTICATE, b"body")


def test_the_bound_is_a_setting_and_never_above_that_of_all_requests(make_connections):
    bench = make_strict(make_connections, authentication_bytes_max=2**32 - 1, request_bytes_max=1000)
    client = bench.connect()
    client.sendall(struct.pack(">i", 1001))
    assert bench.next_closed()[1] == CloseReason.FRAME_TOO_LARGE


def test_slow_and_silent_strangers_take_neither_the_budget_nor_the_place_of_others(make_connections):
    """Many, each with most of the largest request that it may send: together they hold what all may hold."""
    most = 1 << 20
    bench = make_strict(make_connections, strangers_bytes_max=most)
    silent = [bench.connect(wait=False) for _ in range(200)]
    bench.until(lambda: bench.connections.statistics().opened == len(silent))
    slow = [bench.connect() for _ in range(40)]
    for client in slow:
        try:
            bench.feed(client, struct.pack(">i", 500 * KIB) + header_of(api_key=HANDSHAKE) + bytes(100 * KIB))
        except ConnectionError:
            continue
        assert bench.connections.statistics().budget_bytes_used <= most + 64 * KIB
        assert bench.connections.statistics().assembling_bytes <= most
    assert 0 < len(bench.closed) < len(slow)
    assert {reason for _id, reason, _errno in bench.closed} == {CloseReason.BUDGET}
    honest = bench.connect()
    honest.sendall(handshake())
    bench.connections.answer(bench.next_request(), b"welcome")
    assert bench.read_frame(honest) == b"welcome"


def test_who_holds_most_goes_and_not_who_comes_last(make_connections):
    bench = make_strict(make_connections, strangers_bytes_max=300 * KIB)
    greedy, modest, last = bench.connect(), bench.connect(), bench.connect()

    def send_most(client, kib):
        bench.feed(client, struct.pack(">i", kib * KIB) + header_of(api_key=HANDSHAKE) + bytes(kib * KIB - KIB))
        bench.turn()

    send_most(greedy, 200)
    send_most(modest, 40)
    assert not bench.closed
    send_most(last, 80)
    assert [connection for connection, *_why in bench.closed] == [id_of(bench, greedy)]
    for client in (modest, last):
        let_in(bench, client)
    bench.exchange(bench.connect(bench.listen()))


def test_what_is_decrypted_and_waits_is_held_by_strangers_too(make_connections, certificates):
    """In one record: a request that is being answered, and a long one behind it."""
    bench = make_strict(make_connections, strangers_bytes_max=64 * KIB)
    secure(bench.connections, 0, material_of(certificates))
    clients = [TlsClient(bench, bench.connect(), client_context(certificates)).shake_hands() for _ in range(8)]
    for client in clients:
        with contextlib.suppress(ConnectionError):
            client.send(handshake() + handshake(bytes(15 * KIB)))
    bench.until(lambda: len(bench.requests) + len(bench.closed) >= len(clients))
    assert {reason for _id, reason, _errno in bench.closed} == {CloseReason.BUDGET}
    assert len(bench.closed) < len(clients)


def test_who_is_let_in_holds_nothing_of_what_strangers_may(make_connections):
    bench = make_strict(make_connections, strangers_bytes_max=64 * KIB)
    clients = [bench.connect() for _ in range(8)]
    for client in clients:
        client.sendall(handshake())
        request = bench.next_request()
        let_in(bench, client)
        bench.connections.answer(request, b"welcome")
        bench.feed(client, struct.pack(">i", 100 * KIB) + header_of() + bytes(50 * KIB))
    stranger = bench.connect()
    bench.feed(stranger, handshake(bytes(10 * KIB)))
    assert bench.next_request().api_key == HANDSHAKE
    assert not bench.closed


def test_who_is_not_let_in_in_time_is_cut_off_whatever_it_does(make_connections):
    bench = make_strict(make_connections, authentication_ms_max=300)
    known = bench.connect()
    let_in(bench, known)
    silent, halting, busy = bench.connect(), bench.connect(), bench.connect()
    halting.sendall(handshake()[:3])
    busy.sendall(handshake())
    asked = bench.next_request()
    bench.until(lambda: len(bench.closed) == 3)
    assert {(connection, reason) for connection, reason, _errno in bench.closed} == {
        (id_of(bench, client), CloseReason.AUTHENTICATION_LATE) for client in (silent, halting, busy)
    }
    assert not bench.connections.answer(asked, b"too late")
    bench.exchange(known)


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_past_its_deadline_a_session_is_renewed_or_ends_with_the_next_request(make_connections):
    bench = make_strict(make_connections)
    renewed, ended = bench.connect(), bench.connect()
    for client in (renewed, ended):
        let_in(bench, client, deadline_ns=LONG_AGO_NS)
    for key in (HANDSHAKE, AUTHENTICATE):
        renewed.sendall(frame_of(b"again", api_key=key, api_version=1))
        request = bench.next_request()
        assert request.api_key == key
        if key == AUTHENTICATE:
            let_in(bench, renewed, deadline_ns=FOR_EVER_NS)
        bench.connections.answer(request, b"ok")
        assert bench.read_frame(renewed) == b"ok"
    bench.exchange(renewed)
    ended.sendall(frame_of(b"", api_key=API_VERSIONS, api_version=0))
    assert bench.next_closed() == (id_of(bench, ended), CloseReason.SESSION_OVER, 0)
    assert bench.read_end(ended)
    assert not bench.requests


def test_a_session_that_would_end_while_its_connection_is_muted_does_not(make_connections):
    """And not one that was over before."""
    bench = make_strict(make_connections)
    port = ClientQuotasOfConnections(bench.connections)
    for is_served in (True, False):
        client = bench.connect()
        port.mute(id_of(bench, client), 300)
        let_in(bench, client, deadline_ns=SystemClock.monotonic_ns() + 200_000_000 if is_served else LONG_AGO_NS)
        client.sendall(frame_of(b"sent meanwhile"))
        if is_served:
            request = bench.next_request()
            assert bytes(request.body) == b"sent meanwhile"
            bench.connections.answer_none(request)
        else:
            assert bench.next_closed()[1] == CloseReason.SESSION_OVER


def test_what_was_asked_in_time_is_answered(make_connections):
    bench = make_strict(make_connections)
    client = bench.connect()
    let_in(bench, client, deadline_ns=FOR_EVER_NS)
    client.sendall(frame_of(b"in time"))
    request = bench.next_request()
    let_in(bench, client, deadline_ns=LONG_AGO_NS)
    bench.connections.answer(request, b"answer")
    assert bench.read_frame(client) == b"answer"
    client.sendall(frame_of(b"too late"))
    assert bench.next_closed()[1] == CloseReason.SESSION_OVER


@pytest.mark.parametrize("pieces", [1, 2])
def test_nothing_is_appended_past_the_deadline(make_bench, pieces):
    bench = make_bench()
    bench.plane.set_hot(on=True)
    bench.connections.begin_in(0, Stage.SASL)
    handle = bench.lead("t")
    client = bench.connect()
    let_in(bench, client, deadline_ns=FOR_EVER_NS)
    assert bench.produce(client, ("t", 0, records_of(1))) == [(0, 0)]
    let_in(bench, client, deadline_ns=LONG_AGO_NS)
    frame = frame_of(produce_body([("t", 0, records_of(1))]), api_key=0, api_version=7)
    for position in range(0, len(frame), -(-len(frame) // pieces)):
        bench.feed(client, frame[position : position + -(-len(frame) // pieces)])
        bench.turn()
    assert bench.next_closed()[1] == CloseReason.SESSION_OVER
    assert bench.plane.state(handle).log_end_offset == 1
    assert not bench.left


# -- subjects ----------------------------------------------------------------------------------------------------------


def test_a_connection_has_the_number_that_it_was_let_in_with(make_connections):
    bench = make_strict(make_connections)
    client = bench.connect()
    connection, connections = id_of(bench, client), bench.connections
    assert connections.subject_number_of(connection) == 0
    let_in(bench, client, number=7)
    assert connections.subject_number_of(connection) == 7
    let_in(bench, client, number=2**32 - 1)
    assert connections.subject_number_of(connection) == 2**32 - 1
    assert connections.carried_subject(connection) is None, "it is no stream"
    client.close()
    bench.next_closed()
    assert connections.subject_number_of(connection) == 0
    assert not connections.let_in(connection, 1, 0, "User:alice", "127.0.0.1")
    assert not connections.expect_tokens(connection, on=True)


@pytest.mark.parametrize(
    ("number", "principal", "host"),
    [
        (0, "User:a", "h"),
        (1, "", "h"),
        (1, "User:" + "a" * 508, "h"),
        (1, "User:" + "ä" * 254, "h"),
        (1, "User:a", "h" * 65),
        (1, "User:a\nb", "h"),
        (1, "User:a", "h\x7f"),
        (1, "User:\0", "h"),
    ],
)
def test_nobody_is_let_in_by_a_name_that_cannot_be_told(make_connections, number, principal, host):
    bench = make_strict(make_connections)
    connection = id_of(bench, bench.connect())
    with pytest.raises(OSError) as refused:
        bench.connections.let_in(connection, number, 0, principal, host)
    assert refused.value.errno == errno.EINVAL
    assert bench.connections.subject_number_of(connection) == 0


def test_where_rights_are_asked_for_nobody_is_served_before_it_is_named(make_bench):
    bench = make_bench()
    bench.plane.set_hot(on=True)
    handle = bench.lead("t")
    before = bench.connect()
    bench.produce(before, ("t", 0, records_of(1)))
    bench.connections.require_subject(on=True)
    after = bench.connect()
    for client in (before, after):
        bench.send(client, [("t", 0, records_of(1))])
    for _ in range(5):
        bench.turn()
    assert bench.plane.state(handle).log_end_offset == 1
    assert bench.connections.statistics().requests == 1
    for client in (before, after):
        let_in(bench, client)
        assert bench.answer(client)[0][0] == 0
    assert bench.connections.statistics().requests_hot == 3
    bench.connections.require_subject(on=False)
    assert bench.produce(bench.connect(), ("t", 0, records_of(1))) == [(0, 3)]


@pytest.mark.parametrize("principal", ["User:" + "a" * 508, "User:a\nb"])
def test_who_has_a_name_that_cannot_be_told_is_closed_and_nobody_minds(make_connections, principal):
    """Such as the name in a certificate."""
    bench = make_strict(make_connections)
    connection = id_of(bench, bench.connect())
    faces = ClientConnections(bench.connections)
    kind, _, name = principal.partition(":")
    faces._access = SimpleNamespace(subject_of_number=lambda _number: Subject(Principal(kind, name), "127.0.0.1"))
    faces.let_in(connection, 1, 0)
    assert bench.next_closed()[:2] == (connection, CloseReason.AUTHENTICATION)
