"""A dialogue with a peer that has an authorizer: an administrator makes rules, and `User:alice` asks.

The administrator is `User:ANONYMOUS`, a super user, on the plain listener; alice logs in by SCRAM on another, from
127.0.0.1 or another address of this host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.integration.differential.dialogue import (
    Dialogue,
    Line,
    Normaliser,
    Scenario,
    _tries,
    first_epoch_of,
    warm_up,
)
from tests.support.raw_client import Closed, RawConnection
from tests.support.sasl_brokers import LoginLine, SaslBroker, SaslKafka, make_users
from tpc_broker.metadata.access_settings import STANDARD_AUTHORIZER

ALICES_HOST = "127.0.0.2"
ALICE = "User:alice"
SETTINGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
Peer = SaslKafka | SaslBroker
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER = range(2, 8)
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = range(2, 9)
OPERATIONS = range(2, 16)
CLUSTER_NAME = "kafka-cluster"
ANY_FILTER = {
    "ResourceTypeFilter": 1, "ResourceNameFilter": None, "PatternTypeFilter": 1, "PrincipalFilter": None,
    "HostFilter": None, "Operation": 1, "PermissionType": 1,
}  # fmt: skip
ACCESS_SCENARIOS: dict[str, Scenario] = {}

Rule = dict[str, Any]


def access_scenario(function: Scenario) -> Scenario:
    ACCESS_SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


def rule(name: str = CLUSTER_NAME, kind: int = CLUSTER, operation: int = DESCRIBE, **more: Any) -> Rule:
    """A creation of CreateAcls, for alice."""
    return {
        "ResourceType": kind, "ResourceName": name, "ResourcePatternType": LITERAL, "Principal": ALICE,
        "Host": "*", "Operation": operation, "PermissionType": ALLOW, **more,
    }  # fmt: skip


def filter_of(one: Rule) -> Rule:
    """That finds just this rule."""
    return {
        "ResourceTypeFilter": one["ResourceType"], "ResourceNameFilter": one["ResourceName"],
        "PatternTypeFilter": one["ResourcePatternType"], "PrincipalFilter": one["Principal"],
        "HostFilter": one["Host"], "Operation": one["Operation"], "PermissionType": one["PermissionType"],
    }  # fmt: skip


class AccessNormaliser(Normaliser):
    """Rules come in any order."""

    def _DescribeAcls(self, body: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 (the name of the API)
        rules = [
            f"{each['ResourceType']} {each['PatternType']} {each['ResourceName']!r}: {sorted(one.items())}"
            for each in body.pop("Resources")
            for one in each["Acls"]
        ]
        return {**body, "Rules": " | ".join(sorted(rules))}

    def _DeleteAcls(self, body: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 (the name of the API)
        for each in body["FilterResults"]:
            each["MatchingAcls"] = " | ".join(sorted(str(sorted(one.items())) for one in each["MatchingAcls"]))
        return body


@dataclass
class AccessDialogue(Dialogue):
    """`anywhere` and the lines without a name are the administrator's; those named `alice` are hers."""

    normaliser: type[Normaliser] | None = AccessNormaliser
    _others: list[AlicesLine] = field(default_factory=list)

    def line(self, port: int, name: str = "") -> Line:
        if name != "alice":
            return super().line(port, name)
        if (port, name) not in self._lines:
            self._lines[port, name] = self.other(core=self.peer.ports.index(port))
        return self._lines[port, name]

    def other(self, host: str = ALICES_HOST, core: int = 0) -> AlicesLine:
        """A connection of alice's, opened anew each time."""
        line = AlicesLine(self, self.peer.ports[core])
        line.core, line.host = core, host
        self._others.append(line)
        return line

    def close(self) -> None:
        for line in self._others:
            line.close()
        super().close()

    def make(self, *rules: Rule) -> None:
        """Not compared."""
        results = self.guide("CreateAcls", 3, {"Creations": list(rules)})["Results"]
        assert not any(one["ErrorCode"] for one in results), results
        self.settle()

    def drop(self, *rules: Rule) -> None:
        """Not compared."""
        results = self.guide("DeleteAcls", 3, {"Filters": [filter_of(one) for one in rules]})["FilterResults"]
        assert not any(one["ErrorCode"] for one in results), results
        assert all(one["MatchingAcls"] for one in results), results
        self.settle()


class AlicesLine(Line):
    core = 0
    host = ALICES_HOST

    def _open(self) -> RawConnection:
        if self._connection is None:
            self._connection = log_in(self._dialogue.peer, self.core, self.host)
        return self._connection


def log_in(peer: Any, core: int, host: str) -> RawConnection:
    login = LoginLine(peer, core, host)
    answer = login.log_in("alice")
    assert answer["ErrorCode"] == 0, answer
    return login.raw


def begin(peer: Peer) -> int:
    """Start it, with alice as a user who may do nothing. Returns its first leader epoch."""
    peer.start()
    warm_up(peer)
    first_epoch = first_epoch_of(peer)
    make_users(peer.bootstrap)
    for _ in _tries():
        try:
            log_in(peer, 0, ALICES_HOST).close()
        except (AssertionError, Closed):
            continue
        return first_epoch
    raise AssertionError("alice cannot log in")


def cluster_rules() -> Iterator[tuple[str, list[Rule]]]:
    """Operation by pattern by permission by host, as (what it is, rules) pairs."""
    patterns = ((LITERAL, CLUSTER_NAME), (PREFIXED, "kafka"), (PREFIXED, "kafka-cluster"), (PREFIXED, "kafka-x"),
                (LITERAL, "*"))  # fmt: skip
    for operation in OPERATIONS:
        yield f"operation {operation}", [rule(operation=operation)]
    for pattern, name in patterns:
        at = {"ResourcePatternType": pattern}
        if name != CLUSTER_NAME or pattern == PREFIXED:
            continue  # the only name that a rule on the cluster may have
        yield f"{pattern} {name}", [rule(name, **at)]
    for denied in (DESCRIBE, ALTER, ALL, READ):
        for allowed in (DESCRIBE, ALTER, ALL):
            pair = [rule(operation=allowed), rule(operation=denied, PermissionType=DENY)]
            yield f"{allowed} but not {denied}", pair
    for host in (ALICES_HOST, "*", "127.0.0.3", "::ffff:127.0.0.2", "localhost", "", "127.0.0.*", "127.0.0.0/8"):
        yield f"at {host!r}", [rule(Host=host)]
        yield f"not at {host!r}", [rule(), rule(Host=host, operation=CREATE, PermissionType=DENY)]
    for principal in ("User:*", "User:Alice", "Group:alice", "User:ali*", "*:*", "User:"):
        yield f"for {principal!r}", [rule(Principal=principal)]
        yield f"not for {principal!r}", [rule(), rule(Principal=principal, PermissionType=DENY)]


__all__ = ["ACCESS_SCENARIOS", "AccessDialogue", "begin"]
