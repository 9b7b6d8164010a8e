"""Retention, deletion and DeleteRecords really free what they say, and a crash brings nothing of it back."""

from __future__ import annotations

import contextlib

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.durability.conftest import against_kafka, new_broker
from tests.durability.raw_produce import PartitionClient
from tests.durability.workload import client_settings, create_topics
from tests.support.today import now_ms
from tests.support.waiting import eventually, monotonic_ns

OVERRIDES = {"log.retention.check.interval.ms": "200", "log.segment.bytes": str(1 << 20)}
HOUR_MS = 3_600_000
SEGMENT = {"segment.bytes": str(1 << 20), "file.delete.delay.ms": "100"}

pytestmark = [pytest.mark.crash, pytest.mark.skipif(against_kafka(), reason="Kafka's retention starts 30 s late")]


@pytest.fixture(scope="module")
def broker(module_tmp_path):
    peer = new_broker(module_tmp_path / "retention", 2, OVERRIDES)
    peer.start()
    yield peer
    peer.stop()


@pytest.fixture
def admin(broker):
    return AdminClient(client_settings(broker.bootstrap))


def folders_of(broker, topic):
    return sorted(path.name for path in (broker.data_folder / "topics").iterdir() if path.name.startswith(f"{topic}-"))


def bytes_of(broker, topic, suffix=".log"):
    """What the segments of a topic hold, and what they take on the disk."""
    files = [file for name in folders_of(broker, topic) for file in (broker.data_folder / "topics" / name).iterdir()]
    size = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # renamed or removed since it was listed
            size += file.stat().st_size if file.name.endswith(suffix) else 0
    return size


def delete_topic(admin, topic):
    [future] = admin.delete_topics([topic], operation_timeout=10, request_timeout=10).values()
    future.result()


def wait_for_retention(broker, number):
    """Return after retention has looked at every partition at least once more: an old record of another topic went."""
    topic = f"clock-{number}-{monotonic_ns()}"
    create_topics(broker.bootstrap, {topic: 2}, {"retention.ms": "1000", **SEGMENT})
    for index in range(2):
        with PartitionClient(broker, topic, index) as client:
            client.produce(b"old", timestamp_ms=now_ms() - HOUR_MS)
            eventually(lambda client=client: client.log_start_offset == 1, "retention of an old record")


def test_old_records_go_and_stay_away_after_a_crash(broker):
    create_topics(broker.bootstrap, {"aged": 1}, {"retention.ms": str(HOUR_MS), **SEGMENT})
    with PartitionClient(broker, "aged") as client:
        old_ms = now_ms() - 2 * HOUR_MS
        for number in range(5):
            assert client.produce(b"old", b"older", timestamp_ms=old_ms) == (0, 2 * number)
        eventually(lambda: client.log_start_offset == 10, "old records go")
        assert client.produce(b"new") == (0, 10)
    wait_for_retention(broker, 1)
    broker.kill()
    broker.start()
    with PartitionClient(broker, "aged") as client:
        assert client.values() == {10: b"new"}
        assert client.produce(b"newer") == (0, 11)
    wait_for_retention(broker, 2)
    with PartitionClient(broker, "aged") as client:
        assert client.values() == {10: b"new", 11: b"newer"}


def check_kept(client, sent):
    """Everything from the log's start on is there and is what was sent; the start, which may move while this looks."""
    found = client.values()
    start = client.log_start_offset
    assert all(sent[number] == value for number, value in found.items())
    assert set(range(start, len(sent))) <= set(found)
    assert sum(len(sent[number]) for number in range(start, len(sent))) >= 1 << 20, "more than what was asked for went"
    return start


def test_segments_go_by_the_wall_clock_whatever_the_records_say(broker):
    create_topics(broker.bootstrap, {"worn": 1}, {"segment.age.ms": "700", **SEGMENT})
    with PartitionClient(broker, "worn") as client:
        later_ms = now_ms() + HOUR_MS // 2
        assert client.produce(b"from the future", timestamp_ms=later_ms) == (0, 0)
        eventually(lambda: client.log_start_offset == 1, "a segment nobody has appended to")
        broker.restart()
    with PartitionClient(broker, "worn") as client:
        assert client.log_start_offset == 1
        assert client.produce(b"new") == (0, 1)


