"""Rows of a step into a topic: which columns, which partition, in which order, how fast."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Observation, functions

from tpc_broker.spark.exactly_once import uses_transactions
from tpc_broker.spark.options import TransactionOptions
from tpc_broker.spark.pace import Rate
from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.pipelines.topics import Broker, broker_at, topic_configuration

WRITABLE: Final = ("key", "value", "timestamp", "headers", "partition")


@dataclass(frozen=True, slots=True)
class Target:
    """Where rows go. ``keeps_partitions``: to the partition of the same number, else the key decides."""

    bootstrap: str | Broker
    topic: str
    keeps_partitions: bool = False
    compression: str = "none"
    rate: Rate | None = None

    def has_transactions(self) -> bool:
        """Whether a step can be written in transactions: the cluster has them, and the step ends before they time out,
        which is not known where the rate is one of bytes.
        """
        if self.rate is not None and self.rate.bytes_per_second:
            return False
        with broker_at(self.bootstrap).cluster() as cluster:
            return uses_transactions(cluster, TransactionOptions())

    def partitions_count(self) -> int:
        with broker_at(self.bootstrap).cluster() as cluster:
            return len(cluster.partitions(self.topic))


def write(frame: Any, target: Target, numbered: tuple[str, int] | None = None) -> int:
    """Append; acknowledged when this returns how many rows that were. Takes the columns that a topic has and leaves the
    others out. ``numbered``: what has this name and number is written once, as in the sink's `txnAppId`.
    """
    names = [name for name in WRITABLE if name in frame.columns and (name != "partition" or target.keeps_partitions)]
    if "value" not in names:
        raise PipelineError(f"there is no column value among {', '.join(frame.columns)}; say with --select what it is")
    rows = frame.select(*names)
    counted = Observation()
    rows = rows.observe(counted, functions.count(functions.lit(1)).alias("rows"))
    writer = rows.write.format("tpc").mode("append").options(**broker_at(target.bootstrap).options())
    if numbered is None:
        writer = writer.option("exactlyOnce", "false")
    else:
        writer = writer.option("txnAppId", numbered[0]).option("txnVersion", numbered[1])
    if target.rate is not None:
        writer = writer.options(**_share(target.rate, frame))
    writer.option("topic", target.topic).option("compression", target.compression).save()
    return int(counted.get["rows"])


def _share(rate: Rate, frame: Any) -> dict[str, float]:
    """Each task's share, as options of the sink, when as many run at once as can."""
    tasks_count = max(1, min(frame.rdd.getNumPartitions(), frame.sparkSession.sparkContext.defaultParallelism))
    share = rate.divided(tasks_count)
    said = {"taskRecordsPerSecond": share.records_per_second, "taskBytesPerSecond": share.bytes_per_second}
    return {name: value for name, value in said.items() if value}


def in_order(frame: Any) -> Any:
    """Records of one source partition by one task, in the order of their offsets."""
    tasks_count = frame.sparkSession.sparkContext.defaultParallelism
    return frame.repartition(tasks_count, "topic", "partition").sortWithinPartitions("topic", "partition", "offset")


def check_partitions(target: Target, partition_max: int) -> None:
    """`PipelineError` when a partition that rows are to go to is not there."""
    count = target.partitions_count()
    if target.keeps_partitions and partition_max >= count:
        raise PipelineError(
            f"{target.topic} has {count} partitions, and there are records of partition {partition_max}; "
            "add partitions, or let the keys decide (--partitions key)"
        )


@dataclass(frozen=True, slots=True)
class Lifetime:
    """What a topic does with old records. None: it keeps them, or takes them."""

    retention_ms: int | None
    age_ms_max: int | None
    keeps_times: bool

    def problem(self, topic: str, oldest_ms: int, now_ms: int) -> str | None:
        """Why records as old as this would not stay (`FROM what` to do about it)."""
        age_ms = now_ms - oldest_ms
        if self.age_ms_max is not None and age_ms > self.age_ms_max:
            return f"{topic} refuses records older than message.timestamp.before.max.ms = {self.age_ms_max}"
        if self.retention_ms is not None and age_ms > self.retention_ms:
            return f"{topic} would delete records older than retention.ms = {self.retention_ms}"
        return None


def lifetime(configuration: Mapping[str, str | None]) -> Lifetime:
    def positive(name: str) -> int | None:
        value = int(configuration.get(name) or -1)
        return value if 0 <= value < 2**62 else None

    deletes = "delete" in (configuration.get("cleanup.policy") or "delete")
    return Lifetime(
        positive("retention.ms") if deletes else None,
        positive("message.timestamp.before.max.ms"),
        configuration.get("message.timestamp.type") != "LogAppendTime",
    )


def target_lifetime(target: Target) -> Lifetime:
    return lifetime(topic_configuration(target.bootstrap, target.topic))
