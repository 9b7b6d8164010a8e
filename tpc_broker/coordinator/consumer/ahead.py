"""Decisions on consumer groups that run ahead of the disk, and answers that do not: `Ahead`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.coordinator.consumer.records import GROUP_EPOCH_KEY, ConsumerKey, consumer_record
from tpc_broker.coordinator.effects import size_of
from tpc_broker.limits import OWN_BATCH_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        self.has_room = has_room

    def decide(
        self, group_id: str, records: Sequence[Record], effects: Effects, applied: Sequence[Record] = ()
    ) -> None:
        """Applies records of a group, and asks for them to be written, behind those that have been applied."""
        for record in records:
            self._replay(record.key, record.value)
        self.write(group_id, [*applied, *records], effects)

    def write(self, group_id: str, records: Sequence[Record], effects: Effects) -> None:
        """Asks for records that have been applied to be written, in their order, in as many batches as they need."""
        if sum(map(size_of, records)) <= OWN_BATCH_BYTES_MAX:
            if records:
                self._begin(group_id, records, effects)
            return
        records = _epoch_first(group_id, records)
        batch: list[Record] = []
        batch_bytes = 0
        for record in records:
            if batch and batch_bytes + size_of(record) > OWN_BATCH_BYTES_MAX:
                self._begin(group_id, batch, effects)
                batch, batch_bytes = [], 0
            batch.append(record)
            batch_bytes += size_of(record)
        if batch:
            self._begin(group_id, batch, effects)

    def _begin(self, group_id: str, records: Sequence[Record], effects: Effects) -> None:
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


# Rule: Of a decision that takes several batches, the group's new epoch is in the first one: a coordinator that loads
# only some of them has the partitions divided anew. Held by tests/coordinator/consumer/test_replay.py.
def _epoch_first(group_id: str, records: Sequence[Record]) -> Sequence[Record]:
    key = consumer_record(ConsumerKey(GROUP_EPOCH_KEY, group_id, ""), None).key
    epochs = [record for record in records if record.key == key]
    if not epochs or epochs[-1].value is None:
        return records
    return [epochs[-1], *(record for record in records if record.key != key)]
