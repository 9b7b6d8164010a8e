"""Answers that C gives out by itself: to exactly the same requests, in their order, until they are forgotten."""

from __future__ import annotations

import errno

import pytest

from tests.support.connection_bench import frame_of
from tests.support.plane_bench import PlaneBench, records_of
from tpc_broker._ring import ffi, lib

METADATA, API_VERSIONS = 3, 18
BODY = b"\0\0\0\0\1"


@pytest.fixture
def bench(tmp_path):
    bench = PlaneBench(tmp_path / "journal")
    bench.plane.set_hot(on=True)
    yield bench
    bench.shut()


def prepare(bench, answer, body=BODY, api_key=METADATA, api_version=1, listener=0, mark=0, connection=0):
    request, at = ffi.new("tpc_request *"), ffi.new("uint8_t[]", body)
    request.api_key, request.api_version, request.listener = api_key, api_version, listener
    request.connection = connection
    request.body, request.body_bytes = at, len(body)
    return lib.tpc_plane_prepare_answer(bench.plane.pointer, request, answer, len(answer), mark)


def ask(bench, client, body=BODY, **header):
    client.sendall(frame_of(body, **header))


def given(bench):
    return bench.plane.statistics()["prepared_answers"]


def reply_by_hand(request, bench):
    bench.connections.answer(request, request.correlation_id.to_bytes(4), b"by hand")


def test_the_same_request_is_answered_without_python_and_any_other_is_not(bench):
    bench.on_request = lambda request: reply_by_hand(request, bench)
    client, large = bench.connect(), bytes(range(256)) * 500
    assert prepare(bench, large) == 0
    ask(bench, client, correlation_id=7)
    assert bench.read_frame(client) == b"\0\0\0\7" + large
    for body, header in (
        (BODY + b"\0", {}), (BODY[:-1], {}), (b"\0\0\0\0\2", {}), (BODY, {"api_version": 2}), (BODY, {"api_key": 4})
    ):  # fmt: skip
        ask(bench, client, body, correlation_id=9, **header)
        assert bench.read_frame(client) == b"\0\0\0\x09by hand"
    assert given(bench) == 1


def test_who_it_is_makes_no_difference(bench):
    assert prepare(bench, b"all") == 0
    for name in (None, "", "somebody"):
        client = bench.connect()
        ask(bench, client, client_id=name)
        assert bench.read_frame(client)[4:] == b"all"
    assert given(bench) == 3


def test_a_connection_keeps_the_mark_of_what_it_was_given_last(bench):
    """That is how a client's software is known, which Python sees once for all who run it."""
    bench.on_request = lambda request: reply_by_hand(request, bench)
    assert prepare(bench, b"a", mark=2**32 - 1) == prepare(bench, b"b", BODY + b"b", mark=2) == 0
    assert prepare(bench, b"none", BODY + b"none") == 0
    asks, other = bench.connect(), bench.connect()
    for client, body, answer in ((asks, BODY, b"a"), (other, BODY + b"b", b"b"), (asks, BODY + b"none", b"none"),
                                 (other, b"?", b"by hand")):  # fmt: skip
        ask(bench, client, body)
        assert bench.read_frame(client)[4:] == answer
    marks, ids = bench.connections.mark_of, [connection for connection, *_told in bench.opened]
    assert list(map(marks, ids)) == [2**32 - 1, 2]
    assert prepare(bench, b"again", mark=3) == 0
    ask(bench, asks)
    assert bench.read_frame(asks)[4:] == b"again"
    assert list(map(marks, ids)) == [3, 2]
    assert marks(12345) == 0


def test_a_connection_has_the_mark_of_what_is_prepared_of_its_request(bench):
    """Also where the request is too long to be kept."""
    bench.on_request = bench.requests.append
    client = bench.connect()
    ask(bench, client)
    request = bench.next_request()
    connection = request.connection
    for mark, body, result in ((5, BODY, 0), (0, BODY, 0), (6, bytes(1_000), -errno.EMSGSIZE)):
        assert prepare(bench, b"a", body, mark=mark, connection=connection) == result
        assert bench.connections.mark_of(connection) == (mark or 5)
    reply_by_hand(request, bench)
    assert bench.read_frame(client)[4:] == b"by hand"


