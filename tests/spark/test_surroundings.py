"""What is said where Spark cannot work: a PySpark that is too old, no Java, an old one."""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
import pyspark
from pyspark import cloudpickle
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import BinaryType, StructType

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
