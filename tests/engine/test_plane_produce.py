"""Produce through real sockets, a real ring and a real journal file. With all features and with 5.8's."""

import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.connection_bench import frame_of, read_exactly
from tests.support.journal_file import APPEND, CUT, EPOCH
from tests.support.plane_bench import NOW_MS, read_produce_answer, records_of, settings_with
from tests.support.plane_values import (
    Endpoint,
    Left,
    PartitionFlag,
    Verdict,
)
from tests.support.record_batches import TRANSACTIONAL, Record, batch, old_message, read_batches
from tests.support.waiting import PATIENCE_S
from tpc_broker.engine.connections import ConnectionLimits
from tpc_broker.error_codes import ErrorCode as E


def test_a_produce_is_answered_when_it_is_durable_and_readable(bench):
    handle = bench.lead("t", log_end_offset=7, settings=settings_with(leader_epoch=5))
    client = bench.connect()
    assert bench.produce(client, ("t", 0, records_of(3))) == [(E.NONE, 7)]
    assert bench.produce(client, ("t", 0, records_of(1))) == [(E.NONE, 10)]
    state = bench.plane.state(handle)
    assert (state.high_watermark, state.log_end_offset, state.last_stable_offset) == (11, 11, 11)
    assert bench.readable(handle, 7) == [(7, [b"value0", b"value1", b"value2"]), (10, [b"value0"])]
    assert bench.readable(handle, 6) is None
    (first, second) = bench.journal_entries()
    assert (first.kind, first.offset, first.argument, second.offset, second.argument) == (APPEND, 7, 10, 10, 11)
    (stored,) = read_batches(first.payload)
    assert (stored["base_offset"], stored["leader_epoch"], stored["crc_right"]) == (7, 5, True)


def test_the_memory_of_answers_is_kept_for_the_next_ones(bench):
    handle, client = bench.lead("t"), bench.connect()
    for offset in range(3):
        assert bench.produce(client, ("t", 0, records_of(1))) == [(E.NONE, offset)]
    bench.until(lambda: not bench.connections.statistics().sends_in_kernel)
    bench.plane.withdraw(handle)
    assert bench.connections.statistics().frames == 1


def test_hot_requests_are_answered_inside_the_wait(bench):
    bench.lead("t")
    bench.plane.set_hot(on=True)
    client = bench.connect()
    for number in range(20):
        bench.send(client, [("t", 0, records_of(1))], correlation_id=number)
    answers = [read_produce_answer(bench.read_frame(client)) for _ in range(20)]
    assert [(a[0], a[1][0][3]) for a in answers] == [(n, n) for n in range(20)]
    assert bench.connections.statistics().requests_hot == 20


def test_a_wait_that_nothing_ends_answers_more_requests_than_may_be_under_way(bench):
    """What is taken from the backlog while a turn sends answers is submitted in that turn, and what a completion makes
    durable is answered in its own: nothing else would wake the core for them.
    """
    count = 5 * ConnectionLimits().pipelined_requests_max
    bench.lead("t")
    bench.plane.set_hot(on=True)
    client = bench.connect()
    client.settimeout(PATIENCE_S)
    answers = []

    def exchange():
        for number in range(count):
            bench.send(client, [("t", 0, records_of(1))], correlation_id=number)
        for _ in range(count):
            answer = read_exactly(client, int.from_bytes(read_exactly(client, 4)))
            answers.append(read_produce_answer(answer)[0])

    with ThreadPoolExecutor(1) as threads:
        exchanged = threads.submit(exchange)
        exchanged.add_done_callback(lambda _: bench.ring.wake())
        while not exchanged.done():
            bench.turn(3 * PATIENCE_S * 1000)
        exchanged.result()
    assert answers == list(range(count))


def test_requests_of_one_turn_share_a_commit(bench):
    bench.lead("t")
    client = bench.connect()
    for _ in range(8):
        bench.send(client, [("t", 0, records_of(1))])
    assert [bench.answer(client)[0][1] for _ in range(8)] == list(range(8))
    assert bench.plane.journal_statistics()["commits_durable"] < 8