def test_who_came_to_another_listener_is_told_something_else(bench):
    """Metadata names addresses: those of one listener may be out of reach for clients of the other."""
    bench.on_request = lambda request: reply_by_hand(request, bench)
    outside = bench.listen()
    near, far = bench.connect(), bench.connect(outside)
    assert prepare(bench, b"near") == 0
    for client, answer in ((far, b"by hand"), (near, b"near")):
        ask(bench, client)
        assert bench.read_frame(client)[4:] == answer
    assert prepare(bench, b"far", listener=1) == 0
    for client, answer in ((far, b"far"), (near, b"near"), (far, b"far")):
        ask(bench, client)
        assert bench.read_frame(client)[4:] == answer
    lib.tpc_plane_forget_answers(bench.plane.pointer, METADATA)
    for client in (far, near):
        ask(bench, client)
        assert bench.read_frame(client)[4:] == b"by hand"


def test_answers_keep_the_order_of_their_connection(bench):
    """What stands behind a request that Python has is not answered before it."""
    bench.lead("t")
    bench.on_request = bench.requests.append
    assert prepare(bench, b"prepared") == 0
    client = bench.connect()
    bench.send(client, [("t", 0, records_of(1))], correlation_id=1)
    ask(bench, client, correlation_id=2)
    ask(bench, client, b"to Python", correlation_id=3)
    ask(bench, client, correlation_id=4)
    first = bench.next_request()
    second = bench.next_request()
    assert (first.correlation_id, second.correlation_id) == (3, 4)
    reply_by_hand(second, bench)
    reply_by_hand(first, bench)
    ask(bench, client, correlation_id=5)
    answered = [bench.read_frame(client) for _ in range(5)]
    assert [int.from_bytes(answer[:4]) for answer in answered] == [1, 2, 3, 4, 5]
    assert answered[1][4:] == answered[4][4:] == b"prepared"
    assert answered[2][4:] == answered[3][4:] == b"by hand"


def test_what_is_forgotten_or_replaced_is_given_to_nobody_who_asks_later(bench):
    bench.on_request = lambda request: reply_by_hand(request, bench)
    client = bench.connect()
    assert prepare(bench, b"old" * 100_000) == 0
    ask(bench, client, correlation_id=1)
    bench.until(lambda: given(bench) == 1)  # and is still being sent
    assert prepare(bench, b"new") == 0
    ask(bench, client, correlation_id=2)
    assert bench.read_frame(client)[4:] == b"old" * 100_000
    assert bench.read_frame(client)[4:] == b"new"
    assert prepare(bench, b"versions", api_key=API_VERSIONS) == 0
    lib.tpc_plane_forget_answers(bench.plane.pointer, METADATA)
    ask(bench, client)
    assert bench.read_frame(client)[4:] == b"by hand"
    ask(bench, client, api_key=API_VERSIONS)
    assert bench.read_frame(client)[4:] == b"versions"


def test_there_are_so_many_of_an_api_and_the_oldest_goes(bench):
    bench.on_request = lambda request: reply_by_hand(request, bench)
    client = bench.connect()
    assert prepare(bench, b"metadata") == 0
    for number in range(40):
        assert prepare(bench, b"%d" % number, body=b"body %d" % number, api_key=API_VERSIONS) == 0
    for number in (0, 23):
        ask(bench, client, b"body %d" % number, api_key=API_VERSIONS)
        assert bench.read_frame(client)[4:] == b"by hand"
    for number in (24, 39):
        ask(bench, client, b"body %d" % number, api_key=API_VERSIONS)
        assert bench.read_frame(client)[4:] == b"%d" % number
    ask(bench, client)
    assert bench.read_frame(client)[4:] == b"metadata"


def test_what_cannot_be_kept_is_refused_and_changes_nothing(bench):
    bench.on_request = bench.requests.append
    assert prepare(bench, b"x", body=bytes(129)) == -errno.EMSGSIZE
    bytes_max, bench.connections.budget.bytes_max = bench.connections.budget.bytes_max, 0
    assert prepare(bench, b"x") == -errno.ENOBUFS
    bench.connections.budget.bytes_max = bytes_max
    for api_key in range(100, 104):
        for number in range(16):
            assert prepare(bench, b"x", body=b"%d" % number, api_key=api_key) == 0
    assert prepare(bench, b"x") == -errno.ENOBUFS
    client = bench.connect()
    ask(bench, client)
    assert bench.next_request().body == BODY


def test_clients_that_do_not_read_cost_no_memory(bench):
    """The frame is shared: what grows is a header for each answer."""
    assert prepare(bench, bytes(1 << 20)) == 0
    clients = [bench.connect() for _ in range(10)]
    before = bench.connections.statistics().budget_bytes_used
    for client in clients:
        client.sendall(frame_of(BODY) * 20)
    bench.until(lambda: given(bench) == 200)
    assert bench.connections.statistics().budget_bytes_used - before < 1 << 20
