"""What a client's user holds in hands: records, and what became of those that were sent. Plain values, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from tpc_broker.client.requests import TopicPartition

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""In the order of the record; a name may stand several times."""
HeadersLike: TypeAlias = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]


class Record(NamedTuple):
    """One record as it was read. Times in ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    leader_epoch: int


@dataclass(slots=True)
class Batch:
    """Records of one partition, in order; iterating gives them. ``next_offset``: where reading goes on behind them."""

    where: TopicPartition
    records: Sequence[Record]
    next_offset: int

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


class Delivered(NamedTuple):
    """Where a record is, and its time in ms since 1970. ``offset`` -1: appended before, the place is not known."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class Fate(Enum):
    """What is known of a record that was given to a client."""

    WAITING = "waiting"
    """Not in a batch yet: it can still be withdrawn."""
    UNDER_WAY = "under way"
    """Its batch is sealed: it may be on a broker, and is sent until it is delivered or the deadline is over."""
    DELIVERED = "delivered"
    WITHDRAWN = "withdrawn"
    """Certainly not sent."""
    REFUSED = "refused"
    """Certainly not in the log: the broker said so, or it was never sent."""
    UNKNOWN = "unknown"
    """The deadline was over before an answer came: it may be in the log."""
