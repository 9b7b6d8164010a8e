"""Each decision about an instance that pushes, as Kafka 4.3.1's ClientMetricsManager makes it."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.error_codes import ErrorCode
from tpc_broker.limits import TELEMETRY_EXPIRY_MS_MIN
from tpc_broker.telemetry.pushed.instances import NO_ID, REFUSALS, Instances, Push
from tpc_broker.telemetry.pushed.payload import Pushed
from tpc_broker.telemetry.pushed.standard import STANDARD, Kind
from tpc_broker.telemetry.pushed.subscriptions import Asked, client_of

NONE, EARLY = ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED
INTERVAL_MS = 1_000
BYTES_MAX = 100
ONE, OTHER = uuid.UUID(int=11), uuid.UUID(int=12)
ALL = {"all": {"metrics": "*", "interval.ms": str(INTERVAL_MS)}}
PLACES = {one.metric: place for place, one in enumerate(STANDARD)}


class Bench:
    """A machine, and a client's way with it. It begins some time after the clock did."""

    def __init__(self, configs=ALL, **bounds):
        self.instances = Instances(**bounds)
        self.instances.follow(configs)
        self.now_ms = 5_000_000
        self.described = 0
        self._ids = iter(uuid.UUID(int=number) for number in range(1_000, 100_000))

    def describe(self, instance_id):
        self.described += 1
        return client_of(instance_id, "a-client", ("software", "1"), "127.0.0.1:1")

    def ask(self, instance_id=ONE, connection=1):
        return self.instances.ask(instance_id, connection, self.describe, lambda: next(self._ids), self.now_ms)

    def push(self, given, *, is_terminating=False, compression=0, size=10, subscription_id=None, connection=1):
        subscription_id = given.subscription_id if subscription_id is None else subscription_id
        push = Push(given.instance_id, subscription_id, is_terminating, compression, size)
        error = self.instances.push(push, connection, self.describe, BYTES_MAX, self.now_ms)
        if not error:
            self.instances.taken(push, None)
        return error

    def statistics(self):
        return self.instances.statistics(self.now_ms)

    @property
    def known(self):
        return sum(self.statistics().instances.values())


def test_a_client_without_an_id_is_given_one_and_told_what_to_push():
    bench = Bench()
    given = bench.ask(NO_ID)
    assert given.instance_id == uuid.UUID(int=1_000)
    assert given.asked == Asked(("*",), INTERVAL_MS)
    assert bench.ask(NO_ID).instance_id != given.instance_id
    assert bench.ask(ONE).instance_id == ONE, "one that it has is its own"


def test_the_first_push_comes_at_once_and_each_later_one_after_an_interval():
    bench = Bench()
    given = bench.ask()
    bench.now_ms += 1
    assert [bench.push(given), bench.push(given)] == [NONE, EARLY]
    bench.now_ms += INTERVAL_MS - 1
    assert bench.push(given) == EARLY
    bench.now_ms += 1
    assert [bench.push(given), bench.push(given)] == [NONE, EARLY]
    assert bench.statistics().pushes == 2
    assert bench.statistics().pushed_bytes == 20
    assert bench.statistics().refused["early"] == 3


def test_who_asks_again_within_an_interval_of_anything_is_too_early():
    bench = Bench()
    given = bench.ask()
    assert bench.ask() == EARLY
    bench.now_ms += INTERVAL_MS // 2
    assert bench.push(given) == NONE
    bench.now_ms += INTERVAL_MS // 2
    assert bench.ask() == EARLY, "the push was half of one ago"
    bench.now_ms += INTERVAL_MS // 2
    assert bench.ask() == given
    assert bench.push(given) == NONE, "and the first push after it comes at once"


def test_a_push_of_an_instance_that_is_not_known_is_taken_by_what_it_says():
    """As after a restart, or on another core: what it is asked for is the same there."""
    given, later = Bench().ask(), Bench()
    assert later.push(given) == NONE
    assert later.push(given) == EARLY
    assert later.known == 1


def test_other_subscriptions_make_another_id_and_the_client_asks_again_at_once():
    bench = Bench()
    given = bench.ask()
    bench.instances.follow({"all": {"metrics": "org.apache", "interval.ms": "2000"}})
    assert bench.push(given) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    again = bench.ask()
    assert again.asked == Asked(("org.apache",), 2_000)
    assert again.subscription_id != given.subscription_id
    assert bench.push(again) == EARLY, "as in Kafka, the push that was refused counts as its last one"
    bench.now_ms += 2_000
    assert bench.push(again) == NONE
    assert bench.described == 1, "who it is was known"


