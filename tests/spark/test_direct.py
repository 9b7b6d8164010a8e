"""Direct mode: segment files and the broker's tail together, while the broker writes, rolls and deletes."""

import logging
import re
import threading
import time

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from tests.support.broker_process import TpcBroker
from tests.support.waiting import PATIENCE_S, eventually, let_pass
from tpc_broker.client.errors import DamagedDataError, OffsetsMissingError, UnknownTopicError
from tpc_broker.native_columns import COLUMN_TYPES
from tpc_broker.spark.options import read_options
from tpc_broker.spark.ranges import OffsetRange
from tpc_broker.spark.readers import TpcReader, TpcStreamReader
from tpc_broker.spark.rows import Mode, RowPlan
from tpc_broker.spark.segments import SegmentPiece
from tpc_broker.spark.values import ValueFormat

pytestmark = pytest.mark.spark

MIB = 1 << 20
VALUE = b"%012d" + bytes(20_000)
OVERRIDES = {
    "log.retention.check.interval.ms": "200", "journal.bytes.max": str(8 * MIB), "log.segment.bytes": str(MIB),
}  # fmt: skip


@pytest.fixture(scope="module")
def broker(module_tmp_path):
    """Its checkpoints come every 4 MiB, its segments have 1 MiB."""
    peer = TpcBroker(module_tmp_path / "direct", cores_count=1, overrides=OVERRIDES)
    peer.start()
    yield peer
    peer.stop()


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def make_topic(admin, request):
    def make(partitions_count=1, **config):
        name = re.sub(r"\W", "-", request.node.name)
        config = {"segment.bytes": str(MIB), "file.delete.delay.ms": "100"} | config
        admin.create_topics([NewTopic(name, partitions_count, config=config)])[name].result(PATIENCE_S)
        return name

    return make


def write(broker, topic, numbers, partition=0, **settings):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 2, "batch.size": 100_000, **settings})
    for count, number in enumerate(numbers, start=1):
        producer.produce(topic, VALUE % number, partition=partition)
        if count % 20 == 0:
            assert producer.flush(PATIENCE_S) == 0
    assert producer.flush(PATIENCE_S) == 0


def plan_of(mode=Mode.FAILFAST):
    types = {name: COLUMN_TYPES[name] for name in ("partition", "offset", "value")}
    types |= {"_corrupt_record": pa.binary()} if mode == Mode.PERMISSIVE else {}
    return RowPlan.of(from_arrow_schema(pa.schema(list(types.items()))), ValueFormat(), mode, "_corrupt_record")


def options_of(broker, topic, *, streaming, **changes):
    given = {"bootstrap": broker.bootstrap, "subscribe": topic, "path": str(broker.data_folder), "bytesTogether": "0"}
    return read_options({**given, **changes}, streaming=streaming)


def rows_of(reader, tasks):
    """``(partition, offset, number in the value)`` of all rows."""
    return [
        (row["partition"], row["offset"], int(row["value"][:12]))
        for task in tasks
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]


def pieces_count(tasks):
    return sum(isinstance(task.value, SegmentPiece) for task in tasks)


def first_base(broker, topic):
    return min(int(path.stem) for path in (broker.data_folder / "topics" / f"{topic}-0").glob("*.log"))


def test_a_batch_is_exact_with_the_tail_from_the_broker(broker, make_topic):
    topic = make_topic(2)
    write(broker, topic, range(400))
    reader = TpcReader(options_of(broker, topic, streaming=False), plan_of())
    # They are sealed when they are written behind and in a checkpoint.
    eventually(lambda: pieces_count(reader.partitions()) >= 4, "four pieces")
    count, tasks = 0, []
    while not any(isinstance(task.value, OffsetRange) for task in tasks) or pieces_count(tasks) < 4:
        write(broker, topic, range(400 + count, 410 + count), partition=1)  # a checkpoint may have had all by now
        count, tasks = count + 10, reader.partitions()
    expected = [(0, number, number) for number in range(400)] + [(1, number, 400 + number) for number in range(count)]
    assert sorted(rows_of(reader, tasks)) == expected
    write(broker, topic, range(400 + count, 410 + count), partition=1)
    assert sorted(rows_of(reader, tasks)) == expected, "what was written after the planning is not read"
    assert len(rows_of(reader, reader.partitions())) == 410 + count
    assert list(reader.read(InputPartition(None))) == []


