"""Makes a data directory of this release, for later ones to open: ``python -m tests.durability.earlier_data NAME``.

The broker is killed, so that journals hold records: small and large batches, some written in place, of producers with
sequence numbers; a partition that was moved between cores, a cut log start, a deleted topic, settings of topics and of
a group, offsets of a group, a group by KIP-848, transactions that were committed, aborted, and left open, a user,
rules of access and quotas, and a compacted topic with a cleaned segment. What has to be found is in ``expected.json``
beside the data. A directory is made once for each feature level of docs/formats.md, by the last release that has it,
and never again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.durability.readback import read_everything
from tests.support import kept_group
from tests.support.broker_process import TpcBroker
from tests.support.kept_group import fill_kept_group, told_of_kept_group
from tests.support.kept_security import ACCESS, NOTHING, keep_security, told_of_kept_security
from tests.support.kept_transactions import TOPIC, add_kept_transactions, told_of_kept_transactions
from tests.support.waiting import LOOK_S, PATIENCE_S, eventually
from tpc_broker.log.journal import EntryKind, choose_superblock, journal_entries

DATA = Path(__file__).with_name("data")
PARTITIONS = [("events", 0), ("events", 1), ("large", 0), ("trimmed", 0)]
GROUP = "g"
COMMITTED = 17
SESSION = "consumer.session.timeout.ms"
SESSION_DEFAULT = "45000"
CONSUMERS = "consumers"
TRANSACTIONS = "transactions"
SECURITY = "security"
COMPACTED = "compacted"
OFTEN_CLEANED = {"log.cleaner.backoff.ms": "100"}
"""Settings of the broker that makes the directory."""
ADDED = {SESSION: SESSION_DEFAULT, CONSUMERS: None, TRANSACTIONS: None, SECURITY: NOTHING, COMPACTED: {}}
"""What is told of directories that were made before there were such things."""
ROUNDS_MAX = 50
WANTED = {EntryKind.IN_PLACE, EntryKind.APPEND, EntryKind.RELEASED, EntryKind.ADOPTED}
"""Kinds of entries."""


def set_of_a_group(bootstrap: str) -> None:
    """From feature level 4 on. Members of the other group stay for as long as they can when nobody hears them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for group, session_ms in ((GROUP, "50000"), (kept_group.GROUP, "60000")):
        change = ConfigEntry(SESSION, session_ms, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[change])
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def session_timeout(bootstrap: str) -> str:
    resource = ConfigResource(ResourceType.GROUP, GROUP)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return admin.describe_configs([resource])[resource].result(PATIENCE_S)[SESSION].value


def add_compacted(bootstrap: str, data_folders: list[Path]) -> None:
    """From feature level 7 on: a topic of which some is cleaned, and some is written since; on every node."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0.01"}
    admin.create_topics([NewTopic(COMPACTED, 1, len(data_folders), config=settings)])[COMPACTED].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.num.messages": 50})
    for number in range(4_000):
        producer.produce(COMPACTED, f"{number} ".encode() + bytes(800), key=f"key {number % 30}", partition=0)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    for folder in data_folders:
        eventually(lambda folder=folder: sealed_in(folder), "a segment was cleaned")


def sealed_in(data: Path) -> list[Path]:
    """Seals of the compacted topic's segments."""
    return list((data / "topics" / f"{COMPACTED}-0").glob("*.seal"))


