"""Which offsets a read covers.

`Planner` asks the cluster; the functions beside it are pure. All ranges are half-open.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tpc_broker.client.errors import OffsetsMissingError, UnknownTopicError
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.requests import EARLIEST, LATEST, TopicPartition
from tpc_broker.spark.epochs import LEDGER_TOPIC
from tpc_broker.spark.options import OptionError, Position, ReadOptions, Selection

Offsets = dict[TopicPartition, int]
OffsetsJson = dict[str, dict[str, int]]
logger = logging.getLogger("tpc.spark")


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """[first_offset, end_offset) of one partition: what one task reads."""

    where: TopicPartition
    first_offset: int
    end_offset: int
    size_bytes: int = field(default=-1, compare=False)
    """About; -1: nobody knows."""

    @property
    def size(self) -> int:
        return self.end_offset - self.first_offset


def to_json(offsets: Mapping[TopicPartition, int]) -> OffsetsJson:
    """The form of Spark's checkpoint; always in the same order, as Spark compares the text."""
    result: OffsetsJson = {}
    for (topic, partition), offset in sorted(offsets.items()):
        result.setdefault(topic, {})[str(partition)] = offset
    return result


def from_json(value: OffsetsJson) -> Offsets:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in value.items()
        for partition, offset in partitions.items()
    }


