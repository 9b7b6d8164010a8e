"""Options, limits and splitting, without Spark."""

import json
import random
from dataclasses import replace

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tpc_broker.client.requests import EARLIEST, LATEST, TopicPartition
from tpc_broker.kafka.compression import Compression
from tpc_broker.spark.lag import offsets_behind_latest
from tpc_broker.spark.options import OptionError, TaskShape, read_options, table_options, write_options
from tpc_broker.spark.ranges import OffsetRange, Places, from_json, limit_offsets, to_json
from tpc_broker.spark.task_sizes import RecordSizes, TaskGroup, into_tasks, split_ranges

BASE = {"bootstrap": "h:1", "subscribe": "a, b"}


def test_defaults_are_those_of_sparks_own_source():
    batch, stream = (read_options(BASE, streaming=streaming) for streaming in (False, True))
    assert batch.selection.topics == ("a", "b")
    assert read_options({**BASE, "subscribe": "a,,a,"}, streaming=True).selection.topics == ("a",)
    assert (batch.start.default, batch.end.default, stream.start.default) == (EARLIEST, LATEST, LATEST)
    assert batch.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert batch.fails_on_data_loss
    assert batch.max_offsets_per_trigger is None


def test_names_in_any_case_and_both_spellings():
    options = read_options(
        {"Kafka.Bootstrap.Servers": "h:1,i:2", "subscribepattern": "x.*", "FAILONDATALOSS": "False",
         "startingoffsets": '{"x": {"0": -2, "1": 7}}', "maxoffsetspertrigger": "9"},
        streaming=True,
    )  # fmt: skip
    assert options.cluster.bootstrap == "h:1,i:2"
    assert options.start.offsets == {TopicPartition("x", 0): EARLIEST, TopicPartition("x", 1): 7}
    assert (options.fails_on_data_loss, options.max_offsets_per_trigger) == (False, 9)


@pytest.mark.parametrize(
    ("changes", "streaming", "said"),
    [
        ({"bootstrap": ""}, False, "bootstrap"),
        ({"bootstrap": "nowhere"}, False, "no host:port: 'nowhere'"),
        ({"startingOffsets": "{"}, False, "startingOffsets is not JSON"),
        ({"startingOffsets": "newest"}, False, "startingOffsets is 'newest'; allowed are earliest, latest and JSON"),
        ({"startingOfsets": "latest"}, True, r"unknown option startingOfsets; did you mean startingOffsets.*\?"),
        ({"frobnicate": "1"}, True, "unknown option frobnicate; known are assign, avroSchema, "),
        ({"startingOffsets": '{"a": 3}'}, False, "startingOffsets has the form"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, False, "number below -2"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, False, "startingOffsets cannot be latest"),
        ({"endingOffsets": "earliest"}, False, "endingOffsets cannot be earliest"),
        ({"endingOffsets": "latest"}, True, "a stream has no end"),
        ({"minPartitions": "many"}, False, "minPartitions is 'many'"),
        ({"maxOffsetsPerTrigger": "0"}, True, "at least 1"),
        ({"failOnDataLoss": "maybe"}, False, "failOnDataLoss is 'maybe'"),
        ({"isolation.level": "serializable"}, False, "isolation.level"),
        ({"subscribe": ""}, False, "exactly one of subscribe"),
        ({"subscribe": " , "}, False, "subscribe names no topic"),
        ({"subscribe": "", "assign": '{"a": []}'}, True, "assign names no partition"),
        ({"path": "/data", "bootstrap": ""}, True, "a stream needs a broker beside its path"),
        ({"columns": "value,value"}, False, "each once"),
        ({"columns": "value", "includeHeaders": "true"}, False, "columns is value, without headers"),
        ({"kafka.bootstrap.servers": "i:2"}, False, "they mean the same, so give one"),
    ],
)
def test_what_does_not_fit_is_explained(changes, streaming, said):
    with pytest.raises(OptionError, match=said):
        read_options({**BASE, **changes}, streaming=streaming)


def test_options_of_writes():
    options = write_options({"bootstrap": "h:1", "topic": "t", "compression": "zstd", "checkpointLocation": "/c"})
    assert (options.topic, options.compression) == ("t", Compression.ZSTD)
    with pytest.raises(OptionError, match="unknown option path"):
        write_options({"bootstrap": "h:1", "topic": "t", "path": "/somewhere"})
    with pytest.raises(OptionError, match="compression is 'rar'"):
        write_options({"bootstrap": "h:1", "compression": "rar"})


