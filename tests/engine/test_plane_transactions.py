"""What the plane knows of transactions: which hold the last stable offset back, and what markers are taken."""

import struct

import pytest

from tests.support.fetch_bench import plane_face
from tests.support.plane_bench import NOW_MS, records_of, settings_with, topic_id_of
from tests.support.plane_values import JournalFullError, PartitionFlag, ProducerBatch, ProducerState
from tests.support.record_batches import CONTROL, TRANSACTIONAL, Record, batch, read_batches
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.kafka.records import ControlType, control_batch
from tpc_broker.log.producer_state import ProducerState as ProducersOfLog
from tpc_broker.log.state import EndedTransaction, encode_producers

TERM = 3
DAY_MS = 86_400_000
FENCED, OLD_EPOCH = ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH


def sent(producer_id, sequence=0, epoch=0, count=1, **header):
    """A transactional batch."""
    return records_of(count, attributes=TRANSACTIONAL, producer=(producer_id, epoch, sequence), **header)


def offsets(bench, handle):
    """Last stable offset, high watermark, end."""
    state = bench.plane.state(handle)
    return state.last_stable_offset, state.high_watermark, state.log_end_offset


def told(bench, handle):
    """Epoch, coordinator epoch and open transaction of each producer."""
    return {
        one.producer_id: (one.producer_epoch, one.coordinator_epoch, one.transaction_first_offset)
        for one in bench.plane.dump_producers(handle)
    }


@pytest.fixture
def replica(bench):
    """Led, with a majority that says nothing by itself."""

    def make(role="arm", **values):
        handle = bench.lead("r", is_led=False, settings=settings_with(leader_epoch=TERM), **values)
        bench.plane.set_replicated(handle)
        getattr(bench.plane, role)(handle, TERM)
        return handle

    return make


def test_the_oldest_open_transaction_holds_the_last_stable_offset_back(bench):
    handle = bench.lead("t")
    bench.plane.append(handle, records_of(2) + sent(1, count=3) + sent(2) + records_of(1))
    bench.settle()
    assert offsets(bench, handle) == (2, 7, 7)
    bench.plane.append_marker(handle, (2, 1), 0, commits=True)
    bench.settle()
    assert offsets(bench, handle) == (2, 8, 8)
    bench.plane.append_marker(handle, (1, 1), 0, commits=False)
    assert offsets(bench, handle) == (2, 8, 9)
    bench.settle()
    assert offsets(bench, handle) == (9, 9, 9)
    assert told(bench, handle) == {1: (1, 0, -1), 2: (1, 0, -1)}


def test_a_transaction_has_ended_when_its_marker_is_seen_and_readers_are_woken_after_that(bench, replica):
    handle = replica()
    bench.plane.append(handle, sent(1))
    bench.plane.append_marker(handle, (1, 1), 0, commits=True)
    bench.plane.append(handle, records_of(3))
    bench.settle()
    bench.plane.commit(handle, TERM, 1)
    assert offsets(bench, handle) == (0, 1, 5)
    bench.plane.watch(handle)
    bench.plane.commit(handle, TERM, 2)
    assert offsets(bench, handle) == (2, 2, 5)
    bench.turn()
    assert bench.advanced == [(handle, 2, 2)]


def test_what_began_above_the_high_watermark_holds_nobody_back(bench, replica):
    handle = replica()
    bench.plane.append(handle, records_of(2) + sent(1))
    bench.settle()
    assert offsets(bench, handle) == (0, 0, 3)
    bench.plane.commit(handle, TERM, 2)
    assert offsets(bench, handle) == (2, 2, 3)


def test_the_log_start_is_never_above_the_last_stable_offset(bench):
    handle = bench.lead("t")
    bench.plane.append(handle, sent(1, count=2) + records_of(4))
    bench.settle()
    bench.plane.set_log_start(handle, 3)
    assert offsets(bench, handle) == (3, 6, 6)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("flags", [(), (PartitionFlag.LOG_APPEND_TIME,), (PartitionFlag.INTERNAL,)])
