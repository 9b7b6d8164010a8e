"""A compacted topic as clients see it: what was acknowledged of each key, and what a stock client reads."""

from __future__ import annotations

import random
from typing import Protocol

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.waiting import PATIENCE_S

TOPIC, KEYS = "kept", 200
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}


class Servers(Protocol):
    """A broker, or a cluster."""

    @property
    def bootstrap(self) -> str: ...


class KeptKeys:
    """What was acknowledged: key -> value."""

    def __init__(self, servers: Servers, seed: int, *, tombstones: float) -> None:
        """`tombstones`: their share of the records."""
        self.servers, self.random, self.tombstones = servers, random.Random(seed), tombstones
        self.newest: dict[bytes, bytes | None] = {}
        self.written = 0

    def write(self, count: int) -> None:
        """All of it is acknowledged when this returns."""
        producer = Producer({
            "bootstrap.servers": self.servers.bootstrap, "acks": "all", "linger.ms": 5, "enable.idempotence": True,
            "compression.type": self.random.choice(["none", "lz4", "zstd"]), "message.timeout.ms": 120_000,
            "retry.backoff.ms": 50, "log_level": 0,
        })  # fmt: skip
        failed: list[object] = []
        for _record in range(count):
            key = b"key-%d" % self.random.randrange(KEYS)
            is_tombstone = self.random.random() < self.tombstones
            value = None if is_tombstone else b"%d-" % self.written + self.random.randbytes(700)
            producer.produce(TOPIC, value, key, 0, on_delivery=lambda error, _message: error and failed.append(error))
            self.newest[key] = value
            self.written += 1
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0
        assert not failed

    def read(self, rack: str = "") -> list[tuple[bytes, bytes | None]]:
        """All records, from the replica in that rack, as long as the leader sends readers there."""
        consumer = Consumer({
            "bootstrap.servers": self.servers.bootstrap, "group.id": "reader", "enable.auto.commit": False,
            "check.crcs": True, "enable.partition.eof": True, "client.rack": rack, "log_level": 0,
        })  # fmt: skip
        found: list[tuple[bytes, bytes | None]] = []
        last = -1
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, "the end was never reached"
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                break
            assert message.offset() > last
            last = message.offset()
            found.append((message.key(), message.value()))
        consumer.close()
        return found
