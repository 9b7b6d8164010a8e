"""Record batches to Arrow columns and back, against the plain Python codec."""

import random

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from tpc_broker.kafka import records as codec
from tpc_broker.kafka.compression import Compression, decompress
from tpc_broker.native_columns import COLUMN_TYPES, HEADERS_TYPE, ColumnBuilder, RecordsWriter, Stop

ALL = tuple(COLUMN_TYPES)
END = 2**62


def some_records(seed, count):
    chance = random.Random(seed)

    def blob(limit):
        return None if chance.random() < 0.2 else chance.randbytes(chance.randrange(limit))

    return [
        codec.Record(
            blob(300), blob(20), 1_700_000_000_000 + chance.randrange(-50, 5000),
            tuple((f"h{n}", blob(9)) for n in range(chance.randrange(4))),
        )
        for _ in range(count)
    ]  # fmt: skip


def rows_of(batch):
    rows = batch.to_pylist()
    for row in rows:
        row["timestamp"] = round(row["timestamp"].timestamp() * 1000)
        row["headers"] = tuple((header["key"], header["value"]) for header in row["headers"])
    return rows


def expected(data, topic="t", partition=3):
    return [
        {
            "key": record.key, "value": record.value, "topic": topic, "partition": partition, "offset": record.offset,
            "timestamp": record.timestamp_ms, "timestampType": int(batch.is_log_append_time), "headers": record.headers,
        }
        for batch in codec.read_batches(data)
        for record in batch.records()
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_columns_say_what_the_plain_codec_says(seed):
    data = codec.build_batch(some_records(seed, 37), base_offset=100)
    data += codec.build_batch(some_records(seed + 100, 5), base_offset=137, log_append_time_ms=1_700_000_009_999)
    builder = ColumnBuilder("t", 3, ALL)
    walk = builder.append_batches(data, 0, 0, END)
    assert (walk.stop, walk.position, walk.next_offset) == (Stop.END, len(data), 142)
    batch = builder.take()
    batch.validate(full=True)
    assert rows_of(batch) == expected(data)
    assert builder.rows_count == 0


def test_only_wanted_columns_and_offsets_are_taken():
    data = codec.build_batch(some_records(1, 20), base_offset=10)
    builder = ColumnBuilder("t", 3, ("offset", "value"))
    builder.append_batches(data, 0, 15, 18)
    batch = builder.take()
    assert batch.schema.names == ["offset", "value"]
    assert batch.column(0).to_pylist() == [15, 16, 17]
    assert batch.column(1).to_pylist() == [row["value"] for row in expected(data)[5:8]]


def test_the_cut_off_batch_at_the_end_waits_for_its_rest():
    data = codec.build_batch(some_records(1, 4)) + codec.build_batch(some_records(2, 4), base_offset=4)
    size = len(codec.build_batch(some_records(1, 4)))
    for end in (size + 1, size + 60, len(data) - 1):
        walk = ColumnBuilder("t", 0, ALL).append_batches(data[:end], 0, 0, END)
        assert (walk.stop, walk.position, walk.next_offset) == (Stop.END, size, 4)


def test_a_full_builder_keeps_batches_whole():
    data = b"".join(codec.build_batch(some_records(n, 7), base_offset=7 * n) for n in range(5))
    builder = ColumnBuilder("t", 0, ALL, rows_max=16)
    walk = builder.append_batches(data, 0, 0, END)
    assert (walk.stop, walk.next_offset, builder.rows_count) == (Stop.FULL, 14, 14)
    first = rows_of(builder.take())
    walk = builder.append_batches(data, walk.position, 0, END)
    assert first + rows_of(builder.take()) == expected(data, partition=0)[:28]


def test_a_builder_grows_for_one_large_batch():
    data = codec.build_batch(some_records(9, 300))
    builder = ColumnBuilder("t", 3, ALL, rows_max=16)
    while builder.append_batches(data, 0, 0, END).stop == Stop.FULL:
        builder.grow()
    assert rows_of(builder.take()) == expected(data)


def test_damage_is_named_and_adds_no_row():
    data = bytearray(codec.build_batch(some_records(3, 5)))
    data[-1] ^= 1
    builder = ColumnBuilder("t", 0, ALL)
    assert builder.append_batches(data, 0, 0, END).stop == Stop.BAD_CRC
    data[16] = 1
    assert builder.append_batches(data, 0, 0, END).stop == Stop.BAD_BATCH
    assert builder.rows_count == 0


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
def test_compressed_batches_are_handed_to_the_caller(compression):
    data = codec.build_batch(some_records(4, 50), base_offset=7, compression=compression)
    builder = ColumnBuilder("t", 3, ALL)
    assert builder.append_batches(data, 0, 0, END).stop == Stop.NEEDS_CALLER
    records = decompress(compression, memoryview(data)[61:])
    assert builder.append_records(data, records, 0, END)
    assert rows_of(builder.take()) == expected(data)


def test_random_records_never_crash_and_never_half_count():
    chance = random.Random(5)
    whole = codec.build_batch(some_records(6, 9))
    for _ in range(3000):
        records = bytearray(whole[61:])
        for _ in range(chance.randrange(1, 4)):
            records[chance.randrange(len(records))] = chance.randrange(256)
        builder = ColumnBuilder("t", 0, ALL)
        try:
            builder.append_records(whole, bytes(records), 0, END)
        except ValueError:
            assert builder.rows_count == 0
        else:
            assert builder.rows_count <= 9


@pytest.mark.parametrize("seed", range(5))
def test_rows_come_back_from_what_was_written(seed):
    records = some_records(seed, 60)
    headers = pa.array([[{"key": k, "value": v} for k, v in r.headers] for r in records], HEADERS_TYPE)
    writer = RecordsWriter(
        key=pa.array([None, *[r.key for r in records]], pa.binary())[1:],
        value=pa.array([r.value for r in records], pa.binary()),
        timestamps_ms=pa.array([0, *[r.timestamp_ms for r in records]], pa.int64())[1:],
        headers=headers,
    )
    rows = pa.array(range(0, 60, 2), pa.int32())
    made, first = [], 0
    while first < len(rows):
        written = writer.write(rows, first, 2000)
        made += codec.read_records(_batch_of(written))
        first += written.records_count
    assert [(r.key, r.value, r.timestamp_ms, r.headers) for r in made] == [
        (r.key, r.value, r.timestamp_ms, r.headers) for r in records[::2]
    ]


def _batch_of(written):
    whole = bytearray(61) + written.data
    codec.HEADER.pack_into(
        whole, 0, 0, len(whole) - 12, -1, 2, 0, 0, written.records_count - 1, written.base_timestamp,
        written.max_timestamp, -1, -1, -1, written.records_count,
    )  # fmt: skip
    whole[17:21] = codec.crc32c(whole[21:]).to_bytes(4, "big")
    return bytes(whole)


def test_a_row_that_is_too_large_is_named():
    writer = RecordsWriter(key=None, value=pa.array([b"x" * 100]), timestamps_ms=pa.array([1], pa.int64()))
    with pytest.raises(ValueError, match="row 0 is larger than 50 bytes"):
        writer.write(pa.array([0], pa.int32()), 0, 50)


def test_the_partitioner_agrees_with_another_client():
    partitioner = pytest.importorskip("kafka.partitioner.default", reason="kafka-python is not installed")
    chance = random.Random(8)
    keys = [None, b"", b"a", *[chance.randbytes(chance.randrange(30)) for _ in range(300)]]
    times = pa.array([0] * len(keys), pa.int64())
    writer = RecordsWriter(key=pa.array(keys, pa.binary()), value=None, timestamps_ms=times)
    theirs = [None if key is None else (partitioner.murmur2(key) & 0x7FFFFFFF) % 13 for key in keys]
    assert writer.partitions(13).to_pylist() == theirs