def test_a_marker_is_as_python_builds_it(bench, commits, flags):
    handle = bench.lead("t", log_end_offset=7, settings=settings_with(*flags, leader_epoch=2))
    appended = bench.plane.append_marker(handle, (1 << 40, 513), 70_000, commits=commits)
    bench.settle()
    expected = control_batch(
        ControlType.COMMIT if commits else ControlType.ABORT, producer_id=1 << 40, producer_epoch=513,
        coordinator_epoch=70_000, timestamp_ms=NOW_MS, base_offset=7, partition_leader_epoch=2,
    )  # fmt: skip
    found = bytes(bench.plane.read(handle, 7, 1 << 20))
    assert (appended.base_offset, appended.next_offset, len(found)) == (7, 8, 78)
    if PartitionFlag.LOG_APPEND_TIME in flags:
        (one,) = read_batches(found)
        assert one["attributes"] == TRANSACTIONAL | CONTROL | 8
        assert found[61:] == expected[61:]
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("version", "epoch", "coordinator_epoch", "code"),
    [
        (1, 4, 6, FENCED), (1, 3, 7, OLD_EPOCH), (1, 4, 7, None), (1, 5, 8, None),
        (2, 9, 6, FENCED), (2, 3, 7, OLD_EPOCH), (2, 4, 7, OLD_EPOCH), (2, 5, 7, None), (2, 5, 9, None),
    ],
)  # fmt: skip
def test_which_markers_are_taken_of_an_open_transaction(bench, version, epoch, coordinator_epoch, code):
    handle = bench.lead("t")
    bench.plane.append_marker(handle, (1, 4), 7, commits=True)
    bench.plane.append(handle, sent(1, epoch=4))
    bench.settle()
    appended = bench.plane.append_marker(handle, (1, epoch), coordinator_epoch, commits=True, version=version)
    assert appended.error_code == (code or ErrorCode.NONE)
    bench.settle()
    assert told(bench, handle) == {1: (4, 7, 1) if code else (epoch, coordinator_epoch, -1)}
    assert bench.plane.state(handle).log_end_offset == (2 if code else 3)


def test_a_marker_whose_answer_was_lost_is_taken_once_more_as_long_as_nothing_is_open(bench):
    """KIP-1228: refused, it would leave its transaction in PrepareCommit for ever."""
    handle = bench.lead("t")
    bench.plane.append(handle, sent(1))
    for _time in range(2):
        assert bench.plane.append_marker(handle, (1, 1), 0, commits=True).error_code == ErrorCode.NONE
    bench.plane.append(handle, sent(1, epoch=1))
    assert bench.plane.append_marker(handle, (1, 1), 0, commits=True).error_code == OLD_EPOCH
    assert bench.plane.append_marker(handle, (1, 0), 0, commits=True).error_code == OLD_EPOCH


def test_a_marker_of_a_producer_that_is_not_known_makes_it_known(bench):
    handle = bench.lead("t")
    bench.plane.append_marker(handle, (5, 3), 2, commits=False)
    bench.settle()
    assert told(bench, handle) == {5: (3, 2, -1)}


def test_an_epoch_that_a_marker_raises_forgets_the_sequences_and_the_same_one_keeps_them(bench):
    handle = bench.lead("t")
    for version, epoch, expected in ((1, 0, [0]), (2, 1, [])):
        bench.plane.append_marker(handle, (1, epoch), 0, commits=True, version=version)
        bench.plane.append(handle, sent(1, sequence=0, epoch=epoch))
        bench.plane.append_marker(handle, (1, epoch + version - 1), 0, commits=True, version=version)
        bench.settle()
        (known,) = bench.plane.dump_producers(handle)
        assert [one.last_sequence for one in known.batches] == expected
        assert known.producer_epoch == epoch + version - 1


def test_a_late_batch_of_the_epoch_before_a_marker_is_fenced(bench):
    handle = bench.lead("t")
    bench.plane.append(handle, sent(1))
    bench.plane.append_marker(handle, (1, 1), 0, commits=False)
    late = bench.plane.produce_records(handle, records_of(1, producer=(1, 0, 1)), 9)
    assert late.error_code == OLD_EPOCH


def test_a_marker_is_a_leaders_and_of_a_real_producer(bench, replica):
    follower = replica("follow")
    with pytest.raises(OSError, match="Operation not permitted"):
        bench.plane.append_marker(follower, (1, 0), 0, commits=True)
    handle = bench.lead("t")
    for producer in ((-1, 0), (1, -1)):
        with pytest.raises(ValueError, match="marker"):
            bench.plane.append_marker(handle, producer, 0, commits=True)
    bench.plane.withdraw(handle)
    with pytest.raises(KeyError):
        bench.plane.append_marker(handle, (1, 0), 0, commits=True)


