"""Backfill, replay, quality and compact-archive on a real Spark, whole and interrupted."""

import dataclasses
import json
import time

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
from tests.support.waiting import PATIENCE_S
from tpc_broker.spark.pace import parse_rate
from tpc_broker.spark.pipelines import transfer
from tpc_broker.spark.pipelines.archive import ArchiveJob, archive
from tpc_broker.spark.pipelines.backfill import BackfillJob, backfill
from tpc_broker.spark.pipelines.compacting import CompactJob, compact
from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.pipelines.origins import Window
from tpc_broker.spark.pipelines.placing import Lifetime, Target, lifetime
from tpc_broker.spark.pipelines.quality import QualityJob, examine
from tpc_broker.spark.pipelines.quality_report import HEADINGS, table_rows, to_html
from tpc_broker.spark.pipelines.replay import ReplayJob, replay

pytestmark = pytest.mark.spark
NOW_MS = int(time.time()) * 1000
DAY_MS = 86_400_000


class Killed(BaseException):
    pass


@pytest.fixture
def make_topic(admin):
    from confluent_kafka.admin import NewTopic

    def make(name, partitions=2, **configuration):
        settings = {key.replace("_", "."): value for key, value in configuration.items()}
        admin.create_topics([NewTopic(name, partitions, config=settings)])[name].result(PATIENCE_S)
        return name

    return make


@pytest.fixture
def records_of(spark, broker):
    """Each record as (partition, key, value, ms), in the order of offsets."""

    def load(topic):
        reader = spark.read.format("tpc").option("bootstrap", broker.bootstrap).option("subscribe", topic)
        rows = reader.load().selectExpr("partition", "offset", "key", "value", "unix_millis(timestamp) AS ms").collect()
        return [(row.partition, row.key, row.value, row.ms) for row in sorted(rows)]

    return load


def archive_of(spark, broker, topic, out, **more):
    return archive(spark, ArchiveJob(broker.bootstrap, topic, str(out), str(out / "_checkpoint"), **more))


def kill_after(monkeypatch, writes):
    """The job dies after that many steps were written, before it notes the last."""
    left, real = writes, transfer.write

    def write(frame, target, numbered=None):
        nonlocal left
        count = real(frame, target, numbered)
        left -= 1
        if not left:
            raise Killed
        return count

    monkeypatch.setattr(transfer, "write", write)


@pytest.mark.parametrize("has_transactions", [True, False])
def test_an_archive_goes_back_as_it_was_and_after_a_kill_one_step_is_repeated(
    spark, broker, topic, produce, make_topic, records_of, tmp_path, monkeypatch, has_transactions
):
    if not has_transactions:
        monkeypatch.setattr(Target, "has_transactions", lambda _target: False)
    for partition in (0, 1):
        keys = [b"k%d" % (number % 5) for number in range(300)]
        produce(topic, partition, [f"{partition}-{number}" for number in range(300)], keys=keys)
    archive_of(spark, broker, topic, tmp_path / "archive", rows_per_epoch=350)
    target = Target(broker.bootstrap, make_topic(f"{topic}-again"), keeps_partitions=True, compression="zstd")
    job = BackfillJob(str(tmp_path / "archive"), target, str(tmp_path / "checkpoint"), rows_per_step=200)
    with monkeypatch.context() as patched:
        kill_after(patched, 2)
        with pytest.raises(Killed):
            backfill(spark, job)
    said = []
    result = backfill(spark, job, said.append)
    assert (result.offsets_count, result.steps_count, result.rows_count) == (400, 2, 400)
    assert [(one.rows_count, one.rows_total) for one in said] == [(0, 400), (200, 400), (400, 400)]
    before, after = records_of(topic), records_of(target.topic)
    for partition in (0, 1):
        was = [record for record in before if record[0] == partition]
        again = [record for record in after if record[0] == partition]
        repeated = [] if has_transactions else was[100:200]  # the second of three steps of 100
        assert again == [*was[:200], *repeated, *was[200:]]
    assert backfill(spark, job).offsets_count == 0
    with pytest.raises(PipelineError, match="belongs to a job with topic"):
        backfill(spark, BackfillJob(job.source, Target(broker.bootstrap, topic, True), job.checkpoint))


