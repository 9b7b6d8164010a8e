"""A face of the data plane in C for its own tests: all that `cdef/40_journal.h` and `cdef/50_partition.h` offer.

The broker's face is `tpc_broker.engine.data_plane`, cut to what the broker asks for; this one leaves nothing out
(producers' snapshots and expiry, verdicts, commits as objects), so that each function of the C interface has a test.

Invariants. `log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset`, asserted in C after changes.
Readers get nothing above the high watermark, which moves when the journal is durable. What is not written behind stays
in memory. A handle of a partition dies at its withdrawal and is never used again.

Errors. `KeyError`: the handle's partition was withdrawn. :class:`JournalFullError`, :class:`NotAdmittedError`: make
room, try again. :class:`JournalFailedError`: nothing is accepted until :meth:`Plane.reopen_journal`. `ValueError`: our
bug.

One thread: the ring's. Callbacks are synchronous and run inside `Ring.dispatch`.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import trio

from tests.support.plane_values import (
    UNLIMITED,
    Endpoint,
    JournalCursor,
    JournalEntryKind,
    JournalFailedError,
    JournalMode,
    JournalStart,
    Left,
    PartitionSettings,
    PartitionState,
    PlaneLimits,
    ProducerBatch,
    ProducerState,
    TailBatch,
    Verdict,
    checked,
)
from tests.support.transactions_face import TransactionsFace
from tpc_broker._ring import ffi, lib
from tpc_broker.error_codes import ErrorCode
from tpc_broker.log import producer_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpc_broker.engine.connections import Connections, Request
    from tpc_broker.engine.ring import Ring

    Buffer = bytes | bytearray | memoryview

_ENDED_BYTES_MAX: Final = 24 * 1000
_SLICES_AT_ONCE: Final = 1024
_BATCHES_AT_ONCE: Final = 512


class Commit:
    """One commit of the journal, as its waiters see it. Shared by all appends that it carries."""

    __slots__ = ("_settled", "error", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.error = 0
        """errno when the journal failed before it was durable."""
        self._settled = trio.Event()

    @property
    def durable(self) -> bool:
        return self._settled.is_set() and not self.error

    async def wait_durable(self) -> None:
        """Raise :class:`JournalFailedError` when it never will be: its records are void."""
        await self._settled.wait()
        if self.error:
            raise JournalFailedError(self.error, os.strerror(self.error))

    def settle(self, error: int = 0) -> None:
        """Tell the waiters; the plane's business."""
        self.error = error
        self._settled.set()


@dataclass(frozen=True, slots=True)
class Appended:
    """Where records went, or why they did not. Without an error, unless `relaxed`, the answer waits for `commit`."""

    base_offset: int
    next_offset: int
    append_ms: int
    """Time stamp given (LogAppendTime, or a duplicate's), else -1."""
    error_code: ErrorCode
    duplicate: bool
    relaxed: bool
    commit: Commit | None
    """`None` with an error, and for a duplicate that is durable."""


class TailSlices:
    """Batches read from memory, referred to and not copied: for :meth:`Plane.answer_with` or to be looked at."""

    __slots__ = ("_owner", "bytes_count", "count", "pointer")

    def __init__(self, pointer: Any, count: int) -> None:
        self.pointer = pointer
        self.count = count
        self.bytes_count = sum(pointer[index].length for index in range(count))
        self._owner = ffi.gc(pointer, lambda slices, count=count: lib.tpc_slices_release(slices, count))

    def __bytes__(self) -> bytes:
        return b"".join(ffi.buffer(self.pointer[i].data, self.pointer[i].length)[:] for i in range(self.count))