def test_a_mixed_request_waits_for_its_durable_partitions_only(bench):
    relaxed = bench.lead("fast", settings=settings_with(PartitionFlag.RELAXED))
    bench.lead("safe")
    client = bench.connect()
    bench.break_disk()
    parts = [("fast", 0, records_of(1)), ("safe", 0, records_of(1))]
    assert bench.produce(client, *parts) == [(E.NONE, 0), (E.KAFKA_STORAGE_ERROR, -1)]
    assert bench.plane.state(relaxed).log_end_offset == 0, "undone: readers never saw it"
    assert bench.failures


def test_relaxed_is_answered_though_the_disk_never_takes_it(bench):
    handle = bench.lead("fast", settings=settings_with(PartitionFlag.RELAXED))
    client = bench.connect()
    bench.break_disk()
    assert bench.produce(client, ("fast", 0, records_of(1))) == [(E.NONE, 0)]
    assert bench.plane.state(handle).high_watermark == 0


def test_acks_zero_has_no_answer_and_an_error_closes_the_connection(bench):
    handle = bench.lead("t")
    client = bench.connect()
    bench.send(client, [("t", 0, records_of(2))], acks=0)
    assert bench.produce(client, ("t", 0, records_of(1))) == [(E.NONE, 2)]
    bench.send(client, [("t", 0, b"\0" * 61)], acks=0)
    assert bench.read_end(client)
    assert bench.plane.state(handle).log_end_offset == 3


def test_what_a_request_may_not_do(bench):
    bench.lead("t", settings=settings_with(batch_bytes_max=300))
    bench.lead("internal", settings=settings_with(PartitionFlag.INTERNAL))
    client = bench.connect()
    good = records_of(1)

    def error_of(topic, records, **fields):
        return E(bench.produce(client, (topic, 0, records), **fields)[0][0])

    assert error_of("t", good, acks=2) is E.INVALID_REQUIRED_ACKS
    assert error_of("t", good, transactional_id="tx") is E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    transactional = records_of(1, attributes=TRANSACTIONAL, producer=(1, 0, 0))
    assert error_of("t", transactional) is E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert error_of("internal", good) is E.INVALID_TOPIC_EXCEPTION
    assert error_of("t", records_of(1, value=bytes(400))) is E.MESSAGE_TOO_LARGE
    assert error_of("t", records_of(1, crc=1)) is E.CORRUPT_MESSAGE
    assert error_of("t", records_of(2, records_count=3)) is E.INVALID_RECORD
    assert error_of("t", old_message(b"old", 1)) is E.INVALID_RECORD
    late = batch([Record(b"x")], base_timestamp_ms=NOW_MS + 3_600_001)
    assert error_of("t", late) is E.INVALID_TIMESTAMP
    assert bench.journal_entries() == []
    assert bench.produce(client, ("t", 0, good)) == [(E.NONE, 0)]


def test_log_append_time(bench):
    handle = bench.lead("t", settings=settings_with(PartitionFlag.LOG_APPEND_TIME))
    client = bench.connect()
    bench.send(client, [("t", 0, records_of(2, base_timestamp_ms=5))])
    assert read_produce_answer(bench.read_frame(client))[1] == [("t", 0, 0, 0, NOW_MS, 0)]
    (stored,) = read_batches(bytes(bench.plane.read(handle, 0, 1 << 20)))
    assert (stored["max_timestamp"], stored["attributes"], stored["crc_right"]) == (NOW_MS, 8, True)


def test_an_unknown_partition_is_left_to_python_whose_verdict_answers_it(bench):
    bench.lead("t")
    follower = bench.lead("f", settings=settings_with())
    client = bench.connect()
    bench.send(client, [("t", 0, records_of(1)), ("nowhere", 0, records_of(1)), ("f", 0, records_of(1))])
    bench.until(lambda: bench.left)
    reason, request = bench.left.pop()
    assert reason is Left.UNKNOWN
    bench.plane.withdraw(follower)
    with pytest.raises(ValueError, match="produce"):
        bench.plane.produce_with(request, [Verdict()])
    assert bench.plane.produce_with(request, [Verdict(), Verdict(E.UNKNOWN_TOPIC_OR_PARTITION), Verdict()])
    assert bench.answer(client) == [(E.NONE, 0), (E.UNKNOWN_TOPIC_OR_PARTITION, -1), (E.NOT_LEADER_OR_FOLLOWER, -1)]


