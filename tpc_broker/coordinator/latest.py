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
    from collections.abc import Generator, Iterable, Iterator

    from tpc_broker.coordinator.driven import Machine

PARTS: Final = 256
"""Of all keys: where there are 100,000, some 400 are in each, which are looked at in less than a millisecond."""
FIRST_TYPE: Final = b"\0\0"
"""Keys begin with a number, their type. Kafka wrote offsets under type 0 before it did under 1: those are older."""
LOOKED_AT_FOR_ONE: Final = 16
"""Keys are looked at in less time than one record is given in."""
SORTED_AT_ONCE: Final = 1024
"""Records of open transactions, at most."""

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


_Open = tuple[int, "bytes | None"]
"""A record of an open transaction, behind its number: they are in the log's order."""
_Opened = tuple[int, int, bytes, "bytes | None"]
"""The same: number, producer id, key, value."""


class LatestRecords:
    """What `machine` would be told is taken in the order of the log, and then given to it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._in_transactions = machine if isinstance(machine, TransactionalMachine) else None
        self._waiting = () if self._in_transactions is None else self._in_transactions.waiting_keys
        self._latest: InParts[bytes | None] = InParts()
        self._open: dict[int, dict[bytes, _Open]] = {}
        """By producer id and key."""
        self._epochs: dict[int, int] = {}
        self._holder: dict[bytes, int] = {}
        """Who has something open of a key."""
        self._others: dict[bytes, set[int]] = {}
        """The others, of keys of which several have."""
        self._outdone: set[tuple[int, bytes]] = set()
        """Producers and keys of what is open and has behind it what counts."""
        self._count = 0

    # Records, in the log's order

    def take(self, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """The next ones, of no transaction."""
        parts, is_open = self._latest.parts, self._holder
        for key, value in records:
            if key is not None:
                parts[crc32(key) % PARTS][key] = value
                if is_open and key in is_open:
                    self._outdo(key, value)

    def take_open(
        self, producer_id: int, producer_epoch: int, records: Iterable[tuple[bytes | None, bytes | None]]
    ) -> None:
        """The same, of a producer's transaction."""
        waiting, holder = self._waiting, self._holder
        of_one = self._open.get(producer_id)
        for key, value in records:
            if key is None or value is None or not key.startswith(waiting):
                self.take(((key, value),))
                continue
            if of_one is None:
                of_one = self._open[producer_id] = {}
            self._count += 1
            of_one[key] = self._count, value
            if holder.setdefault(key, producer_id) != producer_id:
                self._others.setdefault(key, set()).add(producer_id)
            if self._outdone:
                self._outdone.discard((producer_id, key))
        if of_one is not None:
            self._epochs[producer_id] = producer_epoch

    def take_end(self, producer_id: int, *, commit: bool) -> None:
        """A marker. Of a transaction that has nothing here it says nothing."""
        ended = self._open.pop(producer_id, None)
        if not ended:
            return
        outdone, parts = self._outdone, self._latest.parts
        for key, (number, value) in ended.items():
            self._forget(producer_id, key)
            if outdone and (producer_id, key) in outdone:
                outdone.remove((producer_id, key))
            elif commit:
                parts[crc32(key) % PARTS][key] = value
                if key in self._holder:
                    outdone.update((other, key) for other in self._holders(key) if self._open[other][key][0] < number)

    def _holders(self, key: bytes) -> list[int]:
        return [self._holder[key], *self._others.get(key, ())]

    def _outdo(self, key: bytes, value: bytes | None) -> None:
        """By a record of no transaction; a tombstone ends what is open of its key."""
        for producer_id in self._holders(key):
            if value is not None:
                self._outdone.add((producer_id, key))
                continue
            del self._open[producer_id][key]
            self._outdone.discard((producer_id, key))
            self._forget(producer_id, key)

    def _forget(self, producer_id: int, key: bytes) -> None:
        others = self._others.get(key)
        if others is None:
            del self._holder[key]
            return
        if self._holder[key] == producer_id:
            self._holder[key] = others.pop()
        else:
            others.remove(producer_id)
        if not others:
            del self._others[key]

    # What counts

    def given(self) -> Iterator[int]:
        """Gives all of it to the machine, and forgets it. After each piece others may have their turn; it says how much
        that was, where a record that is given is 1.
        """
        opened = yield from self._opened()
        if self._outdone:
            yield from self._give_open(opened, outdone=True)
        yield from self._give_latest(FIRST_TYPE)
        yield from self._give_latest(b"")
        yield from self._give_open((opened.popleft() for _ in range(len(opened))), outdone=False)

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
        for producer_id, of_one in self._open.items():
            for key, (number, value) in of_one.items():
                by_number.setdefault(number // SORTED_AT_ONCE, []).append((number, producer_id, key, value))
                looked_at += 1
                if looked_at % LOOKED_AT_FOR_ONE == 0:
                    yield 1
        for some in by_number.values():
            some.sort()
            yield len(some) // LOOKED_AT_FOR_ONE
        return deque(by_number[number] for number in sorted(by_number))

    def _give_open(self, opened: Iterable[list[_Opened]], *, outdone: bool) -> Iterator[int]:
        for some in opened:
            for _number, producer_id, key, value in some:
                if ((producer_id, key) in self._outdone) is outdone:
                    assert self._in_transactions is not None
                    self._in_transactions.replay_open(Producer(producer_id, self._epochs[producer_id]), key, value)
                    yield 1
            yield len(some) // LOOKED_AT_FOR_ONE
