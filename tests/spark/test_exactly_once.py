"""The sink's transactions with a broker and without Spark: tasks and drivers that die anywhere, in pairs, too late."""

import itertools

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.sql.types import BinaryType, StructField, StructType

from tests.spark.conftest import committed_values
from tpc_broker.client import connection, transacting
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.errors import RefusedError
from tpc_broker.client.transactions import ONGOING, list_transactions
from tpc_broker.spark import exactly_once, sink
from tpc_broker.spark.epochs import EpochLedger
from tpc_broker.spark.exactly_once import LostTransactionsError, NoTransactionsError
from tpc_broker.spark.options import OptionError, write_options

SCHEMA = StructType([StructField("value", BinaryType())])
_numbers = itertools.count()
ROWS = [f"row {number}".encode() for number in range(12)]


class DiedError(BaseException):
    """Stands for the end of a process: nothing that it would still do happens."""


class Task:
    """What Spark tells a task."""

    def __init__(self, query, epoch, partition, attempt, run=None):
        self.told = {"queryId": query, "batchId": str(epoch), "id": run}
        self.partitionId = lambda: partition
        self.attemptNumber = lambda: attempt

    def getLocalProperty(self, name):  # noqa: N802
        return self.told.get(name.rpartition(".")[2])


@pytest.fixture
def cluster(broker):
    with Cluster(ClusterSettings(broker.bootstrap)) as made:
        yield made


class Query:
    """A streaming write as Spark carries it out, epoch by epoch; ``more`` are options."""

    def __init__(self, broker, topic, monkeypatch, name=None, **more):
        options = {"bootstrap": broker.bootstrap, "topic": topic, **more}
        self.name = name or f"{topic}-{next(_numbers)}"
        self.run = None
        self.writer = sink.TpcStreamWriter(write_options(options), SCHEMA)
        self._monkeypatch = monkeypatch

    def task(self, epoch, rows, partition=0, attempt=0):
        """Its message."""
        task = Task(self.name, epoch, partition, attempt, self.run)
        self._monkeypatch.setattr(sink.TaskContext, "get", classmethod(lambda _class: task))
        half = len(rows) // 2
        schema = pa.schema([("value", pa.binary())])
        return self.writer.write(
            pa.RecordBatch.from_pydict({"value": part}, schema) for part in (rows[:half], rows[half:])
        )

    def epoch(self, number, rows, tasks_count=2):
        """A whole one, cut into so many tasks."""
        messages = [self.task(number, rows[first::tasks_count], first) for first in range(tasks_count)]
        self.writer.commit(messages, number)


@pytest.fixture
def query(broker, topic, monkeypatch):
    def make(name=None, **more):
        return Query(broker, topic, monkeypatch, name, **more)

    return make


@pytest.fixture
def committed(broker, cluster, topic):
    """All rows that are committed, as librdkafka reads them, when no transaction is open any more."""

    def read():
        assert not list_transactions(cluster, [ONGOING]), "somebody left a transaction open"
        return sorted(committed_values(broker, topic))

    return read


def test_of_several_attempts_the_one_that_spark_took_is_there(query, committed, cluster):
    """One that died, one that nobody waited for, and one of a partition that has no rows."""
    copy = query()
    copy.task(0, ROWS[:6], 0, 0)
    taken = copy.task(0, ROWS[:6], 0, 1)
    copy.task(0, ROWS[:6], 0, 2)
    other, empty = copy.task(0, ROWS[6:], 1), copy.task(0, [], 2)
    assert (taken.rows_count, empty.rows_count, empty.transaction) == (6, 0, None)
    copy.writer.commit([taken, other, empty], 0)
    assert not list_transactions(cluster, [ONGOING])
    assert committed() == sorted(ROWS)


def test_an_epoch_that_failed_leaves_nothing_and_can_be_done_again(query, committed):
    copy = query()
    copy.writer.abort([copy.task(0, ROWS[:6], 0), None], 0)
    assert committed() == []
    copy.epoch(0, ROWS, 3)
    copy.epoch(1, [b"more"], 1)
    assert committed() == sorted([b"more", *ROWS])


@pytest.mark.spark
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_dies_anywhere_is_followed_by_one_that_ends_its_epoch(query, committed, monkeypatch, when):
    """At each request of a commit in turn, before or after the broker has it. The next driver finds other tasks."""
    monkeypatch.setattr(exactly_once, "DECISION_WAIT_SECONDS", 0.1)
    expected = []
    send = connection.Connection.send

    def dying_at(count):
        left = itertools.count(count, -1)

        def sending(self, key, make):
            is_last = next(left) == 0
            if is_last and when == "before":
                raise DiedError
            send(self, key, make)
            if is_last:
                self.receive()
                raise DiedError

        return sending

    for count in range(1000):
        rows = [b"%d of " % count + row for row in ROWS]
        copy = query()
        messages = [copy.task(0, rows[:3], 0), copy.task(0, rows[3:], 1)]
        monkeypatch.setattr(connection.Connection, "send", dying_at(count))
        try:
            copy.writer.commit(messages, 0)
        except DiedError:
            died = True
        else:
            died = False
        monkeypatch.setattr(connection.Connection, "send", send)
        following = query(copy.name)
        following.epoch(0, rows, 3)
        following.epoch(1, rows[:1], 1)
        expected += [*rows, rows[0]]
        if not died:
            break
    assert count > 10, "requests of a commit"
    assert committed() == sorted(expected)


