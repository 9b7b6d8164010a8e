"""Aborted, committed and open transactions in segment files written by hand, read from files and through a broker."""

import dataclasses

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.pandas.types import from_arrow_schema

from tests.spark.segment_log import Log
from tests.support.broker_process import TpcBroker
from tests.support.waiting import PATIENCE_S
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka.compression import Compression
from tpc_broker.kafka.records import ControlType
from tpc_broker.log.checkpoint import decode_checkpoint, encode_checkpoint
from tpc_broker.log.files import encode_topic_id
from tpc_broker.native_columns import COLUMN_TYPES
from tpc_broker.spark import segments as segments_module
from tpc_broker.spark.folder_log import FolderLog, place
from tpc_broker.spark.options import read_options
from tpc_broker.spark.ranges import OffsetRange
from tpc_broker.spark.readers import TpcReader
from tpc_broker.spark.rows import Mode, RowPlan
from tpc_broker.spark.segments import SegmentPiece
from tpc_broker.spark.values import ValueFormat

ALL = [
    (0, b"plain"), (1, b"aborted a"), (2, b"aborted b"), (3, b"between"), (4, b"aborted c"), (6, b"committed a"),
    (7, b"committed b"), (9, b"committed c"), (11, b"aborted d"), (13, b"open"), (14, b"behind the open one"),
]  # fmt: skip
COMMITTED = [(0, b"plain"), (3, b"between"), (6, b"committed a"), (7, b"committed b"), (9, b"committed c")]


def write_transactions(log):
    """The offsets that are missing in `ALL` are control batches."""
    log.values(b"plain")
    log.values(b"aborted a", b"aborted b", transactional=True, compression=Compression.LZ4)
    log.values(b"between")
    log.roll()
    log.values(b"aborted c", transactional=True)
    log.end(ControlType.ABORT)
    log.values(b"committed a", b"committed b", transactional=True, compression=Compression.ZSTD)
    log.end(ControlType.COMMIT)
    log.roll()
    log.values(b"committed c", transactional=True)
    log.end(ControlType.COMMIT)
    log.values(b"aborted d", transactional=True)
    log.end(ControlType.ABORT)
    log.roll()
    log.values(b"open", transactional=True)
    log.values(b"behind the open one")


@pytest.fixture(scope="module")
def broker(module_tmp_path):
    """A broker that was stopped, got the files by hand into its folder and its checkpoint, and serves them."""
    peer = TpcBroker(module_tmp_path / "transactions", cores_count=1)
    peer.start()
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    admin.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE_S)
    peer.stop()
    path = peer.data_folder / "journals" / "0000.checkpoint"
    generation, partitions = decode_checkpoint(path.read_bytes())
    [key] = [key for key, entry in partitions.items() if entry.topic == "t"]
    for file in (peer.data_folder / "topics" / "t-0").glob("0*"):
        file.unlink()
    log = Log(peer.data_folder, topic_id=key.topic_id)
    write_transactions(log)
    ours = log.entry()
    written = {
        name: getattr(ours, name)
        for name in (
            "segment_base", "segment_position", "log_end_offset", "commit_offset", "producers",
            "index_bytes", "time_index_bytes", "transaction_index_bytes",
        )
    }  # fmt: skip
    partitions[key] = dataclasses.replace(partitions[key], **written)
    path.write_bytes(encode_checkpoint(generation, partitions.values()))
    peer.start()
    yield peer
    peer.stop()


def read(kind, where, **options):
    given = {"subscribe": "t", "isolation.level": "read_committed", "bytesTogether": "0"}
    given |= {"path": str(where.data_folder)} if kind != "broker" else {}
    given |= {"bootstrap": where.bootstrap} if kind != "files" else {}
    given |= {name.replace("__", "."): value for name, value in options.items()}
    schema = from_arrow_schema(pa.schema([(name, COLUMN_TYPES[name]) for name in ("offset", "value")]))
    reader = TpcReader(
        read_options(given, streaming=False), RowPlan.of(schema, ValueFormat(), Mode.FAILFAST, "_corrupt_record")
    )
    tasks = reader.partitions()
    rows = [tuple(row.values()) for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return rows, {type(task.value) for task in tasks}


@pytest.mark.parametrize("kind", ["files", "broker", "both"])
def test_what_each_isolation_level_sees(broker, kind):
    expected = {"files": {SegmentPiece}, "broker": {OffsetRange}, "both": {SegmentPiece}}[kind]
    assert read(kind, broker) == (COMMITTED, expected)
    assert read(kind, broker, isolation__level="read_uncommitted") == (ALL, expected)
    assert read(kind, broker, kafka__isolation__level="read_uncommitted", isolation__level="") == (ALL, expected)


def test_what_was_open_at_the_checkpoint_is_the_brokers(tmp_path):
    """The transaction at 13 may have been aborted since, which no file says: from there on the broker is asked."""
    log = Log(tmp_path)
    write_transactions(log)
    log.checkpoint()
    wanted = OffsetRange(TopicPartition("t", 0), 2, 40, topic_id=encode_topic_id(log.topic_id))
    for isolation, end in (("read_committed", 13), ("read_uncommitted", 15)):
        given = {"bootstrap": "h:1", "subscribe": "t", "path": str(tmp_path), "isolation.level": isolation}
        tasks = place([wanted], read_options(given, streaming=False), FolderLog(str(tmp_path)), has_broker=True)
        assert tasks[-1] == dataclasses.replace(wanted, first_offset=end)
        assert [type(task) for task in tasks[:-1]] == [SegmentPiece] * (len(tasks) - 1)
        assert (tasks[0].first_offset, tasks[-2].end_offset) == (2, end)


def test_a_folder_of_another_topic_with_that_name_is_left_alone(broker, tmp_path):
    log = Log(tmp_path)
    log.values(b"a stranger's", b"records")
    log.checkpoint()
    given = {"path": str(tmp_path), "isolation.level": "read_uncommitted"}
    assert read("broker", broker, **{name.replace(".", "__"): value for name, value in given.items()})[0] == ALL
    assert [value for _offset, value in read("files", Folder(tmp_path))[0]] == [b"a stranger's", b"records"]


class Folder:
    """Where files are, in the place of a broker."""

    def __init__(self, data_folder):
        self.data_folder = data_folder


def test_windows_that_end_inside_transactions(broker, monkeypatch):
    monkeypatch.setattr(segments_module, "WINDOW_BYTES", 70)
    assert read("files", broker)[0] == COMMITTED
    assert read("files", broker, isolation__level="read_uncommitted")[0] == ALL


@pytest.mark.parametrize("kind", ["files", "broker", "both"])
def test_ranges_that_begin_inside_transactions(broker, kind):
    """Wherever a range begins and ends, and however it is split, the same records are seen."""
    for first in range(14):
        for end in range(first, 14):
            rows, _kinds = read(
                kind, broker, startingOffsets=f'{{"t": {{"0": {first}}}}}', endingOffsets=f'{{"t": {{"0": {end}}}}}',
                maxRecordsPerPartition="3",
            )  # fmt: skip
            assert rows == [row for row in COMMITTED if first <= row[0] < end], (first, end)


def test_the_end_is_the_last_stable_offset(broker):
    ends = {"files": "the log ends at 13", "broker": "the log ends at 13"}
    for kind, said in ends.items():
        with pytest.raises(Exception, match=said):
            read(kind, broker, endingOffsets='{"t": {"0": 14}}')
        assert read(kind, broker, endingOffsets='{"t": {"0": 14}}', isolation__level="read_uncommitted")[0] == ALL[:-1]
