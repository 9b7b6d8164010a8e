"""`tpc-broker repair` on real data directories: only what is damaged is offline, and comes back with what is left."""

from __future__ import annotations

import json
import shutil
import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker_process import TpcBroker, run_command
from tpc_broker.log.journal import BLOCK_BYTES, choose_superblock, scan_journal

RECORDS = 60


@pytest.fixture
def broker(tmp_path):
    one = TpcBroker(tmp_path / "broker", cores_count=2)
    one.start()
    yield one
    one.kill()


def create(broker, partitions=2):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("events", partitions, 1)])["events"].result(10)


def produce(broker, partition, values):
    """Each value in a batch of its own. The error of the first that fails."""
    failures = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "batch.num.messages": 1,
                         "message.timeout.ms": 4000, "log_level": 0})  # fmt: skip
    for value in values:
        producer.produce("events", value, partition=partition,
                         on_delivery=lambda error, _message: error and failures.append(error))  # fmt: skip
    producer.flush(10)
    return failures[0] if failures else None


def consume(broker, partition, deadline_seconds=20):
    """Offsets and values from the beginning to the end; with a new client while one has not heard of the partition."""
    give_up_at = time.monotonic() + deadline_seconds
    while True:
        try:
            return consume_once(broker, partition)
        except KafkaException:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.2)


def consume_once(broker, partition):
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.partition.eof": True,
                         "auto.offset.reset": "earliest", "log_level": 0})  # fmt: skip
    found = []
    try:
        consumer.list_topics("events", timeout=5)
        low, _high = consumer.get_watermark_offsets(TopicPartition("events", partition), timeout=5)
        consumer.assign([TopicPartition("events", partition, low)])
        while True:
            message = consumer.poll(8)
            assert message is not None
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return found
            found.append((message.offset(), message.value()))
    finally:
        consumer.close()


def values(first, end):
    return [b"value %d" % number for number in range(first, end)]


def numbered(first, end):
    return list(zip(range(first, end), values(first, end), strict=True))


def repair(broker, *arguments):
    return run_command("repair", "--data", str(broker.data_folder), *arguments)


def log_file(broker, partition):
    return broker.data_folder / "topics" / f"events-{partition}" / f"{0:020d}.log"


def filled(broker):
    create(broker)
    for partition in (0, 1):
        assert produce(broker, partition, values(0, RECORDS)) is None
    broker.stop()


def test_an_offline_partition_goes_with_its_topic(broker):
    """Also the files: nothing of them is there after the next start, and the name can be used again."""
    filled(broker)
    shutil.rmtree(log_file(broker, 1).parent)
    with log_file(broker, 0).open("r+b") as file:
        file.truncate(log_file(broker, 0).stat().st_size - 10)
    broker.start()
    assert produce(broker, 0, [b"refused"]) is not None
    folders = broker.data_folder / "topics"
    assert (folders / "events-0" / "offline").exists()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["events"])["events"].result(10)
    assert not (folders / "events-0").exists()
    broker.kill()
    broker.start()
    assert [path.name for path in folders.iterdir() if path.name.startswith("events-")] == []
    assert list((broker.data_folder / "journals").glob("lost-*")) == []
    create(broker)
    for partition in (0, 1):
        assert produce(broker, partition, values(0, 3)) is None
        assert consume(broker, partition) == numbered(0, 3)
    broker.restart()
    assert consume(broker, 0) == numbered(0, 3)


def test_a_shortened_segment_takes_only_its_partition_offline(broker):
    filled(broker)
    size = log_file(broker, 0).stat().st_size
    with log_file(broker, 0).open("r+b") as file:
        file.truncate(size - 10)
    broker.start()
    assert consume(broker, 1) == numbered(0, RECORDS)
    assert produce(broker, 1, [b"more"]) is None
    assert produce(broker, 0, [b"refused"]) is not None
    assert "tpc-broker repair" in broker.log_text()
    refused = repair(broker)
    assert refused.returncode == 2
    assert "locked by another broker" in refused.stderr
    assert refused.stderr.count("\n") == 1
    broker.stop()

    listed = json.loads(repair(broker, "--json").stdout)
    (one,) = listed["offline"]
    assert (one["partition"], one["log_end_offset"]) == ("events-0", RECORDS)
    assert f"has {size - 10} bytes, {size} were durable" in one["reason"]
    assert repair(broker, "--partition", "events-0").returncode == 2
    assert "not offline" in repair(broker, "--partition", "events-1", "--accept-loss").stderr
    assert "no partition nonsense-3" in repair(broker, "--partition", "nonsense-3", "--accept-loss").stderr
    done = json.loads(repair(broker, "--partition", "events-0", "--accept-loss", "--json").stdout)
    assert done["log_end_offset"] == RECORDS - 1
    assert done["lost"] == [[RECORDS - 1, RECORDS]]
    assert repair(broker).stdout == "nothing is offline\n"

    broker.start()
    assert consume(broker, 0) == numbered(0, RECORDS - 1)
    assert consume(broker, 1) == [*numbered(0, RECORDS), (RECORDS, b"more")]
    assert produce(broker, 0, [b"new"]) is None
    broker.restart()
    assert consume(broker, 0) == [*numbered(0, RECORDS - 1), (RECORDS - 1, b"new")]


