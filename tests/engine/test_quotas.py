"""Clients above a quota: what they are told, that their connections take nothing meanwhile, and that others do.

Shown by the order of what happens: a mute of days is not over while a test runs, and a short one is at some
time.
"""

from __future__ import annotations

import os
import socket
import struct
from types import SimpleNamespace

import pytest

from tests.engine.test_quota_counting import Table
from tests.support.bench_world import SimulatedWorld
from tests.support.connection_bench import Bench, frame_of
from tests.support.plane_bench import PlaneBench, produce_body, read_produce_answer, records_of
from tpc_broker._ring import lib
from tpc_broker.auth.principals import USER, Principal, Subject
from tpc_broker.broker.quotas_port import QuotaRow
from tpc_broker.engine.client_connections import ClientConnections
from tpc_broker.engine.connections import ConnectionLimits
from tpc_broker.engine.fetches import fetch_statistics
from tpc_broker.engine.quotas import NODE_BUCKETS, ClientQuotasOfConnections, make_node_table, quota_statistics
from tpc_broker.engine.ring import HIDE_VARIABLE

PRODUCE, FETCH, METADATA = 0, 1, 3
SLOW, FAST = 1e-4, 1e15
WINDOWS = (11, 1.0)
FOR_LONG = 100_000
"""A throttle time, in ms, that no test sees the end of."""


def quotas(bench, *rows, addresses=None):
    port = ClientQuotasOfConnections(bench.connections)
    port.set_quotas(WINDOWS, list(rows), addresses or {})
    return port


def row(user=None, client_id=None, *, produce=0.0, fetch=0.0, percent=0.0):
    return QuotaRow(user, client_id, produce, fetch, percent)


def produce_frame(topic="t", *, client_id="c", correlation_id=1, count=1, acks=-1):
    body = produce_body([(topic, 0, records_of(count))], acks=acks)
    return frame_of(body, api_key=PRODUCE, api_version=7, correlation_id=correlation_id, client_id=client_id)


def fetch_frame(offset=0, *, client_id="c", correlation_id=1, epoch=-1, session=0, wait_ms=0):
    """Version 7, of topic t."""
    body = struct.pack(">iiiibii", -1, wait_ms, 1, 1 << 20, 0, session, epoch)
    body += struct.pack(">i", 1) + struct.pack(">h", 1) + b"t" + struct.pack(">i", 1)
    body += struct.pack(">iqqi", 0, offset, -1, 1 << 20) + struct.pack(">i", 0)
    return frame_of(body, api_key=FETCH, api_version=7, correlation_id=correlation_id, client_id=client_id)


def throttle_of_produce(answer):
    return int.from_bytes(answer[-4:], "big")


def fetched(answer):
    """Throttle time, error, session and how many topics."""
    return struct.unpack_from(">ihii", answer, 4)


@pytest.fixture
def bench(tmp_path):
    bench = PlaneBench(tmp_path / "journal")
    bench.plane.set_hot(on=True)
    bench.lead("t")
    yield bench
    bench.shut()


def is_taken(bench, client, frame):
    """Whether a request is looked at: another connection's, sent later, is answered meanwhile."""
    before = bench.connections.statistics().requests
    client.sendall(frame)
    other = bench.connect()
    for _ in range(5):
        other.sendall(produce_frame(client_id="bystander"))
        bench.read_frame(other)
    return bench.connections.statistics().requests - before > 5


def test_a_producer_above_its_quota_is_told_at_once_and_takes_nothing_more(bench):
    quotas(bench, row(client_id="c", produce=SLOW))
    client = bench.connect()
    client.sendall(produce_frame(correlation_id=7))
    answer = bench.read_frame(client)
    assert answer[:4] == b"\0\0\0\7"
    assert throttle_of_produce(answer) > FOR_LONG
    assert not is_taken(bench, client, produce_frame())
    found = quota_statistics(bench.connections)
    assert (found["produce_throttled"], found["muted"]) == (1, 1)


