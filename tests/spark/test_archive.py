"""``tpc pipeline archive`` as a user runs it, killed in the middle."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.spark
DEADLINE_SECONDS = 90


def command(broker, topic, out):
    return [
        sys.executable, "-m", "tpc_broker.cli.main", "pipeline", "archive", "--bootstrap", broker.bootstrap,
        "--topic", topic, "--out", str(out), "--master", "local[2]", "--rows-per-epoch", "2000", "--json",
    ]  # fmt: skip


@pytest.mark.slow
def test_every_record_is_in_the_archive_once_though_the_job_was_killed(spark, broker, topic, produce, tmp_path):
    for partition in (0, 1):
        produce(topic, partition, [f"{partition}-{number}" for number in range(3000)])
    out = tmp_path / "archive"
    job = subprocess.Popen(command(broker, topic, out), start_new_session=True, stderr=subprocess.DEVNULL)
    give_up_at = time.monotonic() + DEADLINE_SECONDS
    try:
        while not (out / "_spark_metadata" / "2.compact").exists():
            assert job.poll() is None, "the job ended before it could be killed"
            assert time.monotonic() < give_up_at, "the job never finished its second epoch"
            time.sleep(0.02)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    produce(topic, 1, ["late"])
    again = subprocess.run(
        command(broker, topic, out), stdout=subprocess.PIPE, timeout=DEADLINE_SECONDS, check=True, text=True
    )
    said = json.loads(again.stdout)
    assert 0 < said["rows"] < 6001
    rows = spark.read.parquet(str(out)).select("_topic", "_partition", "_offset", "value", "date").collect()
    assert {row._topic for row in rows} == {topic}
    assert all(row.date is not None for row in rows)
    found = sorted((row._partition, row._offset, bytes(row.value).decode()) for row in rows)
    expected = [(partition, number, f"{partition}-{number}") for partition in (0, 1) for number in range(3000)]
    assert found == [*expected, (1, 3000, "late")]


def test_an_unknown_topic_is_one_line(broker, tmp_path):
    done = subprocess.run(
        command(broker, "no-such-topic", tmp_path / "out"), capture_output=True, timeout=DEADLINE_SECONDS, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said == "tpc: no such topic: no-such-topic"
