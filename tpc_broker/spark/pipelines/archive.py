"""Topic to Parquet, exactly once: ``tpc pipeline archive``.

A streaming query writes each epoch's rows to files beside the archive, moves them to their folder and commits a list
of files that holds them (`file_list`), together with the epoch's number. Where tasks reach the archive by themselves,
they write the files with Arrow (`files_source`), and only the names go through Spark; elsewhere (HDFS, S3) Spark
writes. An epoch that Spark replays because the job was killed before Spark's own note is found in the list and left
out. So every record is in the archive once, wherever the job is killed.

Columns: ``_topic``, ``_partition``, ``_offset``, ``_ts``, ``_key``, ``value`` and, when asked for, ``headers``; folders
``date=YYYY-MM-DD`` by the record's time in UTC. Small files are merged (`merging`) between two epochs; a merge is one
commit too, and the files it replaced stay for `ArchiveJob.keep_replaced_seconds`.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from tpc_broker.spark.pipelines import files_source
from tpc_broker.spark.pipelines.dated_files import LOG_COLUMNS, is_local
from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.pipelines.file_list import STAGING, FileList, Listing
from tpc_broker.spark.pipelines.folder import Folder
from tpc_broker.spark.pipelines.leftovers import only_what_is_listed
from tpc_broker.spark.pipelines.merging import merge_groups
from tpc_broker.spark.pipelines.origins import TOPIC_IDS
from tpc_broker.spark.pipelines.progress import OnProgress, Progress, follow, patiently, unwatched
from tpc_broker.spark.pipelines.topics import Broker, broker_at
from tpc_broker.spark.ranges import Places, from_json

ROWS_PER_EPOCH: Final = 8_000_000
"""An epoch costs about half a second beside its rows; a crash repeats one at most."""
TARGET_BYTES: Final = 128 * 1000 * 1000
KEEP_REPLACED_SECONDS: Final = 600.0
TRIGGER: Final = "10 seconds"

COLUMNS: Final = (
    "topic AS _topic",
    "partition AS _partition",
    "offset AS _offset",
    "timestamp AS _ts",
    "key AS _key",
    "value",
    "CAST(timestamp AS DATE) AS date",
)
STAGED: Final = "epoch"
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.maxConcurrentOutputFileWriters": "8",  # so many dates in one task's rows before Spark sorts them by date
}


@dataclass(frozen=True, slots=True)
class ArchiveJob:
    """What is archived where. ``out`` and ``checkpoint`` are places that Spark can write to.

    ``target_bytes`` is the size that files are to have, about. ``data_folder``: the broker's data, where Spark sees it;
    segments that are complete are read from there. ``through_spark``: Spark writes the files wherever the archive is.
    """

    bootstrap: str | Broker
    topics: str
    out: str
    checkpoint: str
    starting_offsets: str = "earliest"
    rows_per_epoch: int = ROWS_PER_EPOCH
    keeps_running: bool = False
    fails_on_data_loss: bool = True
    with_headers: bool = False
    target_bytes: int = TARGET_BYTES
    keep_replaced_seconds: float = KEEP_REPLACED_SECONDS
    compression: str = "snappy"
    data_folder: str = ""
    through_spark: bool = False


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """What this run did, and what the archive holds now."""

    rows_count: int
    epochs_count: int
    merges_count: int
    archive_rows_count: int
    files_count: int
    size_bytes: int


def default_checkpoint(out: str) -> str:
    """Beside the archive, under a name that readers of Parquet pass over."""
    return f"{out.rstrip('/')}/_checkpoint"


def archive(spark: Any, job: ArchiveJob, on_progress: OnProgress = unwatched) -> ArchiveResult:
    """Run until everything that is there now is archived, or for ever when the job keeps running.

    Raises what the query raises, and `PipelineError` when ``out`` cannot be used.
    """
    folder = Folder(spark, job.out)
    files = FileList(folder)
    _check_same(files.read(), Folder(spark, job.checkpoint), job)
    files.take_over(job.keep_replaced_seconds)
    through_spark = job.through_spark or not is_local(folder.url)
    writer = (EpochWriter if through_spark else ListedFilesWriter)(spark, files, job)
    query_writer = (
        patiently(lambda: (_rows if through_spark else _files)(spark, job, folder))
        .writeStream.foreachBatch(writer.write)
        .queryName(f"archive {job.topics}")
        .option("checkpointLocation", job.checkpoint)
    )
    trigger = {"processingTime": TRIGGER} if job.keeps_running else {"availableNow": True}

    def start() -> Any:
        with _settings(spark, _SETTINGS):
            return query_writer.trigger(**trigger).start()

    def watched(progress: Progress) -> None:
        writer.forget_replaced()
        on_progress(progress)

    with only_what_is_listed(files):
        said = follow(start, watched, follows=job.keeps_running, counted=writer.rows_by_epoch)
    listing = files.listing
    return ArchiveResult(
        said.rows_count, said.epochs_count, writer.merges_count, listing.rows_count, len(listing.files),
        listing.size_bytes,
    )  # fmt: skip


@contextmanager
def _settings(spark: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """For what begins in here: a streaming query keeps the settings that it finds at its start."""
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def _reader(spark: Any, source: str, job: ArchiveJob) -> Any:
    reader = (
        spark.readStream.format(source)
        .options(**broker_at(job.bootstrap).options())
        .option("subscribe", job.topics)
        .option("startingOffsets", job.starting_offsets)
        .option("maxOffsetsPerTrigger", job.rows_per_epoch)
        .option("failOnDataLoss", str(job.fails_on_data_loss).lower())
        .option("isolation.level", "read_committed")
        .option("columns", ",".join((*LOG_COLUMNS, *(["headers"] if job.with_headers else []))))
    )
    return reader.option("path", job.data_folder) if job.data_folder else reader


def _rows(spark: Any, job: ArchiveJob, _folder: Folder) -> Any:
    """The topic's rows."""
    return _reader(spark, "tpc", job).load().selectExpr(*COLUMNS, *(["headers"] if job.with_headers else []))


