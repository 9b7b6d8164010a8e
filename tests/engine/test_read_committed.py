"""Fetches of committed records in C: how far they read, what they are told of aborted transactions, what wakes them,
and how much is kept for that.
"""

import errno

import pytest

from tests.support.definitions import decode_response
from tests.support.fetch_bench import FetchBench
from tests.support.plane_bench import NOW_MS, records_of
from tests.support.record_batches import TRANSACTIONAL, read_batches
from tpc_broker._ring import lib
from tpc_broker.kafka.records import ControlType, control_batch
from tpc_broker.log.producer_state import ProducerState
from tpc_broker.log.state import encode_producers

TERM = 1
LONG_MS = 60_000
KEPT_MAX = 4096
CORE_MAX = 4 * 1024 * 1024 // 32


def sent(producer_id, epoch=0, **where):
    return records_of(1, attributes=TRANSACTIONAL, producer=(producer_id, epoch, 0), **where)


@pytest.fixture
def bench(features, tmp_path):
    bench = FetchBench(tmp_path / "c.journal", in_c=True, region_blocks=16_384)
    yield bench
    bench.shut()


def asks(*offsets, isolation=1, wait_ms=0, bytes_max=1 << 20):
    """Of as many partitions as there are offsets, the first one being 0."""
    parts = [
        {"Partition": index, "FetchOffset": offset, "PartitionMaxBytes": bytes_max, "CurrentLeaderEpoch": -1}
        for index, offset in enumerate(offsets)
    ]
    return {
        "MaxWaitMs": wait_ms, "MinBytes": 1 if wait_ms else 0, "MaxBytes": 1 << 20, "IsolationLevel": isolation,
        "SessionId": 0, "SessionEpoch": -1, "Topics": [{"Topic": "t", "Partitions": parts}],
    }  # fmt: skip


def told(part):
    """Base offsets of the batches, and the aborted transactions."""
    found = [one["base_offset"] for one in read_batches(part["Records"] or b"")]
    aborted = part["AbortedTransactions"]
    return found, None if aborted is None else [(one["ProducerId"], one["FirstOffset"]) for one in aborted]


class Reader:
    def __init__(self, bench):
        self.bench, self.client = bench, bench.connect()

    def read(self, *offsets, **how):
        """Of each partition, all by C."""
        handled = self.bench.handled
        answer = self.bench.fetch(self.client, 12, asks(*offsets, **how))
        assert self.bench.handled == handled, self.bench.fetch_counts().left
        return [told(part) for part in answer["Responses"][0]["Partitions"]]

    def is_left(self, offset):
        """Whether it is Python's."""
        left = self.bench.fetch_counts().left
        self.bench.send_fetch(self.client, 12, asks(offset))
        self.bench.read_frame(self.client)
        return self.bench.fetch_counts().left != left


@pytest.fixture
def reader(bench):
    return Reader(bench)


def end(bench, handle, producer_id, epoch=1, *, commits):
    assert bench.plane.append_marker(handle, (producer_id, epoch), 0, commits=commits).error_code == 0


def write_behind(bench, handle, upto):
    bench.plane.write_behind_take(handle, 1 << 30)
    bench.plane.write_behind_done(handle, upto)


def test_nothing_at_the_last_stable_offset_and_what_was_aborted_below(bench, reader):
    handle = bench.make("t")
    bench.plane.append(handle, records_of(2) + sent(1) + sent(2) + records_of(1))  # at 0, 2, 3, 4
    bench.settle()
    assert reader.read(0) == [([0], [])]
    assert reader.read(2) == [([], [])]
    assert reader.read(0, isolation=0) == [([0, 2, 3, 4], None)]
    end(bench, handle, 1, commits=False)  # at 5
    bench.settle()
    assert reader.read(0) == [([0, 2], [(1, 2)])]
    assert reader.read(3) == [([], [])], "its last stable offset is held back by the second one"
    end(bench, handle, 2, commits=True)  # at 6
    bench.settle()
    assert reader.read(0) == [([0, 2, 3, 4, 5, 6], [(1, 2)])]
    assert reader.read(5) == [([5, 6], [(1, 2)])], "though its first records are not among them"
    assert reader.read(6) == [([6], [])]
    assert reader.read(0, bytes_max=1) == [([0], [])], "it begins behind what was read"


