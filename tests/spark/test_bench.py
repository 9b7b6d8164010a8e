"""`tpc bench spark` with few rows: every job runs, sees every row, and stands in the report."""

import shutil
import subprocess
import sys

import pytest

from tests.spark.conftest import require_java
from tpc_broker.bench.kafka_jars import connector_jars, kafka_jars
from tpc_broker.bench.server import PeerUnavailable

pytestmark = pytest.mark.spark
KAFKA_ONLY = "spark-sql-kafka to Kafka: "
"""Nothing in it is ours. Where the disk stood still, Kafka once took more than two minutes: it is tried once more."""


def test_a_small_run_has_all_jobs(tmp_path):
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    require_java()
    try:
        connector_jars(), kafka_jars()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    from tpc_broker.bench.spark_results import SparkResults

    for attempt in range(2):
        report = tmp_path / f"report{attempt}"
        options = ["--rows", "20000", "--rounds", "1", "--warm-ups", "1", "--folder", str(tmp_path)]
        command = [sys.executable, "-m", "tpc_broker.cli.main", "bench", "spark", *options]
        done = subprocess.run(
            [*command, "--output", str(report), "--name", "small"],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        results = SparkResults.load(report / "small.json")
        assert sorted(tmp_path.iterdir()) == [report], "servers and files are gone"
        if not results.failed or not all(failed.startswith(KAFKA_ONLY) for failed in results.failed):
            break
        shutil.rmtree(report)
    assert (results.skipped, results.failed) == ({}, [])
    keys = {cell.key for cell in results.cells if cell.rounds}
    assert keys >= {"ready", "broker", "files", "connector-tpc", "connector-kafka"}
    assert keys >= {"parquet-ready", "archive", "sink-discarded", "sink", "sink-connector-tpc", "sink-connector-kafka"}
    assert "| tpc through the broker |" in done.stdout
