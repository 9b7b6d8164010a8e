"""Stock clients read a log that our broker has cleaned: over gaps, runs of emptied batches, a segment that was cleaned
to nothing, holes in batches, and what transactions have left.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as RdPartition

from tests.integration.differential.dialogue import Dialogue, first_epoch_of, warm_up
from tests.integration.differential.scenarios_admin import SET, TOPIC, change
from tests.integration.differential.scenarios_compaction import SETTINGS, CleanedTopic
from tests.integration.differential.scenarios_data import a_batch, produce
from tests.integration.differential.scenarios_transactions import Id
from tests.support.broker_process import TpcBroker
from tests.support.kafka_peer import run_tool
from tests.support.raw_client import RawConnection
from tests.support.record_batches import CONTROL, TRANSACTIONAL, Record, read_batches
from tests.support.waiting import PATIENCE_S, patiently
from tpc_broker.bench.compiled import cache_folder
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.reading import RangeReader, ReadSettings
from tpc_broker.client.requests import TopicPartition as OwnPartition
from tpc_broker.kafka.records import read_batches as own_batches
from tpc_broker.log.seals import Seal

pytestmark = pytest.mark.clients

HERE: Final = Path(__file__).parent
KAFKAJS: Final = "2.2.4"
BIG: Final = bytes(9000)
RUN: Final = 50
"""Of batches that go, and of ones that are emptied."""
NOT_YET: Final = {"min.cleanable.dirty.ratio": "1"}
CONFIGS: Final = NOT_YET | {"segment.bytes": str(1 << 20), "message.timestamp.after.max.ms": "999999999"}
LEVELS: Final = ("read_committed", "read_uncommitted")


class Cleaned(NamedTuple):
    """A topic of one partition, and what is in it: offset and key of each record, by isolation level."""

    broker: TpcBroker
    topic: str
    records: dict[str, list[tuple[int, str]]]
    end_offset: int


def write_transaction(topic: CleanedTopic, name: str, keys: str, *, commit: bool) -> None:
    one = Id(topic.d, name)
    one.init()
    topic.now_ms += 1
    place = (one.producer["ProducerId"], one.producer["ProducerEpoch"], 0)
    records = [Record(b"in a transaction", key.encode()) for key in keys]
    data = a_batch(records, attributes=TRANSACTIONAL, producer=place, base_timestamp_ms=topic.now_ms)
    produce(topic.d, topic.name, data, version=12, TransactionalId=one.name)
    one.end(commit=commit)
    one.settle()


def write_life(topic: CleanedTopic) -> None:
    """Segments of which no two fit into one."""
    topic.step_ms = 10
    topic.now_ms += 99 * 60_000  # so that no marker, which has the time of now, begins a segment
    for number in range(RUN):
        topic.write([Record(BIG, b"dead-%d" % (number % 5))])
    for number in range(RUN):  # each is the last batch of a producer: it stays, without its record
        topic.write([Record(BIG, b"dead-1")], producer=(900_000 + number, 0, 0))
    topic.end_segment()
    for number in range(80):
        topic.write([Record(BIG, b"dead-%d" % (number % 5))])
    topic.end_segment()
    for number in range(RUN):
        topic.write([Record(BIG, b"live-%d" % number), Record(b"", b"dead-2"), Record(b"", b"half-%d" % number)])
    write_transaction(topic, "committed", "abc", commit=True)
    write_transaction(topic, "aborted", "bd", commit=False)
    write_transaction(topic, "half", "ef", commit=True)
    topic.write([Record(b"", b"f")], [Record(b"", b"g")])
    topic.end_segment()
    for number in range(5):
        topic.write([Record(b"newest", b"dead-%d" % number)])
    topic.end_segment()
    topic.write([Record(b"", b"last-0")], [Record(b"", b"last-1")])
    write_transaction(topic, "last", "xy", commit=False)


def stored(broker: TpcBroker, topic: str) -> tuple[list[dict], int]:
    """All batches that Fetch gives, and the high watermark."""
    found: list[dict] = []
    offset = end = 0
    with RawConnection("127.0.0.1", broker.ports[0]) as line:
        while not found or offset < end:
            part = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
            limits = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 24}
            topics = [{"Topic": topic, "Partitions": [part]}]
            [answer] = line.ask("Fetch", 12, {**limits, "Topics": topics})["Responses"]
            end = answer["Partitions"][0]["HighWatermark"]
            batches = read_batches(answer["Partitions"][0]["Records"])
            found += batches
            offset = batches[-1]["base_offset"] + batches[-1]["last_offset_delta"] + 1
    return found, end


def records_of(batches: list[dict]) -> dict[str, list[tuple[int, str]]]:
    """By isolation level."""
    every: list[tuple[int, str]] = []
    aborted: set[int] = set()
    pending: dict[int, list[int]] = {}
    for one in batches:
        if one["attributes"] & CONTROL:
            offsets = pending.pop(one["producer"][0], [])
            if one["records"] and one["records"][0][2] == b"\0\0\0\0":
                aborted.update(offsets)
            continue
        records = [(one["base_offset"] + delta, key.decode()) for delta, _time, key, _value, _headers in one["records"]]
        every += records
        if one["attributes"] & TRANSACTIONAL:
            pending.setdefault(one["producer"][0], []).extend(offset for offset, _key in records)
    return {"read_uncommitted": every, "read_committed": [one for one in every if one[0] not in aborted]}


@pytest.fixture(scope="module")
def cleaned(module_tmp_path) -> Iterator[Cleaned]:
    broker = TpcBroker(module_tmp_path / "broker", 1, SETTINGS)
    broker.start()
    try:
        warm_up(broker)
        dialogue = Dialogue(broker, "cleaned", first_epoch_of(broker))
        topic = CleanedTopic(dialogue, "one", CONFIGS)
        write_life(topic)
        dialogue.close()
        broker.restart()  # all is below the checkpoint then, and goes into one cleaning
        dialogue = topic.d = Dialogue(broker, "cleaned", first_epoch_of(broker))
        change(dialogue, 1, TOPIC, topic.name, ("min.cleanable.dirty.ratio", SET, "0"))
        dialogue.until(lambda: is_all_there(broker, topic.name))
        dialogue.close()
        batches, end = stored(broker, topic.name)
        assert sum(not one["records_count"] for one in batches) >= RUN, "emptied batches"
        yield Cleaned(broker, topic.name, records_of(batches), end)
    finally:
        broker.stop()


def is_all_there(broker: TpcBroker, topic: str) -> bool:
    """Each segment but the last was cleaned, and of one nothing is left."""
    folder = broker.data_folder / "topics" / f"{topic}-0"
    seals = [Seal.decode(path.read_bytes()) for path in folder.glob("*.seal")]
    return len(seals) == len(list(folder.glob("*.log"))) - 1 and any(not seal.log.size_bytes for seal in seals)


# ---- readers: broker, topic, first offset, isolation level, how many records are to come ---------------------------


def by_librdkafka(broker: TpcBroker, topic: str, first: int, level: str, count: int) -> list[tuple[int, str]]:
    """Up to the end of the partition, which it tells."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": level, "auto.offset.reset": "error"})
    consumer.assign([RdPartition(topic, 0, first)])
    found = []
    for _ in patiently(lambda: f"{len(found)} of {count}"):
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            break
        found.append((message.offset(), message.key().decode()))
    consumer.close()
    return found


