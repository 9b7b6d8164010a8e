"""A compacted topic on a real broker: one value of each key is left, and every one is the newest, whatever ends it.

Killed in the middle of cleanings, started again, read by a stock client.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.durability.conftest import against_kafka
from tests.support.broker_process import TpcBroker
from tests.support.waiting import eventually
from tpc_broker.log.files import parse_cleaned_file_name

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(against_kafka(), reason="it kills processes of ours"),
]

KEYS = 200
TOPIC = "kept"
SETTINGS = {"log.cleaner.backoff.ms": "100"}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TpcBroker]:
    made = TpcBroker(tmp_path, 2, SETTINGS)
    made.start()
    try:
        create(made.bootstrap)
        yield made
    finally:
        made.kill()


def create(bootstrap: str) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([NewTopic(TOPIC, 1, 1, config=COMPACTED)])[TOPIC].result()


class Kept:
    """What was acknowledged: key -> value; and what may be there besides of keys that were being written."""

    def __init__(self, broker: TpcBroker, seed: int) -> None:
        self.broker, self.random = broker, random.Random(seed)
        self.newest: dict[bytes, bytes | None] = {}
        self.written = 0

    def write(self, count: int) -> None:
        """All of it is acknowledged when this returns."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "acks": "all", "linger.ms": "2",
                             "compression.type": self.random.choice(["none", "lz4", "zstd"])})  # fmt: skip
        failed: list[object] = []
        for _record in range(count):
            key = b"key-%d" % self.random.randrange(KEYS)
            value = None if self.random.random() < 0.05 else b"%d-" % self.written + self.random.randbytes(700)
            producer.produce(TOPIC, value, key, 0, on_delivery=lambda error, _message: error and failed.append(error))
            self.newest[key] = value
            self.written += 1
            producer.poll(0)
        producer.flush()
        assert not failed

    def read(self) -> list[tuple[bytes, bytes | None]]:
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "reader",
                             "enable.auto.commit": "false", "check.crcs": "true",
                             "enable.partition.eof": "true"})  # fmt: skip
        found = []
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None, "the end was never reached"
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                break
            found.append((message.key(), message.value()))
        consumer.close()
        return found

    def check(self) -> int:
        """How many records are there; the newest of each key is the one that was written last."""
        found = self.read()
        there = dict(found)
        for key, value in self.newest.items():
            assert there.get(key) == value, key
        assert there.keys() <= self.newest.keys()
        return len(found)


@pytest.fixture
def kept(broker: TpcBroker, seed: int) -> Kept:
    return Kept(broker, seed)


def is_small(kept: Kept) -> bool:
    """As many records as keys, and what is not sealed yet."""
    return kept.check() < KEYS + 3500


def test_one_value_of_each_key_is_left(kept: Kept) -> None:
    for _round in range(3):
        kept.write(6_000)
        eventually(lambda: is_small(kept), "the log was cleaned")
    kept.broker.stop()
    kept.broker.start()
    kept.check()


def generations(broker: TpcBroker) -> set[bytes]:
    """What cleanings have left, and are about to leave."""
    found = set()
    for path in (broker.data_folder / "topics" / f"{TOPIC}-0").iterdir():
        if path.suffix == ".seal":
            with contextlib.suppress(FileNotFoundError):
                found.add(path.read_bytes())
        elif parse_cleaned_file_name(path.name):
            found.add(path.name.encode())
    return found


def test_nothing_is_lost_by_kills_in_the_middle_of_cleanings(kept: Kept, broker: TpcBroker) -> None:
    for _life in range(6):
        before = generations(broker)
        kept.write(kept.random.randrange(4_000, 6_000))
        eventually(lambda before=before: generations(broker) - before, "a cleaning begins", pause_s=0.001)
        broker.kill()
        broker.start()
        kept.check()
    kept.write(4_000)
    eventually(lambda: is_small(kept), "the log was cleaned")
