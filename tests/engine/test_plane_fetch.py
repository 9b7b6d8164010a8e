"""Fetches answered, parked and left by C, through real sockets. With all features and with 5.8's."""

import itertools
import struct
import time
import uuid

import pytest

from tests.support.definitions import decode_response, encode_request
from tests.support.fetch_bench import FetchBench
from tests.support.plane_bench import records_of, topic_id_of
from tests.support.record_batches import read_batches
from tests.support.waiting import stopwatch, takes_at_least
from tpc_broker._ring import lib
from tpc_broker.error_codes import ErrorCode as E

LONG_MS = 60_000


@pytest.fixture
def bench(features, tmp_path):
    bench = FetchBench(tmp_path / "journal", in_c=True, region_blocks=1024)
    yield bench
    bench.shut()


def asks(*parts, wait_ms=0, bytes_min=1, version=12, **more):
    """`parts`: (topic, partition, offset) or (topic, partition, offset, bytes at most)."""
    topics = []
    for topic, index, offset, *bytes_max in parts:
        named = {"TopicId": uuid.UUID(bytes=topic_id_of(topic))} if version >= 13 else {"Topic": topic}
        part = {"Partition": index, "FetchOffset": offset, "PartitionMaxBytes": bytes_max[0] if bytes_max else 1 << 20}
        topics.append({**named, "Partitions": [part]})
    limits = {"MaxWaitMs": wait_ms, "MinBytes": bytes_min, "MaxBytes": 1 << 20}
    return {**limits, "SessionId": 0, "SessionEpoch": -1, "Topics": topics, **more}


def parts_of(answer):
    return [part for topic in answer["Responses"] for part in topic["Partitions"]]


def values_of(part):
    return [record[3] for batch in read_batches(part["Records"]) for record in batch["records"]]


def read_answer(bench, client, version=12):
    return decode_response("Fetch", version, bench.read_frame(client))[1]


def wait_parked(bench, count=1):
    bench.until(lambda: bench.fetch_counts().parked_now == count)


def test_the_first_fetch_of_a_core_may_ask_for_nothing(bench):
    client = bench.connect()
    answer = bench.fetch(client, 12, asks())
    assert (answer["ErrorCode"], answer["Responses"]) == (0, [])


def test_what_is_durable_is_answered_inside_the_wait(bench):
    bench.make("t")
    client = bench.connect()
    bench.fill(client, "t", 0, [3, 1])
    for version in range(4, 19):
        (part,) = parts_of(bench.fetch(client, version, asks(("t", 0, 0), version=version)))
        assert (part["ErrorCode"], part["HighWatermark"], len(values_of(part))) == (0, 4, 4)
    assert (bench.handled, bench.fetch_counts().taken) == (0, 15)


def test_what_was_appended_and_read_is_counted_by_partition(bench):
    handles = [bench.make(topic) for topic in "tu"]
    client = bench.connect()
    bench.fill(client, "t", 0, [3])
    bench.fill(client, "t", 0, [1])
    appended = bench.face.use(handles[0])
    assert (appended.appends, appended.reads, appended.append_bytes > 100) == (2, 0, True)
    bench.fetch(client, 12, asks(("t", 0, 0), ("u", 0, 0)))
    bench.fetch(client, 12, asks(("t", 0, 4), ("u", 0, 0)))  # nothing there
    assert bench.face.use(handles[0]) == (2, appended.append_bytes, 1, appended.append_bytes)
    assert bench.face.use(handles[1]) == (0, 0, 0, 0)
    bench.face.count_read(handles[1], 77)
    bench.face.count_read(1 << 40, 77)
    assert (bench.face.use(handles[1]), bench.face.use(1 << 40)) == ((0, 0, 1, 77), (0, 0, 0, 0))


