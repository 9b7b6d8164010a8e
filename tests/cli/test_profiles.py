"""Profiles, completion by the shell, and that every command explains itself."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.cli.conftest import Tpc
from tests.support.ports import free_port_range
from tpc_broker.cli.main import main

SELF_EXPLAINING = {"rounds", "cores", "rows", "value_bytes", "partitions", "compression"}
"""Options of `tpc bench`, and one of `tpc produce`, whose values say all."""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "tpc" / "profiles.json"


def run(*arguments: str, code: int = 0, **environment: str) -> str:
    done = CliRunner().invoke(main, arguments, env=environment, prog_name="tpc", catch_exceptions=False)
    assert done.exit_code == code, (done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def test_a_profile_says_where_the_broker_is(config: Path, command: Tpc) -> None:
    run("profile", "set", "here", "--bootstrap", command.broker.bootstrap, "-X", "client.id=till")
    run("profile", "set", "dead", "--bootstrap", f"127.0.0.1:{free_port_range(1)}", "-X", "sasl.password=hush")
    assert config.stat().st_mode & 0o077 == 0
    run("topic", "list", "--profile", "here")
    assert "no broker answers" in run("topic", "list", "--profile", "dead", code=3)
    run("topic", "list", TPC_PROFILE="here")
    run("topic", "list", "--profile", "dead", "--bootstrap", command.broker.bootstrap, "-X", "sasl.password=x")
    run("profile", "use", "here")
    run("topic", "list")
    assert run("profile", "list").splitlines()[2] == f"here\tyes\t{command.broker.bootstrap}\tclient.id=till"
    told = json.loads(run("profile", "list", "--json"))
    assert [one["properties"] for one in told] == [{"sasl.password": "***"}, {"client.id": "till"}]
    told = json.loads(run("profile", "set", "more", "--bootstrap", "x:1", "--json"))
    assert told == {"profile": "more", "file": str(config)}
    assert json.loads(run("profile", "use", "more", "--json")) == {"profile": "more", "current": True}
    assert json.loads(run("profile", "remove", "more", "--json")) == {"profile": "more", "removed": True}
    run("profile", "remove", "here")
    assert [one["profile"] for one in json.loads(run("profile", "list", "--json"))] == ["dead"]


def test_settings_of_a_profile_reach_librdkafka(config: Path, command: Tpc) -> None:
    run("profile", "set", "odd", "--bootstrap", command.broker.bootstrap, "-X", "no.such.property=1")
    assert 'No such configuration property: "no.such.property"' in run("topic", "list", "--profile", "odd", code=2)


def test_a_profile_that_is_not_there_is_named(config: Path) -> None:
    said = run("topic", "list", "--profile", "nowhere", code=4)
    assert said == f"tpc: there is no profile 'nowhere' in {config}; there are: none\n"
    assert "there is no profile 'x'" in run("profile", "use", "x", code=4)
    assert "there is no profile 'x'" in run("profile", "remove", "x", code=4)


def test_a_file_that_is_damaged_is_named(config: Path) -> None:
    config.parent.mkdir()
    for text in ("{", "[]", '{"current": "", "profiles": {"a": 1}}', "\0"):
        config.write_text(text)
        assert run("profile", "list", code=2).startswith(f"tpc: {config} cannot be read as profiles: ")
        assert f"tpc: {config} cannot be read" in run("topic", "list", code=2)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell: str) -> None:
    assert "_TPC_COMPLETE" in run("completion", shell)
    asked = {"COMP_WORDS": "tpc gr", "COMP_CWORD": "1" if shell != "fish" else "gr"}
    offered = run(_TPC_COMPLETE=f"{shell}_complete", **asked)
    assert "group" in offered
    assert "topic" not in offered


def commands(at: click.Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    below = at.commands.items() if isinstance(at, click.Group) else ()
    return [(path, at), *(found for name, one in below for found in commands(one, (*path, name)))]


def test_every_command_and_option_explains_itself() -> None:
    unexplained = []
    for path, one in commands(main):
        options = [option for option in one.params if isinstance(option, click.Option)]
        missing = [str(option.name) for option in options if not option.help]
        unexplained += [(*path, name) for name in missing if name not in SELF_EXPLAINING]
        unexplained += [] if one.help else [path]
    assert unexplained == []


def test_no_secret_of_a_profile_is_listed(config: Path) -> None:
    secrets = ("ssl.key.pem", "ssl.key.password", "sasl.oauthbearer.config", "sasl.password", "ssl.certificate.pem")
    shown = {"ssl.key.location": "/etc/key", "client.id": "till"}
    given = {**dict.fromkeys(secrets, "hush"), **shown}
    options = [text for one in given.items() for text in ("-X", "=".join(one))]
    run("profile", "set", "safe", "--bootstrap", "x:1", *options)
    assert json.loads(run("profile", "list", "--json"))[0]["properties"] == {**dict.fromkeys(secrets, "***"), **shown}
    assert "hush" not in run("profile", "list")


@pytest.mark.parametrize("name", ["bootstrap.servers", "metadata.broker.list"])
def test_an_address_is_no_setting(config: Path, name: str) -> None:
    """Commands that ask by the project's own client would go elsewhere than those of librdkafka."""
    expected = f"{name}: the address is given by --bootstrap HOST:PORT, or by `tpc profile set`\n"
    assert run("profile", "set", "odd", "--bootstrap", "x:1", "-X", f"{name}=y:1", code=2) == f"tpc: -X {expected}"
    assert run("topic", "list", "-X", f"{name}=y:1", code=2) == f"tpc: -X {expected}"
    config.parent.mkdir(parents=True, exist_ok=True)
    old = {"bootstrap": "x:1", "properties": {name: "y:1"}}
    config.write_text(json.dumps({"current": "", "profiles": {"old": old}}))
    assert run("topic", "list", "--profile", "old", code=2) == f"tpc: the profile's setting {expected}"
