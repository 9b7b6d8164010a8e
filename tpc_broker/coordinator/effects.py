"""What a step of a machine asks of its driver, and the two things a step may leave behind: writes and deadlines.

Durability order is in the types: `Effects.replies` may be sent at once. What must wait for the disk is not among them;
it comes in the effects of `written`, which the driver calls when a write of `Effects.writes` is durable.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, KeysView, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, NewType

from tpc_broker.error_codes import ErrorCode
from tpc_broker.limits import OWN_BATCH_BYTES_MAX, OWN_RECORD_OVERHEAD_BYTES, OWN_TRANSACTION_BATCH_BYTES

if TYPE_CHECKING:
    from tpc_broker.coordinator.transactions.messages import Marker

STALE_MIN = 64
"""Entries for what was cancelled, which otherwise stay until its time, weeks where a client says so: with more of them
than of others all are dropped.
"""

Token = Hashable
"""Whatever the driver recognises a waiting request by."""

WriteId = NewType("WriteId", int)


class Record(NamedTuple):
    """One record of the machine's log; a null value is a tombstone."""

    key: bytes
    value: bytes | None


class Producer(NamedTuple):
    """Whose transaction something is of."""

    producer_id: int
    producer_epoch: int


class TransactionEnd(NamedTuple):
    """A marker to be written: all that the producer has written in its transaction counts, or nothing of it."""

    producer: Producer
    commit: bool
    coordinator_epoch: int
    transaction_version: int = 0


class Reply(NamedTuple):
    """The answer to the request that came with this token."""

    token: Token
    response: object


@dataclass(frozen=True, slots=True)
class Write:
    """Records to append to this machine's partition as one batch, in the order the writes came."""

    write_id: WriteId
    records: tuple[Record, ...]
    runs_ahead: bool = False
    """The machine has applied them already. When they cannot be written, it is of no use any more."""
    producer: Producer | None = None
    """The batch is of its transaction, which it opens where it is not open, and has no other write's records."""
    end: TransactionEnd | None = None
    """In place of records."""
    markers: tuple[Marker, ...] = ()
    """To be appended in front of it and behind the write before it, all in one step and in one journal. Where one
    cannot be, or where the write before it fails, it fails.
    """

    size_bytes: int = field(init=False)
    """Of its batch, at most."""

    def __post_init__(self) -> None:
        size = sum(map(size_of, self.records))
        if self.producer is not None or self.end is not None:
            size += OWN_TRANSACTION_BATCH_BYTES
        object.__setattr__(self, "size_bytes", size)


def size_of(record: Record) -> int:
    """In a batch, at most."""
    return len(record.key) + len(record.value or b"") + OWN_RECORD_OVERHEAD_BYTES


@dataclass(slots=True)
class Effects:
    """What to do now: send these replies, append these writes."""

    replies: list[Reply] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    writes_bytes: int = 0
    """Of their batches, at most."""

    def write(self, write: Write) -> None:
        """Adds a write."""
        self.writes.append(write)
        self.writes_bytes += write.size_bytes

    def forget_writes(self) -> None:
        """Takes out all of them."""
        self.writes.clear()
        self.writes_bytes = 0

    def reply(self, token: Token, response: object) -> None:
        """Adds an answer."""
        self.replies.append(Reply(token, response))


def client_error(error: ErrorCode) -> ErrorCode:
    """What a client of the coordinator is told when the log refused: codes of Produce mean nothing to it."""
    if error in {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR}:
        return ErrorCode.NOT_COORDINATOR
    if error in {ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}:
        return error  # of a marker
    if error in {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE}:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


OnWritten = Callable[[Effects, int], None]
OnFailed = Callable[[Effects, ErrorCode, int], None]


def ignore_success(_effects: Effects, _now_ms: int) -> None:
    """Nobody waits for this write."""


def ignore_failure(_effects: Effects, _error: ErrorCode, _now_ms: int) -> None:
    """Nobody waits for this write, and it will be tried again."""


