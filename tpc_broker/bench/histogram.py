"""Latencies in logarithmic buckets, as `native/bench/histogram.h` fills them.

A bucket's width is at most 1/1024 of its values, so every percentile is right to 0.1 %. Histograms of several
connections or rounds are added bucket by bucket; percentiles are never averaged over requests.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

STEPS: Final = 1024
"""Buckets per doubling of the value."""
PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0)


def bucket_of(value: int) -> int:
    """The bucket of a value of 0 or more."""
    if value < 2 * STEPS:
        return value
    shift = value.bit_length() - 11
    return shift * STEPS + (value >> shift)


def highest_in(bucket: int) -> int:
    """The highest value that lands in the bucket."""
    if bucket < 2 * STEPS:
        return bucket
    shift = bucket // STEPS - 1
    return ((bucket - shift * STEPS + 1) << shift) - 1


class Histogram:
    """Counts per bucket. Values are nanoseconds wherever the bench uses it."""

    def __init__(self, buckets: Iterable[tuple[int, int]] = ()) -> None:
        self._counts: Counter[int] = Counter()
        for bucket, count in buckets:
            self._counts[bucket] += count

    def add(self, value: int) -> None:
        self._counts[bucket_of(value)] += 1

    def merge(self, other: Histogram) -> None:
        self._counts.update(other._counts)

    @property
    def count(self) -> int:
        return self._counts.total()

    def buckets(self) -> list[tuple[int, int]]:
        return sorted(self._counts.items())

    def percentile(self, percent: float) -> int:
        """The smallest recorded value (rounded up to its bucket's end) that `percent` % of all do not exceed.

        0 when nothing was recorded.
        """
        total = self.count
        wanted = max(1, -int(-percent * total // 100))
        seen = 0
        for bucket, count in self.buckets():
            seen += count
            if seen >= wanted:
                return highest_in(bucket)
        return 0

    def percentiles_us(self) -> dict[str, float]:
        """The usual percentiles in microseconds, by name."""
        return {f"{percent:g}": round(self.percentile(percent) / 1000, 1) for percent in PERCENTILES}