def test_a_missing_segment_and_what_the_journal_still_had(broker):
    filled(broker)
    broker.start()
    for partition in (0, 1):
        assert produce(broker, partition, values(RECORDS, 2 * RECORDS)) is None
    broker.kill()
    log_file(broker, 0).unlink()
    broker.start()
    assert consume(broker, 1) == numbered(0, 2 * RECORDS)
    assert produce(broker, 0, [b"refused"]) is not None
    broker.stop()
    text = repair(broker).stdout
    assert f"records [{RECORDS}, {2 * RECORDS}) in" in text
    assert f"the records [0, {RECORDS}) are missing" in text
    done = repair(broker, "--partition", "events-0", "--accept-loss")
    assert f"events-0 is back with records [{RECORDS}, {2 * RECORDS})" in done.stdout
    assert f"lost: offsets [0, {RECORDS})" in done.stdout
    broker.start()
    assert consume(broker, 0) == numbered(RECORDS, 2 * RECORDS)
    assert produce(broker, 0, [b"new"]) is None
    broker.restart()
    assert consume(broker, 0)[-1] == (2 * RECORDS, b"new")


def test_a_damaged_commit_of_the_journal(broker):
    broker.cores_count = 1
    broker.restart()
    create(broker, 1)
    for first in range(0, RECORDS, 10):  # waiting each time: later commits know that the earlier ones were durable
        assert produce(broker, 0, values(first, first + 10)) is None
    broker.kill()
    path = broker.data_folder / "journals" / "0000.journal"
    data = bytearray(path.read_bytes())
    place = data.find(b"value 30", 2 * BLOCK_BYTES)
    data[place] ^= 1
    assert read_journal(data).damage is not None
    path.write_bytes(data)
    refused = run_command(*broker.command()[broker.command().index("serve") :])
    assert refused.returncode == 2
    assert "tpc-broker repair" in refused.stderr
    listed = repair(broker)
    assert "the journal of core 0 is damaged: commits" in listed.stdout
    refused = repair(broker, "--partition", "events-0", "--accept-loss")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "accepted that commits" in repair(broker, "--core", "0", "--accept-journal-damage").stdout
    assert "is sound" in repair(broker, "--core", "0", "--accept-journal-damage").stderr
    broker.start()
    found = consume(broker, 0)
    assert found == numbered(0, len(found))
    assert 0 < len(found) <= 30
    assert produce(broker, 0, [b"new"]) is None


def read_journal(data):
    machine = scan_journal(choose_superblock(bytes(data[: 2 * BLOCK_BYTES])))
    try:
        request = next(machine)
        while True:
            position, length = request
            request = machine.send(bytes(data[position : position + length]).ljust(length, b"\0"))
    except StopIteration as end:
        return end.value


def test_a_missing_folder_and_a_damaged_sealed_segment(broker):
    broker.overrides["log.segment.bytes"] = str(1 << 20)
    broker.restart()
    create(broker)
    large = [value.ljust(100_000) for value in values(0, RECORDS)]
    for partition in (0, 1):
        assert produce(broker, partition, large) is None
    broker.stop()
    shutil.rmtree(log_file(broker, 0).parent)
    sealed = sorted(log_file(broker, 1).parent.glob("*.log"))
    assert len(sealed) > 3
    sealed[-1].unlink()
    data = bytearray(sealed[1].read_bytes())
    data[-5] ^= 1
    sealed[1].write_bytes(data)
    broker.start()
    assert produce(broker, 0, [b"refused"]) is not None
    broker.stop()
    listed = json.loads(repair(broker, "--json").stdout)["offline"]
    assert [one["partition"] for one in listed] == ["events-0", "events-1"]
    empty = json.loads(repair(broker, "--partition", "events-0", "--accept-loss", "--json").stdout)
    assert (empty["log_start_offset"], empty["log_end_offset"]) == (RECORDS, RECORDS)
    cut = json.loads(repair(broker, "--partition", "events-1", "--accept-loss", "--json").stdout)
    end = cut["log_end_offset"]
    assert int(sealed[1].stem) < end < int(sealed[2].stem)
    assert cut["lost"] == [[end, RECORDS]]
    broker.start()
    assert produce(broker, 0, [b"new"]) is None
    assert produce(broker, 1, [b"new"]) is None
    assert consume(broker, 0) == [(RECORDS, b"new")]
    assert consume(broker, 1) == [*enumerate(large[:end]), (end, b"new")]
