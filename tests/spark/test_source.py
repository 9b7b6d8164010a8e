"""The data source ``tpc`` in a real Spark: batch and streaming reads."""

import datetime as dt
import json
from decimal import Decimal

import pytest

from tests.spark.conftest import NOW_MS
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.spark


@pytest.fixture
def read(spark, broker):
    def load(**options):
        reader = spark.read.format("tpc").option("bootstrap", broker.bootstrap)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), value)
        return reader.load()

    return load


def values(frame):
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def test_spark_finds_the_data_source_by_itself(spark, broker, topic, produce):
    """A session in which nothing was registered: only the module `pyspark_tpc` on the path of the workers."""
    produce(topic, 1, ["found"])
    session = spark.newSession()
    frame = session.read.format("tpc").option("kafka.bootstrap.servers", broker.bootstrap).option("subscribe", topic)
    assert values(frame.load()) == ["found"]


def test_all_columns_of_compressed_and_plain_records(read, topic, produce):
    produce(topic, 0, ["a", "b"], keys=[b"k", None], headers=[("h", b"x"), ("n", None)])
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        produce(topic, 1, [f"{codec}-{number}" for number in range(50)], compression=codec)
    rows = read(subscribe=topic, includeHeaders="true").collect()
    assert len(rows) == 202
    first = next(row for row in rows if row.partition == 0 and row.offset == 0)
    assert (bytes(first.key), bytes(first.value), first.topic, first.timestampType) == (b"k", b"a", topic, 0)
    assert first.timestamp == dt.datetime.fromtimestamp(NOW_MS / 1000)  # noqa: DTZ006 - as collect gives it
    assert [(header.key, header.value) for header in first.headers] == [("h", b"x"), ("n", None)]
    ones = sorted((row for row in rows if row.partition == 1), key=lambda row: row.offset)
    assert [row.offset for row in ones] == list(range(200))
    assert [bytes(row.value).decode() for row in ones[50:100]] == [f"snappy-{number}" for number in range(50)]


def test_offsets_times_and_splitting(read, topic, produce):
    produce(topic, 0, [f"{number:03}" for number in range(100)])
    produce(topic, 1, ["other"])
    between = read(
        assign=json.dumps({topic: [0]}), columns="value,offset",
        startingOffsets=json.dumps({topic: {"0": 10}}), endingOffsets=json.dumps({topic: {"0": 20}}),
        maxRecordsPerPartition=3,
    )  # fmt: skip
    assert between.rdd.getNumPartitions() == 4
    assert between.columns == ["value", "offset"]
    assert values(between) == [f"{number:03}" for number in range(10, 20)]
    timed = read(assign=json.dumps({topic: [0]}), startingTimestamp=NOW_MS + 95, endingTimestamp=NOW_MS + 98)
    assert values(timed) == ["095", "096", "097"]
    by_time = {"startingOffsetsByTimestamp": json.dumps({topic: {"0": NOW_MS + 97, "1": 0}})}
    assert values(read(subscribe=topic, **by_time)) == ["097", "098", "099", "other"]
    ended = {"endingOffsetsByTimestamp": json.dumps({topic: {"0": NOW_MS + 2, "1": NOW_MS + 9}})}
    assert values(read(subscribe=topic, **ended)) == ["000", "001", "other"]
    late = {"subscribePattern": f"{topic}.*", "startingTimestamp": NOW_MS + 10_000}
    with pytest.raises(Exception, match=f"{topic}-0 has no record at or after"):
        read(**late).collect()
    assert read(**late, startingOffsetsByTimestampStrategy="latest").count() == 0


def test_an_empty_topic_has_no_rows(read, topic):
    assert read(subscribe=topic).count() == 0
    assert read(subscribe=topic, minPartitions="8").collect() == []


