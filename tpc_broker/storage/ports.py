"""The small interfaces through which a core's storage sees the world: disk, clock, journal, data plane.

A port is a Protocol, one for each use; `tpc_broker.engine` has the real ones, tests and the simulator have theirs.
Errors of the environment come as OSError with the kernel's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from tpc_broker.log.cleaning_job import CleanedGroup, CleaningJob, CleaningReport
    from tpc_broker.log.state import LogState
    from tpc_broker.model import TopicPartition
    from tpc_broker.storage.disk_watch import DiskWatch

    Buffer = bytes | bytearray | memoryview
    Leave = Callable[[], Awaitable[None]]
    """Ends what the group of a replica may expect of it (`CoreMoves.release`)."""


class FileStatus(NamedTuple):
    """What `Disk.stat` tells of a file or folder."""

    size_bytes: int
    modified_ms: int
    is_directory: bool
    inode: int = 0


class FolderContents(NamedTuple):
    """What `Disk.read_folders` tells of a folder."""

    sizes_bytes: dict[str, int]
    """Of everything in it, by name."""
    small_files: dict[str, bytes]
    """Contents of those that were asked for and are there."""
    unreadable: Mapping[str, OSError] = MappingProxyType({})
    """Of these, those that the disk has lost, and how it says so."""


class FileSystemStatus(NamedTuple):
    """Size of the file system that holds a path, and what is left of it for this process."""

    total_bytes: int
    available_bytes: int


class FileWrite(NamedTuple):
    """Bytes for a place in an open file."""

    fd: int
    data: Buffer
    position: int


class FileSpace(NamedTuple):
    """Disk space for a range of an open file, whose size stays as it is."""

    fd: int
    position: int
    length: int


class Disk(Protocol):
    """Asynchronous file operations. A write is whole or raises; a short one is finished or becomes an OSError.

    A cancelled operation may still have happened: its task ends only when the kernel is done with the buffers.
    """

    @property
    def watch(self) -> DiskWatch:
        """What changes the disk and is under way."""
        ...

    async def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
        """A descriptor; `flags` as for `os.open` (O_CLOEXEC is added)."""
        ...

    def poll_ring(self) -> None:
        """In the midst of long work without an await: what cannot wait is done.

        No other task runs, but the data plane moves on: records are appended and become durable. So what was read from
        it before is old after this, as after an await.
        """
        ...

    async def close(self, fd: int) -> None: ...

    async def read(self, fd: int, length: int, position: int) -> bytes:
        """Bytes from a position on: fewer than asked for only at the end of the file."""
        ...

    async def read_view(self, fd: int, length: int, position: int) -> Buffer:
        """As `read`, perhaps without a copy."""
        ...

    async def read_into(self, fd: int, data: bytearray | memoryview, position: int) -> int:
        """As `read`, into a buffer; how many bytes."""
        ...

    async def read_ahead(self, fd: int, length: int, position: int) -> None:
        """What will be read soon: from memory then, where there is memory for it. Nothing is waited for."""
        ...

    async def write_at(self, fd: int, data: Buffer, position: int) -> None: ...

    async def write_zeros(self, fd: int, position: int, length: int) -> None:
        """Write a range, with other writes to the disk in between."""
        ...

    async def writev(self, fd: int, buffers: Sequence[Buffer], position: int) -> None: ...

    async def open_many(self, paths: Sequence[Path], flags: int) -> list[int | OSError]:
        """Open many files in one go: a descriptor of each, or why there is none."""
        ...

    async def write_many(self, writes: Sequence[FileWrite]) -> list[OSError | None]:
        """Write to many files, in any order; what came of each. One that fails does not keep the others."""
        ...

    async def durable_write(self, fd: int, data: Buffer, position: int) -> None:
        """Written and on the disk (RWF_DSYNC, or write and fdatasync)."""
        ...

    async def fdatasync(self, fd: int) -> None: ...

    async def fallocate(self, fd: int, position: int, length: int, *, keep_size: bool) -> None:
        """Take disk space for a range. ENOSPC when there is none; EOPNOTSUPP where files cannot."""
        ...

    async def reserve_many(self, spaces: Sequence[FileSpace]) -> list[OSError | None]:
        """`fallocate` for many files in one go; what came of each."""
        ...

    async def truncate(self, fd: int, length: int) -> None: ...

    async def truncate_many(self, ends: Sequence[tuple[Path, int]]) -> list[OSError | None]:
        """Cut many files, by name, at their lengths; what came of each."""
        ...

    async def replace_many(self, files: Sequence[tuple[Path, bytes]]) -> None:
        """Give many small files a new content: written beside and renamed over each. Not durable. OSError: not all."""
        ...

    async def close_many(self, descriptors: Sequence[int]) -> None: ...

    async def unlink(self, path: Path) -> None: ...

    async def rename(self, source: Path, target: Path) -> None: ...

    async def link(self, source: Path, target: Path) -> None:
        """A second name of a file, which keeps it when the first one goes."""
        ...

    async def mkdir(self, path: Path) -> None: ...

    async def make_folders(self, paths: Sequence[Path], name: str, content: bytes) -> list[bool]:
        """Make many folders with one small file in each, in one go; False for a folder that was there: it is left as it
        is. Nothing is synced. OSError: some may have been made.
        """
        ...

    async def rmdir(self, path: Path) -> None: ...

    async def fsync_directory(self, path: Path) -> None:
        """Names that were created, renamed or removed in a folder are on the disk."""
        ...

    async def listdir(self, path: Path) -> list[str]: ...

    async def read_folders(self, paths: Sequence[Path], small_names: Sequence[str]) -> list[FolderContents | None]:
        """Names, sizes and some small files of many folders, in one go; None for a folder that is gone.

        Files may come and go meanwhile: what is told of a folder was there at one moment. FileNotFoundError: a name
        that stays without a file. Other errors that say nothing of a small file itself are raised too.
        """
        ...

    async def stat(self, path: Path) -> FileStatus: ...

    async def statvfs(self, path: Path) -> FileSystemStatus: ...

    async def syncfs(self, fd: int) -> None:
        """Everything on the file system of an open file is on the disk; errors since it was opened are raised."""
        ...


class Clock(Protocol):
    """Milliseconds since the epoch, and of a clock that never goes back."""

    def wall_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...


class JournalCursor(NamedTuple):
    """A place in the chain of commits, `tpc_journal_cursor`."""

    sequence: int
    """The commit that is looked for here."""
    block: int
    """Block of the file to look at first, then the region's first."""
    position: int
    """The same as a count that never wraps; only for `recycle` in the same run."""
    previous_crc: int
    is_end: bool = False
    """Nothing ever follows: the journal was stopped, and everything in it is durable."""


