"""Dialogues of clients that log in: in the right order and in others, with the right password and with others."""

from __future__ import annotations

import base64
from typing import Any

from tests.integration.differential.dialogue import Dialogue, Line, Normaliser, Scenario, stable_versions
from tests.support.sasl_brokers import HELLO, MECHANISMS, machine_of
from tests.support.waiting import let_pass

SETTINGS = {"connections.max.reauth.ms": "3600000", "connection.failed.authentication.delay.ms": "0"}
"""Of both brokers."""
SASL_SCENARIOS: dict[str, Scenario] = {}
RENEWAL_PAUSE_S = 1.05
"""Kafka takes no second renewal within a second."""
_RIGHT = b"\0alice\0pass,word=1"


def scenario(function: Scenario) -> Scenario:
    SASL_SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


class SaslNormaliser(Normaliser):
    """Texts are compared as they are."""

    def _text(self, key: str, value: str) -> str:
        return value if key == "ErrorMessage" else super()._text(key, value)

    def _SaslHandshake(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        """In no order."""
        values["Mechanisms"].sort()
        return values

    def _SaslAuthenticate(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        """Nonces and salts are each peer's own."""
        fields = [part.partition(b"=") for part in values["AuthBytes"].split(b",")]
        values["AuthBytes"] = [name + b"=" + (text if name == b"i" else b"") for name, _equals, text in fields]
        return values

    def _ApiVersions(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        return {"ErrorCode": values["ErrorCode"], "is_told": bool(values["ApiKeys"])}


def new(d: Dialogue, name: str) -> Line:
    """A connection to the listener where clients log in."""
    d.normaliser = SaslNormaliser
    return d.line(d.peer.sasl_port, name)  # type: ignore[attr-defined]


def shake(line: Line, mechanism: str, version: int = 1) -> None:
    line.ask("SaslHandshake", version, {"Mechanism": mechanism})


def say(line: Line, message: bytes, version: int = 2) -> dict[str, Any]:
    return line.ask("SaslAuthenticate", version, {"AuthBytes": message})


def prove(line: Line, user: str = "alice", password: str | None = None, mechanism: str = "SCRAM-SHA-256") -> None:
    machine = machine_of(user, password, mechanism)
    message: bytes | None = machine.first()
    while message is not None:
        answer = say(line, message)
        if answer.get("ErrorCode", -1):
            return
        message = machine.next(answer["AuthBytes"])


def is_served(line: Line) -> None:
    line.ask("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": []})


@scenario
def logins(d: Dialogue) -> None:
    for mechanism in MECHANISMS:
        for user, password in (("alice", None), ("alice", "wrong"), ("eve", "x")):
            line = new(d, f"{mechanism} {user} {password}")
            shake(line, mechanism)
            if mechanism == "PLAIN" or user != "eve":  # Kafka ends the one of nobody a message earlier
                prove(line, user, password, mechanism)
                is_served(line)


@scenario
def messages_of_plain(d: Dialogue) -> None:
    for message in (
        b"", b"alice", b"\0alice", b"\0\0x", b"\0alice\0", b"bob" + _RIGHT, b"alice" + _RIGHT, _RIGHT + b"\0", _RIGHT,
        b"\0Alice\0pass,word=1",
    ):  # fmt: skip
        for version in (0, 1, 2):
            line = new(d, f"{message!r} {version}")
            shake(line, "PLAIN")
            say(line, message, version)
            is_served(line)


@scenario
def messages_of_scram(d: Dialogue) -> None:
    for message in (
        b"", b"n,,n=alice,r=abc", b"n,a=alice,n=alice,r=abc", b"n,a=bob,n=alice,r=abc", b"p=tls-unique,,n=alice,r=abc",
        b"n,,n=alice,r=abc,ext=1", b"n,,n=al=ice,r=abc", b"n,,n=alice", b"c=biws,r=abc,p=AAAA",
    ):  # fmt: skip
        line = new(d, repr(message))
        shake(line, "SCRAM-SHA-256")
        say(line, message)
    for change in (
        lambda text: text.replace(b"r=", b"r=x"),
        lambda text: text[:-8] + base64.b64encode(b"other"),
        lambda text: text.replace(b"c=biws", b"c=eSws"),
    ):
        line, machine = new(d, f"{change}"), machine_of("alice")
        shake(line, "SCRAM-SHA-256")
        answer = say(line, machine.first())
        say(line, change(machine.next(answer["AuthBytes"])))
        is_served(line)


@scenario
def what_comes_first(d: Dialogue) -> None:
    for place, ask in enumerate((
        is_served,
        lambda line: say(line, _RIGHT),
        lambda line: line.ask("Metadata", 9, {"Topics": None}),
        lambda line: line.exchange_bytes("odd", b"\0\3\x00"),
    )):  # fmt: skip
        for before in ("nothing", "hello"):
            line = new(d, f"{place} {before}")
            if before == "hello":
                line.ask("ApiVersions", 3, HELLO)
            ask(line)


@scenario
def api_versions_is_told_once(d: Dialogue) -> None:
    line = new(d, "twice")
    line.ask("ApiVersions", 3, HELLO)
    line.ask("ApiVersions", 3, HELLO)
    line = new(d, "after odd ones")
    line.ask("ApiVersions", 3, {**HELLO, "ClientSoftwareName": "a b"})
    line.ask("ApiVersions", 0, {})
    line.ask("ApiVersions", 0, {})


@scenario
def mechanisms_that_are_not_enabled(d: Dialogue) -> None:
    for name in ("GSSAPI", "OAUTHBEARER", "plain", ""):
        for version in (0, 1):
            line = new(d, f"{name} {version}")
            shake(line, name, version)
            shake(line, "PLAIN", version)
            line.close()


@scenario
def what_comes_behind_a_handshake(d: Dialogue) -> None:
    line = new(d, "handshake")
    shake(line, "PLAIN")
    shake(line, "PLAIN")
    is_served(line)
    line = new(d, "hello")
    shake(line, "PLAIN")
    line.ask("ApiVersions", 3, HELLO)
    line = new(d, "another")
    shake(line, "PLAIN")
    line.ask("Metadata", 9, {"Topics": None})
    line = new(d, "a token without a header")
    shake(line, "PLAIN")
    line.exchange_bytes("token", _RIGHT)


@scenario
def tokens_without_a_header(d: Dialogue) -> None:
    line = new(d, "right")
    shake(line, "PLAIN", 0)
    line.exchange_bytes("token", _RIGHT)
    is_served(line)
    line = new(d, "wrong")
    shake(line, "PLAIN", 0)
    line.exchange_bytes("token", b"\0alice\0wrong")
    line = new(d, "with a header")
    shake(line, "PLAIN", 0)
    say(line, _RIGHT)
    line = new(d, "scram")
    machine = machine_of("alice")
    shake(line, "SCRAM-SHA-256", 0)
    first = line.exchange_bytes("token", machine.first())
    assert isinstance(first, bytes)
    line.exchange_bytes("token", machine.next(first))
    is_served(line)


@scenario
def renewals(d: Dialogue) -> None:
    line = new(d, "same")
    shake(line, "SCRAM-SHA-256")
    prove(line)
    for _ in range(2):
        shake(line, "SCRAM-SHA-256")
        prove(line)
        is_served(line)
        let_pass(RENEWAL_PAUSE_S)
    for user, password in (("bob", None), ("alice", "wrong")):
        line = new(d, f"{user} {password}")
        shake(line, "SCRAM-SHA-256")
        prove(line)
        shake(line, "SCRAM-SHA-256")
        prove(line, user, password)
        is_served(line)
    line = new(d, "another mechanism")
    shake(line, "SCRAM-SHA-256")
    prove(line)
    shake(line, "PLAIN")
    say(line, _RIGHT)
    line = new(d, "without a handshake")
    shake(line, "PLAIN")
    say(line, _RIGHT)
    say(line, _RIGHT)
    is_served(line)


@scenario
def renewals_by_mechanisms_that_are_not_enabled(d: Dialogue) -> None:
    for name in ("GSSAPI", "OAUTHBEARER", "plain", ""):
        for version in (0, 1):
            line = new(d, f"{name} {version}")
            shake(line, "PLAIN")
            say(line, _RIGHT)
            shake(line, name, version)
            is_served(line)


@scenario
def delegation_tokens(d: Dialogue) -> None:
    """Of who has logged in; of the anonymous they are in `scenarios_unset`."""
    line = new(d, "alice")
    shake(line, "SCRAM-SHA-256")
    prove(line)
    alice, bob = ({"PrincipalType": "User", "PrincipalName": name} for name in ("alice", "bob"))
    for version in stable_versions("CreateDelegationToken"):
        for renewers in ([], [bob], [{"PrincipalType": "Group", "PrincipalName": "g"}]):
            line.ask("CreateDelegationToken", version, {"Renewers": renewers, "MaxLifetimeMs": -1})
    for owner in (alice, bob, {"PrincipalType": "Group", "PrincipalName": "g"}):
        of = {f"Owner{name}": value for name, value in owner.items()}
        line.ask("CreateDelegationToken", 3, {**of, "Renewers": [], "MaxLifetimeMs": 5})
    for version in stable_versions("RenewDelegationToken"):
        line.ask("RenewDelegationToken", version, {"Hmac": b"x", "RenewPeriodMs": 1})
        line.ask("ExpireDelegationToken", version, {"Hmac": b"x", "ExpiryTimePeriodMs": -1})
    for version in stable_versions("DescribeDelegationToken"):
        for owners in (None, [], [alice], [bob], [alice, bob]):
            line.ask("DescribeDelegationToken", version, {"Owners": owners})
    is_served(line)


@scenario
def logins_where_nobody_has_to(d: Dialogue) -> None:
    d.normaliser = SaslNormaliser
    for version in (0, 1):
        shake(d.anywhere, "PLAIN", version)
        shake(d.anywhere, "odd", version)
    for version in (0, 1, 2):
        say(d.anywhere, _RIGHT, version)
    is_served(d.anywhere)
