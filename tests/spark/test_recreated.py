"""Topics that are deleted, and created again under the same name, while something reads them: without Spark."""

import contextlib
import dataclasses
import json
import uuid

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.spark.segment_log import Log as SegmentLog
from tests.spark.test_ranges import Log, planner, spans
from tests.support.waiting import PATIENCE_S
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.errors import OffsetsMissingError, TopicReplacedError, UnknownTopicError
from tpc_broker.client.reading import RangeReader, ReadSettings
from tpc_broker.client.requests import ClusterFacts, TopicFacts, TopicPartition
from tpc_broker.native_columns import COLUMN_TYPES
from tpc_broker.spark import readers
from tpc_broker.spark.losses import Losses
from tpc_broker.spark.options import OptionError, read_options
from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.pipelines.origins import TopicOrigin
from tpc_broker.spark.pipelines.steps import Step, StepLog, after, going_on, run_steps
from tpc_broker.spark.pipelines.topics import Broker
from tpc_broker.spark.ranges import OffsetRange, Places, from_json, id_text
from tpc_broker.spark.rows import Mode, RowPlan
from tpc_broker.spark.values import ValueFormat

OLD, NEW = (uuid.UUID(int=number).bytes for number in (7, 8))
OLD_ID, NEW_ID = id_text(OLD), id_text(NEW)
VALUES = from_arrow_schema(pa.schema([("value", COLUMN_TYPES["value"])]))
HOW = "set failOnDataLoss to false"


def log_of(topic_id=OLD, **topics):
    log = Log(**topics)
    log.ids = dict.fromkeys(topics, topic_id)
    return log


@pytest.fixture
def reader_of(monkeypatch):
    """A streaming reader of a log, with or without losses."""

    def make(log, *, strict=True, **options):
        monkeypatch.setattr(readers, "cluster_of", lambda _settings: log)
        given = {"bootstrap": "h:1", "startingOffsets": "earliest", "failOnDataLoss": str(strict).lower(), **options}
        if not {"assign", "subscribePattern"} & options.keys():
            given.setdefault("subscribe", "t")
        return readers.TpcStreamReader(read_options(given, streaming=True), None)

    return make


def offsets(topic_id, *ends, topic="t"):
    known = {"id": id_text(topic_id)} if topic_id else {}
    return {topic: {**{str(number): end for number, end in enumerate(ends)}, **known}}


def planned(reader, start, end):
    """The ranges of one micro-batch, as the planner has them."""
    return reader._planner().stream(from_json(start), from_json(end))


@pytest.mark.parametrize("length", [50, 300], ids=["shorter", "longer"])
def test_a_topic_that_was_created_again_is_an_error_that_names_it(reader_of, length):
    reader = reader_of(log_of(NEW, t=[(0, length)]))
    said = rf"t was deleted and created again \(its id was {OLD_ID} and is {NEW_ID}\); it had been read up to"
    with pytest.raises(OffsetsMissingError, match=rf"{said} t-0 at 100.*with the new one from its beginning, {HOW}"):
        reader.latestOffset(offsets(OLD, 100), ReadAllAvailable())


@pytest.mark.parametrize("length", [50, 300], ids=["shorter", "longer"])
def test_where_losses_are_allowed_the_new_topic_is_read_from_its_beginning(reader_of, caplog, length):
    log = log_of(NEW, t=[(3, length)])
    reader = reader_of(log, strict=False)
    start = offsets(OLD, 100, 7)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == offsets(NEW, length)
    [piece] = planned(reader, start, end)
    assert piece == OffsetRange(TopicPartition("t", 0), 3, length, topic_id=NEW_ID)
    assert reader.latestOffset(start, ReadMaxRows(10)) == offsets(NEW, 13), "a limit counts from its beginning, too"
    [said] = [record.message for record in caplog.records]
    assert "it had been read up to t-0 at 100, t-1 at 7, and what the old one held behind that is lost" in said
    assert said.endswith("; going on with the new one from its beginning")
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_offsets_without_ids_are_those_of_the_topic_that_is_seen_first(reader_of):
    """Checkpoints of older versions, and brokers that give no ids."""
    log = log_of(OLD, t=[(0, 120)])
    reader = reader_of(log)
    assert reader.latestOffset(offsets(None, 100), ReadAllAvailable()) == offsets(OLD, 120)
    assert spans(planned(reader, offsets(None, 100), offsets(None, 110))) == [(0, 100, 110)]
    assert spans(planned(reader, offsets(None, 100), offsets(OLD, 120))) == [(0, 100, 120)]
    log.ids.clear()
    assert reader.latestOffset(offsets(OLD, 100), ReadAllAvailable()) == offsets(None, 120)
    assert reader.initialOffset() == offsets(None, 0)


