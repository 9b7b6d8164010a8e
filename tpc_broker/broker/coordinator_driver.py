"""Drives the machine of one partition by its log: `MachineDriver`. It knows nothing of what the machine coordinates.

Duties (`coordinator.Machine` is the contract): replay the partition at its opening; hand requests in with a token and
send the replies; append writes in their order and report each as written when it is durable; keep one timer; append a
snapshot and move the log's start when the log has grown; unload when the partition goes.

A snapshot is written in parts between writes: as many records as were written since the last part, and at least one
part, so that under writes that never pause the log is bounded by about four times what is live, and no write waits for
more than a part or what was written before it. A part says again what the log says already, from the state of that
moment, when nothing is under way; so whatever part of a snapshot is in the log, a replay gives the same state. When all
parts are in the log, it begins where the first one does. Writes in between lie behind that.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from tpc_broker import limits
from tpc_broker.broker.producers_port import EndMarker
from tpc_broker.coordinator import (
    Effects,
    Machine,
    Producer,
    Record,
    RecordDamagedError,
    TransactionalMachine,
    Write,
    WriteId,
)
from tpc_broker.coordinator.effects import size_of
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import OffsetOutOfRangeError, PartitionOfflineError, RecordsDamagedError
from tpc_broker.kafka.key_values import KeyValues
from tpc_broker.kafka.records import CONTROL_KEY, ControlType, build_batch, in_parts, read_batch
from tpc_broker.kafka.records import Record as LogRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.partition import Partition
    from tpc_broker.coordinator import TransactionEnd
    from tpc_broker.kafka.records import Batch

log = logging.getLogger(__name__)

LOAD_BYTES = 1 << 20
LOAD_STEP = 64
"""Records replayed at once: some 11 µs each, for which everything else of this core waits."""
END_STEP = 16
"""Of the end of loading so many parts at once, some 10 µs each, or what a group of many members takes."""
CLOCK_SET_MS = 1_000
"""A wall clock that differs by so much from what the monotonic one says was set."""
TIMER_LATE_MS = 500
TIMER_GRACE_MS_MAX = 5_000
SNAPSHOT_GROWTH_RECORDS = 20_000
"""A snapshot is due when the log holds this many records more than twice the live ones, or than when one failed."""
SNAPSHOT_PART_RECORDS, SNAPSHOT_PART_BYTES = 200, 1 << 20
"""Taken from the machine at once, some 20 µs a record, for which everything else of this core waits."""

M = TypeVar("M", bound=Machine)
R = TypeVar("R")


class MachineFailedError(Exception):
    """The machine raised while a request waited in it, and nothing is known of what became of that."""


class NotLoadedError(Exception):
    """The machine is not there for requests: `error_code` is what clients are told."""

    def __init__(self, error_code: ErrorCode) -> None:
        super().__init__(error_code.name)
        self.error_code = error_code


class PendingReply:
    """A request that waits for its reply; the token the machine sees."""

    __slots__ = ("_came", "response")

    def __init__(self) -> None:
        self.response: object = None
        """None: it has not come. No machine replies with None."""
        self._came: trio.Event | None = None

    def give(self, response: object) -> None:
        """The reply has come; at most once."""
        assert self.response is None, self.response
        self.response = response
        if self._came is not None:
            self._came.set()

    async def wait(self) -> None:
        """Others have their turn, however soon it comes."""
        if self.response is None:
            self._came = trio.Event()
            await self._came.wait()
        else:
            await trio.lowlevel.checkpoint()


@dataclass(slots=True)
class _Snapshot:
    """One that is being written. `start`: where the log is to begin; `older_records`: in front of that."""

    start: int
    older_records: int
    left: Iterator[Record]
    live_records: int = 0
    open_keys: set[bytes] = field(default_factory=set)
    """Of which something was in an open transaction, when it began or when they were to be written; to be said when
    that has ended.
    """
    last_left_out: WriteId | None = None
    """When all parts are written: of the writes that run ahead and wait then. Their records are in no part."""

    def next_part(self) -> list[Record]:
        """Nothing is looked at that is not in it: what comes later is to be as it will be then. The last record of a
        part may be as large as any.
        """
        part: list[Record] = []
        part_bytes = 0
        for record in self.left:
            part.append(record)
            part_bytes += size_of(record)
            if len(part) == SNAPSHOT_PART_RECORDS or part_bytes >= SNAPSHOT_PART_BYTES:
                break
        self.live_records += len(part)
        return part


class MachineDriver(Generic[M]):
    """One partition's machine with its log and its timer."""

    load_step = LOAD_STEP
    """Records, and ends of batches, that are replayed at once."""

    def __init__(self, core: Core, partition: Partition, machine: M, what: str) -> None:
        """`what`: what the machine coordinates, as log lines name it ("groups")."""
        self.machine = machine
        self.what = what
        self._in_transactions: TransactionalMachine | None = None
        if isinstance(machine, TransactionalMachine):
            self._in_transactions = machine
        self._core = core
        self._partition = partition
        self._writes: deque[Write] = deque()
        self._writes_bytes = 0
        self._has_writes = trio.Event()
        self._timer_changed = trio.Event()
        self._sleeps_until_ms: float = -math.inf
        """By `now_ms`; a deadline before that is heard by `_timer_changed`."""
        self._waiting: set[PendingReply] = set()
        self._records_in_log = 0
        self._snapshot: _Snapshot | None = None
        self._records_expected = 0
        """In the log; a snapshot is due when it has grown beyond them."""
        self._ahead_ms = core.clock.wall_ms() - core.clock.monotonic_ms()
        self.is_loaded = self.is_unloaded = False
        self.has_raised = self.raised_unasked = False
        """Its machine, which is of no use since; and that without a request or a write of anybody."""
        self.has_loaded = trio.Event()
        """Set once it is loaded, or will never be. When it was and has to be again: once the next one is."""

    def come_after(self, before: MachineDriver[M]) -> None:
        """Load what that one had, whose machine is of no use any more."""
        if not before.has_loaded.is_set():
            self.has_loaded = before.has_loaded
        self._records_expected = before._records_expected

    async def run(self) -> None:
        """Load, then write and keep time until cancelled, or until it was unloaded and nothing is under way."""
        await self._load()
        if not self.is_unloaded:
            await self._prepare_end_of_loading()
        if not self.is_unloaded:
            self.do(self.machine.finish_loading)
        self.raised_unasked = self.has_raised
        if self.is_unloaded:
            return
        self.is_loaded = True
        self.has_loaded.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_time)
            nursery.start_soon(self._work_beside)
            await self._write_in_order()
            nursery.cancel_scope.cancel()

    async def _prepare_end_of_loading(self) -> None:
        try:
            for number, _part in enumerate(self._parts_of_end_of_loading(), 1):
                if number % END_STEP == 0:
                    await trio.lowlevel.checkpoint()
        except Exception as error:  # as in `do`
            self._machine_raised(error)

    def _parts_of_end_of_loading(self) -> Iterator[object]:
        """For a kind of machine that has much to do there."""
        return iter(())

    async def _work_beside(self) -> None:
        """What a kind of machine needs beside this, from when it is loaded on."""

    def now_ms(self) -> int:
        """By the wall clock, whose times are stored. Where it was set, deadlines go with it: sessions and rounds are as
        long as they would have been. Set forward is also the clock of a computer that stood still, where clients could
        not be heard: they have a little longer.
        """
        now_ms = self._core.clock.wall_ms()
        set_by_ms = now_ms - self._core.clock.monotonic_ms() - self._ahead_ms
        if abs(set_by_ms) >= CLOCK_SET_MS:
            self._ahead_ms += set_by_ms
            self._timer_changed.set()
            self.machine.clock_was_set(set_by_ms + max(0, min(set_by_ms, TIMER_GRACE_MS_MAX)))
        return now_ms

    async def call(self, kind: type[R], step: Callable[[PendingReply, int], Effects]) -> R:
        """One request: hand it in, wait for its reply, which is of that kind. NotLoadedError, MachineFailedError."""
        return await self._reply_to(self.hand_in(step), kind)

    def ask(self, kind: type[R], step: Callable[[PendingReply, int], Effects]) -> R | Coroutine[Any, Any, R]:
        """The same: the reply when it is there at once; where it waits for a write or for others, what is to be awaited
        for it.
        """
        pending = self.hand_in(step)
        return self._reply_to(pending, kind) if pending.response is None else _reply(pending, kind)

    def hand_in(self, step: Callable[[PendingReply, int], Effects]) -> PendingReply:
        """One request; its reply may be there at once. Who waits for it no more says so (`forget`). NotLoadedError."""
        if not self.is_loaded:
            raise NotLoadedError(self._why_not_loaded())
        pending = PendingReply()
        self._waiting.add(pending)
        self.do(lambda now_ms: step(pending, now_ms))
        if pending.response is not None:
            self._waiting.discard(pending)
        return pending

    def forget(self, pending: PendingReply) -> None:
        """Nobody waits for it any more."""
        self._waiting.discard(pending)

    async def _reply_to(self, pending: PendingReply, kind: type[R]) -> R:
        try:
            await pending.wait()
        finally:
            self.forget(pending)
        return _reply(pending, kind)

    def _why_not_loaded(self) -> ErrorCode:
        """A machine that is unloaded answers nobody."""
        if not self.is_unloaded:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        is_loaded_again = self.has_raised or not self.has_loaded.is_set()
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if is_loaded_again else ErrorCode.NOT_COORDINATOR

    # Rule: A step of a machine happens as a whole. When it raises, nothing of it is written, nor anything after it;
    # everybody who waits is refused, and the machine is loaded again from its log. The core goes on. Held by
    # tests/broker/test_coordinator_driver.py.
    def do(self, step: Callable[[int], Effects]) -> None:
        """A step of the machine, and what follows from it. One that raises may have changed what is in memory, of which
        the log then never hears.
        """
        try:
            self.perform(step(self.now_ms()))
        except Exception as error:  # whatever it is: others' groups, and what is beside them on this core, go on
            self._machine_raised(error)

    def do_unasked(self, step: Callable[[int], Effects]) -> None:
        """The same, of a machine that is loaded, and when no client has part in it."""
        if not self.is_unloaded:
            self.do(step)
            self.raised_unasked = self.has_raised

    def at_once(self, step: Callable[[int], R]) -> R:
        """A step without effects, and what it returns; it may have moved a deadline. MachineFailedError."""
        try:
            result = step(self.now_ms())
            self.timer_changed()
        except Exception as error:  # as in `do`
            self._machine_raised(error)
            raise MachineFailedError(self._failure()) from error
        return result

    def _failure(self) -> str:
        return f"{self._partition.label}: its {self.what} raised"

    def _machine_raised(self, error: Exception) -> None:
        """What a machine raises that has raised before is of no interest."""
        if self.has_raised:
            return
        log.error("%s: its %s raised, and are loaded again", self._partition.label, self.what, exc_info=error)
        self.has_raised = True
        self._core.note_machine_raised()
        self._begin_anew()

    def perform(self, effects: Effects) -> None:
        """Send replies, queue writes, look at the clock again."""
        for reply in effects.replies:
            token = reply.token
            assert isinstance(token, PendingReply)
            token.give(reply.response)
        refused = [(write, error) for write in effects.writes if (error := self._queue(write)) is not ErrorCode.NONE]
        self.timer_changed()
        for write, error in refused:  # when all are queued: what follows from it comes behind them
            self._fail(write, error)

    def _queue(self, write: Write) -> ErrorCode:
        size = write.size_bytes
        if size > limits.OWN_BATCH_BYTES_MAX:
            return ErrorCode.MESSAGE_TOO_LARGE
        is_full = self._writes_bytes + size > limits.COORDINATOR_WRITES_BYTES_MAX
        if is_full or len(self._writes) >= limits.COORDINATOR_WRITES_MAX:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE  # the disk is far behind: clients are to come back
        self._writes.append(write)
        self._writes_bytes += size
        self._has_writes.set()
        return ErrorCode.NONE

    def timer_changed(self) -> None:
        """To be called after a step without effects that may have moved a deadline. One that is later than before is
        seen when the one before has come: each heartbeat moves its member's.
        """
        deadline_ms = self.machine.next_deadline_ms()
        if deadline_ms is not None and deadline_ms < self._sleeps_until_ms:
            self._timer_changed.set()

    def unload(self) -> None:
        """Answer everybody who waits; what becomes of writes under way is nobody's concern any more."""
        if not self.is_unloaded:
            self.is_loaded, self.is_unloaded = False, True
            try:
                self.perform(self.machine.unload())
            except Exception:  # it may have raised before, and is then in no state that it knows
                log.exception("%s: its %s raised when they were unloaded", self._partition.label, self.what)
                self._refuse_waiting()
            self._has_writes.set()
        self.has_loaded.set()

    def _begin_anew(self) -> None:
        """The machine is of no use any more. Who waited, and of whom it has forgotten, is not answered."""
        if not self.is_unloaded:
            self.unload()
            self.has_loaded = trio.Event()
        self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        for pending in self._waiting:
            if pending.response is None:
                pending.give(MachineFailedError(self._failure()))

    async def _load(self) -> None:
        try:
            await self._replay()
        except (PartitionOfflineError, OffsetOutOfRangeError):
            raise
        except (ValueError, RecordDamagedError) as error:
            raise RecordsDamagedError(f"{self._partition.label}: {error}") from error
        except Exception as error:  # as in `do`
            self._machine_raised(error)

    async def _replay(self) -> None:
        partition = self._partition
        bounds = partition.bounds()
        offset = bounds.log_start_offset
        while offset < bounds.high_watermark:
            data, begin = await partition.read_bytes(offset, bounds.high_watermark, LOAD_BYTES), offset
            for offset in self._replayed(data):  # noqa: B007 - the last one is where to go on
                await trio.lowlevel.checkpoint()
            if offset <= begin:
                raise RecordDamagedError(f"nothing can be read at offset {begin}")
            await trio.lowlevel.checkpoint()

    # Rule: A machine's log is replayed by batches: a control batch that ends no transaction, one without records and
    # offsets that are in no batch are passed over, and hold up nothing. Held by
    # tests/broker/test_coordinator_driver.py.
    def _replayed(self, data: bytes) -> Iterator[int]:
        """In steps of `load_step`, after each of which it says at which offset what it has not begun begins."""
        walk, step = KeyValues(data), 0
        while not walk.is_at_end:
            records, looked_at = walk.take(self.load_step - step)
            self._records_in_log += len(records)
            self._replay_records(records)
            step += looked_at
            if walk.is_at_other:
                batch = read_batch(data, walk.position)
                for record in batch.records() if batch.is_transactional or not batch.is_control else ():
                    self._records_in_log += 1
                    self._replay_record(batch, record)
                    step += 1
                    if step >= self.load_step:
                        yield walk.next_offset
                        step = 0
                walk.pass_over(len(batch.data), batch.last_offset + 1)
                step += 1
            if step >= self.load_step:
                yield walk.next_offset
                step = 0
        yield walk.next_offset

    def _replay_records(self, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Some in a row that are in no transaction."""
        for key, value in records:
            if key is not None:
                self.machine.replay(key, value)

    def _replay_record(self, batch: Batch, record: LogRecord) -> None:
        machine, key = self._in_transactions, record.key
        if key is None:
            return
        if batch.is_control:
            commit = _commits(key)
            if machine is not None and commit is not None:
                machine.replay_end(batch.producer_id, commit=commit)
        elif machine is not None and batch.is_transactional and batch.producer_id >= 0:
            machine.replay_open(Producer(batch.producer_id, batch.producer_epoch), key, record.value)
        else:
            self._replay_records(((key, record.value),))

    async def _write_in_order(self) -> None:
        """Append what is queued, as it was queued; several writes share one wait for the disk."""
        while True:
            await self._has_writes.wait()
            if self.is_unloaded:
                return
            written = await self._write(self._next_writes())
            if not self._writes and not self.is_unloaded:
                self._has_writes = trio.Event()
            await self._go_on_with_snapshot(written)

    def _next_writes(self) -> list[Write]:
        """As many as one batch takes, and at least one: ends of transactions alone, or others alone. So a snapshot has
        its turn behind an end, to say what counts now, before the next transaction is open.
        """
        writes, total = list[Write](), 0
        while self._writes and total + (size := self._writes[0].size_bytes) <= limits.OWN_BATCH_BYTES_MAX:
            if writes and (writes[-1].end is None) != (self._writes[0].end is None):
                break
            writes.append(self._writes.popleft())
            total += size
        self._writes_bytes -= total
        assert writes
        assert self._writes_bytes >= 0, self._writes_bytes
        return writes

    async def _write(self, writes: list[Write]) -> int:
        """How many records were written."""
        ends = [write.end for write in writes if write.end is not None]
        count = len(ends) + sum(len(write.records) for write in writes)
        errors = [ErrorCode.NONE] * len(writes)
        try:
            if ends:
                errors = await self._append_ends(ends)
            else:
                await self._append(b"".join(self._batches(writes)), count)
        except PartitionOfflineError as error:
            if self.is_unloaded:
                return 0
            text = f"{self._partition.label}: {len(writes)} writes failed: {error}"
            self._core.log_limiter.say(log, f"writes of {self.what} failed", self._partition.label, text)
            count, errors = 0, [ErrorCode.KAFKA_STORAGE_ERROR] * len(writes)
        for write, code in zip(writes, errors, strict=True):
            if code is not ErrorCode.NONE:
                self._fail(write, code)
            elif not self.is_unloaded:
                self.do(partial(self.machine.written, write.write_id))
        return count

    async def _append_ends(self, ends: list[TransactionEnd]) -> list[ErrorCode]:
        """Each is judged by what is known of its producer in this log."""
        errors = await self._partition.append_markers([
            EndMarker(*end.producer, end.coordinator_epoch, end.commit, end.transaction_version) for end in ends
        ])  # fmt: skip
        self._records_in_log += errors.count(ErrorCode.NONE)
        return errors

    def _batches(self, writes: list[Write]) -> Iterator[bytes]:
        """In their order. Those beside each other that are in no transaction are one."""
        for is_plain, group in groupby(writes, lambda write: write.producer is None):
            if is_plain:
                yield build_batch(self._stamped(record for write in group for record in write.records))
            else:
                yield from map(self._batch_of_transaction, group)

    def _batch_of_transaction(self, write: Write) -> bytes:
        """As Kafka writes them. Sequences of coordinators are not judged."""
        assert write.producer is not None
        return build_batch(
            self._stamped(write.records), base_sequence=0, is_transactional=True, **write.producer._asdict()
        )

    def _stamped(self, records: Iterable[Record]) -> list[LogRecord]:
        now_ms = self._core.clock.wall_ms()
        return [LogRecord(record.value, record.key, now_ms) for record in records]

    async def _append(self, batches: bytes, count: int) -> None:
        await self._partition.append_durably(batches)
        self._records_in_log += count

    # Rule: State may run ahead of the disk, answers may not. When a write fails whose records are applied already,
    # nothing decided since is written, everybody is refused, and the machine is loaded again from the log. Held by
    # tests/broker/test_coordinator_driver.py.
    def _fail(self, write: Write, error: ErrorCode) -> None:
        if write.runs_ahead and not self.is_unloaded:
            self.unload()
            self.has_loaded = trio.Event()
        elif not self.is_unloaded:
            self.do(partial(self.machine.write_failed, write.write_id, error))

    # Rule: A snapshot goes on between writes, however steady they are, and no write waits for more of it than was
    # written before it, or one part. The log's start moves when all of it is durable.
    # Why: docs/decisions/2026-11-29-snapshots-in-parts.md. Held by
    # tests/broker/test_coordinator_driver.py (the log is bounded; a crash after any record), tests/coordinator
    # (test_properties.py, the same of groups).
    async def _go_on_with_snapshot(self, written: int) -> None:
        """As far as `written` records pay for it, and on while no write waits."""
        try:
            if self._snapshot is None and self._records_in_log >= self._records_expected + SNAPSHOT_GROWTH_RECORDS:
                self._begin_snapshot()
            while (snapshot := self._snapshot) is not None and (written > 0 or not self._writes):
                if self.is_unloaded:
                    return
                part = self._no_longer_open(snapshot) or self._next_part(snapshot)
                if self.has_raised:
                    return
                if part:
                    written -= len(part)
                    await self._write_part(snapshot, part)
                elif not snapshot.open_keys and self._has_all_in_log(snapshot):
                    await self._partition.move_log_start(snapshot.start)
                    self._records_in_log -= snapshot.older_records
                    self._snapshot, self._records_expected = None, 2 * snapshot.live_records
                else:
                    return
        except PartitionOfflineError as error:
            self._snapshot, self._records_expected = None, self._records_in_log
            text = f"{self._partition.label}: snapshot failed: {error}"
            self._core.log_limiter.say(log, f"snapshots of {self.what} failed", self._partition.label, text)

    def _begin_snapshot(self) -> None:
        start = self._partition.bounds().log_end_offset
        try:
            self._snapshot = _Snapshot(start, self._records_in_log, self.machine.snapshot())
            self._snapshot.open_keys.update(self._open_keys())
        except Exception as error:  # as in `do`
            self._snapshot_raised(error)

    def _open_keys(self) -> Collection[bytes]:
        return () if self._in_transactions is None else self._in_transactions.open_keys()

    # Rule: A snapshot says nothing of a key of which something is pending in a transaction: what it says would count in
    # place of what the transaction commits. The log's start moves behind such a record only when it has ended, and what
    # counts then is said again. Held by tests/broker/test_coordinator_driver.py.
    def _no_longer_open(self, snapshot: _Snapshot) -> list[Record]:
        """A part, of those whose transactions have ended."""
        machine, part = self._in_transactions, list[Record]()
        if machine is None or not snapshot.open_keys:
            return part
        ended = islice(snapshot.open_keys.difference(machine.open_keys()), SNAPSHOT_PART_RECORDS)
        for key in list(ended):
            snapshot.open_keys.remove(key)
            value = machine.stored_of(key)
            if value is not None:
                part.append(Record(key, value))
        snapshot.live_records += len(part)
        return part

    def _next_part(self, snapshot: _Snapshot) -> list[Record]:
        try:
            return snapshot.next_part()
        except Exception as error:  # as in `do`
            self._snapshot_raised(error)
            return []

    def _snapshot_raised(self, error: Exception) -> None:
        """The next machine's is due when the log has grown as much again."""
        self._snapshot, self._records_expected = None, self._records_in_log
        self._machine_raised(error)

    async def _write_part(self, snapshot: _Snapshot, part: list[Record]) -> None:
        """But for what waits and has run ahead: it comes behind, and must not be durable before. And but for what is
        pending in a transaction, until that has ended.
        """
        pending = self._open_keys()
        snapshot.open_keys.update(record.key for record in part if record.key in pending)
        ahead = {record.key for write in self._writes if write.runs_ahead for record in write.records}
        durable = (record for record in part if record.key not in ahead and record.key not in pending)
        for records in in_parts(
            self._stamped(durable), bytes_max=limits.OWN_BATCH_BYTES_MAX,
            overhead_bytes=limits.OWN_RECORD_OVERHEAD_BYTES, records_max=SNAPSHOT_PART_RECORDS,
        ):  # fmt: skip
            await self._append(build_batch(records), len(records))

    def _has_all_in_log(self, snapshot: _Snapshot) -> bool:
        """Its parts are written; so are the writes that no part has anything of, or would have had."""
        if snapshot.last_left_out is None:
            ahead = [write.write_id for write in self._writes if write.runs_ahead]
            snapshot.last_left_out = ahead[-1] if ahead else WriteId(0)
        return all(write.write_id > snapshot.last_left_out for write in self._writes)

    # Rule: Deadlines of coordinators go with the wall clock when it is set: none is longer or shorter for it. Where
    # time was lost, clients are heard first. See also tpc_broker/coordinator/machine.py. Held by
    # tests/broker/test_group_service.py, tests/broker/test_coordinator_driver.py.
    async def _keep_time(self) -> None:
        while not self.is_unloaded:
            self._timer_changed = trio.Event()
            try:
                now_ms = self.now_ms()  # first: it may move the deadlines
                deadline_ms = self.machine.next_deadline_ms()
            except Exception as error:  # as in `do`
                self.raised_unasked = True
                self._machine_raised(error)
                return
            if deadline_ms is not None and deadline_ms <= now_ms:
                await self._hear_clients_first(now_ms - deadline_ms)
                self.do_unasked(self.machine.on_deadline)
                continue
            self._sleeps_until_ms = math.inf if deadline_ms is None else deadline_ms
            with trio.move_on_after((self._sleeps_until_ms - now_ms) / 1000):
                await self._timer_changed.wait()
            self._sleeps_until_ms = -math.inf

    async def _hear_clients_first(self, late_ms: int) -> None:
        """Before sessions end: what clients have sent is attended to. And when this core itself comes late, because the
        computer was paused or the clock was set, they have as long, now that they can be heard.
        """
        if late_ms > TIMER_LATE_MS:
            await trio.sleep(min(late_ms, TIMER_GRACE_MS_MAX) / 1000)
        await self._core.dispatcher.wait_caught_up()


def _reply(pending: PendingReply, kind: type[R]) -> R:
    if isinstance(pending.response, MachineFailedError):
        raise pending.response
    assert isinstance(pending.response, kind), pending.response
    return pending.response


def _commits(key: bytes) -> bool | None:
    """Of a control record, whether it commits or aborts; None: neither."""
    ends: dict[int, bool] = {ControlType.COMMIT: True, ControlType.ABORT: False}
    return ends.get(CONTROL_KEY.unpack(key)[1]) if len(key) == CONTROL_KEY.size else None
