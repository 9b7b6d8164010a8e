"""Listeners: where clients are awaited, and what those that come there are told.

A listener has one address for each core, where that core accepts, and one that clients are told for it. Its number is
its place among the broker's listeners; a connection carries the number of the listener that accepted it, a request that
of its connection, and whatever names an address (Metadata, FindCoordinator, DescribeCluster, the endpoints beside
NOT_LEADER_OR_FOLLOWER) names those of that listener. `tpc_broker.metadata.listener_settings` makes them of text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class ListenerMode(StrEnum):
    """How a listener's addresses differ from core to core. Unless they are all one, a client that follows Metadata
    reaches the core that owns the partition.
    """

    PER_CORE_PORT = "per-core-port"
    """One host; core i has the first port plus i."""
    PER_CORE_ADDRESS = "per-core-address"
    """One port; each core has an IP address of its own."""
    SHARED = "shared"
    """One host and one port: clients see one broker, and what another core owns is forwarded."""


class Placement(StrEnum):
    """Which core gets a connection to a shared listener (`tpc_broker.ebpf`)."""

    LOAD = "load"
    """The less loaded of two."""
    CPU = "cpu"
    """The core of the CPU that took the packet."""
    SOURCE_PORT = "source-port"
    """The client's port modulo the number of cores."""


class SecurityProtocol(StrEnum):
    """Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SSL = "SSL"
    SASL_SSL = "SASL_SSL"

    @property
    def authenticates(self) -> bool:
        """Whether clients have to log in (SASL)."""
        return self.value.startswith("SASL_")

    @property
    def encrypts(self) -> bool:
        """Whether all is inside of TLS."""
        return self.value.endswith("SSL")


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listener:
    """`addresses` are bound and `advertised` told to clients, each with one for each core."""

    name: str
    mode: ListenerMode
    addresses: tuple[Address, ...]
    advertised: tuple[Address, ...]
    security: SecurityProtocol = SecurityProtocol.PLAINTEXT
    placement: Placement = Placement.LOAD
    """Of a shared one."""
    mechanisms: tuple[str, ...] | None = None
    """By which clients may log in; None: as the broker's settings say."""
    session_ms_max: int | None = None
    """Until a client has to log in again, likewise."""

    def summary(self) -> str:
        """What clients are told, for people: such as `127.0.0.1:9092-9095`."""
        first, last = self.advertised[0], self.advertised[-1]
        if first == last:
            return str(first)
        return f"{first}-{last.port}" if first.host == last.host else f"{first} to {last}"

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Listener:
        """From what `dataclasses.asdict` and JSON have made of one."""
        return cls(
            name=fields["name"],
            mode=ListenerMode(fields["mode"]),
            addresses=tuple(Address(*each) for each in fields["addresses"]),
            advertised=tuple(Address(*each) for each in fields["advertised"]),
            security=SecurityProtocol(fields["security"]),
            placement=Placement(fields["placement"]),
            mechanisms=None if fields["mechanisms"] is None else tuple(fields["mechanisms"]),
            session_ms_max=fields["session_ms_max"],
        )


# Rule: A client that follows Metadata reaches the owning core directly, on every listener that has an address for each
# core. See also tpc_broker/broker/core.py. Held by tests/integration/test_listeners.py.
def shown_listeners(listeners: Sequence[Listener], core: int) -> dict[str, str]:
    """What one core's DescribeConfigs shows of them, by Kafka's names of the settings."""
    return {
        "listeners": ",".join(f"{each.name}://{each.addresses[core]}" for each in listeners),
        "advertised.listeners": ",".join(f"{each.name}://{each.advertised[core]}" for each in listeners),
    }
