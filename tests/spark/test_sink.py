"""Writing to topics from a real Spark: batch, streaming, and an epoch that is replayed."""

import datetime as dt
import json

import pytest

from tests.durability.raw_produce import PartitionClient
from tests.spark.conftest import NOW_MS, committed_values
from tests.support.waiting import PATIENCE_S
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.transactions import list_transactions
from tpc_broker.kafka.records import CONTROL, TRANSACTIONAL

pytestmark = pytest.mark.spark


@pytest.fixture
def rows_in(spark, broker):
    def load(topic):
        reader = spark.read.format("tpc").option("bootstrap", broker.bootstrap).option("subscribe", topic)
        return reader.option("includeHeaders", "true").load().collect()

    return load


def stored_batches(broker, topic, partition):
    with PartitionClient(broker, topic, partition) as client:
        return client.batches()


@pytest.mark.parametrize(("codec", "number_of_codec"), [("none", 0), ("zstd", 4)])
def test_rows_arrive_with_key_time_headers_and_in_order(spark, broker, topic, rows_in, codec, number_of_codec):
    from kafka.partitioner.default import murmur2

    frame = spark.range(300).selectExpr(
        "cast(id % 7 as string) as key",
        "encode(concat('v', id), 'utf-8') as value",
        f"timestamp_millis({NOW_MS} + id) as timestamp",
        "array(named_struct('key', 'n', 'value', encode(cast(id as string), 'utf-8'))) as headers",
    )
    writer = frame.coalesce(1).write.format("tpc").mode("append").option("bootstrap", broker.bootstrap)
    writer.option("topic", topic).option("compression", codec).option("batchBytes", 1000).save()
    rows = sorted(rows_in(topic), key=lambda row: (row.partition, row.offset))
    assert len(rows) == 300
    numbers = {}
    for row in rows:
        number = int(bytes(row.value)[1:])
        assert bytes(row.key).decode() == str(number % 7)
        assert row.partition == (murmur2(bytes(row.key)) & 0x7FFFFFFF) % 2
        assert row.timestamp == dt.datetime.fromtimestamp((NOW_MS + number) / 1000)  # noqa: DTZ006 - as collect gives it
        assert [(header.key, header.value) for header in row.headers] == [("n", str(number).encode())]
        numbers.setdefault(row.partition, []).append(number)
    assert sorted(numbers[0] + numbers[1]) == list(range(300))
    assert all(part == sorted(part) for part in numbers.values())
    stored = [one for index in (0, 1) for one in stored_batches(broker, topic, index)]
    batches = [one for one in stored if not one["attributes"] & CONTROL]
    assert {one["attributes"] for one in batches} == {TRANSACTIONAL | number_of_codec}
    assert max(one["records_count"] for one in batches) <= 1000 // 15, "a record takes more than 15 bytes"


def test_topic_and_partition_by_row_and_nulls(spark, broker, topic, admin, rows_in):
    from confluent_kafka.admin import NewTopic

    other = f"{topic}-other"
    admin.create_topics([NewTopic(other, 2)])[other].result(PATIENCE_S)
    frame = spark.createDataFrame(
        [(topic, 1, None, "a"), (other, 0, b"", "b"), (topic, None, None, None)],
        "topic string, partition int, key binary, value string",
    )
    frame.write.format("tpc").mode("append").option("bootstrap", broker.bootstrap).save()
    here = sorted((row.value is None, row.value, row.key) for row in rows_in(topic))
    assert here == [(False, b"a", None), (True, None, None)]
    assert next(row.partition for row in rows_in(topic) if row.value is not None) == 1
    assert [(row.partition, bytes(row.key), bytes(row.value)) for row in rows_in(other)] == [(0, b"", b"b")]


def test_of_a_batch_write_that_failed_nothing_is_committed(spark, broker, topic):
    """Three of its four tasks have written all their rows."""
    frame = spark.range(0, 4000, 1, 4)
    writer = {"bootstrap": broker.bootstrap, "topic": topic}
    failing = frame.selectExpr("if(id = 3999, raise_error('no such row'), cast(id as string)) as value")
    with pytest.raises(Exception, match="no such row"):
        failing.write.format("tpc").mode("append").options(**writer).save()
    assert committed_values(broker, topic) == []
    frame.selectExpr("cast(id as string) as value").write.format("tpc").mode("append").options(**writer).save()
    assert sorted(map(int, committed_values(broker, topic))) == list(range(4000))


def test_mistakes_are_explained(spark, broker, topic, admin):
    """The last of them only the broker finds: what it did not acknowledge is never taken for written."""
    from confluent_kafka.admin import NewTopic

    small = f"{topic}-small"
    admin.create_topics([NewTopic(small, 1, config={"max.message.bytes": "200"})])[small].result(PATIENCE_S)
    frame = spark.range(1).selectExpr("cast(id as string) as value")
    for given, options, mode, said in (
        (frame, {}, "append", "where to write is missing"),
        (frame, {"topic": topic}, "overwrite", "a topic cannot be overwritten"),
        (frame.selectExpr("1 as value"), {"topic": topic}, "append", "the column value is int"),
        (frame.selectExpr("value", "1 as colour"), {"topic": topic}, "append", "cannot be written: colour"),
        (frame.selectExpr("value", "9 as partition"), {"topic": topic}, "append", f"{topic} has no partition 9"),
        (frame, {"topic": topic, "acks": "1"}, "append", "unknown option acks"),
        (frame.selectExpr("repeat('v', 300) as value"), {"topic": small}, "append", "MESSAGE_TOO_LARGE"),
    ):
        writer = given.write.format("tpc").mode(mode).option("bootstrap", broker.bootstrap)
        for name, value in options.items():
            writer = writer.option(name, value)
        with pytest.raises(Exception, match=said):
            writer.save()


