"""The other PySpark that the extra takes: what Spark's own interfaces are needed for, in an environment of its own."""

import subprocess
from pathlib import Path

import pytest

from tests.spark.conftest import require_java
from tests.support.environments import NotInstalledError, other_pyspark, other_pyspark_version

pyspark = pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
CHOSEN = ("test_smoke.py", "test_source.py", "test_sink.py")


@pytest.fixture(scope="module")
def python():
    require_java()
    try:
        return other_pyspark()
    except NotInstalledError as reason:
        pytest.skip(f"PySpark {other_pyspark_version()} is not there: {reason}")


def run(python, *arguments):
    return subprocess.run([str(python), *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_data_source_on_the_other_pyspark(python, tmp_path):
    said = run(python, "-c", "import pyspark; print(pyspark.__version__)")
    assert said.stdout.strip() == other_pyspark_version() != pyspark.__version__, said.stderr
    options = ("-q", "-p", "no:xdist", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}")
    done = run(python, "-m", "pytest", *options, *(f"tests/spark/{name}" for name in CHOSEN))
    assert done.returncode == 0, done.stdout[-8000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout, done.stdout[-3000:]
