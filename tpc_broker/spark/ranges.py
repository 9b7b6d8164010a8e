"""Which offsets a read covers.

`Planner` asks the cluster; the functions beside it are pure. All ranges are half-open.

Offsets belong to a topic and not to its name: a topic that was deleted and created again begins anew at 0. So whatever
keeps offsets (a stream's checkpoint, the steps of a pipeline, a task's range) keeps the topic's id with them. Where it
is not known (a checkpoint of an older version, a broker that has no ids), the topic of that name is taken for the one.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from uuid import UUID

from tpc_broker.client.errors import OffsetsMissingError, UnknownTopicError
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.requests import EARLIEST, LATEST, NO_TOPIC_ID, TopicFacts, TopicPartition
from tpc_broker.log.files import decode_topic_id, encode_topic_id
from tpc_broker.model import TopicId
from tpc_broker.spark.losses import Losses
from tpc_broker.spark.names import LEDGER_TOPIC, TOPIC_ID
from tpc_broker.spark.options import OptionError, Position, ReadOptions

Offsets = dict[TopicPartition, int]
OffsetsJson = dict[str, dict[str, int | str]]
TopicIds = Mapping[str, str]
"""By topic, in Kafka's text form; without those that are not known."""
NO_IDS: Final[TopicIds] = {}
logger = logging.getLogger("tpc.spark")


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """[first_offset, end_offset) of one partition: what one task reads."""

    where: TopicPartition
    first_offset: int
    end_offset: int
    size_bytes: int = field(default=-1, compare=False)
    """About; -1: nobody knows."""
    topic_id: str = ""
    """Of which topic; empty: of any that has the name."""

    @property
    def size(self) -> int:
        return self.end_offset - self.first_offset

    def __str__(self) -> str:
        return f"{self.where}: offsets [{self.first_offset}, {self.end_offset})"


@dataclass(frozen=True, slots=True)
class Places:
    """An offset in each partition, and which topics these are."""

    offsets: Offsets = field(default_factory=dict)
    ids: TopicIds = field(default_factory=dict)

    def topics(self) -> set[str]:
        return {where.topic for where in self.offsets}

    def without(self, topics: Iterable[str]) -> "Places":
        left_out = set(topics)
        return Places(
            {where: offset for where, offset in self.offsets.items() if where.topic not in left_out},
            {topic: topic_id for topic, topic_id in self.ids.items() if topic not in left_out},
        )

    def text(self, topics: Iterable[str]) -> str:
        """For people: ``t-0 at 5, t-1 at 7``."""
        wanted = set(topics)
        return ", ".join(f"{at} at {offset}" for at, offset in sorted(self.offsets.items()) if at.topic in wanted)


def is_another(before: TopicIds, now: TopicIds, topic: str) -> bool:
    """Whether the topic was deleted and created again, as far as both sides know its id."""
    return before.get(topic, "") != now.get(topic, "") and topic in before and topic in now


def replaced_topics(before: TopicIds, now: TopicIds) -> list[str]:
    return sorted(topic for topic in before if is_another(before, now, topic))


def id_text(topic_id: bytes) -> str:
    """Empty where a broker gives none."""
    return "" if topic_id in (b"", NO_TOPIC_ID) else encode_topic_id(TopicId(UUID(bytes=topic_id)))


def id_bytes(text: str) -> bytes:
    return decode_topic_id(text).bytes if text else b""


def to_json(places: Places) -> OffsetsJson:
    """The form of Spark's checkpoint: {"topic": {"0": 23, "id": "…"}}; always in the same order, as Spark compares the
    text.
    """
    result: OffsetsJson = {}
    for (topic, partition), offset in sorted(places.offsets.items()):
        result.setdefault(topic, {})[str(partition)] = offset
    for topic, members in result.items():
        if topic in places.ids:
            members[TOPIC_ID] = places.ids[topic]
    return result


def from_json(value: Mapping[str, Mapping[str, Any]]) -> Places:
    """Also what has no ids."""
    offsets = {
        TopicPartition(topic, int(name)): int(member)
        for topic, members in value.items()
        for name, member in members.items()
        if name != TOPIC_ID
    }
    return Places(offsets, {topic: members[TOPIC_ID] for topic, members in value.items() if TOPIC_ID in members})


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


