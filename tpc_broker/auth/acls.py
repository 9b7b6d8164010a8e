"""Rules of access, and what they decide: as Kafka's StandardAuthorizer does (KIP-11, KIP-290, KIP-801).

Who is a super user may do everything. Else any rule that matches and denies wins over all that allow. A rule matches
with its principal (or `User:*`, which is all of kind `User`), its host (or `*`), and its operation (or ALL); it is on a
resource of its very name (LITERAL; `*` is every name), or on all whose names begin with its own (PREFIXED). Leave to
READ, WRITE, DELETE or ALTER is also leave to DESCRIBE, and ALTER_CONFIGS to DESCRIBE_CONFIGS; a denial is of nothing
besides. Where no rule is on a resource at all, a setting says what is so.

`Rules` is a value: a change gives another, which shares what did not change. A decision costs a few lookups and a
bisection, however many rules there are. Each node of a pattern has its rules by principal and host, as two bit fields.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.auth.principals import USER, Principal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tpc_broker.auth.principals import Subject

ANY_NAME: Final = "*"
ANY_HOST: Final = "*"
EVERYBODY: Final = Principal(USER, "*")
ACLS_MAX: Final = 65_536
"""Rules of a cluster."""
ANSWERS_KEPT_MAX: Final = 4096
"""Of `allows_some`, which is the only question that may look at all rules of somebody."""
EVERY_BIT: Final = sum(1 << operation for operation in Operation if operation != Operation.ALL)
_DESCRIBING: Final = (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)


class Pattern(IntEnum):
    """How a rule's name is meant, with Kafka's numbers."""

    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """With Kafka's numbers."""

    DENY = 2
    ALLOW = 3


class AclBinding(NamedTuple):
    """One rule. `host`: the text that was given; `operation`: ALL too."""

    resource: Resource
    pattern: Pattern
    name: str
    principal: Principal
    host: str
    operation: Operation
    permission: Permission


class _Entry(NamedTuple):
    """What a rule says besides its pattern and principal."""

    host: str
    operation: Operation
    permission: Permission


class _Bits(NamedTuple):
    """Operations, each by its bit; `allowed` has the implied ones."""

    allowed: int
    denied: int


class _Node(NamedTuple):
    """The rules on one pattern. `bits`: by principal and then by host, which is normal there."""

    entries: Mapping[Principal, frozenset[_Entry]]
    bits: Mapping[Principal, Mapping[str, _Bits]]

    def collect(self, subject: Subject, host: str) -> _Bits:
        allowed = denied = 0
        for principal in _named_by(subject):
            by_host = self.bits.get(principal)
            if by_host is not None:
                for each in (host, ANY_HOST):
                    found = by_host.get(each)
                    if found is not None:
                        allowed |= found.allowed
                        denied |= found.denied
        return _Bits(allowed, denied)


class _Prefixes(NamedTuple):
    """Sorted names; `parents[i]` is the place of the longest other one that `names[i]` begins with, or -1."""

    names: tuple[str, ...] = ()
    parents: tuple[int, ...] = ()

    def of(self, name: str) -> Iterator[str]:
        """Those that `name` begins with: they are before it, and its neighbour begins with them, too."""
        place = bisect_right(self.names, name) - 1
        while place >= 0 and not name.startswith(self.names[place]):
            place = self.parents[place]
        while place >= 0:
            yield self.names[place]
            place = self.parents[place]


class _Table(NamedTuple):
    """The rules on resources of one kind."""

    literal: Mapping[str, _Node]
    prefixed: Mapping[str, _Node]
    prefixes: _Prefixes
    patterns: Mapping[Principal, frozenset[tuple[Pattern, str]]]
    """That have rules for a principal."""

    def nodes_on(self, name: str) -> Iterator[_Node]:
        """Of all patterns that cover a resource."""
        for literal in (name, ANY_NAME) if name != ANY_NAME else (name,):
            node = self.literal.get(literal)
            if node is not None:
                yield node
        yield from (self.prefixed[prefix] for prefix in self.prefixes.of(name))

    def nodes_on_all_of(self, prefix: str) -> Iterator[_Node]:
        """Of the patterns that cover every resource whose name begins with it."""
        node = self.literal.get(ANY_NAME)
        if node is not None:
            yield node
        yield from (self.prefixed[each] for each in self.prefixes.of(prefix))


_NO_TABLE: Final = _Table({}, {}, _Prefixes(), {})


