"""The data plane of one core as the broker sees it (`tpc_broker.broker.ports.DataPlane`), over the structures in C.

Purpose: offsets, memory and journal of the partitions led here. Python registers, inspects and withdraws; appends,
group commit, producer sequences and answers to Produce happen in C (`native/log/partition.c` and its neighbours).

Invariants: a handle is never used twice; nothing that is not committed is told to anybody; a wait ends with success or
with PartitionOfflineError, never silently.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tpc_broker import limits
from tpc_broker._ring import ffi, lib
from tpc_broker.broker.ports import AppendResult, ProduceFallback, Verdict
from tpc_broker.engine.cache_plane import CachePlane
from tpc_broker.engine.connections import Frame, FrameSlice
from tpc_broker.engine.fetches import BegunFetch, FetchStatistics, fetch_statistics
from tpc_broker.engine.forwarding import ForwardingPlane
from tpc_broker.engine.grants_plane import GrantsPlane
from tpc_broker.engine.plane_waits import PlaneWaits
from tpc_broker.engine.produces import asked_produce
from tpc_broker.engine.replication import ReplicatingPlane
from tpc_broker.engine.steady_plane import SteadyPlane
from tpc_broker.engine.taken_batches import TakenBatches
from tpc_broker.engine.told_producers import told_producers
from tpc_broker.engine.transactions_plane import TransactionsPlane
from tpc_broker.errors import JournalStoppedError, PartitionOfflineError, StorageFailedError
from tpc_broker.kafka.encoder import Opaque
from tpc_broker.log.batch import BATCH_HEADER_BYTES
from tpc_broker.log.indexes import OFFSET_ENTRY_BYTES
from tpc_broker.log.state import encode_producers
from tpc_broker.native_bytes import pinned
from tpc_broker.routing import PartitionUse
from tpc_broker.storage.ports import Bounds, JournalCursor, JournalUse, PartitionState, ShortRun
from tpc_broker.storage.upkeep.short_runs import RUNS_TOGETHER, SHORT_RUN_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpc_broker._ring import tpc_slice
    from tpc_broker.broker.ports import AskedProduce
    from tpc_broker.broker.producers_port import EndMarker, ToldProducer
    from tpc_broker.broker.view import Endpoint
    from tpc_broker.engine.connections import Connections, Request
    from tpc_broker.engine.ring import Ring
    from tpc_broker.log.state import LogState
    from tpc_broker.model import TopicPartition
    from tpc_broker.storage.ports import InPlaceWindowParams, PartitionParams, SegmentWindow

READ_SLICES_MAX: Final = lib.TPC_READ_BATCHES_MAX
WRITE_BEHIND_BATCHES_MAX: Final = 4096
assert WRITE_BEHIND_BATCHES_MAX * BATCH_HEADER_BYTES > SHORT_RUN_BYTES_MAX, "a short run is taken whole"
DIRTY_FIRST: Final = 4096
COPIED_READ_BYTES_MAX: Final = 64 * 1024
"""Reads up to this size are copied, which is cheaper than keeping references."""
NO_LIMIT: Final = 2**63 - 1
PRODUCER_EXPIRY_MS: Final = 24 * 3600 * 1000
NO_ROOM: Final = -errno.EAGAIN


@dataclass(frozen=True, slots=True)
class JournalStart:
    """Where recovery found the end of the journal's chain, and how to write on."""

    descriptor: int
    mode: int
    journal_id: bytes
    run_id: int
    region_blocks: int
    region_blocks_max: int
    sequence_next: int
    block_next: int
    previous_crc: int


_new_uncleared = ffi.new_allocator(should_clear_after_alloc=False)


class TailSlice(FrameSlice, Opaque):
    """Bytes of a partition in memory: sent from where they lie, or copied with ``bytes()``."""

    __slots__ = ()

    def __len__(self) -> int:
        return self.length

    def __bytes__(self) -> bytes:
        return bytes(ffi.buffer(self.frame.pointer.data + self.position, self.length))