def test_each_partition_of_a_fetch_has_its_own_list(bench, reader):
    handles = [bench.make("t", index) for index in range(4)]
    for index, handle in enumerate(handles):
        for producer_id in range(index):
            bench.plane.append(handle, sent(producer_id))
        for producer_id in range(index):
            end(bench, handle, producer_id, commits=False)
    bench.settle()
    assert [aborted for _found, aborted in reader.read(0, 0, 0, 0)] == [
        [(producer_id, producer_id) for producer_id in range(index)] for index in range(4)
    ]
    assert [aborted for _found, aborted in reader.read(0, 2, 2, 4)] == [[], [], [(0, 0), (1, 1)], [(1, 1), (2, 2)]]


@pytest.mark.parametrize("isolation", [0, 1])
def test_who_waits_for_committed_records_is_woken_when_the_last_stable_offset_moves(bench, isolation):
    handle, client = bench.make("t"), bench.connect()
    bench.plane.append(handle, sent(1))
    bench.settle()
    bench.send_fetch(client, 12, asks(1 - isolation, isolation=isolation, wait_ms=LONG_MS))
    bench.until(lambda: bench.fetch_counts().parked_now == 1)
    bench.plane.append(handle, records_of(1))
    bench.settle()
    for _ in range(5 * isolation):
        bench.plane.append(handle, records_of(1))
        bench.settle()
    assert bench.fetch_counts().woken == 1 - isolation
    if isolation:
        end(bench, handle, 1, commits=True)
    bench.settle()
    answer = bench.read_frame(client)
    assert answer
    assert (bench.fetch_counts().woken, bench.fetch_counts().parked_now) == (1, 0)


