"""Record batches: round trips, damage, and batches that Apache Kafka's own builder wrote."""

import base64
import json
import zlib
from pathlib import Path

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpc_broker.kafka import DecodeError, EncodeError
from tpc_broker.kafka.compression import Compression, compress, compress_small, decompress
from tpc_broker.kafka.records import (
    ControlType,
    Record,
    build_batch,
    control_batch,
    read_batch,
    read_batches,
    read_control,
    read_records,
    read_zigzag,
    zigzag,
)

GOLDEN = json.loads((Path(__file__).parent / "golden" / "batches.json").read_text())
SMALL = [Record(b"v", b"k", 1000, (("h", b"x"), ("n", None))), Record(None, None, 1005), Record(b"", b"", 999)]


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row["name"])
def test_batches_that_kafka_wrote(row):
    data = base64.b64decode(row["batch"])
    batch = read_batch(data)
    batch.check_crc()
    assert len(batch.data) == len(data)
    assert [
        [r.offset, r.timestamp_ms, None if r.key is None else r.key.hex(), None if r.value is None else r.value.hex(),
         [[name, None if value is None else value.hex()] for name, value in r.headers]]
        for r in batch.records()
    ] == row["records"]  # fmt: skip
    assert [batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.base_offset] == row["producer"]
    assert [batch.is_transactional, batch.is_control, batch.partition_leader_epoch] == row["flags"]


@pytest.mark.parametrize("row", [row for row in GOLDEN if row["name"] in ("none", "idempotent", "transactional")])
def test_uncompressed_batches_are_the_same_bytes_as_kafkas(row):
    data = base64.b64decode(row["batch"])
    batch = read_batch(data)
    again = build_batch(
        list(batch.records()),
        base_offset=batch.base_offset,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        partition_leader_epoch=batch.partition_leader_epoch,
        is_transactional=batch.is_transactional,
    )
    assert again == data


def test_markers_are_the_same_bytes_as_kafkas():
    rows = {row["name"]: row for row in GOLDEN}
    for name, control in (("commit", ControlType.COMMIT), ("abort", ControlType.ABORT)):
        data = base64.b64decode(rows[name]["batch"])
        batch = read_batch(data)
        assert read_control(next(batch.records())) == (control, 7)
        assert data == control_batch(
            control, producer_id=batch.producer_id, producer_epoch=batch.producer_epoch, coordinator_epoch=7,
            timestamp_ms=batch.base_timestamp, base_offset=batch.base_offset,
            partition_leader_epoch=batch.partition_leader_epoch,
        )  # fmt: skip


@pytest.mark.parametrize("compression", Compression)
def test_batch_comes_back(compression):
    data = build_batch(SMALL, base_offset=40, compression=compression, producer_id=9, partition_leader_epoch=6)
    wanted = [record._replace(offset=40 + index, leader_epoch=6) for index, record in enumerate(SMALL)]
    assert list(read_records(data)) == wanted
    batch = read_batch(data)
    assert (batch.last_offset, batch.base_timestamp, batch.max_timestamp, batch.records_count) == (42, 1000, 1005, 3)


def test_gaps_in_offsets_stay_and_order_is_required():
    records = [Record(b"a", offset=10), Record(b"b", offset=15)]
    assert [record.offset for record in read_records(build_batch(records, base_offset=8))] == [10, 15]
    with pytest.raises(EncodeError):
        build_batch(records[::-1], base_offset=8)
    with pytest.raises(EncodeError):
        build_batch([])


def test_log_append_time_is_the_time_of_every_record():
    data = build_batch(SMALL, log_append_time_ms=777)
    assert {record.timestamp_ms for record in read_records(data)} == {777}


def test_control_records_can_be_left_out():
    marker = control_batch(ControlType.ABORT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=5)
    data = build_batch(SMALL) + marker
    assert len(list(read_records(data))) == 3
    assert len(list(read_records(data, with_control=True))) == 4


def test_a_batch_cut_off_at_the_end_is_left_out():
    one = build_batch(SMALL)
    for size in range(len(one)):
        assert len(list(read_batches(one + one[:size]))) == 1


@pytest.mark.parametrize("pack", [compress, compress_small])
@pytest.mark.parametrize("compression", Compression)
def test_large_data_in_many_blocks(compression, pack):
    plain = b"".join(b"%d " % (i * 7919) for i in range(60_000))
    squeezed = pack(compression, plain)
    assert bytes(decompress(compression, memoryview(squeezed), len(plain))) == plain
    if compression:
        with pytest.raises(DecodeError, match="damaged or exceeds"):
            decompress(compression, memoryview(squeezed), len(plain) - 1)


def test_raw_snappy_without_a_header_is_read():
    assert decompress(Compression.SNAPPY, memoryview(bytes(cramjam.snappy.compress_raw(b"abc" * 99)))) == b"abc" * 99


def test_a_bomb_is_stopped_at_the_limit():
    bomb = memoryview(zlib.compress(bytes(50_000_000), wbits=31))
    with pytest.raises(DecodeError, match="exceeds 1000000"):
        decompress(Compression.GZIP, bomb, 1_000_000)


@given(st.integers(-(2**63), 2**63 - 1))
def test_zigzag_comes_back(value):
    data = zigzag(value)
    assert read_zigzag(data, 0) == (value, len(data))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_batches_are_refused_or_read(data):
    compression = data.draw(st.sampled_from(list(Compression)))
    batch = bytearray(build_batch(SMALL * 3, compression=compression))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        for found in read_batches(batch):
            list(found.records(1_000_000))
    except DecodeError:
        return


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_read(data):
    try:
        for found in read_batches(data):
            list(found.records(1_000_000))
    except DecodeError:
        return


def test_one_flipped_bit_changes_the_crc():
    good = build_batch(SMALL)
    for position in range(21, len(good)):
        bad = bytearray(good)
        bad[position] ^= 4
        with pytest.raises(DecodeError):
            read_batch(bad).check_crc()
