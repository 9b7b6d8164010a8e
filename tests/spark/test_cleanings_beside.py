"""Spark reads a compacted topic while it is cleaned: nothing fails, and each key has its newest value."""

import threading

import pytest

from tests.durability.newest_values import COMPACTED, SETTINGS, NewestValues, Writing, cleanings, number_of
from tests.support.broker_process import TpcBroker
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.spark

ROUNDS = 5
WAYS = ("brokers", "files", "both")


@pytest.fixture(scope="module")
def cleaning(module_tmp_path):
    """A broker, its topic, and who writes to it."""
    broker = TpcBroker(module_tmp_path / "cleaning", 1, SETTINGS)
    broker.start()
    values = NewestValues("kept", 3, 9_000, 1)
    values.create(broker.bootstrap, {**COMPACTED, "delete.retention.ms": "3600000"})
    writing = Writing(broker.bootstrap, values)
    eventually(lambda: values.acknowledged_count > 15_000 and cleanings(broker), "a cleaning")
    yield broker, values, writing
    writing.ends.set()
    broker.kill()


def options(broker, values, way):
    given = {"subscribe": values.topic, "startingOffsets": "earliest"}
    if way != "files":
        given["bootstrap"] = broker.bootstrap
    if way != "brokers":
        given["path"] = str(broker.data_folder)
    return given


def newest(rows):
    """The last record of each key, None for what is deleted. Offsets of a partition are there once."""
    found, seen = {}, set()
    for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
        assert (row.partition, row.offset) not in seen
        seen.add((row.partition, row.offset))
        found[bytes(row.key)] = None if row.value is None else number_of(bytes(row.value))
    return found


def check(values, rows, acknowledged, way):
    """Files alone lack what no checkpoint has yet. What is read has an end, and who replaces a key behind it may have
    that removed which was before it.
    """
    found = newest(rows)
    expected = {} if way == "files" else values.unchanged(acknowledged)
    assert len(expected) > 300 or way == "files"
    problems = values.problems(found, expected)
    assert not problems, "\n".join(problems[:20])


@pytest.mark.parametrize("way", WAYS)
def test_a_batch(spark, cleaning, way):
    broker, values, writing = cleaning
    before = cleanings(broker)
    for _round in range(ROUNDS):
        acknowledged = values.acknowledged()
        reader = spark.read.format("tpc").options(**options(broker, values, way))
        rows = reader.load().select("partition", "offset", "key", "value").collect()
        check(values, rows, acknowledged, way)
        assert len(rows) > 1_000
        writing.check()
    eventually(lambda: cleanings(broker) > before, "it cleans meanwhile")


@pytest.mark.parametrize("way", ["brokers", "both"])
def test_a_stream(spark, cleaning, way, tmp_path):
    """From the beginning on, in steps, until it is behind all that had been acknowledged when it began."""
    broker, values, writing = cleaning
    acknowledged, before, rows, lock = values.acknowledged(), cleanings(broker), [], threading.Lock()

    def keep(frame, _number):
        with lock:
            rows.extend(frame.select("partition", "offset", "key", "value").collect())

    reader = spark.readStream.format("tpc").options(**options(broker, values, way), maxOffsetsPerTrigger=5_000)
    query = reader.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "c"))
    for _round in range(ROUNDS):
        acknowledged = values.acknowledged()
        running = query.trigger(availableNow=True).start()
        assert running.awaitTermination(3 * PATIENCE_S)
        check(values, rows, acknowledged, way)
        writing.check()
    eventually(lambda: cleanings(broker) > before, "it cleans meanwhile")
