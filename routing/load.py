"""What a partition costs its core, from what is appended to it and read of it.

Theory of operation
-------------------
A core counts batches and bytes of each partition, and the CPU time that it has had in all; CPU time by partition would
cost a look at the clock for every batch. So the counts are weighed by what a batch and a byte cost on the average
(`cost_ns`, from the project's own benchmarks), and what a core's partitions have cost together is held against the CPU
time that it has really had: where that is more (a slower machine, compressed batches, many connections), each partition
is taken for so much more, up to `CORRECTION_MAX`; the rest is not the partitions'. Weights need not be exact: only
differences between the cores of one node count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

Key = TypeVar("Key")

APPEND_NS: Final = 9_000
"""Of one batch: its request, validation, journal entry and answer."""
APPEND_NS_PER_BYTE: Final = 1.3
"""Received, copied, in the journal and written behind."""
READ_NS: Final = 8_000
READ_NS_PER_BYTE: Final = 0.25
CORRECTION_MAX: Final = 3.0


class PartitionUse(NamedTuple):
    """Of one partition since its core has it."""

    appends: int = 0
    append_bytes: int = 0
    reads: int = 0
    read_bytes: int = 0


class CoreUse(NamedTuple, Generic[Key]):
    """Of one core at one moment: its CPU time, and what its partitions have cost since it has them, both in ns."""

    cpu_ns: int
    costs_ns: Mapping[Key, int]


def cost_ns(use: PartitionUse) -> int:
    appended = use.appends * APPEND_NS + use.append_bytes * APPEND_NS_PER_BYTE
    return round(appended + use.reads * READ_NS + use.read_bytes * READ_NS_PER_BYTE)


def loads_between(before: CoreUse[Key], after: CoreUse[Key], seconds: float) -> dict[Key, float]:
    """What each partition took of a CPU between two moments (1.0: all of one). Nothing where the core began anew."""
    cpu_ns = after.cpu_ns - before.cpu_ns
    costs = {key: cost - before.costs_ns.get(key, 0) for key, cost in after.costs_ns.items()}
    together = sum(cost for cost in costs.values() if cost > 0)
    if cpu_ns < 0 or not together:
        return {}
    correction = min(max(cpu_ns / together, 1.0), CORRECTION_MAX)
    return {key: max(0, cost) * correction / 1e9 / seconds for key, cost in costs.items()}