def test_what_was_planned_of_the_old_topic_is_not_read_of_the_new_one(reader_of, caplog):
    """Spark plans an epoch again after a crash, from its checkpoint."""
    log = log_of(NEW, t=[(0, 300)], u=[(0, 9)])
    start, end = (offsets(OLD, at) | offsets(NEW, 5, topic="u") for at in (100, 150))
    with pytest.raises(OffsetsMissingError, match=rf"t was deleted .*is lost: from t-0 at 100 to t-0 at 150; .*{HOW}"):
        planned(reader_of(log, subscribe="t,u"), start, end)
    ranges = planned(reader_of(log, strict=False, subscribe="t,u"), start, end | offsets(NEW, 8, topic="u"))
    assert [(str(piece.where), piece.first_offset, piece.end_offset) for piece in ranges] == [("u-0", 5, 8)]
    assert "t was deleted and created again" in caplog.text


def test_available_now_ends_though_its_topic_is_another_one_by_now(reader_of):
    log = log_of(OLD, t=[(0, 100)])
    reader = reader_of(log, strict=False)
    reader.prepareForTriggerAvailableNow()
    log.ids["t"], log.topics["t"] = NEW, [(0, 40)]
    start = offsets(OLD, 60)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == offsets(OLD, 100)
    assert planned(reader, start, end) == []
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def whole_run(reader, start=None, *, meanwhile=lambda: None):
    """Spark's questions of a run with `Trigger.AvailableNow`: the ranges of each micro-batch. ``meanwhile`` happens
    between the first question and the second.
    """
    reader.prepareForTriggerAvailableNow()
    meanwhile()
    start, epochs, limit = reader.initialOffset() if start is None else start, [], reader.getDefaultReadLimit()
    while (end := reader.latestOffset(start, limit)) != start:
        ranges = [piece for piece in planned(reader, start, end) if piece.size]
        epochs.append([(str(piece.where), piece.first_offset, piece.end_offset) for piece in ranges])
        start = end
        assert len(epochs) < 10, "it does not end"
    return epochs, end


SELECTIONS = pytest.mark.parametrize(
    "chosen", [{"subscribe": "t,u"}, {"subscribePattern": "[tu]"}, {"assign": '{"t": [0], "u": [0]}'}], ids="-".join
)


@SELECTIONS
@pytest.mark.parametrize("start", [None, offsets(OLD, 40)], ids=["new", "restarted"])
def test_available_now_goes_on_without_a_topic_that_is_deleted_in_its_first_moment(reader_of, caplog, chosen, start):
    """In a run that goes on, the topic is one that had not been there before."""
    log = log_of(OLD, t=[(0, 100)], u=[(0, 60)])
    reader = reader_of(log, strict=False, maxOffsetsPerTrigger="50", **chosen)
    epochs, end = whole_run(reader, start, meanwhile=lambda: log.topics.pop("u"))
    bounds = [0, 50, 100] if start is None else [40, 90, 100]
    assert epochs == [[("t-0", *bounds[:2])], [("t-0", *bounds[1:])]]
    assert end == offsets(OLD, 100)
    assert "what this run was to read of u-0 is lost: deleted since it began" in caplog.text
    log.topics["u"], log.ids["u"] = [(2, 9)], NEW
    assert whole_run(reader, end) == ([[("u-0", 2, 9)]], end | offsets(NEW, 9, topic="u")), "a later run has it"
    with pytest.raises((UnknownTopicError, OffsetsMissingError), match=rf"\bu\b.*{HOW}"):
        whole_run(reader_of(log, **chosen), start, meanwhile=lambda: log.topics.pop("u"))