def test_large_batches_leave_from_the_frames_they_came_in(bench):
    bench.make("t")
    client = bench.connect()
    values = [bytes([number]) * 200_000 for number in range(6)]
    for value in values:
        bench.fill(client, "t", 0, [1], value)
    frames = bench.connections.statistics().frames
    (part,) = parts_of(bench.fetch(client, 12, asks(("t", 0, 1, 850_000), ("t", 0, 0))))[:1]
    assert [value[0] for value in values_of(part)] == [1, 2, 3, 4]
    bench.until(lambda: bench.connections.statistics().answer_bytes_unsent == 0)
    assert bench.connections.statistics().frames <= frames
    assert bench.connections.statistics().budget_bytes_used < 1_300_000


def test_the_first_batch_comes_whatever_its_size_and_the_others_as_far_as_they_fit(bench):
    bench.make("a")
    bench.make("b")
    client = bench.connect()
    for topic in "ab":
        bench.fill(client, topic, 0, [1, 1], bytes(1000))
    one = parts_of(bench.fetch(client, 12, asks(("a", 0, 0, 10), ("b", 0, 0, 10))))
    assert [len(values_of(part)) for part in one] == [1, 0]
    fits = parts_of(bench.fetch(client, 12, asks(("a", 0, 0, 1100), ("b", 0, 0)) | {"MaxBytes": 3300}))
    assert [len(values_of(part)) for part in fits] == [1, 2]


def test_a_parked_fetch_is_answered_by_the_commit_it_waits_for(bench):
    bench.make("t")
    bench.make("u")
    producer, *consumers = [bench.connect() for _ in range(4)]
    for consumer in consumers:
        bench.send_fetch(consumer, 12, asks(("u", 0, 0), ("t", 0, 0), wait_ms=LONG_MS))
    wait_parked(bench, 3)
    bench.fill(producer, "t", 0, [2])
    for consumer in consumers:
        (part,) = [part for part in parts_of(read_answer(bench, consumer)) if part["Records"]]
        assert (part["HighWatermark"], values_of(part)) == (2, [b"value0", b"value1"])
    counts = bench.fetch_counts()
    assert (counts.parked, counts.parked_now, counts.timed_out, bench.handled) == (3, 0, 0, 0)


def test_a_parked_fetch_is_not_kept_by_a_partition_that_is_led_no_more(bench):
    handle = bench.make("t")
    bench.send_fetch(bench.connect(), 12, asks(("t", 0, 0), wait_ms=LONG_MS))
    wait_parked(bench)
    bench.plane.disarm(handle)
    bench.until(lambda: bench.handled)
    assert bench.fetch_counts().parked_now == 0


def test_not_enough_goes_on_waiting(bench):
    bench.make("t")
    producer, consumer = bench.connect(), bench.connect()
    bench.send_fetch(consumer, 12, asks(("t", 0, 0), wait_ms=LONG_MS, bytes_min=200))
    for _ in range(3):
        wait_parked(bench)
        bench.fill(producer, "t", 0, [1])
    (part,) = parts_of(read_answer(bench, consumer))
    assert part["HighWatermark"] == 3


@pytest.mark.parametrize("wait_ms", [1, 30, 1100])
def test_the_time_is_over(bench, wait_ms):
    bench.make("t")
    client = bench.connect()
    bench.fill(client, "t", 0, [1])
    with takes_at_least(wait_ms / 1000):
        bench.send_fetch(client, 12, asks(("t", 0, 0), wait_ms=wait_ms, bytes_min=10_000))
        (part,) = parts_of(read_answer(bench, client))
    assert len(values_of(part)) == 1
    assert bench.fetch_counts().timed_out == 1


def test_deadlines_on_all_sides_of_a_round_of_the_wheel(bench):
    """In their order. Those that came due while the machine stood still are answered in one turn."""
    bench.make("t")
    waits = [1, 5, 1023, 1024, 1025, 40, 700]
    clients = {wait_ms: bench.connect() for wait_ms in waits}
    ends, turns, passed_s = {}, itertools.count(), stopwatch()
    for wait_ms, client in clients.items():
        bench.send_fetch(client, 12, asks(("t", 0, 0), wait_ms=wait_ms))
        client.setblocking(False)

    def looked():
        turn = next(turns)
        for wait_ms, client in clients.items():
            if wait_ms not in ends:
                try:
                    if client.recv(1000):
                        ends[wait_ms] = (turn, passed_s())
                except BlockingIOError:
                    continue
        return len(ends) == len(waits)

    bench.until(looked)
    assert all(taken >= wait_ms / 1000 for wait_ms, (_turn, taken) in ends.items()), ends
    for sooner in (1, 5, 40, 700):
        assert all(ends[sooner][0] <= ends[later][0] for later in waits if later > sooner), ends