def told_of_compacted(bootstrap: str) -> dict[str, int]:
    """Key to the checksum of its newest value; nothing: there is no such topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": "true"})
    found: dict[str, int] = {}
    try:
        if COMPACTED not in consumer.list_topics(timeout=LOOK_S).topics:
            return found
        consumer.assign([TopicPartition(COMPACTED, 0, 0)])
        while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
            found[message.key().decode()] = zlib.crc32(message.value())
    finally:
        consumer.close()
    return found


def expected_of(broker: TpcBroker) -> dict[str, Any]:
    """What clients see of it; values as checksums."""
    stored = read_everything(broker.bootstrap, PARTITIONS)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
    try:
        committed = consumer.committed([TopicPartition("events", 0)], timeout=LOOK_S)[0].offset
        topics = sorted(name for name in consumer.list_topics(timeout=LOOK_S).topics if not name.startswith("__"))
    finally:
        consumer.close()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, "events")
    settings = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    return {
        "topics": topics, "committed": committed, "retention.ms": settings["retention.ms"].value,
        SESSION: session_timeout(broker.bootstrap), CONSUMERS: told_of_kept_group([broker]),
        TRANSACTIONS: told_of_kept_transactions([broker]), SECURITY: told_of_kept_security(broker.bootstrap),
        COMPACTED: told_of_compacted(broker.bootstrap),
        "partitions": {
            f"{topic}-{partition}": [one.log_start_offset, one.high_watermark,
                                     [zlib.crc32(value) for _offset, value in one.records]]
            for (topic, partition), one in stored.items()
        },
    }  # fmt: skip


def kinds_in(data: Path) -> set[int]:
    """Of the entries that wait in the journals for recovery."""
    found: set[int] = set()
    for path in (data / "journals").glob("*.journal"):
        content = path.read_bytes()
        machine = journal_entries(choose_superblock(content))
        try:
            request = next(machine)
            while True:
                part = content[request.position : request.position + request.length]
                request = machine.send(part.ljust(request.length, b"\0"))
        except StopIteration as end:
            found |= {entry.kind for entry in end.value}
    return found


def fill(broker: TpcBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([
        NewTopic("events", 2, 1, config={"retention.ms": "-1"}),
        NewTopic("large", 1, 1, config={"retention.ms": "-1", "max.message.bytes": "4000000"}),
        NewTopic("trimmed", 1, 1, config={"retention.ms": "-1"}), NewTopic("deleted", 1, 1),
        NewTopic(TOPIC, 1, 1, config={"retention.ms": "-1"}),
    ])["deleted"].result(PATIENCE_S)  # fmt: skip
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 0,
                         "batch.num.messages": 3})  # fmt: skip
    for number in range(40):
        for topic, partition in (("events", 0), ("events", 1), ("trimmed", 0), ("deleted", 0)):
            producer.produce(topic, f"{topic} {number}", key=str(number), partition=partition, timestamp=1_000 + number)
    assert producer.flush(PATIENCE_S) == 0
    admin.delete_topics(["deleted"])["deleted"].result(PATIENCE_S)
    set_of_a_group(broker.bootstrap)
    keep_security(broker.bootstrap, broker.folder)
    admin.delete_records([TopicPartition("trimmed", 0, 12)])
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition("events", 0, COMMITTED)], asynchronous=False)
    consumer.close()
    fill_kept_group([broker], "events", 2)


def write_in_place(broker: TpcBroker) -> None:
    """Large batches, until some stand in the journal as written in place: a window for them opens behind the first that
    are written to the segment, and with a checkpoint that names it. A checkpoint may still come behind them.
    """
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "message.max.bytes": 4_000_000,
                         "max.in.flight": 4})  # fmt: skip
    for number in range(ROUNDS_MAX):
        for part in range(4):
            producer.produce("large", f"{number} {part} ".encode() * 60_000, partition=0)
        for partition in range(2):
            producer.produce("events", f"late {number}", partition=partition)
        assert producer.flush(PATIENCE_S) == 0
        if EntryKind.IN_PLACE in kinds_in(broker.data_folder):
            return


def move_about(broker: TpcBroker) -> None:
    """A partition goes to the other core and back, so that both journals have said so."""
    for core in (1, 0):
        command = [sys.executable, "-m", "tpc_broker.cli.main", "partition", "move", "events-0", "--core", str(core)]
        subprocess.run([*command, "--bootstrap", broker.bootstrap], check=True, stdout=subprocess.DEVNULL, timeout=120)


def make(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = TpcBroker(Path(folder), 2, {**ACCESS, **OFTEN_CLEANED})
        try:
            broker.start()
            fill(broker)
            add_compacted(broker.bootstrap, [broker.data_folder])
            for number in range(ROUNDS_MAX):
                broker.restart()
                move_about(broker)
                write_in_place(broker)
                move_about(broker)
                add_kept_transactions(broker.bootstrap, number)
                expected = expected_of(broker)
                broker.kill()
                if kinds_in(broker.data_folder) >= WANTED:
                    break
                broker.start()
            else:
                raise AssertionError("some kind of entry never came into the journals")
        finally:
            broker.kill()
        (Path(folder) / "expected.json").write_text(json.dumps(expected))
        (broker.data_folder / "ballast").unlink()  # space and nothing else
        with tarfile.open(DATA / f"{name}.tar.xz", "w:xz") as archive:
            archive.add(broker.data_folder, "data")
            archive.add(Path(folder) / "expected.json", "expected.json")


if __name__ == "__main__":
    make(sys.argv[1])