def test_mistakes_are_explained(read, topic):
    for options, said in (
        ({"subscribe": "no-such-topic"}, "there is no topic 'no-such-topic'"),
        ({"subscribe": topic, "assign": "{}"}, "exactly one of subscribe"),
        ({"subscribe": topic, "startingOffsets": "latest"}, "startingOffsets cannot be latest here"),
        ({"subscribe": topic, "endingOffsets": json.dumps({topic: {"1": 5}})}, f"{topic}-1: endingOffsets says 5"),
        ({"subscribe": topic, "startingOfsets": "earliest"}, "unknown option startingofsets"),
        ({"subscribe": topic, "columns": "value,colour"}, "columns is value, colour"),
        ({"subscribe": topic, "kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism is not given; allowed are"),
    ):  # fmt: skip
        with pytest.raises(Exception, match=said):
            read(**options).collect()


def test_lost_offsets_fail_or_are_skipped(read, topic, produce, admin):
    from confluent_kafka import TopicPartition

    produce(topic, 0, ["0", "1", "2", "3"])
    next(iter(admin.delete_records([TopicPartition(topic, 0, 3)]).values())).result(PATIENCE_S)
    begin = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 1, "1": 0}})}
    with pytest.raises(Exception, match=rf"{topic}-0: offsets \[1, 3\) are not in the log any more"):
        read(**begin).collect()
    assert values(read(**begin, failOnDataLoss="false")) == ["3"]


def test_json_values_with_a_schema_and_what_is_malformed(read, spark, broker, topic, produce):
    produce(topic, 0, ['{"user": "a", "n": 1}', '{"user": "b"}', "rubbish"], keys=[b"k", b"l", b"m"])
    given = {"subscribe": topic, "valueFormat": "json", "valueSchema": "user string, n int"}
    with pytest.raises(Exception, match=f"{topic}-0, offset 2: no JSON of the schema"):
        read(**given).collect()
    frame = read(**given, mode="PERMISSIVE")
    assert frame.columns[-1] == "_corrupt_record"
    rows = frame.selectExpr("key", "value.user", "value.n", "offset", "CAST(_corrupt_record AS STRING)").collect()
    assert [tuple(row)[1:] for row in rows] == [("a", 1, 0, None), ("b", None, 1, None), (None, None, 2, "rubbish")]
    assert [bytes(row.key) for row in rows] == [b"k", b"l", b"m"]
    assert read(**given, mode="DROPMALFORMED").selectExpr("value.*").collect() == [("a", 1), ("b", None)]
    wanted = "offset bigint, value struct<n: int>, _corrupt_record string"
    load = spark.read.format("tpc").schema(wanted).option("bootstrap", broker.bootstrap).options(
        subscribe=topic, valueFormat="json", mode="PERMISSIVE"
    )  # fmt: skip
    assert [tuple(row) for row in load.load().collect()] == [(0, (1,), None), (1, (None,), None), (2, None, "rubbish")]
    for options, said in (
        ({"valueFormat": "json"}, "valueFormat=json needs the option valueSchema"),
        ({"valueFormat": "avro", "avroSchema": "/no/such.avsc"}, "avroSchema: .*No such file"),
        ({"valueFormat": "avro", "avroSchema": '["string", "int"]'}, "valueFormat=avro: .*a union of"),
        ({"valueFormat": "raw", "avroSchema": "x"}, "avroSchema says nothing about valueFormat=raw"),
        ({"valueFormat": "protobuf", "protobufDescriptor": "x"}, "valueFormat=protobuf needs the option messageName"),
        ({"mode": "STRICT"}, "mode is 'strict'; allowed are failfast"),
    ):
        with pytest.raises(Exception, match=said):
            read(subscribe=topic, **options).collect()
    with pytest.raises(Exception, match="the column offset is int32; it has to be int64"):
        spark.read.format("tpc").schema("offset int").options(subscribe=topic, path="/x").load().collect()


