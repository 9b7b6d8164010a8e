"""A dialogue with a peer that has an authorizer: an administrator makes rules, and somebody else asks.

Both are `User:ANONYMOUS`, whom no peer knows better on a listener without authentication, so they are told apart by
their hosts: the administrator at 127.0.0.1, who was given everything by rules before the first scenario, and the one
whom the scenarios are about at 127.0.0.2. A rule for nobody on every name of a kind makes that what no rule allows is
refused, although the peers were started so that all is allowed where no rule is: nobody could have made the first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.integration.differential.dialogue import (
    _ANSWER_SECONDS,
    Dialogue,
    Line,
    Normaliser,
    Scenario,
    _tries,
    first_epoch_of,
    warm_up,
)
from tests.support.raw_client import RawConnection
from tests.support.server_process import Broker
from tpc_broker.metadata.access_settings import STANDARD_AUTHORIZER

ADMIN_HOST, OTHER_HOST = "127.0.0.1", "127.0.0.2"
SETTINGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
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
    """A creation of CreateAcls, for the one whom scenarios are about."""
    return {
        "ResourceType": kind, "ResourceName": name, "ResourcePatternType": LITERAL, "Principal": "User:ANONYMOUS",
        "Host": OTHER_HOST, "Operation": operation, "PermissionType": ALLOW, **more,
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
    """`anywhere` is the administrator's."""

    normaliser: type[Normaliser] | None = AccessNormaliser
    _others: list[OtherLine] = field(default_factory=list)

    def other(self, host: str = OTHER_HOST) -> Line:
        """A connection of the one whom it is about, to the first broker; opened anew each time."""
        line = OtherLine(self, self.peer.ports[0])
        line.host = host
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


class OtherLine(Line):
    host = OTHER_HOST

    def _open(self) -> RawConnection:
        if self._connection is None:
            self._connection = RawConnection("127.0.0.1", self._port, _ANSWER_SECONDS, source=self.host)
        return self._connection


def begin(peer: Broker) -> int:
    """Start it, with everything for the administrator and nothing for others. Returns its first leader epoch."""
    peer.start()
    warm_up(peer)
    first_epoch = first_epoch_of(peer)
    everything = [(kind, "*") for kind in (TOPIC, GROUP, TRANSACTIONAL_ID, USER)] + [(CLUSTER, CLUSTER_NAME)]
    rules = [rule(name, kind, ALL, Host=ADMIN_HOST) for kind, name in everything]
    rules += [rule(name, kind, ALL, Principal="User:nobody", Host="*") for kind, name in everything]
    with RawConnection("127.0.0.1", peer.ports[0]) as connection:
        results = connection.ask("CreateAcls", 3, {"Creations": rules})["Results"]
        assert not any(one["ErrorCode"] for one in results), results
    for _ in _tries():
        if _is_refused(peer):
            return first_epoch
    raise AssertionError("the rules never came into force")


def _is_refused(peer: Broker) -> bool:
    """The last rule of the first request is in force."""
    with RawConnection("127.0.0.1", peer.ports[0], source=OTHER_HOST) as connection:
        return connection.ask("DescribeAcls", 3, ANY_FILTER)["ErrorCode"] != 0


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
    for host in (OTHER_HOST, "*", "127.0.0.3", "::ffff:127.0.0.2", "localhost", "", "127.0.0.*", "127.0.0.0/8"):
        yield f"at {host!r}", [rule(Host=host)]
        yield f"not at {host!r}", [rule(), rule(Host=host, operation=CREATE, PermissionType=DENY)]
    for principal in ("User:*", "User:anonymous", "Group:ANONYMOUS", "User:ANON*", "*:*", "User:"):
        yield f"for {principal!r}", [rule(Principal=principal)]
        yield f"not for {principal!r}", [rule(), rule(Principal=principal, PermissionType=DENY)]


__all__ = ["ACCESS_SCENARIOS", "AccessDialogue", "begin"]
