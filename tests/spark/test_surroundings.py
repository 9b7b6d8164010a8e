"""What is said where Spark cannot work: a PySpark that is too old, no Java, an old one."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
from tpc_broker.spark import session
from tpc_broker.spark.pipelines.errors import PipelineError

ROOT = Path(__file__).parent.parent.parent
OLD = "import pyspark; pyspark.__version__ = '4.1.1'; "
SAID = "tpc_broker.spark needs PySpark 4.2 or newer; this is 4.1.1"


def run(code):
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_an_old_pyspark_is_named_and_other_data_sources_are_found_all_the_same():
    assert run(OLD + "import tpc_broker.spark").stderr.splitlines()[-1] == f"ImportError: {SAID}"
    discovered = run(OLD + "from pyspark_tpc import DefaultSource as d; print(d.name()); d({})")
    assert discovered.stdout == "tpc\n"
    assert discovered.stderr.splitlines()[-1] == f"ImportError: {SAID}"
    arguments = ["pipeline", "archive", "--topic", "t", "--out", "o"]
    command = run(OLD + f"from tpc_broker.cli.main import main; main({arguments})")
    assert command.stderr.splitlines() == [f"tpc: {SAID}; install the extra: pip install 'tpc-broker[spark]'"]


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