def _files(spark: Any, job: ArchiveJob, folder: Folder) -> Any:
    """The files that tasks have written the topic's rows to."""
    spark.dataSource.register(files_source.FilesDataSource)
    reader = _reader(spark, "tpc_files", job).option(files_source.FOLDER, f"{folder.url}/{STAGING}/{STAGED}")
    own = {files_source.COMPRESSION: job.compression, files_source.TARGET_BYTES: job.target_bytes}
    return reader.options(**own).load()


def query_id(checkpoint: Folder) -> str | None:
    """The streaming query that the checkpoint belongs to, if it is one."""
    if not checkpoint.exists("metadata"):
        return None
    return str(json.loads(checkpoint.read_text("metadata"))["id"])


def epoch_places(checkpoint: Folder, epoch: int) -> Places:
    """Where the streaming query's only source is at the end of an epoch."""
    return from_json(json.loads(checkpoint.read_text(f"offsets/{epoch}").splitlines()[-1]))


def _check_same(listing: Listing, checkpoint: Folder, job: ArchiveJob) -> None:
    """`PipelineError` when going on would store records twice, or other columns."""
    if not listing.files:
        return
    if query_id(checkpoint) not in listing.epochs:
        raise PipelineError(
            f"{job.out} was filled with another checkpoint than {job.checkpoint}, so what is in it would be archived "
            "again; give that checkpoint, or another folder"
        )
    if listing.state.get("headers", False) != job.with_headers:
        raise PipelineError(f"{job.out} was begun {'without' if job.with_headers else 'with'} headers; go on like that")


