"""`tpc-broker bundle`: what is needed is in it, and planted secrets are not, wherever they were planted."""

from __future__ import annotations

import json
import stat
import tarfile
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.support.broker_process import TpcBroker, run_here
from tests.support.shared_servers import SharedBroker, once
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.operations.redaction import LEFT_OUT, Redaction, is_shown

PASSWORD = "correct-horse-battery"
KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANplanted\n-----END PRIVATE KEY-----"
RECORD = "a-value-of-a-customer"
CONFIG = f"""
# a comment with {PASSWORD}
num.partitions=3
listener.name.outside.ssl.keystore.password={PASSWORD}
listener.name.outside.scram-sha-512.sasl.jaas.config=org.x.Login required username="a" password="jaas-planted";
ssl.keystore.key = keystore-planted
some.unknown.setting=unknown-planted
ssl.keystore.certificate.chain=-----BEGIN CERTIFICATE-----\\
    c2Vjb25kIGxpbmU=
a line without a value planted-line
metrics.url=https://user:url-planted@example.org/x
"""
LOG = f"""
{{"level": "info", "message": "connecting with {PASSWORD} now"}}
sasl.password=log-planted and more
"password": "json-planted", "next": "kept-1"
secret: 'quoted planted value' kept-2
Authorization: Bearer abcdef.ghijkl-bearer-planted
amqp://user:address-planted@host:5672/x
{KEY}
the end of the log, with unknown-planted and kept-3
"""
PLANTED = ("planted", PASSWORD, RECORD, "MIIEvQ", "c2Vjb25kIGxpbmU")


@pytest.fixture
def broker(shared_broker: SharedBroker) -> SharedBroker:
    once(shared_broker, produce, shared_broker)
    return shared_broker


@pytest.fixture(scope="module")
def stopped(module_tmp_path: Path) -> TpcBroker:
    broker = TpcBroker(module_tmp_path / "broker", 1)
    broker.start()
    try:
        produce(broker)
    finally:
        broker.stop()
    return broker


def produce(broker: TpcBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("test-bundle-customers", RECORD.encode(), key=b"planted-key", headers={"h": b"planted-header"})
    assert producer.flush(PATIENCE_S) == 0


def bundle(broker: TpcBroker, target: Path) -> dict[str, str]:
    folder = target.parent
    (folder / "config").write_text(CONFIG)
    (folder / "log").write_text(LOG)
    more = ["--config", str(folder / "config"), "--log", str(folder / "log"), "--override", "my.token=planted"]
    done = run_here("bundle", "--data", str(broker.data_folder), "--out", str(target), *more)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with tarfile.open(target) as archive:
        assert {Path(name).parts[0] for name in archive.getnames()} == {target.name.removesuffix(".tar.gz")}
        files = [(Path(member.name).name, archive.extractfile(member)) for member in archive.getmembers()]
        return {name: file.read().decode() for name, file in files if file is not None}


def test_what_is_needed_is_in_it_and_no_secret(broker: TpcBroker, tmp_path: Path) -> None:
    numbers = count()

    def with_figures() -> tuple[dict[str, str], list[dict[str, Any]]] | None:
        """A core that does not answer in time is left out of a look."""
        parts = bundle(broker, tmp_path / f"b{next(numbers)}.tar.gz")
        looks = [json.loads(parts[f"status-{number}.json"]) for number in (1, 2)]
        return (parts, looks) if all("counters" in look["cores"][0] for look in looks) else None

    found = eventually(with_figures, "two looks at a core that answered in time")
    assert found is not None
    parts, looks = found
    for name, content in parts.items():
        assert [one for one in PLANTED if one in content] == [], name
        assert "not to be had" not in content, (name, content)
    assert [len(look["cores"]) for look in looks] == [2, 2]
    assert looks[0]["cores"][0]["counters"]["ring"]["python_ns"] < looks[1]["cores"][0]["counters"]["ring"]["python_ns"]
    assert "test-bundle-customers-0/00000000000000000000.log" in parts["data-directory.txt"]
    assert {"0000.journal", "0001.journal"} == json.loads(parts["journals.json"]).keys()
    assert json.loads(parts["about.json"])["properties"]["cores"] == "2"
    assert "VmRSS" in parts["processes.txt"]
    assert "io_uring" in parts["doctor.txt"]
    settings = json.loads(parts["settings.json"])
    assert settings["num.partitions"] == "3"
    assert settings["listener.name.outside.ssl.keystore.password"] == LEFT_OUT
    assert settings["some.unknown.setting"] == settings["metrics.url"] == LEFT_OUT
    assert "the end of the log" in parts["log.txt"]
    assert [one for one in ("kept-1", "kept-2", "kept-3") if one not in parts["log.txt"]] == []


def test_one_of_a_stopped_broker_says_what_it_lacks(stopped: TpcBroker, tmp_path: Path) -> None:
    parts = bundle(stopped, tmp_path / "b.tar.gz")
    assert "no broker answers" in parts["status-1.json"]
    rows = json.loads(parts["checkpoints.json"])
    rows_of_it = (row for core in rows.values() for row in core["partitions"])
    found = [row for row in rows_of_it if row["partition"] == "test-bundle-customers-0"]
    assert [row["log_end_offset"] for row in found] == [1]


def test_what_is_refused(broker: TpcBroker, tmp_path: Path) -> None:
    data = ["--data", str(broker.data_folder)]
    there = tmp_path / "there"
    there.touch()
    for more, told in (
        ([*data, "--out", str(there)], f"{there} is there already; give another --out"),
        ([*data, "--out", str(there / "x")], f"{there / 'x'}: Not a directory"),
        ([*data, "--config", str(tmp_path / "no")], f"--config {tmp_path / 'no'}: No such file or directory"),
        ([*data, "--log", str(tmp_path / "no")], f"--log {tmp_path / 'no'}: there is no such file"),
        (["--data", str(tmp_path / "no")], f"--data {tmp_path / 'no'}: there is no such directory"),
    ):
        done = run_here("bundle", *more)
        assert (done.returncode, done.stderr) == (2, f"tpc-broker: {told}\n")
    assert there.read_bytes() == b""


@pytest.mark.parametrize(
    "name",
    ["ssl.key.password", "ssl.keystore.certificate.chain", "sasl.jaas.config", "sasl.oauthbearer.token.endpoint.url",
     "delegation.token.secret.key", "listener.name.x.ssl.keystore.key", "unknown"],
)  # fmt: skip
def test_settings_that_are_not_shown(name: str) -> None:
    assert not is_shown(name)


def test_settings_that_are_shown() -> None:
    assert all(map(is_shown, ("num.partitions", "listeners", "log.retention.ms", "message.max.bytes")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nothing secret here: 5 tokens=3", f"nothing secret here: 5 tokens={LEFT_OUT}"),
        ("https://a:b@c/d", f"https://a:{LEFT_OUT}@c/d"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc", LEFT_OUT),
        ('"ssl.key.password": "a \\"b\\" c", "x": 1', f'"ssl.key.password": "{LEFT_OUT}", "x": 1'),
        ("offset 12: a batch whose checksum does not fit", "offset 12: a batch whose checksum does not fit"),
    ],
)
def test_forms_of_secrets(text: str, expected: str) -> None:
    assert Redaction([]).of_text(text) == expected