def test_what_an_earlier_number_left_is_ended_before_a_later_one_begins(query, committed, monkeypatch):
    """A driver that decided dies, and the next one does not repeat that number: no stream does so, a caller may."""
    copy = query()
    messages = [copy.task(0, ROWS[:6], 0), copy.task(0, ROWS[6:], 1)]

    def die(*_arguments):
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(exactly_once.TransactionalWrite, "_finish", die)
        with pytest.raises(DiedError):
            copy.writer.commit(messages, 0)
    copy.epoch(1, [b"more"], 1)
    assert committed() == sorted([b"more", *ROWS])


def test_of_two_drivers_one_commits(query, committed):
    """The second has begun the first one's transactional ids anew, or has been quicker."""
    first, second = query(), None
    messages = [first.task(0, ROWS[:6], 0), first.task(0, ROWS[6:], 1)]
    second = query(first.name)
    others = [second.task(0, ROWS, 0)]
    with pytest.raises(LostTransactionsError, match=r"nothing is committed.* 1 of 2 .*another driver writes"):
        first.writer.commit(messages, 0)
    second.writer.commit(others, 0)
    first.writer.abort(messages, 0)
    assert committed() == sorted(ROWS)
    late = [first.task(1, ROWS, 0, attempt=0), second.task(1, ROWS, 0, attempt=1)]
    first.writer.commit(late[:1], 1)
    second.writer.commit(late[1:], 1)
    assert committed() == sorted(ROWS * 2)


@pytest.mark.parametrize("what", ["commit", "abort"])
def test_a_driver_that_was_left_behind_aborts_nothing_of_what_another_has_decided(query, committed, monkeypatch, what):
    """It commits, or gives up, the epoch before, which is done, while the other one is between decision and commit."""
    behind = query()
    late = [behind.task(0, ROWS, 0, attempt=7)]
    ahead = query(behind.name)
    ahead.epoch(0, ROWS)
    messages = [ahead.task(1, ROWS[:6], 0), ahead.task(1, ROWS[6:], 1)]
    finish = exactly_once.TransactionalWrite._finish

    def behind_comes_first(write, decision):
        monkeypatch.setattr(exactly_once.TransactionalWrite, "_finish", finish)
        getattr(behind.writer, what)(late, 0)
        finish(write, decision)

    monkeypatch.setattr(exactly_once.TransactionalWrite, "_finish", behind_comes_first)
    ahead.writer.commit(messages, 1)
    assert committed() == sorted(ROWS * 2)


def test_tasks_that_repeat_an_epoch_abort_nothing_that_is_decided_meanwhile(query, committed, monkeypatch):
    """They have asked before that whether it is, and have had no rows until then."""
    behind = query()
    ahead = query(behind.name)
    behind.run, ahead.run = "a run", "the run before"
    messages = [ahead.task(0, ROWS[:6], 0), ahead.task(0, ROWS[6:], 1)]
    repeated, finish = [], exactly_once.TransactionalWrite._finish

    def behind_comes_first(write, decision):
        monkeypatch.setattr(exactly_once.TransactionalWrite, "_finish", finish)
        monkeypatch.setattr(exactly_once.TransactionalWrite, "was_committed", lambda _write: False)
        repeated.append(behind.task(0, ROWS, 0))
        finish(write, decision)

    monkeypatch.setattr(exactly_once.TransactionalWrite, "_finish", behind_comes_first)
    ahead.writer.commit(messages, 0)
    behind.writer.commit(repeated, 0)
    behind.epoch(1, [b"more"], 1)
    assert committed() == sorted([b"more", *ROWS])


def test_a_driver_that_gives_up_leaves_what_another_one_has_open(query, committed):
    behind = query()
    ahead = query(behind.name)
    behind.run, ahead.run = "a run", "another run"
    messages = [ahead.task(0, ROWS[:6], 0), ahead.task(0, ROWS[6:], 1)]
    behind.task(0, ROWS, 1)
    behind.writer.abort([behind.task(0, ROWS, 0), None], 0)
    ahead.writer.commit(messages, 0)
    assert committed() == sorted(ROWS)


