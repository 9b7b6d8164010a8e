"""Partitions without clients: producers' sequences, batches in memory, write-behind, and a model that knows better."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest
import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.support.plane_bench import NOW_MS, PlaneBench, records_of, settings_with, topic_id_of
from tests.support.plane_values import (
    JournalEntryKind,
    JournalFailedError,
    JournalFullError,
    NotAdmittedError,
    PartitionFlag,
    PlaneLimits,
    ProducerBatch,
    ProducerState,
)
from tests.support.record_batches import read_batches
from tpc_broker._ring import ffi, lib
from tpc_broker.error_codes import ErrorCode as E

VERSION = 9
SEQUENCE_MAX = 2**31 - 1

RUN_BYTES = ffi.sizeof("tpc_tail_batch") + 8
"""What finding a run again costs."""


def produce(bench, handle, count=1, producer=(-1, -1, -1)):
    return bench.plane.produce_records(handle, records_of(count, producer=producer), VERSION)


def outcome(bench, handle, producer, count=1):
    appended = produce(bench, handle, count, producer)
    return appended.error_code, appended.base_offset, appended.duplicate


# ---------------------------------------------------------------------------------------------------------- producers


def test_sequences_of_one_producer(bench):
    handle = bench.lead("t")
    assert outcome(bench, handle, (7, 1, 0), 3) == (E.NONE, 0, False)
    assert outcome(bench, handle, (7, 1, 3), 2) == (E.NONE, 3, False)
    assert outcome(bench, handle, (7, 1, 6)) == (E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, False)
    assert outcome(bench, handle, (7, 1, 3), 1)[0] is E.OUT_OF_ORDER_SEQUENCE_NUMBER, "same first, another last"
    assert outcome(bench, handle, (7, 1, 0), 3) == (E.NONE, 0, True)
    assert outcome(bench, handle, (7, 0, 5))[0] is E.INVALID_PRODUCER_EPOCH
    assert outcome(bench, handle, (7, 2, 1))[0] is E.OUT_OF_ORDER_SEQUENCE_NUMBER, "a new epoch begins with 0"
    assert outcome(bench, handle, (7, 2, 0)) == (E.NONE, 5, False)
    assert outcome(bench, handle, (7, 1, 5))[0] is E.INVALID_PRODUCER_EPOCH
    assert outcome(bench, handle, (8, 0, 1234)) == (E.NONE, 6, False), "unknown producers may begin anywhere"


def test_only_the_last_five_batches_are_known(bench):
    handle = bench.lead("t")
    for sequence in range(6):
        assert outcome(bench, handle, (7, 0, sequence)) == (E.NONE, sequence, False)
    assert outcome(bench, handle, (7, 0, 0))[0] is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [outcome(bench, handle, (7, 0, sequence)) for sequence in range(1, 6)] == [
        (E.NONE, sequence, True) for sequence in range(1, 6)
    ]


def test_sequences_wrap_behind_the_greatest(bench):
    handle = bench.lead("t")
    assert outcome(bench, handle, (-1, -1, -1)) == (E.NONE, 0, False)
    assert outcome(bench, handle, (7, 0, SEQUENCE_MAX - 1), 4) == (E.NONE, 1, False)
    assert bench.plane.dump_producers(handle) == []
    bench.settle()
    assert bench.plane.dump_producers(handle)[0].batches[0].last_sequence == 1
    assert outcome(bench, handle, (7, 0, 2)) == (E.NONE, 5, False)
    assert outcome(bench, handle, (7, 0, SEQUENCE_MAX - 1), 4) == (E.NONE, 1, True)
    assert outcome(bench, handle, (9, 0, SEQUENCE_MAX)) == (E.NONE, 6, False)
    assert outcome(bench, handle, (9, 0, 0)) == (E.NONE, 7, False)


def test_a_duplicate_of_what_is_not_durable_shares_its_fate(bench):
    handle = bench.lead("t")
    first = produce(bench, handle, 1, (7, 0, 0))
    again = produce(bench, handle, 1, (7, 0, 0))
    assert again.duplicate
    assert again.commit is first.commit
    assert not first.commit.durable
    bench.settle()
    bench.until(lambda: first.commit.durable)
    late = produce(bench, handle, 1, (7, 0, 0))
    assert (late.base_offset, late.commit) == (0, None)


def test_both_fail_when_the_first_fails_and_the_retry_is_taken_as_new(bench):
    handle = bench.lead("t")
    bench.break_disk()
    commits = [produce(bench, handle, 1, (7, 0, 0)).commit for _ in range(2)]
    bench.until(lambda: bench.failures)
    assert [commit.error for commit in commits] == [9, 9]
    with pytest.raises(JournalFailedError):
        produce(bench, handle)
    with pytest.raises(JournalFailedError):
        trio.run(commits[0].wait_durable)
    bench.mend_disk()
    bench.plane.reopen_journal(bench.descriptor, bench.mode, 2)
    assert outcome(bench, handle, (7, 0, 0)) == (E.NONE, 0, False)


def test_snapshots_hold_durable_batches_below_their_offset_and_load_again(bench):
    handle = bench.lead("t")
    for sequence in range(3):
        produce(bench, handle, 1, (7, 0, sequence))
    produce(bench, handle, 1, (8, 4, 0))
    bench.settle()
    produce(bench, handle, 1, (7, 0, 3))
    produce(bench, handle, 1, (9, 0, 0))
    everything = {state.producer_id: state for state in bench.plane.dump_producers(handle)}
    assert everything[7] == ProducerState(
        7, 0, NOW_MS, tuple(ProducerBatch(n, n, 1_700_000_000_000, n, n) for n in range(3))
    )
    assert set(everything) == {7, 8}, "the last two appends are not durable"
    assert [(s.producer_id, len(s.batches)) for s in bench.plane.dump_producers(handle, 2)] == [(7, 2)]
    other = bench.lead("other", log_end_offset=4)
    bench.plane.load_producers(other, list(everything.values()))
    assert outcome(bench, other, (7, 0, 2)) == (E.NONE, 2, True)
    assert outcome(bench, other, (7, 0, 4))[0] is E.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_after_a_loss_the_next_sequence_is_taken_once(bench):
    handle = bench.lead("t", log_end_offset=10)
    lost = ProducerState(7, 0, NOW_MS, (ProducerBatch(9, 9, NOW_MS, 3, 3),))
    bench.plane.load_producers(handle, [lost], sequence_lost=True)
    assert outcome(bench, handle, (7, 0, 3)) == (E.NONE, 9, True)
    assert outcome(bench, handle, (7, 0, 8)) == (E.NONE, 10, False)
    assert outcome(bench, handle, (7, 0, 12))[0] is E.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_silent_producers_expire(bench):
    handle = bench.lead("t")
    for producer in range(40):
        produce(bench, handle, 1, (producer, 0, 0))
    bench.settle()
    lib.tpc_plane_set_monotonic(bench.plane.pointer, NOW_MS + 1000)
    produce(bench, handle, 1, (3, 0, 1))
    bench.settle()
    assert bench.plane.expire_producers(handle, NOW_MS + 86_400_000) == 39
    assert [state.producer_id for state in bench.plane.dump_producers(handle)] == [3]
    assert outcome(bench, handle, (3, 0, 0)) == (E.NONE, 3, True)


def test_silent_producers_make_room_before_the_table_grows(make_bench):
    bench = make_bench(region_blocks=512)
    handle = bench.lead("t")
    for day in range(6):
        lib.tpc_plane_set_monotonic(bench.plane.pointer, NOW_MS + day * 86_400_000)
        for producer in range(50):
            produce(bench, handle, 1, (day * 1000 + producer, 0, 0))
            if producer % 3 == 0:
                bench.settle()
        assert bench.plane.state(handle).producers_count <= 150
    assert outcome(bench, handle, (5000, 0, 0))[2], "who wrote lately is known"


def test_producers_are_silent_from_when_they_were_loaded(bench):
    """What is stored is their records' time, which may be long ago, or to come: of backfills, mirrors and events."""
    handle = bench.lead("t", log_end_offset=3)
    times = {1: NOW_MS - 2 * 86_400_000, 2: 0, 3: NOW_MS + 2 * 86_400_000}
    states = [ProducerState(one, 0, ms, (ProducerBatch(one - 1, one - 1, ms, 0, 0),)) for one, ms in times.items()]
    bench.plane.load_producers(handle, states)
    assert outcome(bench, handle, (1, 0, 1)) == (E.NONE, 3, False), "the table is full: the silent are looked for"
    assert outcome(bench, handle, (2, 0, 0)) == (E.NONE, 1, True)
    assert outcome(bench, handle, (3, 0, 7))[0] is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    bench.settle()
    assert bench.plane.expire_producers(handle, NOW_MS + 86_400_000 - 1) == 0
    assert bench.plane.expire_producers(handle, NOW_MS + 86_400_000) == 3