def test_rows_are_taken_up_to_the_brokers_own_limit(spark, broker, topic, admin, rows_in):
    from confluent_kafka.admin import NewTopic

    large = f"{topic}-large"
    narrow = f"{topic}-narrow"
    for name, limit in ((large, "4000000"), (narrow, "5000")):
        admin.create_topics([NewTopic(name, 1, config={"max.message.bytes": limit})])[name].result(PATIENCE_S)

    def write(frame, name, **options):
        writer = frame.coalesce(1).write.format("tpc").mode("append").option("bootstrap", broker.bootstrap)
        writer.options(topic=name, **options).save()

    sized = "repeat(cast(id as string), if(id = 2, {}, 5)) as value"
    write(spark.range(5).selectExpr(sized.format(1_048_000)), topic)
    write(spark.range(5).selectExpr(sized.format(3_999_000)), large)
    for name, size in ((topic, 1_048_000), (large, 3_999_000)):
        found = [bytes(row.value) for row in sorted(rows_in(name), key=lambda row: (row.partition, row.offset))]
        assert sorted(len(value) for value in found) == [5, 5, 5, 5, size]
    with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
        write(spark.range(5).selectExpr(sized.format(4_000_000)), large)
    write(spark.range(5).selectExpr(sized.format(9_000_000)), large, compression="zstd")
    assert max(len(row.value) for row in rows_in(large)) == 9_000_000, "compressed it is small"
    write(spark.range(200).selectExpr("repeat('v', 200) as value"), narrow)
    assert len(rows_in(narrow)) == 200, "batches are no larger than the topic takes"
    assert len(stored_batches(broker, narrow, 0)) > 8


def test_an_epoch_that_was_committed_is_not_written_again(spark, broker, topic, produce, admin, rows_in, tmp_path):
    """The driver dies after the sink's commit and before Spark's own note of it: Spark replays the epoch."""
    from confluent_kafka.admin import NewTopic

    target = f"{topic}-target"
    admin.create_topics([NewTopic(target, 1)])[target].result(PATIENCE_S)

    def run():
        reader = spark.readStream.format("tpc").option("bootstrap", broker.bootstrap).option("subscribe", topic)
        frame = reader.option("startingOffsets", "earliest").load().select("key", "value")
        writer = frame.writeStream.format("tpc").option("bootstrap", broker.bootstrap).option("topic", target)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S)

    produce(topic, 0, ["one", "two"])
    run()
    commits = sorted((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)
    produce(topic, 1, ["three"])
    run()
    assert sorted(bytes(row.value) for row in rows_in(target)) == [b"one", b"three", b"two"]
    ledger = [row for row in rows_in("_tpc-spark-epochs") if b"/" not in bytes(row.key)]
    assert {len(bytes(row.key)) for row in ledger} == {36}
    assert max(json.loads(bytes(row.value))["batch_id"] for row in ledger) >= 1
    with Cluster(ClusterSettings(broker.bootstrap)) as cluster:
        names = [one.transactional_id for one in list_transactions(cluster)]
    query_id = bytes(ledger[-1].key).decode()
    runs = {name.partition("/")[2][:8] for name in names if f"{query_id}/" in name}
    assert len(runs) == 2, f"each run has ids of its own: {names}"


class Task:
    """A task of a Spark that says ``told``."""

    def __init__(self, **told):
        self.told = told

    def getLocalProperty(self, name):  # noqa: N802
        return self.told.get(name.rpartition(".")[2])


@pytest.mark.parametrize("task", [None, Task(), Task(queryId="q"), Task(queryId="q", batchId="first")])
def test_a_spark_that_does_not_tell_its_epochs_is_found_out_before_the_first_row(
    broker, topic, rows_in, monkeypatch, task
):
    import pyarrow as pa
    from pyspark.sql.types import BinaryType, StructField, StructType

    from tpc_broker.spark import sink
    from tpc_broker.spark.options import write_options

    monkeypatch.setattr(sink.TaskContext, "get", classmethod(lambda _class: task))
    schema = StructType([StructField("value", BinaryType())])
    options = {"bootstrap": broker.bootstrap, "topic": topic}
    rows = pa.RecordBatch.from_pydict({"value": [b"a"]})
    with pytest.raises(sink.UnknownEpochError, match=r"does not tell its tasks.*set allowRepeatedEpochs to true"):
        sink.TpcStreamWriter(write_options(options), schema).write(iter([rows]))
    assert rows_in(topic) == []
    allowed = sink.TpcStreamWriter(write_options({**options, "allowRepeatedEpochs": "true"}), schema)
    message = allowed.write(iter([rows]))
    allowed.commit([message], 0)
    assert [bytes(row.value) for row in rows_in(topic)] == [b"a"]
