"""``tpc send`` against a broker with a port for datagrams."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from tests.cli.conftest import OURS_ONLY
from tests.support.broker_process import TpcBroker
from tests.support.ports import free_port_range
from tpc_broker.cli import connection
from tpc_broker.cli.main import main

pytestmark = [pytest.mark.clients, OURS_ONLY]


class Tpc:
    def __init__(self, folder) -> None:
        self.target = f"127.0.0.1:{free_port_range(1)}"
        self.broker = TpcBroker(folder, cores_count=2, overrides={"num.partitions": "3"})
        self.broker.more_options = ["--datagram", self.target]
        self.broker.start()

    def run(self, *arguments: str, stdin: str | bytes = "", code: int = 0):
        done = CliRunner().invoke(
            main, [*arguments, "--bootstrap", self.broker.bootstrap], input=stdin, catch_exceptions=False
        )
        assert done.exit_code == code, (arguments, done.exit_code, done.stdout, done.stderr)
        return done

    def error(self, *arguments: str, stdin: str | bytes = "", code: int = 1) -> str:
        (line,) = self.run(*arguments, stdin=stdin, code=code).stderr.splitlines()
        return line


@pytest.fixture(scope="module")
def tpc(module_tmp_path) -> Iterator[Tpc]:
    connection.leave_interrupts_alone()
    made = Tpc(module_tmp_path / "broker")
    try:
        for topic in ("readings", "keyed", "compacted"):
            more = ["--config", "cleanup.policy=compact"] if topic == "compacted" else []
            made.run("topic", "create", topic, "--partitions", "3", *more)
        yield made
        made.broker.stop()
    finally:
        made.broker.kill()


def test_lines_are_dealt_out_and_can_be_read(tpc):
    lines = [f"value {number}" for number in range(100)]
    told = tpc.run("send", "readings", "--to", tpc.target, "--json", stdin="\n".join(lines))
    found = json.loads(told.stdout)
    assert (found["topic"], found["records"], found["acknowledged"]) == ("readings", 100, True)
    read = tpc.run("consume", "readings", "--from", "earliest", "--exit-at-end").stdout.splitlines()
    assert set(read) == set(lines)
    assert len(read) <= 100 + found["sent_again"], "once, but for those that were sent again and not refused"


def test_keys_and_one_partition(tpc):
    tpc.run("send", "keyed", "--to", tpc.target, "--partition", "2", "--key-separator", "=", "--hex", stdin="6b=76\n")
    read = tpc.run("consume", "keyed", "--from", "earliest", "--count", "1", "--format", "%p %k %s\\n").stdout
    assert read.split() == ["2", "k", "v"]


def test_what_is_refused_is_told_and_ends_it(tpc):
    said = tpc.error("send", "compacted", "--to", tpc.target, "--partition", "0", stdin="no key\n")
    assert said == "tpc: compacted-0: INVALID_RECORD; 0 records were acknowledged"
    said = tpc.error("send", "readings", "--to", tpc.target, "--partition", "0", stdin="x" * 16_400)
    assert said.startswith("tpc: readings-0: a datagram of 16416 bytes; 16384 are allowed")
    said = tpc.error("send", "readings", "--to", tpc.target, "--key-separator", "=", stdin="a=b\nnothing\n")
    assert "line 2 has no key separator" in said
    said = tpc.error("send", "absent", "--to", tpc.target, code=4)
    assert said.startswith("tpc: there is no topic 'absent'")


def test_nobody_there(tpc):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ("--to", f"127.0.0.1:{port}", "--partition", "0", "--timeout", "0.3")
    assert "no answer from 127.0.0.1" in tpc.error("send", "readings", *arguments, stdin="v\n", code=3)
    tpc.run("send", "readings", *arguments, "--unconfirmed", stdin="v\n")


@pytest.mark.parametrize("target", ["nonsense", ":9", "host:", "host:0", "host:99999"])
def test_where_to_is_checked(tpc, target):
    connection.leave_interrupts_alone()
    done = CliRunner().invoke(main, ["send", "t", "--to", target, "--bootstrap", tpc.broker.bootstrap])
    assert done.exit_code == 2
    assert done.stderr == f"tpc: --to {target}: expected HOST:PORT, several with commas between them\n"


def test_a_name_that_no_host_can_have_is_refused(tpc):
    connection.leave_interrupts_alone()
    done = CliRunner().invoke(main, ["send", "t", "--to", "a..b:9095", "--bootstrap", tpc.broker.bootstrap])
    assert (done.exit_code, done.stderr.splitlines()[1:]) == (2, [])
    assert done.stderr.startswith("tpc: --to a..b:9095: no host has such a name: between dots there are")