def test_expiry_loses_nobody_else(bench):
    """Removal from the hash table moves others; with random ids there are collisions enough."""
    handle = bench.lead("t", log_end_offset=1000)
    chooser = Random(7)
    silent = {chooser.randrange(2**62): chooser.random() < 0.5 for _ in range(700)}
    for loaded_ms, loads_old in ((NOW_MS - 86_400_000, True), (NOW_MS, False)):
        lib.tpc_plane_set_monotonic(bench.plane.pointer, loaded_ms)
        bench.plane.load_producers(
            handle,
            [
                ProducerState(producer, 0, 0, (ProducerBatch(n, n, NOW_MS, 5, 5),))
                for n, (producer, old) in enumerate(silent.items())
                if old is loads_old
            ],
        )
    assert bench.plane.expire_producers(handle, NOW_MS) == sum(silent.values())
    assert {s.producer_id for s in bench.plane.dump_producers(handle)} == {p for p, old in silent.items() if not old}
    for number, (producer, old) in enumerate(silent.items()):
        if not old:
            assert outcome(bench, handle, (producer, 0, 5)) == (E.NONE, number, True)


# ------------------------------------------------------------------------------------------ appends of the broker's own


def test_appends_of_python_wait_for_their_commit(bench):
    handle = bench.lead("internal", settings=settings_with(PartitionFlag.INTERNAL, leader_epoch=3))
    appended = bench.plane.append(handle, records_of(2) + records_of(3))
    assert (appended.base_offset, appended.next_offset, appended.error_code) == (0, 5, E.NONE)
    assert bench.plane.state(handle).high_watermark == 0
    assert bench.readable(handle) == []
    assert bytes(bench.plane.read(handle, 0, 1 << 20, 5)) == b"", "not even when asked up to the log's end"
    bench.until(lambda: appended.commit.durable)
    assert [base for base, _ in bench.readable(handle)] == [0, 2]
    assert bench.plane.append(handle, records_of(1, crc=5)).error_code is E.CORRUPT_MESSAGE
    assert bench.plane.append(handle, records_of(1)[:-1]).error_code is E.CORRUPT_MESSAGE
    assert bench.plane.append(handle, b"").error_code is E.INVALID_RECORD
    assert bench.plane.state(handle).log_end_offset == 5