@pytest.mark.parametrize("chosen", [{"subscribe": "t"}, {"subscribePattern": "t"}], ids="-".join)
def test_available_now_whose_only_topic_is_deleted_in_its_first_moment(reader_of, chosen):
    log = log_of(OLD, t=[(0, 100)])
    reader = reader_of(log, strict=False, **chosen)
    assert whole_run(reader, meanwhile=log.topics.clear) == ([], {})
    log.topics["t"] = [(0, 100)]
    with pytest.raises((UnknownTopicError, OffsetsMissingError), match=rf"\bt\b.*deleted since.*{HOW}"):
        whole_run(reader_of(log, **chosen), meanwhile=log.topics.clear)


def test_available_now_whose_topic_is_created_again_in_its_first_moment(reader_of):
    log = log_of(OLD, t=[(0, 100)], u=[(0, 9)])

    def again():
        log.topics["t"], log.ids["t"] = [(0, 300)], NEW

    reader = reader_of(log, strict=False, subscribe="t,u")
    assert whole_run(reader, meanwhile=again) == ([[("u-0", 0, 9)]], offsets(OLD, 9, topic="u"))
    log.ids["t"] = OLD
    with pytest.raises(OffsetsMissingError, match=f"what this run was to read of t-0 is lost: .*{HOW}"):
        whole_run(reader_of(log, subscribe="t,u"), meanwhile=again)


def test_what_is_only_told_is_no_error_where_the_topic_is_gone(reader_of):
    """Spark asks at the end of each trigger, for the query's progress."""
    log = log_of(OLD, t=[(0, 100)])
    reader = reader_of(log)
    assert reader.reportLatestOffset() == offsets(OLD, 100)
    log.topics.clear()
    assert reader.reportLatestOffset() is None


@pytest.mark.parametrize(
    "given",
    [{"startingOffsets": "latest"}, {"startingTimestamp": "1000"}, {"startingOffsets": '{"t": {"0": -1, "1": 101}}'}],
    ids=["latest", "by time", "by offset"],
)
def test_available_now_begins_no_later_than_where_it_is_to_end(reader_of, given):
    """Spark asks where a run ends before it asks where it begins; a topic that is written to goes on meanwhile."""
    log = log_of(OLD, t=[(0, 100), (0, 100)])
    log.times = {1000: 103}

    def written():
        log.topics["t"] = [(0, 105), (0, 107), (0, 3)]

    reader = reader_of(log, **given)
    assert whole_run(reader, meanwhile=written) == ([], offsets(OLD, 100, 100))
    assert whole_run(reader, offsets(OLD, 100, 100))[0] == [[("t-0", 100, 105), ("t-1", 100, 107), ("t-2", 0, 3)]]


@SELECTIONS
def test_of_several_topics_one_is_deleted(reader_of, caplog, chosen):
    log = log_of(OLD, t=[(0, 100)], u=[(0, 9)])
    strict, lenient = (reader_of(log, strict=strict, **chosen) for strict in (True, False))
    start = lenient.latestOffset(offsets(OLD, 10) | offsets(OLD, 5, topic="u"), ReadAllAvailable())
    assert start == offsets(OLD, 100) | offsets(OLD, 9, topic="u")
    del log.topics["u"]
    log.topics["t"] = [(0, 120)]
    with pytest.raises((UnknownTopicError, OffsetsMissingError), match=rf"\bu\b.*{HOW}"):
        strict.latestOffset(start, ReadAllAvailable())
    end = lenient.latestOffset(start, ReadAllAvailable())
    assert end == offsets(OLD, 120) | offsets(OLD, 9, topic="u"), "its place is kept, should it be back"
    assert [(str(piece.where), piece.first_offset) for piece in planned(lenient, start, end)] == [("t-0", 100)]
    for _turn in range(3):
        assert lenient.latestOffset(end, ReadAllAvailable()) == end
    assert caplog.text.count("u-0 had been read and does not exist any more") == 1, "said once"
    log.topics["u"] = [(0, 12)]
    assert lenient.latestOffset(end, ReadAllAvailable())["u"] == {"0": 12, "id": OLD_ID}
    log.ids["u"] = NEW
    back = lenient.latestOffset(end, ReadAllAvailable())
    assert back["u"] == {"0": 12, "id": NEW_ID}
    begins = [(str(piece.where), piece.first_offset) for piece in planned(lenient, end, back)]
    assert begins == [("t-0", 120), ("u-0", 0)]


