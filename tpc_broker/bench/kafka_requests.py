"""Kafka requests as the generator sends them: whole frames, one topic and one partition in each."""

from __future__ import annotations

import time
from typing import Final

from tpc_broker.kafka import ApiKey, messages, protocol
from tpc_broker.kafka.records import Record, build_batch
from tpc_broker.native_bytes import crc32c

PRODUCE_VERSION: Final = 9
FETCH_VERSION: Final = 12
_OFFSET_MARK: Final = 0x0123456789ABCDEF


def record_batch(records_count: int, value_bytes: int, *, key: bytes | None = None) -> bytes:
    """One batch of equal records without a producer id, uncompressed."""
    value = bytes(byte % 251 for byte in range(value_bytes))
    now_ms = int(time.time() * 1000)  # an old one would be deleted by retention
    records = [Record(value, key, timestamp_ms=now_ms) for _ in range(records_count)]
    return bytes(build_batch(records, checksum=crc32c))


def produce_request(topic: str, partition: int, batch: bytes, *, acks: int = -1) -> bytes:
    request = messages.ProduceRequest(acks=acks, timeout_ms=30_000)
    data = request.TopicProduceData(name=topic)
    data.partition_data.append(request.PartitionProduceData(index=partition, records=batch))
    request.topic_data.append(data)
    return _frame(ApiKey.PRODUCE, PRODUCE_VERSION, request)


def fetch_request(
    topic: str, partition: int, *, bytes_max: int, wait_ms: int, bytes_min: int = 1
) -> tuple[bytes, int]:
    """The request without a session, and where in it the offset stands."""
    request = messages.FetchRequest(
        max_wait_ms=wait_ms, min_bytes=bytes_min, max_bytes=bytes_max, session_id=0, session_epoch=-1
    )
    wanted = request.FetchTopic(topic=topic)
    wanted.partitions.append(
        request.FetchPartition(partition=partition, fetch_offset=_OFFSET_MARK, partition_max_bytes=bytes_max)
    )
    request.topics.append(wanted)
    frame = _frame(ApiKey.FETCH, FETCH_VERSION, request)
    return frame, frame.index(_OFFSET_MARK.to_bytes(8, "big"))


def _frame(key: ApiKey, version: int, request: object) -> bytes:
    return b"".join(protocol.encode_request_frame(key, version, 1, "bench", request))