def test_a_topic_stays_under_its_size(broker):
    create_topics(broker.bootstrap, {"sized": 1}, {"retention.bytes": str(2 << 20), **SEGMENT})
    sent = [f"{number:06}".encode() * 50_000 for number in range(24)]  # 300 kB each
    with PartitionClient(broker, "sized") as client:
        for number, value in enumerate(sent):
            assert client.produce(value) == (0, number)
        eventually(lambda: client.log_start_offset > 0, "the oldest segments go")
        eventually(lambda: bytes_of(broker, "sized") <= (3 << 20) + 400_000, "their files are freed")
        start = check_kept(client, sent)
    broker.kill()
    broker.start()
    with PartitionClient(broker, "sized") as client:
        assert check_kept(client, sent) >= start


def test_a_compacted_topic_loses_nothing(broker):
    config = {"cleanup.policy": "compact", "retention.ms": "1", "retention.bytes": "1", **SEGMENT}
    create_topics(broker.bootstrap, {"compacted": 1}, config)
    values = [f"{number:06}".encode() * 50_000 for number in range(6)]
    with PartitionClient(broker, "compacted") as client:
        for number, value in enumerate(values):
            old_ms = now_ms() - HOUR_MS
            assert client.produce(value, key=b"%d" % number, timestamp_ms=old_ms) == (0, number)
    wait_for_retention(broker, 3)
    with PartitionClient(broker, "compacted") as client:
        assert client.values() == dict(enumerate(values))


def test_deleting_a_topic_frees_its_files(broker, admin):
    create_topics(broker.bootstrap, {"doomed": 3}, SEGMENT)
    for index in range(3):
        with PartitionClient(broker, "doomed", index) as client:
            for _ in range(4):
                client.produce(bytes(400_000))
    assert len(folders_of(broker, "doomed")) == 3
    delete_topic(admin, "doomed")
    eventually(lambda: not folders_of(broker, "doomed"), "the files of a deleted topic go")


@pytest.mark.parametrize("crash", [False, True], ids=["orderly", "killed"])
def test_deleted_records_stay_away(broker, admin, crash):
    topic = f"trimmed-{'killed' if crash else 'orderly'}"
    create_topics(broker.bootstrap, {topic: 1}, SEGMENT)
    with PartitionClient(broker, topic) as client:
        for number in range(20):
            assert client.produce(b"%d" % number) == (0, number)
        [future] = admin.delete_records([TopicPartition(topic, 0, 13)]).values()
        assert future.result().low_watermark == 13
    if crash:
        broker.kill()
        broker.start()
    else:
        broker.restart()
    with PartitionClient(broker, topic) as client:
        assert client.log_start_offset == 13
        assert client.values() == {number: b"%d" % number for number in range(13, 20)}


@pytest.mark.parametrize("moment", ["none", "killed after deletion", "killed after creation", "restarted"])
def test_a_topic_made_again_has_nothing_of_the_old_one(broker, admin, moment):
    topic = "again-" + moment.replace(" ", "-")
    for life in range(3):
        create_topics(broker.bootstrap, {topic: 2}, SEGMENT)
        if moment == "killed after creation":
            broker.kill()
            broker.start()
        for index in range(2):
            with PartitionClient(broker, topic, index) as client:
                assert client.high_watermark == 0, f"life {life} begins with records of an earlier one"
                value = f"{topic} {index} life {life}".encode()
                assert client.produce(value, value * 1000) == (0, 0)
                assert client.values() == {0: value, 1: value * 1000}
        delete_topic(admin, topic)
        if moment == "killed after deletion":
            broker.kill()
            broker.start()
        elif moment == "restarted":
            broker.restart()
    eventually(lambda: not folders_of(broker, topic), "the files of a deleted topic go")


def test_a_topic_made_again_while_its_core_is_down(broker, admin):
    """The new partition may belong to another core than the old one, whose owner has not seen the deletion yet."""
    for life in range(4):
        create_topics(broker.bootstrap, {"homeless": 2}, SEGMENT)
        for index in range(2):
            with PartitionClient(broker, "homeless", index) as client:
                assert client.high_watermark == 0, f"life {life} begins with records of an earlier one"
                assert client.produce(b"%d" % life) == (0, 0)
        victim = 1
        process = broker.core_process(victim)
        process.kill()
        delete_topic(admin, "homeless")
        create_topics(broker.bootstrap, {"homeless": 2}, SEGMENT)
        for index in range(2):
            with PartitionClient(broker, "homeless", index) as client:
                assert client.high_watermark == 0, f"life {life} begins with records of an earlier one"
                assert client.produce(b"again %d" % life) == (0, 0)
                assert client.values() == {0: b"again %d" % life}
        broker.wait_core_replaced(victim, process.pid)
        delete_topic(admin, "homeless")
    eventually(lambda: not folders_of(broker, "homeless"), "the files of a deleted topic go")