def by_kafka_python(broker: TpcBroker, topic: str, first: int, level: str, count: int) -> list[tuple[int, str]]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap, isolation_level=level, auto_offset_reset="none", enable_auto_commit=False
    )
    where = kafka.TopicPartition(topic, 0)
    consumer.assign([where])
    consumer.seek(where, first)
    end = consumer.end_offsets([where])[where]
    found: list[tuple[int, str]] = []
    for _ in patiently(lambda: f"at {consumer.position(where)} of {end}"):
        if consumer.position(where) >= end:
            break
        found += [(one.offset, one.key.decode()) for one in consumer.poll(timeout_ms=500).get(where, ())]
    consumer.close()
    return found


def by_aiokafka(broker: TpcBroker, topic: str, first: int, level: str, count: int) -> list[tuple[int, str]]:
    async def body() -> list[tuple[int, str]]:
        settings = {"auto_offset_reset": "none", "enable_auto_commit": False, "isolation_level": level}
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, **settings)
        await consumer.start()
        where = AioPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, first)
        end, found = (await consumer.end_offsets([where]))[where], []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count or await consumer.position(where) < end:
                records = (await consumer.getmany(where, timeout_ms=500)).get(where, ())
                found += [(one.offset, one.key.decode()) for one in records]
        await consumer.stop()
        return found

    return asyncio.run(body())


def by_our_client(broker: TpcBroker, topic: str, first: int, level: str, count: int) -> list[tuple[int, str]]:
    """Batch by batch; what was aborted is told beside them."""
    del count
    with RawConnection("127.0.0.1", broker.ports[0]) as line:
        part = {"PartitionIndex": 0, "Timestamp": -1}
        asked = {"ReplicaId": -1, "IsolationLevel": 0, "Topics": [{"Name": topic, "Partitions": [part]}]}
        end = line.ask("ListOffsets", 6, asked)["Topics"][0]["Partitions"][0]["Offset"]
    isolation = Isolation.READ_COMMITTED if level == "read_committed" else Isolation.READ_UNCOMMITTED
    found: dict[int, str] = {}
    aborted: set[tuple[int, int]] = set()
    ended: dict[int, list[int]] = {}
    cluster = Cluster(ClusterSettings(broker.bootstrap, retry_seconds=PATIENCE_S))
    try:
        for chunk in RangeReader(cluster, OwnPartition(topic, 0), first, end, ReadSettings(isolation)).chunks():
            aborted.update((one[0], one[1]) for one in chunk.aborted)
            for batch in own_batches(chunk.records):
                if batch.attributes & CONTROL:
                    ended.pop(batch.producer_id, None)
                    aborted = {one for one in aborted if one[0] != batch.producer_id}
                    continue
                if any(one[0] == batch.producer_id and one[1] <= batch.base_offset for one in aborted):
                    continue
                found |= {one.offset: one.key.decode() for one in batch.records() if one.offset >= first}
    finally:
        cluster.close()
    return sorted(found.items())


