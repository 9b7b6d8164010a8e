"""Kafka Connect, MirrorMaker 2 and Kafka Streams beside each other: what they keep in compacted topics stays small
while they run, and is right when they have been killed and begin again. So are the broker's own topics.

It takes three minutes, or `TPC_TEST_MINUTES`: an hour before a release.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.test_frameworks import PROGRAM, asked_of, connect
from tests.support.broker_process import NO_DELAY, TpcBroker
from tests.support.kafka_peer import JAVA_FLAGS, PeerUnavailable, kafka_jars
from tests.support.server_process import ServerProcess
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.bench.kafka_jars import framework_jars, java_command, mirror_jars

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("kafka_tools")]

MINUTES = float(os.environ.get("TPC_TEST_MINUTES", "3"))
KEYS, WORDS_A_ROUND, LINES_A_ROUND = 200, 20_000, 100
APPLICATION, WORDS, COUNTS, LINES = "counting", "words", "counts", "lines"
SETTINGS = {
    **NO_DELAY,
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "log.cleaner.delete.retention.ms": "1000",
    "log.segment.bytes": str(1 << 20),
    "log.roll.ms": "2000",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": str(1 << 20),
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.segment.bytes": str(1 << 20),
}
BYTES_MAX = 4 << 20
"""Of a partition: some segments that wait for their turn, and what is live. Streams writes 1.8 MB a round to each."""
COMPACTED = ("-changelog-", "-config-", "-offset-", "-status-", "mm2-", ".checkpoints.internal-", "heartbeats-",
             "__consumer_offsets-", "__transaction_state-", "-repartition-")  # fmt: skip
"""In the names of folders; the last one is Streams' own doing, which deletes records that it has used."""


@pytest.fixture
def java() -> list[str]:
    try:
        jars = f"{kafka_jars()}/*:{framework_jars()}/*:{mirror_jars()}/*"
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    logging = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
    return [java_command(), "-Xmx256m", *JAVA_FLAGS, *logging, "-cp", jars]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TpcBroker]:
    made = TpcBroker(tmp_path / "broker", 2, SETTINGS)
    made.start()
    admin = AdminClient({"bootstrap.servers": made.bootstrap})
    for topic in admin.create_topics([NewTopic(WORDS, 2, 1), NewTopic(COUNTS, 1, 1), NewTopic(LINES, 1, 1)]).values():
        topic.result(PATIENCE_S)
    yield made
    made.kill()


class Counting:
    """Streams counts words, a round at a time: each begins with what the last one has left in its changelog."""

    def __init__(self, java: list[str], broker: TpcBroker, folder: Path, seed: int) -> None:
        self._java, self._broker, self._folder = java, broker, folder
        self._random = random.Random(seed)
        self.written: Counter[str] = Counter()
        self._told: dict[str, int] = {}
        self._read_upto = 0

    def round(self) -> None:
        producer = Producer({"bootstrap.servers": self._broker.bootstrap, "linger.ms": 5})
        for _ in range(WORDS_A_ROUND):
            word = f"word {self._random.randrange(KEYS)} {'x' * 80}"
            producer.produce(WORDS, word)
            self.written[word] += 1
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0
        arguments = [
            self._broker.bootstrap, APPLICATION, "exactly_once_v2", WORDS, COUNTS, str(WORDS_A_ROUND),
            str(self._folder), "topic.segment.bytes=1048576", "repartition.purge.interval.ms=1000",
        ]  # fmt: skip
        done = subprocess.run(
            [*self._java, str(PROGRAM), *arguments],
            capture_output=True, text=True, timeout=3 * PATIENCE_S, check=True,
        )  # fmt: skip
        assert "left: 0 " in done.stdout, done.stdout

    def check(self) -> None:
        """The last count of each word is how often it was written: nothing was forgotten in between."""
        settings = {"bootstrap.servers": self._broker.bootstrap, "group.id": "reader", "enable.auto.commit": False,
                    "isolation.level": "read_committed"}  # fmt: skip
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(COUNTS, 0, self._read_upto)])

        def all_told() -> bool:
            for message in consumer.consume(10_000, 1):
                assert message.error() is None, message.error()
                self._told[(message.key() or b"").decode()] = int(message.value() or b"0")
                self._read_upto = (message.offset() or 0) + 1
            return self._told == self.written

        eventually(all_told, "each word was counted", not_yet=())
        consumer.close()