def test_subscriptions_of_others_change_nothing_for_a_client():
    bench = Bench()
    given = bench.ask()
    bench.instances.follow({**ALL, "other": {"metrics": "x", "match": "client_id=nobody"}})
    assert bench.push(given) == NONE


@pytest.mark.parametrize("compression", [-1, 5, 127])
def test_a_compression_that_is_none_is_refused_and_the_client_may_ask_at_once(compression):
    bench = Bench()
    given = bench.ask()
    assert bench.push(given, compression=compression) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert bench.ask() == given
    assert bench.ask() == EARLY


@pytest.mark.parametrize("compression", range(5))
def test_every_compression_of_kafka_is_taken(compression):
    bench = Bench()
    assert bench.push(bench.ask(), compression=compression) == NONE


def test_what_is_larger_than_the_bound_is_refused():
    bench = Bench()
    given = bench.ask()
    assert bench.push(given, size=BYTES_MAX + 1) == ErrorCode.TELEMETRY_TOO_LARGE
    bench.now_ms += INTERVAL_MS
    assert bench.push(given, size=BYTES_MAX) == NONE


@pytest.mark.parametrize("reserved", [uuid.UUID(int=0), uuid.UUID(int=1)])
def test_nobody_pushes_under_a_reserved_id(reserved):
    bench = Bench()
    assert bench.push(bench.ask()._replace(instance_id=reserved)) == ErrorCode.INVALID_REQUEST
    assert bench.known == 1


def test_a_last_push_comes_at_any_time_and_nothing_is_taken_behind_it():
    bench = Bench()
    given = bench.ask()
    assert bench.push(given) == NONE
    assert bench.push(given, is_terminating=True) == NONE
    assert bench.push(given, is_terminating=True) == ErrorCode.INVALID_REQUEST
    assert bench.push(given) == ErrorCode.INVALID_REQUEST


def test_faults_are_told_in_kafkas_order():
    bench = Bench()
    given = bench.ask()
    wrong = {"subscription_id": given.subscription_id + 1, "compression": 9, "size": BYTES_MAX + 1}
    expected = [ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                ErrorCode.TELEMETRY_TOO_LARGE, NONE]  # fmt: skip
    for error in expected:
        bench.now_ms += INTERVAL_MS
        assert bench.push(given, **wrong) == error
        assert bench.push(given, **wrong) == EARLY
        if wrong:
            del wrong[next(iter(wrong))]
    bench.push(given, is_terminating=True)
    assert bench.push(given, subscription_id=0) == ErrorCode.INVALID_REQUEST


def test_what_is_unreadable_is_refused_and_counted():
    bench = Bench()
    given = bench.ask()
    push = Push(given.instance_id, given.subscription_id, False, 0, 10)
    assert bench.instances.push(push, 1, bench.describe, BYTES_MAX, bench.now_ms) == NONE
    assert bench.instances.unreadable(push) == ErrorCode.INVALID_RECORD
    assert bench.ask() == EARLY
    assert (bench.statistics().pushes, bench.statistics().refused["unreadable"]) == (0, 1)


# -- which are known ---------------------------------------------------------------------------------------------------


def test_an_instance_goes_with_the_connection_that_it_began_on():
    bench = Bench()
    given = bench.ask(connection=1)
    bench.ask(OTHER, connection=2)
    bench.push(given, connection=3)
    bench.instances.closed(3)
    assert bench.known == 2
    bench.instances.closed(1)
    bench.instances.closed(1)
    assert bench.known == 1
    assert bench.ask(connection=4) == given, "it may come back at once"


def test_all_that_began_on_a_connection_go_with_it_and_nobody_else():
    bench = Bench()
    for instance_id in (ONE, OTHER, NO_ID):
        bench.ask(instance_id, connection=1)
    bench.instances.follow({"all": {"metrics": "x"}})
    bench.ask(OTHER, connection=2)
    bench.instances.closed(1)
    assert bench.known == 1, "the other one has begun anew meanwhile, on another connection"
    bench.ask(ONE, connection=2)
    bench.instances.closed(2)
    assert bench.known == 0


@pytest.mark.parametrize(("interval_ms", "kept_ms"), [(100, TELEMETRY_EXPIRY_MS_MIN), (300_000, 900_000)])
def test_a_silent_instance_is_forgotten_after_three_intervals(interval_ms, kept_ms):
    bench = Bench({"all": {"metrics": "*", "interval.ms": str(interval_ms)}})
    given = bench.ask()
    bench.now_ms += interval_ms
    bench.push(given)
    bench.now_ms += kept_ms - 1
    assert bench.known == 1
    bench.now_ms += 1 + 10_000
    assert bench.known == 0
    assert bench.described == 1
    assert bench.push(given) == NONE
    assert bench.described == 2


