"""One cleaning job over files, from its segments to cleaned ones beside them.

1. A source is opened when it is read: it is the file that the job means (inode and size), or the job is void. So a job
   needs a handful of descriptors, however many segments the log has.
2. The dirty ones are read once for their keys, then all up to the map's end are read and rewritten, in groups.
3. Of each group the log is written while it is made, then its indexes; all are made durable, with their names; then the
   group is given to `take`.

What was read does not stay in the page cache: every few MiB the kernel is told to drop it. A small job's sources stay
there between the two readings. What is written does not go there (`log_writer`).
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tpc_broker.cleaner.codecs import codec_of_a_job
from tpc_broker.cleaner.log_writer import LogWriter, create, write_at
from tpc_broker.cleaner.memory import map_memory
from tpc_broker.engine.durable_files import sync_folder
from tpc_broker.log.batch import LENGTH_PREFIX_BYTES, BatchDamageError, batch_size_at
from tpc_broker.log.cleaned_segment import CleanedSegment, SegmentFullError
from tpc_broker.log.cleaning import Cleaning, GroupLimits, SourceSizes, map_bytes, plan_groups
from tpc_broker.log.cleaning_job import CleanedGroup, CleaningReport
from tpc_broker.log.files import (
    CLEANED_SUFFIXES,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    cleaned_file_name,
    segment_file_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tpc_broker.log.cleaned_segment import CleanedIndexes
    from tpc_broker.log.cleaning_job import CleaningJob, CleaningSource

READ_BYTES: Final = 512 * 1024
"""At a time: what was read is still in the cache of a CPU when it is looked at."""
DROPPED_BYTES: Final = 4 * 1024 * 1024
"""So much is read before the kernel is told to drop it. It holds what it has read ahead in folios of up to 2 MiB, and
drops none of which it is told a part (ext4 and XFS, Linux 6.16): what lies across two pieces goes when the file was
read.
"""
CACHED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of a job whose sources stay in the page cache until they are read again."""
_NS_PER_MS: Final = 1_000_000


class SourceChangedError(ValueError):
    """A segment is not the one that the job means: it was replaced, or is gone."""


class CleaningStoppedError(Exception):
    """The caller wanted no more."""


def clean(
    job: CleaningJob,
    take: Callable[[CleanedGroup], None],
    pace: Callable[[int], None],
    should_stop: Callable[[], bool],
) -> CleaningReport:
    """Carry a job out. `take` is called for each group in the order of the log, when its files are durable; `pace` with
    the bytes of each piece that was read or is to be written, and may wait; `should_stop` between pieces.

    SourceChangedError; BatchDamageError, which names file and position: nothing more is cleaned; CleaningStoppedError;
    OSError. What `take` raises ends the job. Files of a group that was not taken are removed then.
    """
    return _Run(job, take, pace, should_stop).run()