def limit_offsets(start: Offsets, latest: Offsets, rows_max: int) -> Offsets:
    """How far to go when at most ``rows_max`` rows are wanted: each partition in proportion to what it has.

    What integer division leaves over goes to those with the largest remainders, so that the sum is exact.
    """
    sizes = {where: max(0, end - start.get(where, end)) for where, end in latest.items()}
    total = sum(sizes.values())
    if total <= rows_max:
        return latest
    shares = {where: size * rows_max // total for where, size in sizes.items()}
    left = rows_max - sum(shares.values())
    by_remainder = sorted(sizes, key=lambda where: (-(sizes[where] * rows_max % total), where))
    for where in by_remainder[:left]:
        shares[where] += 1
    return {where: (start[where] + shares[where]) if sizes[where] else end for where, end in latest.items()}


def select(selection: Selection, known: list[TopicPartition]) -> list[TopicPartition]:
    """Those of all known partitions that are selected, sorted. `UnknownTopicError`: one that was named is missing."""
    topics = {where.topic for where in known}
    missing = [name for name in selection.topics if name not in topics]
    missing += [str(where) for where in selection.assigned if where not in known]
    if missing:
        raise UnknownTopicError(f"no such topic: {', '.join(missing)}")
    if selection.assigned:
        return sorted(selection.assigned)
    try:
        pattern = re.compile(selection.pattern)
    except re.error as error:
        raise OptionError(f"subscribePattern: {error}") from None
    return sorted(where for where in known if where.topic in selection.topics or pattern.fullmatch(where.topic))


class LogSource(Protocol):
    """What planning asks: a `tpc_broker.client.cluster.Cluster` answers it, or a data folder."""

    def forget_topics(self) -> None: ...
    def topic_names(self) -> list[str]: ...
    def partitions(self, topic: str) -> list[TopicPartition]: ...
    def list_offsets(self, wanted: Mapping[TopicPartition, int], isolation: Isolation) -> Offsets: ...


# Rule: What a read covers is inside the log, or the loss is named. A limit and `Trigger.AvailableNow` are exact. See
# also tpc_broker/spark/source.py. Held by tests/spark/test_ranges.py, tests/spark/test_source.py.
class Planner:
    """Answers what a read covers now."""

    def __init__(self, cluster: LogSource, options: ReadOptions) -> None:
        self._cluster = cluster
        self._options = options

    def partitions(self) -> list[TopicPartition]:
        """The partitions that are selected now, sorted. `UnknownTopicError`: a topic that was named is missing."""
        selection = self._options.selection
        if selection.assigned:
            for where in selection.assigned:
                if where not in self._cluster.partitions(where.topic):
                    raise UnknownTopicError(f"{where.topic} has no partition {where.partition}")
            return sorted(selection.assigned)
        self._cluster.forget_topics()
        topics = selection.topics
        if selection.pattern:
            topics = tuple(name for name in self._cluster.topic_names() if name != LEDGER_TOPIC)
        return select(selection, [where for topic in topics for where in self._cluster.partitions(topic)])

    def bounds(self, places: Iterable[TopicPartition]) -> tuple[Offsets, Offsets]:
        """First and end offset of each partition, as the isolation level sees them."""
        places = list(places)
        isolation = self._options.isolation
        first = self._cluster.list_offsets(dict.fromkeys(places, EARLIEST), isolation)
        return first, self._cluster.list_offsets(dict.fromkeys(places, LATEST), isolation)

    def latest(self) -> Offsets:
        return self._cluster.list_offsets(dict.fromkeys(self.partitions(), LATEST), self._options.isolation)

    def start(self) -> Offsets:
        """Where a stream of all selected partitions begins. Behind the log's end only where losses are allowed."""
        places = self.partitions()
        first, end = self.bounds(places)
        start = self._resolve(self._options.start, places, first, end, is_start=True)
        for where in places if self._options.fails_on_data_loss else ():
            self._check_inside(where, "startingOffsets", start[where], end[where])
        return start

    def batch(self) -> list[OffsetRange]:
        """What a batch read covers."""
        places = self.partitions()
        first, end = self.bounds(places)
        start = self._resolve(self._options.start, places, first, end, is_start=True)
        stop = self._resolve(self._options.end, places, first, end, is_start=False)
        for where in places:
            self._check_inside(where, "startingOffsets", start[where], end[where])
            self._check_inside(where, "endingOffsets", stop[where], end[where])
            if start[where] > stop[where]:
                raise OptionError(f"{where}: the read would begin at {start[where]}, behind its end {stop[where]}")
        return self.ranges(start, stop, first)

    def stream(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """What one micro-batch covers; partitions that are new begin at their first offset."""
        known = set(self.partitions())
        gone = sorted(where for where in start if where not in known)
        if gone:
            self._lost(f"{', '.join(map(str, gone))} had been read and does not exist any more")
        wanted = {where: offset for where, offset in end.items() if where in known}
        first = self._cluster.list_offsets(dict.fromkeys(wanted, EARLIEST), self._options.isolation)
        return self.ranges({where: start.get(where, first[where]) for where in wanted}, wanted, first)

    def not_before(self, start: Offsets, latest: Offsets) -> Offsets:
        """``latest``, and where the log ends before what was read already, that place (if it is to go on at all)."""
        for where, end in latest.items():
            if end < start.get(where, end):
                self._lost(f"{where}: the log ends at {end}, before {start[where]}, which had been read")
        return {where: max(end, start.get(where, end)) for where, end in latest.items()}

    def ranges(self, start: Offsets, end: Offsets, first: Offsets) -> list[OffsetRange]:
        ranges = []
        for where, stop in sorted(end.items()):
            begin = start[where]
            if begin < min(first[where], stop):
                self._lost(f"{where}: offsets [{begin}, {min(first[where], stop)}) are not in the log any more")
                begin = min(first[where], stop)
            if begin > stop:
                self._lost(f"{where}: the log ends at {stop}, before {begin}, which had been reached")
            ranges.append(OffsetRange(where, begin, stop))
        return ranges

    def _check_inside(self, where: TopicPartition, option: str, offset: int, log_end: int) -> None:
        """Offsets that the log never had are a mistake."""
        if offset > log_end:
            raise OffsetsMissingError(f"{where}: {option} says {offset}, the log ends at {log_end}")

    def _lost(self, what: str) -> None:
        if self._options.fails_on_data_loss:
            raise OffsetsMissingError(f"{what}; to go on without them, set failOnDataLoss to false")
        logger.warning("%s; going on without them", what)

    def _resolve(
        self, position: Position, places: list[TopicPartition], first: Offsets, end: Offsets, *, is_start: bool
    ) -> Offsets:
        """The offset in each partition that a `Position` means."""
        wrong = sorted(where for where in {**position.offsets, **position.times_ms} if where not in places)
        if wrong:
            raise OptionError(f"offsets are given for {', '.join(map(str, wrong))}, which is not selected")
        times = {
            where: position.times_ms.get(where) if position.time_ms is None else position.time_ms
            for where in places
            if position.times_ms or position.time_ms is not None
        }
        asked = {where: time_ms for where, time_ms in times.items() if time_ms is not None}
        by_time = self._by_time(asked, end, is_start=is_start)
        resolved: Offsets = {}
        for where in places:
            offset = by_time.get(where, position.offsets.get(where, position.default))
            resolved[where] = first[where] if offset == EARLIEST else end[where] if offset == LATEST else offset
        return resolved

    def _by_time(self, times: Mapping[TopicPartition, int], end: Offsets, *, is_start: bool) -> Offsets:
        """What is appended while the planner asks lies behind ``end``, and is not there yet."""
        found = self._cluster.list_offsets(times, self._options.isolation) if times else {}
        for where, offset in found.items():
            if offset >= 0:
                found[where] = min(offset, end[where])
                continue
            if is_start and not self._options.late_is_latest:
                raise OffsetsMissingError(
                    f"{where} has no record at or after {times[where]} ms; "
                    "to begin at its end then, set startingOffsetsByTimestampStrategy to latest"
                )
            found[where] = end[where]
        return found
