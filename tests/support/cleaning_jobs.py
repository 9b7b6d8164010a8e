"""Jobs for a cleaner, and what one says of them, where it does not matter what is in them."""

from __future__ import annotations

from typing import Any

from tpc_broker.log.cleaning_job import CleanedGroup, CleaningJob, CleaningReport, CleaningSource, KeptProducer
from tpc_broker.log.indexes import AbortedTransaction
from tpc_broker.log.seals import Seal, SealedFile

REPORT = CleaningReport(
    cleaned_upto=200, bytes_read=2_000, bytes_written=500, records_read=100, records_kept=25, batches_unreadable=1,
    map_keys=25, map_bytes=600, seconds=0.25, bytes_before=2_000,
)  # fmt: skip


def a_job(**fields: Any) -> CleaningJob:
    job = CleaningJob(
        label="prices-0",
        folder="/data/topics/prices-0",
        sources=(CleaningSource(0, 100, 1000, 5, True, 7, 11), CleaningSource(100, 200, 1000, 6, False, 0, 12)),
        log_start_offset=0,
        first_dirty_offset=100,
        now_ms=1_000_000,
        delete_retention_ms=86_400_000,
        segment_bytes=1 << 30,
        segment_index_bytes=10 << 20,
        index_interval_bytes=4096,
        batch_bytes_max=1 << 20,
        decompressed_bytes_max=1 << 24,
        dedupe_bytes=1 << 22,
        aborted=(AbortedTransaction(1, 10, 20, 15),),
        producers=(KeptProducer(1, 50, -1), KeptProducer(2, -1, 70)),
    )
    return job._replace(**fields)


def a_group(base_offset: int = 0, end_offset: int = 200) -> CleanedGroup:
    file = SealedFile(100, 5)
    seal = Seal(
        generation="0123456789abcdef", base_offset=base_offset, end_offset=end_offset, replaced=(base_offset,),
        first_dirty_offset=end_offset, removed_upto=0, batches_count=3, modified_ms=5, log=file, offset_index=file,
        time_index=file, transaction_index=SealedFile(0, 0),
    )  # fmt: skip
    return CleanedGroup(seal)
