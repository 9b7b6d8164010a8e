"""What rules decide, said once more: by looking at every rule, without any index."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

from tpc_broker.auth.acls import AclBinding, Pattern, Permission
from tpc_broker.auth.operations import Operation, Resource

if TYPE_CHECKING:
    from collections.abc import Collection

    from tpc_broker.auth.principals import Principal, Subject

IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def decides(
    rules: Collection[AclBinding],
    super_users: Collection[Principal],
    asked: tuple[Subject, Operation, Resource, str],
    *,
    without_rules: bool,
) -> bool:
    subject, operation, resource, name = asked
    if subject.principal in super_users:
        return True
    on_resource = [rule for rule in rules if rule.resource == resource and _is_on(rule, name)]
    if not on_resource:
        return without_rules
    matching = [rule for rule in on_resource if _is_about(rule, subject)]
    if any(rule.permission == Permission.DENY and rule.operation in {operation, Operation.ALL} for rule in matching):
        return False
    enough = {operation, Operation.ALL, *IMPLIED.get(operation, ())}
    return any(rule.permission == Permission.ALLOW and rule.operation in enough for rule in matching)


def decides_on_some(
    rules: Collection[AclBinding],
    super_users: Collection[Principal],
    asked: tuple[Subject, Operation, Resource],
    *,
    without_rules: bool,
) -> bool:
    """By trying every name that could make a difference: each rule's own, names that go on behind each, and one that
    no rule knows.
    """
    subject, operation, resource = asked
    names = {rule.name for rule in rules if rule.resource == resource}
    tried = {"~none"} | names | {name + "~behind" for name in names}
    return any(
        decides(rules, super_users, (subject, operation, resource, name), without_rules=without_rules) for name in tried
    )


def _is_on(rule: AclBinding, name: str) -> bool:
    if rule.pattern == Pattern.PREFIXED:
        return name[: len(rule.name)] == rule.name
    return rule.name in {name, "*"}


def _is_about(rule: AclBinding, subject: Subject) -> bool:
    is_everybodys = str(rule.principal) == "User:*" and subject.principal.kind == "User"
    if rule.principal != subject.principal and not is_everybodys:
        return False
    return rule.host == "*" or _address(rule.host) == _address(subject.host)


def _address(text: str) -> str:
    """IPv6 with an IPv4 address inside is that one."""
    try:
        return str(getattr(ip_address(text), "ipv4_mapped", None) or ip_address(text))
    except ValueError:
        return text
