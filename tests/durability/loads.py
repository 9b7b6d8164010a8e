"""What runs while a broker is killed or stopped."""

from __future__ import annotations

from typing import NamedTuple

CORES_MAX = 4
SMALL = {"journal.bytes.max": str(8 << 20), "log.segment.bytes": str(1 << 20)}
"""So that checkpoints, recycling and rolls happen between kills."""


class Load(NamedTuple):
    """`acknowledged_per_end`: fewer show that it hardly ran."""

    topics: dict[str, int]
    records_per_second: float
    acknowledged_per_end: int
    bytes_max: int
    """Of values that a whole run may see sent, between two ends each its share. What was sent is read back whole, in
    memory, and with a deadline: without a bound a slow machine would have more to read in the same time. On a quick one
    the ends come long before it.
    """
    settings: dict[str, str] = SMALL
    config: dict[str, str] | None = None
    """Of the topics."""


MIXED = Load({"crash-a": 4, "crash-b": 3, "crash-c": 1}, 1200, 100, 128 << 20)
LARGE = Load({"crash-large": 3}, 60, 5, 512 << 20)
"""Runs so long that they are written past the page cache."""
LONG_SEGMENTS = {"journal.bytes.max": str(64 << 20), "log.segment.bytes": str(256 << 20)}
ONCE = Load({"crash-large": 2}, 160, 5, 512 << 20, LONG_SEGMENTS)
"""A segment lasts over many checkpoints, so that batches are written in place into it."""
MANY = Load({"crash-many": 300}, 1200, 100, 128 << 20)
RELAXED = Load({"relaxed": 4}, 3000, 100, 256 << 20, config={"durability": "relaxed"})


def problems_of_log(text: str) -> list[str]:
    """A crash is no surprise to a broker: it says so in a line, without a traceback, and leads all partitions again."""
    marks = ("Traceback (most recent call last)", "is offline")
    return [text[at : at + 3000] for mark in marks if (at := text.find(mark)) >= 0]
