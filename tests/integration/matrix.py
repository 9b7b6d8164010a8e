"""What every client of the matrix is asked to show, so that all of them are held to the same."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from tests.support.waiting import PATIENCE_S

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
SESSION_MS = 1000 * PATIENCE_S
"""Members that a slow machine keeps from beating are in their groups all the same."""


def topic_name(request: pytest.FixtureRequest) -> str:
    """A name for the topic of one test, legal in Kafka and different from every other's."""
    return re.sub(r"[^a-zA-Z0-9_-]", "-", f"{request.module.__name__.rpartition('.')[2]}-{request.node.name}")[:200]


def owned_exactly_once(assignments: Iterable[Iterable[int]], partitions_count: int) -> bool:
    """Whether the members' partitions are all partitions, none of them twice."""
    owned = sorted(partition for one in assignments for partition in one)
    return owned == list(range(partitions_count))
