"""The small interfaces through which a core's broker sees the world: kernel, clock, data plane.

A port is a Protocol; `tpc_broker.runtime` has the real one, tests and the simulator have theirs. Errors of the
environment come as OSError with the kernel's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from tpc_broker.broker.storage import PartitionStorage
    from tpc_broker.broker.view import Endpoint
    from tpc_broker.error_codes import ErrorCode
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.topic_config import TopicConfig
    from tpc_broker.model import CoreId, TopicPartition

    Buffer = bytes | bytearray | memoryview


class FileStatus(NamedTuple):
    """What `Disk.stat` tells of a file or folder."""

    size_bytes: int
    modified_ms: int
    is_directory: bool


class FolderContents(NamedTuple):
    """What `Disk.read_folders` tells of a folder."""

    sizes_bytes: dict[str, int]
    """Of everything in it, by name."""
    small_files: dict[str, bytes]
    """Contents of those that were asked for and are there."""


class FileSystemStatus(NamedTuple):
    """Size of the file system that holds a path, and what is left of it for this process."""

    total_bytes: int
    available_bytes: int


class FileWrite(NamedTuple):
    """Bytes for a place in an open file."""

    fd: int
    data: Buffer
    position: int


class Disk(Protocol):
    """Asynchronous file operations. A write is whole or raises; a short one is finished or becomes an OSError.

    A cancelled operation may still have happened: its task ends only when the kernel is done with the buffers.
    """

    async def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
        """A descriptor; `flags` as for `os.open` (O_CLOEXEC is added)."""
        ...

    def let_through(self) -> None:
        """In the midst of long work without an await: what cannot wait is done. It changes nothing that tasks see."""
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

    async def write_at(self, fd: int, data: Buffer, position: int) -> None: ...

    async def writev(self, fd: int, buffers: Sequence[Buffer], position: int) -> None: ...

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

    async def truncate(self, fd: int, length: int) -> None: ...

    async def unlink(self, path: Path) -> None: ...

    async def rename(self, source: Path, target: Path) -> None: ...

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
        that stays without a file.
        """
        ...

    async def stat(self, path: Path) -> FileStatus: ...

    async def statvfs(self, path: Path) -> FileSystemStatus: ...

    async def syncfs(self, fd: int) -> None:
        """Everything on the file system of an open file is on the disk; errors since it was opened are raised."""
        ...


class JournalPlace(NamedTuple):
    """A place in the chain of commits, `tpc_journal_place`."""

    sequence: int
    """The commit that is looked for here."""
    block: int
    """Block of the file to look at first, then the region's first."""
    position: int
    """The same as a count that never wraps; only for `recycle` in the same run."""
    previous_crc: int


class JournalUse(NamedTuple):
    """How much the journal has to do, and how full it is."""

    commits_durable: int
    """Since it was opened."""
    blocks_used: int
    region_blocks: int


class Journal(Protocol):
    """What a core's checkpointer needs of the journal writer."""

    def durable_place(self) -> JournalPlace:
        """The place behind the last durable commit."""
        ...

    def recycle(self, position: int) -> None:
        """Blocks in front of a position may be overwritten."""
        ...

    def extend(self, region_blocks: int) -> None:
        """The region has so many blocks from now on; the new ones were written once and the superblock says so."""
        ...


class Request(Protocol):
    """One request as the connections hand it over; its bytes are valid until it is answered."""

    connection: int
    api_key: int
    api_version: int
    correlation_id: int

    @property
    def client_id(self) -> str | None: ...

    @property
    def body(self) -> memoryview: ...


class Connections(Protocol):
    """All client connections of this core. Answers may come in any order and leave in the order of the requests."""

    def answer(self, request: Request, buffers: Sequence[Any]) -> None:
        """Response header and body, without the length. Slices of the data plane are sent without copying."""
        ...

    def answer_none(self, request: Request) -> None: ...

    def close(self, connection: int, reason: str) -> None: ...

    def stop_accepting(self) -> None: ...

    def close_all(self) -> None: ...

    def unanswered(self) -> int: ...


class Clock(Protocol):
    """Milliseconds since the epoch, and of a clock that never goes back."""

    def wall_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...


class Mailboxes(Protocol):
    """Calls to the other cores; errors are `tpc_broker.errors.MailboxError` and its kinds."""

    def serve(self, method: str, handler: Callable[[CoreId, dict[str, Any], list[bytes]], Awaitable[Any]]) -> None: ...

    async def call(
        self,
        core: CoreId,
        method: str,
        payload: dict[str, Any],
        blobs: Sequence[bytes] = (),
        *,
        timeout_ms: int | None = None,
    ) -> tuple[dict[str, Any], list[bytes]]: ...