def test_limits_are_exact_and_make_progress():
    chance = random.Random(4)
    for _ in range(500):
        places = [TopicPartition("t", number) for number in range(chance.randrange(1, 8))]
        start = {where: chance.randrange(100) for where in places}
        latest = {where: start[where] + chance.choice([0, 0, 1, 5, 1000]) for where in places}
        rows_max = chance.randrange(1, 300)
        total = sum(latest[where] - start[where] for where in places)
        limited = limit_offsets(start, latest, rows_max)
        assert limited.keys() == latest.keys()
        assert all(start[where] <= limited[where] <= latest[where] for where in places)
        assert sum(limited[where] - start[where] for where in places) == min(total, rows_max)


def pieces_of(tasks):
    return [piece for task in tasks for piece in (task.pieces if isinstance(task, TaskGroup) else (task,))]


def test_tasks_cover_every_range_once_and_keep_to_their_bounds():
    chance = random.Random(5)
    for _ in range(500):
        sizes = [chance.choice([0, 1, 30, 999]) for _number in range(chance.randrange(1, 9))]
        ranges = [
            OffsetRange(TopicPartition("t", number), begin := chance.randrange(50), begin + size,
                        chance.choice([-1, size, 100 * size]))
            for number, size in enumerate(sizes)
        ]  # fmt: skip
        shape = TaskShape(chance.randrange(20), chance.randrange(1, 400), chance.choice([50, 5_000]),
                          chance.choice([0, 500, 10_000]))  # fmt: skip
        tasks = into_tasks(ranges, shape)
        pieces = pieces_of(tasks)
        covered = [(piece.where, offset) for piece in pieces for offset in range(piece.first_offset, piece.end_offset)]
        assert covered == [(r.where, offset) for r in ranges for offset in range(r.first_offset, r.end_offset)]
        assert all(0 < piece.size <= shape.records_max for piece in pieces)
        assert all(piece.size_bytes <= shape.bytes_max or piece.size == 1 for piece in pieces)
        for group in (task for task in tasks if isinstance(task, TaskGroup)):
            assert len(group.pieces) > 1
            assert all(piece.size_bytes >= 0 for piece in group.pieces)
            assert sum(piece.size_bytes for piece in group.pieces) <= shape.bytes_together
            assert sum(piece.size for piece in group.pieces) <= shape.records_max
        assert len(tasks) >= min(shape.tasks_min, len(pieces)), "together though more tasks are asked for"


def a_range(partition, records, size_bytes):
    return OffsetRange(TopicPartition("t", partition), 0, records, size_bytes)


def test_ranges_are_cut_by_bytes_and_small_ones_read_together():
    shape = read_options({"bootstrap": "h:1", "subscribe": "t"}, streaming=False).tasks
    assert len(split_ranges([a_range(0, 900, -1), a_range(1, 100, -1)], replace(shape, tasks_min=10))) == 10
    [*tasks] = into_tasks([a_range(0, 20_000, 2 << 30)], shape)
    assert len(tasks) == 16, "2 GB in 20,000 records"
    small = [a_range(number, 20_000, 4 << 20) for number in range(200)]
    assert len(into_tasks(small, shape)) == 25
    assert 100 <= len(into_tasks(small, replace(shape, tasks_min=70))) <= 140
    assert len(into_tasks(small, replace(shape, bytes_together=0))) == 200
    assert len(into_tasks([replace(piece, size_bytes=-1) for piece in small], shape)) == 200, "sizes are not known"
    assert into_tasks([], shape) == []


class MeasuredLog:
    """Partitions of so many bytes, with offsets [100, 300); one of them the broker does not tell about."""

    def __init__(self):
        self.asked = 0

    def partition_bytes(self, places):
        self.asked += 1
        return {where: 4_000 for where in places if where.partition != 7}

    def list_offsets(self, wanted, isolation):
        return {where: 100 if time_ms == EARLIEST else 300 for where, time_ms in wanted.items()}