def test_a_partition_keeps_so_many_and_what_no_segment_has(bench, reader):
    handle = bench.make("t")
    kept = KEPT_MAX + 200
    for number in range(kept):
        bench.plane.append(handle, sent(1, epoch=number))
        end(bench, handle, 1, number + 1, commits=False)
    bench.settle()
    rows, from_offset, room = bench.plane.known_aborted(handle)
    assert (len(rows), from_offset, room) == (kept, 0, 0), "no segment has them"
    write_behind(bench, handle, 2 * kept)
    bench.plane.append(handle, sent(1, epoch=kept))
    end(bench, handle, 1, kept + 1, commits=False)
    bench.settle()
    rows, from_offset, room = bench.plane.known_aborted(handle)
    assert (len(rows), from_offset) == (kept + 1 - KEPT_MAX // 8, 2 * (KEPT_MAX // 8))
    assert [row[:3] for row in rows] == [(1, at, at + 1) for at in range(from_offset, 2 * kept + 2, 2)]
    assert reader.is_left(from_offset - 1)
    assert reader.read(from_offset, bytes_max=1) == [([from_offset], [(1, from_offset)])]


def test_what_segments_say_is_taken_where_it_joins_and_fits(bench, reader):
    handle = bench.make("t", log_end_offset=100)
    assert bench.plane.known_aborted(handle) == ([], 100, KEPT_MAX)
    assert reader.is_left(99)
    assert bench.plane.add_aborted(handle, 40, 90, [(1, 30, 50, 51)]) == -errno.ESTALE
    assert bench.plane.add_aborted(handle, 40, 100, [(1, 30, 50, 51), (2, 60, 99, 100)]) == 0
    assert bench.plane.add_aborted(handle, 40, 100, []) == -errno.ESTALE, "another reader has brought them"
    bench.plane.append(handle, sent(3))
    end(bench, handle, 3, commits=False)
    bench.settle()
    assert bench.plane.aborted(handle) == [(1, 30, 50), (2, 60, 99), (3, 100, 101)]
    assert bench.plane.aborted(handle, 50, 51) == [(1, 30, 50)]
    assert bench.plane.aborted(handle, 51, 100) == [(2, 60, 99)]
    assert bench.plane.add_aborted(handle, 0, 40, [(1, 0, 1, 2)] * (KEPT_MAX + 1)) == -errno.EINVAL
    assert bench.plane.known_aborted(handle)[1:] == (40, KEPT_MAX - 3)
    bench.plane.set_log_start(handle, 51)
    assert bench.plane.known_aborted(handle)[1:] == (51, KEPT_MAX - 2), "nobody reads there any more"
    lib.tpc_partition_close_windows(bench.plane.pointer, handle)
    assert (bench.plane.aborted(handle), bench.plane.known_aborted(handle)[1]) == ([(3, 100, 101)], 100)


def test_a_core_keeps_so_many_of_all_its_partitions(bench):
    rows = [(1, at, at + 1, at + 2) for at in range(0, 2 * KEPT_MAX, 2)]
    handles = [bench.make("t", index, log_end_offset=2 * KEPT_MAX) for index in range(CORE_MAX // KEPT_MAX + 1)]
    for handle in handles[:-1]:
        assert bench.plane.known_aborted(handle)[2] == KEPT_MAX
        assert bench.plane.add_aborted(handle, 0, 2 * KEPT_MAX, rows) == 0
    assert bench.plane.known_aborted(handles[-1])[2] == 0, "no room is made for what segments know"
    bench.plane.append(handles[-1], sent(1))
    end(bench, handles[-1], 1, commits=False)
    bench.settle()
    counts = [len(bench.plane.aborted(handle)) for handle in handles]
    assert sorted(counts) == [1, KEPT_MAX // 2] + [KEPT_MAX] * (len(handles) - 2)
    halved = handles[counts.index(KEPT_MAX // 2)]
    assert bench.plane.known_aborted(halved)[1] == KEPT_MAX
    assert bench.plane.known_aborted(halved)[2] == KEPT_MAX // 2 - 1
    bench.plane.withdraw(handles[0])
    assert bench.plane.known_aborted(halved)[2] == KEPT_MAX // 2


@pytest.fixture
def follower(bench):
    handle = bench.make("t", is_led=False)
    bench.plane.set_replicated(handle)
    bench.plane.follow(handle, TERM)
    bench.face.serve_reads(handle, TERM)
    return handle


def cut(bench, handle, offset):
    term = bench.plane.state(handle).leader_epoch
    bench.plane.truncate(handle, offset, term)
    bench.settle()
    bench.plane.follow(handle, term + 1)
    bench.face.serve_reads(handle, term + 1)
    return term + 1


def follow(bench, handle, term, *batches):
    bench.plane.append_replica(handle, term, b"".join(batches))
    bench.settle()


@pytest.mark.parametrize("again", [True, False])
def test_a_transaction_that_was_cut_holds_nobody_back_and_the_next_one_does(bench, reader, follower, again):
    """Before producers are found out anew. It may begin sooner than the one in what was cut."""
    of_first = {"leader_epoch": TERM}
    follow(bench, follower, TERM, records_of(1, **of_first), records_of(3, base_offset=1, **of_first),
           sent(1, base_offset=4, **of_first))  # fmt: skip
    bench.plane.commit(follower, TERM, 1)
    term = cut(bench, follower, 1)
    made = sent if again else records_of
    follow(bench, follower, term, made(1, base_offset=1, leader_epoch=term),
           records_of(4, base_offset=2, leader_epoch=term))  # fmt: skip
    bench.plane.commit(follower, term, 6)
    assert bench.plane.state(follower).last_stable_offset == (1 if again else 6)
    assert reader.read(0) == [([0] if again else [0, 1, 2], [])]


def test_readers_are_woken_when_producers_are_found_out_anew(bench, follower):
    """Until then a marker that came again holds them back: nobody knows whose transaction it ends."""
    client = bench.connect()

    def marker(term):
        return control_batch(
            ControlType.ABORT, producer_id=1, producer_epoch=1, coordinator_epoch=0, timestamp_ms=NOW_MS, base_offset=1,
            partition_leader_epoch=term,
        )  # fmt: skip

    follow(bench, follower, TERM, sent(1, leader_epoch=TERM), marker(TERM))
    bench.plane.commit(follower, TERM, 1)
    term = cut(bench, follower, 1)
    bench.send_fetch(client, 12, asks(0, wait_ms=LONG_MS))
    bench.until(lambda: bench.fetch_counts().parked_now == 1)
    follow(bench, follower, term, marker(term))
    bench.plane.commit(follower, term, 2)
    assert (bench.fetch_counts().parked_now, bench.plane.aborted(follower)) == (1, [])
    bench.plane.reset_producers(follower, encode_producers(ProducerState()))
    assert bench.fetch_counts().parked_now == 0
    (topic,) = decode_response("Fetch", 12, bench.read_frame(client))[1]["Responses"]
    assert [told(part) for part in topic["Partitions"]] == [([0, 1], [(1, 0)])]
