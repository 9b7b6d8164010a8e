"""Rules of access in the metadata log: the record, and its bindings in JSON with Kafka's words in lower case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.auth.acls import AclBinding, Pattern, Permission
from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.auth.principals import Principal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ACLS_PER_RECORD_MAX: Final = 1000
ACL_TEXT_BYTES_MAX: Final = 1024
"""Of a rule's name, principal and host together, in UTF-8. So a record is no larger than a batch of ours may be."""


@dataclass(frozen=True, slots=True)
class AclsChanged:
    """Rules of access that are there from here on, and others that are not. Written from feature level 6 on."""

    added: tuple[AclBinding, ...]
    removed: tuple[AclBinding, ...] = ()


def acl_records(added: Iterable[AclBinding], removed: Iterable[AclBinding] = ()) -> Iterator[AclsChanged]:
    """As few records as have room for them."""
    changes = [*((True, binding) for binding in added), *((False, binding) for binding in removed)]
    for first in range(0, len(changes), ACLS_PER_RECORD_MAX):
        part = changes[first : first + ACLS_PER_RECORD_MAX]
        yield AclsChanged(
            tuple(binding for is_added, binding in part if is_added),
            tuple(binding for is_added, binding in part if not is_added),
        )


def acl_to_json(binding: AclBinding) -> dict[str, str]:
    """Such as {"resource": "topic", "pattern": "literal", "name": "t", "principal": "User:alice", …}."""
    return {
        "resource": binding.resource.name.lower(),
        "pattern": binding.pattern.name.lower(),
        "name": binding.name,
        "principal": str(binding.principal),
        "host": binding.host,
        "operation": binding.operation.name.lower(),
        "permission": binding.permission.name.lower(),
    }


def acl_from_json(members: Any) -> AclBinding:
    """TypeError, KeyError or ValueError where it is none."""
    if members.keys() != set(AclBinding._fields) or not all(isinstance(text, str) for text in members.values()):
        raise ValueError(f"not a rule of access: {members}")
    principal = Principal.parsed(members["principal"])
    if principal is None:
        raise ValueError(f"not a principal: {members['principal']}")
    return AclBinding(
        Resource[members["resource"].upper()],
        Pattern[members["pattern"].upper()],
        members["name"],
        principal,
        members["host"],
        Operation[members["operation"].upper()],
        Permission[members["permission"].upper()],
    )