@dataclass(slots=True)
class _PendingWrite:
    records: tuple[Record, ...]
    on_written: OnWritten
    on_failed: OnFailed
    runs_ahead: bool
    producer: Producer | None
    end: TransactionEnd | None
    waiting: list[tuple[OnWritten, OnFailed]] = field(default_factory=list)
    """Of those who were shown what it says."""

    def written(self, effects: Effects, now_ms: int) -> None:
        """It is durable."""
        self.on_written(effects, now_ms)
        for on_written, _on_failed in self.waiting:
            on_written(effects, now_ms)

    def failed(self, effects: Effects, error: ErrorCode, now_ms: int) -> None:
        """It did not happen."""
        self.on_failed(effects, error, now_ms)
        for _on_written, on_failed in self.waiting:
            on_failed(effects, error, now_ms)


class Writes:
    """Writes under way. They become durable in the order they began, because one log takes them; one that was not
    appended fails at any time.
    """

    def __init__(self) -> None:
        self._pending: dict[WriteId, _PendingWrite] = {}
        self._by_key: dict[bytes, list[WriteId]] = {}
        """Of those that do not run ahead: which have a record of a key, in their order."""
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._pending)

    def begin(  # noqa: PLR0913 - what a write may be
        self,
        effects: Effects,
        records: Sequence[Record],
        on_written: OnWritten,
        on_failed: OnFailed,
        *,
        runs_ahead: bool = False,
        producer: Producer | None = None,
        markers: tuple[Marker, ...] = (),
    ) -> WriteId:
        """Asks for a write; exactly one of the two functions is called when it has ended. `producer`: in a transaction
        of whom. `markers`: see `Write`.
        """
        assert records
        write_id = WriteId(self._next_id)
        self._next_id += 1
        self._pending[write_id] = _PendingWrite(tuple(records), on_written, on_failed, runs_ahead, producer, None)
        if not runs_ahead:
            for key in {record.key for record in records}:
                self._by_key.setdefault(key, []).append(write_id)
        effects.write(Write(write_id, tuple(records), runs_ahead, producer, markers=markers))
        return write_id

    def begin_end(self, effects: Effects, end: TransactionEnd, on_written: OnWritten, on_failed: OnFailed) -> None:
        """The same of a marker."""
        write_id = WriteId(self._next_id)
        self._next_id += 1
        self._pending[write_id] = _PendingWrite((), on_written, on_failed, runs_ahead=False, producer=None, end=end)
        effects.write(Write(write_id, (), end=end))

    def wait_for(self, write_id: WriteId | None, on_written: OnWritten, on_failed: OnFailed) -> bool:
        """Whether it is under way; then one of the two functions is called when it has ended."""
        pending = None if write_id is None else self._pending.get(write_id)
        if pending is None:
            return False
        pending.waiting.append((on_written, on_failed))
        return True

    def last_of(self, key: bytes) -> WriteId | None:
        """The last one that has a record of this key, and does not run ahead: what it says is not applied yet."""
        write_ids = self._by_key.get(key)
        return None if write_ids is None else write_ids[-1]

    def keys(self) -> KeysView[bytes]:
        """Of the records under way that do not run ahead."""
        return self._by_key.keys()

    def begin_parts(
        self, effects: Effects, records: Sequence[Record], on_written: OnWritten, on_failed: OnFailed
    ) -> None:
        """The same where all of them or some may happen: in writes that are not too large. `on_written` is called when
        all are durable, `on_failed` when the last one has ended and one of them failed.
        """
        parts: list[list[Record]] = [[]]
        part_bytes = 0
        for record in records:
            if parts[-1] and part_bytes + size_of(record) > OWN_BATCH_BYTES_MAX:
                parts.append([])
                part_bytes = 0
            parts[-1].append(record)
            part_bytes += size_of(record)
        left, errors = len(parts), list[ErrorCode]()

        def ended(later: Effects, now_ms: int) -> None:
            nonlocal left
            left -= 1
            if not left and errors:
                on_failed(later, errors[0], now_ms)
            elif not left:
                on_written(later, now_ms)

        def failed(later: Effects, error: ErrorCode, now_ms: int) -> None:
            errors.append(error)
            ended(later, now_ms)

        for part in parts:
            self.begin(effects, part, ended, failed)

    @property
    def oldest(self) -> WriteId:
        """The write that has to end next."""
        return next(iter(self._pending))

    def end(self, write_id: WriteId) -> _PendingWrite:
        """Takes out a write that is durable; it is a bug of the driver when it is not the oldest."""
        assert next(iter(self._pending), None) == write_id, f"write {write_id} is not the oldest under way"
        return self._take(write_id)

    def fail(self, write_id: WriteId) -> _PendingWrite:
        """Takes out a write that failed, or was refused while others wait."""
        return self._take(write_id)

    def _take(self, write_id: WriteId) -> _PendingWrite:
        pending = self._pending.pop(write_id)
        if not pending.runs_ahead:
            for key in {record.key for record in pending.records}:
                self._by_key[key].remove(write_id)
                if not self._by_key[key]:
                    del self._by_key[key]
        return pending