class JournalUse(NamedTuple):
    """How much the journal has to do, and how full it is."""

    blocks_used: int
    region_blocks: int
    blocks_wanted: int
    """The region's length that something waits for; 0: nothing does."""
    checkpoint_at: int = 0
    """So many blocks in use, it wants a checkpoint."""
    is_refused: bool = False
    """Something has found no place in it since a checkpoint gave blocks back, or there were more of them."""


class Journal(Protocol):
    """What a core's checkpointer needs of the journal writer."""

    def durable_cursor(self) -> JournalCursor:
        """The place behind the last durable commit."""
        ...

    def recycle(self, position: int) -> None:
        """Blocks in front of a position may be overwritten."""
        ...

    def extend(self, region_blocks: int) -> None:
        """The region has so many blocks from now on; the new ones were written once and the superblock says so."""
        ...


class JournalControl(Journal, Protocol):
    """The journal's life: its own entries, how full it is, its failures and its end."""

    def journal_append(
        self, kind: int, key: TopicPartition, offset: int, argument: int, payload: bytes = b""
    ) -> int | None:
        """A control entry; the sequence to wait for. None: the journal has no room now."""
        ...

    def journal_error(self) -> int:
        """Errno of the failure that stopped the journal; 0: it works."""
        ...

    def journal_use(self) -> JournalUse: ...

    def want_space_at(self, blocks: int) -> None:
        """The journal asks for a checkpoint when so many blocks are in use; 0: when it finds that right itself, as it
        does as long as it grows.
        """
        ...

    def reopen_journal(self, descriptor: int, mode: int, run_id: int) -> int:
        """Go on after a failure; the sequence of its first commits, with the cuts and the leader epochs that partitions
        which were cut have now.
        """
        ...

    def on_journal_space(self, callback: Callable[[], None]) -> None: ...

    def on_journal_failed(self, callback: Callable[[int], None]) -> None: ...

    def stop_journal(self) -> None:
        """It takes nothing more, for good: appends and entries are refused (PartitionOfflineError)."""
        ...

    def is_settled(self) -> bool:
        """Whether everything that was ever appended is durable. StorageFailedError: the journal failed."""
        ...

    async def wait_durable(self, sequence: int, then: Callable[[], None] = ...) -> None:
        """Raises PartitionOfflineError when the journal failed before.

        `then` is called when it is durable, also when the waiting task was cancelled meanwhile, and before anybody gets
        a `durable_cursor` that covers it: so a checkpoint says what the entries that it makes superfluous said.
        """
        ...


