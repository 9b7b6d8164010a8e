"""What is said where Spark cannot work: a PySpark that is too old, no Java, an old one."""

import importlib.util
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
import pyspark
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark import cloudpickle
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import BinaryType, StructType

from tests.support.waiting import PATIENCE_S
from tpc_broker.spark import session
from tpc_broker.spark.pipelines import progress
from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.source import TpcDataSource

ROOT = Path(__file__).parent.parent.parent
OLD = "import pyspark; pyspark.__version__ = '4.1.1'; "
SAID = "tpc_broker.spark needs PySpark 4.2 or newer; this is 4.1.1"


def run(code, *arguments):
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_an_old_pyspark_is_named_and_other_data_sources_are_found_all_the_same():
    assert run(OLD + "import tpc_broker.spark").stderr.splitlines()[-1] == f"ImportError: {SAID}"
    discovered = run(OLD + "from pyspark_tpc import DefaultSource as d; print(d.name()); d({})")
    assert discovered.stdout == "tpc\n"
    assert discovered.stderr.splitlines()[-1] == f"ImportError: {SAID}"
    arguments = ["pipeline", "archive", "--topic", "t", "--out", "o"]
    command = run(OLD + f"from tpc_broker.cli.main import main; main({arguments})")
    assert command.stderr.splitlines() == [f"tpc: {SAID}; install the extra: pip install 'tpc-broker[spark]'"]


RECIPE = re.compile(
    r"the Python that Spark uses here \(.*\) has no tpc-broker that works: (.*)\. It has C extensions, which "
    r'--py-files .* cannot carry: .*\(docs/spark.md, "On a cluster"\)'
)
UNPACK = """
import pathlib, pickle, sys
for missing in sys.argv[2:]:
    sys.modules[missing] = None
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    try:
        print(type(pickle.loads(path.read_bytes())).__name__)
    except ImportError as error:
        print(error)
"""


@pytest.mark.parametrize("missing", ["tpc_broker", "tpc_broker._bytes"])
def test_a_worker_without_the_package_or_its_extensions_says_what_to_do(tmp_path, missing):
    """As planners and tasks get their objects: pickled by Spark, in a Python that may lack what they need."""
    given = {"bootstrap": "h:1", "subscribe": "t"}
    columns = StructType().add("value", BinaryType())
    source = TpcDataSource(given)
    shipped = [
        source, source.reader(columns), source.streamReader(columns),
        TpcDataSource({"bootstrap": "h:1", "topic": "t"}).writer(columns, overwrite=False), TpcDataSource,
    ]  # fmt: skip
    for number, one in enumerate(shipped):
        (tmp_path / str(number)).write_bytes(cloudpickle.dumps(one))
    assert run(UNPACK, tmp_path).stdout.split() == [type(one).__name__ for one in shipped]
    said = run(UNPACK, tmp_path, missing).stdout.splitlines()
    assert [missing in RECIPE.fullmatch(line)[1] for line in said] == [True] * 5, said
    assert pickle.loads(cloudpickle.dumps(shipped[1]))._options == shipped[1]._options


STAGES = """
import sys
import pyspark.sql.worker.create_data_source, pyspark.sql.worker.lookup_data_sources
import pyspark.sql.worker.plan_data_source_read, pyspark.sql.streaming.python_streaming_source_runner, pyspark.worker
from pyspark.sql.types import BinaryType, StructType
ours, known = ("tpc_broker", "pyspark_tpc"), set(sys.modules)
def loaded(*wanted):
    print(*sorted(name for name in sys.modules.keys() - known if not wanted or name.split(".")[0] in wanted))
from pyspark_tpc import DefaultSource
DefaultSource.name()
loaded(*ours)
source = DefaultSource({"bootstrap": sys.argv[1], "subscribe": sys.argv[2], "startingOffsets": "earliest"})
source.schema()
loaded()
columns = StructType().add("value", BinaryType())
tasks = source.reader(columns).partitions()
reader = source.streamReader(columns)
start = reader.initialOffset()
end = reader.latestOffset(start, reader.getDefaultReadLimit())
reader.partitions(start, end), reader.reportLatestOffset()
loaded()
print(sum(batch.num_rows for task in tasks for batch in reader.read(task)))
loaded()
"""
FOUND_WITH = {
    "pyspark_tpc", "tpc_broker", "tpc_broker._bytes", "tpc_broker._bytes.lib", "tpc_broker.spark",
    "tpc_broker.spark.lag", "tpc_broker.spark.names", "tpc_broker.spark.shipping", "tpc_broker.spark.source",
}  # fmt: skip
"""All that Spark needs to find the data source."""
NOT_TO_PLAN = {
    "cramjam", "difflib", "pandas", "secrets", "ssl",
    "tpc_broker.client.batches", "tpc_broker.client.columns", "tpc_broker.client.configs",
    "tpc_broker.client.producing", "tpc_broker.client.reading", "tpc_broker.client.sasl",
    "tpc_broker.kafka.compression", "tpc_broker.kafka.records", "tpc_broker.log.checkpoint", "tpc_broker.log.indexes",
    "tpc_broker.log.journal", "tpc_broker.spark.epochs", "tpc_broker.spark.folder_log", "tpc_broker.spark.log_starts",
    "tpc_broker.spark.segments", "tpc_broker.spark.session", "tpc_broker.spark.sink", "tpc_broker.spark.task_rows",
    "tpc_broker.spark.value_avro", "tpc_broker.spark.value_json", "tpc_broker.spark.value_protobuf",
}  # fmt: skip
TO_READ = {
    "cramjam", "tpc_broker.client.columns", "tpc_broker.client.reading", "tpc_broker.kafka.compression",
    "tpc_broker.kafka.records", "tpc_broker.spark.task_rows",
}  # fmt: skip


