"""kafkajs, of the version that tests/kafkajs names: it writes, and a group of it reads, over a plain listener and over
TLS, logging in.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.sasl_brokers import USERS, make_users
from tests.support.tls_brokers import TlsBroker

pytestmark = pytest.mark.clients
MODULE: Final = Path(__file__).parents[1] / "kafkajs"
SECONDS: Final = 300
PARTITIONS: Final = 4
RECORDS: Final = 500


@pytest.fixture(scope="module")
def program(module_tmp_path: Path) -> Path:
    """Beside its modules."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Node.js is not installed")
    folder = module_tmp_path / "kafkajs"
    shutil.copytree(MODULE, folder)
    fetched = subprocess.run(
        [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    if fetched.returncode:
        pytest.skip(f"kafkajs could not be fetched: {fetched.stderr.strip()[-300:]}")
    return folder / "story.js"


@pytest.fixture(scope="module")
def broker(module_tmp_path: Path, certificates: Path) -> Iterator[TlsBroker]:
    made = TlsBroker(module_tmp_path / "broker", cores_count=2)
    made.certificates = certificates
    made.start()
    make_users(made.bootstrap)
    yield made
    made.stop()


def told(program: Path, **settings: Any) -> dict[str, Any]:
    settings = {"partitions": PARTITIONS, "records": RECORDS, **settings}
    done = subprocess.run(
        ["node", str(program)], env={**os.environ, "STORY": json.dumps(settings)}, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def login(broker: TlsBroker, password: str, mechanism: str) -> dict[str, Any]:
    return {
        "brokers": [broker.safe_bootstrap], "ca": str(broker.certificates / "ca.pem"),
        "sasl": {"mechanism": mechanism, "username": "alice", "password": password},
    }  # fmt: skip


@pytest.mark.parametrize("way", ["plain", "tls", "scram-sha-256", "scram-sha-512"])
def test_what_is_written_is_read_by_a_group(program, broker, way):
    settings: dict[str, Any] = {"brokers": [broker.bootstrap]}
    if way == "tls":
        settings = {"brokers": [broker.tls_bootstrap], "ca": str(broker.certificates / "ca.pem")}
    elif way != "plain":
        settings = login(broker, USERS["alice"], way)
    answer = told(program, topic=f"kafkajs-{way}", **settings)
    assert "found" in answer, answer
    expected = {(f"{compression} {i}", f"value {i}") for compression in (0, 1) for i in range(RECORDS)}
    assert {(key, value) for _partition, key, value in answer["found"]} == expected
    assert {partition for partition, *_record in answer["found"]} == set(range(PARTITIONS))


def test_a_wrong_password_is_refused(program, broker):
    answer = told(program, topic="kafkajs-refused", refused=True, **login(broker, "wrong", "scram-sha-256"))
    assert answer["error"] == "KafkaJSSASLAuthenticationError", answer
    assert "invalid credentials" in answer["text"]