def test_entries_that_are_no_batches(bench):
    commit = bench.plane.journal_entry(JournalEntryKind.LOG_START, topic_id_of("t"), 4, offset=17)
    bench.until(lambda: commit.durable)
    (entry,) = bench.journal_entries()
    assert (entry.kind, entry.topic_id, entry.partition, entry.offset) == (4, topic_id_of("t"), 4, 17)


def test_refusals(make_bench):
    bench = make_bench(region_blocks=3)
    handle = bench.lead("t", bytes_admitted=500)
    with pytest.raises(NotAdmittedError):
        bench.plane.append(handle, records_of(1, value=bytes(500)))
    for _ in range(2):
        produce(bench, handle)
        bench.settle()
    with pytest.raises(JournalFullError):
        produce(bench, handle)
    with pytest.raises(FileExistsError):
        bench.lead("t")
    with pytest.raises(ValueError, match="register"):
        bench.lead("u", log_start_offset=5, log_end_offset=4)
    with pytest.raises(ValueError, match="log start"):
        bench.plane.set_log_start(handle, 3)
    bench.plane.set_log_start(handle, 2)
    assert bench.plane.find("t", 0) == bench.plane.find_id(topic_id_of("t"), 0) == handle
    bench.plane.withdraw(handle)
    assert bench.plane.find("t", 0) is None
    with pytest.raises(KeyError):
        bench.plane.read(handle, 0, 100)