class Plane(TransactionsFace):
    """Journal and partitions of one core, on its ring."""

    def __init__(
        self, ring: Ring, connections: Connections, journal: JournalStart, limits: PlaneLimits | None = None
    ) -> None:
        """Raise `OSError` when memory is missing, `ValueError` for an impossible start of the journal."""
        self.ring = ring
        self.connections = connections
        self.on_journal_failed: Callable[[int, int], None] = _ignore
        """`(first failed sequence, errno)`; reopen when the disk is well again."""
        self.on_journal_space: Callable[[int, int], None] = _ignore
        """`(blocks used, blocks)`: write behind and checkpoint. Once until the next recycling."""
        self.on_room_low: Callable[[int], None] = _ignore
        self.on_room_wanted: Callable[[int, int], None] = lambda _handle, _bytes: None
        """`(handle)`: appends have used up half of what was admitted."""
        self.on_due: Callable[[int], None] = _ignore
        """`(handle)`: what `watch_due` asked for."""
        self.on_advanced: Callable[[int, int, int], None] = _ignore
        """`(handle, high_watermark, last_stable_offset)` of a partition that is watched, once."""
        self.on_appended: Callable[[], None] = _ignore
        """Leaders of replicated partitions have appended: once until `take_appended`."""
        self.on_wait_over: Callable[[int, int], None] = _ignore
        """`(token, error code)` of a :meth:`wait`."""
        self._commits: dict[int, Commit] = {}
        self._slices = ffi.new("tpc_slice[]", _SLICES_AT_ONCE)
        self.journal = self._open_journal(ring, journal)
        limits = limits or PlaneLimits()
        params = ffi.new(
            "tpc_plane_params *", {field.name: getattr(limits, field.name) for field in fields(PlaneLimits)}
        )
        out = ffi.new("tpc_plane **")
        result = lib.tpc_plane_new(ring.pointer, self.journal, connections.pointer, connections.budget, params, out)
        if result < 0:
            lib.tpc_journal_close(self.journal)
            raise OSError(-result, os.strerror(-result))
        self.pointer = out[0]
        ring.on_event(lib.TPC_EVENT_JOURNAL_DURABLE, self._durable)
        ring.on_event(lib.TPC_EVENT_JOURNAL_FAILED, self._failed)
        ring.on_event(lib.TPC_EVENT_JOURNAL_SPACE, self._space)
        ring.on_event(lib.TPC_EVENT_APPENDED, lambda _token, _a, _b, _pointer: self.on_appended())
        ring.on_event(lib.TPC_EVENT_WAIT_OVER, lambda token, error, _b, _pointer: self.on_wait_over(token, error))
        ring.on_event(lib.TPC_EVENT_PARTITION_ADVANCED, self._advanced)
        ring.on_event(lib.TPC_EVENT_ROOM_LOW, self._room_is_low)
        ring.on_event(lib.TPC_EVENT_WRITE_BEHIND_DUE, lambda handle, _bytes, _all, _pointer: self.on_due(handle))

    @staticmethod
    def _open_journal(ring: Ring, start: JournalStart) -> Any:
        params = ffi.new(
            "tpc_journal_params *", {field.name: getattr(start, field.name) for field in fields(JournalStart)}
        )
        out = ffi.new("tpc_journal **")
        checked(lib.tpc_journal_open(ring.pointer, params, out), "journal")
        return out[0]

    # ------------------------------------------------------------------------------------------ events

    def _durable(self, _token: int, sequence: int, _b: int, _pointer: int) -> None:
        for commit in [commit for commit in self._commits.values() if commit.sequence <= sequence]:
            del self._commits[commit.sequence]
            commit.settle()

    def _failed(self, _token: int, first_failed: int, error: int, _pointer: int) -> None:
        """Those before the first failed one are durable, whether or not their event has come."""
        commits, self._commits = self._commits, {}
        for commit in commits.values():
            commit.settle(error if commit.sequence >= first_failed else 0)
        self.on_journal_failed(first_failed, error)

    def _space(self, _token: int, used: int, blocks: int, _pointer: int) -> None:
        self.on_journal_space(used, blocks)

    def _advanced(self, handle: int, high_watermark: int, last_stable_offset: int, _pointer: int) -> None:
        self.on_advanced(handle, high_watermark, last_stable_offset)

    def _commit(self, sequence: int) -> Commit:
        commit = self._commits.get(sequence)
        if commit is None:
            commit = Commit(sequence)
            if sequence <= self.journal_statistics()["durable_sequence"]:
                commit.settle()
            else:
                lib.tpc_journal_watch(self.journal, sequence)
                self._commits[sequence] = commit
        return commit

    # ------------------------------------------------------------------------------------------ the journal

    def journal_entry(
        self,
        kind: JournalEntryKind,
        topic_id: bytes,
        partition: int,
        *,
        offset: int = 0,
        argument: int = 0,
        payload: bytes = b"",
    ) -> Commit:
        """Append an entry that is no record batch; the commit to wait for."""
        sequence = ffi.new("uint64_t *")
        result = lib.tpc_journal_append(
            self.journal, kind, topic_id, partition, offset, argument, payload, len(payload), sequence
        )
        checked(result, "journal entry")
        lib.tpc_journal_watch(self.journal, sequence[0])
        return self._commit(sequence[0])

    def durable_cursor(self) -> JournalCursor:
        """The place after everything that is durable now: replay may start there once all of that is checkpointed."""
        place = ffi.new("tpc_journal_cursor *")
        lib.tpc_journal_durable_cursor(self.journal, place)
        return JournalCursor(place.sequence, place.block, place.position, place.previous_crc)

    def recycle(self, place: JournalCursor) -> None:
        """Allow overwriting of everything before the place; only after the superblock names it."""
        checked(lib.tpc_journal_recycle(self.journal, place.position), "recycle")

    def reopen_journal(self, descriptor: int, mode: JournalMode, run_id: int) -> Commit:
        """Go on after a failure. The first entries say which partitions were cut where; the commit carries them.

        `OSError` EBUSY while writes of the failed run are in flight.
        """
        sequence = ffi.new("uint64_t *")
        checked(lib.tpc_plane_reopen_journal(self.pointer, descriptor, mode, run_id, sequence), "reopen")
        return self._commit(sequence[0])

    def journal_statistics(self) -> dict[str, int]:
        """The fields of `tpc_journal_statistics`; `error`: errno of the failure that stopped it, else 0."""
        return _fields_of("tpc_journal_statistics", lib.tpc_journal_get_statistics, self.journal)

    def statistics(self) -> dict[str, int]:
        """The fields of `tpc_plane_statistics`."""
        return _fields_of("tpc_plane_statistics", lib.tpc_plane_get_statistics, self.pointer)

    # ------------------------------------------------------------------------------------------ partitions

    def register(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        *,
        log_start_offset: int = 0,
        log_end_offset: int = 0,
        high_watermark: int | None = None,
        settings: PartitionSettings | None = None,
        bytes_admitted: int = UNLIMITED,
        is_led: bool = True,
    ) -> int:
        """Lead a partition recovered up to `log_end_offset`, committed up to `high_watermark` (None: all of it); its
        handle. `FileExistsError`: it is led already.
        """
        name = topic.encode()
        params = self._params(settings or PartitionSettings())
        held = ffi.from_buffer("uint8_t[]", name)
        params.topic_name, params.topic_name_bytes = held, len(name)
        params.topic_id = topic_id
        params.partition = partition
        params.log_start_offset, params.log_end_offset = log_start_offset, log_end_offset
        params.high_watermark = log_end_offset if high_watermark is None else high_watermark
        params.bytes_admitted = bytes_admitted
        out = ffi.new("uint64_t *")
        checked(lib.tpc_partition_register(self.pointer, params, out), f"register {topic}-{partition}")
        handle: int = out[0]
        if is_led:
            self.arm(handle, params.leader_epoch)
        return handle

    @staticmethod
    def _params(settings: PartitionSettings) -> Any:
        values = {field.name: getattr(settings, field.name) for field in fields(PartitionSettings)}
        return ffi.new("tpc_partition_params *", values)

    def update(self, handle: int, settings: PartitionSettings) -> None:
        """Change flags, limits and epoch."""
        checked(lib.tpc_partition_update(self.pointer, handle, self._params(settings)), "update")

    def arm(self, handle: int, term: int) -> None:
        """Lead it in this term."""
        checked(lib.tpc_partition_arm(self.pointer, handle, lib.TPC_ROLE_LEADER, term), "arm")

    def disarm(self, handle: int, *, keep_waits: bool = False) -> None:
        checked(lib.tpc_partition_disarm(self.pointer, handle, keep_waits), "disarm")

    def follow(self, handle: int, term: int) -> None:
        """Take what the leader of this term sends."""
        checked(lib.tpc_partition_arm(self.pointer, handle, lib.TPC_ROLE_FOLLOWER, term), "arm")

    def set_replicated(self, handle: int, *, on: bool = True) -> None:
        checked(lib.tpc_partition_set_replicated(self.pointer, handle, on), "replicate")

    def commit(self, handle: int, term: int, end_offset: int) -> bool:
        """Whether it moved."""
        return checked(lib.tpc_partition_commit(self.pointer, handle, term, end_offset), "commit") > 0

    def refuse(self, handle: int, error_code: int, *, all_acks: bool = False) -> None:
        checked(lib.tpc_partition_refuse(self.pointer, handle, error_code, all_acks), "refuse")

    def take_appended(self, ranges_max: int = 100) -> list[tuple[int, int, int, int]]:
        """(handle, epoch, base offset, end offset) each."""
        ranges = ffi.new("tpc_appended_range[]", ranges_max)
        count = lib.tpc_plane_take_appended(self.pointer, ranges, ranges_max)
        return [(r.handle, r.leader_epoch, r.base_offset, r.next_offset) for r in ranges[0:count]]

    def append_replica(self, handle: int, term: int, batches: Buffer) -> Appended:
        result = ffi.new("tpc_append_result *")
        data = ffi.from_buffer("uint8_t[]", batches)
        returned = lib.tpc_partition_append_replica(self.pointer, handle, term, data, len(data), result)
        checked(returned, "append")
        return self._appended(result)

    def read_log(self, handle: int, offset: int, upto_offset: int = UNLIMITED) -> bytes | None:
        """Committed or not; `None`: it is in segments."""
        slices = ffi.new("tpc_slice[]", _SLICES_AT_ONCE)
        count = lib.tpc_partition_read_log(self.pointer, handle, offset, 1 << 30, upto_offset, slices, _SLICES_AT_ONCE)
        return None if count == -errno.ERANGE else bytes(TailSlices(slices, checked(count, "read")))

    def truncate(self, handle: int, offset: int, last_epoch_kept: int) -> Commit:
        sequence = ffi.new("uint64_t *")
        result = lib.tpc_partition_truncate(self.pointer, handle, offset, last_epoch_kept, sequence)
        checked(result, "truncate")
        return self._commit(sequence[0])

    def reset_producers(self, handle: int, producers: Sequence[ProducerState] | bytes) -> None:
        """Those as of `written_offset`."""
        encoded = producers if isinstance(producers, bytes) else encoded_producers(producers)
        checked(lib.tpc_partition_reset_producers(self.pointer, handle, encoded, len(encoded)), "reset producers")

    def withdraw(self, handle: int) -> None:
        """Lead it no more: produces that wait for it are answered NOT_LEADER_OR_FOLLOWER; its memory goes, also what is
        not written behind.
        """
        checked(lib.tpc_partition_withdraw(self.pointer, handle), "withdraw")

    def set_log_start(self, handle: int, log_start_offset: int) -> None:
        checked(lib.tpc_partition_set_log_start(self.pointer, handle, log_start_offset), "log start")

    def admit(self, handle: int, bytes_more: int) -> None:
        """Segment space was reserved for so many more bytes of appends."""
        checked(lib.tpc_partition_admit(self.pointer, handle, bytes_more), "admit")

    def watch(self, handle: int) -> None:
        """Call `on_advanced` at the next move of the high watermark, once."""
        checked(lib.tpc_partition_watch(self.pointer, handle), "watch")

    def wait(self, handle: int, level: int, end_offset: int, leader_epoch: int, token: int) -> bool:
        """Whether the level has been reached; else `on_wait_over` is called. `OSError` ESTALE: the epoch is over."""
        result = lib.tpc_partition_wait(self.pointer, handle, level, end_offset, leader_epoch, token)
        return checked(result, "wait") > 0

    def find(self, topic: str, partition: int) -> int | None:
        """The handle of a partition led here."""
        name = topic.encode()
        return lib.tpc_partition_find_name(self.pointer, name, len(name), partition) or None

    def find_id(self, topic_id: bytes, partition: int) -> int | None:
        return lib.tpc_partition_find_id(self.pointer, topic_id, partition) or None

    def state(self, handle: int) -> PartitionState:
        state = ffi.new("tpc_partition_state *")
        checked(lib.tpc_partition_get_state(self.pointer, handle, state), "state")
        return PartitionState(*(getattr(state, field.name) for field in fields(PartitionState)))

    # ------------------------------------------------------------------------------------------ appending

    def produce(self, request: Request) -> bool:
        """Handle a whole Produce request in C. True: taken and answered there; else see :attr:`fallback_reason`."""
        taken: bool = lib.tpc_plane_produce(self.pointer, request.pointer) == 1
        if taken:
            request.taken()
        return taken

    @property
    def fallback_reason(self) -> Left:
        """Why the last :meth:`produce` or :meth:`produce_with` left its request."""
        return Left(lib.tpc_plane_fallback_reason(self.pointer))

    def produce_with(self, request: Request, verdicts: Sequence[Verdict], endpoints: Sequence[Endpoint] = ()) -> bool:
        """As :meth:`produce`, with a verdict for each partition in the order of the request; the only reasons to leave
        it again are a full journal, missing admission and missing memory.
        """
        keep: list[Any] = []
        c_verdicts = ffi.new("tpc_produce_verdict[]", len(verdicts) or 1)
        for target, verdict in zip(c_verdicts, verdicts, strict=False):
            target.error_code, target.gap_code = verdict.error_code, verdict.gap_code
            target.guard = verdict.guard
            target.leader_id, target.leader_epoch = verdict.leader_id, verdict.leader_epoch
            target.error_message, target.error_message_bytes = _text(verdict.error_message, keep)
        c_endpoints = ffi.new("tpc_plane_endpoint[]", len(endpoints) or 1)
        for place, endpoint in zip(c_endpoints, endpoints, strict=False):
            place.node_id, place.port = endpoint.node_id, endpoint.port
            place.host, place.host_bytes = _text(endpoint.host, keep)
            place.rack, place.rack_bytes = _text(endpoint.rack, keep)
        result = lib.tpc_plane_produce_with(
            self.pointer, request.pointer, c_verdicts, len(verdicts), c_endpoints, len(endpoints)
        )
        if checked(result, "produce") == 1:
            request.taken()
            return True
        return False

    def set_hot(self, *, on: bool) -> None:
        """Try every Produce request inside the wait, before Python sees it."""
        lib.tpc_plane_set_hot(self.pointer, on)

    def append(self, handle: int, batches: Buffer) -> Appended:
        """Append whole batches of the broker's own: stamped and journalled, producers' sequences not judged."""
        result = ffi.new("tpc_append_result *")
        data = ffi.from_buffer("uint8_t[]", batches)
        checked(lib.tpc_plane_append(self.pointer, handle, data, len(data), result), "append")
        return self._appended(result)

    def produce_records(self, handle: int, records: Buffer, produce_version: int) -> Appended:
        """One partition's records of a Produce request that came another way: checked and appended like the others."""
        result = ffi.new("tpc_append_result *")
        data = ffi.from_buffer("uint8_t[]", records)
        checked(
            lib.tpc_plane_produce_records(self.pointer, handle, data, len(data), produce_version, result), "produce"
        )
        return self._appended(result)

    def _appended(self, result: Any) -> Appended:
        commit = self._commit(result.sequence) if result.sequence and not result.error_code else None
        return Appended(
            base_offset=result.base_offset,
            next_offset=result.next_offset,
            append_ms=result.append_ms,
            error_code=ErrorCode(result.error_code),
            duplicate=bool(result.duplicate),
            relaxed=bool(result.relaxed),
            commit=commit,
        )

    # ------------------------------------------------------------------------------------------ reading

    def read(
        self, handle: int, offset: int, bytes_max: int, upto_offset: int = UNLIMITED, *, min_one: bool = True
    ) -> TailSlices | None:
        """Whole batches from memory, beginning with the one that holds `offset`, none that reaches above `upto_offset`
        or the high watermark. `None`: the offset lies below what memory holds, read the segment.
        """
        count = lib.tpc_partition_read(
            self.pointer, handle, offset, bytes_max, upto_offset, min_one, self._slices, _SLICES_AT_ONCE
        )
        if count == -errno.ERANGE:
            return None
        checked(count, "read")
        slices = ffi.new("tpc_slice[]", count or 1)
        ffi.memmove(slices, self._slices, count * ffi.sizeof("tpc_slice"))
        return TailSlices(slices, count)

    def answer_with(self, request: Request, head: Buffer, splits: Sequence[int], records: Sequence[Any]) -> bool:
        """Answer with `head` (correlation id first) into which records are put: `records[i]` behind its first
        `splits[i]` bytes, each a :class:`TailSlices`, or bytes read from a segment. `tpc_fetch_encode` gives both, its
        splits counting the 4 bytes of length that do not belong here. False: the client is gone.
        """
        data = ffi.from_buffer("uint8_t[]", head)
        keep: list[Any] = []
        pieces: list[tuple[Any, Any, int]] = []
        position = 0
        for split, part in zip(splits, records, strict=True):
            if split > position:
                pieces.append((ffi.NULL, data + position, split - position))
                position = split
            if isinstance(part, TailSlices):
                pieces += [(s.frame, s.data, s.length) for s in part.pointer[0 : part.count]]
            elif len(part):
                held = ffi.from_buffer("uint8_t[]", part)
                keep.append(held)
                pieces.append((ffi.NULL, held, len(held)))
        if position < len(data):
            pieces.append((ffi.NULL, data + position, len(data) - position))
        slices = ffi.new("tpc_slice[]", len(pieces))
        for target, (frame, start, length) in zip(slices, pieces, strict=True):
            target.frame = lib.tpc_frame_retain(frame) if frame else frame
            target.data, target.length = start, length
        return self.connections.answer_slices(request, slices, len(pieces))

    # ------------------------------------------------------------------------------------------ write-behind

    def dirty(self, count_max: int = 1024) -> list[int]:
        """Handles of partitions with durable batches that are not in segments yet, those waiting longest first."""
        handles = ffi.new("uint64_t[]", count_max)
        return list(handles[0 : lib.tpc_plane_dirty(self.pointer, handles, count_max)])

    def dirty_due(self, bytes_min: int, age_ns_min: int, bytes_max: int) -> list[int]:
        """Those of them for which it is time."""
        handles = ffi.new("uint64_t[]", 1024)
        count = lib.tpc_plane_dirty_due(self.pointer, bytes_min, age_ns_min, bytes_max, handles, 1024)
        return list(handles[0:count])

    def watch_due(self, bytes_min: int, bytes_max: int) -> None:
        """`on_due` is told once, of the next batch after which it is time."""
        lib.tpc_plane_watch_due(self.pointer, bytes_min, bytes_max)

    def write_behind_take(self, handle: int, bytes_max: int) -> list[TailBatch]:
        """The oldest durable batches that are not in segments yet: at least one when there is any."""
        batches = ffi.new("tpc_tail_batch[]", _BATCHES_AT_ONCE)
        count = lib.tpc_partition_write_behind_take(self.pointer, handle, bytes_max, batches, _BATCHES_AT_ONCE)
        return [_tail_batch(batches[index]) for index in range(checked(count, "write behind"))]

    def write_behind_done(self, handle: int, upto_offset: int) -> None:
        """Segments hold everything below; those batches are cache from now on."""
        checked(lib.tpc_partition_write_behind_done(self.pointer, handle, upto_offset), "written behind")

    def short_runs_take(self, handles: Sequence[int], bytes_max: int, room: int) -> list[tuple[int, bytes]]:
        """End offset and bytes of each partition's run, no bytes where there is none; as far as there was room."""
        runs, out = ffi.new("tpc_short_run[]", len(handles)), ffi.new("uint8_t[]", room)
        for run, handle in zip(runs, handles, strict=True):
            run.handle = handle
        batches = ffi.new("tpc_tail_batch[]", _BATCHES_AT_ONCE)
        count = lib.tpc_plane_short_runs_take(
            self.pointer, runs, len(handles), bytes_max, out, room, batches, _BATCHES_AT_ONCE
        )
        taken, place = [], 0
        for run in runs[0:count]:
            taken.append((run.end_offset, bytes(ffi.buffer(out, room)[place : place + run.bytes])))
            place += run.bytes
        return taken

    def short_runs_done(self, ended: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Bytes written of each, and what may still be appended to it."""
        runs = ffi.new("tpc_short_run[]", [(handle, offset, 0, 0) for handle, offset in ended])
        lib.tpc_plane_short_runs_done(self.pointer, runs, len(ended))
        return [(run.bytes, run.bytes_admitted) for run in runs]

    def _room_is_low(self, handle: int, _left: int, wanted_bytes: int, _pointer: object) -> None:
        if wanted_bytes:
            self.on_room_wanted(handle, wanted_bytes)
        else:
            self.on_room_low(handle)

    def set_tail_bytes_behind_max(self, bytes_max: int) -> None:
        lib.tpc_plane_set_tail_bytes_behind_max(self.pointer, bytes_max)

    def set_tail_bytes_max(self, bytes_max: int) -> None:
        lib.tpc_plane_set_tail_bytes_max(self.pointer, bytes_max)
        lib.tpc_plane_evict(self.pointer, 1 << 40)

    # ------------------------------------------------------------------------------------------ producers

    def load_producers(
        self, handle: int, producers: Sequence[ProducerState] | bytes, *, sequence_lost: bool = False
    ) -> None:
        """Put these in place of what is known of the same producers."""
        encoded = producers if isinstance(producers, bytes) else encoded_producers(producers)
        result = lib.tpc_partition_load_producers(self.pointer, handle, encoded, len(encoded), sequence_lost)
        checked(result, "producers")

    def dump_producers(self, handle: int, upto_offset: int = UNLIMITED) -> list[ProducerState]:
        """The producers as durable batches below `upto_offset` made them: for a snapshot at that offset."""
        known, _end = producer_state.ProducerState.decode_full(self.dump_encoded(handle, upto_offset), 0)
        return [_producer_state(one) for one in known]

    def dump_encoded(self, handle: int, upto_offset: int = UNLIMITED) -> bytes:
        """The same, as checkpoints have it."""
        size = 4 + self.state(handle).producers_count * lib.TPC_PRODUCER_ENCODED_MAX + _ENDED_BYTES_MAX
        encoded = bytearray(size)
        filled = lib.tpc_partition_dump_producers(self.pointer, handle, upto_offset, ffi.from_buffer(encoded), size)
        return bytes(encoded[: checked(filled, "producers")])

    def aborted(self, handle: int, offset: int = 0, upto: int = UNLIMITED) -> list[tuple[int, int, int]]:
        """Producer, first and last offset of those that the plane knows."""
        return [row[:3] for row in self.known_aborted(handle, offset, upto)[0]]

    def known_aborted(
        self, handle: int, offset: int = 0, upto: int = UNLIMITED
    ) -> tuple[list[tuple[int, int, int, int]], int, int]:
        """They, with the stable offset of each; from which offset on these are all; for how many more there is room."""
        rows, known = ffi.new("tpc_told_aborted[]", 10_000), ffi.new("tpc_known_aborted *")
        count = checked(lib.tpc_partition_aborted(self.pointer, handle, offset, upto, rows, 10_000, known), "aborted")
        told = [(row.producer_id, row.first_offset, row.last_offset, row.stable_offset) for row in rows[0:count]]
        return told, known.from_offset, known.room

    def add_aborted(self, handle: int, offset: int, upto: int, added: Sequence[tuple[int, int, int, int]]) -> int:
        """As segments say it; 0 or -errno."""
        rows = ffi.new("tpc_told_aborted[]", list(added))
        return int(lib.tpc_partition_add_aborted(self.pointer, handle, offset, upto, rows, len(added)))

    def expire_producers(self, handle: int, now_ms: int) -> int:
        """Forget producers that were silent for `producer_expiry_ms` then, which is from here on; how many."""
        lib.tpc_plane_set_monotonic(self.pointer, now_ms)
        return checked(lib.tpc_partition_expire_producers(self.pointer, handle), "producers")

    # ------------------------------------------------------------------------------------------ the end

    @property
    def idle(self) -> bool:
        """No commit waits or is in flight."""
        statistics = self.journal_statistics()
        return statistics["commits_waiting"] == 0 and statistics["commits_in_flight"] == 0

    def free(self) -> None:
        """Close the journal and drop everything; `OSError` EBUSY while a commit is in flight."""
        if self.journal_statistics()["commits_in_flight"]:
            raise OSError(errno.EBUSY, "a commit is in flight")
        for kind in (lib.TPC_EVENT_JOURNAL_DURABLE, lib.TPC_EVENT_JOURNAL_FAILED, lib.TPC_EVENT_JOURNAL_SPACE):
            self.ring.on_event(kind, None)
        self.ring.on_event(lib.TPC_EVENT_PARTITION_ADVANCED, None)
        self.ring.on_event(lib.TPC_EVENT_WRITE_BEHIND_DUE, None)
        self.ring.on_event(lib.TPC_EVENT_ROOM_LOW, None)
        lib.tpc_plane_free(self.pointer)
        lib.tpc_journal_close(self.journal)


def _ignore(*_event: object) -> None:
    """Nobody listens."""


def encoded_producers(producers: Sequence[ProducerState]) -> bytes:
    state = producer_state.ProducerState()
    for one in producers:
        batches = []
        for batch in one.batches:
            delta = batch.last_offset - batch.base_offset
            assert batch.base_sequence == (batch.last_sequence - delta) % 2**31, batch
            batches.append(
                producer_state.ProducedBatch(batch.last_sequence, batch.last_offset, delta, batch.timestamp_ms)
            )
        state.producers[one.producer_id] = producer_state.Producer(
            one.producer_id, one.producer_epoch, one.coordinator_epoch, one.transaction_first_offset,
            one.last_append_ms, batches,
        )  # fmt: skip
    return state.encode_full()


def _fields_of(type_name: str, function: Any, pointer: Any) -> dict[str, int]:
    out = ffi.new(f"{type_name} *")
    function(pointer, out)
    return {name: getattr(out, name) for name, _ in ffi.typeof(type_name).fields}


def _text(text: str | None, keep: list[Any]) -> tuple[Any, int]:
    """Pointer and length (-1: null) of a string; `keep` holds its bytes."""
    if text is None:
        return ffi.NULL, -1
    held = ffi.from_buffer("uint8_t[]", text.encode())
    keep.append(held)
    return held, len(held)


def _tail_batch(batch: Any) -> TailBatch:
    frame = ffi.gc(batch.slice.frame, lib.tpc_frame_release)
    data = ffi.gc(ffi.cast("uint8_t *", batch.slice.data), lambda _data, _frame=frame: None)
    return TailBatch(
        data=memoryview(ffi.buffer(data, batch.slice.length)).toreadonly(),
        base_offset=batch.base_offset,
        next_offset=batch.next_offset,
        sequence=batch.sequence,
    )


def _producer_state(known: producer_state.Producer) -> ProducerState:
    batches = (
        ProducerBatch(
            batch.last_offset - batch.offset_delta, batch.last_offset, batch.timestamp,
            (batch.last_sequence - batch.offset_delta) % 2**31, batch.last_sequence,
        )
        for batch in known.batches
    )  # fmt: skip
    return ProducerState(
        known.producer_id, known.epoch, known.last_timestamp, tuple(batches), known.transaction_first_offset,
        known.coordinator_epoch,
    )  # fmt: skip