def test_an_assigned_partition_that_the_new_topic_lacks(reader_of):
    log = log_of(OLD, t=[(0, 100), (0, 100)])
    strict, lenient = (reader_of(log, strict=strict, assign='{"t": [0, 1]}') for strict in (True, False))
    log.topics["t"], log.ids["t"] = [(0, 9)], NEW
    with pytest.raises(OffsetsMissingError, match="t was deleted and created again"):
        strict.latestOffset(offsets(OLD, 10, 10), ReadAllAvailable())
    assert lenient.latestOffset(offsets(OLD, 10, 10), ReadAllAvailable()) == offsets(NEW, 9)


def test_all_topics_deleted_is_no_end_where_losses_are_allowed(reader_of):
    log = log_of(OLD, t=[(0, 100)])
    lenient, strict = reader_of(log, strict=False), reader_of(log)
    log.topics.clear()
    assert lenient.latestOffset(offsets(OLD, 50), ReadAllAvailable()) == offsets(OLD, 50)
    assert planned(lenient, offsets(OLD, 50), offsets(OLD, 50)) == []
    with pytest.raises(UnknownTopicError, match="there is no topic 't'"):
        strict.latestOffset(offsets(OLD, 50), ReadAllAvailable())
    for reader in (lenient, strict):
        with pytest.raises(UnknownTopicError, match="there is no topic 't'"):
            reader.initialOffset()


def test_a_topic_that_is_deleted_between_two_questions_is_planned_around(reader_of, caplog, monkeypatch):
    log = log_of(OLD, t=[(0, 100)], u=[(0, 9)])

    def deleted_meanwhile(wanted, isolation):
        log.topics.pop("u", None)
        if any(where.topic == "u" for where in wanted):
            raise UnknownTopicError("there is no topic 'u'")
        return Log.list_offsets(log, wanted, isolation)

    log.list_offsets, log.partition_bytes = deleted_meanwhile, lambda _places: {}
    monkeypatch.setattr(Broker, "cluster", lambda _broker: contextlib.nullcontext(log))
    start = offsets(OLD, 10) | offsets(OLD, 5, topic="u")
    end = reader_of(log, strict=False, subscribe="t,u").latestOffset(start, ReadAllAvailable())
    assert end == offsets(OLD, 100) | offsets(OLD, 5, topic="u")
    log.topics["u"] = [(0, 9)]
    assert reader_of(log, strict=False, subscribe="t,u").initialOffset() == offsets(OLD, 0)
    log.topics["u"] = [(0, 9)]
    with pytest.raises(UnknownTopicError, match=f"there is no topic 'u'; .*{HOW}"):
        reader_of(log, subscribe="t,u").latestOffset(start, ReadAllAvailable())
    caplog.clear()
    for strict in (False, True):
        log.topics["u"] = [(0, 9)]
        given = {"bootstrap": "h:1", "subscribe": "t,u", "failOnDataLoss": str(strict).lower()}
        batch = readers.TpcReader(read_options(given, streaming=False), None)
        if strict:
            with pytest.raises(UnknownTopicError, match=f"there is no topic 'u'; .*{HOW}"):
                batch.partitions()
        else:
            assert [task.value.where.topic for task in batch.partitions()] == ["t"]
    assert caplog.text.count("there is no topic 'u'; going on without") == 1
    log.topics["u"] = [(0, 9)]
    bounds = TopicOrigin(None, "h:1", "t,u", fails_on_data_loss=False).bounds()
    assert [places.offsets for places in bounds] == [{("t", 0): 0}, {("t", 0): 100}]