def test_a_request_that_is_left_brings_the_reason_along(bench):
    bench.lead("validated", settings=settings_with(PartitionFlag.PYTHON_VALIDATES))
    came = []
    bench.on_request = came.append
    client = bench.connect()
    bench.send(client, [("validated", 0, records_of(1))])
    bench.until(lambda: came)
    assert came[0].fallback_reason == Left.NONE, "nobody has asked C"
    assert bench.plane.produce_with(came.pop(), [Verdict()])
    assert bench.answer(client) == [(E.NONE, 0)]
    bench.plane.set_hot(on=True)
    for topic, reason in (("validated", Left.PYTHON_VALIDATES), ("unknown", Left.UNKNOWN)):
        bench.send(client, [(topic, 0, records_of(1))])
        bench.until(lambda: came)
        assert came[0].fallback_reason == reason
        assert bench.plane.produce_with(came.pop(), [Verdict(E.UNKNOWN_TOPIC_OR_PARTITION)])
        assert bench.answer(client) == [(E.UNKNOWN_TOPIC_OR_PARTITION, -1)]


def test_what_python_validates_goes_on_with_its_verdict(bench):
    bench.lead("t", settings=settings_with(PartitionFlag.PYTHON_VALIDATES))
    client = bench.connect()
    bench.send(client, [("t", 0, records_of(1))])
    bench.until(lambda: bench.left)
    reason, request = bench.left.pop()
    assert reason is Left.PYTHON_VALIDATES
    assert bench.plane.produce_with(request, [Verdict()])
    assert bench.answer(client) == [(E.NONE, 0)]


@pytest.mark.parametrize("codec", range(5))
def test_a_compacted_topic_leaves_what_c_cannot_judge_to_python(bench, codec):
    bench.lead("t", settings=settings_with(PartitionFlag.COMPACTED))
    bench.plane.set_hot(on=True)
    came = []
    bench.on_request = came.append
    client = bench.connect()
    keyed = [Record(b"v", b"k"), Record(None, b"")]
    bench.send(client, [("t", 0, batch(keyed, codec=codec))])
    if not codec:
        assert bench.answer(client) == [(E.NONE, 0)]
        bench.send(client, [("t", 0, batch([*keyed, Record(b"v", None)]))])
    bench.until(lambda: came)
    assert came[0].fallback_reason == Left.PYTHON_VALIDATES
    assert bench.plane.produce_with(came.pop(), [Verdict(E.INVALID_RECORD)])
    assert bench.answer(client) == [(E.INVALID_RECORD, -1)]


def test_a_full_journal_parks_the_request_until_recycling(make_bench):
    bench = make_bench(region_blocks=4)
    bench.lead("t")
    client = bench.connect()
    for offset in range(3):
        assert bench.produce(client, ("t", 0, records_of(1))) == [(E.NONE, offset)]
    bench.send(client, [("t", 0, records_of(1))])
    bench.until(lambda: bench.left)
    reason, request = bench.left.pop()
    assert reason is Left.JOURNAL_FULL
    assert bench.spaces == [(2, 4)]
    bench.plane.recycle(bench.plane.durable_cursor())
    assert bench.plane.produce(request)
    assert bench.answer(client) == [(E.NONE, 3)]


def test_no_append_without_admission(bench):
    records = records_of(1)
    handle = bench.lead("t", bytes_admitted=len(records))
    client = bench.connect()
    assert bench.produce(client, ("t", 0, records)) == [(E.NONE, 0)]
    bench.send(client, [("t", 0, records)])
    bench.until(lambda: bench.left)
    reason, request = bench.left.pop()
    assert reason is Left.NOT_ADMITTED
    bench.plane.admit(handle, len(records) + 1)
    assert bench.plane.produce(request)
    assert bench.answer(client) == [(E.NONE, 1)]
    assert bench.plane.state(handle).bytes_admitted == 1


def test_a_partition_named_twice_needs_admission_for_both(bench):
    records = records_of(1)
    handle = bench.lead("t", bytes_admitted=2 * len(records) - 1)
    other = bench.lead("u", bytes_admitted=len(records))
    client = bench.connect()
    parts = [("t", 0, records), ("u", 0, records), ("t", 0, records)]
    bench.send(client, parts)
    bench.until(lambda: bench.left)
    reason, request = bench.left.pop()
    assert reason is Left.NOT_ADMITTED
    assert bench.plane.state(handle).log_end_offset == bench.plane.state(other).log_end_offset == 0
    bench.plane.admit(handle, 1)
    assert bench.plane.produce(request)
    assert bench.answer(client) == [(E.NONE, 0), (E.NONE, 0), (E.NONE, 1)]
    assert [bench.plane.state(one).bytes_admitted for one in (handle, other)] == [0, 0]


