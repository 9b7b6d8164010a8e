"""Jobs on a cluster whose Python lacks this package: the recipes of docs/spark.md, "On a cluster", as they stand there.

A standalone master and a worker, started by Spark's own classes, and `spark-submit` in a folder of its own. What is on
the path of the tests is on nobody's here.
"""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pyspark = pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
from tests.packaging.test_distributions import run, source  # noqa: F401 - a fixture
from tests.spark.conftest import require_java
from tests.spark.test_cluster import WORK, StandaloneCluster
from tests.spark.test_surroundings import RECIPE
from tests.support.environments import environment_of, install, packages_of
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.spark
SPARK_HOME = Path(pyspark.__file__).parent
ARROW = ("pyarrow", "numpy")
LOADED = ("cffi", "_cffi_backend", "cramjam")
"""What this package loads in a worker."""
COUNT = 300
JOB = """
import sys
from pyspark.sql import SparkSession

bootstrap, topic, registers = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
if registers == "registered":
    from tpc_broker.spark import register
    register(spark)
place = {"kafka.bootstrap.servers": bootstrap}
rows = spark.read.format("tpc").options(subscribe=topic, **place).load().select("value")
print("read", rows.count(), len({bytes(row.value) for row in rows.collect()}))
rows.write.format("tpc").mode("append").options(topic=topic, **place).save()
stream = spark.readStream.format("tpc").options(subscribe=topic, startingOffsets="earliest", **place).load()
query = stream.writeStream.format("noop").option("checkpointLocation", "checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
print("streamed", sum(progress.numInputRows for progress in query.recentProgress))
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster(module_tmp_path):
    require_java()
    made = StandaloneCluster(module_tmp_path)
    try:
        made.start(1)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def bare(module_tmp_path):
    """A worker's Python: it has Arrow, and PySpark comes with Spark."""
    return environment_of(module_tmp_path / "bare", *ARROW)


@pytest.fixture(scope="module")
def installed(module_tmp_path, source):  # noqa: F811 - a fixture
    """One with our wheel, too, made of the source as a user makes it."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", module_tmp_path / "wheels", source)
    [wheel] = (module_tmp_path / "wheels").iterdir()
    python = environment_of(module_tmp_path / "installed", *ARROW, *LOADED)
    install(python, wheel)
    return python


@pytest.fixture
def submit(cluster, broker, topic, produce, tmp_path):
    """Run the job; its exit code and all that it said."""
    produce(topic, 0, [f"{number}" for number in range(COUNT)])
    (tmp_path / "job.py").write_text(JOB)
    own = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    inherited = {name: value for name, value in os.environ.items() if "PYTHON" not in name and name != "VIRTUAL_ENV"}

    def start(*options, registers="found", **environment):
        settings = {
            "spark.executor.memory": "500m", "spark.executor.cores": "1", "spark.driver.memory": "500m",
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
        }  # fmt: skip
        common = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        command = [SPARK_HOME / "bin" / "spark-submit", "--master", cluster.master, *common, *options]
        done = subprocess.run(
            [str(word) for word in (*command, "job.py", broker.bootstrap, topic, registers)], cwd=tmp_path,
            env={**inherited, **own, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=4 * PATIENCE_S, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return start


def check(outcome):
    code, said = outcome
    assert code == 0, said[-6000:]
    assert f"read {COUNT} {COUNT}\n" in said
    assert f"streamed {2 * COUNT}\n" in said


@pytest.mark.parametrize("said_by", ["environment", "configuration"])
def test_a_wheel_on_every_machine(submit, installed, said_by):
    """Spark looks for data sources with the Python of the environment only; one that is registered it need not find."""
    assert not any(path.is_symlink() for path in packages_of(installed).glob("tpc_broker*"))
    if said_by == "environment":
        check(submit(PYSPARK_PYTHON=str(installed)))
    else:
        check(submit("--conf", f"spark.pyspark.python={installed}", registers="registered"))


def test_a_packed_environment(submit, installed, tmp_path):
    """Unpacked beside the driver too, which plans with the same command."""
    with tarfile.open(tmp_path / "tpc.tar.gz", "w:gz", compresslevel=1) as packed:
        for path in installed.parent.parent.iterdir():
            packed.dereference = path.name == "lib"  # what is linked here is installed there
            packed.add(path, path.name)
    with tarfile.open(tmp_path / "tpc.tar.gz") as packed:
        packed.extractall(tmp_path / "environment", filter="fully_trusted")
    check(submit("--archives", "tpc.tar.gz#environment", PYSPARK_PYTHON="./environment/bin/python"))


def test_the_error_names_the_recipe_where_workers_lack_the_package(submit, bare, installed, tmp_path):
    """One command, and another Python behind it in a worker's folder, as on another machine."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$PWD" in */{WORK}0/*) exec {bare} "$@";; *) exec {installed} "$@";; esac\n')
    python.chmod(0o755)
    code, said = submit(PYSPARK_PYTHON=str(python))
    assert code != 0
    assert RECIPE.search(said), said[-6000:]


def test_the_error_names_the_recipe_where_planning_lacks_the_package(submit, bare, installed):
    python = ("--conf", f"spark.pyspark.driver.python={installed}", "--conf", f"spark.pyspark.python={bare}")
    code, said = submit(*python, registers="registered")
    assert code != 0
    assert RECIPE.search(said), said[-6000:]
