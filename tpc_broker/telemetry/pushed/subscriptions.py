"""Subscriptions to clients' metrics: resources of type CLIENT_METRICS, compiled, and what a client is asked for.

A subscription names metrics by prefixes, an interval, and whom it is for: regular expressions, each of which matches
the whole of what is known of a client. What they may be is said where they are set (`metadata.client_metrics_config`).
"""

from __future__ import annotations

import ipaddress
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.limits import TELEMETRY_MATCHED_BYTES_MAX
from tpc_broker.metadata.client_metrics_config import ALL_METRICS, CLIENT_METRICS_CONFIGS, match_patterns
from tpc_broker.metadata.config_types import ConfigError
from tpc_broker.native_bytes import crc32c

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

INTERVAL_MS_DEFAULT: Final = 300_000


class Client(NamedTuple):
    """What a subscription may match, by the names that it uses. None: that is not known, and nothing matches it."""

    client_instance_id: str
    client_id: str | None
    client_software_name: str | None
    client_software_version: str | None
    client_source_address: str | None
    client_source_port: str | None


def client_of(
    instance_id: uuid.UUID, client_id: str | None, software: tuple[str, str] | None, peer: str
) -> Client:  # fmt: skip
    """`peer`: `127.0.0.1:4711`, `[::1]:4711`, or anything else of one without an address. What is longer than a name
    has to be is taken for unknown: it would take long to match.
    """
    name, version = software if software is not None else (None, None)
    host, _colon, port = peer.rpartition(":")
    address = _address(host.removeprefix("[").removesuffix("]"))
    client_id, name, version = map(_matchable, (client_id, name, version))
    return Client(instance_text(instance_id), client_id, name, version, address, port if address else None)


def _matchable(text: str | None) -> str | None:
    return text if text is not None and len(text.encode()) <= TELEMETRY_MATCHED_BYTES_MAX else None


def instance_text(instance_id: uuid.UUID) -> str:
    """As Kafka writes an id."""
    return urlsafe_b64encode(instance_id.bytes).decode().rstrip("=")


def _address(host: str) -> str | None:
    """As Java writes it: an IPv6 address in full, without leading zeros."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    if found.version == 4:
        return host
    assert isinstance(found, ipaddress.IPv6Address)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return ":".join(f"{int.from_bytes(found.packed[at : at + 2]):x}" for at in range(0, 16, 2))


@dataclass(frozen=True, slots=True)
class Subscription:
    interval_ms: int
    metrics: frozenset[str]
    """Prefixes of names."""
    patterns: tuple[tuple[str, Any], ...]
    """Field of `Client`, and RE2's expression."""

    def matches(self, client: Client) -> bool:
        return all(
            (told := getattr(client, field)) is not None and pattern.fullmatch(told) is not None
            for field, pattern in self.patterns
        )


class Asked(NamedTuple):
    """What one client is asked for."""

    metrics: tuple[str, ...]
    """Empty: nothing."""
    interval_ms: int
    """The shortest of all that match, and never longer than the default."""


class Subscriptions:
    """All of them, as of one version of the metadata."""

    def __init__(self, configs: Mapping[str, Mapping[str, str]], before: Subscriptions | None = None) -> None:
        """`configs`: of each resource, what was set. What cannot be compiled is in `faults`, and matches nobody. What
        is as it was `before` is not compiled again.
        """
        known = before.by_name if before is not None else {}
        self.by_name: dict[str, tuple[dict[str, str], Subscription | ConfigError]] = {
            name: known[name] if name in known and known[name][0] == values else (dict(values), _tried(values))
            for name, values in configs.items()
        }
        found = {name: one for name, (_values, one) in self.by_name.items()}
        self._all = [one for one in found.values() if isinstance(one, Subscription)]
        self.faults = {name: str(one) for name, one in found.items() if isinstance(one, ConfigError)}

    def __len__(self) -> int:
        return len(self._all)

    def asked_of(self, client: Client) -> Asked:
        matching = [one for one in self._all if one.matches(client)]
        interval_ms = min((INTERVAL_MS_DEFAULT, *(one.interval_ms for one in matching)))
        metrics = frozenset[str]().union(*(one.metrics for one in matching))
        return Asked((ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics)), interval_ms)


def _tried(values: Mapping[str, str]) -> Subscription | ConfigError:
    try:
        return compiled(values)
    except ConfigError as error:
        return ConfigError(str(error))  # without what it was raised in


def compiled(values: Mapping[str, str]) -> Subscription:
    """Of what was set. ConfigError: what is wrong with it."""
    interval_ms, metrics, match = (
        row.read(values[row.name]) if row.name in values else row.default
        for row in map(CLIENT_METRICS_CONFIGS.__getitem__, ("interval.ms", "metrics", "match"))
    )
    assert isinstance(interval_ms, int)
    assert isinstance(metrics, tuple)
    assert isinstance(match, tuple)
    return Subscription(interval_ms, frozenset(metrics), tuple(match_patterns(match).items()))


def subscription_id_of(asked: Asked, instance_id: uuid.UUID) -> int:
    """Changes with what is asked for. As Kafka makes it, but for the order of several prefixes."""
    text = f"[{', '.join(asked.metrics)}]{asked.interval_ms}"
    folded = (instance_id.int >> 64) ^ (instance_id.int & (2**64 - 1))
    mixed = crc32c(text.encode()) ^ (folded >> 32) ^ (folded & (2**32 - 1))
    return mixed - 2**32 if mixed >= 2**31 else mixed
