"""Segment files read without a broker: files made by hand, and those of a real broker."""

import json
import uuid

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from tests.spark.conftest import NOW_MS
from tests.spark.segment_log import Log
from tests.spark.test_ranges import Log as BrokerLog
from tests.support.broker_process import TpcBroker
from tests.support.native_batches import seal_batch
from tests.support.waiting import PATIENCE_S
from tpc_broker.client.errors import DamagedDataError
from tpc_broker.client.reading import RangeReader, ReadSettings
from tpc_broker.client.requests import FetchAnswer, TopicPartition
from tpc_broker.kafka import records as codec
from tpc_broker.kafka.compression import Compression
from tpc_broker.log.batch import batch_size_at
from tpc_broker.log.checkpoint import encode_checkpoint
from tpc_broker.log.files import segment_file_name
from tpc_broker.log.indexes import OffsetIndex
from tpc_broker.native_columns import COLUMN_TYPES
from tpc_broker.spark import readers
from tpc_broker.spark import segments as segments_module
from tpc_broker.spark.options import read_options, table_options
from tpc_broker.spark.ranges import OffsetRange
from tpc_broker.spark.readers import TpcReader
from tpc_broker.spark.rows import MalformedValueError, RowPlan
from tpc_broker.spark.segments import SegmentPiece


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


def make_reader(log, **options):
    given = {"path": str(log.folder), "subscribe": "t", "columns": "offset,value", "bytesTogether": "0"}
    given |= {name.replace("__", "."): str(value) for name, value in options.items()}
    table = table_options(given)
    names = [*table.columns, *([table.shape.corrupt_column] if table.shape.mode == "permissive" else [])]
    shape = table.shape
    types = COLUMN_TYPES | ({"value": pa.struct([("n", pa.int32())])} if shape.values.name == "json" else {})
    schema = from_arrow_schema(pa.schema([(name, types.get(name, pa.binary())) for name in names]))
    plan = RowPlan.of(schema, shape.values, shape.mode, shape.corrupt_column)
    return TpcReader(read_options(given, streaming=False), plan)


def read(log, **options):
    reader = make_reader(log, **options)
    rows = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            rows += [tuple(row.values()) for row in batch.to_pylist()]
    return rows


def three_segments(log):
    for number in range(30):
        if number in (10, 20):
            log.roll()
        log.values(b"%d" % number, compression=Compression(number % 5))
    log.checkpoint()


def test_all_segments_and_parts_of_them(log, monkeypatch):
    three_segments(log)
    everything = [(number, b"%d" % number) for number in range(30)]
    assert read(log) == everything
    monkeypatch.setattr(segments_module, "WINDOW_BYTES", 70)
    assert read(log) == everything
    part = {"startingOffsets": json.dumps({"t": {"0": 7}}), "endingOffsets": json.dumps({"t": {"0": 22}})}
    assert read(log, **part) == everything[7:22]
    reader = make_reader(log, **part)
    assert [piece.value.first_offset for piece in reader.partitions()] == [7, 10, 20]
    assert list(reader.read(InputPartition(None))) == []


@pytest.mark.parametrize("suffix", ["", ".index", ".timeindex"])
def test_times_with_and_without_indexes(log, suffix):
    three_segments(log)
    if suffix:
        for path in log.place.glob(f"*{suffix}"):
            path.write_bytes(b"\xff" * 24)
    for start, end in ((0, 30), (9, 11), (15, 29), (29, 30)):
        rows = read(log, startingTimestamp=NOW_MS + start, endingTimestamp=NOW_MS + end)
        assert [offset for offset, _value in rows] == list(range(start, end))
    within = make_reader(log, startingTimestamp=NOW_MS + 12, endingTimestamp=NOW_MS + 18)
    assert [(task.value.first_offset, task.value.end_offset) for task in within.partitions()] == [(12, 18)]
    with pytest.raises(Exception, match="t-0 has no record at or after"):
        read(log, startingTimestamp=NOW_MS + 30)


def test_a_time_is_not_looked_up_in_a_damaged_batch(log):
    """Of which a flipped bit made another time, with nothing but the checksum that tells."""
    three_segments(log)
    path = log.place / segment_file_name(10, ".log")
    data = bytearray(path.read_bytes())
    size = batch_size_at(data, 0)
    data[size + 4 * 8 + 2] ^= 0x40  # offset 11: high bits of base and max timestamp
    data[size + 4 * 8 + 3] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(Exception, match=r"t-0, offset 11 .*00010.log.*the CRC of a batch is wrong"):
        read(log, startingTimestamp=NOW_MS + 11)