def test_another_topic_of_that_name_is_read_from_the_broker_alone(broker, admin, make_topic):
    topic = make_topic()
    write(broker, topic, range(300))
    [future] = admin.delete_topics([topic], operation_timeout=10).values()
    future.result(PATIENCE_S)
    eventually(lambda: not (broker.data_folder / "topics" / f"{topic}-0").exists(), "it is gone")
    make_topic()
    write(broker, topic, range(1000, 1003))
    reader = TpcReader(options_of(broker, topic, streaming=False), plan_of())
    eventually(lambda: len(reader.partitions()) == 1, "nothing but the tail")
    assert rows_of(reader, reader.partitions()) == [(0, number, 1000 + number) for number in range(3)]


def test_long_segments_are_split_and_find_their_places(broker, make_topic):
    topic = make_topic()
    write(broker, topic, range(400))
    reader = TpcReader(options_of(broker, topic, streaming=False, minPartitions="60"), plan_of())
    tasks = reader.partitions()
    assert len(tasks) > 40
    assert rows_of(reader, tasks) == [(0, number, number) for number in range(400)]
    ranges = {"startingOffsets": f'{{"{topic}": {{"0": 37}}}}', "endingOffsets": f'{{"{topic}": {{"0": 271}}}}'}
    reader = TpcReader(options_of(broker, topic, streaming=False, **ranges), plan_of())
    assert rows_of(reader, reader.partitions()) == [(0, number, number) for number in range(37, 271)]


def test_compressed_topics_empty_partitions_and_damage_in_both_modes(broker, make_topic):
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    topic = make_topic(len(codecs) + 1)
    for partition, codec in enumerate(codecs):
        write(broker, topic, range(100), partition, **{"compression.type": codec})
    broker.stop()
    [path] = (broker.data_folder / "topics" / f"{topic}-1").glob("0*.log")
    data = bytearray(path.read_bytes())
    assert data[22] == 1, "not compressed with gzip"
    damaged = bytearray(data)
    damaged[-1] ^= 0xFF
    expected = [(partition, number, number) for partition in range(len(codecs)) for number in range(100)]
    broker.start()
    for changes in ({"path": ""}, {"bootstrap": ""}, {}):
        options = options_of(broker, topic, streaming=False, **changes)
        path.write_bytes(data)
        reader = TpcReader(options, plan_of())
        assert sorted(rows_of(reader, reader.partitions())) == expected
        path.write_bytes(damaged)
        with pytest.raises(DamagedDataError, match=rf"{topic}-1, offset \d+.*its CRC is wrong"):
            rows_of(reader, reader.partitions())
        reader = TpcReader(options, plan_of(Mode.PERMISSIVE))
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        corrupt = [row for batch in batches for row in batch.to_pylist() if row["_corrupt_record"] is not None]
        assert [(row["partition"], row["value"], row["_corrupt_record"][-1:]) for row in corrupt] == [
            (1, None, damaged[-1:])
        ]
        assert 400 < sum(batch.num_rows for batch in batches) <= 500
    path.write_bytes(data)


def stream(broker, topic, until, **changes):
    """Micro-batches as Spark makes them, until a function of the rows so far says enough; gives rows and task kinds."""
    options = options_of(broker, topic, streaming=True, startingOffsets="earliest", **changes)
    reader = TpcStreamReader(options, plan_of())
    rows, kinds, start = [], set(), reader.initialOffset()
    while not until(rows):
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end != start:
            tasks = reader.partitions(start, end)
            kinds |= {type(task.value) for task in tasks}
            rows += rows_of(reader, tasks)
        start = end
    return rows, kinds