def test_registered_with_a_high_watermark_below_the_end_it_shows_only_what_is_committed(bench):
    handle = bench.lead("t", log_end_offset=9, high_watermark=6)
    state = bench.plane.state(handle)
    assert (state.last_stable_offset, state.high_watermark, state.log_end_offset) == (6, 6, 9)
    with pytest.raises(ValueError, match="log start"):
        bench.plane.set_log_start(handle, 7)
    produce(bench, handle, 2)
    assert bench.plane.state(handle).high_watermark == 6
    bench.settle()
    state = bench.plane.state(handle)
    assert (state.high_watermark, state.log_end_offset) == (11, 11), "one voter: what is durable is committed"


@pytest.mark.parametrize("high_watermark", [-1, 2, 10])
def test_a_high_watermark_outside_of_the_log_is_refused(bench, high_watermark):
    with pytest.raises(ValueError, match="register"):
        bench.lead("t", log_start_offset=3, log_end_offset=9, high_watermark=high_watermark)


def test_a_leader_epoch_never_falls(bench):
    handle = bench.lead("t", settings=settings_with(leader_epoch=3))
    bench.plane.update(handle, settings_with(leader_epoch=2))
    assert bench.plane.state(handle).leader_epoch == 3, "settings are not what begins one"
    bench.plane.arm(handle, 4)
    with pytest.raises(ValueError, match="arm"):
        bench.plane.arm(handle, 3)
    assert bench.plane.state(handle).leader_epoch == 4


def test_a_watch_fires_once(bench):
    handle = bench.lead("t")
    bench.plane.watch(handle)
    produce(bench, handle, 2)
    bench.settle()
    bench.until(lambda: bench.advanced)
    produce(bench, handle)
    bench.settle()
    assert bench.advanced == [(handle, 2, 2)]


def test_many_partitions_are_found_and_idle_ones_are_small(bench):
    handles = [bench.lead(f"topic-{n // 10}", n % 10) for n in range(3000)]
    assert [bench.plane.find(f"topic-{n // 10}", n % 10) for n in range(3000)] == handles
    for handle in handles[::2]:
        bench.plane.withdraw(handle)
    assert [bench.plane.find_id(topic_id_of(f"topic-{n // 10}"), n % 10) for n in range(3000)] == [
        None if n % 2 == 0 else handle for n, handle in enumerate(handles)
    ]
    assert bench.plane.statistics()["partitions"] == 1500


# -------------------------------------------------------------------------------------------------------------- memory


def test_reads_end_at_bounds_and_batches(bench):
    handle = bench.lead("t")
    for count in (3, 2, 4):
        produce(bench, handle, count)
    bench.settle()

    def bases(offset, bytes_max, upto=1 << 60, *, min_one=True):
        slices = bench.plane.read(handle, offset, bytes_max, upto, min_one=min_one)
        return [b["base_offset"] for b in read_batches(bytes(slices))]

    assert bases(0, 1 << 20) == [0, 3, 5]
    assert bases(4, 1 << 20) == [3, 5]
    assert bases(0, 1 << 20, 5) == [0, 3]
    assert bases(0, 1 << 20, 4) == [0]
    assert bases(0, 1) == [0]
    assert bases(0, 1, min_one=False) == []
    assert bases(9, 1 << 20) == []
    size = len(records_of(3)) + len(records_of(2))
    assert bases(0, size) == [0, 3]


