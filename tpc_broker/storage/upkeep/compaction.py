"""What of one partition may be cleaned now, how much of it is dirty, and the job that cleans it. As Kafka 4.x chooses.

Cleanable are whole sealed segments from the log's first one on, below

* the last stable offset and the high watermark: what is above them may be aborted, or cut;
* the durable checkpoint's active segment, and what it says is committed: a start, a reset and a cut never look at
  anything in front of them but for its producers;
* the first segment with a record that is younger than `min.compaction.lag.ms`;
* the last sealed one, as long as nothing is committed behind it: its last batch may go, and clients know that they are
  at the end of a log by its last batch (KAFKA-17076).

*Dirty* is what was written since the last cleaning: from the first dirty offset of the newest seal on. A log is due
when so much of what is cleanable is dirty (`min.cleanable.dirty.ratio`), or its oldest dirty record is older than
`max.compaction.lag.ms`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.log.batch import BATCH_HEADER_BYTES, decode_header
from tpc_broker.log.cleaning_job import CleaningJob, CleaningSource, KeptProducer
from tpc_broker.log.files import SEAL_SUFFIX, segment_file_name
from tpc_broker.storage.segments.segment_reader import SegmentReader
from tpc_broker.storage.segments.segment_swap import Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.metadata.cleaner_settings import CleaningBounds
    from tpc_broker.storage.ports import Bounds
    from tpc_broker.storage.segments.partition_storage import PartitionStorage
    from tpc_broker.storage.segments.segments import Segment

NEVER_MS = 2**63 - 1


class Measured(NamedTuple):
    """One partition, as it was looked at."""

    sources: tuple[Segment, ...]
    """What may be cleaned, from the log's first segment on."""
    first_dirty_offset: int
    clean_bytes: int
    dirty_bytes: int
    """Of the sources."""
    is_overdue: bool
    """The oldest dirty record is older than it may be."""
    held_back_bytes: int
    """Dirty ones that only a checkpoint keeps from being cleaned."""

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, ratio_min: float) -> bool:
        """Whether it is time to clean it."""
        return bool(self.dirty_bytes) and (self.is_overdue or self.dirty_ratio > ratio_min)

    def waits_for_checkpoint(self, ratio_min: float) -> bool:
        """Whether a checkpoint now would make it due."""
        dirty_bytes = self.dirty_bytes + self.held_back_bytes
        total = dirty_bytes + self.clean_bytes
        return bool(self.held_back_bytes) and not self.is_due(ratio_min) and dirty_bytes > ratio_min * total


class Job(NamedTuple):
    """For the cleaner, and what the swaps need of its sources, by base offset."""

    job: CleaningJob
    sources: dict[int, Source]


# Rule: What is cleaned lies below the last stable offset, the high watermark and the durable checkpoint: no start, cut
# or reset looks there for anything but producers. Held by tests/storage/test_compaction.py.
async def measure(files: PartitionStorage, bounds: Bounds, now_ms: int) -> Measured:
    """SegmentReplacedError, OSError, ValueError (a segment is damaged): it is to be looked at again."""
    version, checkpointed = files.version, files.checkpointed
    sealed = version.segments[: -1 if bounds.high_watermark > version.active.base_offset else -2]
    # Of an aborted transaction that begins below it the files have the marker, and so the entry of an index.
    stable = min(bounds.last_stable_offset, files.producers.last_stable_offset(bounds.high_watermark))
    checkpoint = min(checkpointed.segment_base, checkpointed.committed_end_offset)
    first_dirty = max(files.cleaned.first_dirty_offset, version.segments[0].base_offset)
    clean_bytes = dirty_bytes = held_back_bytes = 0
    sources: list[Segment] = []
    oldest_ms = NEVER_MS
    for segment, following in zip(sealed, version.segments[1:], strict=False):
        end_offset = following.base_offset
        is_dirty = end_offset > first_dirty
        if end_offset > stable or (is_dirty and not await _is_old_enough(files, segment, now_ms)):
            break
        if end_offset > checkpoint:
            held_back_bytes += segment.size_bytes
            continue
        sources.append(segment)
        if not is_dirty:
            clean_bytes += segment.size_bytes
            continue
        dirty_bytes += segment.size_bytes
        if files.settings.max_compaction_lag_ms < NEVER_MS:
            oldest_ms = min(oldest_ms, await _first_ms(files, segment))
    is_overdue = now_ms - oldest_ms > max(files.settings.max_compaction_lag_ms, 0)
    return Measured(tuple(sources), first_dirty, clean_bytes, dirty_bytes, is_overdue, held_back_bytes)