class _Run:
    """The state of one job."""

    def __init__(
        self,
        job: CleaningJob,
        take: Callable[[CleanedGroup], None],
        pace: Callable[[int], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self._job, self._take, self._pace, self._should_stop = job, take, pace, should_stop
        self._folder = Path(job.folder)
        self._buffer = map_memory(READ_BYTES)
        self._bytes_read = self._bytes_written = self._bytes_before = 0
        self._is_cached = sum(source.size_bytes for source in job.sources) <= CACHED_BYTES_MAX

    def run(self) -> CleaningReport:
        """See `clean`."""
        job, started = self._job, time.monotonic()
        with ExitStack() as stack:
            memory = map_memory(map_bytes(job))
            codec = stack.enter_context(codec_of_a_job())
            left = job.dedupe_bytes - len(memory)
            unpacked = memoryview(map_memory(left)) if left > 0 else None
            cleaning = Cleaning(job, codec, memoryview(memory), os.urandom(16), unpacked)
            self._collect(cleaning)
            groups = self._groups(cleaning)
            while groups:
                later = self._clean_group(cleaning, groups[0], is_last=len(groups) == 1)
                groups[:1] = later
        return CleaningReport(
            cleaned_upto=cleaning.end_offset,
            bytes_read=self._bytes_read,
            bytes_written=self._bytes_written,
            records_read=cleaning.records_read,
            records_kept=cleaning.records_kept,
            batches_unreadable=cleaning.batches_unreadable,
            map_keys=cleaning.keys_count,
            map_bytes=len(memory),
            seconds=time.monotonic() - started,
            bytes_before=self._bytes_before,
        )

    def _path(self, base_offset: int, suffix: str) -> Path:
        return self._folder / segment_file_name(base_offset, suffix)

    @contextmanager
    def _opened(self, source: CleaningSource) -> Iterator[int]:
        path = self._path(source.base_offset, LOG_SUFFIX)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SourceChangedError(f"{path} is not there any more") from error
        try:
            found = os.fstat(descriptor)
            if (found.st_ino, found.st_size) != (source.inode, source.size_bytes):
                raise SourceChangedError(
                    f"{path} is inode {found.st_ino} of {found.st_size} bytes, "
                    f"the job means {source.inode} of {source.size_bytes}"
                )
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            yield descriptor
        finally:
            os.close(descriptor)

    def _groups(self, cleaning: Cleaning) -> list[list[CleaningSource]]:
        sources = [source for source in self._job.sources if cleaning.is_cleaned(source)]
        sizes = [
            SourceSizes(
                source.size_bytes,
                _size(self._path(source.base_offset, INDEX_SUFFIX)),
                _size(self._path(source.base_offset, TIME_INDEX_SUFFIX)),
            )
            for source in sources
        ]
        return plan_groups(sources, sizes, GroupLimits(self._job.segment_bytes, self._job.segment_index_bytes))

    # Reading

    def _collect(self, cleaning: Cleaning) -> None:
        for source in self._job.sources:
            if not cleaning.is_dirty(source):
                continue
            cleaning.begin(source)
            self._read(source, cleaning, cleaning.collect, is_over=lambda: cleaning.is_full)
            if cleaning.is_full:
                return
            cleaning.end(source)

    def _read(
        self,
        source: CleaningSource,
        cleaning: Cleaning,
        use: Callable[[memoryview], int],
        is_over: Callable[[], bool] | None = None,
    ) -> None:
        """All of a segment goes through `use`, which says how much it took. `is_over`: it will be read once more, and
        after each piece this says whether that was enough.
        """
        with self._opened(source) as descriptor:
            self._read_opened(descriptor, source, cleaning, use, is_over)

    def _read_opened(
        self,
        descriptor: int,
        source: CleaningSource,
        cleaning: Cleaning,
        use: Callable[[memoryview], int],
        is_over: Callable[[], bool] | None,
    ) -> None:
        path, position, held = self._path(source.base_offset, LOG_SUFFIX), 0, 0
        stays, dropped = is_over is not None and self._is_cached, 0
        while position < source.size_bytes:
            data = self._piece(path, descriptor, position, source.size_bytes, held)
            try:
                taken = use(data)
                if is_over is not None and is_over():
                    break
                if not taken:
                    self._enlarge(data, source.size_bytes - position)
            except BatchDamageError as error:
                raise BatchDamageError(f"{path}, position {position + cleaning.place}: {error}") from error
            position += taken
            if not stays and position - dropped >= DROPPED_BYTES:
                os.posix_fadvise(descriptor, dropped, position - dropped, os.POSIX_FADV_DONTNEED)
                dropped = position
            held = len(data) - taken
            if taken:
                self._buffer.move(0, taken, held)
        if not stays:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def _piece(self, path: Path, descriptor: int, position: int, end: int, held: int) -> memoryview:
        """As much as there is room for; the first `held` bytes are there."""
        if self._should_stop():
            raise CleaningStoppedError(self._job.label)
        size = min(len(self._buffer), end - position)
        self._pace(size - held)
        view = memoryview(self._buffer)[:size]
        filled = held
        while filled < size:
            count = os.preadv(descriptor, [view[filled:]], position + filled)
            if not count:
                raise SourceChangedError(f"{path} ends at {position + filled}, it had {end} bytes")
            filled += count
        self._bytes_read += size - held
        return view

    def _enlarge(self, data: memoryview, bytes_left: int) -> None:
        """The next piece has room for all of the batch that this one begins with. BatchDamageError: there is none."""
        needed = batch_size_at(data, 0) or LENGTH_PREFIX_BYTES
        if needed > bytes_left or needed <= len(data):
            raise BatchDamageError(f"a batch of {needed} bytes where {bytes_left} are left")
        larger = map_memory(needed)
        larger[: len(data)] = data
        self._buffer = larger

    # Writing

    def _clean_group(
        self, cleaning: Cleaning, group: Sequence[CleaningSource], *, is_last: bool
    ) -> list[list[CleaningSource]]:
        """Segments that become one. What they are to be divided into, if they do not fit."""
        before = cleaning.progress()
        may_grow = True
        while True:
            written = CleanedSegment(
                group,
                index_interval_bytes=self._job.index_interval_bytes,
                index_bytes_max=self._job.segment_index_bytes if len(group) > 1 else None,
            )
            files = _CleanedFiles(self._folder, written.base_offset)
            done = 0
            try:
                with files:
                    for source in group:
                        self._rewrite(source, cleaning, written, files)
                        done += 1
                    self._finish(cleaning, written, files, is_last=is_last)
            except SegmentFullError as error:
                if len(group) > 1:
                    cleaning.go_back(before, may_grow=True)
                    cut = max(done, 1)
                    return [list(group[:cut]), list(group[cut:])]
                if not may_grow:
                    raise SegmentFullError(f"segment {written.base_offset} has no room for itself: {error}") from error
                may_grow = False
                cleaning.go_back(before, may_grow=False)
            else:
                self._bytes_before += sum(source.size_bytes for source in group)
                return []

    def _rewrite(
        self, source: CleaningSource, cleaning: Cleaning, written: CleanedSegment, files: _CleanedFiles
    ) -> None:
        def write(data: memoryview) -> None:
            written.add(data)
            self._pace(data.nbytes)
            files.log.write(data)

        cleaning.begin(source)
        self._read(source, cleaning, lambda data: cleaning.rewrite(data, write))

    def _finish(
        self, cleaning: Cleaning, written: CleanedSegment, files: _CleanedFiles, *, is_last: bool
    ) -> None:
        batches_count, removed_upto, aborted = cleaning.take_results()
        indexes = written.finish(aborted)
        files.finish(indexes, written.modified_ms)
        first_dirty_offset = cleaning.end_offset if is_last else self._job.first_dirty_offset
        seal = written.seal(
            files.generation, indexes, first_dirty_offset=first_dirty_offset, removed_upto=removed_upto,
            batches_count=batches_count,
        )  # fmt: skip
        self._bytes_written += written.size_bytes
        files.is_offered = True
        self._take(CleanedGroup(seal))


class _CleanedFiles:
    """The files of one cleaned segment, under names of its own; as a context they are removed when it ends with an
    error, unless they were offered: then a seal may name them already, and they are the core's.
    """

    def __init__(self, folder: Path, base_offset: int) -> None:
        self.generation = os.urandom(8).hex()
        self._folder = folder
        self._paths = [
            folder / cleaned_file_name(segment_file_name(base_offset, suffix), self.generation)
            for suffix in CLEANED_SUFFIXES
        ]
        self.is_offered = False

    def __enter__(self) -> Self:
        self.log = LogWriter(self._paths[0])
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.log.close()
        if kind is not None and not self.is_offered:
            for path in self._paths:
                path.unlink(missing_ok=True)

    def finish(self, indexes: CleanedIndexes, modified_ms: int) -> None:
        """All of it is durable, and was written at that time. An empty index of transactions has no file."""
        self.log.finish(modified_ms * _NS_PER_MS)
        for path, content in zip(self._paths[1:], indexes, strict=True):
            if not content and path is self._paths[-1]:
                continue
            descriptor = create(path)
            try:
                write_at(descriptor, memoryview(content), 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(self._folder)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
