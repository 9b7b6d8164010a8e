"""Step by step from an origin to a topic: what backfill and replay have in common.

The promise is that of the sink. Where the cluster has transactions, each step is there once, for readers of committed
records. Elsewhere, and where the rate is one of bytes, it is at least once: a job that was killed and is started again
repeats the step that was under way, and nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tpc_broker.spark.pipelines.folder import Folder
from tpc_broker.spark.pipelines.origins import Origin
from tpc_broker.spark.pipelines.placing import Target, check_partitions, write
from tpc_broker.spark.pipelines.progress import OnProgress, Progress
from tpc_broker.spark.pipelines.steps import Step, StepLog, run_steps


class TransferJob(Protocol):
    """What such a job says, wherever its rows come from."""

    @property
    def target(self) -> Target: ...
    @property
    def checkpoint(self) -> str: ...
    @property
    def rows_per_step(self) -> int: ...
    @property
    def fails_on_data_loss(self) -> bool: ...
    def identity(self) -> dict[str, Any]:
        """What the job is about beside its target, as plain JSON: a checkpoint belongs to one identity."""


@dataclass(frozen=True, slots=True)
class TransferResult:
    """What this run covered, and how many rows that were: fewer where an origin has gaps or a filter is at work."""

    offsets_count: int
    steps_count: int
    rows_count: int


def transfer(
    spark: Any, job: TransferJob, origin: Origin, rows_of: Callable[[Step], Any], on_progress: OnProgress
) -> TransferResult:
    """Write ``rows_of`` each step of what the origin has now and earlier runs have not written.

    `PipelineError`: the checkpoint belongs to another job, or the target lacks a partition.
    """
    target = job.target
    about = {**job.identity(), "topic": target.topic, "keeps_partitions": target.keeps_partitions}
    log = StepLog(Folder(spark, job.checkpoint), about)
    bounds = origin.bounds()
    check_partitions(target, max((where.partition for where in bounds[1].offsets), default=0))
    first_number = log.next_number
    rows_count = 0
    job_id = log.job_id() if target.has_transactions() else None

    def work(step: Step) -> None:
        nonlocal rows_count
        rows_count += write(rows_of(step), target, None if job_id is None else (job_id, step.number))

    def told(said: Progress) -> None:
        on_progress(replace(said, written_count=rows_count))

    count = run_steps(
        log, bounds, work, told, job.rows_per_step, target.rate, fails_on_data_loss=job.fails_on_data_loss
    )
    return TransferResult(count, log.next_number - first_number, rows_count)
