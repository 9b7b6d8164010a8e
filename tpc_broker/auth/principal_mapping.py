r"""From the name in a client's certificate to that of its principal: Kafka's `ssl.principal.mapping.rules`.

A list of rules, of which the first that fits counts: `RULE:pattern/replacement/`, with `L` or `U` behind it for small
or capital letters, or `DEFAULT`, the name as it is. A pattern has to fit the whole name. `$1` in a replacement is what
the first group took; a group that the pattern does not have stays as it is written. In a replacement `\` takes the
meaning from what follows; in a pattern it is the expression's own.

Patterns are RE2's: they take time in proportion to the name, whatever a certificate says. What Java's expressions have
beside them, such as references back, is refused at the start. A name is mapped as a whole and once, where Java goes on
behind it and may find an empty rest.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import re2

from tpc_broker.auth.principals import PRINCIPAL_NAME_BYTES_MAX

DEFAULT: Final = "DEFAULT"
_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_GROUP: Final = re.compile(r"\\(.)|\$(\d)")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class NoPrincipalError(Exception):
    """The name is that of nobody here."""


class MappingRuleError(ValueError):
    """Rules that cannot be read. The text says which."""


class _Rule(NamedTuple):
    pattern: re2._Regexp | None
    """None: DEFAULT."""
    replacement: str
    letters: str


class PrincipalMapping:
    """The rules of one listener. No state."""

    def __init__(self, rules: str = DEFAULT) -> None:
        """MappingRuleError."""
        self._rules = tuple(_read(rules.strip() or DEFAULT))

    def name_of(self, certified: str) -> str:
        """Without its `User:`; NoPrincipalError when no rule fits, or when what comes of it is no name."""
        for pattern, replacement, letters in self._rules:
            if pattern is None:
                return _checked(certified)
            found = pattern.fullmatch(certified)
            if found is not None:
                name = _filled(replacement, [found.group(), *(group or "" for group in found.groups())])
                return _checked(name.lower() if letters == "L" else name.upper() if letters == "U" else name)
        raise NoPrincipalError("no rule of ssl.principal.mapping.rules fits the name in its certificate")


def _read(rules: str) -> list[_Rule]:
    found, position = [], 0
    while position < len(rules):
        match = _RULE.match(rules, position)
        if match is None:
            raise MappingRuleError(f"{rules[position:]!r} does not begin with RULE:pattern/replacement/[LU] or DEFAULT")
        is_default, pattern, replacement, letters = match.groups()
        try:
            compiled = None if is_default else re2.compile(pattern)
        except re2.error as error:
            raise MappingRuleError(f"{pattern!r} is no expression of RE2: {error}") from None
        found.append(_Rule(compiled, replacement or "", letters or ""))
        position = match.end()
    return found


def _filled(replacement: str, groups: list[str]) -> str:
    def put(match: re.Match[str]) -> str:
        escaped, number = match.groups()
        if escaped is not None:
            return str(escaped)
        return groups[int(number)] if int(number) < len(groups) else match[0]

    return _GROUP.sub(put, replacement)


def _checked(name: str) -> str:
    if not name:
        raise NoPrincipalError("the name that comes of its certificate is empty")
    if _CONTROL.search(name):
        raise NoPrincipalError("the name that comes of its certificate has control characters")
    if len(name.encode()) > PRINCIPAL_NAME_BYTES_MAX:
        raise NoPrincipalError(f"the name that comes of its certificate has over {PRINCIPAL_NAME_BYTES_MAX} bytes")
    return name