def test_a_loss_after_the_decision_is_told_and_can_be_passed_over(query, committed, cluster, monkeypatch, caplog):
    copy = query()
    messages = [copy.task(0, ROWS[:6], 0), copy.task(0, ROWS[6:], 1)]

    def die(*_arguments):
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(exactly_once.TransactionalWrite, "_finish", die)
        with pytest.raises(DiedError):
            copy.writer.commit(messages, 0)
    transacting.begin(cluster, messages[0].transaction.transactional_id, 60_000)  # as a time-out does it
    for _attempt in range(2):
        again = copy.task(0, ROWS, 0)
        assert again.is_done
        with pytest.raises(LostTransactionsError, match=r"number 0: 1 transactions were ab.*-0-0 .*failOnDataLoss"):
            copy.writer.commit([again], 0)
        copy.writer.abort([again], 0)
    lenient = query(copy.name, failOnDataLoss="false")
    lenient.writer.commit([lenient.task(0, ROWS, 0)], 0)
    assert "going on, as failOnDataLoss is false" in caplog.text
    assert committed() == sorted(ROWS[6:])
    lenient.epoch(1, [b"more"])
    assert committed() == sorted([*ROWS[6:], b"more"])


def batch_write(broker, topic, **more):
    options = write_options({"bootstrap": broker.bootstrap, "topic": topic, **more})
    return sink.TpcWriter(options, SCHEMA, overwrite=False)


def rows_of(rows):
    return iter([pa.RecordBatch.from_pydict({"value": rows})])


def test_a_batch_write_is_there_whole_or_not_at_all(broker, topic, committed, cluster):
    failing = batch_write(broker, topic)
    failing.abort([failing.write(rows_of(ROWS)), None])
    assert committed() == []
    lost = batch_write(broker, topic)
    message = lost.write(rows_of(ROWS))
    transacting.begin(cluster, message.transaction.transactional_id, 60_000)
    with pytest.raises(LostTransactionsError, match="nothing is committed"):
        lost.commit([message])
    good = batch_write(broker, topic)
    good.commit([good.write(rows_of(ROWS))])
    assert committed() == sorted(ROWS)


@pytest.mark.parametrize("mode", ["true", "false"])
def test_a_batch_write_with_a_number_is_done_once(broker, topic, committed, mode):
    name = {"txnAppId": f"{topic}-{mode}", "exactlyOnce": mode}
    for number, rows in ((3, ROWS), (3, ROWS), (2, ROWS), (4, [b"more"]), (4, [b"more"])):
        writer = batch_write(broker, topic, txnVersion=str(number), **name)
        writer.commit([writer.write(rows_of(rows))])
    assert committed() == sorted([*ROWS, b"more"])


def test_a_cluster_without_transactions_is_found_out_before_the_first_row(
    broker, topic, committed, cluster, monkeypatch
):
    monkeypatch.setattr(exactly_once.transacting, "level_spoken_by", lambda _cluster: 1)
    with pytest.raises(NoTransactionsError, match=r"transaction\.version 1; 2 is needed.*feature level 5"):
        batch_write(broker, topic, exactlyOnce="true").write(rows_of(ROWS))
    assert committed() == []
    plain = batch_write(broker, topic)
    message = plain.write(rows_of(ROWS))
    assert message.transaction is None
    assert committed() == sorted(ROWS)
    plain.commit([message])
    plain.abort([message])
    assert committed() == sorted(ROWS)


def test_options_that_do_not_fit(broker, topic):
    given = {"bootstrap": broker.bootstrap, "topic": topic}
    for more, said in (
        ({"txnAppId": "a"}, "give both"),
        ({"txnVersion": "0"}, "give both"),
        ({"exactlyOnce": "yes"}, "allowed are auto, true, false"),
        ({"kafka.transaction.timeout.ms": "0"}, "at least 1"),
    ):
        with pytest.raises(OptionError, match=said):
            write_options({**given, **more})
    with pytest.raises(OptionError, match="for batch writes"):
        sink.TpcStreamWriter(write_options({**given, "txnAppId": "a", "txnVersion": "0"}), SCHEMA)
    with pytest.raises(OptionError, match=r"more than the cluster allows \(transaction\.max\.timeout\.ms\)"):
        batch_write(broker, topic, **{"kafka.transaction.timeout.ms": "999999999"}).write(rows_of(ROWS))


def test_a_long_list_of_transactions_is_kept_and_found_again(cluster):
    """As of a write with thousands of tasks."""
    ledger, name = EpochLedger(cluster), "a long one"
    long = [transacting.OpenTransaction(f"{name}-{number}-0", number, 7) for number in range(20_000)]
    offset = ledger.write_transactions(name, 5, long)
    assert ledger.transactions(name, 5, offset) == long
    assert ledger.newest(name) == -1


def test_records_that_a_task_lost_spoil_its_transaction(query, committed, monkeypatch):
    """It may not go on with what comes behind them."""
    copy = query()

    def refuse(answers, waiting, _appended):
        del waiting
        return [RefusedError(87, str(where)) for where in answers]

    with monkeypatch.context() as patch:
        patch.setattr("tpc_broker.client.producing._settle", refuse)
        with pytest.raises(RefusedError):
            copy.task(0, ROWS)
    copy.epoch(0, ROWS[:2])
    assert committed() == sorted(ROWS[:2])
