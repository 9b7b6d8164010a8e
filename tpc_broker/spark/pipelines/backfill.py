"""Parquet to topic: ``tpc pipeline backfill``.

Records of an archive go back with key, value, time and headers, those of one partition in the order of their offsets.
Other Parquet files need ``select``, which says in SQL what key, value, timestamp and headers are; their order within a
file is kept. The promise is that of a `transfer`.
"""

import time
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions

from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.pipelines.origins import ParquetOrigin
from tpc_broker.spark.pipelines.placing import Target, in_order, target_lifetime
from tpc_broker.spark.pipelines.progress import OnProgress, unwatched
from tpc_broker.spark.pipelines.steps import ROWS_PER_STEP
from tpc_broker.spark.pipelines.transfer import TransferResult, transfer


@dataclass(frozen=True, slots=True)
class BackfillJob:
    """``topics``: of an archive of several, only these. ``select``: SQL expressions, empty for archives."""

    source: str
    target: Target
    checkpoint: str
    topics: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    rows_per_step: int = ROWS_PER_STEP
    even_if_expired: bool = False
    fails_on_data_loss: bool = True

    def identity(self) -> dict[str, Any]:
        return {"source": self.source, "topics": list(self.topics), "select": list(self.select)}


def backfill(spark: Any, job: BackfillJob, on_progress: OnProgress = unwatched) -> TransferResult:
    """Everything that is in the files now and was not written by an earlier run.

    `PipelineError`: the target would lose records soon, or lacks a partition, or the files do not fit.
    """
    origin = ParquetOrigin(spark, job.source, job.topics)
    if not origin.is_archive and not job.select and "value" not in origin.columns:
        raise PipelineError(f"{job.source} has no column value; say with --select what key and value are")
    if not job.even_if_expired:
        _check_stays(origin, job)
    return transfer(spark, job, origin, lambda step: _selected(in_order(origin.rows(step)), job.select), on_progress)


def _selected(frame: Any, select: tuple[str, ...]) -> Any:
    return frame.selectExpr(*select) if select else frame


def _check_stays(origin: ParquetOrigin, job: BackfillJob) -> None:
    rows = _selected(origin.everything(), job.select)
    if "timestamp" not in rows.columns:
        return
    oldest = rows.agg(functions.min(functions.unix_millis("timestamp"))).first()[0]
    now_ms = int(time.time() * 1000)
    kept = target_lifetime(job.target)
    if oldest is None:
        return
    problem = kept.problem(job.target.topic, oldest, now_ms)
    if problem is None and not kept.keeps_times:
        problem = f"{job.target.topic} gives records the time of writing (message.timestamp.type = LogAppendTime)"
    if problem is not None:
        days = (now_ms - oldest) / 86_400_000
        raise PipelineError(f"{problem}, and the oldest record is {days:.1f} days old; --even-if-expired goes on")
