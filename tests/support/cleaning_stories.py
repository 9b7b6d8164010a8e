"""Lives of logs for cleaners, by seed: what is appended, when segments end, when it is cleaned.

`log_story` draws one; what it contains is told by its traits, so that a test can leave out what is judged by itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.support.record_batches import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL, Record, batch

if TYPE_CHECKING:
    from random import Random

BEGIN_MS: Final = 1_700_000_000_000
DELETE_RETENTION_MS: Final = 10_000
MARKER_BYTES_KEY: Final = struct.Struct(">hh")
MARKER_BYTES_VALUE: Final = struct.Struct(">hi")


class Append(NamedTuple):
    """One batch."""

    data: bytes


class Roll(NamedTuple):
    """A segment ends."""


class Clean(NamedTuple):
    """All segments that have ended, up to the one with the first record of an open transaction."""

    upper: int
    now_ms: int


Step = Append | Roll | Clean


@dataclass(frozen=True)
class Traits:
    """Of a story. Shares are chances of a batch or a record."""

    keys: int = 8
    rounds: int = 4
    segments: int = 3
    batches: int = 8
    """Of a segment, at most."""
    records: int = 6
    codecs: tuple[int, ...] = (0, 1, 2, 3, 4)
    tombstones: float = 0.25
    keyless: float = 0.0
    horizons: float = 0.0
    """Of clients that set attribute bit 6."""
    append_times: float = 0.1
    headers: float = 0.2
    gaps: float = 0.1
    gap_offsets: int = 50
    idempotent: int = 2
    """Producers with sequences."""
    transactional: int = 2
    first_version: bool = False
    """Transactions whose markers do not raise the epoch."""
    left_open: float = 0.0
    """Transactions that go on when the log is cleaned."""
    with_last_word: bool = True
    """Each round ends with a batch that stays: Kafka keeps a round's last batch, if only its header."""


@dataclass
class _Producer:
    """What it will send next."""

    producer_id: int
    is_transactional: bool
    epoch: int = 0
    sequence: int = 0
    first_offset: int = -1
    """Of its open transaction."""


@dataclass
class _Writer:
    random: Random
    traits: Traits
    offset: int = 0
    now_ms: int = BEGIN_MS
    leader_epoch: int = 0
    steps: list[Step] = field(default_factory=list)
    producers: list[_Producer] = field(default_factory=list)
    bases: list[int] = field(default_factory=lambda: [0])
    """Of segments."""
    last_words: int = 0
    upper: int = 0
    """Up to where it was cleaned."""

    def __post_init__(self) -> None:
        plain = [_Producer(100 + number, False) for number in range(self.traits.idempotent)]
        self.producers = plain + [_Producer(200 + number, True) for number in range(self.traits.transactional)]

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def record(self) -> Record:
        random, traits = self.random, self.traits
        number = random.randrange(traits.keys)
        key = b"key-%d" % number * random.choice([1, 1, 9]) if number else b""
        key = None if self.chance(traits.keyless) else key
        value = None if self.chance(traits.tombstones) else random.randbytes(random.choice([0, 1, 20, 300]))
        headers = (("h", b"x" * random.randrange(4)), ("n", None)) if self.chance(traits.headers) else ()
        return Record(value, key, random.randrange(-50, 500), headers)

    def append(self, records: list[Record], attributes: int, producer: tuple[int, int, int] = (-1, -1, -1)) -> None:
        codec = self.random.choice(self.traits.codecs) if not attributes & CONTROL else 0
        self.now_ms += self.random.randrange(100)
        if self.chance(self.traits.gaps) and self.offset > self.bases[-1]:
            self.offset += self.random.randrange(1, self.traits.gap_offsets)
        settings = {"max_timestamp_ms": self.now_ms} if attributes & LOG_APPEND_TIME else {}
        data = batch(
            records, base_timestamp_ms=self.now_ms, base_offset=self.offset, codec=codec, attributes=attributes,
            producer=producer, leader_epoch=self.leader_epoch, **settings,
        )  # fmt: skip
        self.offset += len(records)
        self.steps.append(Append(data))

    def attributes(self) -> int:
        found = LOG_APPEND_TIME if self.chance(self.traits.append_times) else 0
        return found | (DELETE_HORIZON if self.chance(self.traits.horizons) else 0)

    def data_batch(self) -> None:
        """Of one of the producers, or of none."""
        records = [self.record() for _ in range(self.random.randint(1, self.traits.records))]
        one = self.random.choice([None, *self.producers])
        if one is None:
            self.append(records, self.attributes())
            return
        place = (one.producer_id, one.epoch, one.sequence)
        one.sequence += len(records)
        if one.is_transactional and one.first_offset < 0:
            one.first_offset = self.offset
        self.append(records, self.attributes() | (TRANSACTIONAL if one.is_transactional else 0), place)

    def marker(self, one: _Producer) -> None:
        is_commit = self.random.random() < 0.5
        if not self.traits.first_version:
            one.epoch, one.sequence = one.epoch + 1, 0
        one.first_offset = -1
        record = Record(MARKER_BYTES_VALUE.pack(0, 0), MARKER_BYTES_KEY.pack(0, is_commit))
        self.append([record], TRANSACTIONAL | CONTROL, (one.producer_id, one.epoch, -1))

    def segment(self) -> None:
        for _ in range(self.random.randint(1, self.traits.batches)):
            open_ones = [one for one in self.producers if one.first_offset >= 0]
            if open_ones and self.chance(0.3):
                self.marker(self.random.choice(open_ones))
            else:
                self.data_batch()
        self.leader_epoch += self.chance(0.2)

    def roll(self, *, is_end_of_round: bool) -> None:
        if self.traits.with_last_word and (is_end_of_round or self.traits.left_open):
            self.last_words += 1
            self.append([Record(b"stays", b"last word %d" % self.last_words)], 0)
        self.bases.append(self.offset)
        self.steps.append(Roll())

    def round(self) -> None:
        """Some segments, most transactions at their end, and a cleaning."""
        for left in reversed(range(self.random.randint(1, self.traits.segments))):
            self.segment()
            for one in self.producers:
                if not left and one.first_offset >= 0 and not self.chance(self.traits.left_open):
                    self.marker(one)
            self.roll(is_end_of_round=not left)
        stable = min([one.first_offset for one in self.producers if one.first_offset >= 0], default=self.offset)
        upper = max(base for base in self.bases if base <= stable)
        self.now_ms += self.random.choice([0, DELETE_RETENTION_MS // 2, DELETE_RETENTION_MS + 1])
        if upper > self.upper:
            self.upper = upper
            self.steps.append(Clean(upper, self.now_ms))


def log_story(random: Random, traits: Traits) -> list[Step]:
    """Some rounds of writing and cleaning."""
    writer = _Writer(random, traits)
    for _ in range(traits.rounds):
        writer.round()
    return writer.steps