def test_a_batch_of_several_topics_of_which_one_is_missing(caplog):
    log = log_of(OLD, t=[(0, 100)])
    given = {"subscribe": "t,u", "startingOffsets": '{"t": {"0": 90}, "u": {"0": 5}}'}
    with pytest.raises(UnknownTopicError, match=f"there is no topic 'u'; .*{HOW}"):
        planner(log, **given).batch()
    assert spans(planner(log, failOnDataLoss="false", **given).batch()) == [(0, 90, 100)]
    assert "there is no topic 'u'; going on without" in caplog.text
    with pytest.raises(UnknownTopicError, match=r"there is no topic 'x'$"):
        planner(log, failOnDataLoss="false", subscribe="x").batch()


def test_offsets_that_are_given_with_an_id(caplog):
    log = log_of(NEW, t=[(3, 100)])
    given = {"startingOffsets": json.dumps(offsets(OLD, 50)), "endingOffsets": json.dumps(offsets(OLD, 60))}
    with pytest.raises(OffsetsMissingError, match=rf"t was deleted .*its id was {OLD_ID}, as startingOffsets says"):
        planner(log, **given).batch()
    assert spans(planner(log, failOnDataLoss="false", **given).batch()) == [(0, 3, 3)]
    begin = {"startingOffsets": given["startingOffsets"]}
    assert spans(planner(log, failOnDataLoss="false", **begin).batch()) == [(0, 3, 100)]
    log.ids["t"] = OLD
    assert spans(planner(log, **given).batch()) == [(0, 50, 60)]
    for value in ("rubbish", 5):
        with pytest.raises(OptionError, match="startingOffsets has the form"):
            planner(log, startingOffsets=json.dumps({"t": {"0": 5, "id": value}}))


class Answers:
    """A cluster that hears of a change late: Metadata answers in turn, the last for ever. ``takes`` is called before
    each.
    """

    def __init__(self, *answers, takes=lambda: None):
        self.cluster = Cluster(ClusterSettings("h:1", retry_seconds=8))
        self.cluster._metadata_once = self._answer
        self.answers = list(answers)
        self.asked = 0
        self.takes = takes

    def _answer(self, _names):
        self.asked += 1
        self.takes()
        topics = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        facts = {name: TopicFacts(topic_id, False, {0: 0}, {}) for name, topic_id in topics.items()}
        return ClusterFacts({}, facts, {"t"} - facts.keys(), {})