class Rules:
    """All rules of a cluster. Equal to another with the same rules."""

    __slots__ = ("_count", "_tables")

    def __init__(self, tables: Mapping[Resource, _Table] = MappingProxyType({}), count: int = 0) -> None:
        """Without arguments: none. Others come from `changed`."""
        self._tables = tables
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[AclBinding]:
        for resource in sorted(self._tables):
            table = self._tables[resource]
            for pattern, nodes in ((Pattern.LITERAL, table.literal), (Pattern.PREFIXED, table.prefixed)):
                for name in sorted(nodes):
                    yield from _bindings(resource, pattern, name, nodes[name])

    def __contains__(self, binding: AclBinding) -> bool:
        entries = self._entries(binding.resource, binding.pattern, binding.name).get(binding.principal)
        return entries is not None and _Entry(*binding[4:]) in entries

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rules):
            return NotImplemented
        return self is other or (self._count == other._count and set(self) == set(other))

    def __hash__(self) -> int:
        return hash(self._count)

    def on(self, resource: Resource, pattern: Pattern, name: str) -> Iterator[AclBinding]:
        """The rules on one pattern."""
        table = self._tables.get(resource, _NO_TABLE)
        nodes = table.literal if pattern == Pattern.LITERAL else table.prefixed
        if name in nodes:
            yield from _bindings(resource, pattern, name, nodes[name])

    def covering(self, resource: Resource, name: str) -> Iterator[AclBinding]:
        """The rules on a resource of that name: on the name, on prefixes of it, and on `*`."""
        for literal in dict.fromkeys((name, ANY_NAME)):
            yield from self.on(resource, Pattern.LITERAL, literal)
        for prefix in self._tables.get(resource, _NO_TABLE).prefixes.of(name):
            yield from self.on(resource, Pattern.PREFIXED, prefix)

    def changed(self, added: Iterable[AclBinding] = (), removed: Iterable[AclBinding] = ()) -> Rules:
        """These without `removed` and with `added`: what is there already, or is not there, changes nothing."""
        changes: dict[Resource, dict[tuple[Pattern, str], dict[Principal, set[_Entry]]]] = {}
        count = self._count
        for is_added, bindings in ((False, removed), (True, added)):
            for binding in bindings:
                resource, pattern, name, principal = binding[:4]
                of_pattern = changes.setdefault(resource, {}).setdefault((pattern, name), {})
                entries = of_pattern.get(principal)
                if entries is None:
                    entries = set(self._entries(resource, pattern, name).get(principal, ()))
                    of_pattern[principal] = entries
                before = len(entries)
                (entries.add if is_added else entries.discard)(_Entry(*binding[4:]))
                count += len(entries) - before
        tables = dict(self._tables)
        for resource, of_kind in changes.items():
            tables[resource] = _changed_table(tables.get(resource, _NO_TABLE), of_kind)
        return Rules({kind: table for kind, table in tables.items() if table.literal or table.prefixed}, count)

    def collect(self, subject: Subject, resource: Resource, name: str) -> _Bits | None:
        """What the rules on a resource say to somebody; None: none is on it, whomever it names."""
        table = self._tables.get(resource)
        return None if table is None else _together(table.nodes_on(name), subject)

    def allows_some(self, subject: Subject, operation: Operation, resource: Resource, *, without_rules: bool) -> bool:
        """Whether a name may exist for which the operation is allowed. `without_rules`: it is, where no rule is."""
        table = self._tables.get(resource, _NO_TABLE)
        bit = 1 << operation
        elsewhere = _together(table.nodes_on_all_of(""), subject)
        if elsewhere is None:
            if without_rules:
                return True
        elif elsewhere.denied & bit:
            return False
        elif elsewhere.allowed & bit:
            return True
        for principal in _named_by(subject):
            for pattern, name in table.patterns.get(principal, ()):
                nodes = table.nodes_on(name) if pattern == Pattern.LITERAL else table.nodes_on_all_of(name)
                found = _together(nodes, subject)
                if found is not None and found.allowed & ~found.denied & bit:
                    return True
        return False

    def _entries(self, resource: Resource, pattern: Pattern, name: str) -> Mapping[Principal, frozenset[_Entry]]:
        table = self._tables.get(resource, _NO_TABLE)
        node = (table.literal if pattern == Pattern.LITERAL else table.prefixed).get(name)
        return {} if node is None else node.entries


NO_RULES: Final = Rules()


