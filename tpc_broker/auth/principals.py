"""Who asks: a principal, at a host. Rules name both, so both together are what is granted something."""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"
"""The only type of principal that connections have; rules may name others, which nobody is."""
PRINCIPAL_NAME_BYTES_MAX: Final = 255


class Principal(NamedTuple):
    """Such as `User:alice`, as Kafka writes it."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""Of a listener without authentication."""


class Subject(NamedTuple):
    """A principal at the address that its connection comes from, as text without a port."""

    principal: Principal
    host: str