@pytest.fixture
def no_sleep(monkeypatch):
    """Time passes only by sleeping."""
    now = [100.0]
    monkeypatch.setattr("tpc_broker.client.cluster.time.monotonic", lambda: now[0])
    monkeypatch.setattr("tpc_broker.client.cluster.time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def test_a_node_that_has_not_heard_of_the_topic_yet_is_asked_again(no_sleep):
    late = Answers({}, {"t": OLD}, {"t": NEW})
    assert late.cluster.existing(["t"], {"t": NEW})["t"].topic_id == NEW
    assert late.asked == 3
    assert no_sleep[0] < 101


def test_another_topic_and_a_missing_one_are_believed_after_a_while(no_sleep):
    for answer, found in (({"t": NEW}, [NEW]), ({}, [])):
        answers, before = Answers(answer), no_sleep[0]
        assert [one.topic_id for one in answers.cluster.existing(["t"], {"t": OLD}).values()] == found
        assert 2 <= no_sleep[0] - before < 4
        assert answers.asked > 2
    for answer, believed in (({}, {"t": b""}), ({"t": NEW}, {"t": b""}), ({"t": NEW}, {}), ({"t": NEW}, {"t": NEW})):
        answers = Answers(answer)
        answers.cluster.existing(["t"], believed)
        assert answers.asked == 1, "nothing is taken away"


def test_an_answer_that_took_long_is_no_proof_that_a_topic_is_missing(no_sleep):
    """Nor that it is another one."""

    def takes():
        no_sleep[0] += 3

    assert list(Answers({}, {"t": OLD}, takes=takes).cluster.topic("t").leaders) == [0]
    with pytest.raises(UnknownTopicError, match=r"there is no topic 't'$"):
        Answers({}, {}, {"t": OLD}, takes=takes).cluster.topic("t")
    for first in ({}, {"t": NEW}):
        late = Answers(first, {"t": OLD}, takes=takes)
        assert late.cluster.existing(["t"], {"t": OLD})["t"].topic_id == OLD
        gone = Answers(first, first, {"t": OLD}, takes=takes).cluster.existing(["t"], {"t": OLD})
        assert {name: facts.topic_id for name, facts in gone.items()} == first


@pytest.fixture
def admin(shared_broker):
    return AdminClient({"bootstrap.servers": shared_broker.bootstrap})


@pytest.fixture
def topic(admin, shared_broker, request):
    name = f"recreated-{request.node.name}"
    create(admin, shared_broker, name, 20)
    yield name
    admin.delete_topics([name])[name].result(PATIENCE_S)


def create(admin, broker, name, count, *, again=False):
    if again:
        admin.delete_topics([name])[name].result(PATIENCE_S)
    admin.create_topics([NewTopic(name, 1)])[name].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce(name, b"%s %d" % (b"new" if again else b"old", number))
    assert producer.flush(PATIENCE_S) == 0


def plan_of():
    return RowPlan.of(VALUES, ValueFormat(), Mode.FAILFAST, "_corrupt_record")


def rows_of(reader, tasks):
    return [bytes(row["value"]) for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def test_tasks_read_the_topic_that_was_planned_and_no_other(shared_broker, admin, topic, caplog, monkeypatch):
    """The same stream before and after, with metadata in the worker that is old by then."""
    monkeypatch.setattr("tpc_broker.client.cluster.MISSING_TOPIC_SECONDS", 0.1)  # one node hears of all at once
    given = {"bootstrap": shared_broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    strict, lenient = (
        readers.TpcStreamReader(read_options({**given, "failOnDataLoss": loss}, streaming=True), plan_of())
        for loss in ("true", "false")
    )
    start = strict.initialOffset()
    middle = strict.latestOffset(start, ReadMaxRows(10))
    assert rows_of(strict, strict.partitions(start, middle)) == [b"old %d" % number for number in range(10)]
    end = strict.latestOffset(middle, ReadAllAvailable())
    tasks = strict.partitions(middle, end)
    create(admin, shared_broker, topic, 30, again=True)
    with pytest.raises(OffsetsMissingError, match=rf"{topic}-0: offsets \[10, 20\) are lost: .*created again"):
        rows_of(strict, tasks)
    assert rows_of(lenient, tasks) == []
    with pytest.raises(OffsetsMissingError, match=f"{topic} was deleted and created again"):
        strict.latestOffset(middle, ReadAllAvailable())
    after_it = lenient.latestOffset(middle, ReadAllAvailable())
    assert rows_of(lenient, lenient.partitions(middle, after_it)) == [b"new %d" % number for number in range(30)]
    assert "are lost" in caplog.text
    where = TopicPartition(topic, 0)
    with Cluster(ClusterSettings(shared_broker.bootstrap)) as cluster, pytest.raises(TopicReplacedError):
        list(RangeReader(cluster, where, 0, 5, ReadSettings(), topic_id=OLD).chunks())


def test_files_of_another_topic_are_not_those_that_were_planned(tmp_path, caplog):
    """Its folder has the same name, and its files may have the names of the old ones."""
    log = SegmentLog(tmp_path)
    log.values(b"old 0", b"old 1", b"old 2")
    log.checkpoint()
    given = {"path": str(tmp_path), "subscribe": "t"}
    strict, lenient = (
        readers.TpcReader(read_options({**given, "failOnDataLoss": loss}, streaming=False), plan_of())
        for loss in ("true", "false")
    )
    tasks = strict.partitions()
    assert rows_of(strict, tasks) == [b"old 0", b"old 1", b"old 2"]
    again = SegmentLog(tmp_path, topic_id=uuid.UUID(bytes=NEW))
    again.values(b"new 0", b"new 1", b"new 2", b"new 3")
    again.checkpoint()
    with pytest.raises(OffsetsMissingError, match=r"t-0: offsets \[0, 3\)"):
        rows_of(strict, tasks)
    assert rows_of(lenient, tasks) == []
    assert "t-0: offsets [0, 3)" in caplog.text
    assert rows_of(strict, strict.partitions())[-1] == b"new 3"


class Folder:
    """A checkpoint folder in memory."""

    path = "/jobs/one"

    def __init__(self):
        self.files = {}

    def make(self, _name=""):
        pass

    def exists(self, name=""):
        return name in self.files

    def entries(self, name=""):
        return [Entry(path.rpartition("/")[2]) for path in self.files if path.rpartition("/")[0] == name]

    def read_text(self, name):
        return self.files[name]

    def write_new(self, name, text):
        return self.files.setdefault(name, text) is text


@dataclasses.dataclass
class Entry:
    name: str


def bounds(topic_id, end, topic="t"):
    where, ids = TopicPartition(topic, 0), {topic: id_text(topic_id)}
    return Places({where: 0}, ids), Places({where: end}, ids)


def run(folder, topic_id, end, done, *, strict=True, fails_at=None):
    def work(step):
        done.extend((piece.topic_id, piece.first_offset, piece.end_offset) for piece in step.ranges)
        if len(done) == fails_at:
            raise KeyboardInterrupt

    log = StepLog(folder, {"source": "t"})
    return run_steps(log, bounds(topic_id, end), work, lambda _said: None, 10, fails_on_data_loss=strict)


def test_steps_go_on_in_the_new_topic_only_where_losses_are_allowed(caplog):
    folder, done = Folder(), []
    assert run(folder, OLD, 15, done) == 15
    said = rf"t: deleted and created again \(t had the id {OLD_ID} and has {NEW_ID}\).*take another --checkpoint"
    with pytest.raises(PipelineError, match=said):
        run(folder, NEW, 25, done)
    run(folder, NEW, 25, done, strict=False)
    run(folder, NEW, 27, done)
    assert done[2:] == [(NEW_ID, 0, 10), (NEW_ID, 10, 20), (NEW_ID, 20, 25), (NEW_ID, 25, 27)]
    assert caplog.text.count("created again") == 1


def test_a_step_that_was_under_way_is_of_the_old_topic(caplog):
    folder, done = Folder(), []
    with pytest.raises(KeyboardInterrupt):
        run(folder, OLD, 15, done, fails_at=2)
    with pytest.raises(PipelineError, match="t: deleted and created again"):
        run(folder, NEW, 8, done)
    run(folder, NEW, 8, done, strict=False)
    assert done[2:] == [(NEW_ID, 0, 8)]
    assert "the step that was under way is lost: t-0: offsets [10, 15)" in caplog.text


def test_checkpoints_of_older_versions_have_no_ids():
    folder, done = Folder(), []
    StepLog(folder, {"source": "t"})
    folder.files["planned/0.json"] = '[["t", 0, 0, 10]]'
    folder.files["done/0.json"] = '{"t": {"0": 10}}'
    folder.files["planned/1.json"] = '[["t", 0, 10, 12]]'
    run(folder, OLD, 15, done)
    assert done == [("", 10, 12), (OLD_ID, 12, 15)]
    with pytest.raises(PipelineError, match="t: deleted and created again"):
        run(folder, NEW, 25, done)


def test_only_topics_that_were_created_again_lose_their_place():
    ours, other = TopicPartition("t", 0), TopicPartition("u", 0)
    position = Places({ours: 9, other: 5}, {"t": OLD_ID, "u": OLD_ID})
    start = Places({ours: 0, other: 0}, {"t": NEW_ID, "u": OLD_ID})
    assert going_on(position, start, Losses(are_errors=False)) == {ours: 0, other: 5}
    done = after(position, Step(3, (OffsetRange(ours, 0, 4, topic_id=NEW_ID),)))
    assert done == Places({ours: 4, other: 5}, {"t": NEW_ID, "u": OLD_ID})
