"""A broker for the tests of this folder, and the command `tpc` in this process, which costs a start of Python less.

With TPC_TEST_BROKER=kafka the broker is Apache Kafka: a test that fails there is wrong about Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import CliRunner

from tests.support.server_process import Broker
from tests.support.shared_servers import is_kafka_asked, once
from tpc_broker.cli import connection
from tpc_broker.cli.main import main

T = TypeVar("T")
OURS_ONLY = pytest.mark.skipif(is_kafka_asked(), reason="a setting, or words, of ours")


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

    def once(self, make: Callable[[Tpc], T]) -> T:
        """What several tests want to find there."""
        return once(self.broker, make, self)

    def values(self, *arguments: str) -> list[str]:
        return self("consume", *arguments).splitlines()

    def error(self, *arguments: str, stdin: str | bytes = "", code: int = 1) -> str:
        """The one line of a failure."""
        _out, said = self.run(*arguments, stdin=stdin, code=code)
        (line,) = said.splitlines()
        assert line.startswith("tpc: ")
        return line


@pytest.fixture
def command(clients_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tpc:
    connection.leave_interrupts_alone()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # the profiles of who runs the tests are not meant
    return Tpc(clients_broker)