def test_each_of_sparks_processes_imports_only_what_it_is_asked_for(shared_broker):
    """Spark waits ten seconds for one to start, whatever else the machine does."""
    for name in NOT_TO_PLAN:
        assert importlib.util.find_spec(name) or name == "pandas", "it is somewhere else by now"
    admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
    admin.create_topics([NewTopic("imports", 1)])["imports"].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": shared_broker.bootstrap})
    producer.produce("imports", b"one")
    assert producer.flush(PATIENCE_S) == 0
    said = run(STAGES, shared_broker.bootstrap, "imports")
    assert not said.stderr
    found, described, planned, rows, read = (set(line.split()) for line in said.stdout.splitlines())
    assert found == FOUND_WITH
    assert {"tpc_broker.spark.options"} <= described
    assert {"tpc_broker.client.cluster"} <= planned
    assert not NOT_TO_PLAN & (described | planned)
    assert rows == {"1"}
    assert read & NOT_TO_PLAN == TO_READ, "what a broker tells needs no files"


def test_sparks_python_has_byte_code_and_whatever_else_it_had(tmp_path):
    """Without it each process compiles PySpark anew: more than half of its start."""
    lib = Path(pyspark.__file__).parent / "python" / "lib"
    python = session.python_with_byte_code(sys.executable)
    assert python != sys.executable
    (tmp_path / "of_the_user.py").write_text("here = True")
    code = "import pyspark.sql, of_the_user, sys; print(pyspark.__file__, pyspark.sql.__cached__, sys.prefix)"
    for path in (f"{lib}/pyspark.zip:{tmp_path}", str(tmp_path)):
        env = {**os.environ, "PYTHONPATH": path}
        said = subprocess.run([python, "-c", code], env=env, capture_output=True, text=True, check=True).stdout.split()
        assert said[0] == pyspark.__file__
        assert said[1].endswith(".pyc")
        assert said[2] == sys.prefix


def test_a_temporary_folder_that_runs_nothing_costs_only_the_byte_code(monkeypatch):
    def refused(*_arguments, **_more):
        raise PermissionError("noexec")

    monkeypatch.setattr(session.subprocess, "run", refused)
    assert session.python_with_byte_code(sys.executable) == sys.executable


def failing(times, error):
    left = [times]

    def work():
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return "done"

    return work


def test_a_python_process_that_does_not_start_in_time_is_started_again(caplog):
    """Spark gives it ten seconds, whatever else the machine does."""
    late = PySparkException("Python worker failed to connect back.\n\tat org.apache.spark\n" * 30)
    said = "Spark's Python process did not start within ten seconds"
    assert progress.patiently(failing(2, late)) == "done"
    assert [record.message for record in caplog.records] == [f"{said}; it is started again"] * 2
    with pytest.raises(PipelineError) as raised:
        progress.patiently(failing(3, late))
    assert str(raised.value) == f"{said}, 3 times in a row; {progress.TOO_BUSY}"
    with pytest.raises(PySparkException, match="something else"):
        progress.patiently(failing(1, PySparkException("something else")))


class Query:
    """A streaming query that ends at once."""

    recentProgress = ()  # noqa: N815 - Spark's name

    def __init__(self, error):
        self.error = error

    def awaitTermination(self, _seconds):  # noqa: N802 - Spark's name
        if self.error:
            raise self.error
        return True

    def stop(self):
        pass


def test_a_stream_whose_planner_does_not_start_says_so_in_one_line(caplog):
    late = StreamingQueryException("[x] Python worker failed to connect back.\n\tat org.apache.spark")
    ends = [None, late, late]
    progress.follow(lambda: Query(ends.pop()), progress.unwatched, follows=False)
    assert [record.message.partition("; ")[2] for record in caplog.records] == ["the query is started again"] * 2
    with pytest.raises(PipelineError, match=r"within ten seconds, 3 times in a row; this machine is too busy"):
        progress.follow(lambda: Query(late), progress.unwatched, follows=False)
    with pytest.raises(StreamingQueryException, match="no such topic"):
        progress.follow(lambda: Query(StreamingQueryException("no such topic")), progress.unwatched, follows=False)


def java(folder, version):
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2018-07-17' >&2\n")
    program.chmod(0o755)
    return folder


def test_java_that_is_not_there_or_too_old(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(java(tmp_path / "old", "11.0.20") / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(PipelineError, match="needs Java 17 or newer; java is version 11"):
        session.check_master("local[2]")
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "new", "21")))
    session.check_master("local[2]")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match=f"JAVA_HOME is {tmp_path} and has none"):
        session.check_master("local[2]")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match="there is none"):
        session.check_master("local[2]")
