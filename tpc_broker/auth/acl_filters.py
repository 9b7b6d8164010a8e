"""Which rules somebody asks about (KIP-290): by each of their parts, or any; by pattern also what covers a name."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.auth.acls import AclBinding, Pattern, Permission
from tpc_broker.auth.operations import Operation, Resource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpc_broker.auth.acls import Rules


class Wanted(Enum):
    """Patterns, besides a single kind of them."""

    ANY = auto()
    MATCH = auto()
    """Those that cover the name: itself, prefixes of it, and `*`."""


class AclFilter(NamedTuple):
    """None is any. `principal`: the whole text; `operation`: ALL is that of rules, not any."""

    resource: Resource | None = None
    pattern: Pattern | Wanted = Wanted.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation | None = None
    permission: Permission | None = None

    def found_in(self, rules: Rules) -> Iterator[AclBinding]:
        """Without looking at all rules, where a name is given."""
        return (binding for binding in self._on_pattern(rules) if self._has_parts(binding))

    def _on_pattern(self, rules: Rules) -> Iterator[AclBinding]:
        if self.name is None:
            of_kind = (rule for rule in rules if self.resource in (None, rule.resource))
            yield from (rule for rule in of_kind if self._is_kind(rule.pattern))
            return
        for resource in (self.resource,) if self.resource is not None else Resource:
            if self.pattern is Wanted.MATCH:
                yield from rules.covering(resource, self.name)
            else:
                for pattern in filter(self._is_kind, Pattern):
                    yield from rules.on(resource, pattern, self.name)

    def _is_kind(self, pattern: Pattern) -> bool:
        return isinstance(self.pattern, Wanted) or self.pattern == pattern

    def _has_parts(self, rule: AclBinding) -> bool:
        return (
            self.principal in (None, str(rule.principal))
            and self.host in (None, rule.host)
            and self.operation in (None, rule.operation)
            and self.permission in (None, rule.permission)
        )
