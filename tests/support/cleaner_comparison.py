"""What Kafka's cleaner and ours make of one log, side by side; and what a reader finds before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.cleaner_referee import MAP_BYTES, CleanerReferee, Dump, DumpedBatch
from tests.support.cleaning_stories import DELETE_RETENTION_MS, Append, Clean, Roll, Step
from tests.support.written_logs import OwnLog
from tpc_broker.log.cleaning_job import CleaningReport
from tpc_broker.log.files import TRANSACTION_INDEX_SUFFIX
from tpc_broker.log.indexes import AbortedTransaction, TransactionIndex

KAFKA_SETTINGS: Final = {"delete.retention.ms": DELETE_RETENTION_MS}
TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x10, 0x20, 0x40
SHOWN_MAX: Final = 8


@dataclass(frozen=True)
class IntendedOfCleaning:
    """A difference that is meant: `is_it` is asked with the batch of Kafka's and ours of one base offset, None for the
    one who has none.
    """

    name: str
    reason: str
    is_it: Callable[[DumpedBatch | None, DumpedBatch | None], bool]


@dataclass
class Pass:
    """One cleaning, of both."""

    step: Clean
    kafka: dict[str, Any]
    ours: CleaningReport
    first_dirty: int
    """Of Kafka's."""


@dataclass
class Pair:
    """One log in two folders."""

    referee: CleanerReferee
    folder: Path
    run: Callable[..., CleaningReport]
    group_bytes: int = 1 << 30
    """Of segments that are put together, `segment.bytes` while it is cleaned."""
    map_bytes: int = MAP_BYTES
    seen_by_kafka: Callable[[bytes], bytes] = field(default=lambda batch: batch)
    """What Kafka is given of a batch."""
    passes: list[Pass] = field(default_factory=list)
    upper: int = 0
    """Up to where it was cleaned."""

    def __post_init__(self) -> None:
        self.kafka_folder = self.folder / "kafka-0"
        self.own = OwnLog(self.folder / "ours-0", KAFKA_SETTINGS | {"segment.bytes": self.group_bytes})
        self.referee.open(self.kafka_folder, KAFKA_SETTINGS)
        self.first_dirty = 0

    def take(self, step: Step) -> Pass | None:
        """Carry it out on both; of a cleaning what it did."""
        if isinstance(step, Append):
            self.own.append(step.data)
            self.referee.append(self.seen_by_kafka(step.data))
        elif isinstance(step, Roll):
            assert self.own.roll() == self.referee.roll()
        else:
            self.referee.configure(KAFKA_SETTINGS | {"internal.segment.bytes": self.group_bytes})
            done = self.referee.clean(self.first_dirty, step.upper, step.now_ms, self.map_bytes)
            self.referee.configure(KAFKA_SETTINGS)  # what is appended begins no segment by itself
            report = self.own.clean(self.run, step.upper, step.now_ms, self.map_bytes)
            self.passes.append(Pass(step, done, report, self.first_dirty))
            self.upper = step.upper
            self.first_dirty = done["end"]
            return self.passes[-1]
        return None

    def dumps(self) -> tuple[Dump, Dump]:
        """Of Kafka's folder and of ours, without what is in the active segment."""
        self.own.flush()
        kafka, ours = self.referee.dump(self.kafka_folder), self.referee.dump(self.own.folder)
        for dump in (kafka, ours):
            dump.pop(self.own.active_base, None)
        return kafka, ours

    def judge(self, intended: Sequence[IntendedOfCleaning] = ()) -> set[str]:
        """AssertionError: a difference that is not intended. The names of those that were found."""
        kafka, ours = self.dumps()
        seen, found = set(), []
        if list(kafka) != list(ours):
            found.append(f"segments: kafka {list(kafka)}, ours {list(ours)}")
        theirs, mine = by_base_offset(kafka), by_base_offset(ours)
        for base in sorted({*theirs, *mine}):
            one, other = theirs.get(base), mine.get(base)
            if _same(one, other):
                continue
            known = next((each for each in intended if each.is_it(one, other)), None)
            if known is not None:
                seen.add(known.name)
            else:
                found.append(f"batch {base}:\n  kafka {one}\n  ours  {other}")
        entries = [one for one in aborted_of(self.kafka_folder) if one.last_offset < self.upper]
        if entries != [one for one in self.own.aborted() if one.last_offset < self.upper]:
            found.append(f"aborted transactions:\n  kafka {entries}\n  ours  {self.own.aborted()}")
        assert not found, f"after {len(self.passes)} passes:\n" + "\n".join(found[:SHOWN_MAX])
        return seen


def _same(one: DumpedBatch | None, other: DumpedBatch | None) -> bool:
    """But for how records are packed."""
    if one is None or other is None:
        return one is other
    is_packed = one.attributes & 7
    return one._replace(crc=0) == other._replace(crc=0) and (bool(is_packed) or one.crc == other.crc)


def aborted_of(folder: Path) -> list[AbortedTransaction]:
    """What the indexes of transactions in a folder say."""
    paths = sorted(folder.glob(f"*{TRANSACTION_INDEX_SUFFIX}"))
    return [one for path in paths for one in TransactionIndex.decode(path.read_bytes()).entries]


def by_base_offset(dump: Dump) -> dict[int, DumpedBatch]:
    return {batch.base_offset: batch for batches in dump.values() for batch in batches}


def visible(dump: Dump) -> dict[str | None, tuple[int, str | None]]:
    """What a reader of committed records makes of a log: key -> (offset, value) of the newest record of each, without
    those whose newest is a tombstone. Records without a key are left out: they go.
    """
    newest: dict[str | None, tuple[int, str | None]] = {}
    pending: dict[int, list[tuple[int, str | None, str | None]]] = {}
    for batch in (batch for batches in dump.values() for batch in batches):
        producer_id = batch.producer[0]
        if batch.attributes & CONTROL:
            ended = pending.pop(producer_id, [])
            if batch.records and batch.records[0][2] == "00000001":
                for offset, key, value in ended:
                    if offset > newest.get(key, (-1, None))[0]:
                        newest[key] = (offset, value)
            continue
        for offset, _time, key, value, _headers in batch.records:
            if batch.attributes & TRANSACTIONAL:
                pending.setdefault(producer_id, []).append((offset, key, value))
            elif offset > newest.get(key, (-1, None))[0]:
                newest[key] = (offset, value)
    return {key: found for key, found in newest.items() if key is not None and found[1] is not None}
