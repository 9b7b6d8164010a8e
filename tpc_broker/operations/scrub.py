"""``tpc-broker scrub``: whether every stored batch can still be read, at a bounded pace, beside a broker or without.

It is a process of its own that only reads: cores lose nothing to it but the disk's time, which `rate` bounds. Files are
read past the page cache where that can be, so that it is the disk that is asked and no memory of ours is pushed out.

What a core's checkpoint names is certainly in the segments: all of those in front of the active one, and the first
bytes of that. Only so much is checked; what came later is still in the journal, and is checked the next time. Segments
follow each other without a gap, so a file that is missing between two is found too, unless a repair had to leave it so
(`lost-records` in the partition's folder). A running
broker removes segments meanwhile, and a cut takes bytes back, so whatever looks damaged is looked at again with the
checkpoint as it is then, before it counts. A file that is missing or too short may have been removed or cut since: then
a journal says so, which is written first. Nothing is ever repaired here.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tpc_broker import limits
from tpc_broker.engine.direct_file import READ_BYTES, SegmentFile, pieces
from tpc_broker.engine.sealed_files import read_seal, unlike_its_seal, view_of
from tpc_broker.log.batch import BATCH_HEADER_BYTES, BatchDamageError, BatchHeader, decode_header
from tpc_broker.log.checkpoint import CheckpointError, PartitionCheckpoint, decode_checkpoint
from tpc_broker.log.files import (
    LOG_SUFFIX,
    LOSSES_FILE,
    SEAL_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    checkpoint_file_name,
    decode_losses,
    journal_file_name,
    parse_checkpoint_file_name,
    partition_folder_name,
    segment_file_name,
)
from tpc_broker.log.indexes import TransactionIndex
from tpc_broker.log.journal import (
    BLOCK_BYTES,
    REGION_BLOCK_FIRST,
    EntryKind,
    JournalUnreadableError,
    choose_superblock,
    journal_entries,
    scan_journal,
)
from tpc_broker.log.seals import SealError
from tpc_broker.native_bytes import find_batches_end
from tpc_broker.options import StartError
from tpc_broker.storage.recovery.scrub_report import (
    FINISHED,
    INTERRUPTED,
    RUNNING,
    Damage,
    ScrubReport,
    read_report,
    write_report,
)
from tpc_broker.storage.segments.batch_ranges import missing
from tpc_broker.storage.segments.readable_runs import OFFSETS_PER_SEGMENT, Bounds, next_sound

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from tpc_broker.log.journal import JournalEntry, ReadRequest, Superblock
    from tpc_broker.log.seals import Seal
    from tpc_broker.model import CoreId, TopicPartition
    from tpc_broker.native_bytes import Buffer

T = TypeVar("T")

OFFSET_MAX: Final = 2**63 - 1
LOOKS_MAX: Final = 5
"""At a segment that is replaced again and again."""
BATCH_BYTES_MAX: Final = 2**31
TELL_S: Final = 1.0
LOCK_FILE: Final = ".scrub.lock"
PROGRESS_STEP_S: Final = 0.2


class _Segment(NamedTuple):
    """What is to be checked of one file."""

    core: CoreId
    state: PartitionCheckpoint
    base_offset: int
    end_position: int
    """-1: all of the file, which is sealed."""
    begins_log: bool = False
    """It is the first that is there."""
    next_base: int = -1
    """Where the next one that is there begins; -1: there is none."""
    losses: tuple[tuple[int, int], ...] = ()
    """Ranges of offsets that a repair could not bring back."""
    log_name: str = ""
    """Of its file, where it has another name: it was cleaned, and the swap is not finished."""
    sealed_end: int = -1
    """Where it ends, of one that was cleaned: there are gaps in it. -1: there are none."""

    @property
    def folder(self) -> str:
        return f"topics/{self.partition}"

    @property
    def partition(self) -> str:
        return partition_folder_name(self.state.topic, self.state.partition)

    @property
    def name(self) -> str:
        return f"{self.folder}/{segment_file_name(self.base_offset, LOG_SUFFIX)}"

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.log_name}" if self.log_name else self.name

    def damage(  # noqa: PLR0913 - a stretch, and why
        self, position: int, length: int, offset: int, end_offset: int, reason: str, name: str | None = None
    ) -> Damage:
        """In its log, or in another file of its folder."""
        file = f"{self.folder}/{name}" if name else self.name
        return Damage(self.partition, file, position, length, offset, end_offset, reason, self.state.topic_id.hex)


class _Suspects(NamedTuple):
    """What looks damaged in a segment, as it was then (`Scrub._version`)."""

    segment: _Segment
    version: object
    damages: list[Damage]


@dataclass(slots=True)
class Pace:
    """Bytes a second on the average; what was slow for other reasons is not made up for."""

    bytes_per_s: float
    _free_at_s: float = 0.0

    def spend(self, count: int) -> None:
        now_s = time.monotonic()
        self._free_at_s = max(self._free_at_s, now_s) + count / self.bytes_per_s
        if self._free_at_s > now_s + PROGRESS_STEP_S / 2:
            time.sleep(self._free_at_s - now_s)


# Rule: A scrub only reads. What it calls damaged it has looked at twice, with the checkpoint as it is then. Held by
# tests/operations/test_scrub.py.
class Scrub:
    """One pass over a data directory. `on_progress` is told checked and all bytes now and then."""

    def __init__(self, data: Path, bytes_per_s: float, on_progress: Callable[[int, int], None]) -> None:
        self._data = data
        self._pace = Pace(bytes_per_s)
        self._on_progress = on_progress
        self._earlier = read_report(data) or ScrubReport()
        self._left = list(self._earlier.damaged)
        self._found: list[Damage] = []
        """The first, and the first of each partition."""
        self._counts: Counter[str] = Counter()
        """All of it, by partition."""
        self._told_s = 0.0
        self._removals: dict[TopicPartition, int] = {}
        """Up to which offset the journals say that records were removed."""
        self._cuts: dict[TopicPartition, int] = {}
        """From which offset on they say that records were taken back."""
        self._released: set[tuple[CoreId, TopicPartition]] = set()
        """What a core has let go since its checkpoint: another one removes and cuts there."""
        self._journals_s = -TELL_S
        """When they were looked at."""
        self._suspects: list[_Suspects] = []
        self.report = ScrubReport(state=RUNNING, pid=os.getpid(), started_ms=time.time_ns() // 1_000_000)

    def run(self) -> ScrubReport:
        """StartError: what is not to be read as a data directory. KeyboardInterrupt: after the report says so."""
        with _one_at_a_time(self._data):
            try:
                self._check_journals()
                segments = list(self._segments())
                self.report.total_bytes = sum(self._length(one) for one in segments)
                self._tell(force=True)
                for segment in segments:
                    self._check(segment)
                self._left = []
                self.report.state = FINISHED
            except BaseException:
                self.report.state = INTERRUPTED
                raise
            finally:
                self._judge(force=True)
                self.report.ended_ms = time.time_ns() // 1_000_000
                self._tell(force=True)
        return self.report

    # -- what there is ---------------------------------------------------------------------------------------------

    def _cores(self) -> list[CoreId]:
        names = [path.name for path in (self._data / "journals").iterdir()]
        return sorted(core for core in map(parse_checkpoint_file_name, names) if core is not None)

    def _checkpoint(self, core: CoreId) -> list[PartitionCheckpoint]:
        """It is replaced whole, so it is never seen half written. CheckpointError."""
        path = self._data / "journals" / checkpoint_file_name(core)
        _generation, partitions = decode_checkpoint(path.read_bytes())
        return list(partitions.values())

    def _segments(self) -> Iterator[_Segment]:
        for core in self._cores():
            name = f"journals/{checkpoint_file_name(core)}"
            self._left = [one for one in self._left if one.file != name]
            try:
                states = self._checkpoint(core)
            except CheckpointError as error:
                self._add(Damage("-", name, 0, 0, -1, -1, f"{error}; nothing of its partitions was checked"))
                continue
            for state in states:
                if state.released is not None:
                    continue  # another core's checkpoint tells of it
                yield from self._segments_of(core, state)

    def _segments_of(self, core: CoreId, state: PartitionCheckpoint) -> Iterator[_Segment]:
        folder = self._data / "topics" / partition_folder_name(state.topic, state.partition)
        names: list[str] = []
        losses: list[tuple[int, int]] = []
        with suppress(FileNotFoundError):
            names = [path.name for path in folder.iterdir()]
            losses = decode_losses((folder / LOSSES_FILE).read_bytes())
        segments = view_of(folder, names).view.segments
        found = [
            _Segment(core, state, one.base_offset, -1, log_name=one.log_name)
            for one in segments if one.base_offset < state.segment_base
        ]  # fmt: skip
        if state.segment_position:
            found.append(_Segment(core, state, state.segment_base, state.segment_position))
        next_bases = [*(one.base_offset for one in found[1:]), -1 if state.segment_position else state.segment_base]
        for one, next_base in zip(found, next_bases, strict=False):
            yield one._replace(begins_log=one is found[0], next_base=next_base, losses=tuple(sorted(losses)))

    def _length(self, segment: _Segment) -> int:
        if segment.end_position >= 0:
            return segment.end_position
        try:
            return (self._data / segment.path).stat().st_size
        except OSError:
            return 0

    # -- one segment -------------------------------------------------------------------------------------------------

    def _check(self, segment: _Segment) -> None:
        self._left = [one for one in self._left if not one.file.startswith(segment.name.removesuffix(LOG_SUFFIX))]
        version = self._version(segment)
        found = list(self._damages(segment, paced=True))
        if found:
            self._suspects.append(_Suspects(segment, version, found))
        self.report.checked_files += 1
        self._judge()
        self._tell()

    def _judge(self, *, force: bool = False) -> None:
        """What looked damaged, by journals that are looked at afterwards; once a second at most: they may be long."""
        now_s = time.monotonic()
        if not self._suspects or (now_s < self._journals_s + TELL_S and not force):
            return
        self._journals_s = now_s
        self._look_at_journals()
        for one in self._suspects:
            for damage in self._found_again(one):
                self._add(damage)
        self._suspects.clear()

    def _found_again(self, suspects: _Suspects) -> list[Damage]:
        """What is damaged all the same. Of a segment that was cleaned meanwhile all of it counts anew: what looked
        damaged was no file of one moment.
        """
        segment, damages = suspects.segment, suspects.damages
        for _attempt in range(LOOKS_MAX):
            version = self._version(segment)
            if version == suspects.version:
                found = [damage for damage in damages if self._is_still_so(segment, damage)]
            else:
                now = self._damages(segment._replace(log_name=""), paced=False)
                found = [damage for damage in now if self._is_still_so(segment, damage)]
            if self._version(segment) == version:
                return found
        return []  # it is cleaned faster than it can be looked at: the next scrub's

    def _version(self, segment: _Segment) -> object:
        """Another one when the segment was replaced by a cleaned one, or merged into one."""
        folder = self._data / segment.folder
        names = [segment_file_name(segment.base_offset, suffix) for suffix in (LOG_SUFFIX, SEAL_SUFFIX)]
        found: list[tuple[int, ...]] = []
        for name in names:
            try:
                status = (folder / name).stat()
            except OSError:
                found.append(())
            else:  # a log grows; a seal is replaced whole, and its number may be another file's by then
                found.append((status.st_ino, 0 if name.endswith(LOG_SUFFIX) else status.st_mtime_ns))
        return found

    def _add(self, damage: Damage) -> None:
        self._counts[damage.partition] += 1
        if self._counts[damage.partition] == 1 or len(self._found) < limits.SCRUB_DAMAGES_TOLD_MAX:
            self._found.append(replace(damage, found_ms=time.time_ns() // 1_000_000))

    def _is_still_so(self, segment: _Segment, damage: Damage) -> bool:
        """Looked at again, by what the folder, the journals and the checkpoint say now. In this order: what is removed
        is in a journal before, and in the checkpoint when the journal has it no more.
        """
        if self._has_changed_since(segment, damage):
            return False
        try:
            states = [one for one in self._checkpoint(segment.core) if one.key == segment.state.key]
        except CheckpointError:
            return True
        if not states or states[0].segment_base < segment.base_offset or states[0].released is not None:
            return False
        state = states[0]
        end = state.segment_position if state.segment_base == segment.base_offset else -1
        now = segment._replace(state=state, end_position=end, log_name="")
        there = next((one for one in self._segments_of(segment.core, state) if one.name == segment.name), None)
        now = there or now
        if there is None and (end < 0 or state.log_start_offset >= state.log_end_offset):
            return False  # retention has taken it
        place = damage.file, damage.position
        return any((one.file, one.position) == place for one in self._damages(now, paced=False))

    def _has_changed_since(self, segment: _Segment, damage: Damage) -> bool:
        """What was there was removed, cut or handed over, by the journals."""
        key, end_offset = segment.state.key, max(segment.state.log_end_offset, 1)
        removed = self._removals.get(key, 0)
        return (
            (removed >= end_offset and not (self._data / segment.name).exists())
            or 0 <= damage.end_offset <= removed
            or damage.offset >= self._cuts.get(key, OFFSET_MAX)
            or (segment.core, key) in self._released
        )

    def _look_at_journals(self) -> None:
        """What was removed, cut and handed over since the checkpoints."""
        self._removals, self._cuts, self._released = {}, {}, set()
        for core in self._cores():
            for entry in _entries(self._data / "journals" / journal_file_name(core)):
                if entry.kind in (EntryKind.LOG_START, EntryKind.PARTITION_DELETED):
                    offset = entry.offset if entry.kind == EntryKind.LOG_START else OFFSET_MAX
                    self._removals[entry.partition] = max(offset, self._removals.get(entry.partition, 0))
                elif entry.kind == EntryKind.CUT:
                    self._cuts[entry.partition] = min(entry.offset, self._cuts.get(entry.partition, OFFSET_MAX))
                elif entry.kind == EntryKind.RELEASED:
                    self._released.add((core, entry.partition))

    def _damages(self, segment: _Segment, *, paced: bool) -> Iterator[Damage]:
        """What looks damaged. Paced: each read is waited for and counted."""
        yield from _gap(segment, segment.state.log_start_offset, segment.base_offset, 0, in_front=True)
        try:
            seal = read_seal(self._data / segment.folder, segment.base_offset)
        except (SealError, OSError) as error:
            name = segment_file_name(segment.base_offset, SEAL_SUFFIX)
            reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
            yield segment.damage(0, 0, segment.base_offset, -1, reason, name)
            walked = segment._replace(log_name="", sealed_end=segment.base_offset + OFFSETS_PER_SEGMENT)
            yield from self._damages_of_file(walked, paced=paced)
            return
        if seal is None:
            yield from self._damages_of_file(segment._replace(log_name=""), paced=paced)
            yield from self._damages_of_aborted(segment)
        else:
            yield from self._damages_by_seal(segment, seal, paced=paced)

    def _damages_of_file(self, segment: _Segment, *, paced: bool) -> Iterator[Damage]:
        """By its batches."""
        base = segment.base_offset
        try:
            file = SegmentFile(self._data / segment.path)
        except FileNotFoundError:
            if segment.end_position >= 0:
                yield segment.damage(0, segment.end_position, base, -1, "the file is missing")
            return
        except OSError as error:
            yield segment.damage(0, 0, base, -1, f"cannot be opened: {error.strerror}")
            return
        try:
            size = file.size()
            end = size if segment.end_position < 0 else segment.end_position
            walk = _Walk(file, segment, min(end, size), self._spent if paced else spend_nothing)
            good_end = size
            for position, length, offset, end_offset, reason in walk.damages():
                if size < end and position + length >= size:
                    good_end = position  # half a batch: it and what is missing are one
                else:
                    good_end = position if position + length >= end else size
                    yield segment.damage(position, length, offset, end_offset, reason)
            if segment.end_position < 0 and good_end == size and segment.sealed_end < 0:
                kept_from = max(walk.next_offset, segment.state.log_start_offset)  # below it nothing need be there
                yield from _gap(segment, kept_from, segment.next_base, size)
            if size < end:
                reason = f"the file ends {end - size:,} bytes too early"
                yield segment.damage(good_end, end - good_end, walk.next_offset, segment.state.log_end_offset, reason)
        finally:
            file.close()

    def _damages_of_aborted(self, segment: _Segment) -> Iterator[Damage]:
        """By its checksum: nothing else tells a wrong entry. Who opens it next makes it anew."""
        if segment.end_position >= 0:  # others are added, and there is none yet
            return
        name = segment_file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX)
        try:
            data = (self._data / segment.folder / name).read_bytes()
            TransactionIndex.decode(data)
        except FileNotFoundError:
            return
        except OSError as error:
            yield segment.damage(0, 0, segment.base_offset, -1, f"cannot be read: {error.strerror}", name)
        except ValueError as error:
            yield segment.damage(0, len(data), segment.base_offset, -1, str(error), name)

    # Rule: Gaps are right in a segment with a seal, and nowhere else: all bytes of its files are held against the seal.
    # See also tpc_broker/log/folder_view.py. Held by tests/operations/test_scrub_cleaned.py.
    def _damages_by_seal(self, segment: _Segment, seal: Seal, *, paced: bool) -> Iterator[Damage]:
        """Of a cleaned segment: what its files are is known to the last byte, and so is where it ends."""
        folder, base = self._data / segment.folder, segment.base_offset

        def read(path: Path) -> Iterator[Buffer]:
            spend = spend_nothing if not paced else self._spent if LOG_SUFFIX in path.name else self._pace.spend
            return pieces(path, spend)

        try:
            unlike = unlike_its_seal(folder, seal, read)
        except FileNotFoundError:
            return  # retention has taken it, or it was merged into another one
        except OSError as error:
            yield segment.damage(0, 0, base, -1, f"cannot be read: {error.strerror}")
            return
        for one in unlike:
            if one.suffix != LOG_SUFFIX:
                yield segment.damage(0, max(one.size_bytes, 0), base, -1, one.reason, one.name)
                continue
            walked = segment._replace(log_name=one.name, sealed_end=seal.end_offset, end_position=-1)
            batches = list(self._damages_of_file(walked, paced=False))
            yield from batches or [segment.damage(0, one.size_bytes, base, seal.end_offset, one.reason)]
        kept_from = max(seal.end_offset, segment.state.log_start_offset)
        yield from _gap(segment, kept_from, segment.next_base, seal.log.size_bytes)

    def _spent(self, count: int) -> None:
        self._pace.spend(count)
        self.report.checked_bytes += count
        self._tell()

    # -- journals ----------------------------------------------------------------------------------------------------

    def _check_journals(self) -> None:
        """Whether every commit that was durable can be read: only while no broker writes them."""
        with stopped(self._data) as is_stopped:
            if not is_stopped:
                return
            for core in self._cores():
                path = self._data / "journals" / journal_file_name(core)
                reason = _journal_damage(path)
                if reason is not None:
                    self._add(Damage("-", f"journals/{path.name}", 0, 0, -1, -1, reason))
            self._left = [one for one in self._left if not one.file.endswith(".journal")]

    # -- telling -----------------------------------------------------------------------------------------------------

    def _tell(self, *, force: bool = False) -> None:
        now_s = time.monotonic()
        if not force and now_s < self._told_s + TELL_S:
            return
        self._told_s = now_s
        report = self.report
        report.tell([*self._found, *self._left], self._counts + Counter(one.partition for one in self._left))
        try:
            write_report(self._data, report)
        except OSError as error:
            note = f"the report could not be written beside the data: {error.strerror}"
            report.notes = [note]
        self._on_progress(report.checked_bytes, report.total_bytes)


class _Walk:
    """From batch to batch through a file's first bytes."""

    def __init__(self, file: SegmentFile, segment: _Segment, end: int, spend: Callable[[int], None]) -> None:
        self._file = file
        self._has_gaps = segment.sealed_end >= 0
        limit = segment.sealed_end if self._has_gaps else segment.base_offset + OFFSETS_PER_SEGMENT
        self._bounds = Bounds(segment.base_offset, limit, ordered=True)
        self._losses = segment.losses
        self._epochs = segment.state.epochs
        self._end = end
        self._spend = spend
        self.next_offset: int = segment.base_offset

    def damages(self) -> Iterator[tuple[int, int, int, int, str]]:
        """Position, bytes, first offset that cannot be read, next one that can, reason."""
        position, length = 0, READ_BYTES
        damaged_from, reason = -1, ""
        while position < self._end:
            try:
                data = self._file.read(position, min(length, self._end - position))
            except OSError as error:
                yield (position, self._end - position, self.next_offset, -1, f"cannot be read: {error.strerror}")
                return
            if len(data) == 0:  # it became shorter meanwhile; the second look tells why
                yield (position, self._end - position, self.next_offset, -1, "the file ends too early")
                return
            done, next_offset = self._in_place(data, is_resumed=damaged_from >= 0)
            if done:
                if damaged_from >= 0:
                    first = decode_header(data).base_offset
                    yield (damaged_from, position - damaged_from, self.next_offset, first, reason)
                    damaged_from = -1
                position, self.next_offset, length = position + done, next_offset, READ_BYTES
                self._bounds = self._bounds._replace(lowest=next_offset)
                self._spend(done)
                continue
            needed = _batch_bytes(data)
            if len(data) < needed <= self._end - position:
                length = needed
                continue
            skip = next_sound(data, self._bounds, self._end - position)
            if skip is None and length < self._end - position:
                length *= 4
                continue
            if damaged_from < 0:
                damaged_from, reason = position, self._why(data, self._end - position)
            step = skip or (needed if needed <= len(data) and skip == 0 else max(len(data), 1))
            self._spend(step)
            position, length = position + step, READ_BYTES
        if damaged_from >= 0:
            yield (damaged_from, self._end - damaged_from, self.next_offset, -1, reason)

    def _in_place(self, data: memoryview, *, is_resumed: bool) -> tuple[int, int]:
        """How many bytes are sound batches with the offsets and epochs of their place, and the offset behind them.

        No checksum covers these two. A gap is as it should be where a repair has left one, behind damage, and in a
        cleaned segment.
        """
        header, expected = _header(data), self.next_offset
        if header is not None and header.base_offset > expected and not self._has_gaps:
            is_right = (
                self._bounds.hold(header) if is_resumed else not missing(expected, header.base_offset, self._losses)
            )
            expected = header.base_offset if is_right else expected
        return find_batches_end(data, expected, self._epochs, allow_gaps=self._has_gaps)

    def _why(self, data: memoryview, left_bytes: int) -> str:
        if not any(data[:BATCH_HEADER_BYTES]):
            return "zeros where a batch should be"
        if len(data) < BATCH_HEADER_BYTES:
            return "half a batch"
        try:
            header = decode_header(data)
        except BatchDamageError as error:
            return str(error)
        return "half a batch" if header.size_bytes > left_bytes else self._why_not_here(data, header)

    def _why_not_here(self, data: memoryview, header: BatchHeader) -> str:
        if find_batches_end(data[: header.size_bytes], -1)[0] == 0:
            return "a batch whose checksum does not fit"
        if header.base_offset != self.next_offset:
            return f"a batch with offset {header.base_offset}, expected {self.next_offset}"
        return f"a batch of leader epoch {header.partition_leader_epoch}, which did not write there"


