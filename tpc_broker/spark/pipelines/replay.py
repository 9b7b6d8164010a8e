"""Topic to topic, with a filter and SQL in between: ``tpc pipeline replay``.

Reads a window of one or more topics step by step and appends what the SQL makes of it to another topic. The SQL sees a
view ``records`` with the columns of the data source and has to work row by row, as it sees one step at a time. Without
SQL the records go on with key, value, time and headers. Order: records of one partition are written in their order. The
promise is that of the sink, at least once: a job started again repeats the step that was under way, and nothing else.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException

from tpc_broker.spark.options import COLUMNS
from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.pipelines.folder import Folder
from tpc_broker.spark.pipelines.origins import EVERYTHING, TopicOrigin, Window
from tpc_broker.spark.pipelines.placing import Target, check_partitions, write
from tpc_broker.spark.pipelines.progress import OnProgress, unwatched
from tpc_broker.spark.pipelines.steps import ROWS_PER_STEP, Step, StepLog, run_steps
from tpc_broker.spark.source import COLUMN_TYPES

VIEW: Final = "records"
_ACROSS: Final = "Aggregate|Window|Join|Sort|GlobalLimit|Deduplicate|Distinct"
_NOT_BY_ROW: Final = re.compile(rf"^[\s:+|-]*({_ACROSS})\b", re.MULTILINE)
_RECORDS: Final = ", ".join(f"{name} {COLUMN_TYPES[name]}" for name in COLUMNS)


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """``where`` is a condition on the records; ``sql`` a whole SELECT from `records`, those that fulfil it."""

    source: str
    target: Target
    checkpoint: str
    window: Window = EVERYTHING
    where: str = ""
    sql: str = ""
    rows_per_step: int = ROWS_PER_STEP
    fails_on_data_loss: bool = True


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """``offsets_count`` were read; how many of them the filter let through is not known here."""

    offsets_count: int
    steps_count: int


def replay(spark: Any, job: ReplayJob, on_progress: OnProgress = unwatched) -> ReplayResult:
    """The window as it is now, from where an earlier run ended. `PipelineError`: SQL or target do not fit."""
    if job.target.topic in job.source.split(","):
        raise PipelineError(f"{job.target.topic} is read and written at once; that would never end")
    transformed(spark, spark.createDataFrame([], _RECORDS), job)
    origin = TopicOrigin(
        spark, job.target.bootstrap, job.source, job.window, fails_on_data_loss=job.fails_on_data_loss
    )
    log = StepLog(Folder(spark, job.checkpoint), _identity(job))
    bounds = origin.bounds()
    check_partitions(job.target, max((where.partition for where in bounds[1]), default=0))
    first = log.next_number

    def work(step: Step) -> None:
        write(transformed(spark, origin.rows(step), job), job.target)

    count = run_steps(log, bounds, work, on_progress, job.rows_per_step, job.target.rate)
    return ReplayResult(count, log.next_number - first)


def _identity(job: ReplayJob) -> dict[str, Any]:
    return {
        "source": job.source, "topic": job.target.topic, "where": job.where, "sql": job.sql,
        "window": [list(option) for option in job.window.options], "keeps_partitions": job.target.keeps_partitions,
    }  # fmt: skip


def transformed(spark: Any, records: Any, job: ReplayJob) -> Any:
    """What the filter and the SQL make of records; `PipelineError` names what is wrong with them."""
    try:
        chosen = records.where(job.where) if job.where else records
        if not job.sql:
            return chosen
        chosen.createOrReplaceTempView(VIEW)
        found = spark.sql(job.sql)
        plan = found._jdf.queryExecution().analyzed().toString()  # noqa: SLF001 - PySpark only prints it
    except PySparkException as error:
        raise PipelineError(f"the SQL is not understood: {str(error).splitlines()[0]}") from None
    across = _NOT_BY_ROW.search(plan)
    if across:
        raise PipelineError(f"the SQL looks at several rows at once ({across[1]}); it has to work row by row")
    return found