def test_a_failure_rolls_everything_back_and_the_reopened_journal_begins_with_the_cuts(bench):
    first, second = (
        bench.lead(name, settings=settings_with(leader_epoch=epoch)) for name, epoch in (("a", 4), ("b", 7))
    )
    client = bench.connect()
    assert bench.produce(client, ("a", 0, records_of(2, producer=(9, 0, 0)))) == [(E.NONE, 0)]
    bench.break_disk()
    parts = [("a", 0, records_of(3, producer=(9, 0, 2))), ("b", 0, records_of(1, producer=(8, 0, 0)))]
    assert bench.produce(client, *parts) == [(E.KAFKA_STORAGE_ERROR, -1)] * 2
    assert bench.produce(client, ("a", 0, records_of(1))) == [(E.KAFKA_STORAGE_ERROR, -1)], "until it is reopened"
    assert [bench.plane.state(handle).log_end_offset for handle in (first, second)] == [2, 0]
    assert [p.batches[-1].last_sequence for p in bench.plane.dump_producers(first)] == [1]
    assert bench.plane.dump_producers(second) == []
    bench.mend_disk()
    commit = bench.plane.reopen_journal(bench.descriptor, bench.mode, 2)
    assert bench.produce(client, *parts) == [(E.NONE, 2), (E.NONE, 0)]
    assert commit.durable
    assert [(entry.kind, entry.offset, entry.argument) for entry in bench.journal_entries()] == [
        (APPEND, 0, 2),
        (CUT, 0, 7),
        (EPOCH, 0, 8),
        (CUT, 2, 4),
        (EPOCH, 2, 5),
        (APPEND, 2, 5),
        (APPEND, 0, 1),
    ], "a cut says which leader epoch stays, and behind it the next one begins"
    stored = [one for entry in bench.journal_entries() if entry.kind == APPEND for one in read_batches(entry.payload)]
    epochs = [one["leader_epoch"] for one in stored]
    assert epochs == [4, 5, 8], "no offset of an epoch has two records"
    assert [bench.plane.state(handle).leader_epoch for handle in (first, second)] == [5, 8]
    assert bench.plane.statistics()["cuts_pending"] == 0


def test_withdrawing_answers_what_waits_for_it(make_bench):
    bench = make_bench()
    gone, kept = bench.lead("gone"), bench.lead("kept")
    client = bench.connect()
    waiting = []
    bench.on_request = lambda request: (waiting.append(request), bench.offer(request), bench.plane.withdraw(gone))
    parts = [("gone", 0, records_of(1)), ("kept", 0, records_of(1))]
    assert bench.produce(client, *parts) == [(E.NOT_LEADER_OR_FOLLOWER, -1), (E.NONE, 0)]
    assert bench.plane.state(kept).high_watermark == 1
    with pytest.raises(KeyError):
        bench.plane.state(gone)
    again = bench.lead("gone")
    assert again != gone


def test_a_connection_that_is_gone_does_not_disturb(bench):
    handle = bench.lead("t")
    client = bench.connect()
    bench.send(client, [("t", 0, records_of(1))])
    client.close()
    bench.until(lambda: bench.plane.state(handle).high_watermark == 1)
    bench.settle()
    assert bench.plane.statistics()["produces_pending"] == 0


def test_a_malformed_body_is_left(bench):
    client = bench.connect()
    bench.send(client, [("t", 0, records_of(1))], transactional_id="x" * 40)
    bench.until(lambda: bench.left)
    assert bench.left[0][0] is Left.UNKNOWN
    client.sendall(frame_of(b"\0", api_key=0, api_version=7))
    bench.until(lambda: len(bench.left) == 2)
    assert bench.left[1][0] is Left.MALFORMED


def test_what_does_not_become_durable_in_time_is_answered_and_kept(stalled):
    handle = stalled.lead("t")
    client = stalled.connect()
    assert stalled.produce(client, ("t", 0, records_of(1)), timeout_ms=1) == [(E.REQUEST_TIMED_OUT, 0)]
    assert stalled.plane.statistics()["produces_timed_out"] == 1
    assert stalled.readable(handle) == []
    stalled.let_go()
    assert stalled.readable(handle) == [(0, [b"value0"])]