def test_what_the_checkpoint_does_not_name_is_not_read(log):
    three_segments(log)
    log.values(b"after the checkpoint")
    log.roll()
    log.values(b"in a new segment")
    assert len(read(log)) == 30


@pytest.mark.parametrize("committed", [0, 7, 10, 23, 30])
def test_what_is_not_committed_is_not_read(log, committed):
    """Also where whole segments of it are in the files."""
    three_segments(log)
    log.checkpoint(commit_offset=committed)
    assert read(log) == [(number, b"%d" % number) for number in range(committed)]
    rows = read(log, startingTimestamp=NOW_MS, endingTimestamp=NOW_MS + 30) if committed else []
    assert [offset for offset, _value in rows] == list(range(committed))


def test_aborted_transactions_are_left_out_also_when_they_end_in_a_later_segment(log):
    log.values(b"aborted", b"aborted", transactional=True)
    log.values(b"plain")
    log.roll()
    log.values(b"aborted", transactional=True, compression=Compression.ZSTD)
    log.end(codec.ControlType.ABORT)
    log.values(b"committed", transactional=True)
    log.end(codec.ControlType.COMMIT)
    log.roll()
    log.values(b"open", transactional=True)
    log.values(b"behind the open one")
    log.checkpoint()
    assert read(log, isolation__level="read_committed") == [(2, b"plain"), (5, b"committed")]
    all_values = [value for _offset, value in read(log)]
    assert all_values == [b"aborted"] * 2 + [b"plain", b"aborted", b"committed", b"open", b"behind the open one"]


def test_lost_segments_fail_or_are_skipped(log):
    three_segments(log)
    reader = make_reader(log)
    planned = reader.partitions()
    (log.place / segment_file_name(0, ".log")).unlink()
    with pytest.raises(Exception, match=r"t-0: offsets \[0, 10\): .*00000.log was removed"):
        list(reader.read(planned[0]))
    log.checkpoint(log_start_offset=10)
    begin = {"startingOffsets": json.dumps({"t": {"0": 3}})}
    with pytest.raises(Exception, match=r"t-0: offsets \[3, 10\) are not in the log any more"):
        read(log, **begin)
    assert [offset for offset, _value in read(log, **begin, failOnDataLoss="false")] == list(range(10, 30))


def test_damage_is_named(log):
    three_segments(log)
    path = log.place / segment_file_name(10, ".log")
    data = bytearray(path.read_bytes())
    for position, said in (
        (-1, "t-0, offset 19 .*00010.log.*CRC is wrong"),
        (16, "t-0, offset 10: .*00010.log holds no record batch"),
    ):
        broken = bytearray(data)
        broken[position] ^= 0xFF
        path.write_bytes(broken)
        with pytest.raises(Exception, match=said):
            read(log)
    with pytest.raises(Exception, match="is no data folder of a broker"):
        read(log, path=str(log.place))
    with pytest.raises(Exception, match="there is no topic 'nothing'"):
        read(log, subscribe="nothing")


def test_segments_that_were_replaced_after_the_planning(log):
    """As compaction does: another file of the same name with an index of its own or not yet, or one file for two."""
    three_segments(log)
    reader = make_reader(log)
    planned = reader.partitions()

    def numbers(task):
        return [row["offset"] for batch in reader.read(task) for row in batch.to_pylist()]

    def replace(path, data):
        path.with_suffix(".swap").write_bytes(data)
        path.with_suffix(".swap").rename(path)

    first, second, active = (log.place / segment_file_name(base, ".log") for base in (0, 10, 20))
    batches = [bytes(batch.data) for batch in codec.read_batches(second.read_bytes())]
    replace(second, b"".join(batches[number] for number in (0, 3, 4, 9)))
    assert numbers(planned[1]) == [10, 13, 14, 19]
    later = [task.value for task in make_reader(log, maxRecordsPerPartition=5).partitions()][3]
    assert (later.first_offset, later.end_offset) == (15, 20)
    assert numbers(InputPartition(later)) == [19]
    replace(active, active.read_bytes())
    assert numbers(planned[2]) == list(range(20, 30))
    replace(first, first.read_bytes() + second.read_bytes())
    second.unlink()
    assert numbers(planned[1]) == [10, 13, 14, 19]
    assert numbers(planned[0]) == list(range(10))


