"""A broker for the tests of this folder, and the command `tpc` in this process, which costs a start of Python less.

With TPC_TEST_BROKER=kafka the broker is Apache Kafka: a test that fails there is wrong about Kafka.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from tests.support.broker_process import TpcBroker
from tests.support.kafka_peer import KafkaPeer
from tests.support.server_process import Broker
from tpc_broker.cli import connection
from tpc_broker.cli.main import main

OURS_ONLY = pytest.mark.skipif(os.environ.get("TPC_TEST_BROKER") == "kafka", reason="a setting, or words, of ours")
OVERRIDES = {"num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}


class Tpc:
    """The command with the address of a broker; every test has topics and groups of its own names."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def run(self, *arguments: str, stdin: str | bytes = "", code: int = 0) -> tuple[str, str]:
        """Standard output and standard error."""
        address = ("--bootstrap", self.broker.bootstrap)
        done = CliRunner().invoke(main, [*arguments, *address], input=stdin, catch_exceptions=False)
        assert done.exit_code == code, (arguments, done.exit_code, done.stdout, done.stderr)
        return done.stdout, done.stderr

    def __call__(self, *arguments: str, stdin: str | bytes = "") -> str:
        return self.run(*arguments, stdin=stdin)[0]

    def values(self, *arguments: str) -> list[str]:
        return self("consume", *arguments).splitlines()

    def error(self, *arguments: str, stdin: str | bytes = "", code: int = 1) -> str:
        """The one line of a failure."""
        _out, said = self.run(*arguments, stdin=stdin, code=code)
        (line,) = said.splitlines()
        assert line.startswith("tpc: ")
        return line


@pytest.fixture(scope="package")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tpc]:
    connection.leave_interrupts_alone()
    folder = tmp_path_factory.mktemp("cli")
    os.environ["XDG_CONFIG_HOME"] = str(folder)  # the profiles of who runs the tests are not meant
    broker: Broker = TpcBroker(folder, cores_count=2, overrides=OVERRIDES)
    if os.environ.get("TPC_TEST_BROKER") == "kafka":
        broker = KafkaPeer(folder)
    broker.start()
    yield Tpc(broker)
    broker.stop()
    shutil.rmtree(folder, ignore_errors=True)