class EpochWriter:
    """What Spark calls for each epoch, on the driver. The frame has the rows."""

    def __init__(self, spark: Any, files: FileList, job: ArchiveJob) -> None:
        self._spark = spark
        self._files = files
        self._job = job
        self._query_id: str | None = None
        self._lock = threading.Lock()
        self.merges_count = 0
        self.rows_by_epoch: dict[int, int] = {}
        """Rows of the epochs that this job has added."""

    def write(self, frame: Any, epoch: int) -> None:
        """All rows of the epoch, unless they are in the archive already; then merges, if any are due."""
        with self._lock:
            self._write(frame, epoch)

    def forget_replaced(self) -> None:
        """What was replaced long enough ago goes, also when no epoch comes; one that is under way does it itself."""
        if self._lock.acquire(blocking=False):
            try:
                self._files.forget_replaced(self._job.keep_replaced_seconds)
            finally:
                self._lock.release()

    def _write(self, frame: Any, epoch: int) -> None:
        query, listing = self._query(), self._files.listing
        if epoch > listing.epochs.get(query, -1):
            staged = self._files.stage(STAGED)
            counts = self._write_epoch(frame, self._files.folder.inside(staged))
            added = self._files.move_in(staged, counts=counts)
            if added:
                state = {"headers": self._job.with_headers, TOPIC_IDS: self._topic_ids(epoch)}
                epochs = {**listing.epochs, query: epoch}
                self._files.commit(replace(listing, files=(*listing.files, *added), epochs=epochs, state=state))
                self.rows_by_epoch[epoch] = sum(file.rows_count for file in added)
        self._merge()
        self._files.forget_replaced(self._job.keep_replaced_seconds)

    def _topic_ids(self, epoch: int) -> dict[str, list[str]]:
        """Those of the archive and of the epoch, which Spark's checkpoint has beside the offsets. More than one of a
        topic, where it was deleted and created again.
        """
        ids = {topic: list(found) for topic, found in self._files.listing.state.get(TOPIC_IDS, {}).items()}
        for topic, topic_id in epoch_places(Folder(self._spark, self._job.checkpoint), epoch).ids.items():
            if topic_id not in ids.setdefault(topic, []):
                ids[topic].append(topic_id)
        return ids

    def _query(self) -> str:
        if self._query_id is None:
            self._query_id = query_id(Folder(self._spark, self._job.checkpoint))
        assert self._query_id is not None, self._job.checkpoint
        return self._query_id

    def _merge(self) -> None:
        while groups := merge_groups(self._files.listing.files, self._job.target_bytes):
            staged = self._files.stage("merge")
            self._write_merged([file.name for file in groups[0]], self._files.folder.inside(staged))
            merged = self._files.move_in(staged, groups[0][0].folder)
            before, after = (sum(file.rows_count for file in files) for files in (groups[0], merged))
            assert before == after, (before, after, groups[0])
            self._files.replace(groups[0], merged)
            self.merges_count += 1

    def _write_epoch(self, frame: Any, place: str) -> Mapping[str, int] | None:
        """The epoch's rows as Parquet in folders by date, no file much larger than the target.

        Names and rows of the files that are meant; None: all that are there.
        """
        writer, listing = frame.write.option("compression", self._job.compression), self._files.listing
        if listing.size_bytes:
            rows_max = max(1, self._job.target_bytes * listing.rows_count // listing.size_bytes)
            writer = writer.option("maxRecordsPerFile", rows_max)
        writer.partitionBy("date").parquet(place)
        return None

    def _write_merged(self, names: list[str], place: str) -> None:
        """The rows of these files as one, in the order of their offsets."""
        rows = self._spark.read.parquet(*(self._files.folder.inside(name) for name in names)).coalesce(1)
        ordered = rows.sortWithinPartitions("_topic", "_partition", "_offset")
        ordered.write.option("compression", self._job.compression).parquet(place)


class ListedFilesWriter(EpochWriter):
    """The frame has the files' names (`files_source`); to collect them is to let the tasks write the files."""

    def _write_epoch(self, frame: Any, place: str) -> Mapping[str, int] | None:
        del place  # the tasks know it
        return {row.name: row.rows for row in frame.collect()}
