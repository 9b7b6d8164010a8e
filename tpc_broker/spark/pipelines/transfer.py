"""Step by step from an origin to a topic: what backfill and replay have in common.

The promise is that of the sink, at least once: a job that was killed and is started again repeats the step that was
under way, and nothing else.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tpc_broker.spark.pipelines.folder import Folder
from tpc_broker.spark.pipelines.origins import Origin
from tpc_broker.spark.pipelines.placing import Target, check_partitions, write
from tpc_broker.spark.pipelines.progress import OnProgress
from tpc_broker.spark.pipelines.steps import Step, StepLog, run_steps


class Transfer:
    """One run of such a job; what it covers is fixed when this is made."""

    def __init__(
        self, spark: Any, origin: Origin, target: Target, checkpoint: str, identity: Mapping[str, Any]
    ) -> None:
        """``identity`` is what the job is about beside its target, as plain JSON.

        `PipelineError`: the checkpoint belongs to another job, or the target lacks a partition.
        """
        whole = {**identity, "topic": target.topic, "keeps_partitions": target.keeps_partitions}
        self._log = StepLog(Folder(spark, checkpoint), whole)
        self._target = target
        self._bounds = origin.bounds()
        check_partitions(target, max((where.partition for where in self._bounds[1]), default=0))
        self._first_number = self._log.next_number

    @property
    def steps_count(self) -> int:
        """Steps that this run has done."""
        return self._log.next_number - self._first_number

    def run(self, rows_of: Callable[[Step], Any], rows_per_step: int, on_progress: OnProgress) -> int:
        """Write ``rows_of`` each step; the number of offsets that were covered."""

        def work(step: Step) -> None:
            write(rows_of(step), self._target)

        return run_steps(self._log, self._bounds, work, on_progress, rows_per_step, self._target.rate)
