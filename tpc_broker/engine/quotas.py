"""Quotas of clients, as the broker's port has them (`tpc_broker.broker.quotas_port`), over those in C."""

from __future__ import annotations

import ipaddress
import mmap
import os
from typing import TYPE_CHECKING, Any, Final

from tpc_broker._ring import ffi, lib
from tpc_broker.native_bytes import pinned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.broker.quotas_port import QuotaRow
    from tpc_broker.engine.connections import Connections

NODE_BUCKETS: Final = 16_384
"""Of a node's clients together that came to listeners which the cores share."""
NONE, ANY, ADDRESS = -1, -2, -3
_NS_PER_S: Final = 1_000_000_000
_NS_PER_PERCENT: Final = _NS_PER_S / 100
KINDS: Final = ("produce", "fetch", "request", "connection")


def make_node_table() -> int:
    """Memory for what the clients of all cores use; a descriptor, whose it is closes it."""
    descriptor = os.memfd_create("quotas", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, lib.tpc_quota_table_bytes(NODE_BUCKETS))
    return descriptor


class ClientQuotasOfConnections:
    """Of a core's connections."""

    def __init__(self, connections: Connections) -> None:
        self._counted = connections
        self._node_memory: object = None

    def share_quotas(self, descriptor: int, listeners: Sequence[int]) -> None:
        """Count clients of these listeners together with those of the node's other cores (`make_node_table`)."""
        size = lib.tpc_quota_table_bytes(NODE_BUCKETS)
        memory, _size, self._node_memory = pinned(mmap.mmap(descriptor, size), writable=True)
        bits = sum(1 << number for number in listeners)
        _check(lib.tpc_quotas_share(self._counted.pointer, memory, size, bits))

    def set_quotas(
        self, windows: tuple[int, float], rows: list[QuotaRow], addresses: dict[str | None, float]
    ) -> None:
        """Names of hosts among the addresses are left out: nobody is looked up at an accept."""
        kept: list[Any] = []
        rules = ffi.new("tpc_quota_rule[]", len(rows) + len(addresses))
        for rule, row in zip(rules, rows, strict=False):
            rule.user, rule.user_bytes = _name(row.user, kept)
            rule.client, rule.client_bytes = _name(row.client_id, kept)
            rule.limits = [row.produce_bytes, row.fetch_bytes, row.percentage * _NS_PER_PERCENT]
        count = len(rows)
        for address, limit in addresses.items():
            packed = _packed(address)
            if packed is None and address is not None:
                continue
            rule = rules[count]
            rule.user, rule.user_bytes = _bytes(packed or b"", kept)
            if packed is None:
                rule.user_bytes = ANY
            rule.client_bytes, rule.limits = ADDRESS, [limit, 0.0, 0.0]
            count += 1
        of_windows = ffi.new("tpc_quota_windows *", {"count": windows[0], "window_ns": int(windows[1] * _NS_PER_S)})
        _check(lib.tpc_quotas_set(self._counted.pointer, of_windows, rules, count))

    def set_user(self, connection: int, name: str) -> None:
        """Whose quotas count for a connection; ANONYMOUS's before that is said."""
        data = name.encode()
        lib.tpc_connection_set_user(self._counted.pointer, connection, data, len(data))

    def mute(self, connection: int, milliseconds: int) -> None:
        lib.tpc_connection_mute(self._counted.pointer, connection, milliseconds)

    def spent(self, connection: int, client_id: str, spent_ns: int) -> None:
        data = client_id.encode()
        lib.tpc_quota_spent(self._counted.pointer, connection, data, len(data), spent_ns)


def quota_statistics(connections: Connections) -> dict[str, int]:
    """Requests that were throttled, and for how long together, by kind of quota; connections that are muted now."""
    out = ffi.new("tpc_quota_statistics *")
    lib.tpc_quotas_statistics(connections.pointer, out)
    found = {f"{kind}_throttled": int(out.throttled[number]) for number, kind in enumerate(KINDS)}
    found |= {f"{kind}_throttled_ms": int(out.throttled_ms[number]) for number, kind in enumerate(KINDS)}
    return {**found, "muted": int(out.muted)}


def _name(name: str | None, kept: list[Any]) -> tuple[Any, int]:
    if name is None:
        return ffi.NULL, NONE
    return _bytes(name.encode(), kept) if name else (ffi.NULL, ANY)


def _bytes(data: bytes, kept: list[Any]) -> tuple[Any, int]:
    kept.append(ffi.new("uint8_t[]", data or b"\0"))
    return kept[-1], len(data)


def _packed(address: str | None) -> bytes | None:
    """16 bytes; None for what is no address."""
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return None
    return found.packed if found.version == 6 else bytes(10) + b"\xff\xff" + found.packed


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, f"quotas: {os.strerror(-result)}")
