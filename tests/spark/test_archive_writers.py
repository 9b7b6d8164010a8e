"""Two ways into an archive, Arrow in the tasks and Spark's own writer, give the same rows; stray files do not count."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
import pyarrow.parquet as pq

from tests.spark.conftest import NOW_MS
from tpc_broker.spark.pipelines.archive import ArchiveJob, archive
from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.pipelines.file_list import FileList
from tpc_broker.spark.pipelines.folder import Folder

pytestmark = pytest.mark.spark
DAY_MS = 86_400_000
COLUMNS = ["_topic", "_partition", "_offset", "_ts", "_key", "value", "headers", "date"]


def job(broker, topic, out, **more):
    return ArchiveJob(broker.bootstrap, topic, str(out), str(out / "_checkpoint"), with_headers=True, **more)


def archived(spark, out):
    return sorted(spark.read.parquet(str(out)).select(COLUMNS).collect())


def fill(produce, topic, partition, days_ago):
    keys = [None if number % 4 == 0 else b"key%d" % (number % 3) for number in range(40)]
    values = [None if number == 7 else b"%d-%d" % (partition, number) for number in range(40)]
    headers = [("one", b"1"), ("none", None)] if partition else None
    first_ms = NOW_MS // DAY_MS * DAY_MS - days_ago * DAY_MS - 20
    produce(topic, partition, values, keys=keys, headers=headers, first_ms=first_ms)


@pytest.mark.parametrize("compression", ["snappy", "zstd", "lz4"])
def test_both_ways_give_the_same_rows(spark, broker, topic, produce, tmp_path, compression):
    for partition, days_ago in ((0, 1), (1, 1), (1, 4)):
        fill(produce, topic, partition, days_ago)
    by_arrow = job(broker, topic, tmp_path / "arrow ä", compression=compression)
    by_spark = job(broker, topic, tmp_path / "spark ä", compression=compression, through_spark=True)
    said = []
    first, second = archive(spark, by_arrow, said.append), archive(spark, by_spark)
    assert (first.rows_count, first.epochs_count, first.archive_rows_count) == (120, 1, 120)
    assert (second.rows_count, second.epochs_count, second.archive_rows_count) == (120, 1, 120)
    assert said[-1].rows_count == 120
    rows = archived(spark, tmp_path / "arrow ä")
    assert rows == archived(spark, tmp_path / "spark ä")
    assert len({(row._partition, row._offset) for row in rows}) == len(rows) == 120
    assert len({row.date for row in rows}) == 4
    assert spark.read.parquet(by_arrow.out).schema == spark.read.parquet(by_spark.out).schema
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", "false")
    try:
        assert archived(spark, tmp_path / "arrow ä") == rows
    finally:
        spark.conf.unset("spark.sql.parquet.enableVectorizedReader")
    codecs = {
        pq.read_metadata(path).row_group(0).column(5).compression for path in Path(by_arrow.out).rglob("part*.parquet")
    }
    assert codecs <= {compression.upper(), "UNCOMPRESSED"}


def test_one_archive_both_ways_in_turn_with_merges(spark, broker, topic, produce, tmp_path):
    out, merges = tmp_path / "archive", 0
    for turn in range(4):
        for partition in (0, 1):
            produce(topic, partition, [f"{partition}-{turn}-{number}" for number in range(50)])
        found = archive(spark, job(broker, topic, out, through_spark=turn == 1, rows_per_epoch=40))
        assert found.rows_count == 100
        merges += found.merges_count
    assert merges
    rows = archived(spark, out)
    expected = [(partition, offset) for partition in (0, 1) for offset in range(200)]
    assert [(row._partition, row._offset) for row in rows] == expected
    assert found.archive_rows_count == 400
    again = archive(spark, job(broker, topic, out))
    assert (again.rows_count, again.epochs_count) == (0, 0)


def test_only_files_that_a_task_reported_count(spark, broker, topic, produce, tmp_path):
    produce(topic, 0, ["a", "b"])
    out = tmp_path / "archive"
    archive(spark, job(broker, topic, out))
    (one,) = out.glob("date=*/*.parquet")
    date = one.parent.name
    staged = out / "_staging" / "epoch" / date
    staged.mkdir(parents=True, exist_ok=True)
    for name in ("mine.parquet", "of-another-attempt.parquet"):
        shutil.copy(one, staged / name)
    files = FileList(Folder(spark, str(out)))
    files.listing = files.read()
    with pytest.raises(PipelineError, match=r"gone.parquet was written by a task and is not there: .* the same folder"):
        files.move_in("_staging/epoch", counts={f"{date}/gone.parquet": 2})
    with pytest.raises(PipelineError, match=r"mine\.parquet has 2 rows, not 3"):
        files.move_in("_staging/epoch", counts={f"{date}/mine.parquet": 3})
    moved = files.move_in("_staging/epoch", counts={f"{date}/mine.parquet": 2})
    assert [file.name for file in moved] == [f"{date}/mine.parquet"]
    assert (staged / "of-another-attempt.parquet").exists()