class LogSource(Protocol):
    """What planning asks: a `tpc_broker.client.cluster.Cluster` answers it, or a data folder."""

    def topic_names(self) -> list[str]: ...
    def existing(self, names: Iterable[str], believed: Mapping[str, bytes]) -> Mapping[str, TopicFacts]: ...
    def list_offsets(self, wanted: Mapping[TopicPartition, int], isolation: Isolation) -> Offsets: ...


# Rule: What a read covers is inside the log of the topic that was read before, or the loss is named. A limit and
# `Trigger.AvailableNow` are exact. See also tpc_broker/spark/readers.py. Held by tests/spark/test_ranges.py,
# tests/spark/test_recreated.py, tests/spark/test_source.py.
class Planner:
    """Answers what a read covers now."""

    def __init__(self, cluster: LogSource, options: ReadOptions, losses: Losses | None = None) -> None:
        """``losses``: what is known of them from earlier plans of the same read."""
        self._cluster = cluster
        self._options = options
        self._losses = losses or Losses(are_errors=options.fails_on_data_loss)
        self._left_out: set[str] = set()
        self.ids: TopicIds = NO_IDS
        """Of the topics that were there when `partitions` asked."""

    def partitions(self, before: TopicIds | None = None) -> list[TopicPartition]:
        """The partitions that are selected now, sorted.

        ``before``: the ids that a stream that goes on has seen; None: nothing was read before. `UnknownTopicError`: a
        topic that was named is missing, unless losses are allowed and others are there, or were.
        """
        selection = self._options.selection
        named = selection.topics or tuple(dict.fromkeys(where.topic for where in selection.assigned))
        names = named or self._matching(selection.pattern, before or NO_IDS)
        facts = self._existing(names, before or NO_IDS)
        self._check_missing([name for name in named if name not in facts], facts, before)
        found = {TopicPartition(topic, number) for topic, one in facts.items() for number in one.leaders}
        if not selection.assigned:
            return sorted(found)
        for where in selection.assigned:
            goes_on = before is not None and not self._losses.are_errors
            if where.topic in facts and where not in found and not goes_on and not self._is_another(before, where):
                raise UnknownTopicError(f"{where.topic} has no partition {where.partition}")
        return sorted(found.intersection(selection.assigned))

    def _is_another(self, before: TopicIds | None, where: TopicPartition) -> bool:
        """Whether there is more to be said of the partition than that it is missing (`going_on`)."""
        return is_another(before or NO_IDS, self.ids, where.topic)

    def _matching(self, pattern: str, before: TopicIds) -> tuple[str, ...]:
        try:
            fits = re.compile(pattern).fullmatch
        except re.error as error:
            raise OptionError(f"subscribePattern: {error}") from None
        candidates = {name for name in self._cluster.topic_names() if name != LEDGER_TOPIC} | before.keys()
        return tuple(sorted(name for name in candidates if fits(name)))

    def _existing(self, names: Iterable[str], before: TopicIds) -> Mapping[str, TopicFacts]:
        believed = {name: id_bytes(text) for name, text in before.items()} | self._losses.seen_ids
        names = list(names)
        facts = self._cluster.existing(names, believed)
        self._losses.note_existing(names, facts)
        self._left_out = {name for name in names if name not in facts}
        self.ids = {name: text for name, one in facts.items() if (text := id_text(one.topic_id))}
        return facts

    def _check_missing(self, missing: list[str], facts: Mapping[str, TopicFacts], before: TopicIds | None) -> None:
        if not missing:
            return
        what = f"there is no topic {', '.join(map(repr, missing))}{getattr(self._cluster, 'topics_hint', '')}"
        if not facts and (before is None or self._losses.are_errors):
            deleted = ", ".join(sorted((before or NO_IDS).keys() & set(missing)))
            more = f"; {deleted} was deleted since. To go on without it, set failOnDataLoss to false"
            raise UnknownTopicError(what + (more if deleted else ""))
        if self._losses.are_errors:
            raise UnknownTopicError(f"{what}; leave it out of what is read, or set failOnDataLoss to false")
        self._losses.lost("missing", what, "without")

    def bounds(self, places: Iterable[TopicPartition]) -> tuple[Offsets, Offsets]:
        """First and end offset of each partition, as the isolation level sees them."""
        places = list(places)
        return self._first(places), self._list(dict.fromkeys(places, LATEST))

    def _first(self, places: Iterable[TopicPartition]) -> Offsets:
        return self._list(dict.fromkeys(places, EARLIEST))

    def _list(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        return self._cluster.list_offsets(wanted, self._options.isolation) if wanted else {}

    def latest(self, before: TopicIds = NO_IDS) -> Places:
        """Where what a stream reads ends now."""
        places = self.partitions(before)
        return Places(self._list(dict.fromkeys(places, LATEST)), self.ids)

    def start(self, target: Places | None = None) -> Places:
        """Where a stream of all selected partitions begins. ``target``: where it is to end, if it is (`left_of`); what
        came since that was asked is not begun.
        """
        places = self.partitions(target.ids if target is not None and target.offsets else None)
        first, end = self.bounds(places)
        start = self._resolve("startingOffsets", self._options.start, places, first, end)
        for where in places:
            if start[where] > end[where]:
                what = f"{where}: startingOffsets says {start[where]}, the log ends at {end[where]}"
                self._losses.lost(where, what, "at its end")
                start[where] = end[where]
        if target is not None:
            left = self._those_there(target, target.offsets, places).offsets
            start = {where: min(offset, left[where]) for where, offset in start.items() if where in left}
        return Places(start, self.ids)

    def left_of(self, target: Places, start: Places) -> Places:
        """What there still is of ``target``, to which a stream that has reached ``start`` is to go in one run
        (`Trigger.AvailableNow`). Topics that it has not begun yet may have been deleted since that was asked.
        """
        begun = start.without(replaced_topics(start.ids, target.ids)).offsets
        new = [where for where in target.offsets if where not in begun]
        return self._those_there(target, new, self.partitions({**start.ids, **target.ids})) if new else target

    def _those_there(self, target: Places, new: Iterable[TopicPartition], there: Iterable[TopicPartition]) -> Places:
        """``target`` without those of the ``new`` partitions that are gone, or are another topic's by now."""
        known, others = set(there), replaced_topics(target.ids, self.ids)
        gone = sorted(where for where in new if where not in known or where.topic in others)
        if not gone:
            return target
        what = f"what this run was to read of {', '.join(map(str, gone))} is lost"
        self._losses.lost("gone of the target", f"{what}: deleted since it began, or another topic by now")
        left = {where: offset for where, offset in target.offsets.items() if where not in gone}
        return Places(left, {topic: target.ids[topic] for topic in {at.topic for at in left} & target.ids.keys()})

    def batch(self) -> list[OffsetRange]:
        """What a batch read covers."""
        places = self.partitions()
        first, end = self.bounds(places)
        start = self._resolve("startingOffsets", self._options.start, places, first, end)
        stop = self._resolve("endingOffsets", self._options.end, places, first, end)
        for where in places:
            self._check_inside(where, "startingOffsets", start[where], end[where])
            self._check_inside(where, "endingOffsets", stop[where], end[where])
            if start[where] > stop[where]:
                raise OptionError(f"{where}: the read would begin at {start[where]}, behind its end {stop[where]}")
        return self.ranges(start, Places(stop, self.ids), first)

    def going_on(self, start: Places, latest: Places) -> tuple[Places, Places]:
        """Where a stream that has reached ``start`` goes on, and where it then ends for now.

        A topic that was created again begins at its first offset. What is not there any more stays where it was, so
        that it is known again when it is back: a topic of the same id where it was, another one from its beginning.
        """
        replaced = replaced_topics(start.ids, latest.ids)
        for topic in replaced:
            self._losses.lost(
                topic,
                f"{topic} was deleted and created again (its id was {start.ids[topic]} and is {latest.ids[topic]}); it "
                f"had been read up to {start.text([topic])}, and what the old one held behind that is lost",
                "with the new one from its beginning",
            )
        begin = start.without(replaced)
        gone = sorted(where for where in begin.offsets if where not in latest.offsets)
        if gone:
            self._losses.lost("gone", f"{', '.join(map(str, gone))} had been read and does not exist any more")
        kept = begin.without(latest.topics())
        end = {**latest.offsets, **{where: begin.offsets[where] for where in gone}}
        first = self._first(where for where in latest.offsets if where not in begin.offsets)
        for where, offset in begin.offsets.items():
            if end[where] < offset:
                self._losses.lost(
                    where,
                    f"{where}: the log ends at {end[where]}, before {offset}, which had been read: "
                    f"{offset - end[where]} offsets are gone, and what was written in their place since is not read",
                    "at its end",
                )
        return Places({**first, **begin.offsets}, latest.ids), Places(end, {**kept.ids, **latest.ids})

    def stream(self, start: Places, end: Places) -> list[OffsetRange]:
        """What one micro-batch covers; partitions that are new begin at their first offset, and so do topics that were
        created again between the two.
        """
        known = set(self.partitions({**start.ids, **end.ids}))
        start = start.without(replaced_topics(start.ids, end.ids))
        unread = {where: offset for where, offset in end.offsets.items() if start.offsets.get(where) != offset}
        gone = sorted(where for where in {**start.offsets, **unread} if where not in known)
        if gone:
            self._losses.lost("gone", f"{', '.join(map(str, gone))} had been read and does not exist any more")
        wanted = {where: offset for where, offset in end.offsets.items() if where in known}
        for topic in replaced_topics(end.ids, self.ids):
            if any(where.topic == topic for where in unread):
                self._losses.lost(
                    topic,
                    f"{topic} was deleted and created again (its id was {end.ids[topic]} and is {self.ids[topic]}), "
                    f"and what was to be read of the old one is lost: from {start.text([topic]) or 'its beginning'} "
                    f"to {end.text([topic])}",
                )
            wanted = {where: offset for where, offset in wanted.items() if where.topic != topic}
        first = self._first(wanted)
        begin = {where: start.offsets.get(where, first[where]) for where in wanted}
        return self.ranges(begin, Places(wanted, {**self.ids, **end.ids}), first)

    def ranges(self, start: Offsets, end: Places, first: Offsets) -> list[OffsetRange]:
        ranges = []
        for where, stop in sorted(end.offsets.items()):
            begin = start[where]
            if begin < min(first[where], stop):
                missing = f"{where}: offsets [{begin}, {min(first[where], stop)})"
                self._losses.lost((where, begin), f"{missing} are not in the log any more")
                begin = min(first[where], stop)
            ranges.append(OffsetRange(where, min(begin, stop), stop, topic_id=end.ids.get(where.topic, "")))
        return ranges

    def _check_inside(self, where: TopicPartition, option: str, offset: int, log_end: int) -> None:
        """Offsets that the log never had are a mistake."""
        if offset > log_end:
            raise OffsetsMissingError(f"{where}: {option} says {offset}, the log ends at {log_end}")

    def _resolve(
        self, option: str, position: Position, places: list[TopicPartition], first: Offsets, end: Offsets
    ) -> Offsets:
        """The offset in each partition that a `Position` means."""
        given = {where for where in (*position.offsets, *position.times_ms) if where.topic not in self._left_out}
        wrong = sorted(given.difference(places))
        replaced = replaced_topics(position.ids, self.ids)
        for topic in replaced:
            self._losses.lost(
                (option, topic),
                f"{topic} was deleted and created again (its id was {position.ids[topic]}, as {option} says, and is "
                f"{self.ids[topic]})",
            )
        wrong = [where for where in wrong if where.topic not in replaced]
        if wrong:
            raise OptionError(f"offsets are given for {', '.join(map(str, wrong))}, which is not selected")
        times = {
            where: position.times_ms.get(where) if position.time_ms is None else position.time_ms
            for where in places
            if position.times_ms or position.time_ms is not None
        }
        asked = {where: time_ms for where, time_ms in times.items() if time_ms is not None}
        by_time = self._by_time(asked, end, is_start=option == "startingOffsets")
        resolved: Offsets = {}
        for where in places:
            offset = by_time.get(where, position.offsets.get(where, position.default))
            if where.topic in replaced:
                offset = EARLIEST
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