def test_what_was_received_behind_it_waits_as_well(bench):
    quotas(bench, row(client_id="c", produce=SLOW))
    client = bench.connect()
    before = bench.connections.statistics().requests
    client.sendall(produce_frame(correlation_id=1) + produce_frame(correlation_id=2) * 20)
    assert throttle_of_produce(bench.read_frame(client)) > FOR_LONG
    assert not is_taken(bench, client, produce_frame())
    assert bench.connections.statistics().requests - before == 1 + 5


def test_a_mute_ends_when_its_time_has_come_and_what_waited_is_answered(bench):
    """At once as much as eleven seconds allow, of which ten to eleven count: it is a second or so."""
    client, frame = bench.connect(), produce_frame(count=100)
    quotas(bench, row(client_id="c", produce=len(frame) / 11.05))
    client.sendall(frame)
    first = bench.read_frame(client)
    client.sendall(produce_frame(correlation_id=9))
    assert throttle_of_produce(first) > 0
    assert bench.read_frame(client)[:4] == b"\0\0\0\x09"
    assert not bench.closed


def test_neither_other_quotas_nor_none_end_a_mute(bench):
    quotas(bench, row(client_id="c", produce=SLOW))
    client = bench.connect()
    client.sendall(produce_frame())
    bench.read_frame(client)
    quotas(bench, row(client_id="c", produce=FAST))
    quotas(bench)
    assert not is_taken(bench, client, produce_frame())
    bench.connections.close(bench.opened[0][0])
    bench.next_closed()
    assert quota_statistics(bench.connections)["muted"] == 0


def test_without_acknowledgement_it_is_muted_without_a_word(bench):
    quotas(bench, row(client_id="c", produce=SLOW))
    client = bench.connect()
    assert is_taken(bench, client, produce_frame(acks=0))
    assert not is_taken(bench, client, produce_frame(acks=0))


def test_another_client_id_each_time_does_not_get_around_the_quota_of_the_user(bench):
    """Attempt 110."""
    port = quotas(bench, row(user="u", produce=30.0))
    told = []
    for number in range(60):
        client = bench.connect()
        port.set_user(bench.opened[-1][0], "u")
        client.sendall(produce_frame(client_id=f"c{number}"))
        told.append(throttle_of_produce(bench.read_frame(client)))
    assert told[0] == 0
    assert told[-1] > told[-2] > 0
    stranger = bench.connect()
    stranger.sendall(produce_frame(client_id="c0"))
    assert throttle_of_produce(bench.read_frame(stranger)) == 0


def test_whoever_is_let_in_has_the_quotas_of_its_name(bench):
    faces = ClientConnections(bench.connections)
    faces._access = SimpleNamespace(subject_of_number=lambda _number: Subject(Principal(USER, "u"), "127.0.0.1"))
    faces.set_quotas(WINDOWS, [row(user="u", produce=SLOW)], {})
    client = bench.connect()
    for is_throttled in (False, True):
        client.sendall(produce_frame())
        assert (throttle_of_produce(bench.read_frame(client)) > 0) == is_throttled
        faces.let_in(bench.opened[0][0], 1, 0)


def test_on_one_connection_too(bench):
    port = quotas(bench, row(user="u", client_id="c1", produce=FAST), row(user="u", produce=SLOW))
    client = bench.connect()
    port.set_user(bench.opened[-1][0], "u")
    for name, is_throttled in (("c1", False), ("c1", False), ("c2", True)):
        client.sendall(produce_frame(client_id=name))
        assert (throttle_of_produce(bench.read_frame(client)) > 0) == is_throttled


