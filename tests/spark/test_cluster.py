"""The same job on a standalone cluster: one master, two workers, one executor each, one of which is killed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pyspark = pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
from tests.spark.interrupting import RELEASED
from tests.spark.test_kills import (
    DEADLINE_SECONDS,
    EXPECTED,
    MIDDLE,
    ROOT,
    archived,
    check_copy,
    committed,
    driver_of_its_own,
    source,  # noqa: F401 - a fixture
    target,  # noqa: F401 - a fixture
    wait_until,
)
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.spark
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
WORK = "work"
"""Folders of the workers' applications, with a number behind it."""
LOOPBACK = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")


class StandaloneCluster:
    """Spark's own daemons on free ports; whatever they start ends with them."""

    def __init__(self, folder):
        self._folder = folder
        self._daemons = []
        self.master = ""

    def start(self, workers_count):
        log = self._start("master", "org.apache.spark.deploy.master.Master", *LOOPBACK)
        self.master = self._wait_for(log, r"Starting Spark master at (spark://\S+)")
        for number in range(workers_count):
            place = ("--cores", "1", "--memory", "700m", "--work-dir", str(self._folder / f"{WORK}{number}"))
            worker = ("org.apache.spark.deploy.worker.Worker", *LOOPBACK, *place, self.master)
            log = self._start(f"worker{number}", *worker)
            self._wait_for(log, r"(Successfully registered with master)")

    def executors(self):
        """The JVMs in which tasks run."""
        found = []
        for daemon in self._daemons:
            for child in psutil.Process(daemon.pid).children(recursive=True):
                try:
                    if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                        found.append(child)
                except psutil.NoSuchProcess:
                    continue
        return found

    def stop(self):
        """What they start is of their process groups, also what is about to delete a folder."""
        children = [child for daemon in self._daemons for child in psutil.Process(daemon.pid).children(recursive=True)]
        for daemon in self._daemons:
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
        psutil.wait_procs(children, PATIENCE_S)

    def _start(self, name, *command):
        log = self._folder / f"{name}.log"
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment = {**inherited, "SPARK_DAEMON_MEMORY": "200m", "SPARK_LOCAL_IP": "127.0.0.1"}
        with log.open("wb") as output:
            daemon = subprocess.Popen(
                [str(SPARK_CLASS), *command],
                stdout=output, stderr=output, env=environment, start_new_session=True,
            )  # fmt: skip
        self._daemons.append(daemon)
        return log

    def _wait_for(self, log, pattern):
        def look():
            assert self._daemons[-1].poll() is None, log.read_text()
            return re.search(pattern, log.read_text())

        return eventually(look, pattern, not_yet=(), patience_s=DEADLINE_SECONDS)[1]


@pytest.fixture
def cluster(tmp_path):
    made = StandaloneCluster(tmp_path)
    try:
        made.start(2)
        yield made
    finally:
        made.stop()


def test_a_cluster_that_loses_an_executor(spark, broker, cluster, source, target, tmp_path):  # noqa: F811 - fixtures
    settings = {
        "spark.executor.memory": "500m", "spark.executor.cores": "1", "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": str(ROOT), "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.task.maxFailures": "8", "spark.sql.shuffle.partitions": "2",
    }  # fmt: skip
    more = (f"waiting={MIDDLE}", *(f"{key}={value}" for key, value in settings.items()))
    with driver_of_its_own(cluster.master, broker.bootstrap, source, target, tmp_path, *more) as (driver, log):
        wait_until(lambda: committed(tmp_path), "in the middle", driver, log)
        running = cluster.executors()
        assert len(running) == 2, "the work is done elsewhere"
        running[0].kill()
        (tmp_path / RELEASED).touch()
        assert driver.wait(DEADLINE_SECONDS) == 0, log.read_text()
    assert archived(spark, tmp_path) == EXPECTED
    check_copy(broker, target)
