"""Spark's own Kafka source and sink (spark-sql-kafka-0-10) against our broker, batch and streaming."""

import json

import pytest

from tests.spark.conftest import NOW_MS
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.spark

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


@pytest.fixture
def kafka_read(spark, broker, connector):
    def read(subscribe, *, streaming=False, **options):
        reader = (spark.readStream if streaming else spark.read).format(connector)
        return reader.options(subscribe=subscribe, **{"kafka.bootstrap.servers": broker.bootstrap, **options}).load()

    return read


def values(frame, column="value"):
    return sorted(bytes(row[0]) for row in frame.select(column).collect())


def numbered(first, end):
    return [b"%05d" % number for number in range(first, end)]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batch_gives_the_rows_that_our_source_gives(spark, broker, topic, produce, kafka_read, compression):
    headers = [("origin", b"test"), ("empty", b""), ("null", None)]
    keys = [None if number % 3 == 0 else b"k%d" % number for number in range(500)]
    produce(topic, 0, numbered(0, 500), compression=compression, keys=keys, headers=headers)
    produce(topic, 1, numbered(500, 700), compression=compression)
    theirs = kafka_read(topic, includeHeaders="true").select(*COLUMNS)
    ours = spark.read.format("tpc").options(bootstrap=broker.bootstrap, subscribe=topic, includeHeaders="true").load()
    assert theirs.schema.simpleString() == ours.schema.simpleString()
    found = theirs.orderBy("partition", "offset").collect()
    assert [bytes(row.value) for row in found] == numbered(0, 700)
    expected = ours.orderBy("partition", "offset").collect()
    empty = [row.asDict() | {"headers": row.headers or None} for row in expected]  # theirs has null where no header is
    assert [row.asDict() for row in found] == empty


def test_batch_by_offset_by_time_and_in_several_tasks(topic, produce, kafka_read):
    produce(topic, 0, numbered(0, 300))
    produce(topic, 1, numbered(300, 400))
    start = json.dumps({topic: {"0": 100, "1": -2}})
    end = json.dumps({topic: {"0": 200, "1": -1}})
    by_offset = kafka_read(topic, startingOffsets=start, endingOffsets=end, minPartitions="6")
    assert by_offset.rdd.getNumPartitions() >= 6
    assert values(by_offset) == [*numbered(100, 200), *numbered(300, 400)]
    assert values(kafka_read(topic, startingTimestamp=str(NOW_MS + 250), endingTimestamp=str(NOW_MS + 260),
                             startingOffsetsByTimestampStrategy="latest")) == numbered(250, 260)  # fmt: skip


def test_a_stream_resumes_from_its_checkpoint(spark, topic, produce, kafka_read, tmp_path):
    def run():
        stream = kafka_read(topic, streaming=True, startingOffsets="earliest", maxOffsetsPerTrigger="40")
        writer = stream.selectExpr("CAST(value AS STRING) AS value").writeStream.format("parquet")
        options = {"path": str(tmp_path / "out"), "checkpointLocation": str(tmp_path / "checkpoint")}
        query = writer.options(**options).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S)
        assert query.exception() is None
        return [row.value.encode() for row in spark.read.parquet(str(tmp_path / "out")).orderBy("value").collect()]

    produce(topic, 0, numbered(0, 60))
    produce(topic, 1, numbered(60, 100))
    assert run() == numbered(0, 100)
    produce(topic, 1, numbered(100, 120))
    assert run() == numbered(0, 120)


def test_the_sink_in_a_batch(spark, broker, topic, kafka_read):
    rows = spark.range(0, 1000).selectExpr(
        "CAST(id AS STRING) AS key", "lpad(CAST(id AS STRING), 5, '0') AS value",
        "array(named_struct('key', 'id', 'value', CAST(CAST(id AS STRING) AS BINARY))) AS headers",
    )  # fmt: skip
    rows.write.format("kafka").options(topic=topic, **{"kafka.bootstrap.servers": broker.bootstrap}).save()
    found = kafka_read(topic, includeHeaders="true").collect()
    assert sorted(bytes(row.value) for row in found) == numbered(0, 1000)
    assert {row.partition for row in found} == {0, 1}
    assert all(bytes(row.key) == bytes(row.headers[0].value) == b"%d" % int(row.value) for row in found)


def test_the_sink_in_a_stream_from_topic_to_topic(broker, topic, produce, admin, kafka_read, tmp_path):
    from confluent_kafka.admin import NewTopic

    target = f"{topic}-copy"
    admin.create_topics([NewTopic(target, 3)])[target].result(PATIENCE_S)
    produce(topic, 0, numbered(0, 200), keys=numbered(0, 200))
    stream = kafka_read(topic, streaming=True, startingOffsets="earliest", maxOffsetsPerTrigger="70")
    options = {"kafka.bootstrap.servers": broker.bootstrap, "checkpointLocation": str(tmp_path / "checkpoint")}
    writer = stream.select("key", "value").writeStream.format("kafka").options(topic=target, **options)
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    assert query.exception() is None
    assert values(kafka_read(target)) == values(kafka_read(target), "key") == numbered(0, 200)
