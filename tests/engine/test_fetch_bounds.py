"""What fetch sessions keep in memory, and where it ends."""

import uuid

import pytest

from tests.engine.test_plane_fetch import LONG_MS, asks, parts_of, wait_parked
from tests.support.fetch_bench import FetchBench
from tpc_broker._ring import lib
from tpc_broker.error_codes import ErrorCode as E

PART_BYTES_MIN = 100  # of a partition that a session knows
WAIT_BYTES_MIN, PYTHON_BYTES_MIN = 40, 1000  # of one that a fetch waits for, and that is left to Python


@pytest.fixture
def bench(features, tmp_path):
    bench = FetchBench(tmp_path / "journal", in_c=True, region_blocks=1024)
    yield bench
    bench.shut()


def bound_sessions(bench, bytes_max, *, eviction_ms=LONG_MS, slots=1000):
    lib.tpc_plane_set_fetch_limits(bench.plane.pointer, 1 << 20, slots, eviction_ms)
    lib.tpc_plane_set_fetch_session_bytes(bench.plane.pointer, bytes_max)


def asks_many(count, topic="t", first=0, **more):
    parts = [{"Partition": index, "FetchOffset": 0, "PartitionMaxBytes": 100} for index in range(first, first + count)]
    return asks(**more) | {"Topics": [{"Topic": topic, "Partitions": parts}]}


def begin(bench, client, count, version=12, **more):
    """The id of a session of so many partitions, none of which exists; 0: there is none."""
    answer = bench.fetch(client, version, asks_many(count, SessionEpoch=0, **more))
    assert len(parts_of(answer)) == count
    return answer["SessionId"]


def session_bytes(bench):
    return bench.fetch_counts().session_bytes


def test_who_would_go_past_the_bound_gets_no_session(bench):
    bound_sessions(bench, 20_000)
    client = bench.connect()
    assert begin(bench, client, 50) != 0
    before = session_bytes(bench)
    assert 50 * PART_BYTES_MIN < before < 20_000
    assert [begin(bench, client, count) for count in (100, 1000)] == [0, 0]
    assert begin(bench, client, 3, topic="x" * 240) != 0, "it fits"
    assert begin(bench, client, 30, topic="x" * 240) == 0, "names count"
    counts = bench.fetch_counts()
    assert (counts.sessions, counts.sessions_refused, counts.sessions_evicted) == (2, 3, 0)
    assert before < counts.session_bytes <= 20_000


def test_a_partition_that_is_named_often_counts_as_often(bench):
    bound_sessions(bench, 20_000)
    often = asks_many(1, SessionEpoch=0)
    often["Topics"] *= 300
    assert bench.fetch(bench.connect(), 12, often)["SessionId"] == 0
    assert session_bytes(bench) == 0


def test_a_session_that_would_grow_past_the_bound_ends(bench):
    bound_sessions(bench, 20_000)
    client = bench.connect()
    session, other = begin(bench, client, 50), begin(bench, client, 10)
    before = session_bytes(bench)
    more = {"SessionId": session, "SessionEpoch": 1}
    assert bench.fetch(client, 12, asks_many(8, first=50, **more))["ErrorCode"] == E.NONE
    refused = bench.fetch(client, 12, asks_many(200, first=58, **more | {"SessionEpoch": 2}))
    assert (refused["ErrorCode"], refused["SessionId"], refused["Responses"]) == (E.FETCH_SESSION_ID_NOT_FOUND, 0, [])
    assert bench.session(session) is None
    assert bench.fetch_counts().sessions == 1
    assert session_bytes(bench) < before
    assert begin(bench, client, 50) != 0, "its client begins anew"
    assert bench.fetch(client, 12, asks(SessionId=other, SessionEpoch=1))["ErrorCode"] == E.NONE


def test_a_partition_too_many_ends_a_session_whose_table_need_not_grow(bench):
    client = bench.connect()
    session = begin(bench, client, 20)
    bound_sessions(bench, session_bytes(bench) + PART_BYTES_MIN)
    asked = {"SessionId": session, "SessionEpoch": 1}
    assert bench.fetch(client, 12, asks_many(10, **asked))["ErrorCode"] == E.NONE, "nothing is added"
    refused = bench.fetch(client, 12, asks_many(1, first=20, **asked | {"SessionEpoch": 2}))
    assert refused["ErrorCode"] == E.FETCH_SESSION_ID_NOT_FOUND
    assert session_bytes(bench) == 0


def test_an_idle_session_gives_its_bytes_to_one_that_begins_or_grows(bench):
    bound_sessions(bench, 20_000, eviction_ms=0)
    client = bench.connect()
    idle, old, new = (begin(bench, client, 50) for _ in range(3))
    assert 0 not in (idle, old, new)
    assert [bench.session(session) is None for session in (idle, old, new)] == [True, False, False]
    grown = bench.fetch(client, 12, asks_many(60, first=50, SessionId=old, SessionEpoch=1))
    assert (grown["ErrorCode"], bench.fetch_counts().sessions) == (E.NONE, 1)
    assert bench.session(new) is None, "the one that grows was used later"
    assert begin(bench, client, 1000) == 0, "never fits: nobody is given up for it"
    counts = bench.fetch_counts()
    assert (counts.sessions, counts.sessions_evicted, counts.sessions_refused) == (1, 2, 1)


