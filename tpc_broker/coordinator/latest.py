"""Of the records of a machine's log those that count at its end, without one of them being decoded: `LatestRecords`.

A machine's log is replayed by the last record of each key alone, whatever their order (`driven.Machine`), so what a
cleaner would remove costs a load little: it is looked at, and forgotten when a later one comes. Of transactions that
ended, the records count as if the machine had followed them (`pending_offsets`); what is still open is given to it.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from tpc_broker.coordinator.driven import TransactionalMachine
from tpc_broker.coordinator.effects import Producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpc_broker.coordinator.driven import Machine

PARTS: Final = 256
"""Of all keys: where there are 100,000, some 400 are in each, which are looked at in less than a millisecond."""
FIRST_TYPE: Final = b"\0\0"
"""Keys begin with a number, their type. Kafka wrote offsets under type 0 before it did under 1: those are older."""

V = TypeVar("V")


class InParts(Generic[V]):
    """What is known of many keys: some dicts in place of one, which would be copied whole whenever it grows. Whoever
    makes keys that are all in one part has what one dict would have cost.
    """

    def __init__(self) -> None:
        self.parts: tuple[dict[bytes, V], ...] = tuple({} for _ in range(PARTS))

    def of(self, key: bytes) -> dict[bytes, V]:
        """The part that has, or would have, a key."""
        return self.parts[zlib.crc32(key) % PARTS]


class _Open(NamedTuple):
    """A record of an open transaction. `number`: they are in the log's order."""

    number: int
    value: bytes | None
    is_outdone: bool = False
    """Something that counts is behind it."""


class LatestRecords:
    """What `machine` would be told is taken in the order of the log, and then given to it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._in_transactions = machine if isinstance(machine, TransactionalMachine) else None
        self._latest: InParts[bytes | None] = InParts()
        self._open: dict[int, dict[bytes, _Open]] = {}
        """By producer id and key."""
        self._epochs: dict[int, int] = {}
        self._producers_of: dict[bytes, set[int]] = {}
        """Who has something open, by key."""
        self._count = 0

    # Records, in the log's order

    def take(self, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """The next ones, of no transaction."""
        of, is_open = self._latest.of, self._producers_of
        for key, value in records:
            if key is not None:
                of(key)[key] = value
                if key in is_open:
                    self._outdo(key, value)

    def take_open(self, producer: Producer, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """The same, of a producer's transaction."""
        machine, producer_id = self._in_transactions, producer.producer_id
        for key, value in records:
            if machine is None or key is None or not machine.waits_for_end(key, value):
                self.take(((key, value),))
                continue
            self._count += 1
            self._open.setdefault(producer_id, {})[key] = _Open(self._count, value)
            self._epochs[producer_id] = producer.producer_epoch
            self._producers_of.setdefault(key, set()).add(producer_id)

    def take_end(self, producer_id: int, *, commit: bool) -> None:
        """A marker. Of a transaction that has nothing here it says nothing."""
        for key, (number, value, is_outdone) in self._open.pop(producer_id, {}).items():
            self._forget(producer_id, key)
            if not commit or is_outdone:
                continue
            self._latest.of(key)[key] = value
            for other in self._producers_of.get(key, ()):
                if self._open[other][key].number < number:
                    self._mark_outdone(other, key)

    def _outdo(self, key: bytes, value: bytes | None) -> None:
        """By a record of no transaction; a tombstone ends what is open of its key."""
        for producer_id in list(self._producers_of[key]):
            if value is None:
                del self._open[producer_id][key]
                self._forget(producer_id, key)
            else:
                self._mark_outdone(producer_id, key)

    def _mark_outdone(self, producer_id: int, key: bytes) -> None:
        self._open[producer_id][key] = self._open[producer_id][key]._replace(is_outdone=True)

    def _forget(self, producer_id: int, key: bytes) -> None:
        producers = self._producers_of[key]
        producers.remove(producer_id)
        if not producers:
            del self._producers_of[key]

    # What counts

    def given(self) -> Iterator[None]:
        """Gives all of it to the machine, and forgets it; after each record others may have their turn."""
        opened = sorted(
            (one.number, producer_id, key, one)
            for producer_id, of_one in self._open.items()
            for key, one in of_one.items()
        )
        yield from self._give_open(one for one in opened if one[-1].is_outdone)
        yield from self._give_latest(FIRST_TYPE)
        yield from self._give_latest(b"")
        yield from self._give_open(one for one in opened if not one[-1].is_outdone)

    def _give_latest(self, prefix: bytes) -> Iterator[None]:
        for part in self._latest.parts:
            for key in [key for key in part if key.startswith(prefix)]:
                self._machine.replay(key, part.pop(key))
                yield

    def _give_open(self, opened: Iterable[tuple[int, int, bytes, _Open]]) -> Iterator[None]:
        for _number, producer_id, key, one in opened:
            assert self._in_transactions is not None
            self._in_transactions.replay_open(Producer(producer_id, self._epochs[producer_id]), key, one.value)
            yield
