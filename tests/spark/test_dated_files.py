"""Files by date with Arrow's writer: every row once, in its folder, in bounded memory, and none after a failure."""

import random
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
import pyarrow.parquet as pq

from tpc_broker.spark.pipelines import dated_files
from tpc_broker.spark.pipelines.dated_files import DatedFiles, archive_schema, by_date, date_text, is_local

DAY_US = 86_400_000_000
PLAIN = archive_schema(with_headers=False)


def rows(first_offset, times_us, value=b"v", schema=PLAIN):
    count = len(times_us)
    columns = {
        "_topic": ["t"] * count, "_partition": [3] * count, "_offset": range(first_offset, first_offset + count),
        "_ts": times_us, "_key": [None if number % 3 else b"k" for number in range(count)], "value": [value] * count,
        "headers": [[{"key": "h", "value": None}], [], None][:count] + [None] * (count - 3),
    }  # fmt: skip
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def files_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*.parquet"))


def read_all(folder, names):
    return [row for name in names for row in pq.ParquetFile(Path(folder) / name).read().to_pylist()]


@pytest.mark.parametrize("seed", range(5))
def test_every_row_is_in_the_folder_of_its_date_once(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(dated_files, "GROUP_BYTES", 20_000)
    monkeypatch.setattr(dated_files, "OPEN_FILES_MAX", 3)
    chance = random.Random(seed)
    files = DatedFiles(f"file:{tmp_path}", PLAIN, "snappy", 60_000)
    expected, offset, open_max = [], 0, 0
    for _ in range(60):
        days = chance.choice([[0], [0, 1], [-1, 5], range(8)])
        times = [chance.choice(days) * DAY_US + chance.randrange(DAY_US) for _ in range(chance.randrange(1, 60))]
        batch = rows(offset, times, value=chance.randbytes(chance.randrange(300)))
        files.add(batch)
        expected += batch.to_pylist()
        offset += len(times)
        open_max = max(open_max, len(files._open))
        assert sum(file.waiting_bytes for file in files._open.values()) == files._waiting_bytes < 20_000
    written = files.finish()
    assert open_max == 3
    assert sorted(file.name for file in written) == files_in(tmp_path)
    assert sorted(read_all(tmp_path, files_in(tmp_path)), key=lambda row: row["_offset"]) == expected
    for file in written:
        found = read_all(tmp_path, [file.name])
        assert len(found) == file.rows_count
        assert {row["_ts"].date().isoformat() for row in found} == {file.name[len("date=") :].partition("/")[0]}
        offsets = [row["_offset"] for row in found]
        assert offsets == sorted(offsets)


def test_a_file_ends_when_it_has_its_size(tmp_path):
    files = DatedFiles(str(tmp_path), PLAIN, "none", 100_000)
    chance = random.Random(1)
    for number in range(100):
        files.add(rows(number, [0], value=chance.randbytes(10_000)))
    names = [file.name for file in files.finish()]
    sizes = [(tmp_path / name).stat().st_size for name in names]
    assert len(sizes) == 10
    assert max(sizes) < 120_000


def test_columns_are_what_readers_expect(tmp_path):
    schema = archive_schema(with_headers=True)
    files = DatedFiles(str(tmp_path), schema, "zstd", 10**6)
    batch = rows(0, [0, 1, 2, 3], schema=schema)
    files.add(batch.rename_columns([f"c{number}" for number in range(batch.num_columns)]))
    (name,) = [file.name for file in files.finish()]
    found = pq.ParquetFile(tmp_path / name)
    assert found.read().to_pylist() == batch.to_pylist()
    group = found.metadata.row_group(0)
    columns = {group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)}
    assert "DELTA_BINARY_PACKED" in columns["_offset"].encodings
    assert "RLE_DICTIONARY" in columns["headers.list.element.key"].encodings
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert "isAdjustedToUTC=true, timeUnit=microseconds" in str(found.schema.column(3))


def test_after_a_failure_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(dated_files, "OPEN_FILES_MAX", 1)
    files = DatedFiles(str(tmp_path), PLAIN, "snappy", 10**6)
    files.add(rows(0, [0, DAY_US, 2 * DAY_US]))
    assert len(files_in(tmp_path)) == 3
    files.abandon()
    assert files_in(tmp_path) == []


def test_dates_are_written_as_spark_writes_them():
    assert [date_text(days) for days in (0, -1, 20_778, 2_932_896, 2_932_897)] == [
        "1970-01-01", "1969-12-31", "2026-11-21", "9999-12-31", "+10000-01-01",
    ]  # fmt: skip
    batch = rows(0, [DAY_US - 1, DAY_US, -1])
    assert [(date, part.num_rows) for date, part in by_date(batch, batch.column("_ts"))] == [
        ("1970-01-01", 1), ("1970-01-02", 1), ("1969-12-31", 1),
    ]  # fmt: skip


def test_which_folders_are_local():
    assert [is_local(url) for url in ("/a", "file:/a", "file:///a", "s3a://a/b", "hdfs://h/a")] == [
        True, True, True, False, False,
    ]  # fmt: skip