@pytest.mark.parametrize(
    "records",
    [
        [],
        [Record(b"\0\0\0\0\0\7", b"\0\0\0\2")],  # Raft's, for example
        [Record(b"\0\0\0\0\0\7", b"\0\0\1")],
        [Record(b"\0\0\0\0\0\7", None)],
    ],
    ids=["emptied", "another kind", "short key", "no key"],
)
def test_a_control_batch_that_is_no_marker_ends_nothing(bench, replica, records):
    control = batch(records, attributes=TRANSACTIONAL | CONTROL, producer=(1, 5, -1), last_offset_delta=0)
    handle = bench.lead("t")
    bench.plane.append(handle, sent(1) + control)
    follower = replica("follow")
    stored = [
        batch([Record(b"x")], attributes=TRANSACTIONAL, producer=(1, 0, 0), base_offset=0, leader_epoch=TERM),
        batch(
            records, attributes=TRANSACTIONAL | CONTROL, producer=(1, 5, -1), last_offset_delta=0, base_offset=1,
            leader_epoch=TERM,
        ),
    ]  # fmt: skip
    bench.plane.append_replica(follower, TERM, b"".join(stored))
    bench.settle()
    for one in (handle, follower):
        assert told(bench, one) == {1: (0, -1, 0)}


def test_a_control_batch_that_counts_no_record_ends_nothing(bench):
    record = [Record(b"\0\0\0\0\0\7", b"\0\0\0\1")]
    control = batch(record, attributes=TRANSACTIONAL | CONTROL, producer=(1, 5, -1), records_count=0)
    handle = bench.lead("t")
    bench.plane.append(handle, sent(1) + control)
    bench.settle()
    assert told(bench, handle) == {1: (0, -1, 0)}


def test_a_marker_is_one_without_the_bit_of_transactions_too(bench):
    """Room for what it aborts is made before it is journalled."""
    handle = bench.lead("t")
    record = [Record(b"\0\0\0\0\0\7", b"\0\0\0\0")]
    bench.plane.append(handle, b"".join(sent(number) for number in range(400)))
    markers = [batch(record, attributes=CONTROL, producer=(number, 0, -1)) for number in range(400)]
    bench.plane.append(handle, b"".join(markers))
    bench.settle()
    assert bench.plane.aborted(handle) == [(number, number, 400 + number) for number in range(400)]
    assert bench.plane.expire_producers(handle, NOW_MS + 2 * DAY_MS) == 400
    assert len(bench.plane.aborted(handle)) == 400, "though their producers are forgotten"


def test_a_coordinators_epoch_that_a_marker_does_not_say_is_none(bench):
    control = batch([Record(b"", b"\0\0\0\1")], attributes=TRANSACTIONAL | CONTROL, producer=(1, 0, -1))
    handle = bench.lead("t")
    bench.plane.append(handle, sent(1) + control)
    bench.settle()
    assert told(bench, handle) == {1: (0, -1, -1)}


def test_a_producer_with_an_open_transaction_is_never_forgotten(bench):
    handle = bench.lead("t")
    bench.plane.append(handle, sent(1) + records_of(1, producer=(2, 0, 0)))
    bench.settle()
    assert bench.plane.expire_producers(handle, NOW_MS + 2 * DAY_MS) == 1
    assert told(bench, handle) == {1: (0, -1, 0)}
    assert offsets(bench, handle) == (0, 2, 2)
    bench.plane.append_marker(handle, (1, 1), 0, commits=True)
    bench.settle()
    assert bench.plane.expire_producers(handle, NOW_MS + 4 * DAY_MS) == 1


def test_what_has_ended_is_known_when_its_producer_is_not_any_more(bench, replica):
    handle = replica()
    bench.plane.append(handle, records_of(1) + sent(1))
    bench.plane.append_marker(handle, (1, 1), 0, commits=True)
    bench.settle()
    assert bench.plane.expire_producers(handle, NOW_MS + 2 * DAY_MS) == 1
    bench.plane.commit(handle, TERM, 2)
    assert offsets(bench, handle) == (1, 2, 3)
    bench.plane.commit(handle, TERM, 3)
    assert offsets(bench, handle) == (3, 3, 3)


