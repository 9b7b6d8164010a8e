"""kcat, the Debian package, against a running broker."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.support.today import BASE_MS
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (Debian: kcat)")


def kcat(broker, *arguments: str, standard_input: str = "") -> str:
    done = subprocess.run(
        ["kcat", "-b", broker.bootstrap, *arguments],
        input=standard_input, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def consumed(broker, topic: str, *arguments: str) -> list[str]:
    return kcat(broker, "-C", "-t", topic, "-e", "-q", *arguments).splitlines()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed(broker, topic, codec):
    lines = [f"line {number}" for number in range(200)]
    kcat(broker, "-P", "-t", topic, "-X", f"compression.codec={codec}", standard_input="\n".join(lines) + "\n")
    assert consumed(broker, topic, "-o", "beginning") == lines
    assert consumed(broker, topic, "-o", "190") == lines[190:]
    assert consumed(broker, topic, "-o", "-3") == lines[-3:]


def test_idempotent_producer(broker, topic):
    lines = [f"line {number}" for number in range(500)]
    kcat(broker, "-P", "-t", topic, "-X", "enable.idempotence=true", standard_input="\n".join(lines) + "\n")
    assert consumed(broker, topic, "-o", "beginning") == lines


def test_keys_headers_and_format(broker, topic):
    kcat(broker, "-P", "-t", topic, "-K:", "-H", "h=1", standard_input="k1:v1\nk2:v2\n")
    assert consumed(broker, topic, "-f", r"%k %s %o %h\n") == ["k1 v1 0 h=1", "k2 v2 1 h=1"]


def test_seek_by_time(broker, topic):
    kcat(broker, "-P", "-t", topic, standard_input="a\nb\n")
    assert consumed(broker, topic, "-o", f"s@{BASE_MS}") == ["a", "b"]
    found = kcat(broker, "-Q", "-t", f"{topic}:0:{BASE_MS}")
    assert "offset 0" in found


def test_metadata_as_json(broker, topic):
    kcat(broker, "-P", "-t", topic, standard_input="a\n")
    listed = json.loads(kcat(broker, "-L", "-J", "-t", topic))
    assert [one["topic"] for one in listed["topics"]] == [topic]
    assert len(listed["brokers"]) == len(broker.ports)


@pytest.mark.clients
def test_a_group_commits_and_resumes_after_a_restart(own_broker, topic):
    broker = own_broker
    kcat(broker, "-P", "-t", topic, standard_input="".join(f"{number}\n" for number in range(10)))
    group = ["-q", "-X", "auto.offset.reset=earliest", "-G", f"{topic}-group"]
    assert kcat(broker, *group, "-c", "6", topic).splitlines() == [str(number) for number in range(6)]
    broker.restart()
    assert kcat(broker, *group, "-c", "4", topic).splitlines() == [str(number) for number in range(6, 10)]
