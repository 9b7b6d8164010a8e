"""Rights in C: what is not granted is not done, what is refused costs Python one decision, and rules that change count
at once, also for who waits.
"""

import errno
import uuid

import pytest

from tests.engine.test_datagrams import Port
from tests.engine.test_plane_fetch import LONG_MS, asks, parts_of, read_answer, values_of
from tests.engine.test_prepared import ask, given, prepare
from tests.support.allocated import allocated_bytes
from tests.support.grant_bench import ALICE, BOB, READ, TRANSACT, WRITE, GrantBench
from tests.support.plane_bench import records_of, topic_id_of
from tests.support.plane_values import Left, PartitionFlag, Verdict
from tests.support.record_batches import TRANSACTIONAL
from tpc_broker._ring import ffi, lib
from tpc_broker.error_codes import ErrorCode as E

REFUSED = (E.TOPIC_AUTHORIZATION_FAILED, -1)
API_VERSIONS = 18
LARGE = bytes(100_000)
"""More than comes in one piece: such a request has a frame of its own."""


@pytest.fixture
def bench(tmp_path):
    bench = GrantBench(tmp_path / "journal", region_blocks=1024)
    yield bench
    bench.shut()


@pytest.fixture
def alice(bench):
    return bench.connect_as(ALICE)


@pytest.fixture
def bob(bench):
    return bench.connect_as(BOB)


def wait_parked(bench, count):
    bench.until(lambda: bench.fetch_counts().parked_now == count)


def end_of(bench, handle):
    return bench.plane.state(handle).log_end_offset


# -- produce -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"value", LARGE], ids=["in place", "in a frame"])
def test_who_may_write_is_decided_once_and_then_known(bench, alice, value):
    handle = bench.make("t")
    bench.change(add=[(ALICE, WRITE, "t")])
    for offset in range(5):
        assert bench.produce(alice, ("t", 0, records_of(1, value=value))) == [(E.NONE, offset)]
    assert bench.decided == [(ALICE, WRITE, "t", True)]
    assert (end_of(bench, handle), bench.counts().refused_produces) == (5, 0)


@pytest.mark.parametrize("value", [b"value", LARGE], ids=["in place", "in a frame"])
def test_who_may_not_write_is_refused_by_c_and_costs_python_one_decision(bench, alice, value):
    handle = bench.make("t")
    for _ in range(100 if value != LARGE else 5):
        assert bench.produce(alice, ("t", 0, records_of(1, value=value))) == [REFUSED]
    assert bench.decided == [(ALICE, WRITE, "t", False)]
    assert end_of(bench, handle) == 0


def test_a_right_is_of_one_subject_one_topic_and_one_kind(bench, alice, bob):
    bench.make("t"), bench.make("u")
    bench.change(add=[(ALICE, WRITE, "t"), (BOB, READ, "t"), (BOB, WRITE, "u")])
    for _ in range(3):  # each takes the other's place in the partition
        assert bench.produce(alice, ("t", 0, records_of(1)), ("u", 0, records_of(1)))[1] == REFUSED
        assert bench.produce(bob, ("t", 0, records_of(1)), ("u", 0, records_of(1)))[0] == REFUSED
        assert [part["ErrorCode"] for part in parts_of(bench.fetch(alice, 12, asks(("t", 0, 0))))] == [REFUSED[0]]
        assert values_of(parts_of(bench.fetch(bob, 12, asks(("t", 0, 0))))[0])
    assert len(bench.decided) == len(set(bench.decided)) == 6


def test_of_a_request_only_what_is_allowed_is_written(bench, alice):
    handles = [bench.make(topic) for topic in "tuv"]
    bench.change(add=[(ALICE, WRITE, "t"), (ALICE, WRITE, "v")])
    parts = [(topic, 0, records_of(2)) for topic in "tuv"]
    assert bench.produce(alice, *parts) == [(E.NONE, 0), REFUSED, (E.NONE, 0)]
    assert [end_of(bench, handle) for handle in handles] == [2, 0, 2]


