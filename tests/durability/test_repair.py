"""`tpc-broker repair` on real data directories: only what is damaged is offline, and comes back with what is left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker_process import TpcBroker, run_command
from tests.support.waiting import LOOK_S, PATIENCE_S, eventually
from tpc_broker.log.journal import BLOCK_BYTES, choose_superblock, scan_journal

pytestmark = pytest.mark.crash

RECORDS = 60


@pytest.fixture
def broker(tmp_path):
    one = TpcBroker(tmp_path / "broker", cores_count=2)
    one.start()
    yield one
    one.kill()


def create(broker, partitions=2):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("events", partitions, 1)])["events"].result(PATIENCE_S)


def produce(broker, partition, values, patience_s=PATIENCE_S):
    """Each value in a batch of its own. The error of the first that fails."""
    failures = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "batch.num.messages": 1,
                         "message.timeout.ms": patience_s * 1000, "log_level": 0})  # fmt: skip
    for value in values:
        producer.produce("events", value, partition=partition,
                         on_delivery=lambda error, _message: error and failures.append(error))  # fmt: skip
    producer.flush(patience_s + 10)
    return failures[0] if failures else None


def consume(broker, partition):
    """Offsets and values from the beginning to the end; with a new client while one has not heard of the partition."""
    return eventually(lambda: (consume_once(broker, partition),), "its records", not_yet=(KafkaException,))[0]


def consume_once(broker, partition):
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.partition.eof": True,
                         "auto.offset.reset": "earliest", "check.crcs": True, "log_level": 0})  # fmt: skip
    found = []
    try:
        consumer.list_topics("events", timeout=LOOK_S)
        low, _high = consumer.get_watermark_offsets(TopicPartition("events", partition), timeout=LOOK_S)
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
    assert produce(broker, 0, [b"refused"], 4) is not None
    folders = broker.data_folder / "topics"
    assert (folders / "events-0" / "offline").exists()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["events"])["events"].result(PATIENCE_S)
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
    assert produce(broker, 0, [b"refused"], 4) is not None
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
    shown = json.loads(repair(broker, "--partition", "events-0", "--json").stdout)
    assert (shown["lost"], shown["applied"]) == ([[RECORDS - 1, RECORDS]], False)
    assert log_file(broker, 0).stat().st_size == size - 10
    assert "would be lost" in repair(broker, "--partition", "events-0", "--apply").stderr
    assert "not offline" in repair(broker, "--partition", "events-1", "--accept-loss").stderr
    assert "no partition nonsense-3" in repair(broker, "--partition", "nonsense-3", "--accept-loss").stderr
    done = json.loads(repair(broker, "--partition", "events-0", "--accept-loss", "--json").stdout)
    assert done["log_end_offset"] == RECORDS
    assert (Path(done["kept"]) / log_file(broker, 0).name).stat().st_size == size - 10
    assert done["lost"] == [[RECORDS - 1, RECORDS]]
    assert repair(broker).stdout == "nothing is offline\n"

    broker.start()
    assert consume(broker, 0) == numbered(0, RECORDS - 1)
    assert consume(broker, 1) == [*numbered(0, RECORDS), (RECORDS, b"more")]
    assert produce(broker, 0, [b"new"]) is None
    broker.restart()
    assert consume(broker, 0) == [*numbered(0, RECORDS - 1), (RECORDS, b"new")]


def test_a_missing_segment_and_what_the_journal_still_had(broker):
    filled(broker)
    broker.start()
    for partition in (0, 1):
        assert produce(broker, partition, values(RECORDS, 2 * RECORDS)) is None
    broker.kill()
    log_file(broker, 0).unlink()
    broker.start()
    assert consume(broker, 1) == numbered(0, 2 * RECORDS)
    assert produce(broker, 0, [b"refused"], 4) is not None
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
    if json.loads(repair(broker, "--json").stdout)["offline"]:  # some of it was written behind already
        assert repair(broker, "--partition", "events-0", "--accept-loss").returncode == 0
    broker.start()
    found = consume(broker, 0)
    assert found == numbered(0, RECORDS)[: len(found)]
    assert len(found) >= 20
    assert produce(broker, 0, [b"new"]) is None


@pytest.mark.parametrize("missing", ["0000.journal", "0000.checkpoint"])
def test_a_missing_journal_or_checkpoint(broker, missing):
    """What the segments hold is all there is, and it comes back, also what no checkpoint had named."""
    broker.cores_count = 1
    broker.restart()
    create(broker, 1)
    assert produce(broker, 0, values(0, RECORDS)) is None
    broker.restart()
    assert produce(broker, 0, values(RECORDS, 2 * RECORDS)) is None
    end = log_file(broker, 0).stat().st_size
    eventually(lambda: log_file(broker, 0).stat().st_size != end, "it is written behind")
    broker.kill()
    (broker.data_folder / "journals" / missing).unlink()
    refused = run_command(*broker.command()[broker.command().index("serve") :])
    assert refused.returncode == 2
    assert "tpc-broker repair" in refused.stderr
    assert "the journal of core 0 is damaged" in repair(broker).stdout
    assert "nothing was changed" in repair(broker, "--core", "0").stdout
    assert repair(broker, "--core", "0", "--accept-journal-damage").returncode == 0
    offline = {one["partition"] for one in json.loads(repair(broker, "--json").stdout)["offline"]}
    assert offline == {"events-0", "__cluster_metadata-0"} & offline | {"events-0"}
    if "__cluster_metadata-0" in offline:
        assert repair(broker, "--rebuild-metadata", "--apply").returncode == 0
    assert repair(broker, "--partition", "events-0", "--accept-loss").returncode == 0
    broker.start()
    assert consume(broker, 0) == numbered(0, 2 * RECORDS)
    assert produce(broker, 0, [b"new"]) is None
    broker.restart()
    assert consume(broker, 0)[-1] == (2 * RECORDS, b"new")


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
    assert produce(broker, 0, [b"refused"], 4) is not None
    broker.stop()
    listed = json.loads(repair(broker, "--json").stdout)["offline"]
    assert [one["partition"] for one in listed] == ["events-0", "events-1"]
    empty = json.loads(repair(broker, "--partition", "events-0", "--accept-loss", "--json").stdout)
    assert (empty["log_start_offset"], empty["log_end_offset"]) == (RECORDS, RECORDS)
    done = json.loads(repair(broker, "--partition", "events-1", "--accept-loss", "--json").stdout)
    lost = int(sealed[2].stem) - 1
    assert (done["log_start_offset"], done["log_end_offset"]) == (0, RECORDS)
    assert done["lost"] == [[lost, lost + 1], [int(sealed[-1].stem), RECORDS]]
    broker.start()
    assert produce(broker, 0, [b"new"]) is None
    assert produce(broker, 1, [b"new"]) is None
    assert consume(broker, 0) == [(RECORDS, b"new")]
    left = [*range(lost), *range(lost + 1, int(sealed[-1].stem))]
    assert consume(broker, 1) == [*((offset, large[offset]) for offset in left), (RECORDS, b"new")]
    broker.restart()
    scrubbed = run_command("scrub", "--data", str(broker.data_folder))
    assert "no damage found" in scrubbed.stdout  # what is lost is known


def test_damage_that_a_scrub_finds_is_repaired_and_consumers_go_over_the_hole(broker):
    """Of a partition that every start opens: eight bytes of a sealed segment."""
    broker.overrides["log.segment.bytes"] = str(1 << 20)
    broker.restart()
    create(broker)
    large = [value.ljust(100_000) for value in values(0, RECORDS)]
    assert produce(broker, 0, large) is None
    broker.stop()
    data = bytearray(log_file(broker, 0).read_bytes())
    place = data.index(b"value 3 ")
    data[place : place + 8] = b"was hurt"
    log_file(broker, 0).write_bytes(data)
    broker.start()
    with pytest.raises(AssertionError, match="CRC"):
        consume(broker, 0)
    scrubbed = run_command("scrub", "--data", str(broker.data_folder))
    assert (scrubbed.returncode, scrubbed.stdout.count("1 DAMAGED")) == (1, 1)
    broker.stop()
    (listed,) = json.loads(repair(broker, "--json").stdout)["damaged"]
    assert (listed["partition"], listed["lost"]) == ("events-0", [[3, 4]])
    assert "nothing was changed" in repair(broker, "--all").stdout
    done = repair(broker, "--all", "--accept-loss").stdout
    assert "lost: offsets [3, 4) (1 record)" in done
    (kept,) = (broker.data_folder / "lost+found").glob("events-0.*/*.log")
    assert kept.read_bytes() == data
    broker.start()
    left = [*range(3), *range(4, RECORDS)]
    assert consume(broker, 0) == [(offset, large[offset]) for offset in left]
    scrubbed = run_command("scrub", "--data", str(broker.data_folder))
    assert "no damage found" in scrubbed.stdout
    assert produce(broker, 0, [b"new"]) is None
    broker.restart()
    assert consume(broker, 0)[-1] == (RECORDS, b"new")


def test_an_empty_partition_metadata_costs_nothing(broker):
    filled(broker)
    broker.start()
    assert produce(broker, 0, values(RECORDS, RECORDS + 5)) is None
    broker.kill()
    metadata = log_file(broker, 0).with_name("partition.metadata")
    sound = metadata.read_bytes()
    metadata.write_bytes(b"")
    broker.start()
    assert produce(broker, 0, [b"refused"], 4) is not None
    assert produce(broker, 1, [b"more"]) is None
    broker.kill()
    (listed,) = json.loads(repair(broker, "--json").stdout)["offline"]
    assert "partition.metadata cannot be read" in listed["reason"]
    assert "nothing is lost" in repair(broker, "--partition", "events-0").stdout
    assert metadata.read_bytes() == b""
    done = json.loads(repair(broker, "--partition", "events-0", "--apply", "--json").stdout)
    assert (done["log_start_offset"], done["log_end_offset"], done["lost"]) == (0, RECORDS + 5, [])
    assert metadata.read_bytes() == sound
    broker.start()
    assert consume(broker, 0) == numbered(0, RECORDS + 5)
    assert produce(broker, 0, [b"new"]) is None
    broker.restart()
    assert consume(broker, 0)[-1] == (RECORDS + 5, b"new")


def test_all_that_is_offline_comes_back_at_once(broker):
    filled(broker)
    log_file(broker, 0).with_name("partition.metadata").write_bytes(b"")
    with log_file(broker, 1).open("r+b") as file:
        file.truncate(log_file(broker, 1).stat().st_size - 10)
    assert "--all" in repair(broker).stdout
    assert "one repair at a time" in repair(broker, "--all", "--partition", "events-0").stderr
    shown = repair(broker, "--all").stdout
    assert "nothing was changed; to do it: --all --apply for those of which nothing is lost" in shown
    assert [one["lost"] for one in json.loads(repair(broker, "--all", "--json").stdout)["partitions"]] == [
        [], [[RECORDS - 1, RECORDS]],
    ]  # fmt: skip
    done = repair(broker, "--all", "--apply").stdout
    assert f"events-0 is back with records [0, {RECORDS})" in done
    assert f"events-1 stays offline: offsets [{RECORDS - 1}, {RECORDS}) would be lost" in done
    done = json.loads(repair(broker, "--all", "--accept-loss", "--json").stdout)
    assert ([one["label"] for one in done["partitions"]], done["left"]) == (["events-1"], [])
    assert repair(broker, "--all", "--apply").stdout == "nothing is offline that could be brought back\n"
    broker.start()
    assert consume(broker, 0) == numbered(0, RECORDS)
    assert consume(broker, 1) == numbered(0, RECORDS - 1)
