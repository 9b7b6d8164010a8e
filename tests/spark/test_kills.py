"""Nothing is lost and nothing doubled: killed driver, killed task, killed planner, killed broker.

An archive and a copying sink run side by side. What the sink wrote is counted with read_committed, by another client.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
from tests.spark import interrupting
from tests.spark.both_ways import archive_job, start_copy
from tests.spark.conftest import committed_values
from tests.support.broker_process import TpcBroker
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.spark.pipelines.archive import archive

pytestmark = pytest.mark.spark
ROWS_PER_PARTITION = 1200
ROWS_PER_EPOCH = 800
MIDDLE = 500
DEADLINE_SECONDS = 240
EXPECTED = sorted(f"{partition}-{number}" for partition in (0, 1) for number in range(ROWS_PER_PARTITION))
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def target(admin, topic):
    from confluent_kafka.admin import NewTopic

    admin.create_topics([NewTopic(f"{topic}-target", 2)])[f"{topic}-target"].result(PATIENCE_S)
    return f"{topic}-target"


@pytest.fixture
def source(topic, produce):
    for partition in (0, 1):
        produce(topic, partition, [f"{partition}-{number}" for number in range(ROWS_PER_PARTITION)])
    return topic


def archived(spark, folder):
    rows = spark.read.parquet(str(folder / "archive")).select("_partition", "_offset", "value").collect()
    assert all(bytes(row.value).decode() == f"{row._partition}-{row._offset}" for row in rows)
    return sorted(bytes(row.value).decode() for row in rows)


def check_copy(broker, topic):
    """Each row once, and no transaction is left open, which would hide later ones."""
    assert sorted(value.decode() for value in committed_values(broker, topic)) == EXPECTED


def check_repeated(broker, topic, repeated_max):
    """All of it, and what is there twice is no more than what was under way."""
    found = [value.decode() for value in committed_values(broker, topic)]
    assert sorted(set(found)) == EXPECTED
    assert len(found) - len(EXPECTED) <= repeated_max


def wait_until(done, what, process=None, log=None):
    def look():
        assert process is None or process.poll() is None, f"ended before {what}: {log.read_text()}"
        return done()

    eventually(look, what, not_yet=(), patience_s=DEADLINE_SECONDS)


def committed(folder):
    """Both jobs have done their first epoch, and are on their way to `MIDDLE` in the second of three."""
    return all((folder / job / "commits" / "0").exists() for job in ("copy", "archive/_checkpoint"))


def run_both(spark, bootstrap, source, target, folder, rows_per_epoch=10**6, mode="auto"):
    copy = start_copy(spark, bootstrap, source, target, folder, rows_per_epoch, mode)
    archive(spark, archive_job(bootstrap, source, folder, rows_per_epoch))
    assert copy.awaitTermination(DEADLINE_SECONDS)


@contextlib.contextmanager
def driver_of_its_own(master, bootstrap, source, target, folder, *more):
    """Both jobs in another process; whatever is left of it is killed at the end."""
    command = [sys.executable, "-m", "tests.spark.both_ways", master, bootstrap, source, target]
    log = folder / "driver.log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [*command, str(folder), str(ROWS_PER_EPOCH), *more],
            cwd=ROOT, start_new_session=True, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield driver, log
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


@pytest.mark.parametrize("mode", ["true", "false"])
def test_a_killed_driver(spark, broker, source, target, tmp_path, mode):
    """Killed while tasks of both jobs are in the middle of their second epoch, where they wait."""
    place = (broker.bootstrap, source, target, tmp_path, f"waiting={MIDDLE}", f"exactlyOnce={mode}")
    with driver_of_its_own("local[2]", *place) as (driver, log):
        wait_until(lambda: committed(tmp_path), "in the middle", driver, log)
        assert driver.poll() is None
    run_both(spark, broker.bootstrap, source, target, tmp_path, mode=mode)
    assert archived(spark, tmp_path) == EXPECTED
    if mode == "true":
        check_copy(broker, target)
    else:
        check_repeated(broker, target, ROWS_PER_EPOCH)


@pytest.mark.parametrize("moment", ["decided", "half", "noted"])
def test_a_driver_killed_in_the_middle_of_a_commit(spark, broker, source, target, tmp_path, moment):
    """Spark does not know that the epoch is written, and repeats it: all of it, some of it, or nothing is committed."""
    place = (broker.bootstrap, source, target, tmp_path, f"committing={moment}")
    with driver_of_its_own("local[2]", *place) as (driver, log):
        wait_until((tmp_path / interrupting.STOPPED).exists, "in the commit", driver, log)
        assert driver.poll() is None
    assert (tmp_path / interrupting.STOPPED).read_text() == "2", "a transaction for each task"
    assert not (tmp_path / "copy" / "commits" / "1").exists()
    copy = start_copy(spark, broker.bootstrap, source, target, tmp_path, 10**6)
    assert copy.awaitTermination(DEADLINE_SECONDS)
    check_copy(broker, target)


def test_a_killed_task_is_tried_again(spark, broker, source, target, tmp_path):
    """Spark does it again by itself; the process died after it had done its work, before it could say so."""
    place = (broker.bootstrap, source, target, tmp_path, f"dying={MIDDLE}")
    with driver_of_its_own("local[2,3]", *place) as (driver, log):
        assert driver.wait(DEADLINE_SECONDS) == 0, log.read_text()
    assert sorted(path.name for path in tmp_path.glob("died-*")) == ["died-tpc", "died-tpc_files"]
    assert archived(spark, tmp_path) == EXPECTED
    check_copy(broker, target)


def test_a_killed_task_that_ends_the_jobs(spark, broker, source, target, tmp_path):
    """Where Spark does not try again (`local[2]`), both jobs fail and go on when they are started again."""
    with interrupting.installed(spark, interrupting.dying, tmp_path, MIDDLE):
        copy = start_copy(spark, broker.bootstrap, source, target, tmp_path, ROWS_PER_EPOCH)
        with pytest.raises(Exception, match="crashed"):
            copy.awaitTermination(DEADLINE_SECONDS)
        with pytest.raises(Exception, match="crashed"):
            archive(spark, archive_job(broker.bootstrap, source, tmp_path, ROWS_PER_EPOCH))
    run_both(spark, broker.bootstrap, source, target, tmp_path)
    assert archived(spark, tmp_path) == EXPECTED
    check_copy(broker, target)


def planners():
    """Processes in which Spark asks a streaming source for offsets and ranges; of all drivers below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "pyspark.sql.streaming.python_streaming_source_runner" in process.cmdline():
                found.append(process)
    return found