class Bounds(NamedTuple):
    """log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int


class AppendResult(NamedTuple):
    """An append of the broker's own: durable when the journal's durable sequence has reached ``sequence``."""

    base_offset: int
    sequence: int
    error_code: int


class FetchPart(NamedTuple):
    """What a Fetch asks of one partition; offsets and epochs as in the request, -1 for none."""

    topic: str | uuid.UUID
    """As the client names it: by id from version 13 on, by name before."""
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int


class FetchOutcome(NamedTuple):
    """What became of one partition of a Fetch, as far as its session cares."""

    error_code: int
    high_watermark: int
    log_start_offset: int
    has_records: bool


class Fetch(Protocol):
    """A Fetch whose session was looked up and moved on; the session may know more partitions than the request names."""

    error_code: int
    """Of the session; then there are no parts."""
    session_id: int
    bytes_max: int
    deadline_ms: int
    """Of the monotonic clock: answered by then with what there is."""
    parts: list[FetchPart]

    def select(self, outcomes: Sequence[FetchOutcome]) -> list[bool]:
        """For each part, in order: is it in the answer? The session remembers what was sent."""
        ...

    def end(self) -> None:
        """To be called exactly once, when the answer is made or will not be."""
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
    def straight(self) -> list[tuple[int, int]]:
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


class DataPlane(Protocol):
    """Offsets, memory and journal of the partitions led here. Handles never come twice."""

    def produce(self, request: Request) -> bool:
        """Take a Produce; False: nothing was done, Python deals with it."""
        ...

    def produce_with(
        self, request: Request, verdicts: Sequence[Verdict | None], endpoints: Sequence[Endpoint]
    ) -> ProduceLeft:
        """A Produce with what Python says of its partitions; NONE when it was taken."""
        ...

    def begin_fetch(self, request: Request) -> Fetch:
        """The state of a Fetch that was left to Python. DecodeError when it is malformed."""
        ...

    def set_fetch_limits(self, response_bytes_max: int, sessions_max: int, eviction_ms: int) -> None: ...

    def wants_window(self, handle: int, offset: int, bytes_max: int) -> bool:
        """Whether the data plane could read this by itself if it had a window of the segment."""
        ...

    def open_window(self, handle: int, window: SegmentWindow) -> None: ...

    def close_windows(self, handle: int) -> None:
        """Before segments are cut or made anew."""
        ...

    def set_committed_from(self, handle: int, offset: int) -> None:
        """No transaction reaches into what lies at or behind an offset, nor will."""
        ...

    def release_fetches(self) -> None:
        """Fetches that wait in the data plane are answered with what there is."""
        ...

    def bounds(self, handle: int) -> Bounds: ...

    def dirty_bytes(self, handle: int) -> int: ...

    def watch(self, handle: int) -> None: ...

    def read(
        self, handle: int, offset: int, upto: int, bytes_max: int, at_least_one: bool  # noqa: FBT001
    ) -> tuple[list[Any], int] | None:
        """Whole batches from memory; None: they are in the segments."""
        ...

    def append(self, handle: int, batches: bytes) -> AppendResult | None:
        """None: the journal has no room now."""
        ...

    def set_log_start(self, handle: int, offset: int) -> None:
        """To be called when the journal's entry is durable."""
        ...

    def register(self, files: PartitionStorage, config: TopicConfig, *, is_internal: bool) -> int:
        """A partition whose files hold everything; its handle."""
        ...

    def update(self, handle: int, files: PartitionStorage, config: TopicConfig, *, is_internal: bool) -> None: ...

    def withdraw(self, handle: int) -> None: ...

    def bytes_admitted(self, handle: int) -> int:
        """How many more bytes may be appended before Python has to reserve segment space."""
        ...

    def admit(self, handle: int, bytes_more: int) -> None: ...

    def dirty(self) -> list[int]:
        """Partitions with durable batches that are not in the segments yet."""
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

    def write_behind_take(self, handle: int, bytes_max: int) -> Taken | None:
        """The oldest durable batches not yet in the segments; None: there are none."""
        ...

    def write_behind_done(self, handle: int, end_offset: int) -> None: ...

    def open_placement(self, handle: int, files: PartitionStorage, descriptor: int, batch_bytes_min: int) -> bool:
        """From now on batches of so many bytes may be written straight to the active segment; False: not now.

        `descriptor` is one for direct writes to it. Until `close_placement`, and as long as `straight_end` is above an
        offset, the segment must take everything below that: no roll.
        """
        ...

    def close_placement(self, handle: int) -> None: ...

    def set_placement_space(self, handle: int, reserved_position: int) -> bool:
        """More space is reserved in the segment; whether there is a placement."""
        ...

    def straight_end(self, handle: int) -> int:
        """Behind the last batch written straight that was not reported by `write_behind_done`; -1: there is none."""
        ...

    def expire_producers(self, handle: int, now_ms: int) -> None:
        """Forget producers that were silent for long."""
        ...

    def journal_append(self, kind: int, key: TopicPartition, offset: int, argument: int) -> int | None:
        """A control entry; the sequence to wait for. None: the journal has no room now."""
        ...

    def journal_error(self) -> int:
        """Errno of the failure that stopped the journal; 0: it works."""
        ...

    def journal_use(self) -> JournalUse: ...

    def reopen_journal(self, descriptor: int, mode: int, run_id: int) -> int | None:
        """Go on after a failure; the sequence of the cuts that were written first, None when there were none."""
        ...

    def on_advanced(self, callback: Callable[[int], None]) -> None:
        """Called with the handle of a watched partition that moved."""
        ...

    def on_due(self, callback: Callable[[], None]) -> None: ...

    def on_room_low(self, callback: Callable[[int], None]) -> None:
        """Called with the handle of a partition that has used up half of what was admitted."""
        ...

    def on_journal_space(self, callback: Callable[[], None]) -> None: ...

    def on_journal_failed(self, callback: Callable[[int], None]) -> None: ...

    def durable_place(self) -> JournalPlace: ...

    def recycle(self, position: int) -> None: ...

    def extend(self, region_blocks: int) -> None: ...

    async def wait_durable(self, sequence: int) -> None:
        """Raises PartitionOfflineError when the journal failed before."""
        ...


