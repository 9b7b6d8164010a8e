"""Topic to topic, with a filter and SQL in between: ``tpc pipeline replay``.

Reads a window of one or more topics step by step and appends what the SQL makes of it to another topic. The SQL sees a
view ``records`` with the columns of the data source and has to work row by row, as it sees one step at a time. Without
SQL the records go on with key, value, time and headers. Order: records of one partition are written in their order. The
promise is that of a `transfer`.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException

from tpc_broker.spark.options import COLUMNS
from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.pipelines.origins import EVERYTHING, TopicOrigin, Window
from tpc_broker.spark.pipelines.placing import Target
from tpc_broker.spark.pipelines.progress import OnProgress, unwatched
from tpc_broker.spark.pipelines.steps import ROWS_PER_STEP
from tpc_broker.spark.pipelines.transfer import TransferResult, transfer
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

    def identity(self) -> dict[str, Any]:
        window = [list(option) for option in self.window.options]
        return {"source": self.source, "where": self.where, "sql": self.sql, "window": window}


def replay(spark: Any, job: ReplayJob, on_progress: OnProgress = unwatched) -> TransferResult:
    """The window as it is now, from where an earlier run ended. `PipelineError`: SQL or target do not fit."""
    if job.target.topic in job.source.split(","):
        raise PipelineError(f"{job.target.topic} is read and written at once; that would never end")
    transformed(spark, spark.createDataFrame([], _RECORDS), job)
    origin = TopicOrigin(
        spark, job.target.bootstrap, job.source, job.window, fails_on_data_loss=job.fails_on_data_loss
    )
    return transfer(spark, job, origin, lambda step: transformed(spark, origin.rows(step), job), on_progress)


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