def test_sizes_are_asked_for_once_a_minute(monkeypatch):
    log, sizes = MeasuredLog(), RecordSizes()
    places = [TopicPartition("t", number) for number in (0, 7)]
    for _ in range(3):
        assert sizes.of(log, places) == {places[0]: 20.0}
    assert log.asked == 1
    sizes.of(log, [*places, TopicPartition("t", 8)])
    assert log.asked == 2
    monkeypatch.setattr("tpc_broker.spark.task_sizes.MEASURED_SECONDS", -1)
    sizes.of(log, places)
    assert log.asked == 3


@pytest.mark.parametrize("streaming", [True, False])
def test_options_of_the_stock_connector_that_change_no_row_are_taken(streaming):
    given = {
        "kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.max.poll.records": "500", "kafka.group.id": "me",
        "kafka.fetch.max.bytes": "1000000", "fetchOffset.numRetries": "5", "kafkaConsumer.pollTimeoutMs": "1000",
        "groupIdPrefix": "mine", "kafka.session.timeout.ms": "6000",
    }  # fmt: skip
    assert read_options(given, streaming=streaming).selection.topics == ("t",)
    table_options(given)
    written = {"kafka.bootstrap.servers": "h:1", "topic": "t", "kafka.acks": "all", "kafka.linger.ms": "5",
               "KAFKA.Batch.Size": "100000", "kafka.enable.idempotence": "true"}  # fmt: skip
    assert write_options(written).topic == "t"
    for name in ("kafka.auto.offset.reset", "kafka.partitioner.class", "kafka.key.deserializer", "kafka.lingerms"):
        with pytest.raises(OptionError, match=name):
            read_options({**given, name: "x"}, streaming=streaming)


@pytest.mark.parametrize(("text", "seconds"), [("15m", 900), ("30s", 30), ("500ms", 0.5), ("1 h", 3600), ("250", 0.25)])
def test_times_as_spark_writes_them(text, seconds):
    given = {"bootstrap": "h:1", "subscribe": "t", "minOffsetsPerTrigger": "5", "maxTriggerDelay": text}
    options = read_options(given, streaming=True)
    assert (options.min_offsets_per_trigger, options.trigger_delay_max_seconds) == (5, seconds)


def test_least_and_most_of_a_trigger_fit_together():
    given = {"bootstrap": "h:1", "subscribe": "t", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}
    with pytest.raises(OptionError, match="minOffsetsPerTrigger is 5; allowed is at most maxOffsetsPerTrigger = 4"):
        read_options(given, streaming=True)
    with pytest.raises(OptionError, match="maxTriggerDelay is 'soon', not a time; allowed are a number and one of us"):
        read_options({**given, "minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"}, streaming=True)


def test_the_lag_has_the_names_and_numbers_of_the_stock_source():
    reached, latest = {"t": {"0": 5, "1": 10}}, {"t": {"0": 8, "1": 10, "2": 3}}
    expected = {"minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "3", "avgOffsetsBehindLatest": "2.0"}
    assert offsets_behind_latest({"endOffset": reached, "latestOffset": latest}) == expected
    texts = {"endOffset": json.dumps(reached), "latestOffset": json.dumps(latest)}
    assert offsets_behind_latest(texts) == expected
    assert offsets_behind_latest({"endOffset": None, "latestOffset": None}) == {}
    reached["t"]["id"], latest["t"]["id"] = "c2V2ZW50ZWVuIGJ5dGVzIQ", "c2V2ZW50ZWVuIGJ5dGVzIQ"
    assert offsets_behind_latest({"endOffset": reached, "latestOffset": latest}) == expected
    again = {"t": {"0": 4, "id": "YW5vdGhlciBvbmUgbm93IQ"}}
    behind = offsets_behind_latest({"endOffset": reached, "latestOffset": again})
    assert behind["maxOffsetsBehindLatest"] == "4", "a topic that was created again is read from its beginning"


def test_offsets_of_the_checkpoint_are_in_one_order():
    offsets = {TopicPartition("b", 0): 1, TopicPartition("a", 10): 2, TopicPartition("a", 2): 3}
    places = Places(offsets, {"a": "c2V2ZW50ZWVuIGJ5dGVzIQ"})
    assert str(to_json(places)) == "{'a': {'2': 3, '10': 2, 'id': 'c2V2ZW50ZWVuIGJ5dGVzIQ'}, 'b': {'0': 1}}"
    assert from_json(to_json(places)) == places
