"""What a producer wrote, as librdkafka reads it."""

from __future__ import annotations

from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as Place

from tests.support.waiting import eventually


class Read(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int
    offset: int


def read_back(bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Read]:
    """The first records of a partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"of {topic}", "check.crcs": True})
    found: list[Read] = []

    def take() -> bool:
        for record in consumer.consume(count - len(found), timeout=1.0):
            assert record.error() is None, record.error()
            headers: list[Any] = record.headers() or []
            found.append(Read(record.key(), record.value(), headers, record.timestamp()[1], record.offset()))
        return len(found) >= count

    try:
        consumer.assign([Place(topic, partition, OFFSET_BEGINNING)])
        eventually(take, f"{count} records of {topic}")
    finally:
        consumer.close()
    return found