@pytest.mark.parametrize("kept_bytes", [-1, -30, 0])
def test_files_that_were_cut(log, kept_bytes):
    """A sealed one and the one of the checkpoint, at and between the bounds of batches."""
    three_segments(log)
    for base, last in ((10, 19), (20, 29)):
        path = log.place / segment_file_name(base, ".log")
        data = path.read_bytes()
        index = OffsetIndex(base, path.with_suffix(".index").read_bytes())
        cut = index.last.position if kept_bytes == 0 else len(data) + kept_bytes
        path.write_bytes(data[:cut])
        first = index.last.offset if kept_bytes == 0 else last
        with pytest.raises(DamagedDataError, match=rf"t-0, offset ({first}|{base}).*{path.name}"):
            read(log, startingOffsets=json.dumps({"t": {"0": base}}))
        rows = read(log, mode="PERMISSIVE", columns="offset,value")
        assert [row[0] for row in rows if row[2] is not None] == [first]
        assert sorted({row[0] for row in rows}) == [n for n in range(30) if n <= first or n > last]
        path.write_bytes(data)


def test_the_next_place_that_the_index_knows(log):
    """Where no batch can be told from the bytes, PERMISSIVE goes on behind it."""
    three_segments(log)
    path = log.place / segment_file_name(10, ".log")
    data = bytearray(path.read_bytes())
    data[8:12] = b"\xff" * 4
    path.write_bytes(data)
    with pytest.raises(DamagedDataError, match=r"t-0, offset 10: .*holds no record batch there"):
        read(log)
    rows = read(log, mode="PERMISSIVE", columns="offset,value")
    resumed = next(entry.offset for entry in OffsetIndex(10, path.with_suffix(".index").read_bytes()) if entry.position)
    assert [row[0] for row in rows if row[2] is None] == [*range(10), *range(resumed, 30)]
    assert [row[0] for row in rows if row[2] is not None] == [10]
    assert resumed < 15


def test_a_damaged_header_does_not_hide_what_lies_behind(log, monkeypatch):
    """One that claims offsets far behind the segment, also where a window ends with it."""
    three_segments(log)
    path = log.place / segment_file_name(10, ".log")
    data = bytearray(path.read_bytes())
    second = batch_size_at(data, 0)
    data[second + 23 : second + 27] = (1_000_000).to_bytes(4, "big")
    path.write_bytes(data)
    for window in (segments_module.WINDOW_BYTES, 80, 200):
        monkeypatch.setattr(segments_module, "WINDOW_BYTES", window)
        rows = read(log, mode="PERMISSIVE", columns="offset,value")
        assert [row[0] for row in rows] == list(range(30))
        assert [row[0] for row in rows if row[2] is not None] == [11]
        assert [row[0] for row in read(log, mode="DROPMALFORMED", maxRecordsPerPartition=3)] == [
            *range(11),
            *range(12, 30),
        ]
        with pytest.raises(DamagedDataError, match=r"t-0, offset 11 .*CRC is wrong"):
            read(log)


def test_a_damaged_header_in_a_fetch_answer_is_no_place_to_go_on():
    batches = [codec.build_batch([codec.Record(b"v", None, NOW_MS)] * 2, base_offset=base) for base in (0, 2)]
    bad = bytearray(batches[1])
    bad[23:27] = (1_000_000).to_bytes(4, "big")
    where = TopicPartition("t", 0)
    answer = FetchAnswer(0, 10, 10, 0, [], memoryview(batches[0] + bytes(bad)))
    believing = RangeReader(None, where, 0, 10, ReadSettings())._chunk_of(answer)
    assert believing.next_offset == 1_000_003
    with pytest.raises(DamagedDataError, match="t-0, offset 2: a damaged record batch, and where"):
        RangeReader(None, where, 0, 10, ReadSettings(keeps_damage=True))._chunk_of(answer)
    good = FetchAnswer(0, 10, 10, 0, [], memoryview(b"".join(batches)))
    assert RangeReader(None, where, 0, 10, ReadSettings(keeps_damage=True))._chunk_of(good).next_offset == 4


