"""One cleaning of a log, as a machine: segments' bytes come in, the bytes that stay go out. As Kafka 4.3 cleans.

1. *Keys.* The part from `first_dirty_offset` on is walked over, and the newest offset of each key goes into a map of
   bounded size (`collect`). When it is full the job ends there: it has the keys of all records below `end_offset`.
2. *What stays.* All segments that begin below `end_offset` are walked over, from the log's first one on (`rewrite`). A
   record of that part stays when the map has no newer one of its key, and it has a value or its batch's horizon is not
   over. A batch with a tombstone gets a horizon, `now + delete.retention.ms`, from the first cleaning that knows all of
   its keys (KIP-534: in `base_timestamp`, and attribute bit 6 says so). Records without a key go.
3. *Producers.* The batch that a producer is known by stays without its records; the marker that it wrote last stays.
4. *Transactions.* Aborted data go at once. What says that they were aborted goes a cleaning later, when not even an
   emptied batch of the transaction was met: the entry of the index. The marker gets its horizon then, and goes in a
   cleaning after that. So it is with markers of commits.

What cannot be read (records that do not unpack) stays, and its keys are unknown. So older values of a key may stay in
front of a tombstone, and would be the newest ones without it: no tombstone behind such a batch goes.

The loop over records is C's (`native/bytes/clean.c`), which comes back for what is compressed, and for markers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.log.batch import (
    BATCH_HEADER_BYTES,
    CONTROL_ABORT,
    CONTROL_COMMIT,
    BatchDamageError,
    decode_control_marker,
    decode_header,
)
from tpc_broker.log.seals import SEGMENTS_MAX
from tpc_broker.native_bytes import ffi, lib, pinned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpc_broker.log.batch import BatchHeader
    from tpc_broker.log.cleaning_job import CleaningJob, CleaningSource
    from tpc_broker.log.indexes import AbortedTransaction
    from tpc_broker.native_bytes import Buffer

KEY_BYTES: Final = ffi.sizeof("tpc_clean_key")
OUT_BYTES: Final = 512 * 1024
"""What is written at a time: it stays in the cache of a CPU."""
KEPT_BYTES: Final = 4 * 1024 * 1024
"""What was needed for a larger batch is given back when it has been written, where it is more than this."""
NATIVE_BYTES_MAX: Final = 1024 * 1024
"""Of the records of a batch that C unpacks by itself."""
_uncleared: Final = ffi.new_allocator(should_clear_after_alloc=False)
"""What is written before it is read."""
_LOAD: Final = 0.9
_SPARE_SLOTS: Final = 16
_HORIZON_MS_MAX: Final = 2**62
"""A retention that means for ever; sums of timestamps stay in their bounds."""
_RECORD_BYTES_MIN: Final = 7
_COMPRESSION: Final = 7
_HORIZON: Final = lib.TPC_CLEAN_HORIZON
_RELATIVE_OFFSET_MAX: Final = 2**31 - 1


class NativeCodecs(NamedTuple):
    """Addresses of functions and contexts, with the names of `tpc_clean_codecs`: most batches of lz4 and zstd are
    unpacked and packed with them, in C. 0: there is none. The last one is a size.
    """

    lz4_unpack: int = 0
    lz4_pack: int = 0
    zstd_unpack: int = 0
    zstd_pack: int = 0
    zstd_is_error: int = 0
    zstd_unpack_context: int = 0
    zstd_pack_context: int = 0
    zstd_pack_small_context: int = 0
    small_bytes: int = 0


class Codec(NamedTuple):
    """What unpacks and packs the records of a compressed batch; the first argument is the number in its attributes."""

    unpack: Callable[[int, memoryview, int], Buffer | None]
    """The records, of so many bytes at most, until the next call; None: they are damaged, or more."""
    pack: Callable[[int, memoryview], Buffer]
    pack_smallest: Callable[[int, memoryview], Buffer]
    """As small as it can be, in many times the time: for a segment that may not grow."""
    native: NativeCodecs = NativeCodecs()


def map_bytes(job: CleaningJob) -> int:
    """Of the map that the job needs: two places for each offset that it may meet, if there is room for them."""
    offsets_count = max(0, job.sources[-1].end_offset - _collected_from(job))
    return KEY_BYTES * max(2, min(job.dedupe_bytes // KEY_BYTES, 2 * offsets_count + _SPARE_SLOTS))


def _collected_from(job: CleaningJob) -> int:
    return max(job.first_dirty_offset, job.log_start_offset)


class Progress(NamedTuple):
    """Where a machine was, to take it back to."""

    cleaner: bytes
    aborted: bytes
    seen: frozenset[int]
    kept_aborted: tuple[AbortedTransaction, ...]


class Cleaning:
    """One job. `memory` is for the map: zeros, of `map_bytes`; `hash_key`: 16 bytes that nobody can foresee.
    `unpacked_memory`: for what the first walk has unpacked of zstd, so that the second one need not.

    For each source that has what `is_dirty`: `begin`, `collect` until all is taken, `end`. Then for each one that
    `is_cleaned`, from the first on: `begin`, `rewrite` until all is taken. Whoever puts several together asks for
    `take_results` at the end of each.
    """

    def __init__(
        self,
        job: CleaningJob,
        codec: Codec,
        memory: memoryview,
        hash_key: bytes,
        unpacked_memory: memoryview | None = None,
    ) -> None:
        self._job, self._codec = job, codec
        self._c = c = ffi.new("tpc_cleaner *")
        self._held: list[object] = []
        pointer, size, held = pinned(memory, writable=True)
        self._held.append(held)
        c.keys = ffi.cast("tpc_clean_key *", pointer)
        c.slots_count = size // KEY_BYTES
        assert c.slots_count > 1, size
        c.keys_max = max(1, min(int(c.slots_count * _LOAD), c.slots_count - 1))
        c.hash_key[0], c.hash_key[1] = (int.from_bytes(hash_key[at : at + 8], "little") for at in (0, 8))
        self._take_policy(c)
        if unpacked_memory is not None:
            c.codecs.remembered, c.codecs.remembered_bytes, held = pinned(unpacked_memory, writable=True)
            self._held.append(held)
        self._out = bytearray()
        self._set_out(OUT_BYTES)
        self._verdict = ffi.new("tpc_clean_verdict *")
        self.seen: set[int] = set()
        self.kept_aborted: list[AbortedTransaction] = []
        self.is_full = False

    def _take_policy(self, c: Any) -> None:
        job = self._job
        aborted = sorted(job.aborted, key=lambda one: (one.producer_id, one.first_offset))
        self._aborted = ffi.new("tpc_clean_aborted[]", max(1, len(aborted)))
        for place, one in enumerate(aborted):
            entry = self._aborted[place]
            entry.producer_id, entry.first_offset, entry.last_offset = one[:3]
        self._aborted_by_marker = {one.last_offset: (place, one) for place, one in enumerate(aborted)}
        offsets = sorted(one.last_offset for one in job.producers if one.last_offset >= 0)
        self._kept_offsets = ffi.new("int64_t[]", offsets or [-1])
        self._kept_markers = {one.marker_offset for one in job.producers if one.marker_offset >= 0}
        self._kept_ids = {one.producer_id for one in job.producers if one.marker_offset < 0 and one.last_offset < 0}
        c.aborted, c.aborted_count = self._aborted, len(aborted)
        c.kept_offsets, c.kept_count = self._kept_offsets, len(offsets)
        c.first_offset = c.end_offset = _collected_from(job)
        c.now_ms = job.now_ms
        c.new_horizon_ms = min(job.now_ms + job.delete_retention_ms, _HORIZON_MS_MAX)
        c.batch_bytes_max = job.batch_bytes_max
        c.may_grow = 1
        self._take_codecs(c.codecs)

    def _take_native(self, native: NativeCodecs) -> None:
        for name, value in native._asdict().items():
            setattr(self._c.codecs, name, value if name == "small_bytes" else ffi.cast("void *", value))

    def _take_codecs(self, codecs: Any) -> None:
        self._take_native(self._codec.native)
        unpacked_bytes = min(NATIVE_BYTES_MAX, self._job.decompressed_bytes_max)
        self._unpacked_memory = _uncleared("uint8_t[]", max(1, unpacked_bytes))
        self._kept_memory = _uncleared("uint8_t[]", 3 * NATIVE_BYTES_MAX)
        codecs.unpacked, codecs.unpacked_bytes = self._unpacked_memory, unpacked_bytes
        codecs.kept, codecs.kept_bytes = self._kept_memory, 3 * NATIVE_BYTES_MAX

    # What is known

    @property
    def end_offset(self) -> int:
        """The keys of all records below are in the map."""
        return int(self._c.end_offset)

    @property
    def keys_count(self) -> int:
        return int(self._c.keys_count)

    @property
    def records_read(self) -> int:
        return int(self._c.records_read)

    @property
    def records_kept(self) -> int:
        return int(self._c.records_kept)

    @property
    def batches_unreadable(self) -> int:
        return int(self._c.batches_unreadable)

    @property
    def place(self) -> int:
        """Where in the bytes of the last call it stands: behind the last batch that was taken."""
        return int(self._c.place)

    def is_dirty(self, source: CleaningSource) -> bool:
        """Its keys are to be collected."""
        return source.end_offset > self._c.first_offset

    def is_cleaned(self, source: CleaningSource) -> bool:
        """It is to be rewritten."""
        return source.base_offset < self._c.end_offset

    def begin(self, source: CleaningSource) -> None:
        """The first bytes of this segment come next."""
        c = self._c
        c.next_offset, c.source_end_offset = source.base_offset, source.end_offset
        # Rule: A horizon is believed only in a segment that a cleaner wrote: clients can send batches that have one,
        # and would have their tombstones removed at once. Held by tests/log/test_cleaning.py.
        c.horizons_believed = int(source.is_cleaned)

    # Keys

    def collect(self, data: memoryview) -> int:
        """How many of the bytes, all whole batches, were taken. `is_full` then says whether there is any use in more.
        BatchDamageError at `place`.
        """
        c = self._c
        pointer, size, _held = pinned(data)
        c.place = 0
        while True:
            stop = lib.tpc_clean_collect(c, pointer, size)
            if stop == lib.TPC_CLEAN_UNPACK:
                records = self._unpacked(data)
                given, given_bytes, _records_held = pinned(records) if records is not None else (ffi.NULL, 0, None)
                stop = lib.tpc_clean_collect_unpacked(c, pointer + c.place, given, given_bytes)
                if stop == lib.TPC_CLEAN_END:
                    continue
            if stop == lib.TPC_CLEAN_BAD:
                raise self._damage()
            self.is_full = stop == lib.TPC_CLEAN_FULL
            return self.place

    def end(self, source: CleaningSource) -> None:
        """All of it was collected."""
        self._c.end_offset = max(self._c.end_offset, source.end_offset)

    def _unpacked(self, data: memoryview) -> Buffer | None:
        """The records of the batch at `place`; None: they cannot be unpacked."""
        c = self._c
        packed = data[c.place + BATCH_HEADER_BYTES : c.place + c.batch_bytes]
        return self._codec.unpack(c.attributes & _COMPRESSION, packed, self._job.decompressed_bytes_max)

    def _damage(self) -> BatchDamageError:
        reason = ffi.string(lib.tpc_batch_reason_text(self._c.reason)).decode()
        return BatchDamageError(f"no record batch that follows offset {self._c.next_offset - 1}: {reason}")

    # What stays

    def rewrite(self, data: memoryview, write: Callable[[memoryview], None]) -> int:
        """How many of the bytes, all whole batches, were taken. What stays is given to `write`, which may not keep it.
        BatchDamageError at `place`.
        """
        c = self._c
        pointer, size, _held = pinned(data)
        self._set_marks(max(size, NATIVE_BYTES_MAX))
        c.place = 0
        while True:
            stop = lib.tpc_clean_batches(c, pointer, size, self._out_pointer, len(self._out))
            if c.seen_count:
                self.seen.update(c.seen[0 : c.seen_count])
                c.seen_count = 0
            if stop == lib.TPC_CLEAN_END:
                self._flush(write)
                return self.place
            if stop == lib.TPC_CLEAN_UNPACK:
                self._rewrite_packed(data, pointer + c.place, write)
            elif stop == lib.TPC_CLEAN_CONTROL:
                self._rewrite_control(data, pointer + c.place, write)
            elif stop == lib.TPC_CLEAN_ROOM:
                self._make_room(write)
            else:
                raise self._damage()

    @property
    def _room(self) -> tuple[Any, int]:
        return self._out_pointer, len(self._out)

    def _set_out(self, size: int) -> None:
        self._out = bytearray(size)
        self._out_view = memoryview(self._out)
        self._out_pointer = pinned(self._out_view, writable=True)[0]

    def _set_marks(self, records_bytes: int) -> None:
        """There is one for each record that so many bytes can have."""
        needed = records_bytes // (8 * _RECORD_BYTES_MIN) + 1
        if needed > self._c.marks_bytes:
            self._marks = ffi.new("uint8_t[]", needed)
            self._c.marks, self._c.marks_bytes = self._marks, needed

    def _flush(self, write: Callable[[memoryview], None]) -> None:
        written, self._c.written_bytes = self._c.written_bytes, 0
        if written:
            write(self._out_view[:written])
        if len(self._out) > KEPT_BYTES:
            self._set_out(OUT_BYTES)

    def _make_room(self, write: Callable[[memoryview], None]) -> None:
        """For what C could not write."""
        self._flush(write)
        if self._c.needed_bytes > len(self._out):
            self._set_out(self._c.needed_bytes)

    def _in_room(self, write: Callable[[memoryview], None], call: Callable[[], int]) -> None:
        """Again with more room, if it has to be."""
        if call() < 0:
            self._make_room(write)
            result = call()
            assert result == 0, result

    def _rewrite_packed(self, data: memoryview, batch: Any, write: Callable[[memoryview], None]) -> None:
        """The compressed batch at `place`."""
        c = self._c
        compression, batch_bytes = c.attributes & _COMPRESSION, int(c.batch_bytes)
        records = self._unpacked(data)
        unpacked, size, _held = pinned(records) if records is not None else (ffi.NULL, 0, None)
        self._set_marks(size)
        verdict = self._verdict
        self._in_room(write, lambda: lib.tpc_clean_unpacked(c, batch, unpacked, size, *self._room, verdict))
        if verdict.outcome != lib.TPC_CLEAN_REWRITTEN:
            return
        plain = self._out_view[c.written_bytes : c.written_bytes + verdict.records_bytes]
        packed = self._codec.pack(compression, plain)
        if not c.may_grow and memoryview(packed).nbytes + BATCH_HEADER_BYTES > batch_bytes:
            packed = min(packed, self._codec.pack_smallest(compression, plain), key=len)
        packed_pointer, packed_bytes, _packed_held = pinned(packed)
        self._in_room(
            write, lambda: lib.tpc_clean_packed(c, batch, verdict, packed_pointer, packed_bytes, *self._room)
        )

    # Markers

    def _rewrite_control(self, data: memoryview, batch: Any, write: Callable[[memoryview], None]) -> None:
        """The control batch at `place`."""
        what = self._fate_of_marker(decode_header(data, self.place), data)
        self._in_room(write, lambda: lib.tpc_clean_control(self._c, batch, what, *self._room))

    def _fate_of_marker(self, header: BatchHeader, data: memoryview) -> int:
        """An `enum tpc_clean_marker`, of the control batch at `place`."""
        is_kept = header.last_offset in self._kept_markers or header.producer_id in self._kept_ids
        if not header.records_count:  # another cleaner has emptied it
            return int(lib.TPC_CLEAN_MARKER_STAYS if is_kept else lib.TPC_CLEAN_MARKER_GOES)
        if not self._ends_nothing(header, data):
            return int(lib.TPC_CLEAN_MARKER_STAYS)
        if not (self._c.horizons_believed and header.attributes & _HORIZON):
            return int(lib.TPC_CLEAN_MARKER_DATED)
        is_over = header.base_timestamp <= self._job.now_ms
        return int(lib.TPC_CLEAN_MARKER_GOES if is_over and not is_kept else lib.TPC_CLEAN_MARKER_STAYS)

    # Rule: Of an aborted transaction the data go, in a later cleaning the entry of the index, in a later one the
    # marker: versions of data and list that follow each other may be mixed. Held by tests/log/test_cleaning_model.py.
    def _ends_nothing(self, header: BatchHeader, data: memoryview) -> bool:
        """A marker of a transaction of which no batch was met. The entry of one of which some were stays."""
        try:
            kind = decode_control_marker(data, self.place).kind
        except BatchDamageError:
            return False
        if kind not in (CONTROL_ABORT, CONTROL_COMMIT):
            return False
        were_seen = header.producer_id in self.seen
        self.seen.discard(header.producer_id)
        known = self._aborted_by_marker.get(header.last_offset) if kind == CONTROL_ABORT else None
        if known is not None and self._aborted[known[0]].batches_seen:
            self.kept_aborted.append(known[1])
            return False
        if known is not None:  # the entry goes: who has some of those data still must not do without it
            self._c.removed_upto = max(self._c.removed_upto, header.last_offset + 1)
        return not were_seen

    # One segment that takes the place of several

    def progress(self) -> Progress:
        """To come back to, by `go_back`."""
        cleaner, aborted = bytes(ffi.buffer(self._c)), bytes(ffi.buffer(self._aborted))
        return Progress(cleaner, aborted, frozenset(self.seen), tuple(self.kept_aborted))

    def go_back(self, progress: Progress, *, may_grow: bool) -> None:
        """What was rewritten since is to be done again, perhaps so that no batch becomes larger than it was:
        without new horizons, and what is packed again and would be larger is packed as small as can be, outside of C.
        """
        marks, marks_bytes = self._c.marks, self._c.marks_bytes
        ffi.buffer(self._c)[:] = progress.cleaner
        ffi.buffer(self._aborted)[:] = progress.aborted
        self._c.marks, self._c.marks_bytes = marks, marks_bytes
        self._c.may_grow = int(may_grow)
        self._take_native(self._codec.native if may_grow else NativeCodecs())
        self.seen, self.kept_aborted = set(progress.seen), list(progress.kept_aborted)

    def take_results(self) -> tuple[int, int, list[AbortedTransaction]]:
        """Of what was rewritten since the last call: batches that stayed, `removed_upto`, and aborted transactions that
        stay in the index. Batches may grow again.
        """
        c = self._c
        found = int(c.batches_kept), int(c.removed_upto), self.kept_aborted
        c.batches_kept = c.removed_upto = 0
        c.may_grow = 1
        self._take_native(self._codec.native)
        self.kept_aborted = []
        return found


class GroupLimits(NamedTuple):
    """Of what is put together into one segment."""

    segment_bytes: int
    segment_index_bytes: int


class SourceSizes(NamedTuple):
    """Of its files."""

    log_bytes: int
    index_bytes: int
    time_index_bytes: int


def plan_groups(
    sources: Sequence[CleaningSource], sizes: Sequence[SourceSizes], limits: GroupLimits
) -> list[list[CleaningSource]]:
    """Segments that follow each other, as many as fit into one together."""
    groups: list[list[CleaningSource]] = []
    log_bytes = index_bytes = time_index_bytes = 0
    for source, size in zip(sources, sizes, strict=True):
        log_bytes += size.log_bytes
        index_bytes += size.index_bytes
        time_index_bytes += size.time_index_bytes
        fits = (
            bool(groups)
            and log_bytes <= limits.segment_bytes
            and max(index_bytes, time_index_bytes) <= limits.segment_index_bytes
            and (not size.log_bytes or source.end_offset - 1 - groups[-1][0].base_offset <= _RELATIVE_OFFSET_MAX)
            and len(groups[-1]) < SEGMENTS_MAX
        )
        if fits:
            groups[-1].append(source)
        else:
            groups.append([source])
            log_bytes, index_bytes, time_index_bytes = size
    return groups
