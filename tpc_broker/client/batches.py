"""The bytes of one record batch for an idempotent producer, from records that were written already."""

from dataclasses import dataclass
from typing import Final

from tpc_broker.kafka.compression import Compression, compress
from tpc_broker.kafka.records import CRC_START, HEADER, HEADER_BYTES, LENGTH_END, MAGIC, TRANSACTIONAL
from tpc_broker.native_bytes import crc32c

SEQUENCES_COUNT: Final = 2**31


@dataclass(frozen=True, slots=True)
class RecordsPart:
    """Records one behind the other, not compressed: offset deltas from 0, time deltas from ``base_timestamp``."""

    data: bytes
    records_count: int
    base_timestamp: int
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    producer_id: int
    producer_epoch: int


def make_batch(
    part: RecordsPart,
    compression: Compression,
    identity: ProducerIdentity,
    base_sequence: int,
    *,
    is_transactional: bool = False,
) -> bytes:
    """A whole batch with its CRC; the offset is the broker's to set."""
    payload = compress(compression, part.data)
    attributes = int(compression) | (TRANSACTIONAL if is_transactional else 0)
    header = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        header, 0, 0, HEADER_BYTES + len(payload) - LENGTH_END, -1, MAGIC, 0, attributes, part.records_count - 1,
        part.base_timestamp, part.max_timestamp, identity.producer_id, identity.producer_epoch, base_sequence,
        part.records_count,
    )  # fmt: skip
    crc = crc32c(payload, crc32c(memoryview(header)[CRC_START:]))
    header[CRC_START - 4 : CRC_START] = crc.to_bytes(4, "big")
    return b"".join((header, payload))


def next_sequence(sequence: int, records_count: int) -> int:
    """Sequences go from 2^31 - 1 to 0."""
    return (sequence + records_count) % SEQUENCES_COUNT