class Bounds(NamedTuple):
    """log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition in the data plane at one moment; the next await or `poll_ring` makes it old."""

    high_watermark: int
    durable_offset: int
    """The journal has everything below; it may be more than what is committed."""
    written_offset: int
    """The segments have everything below, as far as `write_behind_done` has said so."""
    unwritten_bytes: int
    """Appended, durable or not, and not in the segments: their space has to be reserved."""
    dirty_bytes: int
    """Of these, durable."""
    bytes_admitted: int
    """How many more may be appended before Python has to reserve segment space."""
    in_place_end_offset: int
    """Behind the last batch written in place that is not reported by `write_behind_done`; -1: there is none."""
    leader_epoch: int
    """The journal's failures raise it: see `JournalControl.reopen_journal`."""


@dataclass(frozen=True, slots=True)
class PartitionParams:
    """What the data plane is told of a partition, `tpc_partition_params`."""

    topic: str
    key: TopicPartition
    leader_epoch: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    """Of what was recovered, what is committed."""
    timestamp_before_ms_max: int
    timestamp_after_ms_max: int
    batch_bytes_max: int
    segment_bytes: int
    is_internal: bool
    is_relaxed: bool
    """Answered before it is durable."""
    is_compacted: bool
    """Each record needs a key."""
    log_append_time: bool
    is_replicated: bool
    """It has no role until it is given one, and what is committed is told by `ReplicationPort.commit`."""


class PartitionTable(Protocol):
    """The partitions led here: registered, limited and observed by their handles, which never come twice."""

    def register(self, params: PartitionParams, state: LogState) -> int:
        """A partition whose files hold everything below `log_end_offset`, and its producers there; its handle.

        With `is_relaxed` the next batch of those producers that are `lost` is taken whatever its sequence, once.
        """
        ...

    def update(self, handle: int, params: PartitionParams) -> None:
        """Its settings have changed; the data plane knows its offsets better."""
        ...

    def withdraw(self, handle: int) -> None: ...

    def bounds(self, handle: int) -> Bounds: ...

    def state(self, handle: int) -> PartitionState:
        """Of one moment: what belongs together is read together."""
        ...

    def admit(self, handle: int, bytes_more: int) -> None:
        """So many more bytes may be appended; less than 0: so many fewer."""
        ...

    def set_log_start(self, handle: int, offset: int) -> None:
        """To be called when the journal's entry is durable."""
        ...

    def expire_producers(self, handle: int) -> int | None:
        """Forget producers that were silent for long, whatever the wall clock was set to meanwhile. How many are left,
        where some were forgotten because those of all partitions were too many; else None.
        """
        ...

    def close_windows(self, handle: int) -> None:
        """Before segments are cut or made anew."""
        ...

    def segments_replaced(self, handle: int, upto_offset: int) -> None:
        """Segments below an offset have given way to cleaned ones: nothing is told of the ones before any more, from
        memory or by windows. Nothing happens when the partition is not there.
        """
        ...

    def on_room_low(self, callback: Callable[[int, int], None]) -> None:
        """Called with the handle of a partition that has used up half of what was admitted, and the bytes that
        wait for room.
        """
        ...

    def partition_errors(self) -> int:
        """Partitions of Produce requests that were answered with an error since the start."""
        ...