@pytest.mark.parametrize(
    ("rows", "is_throttled"),
    [
        ([row(user="ANONYMOUS", produce=SLOW)], True),
        ([row(user="other", produce=SLOW)], False),
        ([row(user="", produce=SLOW)], True),
        ([row(client_id="", produce=SLOW)], True),
        ([row(user="ANONYMOUS", client_id="c", produce=FAST), row(user="ANONYMOUS", produce=SLOW)], False),
        ([row(user="ANONYMOUS", client_id="", produce=FAST), row(user="ANONYMOUS", produce=SLOW)], False),
        ([row(user="ANONYMOUS", produce=FAST), row(user="", client_id="c", produce=SLOW)], False),
        ([row(user="", client_id="c", produce=FAST), row(user="", client_id="", produce=SLOW)], False),
        ([row(user="", client_id="", produce=FAST), row(user="", produce=SLOW)], False),
        ([row(user="", produce=FAST), row(client_id="c", produce=SLOW)], False),
        ([row(client_id="c", produce=FAST), row(client_id="", produce=SLOW)], False),
        ([row(user="ANONYMOUS", fetch=SLOW), row(client_id="c", produce=SLOW)], True),  # each kind on its own
    ],
)
def test_the_first_in_kafkas_order_counts(bench, rows, is_throttled):
    quotas(bench, *rows)
    client = bench.connect()
    client.sendall(produce_frame())
    assert (throttle_of_produce(bench.read_frame(client)) > 0) == is_throttled


def test_a_consumer_above_its_quota_gets_an_empty_answer_and_waits(bench):
    client = bench.connect()
    client.sendall(produce_frame(client_id="writer"))
    bench.read_frame(client)
    quotas(bench, row(client_id="c", fetch=SLOW))
    reader = bench.connect()
    reader.sendall(fetch_frame(correlation_id=3))
    throttle_ms, error, session, topics = fetched(bench.read_frame(reader))
    assert (throttle_ms, error, session, topics) == (0, 0, 0, 1), "it was not above it before"
    reader.sendall(fetch_frame(correlation_id=4))
    throttle_ms, error, session, topics = fetched(bench.read_frame(reader))
    assert (throttle_ms > FOR_LONG, error, session, topics) == (True, 0, 0, 0)
    assert not is_taken(bench, reader, fetch_frame())
    assert quota_statistics(bench.connections)["fetch_throttled"] == 1


def test_a_throttled_fetch_begins_no_session_and_one_that_there_is_goes_on(bench):
    client = bench.connect()
    client.sendall(produce_frame(client_id="writer"))
    bench.read_frame(client)
    readers = [bench.connect(), bench.connect()]
    readers[0].sendall(fetch_frame(epoch=0))
    _throttle, _error, session, _topics = fetched(bench.read_frame(readers[0]))
    assert session
    quotas(bench, row(client_id="c", fetch=SLOW))
    readers[0].sendall(fetch_frame(epoch=1, session=session))
    bench.read_frame(readers[0])
    readers[0].sendall(fetch_frame(epoch=2, session=session))
    throttle_ms, error, told, topics = fetched(bench.read_frame(readers[0]))
    assert (throttle_ms > 0, error, told, topics) == (True, 0, session, 0)
    readers[1].sendall(fetch_frame(epoch=0))
    throttle_ms, error, told, topics = fetched(bench.read_frame(readers[1]))
    assert (throttle_ms > 0, error, told, topics) == (True, 0, 0, 0)
    quotas(bench)
    readers.append(bench.connect())
    readers[2].sendall(fetch_frame(epoch=3, session=session))
    assert fetched(bench.read_frame(readers[2]))[1] == 0, "the session has counted the throttled ones"


def test_time_in_c_counts_and_a_mute_for_it_is_a_second_at_most(bench):
    quotas(bench, row(client_id="c", percent=1e-9))
    client = bench.connect()
    client.sendall(produce_frame())
    assert throttle_of_produce(bench.read_frame(client)) == 0
    client.sendall(produce_frame())
    assert throttle_of_produce(bench.read_frame(client)) == 1000
    client.sendall(produce_frame(correlation_id=5))
    assert bench.read_frame(client)[:4] == b"\0\0\0\5", "that is over at some time"


def test_time_in_python_counts_and_its_answer_is_python_s_to_make(make_connections):
    bench = make_connections()
    port = quotas(bench, row(client_id="c", percent=1.0))
    client = bench.connect()
    client.sendall(frame_of(b"", api_key=METADATA, client_id="c"))
    request = bench.next_request()
    assert request.throttle_ms == 0
    bench.connections.answer_none(request)
    port.spent(request.connection, "other", 10**15)
    port.spent(request.connection, "c", 10**9)
    client.sendall(frame_of(b"", api_key=METADATA, client_id="c"))
    request = bench.next_request()
    assert request.throttle_ms == 1000
    bench.connections.answer_none(request)