def test_write_behind_is_due_by_size_age_or_memory(make_bench):
    size, never_ns, unbounded = len(records_of(1)), 1 << 60, 1 << 60
    bench = make_bench()
    first, second, third = (bench.lead(name) for name in "abc")
    for handle in (first, second, second, third):
        produce(bench, handle)
    bench.settle()
    due = bench.plane.dirty_due
    assert due(2 * size, never_ns, unbounded) == [second], "by size"
    assert due(2 * size + 1, never_ns, unbounded) == []
    assert due(2 * size + 1, 0, unbounded) == [first, second, third], "by age"
    assert due(2 * size + 1, never_ns, 4 * size - 1) == [first], "by memory, the longest dirty ones first"
    assert due(2 * size + 1, never_ns, 3 * size - 1) == [first, second]
    assert due(2 * size, never_ns, 2 * size - 1) == [first, second], "large ones count as gone"
    bench.plane.write_behind_done(first, 1)
    assert due(1, never_ns, unbounded) == [second, third]
    bench.plane.write_behind_done(second, 1)
    assert due(0, never_ns, unbounded) == [third, second], "what was written to is at the end again"


def test_who_watches_is_told_once_when_it_is_time_to_write_behind(make_bench):
    size, unbounded = len(records_of(1)), 1 << 60
    bench = make_bench()
    first, second = bench.lead("a"), bench.lead("b")
    told: list[int] = []
    bench.plane.on_due = told.append

    def add(handle: int) -> None:
        produce(bench, handle)
        bench.settle()

    add(first)
    add(first)
    assert told == [], "nobody watches"
    bench.plane.watch_due(2 * size, unbounded)
    add(second)
    assert told == [], "it has less"
    add(first)
    assert told == [first], "what was there before counts"
    add(first)
    add(second)
    assert told == [first], "once"
    bench.plane.watch_due(1 << 40, 7 * size - 1)
    add(second)
    assert told == [first, second], "all together"


def test_room_is_asked_for_once_when_half_of_it_is_used_up(make_bench):
    size = len(records_of(1))
    bench = make_bench()
    handle = bench.lead("a", bytes_admitted=0)
    low: list[int] = []
    bench.plane.on_room_low = low.append
    bench.plane.admit(handle, 4 * size)

    def add(count: int) -> None:
        for _ in range(count):
            produce(bench, handle)
        bench.settle()

    add(2)
    assert low == []
    add(1)
    assert low == [handle]
    add(1)
    assert low == [handle], "once"
    bench.plane.admit(handle, 4 * size)
    add(3)
    assert low == [handle, handle], "and again after more was admitted"


def test_write_behind_and_eviction(make_bench):
    size = len(records_of(1))
    bench = make_bench(limits=PlaneLimits(tail_bytes_max=2 * (size + RUN_BYTES)))
    first, second = bench.lead("a"), bench.lead("b")
    produce(bench, first), produce(bench, second)
    assert bench.plane.dirty() == []
    bench.settle()
    produce(bench, first), produce(bench, second)
    bench.settle()
    assert bench.plane.dirty() == [first, second]
    assert bench.plane.write_behind_take(first, 1)[0].next_offset == 1
    taken = bench.plane.write_behind_take(first, 1 << 20)
    assert [(b.base_offset, b.next_offset) for b in taken] == [(0, 1), (1, 2)], "a commit each, so a run each"
    assert read_batches(bytes(taken[1].data))[0]["base_offset"] == 1
    bench.plane.write_behind_done(first, 2)
    assert bench.plane.dirty() == [second]
    assert bench.plane.state(first).tail_offset == 0, "within the budget it stays readable"
    bench.plane.write_behind_done(second, 1)
    assert bench.plane.state(first).tail_offset == 1, "the oldest of all goes first"
    assert bench.plane.read(first, 0, 100) is None
    assert bench.plane.state(second).tail_offset == 0
    bench.plane.set_tail_bytes_max(0)
    assert bench.plane.state(first).tail_offset == 2
    assert [base for base, _ in bench.readable(second, 1)] == [1], "not written behind: never evicted"
    with pytest.raises(ValueError, match="written behind"):
        bench.plane.write_behind_done(second, 3)
    assert bytes(taken[0].data)[8:12] == bytes(taken[1].data)[8:12], "taken batches outlive their eviction"


