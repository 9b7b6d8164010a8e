"""How good the records of topics or of an archive are: ``tpc pipeline quality``.

Two passes. The first notes a few numbers of every record as Parquet beside the checkpoint (about 30 bytes a record),
step by step, so that it goes on where it was and a later run looks only at what is new. The second asks these notes
with SQL; its answers are exact.

What is counted, by partition:
    missing     offsets between the first and the last that are not there, in so many `gaps`; compaction and the markers
                of transactions leave such gaps too
    repeated    records whose key, value and time were there before, at another offset: a producer that sent twice
    doubled     the same offset twice; in a topic impossible, in an archive a mistake
    late        records more than `late_seconds` older than one that lies before them
"""

from dataclasses import dataclass
from typing import Any, Final

from tpc_broker.spark.pipelines.folder import Folder
from tpc_broker.spark.pipelines.origins import EVERYTHING, Origin, ParquetOrigin, TopicOrigin, Window
from tpc_broker.spark.pipelines.progress import OnProgress, unwatched
from tpc_broker.spark.pipelines.steps import Step, StepLog, run_steps
from tpc_broker.spark.pipelines.topics import Broker

ROWS_PER_STEP: Final = 2_000_000
TIME_BUCKETS: Final = 120
_NOTES: Final = (
    "topic", "partition", "offset", "unix_millis(timestamp) AS ms", "key IS NULL AS keyless", "value IS NULL AS dead",
    "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) AS size",
    "xxhash64(key, value, timestamp) AS content",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class QualityJob:
    """``topics`` of a broker (`bootstrap`), or of an archive where ``archive`` names one (all of it without topics)."""

    bootstrap: str | Broker
    topics: tuple[str, ...]
    checkpoint: str
    archive: str = ""
    window: Window = EVERYTHING
    late_seconds: float = 60.0
    rows_per_step: int = ROWS_PER_STEP


@dataclass(frozen=True, slots=True)
class PartitionQuality:
    """One row of the table. Times in ms; sizes are of keys and values, uncompressed."""

    topic: str
    partition: int
    records: int
    size_bytes: int
    first_offset: int
    last_offset: int
    missing: int
    gaps: int
    longest_gap: int
    doubled: int
    repeated: int
    null_keys: int
    tombstones: int
    late: int
    latest_ms: int
    first_time_ms: int
    last_time_ms: int


@dataclass(frozen=True, slots=True)
class QualityResult:
    """``by_time``: (start of the bucket in ms, topic, partition, records, late ones). ``by_size`` and ``by_lateness``:
    (power of two that bounds bytes or seconds, records).
    """

    partitions: tuple[PartitionQuality, ...]
    by_time: tuple[tuple[int, str, int, int, int], ...]
    bucket_ms: int
    by_size: tuple[tuple[int, int], ...]
    by_lateness: tuple[tuple[int, int], ...]
    late_seconds: float


def examine(spark: Any, job: QualityJob, on_progress: OnProgress = unwatched) -> QualityResult:
    """Look at everything that is there now and was not looked at by an earlier run with this checkpoint."""
    origin: Origin
    if job.archive:
        origin = ParquetOrigin(spark, job.archive, job.topics)
    else:
        origin = TopicOrigin(spark, job.bootstrap, ",".join(job.topics), job.window)
    folder = Folder(spark, job.checkpoint)
    log = StepLog(folder, _identity(job))

    def note(step: Step) -> None:
        place = folder.inside(f"notes/step={step.number}")
        origin.rows(step).selectExpr(*_NOTES).write.mode("overwrite").parquet(place)

    run_steps(log, origin.bounds(), note, on_progress, job.rows_per_step)
    if log.next_number == 0:
        return QualityResult((), (), 1, (), (), job.late_seconds)
    steps = [folder.inside(f"notes/step={number}") for number in range(log.next_number)]
    return _answers(spark, spark.read.parquet(*steps), job.late_seconds)


def _identity(job: QualityJob) -> dict[str, Any]:
    return {
        "topics": list(job.topics), "archive": job.archive, "window": [list(option) for option in job.window.options]
    }


def _answers(spark: Any, notes: Any, late_seconds: float) -> QualityResult:
    late_ms = int(late_seconds * 1000)
    notes.createOrReplaceTempView("notes")
    spark.sql(f"""
        SELECT *, greatest(0, newest_before - ms) AS behind, greatest(0, newest_before - ms) > {late_ms} AS late
        FROM (SELECT *, offset - lag(offset) OVER places AS distance,
                     coalesce(max(ms) OVER before, ms) AS newest_before
              FROM notes
              WINDOW places AS (PARTITION BY topic, partition ORDER BY offset),
                     before AS (PARTITION BY topic, partition ORDER BY offset
                                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
    """).createOrReplaceTempView("judged")
    partitions = tuple(PartitionQuality(*row) for row in spark.sql(_PARTITIONS).collect())
    first, last = spark.sql("SELECT min(ms), max(ms) FROM notes").first() or (0, 0)
    bucket_ms = max(1, -(-((last or 0) - (first or 0) + 1) // TIME_BUCKETS))
    by_time = spark.sql(f"""
        SELECT floor((ms - {first or 0}) / {bucket_ms}) * {bucket_ms} + {first or 0} AS begin, topic, partition,
               count(*), count_if(late)
        FROM judged WHERE ms IS NOT NULL GROUP BY begin, topic, partition ORDER BY begin, topic, partition
    """).collect()
    by_size = spark.sql("""
        SELECT CAST(ceil(log2(greatest(size, 1))) AS INT) AS bound, count(*) FROM notes GROUP BY bound ORDER BY bound
    """).collect()
    by_lateness = spark.sql("""
        SELECT CAST(ceil(log2(greatest(behind / 1000, 1))) AS INT) AS bound, count(*)
        FROM judged WHERE behind > 0 GROUP BY bound ORDER BY bound
    """).collect()
    return QualityResult(
        partitions, tuple(tuple(row) for row in by_time), bucket_ms, tuple(tuple(row) for row in by_size),
        tuple(tuple(row) for row in by_lateness), late_seconds,
    )  # fmt: skip


_PARTITIONS: Final = """
    SELECT j.topic, j.partition, count(*), sum(size), min(offset), max(offset),
           max(offset) - min(offset) + 1 - (count(*) - count_if(distance = 0)) AS missing,
           count_if(distance > 1), coalesce(max(distance) - 1, 0) AS longest,
           count_if(distance = 0), any_value(repeated), count_if(keyless), count_if(dead),
           count_if(late), max(behind), min(ms), max(ms)
    FROM judged AS j
    JOIN (SELECT topic, partition, sum(times - 1) AS repeated
          FROM (SELECT topic, partition, content, count(DISTINCT offset) AS times
                FROM notes GROUP BY topic, partition, content)
          GROUP BY topic, partition) AS r
      ON j.topic = r.topic AND j.partition = r.partition
    GROUP BY j.topic, j.partition ORDER BY j.topic, j.partition
"""
