"""Datagrams, and the batch that is made of them: the documented vectors, and whatever else may come."""

import random
import re
import struct
from pathlib import Path

import pytest

from tests.support.record_batches import crc32c, read_batches
from tpc_broker._bytes import ffi, lib

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "datagrams.md"
BAD_MESSAGE, INVALID = -74, -22


def documented():
    text = DOCUMENT.read_text(encoding="utf-8").partition("<!-- vectors -->")[2]
    found = [bytes.fromhex(each) for each in re.findall(r"`([0-9a-f]{32,})`", text)]
    assert len(found) == 6
    return found


def decoded(data):
    """Its fields, or -errno. What lies behind the bytes is not touched: the sanitizers' run sees that."""
    out = ffi.new("tpc_datagram *")
    memory = ffi.new("uint8_t[]", data)
    result = lib.tpc_datagram_decode(memory, len(data), out)
    if result < 0:
        return result
    key = bytes(ffi.buffer(out.key, out.key_bytes)) if out.key else None
    value = bytes(ffi.buffer(out.value, out.value_bytes))
    return out.topic, out.partition, out.request_id, out.flags, key, out.timestamp_ms, value


def test_the_vectors_are_what_the_document_says():
    topic = crc32c(b"metrics")
    assert [decoded(data) for data in documented()] == [
        (topic, 3, 7, 1, None, -1, b"hi"),
        (topic, 3, 7, 3, b"k", -1, b"hi"),
        (topic, 3, 7, 7, b"k", 1_700_000_000_000, b"hi"),
        (topic, 0, 0, 0, None, -1, b""),
        BAD_MESSAGE,
        BAD_MESSAGE,
    ]


@pytest.mark.parametrize(("code", "place"), [(0, 4), (6, 5)])
def test_answers_are_as_documented(code, place):
    asked, answer = ffi.new("tpc_datagram *"), ffi.new("uint8_t[16]")
    data = documented()[0]
    assert lib.tpc_datagram_decode(data, len(data), asked) == 0
    lib.tpc_datagram_answer(asked, code, answer)
    assert bytes(answer) == documented()[place]


@pytest.mark.parametrize("data", documented()[:3])
def test_what_is_cut_off_is_refused_or_shorter(data):
    for length in range(len(data)):
        found = decoded(data[:length])
        if length < 16:
            assert found == BAD_MESSAGE
        elif isinstance(found, int):
            assert found == INVALID
        else:
            assert found[:3] == decoded(data)[:3]


@pytest.mark.parametrize(
    "head",
    [(1, 8, 0), (1, 1, 1), (1, 3, 9), (1, 4, 0), (1, 127, 0)],
    ids=["unknown flag", "length without a key", "key too long", "no room for the time stamp", "all flags"],
)
def test_what_cannot_be_is_refused(head):
    assert decoded(struct.pack(">BBHIII", *head, 1, 2, 3) + b"1234567") == INVALID


def test_a_time_before_1970_is_refused():
    assert decoded(struct.pack(">BBHIIIq", 1, 4, 0, 1, 2, 3, -5)) == INVALID


def test_whatever_comes_stays_within_its_bytes():
    rng = random.Random(7)
    for _ in range(5000):
        data = bytearray(rng.randbytes(rng.randrange(64)))
        if data:
            data[0] = 1
        if len(data) > 3:
            data[1] &= 7
            data[2] = 0
        found = decoded(bytes(data))
        if not isinstance(found, int):
            assert len(found[4] or b"") + len(found[6]) <= len(data) - 16


def test_a_batch_is_what_the_format_says():
    rng = random.Random(3)
    for count in (1, 2, 64, 300):
        builder, memory = ffi.new("tpc_batch_builder *"), ffi.new("uint8_t[]", 400_000)
        wanted = []
        for number in range(count):
            key = rng.choice([None, b"", rng.randbytes(rng.randrange(200))])
            value = rng.randbytes(rng.choice([0, 1, 63, 64, 1000]))
            timestamp = rng.choice([0, 1_700_000_000_000 + rng.randrange(-5000, 5000)])
            record = ffi.new("tpc_datagram *")
            held = ffi.new("uint8_t[]", key or b"\0"), ffi.new("uint8_t[]", value or b"\0")
            record.key, record.value = (ffi.NULL if key is None else held[0]), held[1]
            record.key_bytes, record.value_bytes, record.timestamp_ms = len(key or b""), len(value), timestamp
            before = builder.bytes
            size = lib.tpc_batch_builder_record_bytes(builder, record)
            lib.tpc_batch_builder_add(builder, record, memory)
            assert builder.bytes == before + size
            wanted.append((number, timestamp, key, value))
        lib.tpc_batch_builder_finish(builder, memory)
        (batch,) = read_batches(bytes(ffi.buffer(memory, builder.bytes)))
        base = batch["base_timestamp"]
        assert [(offset, base + delta, key, value) for offset, delta, key, value, *_ in batch["records"]] == wanted
        report, limits = ffi.new("tpc_batch_report *"), ffi.new("tpc_batch_limits *")
        limits.now_ms, limits.produce_version = 1_700_000_000_000, 9
        limits.timestamp_before_ms_max = limits.timestamp_after_ms_max = 2**63 - 1
        limits.batch_bytes_max = 2**31 - 1
        assert lib.tpc_batch_validate(memory, builder.bytes, limits, report) == 0
        assert report.header.records_count == count
        assert report.header.max_timestamp == max(timestamp for _, timestamp, *_ in wanted)
        assert report.header.producer_id == -1