def test_a_killed_planner(spark, broker, source, target, tmp_path):
    """The archive starts its query again by itself; a query of one's own fails and goes on when it is started again."""

    running = []

    def kill():
        wait_until(lambda: committed(tmp_path), "in the middle")
        running.extend(planners())
        for one in running:
            one.kill()
        (tmp_path / interrupting.RELEASED).touch()

    killer = threading.Thread(target=kill)
    killer.start()
    with interrupting.installed(spark, interrupting.waiting, tmp_path, MIDDLE):
        copy = start_copy(spark, broker.bootstrap, source, target, tmp_path, ROWS_PER_EPOCH)
        archive(spark, archive_job(broker.bootstrap, source, tmp_path, ROWS_PER_EPOCH))
        with pytest.raises(Exception, match="STREAM_FAILED"):
            copy.awaitTermination(DEADLINE_SECONDS)
    killer.join()
    assert len(running) == 2
    copy = start_copy(spark, broker.bootstrap, source, target, tmp_path, ROWS_PER_EPOCH)
    assert copy.awaitTermination(DEADLINE_SECONDS)
    assert archived(spark, tmp_path) == EXPECTED
    check_copy(broker, target)


def test_a_killed_broker(spark, tmp_path):
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    broker = TpcBroker(tmp_path / "broker", cores_count=1)
    broker.start()
    try:
        quiet = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        admin = AdminClient(quiet)
        for future in admin.create_topics([NewTopic("source", 2), NewTopic("target", 2)]).values():
            future.result(PATIENCE_S)
        producer = Producer(quiet)
        for number in range(ROWS_PER_PARTITION):
            for partition in (0, 1):
                producer.produce("source", f"{partition}-{number}", partition=partition)
        assert producer.flush(PATIENCE_S) == 0
        del admin, producer

        def kill_and_start():
            wait_until(lambda: committed(tmp_path), "in the middle")
            broker.kill()
            (tmp_path / interrupting.RELEASED).touch()
            time.sleep(0.5)  # for tasks that ask in vain
            broker.start()

        killer = threading.Thread(target=kill_and_start)
        killer.start()
        with interrupting.installed(spark, interrupting.waiting, tmp_path, MIDDLE):
            run_both(spark, broker.bootstrap, "source", "target", tmp_path, ROWS_PER_EPOCH)
        killer.join()
        assert archived(spark, tmp_path) == EXPECTED
        check_copy(broker, "target")
    finally:
        broker.stop()
