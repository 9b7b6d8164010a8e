"""What the cleaner is asked to do, and what it tells: all that goes between a core and the cleaner's process.

The core that owns a partition decides what may be cleaned and hands a job over; the cleaner reads the segments, writes
cleaned ones beside them under names of their own, and tells of each (`CleanedGroup`). It knows no journal, renames
nothing and keeps nothing from one job to the next: the core puts what it made in its place, or does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tpc_broker.log.indexes import AbortedTransaction
    from tpc_broker.log.seals import Seal


class CleaningSource(NamedTuple):
    """One sealed segment, as the job found it."""

    base_offset: int
    end_offset: int
    """The base of the segment behind it."""
    size_bytes: int
    inode: int
    """Of its log: another one under its name is another segment, and ends the job."""
    is_cleaned: bool
    """It has a seal: attribute bit 6 of its batches was set by a cleaner, and is believed."""
    removed_upto: int
    """Of its seal; 0 without one."""
    modified_ms: int


class KeptProducer(NamedTuple):
    """A producer that is still known: the batch with this offset stays, if only its header. -1 for both: what it wrote
    last is a marker, and nobody knows which one; all of them stay.
    """

    producer_id: int
    last_offset: int
    """Of its last data; -1: what it wrote last is a marker."""
    marker_offset: int
    """Of that marker; -1: what it wrote last is data."""


class CleaningJob(NamedTuple):
    """Clean the sources, which follow each other from the log's first segment on."""

    label: str
    """`topic-partition`, for people."""
    folder: str
    sources: tuple[CleaningSource, ...]
    log_start_offset: int
    first_dirty_offset: int
    """Keys are collected from here on."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    batch_bytes_max: int
    """What a batch may have at most that is compressed again for its horizon alone, if it was not larger before: a
    larger one stays as it was, with its tombstones. Where records go the batch has what it takes, as in Kafka.
    """
    decompressed_bytes_max: int
    """A batch that unpacks to more is left as it is."""
    dedupe_bytes: int
    """Memory for the map of keys."""
    aborted: tuple[AbortedTransaction, ...]
    """All aborted transactions that begin below the sources' end, by the offsets of their markers: those, too, whose
    markers lie behind it. Data of one that is missing here are taken for committed ones, and would remove older values.
    """
    producers: tuple[KeptProducer, ...]
    is_urgent: bool = False
    """A record stays uncompacted past `max.compaction.lag.ms`, or the disk is nearly full: run at nice 0."""


class CleanedGroup(NamedTuple):
    """Segments that follow each other, and what is to take their place: files under the names that
    `files.cleaned_file_name` gives for the seal's generation, durable, with their names. Empty indexes of transactions
    have no file.
    """

    seal: Seal


class CleaningReport(NamedTuple):
    """Of one job that came to its end."""

    cleaned_upto: int
    """The sources' end; less, maybe inside of a source, when the map was too small: the offset of the first record
    whose key is not in it. Sources that begin there or later are left as they are. The last seal has it as its
    `first_dirty_offset`.
    """
    bytes_read: int
    """Of the segments that were rewritten."""
    bytes_written: int
    records_read: int
    records_kept: int
    batches_unreadable: int
    """Left as they are: they cannot be unpacked, or are none that can be read."""
    map_keys: int
    map_bytes: int
    seconds: float
    bytes_before: int = 0
    """Size of the segments in whose place others came: what is less now is saved."""
