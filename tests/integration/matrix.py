"""What every client of the matrix is asked to show, so that all of them are held to the same."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable

import pytest

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
BASE_MS = int(time.time()) * 1000 - 600_000
"""Time stamp of the first record where a test sets them: recent, so that retention leaves them alone."""

DEADLINE_SECONDS = 120.0


def topic_name(request: pytest.FixtureRequest) -> str:
    """A name for the topic of one test, legal in Kafka and different from every other's."""
    return re.sub(r"[^a-zA-Z0-9_-]", "-", f"{request.module.__name__.rpartition('.')[2]}-{request.node.name}")[:200]


def eventually(holds: Callable[[], bool], what: str, pause_seconds: float = 0.05) -> None:
    """Poll until something holds; fail, naming it, after the deadline."""
    give_up_at = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < give_up_at, f"never came to hold: {what}"
        time.sleep(pause_seconds)


def owned_exactly_once(assignments: Iterable[Iterable[int]], partitions_count: int) -> bool:
    """Whether the members' partitions are all partitions, none of them twice."""
    owned = sorted(partition for one in assignments for partition in one)
    return owned == list(range(partitions_count))
