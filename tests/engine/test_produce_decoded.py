"""How often a Produce is decoded: once when C takes it, at most twice when C leaves it, however often it is tried."""

import uuid

import pytest

from tests.support.connection_bench import frame_of
from tests.support.plane_bench import produce_body, records_of, settings_with
from tests.support.plane_values import Left, PartitionFlag, Verdict
from tpc_broker._ring import lib
from tpc_broker.broker.ports import ProduceFallback
from tpc_broker.engine.produces import asked_produce
from tpc_broker.error_codes import ErrorCode as E
from tpc_broker.kafka.errors import DecodeError

TRIES = 5


def decoded(bench):
    return bench.plane.statistics()["produces_decoded"]


def asked(bench, request):
    return asked_produce(bench.plane.pointer, request)


def left_request(bench, client, parts, *, pieces):
    """A request that C has left inside the wait, or that came without C being asked when it is not hot."""
    came = []
    bench.on_request = came.append
    frame = frame_of(produce_body(parts), api_key=0, api_version=7)
    if pieces:
        client.sendall(frame[:20])
        for _ in range(3):
            bench.turn(1)
        frame = frame[20:]
    client.sendall(frame)
    bench.until(lambda: came)
    return came.pop()


@pytest.mark.parametrize(
    ("hot", "pieces", "in_the_wait", "in_all"),
    [
        pytest.param(True, False, 1, 2, id="where it was received, then in its own frame"),
        pytest.param(True, True, 1, 1, id="in its own frame"),
        pytest.param(False, False, 0, 1, id="by Python only"),
    ],
)
def test_what_is_left_is_decoded_twice_at_most(bench, hot, pieces, in_the_wait, in_all):
    handle = bench.lead("t", settings=settings_with(PartitionFlag.PYTHON_VALIDATES), bytes_admitted=0)
    client = bench.connect()
    bench.plane.set_hot(on=hot)
    records = records_of(1)
    request = left_request(bench, client, [("t", 0, records), ("nowhere", 3, b"")], pieces=pieces)
    assert decoded(bench) == in_the_wait
    assert request.fallback_reason == (Left.PYTHON_VALIDATES if hot else Left.NONE)
    for _ in range(TRIES):
        found = asked(bench, request)
        assert found.timeout_ms == 30_000
        assert [part[:2] for part in found.parts] == [("t", 0), ("nowhere", 3)]
        first, second = (request.body[place : place + size] for _topic, _partition, place, size in found.parts)
        assert (first, second) == (records, b"")
        assert not bench.plane.produce_with(request, [Verdict(), Verdict(E.UNKNOWN_TOPIC_OR_PARTITION)])
        assert bench.plane.fallback_reason is Left.NOT_ADMITTED
    bench.plane.admit(handle, 1 << 20)
    assert bench.plane.produce_with(request, [Verdict(), Verdict(E.UNKNOWN_TOPIC_OR_PARTITION)])
    assert bench.answer(client) == [(E.NONE, 0), (E.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    assert decoded(bench) == in_all


def test_what_is_taken_is_decoded_once(bench):
    bench.lead("t")
    bench.plane.set_hot(on=True)
    client = bench.connect()
    for number in range(TRIES):
        assert bench.produce(client, ("t", 0, records_of(1))) == [(E.NONE, number)]
    assert decoded(bench) == TRIES


def test_a_taken_request_behind_one_that_was_left_where_it_lay_has_no_reason(bench):
    bench.lead("t")
    bench.plane.set_hot(on=True)
    client = bench.connect()
    request = left_request(bench, client, [("nowhere", 0, records_of(1))], pieces=False)
    assert request.fallback_reason == Left.UNKNOWN
    assert bench.plane.produce_with(request, [Verdict(E.UNKNOWN_TOPIC_OR_PARTITION)])
    assert bench.answer(client) == [(E.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    assert bench.produce(client, ("t", 0, records_of(1))) == [(E.NONE, 0)]
    assert bench.connections.statistics().requests_hot == 1
    fetch = left_request(bench, client, [("t", 1, records_of(1))], pieces=True)
    assert fetch.fallback_reason == Left.UNKNOWN, "and its own, when it has one"


def test_what_is_kept_is_charged_to_the_budget_and_given_back(bench):
    client = bench.connect()
    request = left_request(bench, client, [(f"t{number}", number, b"") for number in range(100)], pieces=False)
    budget = bench.connections.budget
    frames, used = budget.frames, budget.bytes_used
    assert len(asked(bench, request).parts) == 100
    assert budget.frames == frames + 1
    assert budget.bytes_used - used > 100 * 40
    bench.connections.answer_none(request)
    assert (budget.frames, budget.bytes_used) <= (frames, used)


def test_without_memory_to_keep_it_in_it_is_decoded_each_time(bench):
    client = bench.connect()
    request = left_request(bench, client, [("t", 0, records_of(1))], pieces=False)
    budget = bench.connections.budget
    room = lib.tpc_frame_new_forced(budget, budget.bytes_max)
    frames = budget.frames
    for number in range(TRIES):
        assert asked(bench, request).parts[0].topic == "t"
        assert decoded(bench) == 1 + number
    assert budget.frames == frames
    lib.tpc_frame_release(room)
    for _ in range(TRIES):
        assert asked(bench, request).parts[0].topic == "t"
    assert decoded(bench) == TRIES + 1


def test_why_it_cannot_be_had(make_bench):
    bench = make_bench()
    client = bench.connect()
    came = []
    bench.on_request = came.append
    body = produce_body([("t", 0, records_of(1))])
    too_many = produce_body([("t", 0, b"")] * 10_001)
    no_text = produce_body([("tt", 0, b"")]).replace(b"tt", b"\xff\xfe")
    for sent, version in ((body[:-1], 7), (body, 2), (too_many, 7), (no_text, 7)):
        client.sendall(frame_of(sent, api_key=0, api_version=version))
    bench.until(lambda: len(came) == 4)
    reasons = [asked(bench, request) for request in came[:3]]
    assert reasons == [ProduceFallback.MALFORMED, ProduceFallback.VERSION, ProduceFallback.TOO_MANY]
    with pytest.raises(DecodeError, match="name of a topic"):
        asked(bench, came[3])


def test_topics_by_id(bench):
    client = bench.connect()
    came = []
    bench.on_request = came.append
    topic_id, records = bytes(range(16)), records_of(1)
    part = (5).to_bytes(4) + bytes([len(records) + 1]) + records + b"\0"
    body = b"\0" + (1).to_bytes(2) + (9).to_bytes(4) + b"\2" + topic_id + b"\2" + part + b"\0" + b"\0"
    assert len(records) < 127
    client.sendall(frame_of(b"\0" + body, api_key=0, api_version=13))
    bench.until(lambda: came)
    ((topic, partition, place, size),), timeout_ms, transactional_id = asked(bench, came[0])
    assert (topic, partition, timeout_ms, transactional_id) == (uuid.UUID(bytes=topic_id), 5, 9, None)
    assert came[0].body[place : place + size] == records