class Timers:
    """Deadlines by key. A later deadline for a key replaces the earlier one, and costs nothing until that has come: a
    member's session is put off by each of its heartbeats.
    """

    def __init__(self) -> None:
        self._deadlines: dict[Hashable, tuple[int, int, int]] = {}
        """When, and the entry in the heap that finds it: its number, and its own time, which is no later."""
        self._heap: list[tuple[int, int, Hashable]] = []
        self._count = 0

    def set(self, key: Hashable, deadline_ms: int) -> None:
        """Wakes `key` at `deadline_ms`."""
        found = self._deadlines.get(key)
        if found is not None and found[2] <= deadline_ms:
            self._deadlines[key] = (deadline_ms, found[1], found[2])
            return
        self._count += 1
        self._deadlines[key] = (deadline_ms, self._count, deadline_ms)
        heapq.heappush(self._heap, (deadline_ms, self._count, key))
        if len(self._heap) > 2 * len(self._deadlines) + STALE_MIN:
            self._heap = [(entry_ms, count, each) for each, (_at_ms, count, entry_ms) in self._deadlines.items()]
            heapq.heapify(self._heap)

    def set_if_none(self, key: Hashable, deadline_ms: int) -> None:
        """The same, unless it is woken at some time anyway."""
        if key not in self._deadlines:
            self.set(key, deadline_ms)

    def cancel(self, key: Hashable) -> None:
        """Forgets a deadline, if there is one."""
        self._deadlines.pop(key, None)

    def shift(self, by_ms: int) -> None:
        """All deadlines: the clock that they are of was set."""
        self._deadlines = {
            key: (deadline_ms + by_ms, count, entry_ms + by_ms)
            for key, (deadline_ms, count, entry_ms) in self._deadlines.items()
        }
        self._heap = [(entry_ms + by_ms, count, key) for entry_ms, count, key in self._heap]

    def next_deadline_ms(self) -> int | None:
        """The earliest deadline."""
        self._bring_up_to_date()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> Hashable | None:
        """Takes out one key whose deadline has come, the earliest first."""
        self._bring_up_to_date()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        _deadline_ms, _count, key = heapq.heappop(self._heap)
        del self._deadlines[key]
        return key

    def _bring_up_to_date(self) -> None:
        """The first entry is that of the earliest deadline."""
        while self._heap:
            entry_ms, count, key = self._heap[0]
            found = self._deadlines.get(key)
            if found is None or found[1] != count:
                heapq.heappop(self._heap)
            elif found[0] > entry_ms:
                self._deadlines[key] = (found[0], count, found[0])
                heapq.heapreplace(self._heap, (found[0], count, key))
            else:
                return
