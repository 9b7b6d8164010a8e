"""The record of a time stamp inside batches, exact also when they are compressed; runs off the loop, output bounded."""

from __future__ import annotations

from typing import NamedTuple

from tpc_broker.broker.unpacking import records_of
from tpc_broker.kafka.records import read_batches


class RecordPosition(NamedTuple):
    """A record found: its time stamp, its offset, the leader epoch of its batch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


def find_in_batches(
    data: bytes, timestamp_ms: int, offset: int, upto: int, bytes_max: int
) -> tuple[RecordPosition | None, int]:
    """The first record of these batches in [offset, upto) whose time stamp is at least ``timestamp_ms``.

    Returns (place or None, the offset to go on at). Batches whose largest time stamp is lower are not decompressed.
    `bytes_max`: of an unpacked batch. NotUnpackedError: one cannot be unpacked, or would be more; DecodeError: damage.
    """
    next_offset = offset
    for batch in read_batches(data):
        next_offset = batch.last_offset + 1
        if batch.max_timestamp < timestamp_ms or batch.last_offset < offset:
            continue
        for record in records_of(batch, bytes_max):
            if record.offset >= upto:
                return None, upto
            if record.offset >= offset and record.timestamp_ms >= timestamp_ms:
                place = RecordPosition(record.timestamp_ms, record.offset, batch.partition_leader_epoch)
                return place, record.offset + 1
    return None, next_offset
