"""Logs for cleaners: written batch by batch by a test, cleaned by ours, with as much of a core as that needs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tpc_broker.log.batch import walk_headers
from tpc_broker.log.cleaning_job import CleanedGroup, CleaningJob, CleaningReport, CleaningSource, KeptProducer
from tpc_broker.log.files import (
    CLEANED_SUFFIXES,
    LOG_SUFFIX,
    SEAL_SUFFIX,
    SEGMENT_SUFFIXES,
    TRANSACTION_INDEX_SUFFIX,
    cleaned_file_name,
    segment_file_name,
)
from tpc_broker.log.indexes import AbortedTransaction, TransactionIndex
from tpc_broker.log.producer_state import ProducerState
from tpc_broker.log.seals import Seal, cleaned_state

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS: Final[dict[str, int]] = {
    "segment.bytes": 1 << 30,
    "segment.index.bytes": 10 << 20,
    "index.interval.bytes": 4096,
    "delete.retention.ms": 10_000,
    "max.message.bytes": 1_048_588,
}
"""Of a topic, by Kafka's names, where a test does not say otherwise."""
DEDUPE_BYTES: Final = 1 << 20
DECOMPRESSED_BYTES_MAX: Final = 64 << 20


class OwnLog:
    """A partition's folder. What is appended is in memory until `roll` makes a segment of it."""

    def __init__(self, folder: Path, settings: dict[str, int] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.settings = SETTINGS | (settings or {})
        self.end_offset = 0
        self.active_base = 0
        self.producers = ProducerState()
        self.reports: list[CleaningReport] = []
        self._marker_offsets: dict[int, int] = {}
        self._active = bytearray()
        self._aborted: dict[int, list[AbortedTransaction]] = defaultdict(list)

    def append(self, batches: bytes) -> None:
        """With the offsets that they have, which may leave gaps."""
        for header, position in walk_headers(batches):
            assert header.base_offset >= self.end_offset, header
            aborted = self.producers.apply(header, batches, position)
            if aborted is not None:
                self._aborted[self.active_base].append(aborted)
            if header.is_control:
                self._marker_offsets[header.producer_id] = header.base_offset
            self.end_offset = header.next_offset
        self._active += batches

    def roll(self) -> int:
        """The base of the new segment."""
        base = self.active_base
        assert base < self.end_offset, "nothing was appended"
        (self.folder / segment_file_name(base, LOG_SUFFIX)).write_bytes(self._active)
        entries = self._aborted.pop(base, [])
        if entries:
            path = self.folder / segment_file_name(base, TRANSACTION_INDEX_SUFFIX)
            path.write_bytes(TransactionIndex(entries).encode())
        self._active.clear()
        self.active_base = self.end_offset
        return self.active_base

    @property
    def bases(self) -> list[int]:
        """Of the segments that were rolled."""
        return sorted(int(path.stem) for path in self.folder.glob(f"*{LOG_SUFFIX}"))

    def seal(self, base: int) -> Seal | None:
        path = self.folder / segment_file_name(base, SEAL_SUFFIX)
        return Seal.decode(path.read_bytes()) if path.exists() else None

    @property
    def seals(self) -> list[Seal]:
        return [seal for base in self.bases if (seal := self.seal(base)) is not None]

    def aborted(self) -> list[AbortedTransaction]:
        """Of all segments, as their files say."""
        paths = [self.folder / segment_file_name(base, TRANSACTION_INDEX_SUFFIX) for base in self.bases]
        found = [one for path in paths if path.exists() for one in TransactionIndex.decode(path.read_bytes()).entries]
        return found + self._aborted[self.active_base]

    def job(self, upper: int, now_ms: int, dedupe_bytes: int = DEDUPE_BYTES) -> CleaningJob:
        """To clean all rolled segments below an offset."""
        bases = [base for base in self.bases if base < upper]
        ends = [*bases[1:], upper]
        settings = self.settings
        return CleaningJob(
            label=self.folder.name,
            folder=str(self.folder),
            sources=tuple(self._source(base, end) for base, end in zip(bases, ends, strict=True)),
            log_start_offset=0,
            first_dirty_offset=cleaned_state(self.seals).first_dirty_offset,
            now_ms=now_ms,
            delete_retention_ms=settings["delete.retention.ms"],
            segment_bytes=settings["segment.bytes"],
            segment_index_bytes=settings["segment.index.bytes"],
            index_interval_bytes=settings["index.interval.bytes"],
            batch_bytes_max=settings["max.message.bytes"],
            decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
            dedupe_bytes=dedupe_bytes,
            aborted=tuple(entry for entry in self.aborted() if entry.first_offset < upper),
            producers=tuple(self._kept_producers()),
        )

    def _source(self, base: int, end: int) -> CleaningSource:
        status = (self.folder / segment_file_name(base, LOG_SUFFIX)).stat()
        seal = self.seal(base)
        removed_upto = 0 if seal is None else seal.removed_upto
        modified_ms = status.st_mtime_ns // 1_000_000
        return CleaningSource(base, end, status.st_size, status.st_ino, seal is not None, removed_upto, modified_ms)

    def _kept_producers(self) -> list[KeptProducer]:
        kept = []
        for one in self.producers:
            if one.batches:
                kept.append(KeptProducer(one.producer_id, one.batches[-1].last_offset, -1))
            else:
                kept.append(KeptProducer(one.producer_id, -1, self._marker_offsets[one.producer_id]))
        return kept

    def clean(
        self, run: Callable[..., CleaningReport], upper: int, now_ms: int, dedupe_bytes: int = DEDUPE_BYTES
    ) -> CleaningReport:
        """One job, and each group put in its place. `run`: the cleaner's pass over the job's files."""
        report = run(self.job(upper, now_ms, dedupe_bytes), self.take)
        self.reports.append(report)
        return report

    def take(self, group: CleanedGroup) -> None:
        """Put it in the place of its segments, without any of what would make that safe in a crash."""
        seal = group.seal
        for base in seal.replaced:
            for suffix in SEGMENT_SUFFIXES:
                (self.folder / segment_file_name(base, suffix)).unlink(missing_ok=True)
        for suffix in CLEANED_SUFFIXES:
            name = segment_file_name(seal.base_offset, suffix)
            made = self.folder / cleaned_file_name(name, seal.generation)
            if made.exists():
                made.replace(self.folder / name)
        (self.folder / segment_file_name(seal.base_offset, SEAL_SUFFIX)).write_bytes(seal.encode())

    def flush(self) -> None:
        """Write what is not rolled, so that a reader of the folder finds all of the log."""
        (self.folder / segment_file_name(self.active_base, LOG_SUFFIX)).write_bytes(self._active)