def by_the_console(broker: TpcBroker, topic: str, first: int, level: str, count: int) -> list[tuple[int, str]]:
    """The Java consumer."""
    shown = ["print.offset=true", "print.key=true", "print.value=false"]
    done = run_tool(
        "console-consumer", "--bootstrap-server", broker.bootstrap, "--topic", topic, "--partition", "0",
        "--offset", str(first), "--isolation-level", level, "--max-messages", str(count), "--timeout-ms", "60000",
        *(word for one in shown for word in ("--formatter-property", one)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines() if line.startswith("Offset:")]
    return [(int(row[0].removeprefix("Offset:")), row[1]) for row in rows]


def _printed(command: list[str], **more: object) -> list[tuple[int, str]]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False, **more)
    assert done.returncode == 0, done.stderr[-3000:]
    return [(int(offset), key) for offset, key in (line.split(" ", 1) for line in done.stdout.splitlines())]


def by_franz_go(broker: TpcBroker, topic: str, first: int, level: str, count: int) -> list[tuple[int, str]]:
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed")
    environment = {**os.environ, "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"}
    command = [go, "run", "./reader", broker.bootstrap, topic, str(first), level, str(count)]
    return _printed(command, cwd=HERE.parent / "franz_go", env=environment)


def by_kafkajs(broker: TpcBroker, topic: str, first: int, level: str, count: int) -> list[tuple[int, str]]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Node.js is not installed (Debian: nodejs, npm)")
    folder = cache_folder() / f"kafkajs-{KAFKAJS}"
    if not (folder / "node_modules" / "kafkajs").exists():
        install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), f"kafkajs@{KAFKAJS}"]
        if subprocess.run(install, capture_output=True, timeout=4 * PATIENCE_S, check=False).returncode:
            pytest.skip(f"kafkajs {KAFKAJS} could not be fetched")
    reader = [node, "--no-deprecation", str(HERE / "kafkajs_reader.js"), str(folder)]
    return _printed([*reader, broker.bootstrap, topic, str(first), level, str(count)])


def by_kcat(broker: TpcBroker, topic: str, first: int, level: str, count: int) -> list[tuple[int, str]]:
    del count
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed (Debian: kcat)")
    where = ["-t", topic, "-p", "0", "-o", str(first), "-e", "-q", "-f", r"%o %k\n", "-X", f"isolation.level={level}"]
    return _printed(["kcat", "-b", broker.bootstrap, "-C", *where])


READERS: Final[dict[str, Callable[[TpcBroker, str, int, str, int], list[tuple[int, str]]]]] = {
    "librdkafka": by_librdkafka, "kafka-python": by_kafka_python, "aiokafka": by_aiokafka, "our client": by_our_client,
    "kafka-console-consumer": by_the_console, "franz-go": by_franz_go, "kafkajs": by_kafkajs, "kcat": by_kcat,
}  # fmt: skip
FIRST_OFFSETS: Final = {
    "in the gap at the beginning": 0,
    "among emptied batches": RUN + 7,
    "in a segment of nothing": 2 * RUN + 40,
    "in a hole of a batch": 2 * RUN + 81,
}
STOPS_KAFKAJS: Final = ("in the gap at the beginning", "among emptied batches")
"""An answer of nothing but emptied batches: kafkajs 2.2.4 asks for it for ever, of Apache Kafka 4.3.1 as well."""
CHEAP: Final = ("librdkafka", "kafka-python", "aiokafka", "our client", "kcat")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", READERS)
def test_all_that_is_left_is_read_from_anywhere(request, cleaned, name, level):
    """In order, once, and up to the end."""
    if name == "kafka-console-consumer":
        request.getfixturevalue("kafka_tools")
    firsts = dict(FIRST_OFFSETS) | ({"at the end": cleaned.end_offset - 5} if name in CHEAP else {})
    for where, first in firsts.items():
        if name == "kafkajs" and where in STOPS_KAFKAJS:
            continue
        expected = [one for one in cleaned.records[level] if one[0] >= first]
        assert READERS[name](cleaned.broker, cleaned.topic, first, level, len(expected)) == expected, where


def test_kafkas_tool_for_offsets(kafka_tools, cleaned):
    for time, offset in ((-1, cleaned.end_offset), (-2, 0)):
        told = run_tool(
            "get-offsets", "--bootstrap-server", cleaned.broker.bootstrap, "--topic", cleaned.topic, "--time", str(time)
        )
        assert told.stdout.strip() == f"{cleaned.topic}:0:{offset}", told
