"""What is stored of all transactional ids of a partition. It changes by replay alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.coordinator.effects import Record, size_of
from tpc_broker.coordinator.latest import PARTS, InParts
from tpc_broker.coordinator.transactions.records import (
    is_of_later_release,
    name_of,
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

LOOKED_AT_ONCE: Final = 256
"""Ids, when some are looked for that nobody uses, and the rest of a part."""
RECENT_MAX: Final = 64
"""They have no partitions: some 500 bytes each."""
ID_BYTES: Final = KIB // 4
"""Counted of an id beside its name and its value."""
PARTITION_BYTES: Final = KIB // 4
"""Counted of a partition in a transaction that is open or ends: of itself, and of its marker."""


class Stored:
    """Values as they are in the log, of which those are decoded that are not at rest."""

    def __init__(self) -> None:
        self._values: InParts[bytes] = InParts()
        self.ids_count = 0
        self.open: dict[str, Transaction] = {}
        """Of those that are not at rest."""
        self._foreign: dict[bytes, bytes] = {}
        """Records of later releases: their ids are refused."""
        self.size_bytes = 0
        self._recent: dict[str, Transaction] = {}
        """The last ones that came to rest, decoded: who has ended a transaction often begins the next one."""

    def replay(self, key: bytes, value: bytes | None, known: Transaction | None = None) -> None:
        """Applies one record; RecordDamagedError when it cannot be read. `known`: what its value says."""
        name = read_transaction_key(key)
        self._foreign.pop(key, None)
        if value is not None and (name is None or is_of_later_release(value)):
            self._foreign[key], value = value, None
        if name is None:
            return
        part = self._values.of(key)
        before, was_open = part.pop(key, None), self.open.pop(name, None)
        self._recent.pop(name, None)
        if before is not None:
            self._count(-1, name, before, was_open)
        if value is None:
            return
        part[key] = value
        is_open = None
        if state_of(value) not in AT_REST:
            is_open = self.open[name] = known or read_transaction(value)
        elif known is not None:
            self._recent[name] = known
            if len(self._recent) > RECENT_MAX:
                del self._recent[next(iter(self._recent))]
        self._count(1, name, value, is_open)

    def _count(self, sign: int, name: str, value: bytes, is_open: Transaction | None) -> None:
        partitions_count = 0 if is_open is None else len(is_open.partitions)
        self.ids_count += sign
        self.size_bytes += sign * (2 * len(name) + len(value) + ID_BYTES + partitions_count * PARTITION_BYTES)

    def find(self, name: str) -> Transaction | None:
        """An id's transaction."""
        found = self.open.get(name) or self._recent.get(name)
        if found is not None:
            return found
        key = transaction_key(name)
        value = self._values.of(key).get(key)
        return None if value is None else read_transaction(value)

    def is_of_later_release(self, name: str) -> bool:
        """Whether nothing is known of an id but that there is one."""
        return bool(self._foreign) and transaction_key(name) in self._foreign

    def start_ms(self, name: str, value: bytes) -> int:
        """When the transaction of an id that is stored began."""
        found = self.open.get(name)
        return times_at_rest(value)[1] if found is None else found.start_ms

    def in_parts(self) -> Iterator[list[tuple[str, bytes]]]:
        """All ids with their values, each part as it is when it is taken."""
        for part in self._values.parts:
            yield [(name_of(key), value) for key, value in part.items()]

    def unused(self, since_ms: int, pending: Container[str], first_part: int) -> tuple[list[str], list[Record], int]:
        """Ids at rest that have not changed since then, of some parts of all; their tombstones, of one batch; and the
        part to go on with, 0 behind the last one.
        """
        names: list[str] = []
        records: list[Record] = []
        looked_at = batch_bytes = 0
        for number in range(first_part, PARTS):
            if looked_at >= LOOKED_AT_ONCE:
                return names, records, number
            for key, value in self._values.parts[number].items():
                looked_at += 1
                if state_of(value) not in AT_REST or times_at_rest(value)[0] > since_ms:
                    continue
                name, record = name_of(key), Record(key, None)
                if name in pending:
                    continue
                batch_bytes += size_of(record)
                if batch_bytes > OWN_BATCH_BYTES_MAX:
                    return names, records, number
                names.append(name)
                records.append(record)
        return names, records, 0