def test_a_stream_beside_a_writer_reads_every_record_once(broker, make_topic):
    topic = make_topic(2)
    for partition in range(2):
        write(broker, topic, range(300), partition)
    writers = [threading.Thread(target=write, args=(broker, topic, range(300, 700), number)) for number in range(2)]
    for writer in writers:
        writer.start()
    rows, kinds = stream(broker, topic, lambda rows: len(rows) >= 1400, maxOffsetsPerTrigger="150")
    for writer in writers:
        writer.join()
    assert sorted(rows) == [(partition, number, number) for partition in range(2) for number in range(700)]
    assert kinds == {SegmentPiece, OffsetRange}


@pytest.mark.parametrize("how", ["retention", "deleted records"])
def test_a_segment_that_vanished_after_the_planning(broker, admin, make_topic, how):
    topic = make_topic(**({"retention.bytes": str(2 * MIB)} if how == "retention" else {}))
    write(broker, topic, range(90))
    options = options_of(broker, topic, streaming=False)
    reader = TpcReader(options, plan_of())
    ignoring = TpcReader(options_of(broker, topic, streaming=False, failOnDataLoss="false"), plan_of())

    def is_steady():
        before = first_base(broker, topic)
        let_pass(0.1)
        return first_base(broker, topic) == before

    eventually(is_steady, "retention has come to an end")
    begin = first_base(broker, topic)
    write_more_until_checkpointed(broker, topic, reader)
    tasks = [task for task in reader.partitions() if isinstance(task.value, SegmentPiece)]
    first = tasks[0].value
    if how == "retention":
        write(broker, topic, range(5000, 5300))
    else:
        [future] = admin.delete_records([Place(topic, 0, first.end_offset + 5)]).values()
        future.result(PATIENCE_S)
    eventually(lambda: not first.path.exists(), "it is removed")
    assert first.base_offset >= begin
    with pytest.raises(OffsetsMissingError, match=rf"{topic}-0: offsets \[{first.first_offset}, "):
        rows_of(reader, tasks)
    rows = rows_of(ignoring, [InputPartition(task.value) for task in tasks])
    end = tasks[-1].value.end_offset
    assert [offset for _partition, offset, _number in rows] == list(range(rows[0][1] if rows else end, end))
    assert not rows or rows[0][1] >= first.end_offset


@pytest.mark.parametrize("end", ["running", "killed", "stopped"])
def test_deleted_records_are_no_rows_without_a_broker(broker, admin, make_topic, end):
    """What DeleteRecords removed within a segment is in its file, and the checkpoint is older."""
    topic = make_topic()
    reader = TpcReader(options_of(broker, topic, streaming=False, bootstrap=""), plan_of())
    number = 0
    while not (tasks := planned(reader)) or tasks[-1].end_offset < 40:
        write(broker, topic, range(number, number + 50))
        number += 50
    [future] = admin.delete_records([Place(topic, 0, 37)]).values()
    future.result(PATIENCE_S)
    if end != "running":
        broker.kill() if end == "killed" else broker.stop()
    try:
        rows = rows_of(reader, reader.partitions())
    finally:
        if end != "running":
            broker.start()
    assert rows == [(0, offset, offset) for offset in range(37, rows[-1][1] + 1)]
    assert len(rows) >= 3


def planned(reader):
    """Ranges without a broker; none where no checkpoint names the topic yet."""
    try:
        return [task.value for task in reader.partitions() if task.value is not None]
    except UnknownTopicError:
        return []


def test_without_a_broker_a_log_may_begin_behind_the_checkpoint(broker, admin, make_topic):
    topic = make_topic()
    reader = TpcReader(options_of(broker, topic, streaming=False, bootstrap=""), plan_of())
    number = 0
    while not planned(reader):
        write(broker, topic, range(number, number + 50))
        number += 50
    write(broker, topic, range(number, number + 5))
    [future] = admin.delete_records([Place(topic, 0, number + 5)]).values()
    future.result(PATIENCE_S)
    assert rows_of(reader, reader.partitions()) == []