def test_avro_and_protobuf_values(read, topic, produce, tmp_path):
    """Spark parses the types that are made of the schemas, and takes the columns; more is in `test_values`."""
    from tests.spark import test_values

    produce(topic, 0, [test_values.avro_bytes(number) for number in range(20)])
    given = {"assign": json.dumps({topic: [0]}), "valueFormat": "avro", "columns": "offset,value"}
    frame = read(**given, avroSchema=json.dumps(test_values.AVRO))
    rows = frame.orderBy("offset").collect()
    assert [row.value.user for row in rows] == [f"u{number}" for number in range(20)]
    assert rows[3].value.asDict() | {"hash": None} == {
        "user": "u3", "count": 3, "at": rows[3].value["at"], "day": dt.date(1970, 1, 4), "price": Decimal("0.75"),
        "kind": "B", "more": {"k": 3.0, "f": 1.5}, "kinds": [], "id": "7d444840-9dc0-11d1-b245-5ffdce74fad2",
        "hash": None,
    }  # fmt: skip
    schema = tmp_path / "event.avsc"
    schema.write_text(json.dumps(test_values.AVRO))
    some = frame.selectExpr("sum(value.count)", "max(value.more['f'])", "count(value.at)").first()
    assert tuple(some) == (100, 9.5, 20)
    assert read(**given, avroSchema=str(schema)).where("value.kind = 'A'").count() == 10
    files, values_ = test_values.protobuf_values(20)
    descriptor = tmp_path / "event.pb"
    descriptor.write_bytes(files)
    produce(topic, 1, values_)
    given = {"assign": json.dumps({topic: [1]}), "valueFormat": "protobuf", "protobufDescriptor": str(descriptor)}
    frame = read(**given, messageName="shop.Event").select("value.*")
    assert frame.columns == ["user", "big", "raw", "kind", "items", "first", "more", "at", "numbers"]
    last = frame.orderBy("big").collect()[-1]
    assert (last.user, last.big, last.kind, last["items"], last.more) == ("u19", Decimal(19), "B", [("a",)], {"k": 19})


def test_a_stream_goes_on_in_a_topic_that_was_created_again(spark, broker, topic, produce, admin, tmp_path):
    from confluent_kafka.admin import NewTopic

    other = f"{topic}-other"
    for name in (topic, other):
        if name == other:
            admin.create_topics([NewTopic(name, 1)])[name].result(PATIENCE_S)
        produce(name, 0, [f"old {number}" for number in range(100)])

    def stream(loss="true", name="c"):
        given = {"subscribe": f"{topic},{other}", "startingOffsets": "earliest", "failOnDataLoss": loss}
        return Stream(spark, broker, tmp_path / name, **given)

    def rows():
        return [bytes(row.value).decode() for row in spark.read.parquet(str(tmp_path / "out")).collect()]

    assert stream().run(tmp_path / "out") == [200]
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    admin.create_topics([NewTopic(topic, 2)])[topic].result(PATIENCE_S)
    produce(topic, 0, [f"new {number}" for number in range(300)])
    with pytest.raises(Exception, match=f"{topic} was deleted and created again .*set failOnDataLoss to false"):
        stream().run(tmp_path / "out")
    assert stream("false").run(tmp_path / "out") == [300]
    assert sorted(value for value in rows() if "new" in value) == sorted(f"new {number}" for number in range(300))
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    produce(other, 0, ["more"])
    with pytest.raises(Exception, match=f"there is no topic '{topic}'; .*set failOnDataLoss to false"):
        stream().run(tmp_path / "out")
    assert stream("false").run(tmp_path / "out") == [1]
    assert len(rows()) == 501


class Stream:
    """A streaming query into a memory table, run until all that is there is read."""

    def __init__(self, spark, broker, checkpoint, **options):
        self.spark, self.checkpoint = spark, str(checkpoint)
        self.reader = spark.readStream.format("tpc").option("bootstrap", broker.bootstrap)
        for name, value in options.items():
            self.reader = self.reader.option(name, value)

    def run(self, out):
        writer = self.reader.load().writeStream.format("parquet").option("checkpointLocation", self.checkpoint)
        query = writer.trigger(availableNow=True).start(str(out))
        assert query.awaitTermination(PATIENCE_S)
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_available_now_with_a_row_limit_resumes_from_its_checkpoint(spark, broker, topic, produce, admin, tmp_path):
    from confluent_kafka.admin import NewPartitions

    produce(topic, 0, [f"a{number}" for number in range(30)])
    produce(topic, 1, [f"b{number}" for number in range(10)])
    stream = Stream(spark, broker, tmp_path / "c", subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=15)
    assert stream.run(tmp_path / "out") == [15, 15, 10]
    produce(topic, 1, ["late"])
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_S)
    produce(topic, 2, ["new", "partition"])
    assert stream.run(tmp_path / "out") == [3]
    assert stream.run(tmp_path / "out") == []
    rows = [bytes(row.value).decode() for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    expected = [f"a{number}" for number in range(30)] + [f"b{number}" for number in range(10)]
    assert sorted(rows) == sorted([*expected, "late", "new", "partition"])