def test_a_failed_journal_opens_what_it_had_ended_and_forgets_what_it_had_begun(bench):
    handle = bench.lead("t")
    bench.plane.append(handle, sent(1))
    bench.settle()
    bench.break_disk()
    bench.plane.append_marker(handle, (1, 1), 4, commits=True)
    bench.plane.append(handle, sent(1, epoch=1) + sent(2))
    bench.plane.append_marker(handle, (3, 0), 4, commits=True)
    bench.until(lambda: bench.failures)
    assert offsets(bench, handle) == (0, 1, 1)
    assert told(bench, handle) == {1: (0, -1, 0)}
    bench.mend_disk()
    bench.plane.reopen_journal(bench.descriptor, bench.mode, 2)
    bench.plane.append_marker(handle, (1, 1), 4, commits=True)
    bench.settle()
    assert offsets(bench, handle) == (2, 2, 2)


def test_producers_are_registered_with_their_transactions(bench):
    """In any order: the oldest counts."""
    handle = bench.lead("t", log_end_offset=9)
    some = ProducerBatch(0, 0, NOW_MS, 0, 0)
    states = [ProducerState(number, 0, NOW_MS, (some,), first, 2) for number, first in ((1, 6), (2, 4), (3, 8))]
    bench.plane.load_producers(handle, states)
    assert offsets(bench, handle) == (4, 9, 9)
    for number, expected in ((2, 6), (1, 8), (3, 12)):
        bench.plane.append_marker(handle, (number, 1), 2, commits=True)
        bench.settle()
        assert offsets(bench, handle)[0] == expected
    bench.plane.load_producers(handle, states[:1])
    bench.plane.load_producers(handle, [ProducerState(1, 0, NOW_MS, (some,), 7)])
    assert offsets(bench, handle)[0] == 7, "in place of what was known of it"


def test_what_has_ended_above_the_high_watermark_is_loaded_too(bench, replica):
    ended = [EndedTransaction(7, 5, 6), EndedTransaction(8, 2, 8), EndedTransaction(9, 3, 10)]
    handle = replica(log_end_offset=12, high_watermark=6)
    bench.plane.load_producers(handle, encode_producers(ProducersOfLog(), ended))
    assert offsets(bench, handle) == (2, 6, 12)
    assert bench.plane.dump_encoded(handle) == encode_producers(ProducersOfLog(), ended[1:])
    bench.plane.commit(handle, TERM, 8)
    assert offsets(bench, handle) == (3, 8, 12)
    bench.plane.commit(handle, TERM, 12)
    assert offsets(bench, handle) == (12, 12, 12)
    wrong = struct.pack("<Iqqq", 0, 1, 5, 5), struct.pack("<Iqqq", 0, 1, -1, 5), struct.pack("<Iqq", 0, 1, 5)
    for encoded in wrong:
        with pytest.raises(ValueError, match="producers"):
            bench.plane.load_producers(handle, encoded)


def test_producers_are_not_loaded_while_appends_could_be_taken_back(stalled):
    handle = stalled.lead("t")
    stalled.plane.append(handle, sent(1))
    with pytest.raises(OSError, match="busy"):
        stalled.plane.load_producers(handle, [])


def test_a_cut_takes_markers_and_beginnings_back(bench, replica):
    """A marker above it has ended nothing, not even while the producers are not found out yet."""
    handle = replica("follow")
    parts = [
        batch([Record(b"x")], attributes=TRANSACTIONAL, producer=(1, 0, 0), base_offset=0, leader_epoch=TERM),
        batch([Record(b"x")], base_offset=1, leader_epoch=TERM),
        control_batch(
            ControlType.ABORT, producer_id=1, producer_epoch=1, coordinator_epoch=0, timestamp_ms=NOW_MS,
            base_offset=2, partition_leader_epoch=TERM,
        ),
        batch([Record(b"x")], attributes=TRANSACTIONAL, producer=(2, 0, 0), base_offset=3, leader_epoch=TERM),
    ]  # fmt: skip
    bench.plane.append_replica(handle, TERM, b"".join(parts))
    bench.settle()
    bench.plane.commit(handle, TERM, 1)
    assert told(bench, handle) == {1: (1, 0, -1), 2: (0, -1, 3)}
    assert bench.plane.aborted(handle) == [(1, 0, 2)]
    bench.plane.truncate(handle, 2, TERM)
    assert bench.plane.aborted(handle) == []
    bench.plane.follow(handle, TERM + 1)
    follows = [batch([Record(b"y")], base_offset=n, leader_epoch=TERM + 1) for n in (2, 3)]
    bench.plane.append_replica(handle, TERM + 1, b"".join(follows))
    bench.settle()
    bench.plane.commit(handle, TERM + 1, 4)
    assert offsets(bench, handle) == (0, 4, 4)
    bench.plane.reset_producers(handle, [])
    assert told(bench, handle) == {1: (0, -1, 0)}
    assert offsets(bench, handle) == (0, 4, 4)


