"""The commands that docs/security.md begins with, one after the other, as a newcomer would type them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError

from tests.support.broker_process import TpcBroker
from tests.support.ports import free_port_range
from tests.support.waiting import PATIENCE_S, eventually, stopwatch
from tpc_broker.engine.tls import is_built

pytestmark = pytest.mark.skipif(not is_built(), reason="built without OpenSSL")
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
PASSWORDS = {"ADMINS": "the first one", "ALICES": "hers"}


class SecuredBroker(TpcBroker):
    """Started with the options of the page's command."""

    def __init__(self, folder: Path, options: list[str]) -> None:
        super().__init__(folder, 2)
        self.options = options
        self._first_port = free_port_range(2)

    def start(self) -> None:
        self.launch()
        eventually(lambda: "is ready" in self.log_text(), "it is ready")

    def command(self) -> list[str]:
        found = super().command()
        found[found.index("--listen") + 1] = self.options[self.options.index("--listen") + 1]
        found[found.index("--data") + 1] = str(self.folder / "data")
        return [*found, "--config", str(self.folder / "secure.properties")]


def commands() -> list[str]:
    """The first block of the page, without its comments."""
    block = PAGE.read_text(encoding="utf-8").split("```sh\n")[1].split("```")[0]
    return [line.split("   #")[0].rstrip() for line in block.splitlines()]


def as_here(line: str, broker: SecuredBroker) -> str:
    """With this broker's port, these passwords, and a file where somebody would be asked for one."""
    line = line.replace("127.0.0.1:9093", broker.bootstrap)
    for name, password in PASSWORDS.items():
        line = line.replace(f"={name}", f"={shlex.quote(password)}")
    for user in ("admin", "alice"):
        line = line.replace(f"user add {user}", f"user add {user} --password-file {user}.txt")
    module = {"tpc-broker": "tpc_broker.process.main", "tpc": "tpc_broker.cli.main"}
    for program in ("tpc-broker", "tpc"):
        line = f" {line}".replace(f" {program} ", f" {sys.executable} -m {module[program]} ").strip()
    return line


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """Behind the last command; each has ended without an error."""
    folder = tmp_path_factory.mktemp("secured")
    for user, password in (("admin", PASSWORDS["ADMINS"]), ("alice", PASSWORDS["ALICES"])):
        (folder / f"{user}.txt").write_text(password)
        (folder / f"{user}.txt").chmod(0o600)
    lines = commands()
    (serve,) = (line for line in lines if line.startswith("tpc-broker serve"))
    broker = SecuredBroker(folder, shlex.split(serve.removesuffix("&")))
    options = broker.options
    options[options.index("--listen") + 1] = f"SASL_SSL://{broker.bootstrap}"
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config"), "PYTHONPATH": str(ROOT)}
    for line in lines:
        if line == serve:
            broker.start()
            continue
        done = subprocess.run(
            ["bash", "-c", as_here(line, broker)], cwd=folder, env=environment, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    yield broker
    broker.stop()


def settings(broker: SecuredBroker, user: str, password: str) -> dict[str, object]:
    return {
        "bootstrap.servers": broker.bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256",
        "ssl.ca.location": str(broker.folder / "cert.pem"), "sasl.username": user, "sasl.password": password,
        "auto.offset.reset": "earliest", "log_level": 0,
    }  # fmt: skip


def first_of(broker: SecuredBroker, user: str, password: str, group: str) -> bytes | int:
    """A record's value, or what the client is told."""
    told: list[int] = []  # of the connection, which is nobody's record
    more = {"group.id": group, "error_cb": lambda error: told.append(error.code())}
    consumer = Consumer({**settings(broker, user, password), **more})
    consumer.subscribe(["orders"])
    try:
        patience = stopwatch()
        while patience() < PATIENCE_S:
            message = consumer.poll(1)
            if KafkaError._AUTHENTICATION in told:
                return KafkaError._AUTHENTICATION
            if message is None:
                continue
            error = message.error()
            if error is None:
                value = message.value()
                assert value is not None
                return value
            if error.code() not in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
                return error.code()
        raise AssertionError("nobody says anything")
    finally:
        consumer.close()


def test_ten_commands_are_ten(secured: SecuredBroker) -> None:
    assert len(commands()) == 10


def test_alice_reads_what_she_has_written(secured: SecuredBroker) -> None:
    assert first_of(secured, "alice", PASSWORDS["ALICES"], "billing") == b"hello, orders"


def test_she_may_be_in_no_other_group_and_nobody_comes_with_another_password(secured: SecuredBroker) -> None:
    refused = first_of(secured, "alice", PASSWORDS["ALICES"], "another")
    assert refused in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert first_of(secured, "alice", "a guess", "billing") == KafkaError._AUTHENTICATION
