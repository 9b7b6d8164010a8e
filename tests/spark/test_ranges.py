"""What a read covers, from the answers of a log: planning without Spark and without a broker."""

import logging

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from tpc_broker.client.errors import OffsetsMissingError, UnknownTopicError
from tpc_broker.client.requests import EARLIEST, LATEST, TopicFacts, TopicPartition
from tpc_broker.spark import readers
from tpc_broker.spark.names import LEDGER_TOPIC
from tpc_broker.spark.options import OptionError, read_options
from tpc_broker.spark.ranges import Places, Planner


class Log:
    """In the place of a cluster: ``bounds`` by topic and partition; ``times`` is what is found for any time.

    ``ids`` of topics; without one, a topic is as of a broker that has none.
    """

    def __init__(self, **topics):
        self.topics = topics
        self.times = {}
        self.ids = {}

    def topic_names(self):
        return sorted(self.topics)

    def existing(self, names, believed):
        return {
            name: TopicFacts(self.ids.get(name, bytes(16)), False, dict.fromkeys(range(len(self.topics[name])), 1), {})
            for name in names
            if name in self.topics
        }

    def list_offsets(self, wanted, isolation):
        return {where: self._offset(where, time_ms) for where, time_ms in wanted.items()}

    def _offset(self, where, time_ms):
        first, end = self.topics[where.topic][where.partition]
        return {EARLIEST: first, LATEST: end}.get(time_ms, self.times.get(time_ms, -1))


def planner(log, *, streaming=False, **options):
    given = {"bootstrap": "h:1", **options}
    if not {"assign", "subscribePattern"} & options.keys():
        given.setdefault("subscribe", "t")
    return Planner(log, read_options(given, streaming=streaming))


def spans(ranges):
    return [(piece.where.partition, piece.first_offset, piece.end_offset) for piece in ranges]


def at(*offsets):
    return Places({TopicPartition("t", number): offset for number, offset in enumerate(offsets)})


@pytest.mark.parametrize("loss", ["true", "false"])
def test_offsets_that_the_log_never_had_are_a_mistake(loss):
    log = Log(t=[(0, 10), (5, 20)])
    for option in ("startingOffsets", "endingOffsets"):
        plan = planner(log, failOnDataLoss=loss, **{option: '{"t": {"1": 21}}'})
        with pytest.raises(OffsetsMissingError, match=f"t-1: {option} says 21, the log ends at 20"):
            plan.batch()
    crossed = planner(log, startingOffsets='{"t": {"1": 12}}', endingOffsets='{"t": {"1": 11}}', failOnDataLoss=loss)
    with pytest.raises(OptionError, match="t-1: the read would begin at 12, behind its end 11"):
        crossed.batch()
    stream = planner(log, streaming=True, startingOffsets='{"t": {"0": 3, "1": 21}}', failOnDataLoss=loss)
    if loss == "false":
        assert stream.start() == at(3, 20), "its end, where Kafka's connector goes on, too"
    else:
        with pytest.raises(OffsetsMissingError, match="t-1: startingOffsets says 21, the log ends at 20"):
            stream.start()
    whole = planner(log, startingOffsets='{"t": {"1": 20}}', endingOffsets='{"t": {"0": -1}}')
    assert spans(whole.batch()) == [(0, 0, 10), (1, 20, 20)]


def test_times_come_before_offsets_and_what_is_too_late_is_an_error_or_the_end():
    log = Log(t=[(0, 10), (0, 20)])
    log.times = {1000: 4, 2000: 7}
    both = {"startingOffsets": '{"t": {"0": 1, "1": 2}}', "endingOffsets": '{"t": {"0": 9}}'}
    assert spans(planner(log, **both).batch()) == [(0, 1, 9), (1, 2, 20)]
    by_partition = {"startingOffsetsByTimestamp": '{"t": {"0": 1000}}'}
    by_partition |= {"endingOffsetsByTimestamp": '{"t": {"1": 2000}}'}
    assert spans(planner(log, **both, **by_partition).batch()) == [(0, 4, 9), (1, 2, 7)]
    everywhere = {"startingTimestamp": "1000", "endingTimestamp": "2000"}
    assert spans(planner(log, **both, **by_partition, **everywhere).batch()) == [(0, 4, 7), (1, 4, 7)]
    assert spans(planner(log, endingTimestamp="3000").batch()) == [(0, 0, 10), (1, 0, 20)]
    with pytest.raises(OffsetsMissingError, match="t-0 has no record at or after 3000 ms"):
        planner(log, startingTimestamp="3000").batch()
    late = planner(log, startingTimestamp="3000", startingOffsetsByTimestampStrategy="latest")
    assert spans(late.batch()) == [(0, 10, 10), (1, 20, 20)]


def test_records_that_come_while_the_planner_asks_are_not_there_yet():
    """Their time is asked for after the log's end was."""
    log = Log(t=[(0, 10)])
    log.times = {1000: 12, 2000: 15}
    assert spans(planner(log, startingTimestamp="1000").batch()) == [(0, 10, 10)]
    assert spans(planner(log, endingTimestamp="2000").batch()) == [(0, 0, 10)]
    assert planner(log, streaming=True, startingTimestamp="1000").start() == at(10)