def test_a_log_that_was_cut_takes_no_marker_before_its_producers_are_known(bench, replica):
    handle = replica("follow")
    bench.plane.append_replica(handle, TERM, batch([Record(b"x")], base_offset=0, leader_epoch=TERM))
    bench.settle()
    bench.plane.truncate(handle, 0, TERM)
    bench.settle()
    bench.plane.arm(handle, TERM + 1)
    with pytest.raises(JournalFullError, match="marker"):  # to be tried again
        bench.plane.append_marker(handle, (1, 0), 0, commits=True)
    bench.plane.reset_producers(handle, [])
    assert bench.plane.append_marker(handle, (1, 0), 0, commits=True).error_code == ErrorCode.NONE


def test_clients_transactional_batches_stay_refused(bench):
    bench.plane.register("t", topic_id_of("t"), 0)
    refused = bench.produce(bench.connect(), ("t", 0, sent(1)))
    assert refused == [(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)]


def test_what_was_aborted_is_told_by_the_offsets_of_markers(bench):
    handle = bench.lead("t")
    bench.plane.append(handle, sent(1) + sent(2) + sent(3))  # at 0, 1, 2
    for producer_id, commits in ((2, False), (1, True), (3, False)):
        bench.plane.append_marker(handle, (producer_id, 1), 0, commits=commits)
    bench.plane.append_marker(handle, (2, 1), 0, commits=False)  # once more: nothing was open
    bench.settle()
    assert bench.plane.aborted(handle) == [(2, 1, 3), (3, 2, 5)]
    assert bench.plane.aborted(handle, 3, 2) == [(2, 1, 3)]
    assert bench.plane.aborted(handle, 4) == [(3, 2, 5)]
    assert bench.plane.aborted(handle, 6) == []
    bench.plane.write_behind_take(handle, 1 << 20)
    bench.plane.write_behind_done(handle, 4)
    assert bench.plane.aborted(handle) == [(2, 1, 3), (3, 2, 5)], "segments have the first one too"
    for number in range(100):
        bench.plane.append(handle, sent(4, sequence=number, epoch=number))
        bench.plane.append_marker(handle, (4, number + 1), 0, commits=False)
    assert len(bench.plane.aborted(handle)) == 102
    face = plane_face(bench)
    bench.settle()
    known = face.aborted(handle, 0, 1 << 40)
    assert (len(known.entries), known.from_offset, known.room) == (102, 0, 4096 - 102)
    bench.plane.withdraw(handle)
    with pytest.raises(PartitionOfflineError):
        face.aborted(handle, 0, 1 << 40)


@pytest.mark.parametrize("attributes", [CONTROL, CONTROL | TRANSACTIONAL])
@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT])
def test_a_control_batch_of_a_client_is_refused_and_changes_nothing(bench, attributes, kind):
    """Whoever could send one could end others' transactions."""
    handle = bench.lead("t")
    bench.plane.append(handle, sent(1) + sent(2))
    bench.settle()
    before = offsets(bench, handle), told(bench, handle)
    without_id = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    for producer_id, epoch in ((1, 0), (1, 1), (2, 9), (3, 0), (-1, -1)):
        marker = Record(struct.pack(">hi", 0, 9), struct.pack(">hh", 0, kind))
        forged = batch([marker], attributes=attributes, producer=(producer_id, epoch, 0))
        for version in (3, 12):
            appended = bench.plane.produce_records(handle, forged, version)
            assert appended.error_code is (without_id if attributes & TRANSACTIONAL else ErrorCode.INVALID_RECORD)
    bench.settle()
    assert (offsets(bench, handle), told(bench, handle)) == before
    assert bench.plane.append_marker(handle, (1, 1), 0, commits=True).error_code is ErrorCode.NONE