def test_full_chunks_are_filled_again(make_bench):
    value = bytes(3900)
    bench = make_bench(region_blocks=1024, limits=PlaneLimits(tail_bytes_max=262_144))
    handle = bench.lead("t")

    def add(count):
        for _ in range(count):
            bench.plane.produce_records(handle, records_of(1, value=value), VERSION)
        bench.settle()
        state = bench.plane.state(handle)
        bench.plane.write_behind_done(handle, state.log_end_offset)
        return bench.connections.statistics().budget_bytes_used

    add(150)
    used = add(150)
    assert [add(150) for _ in range(2)] == [used] * 2, "those that were evicted, no others"
    assert used > 5 * 131_072, "two with batches, three to be filled"
    assert len(bench.readable(handle, bench.plane.state(handle).tail_offset)) > 30
    last = bench.plane.read(handle, bench.plane.state(handle).tail_offset, 1)
    before = bytes(last)
    add(150), add(150)
    assert bytes(last) == before, "not while somebody reads it"


def test_small_batches_of_one_commit_share_a_run(bench):
    size = len(records_of(1))
    handle, other = bench.lead("t"), bench.lead("other")
    for _ in range(3):
        produce(bench, handle), produce(bench, other)
    assert bench.readable(handle, 0) == [], "not durable yet"
    bench.settle()
    produce(bench, handle)
    bench.settle()
    runs = bench.plane.write_behind_take(handle, 1 << 20)
    assert [(run.base_offset, run.next_offset, len(run.data)) for run in runs] == [(0, 3, 3 * size), (3, 4, size)]
    assert [base for base, _ in bench.readable(handle, 1)] == [1, 2, 3], "from within a run"
    assert len(bytes(bench.plane.read(handle, 1, size + 1))) == size, "as many batches of it as there is room for"
    assert len(bytes(bench.plane.read(handle, 2, 1))) == size, "at least one"
    assert len(bytes(bench.plane.read(handle, 0, 3 * size - 1))) == 2 * size
    assert len(bytes(bench.plane.read(handle, 2, 2 * size))) == 2 * size, "over its end"

    bench.plane.write_behind_done(handle, 2)
    state = bench.plane.state(handle)
    assert (state.written_offset, state.dirty_bytes, state.tail_offset) == (2, 2 * size, 0)
    runs = bench.plane.write_behind_take(handle, 1 << 20)
    assert [(run.base_offset, run.next_offset, len(run.data)) for run in runs] == [(2, 3, size), (3, 4, size)]
    assert read_batches(bytes(runs[0].data))[0]["base_offset"] == 2
    bench.plane.set_tail_bytes_max(0)
    assert [base for base, _ in bench.readable(handle, 0)] == [0, 1, 2, 3], "a run is evicted as a whole"
    bench.plane.write_behind_done(handle, 3)
    state = bench.plane.state(handle)
    assert (state.tail_offset, state.dirty_bytes, state.tail_bytes) == (3, size, size)


def test_small_batches_that_follow_each_other_share_a_journal_entry(bench):
    handle, other = bench.lead("t"), bench.lead("t", 1)
    for one in (handle, handle, other, other, handle):
        produce(bench, one)
    for _ in range(5):
        bench.plane.produce_records(handle, records_of(1, value=bytes(4000)), VERSION)
    bench.settle()
    produce(bench, handle)
    bench.settle()
    entries = [(entry.partition, entry.offset, entry.argument) for entry in bench.journal_entries()]
    assert entries == [(0, 0, 2), (1, 0, 2), (0, 2, 6), (0, 6, 8), (0, 8, 9)], "16 KiB at most, and of one commit"
    for entry in bench.journal_entries():
        bases = [one["base_offset"] for one in read_batches(entry.payload)]
        assert bases == list(range(entry.offset, entry.argument))