def write_more_until_checkpointed(broker, topic, reader):
    """Until a checkpoint names segments of the topic that are still there."""
    number = 100
    while sum(isinstance(task.value, SegmentPiece) for task in reader.partitions()) < 2:
        write(broker, topic, range(number, number + 50))
        number += 50


def test_a_stream_that_retention_overtakes_reads_once_or_says_what_is_lost(broker, make_topic, caplog):
    topic = make_topic(**{"retention.bytes": str(2 * MIB)})
    total = 1500
    writer = threading.Thread(target=write, args=(broker, topic, range(total)))
    writer.start()
    seen: set[int] = set()

    def enough(rows):
        assert len({offset for _partition, offset, _number in rows}) == len(rows), "a record twice"
        assert all(offset == number for _partition, offset, number in rows)
        seen.update(offset for _partition, offset, _number in rows)
        time.sleep(0.1 if writer.is_alive() else 0)
        return total - 1 in seen

    with caplog.at_level(logging.WARNING):
        stream(broker, topic, enough, failOnDataLoss="false", maxOffsetsPerTrigger="100")
    writer.join()
    assert set(range(total)) - seen <= lost_offsets(caplog.text)
    assert len(seen) > 100


def lost_offsets(text):
    ranges = re.findall(r"offsets \[(\d+), (\d+)\)", text)
    return {offset for first, end in ranges for offset in range(int(first), int(end))}


def test_files_alone_while_retention_deletes(broker, make_topic, caplog):
    """Without a broker to ask: what is planned is read once, or named as lost; and an error where losses are errors."""
    topic = make_topic(**{"retention.bytes": str(2 * MIB)})
    write(broker, topic, range(500))  # so much that there is a checkpoint
    writer = threading.Thread(target=write, args=(broker, topic, range(500, 2000)))
    writer.start()
    options = options_of(broker, topic, streaming=False, bootstrap="", failOnDataLoss="false")
    strict = TpcReader(options_of(broker, topic, streaming=False, bootstrap=""), plan_of())
    reads = 0
    while writer.is_alive() or reads < 3:
        caplog.clear()
        reader = TpcReader(options, plan_of())
        tasks = [task for task in reader.partitions() if task.value is not None]
        if not tasks:
            continue
        planned = set(range(tasks[0].value.first_offset, tasks[-1].value.end_offset))
        time.sleep(0.3 if writer.is_alive() else 0)
        with caplog.at_level(logging.WARNING):
            rows = rows_of(reader, tasks)
        seen = {offset for _partition, offset, _number in rows}
        assert len(seen) == len(rows)
        assert all(offset == number for _partition, offset, number in rows)
        assert seen <= planned
        assert planned - seen == lost_offsets(caplog.text) & planned
        if planned - seen:
            with pytest.raises(OffsetsMissingError, match="was removed"):
                rows_of(strict, tasks)
        reads += 1
    writer.join()
    assert reads >= 3


@pytest.mark.spark
def test_direct_mode_in_spark(spark, broker, make_topic, tmp_path):
    topic = make_topic(2)
    for partition in range(2):
        write(broker, topic, range(300), partition)
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    given |= {"maxOffsetsPerTrigger": "250", "columns": "partition,offset"}
    source = spark.readStream.format("tpc").options(**given)
    for expected in ([250, 250, 100], [20]):
        writer = source.load(str(broker.data_folder)).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
        query = writer.start(str(tmp_path / "out"))
        assert query.awaitTermination(PATIENCE_S)
        assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == expected
        write(broker, topic, range(300, 320))
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    places = [(0, number) for number in range(320)] + [(1, number) for number in range(300)]
    assert sorted((row.partition, row.offset) for row in rows) == places
    batch = spark.read.format("tpc").options(**given).load(str(broker.data_folder))
    assert batch.count() == 640
