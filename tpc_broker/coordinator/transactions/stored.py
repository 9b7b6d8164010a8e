"""What is stored of all transactional ids of a partition. It changes by replay alone."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from tpc_broker.coordinator.effects import Record, size_of
from tpc_broker.coordinator.transactions.records import (
    is_of_later_release,
    read_transaction,
    read_transaction_key,
    state_of,
    times_at_rest,
    transaction_key,
)
from tpc_broker.coordinator.transactions.states import AT_REST
from tpc_broker.limits import KIB, OWN_BATCH_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from tpc_broker.coordinator.transactions.transaction import Transaction

LOOKED_AT_ONCE: Final = 1_000
"""Ids, when some are looked for that nobody uses."""
ID_BYTES: Final = KIB // 4
"""Counted of an id beside its name and its value."""
PARTITION_BYTES: Final = KIB // 4
"""Counted of a partition in a transaction that is open or ends: of itself, and of its marker."""


class Stored:
    """Values as they are in the log, of which those are decoded that are not at rest."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.open: dict[str, Transaction] = {}
        """Of those that are not at rest."""
        self._at_rest: dict[str, None] = {}
        """The others; in the order in which they changed, but for what a snapshot told again."""
        self._foreign: dict[bytes, bytes] = {}
        """Records of later releases: snapshots carry them as they are, and their ids are refused."""
        self.size_bytes = 0

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Applies one record; RecordDamagedError when it cannot be read."""
        name = read_transaction_key(key)
        self._foreign.pop(key, None)
        if value is not None and (name is None or is_of_later_release(value)):
            self._foreign[key], value = value, None
        if name is None:
            return
        self.size_bytes -= self._size_of(name)
        self._at_rest.pop(name, None)
        self.open.pop(name, None)
        if value is None:
            self.values.pop(name, None)
            return
        self.values[name] = value
        if state_of(value) in AT_REST:
            self._at_rest[name] = None
        else:
            self.open[name] = read_transaction(value)
        self.size_bytes += self._size_of(name)

    def _size_of(self, name: str) -> int:
        value, found = self.values.get(name), self.open.get(name)
        if value is None:
            return 0
        partitions_count = 0 if found is None else len(found.partitions)
        return 2 * len(name) + len(value) + ID_BYTES + partitions_count * PARTITION_BYTES

    def find(self, name: str) -> Transaction | None:
        """An id's transaction."""
        found = self.open.get(name)
        if found is not None:
            return found
        value = self.values.get(name)
        return None if value is None else read_transaction(value)

    def is_of_later_release(self, name: str) -> bool:
        """Whether nothing is known of an id but that there is one."""
        return bool(self._foreign) and transaction_key(name) in self._foreign

    def start_ms(self, name: str) -> int:
        """When the transaction of an id that is stored began."""
        found = self.open.get(name)
        return times_at_rest(self.values[name])[1] if found is None else found.start_ms

    def unused(self, since_ms: int, pending: Container[str]) -> tuple[list[str], list[Record], bool]:
        """Some ids at rest that have not changed since then, their tombstones, of one batch, and whether there may be
        more.
        """
        names: list[str] = []
        records: list[Record] = []
        batch_bytes = 0
        for name in islice(self._at_rest, LOOKED_AT_ONCE):
            if times_at_rest(self.values[name])[0] > since_ms:
                return names, records, False
            if name in pending:
                continue
            record = Record(transaction_key(name), None)
            batch_bytes += size_of(record)
            if batch_bytes > OWN_BATCH_BYTES_MAX:
                break
            names.append(name)
            records.append(record)
        return names, records, len(self._at_rest) > len(names)

    def snapshot(self) -> Iterator[Record]:
        """All of it, each as it is when it is taken, the longest unchanged first."""
        for name in [*self._at_rest, *self.open]:
            value = self.values.get(name)
            if value is not None:
                yield Record(transaction_key(name), value)
        for key in list(self._foreign):
            value = self._foreign.get(key)
            if value is not None:
                yield Record(key, value)
