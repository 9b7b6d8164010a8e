"""Drives the machine of one partition by its log: `MachineDriver`. It knows nothing of what the machine coordinates.

Duties (`coordinator.Machine` is the contract): replay the partition at its opening; hand requests in with a token and
send the replies; append writes in their order and report each as written when it is durable; keep one timer; unload
when the partition goes. The log is kept short by the cleaner: of each key its last record is what counts.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from tpc_broker import limits
from tpc_broker.broker.log_replay import replayed
from tpc_broker.broker.producers_port import EndMarker
from tpc_broker.coordinator import (
    Effects,
    Machine,
    Record,
    RecordDamagedError,
    Write,
)
from tpc_broker.coordinator.latest import LatestRecords
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import OffsetOutOfRangeError, PartitionOfflineError, RecordsDamagedError
from tpc_broker.kafka.records import Record as LogRecord
from tpc_broker.kafka.records import build_batch
from tpc_broker.metadata.cleaner_settings import decompressed_bytes_max

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from tpc_broker.broker.dispatch import CoreWithClients
    from tpc_broker.broker.partition import Partition
    from tpc_broker.coordinator import TransactionEnd

log = logging.getLogger(__name__)

LOAD_BYTES = 1 << 20
GIVEN_AT_ONCE = 50
"""Records that count, some 11 µs each, for which everything else of this core waits."""
END_STEP = 16
"""Of the end of loading so many parts at once, some 10 µs each, or what a group of many members takes."""
CLOCK_SET_MS = 1_000
"""A wall clock that differs by so much from what the monotonic one says was set."""
TIMER_LATE_MS = 500
TIMER_GRACE_MS_MAX = 5_000

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


class MachineDriver(Generic[M]):
    """One partition's machine with its log and its timer."""

    def __init__(self, core: CoreWithClients, partition: Partition, machine: M, what: str) -> None:
        """`what`: what the machine coordinates, as log lines name it ("groups")."""
        self.machine = machine
        self.what = what
        self._core = core
        self._partition = partition
        self._writes: deque[Write] = deque()
        self._writes_bytes = 0
        self._has_writes = trio.Event()
        self._timer_changed = trio.Event()
        self._sleeps_until_ms: float = -math.inf
        """By `now_ms`; a deadline before that is heard by `_timer_changed`."""
        self._waiting: set[PendingReply] = set()
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
        refused, error = list[tuple[Write, ErrorCode]](), ErrorCode.NONE
        for write in effects.writes:
            if not write.markers or error is ErrorCode.NONE:  # else it goes with the one before it
                error = self._queue(write)
            if error is not ErrorCode.NONE:
                refused.append((write, error))
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

    # Rule: A log may be cleaned while it is read. What was read is what is stored, unless that took as long as
    # tombstones stay, of which one may be gone whose key was read before: then it is read again. Held by
    # tests/broker/test_gapped_logs.py.
    async def _replay(self) -> None:
        partition, clock = self._partition, self._core.clock
        while True:
            began_ms, (_state, seals) = clock.monotonic_ms(), partition.cleaned()
            latest = await self._read_log()
            took_ms = clock.monotonic_ms() - began_ms
            if took_ms < partition.config.delete_retention_ms or partition.cleaned()[1] == seals:
                break
            log.info("%s: it was cleaned while its %s were read, and is read again", partition.label, self.what)
        given = 0
        for pieces in latest.given():
            given += pieces
            if given >= GIVEN_AT_ONCE:
                given = 0
                await trio.lowlevel.checkpoint()

    # Rule: Of a machine's log only the last record of each key is decoded: a log of a million records of 100,000 keys
    # is loaded in two seconds, and in short steps. Held by tests/broker/test_log_loading.py.
    async def _read_log(self) -> LatestRecords:
        partition, latest = self._partition, LatestRecords(self.machine)
        bounds = partition.bounds()
        offset = bounds.log_start_offset
        unpacked_bytes_max = decompressed_bytes_max(self._core.settings)
        while offset < bounds.high_watermark:
            data, begin = await partition.read_bytes(offset, bounds.high_watermark, LOAD_BYTES), offset
            if not data and partition.cleaned()[0].end_offset >= bounds.high_watermark:
                break  # nothing is left of the rest
            for offset in replayed(data, latest, unpacked_bytes_max):  # noqa: B007 - the last one is where to go on
                await trio.lowlevel.checkpoint()
            if offset <= begin:
                raise RecordDamagedError(f"nothing can be read at offset {begin}")
            await trio.lowlevel.checkpoint()
        return latest

    async def _write_in_order(self) -> None:
        """Append what is queued, as it was queued; several writes share one wait for the disk."""
        while True:
            await self._has_writes.wait()
            if self.is_unloaded:
                return
            await self._write(self._next_writes())
            if not self._writes and not self.is_unloaded:
                self._has_writes = trio.Event()

    def _next_writes(self) -> list[Write]:
        """As many as one batch takes, and at least one: ends of transactions alone, or others alone. Those with markers
        are of another batch, and together with the ones before them.
        """
        writes, total, batch_bytes = list[Write](), 0, 0
        while self._writes:
            following = self._writes[0]
            size = following.size_bytes
            if not following.markers:
                batch_bytes += size
                if batch_bytes > limits.OWN_BATCH_BYTES_MAX:
                    break
                if writes and (writes[-1].end is None) != (following.end is None):
                    break
            writes.append(self._writes.popleft())
            total += size
        self._writes_bytes -= total
        assert writes
        assert self._writes_bytes >= 0, self._writes_bytes
        return writes

    async def _append(self, writes: list[Write]) -> list[ErrorCode]:
        """All of them or none, but for ends, until they are committed. PartitionOfflineError."""
        ends = [write.end for write in writes if write.end is not None]
        if ends:
            return await self._append_ends(ends)
        await self._partition.append_durably(b"".join(self._batches(writes)))
        return [ErrorCode.NONE] * len(writes)

    async def _write(self, writes: list[Write]) -> None:
        try:
            errors = await self._append(writes)
        except PartitionOfflineError as error:
            if self.is_unloaded:
                return
            text = f"{self._partition.label}: {len(writes)} writes failed: {error}"
            self._core.log_limiter.say(log, f"writes of {self.what} failed", self._partition.label, text)
            errors = [ErrorCode.KAFKA_STORAGE_ERROR] * len(writes)
        for write, code in zip(writes, errors, strict=True):
            if code is not ErrorCode.NONE:
                self._fail(write, code)
            elif not self.is_unloaded:
                self.do(partial(self.machine.written, write.write_id))

    async def _append_ends(self, ends: list[TransactionEnd]) -> list[ErrorCode]:
        """Each is judged by what is known of its producer in this log."""
        return await self._partition.append_markers([
            EndMarker(*end.producer, end.coordinator_epoch, end.commit, end.transaction_version) for end in ends
        ])  # fmt: skip

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

    # Rule: State may run ahead of the disk, answers may not. When a write fails whose records are applied already,
    # nothing decided since is written, everybody is refused, and the machine is loaded again from the log. Held by
    # tests/broker/test_coordinator_driver.py.
    def _fail(self, write: Write, error: ErrorCode) -> None:
        if write.runs_ahead and not self.is_unloaded:
            self.unload()
            self.has_loaded = trio.Event()
        elif not self.is_unloaded:
            self.do(partial(self.machine.write_failed, write.write_id, error))

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