class CoreStorage(Protocol):
    """The files and journal of one core, behind its partitions."""

    async def prepare(self, wanted: Sequence[tuple[TopicPartition, str]]) -> None:
        """Before many partitions of topics are opened: what they lack is made for all of them at once. What cannot be
        made so is left to `open`.
        """
        ...

    async def open(self, key: TopicPartition, topic: str, config: TopicConfig) -> PartitionStorage:
        """Recovered, or made. PartitionOfflineError when damaged."""
        ...

    async def begin_epoch(self, files: PartitionStorage) -> None:
        """A leader epoch above every earlier one, durable when this returns."""
        ...

    def register(self, files: PartitionStorage, config: TopicConfig, *, is_internal: bool) -> int:
        """A place in the data plane; its handle."""
        ...

    def alter(self, files: PartitionStorage, handle: int, config: TopicConfig, *, is_internal: bool) -> None: ...

    async def delete(self, files: PartitionStorage, handle: int) -> None: ...

    async def delete_offline(self, key: TopicPartition) -> None:
        """Forget a partition that could not be opened, and free what is left of it."""
        ...

    async def set_log_start(self, handle: int, offset: int) -> None:
        """The log starts here from now on, durably."""
        ...

    async def forget_unclaimed(self, image: ClusterImage) -> None:
        """Delete what was recovered and belongs to no topic of the image."""
        ...

    async def purge_folders(self) -> None: ...

    async def checkpoint(self, *, clean: bool = False) -> bool: ...

    async def make_room(self, files: PartitionStorage, handle: int, size: int) -> None:
        """Segment space for so many bytes of records; OSError when there is none."""
        ...

    async def wait_journal_room(self) -> None:
        """For whoever was told that the journal is full: until it is worth trying again."""
        ...

    async def retain(self, files: PartitionStorage, handle: int, now_ms: int) -> int:
        """One round of retention by age and size; how many segments went."""
        ...

    async def drain(self) -> None: ...


class ProduceLeft(IntEnum):
    """Why the data plane left a Produce to Python (`enum tpc_produce_left`)."""

    NONE = 0
    MALFORMED = 1
    VERSION = 2
    TOO_MANY = 3
    UNKNOWN = 4
    PYTHON_VALIDATES = 5
    JOURNAL_FULL = 6
    NOT_ADMITTED = 7
    NO_MEMORY = 8


@dataclass(frozen=True, slots=True)
class Verdict:
    """What Python says of one partition of a Produce; NONE: go on. ``is_final``: need not be asked again."""

    error_code: ErrorCode
    message: str | None = None
    leader_id: int = -1
    leader_epoch: int = -1
    is_final: bool = True
    keyless: tuple[int, ...] = ()
    """Places in the batch of the records that a compacted topic refuses."""