def test_batches_that_cannot_be_read_by_mode(log):
    """One with a wrong CRC, and one whose CRC is right and whose compressed part is rubbish."""
    three_segments(log)
    path = log.place / segment_file_name(10, ".log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 0xFF
    path.write_bytes(data)
    path = log.place / segment_file_name(20, ".log")
    second = batch_size_at(path.read_bytes(), 0)
    rubbish = bytearray(path.read_bytes()[second:])
    size = batch_size_at(rubbish, 0)
    assert rubbish[22] == Compression.GZIP
    rubbish[61:size] = b"x" * (size - 61)
    seal_batch(memoryview(rubbish)[:size])
    path.write_bytes(path.read_bytes()[:second] + rubbish)
    with pytest.raises(DamagedDataError, match=r"t-0, offset 21 .*00020.log.: the record batch cannot be read: .*gzip"):
        read(log, startingOffsets='{"t": {"0": 20}}')
    rows = read(log, mode="PERMISSIVE", columns="offset,value,timestamp,partition")
    assert [row[0] for row in rows] == list(range(30))
    bad = {row[0]: row for row in rows if row[4] is not None}
    assert bad.keys() == {19, 21}
    assert bad[19] == (19, None, None, 0, bytes(data[-len(bad[19][4]) :]))
    assert bad[21] == (21, None, None, 0, bytes(rubbish[:size]))
    assert [row[0] for row in read(log, mode="dropmalformed")] == [n for n in range(30) if n not in (19, 21)]


def test_values_that_cannot_be_read_by_mode(log):
    for number in range(12):
        log.values(b'{"n": %d}' % number, b"rubbish" if number == 5 else b'{"n": -1}')
    log.checkpoint()
    given = {"valueFormat": "json", "columns": "value"}
    with pytest.raises(MalformedValueError, match=r"t-0, offset 11: no JSON of the schema: .* set mode to PERMISSIVE"):
        read(log, **given)
    rows = read(log, **given, mode="PERMISSIVE")
    assert rows[10:13] == [({"n": 5}, None), (None, b"rubbish"), ({"n": 6}, None)]
    rows = read(log, **given, mode="DROPMALFORMED")
    assert [row[0]["n"] for row in rows] == [n for number in range(12) for n in (number, -1) if (number, n) != (5, -1)]


@pytest.mark.spark
def test_a_real_brokers_folder_in_spark(spark, tmp_path):
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    broker = TpcBroker(tmp_path, cores_count=2)
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 2, config={"segment.bytes": "1048576"})])["t"].result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(500):
            producer.produce("t", b"%010000d" % number, partition=number % 2, timestamp=NOW_MS + number)
            if number % 50 == 0:
                producer.flush(PATIENCE_S)
        assert producer.flush(PATIENCE_S) == 0
    finally:
        broker.stop()
    assert len(list((broker.data_folder / "topics" / "t-0").glob("*.log"))) > 2
    frame = spark.read.format("tpc").option("subscribe", "t").load(str(broker.data_folder))
    rows = frame.select("partition", "offset", "value").collect()
    assert sorted((row.partition, row.offset, int(bytes(row.value)[-9:])) for row in rows) == sorted(
        (number % 2, number // 2, number) for number in range(500)
    )


@pytest.mark.parametrize("told", [True, False], ids=["sizes told", "sizes not told"])
def test_many_small_partitions_are_few_tasks_with_their_tails_at_the_broker(tmp_path, monkeypatch, told):
    """A task costs Spark more than all that is in some hundred of them; also where the broker does not say how large
    partitions are.
    """
    count, each, behind = 200, 50, 7
    logs = [Log(tmp_path, partition=number, topic_id=uuid.UUID(int=7)) for number in range(count)]
    for one in logs:
        one.values(*[b"x" * 100] * each)
    (tmp_path / "journals" / "0000.checkpoint").write_bytes(encode_checkpoint(1, [one.entry() for one in logs]))
    broker = BrokerLog(t=[(0, each + behind)] * count)
    broker.ids["t"] = logs[0].topic_id.bytes
    broker.partition_bytes = lambda places: {where: 6000 for where in places if told}
    monkeypatch.setattr(readers, "cluster_of", lambda _settings: broker)
    [task] = make_reader(logs[0], bootstrap="h:1", bytesTogether="").partitions()
    pieces = task.value.pieces
    assert [type(piece) for piece in pieces] == [SegmentPiece, OffsetRange] * count
    assert sum(piece.size for piece in pieces) == count * (each + behind)
    density = pieces[0].size_bytes / each
    assert told or pieces[1].size_bytes == int(density * behind)