def test_what_is_not_decided_is_not_done(bench, alice):
    handle, bench.decides = bench.make("t"), False
    bench.send(alice, [("t", 0, records_of(1))])
    bench.until(lambda: bench.left)
    ((why, request),) = bench.left
    assert why is Left.AUTHORIZE
    assert not bench.plane.produce_with(request, [Verdict()]), "that Python says nothing against it grants nothing"
    assert bench.plane.fallback_reason is Left.AUTHORIZE
    assert end_of(bench, handle) == 0
    assert bench.plane.produce_with(request, [Verdict(error_code=E.TOPIC_AUTHORIZATION_FAILED)])
    assert bench.answer(alice) == [REFUSED]


def test_acks_0_that_is_refused_closes_its_connection(bench, alice):
    handle = bench.make("t")
    bench.send(alice, [("t", 0, records_of(1))], acks=0)
    bench.next_closed()
    assert end_of(bench, handle) == 0


def test_rules_that_change_count_for_the_rest_of_a_burst(bench, alice):
    """Attempt 68: what comes behind the change is refused, though all of it was sent before."""
    handle = bench.make("t")
    bench.change(add=[(ALICE, WRITE, "t")])
    assert bench.produce(alice, ("t", 0, records_of(1))) == [(E.NONE, 0)]
    seen, offer = [], bench.offer

    def remove_at_the_first(request):
        if not seen:
            bench.change(remove=[(ALICE, WRITE, "t")])
        seen.append(request)
        offer(request)

    bench.on_request = remove_at_the_first
    bench.send(alice, [("t", 0, records_of(1))])
    bench.send(alice, [("nowhere", 0, records_of(1))])  # Python gets this one
    for _ in range(10):
        bench.send(alice, [("t", 0, records_of(1))])
    assert bench.answer(alice) == [(E.NONE, 1)]
    bench.until(lambda: len(bench.left) == 1)
    _why, request = bench.left.pop()
    assert bench.plane.produce_with(request, [Verdict(error_code=E.UNKNOWN_TOPIC_OR_PARTITION)])
    assert bench.answer(alice) == [(E.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    for _ in range(10):
        assert bench.answer(alice) == [REFUSED]
    assert end_of(bench, handle) == 2


def test_a_request_that_comes_back_from_python_is_asked_about_again(bench, alice):
    """Attempt 69."""
    handle = bench.lead("t", bytes_admitted=0)
    bench.change(add=[(ALICE, WRITE, "t")])
    bench.send(alice, [("t", 0, records_of(1))])
    bench.until(lambda: bench.left)
    ((why, request),) = bench.left
    assert why is Left.NOT_ADMITTED
    bench.plane.admit(handle, 1 << 20)
    bench.change(remove=[(ALICE, WRITE, "t")])
    assert not bench.plane.produce_with(request, [Verdict()])
    assert bench.plane.fallback_reason is Left.AUTHORIZE
    bench.decide_produce(request)
    assert bench.plane.produce_with(request, [Verdict()])
    assert bench.answer(alice) == [REFUSED]
    assert end_of(bench, handle) == 0


def test_the_right_comes_before_room_is_made_or_anything_is_found_out(bench, alice):
    bench.lead("t", bytes_admitted=0)
    assert bench.produce(alice, ("t", 0, records_of(1))) == [REFUSED]
    assert not bench.left


def test_a_topic_that_is_made_again_has_none_of_the_rights_of_the_one_before(bench, alice):
    handle = bench.make("t")
    bench.change(add=[(ALICE, WRITE, "t")])
    assert bench.produce(alice, ("t", 0, records_of(1))) == [(E.NONE, 0)]
    bench.settle()
    bench.plane.withdraw(handle)
    again = bench.plane.register("t", b"another id".ljust(16, b"?"), 0)
    bench.decides = False
    bench.send(alice, [("t", 0, records_of(1))])
    bench.until(lambda: bench.left)
    assert bench.left.pop()[0] is Left.AUTHORIZE
    assert end_of(bench, again) == 0


def test_topics_of_the_brokers_own_are_written_by_no_client_whatever_its_rights(bench, alice):
    """Attempt 87."""
    bench.make("__internal", 0, 0, PartitionFlag.INTERNAL)
    bench.change(add=[(ALICE, WRITE, "__internal")])
    assert bench.produce(alice, ("__internal", 0, records_of(1))) == [(E.INVALID_TOPIC_EXCEPTION, -1)]


# -- transactions ------------------------------------------------------------------------------------------------------


def transactional(sequence=0):
    return records_of(1, attributes=TRANSACTIONAL, producer=(7, 0, sequence))


def test_a_header_that_says_transactional_needs_the_right_to_its_id(bench, alice):
    """Attempt 86: also without an id, which is nobody's; and no coordinator is asked before."""
    handle = bench.make("t")
    bench.change(add=[(ALICE, WRITE, "t")])
    for transactional_id in (None, "id"):
        told = bench.produce(alice, ("t", 0, transactional()), transactional_id=transactional_id)
        assert told == [(E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)]
    assert (end_of(bench, handle), bench.left) == (0, [])
    assert (ALICE, TRANSACT, "id", False) in bench.decided


def test_without_a_transactional_batch_the_id_is_not_asked_about(bench, alice):
    bench.make("t")
    bench.change(add=[(ALICE, WRITE, "t")])
    assert bench.produce(alice, ("t", 0, records_of(1)), transactional_id="id") == [(E.NONE, 0)]


def test_who_may_write_nowhere_is_decided_once_whatever_its_transactional_ids(bench, alice):
    """With ever new ones it would cost Python each time. The answer is Kafka's to who lacks both rights."""
    bench.make("t")
    refused = [(E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)]
    for number in range(5):
        assert bench.produce(alice, ("t", 0, transactional()), transactional_id=f"id{number}") == refused
    assert bench.decided == [(ALICE, WRITE, "t", False), (ALICE, TRANSACT, "id0", False)]
    bench.face.grant_transactional(bench.generation, ALICE, "its own", is_allowed=True)
    assert bench.produce(alice, ("t", 0, transactional()), transactional_id="its own") == [REFUSED]


def test_a_coordinator_is_asked_only_when_all_of_a_request_is_decided(bench, alice):
    bench.make("t"), bench.make("u")
    bench.change(add=[(ALICE, WRITE, "t"), (ALICE, TRANSACT, "id")])
    bench.decides = False
    bench.send(alice, [("t", 0, transactional()), ("u", 0, transactional())], transactional_id="id")
    bench.until(lambda: bench.left)
    why, request = bench.left.pop()
    assert why is Left.AUTHORIZE
    bench.decide_produce(request)
    assert not bench.plane.produce(request)
    assert bench.plane.fallback_reason is Left.VERIFY


def test_an_open_transaction_goes_on_only_while_its_id_may_be_written_by(bench, alice):
    handle = bench.make("t")
    bench.change(add=[(ALICE, WRITE, "t"), (ALICE, TRANSACT, "id")])
    bench.send(alice, [("t", 0, transactional())], transactional_id="id")
    bench.until(lambda: bench.left)
    why, request = bench.left.pop()
    assert why is Left.VERIFY
    guard = bench.plane.begin_verification(handle, (7, 0))
    assert bench.plane.produce_with(request, [Verdict(guard=guard)])
    bench.plane.end_verification(handle, 7, guard)
    assert bench.answer(alice) == [(E.NONE, 0)]
    assert bench.produce(alice, ("t", 0, transactional(1)), transactional_id="id") == [(E.NONE, 1)]
    bench.change(remove=[(ALICE, TRANSACT, "id")])
    assert bench.produce(alice, ("t", 0, records_of(1))) == [(E.NONE, 2)], "the topic's right is known again"
    refused = [(E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)]
    assert bench.produce(alice, ("t", 0, transactional(2)), transactional_id="id") == refused
    assert bench.produce(alice, ("t", 0, transactional(2)), transactional_id="another") == refused
    assert end_of(bench, handle) == 3


# -- fetch -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(bench, alice):
    handle = bench.make("t")
    bench.change(add=[(ALICE, WRITE, "t"), (ALICE, READ, "t")])
    bench.fill(alice, "t", 0, [2])
    return handle


@pytest.mark.parametrize("version", [4, 12, 13])
def test_who_may_not_read_gets_the_error_and_no_record(bench, filled, bob, version):
    for _ in range(5):
        (part,) = parts_of(bench.fetch(bob, version, asks(("t", 0, 0), version=version)))
        assert (part["ErrorCode"], part["HighWatermark"], part["Records"] or b"") == (REFUSED[0], -1, b"")
    assert [one for one in bench.decided if one[0] == BOB] == [(BOB, READ, "t", False)]
    assert bench.handled == 1


def test_who_may_read_is_decided_once_and_then_known(bench, filled, alice):
    for _ in range(5):
        assert values_of(parts_of(bench.fetch(alice, 12, asks(("t", 0, 0))))[0]) == [b"value0", b"value1"]
    assert bench.decided.count((ALICE, READ, "t", True)) == bench.handled == 1


def test_of_a_fetch_only_what_is_allowed_is_read(bench, filled, alice):
    bench.make("u")
    one, other = parts_of(bench.fetch(alice, 12, asks(("u", 0, 0), ("t", 0, 0), wait_ms=LONG_MS)))
    assert (one["ErrorCode"], values_of(other)) == (REFUSED[0], [b"value0", b"value1"])


def test_a_fetch_that_waits_is_refused_when_its_right_is_taken_away(bench, filled, alice):
    """Attempt 67: at once, and not when something comes."""
    bench.send_fetch(alice, 12, asks(("t", 0, 2), wait_ms=LONG_MS))
    wait_parked(bench, 1)
    bench.change(remove=[(ALICE, READ, "t")])
    (part,) = parts_of(read_answer(bench, alice))
    assert (part["ErrorCode"], part["HighWatermark"], part["Records"] or b"") == (REFUSED[0], -1, b"")
    assert bench.fetch_counts().parked_now == 0


def test_what_comes_while_nobody_has_decided_reaches_nobody_who_waited(bench, filled, alice, bob):
    bench.send_fetch(alice, 12, asks(("t", 0, 2), wait_ms=LONG_MS))
    wait_parked(bench, 1)
    bench.decides = False
    bench.change(remove=[(ALICE, READ, "t")], add=[(BOB, WRITE, "t")])
    bench.until(lambda: bench.waiting)
    bench.decides = True
    assert bench.produce(bob, ("t", 0, records_of(1))) == [(E.NONE, 2)]
    bench.offer(bench.waiting.pop())
    (part,) = parts_of(read_answer(bench, alice))
    assert (part["ErrorCode"], part["Records"] or b"") == (REFUSED[0], b"")


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_fetch_that_waits_goes_on_waiting_in_c_when_its_right_stays(bench, filled, alice, rounds):
    producer = bench.connect_as(ALICE)
    bench.send_fetch(alice, 12, asks(("t", 0, 2), wait_ms=LONG_MS))
    wait_parked(bench, 1)
    for _ in range(rounds):
        bench.change(add=[(BOB, READ, "t")])
        wait_parked(bench, 0)
        wait_parked(bench, 1)
    bench.fill(producer, "t", 0, [1])
    (part,) = parts_of(read_answer(bench, alice))
    assert values_of(part) == [b"value0"]
    assert values_of(parts_of(bench.fetch(alice, 12, asks(("t", 0, 0))))[0]), "C answers the connection as before"
    assert bench.handled == 1 + rounds


def test_a_fetch_that_waits_through_many_changes_of_the_rules_takes_no_more_memory(bench, filled, alice):
    parts = 64
    for partition in range(1, parts):
        bench.plane.register("t", topic_id_of("t"), partition)
    bench.send_fetch(alice, 12, asks(("t", 0, 2), *[("t", i, 0) for i in range(1, parts)], wait_ms=LONG_MS))
    wait_parked(bench, 1)
    for round_ in range(220):
        if round_ == 20:
            before = allocated_bytes()
        bench.change()
        wait_parked(bench, 0)
        wait_parked(bench, 1)
        bench.decided.clear()
    assert allocated_bytes() - before < 100 * parts * ffi.sizeof("void *")


def test_a_replica_is_given_nothing_by_c(bench, filled, alice):
    """Attempt 88: who says that it is a broker."""
    taken = []
    bench.on_request = taken.append
    bench.send_fetch(alice, 12, asks(("t", 0, 0)) | {"ReplicaId": 1})
    bench.until(lambda: taken)
    bench.offer(taken.pop())
    (part,) = parts_of(read_answer(bench, alice))
    assert (part["ErrorCode"], part["Records"] or b"") == (E.NOT_LEADER_OR_FOLLOWER, b"")


def test_a_session_is_of_the_subject_that_has_made_it(bench, filled, alice, bob):
    """Attempt 65: to another one its id says nothing, neither to read by nor to end."""
    bench.change(add=[(BOB, READ, "t")])
    session = bench.fetch(alice, 12, asks(("t", 0, 0)) | {"SessionEpoch": 0})["SessionId"]
    assert session
    by_it = asks() | {"SessionId": session, "SessionEpoch": 1}
    stolen = bench.fetch(bob, 12, by_it)
    assert (stolen["ErrorCode"], stolen["SessionId"], parts_of(stolen)) == (E.FETCH_SESSION_ID_NOT_FOUND, 0, [])
    for epoch in (-1, 0):
        bench.fetch(bob, 12, asks(("t", 0, 0)) | {"SessionId": session, "SessionEpoch": epoch})
    own = bench.fetch(alice, 12, by_it)
    assert (own["ErrorCode"], own["SessionId"]) == (E.NONE, session)
    other_connection = bench.connect_as(ALICE)
    assert bench.fetch(other_connection, 12, by_it | {"SessionEpoch": 2})["ErrorCode"] == E.NONE


def test_who_is_not_known_yet_gets_no_session_before_python_has_said_who_it_is(bench, filled, alice):
    """Two of them would share theirs."""
    unknown, other = bench.connect_as(0), bench.connect_as(0)
    bench.subjects = dict(zip(bench.subjects, [ALICE, ALICE, BOB], strict=True))
    session = bench.fetch(unknown, 12, asks(("t", 0, 0)) | {"SessionEpoch": 0})["SessionId"]
    stolen = bench.fetch(other, 12, asks() | {"SessionId": session, "SessionEpoch": 1})
    assert stolen["ErrorCode"] == E.FETCH_SESSION_ID_NOT_FOUND
    assert bench.fetch(alice, 12, asks() | {"SessionId": session, "SessionEpoch": 1})["ErrorCode"] == E.NONE


def test_fetches_left_to_python_are_found_each_and_go_with_their_connections(bench, filled):
    bench.decides = False
    clients = [bench.connect_as(BOB) for _ in range(60)]
    for number, client in enumerate(clients):
        bench.send_fetch(client, 12, asks(("t", 0, 0)), correlation_id=number)
    bench.until(lambda: len(bench.waiting) == len(clients))
    for client in clients[::2]:
        client.close()
    bench.until(lambda: len(bench.closed) == len(clients[::2]))
    gone = {event[0] for event in bench.closed}
    bench.decides = True
    for request in reversed(bench.waiting):
        if request.connection not in gone:
            bench.offer(request)
    for client in clients[1::2]:
        assert [part["ErrorCode"] for part in parts_of(read_answer(bench, client))] == [REFUSED[0]]
    for request in bench.waiting:
        if request.connection in gone:
            bench.connections.answer_none(request)


# -- the table ---------------------------------------------------------------------------------------------------------


def test_without_an_authorizer_nobody_is_asked_about(tmp_path):
    bench = GrantBench(tmp_path / "journal", asks_about_subjects=False)
    bench.make("t")
    client = bench.connect_as(0)
    assert bench.produce(client, ("t", 0, records_of(1))) == [(E.NONE, 0)]
    assert values_of(parts_of(bench.fetch(client, 12, asks(("t", 0, 0))))[0])
    with pytest.raises(ValueError, match="grant"):
        bench.face.grant(1, ALICE, uuid.UUID(bytes=topic_id_of("t")), writes=True, is_allowed=True)
    with pytest.raises(ValueError, match="forget"):
        bench.face.forget_grants(1)
    assert (bench.decided, bench.counts().unknown, bench.counts().generation) == ([], 0, 0)
    bench.shut()


def test_an_authorizer_that_comes_and_goes_leaves_no_right_behind(bench, alice):
    bench.make("t")
    bench.change(add=[(ALICE, WRITE, "t")])
    assert bench.produce(alice, ("t", 0, records_of(1))) == [(E.NONE, 0)]
    bench.face.end_grants()
    assert bench.produce(alice, ("t", 0, records_of(1))) == [(E.NONE, 1)]
    bench.rules = set()
    with pytest.raises(ValueError, match="begin"):
        bench.face.begin_grants(bench.generation)
    bench.begin()
    assert bench.produce(alice, ("t", 0, records_of(1))) == [REFUSED]


def test_whoever_waits_when_an_authorizer_comes_is_asked_about(tmp_path):
    bench = GrantBench(tmp_path / "journal", asks_about_subjects=False)
    bench.make("t")
    client = bench.connect_as(BOB)
    bench.send_fetch(client, 12, asks(("t", 0, 0), wait_ms=LONG_MS))
    wait_parked(bench, 1)
    bench.begin()
    assert [part["ErrorCode"] for part in parts_of(read_answer(bench, client))] == [REFUSED[0]]
    bench.shut()


def test_what_is_decided_by_older_rules_or_for_nobody_is_not_installed(bench, alice):
    bench.make("t")
    topic_id, older = uuid.UUID(bytes=topic_id_of("t")), bench.generation
    bench.change()
    bench.face.grant(older, ALICE, topic_id, writes=True, is_allowed=True)
    told = lib.tpc_grants_install(bench.plane.pointer, older, ALICE, topic_id.bytes, WRITE, WRITE)
    assert told == -errno.ESTALE
    with pytest.raises(ValueError, match="grant"):
        bench.face.grant(bench.generation, 0, topic_id, writes=True, is_allowed=True)
    for generation in (older, bench.generation):
        with pytest.raises(ValueError, match="forget"):
            bench.face.forget_grants(generation)
    assert bench.produce(alice, ("t", 0, records_of(1))) == [REFUSED]


def test_what_was_decided_stands_until_the_rules_change(bench, alice, bob):
    bench.make("t")
    for client in (alice, bob):  # the partition itself has bob's now
        assert bench.produce(client, ("t", 0, records_of(1))) == [REFUSED]
    topic_id = uuid.UUID(bytes=topic_id_of("t"))
    bench.face.grant(bench.generation, ALICE, topic_id, writes=True, is_allowed=True)
    bench.face.grant(bench.generation, ALICE, topic_id, writes=False, is_allowed=True)
    assert bench.produce(alice, ("t", 0, records_of(1))) == [REFUSED]
    assert parts_of(bench.fetch(alice, 12, asks(("t", 0, 0))))[0]["ErrorCode"] == E.NONE


def test_a_full_table_mixes_no_two_subjects_up(bench):
    bench.make("t")
    topic_id, strangers = uuid.UUID(bytes=topic_id_of("t")), range(1 << 20, (1 << 20) + 6)
    for subject in range(1, lib.TPC_GRANTS_MAX - len(strangers)):
        bench.face.grant(bench.generation, subject, topic_id, writes=True, is_allowed=True)
    for subject in strangers:
        assert bench.produce(bench.connect_as(subject), ("t", 0, records_of(1))) == [REFUSED]
    assert len(bench.decided) == len(strangers)


def test_the_table_is_bounded_and_the_oldest_go_first(bench, alice, bob):
    bench.make("t"), bench.make("u")
    bench.change(add=[(ALICE, WRITE, "t"), (BOB, WRITE, "u")])
    assert bench.produce(alice, ("t", 0, records_of(1))) == [(E.NONE, 0)]
    for number in range(lib.TPC_GRANTS_MAX - 1):
        topic_id = uuid.UUID(int=number + 1)
        bench.face.grant(bench.generation, ALICE, topic_id, writes=True, is_allowed=number % 2 == 0)
    assert bench.counts().evicted == 0
    assert bench.produce(bob, ("t", 0, records_of(1))) == [REFUSED]  # takes the place of the oldest
    assert bench.counts().evicted == 1
    decided = len(bench.decided)
    assert bench.produce(alice, ("t", 0, records_of(1))) == [(E.NONE, 1)]
    assert bench.decided[decided:] == [(ALICE, WRITE, "t", True)]
    for _ in range(2):
        bench.change(add=[(ALICE, READ, "t")])
        for number in range(lib.TPC_GRANTS_MAX):
            bench.face.grant(bench.generation, BOB, uuid.UUID(int=number + 1), writes=False, is_allowed=True)
    assert bench.counts().evicted == 2, "what is void is not missed"
    assert bench.produce(bob, ("u", 0, records_of(1))) == [(E.NONE, 0)]


def test_transactional_ids_have_places_of_their_own(bench, alice, bob):
    bench.make("t")
    bench.change(add=[(ALICE, WRITE, "t"), (BOB, WRITE, "t"), (BOB, TRANSACT, "id")])
    assert bench.produce(alice, ("t", 0, records_of(1))) == [(E.NONE, 0)]
    for number in range(lib.TPC_GRANTS_MAX):
        bench.face.grant_transactional(bench.generation, ALICE, f"id{number}", is_allowed=True)
    assert bench.counts().evicted == lib.TPC_GRANTS_MAX - lib.TPC_GRANTS_TRANSACTIONAL_MAX
    assert bench.produce(bob, ("t", 0, records_of(1))) == [(E.NONE, 1)]  # its grant stands in the partition now
    decided = len(bench.decided)
    assert bench.produce(alice, ("t", 0, records_of(1))) == [(E.NONE, 2)]
    assert len(bench.decided) == decided
    for number in range(lib.TPC_GRANTS_MAX):
        bench.face.grant(bench.generation, BOB, uuid.UUID(int=number + 1), writes=False, is_allowed=True)
    evicted = bench.counts().evicted
    bench.face.grant_transactional(bench.generation, ALICE, f"id{lib.TPC_GRANTS_MAX - 1}", is_allowed=True)
    assert bench.counts().evicted == evicted, "no topic took its place either"


def test_who_names_ever_new_transactional_ids_takes_its_own_places(bench, bob):
    """So what is known of others' ids is not decided anew, but for the first one, whose place is taken."""
    bench.make("t")
    bench.change(add=[(BOB, WRITE, "t")])
    assert bench.produce(bob, ("t", 0, records_of(1))) == [(E.NONE, 0)]
    places, asked = lib.TPC_GRANTS_TRANSACTIONAL_MAX, range(1, lib.TPC_GRANTS_TRANSACTIONAL_MAX, 64)
    for number in range(places):
        bench.face.grant_transactional(bench.generation, BOB, f"id{number}", is_allowed=False)
    assert bench.counts().evicted == 0
    for number in range(3 * places):
        bench.face.grant_transactional(bench.generation, ALICE, f"new{number}", is_allowed=True)
    refused = [(E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)]
    for number in asked:
        assert bench.produce(bob, ("t", 0, transactional()), transactional_id=f"id{number}") == refused
    assert [right for _subject, right, *_rest in bench.decided] == [WRITE]


def test_a_subject_uses_its_own_places_by_turns(bench, bob):
    bench.make("t")
    bench.change(add=[(BOB, WRITE, "t")])
    assert bench.produce(bob, ("t", 0, records_of(1))) == [(E.NONE, 0)]
    places = lib.TPC_GRANTS_TRANSACTIONAL_MAX
    for number in range(places + 1000):
        bench.face.grant_transactional(bench.generation, BOB, f"id{number}", is_allowed=False)
    for number in range(places + 960, places + 1000):
        bench.produce(bob, ("t", 0, transactional()), transactional_id=f"id{number}")
    assert [right for _subject, right, *_rest in bench.decided] == [WRITE], "the newest are known"


def test_what_is_void_goes_before_what_counts(bench):
    topics = [uuid.UUID(int=number + 1) for number in range(lib.TPC_GRANTS_MAX + 1)]

    def grant(some):
        for topic_id in some:
            bench.face.grant(bench.generation, ALICE, topic_id, writes=True, is_allowed=True)

    grant(topics[:-1])
    bench.change()
    grant(topics[:20])  # the oldest places, and what stands there counts
    grant(topics[-1:])
    assert bench.counts().evicted == 0


# -- other ways in -----------------------------------------------------------------------------------------------------


def test_answers_that_are_alike_for_everybody_end_where_subjects_are_asked_about(tmp_path):
    bench = GrantBench(tmp_path / "journal", asks_about_subjects=False)
    client = bench.connect_as(ALICE)
    asked, bench.on_request = [], lambda request: (
        asked.append(request.api_key),
        bench.connections.answer(request, request.correlation_id.to_bytes(4), b"by hand"),
    )
    assert prepare(bench, b"all topics") == prepare(bench, b"versions", api_key=API_VERSIONS) == 0
    ask(bench, client)
    assert bench.read_frame(client)[4:] == b"all topics"
    bench.begin()
    assert prepare(bench, b"all topics") < 0
    ask(bench, client)
    assert bench.read_frame(client)[4:] == b"by hand"
    assert prepare(bench, b"versions", api_key=API_VERSIONS) == 0
    ask(bench, client, api_key=API_VERSIONS)
    assert bench.read_frame(client)[4:] == b"versions"
    assert (asked, given(bench)) == ([3], 2)
    bench.face.end_grants()
    ask(bench, client)
    assert bench.read_frame(client)[4:] == b"by hand", "what was forgotten does not come back"
    bench.shut()


DATAGRAMS = 9


@pytest.fixture
def port(bench):
    bench.make("t")
    port = Port(bench)
    port.route("t")
    return port


def test_datagrams_are_nobodys_until_they_are_given_a_subject(bench, port):
    """Attempts 102, 103: their source is easily forged, so it counts for nothing, whichever core they came to."""
    bench.change(add=[(ALICE, WRITE, "t")])
    port.send("t", 0, b"value", request_id=1)
    assert port.answer() == (E.TOPIC_AUTHORIZATION_FAILED, 0, 1)
    port.send("nowhere", 0, b"value", request_id=2)
    assert port.answer() == (E.TOPIC_AUTHORIZATION_FAILED, 0, 2), "which topics there are is not told either"
    assert bench.counts().refused_datagrams == 1


def test_datagrams_are_asked_about_again_when_nothing_was_said_or_it_is_forgotten(bench, port):
    wanted, topic_id = [], uuid.UUID(bytes=topic_id_of("t"))
    bench.face._begin_grants(bench.ring)
    bench.face.on_grant_wanted(lambda *asked: wanted.append(asked))
    bench.face.set_datagrams_subject(DATAGRAMS)
    for now_ms, times in ((5_000, 1), (5_999, 1), (6_000, 2), (6_999, 2), (7_000, 3)):
        lib.tpc_plane_set_monotonic(bench.plane.pointer, now_ms)
        port.send("t", 0, b"value", request_id=now_ms)
        port.is_silent()
        assert len(wanted) == times
    bench.face.grant(bench.generation, DATAGRAMS, topic_id, writes=True, is_allowed=True)
    port.send("t", 0, b"value", request_id=1)
    assert port.answer() == (E.NONE, 0, 1)


def test_datagrams_are_written_by_the_right_of_their_subject(bench, port):
    lib.tpc_plane_set_monotonic(bench.plane.pointer, 5_000)
    wanted = []
    bench.face._begin_grants(bench.ring)
    bench.face.on_grant_wanted(lambda *asked: wanted.append(asked))
    bench.face.set_datagrams_subject(DATAGRAMS)
    topic_id = uuid.UUID(bytes=topic_id_of("t"))
    for round_, is_allowed in enumerate((True, False)):
        bench.change()
        for number in range(3):
            port.send("t", 0, b"value", request_id=number)
            port.is_silent()
        assert wanted == [(topic_id, DATAGRAMS)] * (round_ + 1)
        bench.face.grant(bench.generation, DATAGRAMS, topic_id, writes=True, is_allowed=is_allowed)
        port.send("t", 0, b"value", request_id=7)
        assert port.answer() == (E.NONE if is_allowed else E.TOPIC_AUTHORIZATION_FAILED, 0, 7)


@pytest.mark.parametrize("owners", [(0, 0), (0, 3)], ids=["not led here", "of a core that is not linked"])
def test_datagrams_do_not_tell_which_topics_there_are(bench, port, owners):
    """What there is and what there is not is refused alike, wherever its leader is."""
    wanted = []
    bench.face._begin_grants(bench.ring)
    bench.face.on_grant_wanted(lambda *asked: wanted.append(asked))
    bench.face.set_datagrams_subject(DATAGRAMS)
    topic_id = uuid.UUID(bytes=topic_id_of("u"))
    port.route("u", owners)
    port.send("u", 1, b"value", request_id=1)
    port.is_silent()
    assert wanted == [(topic_id, DATAGRAMS)]
    bench.face.grant(bench.generation, DATAGRAMS, topic_id, writes=True, is_allowed=False)
    for topic in ("u", "nowhere"):
        port.send(topic, 1, b"value", request_id=2)
        assert port.answer() == (E.TOPIC_AUTHORIZATION_FAILED, 1, 2)
    bench.change()
    bench.face.grant(bench.generation, DATAGRAMS, topic_id, writes=True, is_allowed=True)
    port.send("u", 1, b"value", request_id=3)
    assert port.answer() == (E.NOT_LEADER_OR_FOLLOWER, 1, 3)