def test_records_that_would_not_stay_are_refused(spark, broker, topic, produce, make_topic, records_of, tmp_path):
    produce(topic, 0, ["old", "older"], first_ms=NOW_MS - 3 * DAY_MS)
    archive_of(spark, broker, topic, tmp_path / "archive")
    short = make_topic(f"{topic}-short", 1, retention_ms=str(DAY_MS))

    def job(**more):
        name = "-".join(["checkpoint", *more])
        return BackfillJob(str(tmp_path / "archive"), Target(broker.bootstrap, short), str(tmp_path / name), **more)

    with pytest.raises(PipelineError, match=rf"{short} would delete .* retention.ms = {DAY_MS}, .* 3[.][0-2] days old"):
        backfill(spark, job())
    assert records_of(short) == []
    backfill(spark, job(even_if_expired=True))
    assert len(records_of(short)) == 2
    same = Target(broker.bootstrap, short, keeps_partitions=True)
    produce(topic, 1, ["second"], first_ms=NOW_MS - 3 * DAY_MS)
    archive_of(spark, broker, topic, tmp_path / "archive")
    with pytest.raises(PipelineError, match="has 1 partitions, and there are records of partition 1"):
        backfill(spark, BackfillJob(str(tmp_path / "archive"), same, str(tmp_path / "other"), even_if_expired=True))


def test_how_long_records_stay():
    assert lifetime({"retention.ms": "-1"}) == Lifetime(None, None, keeps_times=True)
    assert lifetime({"retention.ms": "5", "cleanup.policy": "compact"}).retention_ms is None
    assert lifetime({"retention.ms": "5", "cleanup.policy": "compact,delete"}).retention_ms == 5
    assert lifetime({"message.timestamp.type": "LogAppendTime"}).keeps_times is False
    assert Lifetime(10, None, keeps_times=True).problem("t", 0, 10) is None
    assert "retention.ms" in Lifetime(10, None, keeps_times=True).problem("t", 0, 11)
    assert "before.max.ms" in Lifetime(None, 10, keeps_times=True).problem("t", 0, 11)


def test_other_parquet_needs_to_be_told_what_a_record_is(spark, broker, make_topic, records_of, tmp_path):
    spark.range(50).selectExpr("id", "concat('name', id) AS name").coalesce(1).write.parquet(str(tmp_path / "table"))
    topic = make_topic("test_pipelines-other", 1)
    job = BackfillJob(str(tmp_path / "table"), Target(broker.bootstrap, topic), str(tmp_path / "c"), rows_per_step=20)
    with pytest.raises(PipelineError, match="no column value"):
        backfill(spark, job)
    select = ("cast(id AS string) AS key", "to_json(struct(name)) AS value")
    told = BackfillJob(job.source, job.target, job.checkpoint, select=select, rows_per_step=20)
    assert backfill(spark, told).steps_count == 3
    found = [(key.decode(), json.loads(value)["name"]) for _, key, value, _ in records_of(topic)]
    assert found == [(str(number), f"name{number}") for number in range(50)]
    with pytest.raises(PipelineError, match="no folder"):
        backfill(spark, BackfillJob(str(tmp_path / "nowhere"), job.target, job.checkpoint))


def test_replay_filters_transforms_and_goes_on(
    spark, broker, topic, produce, make_topic, records_of, tmp_path, monkeypatch
):
    produce(topic, 0, [f"v{number}" for number in range(100)], keys=[b"k"] * 100, first_ms=NOW_MS - 50_000)
    start = json.dumps({topic: {"0": 10, "1": 0}})
    window = Window((("startingOffsets", start), ("endingTimestamp", str(NOW_MS - 49_910))))
    job = ReplayJob(
        topic, Target(broker.bootstrap, make_topic(f"{topic}-to")), str(tmp_path / "c"), window,
        "offset % 2 = 0", "SELECT key, upper(cast(value AS string)) AS value, timestamp FROM records", 30,
    )  # fmt: skip
    with monkeypatch.context() as patched:
        kill_after(patched, 1)
        with pytest.raises(Killed):
            replay(spark, job)
    said = []
    result = replay(spark, job, said.append)
    assert (result.offsets_count, result.rows_count) == (80, 40)
    assert [(one.rows_count, one.written_count) for one in said] == [(0, 0), (30, 15), (60, 30), (80, 40)]
    found = [(key, value.decode(), ms - NOW_MS + 50_000) for _, key, value, ms in records_of(job.target.topic)]
    once = [(b"k", f"V{number}", number) for number in range(10, 90, 2)]
    assert found == once, "the step that was repeated is there once"
    slow = dataclasses.replace(job.target, topic=make_topic(f"{topic}-slow"), rate=parse_rate("400"))
    began = time.monotonic()
    slowly = replay(spark, dataclasses.replace(job, target=slow, checkpoint=str(tmp_path / "slow"), where=""))
    assert slowly.rows_count == len(records_of(slow.topic)) == 80
    assert time.monotonic() - began > 80 / 400 * 0.5, "half of it, as tasks begin at once"
    none = dataclasses.replace(job, where="1 = 0", checkpoint=str(tmp_path / "none"))
    assert (replay(spark, none).offsets_count, replay(spark, none).rows_count) == (80, 0)