async def _is_old_enough(files: PartitionStorage, segment: Segment, now_ms: int) -> bool:
    lag_ms = files.settings.min_compaction_lag_ms
    if lag_ms <= 0:
        return True
    newest_ms = (await SegmentReader(files).load(segment)).largest_timestamp
    if newest_ms < 0:
        newest_ms = await files.folder.modified_ms(segment)
    return newest_ms <= now_ms - lag_ms


async def _first_ms(files: PartitionStorage, segment: Segment) -> int:
    """The largest timestamp of its first batch; NEVER_MS: it has none. It is read once, while the segment stays as it
    is: each look at thousands of partitions would push what clients read out of the cache of open files.
    """
    if segment.first_batch is not None and segment.first_batch[0] == segment.size_bytes:
        return segment.first_batch[1]
    size_bytes = segment.size_bytes
    data = await files.folder.read(segment, 0, BATCH_HEADER_BYTES)
    found = decode_header(data).max_timestamp if len(data) == BATCH_HEADER_BYTES else -1
    first_ms = found if found > 0 else NEVER_MS
    segment.first_batch = size_bytes, first_ms
    return first_ms


async def last_sealed_ms(files: PartitionStorage) -> int:
    """When the seal of the log's last cleaned segment was written here, which ends a cleaning. OSError."""
    last = [segment for segment in files.segments if segment.seal is not None][-1]
    status = await files.folder.disk.stat(files.folder.path / segment_file_name(last.base_offset, SEAL_SUFFIX))
    return status.modified_ms


async def make_job(
    files: PartitionStorage, measured: Measured, log_start_offset: int, bounds: CleaningBounds, now_ms: int,
    *, is_urgent: bool = False,
) -> Job:  # fmt: skip
    """Errors as of `measure`."""
    settings, sources, rows = files.settings, dict[int, Source](), list[CleaningSource]()
    for segment in measured.sources:
        end_offset = files.end_of(segment)
        status = await files.folder.disk.stat(files.folder.path / segment.log_name)
        segment.check_present()
        sources[segment.base_offset] = Source(segment, status.inode)
        seal = segment.seal
        rows.append(CleaningSource(
            segment.base_offset, end_offset, segment.size_bytes, status.inode, seal is not None,
            0 if seal is None else seal.removed_upto, status.modified_ms if seal is None else seal.modified_ms,
        ))  # fmt: skip
    # Rule: The cleaner is told of every aborted transaction that has a batch in the sources, also of those whose marker
    # lies behind them: their data would count as committed, and take away what is. Held by
    # tests/storage/test_compaction_of_transactions.py.
    upto = rows[-1].end_offset if rows else 0
    aborted = await SegmentReader(files).aborted_transactions(rows[0].base_offset, upto) if rows else []
    job = CleaningJob(
        label=files.label,
        folder=str(files.folder.path),
        sources=tuple(rows),
        log_start_offset=log_start_offset,
        first_dirty_offset=measured.first_dirty_offset,
        now_ms=now_ms,
        delete_retention_ms=settings.delete_retention_ms,
        segment_bytes=settings.segment_bytes,
        segment_index_bytes=settings.segment_index_bytes,
        index_interval_bytes=settings.index_interval_bytes,
        batch_bytes_max=settings.batch_bytes_max,
        decompressed_bytes_max=bounds.decompressed_bytes_max,
        dedupe_bytes=bounds.dedupe_bytes,
        aborted=tuple(sorted(aborted, key=lambda one: one.last_offset)),
        producers=tuple(kept_producers(files, upto)),
        is_urgent=is_urgent or measured.is_overdue,
    )
    return Job(job, sources)


def kept_producers(files: PartitionStorage, upto_offset: int) -> Sequence[KeptProducer]:
    """Those that are known and wrote last below an offset. As for Kafka, what a producer wrote last is its last data;
    of one whose epoch was raised by a marker it is that. Where the marker is was forgotten by a start, or by a move
    between cores.
    """
    found = []
    for producer in files.producers:
        last_offset = producer.batches[-1].last_offset if producer.batches else -1
        if last_offset < 0 and producer.marker_offset < upto_offset:
            found.append(KeptProducer(producer.producer_id, -1, producer.marker_offset))
        elif 0 <= last_offset < upto_offset:
            found.append(KeptProducer(producer.producer_id, last_offset, -1))
    return found


def bytes_wanted(job: CleaningJob) -> int:
    """Of disk space: what the largest group may take before its sources go."""
    return min(sum(source.size_bytes for source in job.sources), job.segment_bytes)
