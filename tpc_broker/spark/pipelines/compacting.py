"""Of an archive, the latest record of each key: ``tpc pipeline compact-archive``.

What Kafka's compaction does to a log, done to an archive, into a table of its own: per topic, partition and key the
record with the highest offset; keys whose latest record is a tombstone (value null) are left out. Records without key
cannot be compacted and are left out too; the result says how many they are.

The table is one set of files that is replaced as a whole (`file_list`), so readers see one state of all keys. It is not
partitioned by date: a key's record moves to another date with every update, so each run would have to write all dates
that hold one of the keys. Its rows are sorted by key within each file instead. A run folds what the archive got since
the last one into the table, in steps that are committed with the place they reached; a run that is killed goes on from
its last step.
"""

from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import functions

from tpc_broker.spark.losses import Losses
from tpc_broker.spark.pipelines.archive import KEEP_REPLACED_SECONDS, TARGET_BYTES
from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.pipelines.file_list import FileList
from tpc_broker.spark.pipelines.folder import Folder
from tpc_broker.spark.pipelines.leftovers import only_what_is_listed
from tpc_broker.spark.pipelines.origins import ParquetOrigin
from tpc_broker.spark.pipelines.progress import OnProgress, Progress, unwatched
from tpc_broker.spark.pipelines.steps import Step, after, between, going_on, next_ranges
from tpc_broker.spark.ranges import Offsets, Places, from_json, to_json

ROWS_PER_STEP: Final = 20_000_000
_BY_KEY: Final = ("topic", "partition", "key")
_NAMES: Final = {"topic": "_topic", "partition": "_partition", "offset": "_offset", "timestamp": "_ts", "key": "_key"}


@dataclass(frozen=True, slots=True)
class CompactJob:
    source: str
    out: str
    topics: tuple[str, ...] = ()
    rows_per_step: int = ROWS_PER_STEP
    target_bytes: int = TARGET_BYTES
    keep_replaced_seconds: float = KEEP_REPLACED_SECONDS


@dataclass(frozen=True, slots=True)
class CompactResult:
    """``offsets_count`` were looked at by this run, of them ``keyless_count`` without key; ``keys_count`` there are."""

    offsets_count: int
    keyless_count: int
    keys_count: int
    files_count: int


def compact(spark: Any, job: CompactJob, on_progress: OnProgress = unwatched) -> CompactResult:
    """Bring the table at ``out`` up to what the archive holds now. `PipelineError`: either cannot be used."""
    origin = ParquetOrigin(spark, job.source, job.topics)
    if not origin.is_archive:
        raise PipelineError(f"{job.source} is no archive; it lacks _topic, _partition, _offset, _ts, _key or value")
    files = FileList(Folder(spark, job.out))
    listing = files.read()
    made_from = listing.state.get("source", job.source if not listing.files else "other records")
    if made_from != job.source:
        raise PipelineError(f"{job.out} was made from {made_from}, not from {job.source}; take another folder")
    files.take_over(job.keep_replaced_seconds)
    _check_one_log_each(origin, job)
    start, end = origin.bounds()
    losses = Losses(are_errors=True)
    total = sum(piece.size for piece in between(going_on(_position(files), start, losses), end))
    done = keyless = 0
    on_progress(Progress(0, total))
    with only_what_is_listed(files):
        while step := _next_step(files, going_on(_position(files), start, losses), end, job.rows_per_step):
            keyless += _fold(spark, files, origin, step, job)
            done += step.offsets_count
            on_progress(Progress(done, total))
    return CompactResult(done, keyless, files.listing.rows_count, len(files.listing.files))


def _check_one_log_each(origin: ParquetOrigin, job: CompactJob) -> None:
    topics = origin.topic_ids
    again = sorted(topic for topic in job.topics or topics if len(topics.get(topic, [])) > 1)
    if again:
        raise PipelineError(
            f"{job.source} holds more than one topic named {', '.join(again)} (deleted and created again), and their "
            "offsets do not say which record of a key is the latest; archive the new one to a folder of its own"
        )


def _position(files: FileList) -> Places:
    return from_json(files.listing.state.get("position", {}))


def _next_step(files: FileList, position: Offsets, end: Places, rows_per_step: int) -> Step | None:
    ranges = next_ranges(position, end, rows_per_step)
    return Step(files.listing.number, ranges) if ranges else None


def _fold(spark: Any, files: FileList, origin: ParquetOrigin, step: Step, job: CompactJob) -> int:
    """Table and step become the next table; the number of rows without key."""
    listing, fresh = files.listing, origin.rows(step)
    everything = fresh.where("key IS NOT NULL")
    if listing.files:
        held = spark.read.parquet(*(files.folder.inside(file.name) for file in listing.files))
        held = held.withColumnsRenamed({ours: name for name, ours in _NAMES.items()})
        everything = everything.unionByName(held, allowMissingColumns=True)
    others = [name for name in everything.columns if name not in _BY_KEY]
    latest = everything.groupBy(*_BY_KEY).agg(functions.max_by(functions.struct(*others), "offset").alias("latest"))
    alive = latest.select(*_BY_KEY, "latest.*").where("value IS NOT NULL").withColumnsRenamed(_NAMES)
    bytes_per_row = origin.bytes_per_row()
    count = max(1, round((listing.size_bytes + step.offsets_count * bytes_per_row) / job.target_bytes))
    staged = files.stage("compacted")
    alive.repartition(count, "_topic", "_key").sortWithinPartitions("_topic", "_key").write.parquet(
        files.folder.inside(staged)
    )
    added = files.move_in(staged)
    state = {"source": job.source, "position": to_json(after(_position(files), step))}
    files.replace(listing.files, added, state)
    files.forget_replaced(job.keep_replaced_seconds)
    return int(fresh.where("key IS NULL").count())