def test_runs_stay_short(bench):
    handle = bench.lead("t")
    for _ in range(15):
        bench.plane.produce_records(handle, records_of(1, value=bytes(3_000)), VERSION)
    bench.settle()
    runs = bench.plane.write_behind_take(handle, 1 << 20)
    assert [run.next_offset for run in runs] == [1, 3, 8, 13, 15], "they end where a chunk ends, and before 16 KiB"


def test_a_failure_cuts_a_run_where_its_first_undone_batch_begins(bench):
    handle = bench.lead("t")
    produce(bench, handle, 1, (7, 0, 0))
    bench.settle()
    bench.break_disk()
    produce(bench, handle), produce(bench, handle)
    produce(bench, handle, 1, (7, 0, 1))
    produce(bench, handle, 1, (7, 0, 2))
    produce(bench, handle)
    assert bench.plane.state(handle).appends_undurable == 4, "the first two have no producer, and count as one"
    bench.settle()
    state = bench.plane.state(handle)
    assert (state.log_end_offset, state.high_watermark, state.appends_undurable) == (1, 1, 0)
    assert state.tail_bytes == len(records_of(1))
    assert bench.plane.statistics()["appends_rolled_back"] == 5
    assert [base for base, _ in bench.readable(handle, 0)] == [0]


def test_withdrawing_gives_the_memory_back_but_not_under_a_reader(bench):
    handle = bench.lead("t")
    produce(bench, handle, 5)
    bench.settle()
    before = bench.connections.budget.frames
    slices = bench.plane.read(handle, 0, 1 << 20)
    expected = bytes(slices)
    bench.plane.withdraw(handle)
    assert bench.plane.statistics()["tail_bytes"] == 0
    assert bytes(slices) == expected
    assert bench.connections.budget.frames == before
    del slices
    assert bench.connections.budget.frames == before - 1


def test_an_answer_with_records_from_memory(bench):
    handle = bench.lead("t")
    produce(bench, handle, 2)
    bench.settle()
    client = bench.connect()
    bench.on_request = bench.requests.append
    client.sendall(b"\0\0\0\x0a\0\x01\0\x04\0\0\0\x05\xff\xff")
    request = bench.next_request()
    slices = bench.plane.read(handle, 0, 1 << 20)
    records = bytes(slices)
    assert bench.plane.answer_with(request, b"headmiddletail", [4, 10], [slices, b"segment"])
    assert bench.read_frame(client) == b"head" + records + b"middle" + b"segment" + b"tail"


# --------------------------------------------------------------------------------------------------------------- model


@dataclass
class Model:
    """One partition as it should be: batches as (base, next, tag), how many are durable, and known producers."""

    batches: list[tuple[int, int]] = field(default_factory=list)
    durable: int = 0
    written: int = 0
    sequences: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)

    @property
    def end(self):
        return self.batches[-1][1] if self.batches else 0


