"""What was appended to one simulated log, and what readers of any prefix of it may see when it was cleaned."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import NamedTuple

from tests.log.log_batches import marker
from tests.support.record_batches import TRANSACTIONAL, Record, batch
from tpc_broker.kafka.records import read_batches
from tpc_broker.log.batch import CONTROL_ABORT, CONTROL_COMMIT
from tpc_broker.log.files import EpochStart
from tpc_broker.log.indexes import AbortedTransaction

KEYS = [b"k%d" % number for number in range(30)]
PRODUCERS = range(1, 4)
TOMBSTONES = 0.4
_NEVER = 1 << 62


@dataclass
class Transaction:
    """`marker_offset`: behind all offsets while it is open."""

    first_offset: int
    marker_offset: int = _NEVER
    is_aborted: bool = False


class Shown(NamedTuple):
    """A record as a reader finds it."""

    offset: int
    key: bytes
    value: bytes | None


@dataclass
class Truth:
    """The log that all replicas have a prefix of, or of what was cleaned of one."""

    random: Random
    batches: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    epochs: list[EpochStart] = field(default_factory=lambda: [EpochStart(1, 0)])
    records: list[tuple[Shown, Transaction | None]] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    timestamp_ms: int = 1_700_000_000_000

    def __post_init__(self) -> None:
        self._open: dict[int, Transaction] = {}
        self._sequences = dict.fromkeys(PRODUCERS, 0)
        self._made = 0

    @property
    def end_offset(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def epoch(self) -> int:
        return self.epochs[-1].epoch

    def begin_epoch(self) -> None:
        self.epochs.append(EpochStart(self.epoch + 1, self.end_offset))

    def place_of(self, offset: int) -> int:
        """How many batches are in front of an offset, which is between two."""
        return self.ends.index(offset) + 1 if offset else 0

    def append(self) -> None:
        """One batch: of records, of a transaction, or its end."""
        what = self.random.random()
        if what < 0.25 and self._open:
            self._end(self.random.choice(sorted(self._open)))
        elif what < 0.45:
            self._append_records(self.random.choice(PRODUCERS))
        else:
            self._append_records(None)

    def end_all(self) -> None:
        """Nothing stays open."""
        for producer in sorted(self._open):
            self._end(producer)

    def _append_records(self, producer: int | None) -> None:
        base_offset, records = self.end_offset, []
        transaction = None
        if producer is not None:
            transaction = self._open.setdefault(producer, Transaction(base_offset))
            if transaction not in self.transactions:
                self.transactions.append(transaction)
        for number in range(self.random.choice([1, 1, 2, 5])):
            self._made += 1
            key = self.random.choice(KEYS)
            value = None if self.random.random() < TOMBSTONES else b"value %d" % self._made
            records.append(Record(value, key))
            self.records.append((Shown(base_offset + number, key, value), transaction))
        self._put_records(records, producer)

    def append_one(self, key: bytes, value: bytes | None) -> None:
        """A record that a test wants."""
        self.records.append((Shown(self.end_offset, key, value), None))
        self._put_records([Record(value, key)], None)

    def _put_records(self, records: list[Record], producer: int | None) -> None:
        base_offset = self.end_offset
        of = (-1, -1, -1)
        if producer is not None:
            of = producer, 0, self._sequences[producer]
            self._sequences[producer] += len(records)
        self._put(
            batch(
                records, base_offset=base_offset, leader_epoch=self.epoch, producer=of,
                attributes=TRANSACTIONAL if producer is not None else 0, base_timestamp_ms=self.timestamp_ms,
            ), base_offset + len(records),
        )  # fmt: skip

    def _end(self, producer: int) -> None:
        transaction, offset = self._open.pop(producer), self.end_offset
        transaction.marker_offset, transaction.is_aborted = offset, self.random.random() < 0.5
        kind = CONTROL_ABORT if transaction.is_aborted else CONTROL_COMMIT
        self._put(marker(offset, kind, producer, epoch=self.epoch, timestamp=self.timestamp_ms), offset + 1)

    def _put(self, data: bytes, end_offset: int) -> None:
        self.batches.append(data)
        self.ends.append(end_offset)

    # -- what is right -----------------------------------------------------------------------------------------------

    def last_stable_offset(self, upto: int) -> int:
        """Of a log that is committed up to an offset."""
        still_open = [one.first_offset for one in self.transactions if one.first_offset < upto <= one.marker_offset]
        return min([upto, *still_open])

    def why_wrong(self, found: list[Shown], upto: int, whole_from: int, newest_from: int = 0) -> str:
        """What a reader of committed records has found below an offset, in a log that was cleaned up to `whole_from`,
        for records of which some may be newer, below `newest_from`. Nothing: it is right.
        """
        right = {
            one.offset: one for one, transaction in self.records
            if one.offset < upto and not (transaction and transaction.is_aborted)
        }  # fmt: skip
        for one in found:
            if right.get(one.offset) != one:
                return f"{one} is shown, where there is {right.get(one.offset, 'nothing to be shown')}"
        if any(later.offset <= earlier.offset for earlier, later in pairwise(found)):
            return "offsets do not rise"
        newest, newest_found = _by_key(right.values()), _by_key(found)
        is_all_shown = upto >= max(whole_from, newest_from)  # else what is newer is there, and is not shown again yet
        for key in KEYS if is_all_shown else ():
            expected, there = newest.get(key), newest_found.get(key)
            is_deleted = expected is None or expected.value is None
            if there != expected and not (is_deleted and there is None):
                return f"of {key!r} the newest is {there}, and should be {expected}"
        missing = {offset for offset in right if offset >= whole_from} - {one.offset for one in found}
        return f"records at {sorted(missing)} are gone, where nothing was cleaned" if missing else ""


def _by_key(records: object) -> dict[bytes, Shown]:
    return {one.key: one for one in records}  # type: ignore[attr-defined]


def shown_committed(data: list[bytes], aborted: list[AbortedTransaction], upto: int) -> list[Shown]:
    """What a client that reads committed records takes out of batches, with the list of aborted transactions."""
    ahead = sorted(aborted, key=lambda one: one.first_offset)
    skipped: set[int] = set()
    found = []
    for stored in data:
        for one in read_batches(stored):
            while ahead and ahead[0].first_offset <= one.last_offset:
                skipped.add(ahead.pop(0).producer_id)
            if one.is_control:
                skipped -= {one.producer_id} if _aborts(one) else set()
                continue
            if one.is_transactional and one.producer_id in skipped:
                continue
            found += [
                Shown(record.offset, bytes(record.key), None if record.value is None else bytes(record.value))
                for record in one.records() if record.offset < upto
            ]  # fmt: skip
    return found


def _aborts(control: object) -> bool:
    for record in control.records():  # type: ignore[attr-defined]
        return int.from_bytes(record.key[2:4]) == CONTROL_ABORT
    return False