# Rule: What was read from C is old after an await or `poll_ring`. What belongs together is read in one call (`state`,
# `durable_cursor`, `write_behind_done`), and is read again afterwards. See also tpc_broker/storage/ports.py,
# tpc_broker/broker/ports.py. Held by tests/engine/test_storage_faults.py (a commit completes at each such point),
# tests/engine/test_segment_space.py.
class RingDataPlane(CachePlane, ForwardingPlane, GrantsPlane, ReplicatingPlane, SteadyPlane, TransactionsPlane):
    def __init__(self, ring: Ring, connections: Connections, start: JournalStart) -> None:
        lib.tpc_prefault_keep_heap()
        self._connections = connections
        self._journal = _open_journal(ring, start)
        params = ffi.new("tpc_plane_params *")
        params.tail_bytes_max = limits.CACHE_BYTES_SURE
        params.producer_expiry_ms = PRODUCER_EXPIRY_MS
        params.produce_partitions_max = limits.PRODUCE_PARTITIONS_MAX
        out = ffi.new("tpc_plane **")
        result = lib.tpc_plane_new(ring.pointer, self._journal, connections.pointer, connections.budget, params, out)
        _check(result, "data plane")
        self._plane = out[0]
        self._waits = PlaneWaits(ring, self._plane, self._journal)
        self._begin_replication()
        self._begin_steady(ring)
        self._begin_grants(ring)
        self._begin_cache()
        self._on_advanced: Callable[[int], None] = lambda _handle: None
        self._on_due: Callable[[], None] = lambda: None
        self._on_room_low: Callable[[int, int], None] = lambda _handle, _wanted: None
        self._on_space: Callable[[], None] = lambda: None
        self._on_failed: list[Callable[[int], None]] = []
        self._slices = ffi.new("tpc_slice[]", READ_SLICES_MAX)
        self._state = ffi.new("tpc_partition_state *")
        self._use = ffi.new("tpc_partition_use *")
        self._result = ffi.new("tpc_append_result *")
        self._sequence = ffi.new("uint64_t *")
        self._progress = ffi.new("tpc_journal_statistics *")
        self._dirty = ffi.new("uint64_t[]", DIRTY_FIRST)
        self._batch_arrays: list[Any] = []
        self._short_runs = ffi.new("tpc_short_run[]", RUNS_TOGETHER)
        self._ring = ring
        self._closed = False
        ring.on_event(lib.TPC_EVENT_JOURNAL_FAILED, self._journal_failed)
        ring.on_event(lib.TPC_EVENT_WRITE_BEHIND_DUE, lambda _token, _bytes, _all, _pointer: self._on_due())
        ring.on_event(lib.TPC_EVENT_ROOM_LOW, lambda handle, _left, wanted, _pointer: self._on_room_low(handle, wanted))
        ring.on_event(lib.TPC_EVENT_JOURNAL_SPACE, lambda _token, _used, _all, _pointer: self._on_space())
        ring.on_event(lib.TPC_EVENT_APPENDED, lambda _token, _a, _b, _pointer: self._on_appended())
        ring.on_event(lib.TPC_EVENT_PARTITION_ADVANCED, lambda handle, _hw, _lso, _pointer: self._on_advanced(handle))

    # -- events ------------------------------------------------------------------------------------------------------

    def on_advanced(self, callback: Callable[[int], None]) -> None:
        """Called with the handle of a watched partition that moved."""
        self._on_advanced = callback

    def on_due(self, callback: Callable[[], None]) -> None:
        self._on_due = callback

    def on_room_low(self, callback: Callable[[int, int], None]) -> None:
        self._on_room_low = callback

    def on_journal_space(self, callback: Callable[[], None]) -> None:
        self._on_space = callback

    def on_journal_failed(self, callback: Callable[[int], None]) -> None:
        self._on_failed.append(callback)

    def _journal_failed(self, _token: int, first_failed: int, error: int, _pointer: int) -> None:
        self._waits.journal_failed(first_failed)
        for callback in self._on_failed:
            callback(error)

    async def wait_durable(self, sequence: int, then: Callable[[], None] = lambda: None) -> None:
        """`JournalControl.wait_durable`."""
        await self._waits.wait_durable(sequence, then)

    async def wait_committed(self, handle: int, end_offset: int, leader_epoch: int) -> None:
        """`ProducePort.wait_committed`."""
        await self._waits.wait_level(handle, lib.TPC_LEVEL_COMMITTED, end_offset, leader_epoch)

    def set_hot(self, *, on: bool) -> None:
        """Whether Produce and Fetch are tried inside the ring's wait, before Python sees the request."""
        lib.tpc_plane_set_hot(self._plane, on)

    # -- produce -----------------------------------------------------------------------------------------------------

    def produce(self, request: Request) -> bool:
        """Let C take a Produce: it answers when the records are durable. False: nothing was done."""
        if lib.tpc_plane_produce(self._plane, request.pointer) == 1:
            request.taken()
            return True
        return False

    def asked(self, request: Request) -> AskedProduce | ProduceFallback:
        """`ProducePort.asked`."""
        return asked_produce(self._plane, request)

    def produce_with(
        self, request: Request, verdicts: Sequence[Verdict | None], endpoints: Sequence[Endpoint]
    ) -> ProduceFallback:
        """The same with what Python knows of each partition, in the order of the request."""
        kept: list[Any] = []
        told = ffi.new("tpc_produce_verdict[]", max(1, len(verdicts)))
        for target, verdict in zip(told, verdicts, strict=False):
            target.leader_id = target.leader_epoch = target.error_message_bytes = -1
            if verdict is None:
                continue
            target.error_code, target.gap_code, target.guard = verdict.error_code, verdict.gap, verdict.guard
            target.leader_id, target.leader_epoch = verdict.leader_id, verdict.leader_epoch
            if verdict.keyless:
                places_in_batch = ffi.new("int32_t[]", verdict.keyless)
                kept.append(places_in_batch)
                target.keyless, target.keyless_count = places_in_batch, len(verdict.keyless)
            if verdict.message is not None:
                target.error_message, target.error_message_bytes = _text(verdict.message, kept)
        hinted = {verdict.leader_id for verdict in verdicts if verdict is not None}
        hints = [endpoint for endpoint in endpoints if endpoint.broker_id in hinted]
        places = ffi.new("tpc_plane_endpoint[]", max(1, len(hints)))
        for place, endpoint in zip(places, hints, strict=False):
            place.host, place.host_bytes = _text(endpoint.host, kept)
            place.rack_bytes = -1
            if endpoint.rack is not None:
                place.rack, place.rack_bytes = _text(endpoint.rack, kept)
            place.node_id, place.port = endpoint.broker_id, endpoint.port
        result = lib.tpc_plane_produce_with(self._plane, request.pointer, told, len(verdicts), places, len(hints))
        if result == 1:
            request.taken()
            return ProduceFallback.NONE
        _check(result, "produce")
        return ProduceFallback(lib.tpc_plane_fallback_reason(self._plane))

    # -- fetch -------------------------------------------------------------------------------------------------------

    def begin_fetch(self, request: Request) -> BegunFetch:
        """The state of a Fetch that C left. DecodeError when it is malformed."""
        return BegunFetch(self._plane, request)

    def set_fetch_limits(self, response_bytes_max: int, sessions_max: int, eviction_ms: int) -> None:
        lib.tpc_plane_set_fetch_limits(self._plane, response_bytes_max, sessions_max, eviction_ms)

    def wants_window(self, handle: int, offset: int, bytes_max: int) -> bool:
        return bool(lib.tpc_partition_wants_window(self._plane, handle, offset, bytes_max))

    def open_window(self, handle: int, window: SegmentWindow) -> None:
        params = ffi.new("tpc_window_params *")
        entries, size, _held = pinned(window.entries)
        params.entries, params.entries_count = entries, size // OFFSET_ENTRY_BYTES
        params.segment_base_offset, params.descriptor = window.segment_base_offset, window.descriptor
        params.from_offset, params.upto_offset = window.from_offset, window.upto_offset
        params.from_position, params.end_position = window.from_position, window.end_position
        params.to_segment_end, params.is_sealed = window.to_segment_end, window.is_sealed
        _check(lib.tpc_partition_open_window(self._plane, handle, params), "open a window")

    def close_windows(self, handle: int) -> None:
        lib.tpc_partition_close_windows(self._plane, handle)

    def segments_replaced(self, handle: int, upto_offset: int) -> None:
        lib.tpc_partition_replaced(self._plane, handle, upto_offset)

    def release_fetches(self) -> None:
        lib.tpc_plane_release_fetches(self._plane)

    # -- counters ----------------------------------------------------------------------------------------------------

    def fetch_statistics(self) -> FetchStatistics:
        return fetch_statistics(self._plane)

    def plane_statistics(self) -> dict[str, int]:
        """The fields of `tpc_plane_statistics`."""
        return _numbers("tpc_plane_statistics", lib.tpc_plane_get_statistics, self._plane)

    def journal_statistics(self) -> dict[str, int]:
        """The fields of `tpc_journal_statistics` that are numbers."""
        return _numbers("tpc_journal_statistics", lib.tpc_journal_get_statistics, self._journal)

    def commit_spans(self) -> list[int]:
        """How many commits took how long: [i] less than 2^i us; the last one has all longer ones too."""
        values = ffi.new("tpc_journal_statistics *")
        lib.tpc_journal_get_statistics(self._journal, values)
        return list(values.commit_spans)

    # -- prepared answers ----------------------------------------------------------------------------------------------

    def prepare_answer(self, request: Request, answer: bytes, mark: int = 0) -> None:
        """Whoever sends the same listener the same request gets this answer, from behind the correlation id, until it
        is forgotten; `Connections.mark_of` tells then that it has got it, and at once of who sent this one. Only
        before the request's own answer.
        """
        # Without room, or for a request of unusual length, everybody goes on to be answered here.
        lib.tpc_plane_prepare_answer(self._plane, request.pointer, answer, len(answer), mark)

    def forget_answers(self, api_key: int) -> None:
        lib.tpc_plane_forget_answers(self._plane, api_key)

    # -- partitions --------------------------------------------------------------------------------------------------

    def register(self, params: PartitionParams, state: LogState) -> int:
        given, _kept = _partition_params(params)
        handle = ffi.new("uint64_t *")
        result = lib.tpc_partition_register(self._plane, given, handle)
        _check(result, f"register {params.topic}-{params.key.partition}")
        whole, lost_some = state.producers.divided()
        for some, ended, lost in ((whole, state.ended, False), (lost_some, (), params.is_relaxed)):
            if some or ended:
                encoded = encode_producers(some, ended)
                result = lib.tpc_partition_load_producers(self._plane, handle[0], encoded, len(encoded), lost)
                _check(result, "load producers")
        if params.is_replicated:
            self.set_replicated(handle[0], on=True)
        else:
            self.lead(handle[0], params.leader_epoch)
        return int(handle[0])

    def update(self, handle: int, params: PartitionParams) -> None:
        given, _kept = _partition_params(params)
        result = lib.tpc_partition_update(self._plane, handle, given)
        if result != -errno.ENOENT:
            _check(result, f"update {params.topic}-{params.key.partition}")

    def withdraw(self, handle: int) -> None:
        lib.tpc_partition_withdraw(self._plane, handle)

    def _state_of(self, handle: int) -> Any:
        if lib.tpc_partition_get_state(self._plane, handle, self._state) < 0:
            raise PartitionOfflineError("the partition was withdrawn")
        return self._state

    def bounds(self, handle: int) -> Bounds:
        state = self._state_of(handle)
        return Bounds(state.log_start_offset, state.last_stable_offset, state.high_watermark, state.log_end_offset)

    def state(self, handle: int) -> PartitionState:
        state = self._state_of(handle)
        return PartitionState(
            state.high_watermark, state.durable_offset, state.written_offset, state.unwritten_bytes,
            state.dirty_bytes, state.bytes_admitted, state.in_place_end_offset, state.leader_epoch,
        )  # fmt: skip

    def use(self, handle: int) -> PartitionUse:
        found = self._use
        if lib.tpc_partition_get_use(self._plane, handle, found) < 0:
            return PartitionUse()
        return PartitionUse(found.appends, found.append_bytes, found.reads, found.read_bytes)

    def count_read(self, handle: int, size: int) -> None:
        lib.tpc_partition_count_read(self._plane, handle, size)

    def admit(self, handle: int, bytes_more: int) -> None:
        lib.tpc_partition_admit(self._plane, handle, bytes_more)

    def watch(self, handle: int) -> None:
        lib.tpc_partition_watch(self._plane, handle)

    def set_log_start(self, handle: int, offset: int) -> None:
        lib.tpc_partition_set_log_start(self._plane, handle, offset)

    def expire_producers(self, handle: int) -> int | None:
        lib.tpc_partition_expire_producers(self._plane, handle)
        return self._producers_left(handle)

    def producers(self, handle: int, count_max: int) -> list[ToldProducer] | None:
        return told_producers(self._plane, handle, count_max)

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(
        self,
        handle: int,
        offset: int,
        upto: int,
        bytes_max: int,
        at_least_one: bool,  # noqa: FBT001
    ) -> tuple[list[Any], int] | None:
        """Whole batches from memory; None: the segments have them."""
        slices = self._slices
        count = lib.tpc_partition_read(
            self._plane, handle, offset, bytes_max, upto, at_least_one, slices, READ_SLICES_MAX
        )
        if count == -errno.ERANGE:
            return None
        if count == -errno.ENOENT:
            raise PartitionOfflineError("the partition was withdrawn")
        _check(count, "read")
        size = sum(slices[number].length for number in range(count))
        if size <= COPIED_READ_BYTES_MAX:
            data = b"".join([ffi.buffer(slices[n].data, slices[n].length)[:] for n in range(count)])
            lib.tpc_slices_release(slices, count)
            return ([data], size) if data else ([], 0)
        return [self._tail_slice(slices[number]) for number in range(count)], size

    def _tail_slice(self, found: tpc_slice) -> TailSlice:
        first = ffi.addressof(found.frame[0], "data")
        position = int(ffi.cast("uintptr_t", found.data)) - int(ffi.cast("uintptr_t", first))
        return TailSlice(Frame(self._connections.ring, found.frame), position, found.length)

    # -- appends of the broker's own -----------------------------------------------------------------------------------

    def append(self, handle: int, batches: bytes) -> AppendResult | None:
        """None: no room in the journal, or in the segments (then `make_room` has to be asked)."""
        result = lib.tpc_plane_append(self._plane, handle, batches, len(batches), self._result)
        return self._appended(result)

    def append_marker(self, handle: int, marker: EndMarker) -> AppendResult | None:
        return self._appended(lib.tpc_plane_append_marker(self._plane, handle, *marker, self._result))

    def _appended(self, result: int) -> AppendResult | None:
        if result in (NO_ROOM, -errno.ENOSPC):
            return None
        if result < 0:
            raise _refused(result, "append refused")
        found = self._result
        return AppendResult(found.base_offset, found.next_offset, found.leader_epoch, found.error_code)

    def journal_append(
        self, kind: int, key: TopicPartition, offset: int, argument: int, payload: bytes = b""
    ) -> int | None:
        """A control entry; the sequence to wait for, None when the journal has no room now."""
        result = lib.tpc_journal_append(
            self._journal, kind, key.topic_id.bytes, key.partition, offset, argument, payload, len(payload),
            self._sequence,
        )  # fmt: skip
        if result == NO_ROOM:
            return None
        if result < 0:
            raise _refused(result, "the journal refuses")
        return int(self._sequence[0])

    def adopt(self, key: TopicPartition, moves: int, payload: bytes) -> int | None:
        """See `tpc_broker.storage.ports.ReplicaLogs`."""
        result = lib.tpc_plane_adopt(
            self._plane, key.topic_id.bytes, key.partition, moves, payload, len(payload), self._sequence
        )
        if result == NO_ROOM:
            return None
        if result < 0:
            raise _refused(result, "the journal refuses")
        return int(self._sequence[0])

    # -- write-behind --------------------------------------------------------------------------------------------------

    def dirty(self) -> list[int]:
        return self._dirty_handles(partial(lib.tpc_plane_dirty, self._plane))

    def dirty_due(self, bytes_min: int, age_s: float, bytes_max: int) -> list[int]:
        return self._dirty_handles(
            partial(lib.tpc_plane_dirty_due, self._plane, bytes_min, int(age_s * 1e9), bytes_max)
        )

    def _dirty_handles(self, fill: Callable[[Any, int], int]) -> list[int]:
        """All of them, however many: what is left out here would be lost with the next checkpoint."""
        while (count := fill(self._dirty, len(self._dirty))) == len(self._dirty):
            self._dirty = ffi.new("uint64_t[]", 2 * count)
        return ffi.unpack(self._dirty, count)  # type: ignore[no-any-return]

    def is_unwritten_below(self, sequence: int) -> bool:
        return bool(lib.tpc_plane_is_unwritten_below(self._plane, sequence))

    def watch_due(self, bytes_min: int, bytes_max: int) -> None:
        lib.tpc_plane_watch_due(self._plane, bytes_min, bytes_max)

    def write_behind_take(self, handle: int, bytes_max: int) -> TakenBatches | None:
        arrays = self._batch_arrays
        batches = arrays.pop() if arrays else _new_uncleared("tpc_tail_batch[]", WRITE_BEHIND_BATCHES_MAX)
        count = lib.tpc_partition_write_behind_take(self._plane, handle, bytes_max, batches, WRITE_BEHIND_BATCHES_MAX)
        if count > 0:
            return TakenBatches(self._plane, arrays, batches, count)
        arrays.append(batches)
        return None

    def write_behind_done(self, handle: int, end_offset: int) -> int:
        written_bytes = lib.tpc_partition_write_behind_done(self._plane, handle, end_offset)
        _check(written_bytes, "written behind")
        return int(written_bytes)

    def short_runs_take(self, handles: Sequence[int], bytes_max: int, memory: memoryview) -> list[ShortRun | None]:
        runs = self._short_runs
        if len(handles) > len(runs):
            runs = self._short_runs = ffi.new("tpc_short_run[]", len(handles))
        for number, handle in enumerate(handles):
            runs[number].handle = handle
        arrays = self._batch_arrays
        batches = arrays.pop() if arrays else _new_uncleared("tpc_tail_batch[]", WRITE_BEHIND_BATCHES_MAX)
        count = lib.tpc_plane_short_runs_take(
            self._plane, runs, len(handles), bytes_max, ffi.from_buffer("uint8_t[]", memory), len(memory), batches,
            WRITE_BEHIND_BATCHES_MAX,
        )  # fmt: skip
        arrays.append(batches)
        taken, place = list[ShortRun | None](), 0
        for number in range(count):
            run = runs[number]
            size = run.bytes
            taken.append(ShortRun(memory[place : place + size], run.end_offset) if size else None)
            place += size
        return taken

    def short_runs_done(self, ended: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        if not ended:
            return []
        runs = ffi.new("tpc_short_run[]", [(handle, end_offset, 0, 0) for handle, end_offset in ended])
        lib.tpc_plane_short_runs_done(self._plane, runs, len(ended))
        done = []
        for run in runs:
            written_bytes = run.bytes
            _check(written_bytes, "written behind")
            done.append((written_bytes, run.bytes_admitted))
        return done

    def open_in_place_window(self, handle: int, window: InPlaceWindowParams) -> bool:
        params = ffi.new("tpc_in_place_window_params *")
        params.segment_base_offset, params.segment_bytes_max = window.segment_base_offset, window.segment_bytes
        params.written_offset, params.written_position = window.written_offset, window.written_position
        params.reserved_position, params.descriptor = window.reserved_position, window.descriptor
        params.batch_bytes_min = window.batch_bytes_min
        result = lib.tpc_partition_open_in_place_window(self._plane, handle, params)
        if result == NO_ROOM:
            return False
        _check(result, "open an in-place window")
        return True

    def close_in_place_window(self, handle: int) -> None:
        lib.tpc_partition_close_in_place_window(self._plane, handle)

    def set_in_place_space(self, handle: int, reserved_position: int) -> bool:
        return bool(lib.tpc_partition_set_in_place_space(self._plane, handle, reserved_position))

    # -- the journal ---------------------------------------------------------------------------------------------------

    def journal_progress(self) -> tuple[int, bool]:
        """Up to which sequence all is durable, and whether something behind it waits."""
        statistics = self._progress  # asked for once a turn
        lib.tpc_journal_get_statistics(self._journal, statistics)
        durable = int(statistics.durable_sequence)
        return durable, durable + 1 < int(statistics.sequence_next)

    def journal_error(self) -> int:
        statistics = ffi.new("tpc_journal_statistics *")
        lib.tpc_journal_get_statistics(self._journal, statistics)
        return int(statistics.error)

    def partition_errors(self) -> int:
        return self.plane_statistics()["partition_errors"]

    def journal_use(self) -> JournalUse:
        statistics = ffi.new("tpc_journal_statistics *")
        lib.tpc_journal_get_statistics(self._journal, statistics)
        return JournalUse(
            statistics.blocks_used, statistics.region_blocks, statistics.blocks_wanted, statistics.space_event_blocks,
            bool(statistics.space_refused),
        )  # fmt: skip

    def want_space_at(self, blocks: int) -> None:
        lib.tpc_journal_want_space_at(self._journal, blocks)

    def reopen_journal(self, descriptor: int, mode: int, run_id: int) -> int:
        """`JournalControl.reopen_journal`."""
        _check(
            lib.tpc_plane_reopen_journal(self._plane, descriptor, mode, run_id, self._sequence), "reopen the journal"
        )
        return int(self._sequence[0])

    def durable_cursor(self) -> JournalCursor:
        place = ffi.new("tpc_journal_cursor *")
        lib.tpc_journal_durable_cursor(self._journal, place)
        self._waits.is_durable(place.sequence - 1)
        return JournalCursor(place.sequence, place.block, place.position, place.previous_crc, bool(place.is_end))

    def stop_journal(self) -> None:
        lib.tpc_journal_stop(self._journal)

    def is_settled(self) -> bool:
        settled = lib.tpc_journal_settled(self._journal)
        if settled < 0:
            raise StorageFailedError("the journal failed")
        return bool(settled)

    def recycle(self, position: int) -> None:
        _check(lib.tpc_journal_recycle(self._journal, position), "recycle the journal")

    def extend(self, region_blocks: int) -> None:
        """More blocks for the journal. While its use reaches around the end, a later extension or start brings them."""
        if region_blocks == self.journal_use().region_blocks:
            return  # else it would say again that it fills up, also after each checkpoint that was held back
        result = lib.tpc_journal_extend(self._journal, region_blocks)
        if result != NO_ROOM:
            _check(result, "extend the journal")

    # -- the end -------------------------------------------------------------------------------------------------------

    def is_quiet(self) -> bool:
        """Whether no journal write is under way."""
        statistics = ffi.new("tpc_journal_statistics *")
        lib.tpc_journal_get_statistics(self._journal, statistics)
        return not statistics.commits_in_flight

    def close(self) -> None:
        """Free everything; the journal only when no write is under way (else the ring's end takes care of it)."""
        if self._closed:
            return
        self._closed = True
        self._end_cache()
        lib.tpc_plane_free(self._plane)
        if self.is_quiet():
            lib.tpc_journal_close(self._journal)


def _open_journal(ring: Ring, start: JournalStart) -> Any:
    params = ffi.new("tpc_journal_params *")
    params.descriptor = start.descriptor
    params.mode = start.mode
    ffi.memmove(params.journal_id, start.journal_id, 16)
    params.run_id = start.run_id
    params.region_blocks = start.region_blocks
    params.region_blocks_max = start.region_blocks_max
    params.sequence_next = start.sequence_next
    params.block_next = params.block_first = start.block_next
    params.previous_crc = start.previous_crc
    params.commit_bytes_max = limits.JOURNAL_COMMIT_BYTES_MAX
    params.in_place_bytes_max = limits.IN_PLACE_BYTES_MAX
    out = ffi.new("tpc_journal **")
    _check(lib.tpc_journal_open(ring.pointer, params, out), "open the journal")
    return out[0]


def _partition_params(partition: PartitionParams) -> tuple[Any, list[Any]]:
    """The same in C, and what must live as long."""
    kept: list[Any] = []
    params = ffi.new("tpc_partition_params *")
    params.topic_name, params.topic_name_bytes = _text(partition.topic, kept)
    params.partition = partition.key.partition
    ffi.memmove(params.topic_id, partition.key.topic_id.bytes, 16)
    params.log_start_offset, params.log_end_offset = partition.log_start_offset, partition.log_end_offset
    params.high_watermark = partition.high_watermark
    params.timestamp_before_ms_max = min(partition.timestamp_before_ms_max, NO_LIMIT)
    params.timestamp_after_ms_max = min(partition.timestamp_after_ms_max, NO_LIMIT)
    params.bytes_admitted = 0
    params.leader_epoch = partition.leader_epoch
    params.batch_bytes_max, params.segment_bytes_max = partition.batch_bytes_max, partition.segment_bytes
    if partition.is_internal:
        params.flags |= lib.TPC_PARTITION_INTERNAL
    if partition.is_relaxed:
        params.flags |= lib.TPC_PARTITION_RELAXED
    if partition.log_append_time:
        params.flags |= lib.TPC_PARTITION_LOG_APPEND_TIME
    if partition.is_compacted:
        params.flags |= lib.TPC_PARTITION_COMPACTED
    return params, kept


def _text(text: str, kept: list[Any]) -> tuple[Any, int]:
    data = text.encode()
    held = ffi.new("uint8_t[]", data or b"\0")
    kept.append(held)
    return held, len(data)


def _numbers(structure: str, read: Callable[[Any, Any], None], of: Any) -> dict[str, int]:
    values = ffi.new(f"{structure} *")
    read(of, values)
    plain = [name for name, field in ffi.typeof(structure).fields if field.type.kind == "primitive"]
    return {name: int(getattr(values, name)) for name in plain}


def _refused(result: int, what: str) -> PartitionOfflineError:
    if result == -errno.ESHUTDOWN:
        return JournalStoppedError("the core is stopping")
    return PartitionOfflineError(f"{what}: {os.strerror(-result)}")


def _check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
