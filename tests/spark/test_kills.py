"""Nothing is lost, and in an archive nothing is doubled: killed driver, killed worker process, killed broker.

An archive and a copying sink run side by side; one is exactly once, the other at least once.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
from tests.spark.both_ways import archive_job, start_copy
from tests.support.broker_process import TpcBroker
from tpc_broker.spark import TpcDataSource, register
from tpc_broker.spark.pipelines.archive import archive
from tpc_broker.spark.source import TpcStreamReader

pytestmark = pytest.mark.spark
ROWS_PER_PARTITION = 1200
ROWS_PER_EPOCH = 200
DEADLINE_SECONDS = 100
EXPECTED = sorted(f"{partition}-{number}" for partition in (0, 1) for number in range(ROWS_PER_PARTITION))
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def target(admin, topic):
    from confluent_kafka.admin import NewTopic

    admin.create_topics([NewTopic(f"{topic}-target", 2)])[f"{topic}-target"].result(15)
    return f"{topic}-target"


@pytest.fixture
def source(topic, produce):
    for partition in (0, 1):
        produce(topic, partition, [f"{partition}-{number}" for number in range(ROWS_PER_PARTITION)])
    return topic


def values(spark, bootstrap, topic):
    reader = spark.read.format("tpc").option("bootstrap", bootstrap).option("subscribe", topic)
    return sorted(bytes(row.value).decode() for row in reader.option("columns", "value").load().collect())


def archived(spark, folder):
    rows = spark.read.parquet(str(folder / "archive")).select("_partition", "_offset", "value").collect()
    assert all(bytes(row.value).decode() == f"{row._partition}-{row._offset}" for row in rows)
    return sorted(bytes(row.value).decode() for row in rows)


def check_copy(found, repeated_max):
    """All of it, and what is there twice is no more than what was under way."""
    assert sorted(set(found)) == EXPECTED
    assert len(found) - len(EXPECTED) <= repeated_max


def wait_until(done, what, process=None, log=None):
    give_up_at = time.monotonic() + DEADLINE_SECONDS
    while not done():
        assert process is None or process.poll() is None, f"ended before {what}: {log.read_text()}"
        assert time.monotonic() < give_up_at, f"never {what}"
        time.sleep(0.02)


def committed(folder, copied_epochs=2):
    """Both jobs are in the middle: some epochs are done."""
    return (folder / "archive" / "_spark_metadata" / "2.compact").exists() and (
        folder / "copy" / "commits" / str(copied_epochs)
    ).exists()


def run_both(spark, bootstrap, source, target, folder, rows_per_epoch=10**6):
    copy = start_copy(spark, bootstrap, source, target, folder, rows_per_epoch)
    archive(spark, archive_job(bootstrap, source, folder, rows_per_epoch))
    assert copy.awaitTermination(DEADLINE_SECONDS)


def test_a_killed_driver(spark, broker, source, target, tmp_path):
    command = [sys.executable, "-m", "tests.spark.both_ways", "local[2]", broker.bootstrap, source, target]
    command += [str(tmp_path), str(ROWS_PER_EPOCH)]
    log = tmp_path / "driver.log"
    with log.open("wb") as output:
        driver = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=output, stderr=output)
    try:
        wait_until(lambda: committed(tmp_path), "in the middle", driver, log)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert not (tmp_path / "copy" / "commits" / "11").exists(), "the job had ended"
    run_both(spark, broker.bootstrap, source, target, tmp_path)
    assert archived(spark, tmp_path) == EXPECTED
    check_copy(values(spark, broker.bootstrap, target), 2 * ROWS_PER_EPOCH)


def dying_source(marker, dies_at_offset):
    """`tpc`, but the Python process that reads beyond an offset dies there, once for each reader of a range."""

    class DyingReader(TpcStreamReader):
        def read(self, partition):
            piece = partition.value
            for batch in super().read(partition):
                yield batch
                if piece is not None and piece.first_offset <= dies_at_offset < piece.end_offset:
                    path = Path(f"{marker}-{len(self._options.columns)}")
                    if not path.exists():
                        path.touch()
                        os.kill(os.getpid(), signal.SIGKILL)

    class DyingSource(TpcDataSource):
        def streamReader(self, schema):  # noqa: N802
            whole = super().streamReader(schema)
            return DyingReader(whole._options, whole._plan)

    return DyingSource


def test_a_killed_worker_process(spark, broker, source, target, tmp_path):
    marker = tmp_path / "died"
    spark.dataSource.register(dying_source(marker, ROWS_PER_PARTITION // 2))
    try:
        copy = start_copy(spark, broker.bootstrap, source, target, tmp_path, ROWS_PER_EPOCH * 2)
        with pytest.raises(Exception, match="crashed"):
            copy.awaitTermination(DEADLINE_SECONDS)
        with pytest.raises(Exception, match="crashed"):
            archive(spark, archive_job(broker.bootstrap, source, tmp_path, ROWS_PER_EPOCH * 2))
        assert len(list(tmp_path.glob("died-*"))) == 2
        run_both(spark, broker.bootstrap, source, target, tmp_path)
    finally:
        register(spark)
    assert archived(spark, tmp_path) == EXPECTED
    check_copy(values(spark, broker.bootstrap, target), 2 * ROWS_PER_EPOCH)


def test_a_killed_broker(spark, tmp_path):
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    broker = TpcBroker(tmp_path / "broker", cores_count=1)
    broker.start()
    try:
        quiet = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        admin = AdminClient(quiet)
        for future in admin.create_topics([NewTopic("source", 2), NewTopic("target", 2)]).values():
            future.result(15)
        producer = Producer(quiet)
        for number in range(ROWS_PER_PARTITION):
            for partition in (0, 1):
                producer.produce("source", f"{partition}-{number}", partition=partition)
        assert producer.flush(30) == 0
        del admin, producer
        killed_in_the_middle = []

        def kill_and_start():
            wait_until(lambda: committed(tmp_path, 1), "in the middle")
            broker.kill()
            killed_in_the_middle.append(not (tmp_path / "copy" / "commits" / "11").exists())
            broker.start()

        killer = threading.Thread(target=kill_and_start)
        killer.start()
        run_both(spark, broker.bootstrap, "source", "target", tmp_path, ROWS_PER_EPOCH)
        killer.join()
        assert killed_in_the_middle == [True]
        assert archived(spark, tmp_path) == EXPECTED
        assert values(spark, broker.bootstrap, "target") == EXPECTED, "nothing had to be repeated"
    finally:
        broker.stop()