@pytest.mark.parametrize("acks", [1, -1])
def test_nothing_is_answered_or_readable_while_the_write_is_under_way(stalled, acks):
    handle = stalled.lead("t")
    relaxed = stalled.lead("r", settings=settings_with(PartitionFlag.RELAXED))
    client, other = stalled.connect(), stalled.connect()
    stalled.send(client, [("t", 0, records_of(1))], acks=acks)
    assert stalled.produce(other, ("r", 0, records_of(1))) == [(E.NONE, 0)], "relaxed does not wait"
    for _ in range(20):
        stalled.turn()
    assert stalled.plane.statistics()["produces_pending"] == 1
    assert [stalled.plane.state(h).high_watermark for h in (handle, relaxed)] == [0, 0]
    assert stalled.plane.journal_statistics()["commits_in_flight"] == 1
    stalled.let_go()
    assert stalled.answer(client) == [(E.NONE, 0)]


def test_a_partition_withdrawn_during_the_write(stalled):
    gone = stalled.lead("gone")
    kept = stalled.lead("kept")
    client = stalled.connect()
    stalled.send(client, [("gone", 0, records_of(1)), ("kept", 0, records_of(1))])
    stalled.until(lambda: stalled.plane.journal_statistics()["commits_in_flight"])
    stalled.plane.withdraw(gone)
    assert stalled.plane.statistics()["produces_pending"] == 1, "the other partition still waits"
    stalled.let_go()
    assert stalled.answer(client) == [(E.NOT_LEADER_OR_FOLLOWER, -1), (E.NONE, 0)]
    assert stalled.plane.state(kept).high_watermark == 1


def test_a_small_batch_does_not_keep_a_large_request(bench):
    handle = bench.lead("t")
    client = bench.connect()
    before = bench.connections.budget.bytes_used
    bench.send(client, [("nowhere", 0, bytes(500_000)), ("t", 0, records_of(1))])
    bench.until(lambda: bench.left)
    _, request = bench.left.pop()
    assert bench.plane.produce_with(request, [Verdict(E.UNKNOWN_TOPIC_OR_PARTITION), Verdict()])
    assert bench.answer(client) == [(E.UNKNOWN_TOPIC_OR_PARTITION, -1), (E.NONE, 0)]
    bench.until(lambda: bench.connections.statistics().answer_bytes_unsent == 0)
    assert bench.readable(handle) == [(0, [b"value0"])]
    assert bench.connections.budget.bytes_used - before < 10_000


def test_a_partition_led_elsewhere_is_answered_with_its_leader_and_endpoint(bench):
    """Version 10, flexible: the leader travels in tagged fields of the partition and of the answer."""
    bench.lead("t")
    client = bench.connect()
    records = records_of(1)
    assert len(records) + 1 < 128, "the length takes one byte"
    partition = struct.pack(">iB", 0, len(records) + 1) + records + b"\0"
    topics = b"".join(b"\x02" + name + b"\x02" + partition + b"\0" for name in (b"t", b"e"))
    body = b"\0\0" + struct.pack(">hi", -1, 30_000) + b"\x03" + topics + b"\0"
    client.sendall(frame_of(body, api_key=0, api_version=10, correlation_id=9))
    bench.until(lambda: bench.left)
    reason, request = bench.left.pop()
    assert reason is Left.UNKNOWN
    elsewhere = Verdict(E.NOT_LEADER_OR_FOLLOWER, leader_id=1025, leader_epoch=4)
    assert bench.plane.produce_with(request, [Verdict(), elsewhere], [Endpoint(1025, "h", 9093)])
    answer = bench.read_frame(client)
    assert answer[:5] == struct.pack(">i", 9) + b"\0"
    assert b"\x02e\x02" + struct.pack(">ihqqq", 0, E.NOT_LEADER_OR_FOLLOWER, -1, -1, -1) in answer
    assert struct.pack(">ii", 1025, 4) + b"\0" in answer
    assert answer.endswith(struct.pack(">i", 1025) + b"\x02h" + struct.pack(">i", 9093) + b"\0\0")