def test_a_withdrawn_partition_ends_the_wait_with_an_error(bench):
    for topic, version, code in (("n", 12, E.UNKNOWN_TOPIC_OR_PARTITION), ("i", 13, E.UNKNOWN_TOPIC_ID)):
        bench.make(topic)
        bench.make(topic, 1)
        client = bench.connect()
        bench.send_fetch(client, version, asks((topic, 0, 0), (topic, 1, 0), version=version, wait_ms=LONG_MS))
        wait_parked(bench)
        bench.delete(topic, 1)
        assert [E(part["ErrorCode"]) for part in parts_of(read_answer(bench, client, version))] == [E.NONE, code]


def test_release_answers_everybody_with_what_there_is(bench):
    bench.make("t")
    client = bench.connect()
    bench.send_fetch(client, 12, asks(("t", 0, 0), wait_ms=LONG_MS))
    wait_parked(bench)
    bench.face.release_fetches()
    assert parts_of(read_answer(bench, client))[0]["Records"] == b""


def test_a_connection_that_went_leaves_nothing_behind(bench):
    bench.make("t")
    before = bench.connections.statistics().frames
    for number in range(5):
        client = bench.connect()
        bench.send_fetch(client, 12, asks(("t", 0, 0), wait_ms=2**31 - 1))
        wait_parked(bench, number + 1)
        client.close()
    bench.until(lambda: not bench.fetch_counts().parked_now)
    assert bench.connections.statistics().frames == before


def test_what_parked_and_lost_its_memory_goes_to_python_as_it_stands(bench):
    handle = bench.make("t")
    client, producer = bench.connect(), bench.connect()
    bench.fill(producer, "t", 0, [1])
    session = bench.fetch(client, 12, asks(("t", 0, 0)) | {"SessionEpoch": 0})["SessionId"]
    bench.send_fetch(client, 12, asks(wait_ms=LONG_MS, bytes_min=10_000) | {"SessionId": session, "SessionEpoch": 1})
    wait_parked(bench)
    bench.plane.write_behind_done(handle, 1)
    bench.plane.set_tail_bytes_max(0)
    taken = []
    bench.on_request = taken.append
    bench.fill(producer, "t", 0, [1])
    bench.until(lambda: taken)
    assert bench.fetch_counts().left["segment"] == bench.fetch_counts().handed_over == 1
    begun = bench.face.begin_fetch(taken[0])
    assert (begun.session_id, begun.error_code, begun.parts[0].fetch_offset) == (session, 0, 0)
    assert bench.session(session)[0] == 2, "moved on once"
    begun.end()
    bench.connections.answer_none(taken.pop())
    bench.on_request = bench.offer


def test_reasons_to_leave_are_counted(bench):
    bench.make("t", 0, 4)
    client = bench.connect()
    bench.fill(client, "t", 0, [1])
    bench.fetch(client, 12, asks(("t", 0, 0), ("nowhere", 0, 0)))
    wrong_epoch = asks(("t", 0, 0))
    wrong_epoch["Topics"][0]["Partitions"][0]["CurrentLeaderEpoch"] = 3
    assert parts_of(bench.fetch(client, 12, wrong_epoch))[0]["ErrorCode"] == E.FENCED_LEADER_EPOCH
    last_epoch = asks(("t", 0, 0))
    last_epoch["Topics"][0]["Partitions"][0]["LastFetchedEpoch"] = 4
    bench.fetch(client, 12, last_epoch)
    bench.fetch(client, 12, asks(("t", 0, 0)) | {"ReplicaId": 1})
    left = {reason: count for reason, count in bench.fetch_counts().left.items() if count}
    assert left == {"unknown": 1, "leader epoch": 1, "last epoch": 1, "follower": 1}
    assert bench.handled == 4