class Taken(Protocol):
    """Batches on their way to the segments; a context that gives the references back."""

    size: int
    base_offset: int
    end_offset: int

    @property
    def buffers(self) -> list[Any]:
        """Where they lie, one after the other; valid inside the context."""
        ...

    @property
    def in_place(self) -> list[tuple[int, int]]:
        """Ranges of the segment's file that hold parts of them already, durably, as far as they are known."""
        ...

    def copy_to(self, target: memoryview) -> None:
        """All of them in a row."""
        ...

    def whole_bytes(self, bytes_max: int) -> int:
        """Of the leading batches that lie wholly in the first so many bytes."""
        ...

    def release(self) -> None:
        """What the context does at its end, for those who keep them longer than a block."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


class ShortRun(NamedTuple):
    """Everything of one partition that was durable and not in its segments."""

    batches: memoryview
    end_offset: int


class WriteBehind(Protocol):
    """Durable batches on their way from memory to the segments."""

    def dirty(self) -> list[int]:
        """Partitions with durable batches that are not in the segments yet."""
        ...

    def is_unwritten_below(self, sequence: int) -> bool:
        """Whether anything that a commit in front of this one carries is not in the segments."""
        ...

    def dirty_due(self, bytes_min: int, age_s: float, bytes_max: int) -> list[int]:
        """Those of them for which it is time: with `bytes_min` to write or more, or dirty for `age_s`, and the longest
        dirty ones as long as the others together have more than `bytes_max`.
        """
        ...

    def watch_due(self, bytes_min: int, bytes_max: int) -> None:
        """Have `on_due`'s callback called, once: when something is added and a partition then has `bytes_min` or
        more to write, or all together more than `bytes_max`.
        """
        ...

    def on_due(self, callback: Callable[[], None]) -> None: ...

    def write_behind_take(self, handle: int, bytes_max: int) -> Taken | None:
        """The oldest durable batches not yet in the segments; None: there are none."""
        ...

    def write_behind_done(self, handle: int, end_offset: int) -> int:
        """The segments have everything below an offset; how many bytes that were more than before."""
        ...

    def short_runs_take(self, handles: Sequence[int], bytes_max: int, memory: memoryview) -> list[ShortRun | None]:
        """Of each partition everything that `write_behind_take` would give bit by bit, copied into memory, which has
        room for `bytes_max` at least. None: there is nothing, or more than that, or some was written in place. Fewer
        than there are handles: the memory is full.
        """
        ...

    def short_runs_done(self, ended: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """`write_behind_done` of many, by handle and offset; beside the bytes of each its `bytes_admitted`."""
        ...


@dataclass(frozen=True, slots=True)
class InPlaceWindowParams:
    """An active segment into which large batches may be written, `tpc_in_place_window_params`."""

    segment_base_offset: int
    segment_bytes: int
    """Its largest size."""
    written_offset: int
    written_position: int
    """Where the batch at `written_offset` belongs."""
    reserved_position: int
    descriptor: int
    """For direct writes."""
    batch_bytes_min: int


class InPlaceWrites(Protocol):
    """Where large batches are written directly into their segment."""

    def open_in_place_window(self, handle: int, window: InPlaceWindowParams) -> bool:
        """From now on batches of so many bytes may be written in place into the active segment; False: not now.

        Until `close_in_place_window`, and as long as `in_place_end_offset` is above an offset, the segment must take
        everything below that: no roll.
        """
        ...

    def close_in_place_window(self, handle: int) -> None: ...

    def set_in_place_space(self, handle: int, reserved_position: int) -> bool:
        """More space is reserved in the segment; whether there is an in-place window."""
        ...


class ReplicaLogs(Protocol):
    """What replicas' logs may lose again."""

    def disarm(self, handle: int, *, keep_waits: bool = False) -> None: ...

    def lead(self, handle: int, term: int) -> None:
        """Take appends again, in a term whose marker is in the journal."""
        ...

    async def wait_settled(self, handle: int) -> None:
        """Until everything that was appended is durable. PartitionOfflineError: the journal failed."""
        ...

    def cut(self, handle: int, offset: int, last_epoch_kept: int) -> int | None:
        """The journal has a CUT, whose sequence is returned, and memory nothing behind the offset any more; segments
        that have are to be cut before anything is written behind. None: the journal has no room. ValueError: below
        what is committed, or no batch ends there. A journal that fails before goes on with it when it works again.
        """
        ...

    def adopt(self, key: TopicPartition, moves: int, payload: bytes) -> int | None:
        """The entry by which a partition's files give way to others, one of a partition at a time; the sequence to wait
        for, None: the journal has no room. One that fails before goes on with it when it works again.
        """
        ...

    def cuts_sequence(self) -> int:
        """The sequence under which a journal that was opened again has the cuts and adoptions that had not become
        durable; 0: they are durable, or it has failed again.
        """
        ...

    def reset_producers(self, handle: int, state: LogState) -> None:
        """As of the files, at `written_offset`; what batches in memory make of its producers is added."""
        ...


class StoragePlane(JournalControl, PartitionTable, WriteBehind, InPlaceWrites, ReplicaLogs, Protocol):
    """All of the data plane that the storage of a core uses."""


class CleanerAwayError(RuntimeError):
    """The cleaner cannot be reached now, or went away during a job: nothing of the log is the reason."""


class JobVoidError(CleanerAwayError):
    """The segments are not those that the job means any more: another job is to be made, of what is there now."""


class CleaningFailedError(RuntimeError):
    """A job failed, and would fail again: the message says why."""


class Cleaner(Protocol):
    """What rewrites segments (`cleaner`)."""

    async def ready(self) -> None:
        """Until it is free for this core's next job. Who asks before it makes the job finds the log as it is then.
        CleanerAwayError.
        """
        ...

    def let_go(self) -> None:
        """Of the cleaner that is ready, if no job was made for it: others wait."""
        ...

    async def clean(self, job: CleaningJob, take: Callable[[CleanedGroup], Awaitable[None]]) -> CleaningReport:
        """Carry a job out. `take` is awaited for each group of segments in the order of the log, when its files are
        durable under their `.cleaned-` names; what it raises ends the job. Cancelled: what is written and was not taken
        is left, to be removed by the next job. CleanerAwayError, CleaningFailedError.
        """
        ...


class SegmentWindow(NamedTuple):
    """A stretch of a segment in which the data plane may find batches and send them by itself (`tpc_window_params`)."""

    descriptor: int
    segment_base_offset: int
    from_offset: int
    upto_offset: int
    from_position: int
    end_position: int
    entries: bytes
    """Of the offset index, those whose batches begin here."""
    to_segment_end: bool
    is_sealed: bool
