"""What clients were told, kept so that it can be compared with what a broker still has after a crash.

Everything in the ledger only grows, so its state at a moment is a set of lengths (`Ledger.moment`): what was
acknowledged before the moment must be there afterwards; what was asked for may be; anything else was invented.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

Partition = tuple[str, int]
"""Topic and partition index."""


class Identity(NamedTuple):
    """Which record of a run this is: the `sequence`-th that `producer` sent to `partition`."""

    producer: int
    topic: str
    partition: int
    sequence: int

    @property
    def value(self) -> bytes:
        """The bytes of the record: its identity, and a filling that follows from it (40 bytes to 6 kB, a few 60 kB).

        In a topic whose name ends with "large" 100 to 400 kB that no codec makes smaller.
        """
        head = f"{self.producer}|{self.topic}|{self.partition}|{self.sequence}|".encode()
        mark = zlib.crc32(head)
        if self.topic.endswith("large"):
            return head + random.Random(mark).randbytes(100_000 + mark % 300_000)
        length = 40 + mark % 1200 + (5000 if mark % 37 == 0 else 0) + (60_000 if mark % 1009 == 0 else 0)
        filling = head + mark.to_bytes(4, "big").hex().encode()
        return head + (filling * (length // len(filling) + 1))[:length]

    @classmethod
    def of(cls, value: bytes) -> Identity:
        """The identity of a record that was read. ValueError: no producer of ours sent these bytes."""
        try:
            producer, topic, partition, sequence, _rest = value.split(b"|", 4)
            identity = cls(int(producer), topic.decode(), int(partition), int(sequence))
        except ValueError:
            raise ValueError(f"not a record of this run: {value[:60]!r}") from None
        if identity.value != value:
            raise ValueError(f"the bytes of {identity} were changed")
        return identity


@dataclass
class Progress:
    """A number that one actor only raises: what it asked for last, and what was acknowledged last."""

    attempted: int = 0
    acknowledged: int = 0

    def holds(self, found: int, acknowledged: int) -> bool:
        return acknowledged <= found <= self.attempted


class Moment(NamedTuple):
    """Lengths of everything in a ledger at one instant."""

    acknowledged: dict[Partition, int]
    observed: dict[Partition, int]
    progress: dict[str, int]


@dataclass
class Ledger:
    """Filled by the actors of a workload, from several threads; each entry has one writer."""

    partitions: list[Partition]
    sent: dict[tuple[Partition, int], int] = field(default_factory=lambda: defaultdict(int))
    """Per partition and producer: how many records were handed to the client library."""
    acknowledged: dict[Partition, list[tuple[int, Identity]]] = field(default_factory=lambda: defaultdict(list))
    observed: dict[Partition, list[tuple[int, Identity]]] = field(default_factory=lambda: defaultdict(list))
    """What a reader saw while the run went on: only what is durable may be seen, so it must stay."""
    progress: dict[str, Progress] = field(default_factory=lambda: defaultdict(Progress))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def moment(self) -> Moment:
        """To be taken while nothing can be acknowledged, or before what is to be compared was stopped."""
        with self.lock:
            return Moment(
                {key: len(entries) for key, entries in self.acknowledged.items()},
                {key: len(entries) for key, entries in self.observed.items()},
                {name: one.acknowledged for name, one in self.progress.items()},
            )

    def acknowledged_count(self) -> int:
        with self.lock:
            return sum(map(len, self.acknowledged.values()))

    def acknowledge(self, partition: Partition, offset: int, identity: Identity) -> None:
        with self.lock:
            self.acknowledged[partition].append((offset, identity))

    def observe(self, partition: Partition, offset: int, identity: Identity) -> None:
        with self.lock:
            self.observed[partition].append((offset, identity))

    def progress_of(self, name: str) -> Progress:
        with self.lock:
            return self.progress[name]