def test_replay_refuses_what_it_cannot_do(spark, broker, topic, make_topic, tmp_path):
    target = Target(broker.bootstrap, make_topic(f"{topic}-to"))
    for sql, said in (
        ("SELECT count(*) AS value FROM records", "several rows at once .Aggregate"),
        ("SELECT value FROM records ORDER BY offset", "several rows at once .Sort"),
        ("SELECT colour FROM records", "not understood: .*colour"),
        ("SELEKT", "not understood"),
    ):
        with pytest.raises(PipelineError, match=said):
            replay(spark, ReplayJob(topic, target, str(tmp_path / "c"), sql=sql))
    with pytest.raises(PipelineError, match="read and written at once"):
        replay(spark, ReplayJob(topic, Target(broker.bootstrap, topic), str(tmp_path / "c")))


def test_quality_finds_what_is_wrong(spark, broker, topic, produce, tmp_path):
    produce(topic, 0, ["a", "b", "c"], keys=[b"k", None, b"k"], first_ms=NOW_MS - 500_000)
    produce(topic, 0, ["a", None], keys=[b"k", b"k"], first_ms=NOW_MS - 500_000)
    produce(topic, 0, ["new"], first_ms=NOW_MS - 1000)
    produce(topic, 0, ["late", "later", "in time"], first_ms=NOW_MS - 200_000)
    produce(topic, 1, ["x"], first_ms=NOW_MS - 1000)
    job = QualityJob(broker.bootstrap, (topic,), str(tmp_path / "c"), late_seconds=60, rows_per_step=4)
    result = examine(spark, job)
    zero, one = result.partitions
    assert (zero.records, zero.null_keys, zero.tombstones, zero.repeated) == (9, 5, 1, 1)
    assert (zero.missing, zero.doubled) == (0, 0)
    assert (zero.late, zero.latest_ms) == (3, 199_000)
    assert (one.records, one.first_offset, one.last_offset, one.late) == (1, 0, 0, 0)
    assert sum(records for *_, records, _ in result.by_time) == 10
    produce(topic, 1, ["y", "z"], first_ms=NOW_MS - 100_000)
    again = examine(spark, job)
    assert (again.partitions[1].records, again.partitions[1].late) == (3, 2)
    text = to_html(again, f"<{topic}>")
    assert f"&lt;{topic}&gt;" in text
    assert text.count("data:image/png;base64,") == 5
    assert all(len(row) == len(HEADINGS) for row in table_rows(again))


def test_quality_of_an_archive_sees_doubled_and_missing_offsets(spark, tmp_path):
    rows = [(0, offset) for offset in (0, 1, 2, 2, 5, 9)] + [(1, 7)]
    frame = spark.createDataFrame(rows, "_partition INT, _offset BIGINT").selectExpr(
        "'t' AS _topic", "_partition", "_offset", f"timestamp_millis({NOW_MS} + _offset) AS _ts",
        "encode(string(_offset), 'utf-8') AS _key", "encode(string(_offset), 'utf-8') AS value",
    )  # fmt: skip
    frame.write.parquet(str(tmp_path / "archive"))
    zero, one = examine(spark, QualityJob("", (), str(tmp_path / "c"), str(tmp_path / "archive"))).partitions
    assert (zero.records, zero.missing, zero.gaps, zero.longest_gap, zero.doubled, zero.repeated) == (6, 5, 2, 3, 1, 0)
    assert (one.records, one.missing, one.gaps, one.longest_gap) == (1, 0, 0, 0)


