"""`tpc-broker check-config`: a configuration is judged without starting anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tpc_broker.process.main import main


def check(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["check-config", *arguments], catch_exceptions=False)
    assert done.exit_code == code, (done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def test_what_is_given_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("# a comment\nnum.partitions=3\nnum.io.threads=8\n")
    arguments = ("--config", str(file), "--override", "retention.check=1", "--cores", "2")
    assert "Unknown broker config name: retention.check" in check(*arguments, code=2)
    place = ("--cores", "2", "--listen", "127.0.0.1:9192")
    arguments = ("--config", str(file), "--override", "log.retention.ms=1000", *place)
    told = json.loads(check(*arguments, "--json"))
    assert told["good"] is True
    assert told["settings"] == {"log.retention.ms": "1000", "num.io.threads": "8", "num.partitions": "3"}
    assert (told["cores"], told["without_effect"]) == (2, ["num.io.threads"])
    lines = check(*arguments).splitlines()
    assert lines[0].startswith("The configuration is good: 2 cores on 127.0.0.1:9192")
    assert "  num.io.threads=8  (without effect here)" in lines


def test_a_node_of_a_cluster(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(0o600)
    arguments = (
        "--cluster", "10.1.0.1:9192", "--seeds", "10.1.0.1:9192,10.1.0.2:9192", "--node-id", "7", "--rack", "a",
        "--cluster-secret", str(secret), "--admin", "9644", "--cores", "3",
    )  # fmt: skip
    assert json.loads(check(*arguments, "--json"))["cluster"] == {
        "node": 7, "address": "10.1.0.1:9192", "seeds": ["10.1.0.1:9192", "10.1.0.2:9192"], "rack": "a",
        "has_secret": True,
    }  # fmt: skip
    lines = check(*arguments).splitlines()
    assert lines[1] == "Node 7 of a cluster at 10.1.0.1:9192, a founder; seeds: 10.1.0.1:9192, 10.1.0.2:9192."
    assert json.loads(check("--json"))["cluster"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "/no/such/file"], "--config /no/such/file: No such file or directory"),
        (["--override", "num.partitions=x"], "Invalid value x for configuration num.partitions"),
        (["--override", "message.max.bytes=2000000000"], "must not be above socket.request.max.bytes"),
        (["--listen", "nowhere"], "nowhere"),
        (["--admin", "0"], "--admin 0: expected HOST:PORT"),
        (["--admin", "a..b:9644"], "--admin a..b:9644: no host has such a name"),
        (["--listen", "a..b:9092"], "--listen a..b:9092: no host has such a name"),
        (["--advertise", "a..b:9092"], "--advertise a..b:9092: no host has such a name"),
        (["--datagram", "a..b:9095"], "--datagram a..b:9095: expected ADDRESS:PORT (an IP address)"),
        (["--datagram", "[fe80::1%a..b]:9095"], "--datagram [fe80::1%a..b]:9095: expected ADDRESS:PORT"),
        (["--node-id", "1"], "--node-id goes with --cluster"),
        (["--cluster", "10.1.0.1:9192", "--node-id", "1", "--seeds", "10.1.0.2:9192"], "without --cluster-secret FILE"),
        (["--cluster", "127.0.0.1:9192", "--node-id", "1"], "--cluster needs --seeds"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], said: str) -> None:
    line = check(*arguments, code=2)
    assert line.startswith("tpc-broker: ")
    assert said in line
    assert len(line.splitlines()) == 1
    done = CliRunner().invoke(main, ["check-config", *arguments, "--json"])
    assert (done.exit_code, done.stderr) == (2, line)
    told = json.loads(done.stdout)
    assert (told["good"], f"tpc-broker: {told['reason']}\n") == (False, line)


def test_no_secret_is_shown(tmp_path):
    """Nor a private key that stands in the settings themselves."""
    secrets = {"ssl.key.password": "hunter2", "ssl.keystore.key": "KEYTEXT"}
    config = tmp_path / "c.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in secrets.items()))
    for more in ((), ("--json",)):
        done = CliRunner().invoke(main, ["check-config", "--config", str(config), *more])
        assert done.exit_code == 0, done.output
        assert all(name in done.stdout and value not in done.stdout for name, value in secrets.items())
