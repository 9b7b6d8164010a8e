"""Rules of access of a cluster: asked for, made and deleted. The words are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.client.errors import refusal_of
from tpc_broker.client.exchange import Exchange
from tpc_broker.client.requests import in_any_version
from tpc_broker.kafka import ApiKey, messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpc_broker.client.cluster import Cluster

RESOURCES: Final = {
    "topic": 2, "group": 3, "cluster": 4, "transactional-id": 5, "delegation-token": 6, "user": 7,
}  # fmt: skip
CLUSTER_NAME: Final = "kafka-cluster"
"""Of the only resource of its kind."""
ANY: Final = "any"
MATCH: Final = "match"
"""Of filters: whatever covers the name."""
LITERAL: Final = "literal"
PREFIXED: Final = "prefixed"
PATTERNS: Final = {ANY: 1, MATCH: 2, LITERAL: 3, PREFIXED: 4}
OPERATIONS: Final = {
    name: number for number, name in enumerate((
        "ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "CREATE_TOKENS", "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT",
    ), start=2)
}  # fmt: skip
PERMISSIONS: Final = {"DENY": 2, "ALLOW": 3}
_ANY: Final = 1


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """A rule."""

    resource: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which rules are meant; None is any."""

    resource: str | None = None
    name: str | None = None
    pattern: str = ANY
    principal: str | None = None
    host: str | None = None
    operation: str | None = None
    permission: str | None = None


def list_acls(cluster: Cluster, wanted: AclFilter) -> list[Acl]:
    """In order."""
    return cluster.answered(lambda: to_list(wanted).over(cluster.any_connection()))


def add_acls(cluster: Cluster, rules: Sequence[Acl]) -> None:
    """What is there already stays. RefusedError names the first that the broker does not take; others may be there."""
    exchange = to_add(rules)
    cluster.answered(lambda: exchange.over(cluster.any_connection()))


def remove_acls(cluster: Cluster, filters: Sequence[AclFilter]) -> list[Acl]:
    """Those that were there, in order."""
    exchange = to_remove(filters)
    return cluster.answered(lambda: exchange.over(cluster.any_connection()))


def to_list(wanted: AclFilter) -> Exchange[list[Acl]]:
    message = messages.DescribeAclsRequest(**_filter(wanted))

    def read(answer: messages.DescribeAclsResponse) -> list[Acl]:
        if answer.error_code:
            raise refusal_of(answer, "rules of access")
        return sorted(
            Acl(
                _word(RESOURCES, each.resource_type), each.resource_name, _word(PATTERNS, each.pattern_type),
                one.principal, one.host, _word(OPERATIONS, one.operation), _word(PERMISSIONS, one.permission_type),
            )
            for each in answer.resources
            for one in each.acls
        )  # fmt: skip

    return Exchange(ApiKey.DESCRIBE_ACLS, in_any_version(message), read)


def to_add(rules: Sequence[Acl]) -> Exchange[None]:
    kind = messages.CreateAclsRequest
    creations = [
        kind.AclCreation(
            resource_type=_number(RESOURCES, one.resource, "resource"), resource_name=one.name,
            resource_pattern_type=_number(PATTERNS, one.pattern, "pattern"), principal=one.principal, host=one.host,
            operation=_number(OPERATIONS, one.operation, "operation"),
            permission_type=_number(PERMISSIONS, one.permission, "permission"),
        )
        for one in rules
    ]  # fmt: skip

    def read(answer: messages.CreateAclsResponse) -> None:
        for one, result in zip(rules, answer.results, strict=True):
            if result.error_code:
                raise refusal_of(result, f"the rule for {one.principal} on {one.resource} {one.name}")

    return Exchange(ApiKey.CREATE_ACLS, in_any_version(kind(creations=creations)), read)


def to_remove(filters: Sequence[AclFilter]) -> Exchange[list[Acl]]:
    kind = messages.DeleteAclsRequest
    message = kind(filters=[kind.DeleteAclsFilter(**_filter(one)) for one in filters])

    def read(answer: messages.DeleteAclsResponse) -> list[Acl]:
        found = set()
        for result in answer.filter_results:
            if result.error_code:
                raise refusal_of(result, "rules of access")
            found |= {
                Acl(
                    _word(RESOURCES, one.resource_type), one.resource_name, _word(PATTERNS, one.pattern_type),
                    one.principal, one.host, _word(OPERATIONS, one.operation), _word(PERMISSIONS, one.permission_type),
                )
                for one in result.matching_acls
            }  # fmt: skip
        return sorted(found)

    return Exchange(ApiKey.DELETE_ACLS, in_any_version(message), read)


def _filter(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": _ANY if wanted.resource is None else _number(RESOURCES, wanted.resource, "resource"),
        "resource_name_filter": wanted.name,
        "pattern_type_filter": _number(PATTERNS, wanted.pattern, "pattern"),
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": _ANY if wanted.operation is None else _number(OPERATIONS, wanted.operation, "operation"),
        "permission_type": (
            _ANY if wanted.permission is None else _number(PERMISSIONS, wanted.permission, "permission")
        ),
    }


def _number(words: Mapping[str, int], word: str, what: str) -> int:
    if word not in words:
        raise ValueError(f"{what} {word!r}; allowed are {', '.join(sorted(words))}")
    return words[word]


def _word(words: Mapping[str, int], number: int) -> str:
    """A later broker may have more."""
    return next((word for word, known in words.items() if known == number), str(number))