def test_one_that_is_over_is_not_taken_for_itself_before_it_is_swept():
    bench = Bench({"all": {"metrics": "*", "interval.ms": "300000"}})
    given = bench.ask()
    bench.push(given, is_terminating=True)
    bench.now_ms += 900_000 - 1
    bench.ask(OTHER)
    bench.now_ms += 1
    assert bench.push(given) == NONE


def test_the_longest_silent_one_makes_room():
    bench = Bench(count_max=3)
    for number in (21, 22, 23):
        bench.ask(uuid.UUID(int=number), connection=number)
    bench.ask(uuid.UUID(int=21))
    bench.ask(uuid.UUID(int=24), connection=24)
    assert bench.known == 3
    assert bench.statistics().evicted == 1
    assert bench.ask(uuid.UUID(int=21)) == EARLY
    assert bench.described == 4
    bench.ask(uuid.UUID(int=22))
    assert bench.described == 5, "22 was the one"


def test_it_is_counted_what_clients_are_and_what_they_say():
    bench = Bench()
    gauge, growth = PLACES["producer_record_queue_max_seconds"], PLACES["producer_connections_opened_total"]
    for instance_id, value in ((ONE, 3000.0), (OTHER, 2000.0)):
        given = bench.ask(instance_id, connection=int(instance_id))
        push = Push(given.instance_id, given.subscription_id, False, 0, 10)
        assert bench.instances.push(push, int(instance_id), bench.describe, BYTES_MAX, bench.now_ms) == NONE
        bench.instances.taken(push, Pushed(Kind.PRODUCER, {gauge: value}, {growth: 2.0}))
    bench.ask(NO_ID)
    told = bench.instances.aggregates
    assert bench.statistics().instances == {"producer": 2, "consumer": 0, "other": 0, "silent": 1}
    assert told.gauges() == {"producer_record_queue_max_seconds": {"instances": 2, "value": 3.0}}
    bench.instances.closed(int(ONE))
    assert told.gauges() == {"producer_record_queue_max_seconds": {"instances": 1, "value": 2.0}}
    bench.instances.taken(Push(ONE, 0, False, 0, 10), Pushed(Kind.CONSUMER, {gauge: 9e9}, {growth: 3.0}))
    assert told.gauges()["producer_record_queue_max_seconds"]["value"] == 2.0, "it has gone meanwhile"
    assert told.growths()["producer_connections_opened_total"] == 7.0, "but its connections were opened"
    bench.instances.taken(Push(OTHER, 0, False, 0, 10), Pushed(Kind.PRODUCER, {}, {}))
    assert told.gauges() == {}, "what is not said any more is over"


IDS = st.sampled_from([NO_ID, *(uuid.UUID(int=number) for number in range(1, 6))])
STEPS = st.one_of(
    st.tuples(st.just("ask"), IDS, st.integers(1, 3)),
    st.tuples(st.just("push"), IDS, st.integers(1, 3)),
    st.tuples(st.just("close"), st.integers(1, 3)),
    st.tuples(st.just("follow"), st.sampled_from([100, 1000, 300_000])),
    st.tuples(st.just("wait"), st.sampled_from([1, 99, 1_000, 100_000, 1_000_000])),
)


@given(st.lists(STEPS, max_size=60))
def test_whatever_comes_the_counts_agree_and_the_bound_holds(steps):
    bench, told, refused = Bench(count_max=3), {}, 0
    for what, *values in steps:
        result = NONE
        if what == "ask":
            result = bench.ask(*values)
            if not isinstance(result, ErrorCode):
                told[result.instance_id] = result
        elif what == "push" and values[0] in told:
            result = bench.push(told[values[0]], connection=values[1])
        elif what == "close":
            bench.instances.closed(*values)
        elif what == "follow":
            bench.instances.follow({"s": {"metrics": "*", "interval.ms": str(values[0])}})
        elif what == "wait":
            bench.now_ms += values[0]
        refused += result in REFUSALS
        statistics = bench.statistics()
        assert sum(statistics.instances.values()) <= 3
        assert min(statistics.instances.values()) >= 0
        assert sum(statistics.refused.values()) == refused
    for connection in range(1, 4):
        bench.instances.closed(connection)
    bench.now_ms += 10_000_000
    assert bench.known == 0
    assert bench.instances.aggregates.gauges() == {}
