"""What a producer may be told."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tpc_broker.kafka.compression import Compression

MEBIBYTE: Final = 1024 * 1024
Partitioner: TypeAlias = Callable[[str, bytes | None, int], int | None]
"""Topic, key, number of partitions; gives the partition, or None for the default choice."""
CompressionName: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
_UNITS: Final = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def bytes_of(size: int | str, name: str = "size") -> int:
    """Bytes of 1234, "64MiB", "1.5 GiB", "10MB". ``name``: of the option, for the `ValueError`."""
    if isinstance(size, int):
        return size
    found = _SIZE.fullmatch(size)
    if found is None or found[2].lower() not in _UNITS:
        raise ValueError(f"{name}={size!r}: a number of bytes is expected, or one with KiB, MiB or GiB")
    return int(float(found[1]) * _UNITS[found[2].lower()])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Times in seconds. `ValueError` for what makes no sense."""

    memory_bytes: int = 64 * MEBIBYTE
    """Of all records that wait or are under way; whoever hands over more waits."""
    batch_bytes: int = MEBIBYTE
    """Of a batch before it is compressed; a larger record has a batch of its own."""
    request_bytes: int = 8 * MEBIBYTE
    """Of the batches for one broker that go in one request; one batch always does."""
    compression: CompressionName = "none"
    linger_seconds: float = 0.0
    """How long a batch that is not full waits for more records though its broker could take it."""
    delivery_seconds: float = 120.0
    """From handing a record over until it is delivered; then it fails."""
    leave_seconds: float = 10.0
    """How long leaving the client's block waits for what is under way."""
    idempotent: bool = True
    """False: what is sent again after a lost answer may be in the log twice; one batch of a partition is under way."""
    acks: Literal["all", 1] = "all"
    """1: the leader's word is enough, which a failover may break; not with ``idempotent``."""
    partitioner: Partitioner | None = None

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "batch_bytes", "request_bytes", "delivery_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        for name in ("linger_seconds", "leave_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is below 0")
        if self.compression.upper() not in Compression.__members__:
            raise ValueError(f"compression {self.compression!r}; there are none, gzip, snappy, lz4, zstd")
        if self.acks not in ("all", 1):
            raise ValueError(f"acks {self.acks!r}: 'all' or 1 is expected")
        if self.idempotent and self.acks != "all":
            raise ValueError("acks=1 is not possible with idempotent=True: what a failover loses would be a gap")

    @property
    def codec(self) -> Compression:
        return Compression[self.compression.upper()]

    @property
    def acks_number(self) -> int:
        return -1 if self.acks == "all" else 1