def test_pipelined_fetches_and_produces_are_answered_in_their_order(bench):
    bench.make("t")
    client = bench.connect()
    bench.send_fetch(client, 12, asks(("t", 0, 0), wait_ms=LONG_MS), correlation_id=1)
    bench.send(client, [("t", 0, records_of(1))], correlation_id=2)
    bench.send_fetch(client, 12, asks(("t", 0, 0), wait_ms=LONG_MS), correlation_id=3)
    assert [struct.unpack_from(">i", bench.read_frame(client))[0] for _ in range(3)] == [1, 2, 3]


def test_sessions_are_given_up_for_new_ones_when_they_were_unused(bench):
    bench.make("t")
    client = bench.connect()
    lib.tpc_plane_set_fetch_limits(bench.plane.pointer, 1 << 20, 2, 0)
    ids = [bench.fetch(client, 12, asks(("t", 0, 0)) | {"SessionEpoch": 0})["SessionId"] for _ in range(3)]
    assert all(ids)
    assert [bench.session(session) is None for session in ids] == [True, False, False]
    lib.tpc_plane_set_fetch_limits(bench.plane.pointer, 1 << 20, 2, LONG_MS)
    assert bench.fetch(client, 12, asks(("t", 0, 0)) | {"SessionEpoch": 0})["SessionId"] == 0
    assert bench.fetch_counts().sessions_evicted == 1


def test_a_session_of_very_many_partitions(bench):
    for index in range(300):
        bench.make("t", index)
    client = bench.connect()
    parts = [{"Partition": index, "FetchOffset": 0, "PartitionMaxBytes": 100} for index in range(300)]
    topic = {"Topic": "t", "Partitions": parts}
    answer = bench.fetch(client, 12, asks() | {"SessionEpoch": 0, "Topics": [topic]})
    assert len(parts_of(answer)) == 300
    bench.fill(client, "t", 123, [1])
    more = {"SessionId": answer["SessionId"], "SessionEpoch": 1}
    (part,) = parts_of(bench.fetch(client, 12, asks() | more))
    assert part["PartitionIndex"] == 123
    gone = [{"Topic": "t", "Partitions": list(range(200))}]
    assert not parts_of(bench.fetch(client, 12, asks() | more | {"SessionEpoch": 2, "ForgottenTopicsData": gone}))
    assert bench.fetch_counts().session_partitions == 100


def test_a_session_goes_on_in_a_version_that_cannot_tell_of_a_divergence(bench):
    bench.make("t", leader_epoch=3)
    client = bench.connect()
    newer = asks(("t", 0, 5)) | {"SessionEpoch": 0}
    newer["Topics"][0]["Partitions"][0]["LastFetchedEpoch"] = 3
    answer = bench.fetch(client, 12, newer)
    (part,) = parts_of(answer)
    assert part["DivergingEpoch"] == {"Epoch": 3, "EndOffset": 0}
    (part,) = parts_of(bench.fetch(client, 7, asks() | {"SessionId": answer["SessionId"], "SessionEpoch": 1}))
    assert part["ErrorCode"] == E.OFFSET_OUT_OF_RANGE


def cpu_s_of_fetch(bench, client, topics):
    """Of a fetch of so many topics with a partition each; the least of a few."""
    request = asks(*((f"topic{number}", 0, 0) for number in range(topics)))
    payload = encode_request("Fetch", 12, request, 1)
    times = []
    for _ in range(4):
        client.sendall(len(payload).to_bytes(4) + payload)
        begun = time.thread_time()
        answer = bench.read_frame(client)
        times.append(time.thread_time() - begun)
    assert len(answer) > topics * 40
    return min(times)


def test_a_fetch_of_many_topics_costs_in_proportion_to_their_number(bench):
    for number in range(8_000):
        bench.make(f"topic{number}")
    client = bench.connect()
    few, many = (cpu_s_of_fetch(bench, client, topics) for topics in (1_000, 8_000))
    assert many < 20 * few, "eight times as many: quadratic work would be 64 times as much"
    assert bench.handled == 0