def _gap(segment: _Segment, first: int, end: int, position: int, *, in_front: bool = False) -> Iterator[Damage]:
    """A segment that is missing before or behind one that is there."""
    if (in_front and not segment.begins_log) or first >= end or not missing(first, end, segment.losses):
        return
    lost = f"topics/{segment.partition}/{segment_file_name(first, LOG_SUFFIX)}"
    topic_id = segment.state.topic_id.hex
    yield Damage(segment.partition, lost, position, 0, first, end, "no segment has these records", topic_id)


def _header(data: memoryview) -> BatchHeader | None:
    """Of what begins the data, as far as it can be believed."""
    try:
        return decode_header(data) if len(data) >= BATCH_HEADER_BYTES else None
    except BatchDamageError:
        return None


def _batch_bytes(data: memoryview) -> int:
    """Of the batch that begins the data; 0: none does."""
    if len(data) < BATCH_HEADER_BYTES:
        return BATCH_HEADER_BYTES
    header = _header(data)
    return 0 if header is None else header.size_bytes


def _journal_damage(path: Path) -> str | None:
    try:
        found = _read_journal(path, scan_journal)
    except JournalUnreadableError as error:
        return str(error)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return found.damage


def _entries(path: Path) -> tuple[JournalEntry, ...]:
    """Of a journal that may be written meanwhile."""
    try:
        return _read_journal(path, journal_entries)
    except (JournalUnreadableError, OSError):
        return ()


def _read_journal(path: Path, read: Callable[[Superblock], Generator[ReadRequest, Buffer, T]]) -> T:
    """JournalUnreadableError, OSError."""
    with path.open("rb") as file:
        machine = read(choose_superblock(file.read(REGION_BLOCK_FIRST * BLOCK_BYTES)))
        try:
            request = next(machine)
            while True:
                file.seek(request.position)
                request = machine.send(file.read(request.length).ljust(request.length, b"\0"))
        except StopIteration as end:
            found: T = end.value
            return found


@contextmanager
def stopped(data: Path) -> Iterator[bool]:
    """Whether no broker has this directory; none begins until the end of the block when so."""
    lock = os.open(data / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)


@contextmanager
def _one_at_a_time(data: Path) -> Iterator[None]:
    if not (data / "journals").is_dir() or not (data / ".lock").exists():
        raise StartError(f"{data} is no data directory of a broker")
    try:
        lock = os.open(data / LOCK_FILE, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StartError(f"{data / LOCK_FILE}: {error.strerror}; scrub as the user whose broker it is") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StartError(f"another scrub of {data} is under way; see: tpc-broker status --data {data}") from error
        yield
    finally:
        os.close(lock)


def spend_nothing(_count: int) -> None:
    return
