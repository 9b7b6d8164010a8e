"""Record batches made by hand for tests of the log: uncompressed, right CRC, any producer, control markers."""

import struct

from tpc_broker.native_bytes import crc32c


def varint(value):
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value & ~0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record(offset_delta, value, key=None, timestamp_delta=0):
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta)
    body += varint(-1) if key is None else varint(len(key)) + key
    body += varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def batch(
    base_offset,
    values=(b"v",),
    *,
    timestamp=1_700_000_000_000,
    epoch=0,
    producer=(-1, -1, -1),
    transactional=False,
    records=None,
    control=False,
):
    records = records or [record(number, value) for number, value in enumerate(values)]
    producer_id, producer_epoch, base_sequence = producer
    attributes = (0x10 if transactional else 0) | (0x20 if control else 0)
    covered = struct.pack(
        ">hiqqqhii",
        attributes,
        len(records) - 1,
        timestamp,
        timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    ) + b"".join(records)
    return struct.pack(">qiibI", base_offset, len(covered) + 9, epoch, 2, crc32c(covered)) + covered


def marker(
    base_offset, kind, producer_id, producer_epoch=0, *, coordinator_epoch=0, timestamp=1_700_000_000_000, epoch=0
):
    body = record(0, struct.pack(">hi", 0, coordinator_epoch), key=struct.pack(">hh", 0, kind))
    return batch(
        base_offset,
        timestamp=timestamp,
        epoch=epoch,
        producer=(producer_id, producer_epoch, -1),
        transactional=True,
        control=True,
        records=[body],
    )
