"""``tpc user`` against a running broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import OURS_ONLY, Tpc
from tests.support.waiting import eventually
from tpc_broker.auth import credentials
from tpc_broker.cli import passwords
from tpc_broker.cli.passwords import PasswordError, read_password
from tpc_broker.client import users as client_users

BOTH = {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}
FROM_STDIN = ("--password-file", "-")


def users(command: Tpc, *names: str) -> dict[str, Any]:
    return {one["user"]: one["mechanisms"] for one in json.loads(command("user", "list", *names, "--json"))}


def become(command: Tpc, **wanted: Any) -> None:
    """Kafka answers before its broker knows it."""
    eventually(lambda: {name: users(command).get(name) for name in wanted} == wanted, "the users are so")


def test_a_user_comes_and_goes(command: Tpc, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("pässword\n")
    assert command("user", "add", "cli-anna", "--password-file", str(tmp_path / "secret")) == "Added user cli-anna.\n"
    assert command("user", "add", "cli-bert", "--mechanism", "scram-sha-512", "--iterations", "4096", *FROM_STDIN,
                   stdin="p") == "Added user cli-bert.\n"  # fmt: skip
    become(command, **{"cli-anna": BOTH, "cli-bert": {"SCRAM-SHA-512": 4096}})
    assert users(command, "cli-bert") == {"cli-bert": {"SCRAM-SHA-512": 4096}}
    assert "cli-bert\tSCRAM-SHA-512\t4096" in command("user", "list", "cli-bert").splitlines()
    said = command.error("user", "add", "cli-anna", *FROM_STDIN, stdin="other", code=5)
    assert said == "tpc: there is a user 'cli-anna' already; `tpc user password` changes the password"
    changed = command("user", "password", "cli-bert", "--iterations", "5000", *FROM_STDIN, stdin="new")
    assert changed == "Changed user cli-bert.\n"
    become(command, **{"cli-bert": {"SCRAM-SHA-512": 5000}})
    assert command("user", "delete", "cli-anna", "--mechanism", "SCRAM-SHA-256") == "Deleted user cli-anna.\n"
    become(command, **{"cli-anna": {"SCRAM-SHA-512": 8192}})
    said = command.error("user", "delete", "cli-anna", "--mechanism", "SCRAM-SHA-256", code=4)
    assert said == "tpc: user 'cli-anna' has no SCRAM-SHA-256"
    gone = json.loads(command("user", "delete", "cli-anna", "cli-bert", "--json"))
    assert gone == [{"user": "cli-anna", "result": "deleted"}, {"user": "cli-bert", "result": "deleted"}]
    become(command, **{"cli-anna": None, "cli-bert": None})


@pytest.mark.parametrize("words", [("list",), ("delete",), ("password", *FROM_STDIN)])
def test_who_is_not_there_is_told_and_nothing_else_is_done(command: Tpc, words: tuple[str, ...]) -> None:
    said = command.error("user", *words, "cli-nobody", stdin="p", code=4)
    assert said == "tpc: there is no user 'cli-nobody'; `tpc user list` shows those that are"


@OURS_ONLY
def test_a_name_that_nobody_may_have_is_refused(command: Tpc) -> None:
    said = command.error("user", "add", "cli\nodd", *FROM_STDIN, stdin="p")
    assert "Username must not hold control characters" in said


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("", "the password is empty"),
        ("\n", "the password is empty"),
        ("a\nb\n", "the password has more than one line, or a NUL"),
        ("a\0b", "the password has more than one line, or a NUL"),
        ("x" * 1025, "the password is longer than 1024 bytes"),
        (b"\xff\n", "the password is not UTF-8"),
    ],
)
def test_what_is_no_password_is_refused_without_being_told(command: Tpc, data: str | bytes, why: str) -> None:
    assert command.error("user", "add", "cli-none", *FROM_STDIN, stdin=data, code=2) == f"tpc: {why}"
    assert "cli-none" not in users(command)


def test_without_a_terminal_nothing_is_asked(command: Tpc) -> None:
    said = command.error("user", "add", "cli-none", stdin="p", code=2)
    assert said == "tpc: there is no terminal to ask for the password on: give --password-file FILE, or -"


def test_a_password_is_read_without_its_line_end(tmp_path: Path) -> None:
    for data in (b"a b", b"a b\n", b"a b\r\n"):
        (tmp_path / "file").write_bytes(data)
        assert read_password(str(tmp_path / "file"), "anna") == "a b"
    with pytest.raises(PasswordError, match="No such file"):
        read_password(str(tmp_path / "none"), "anna")


def test_on_a_terminal_it_is_asked_for_twice_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, bool]]] = []
    monkeypatch.setattr(passwords.sys.stdin, "isatty", lambda: True)

    def prompt(text: str, **how: bool) -> str:
        asked.append((text, how))
        return "secret"

    monkeypatch.setattr(passwords.click, "prompt", prompt)
    assert read_password(None, "anna") == "secret"
    assert asked == [("Password of anna", {"hide_input": True, "confirmation_prompt": True, "err": True})]


def test_the_options_say_what_the_broker_and_the_client_hold_to():
    """They are written down once more, so that a command need not load either."""
    broker = (credentials.ITERATIONS_MIN, credentials.ITERATIONS_MAX)
    assert broker == (passwords.ITERATIONS_MIN, passwords.ITERATIONS_MAX)
    assert set(passwords.MECHANISMS) == set(client_users.MECHANISMS)
    assert set(passwords.MECHANISMS) == {each.sasl_name for each in credentials.ScramMechanism}