def test_what_was_decided_elsewhere_mutes_too_and_a_shorter_one_changes_nothing(make_connections):
    bench = make_connections()
    client = bench.connect()
    port = ClientQuotasOfConnections(bench.connections)
    port.mute(bench.opened[0][0], 10**8)
    port.mute(bench.opened[0][0], 1)
    assert quota_statistics(bench.connections)["muted"] == 1
    client.sendall(frame_of(b""))
    other = bench.connect()
    bench.exchange(other)
    assert not bench.requests
    port.mute(12345, 10)


def those_of_mutes_that_end(bench, order):
    """Of twenty clients these are muted, each for longer than the one before. What they have sent, as it comes."""
    clients = [bench.connect() for _ in range(20)]
    port = ClientQuotasOfConnections(bench.connections)
    for place, number in enumerate(order):
        port.mute(bench.opened[number][0], 10 + 40 * place)
    for number in reversed(order):
        clients[number].sendall(frame_of(b"%d" % number))
    bench.world.let_arrive()
    found = [int(bytes(bench.next_request().body)) for _ in order]
    assert quota_statistics(bench.connections)["muted"] == 0
    return found


MUTED = [7, 3, 12, 0, 19, 5]


def test_many_mutes_end(make_connections):
    """A machine that pauses has several end in one turn, and receives from them in any order."""
    assert sorted(those_of_mutes_that_end(make_connections(), MUTED)) == sorted(MUTED)


@pytest.mark.parametrize("hidden", ["", "5.8"])
def test_many_mutes_end_in_the_order_of_their_ends(hidden, monkeypatch):
    monkeypatch.setenv(HIDE_VARIABLE, hidden)
    with SimulatedWorld():
        bench = Bench(ConnectionLimits())
        assert those_of_mutes_that_end(bench, MUTED) == MUTED
        bench.close()


def test_connections_of_an_address_above_its_quota_are_refused_and_others_are_not(make_connections):
    bench = make_connections()
    quotas(bench, addresses={"127.0.0.1": 0.3, "no.address": 1.0, None: 1000.0})

    def comes(source):
        client = socket.create_connection(bench.address, source_address=(source, 0))
        before = bench.connections.statistics().opened, quota_statistics(bench.connections)["connection_throttled"]
        bench.until(
            lambda: (
                bench.connections.statistics().opened, quota_statistics(bench.connections)["connection_throttled"]
            )
            != before
        )
        bench.clients.append(client)
        return bench.connections.statistics().opened > before[0]

    assert [comes("127.0.0.1") for _ in range(6)] == [True] * 4 + [False] * 2
    assert comes("127.0.0.2")
    statistics = bench.connections.statistics()
    assert (statistics.refused, statistics.refused_per_ip) == (0, 0), "that is for the bounds of connections"


def test_cores_that_share_a_listener_count_its_clients_together(tmp_path):
    benches = [PlaneBench(tmp_path / f"journal{number}") for number in range(2)]
    table = make_node_table()
    for bench in benches:
        bench.plane.set_hot(on=True)
        bench.lead("t")
        bench.listen()
    ports = [quotas(bench, row(client_id="c", produce=12.0)) for bench in benches]
    for port in ports:
        port.share_quotas(table, [1])

    def told(bench, address):
        client = bench.connect(address)
        client.sendall(produce_frame())
        return throttle_of_produce(bench.read_frame(client))

    shared = [bench.more_listeners[0].getsockname() for bench in benches]
    assert told(benches[0], shared[0]) == 0
    assert told(benches[1], shared[1]) > 0, "what the other core has counted"
    assert told(benches[1], benches[1].address) == 0, "a listener of its own is a broker of its own"
    for bench in benches:
        bench.shut()
    os.close(table)
    assert NODE_BUCKETS * 264 < lib.tpc_quota_table_bytes(NODE_BUCKETS) < 5 << 20


