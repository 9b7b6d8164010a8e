"""Options, limits and splitting, without Spark."""

import random

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tpc_broker.client.requests import EARLIEST, LATEST, TopicPartition
from tpc_broker.kafka.compression import Compression
from tpc_broker.spark.options import OptionError, read_options, write_options
from tpc_broker.spark.ranges import OffsetRange, from_json, limit_offsets, split_ranges, to_json

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


def test_split_ranges_cover_everything_once():
    chance = random.Random(5)
    for _ in range(300):
        ranges = [
            OffsetRange(TopicPartition("t", number), begin := chance.randrange(50), begin + chance.choice([0, 1, 999]))
            for number in range(chance.randrange(1, 6))
        ]
        tasks_min, records_max = chance.randrange(20), chance.randrange(1, 400)
        pieces = split_ranges(ranges, tasks_min, records_max)
        assert all(0 < piece.size <= records_max for piece in pieces)
        covered = [(piece.where, offset) for piece in pieces for offset in range(piece.first_offset, piece.end_offset)]
        assert covered == [(r.where, offset) for r in ranges for offset in range(r.first_offset, r.end_offset)]
    big = [OffsetRange(TopicPartition("t", 0), 0, 900), OffsetRange(TopicPartition("t", 1), 0, 100)]
    assert len(split_ranges(big, 10, 10_000)) == 10


def test_offsets_of_the_checkpoint_are_in_one_order():
    offsets = {TopicPartition("b", 0): 1, TopicPartition("a", 10): 2, TopicPartition("a", 2): 3}
    assert str(to_json(offsets)) == "{'a': {'2': 3, '10': 2}, 'b': {'0': 1}}"
    assert from_json(to_json(offsets)) == offsets
