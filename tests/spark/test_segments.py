"""Segment files read without a broker: files made by hand, and those of a real broker."""

import json
import uuid

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.sql.datasource import InputPartition

from tests.spark.conftest import NOW_MS
from tests.support.broker_process import TpcBroker
from tpc_broker.kafka import records as codec
from tpc_broker.kafka.compression import Compression
from tpc_broker.log.batch import decode_header
from tpc_broker.log.checkpoint import PartitionCheckpoint, encode_checkpoint
from tpc_broker.log.files import segment_file_name
from tpc_broker.log.producer_state import ProducerState
from tpc_broker.log.segment import SegmentIndexes
from tpc_broker.spark import segments as segments_module
from tpc_broker.spark.options import read_options
from tpc_broker.spark.segments import SegmentReader

PRODUCER = 7


class Log:
    """A partition's folder written batch by batch, with the project's own upkeep of indexes and producers."""

    def __init__(self, folder, topic="t", partition=0):
        self.folder, self.topic, self.partition = folder, topic, partition
        self.place = folder / "topics" / f"{topic}-{partition}"
        self.place.mkdir(parents=True)
        (folder / "journals").mkdir(exist_ok=True)
        self.producers, self.end_offset, self.sequence = ProducerState(), 0, 0
        self.roll()

    def roll(self):
        if self.end_offset:
            self.indexes.seal()
            (self.place / segment_file_name(self.base, ".timeindex")).write_bytes(self.indexes.times.data)
        self.base, self.data, self.indexes = self.end_offset, b"", SegmentIndexes(self.end_offset, 100)

    def append(self, batch):
        header = decode_header(batch)
        aborted = self.producers.apply(header, batch)
        self.indexes.add(header, len(self.data), aborted)
        self.data += batch
        self.end_offset = header.next_offset
        for suffix, data in (
            (".log", self.data), (".index", self.indexes.offsets.data), (".timeindex", self.indexes.times.data),
            (".txnindex", self.indexes.transactions.encode()),
        ):  # fmt: skip
            (self.place / segment_file_name(self.base, suffix)).write_bytes(data)

    def values(self, *values, compression=Compression.NONE, transactional=False):
        records = [codec.Record(value, None, NOW_MS + self.end_offset + n) for n, value in enumerate(values)]
        whose = {"producer_id": PRODUCER, "producer_epoch": 0, "base_sequence": self.sequence} if transactional else {}
        self.sequence += len(values) if transactional else 0
        self.append(
            codec.build_batch(
                records, base_offset=self.end_offset, compression=compression, is_transactional=transactional, **whose
            )
        )

    def end(self, control):
        self.append(
            codec.control_batch(
                control, producer_id=PRODUCER, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS,
                base_offset=self.end_offset,
            )
        )  # fmt: skip

    def checkpoint(self, log_start_offset=0):
        entry = PartitionCheckpoint(
            uuid.uuid4(), self.partition, self.topic, segment_base=self.base, segment_position=len(self.data),
            log_start_offset=log_start_offset, log_end_offset=self.end_offset, producers=self.producers.copy(),
            index_bytes=len(self.indexes.offsets.data), time_index_bytes=len(self.indexes.times.data),
            transaction_index_bytes=len(self.indexes.transactions.encode()),
        )  # fmt: skip
        (self.folder / "journals" / "0000.checkpoint").write_bytes(encode_checkpoint(1, [entry]))


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


def read(log, **options):
    given = {"path": str(log.folder), "subscribe": "t", "columns": "offset,value"}
    given |= {name.replace("__", "."): str(value) for name, value in options.items()}
    reader = SegmentReader(read_options(given, streaming=False))
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
    options = read_options({"path": str(log.folder), "subscribe": "t", **part}, streaming=False)
    assert [piece.value.first_offset for piece in SegmentReader(options).partitions()] == [7, 10, 20]
    assert list(SegmentReader(options).read(InputPartition(None))) == []


@pytest.mark.parametrize("suffix", ["", ".index", ".timeindex"])
def test_times_with_and_without_indexes(log, suffix):
    three_segments(log)
    if suffix:
        for path in log.place.glob(f"*{suffix}"):
            path.write_bytes(b"\xff" * 24)
    for start, end in ((0, 30), (9, 11), (15, 29), (29, 30)):
        rows = read(log, startingTimestamp=NOW_MS + start, endingTimestamp=NOW_MS + end)
        assert [offset for offset, _value in rows] == list(range(start, end))
    with pytest.raises(Exception, match="t-0 has no record at or after"):
        read(log, startingTimestamp=NOW_MS + 30)


def test_what_the_checkpoint_does_not_name_is_not_read(log):
    three_segments(log)
    log.values(b"after the checkpoint")
    log.roll()
    log.values(b"in a new segment")
    assert len(read(log)) == 30


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
    assert read(log) == [(2, b"plain"), (5, b"committed")]
    all_values = [value for _offset, value in read(log, isolation__level="read_uncommitted")]
    assert all_values == [b"aborted"] * 2 + [b"plain", b"aborted", b"committed", b"open", b"behind the open one"]


def test_lost_segments_fail_or_are_skipped(log):
    three_segments(log)
    options = read_options({"path": str(log.folder), "subscribe": "t"}, streaming=False)
    planned = SegmentReader(options).partitions()
    (log.place / segment_file_name(0, ".log")).unlink()
    with pytest.raises(Exception, match=r"t-0: offsets \[0, 10\): the segment was deleted"):
        list(SegmentReader(options).read(planned[0]))
    log.checkpoint(log_start_offset=10)
    begin = {"startingOffsets": json.dumps({"t": {"0": 3}})}
    with pytest.raises(Exception, match=r"t-0: offsets \[3, 10\) are not in the log any more"):
        read(log, **begin)
    assert [offset for offset, _value in read(log, **begin, failOnDataLoss="false")] == list(range(10, 30))


def test_damage_is_named(log):
    three_segments(log)
    path = log.place / segment_file_name(10, ".log")
    data = bytearray(path.read_bytes())
    for position, said in ((-1, "t-0, offset 19: .*CRC is wrong"), (16, "t-0, offset 10: .*holds no record batch")):
        broken = bytearray(data)
        broken[position] ^= 0xFF
        path.write_bytes(broken)
        with pytest.raises(Exception, match=said):
            read(log)
    with pytest.raises(Exception, match="holds no checkpoint of a broker"):
        read(log, path=str(log.place))
    with pytest.raises(Exception, match="no such topic: nothing"):
        read(log, subscribe="nothing")


@pytest.mark.spark
def test_a_real_brokers_folder_in_spark(spark, tmp_path):
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    broker = TpcBroker(tmp_path, cores_count=2)
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 2, config={"segment.bytes": "1048576"})])["t"].result(15)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(500):
            producer.produce("t", b"%010000d" % number, partition=number % 2, timestamp=NOW_MS + number)
            if number % 50 == 0:
                producer.flush(15)
        assert producer.flush(15) == 0
    finally:
        broker.stop()
    assert len(list((broker.data_folder / "topics" / "t-0").glob("*.log"))) > 2
    frame = spark.read.format("tpc").option("subscribe", "t").load(str(broker.data_folder))
    rows = frame.select("partition", "offset", "value").collect()
    assert sorted((row.partition, row.offset, int(bytes(row.value)[-9:])) for row in rows) == sorted(
        (number % 2, number // 2, number) for number in range(500)
    )
