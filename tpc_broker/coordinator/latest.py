"""Of the records of a machine's log those that count at its end, without one of them being decoded: `LatestRecords`.

A machine's log is replayed by the last record of each key alone, whatever their order (`driven.Machine`), so what a
cleaner would remove costs a load little: it is looked at, and forgotten when a later one comes. Of transactions that
ended, the records count as if the machine had followed them (`pending_offsets`); what is still open is given to it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from zlib import crc32

from tpc_broker.coordinator.driven import TransactionalMachine
from tpc_broker.coordinator.effects import Producer

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from tpc_broker.coordinator.driven import Machine

PARTS: Final = 256
"""Of all keys: where there are 100,000, some 400 are in each, which are looked at in less than a millisecond."""
FIRST_TYPE: Final = b"\0\0"
"""Keys begin with a number, their type. Kafka wrote offsets under type 0 before it did under 1: those are older."""
LOOKED_AT_FOR_ONE: Final = 16
"""Keys are looked at in less time than one record is given in."""
SORTED_AT_ONCE: Final = 1024
"""Records of open transactions, at most."""
UNDIVIDED: Final = 1024
"""Keys of a transaction."""

V = TypeVar("V")


class InParts(Generic[V]):
    """What is known of many keys: some dicts in place of one, which would be copied whole whenever it grows. Whoever
    makes keys that are all in one part has what one dict would have cost.
    """

    def __init__(self) -> None:
        self.parts: tuple[dict[bytes, V], ...] = tuple({} for _ in range(PARTS))

    def of(self, key: bytes) -> dict[bytes, V]:
        """The part that has, or would have, a key."""
        return self.parts[crc32(key) % PARTS]


_Open = tuple[int, bytes]
"""A value of an open transaction, behind its record's number: they are in the log's order."""
_Opened = tuple[int, int, bytes, bytes]
"""The same: number, producer id, key, value."""


class _Transaction:
    """What is open of a producer. Most have few keys: only beyond some are they divided as all keys are."""

    __slots__ = ("first", "parts", "producer_epoch")

    def __init__(self) -> None:
        self.producer_epoch = 0
        self.first: dict[bytes, _Open] = {}
        self.parts: dict[int, dict[bytes, _Open]] = {}

    def pieces(self) -> Iterator[dict[bytes, _Open]]:
        """A key that is in two of them has its later record in the later one."""
        yield self.first
        yield from self.parts.values()


class LatestRecords:
    """What `machine` would be told is taken in the order of the log, and then given to it.

    Of a key that record counts which is last in the log, whichever transaction ends first. So as soon as anything is
    open, what is written of no transaction has a number, too: what is open goes behind a higher one.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._in_transactions = machine if isinstance(machine, TransactionalMachine) else None
        self._waiting = () if self._in_transactions is None else self._in_transactions.waiting_keys
        self._latest: InParts[bytes | None] = InParts()
        self._open: dict[int, _Transaction] = {}
        """By producer id."""
        self._numbers: InParts[int] = InParts()
        """Of the records that count, as far as they came, or began to count, while something was open."""
        self._tombstones: InParts[int] = InParts()
        """Of those, the last one of each key: it ends what is open of the key, also for whoever asks what is."""
        self._count = 0

    # Records, in the log's order

    @property
    def has_open(self) -> bool:
        """Whether a transaction has something here that has not ended."""
        return bool(self._open)

    def take(self, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """The next ones, of no transaction."""
        parts = self._latest.parts
        if self._open:
            self._take_beside_open(records)
            return
        for key, value in records:
            if key is not None:
                parts[crc32(key) % PARTS][key] = value

    def _take_beside_open(self, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        parts, numbers, count = self._latest.parts, self._numbers.parts, self._count
        for key, value in records:
            if key is None:
                continue
            part = crc32(key) % PARTS
            count += 1
            parts[part][key], numbers[part][key] = value, count
            if value is None:
                self._tombstones.parts[part][key] = count
        self._count = count

    def take_open(
        self, producer_id: int, producer_epoch: int, records: Iterable[tuple[bytes | None, bytes | None]]
    ) -> None:
        """The same, of a producer's transaction."""
        waiting, transaction = self._waiting, self._open.get(producer_id)
        for key, value in records:
            if key is None or value is None or not key.startswith(waiting):
                self.take(((key, value),))
                continue
            if transaction is None:
                transaction = self._open[producer_id] = _Transaction()
            self._count += 1
            keys = transaction.first
            if len(keys) >= UNDIVIDED:
                keys = transaction.parts.setdefault(crc32(key) % PARTS, {})
            keys[key] = self._count, value
        if transaction is not None:
            transaction.producer_epoch = producer_epoch

    def take_end(self, producer_id: int, *, commit: bool) -> Iterator[int]:
        """A marker, in pieces; it says how many records each was, which may be none. Of a transaction that has nothing
        here it says nothing.
        """
        ended = self._open.pop(producer_id, None)
        if ended is None:
            return
        for piece in ended.pieces():
            if commit:
                self._commit(piece)
            looked_at = len(piece)
            piece.clear()
            yield looked_at

    def _commit(self, piece: Mapping[bytes, _Open]) -> None:
        parts, numbers, others_are_open = self._latest.parts, self._numbers.parts, bool(self._open)
        for key, (number, value) in piece.items():
            part = crc32(key) % PARTS
            if numbers[part].get(key, 0) > number:
                continue
            parts[part][key] = value
            if others_are_open:
                numbers[part][key] = number

    # What counts

    def given(self) -> Iterator[int]:
        """Gives all of it to the machine, and forgets it. After each piece others may have their turn; it says how much
        that was, where a record that is given is 1.
        """
        opened = yield from self._opened()
        yield from self._give_open(opened, outdone=True)
        yield from self._give_latest(FIRST_TYPE)
        yield from self._give_latest(b"")
        yield from self._give_open((opened.popleft() for _ in range(len(opened))), outdone=False)
        for part in (*self._numbers.parts, *self._tombstones.parts):
            looked_at = len(part)
            part.clear()
            yield looked_at // LOOKED_AT_FOR_ONE

    def _give_latest(self, prefix: bytes) -> Iterator[int]:
        for part in self._latest.parts:
            looked_at = len(part)
            for key in [key for key in part if key.startswith(prefix)]:
                self._machine.replay(key, part.pop(key))
                yield 1
            yield looked_at // LOOKED_AT_FOR_ONE

    def _opened(self) -> Generator[int, None, deque[list[_Opened]]]:
        """What is open, in the log's order."""
        by_number: dict[int, list[_Opened]] = {}
        looked_at = 0
        for producer_id, transaction in self._open.items():
            for piece in transaction.pieces():
                for key, (number, value) in piece.items():
                    if _number_of(key, self._tombstones) < number:
                        by_number.setdefault(number // SORTED_AT_ONCE, []).append((number, producer_id, key, value))
                    looked_at += 1
                    if looked_at % LOOKED_AT_FOR_ONE == 0:
                        yield 1
                piece.clear()
        for some in by_number.values():
            some.sort()
            yield len(some) // LOOKED_AT_FOR_ONE
        return deque(by_number[number] for number in sorted(by_number))

    def _give_open(self, opened: Iterable[list[_Opened]], *, outdone: bool) -> Iterator[int]:
        for some in opened:
            for number, producer_id, key, value in some:
                if (_number_of(key, self._numbers) > number) is outdone:
                    assert self._in_transactions is not None
                    producer = Producer(producer_id, self._open[producer_id].producer_epoch)
                    self._in_transactions.replay_open(producer, key, value)
                    yield 1
            yield len(some) // LOOKED_AT_FOR_ONE


def _number_of(key: bytes, numbers: InParts[int]) -> int:
    return numbers.of(key).get(key, 0)