def test_offsets_that_are_gone_are_an_error_or_a_warning(caplog):
    log = Log(t=[(4, 10), (0, 3)])
    strict, lenient = (planner(log, streaming=True, failOnDataLoss=loss) for loss in ("true", "false"))
    for start, end, said in (
        (at(2, 0), at(10, 3), r"t-0: offsets \[2, 4\) are not in the log any more"),
        (at(4, 0, 5), at(10, 3, 5), "t-2 had been read and does not exist any more"),
    ):
        with pytest.raises(OffsetsMissingError, match=f"{said}; to go on without them, set failOnDataLoss to false"):
            strict.stream(start, end)
        with caplog.at_level(logging.WARNING):
            assert spans(lenient.stream(start, end)) == [(0, 4, 10), (1, 0, 3)]
        assert "going on without them" in caplog.text
        caplog.clear()
    with pytest.raises(OffsetsMissingError, match="t-1: the log ends at 3, before 7, which had been read"):
        strict.going_on(at(4, 7), at(10, 3))
    with caplog.at_level(logging.WARNING):
        assert lenient.going_on(at(4, 7), at(10, 3)) == (at(4, 7), at(10, 3))
        assert lenient.going_on(at(4, 7), at(10, 3)) == (at(4, 7), at(10, 3))
    [said] = [record.message for record in caplog.records]
    assert said.startswith("t-1: the log ends at 3, before 7, which had been read: 4 offsets are gone"), said
    assert said.endswith("; going on at its end")
    assert spans(lenient.stream(at(4, 7), at(10, 3))) == [(0, 4, 10), (1, 3, 3)]


@pytest.fixture
def reader_of(monkeypatch):
    """A streaming reader of a log."""

    def make(log, **options):
        monkeypatch.setattr(readers, "cluster_of", lambda _settings: log)
        given = {"bootstrap": "h:1", "subscribe": "t", "startingOffsets": "earliest", **options}
        return readers.TpcStreamReader(read_options(given, streaming=True), None)

    return make


def test_available_now_ends_at_what_was_there_at_its_start(reader_of):
    log = Log(t=[(0, 10)])
    reader = reader_of(log, maxOffsetsPerTrigger="6")
    reader.prepareForTriggerAvailableNow()
    log.topics["t"] = [(0, 50), (0, 7)]
    begin, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    first = reader.latestOffset({"t": {"0": begin["t"]["0"]}}, limit)
    assert first == {"t": {"0": 6}}
    assert reader.latestOffset(first, limit) == reader.latestOffset({"t": {"0": 10}}, limit) == {"t": {"0": 10}}
    assert reader.reportLatestOffset() == {"t": {"0": 50, "1": 7}}


def test_a_limit_counts_new_partitions_too(reader_of):
    log = Log(t=[(0, 30), (3, 13)])
    reader = reader_of(log, maxOffsetsPerTrigger="8")
    assert reader.latestOffset({"t": {"0": 0}}, reader.getDefaultReadLimit()) == {"t": {"0": 6, "1": 5}}
    assert reader_of(log).latestOffset({"t": {"0": 0}}, ReadAllAvailable()) == {"t": {"0": 30, "1": 13}}


def test_few_offsets_are_waited_for_and_not_for_ever(reader_of, monkeypatch):
    now = 100.0
    monkeypatch.setattr(readers.time, "monotonic", lambda: now)
    log = Log(t=[(0, 3)])
    reader = reader_of(log, minOffsetsPerTrigger="5", maxTriggerDelay="30s")
    limit = reader.getDefaultReadLimit()
    start = {"t": {"0": 0}}
    assert (reached := reader.latestOffset(start, limit)) == {"t": {"0": 3}}, "the first takes what there is"
    log.topics["t"] = [(0, 7)]
    assert reader.latestOffset(reached, limit) == reached, "four are too few"
    log.topics["t"] = [(0, 7), (0, 1)]
    assert reader.latestOffset(reached, limit) == {"t": {"0": 7, "1": 1}}, "those of new partitions count"
    reached, now = {"t": {"0": 7, "1": 1}}, 120.0
    log.topics["t"] = [(0, 8), (0, 1)]
    assert reader.latestOffset(reached, limit) == reached
    now = 131.0
    assert reader.latestOffset(reached, limit) == {"t": {"0": 8, "1": 1}}, "the delay is over"
    log.topics["t"] = [(0, 9), (0, 1)]
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset({"t": {"0": 8, "1": 1}}, limit) == {"t": {"0": 9, "1": 1}}, "no more is to come"


def test_a_new_partition_begins_at_its_first_offset():
    log = Log(t=[(0, 10), (3, 9)])
    assert spans(planner(log, streaming=True).stream(at(10), at(10, 9))) == [(0, 10, 10), (1, 3, 9)]


def test_a_pattern_means_whole_names_and_not_the_ledger():
    log = Log(**{"t": [(0, 1)], "tt": [(0, 1)], LEDGER_TOPIC: [(0, 1)]})
    assert [where.topic for where in planner(log, subscribePattern="t").partitions()] == ["t"]
    assert [where.topic for where in planner(log, subscribePattern=".*").partitions()] == ["t", "tt"]
    assert planner(log, subscribePattern="nothing").batch() == []
    with pytest.raises(OptionError, match="subscribePattern: "):
        planner(log, subscribePattern="t(").batch()


def test_partitions_that_do_not_exist():
    log = Log(t=[(0, 1)])
    with pytest.raises(UnknownTopicError, match="t has no partition 3"):
        planner(log, assign='{"t": [0, 3]}').batch()
    with pytest.raises(OptionError, match="offsets are given for t-3, which is not selected"):
        planner(log, startingOffsets='{"t": {"3": 0}}').batch()
    assert spans(planner(log, assign='{"t": [0, 0]}').batch()) == [(0, 0, 1)]
