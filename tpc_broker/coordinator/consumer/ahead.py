"""Decisions on consumer groups that run ahead of the disk, and answers that do not: `Ahead`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpc_broker.coordinator.effects import size_of
from tpc_broker.limits import OWN_BATCH_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tpc_broker.coordinator.effects import Effects, OnFailed, OnWritten, Record, WriteId, Writes


class Ahead:
    """Of one coordinator. `replay` applies a record; `has_room`: whether the driver takes another decision's writes. To
    be asked before anything is decided: what is applied and finds no room costs the whole machine.
    """

    def __init__(
        self, writes: Writes, replay: Callable[[bytes, bytes | None], None], has_room: Callable[[], bool]
    ) -> None:
        self._writes = writes
        self._replay = replay
        self._last: dict[str, WriteId] = {}
        self._last_of_all: WriteId | None = None
        self._first: dict[str, list[Record]] = {}
        self.has_room = has_room

    @contextmanager
    def begin_with(self, group_id: str, records: list[Record]) -> Iterator[None]:
        """While it is open, what is written next of a group has these records in front, which are applied then."""
        self._first[group_id] = records
        try:
            yield
        finally:
            self._first.pop(group_id, None)

    def decide(self, group_id: str, records: Sequence[Record], effects: Effects) -> None:
        """Applies records of a group, and asks for them to be written."""
        for record in records:
            self._replay(record.key, record.value)
        self.write(group_id, records, effects)

    def write(self, group_id: str, records: Sequence[Record], effects: Effects) -> None:
        """Asks for records that have been applied to be written, in their order, in as many batches as they need."""
        batch: list[Record] = []
        batch_bytes = 0
        first = self._first.pop(group_id, ())
        for record in first:
            self._replay(record.key, record.value)
        for record in (*first, *records):
            if batch and batch_bytes + size_of(record) > OWN_BATCH_BYTES_MAX:
                self._begin(group_id, batch, effects)
                batch, batch_bytes = [], 0
            batch.append(record)
            batch_bytes += size_of(record)
        if batch:
            self._begin(group_id, batch, effects)

    def _begin(self, group_id: str, records: list[Record], effects: Effects) -> None:
        def forget(_effects: Effects, _now_ms: int) -> None:
            if self._last.get(group_id) == write_id:
                del self._last[group_id]

        write_id = self._writes.begin(effects, records, forget, lambda _effects, _error, _now_ms: None, runs_ahead=True)
        self._last[group_id] = self._last_of_all = write_id

    # Rule: What a client of a consumer group is told is durable: an answer that shows decided state waits for the last
    # write of its group. Held by tests/coordinator/consumer.
    def answer(
        self, group_id: str | None, effects: Effects, now_ms: int, on_written: OnWritten, on_failed: OnFailed
    ) -> None:
        """`on_written` when all that was decided of a group, or with None of any, is durable, which may be at once."""
        last = self._last_of_all if group_id is None else self._last.get(group_id)
        if not self._writes.wait_for(last, on_written, on_failed):
            on_written(effects, now_ms)
