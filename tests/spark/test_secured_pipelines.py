"""Pipelines with a broker behind TLS and SASL: what ``--option`` says reaches driver, planner, tasks and sink alike."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
from confluent_kafka import Producer

from tests.spark.conftest import require_java
from tests.support.tls_proxy import AdvertisingBroker, Proxy, server_context
from tests.support.waiting import PATIENCE_S
from tpc_broker.cli.main import main

pytestmark = pytest.mark.spark
PASSWORD = 'se cret"1'
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{}";'
DEADLINE_SECONDS = 240


@pytest.fixture
def secured(certificates, tmp_path):
    """A proxy with TLS and SCRAM before a broker that holds two records of the topic ``t``, and an empty ``u``."""
    plain, proxy = Proxy(), Proxy(server_context(certificates), {"alice": PASSWORD})
    broker = AdvertisingBroker(tmp_path / "broker", cores_count=1)
    broker.advertised = plain.address
    broker.start()
    try:
        for one in (plain, proxy):
            one.connect_to(broker.host, broker.ports[0])
        producer = Producer({"bootstrap.servers": plain.address})
        for value in (b"one", b"two"):
            producer.produce("t", value, key=b"k")
        assert producer.flush(PATIENCE_S) == 0
        assert producer.list_topics("u", 15).topics["u"].error is None
        broker.advertised = proxy.address
        broker.restart()
        yield proxy
    finally:
        broker.stop()
        for one in (plain, proxy):
            one.close()


def options(proxy, certificates, password):
    given = {
        "security.protocol": "SASL_SSL", "ssl.truststore.location": certificates / "ca.pem",
        "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": JAAS.format(password.replace('"', '\\"')),
    }  # fmt: skip
    pairs = [word for name, value in given.items() for word in ("--option", f"kafka.{name}={value}")]
    return ["--bootstrap", proxy.address, *pairs, "--json"]


def test_an_archive_goes_there_and_back(secured, certificates, tmp_path):
    require_java()

    def run(name, *arguments):
        command = [sys.executable, "-m", "tpc_broker.cli.main", "pipeline", name, *arguments, "--master", "local[2]"]
        done = subprocess.run(
            [*command, *options(secured, certificates, PASSWORD)], capture_output=True, timeout=DEADLINE_SECONDS,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert "se cret" not in done.stderr
        return json.loads(done.stdout)

    out = str(tmp_path / "archive")
    assert run("archive", "--topic", "t", "--out", out)["rows"] == 2
    back = ("--topic", "u", "--checkpoint", str(tmp_path / "checkpoint"))
    assert run("backfill", "--from", out, *back)["offsets"] == 2
    looked = run("quality", "--topic", "u", "--checkpoint", str(tmp_path / "quality"))
    assert [row["records"] for row in looked] == [2]


@pytest.mark.parametrize("password", ["open-sesame", None])
def test_who_may_not_is_told_so_before_spark_starts(secured, certificates, tmp_path, password):
    given = ["--bootstrap", secured.address] if password is None else options(secured, certificates, password)
    arguments = ["pipeline", "archive", "--topic", "t", "--out", str(tmp_path / "out"), *given]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("tpc: ")
    assert "sesame" not in line
    assert not (tmp_path / "out").exists()