class AclAuthorizer:
    """Decides by rules, super users, and what is so where no rule is on a resource."""

    def __init__(self, rules: Rules, super_users: frozenset[Principal], *, allows_without_rules: bool) -> None:
        self._rules = rules
        self._super_users = super_users
        self._allows_without_rules = allows_without_rules
        self._answers: dict[tuple[Subject, Operation, Resource], bool] = {}

    def allowed(self, subject: Subject, resource: Resource, name: str) -> int:
        """All operations that are allowed, each by its bit."""
        if subject.principal in self._super_users:
            return EVERY_BIT
        found = self._rules.collect(subject, resource, name)
        if found is None:
            return EVERY_BIT if self._allows_without_rules else 0
        return found.allowed & ~found.denied

    def allows(self, subject: Subject, operation: Operation, resource: Resource, name: str) -> bool:
        return bool(self.allowed(subject, resource, name) >> operation & 1)

    def allows_some(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        """On any resource of that kind that might be (Kafka's `authorizeByResourceType`)."""
        if subject.principal in self._super_users:
            return True
        key = subject, operation, resource
        answer = self._answers.get(key)
        if answer is None:
            answer = self._rules.allows_some(subject, operation, resource, without_rules=self._allows_without_rules)
            if len(self._answers) >= ANSWERS_KEPT_MAX:
                self._answers.clear()
            self._answers[key] = answer
        return answer


class RefusesAll:
    """In place of rules that are not known yet."""

    def allowed(self, _subject: Subject, _resource: Resource, _name: str) -> int:
        return 0

    def allows(self, _subject: Subject, _operation: Operation, _resource: Resource, _name: str) -> bool:
        return False

    def allows_some(self, _subject: Subject, _operation: Operation, _resource: Resource) -> bool:
        return False


def normal_host(text: str) -> str:
    """One text for each address, and an IPv4 address for one that is mapped into IPv6; other texts as they are."""
    return _normal_host(text) if ":" in text else text


@lru_cache(maxsize=4096)
def _normal_host(text: str) -> str:
    try:
        address = ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def _named_by(subject: Subject) -> tuple[Principal, ...]:
    """By which principals of rules it is named."""
    principal = subject.principal
    return (principal, EVERYBODY) if principal.kind == USER else (principal,)


def _together(nodes: Iterable[_Node], subject: Subject) -> _Bits | None:
    host = normal_host(subject.host)
    allowed = denied = 0
    is_any = False
    for node in nodes:
        is_any = True
        found = node.collect(subject, host)
        allowed |= found.allowed
        denied |= found.denied
    return _Bits(allowed, denied) if is_any else None


def _bindings(resource: Resource, pattern: Pattern, name: str, node: _Node) -> Iterator[AclBinding]:
    for principal in sorted(node.entries):
        for entry in sorted(node.entries[principal]):
            yield AclBinding(resource, pattern, name, principal, *entry)


def _changed_table(
    table: _Table, changes: Mapping[tuple[Pattern, str], Mapping[Principal, set[_Entry]]]
) -> _Table:
    """`changes`: all rules of a principal on a pattern from now on."""
    literal, prefixed = dict(table.literal), dict(table.prefixed)
    patterns: dict[Principal, set[tuple[Pattern, str]]] = {}
    for (pattern, name), of_pattern in changes.items():
        nodes = literal if pattern == Pattern.LITERAL else prefixed
        node = _changed_node(nodes.get(name), of_pattern)
        if node.entries:
            nodes[name] = node
        else:
            nodes.pop(name, None)
        for principal in of_pattern:
            if principal not in patterns:
                patterns[principal] = set(table.patterns.get(principal, ()))
            (patterns[principal].add if principal in node.entries else patterns[principal].discard)((pattern, name))
    prefixes = table.prefixes if prefixed.keys() == table.prefixed.keys() else _sorted_prefixes(prefixed)
    of_all = {**table.patterns, **{principal: frozenset(those) for principal, those in patterns.items()}}
    return _Table(literal, prefixed, prefixes, {principal: those for principal, those in of_all.items() if those})


def _changed_node(node: _Node | None, changes: Mapping[Principal, set[_Entry]]) -> _Node:
    entries, bits = (dict(node.entries), dict(node.bits)) if node is not None else ({}, {})
    for principal, rules in changes.items():
        if rules:
            entries[principal] = frozenset(rules)
            bits[principal] = _bits_by_host(rules)
        else:
            entries.pop(principal, None)
            bits.pop(principal, None)
    return _Node(entries, bits)


def _bits_by_host(entries: Iterable[_Entry]) -> dict[str, _Bits]:
    found: dict[str, _Bits] = {}
    for entry in entries:
        host = normal_host(entry.host)
        allowed, denied = found.get(host, (0, 0))
        if entry.permission == Permission.DENY:
            denied |= _named(entry.operation)
        else:
            allowed |= _with_implied(entry.operation)
        found[host] = _Bits(allowed, denied)
    return found


def _named(operation: Operation) -> int:
    return EVERY_BIT if operation == Operation.ALL else 1 << operation


def _with_implied(operation: Operation) -> int:
    bits = _named(operation)
    if operation in _DESCRIBING:
        bits |= 1 << Operation.DESCRIBE
    if operation == Operation.ALTER_CONFIGS:
        bits |= 1 << Operation.DESCRIBE_CONFIGS
    return bits


def _sorted_prefixes(names: Iterable[str]) -> _Prefixes:
    in_order = sorted(names)
    parents: list[int] = []
    open_ones: list[int] = []
    for place, name in enumerate(in_order):
        while open_ones and not name.startswith(in_order[open_ones[-1]]):
            open_ones.pop()
        parents.append(open_ones[-1] if open_ones else -1)
        open_ones.append(place)
    return _Prefixes(tuple(in_order), tuple(parents))
