"""How ranges become tasks: by bytes as well as by records, and small ones together. `into_tasks` is pure.

A task costs Spark some tens of milliseconds whatever it reads, and is the smallest thing that can run beside others or
again. So a long range becomes several tasks, and short ones one. What a range's bytes are is an estimate: of a segment
file from its size, of a broker's partition from what DescribeLogDirs says of all its records.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

from tpc_broker.client.isolation import Isolation
from tpc_broker.client.requests import EARLIEST, LATEST, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpc_broker.spark.folder_log import Task
    from tpc_broker.spark.options import TaskShape

MEASURED_SECONDS: Final = 60.0
"""How long what was learned of the records' sizes is good for: a stream asks once a minute, not for each epoch."""


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """Ranges that one task reads, one after the other."""

    pieces: tuple[Task, ...]


def into_tasks(ranges: Iterable[Task], shape: TaskShape) -> list[Task | TaskGroup]:
    """Every range, in order, cut into about equal pieces and put together."""
    pieces, together = split_ranges(ranges, shape), shape.bytes_together
    groups = _groups(pieces, shape, together)
    while len(groups) < min(shape.tasks_min, len(pieces)):
        together = together // 2 if together else -1
        groups = _groups(pieces, shape, together)
    return [group.pieces[0] if len(group.pieces) == 1 else group for group in groups]


def split_ranges(ranges: Iterable[Task], shape: TaskShape) -> list[Task]:
    """Long ranges cut into about equal pieces: none above the bounds, and about ``tasks_min`` altogether."""
    whole = [piece for piece in ranges if piece.size > 0]
    total = sum(piece.size for piece in whole)
    pieces: list[Task] = []
    for piece in whole:
        wanted = max(1, round(shape.tasks_min * piece.size / total)) if shape.tasks_min > len(whole) else 1
        by_bytes = -(-piece.size_bytes // shape.bytes_max)
        count = min(piece.size, max(wanted, by_bytes, -(-piece.size // shape.records_max)))
        bounds = [piece.first_offset + piece.size * number // count for number in range(count + 1)]
        for begin, end in pairwise(bounds):
            size_bytes = piece.size_bytes if piece.size_bytes < 0 else piece.size_bytes * (end - begin) // piece.size
            pieces.append(replace(piece, first_offset=begin, end_offset=end, size_bytes=size_bytes))
    return pieces


def _groups(pieces: list[Task], shape: TaskShape, bytes_together: int) -> list[TaskGroup]:
    groups: list[list[Task]] = []
    group_bytes = group_records = 0
    for piece in pieces:
        group_bytes, group_records = group_bytes + piece.size_bytes, group_records + piece.size
        fits = 0 <= piece.size_bytes <= group_bytes <= bytes_together and group_records <= shape.records_max
        if groups and fits and groups[-1][-1].size_bytes >= 0:
            groups[-1].append(piece)
        else:
            groups.append([piece])
            group_bytes, group_records = max(piece.size_bytes, 0), piece.size
    return [TaskGroup(tuple(group)) for group in groups]


class MeasuredLog(Protocol):
    """What `RecordSizes` asks: a `tpc_broker.client.cluster.Cluster` answers it."""

    def list_offsets(self, wanted: Mapping[TopicPartition, int], isolation: Isolation) -> dict[TopicPartition, int]: ...
    def partition_bytes(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...


class RecordSizes:
    """About how many bytes an offset of a partition has, on the broker's disk. Partitions of which it does not say so
    (a broker that refuses the question) are left out.
    """

    def __init__(self) -> None:
        self._known: dict[TopicPartition, float] = {}
        self._asked: set[TopicPartition] = set()
        self._asked_at = 0.0

    def of(self, log: MeasuredLog, places: Iterable[TopicPartition]) -> Mapping[TopicPartition, float]:
        wanted = set(places)
        if not wanted <= self._asked or time.monotonic() > self._asked_at + MEASURED_SECONDS:
            self._known, self._asked, self._asked_at = _measured(log, wanted), wanted, time.monotonic()
        return self._known


def _measured(log: MeasuredLog, places: set[TopicPartition]) -> dict[TopicPartition, float]:
    found = log.partition_bytes(places)
    first = log.list_offsets(dict.fromkeys(found, EARLIEST), Isolation.READ_UNCOMMITTED)
    end = log.list_offsets(dict.fromkeys(found, LATEST), Isolation.READ_UNCOMMITTED)
    return {where: found[where] / (end[where] - first[where]) for where in found if end[where] > first[where]}