def share_small(bench, buckets):
    """Count clients of the bench in a table with so many places."""
    table = Table(buckets)
    assert lib.tpc_quotas_share(bench.connections.pointer, table.memory, table.size, 1) == 0
    return table


def test_whom_made_up_names_left_no_place_waits_a_window_and_has_one_when_they_are_gone(bench):
    quotas(bench, row(client_id="", produce=SLOW))
    table = share_small(bench, 2)
    places = {table.bucket(b"%d" % number, now_ns=0)[0] for number in range(100)}
    for number in range(2):
        flood = bench.connect()
        flood.sendall(produce_frame(client_id=f"made up {number}"))
        assert throttle_of_produce(bench.read_frame(flood)) > FOR_LONG
    clients = [bench.connect(), bench.connect()]
    for client in clients:
        client.sendall(produce_frame())
        assert throttle_of_produce(bench.read_frame(client)) == 1000
    for bucket in places:
        bucket.cells = [0] * 32
    for client in clients:
        client.sendall(produce_frame())
        assert throttle_of_produce(bench.read_frame(client)) > FOR_LONG, "that is its own"


def test_a_fetch_that_waited_is_not_counted_to_who_has_its_place_by_now(bench):
    quotas(bench, row(client_id="reader", fetch=FAST), row(client_id="writer", produce=FAST))
    table = share_small(bench, 1)
    reader, writer = bench.connect(), bench.connect()
    reader.sendall(fetch_frame(client_id="reader", wait_ms=FOR_LONG))
    bench.until(lambda: fetch_statistics(bench.plane.pointer).parked_now)
    frame = produce_frame(client_id="writer")
    writer.sendall(frame)
    bench.read_frame(writer)
    assert fetched(bench.read_frame(reader))[1] == 0
    bucket, _key = table.bucket(client=b"reader", user=b"", kind=lib.TPC_QUOTA_FETCH, now_ns=0)
    used = sorted(cell & (2**40 - 1) for cell in bucket.cells)
    assert used[-2:] == [0, len(frame) - 4]


def test_no_quota_leaves_the_shortest_way(bench):
    client = bench.connect()
    client.sendall(produce_frame())
    bench.read_frame(client)
    quotas(bench, row(client_id="other", produce=SLOW))
    client.sendall(produce_frame())
    assert throttle_of_produce(bench.read_frame(client)) == 0
    assert bench.connections.statistics().requests_hot == 2


def test_of_what_other_cores_answer_the_core_that_the_client_came_to_tells_and_mutes(node):
    """A stream has no quota: its link carries others' requests, too. The owner's answer says nothing of it."""
    node.make("t", [1])
    node.make("u", [0, 1])
    front, owner = node.cores
    for core in node.cores:
        quotas(core, row(client_id="c", produce=SLOW, fetch=SLOW))
    for parts in ([("t", 0, records_of(1))], [("u", 0, records_of(1)), ("u", 1, records_of(1))]):
        client = front.connect()
        body = produce_body(parts)
        client.sendall(frame_of(body, api_key=PRODUCE, api_version=7, correlation_id=6, client_id="c"))
        answer = front.read_frame(client)
        assert throttle_of_produce(answer) > FOR_LONG
        correlation_id, told = read_produce_answer(answer)
        assert (correlation_id, [(topic, index, error) for topic, index, error, *_rest in told]) == (
            6, [(topic, index, 0) for topic, index, _records in parts]
        )  # fmt: skip
        assert not is_taken(front, client, produce_frame())
    assert quota_statistics(owner.connections)["produce_throttled"] == 0
    assert quota_statistics(front.connections)["muted"] == 2
    for expected in (0, 1):
        reader = front.connect()
        reader.sendall(fetch_frame(client_id="c"))
        throttle_ms, error, _session, topics = fetched(front.read_frame(reader))
        assert (throttle_ms > FOR_LONG, error, topics) == (bool(expected), 0, 1 - expected)
    other = front.connect()
    other.sendall(fetch_frame(client_id="bystander"))
    assert fetched(front.read_frame(other))[0] == 0
