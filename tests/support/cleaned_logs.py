"""A partition's folder that is cleaned: segments are written, jobs run over them, and what they make is put in its
place as the owner of the folder would do it, without its care.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.cleaning_model import Segment, read_log
from tpc_broker.cleaner.cleaning_run import clean
from tpc_broker.log.batch import walk_headers
from tpc_broker.log.cleaning_job import CleanedGroup, CleaningJob, CleaningReport, CleaningSource, KeptProducer
from tpc_broker.log.files import CLEANED_SUFFIXES, cleaned_file_name, segment_file_name
from tpc_broker.log.indexes import AbortedTransaction, TransactionIndex
from tpc_broker.log.seals import Seal, SealedFile
from tpc_broker.log.segment import SegmentIndexes
from tpc_broker.native_bytes import crc32c

INTERVAL_BYTES = 256
MODIFIED_MS = 1_600_000_000_123


@dataclass
class CleanedLog:
    """The log of one partition."""

    folder: Path
    sources: list[CleaningSource] = field(default_factory=list)
    first_dirty_offset: int = 0
    seals: list[Seal] = field(default_factory=list)

    @property
    def end_offset(self) -> int:
        return self.sources[-1].end_offset if self.sources else 0

    def path(self, base_offset: int, suffix: str = ".log") -> Path:
        return self.folder / segment_file_name(base_offset, suffix)

    def append(self, data: bytes, *, aborted: list[AbortedTransaction] = (), end_offset: int | None = None) -> None:
        """A sealed segment behind the others, with its index of transactions."""
        base_offset = self.end_offset
        self.path(base_offset).write_bytes(data)
        if aborted:
            self.path(base_offset, ".txnindex").write_bytes(TransactionIndex(aborted).encode())
        end = end_offset if end_offset is not None else [header.next_offset for header, _ in walk_headers(data)][-1]
        self.sources.append(self._source(base_offset, end, is_cleaned=False, removed_upto=0))

    def _source(self, base_offset: int, end_offset: int, *, is_cleaned: bool, removed_upto: int) -> CleaningSource:
        found = self.path(base_offset).stat()
        modified_ms = MODIFIED_MS + base_offset if not is_cleaned else found.st_mtime_ns // 1_000_000
        return CleaningSource(
            base_offset, end_offset, found.st_size, found.st_ino, is_cleaned, removed_upto, modified_ms
        )

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """Of all segments, as their indexes say."""
        found = []
        for source in self.sources:
            path = self.path(source.base_offset, ".txnindex")
            found += TransactionIndex.decode(path.read_bytes()).entries if path.exists() else []
        return found

    def read(self, *, unreadable: frozenset[int] = frozenset()) -> list[Segment]:
        """What it holds."""
        return [
            Segment(source.base_offset, source.end_offset, source.is_cleaned,
                    read_log(self.path(source.base_offset).read_bytes(), unreadable=unreadable))
            for source in self.sources
        ]  # fmt: skip

    def job(self, **changes: Any) -> CleaningJob:
        """Over all of it; what is not given is generous."""
        base: dict[str, Any] = {
            "label": "topic-0", "folder": str(self.folder), "sources": tuple(self.sources), "log_start_offset": 0,
            "first_dirty_offset": self.first_dirty_offset, "now_ms": 1_800_000_000_000, "delete_retention_ms": 1000,
            "segment_bytes": 1 << 30, "segment_index_bytes": 10 << 20, "index_interval_bytes": INTERVAL_BYTES,
            "batch_bytes_max": 1 << 20, "decompressed_bytes_max": 1 << 20, "dedupe_bytes": 1 << 20,
            "aborted": tuple(self.aborted), "producers": (),
        }  # fmt: skip
        return CleaningJob(**base | changes)

    def clean(self, *, producers: tuple[KeptProducer, ...] = (), swap: bool = True, **changes: Any) -> CleaningReport:
        """Run a job, check what it says of its files, and put them in their place."""
        groups: list[CleanedGroup] = []
        report = clean(self.job(producers=producers, **changes), groups.append, lambda _bytes: None, lambda: False)
        self.seals = [group.seal for group in groups]
        for seal in self.seals:
            self.check(seal)
        if swap:
            for seal in self.seals:
                self._swap(seal)
            self.first_dirty_offset = self.seals[-1].first_dirty_offset
        return report

    def cleaned(self, seal: Seal, suffix: str = ".log") -> Path:
        """A file that waits to be put in its place."""
        return self.folder / cleaned_file_name(segment_file_name(seal.base_offset, suffix), seal.generation)

    def check(self, seal: Seal) -> None:
        """Sizes, checksums, time, and the indexes as they are made batch by batch."""
        contents = {}
        for suffix, said in zip(CLEANED_SUFFIXES, seal.files, strict=True):
            path = self.cleaned(seal, suffix)
            contents[suffix] = path.read_bytes() if path.exists() else b""
            assert said == SealedFile(len(contents[suffix]), crc32c(contents[suffix])), suffix
            assert path.exists() == (suffix != ".txnindex" or said.size_bytes > 0)
        assert self.cleaned(seal).stat().st_mtime_ns == seal.modified_ms * 1_000_000
        indexes = SegmentIndexes(seal.base_offset, INTERVAL_BYTES)
        batches = list(walk_headers(contents[".log"]))
        for header, position in batches:
            indexes.add(header, position)
        indexes.seal()
        assert bytes(indexes.offsets.data) == contents[".index"]
        assert bytes(indexes.times.data) == contents[".timeindex"]
        assert seal.batches_count == len(batches)
        assert Seal.decode(seal.encode()) == seal

    def _swap(self, seal: Seal) -> None:
        for base_offset in seal.replaced:
            for suffix in CLEANED_SUFFIXES:
                self.path(base_offset, suffix).unlink(missing_ok=True)
        for suffix in CLEANED_SUFFIXES:
            if self.cleaned(seal, suffix).exists():
                self.cleaned(seal, suffix).rename(self.path(seal.base_offset, suffix))
        place = [source.base_offset for source in self.sources].index(seal.base_offset)
        self.sources[place : place + len(seal.replaced)] = [
            self._source(seal.base_offset, seal.end_offset, is_cleaned=True, removed_upto=seal.removed_upto)
        ]


