"""What is used of quotas (`native/net/quota.c`), against a model that keeps every event, with a clock of the tests."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tpc_broker._ring import ffi, lib

NS = 1_000_000_000
AMOUNT_MAX = 2**40 - 1
BEGIN_NS = 7 * 24 * 3600 * NS


class Table:
    """Of so many buckets, in memory of its own."""

    def __init__(self, buckets=64, *, count=11, window_ns=NS):
        size = lib.tpc_quota_table_bytes(buckets)
        self.memory = ffi.new("uint64_t[]", size // 8 + 1)
        self.size = size
        self.pointer = lib.tpc_quota_table_in(self.memory, size)
        self.windows = ffi.new("tpc_quota_windows *", {"window_ns": window_ns, "count": count})

    def bucket(self, user=b"u", client=b"", kind=0, now_ns=BEGIN_NS):
        key = ffi.new("uint64_t *")
        found = lib.tpc_quota_bucket_of(
            self.pointer, self.windows, kind, user, len(user), client, len(client), now_ns, key
        )
        return found, key[0]

    def add(self, bucket, amount, now_ns):
        lib.tpc_quota_add(bucket, self.windows, amount, now_ns)

    def sum(self, bucket, now_ns):
        return lib.tpc_quota_sum(bucket, self.windows, now_ns)

    def throttle_ms(self, bucket, limit, now_ns):
        return lib.tpc_quota_throttle_ms(bucket, self.windows, limit, now_ns)


class Counting(RuleBasedStateMachine):
    """A bucket and all that was ever added to it."""

    @initialize(count=st.integers(1, 32), window_ns=st.sampled_from([1_000_000, NS, 7 * NS]), offset=st.integers(0, NS))
    def begin(self, count, window_ns, offset):
        self.table = Table(count=count, window_ns=window_ns)
        self.count, self.window_ns, self.now_ns = count, window_ns, BEGIN_NS + offset
        self.bucket, _key = self.table.bucket()
        self.events = []

    @rule(amount=st.integers(0, 10**9))
    def use(self, amount):
        self.table.add(self.bucket, amount, self.now_ns)
        self.events.append((self.now_ns, amount))

    @rule(part=st.floats(0, 40))
    def wait(self, part):
        self.now_ns += int(part * self.window_ns)

    def counted(self, now_ns):
        window = now_ns // self.window_ns
        return sum(amount for at, amount in self.events if window - at // self.window_ns < self.count)

    def rate(self, now_ns):
        passed_ns = max(1_000_000, (self.count - 1) * self.window_ns + now_ns % self.window_ns)
        return self.counted(now_ns) * NS / passed_ns

    @rule(limit=st.sampled_from([1.0, 1e3, 1e6, 1e9]))
    def judge(self, limit):
        """Whoever waits as long as was said is at the limit, or below, then."""
        wait_ms = self.table.throttle_ms(self.bucket, limit, self.now_ns)
        rate = self.rate(self.now_ns)
        if rate < limit * (1 - 1e-9):
            assert wait_ms == 0
        if rate > limit * (1 + 1e-9):
            assert wait_ms > 0
        if 0 < wait_ms < 2**31 - 1:
            after_ns = self.now_ns + wait_ms * 1_000_000
            kept_s = max((self.count - 1) * self.window_ns + self.now_ns % self.window_ns, 1_000_000) / NS
            assert self.counted(self.now_ns) <= limit * (kept_s + wait_ms / 1000) * (1 + 1e-9)
            assert math.isclose(wait_ms / 1000, self.counted(self.now_ns) / limit - kept_s, abs_tol=2e-3, rel_tol=1e-6)
            assert self.table.throttle_ms(self.bucket, limit, after_ns + self.count * self.window_ns) == 0

    @invariant()
    def sums_agree(self):
        if hasattr(self, "table"):
            assert self.table.sum(self.bucket, self.now_ns) == self.counted(self.now_ns)


TestCounting = Counting.TestCase


def test_as_kafka_was_measured():
    """300 kB at once at a quota of 20 kB a second, over 11 windows of a second."""
    table = Table()
    bucket, _key = table.bucket()
    table.add(bucket, 300_000, BEGIN_NS)
    assert table.throttle_ms(bucket, 20_000.0, BEGIN_NS + 73_000_000) in (4927, 4928)
    assert table.throttle_ms(bucket, 30_000.0, BEGIN_NS) == 0
    assert table.throttle_ms(bucket, 20_000.0, BEGIN_NS + 11 * NS) == 0, "it has left the windows"


def test_a_window_holds_no_more_than_it_can_and_never_less_than_it_had():
    table = Table()
    bucket, _key = table.bucket()
    for _ in range(3):
        table.add(bucket, AMOUNT_MAX - 1, BEGIN_NS)
    assert table.sum(bucket, BEGIN_NS) == AMOUNT_MAX
    assert table.throttle_ms(bucket, 1e-9, BEGIN_NS) == 2**31 - 1


NAMES = st.tuples(st.integers(0, 3), st.binary(max_size=3), st.binary(max_size=3))


@given(st.lists(NAMES, unique=True, max_size=12))
def test_each_kind_user_and_client_has_a_bucket_of_its_own(names):
    table = Table(1024)
    found = {}
    for name in names:
        found[name] = table.bucket(name[1], name[2], name[0])
        table.add(found[name][0], 1, BEGIN_NS)  # what nobody has used is nobody's
    assert len({bucket for bucket, _key in found.values()}) == len(names)
    assert all(table.bucket(name[1], name[2], name[0]) == bucket for name, bucket in found.items())


def test_a_place_is_another_s_when_nothing_in_it_counts_and_not_before():
    table = Table(4)
    taken = {}
    for number in range(4):
        bucket, key = table.bucket(b"%d" % number)
        assert key
        table.add(bucket, 1000, BEGIN_NS)
        taken[bucket] = key
    common, key = table.bucket(b"one more")
    assert (key, common in taken) == (0, False)
    assert table.bucket(b"and one")[0] == common, "they are held together, not let go"
    later_ns = BEGIN_NS + 12 * NS
    bucket, key = table.bucket(b"one more", now_ns=later_ns)
    assert bucket in taken
    assert bucket.key == key != taken[bucket]
    assert table.sum(bucket, later_ns) == 0


ADDRESS = lib.TPC_QUOTA_CONNECTION


def test_a_new_address_takes_the_place_of_which_least_is_counted_and_that_with_it():
    table = Table(8 * 15)  # and 16 of addresses
    known = [table.bucket(b"%d" % number, kind=ADDRESS)[0] for number in range(16)]
    for number in range(16):
        bucket, key = table.bucket(b"%d" % number, kind=ADDRESS)
        assert key
        table.add(bucket, 100 - number, BEGIN_NS)
    assert len(set(known)) == 16
    least = min((table.sum(bucket, BEGIN_NS), bucket) for bucket in known)
    taken, key = table.bucket(b"one more", kind=ADDRESS)
    assert (table.sum(taken, BEGIN_NS), taken.key) == (least[0], key)


def test_addresses_and_names_leave_each_other_their_places():
    table = Table(16)
    for number in range(1000):
        for kind in (0, ADDRESS):
            bucket, _key = table.bucket(b"%d of %d" % (number, kind), kind=kind)
            table.add(bucket, 10**9 if kind == 0 else 1, BEGIN_NS)
    bucket, key = table.bucket(b"one more", kind=ADDRESS)
    assert table.sum(bucket, BEGIN_NS) < 1000
    assert key
    assert table.bucket(b"one more")[1] == 0, "names share the common one, as before"


@pytest.mark.parametrize("addresses", [3, 40, 4000])
def test_no_address_gets_more_than_its_quota_whatever_places_are_taken(chance, addresses):
    """And as long as somebody is below it in reach, everybody gets something."""
    table, limit = Table(8 * 31), 2.0
    got, refused = [[0] * addresses for _ in range(2)]
    allowed = 22
    for _ in range(8000):
        number = chance.randrange(addresses) if chance.random() < 0.5 else 0
        bucket, _key = table.bucket(b"%d" % number, kind=ADDRESS)
        if table.throttle_ms(bucket, limit, BEGIN_NS + NS - 1):
            refused[number] += 1
        else:
            table.add(bucket, 1, BEGIN_NS)
            got[number] += 1
    assert max(got) <= allowed + 1
    assert sum(got) <= 33 * (allowed + 1), "all that the places hold"
    if addresses == 40:
        assert all(got)


def test_whoever_has_a_place_keeps_it_while_others_were_never_taken():
    table = Table(16)
    assert len({table.bucket(b"%d" % number)[0] for number in range(16)}) == 16


def test_a_bucket_is_found_again_by_its_key():
    table = Table(1)
    bucket, key = table.bucket(b"u")
    again = ffi.new("uint64_t *", key)
    table.bucket(b"other")
    assert lib.tpc_quota_bucket_again(table.pointer, table.windows, 0, BEGIN_NS, again) == bucket
    assert bucket.key == again[0] == key


def test_two_cores_find_the_same_bucket_in_the_memory_that_they_share():
    table = Table()
    bucket, _key = table.bucket(b"u", b"c")
    table.add(bucket, 5, BEGIN_NS)
    assert lib.tpc_quota_table_in(table.memory, table.size) == table.pointer
    again, _key = table.bucket(b"u", b"c")
    assert table.sum(again, BEGIN_NS) == 5


def test_memory_without_room_for_a_bucket_is_refused():
    assert lib.tpc_quota_table_in(ffi.new("uint64_t[]", 64), 64) == ffi.NULL


@pytest.mark.parametrize("count", [0, 33])
def test_windows_that_there_is_no_place_for_are_refused(make_connections, count):
    bench = make_connections()
    windows = ffi.new("tpc_quota_windows *", {"window_ns": NS, "count": count})
    assert lib.tpc_quotas_set(bench.connections.pointer, windows, ffi.new("tpc_quota_rule[]", 1), 0) < 0
