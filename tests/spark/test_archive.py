"""``tpc pipeline archive`` as a user runs it, killed in the middle."""

import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.cli.main import main

pq = pytest.importorskip("pyarrow.parquet", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.spark
DEADLINE_SECONDS = 240


def command(broker, topic, out):
    return [
        sys.executable, "-m", "tpc_broker.cli.main", "pipeline", "archive", "--bootstrap", broker.bootstrap,
        "--topic", topic, "--out", str(out), "--master", "local[2]", "--rows-per-epoch", "2000", "--json",
    ]  # fmt: skip


def test_every_record_is_in_the_archive_once_though_the_job_was_killed(spark, broker, topic, produce, tmp_path):
    for partition in (0, 1):
        produce(topic, partition, [f"{partition}-{number}" for number in range(3000)])
    out = tmp_path / "archive"
    job = subprocess.Popen(command(broker, topic, out), start_new_session=True, stderr=subprocess.DEVNULL)

    def is_past_its_second_epoch():
        assert job.poll() is None, "the job ended before it could be killed"
        return (out / "_spark_metadata" / "2.compact").exists()

    try:
        eventually(is_past_its_second_epoch, "its second epoch ends", not_yet=(), patience_s=DEADLINE_SECONDS)
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
    without_list = sum(pq.read_metadata(path).num_rows for path in out.glob("date=*/*.parquet"))
    assert without_list == len(found)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["control-c", "terminated"])
def test_a_signal_ends_a_job_that_follows_with_one_line(broker, topic, produce, tmp_path, number):
    produce(topic, 0, ["a"])
    job = subprocess.Popen(
        [*command(broker, topic, tmp_path / "out"), "--follow"], stderr=subprocess.PIPE, text=True
    )  # fmt: skip

    def is_past_its_first_epoch():
        assert job.poll() is None, job.stderr.read()
        return (tmp_path / "out" / "_checkpoint" / "commits" / "0").exists()

    try:
        eventually(is_past_its_first_epoch, "its first epoch ends", not_yet=(), patience_s=DEADLINE_SECONDS)
        job.send_signal(number)
        said = job.communicate(timeout=DEADLINE_SECONDS)[1]
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 128 + number, said
    assert said.splitlines()[-1] == "tpc: stopped; the next run goes on from here"
    assert "tpc_broker/cli" not in said, "a traceback of the command (Spark's own late workers may leave theirs)"


@pytest.fixture(scope="module")
def two_topics(admin):
    from confluent_kafka.admin import NewTopic

    names = {"t": "test_archive-one", "u": "test_archive-other"}
    for future in admin.create_topics([NewTopic(name, 1) for name in names.values()]).values():
        future.result(PATIENCE_S)
    return names


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["archive", "--topic", "t", "--out", "o", "--master", "mesos"], "--master mesos: expected local[N]"),
        (["archive", "--topic", "t", "--out", "o", "--master", "spark://127.0.0.1:1"], "no Spark master answers at"),
        (["archive", "--topic", "t", "--out", "o", "--master", "spark://a..b:1"], "no host has such a name"),
        (["archive", "--topic", "t", "--out", "o", "--master", "sc://host"], "Spark Connect"),
        (["archive", "--topic", "t", "--out", "o", "--conf", "memory=1"], "--conf memory=1: expected spark.KEY=VALUE"),
        (["archive", "--topic", "t", "--out", "o", "--option", "ssl=1"], "--option ssl=1: expected kafka.KEY=VALUE"),
        (["archive", "--topic", "t", "--out", "o", "--file-size", "big"], "'big' is not a size"),
        (["backfill", "--from", "/nowhere", "--topic", "t", "--checkpoint", "c"], "there is no folder /nowhere"),
        (["backfill", "--from", "/tmp", "--topic", "t", "--checkpoint", "c", "--rate", "fast"], "the rate 'fast'"),
        (["replay", "--topic", "t", "--to", "u", "--checkpoint", "c", "--from", "monday"], "'monday' is none of"),
        (["replay", "--topic", "t", "--to", "u", "--checkpoint", "c", "--sql", "x", "--select", "y"], "give one"),
        (["replay", "--topic", "t", "--to", "u", "--checkpoint", "c", "--from", "latest"], "'latest' is none of"),
        (["quality", "--checkpoint", "c"], "--topic or --archive is needed"),
        (["quality", "--archive", "/tmp", "--checkpoint", "c", "--until", "2026-11-21"], "are for topics"),
        (["compact-archive", "--from", "/nowhere", "--out", "o"], "there is no folder /nowhere"),
    ],
)
def test_what_cannot_be_is_said_at_once(broker, two_topics, arguments, said):
    arguments = [two_topics.get(word, word) for word in arguments]
    done = CliRunner().invoke(main, ["pipeline", *arguments, "--bootstrap", broker.bootstrap])
    assert done.exit_code in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_topic_is_one_line(broker, tmp_path):
    done = subprocess.run(
        command(broker, "no-such-topic", tmp_path / "out"), capture_output=True, timeout=DEADLINE_SECONDS, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said == "tpc: there is no topic 'no-such-topic'"
