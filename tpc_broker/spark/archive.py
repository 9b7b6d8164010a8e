"""Topic to Parquet, exactly once: ``tpc pipeline archive``.

A streaming query reads the topics and appends to Spark's file sink, which keeps in ``_spark_metadata`` which files
belong to which epoch; together with the offsets in the checkpoint every record is in the archive once, however often
the job is killed and started again. Readers that are not Spark have to look at that list, or may see files of an epoch
that was not finished.

Columns: ``_topic``, ``_partition``, ``_offset``, ``_ts``, ``_key``, ``value``; folders ``date=YYYY-MM-DD`` by the
record's time in UTC.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tpc_broker.client.cluster import Cluster, ClusterSettings

ROWS_PER_EPOCH: Final = 2_000_000
POLL_SECONDS: Final = 0.5
CHECK_SECONDS: Final = 10.0

COLUMNS: Final = (
    "topic AS _topic",
    "partition AS _partition",
    "offset AS _offset",
    "timestamp AS _ts",
    "key AS _key",
    "value",
    "date_format(timestamp, 'yyyy-MM-dd') AS date",
)


@dataclass(frozen=True, slots=True)
class ArchiveJob:
    """What is archived where. ``out`` and ``checkpoint`` are places that Spark can write to."""

    bootstrap: str
    topics: str
    out: str
    checkpoint: str
    starting_offsets: str = "earliest"
    rows_per_epoch: int = ROWS_PER_EPOCH
    keeps_running: bool = False
    fails_on_data_loss: bool = True


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    rows_count: int
    epochs_count: int


def default_checkpoint(out: str) -> str:
    """Beside the archive, under a name that readers of Parquet pass over."""
    return str(Path(out) / "_checkpoint") if "://" not in out else f"{out.rstrip('/')}/_checkpoint"


def check_topics(job: ArchiveJob) -> None:
    """`UnknownTopicError` or another `ClientError`, before a session is started for nothing."""
    with Cluster(ClusterSettings(job.bootstrap, retry_seconds=CHECK_SECONDS)) as cluster:
        for topic in job.topics.split(","):
            cluster.topic(topic)


def archive(spark: Any, job: ArchiveJob, on_rows: Callable[[int], None] = lambda _rows: None) -> ArchiveResult:
    """Run until everything that is there now is archived, or for ever when the job keeps running.

    ``on_rows`` is told the number of rows archived so far. Raises what the query raises.
    """
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    reader = (
        spark.readStream.format("tpc")
        .option("bootstrap", job.bootstrap)
        .option("subscribe", job.topics)
        .option("startingOffsets", job.starting_offsets)
        .option("maxOffsetsPerTrigger", job.rows_per_epoch)
        .option("failOnDataLoss", str(job.fails_on_data_loss).lower())
        .option("isolation.level", "read_committed")
        .option("columns", "key,value,topic,partition,offset,timestamp")
    )
    writer = (
        reader.load()
        .selectExpr(*COLUMNS)
        .writeStream.format("parquet")
        .partitionBy("date")
        .option("checkpointLocation", job.checkpoint)
    )
    writer = writer.trigger(processingTime="10 seconds") if job.keeps_running else writer.trigger(availableNow=True)
    query = writer.start(job.out)
    rows_by_epoch: dict[int, int] = {}
    try:
        ended = False
        while not ended:
            ended = query.awaitTermination(POLL_SECONDS)
            rows_by_epoch |= {row.batchId: row.numInputRows for row in query.recentProgress}
            on_rows(sum(rows_by_epoch.values()))
    finally:
        query.stop()
    return ArchiveResult(sum(rows_by_epoch.values()), sum(rows > 0 for rows in rows_by_epoch.values()))