class Copying:
    """Connect copies the lines of a file into a topic, exactly once."""

    def __init__(self, java: list[str], broker: TpcBroker, folder: Path) -> None:
        self._java, self._broker, self._folder = java, broker, folder
        self._file = folder / "lines"
        self._file.touch()
        self._life = self._begun()
        self.lines: list[str] = []
        body = {"connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector", "tasks.max": "1",
                "topic": LINES, "file": str(self._file), "exactly.once.support": "required",
                "transaction.boundary": "poll"}  # fmt: skip
        self._make(body)

    def _begun(self):
        life = connect(self._java, self._broker, "copying", self._folder)
        self.worker, self._address = life.__enter__()
        eventually(
            lambda: asked_of(f"{self._address}/connectors", None)[0] == 200, "Connect is up", not_yet=(OSError,)
        )
        return life

    def _make(self, config: dict[str, str]) -> None:
        body = json.dumps({"name": "source", "config": config}).encode()
        eventually(lambda: asked_of(f"{self._address}/connectors", body)[0] in (201, 409), "it copies")

    def kill_and_begin(self) -> None:
        self._life.__exit__(None, None, None)
        self._life = self._begun()

    def write(self) -> None:
        more = [f"line {len(self.lines) + number}" for number in range(LINES_A_ROUND)]
        with self._file.open("a") as file:
            file.writelines(f"{line}\n" for line in more)
        self.lines += more

    def check(self) -> None:
        settings = {"bootstrap.servers": self._broker.bootstrap, "group.id": "lines", "enable.auto.commit": False,
                    "isolation.level": "read_committed"}  # fmt: skip
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(LINES, 0, 0)])
        found: list[str] = []

        def all_there() -> bool:
            found.extend((message.value() or b"").decode() for message in consumer.consume(10_000, 1))
            return len(found) >= len(self.lines)

        eventually(all_there, "all lines were copied", not_yet=())
        consumer.close()
        assert found == self.lines, self.worker.log_tail()

    def close(self) -> None:
        self._life.__exit__(None, None, None)


class Mirroring:
    """MirrorMaker copies the words to another name, from the cluster to itself."""

    def __init__(self, java: list[str], broker: TpcBroker, folder: Path) -> None:
        self._java, self._folder = java, folder
        settings = {"clusters": "a, b", "a.bootstrap.servers": broker.bootstrap,
                    "b.bootstrap.servers": broker.bootstrap, "a->b.enabled": "true", "a->b.topics": WORDS,
                    "sync.group.offsets.enabled": "true", "emit.checkpoints.interval.seconds": "1",
                    "emit.heartbeats.interval.seconds": "1", "heartbeats.replication.enabled": "false",
                    "offset.flush.interval.ms": "500", "offset.lag.max": "0"}  # fmt: skip
        for name in ("replication.factor", "checkpoints.topic.replication.factor",
                     "heartbeats.topic.replication.factor", "offset-syncs.topic.replication.factor",
                     "offset.storage.replication.factor", "status.storage.replication.factor",
                     "config.storage.replication.factor"):  # fmt: skip
            settings[name] = "1"
        (folder / "mirror.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.process = self._begun()

    def _begun(self) -> ServerProcess:
        command = [*self._java, "org.apache.kafka.connect.mirror.MirrorMaker", str(self._folder / "mirror.properties")]
        process = ServerProcess(command, self._folder / "mirror.log")
        process.launch()
        return process

    def kill_and_begin(self) -> None:
        self.process.kill()
        self.process = self._begun()

    def close(self) -> None:
        self.process.kill()


def end_offsets(broker: TpcBroker, topic: str) -> int:
    """Of all partitions together; 0: there is none."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "looks"})
    try:
        found = consumer.list_topics(topic, PATIENCE_S).topics[topic]
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, index), PATIENCE_S)[1] for index in found.partitions
        )
    finally:
        consumer.close()


def sizes(broker: TpcBroker) -> dict[str, int]:
    """Bytes of the logs of partitions that are to stay small, by their folders."""
    found: dict[str, int] = {}
    for folder in (broker.data_folder / "topics").iterdir():
        if any(part in folder.name for part in COMPACTED):
            found[folder.name] = sum(path.stat().st_size for path in folder.glob("*.log") if path.exists())
    return found


def test_what_applications_keep_in_compacted_topics_stays_small_and_right(java, broker, tmp_path, seed):
    counting = Counting(java, broker, tmp_path / "streams", seed)
    copying, mirroring = Copying(java, broker, tmp_path), Mirroring(java, broker, tmp_path)
    ends_at, largest, rounds, has_killed = time.monotonic() + 60 * MINUTES, Counter[str](), 0, False
    try:
        while time.monotonic() < ends_at or rounds < 4:
            copying.write()
            counting.round()
            rounds += 1
            now = sizes(broker)
            for name, size in now.items():
                largest[name] = max(largest[name], size)
            if not has_killed and (time.monotonic() > ends_at - 30 * MINUTES or rounds == 3):
                has_killed = True
                copying.kill_and_begin()
                mirroring.kill_and_begin()
            told = ", ".join(f"{name} {size}" for name, size in Counter(now).most_common(3))
            print(f"round {rounds}: {sum(now.values())} bytes, {len(now)} partitions, the largest: {told}", flush=True)
            assert max(largest.values()) < BYTES_MAX, (rounds, largest)
        counting.check()
        copying.check()
        broker.restart()
        copying.write()
        counting.round()
        counting.check()
        copying.check()
        written = counting.written.total()
        eventually(lambda: end_offsets(broker, f"a.{WORDS}") >= written, "all was mirrored", not_yet=(KeyError,))
        for index in range(2):
            assert largest[f"{APPLICATION}-counts-changelog-{index}"] > 0, largest
        assert end_offsets(broker, f"{APPLICATION}-counts-changelog") > written
        assert {name for name in largest if name.startswith("mm2-")}, largest
    finally:
        copying.close()
        mirroring.close()