class PlaneMachine(RuleBasedStateMachine):
    """Random produces, failures, write-behind and evictions on two partitions against `Model`."""

    folder = None
    number = 0

    def __init__(self):
        super().__init__()
        PlaneMachine.number += 1
        path = PlaneMachine.folder / f"{PlaneMachine.number}.journal"
        self.bench = PlaneBench(path, region_blocks=2048, limits=PlaneLimits(tail_bytes_max=300))
        self.handles = [self.bench.lead("a"), self.bench.lead("b")]
        self.models = [Model(), Model()]
        self.saved = [replace(m) for m in self.models]
        self.broken, self.run = False, 1

    def teardown(self):
        self.bench.shut()
        self.bench.path.unlink()

    def _save(self):
        """What is durable now is what a failure goes back to."""
        for model in self.models:
            model.durable = model.end
        self.saved = [
            Model(list(m.batches), m.durable, m.written, {k: list(v) for k, v in m.sequences.items()})
            for m in self.models
        ]

    @rule(which=st.integers(0, 1), count=st.integers(1, 4), producer=st.integers(-1, 2), skew=st.integers(-2, 2))
    def produce(self, which, count, producer, skew):
        model, handle = self.models[which], self.handles[which]
        known = model.sequences.get(producer, [])
        sequence = max((known[-1][1] + 1 if known else 0) + skew, 0) if producer >= 0 else -1
        ids = (producer, 0 if producer >= 0 else -1, sequence)
        if self.failed:
            return
        appended = produce(self.bench, handle, count, ids)
        repeated = [base for first, last, base in known[-5:] if (first, last) == (sequence, sequence + count - 1)]
        if producer >= 0 and repeated:
            assert (appended.error_code, appended.base_offset, appended.duplicate) == (E.NONE, repeated[0], True)
        elif producer >= 0 and sequence != (known[-1][1] + 1 if known else 0) and (known or not model.end):
            assert appended.error_code is E.OUT_OF_ORDER_SEQUENCE_NUMBER
        else:
            assert (appended.error_code, appended.base_offset, appended.duplicate) == (E.NONE, model.end, False)
            model.sequences.setdefault(producer, []).append((sequence, sequence + count - 1, model.end))
            model.batches.append((model.end, model.end + count))

    @property
    def failed(self):
        return bool(self.bench.plane.journal_statistics()["error"])

    @rule()
    def settle(self):
        """Either everything becomes durable, or the broken disk takes everything back."""
        pending = any(model.end != model.durable for model in self.models)
        self.bench.settle()
        if self.broken and pending:
            assert self.failed
            self.models = self.saved
        self._save()

    @precondition(lambda self: not self.broken)
    @rule()
    def break_disk(self):
        self.settle()
        self.bench.break_disk()
        self.broken = True

    @precondition(lambda self: self.broken)
    @rule()
    def mend_disk(self):
        self.settle()
        self.bench.mend_disk()
        self.broken = False
        if self.failed:
            self.run += 1
            self.bench.plane.reopen_journal(self.bench.descriptor, self.bench.mode, self.run)
            self.bench.settle()

    @rule(which=st.integers(0, 1), bytes_max=st.integers(1, 400), left=st.integers(0, 2))
    def write_behind(self, which, bytes_max, left):
        """Takes runs, and says of all their batches but the last few that they are written."""
        self.settle()
        model, handle = self.models[which], self.handles[which]
        taken = self.bench.plane.write_behind_take(handle, bytes_max)
        assert [run.base_offset for run in taken[1:]] == [run.next_offset for run in taken[:-1]]
        found = [batch["base_offset"] for run in taken for batch in read_batches(bytes(run.data))]
        wanted = [batch for batch in model.batches if batch[0] >= model.written]
        assert found == [base for base, _ in wanted[: len(found)]]
        assert bool(taken) == bool(wanted)
        if taken:
            assert taken[-1].next_offset == wanted[len(found) - 1][1]
            written = wanted[max(0, len(found) - 1 - left)][1]
            self.bench.plane.write_behind_done(handle, written)
            model.written = written
            self._save()

    @invariant()
    def readers_see_what_is_durable_and_in_memory(self):
        for model, handle in zip(self.models, self.handles, strict=True):
            state = self.bench.plane.state(handle)
            assert model.durable <= state.high_watermark <= state.log_end_offset
            if not self.failed:
                assert state.log_end_offset == model.end
            assert state.tail_offset <= model.written or not model.batches
            seen = [base for base, _ in self.bench.readable(handle, state.tail_offset)]
            assert seen == [b for b, e in model.batches if state.tail_offset <= b and e <= state.high_watermark]
            assert state.written_offset == model.written

    @invariant()
    def the_cache_keeps_to_its_budget(self):
        assert self.bench.plane.statistics()["tail_clean_bytes"] <= 300


def test_random_histories_agree_with_the_model(tmp_path):
    PlaneMachine.folder = tmp_path
    run_state_machine_as_test(
        PlaneMachine,
        settings=settings(
            max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