def test_of_each_key_the_latest_stays(spark, broker, topic, produce, tmp_path):
    def latest():
        rows = spark.read.parquet(str(tmp_path / "latest")).collect()
        assert len(rows) == len({(row._partition, bytes(row._key)) for row in rows})
        return {(row._partition, bytes(row._key).decode()): bytes(row.value).decode() for row in rows}

    job = CompactJob(str(tmp_path / "archive"), str(tmp_path / "latest"), rows_per_step=5)
    produce(topic, 0, ["a0", "b0", "c0", "nobody's", "a1", "b1"], keys=[b"a", b"b", b"c", None, b"a", b"b"])
    produce(topic, 1, ["a in 1"], keys=[b"a"])
    archive_of(spark, broker, topic, tmp_path / "archive")
    first = compact(spark, job)
    assert (first.offsets_count, first.keyless_count, first.keys_count) == (7, 1, 4)
    assert latest() == {(0, "a"): "a1", (0, "b"): "b1", (0, "c"): "c0", (1, "a"): "a in 1"}
    produce(topic, 0, [None, "c1", "d0", None], keys=[b"a", b"c", b"d", b"d"])
    archive_of(spark, broker, topic, tmp_path / "archive")
    assert compact(spark, job).offsets_count == 4
    assert latest() == {(0, "b"): "b1", (0, "c"): "c1", (1, "a"): "a in 1"}
    assert compact(spark, job).offsets_count == 0
    for out in ("latest", "archive"):
        with pytest.raises(PipelineError, match="was made from"):
            compact(spark, CompactJob(str(tmp_path / "latest"), str(tmp_path / out)))


def test_pipelines_know_a_topic_that_was_created_again(
    spark, broker, topic, produce, admin, make_topic, records_of, tmp_path
):
    archived, target = tmp_path / "archive", Target(broker.bootstrap, make_topic(f"{topic}-copy", 1))
    replayed = ReplayJob(topic, target, str(tmp_path / "replayed"))
    looked_at = QualityJob(broker.bootstrap, (topic,), str(tmp_path / "quality"))
    table = CompactJob(str(archived), str(tmp_path / "table"))
    again = BackfillJob(str(archived), target, str(tmp_path / "again"))

    produce(topic, 0, [f"old {number}" for number in range(20)], keys=[b"k"] * 20)
    archive_of(spark, broker, topic, archived)
    replay(spark, replayed)
    examine(spark, looked_at)
    assert compact(spark, table).keys_count == 1
    backfill(spark, again)
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    make_topic(topic)
    produce(topic, 0, [f"new {number}" for number in range(30)], keys=[b"k"] * 30)
    with pytest.raises(Exception, match=f"{topic} was deleted and created again"):
        archive_of(spark, broker, topic, archived)
    with pytest.raises(PipelineError, match=f"{topic}: deleted and created again .* take another --checkpoint"):
        replay(spark, replayed)
    with pytest.raises(PipelineError, match=f"{topic}: deleted and created again"):
        examine(spark, looked_at)
    assert archive_of(spark, broker, topic, archived, fails_on_data_loss=False).rows_count == 30
    assert replay(spark, dataclasses.replace(replayed, fails_on_data_loss=False)).offsets_count == 30
    assert [value for _partition, _key, value, _ms in records_of(target.topic)][-30:] == [
        b"new %d" % number for number in range(30)
    ]
    with pytest.raises(PipelineError, match=f"more than one topic named {topic}"):
        compact(spark, table)
    with pytest.raises(PipelineError, match=f"{topic}: deleted and created again"):
        backfill(spark, again)
    assert spark.read.parquet(str(archived)).count() == 50


def test_an_archive_belongs_to_its_checkpoint_and_its_columns(spark, broker, topic, produce, tmp_path):
    produce(topic, 0, ["a"], headers=[("h", b"x")])
    out = tmp_path / "archive"
    archive_of(spark, broker, topic, out, with_headers=True)
    with pytest.raises(PipelineError, match="was begun with headers"):
        archive_of(spark, broker, topic, out)
    with pytest.raises(PipelineError, match="with another checkpoint"):
        archive(spark, ArchiveJob(broker.bootstrap, topic, str(out), str(tmp_path / "other"), with_headers=True))
    row = spark.read.parquet(str(out)).first()
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("h", b"x")]


def test_an_archive_of_segment_files_and_of_what_is_not_in_them_yet(spark, broker, topic, produce, tmp_path):
    produce(topic, 0, [f"{number}" for number in range(200)])
    result = archive_of(spark, broker, topic, tmp_path / "archive", data_folder=str(broker.data_folder))
    assert result.archive_rows_count == 200
    produce(topic, 0, ["200"])
    archive_of(spark, broker, topic, tmp_path / "archive", data_folder=str(broker.data_folder))
    rows = spark.read.parquet(str(tmp_path / "archive")).select("_offset", "value").collect()
    assert sorted((row._offset, int(bytes(row.value))) for row in rows) == [(number, number) for number in range(201)]
