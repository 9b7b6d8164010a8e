"""``tpc quota`` against a running broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Tpc
from tests.support.waiting import eventually
from tpc_broker.client.quotas import QUOTAS

RATE, PERCENT = "producer_byte_rate", "request_percentage"


def quotas(command: Tpc, *options: str) -> list[Any]:
    return [(one["entity"], one["quotas"]) for one in json.loads(command("quota", "list", *options, "--json"))]


def become(command: Tpc, wanted: list[Any], *options: str) -> None:
    """Kafka answers before its broker knows it."""
    eventually(lambda: quotas(command, *options) == wanted, f"the quotas are {wanted}")


def test_a_quota_comes_and_goes(command: Tpc) -> None:
    pair = ("--user", "cli-anna", "--any-client-id")
    said = command("quota", "set", *pair, f"{RATE}=1000000", f"{PERCENT}=12.5", "--dry-run")
    assert said == f"Would change user cli-anna, client-id (any other): {RATE}, {PERCENT}.\n"
    assert quotas(command, "--user", "cli-anna") == []
    said = command("quota", "set", *pair, f"{RATE}=1000000", f"{PERCENT}=12.5")
    assert said == f"Changed user cli-anna, client-id (any other): {RATE}, {PERCENT}.\n"
    entity = {"user": "cli-anna", "client-id": None}
    become(command, [(entity, {RATE: 1e6, PERCENT: 12.5})], "--user", "cli-anna")
    assert f"cli-anna\t(any other)\t\t{RATE}\t1000000" in command("quota", "list", *pair).splitlines()
    command("quota", "set", "--user", "cli-anna", f"{RATE}=5")
    both = [({"user": "cli-anna"}, {RATE: 5.0}), (entity, {RATE: 1e6, PERCENT: 12.5})]
    eventually(lambda: sorted(quotas(command, "--user", "cli-anna"), key=str) == sorted(both, key=str), "there are two")
    changed = json.loads(command("quota", "remove", *pair, RATE, "--json"))
    assert changed == {"entity": entity, "changed": {RATE: None}, "executed": True}
    become(command, [(entity, {PERCENT: 12.5})], *pair)
    command("quota", "remove", *pair)
    command("quota", "remove", "--user", "cli-anna")
    become(command, [], "--user", "cli-anna")


def test_of_addresses(command: Tpc) -> None:
    command("quota", "set", "--ip", "10.9.8.7", "connection_creation_rate=3")
    become(command, [({"ip": "10.9.8.7"}, {"connection_creation_rate": 3.0})], "--ip", "10.9.8.7")
    command("quota", "remove", "--ip", "10.9.8.7")
    become(command, [], "--ip", "10.9.8.7")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("set", f"{RATE}=1"), 2, "whose quota? Give --user, --client-id or both, or --ip (or one of --any-…)"),
        (("set", "--user", "cli-x", "--any-user", f"{RATE}=1"), 2,
         "--user cli-x: and --any-user is another quota; give one of them"),
        (("set", "--user", "cli-x", "rate=1"), 2, f"rate: there are {', '.join(QUOTAS)}"),
        (("set", "--user", "cli-x", f"{RATE}=fast"), 2,
         f"{RATE}=fast: expected a number a second, for example producer_byte_rate=1000000"),
        (("remove", "--user", "cli-x"), 4, "there is no quota of that; `tpc quota list` shows those there are"),
        (("remove", "--user", "cli-x", RATE), 4, f"there is no {RATE} of that; `tpc quota list` shows those there are"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_said(command: Tpc, words: tuple[str, ...], code: int, said: str) -> None:
    assert command.error("quota", *words, code=code) == f"tpc: {said}"


def test_what_the_broker_refuses_is_said_in_its_words(command: Tpc) -> None:
    said = command.error("quota", "set", "--user", "cli-x", "--ip", "10.0.0.1", f"{RATE}=1")
    assert "IP entity should not be combined with User or ClientId" in said
    assert f"Quota {RATE} must be greater than 0" in command.error("quota", "set", "--user", "cli-x", f"{RATE}=-1")