@pytest.mark.parametrize("version", [12, 13])
def test_what_ends_gives_all_its_bytes_back(bench, version):
    """By its client, for another one, without partitions, when a partition is forgotten and comes back."""
    client = bench.connect()
    bound_sessions(bench, 1 << 20, eviction_ms=0, slots=1)

    def ask(session, epoch, first, count, gone=()):
        asked = asks_many(count, first=first, SessionId=session, SessionEpoch=epoch)
        asked["Topics"] = asked["Topics"] if count else []
        asked["ForgottenTopicsData"] = [{"Topic": "t", "Partitions": list(gone)}] if gone else []
        for topic in asked["Topics"] + asked["ForgottenTopicsData"]:
            if version >= 13:
                topic["TopicId"] = uuid.UUID(bytes=b"t" * 16)
                del topic["Topic"]
        return bench.fetch(client, version, asked)["SessionId"]

    first, second = ask(0, 0, 0, 7), ask(0, 0, 0, 90)
    assert bench.session(first) is None
    one_of_90 = session_bytes(bench)
    ask(second, 1, 90, 200)
    grown = session_bytes(bench)
    ask(second, 2, 0, 0, range(100, 290))
    assert one_of_90 < session_bytes(bench) < grown
    ask(second, 3, 0, 0, range(290))
    assert (bench.session(second), session_bytes(bench)) == (None, 0)
    third = ask(0, 0, 0, 20)
    ask(third, -1, 0, 0)
    assert session_bytes(bench) == 0


def test_a_session_that_ended_counts_until_its_last_fetch_is_over(bench):
    bench.make("t")
    waiting, client = bench.connect(), bench.connect()
    twice = asks(("t", 0, 0), ("t", 0, 0), wait_ms=LONG_MS, SessionEpoch=0)
    bench.send_fetch(waiting, 12, twice)
    wait_parked(bench)
    kept = session_bytes(bench)
    bound_sessions(bench, 1 << 20, eviction_ms=0, slots=1)
    session = begin(bench, client, 1)
    assert (bench.fetch_counts().sessions, session_bytes(bench) > kept) == (1, True)
    bench.fetch(client, 12, asks(SessionId=session))
    assert (bench.fetch_counts().sessions, session_bytes(bench)) == (0, kept)
    waiting.close()
    bench.until(lambda: bench.fetch_counts().parked_now == 0)
    assert session_bytes(bench) == 0


def asks_often(count, **more):
    """One partition, which is read as often as it is named."""
    return asks(*[("t", 0, 0)] * count, wait_ms=LONG_MS, **more)


@pytest.mark.parametrize("session", [{"SessionEpoch": 0}, {}], ids=["with a session", "without"])
def test_fetches_of_many_partitions_wait_while_there_is_memory_for_that(bench, session):
    """Those of a few wait all the same, and what is not taken any more is there for others."""
    bench.make("t")
    bound_sessions(bench, 1 << 20)
    waiting = bench.connect()
    bench.send_fetch(waiting, 12, asks_often(300, **session))
    wait_parked(bench)
    taken = bench.fetch_counts().waiting_bytes
    assert 300 * WAIT_BYTES_MIN < taken < 300 * 300
    bound_sessions(bench, taken)
    assert len(parts_of(bench.fetch(bench.connect(), 12, asks_often(65)))) == 65, "answered at once"
    few = bench.connect()
    bench.send_fetch(few, 12, asks_often(64))
    wait_parked(bench, 2)
    few.close()
    waiting.close()
    wait_parked(bench, 0)
    counts = bench.fetch_counts()
    assert (counts.hurried, counts.waiting_bytes) == (1, 0)
    bench.send_fetch(bench.connect(), 12, asks_often(65))
    wait_parked(bench)
    assert bench.fetch_counts().hurried == 1


def test_what_python_makes_of_a_fetch_counts_and_without_memory_it_does_not_wait(bench, monkeypatch):
    begun = []

    def begin_fetch(request):
        fetch = bench.core.plane.__class__.begin_fetch(bench.core.plane, request)
        begun.append((fetch.deadline_ms > 0, bench.fetch_counts().waiting_bytes))
        return fetch

    monkeypatch.setattr(bench.core.plane, "begin_fetch", begin_fetch, raising=False)
    client = bench.connect()
    for bytes_max, count in ((1 << 20, 300), (1 << 20, 3000), (1 << 20, 64), (1, 64), (1, 65)):
        lib.tpc_plane_set_fetch_session_bytes(bench.plane.pointer, bytes_max)
        assert len(parts_of(bench.fetch(client, 12, asks_many(count, topic="absent", wait_ms=LONG_MS)))) == count
        assert begun[-1][1] >= count * PYTHON_BYTES_MIN
        assert bench.fetch_counts().waiting_bytes == 0
    assert [may_wait for may_wait, _bytes in begun] == [True, False, True, True, False]
    assert bench.fetch_counts().hurried == 2
