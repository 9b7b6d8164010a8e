"""Record batches for these tests, made by the encoders of kafka-python (plain) and aiokafka (compressed)."""

import struct
import warnings

import crc32c
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas with an old importlib call
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

NOW_MS = 1_700_000_000_000


def batch(
    count=3, *, key=b"k", value=b"value", headers=(), timestamp=NOW_MS, compression=0, producer=(-1, -1, -1), step_ms=1
):
    producer_id, producer_epoch, base_sequence = producer
    kind = AiokafkaBuilder if compression else KafkaPythonBuilder
    builder = kind(2, compression, False, producer_id, producer_epoch, base_sequence, 1 << 24)
    for index in range(count):
        assert builder.append(index, timestamp + index * step_ms, key, value, list(headers)) is not None
    return bytearray(builder.build())


def seal(data):
    """The checksum made anew, by another implementation than ours."""
    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    return data


def patched(data, position, layout, value):
    """A copy with one field changed and the checksum right again."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, value)
    return seal(changed)


def varint(value):
    raw = ((value << 1) ^ (value >> 63)) & (2**64 - 1)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def with_records(template, records):
    """The batch with other record bytes behind its header."""
    changed = bytearray(template[:61]) + records
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    return seal(changed)
