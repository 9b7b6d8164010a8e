"""Where the records of a stepwise job come from: topics of a broker, or Parquet files.

Both give the same columns (`topic`, `partition`, `offset`, `timestamp`, `key`, `value`, `headers`) and the same idea
of a place: an offset in a partition. In Parquet that is not an archive, a file is a partition and a row's number its
offset; its own columns are there too.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import functions

from tpc_broker.client.requests import TopicPartition
from tpc_broker.spark.options import read_options
from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.pipelines.file_list import LIST_FOLDER, FileList
from tpc_broker.spark.pipelines.folder import Folder
from tpc_broker.spark.pipelines.steps import Step
from tpc_broker.spark.pipelines.topics import Broker, broker_at
from tpc_broker.spark.ranges import OffsetRange, Offsets, Places, Planner, to_json
from tpc_broker.spark.readers import settled

TOPIC_IDS: Final = "topic_ids"
"""In the list of an archive: what it knows of the ids of its topics."""
WHOLE_RANGE: Final = 2**62
_BYTES_PER_ROW_GUESS: Final = 100.0
ARCHIVE_COLUMNS: Final = {"_topic", "_partition", "_offset", "_ts", "_key", "value"}


class Origin(Protocol):
    """What a stepwise job needs of its source."""

    def bounds(self) -> tuple[Places, Places]:
        """First and end offset of every partition, as they are now."""

    def rows(self, step: Step) -> Any:
        """A DataFrame of a step's records."""


@dataclass(frozen=True, slots=True)
class Window:
    """From where to where a topic is read, as options of the data source: ``{"startingOffsets": "earliest"}``."""

    options: tuple[tuple[str, str], ...] = ()


EVERYTHING: Final = Window()


class TopicOrigin:
    """Topics, read through the broker."""

    def __init__(
        self,
        spark: Any,
        place: str | Broker,
        topics: str,
        window: Window = EVERYTHING,
        *,
        fails_on_data_loss: bool = True,
    ) -> None:
        self._spark = spark
        self._topics = topics
        self._window = dict(window.options)
        self._broker = broker_at(place)
        self._common = {
            "isolation.level": "read_committed",
            "failOnDataLoss": str(fails_on_data_loss).lower(),
            **self._broker.options(),
        }

    def bounds(self) -> tuple[Places, Places]:
        options = {**self._common, **self._window, "subscribe": self._topics}
        options |= {"maxRecordsPerPartition": str(WHOLE_RANGE), "startingOffsetsByTimestampStrategy": "latest"}
        planned = read_options(options, streaming=False)
        with self._broker.cluster() as cluster:
            pieces = settled(lambda: Planner(cluster, planned).batch())
        ids = {piece.where.topic: piece.topic_id for piece in pieces if piece.topic_id}
        start = {piece.where: piece.first_offset for piece in pieces}
        return Places(start, ids), Places({piece.where: piece.end_offset for piece in pieces}, ids)

    def rows(self, step: Step) -> Any:
        reader = self._spark.read.format("tpc").options(**self._common).option("includeHeaders", "true")
        places: dict[str, list[int]] = {}
        for piece in step.ranges:
            places.setdefault(piece.where.topic, []).append(piece.where.partition)
        reader = reader.option("assign", json.dumps(places)).option("maxRecordsPerPartition", WHOLE_RANGE)
        for option, edge in (("startingOffsets", "first_offset"), ("endingOffsets", "end_offset")):
            reader = reader.option(option, json.dumps(to_json(_edge(step.ranges, edge))))
        return reader.load()


class ParquetOrigin:
    """An archive, or other Parquet files."""

    def __init__(self, spark: Any, folder: str, topics: tuple[str, ...] = ()) -> None:
        """``topics``: of an archive, only these. `PipelineError`: there is nothing to read."""
        if not Folder(spark, folder).exists():
            raise PipelineError(f"there is no folder {folder}")
        try:
            found = spark.read.parquet(folder)
        except PySparkException as error:
            raise PipelineError(f"{folder} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
        self._listed = FileList(Folder(spark, folder)).read() if Folder(spark, folder).exists(LIST_FOLDER) else None
        self.is_archive = set(found.columns) >= ARCHIVE_COLUMNS
        self._rows = _archive_rows(found) if self.is_archive else _other_rows(found)
        if topics:
            if not self.is_archive:
                raise PipelineError(f"{folder} is no archive, so it has no topics to choose from")
            self._rows = self._rows.where(self._rows.topic.isin(*topics))

    @property
    def columns(self) -> list[str]:
        return list(self._rows.columns)

    def bytes_per_row(self) -> float:
        """About, on the disk; a guess where nobody wrote it down."""
        if self._listed is None or not self._listed.rows_count:
            return _BYTES_PER_ROW_GUESS
        return self._listed.size_bytes / self._listed.rows_count

    def everything(self) -> Any:
        return self._rows

    @property
    def topic_ids(self) -> Mapping[str, list[str]]:
        """Of an archive: each topic's ids, as far as they were written down; more than one when it was created again,
        so that its offsets are not those of one log.
        """
        return {} if self._listed is None else self._listed.state.get(TOPIC_IDS, {})

    def bounds(self) -> tuple[Places, Places]:
        """A topic's id is made of all ids that the archive has of it."""
        offset = functions.col("offset")
        spans = self._rows.groupBy("topic", "partition").agg(functions.min(offset), functions.max(offset))
        start: Offsets = {}
        end: Offsets = {}
        for topic, partition, first, last in spans.collect():
            start[TopicPartition(topic, partition)] = first
            end[TopicPartition(topic, partition)] = last + 1
        ids = {topic: "+".join(found) for topic, found in self.topic_ids.items()}
        return Places(start, ids), Places(end, ids)

    def rows(self, step: Step) -> Any:
        return self._rows.where(" OR ".join(_condition(piece) for piece in step.ranges))


def _archive_rows(frame: Any) -> Any:
    headers = ["headers"] if "headers" in frame.columns else []
    return frame.selectExpr(
        "_topic AS topic", "_partition AS partition", "_offset AS offset", "_ts AS timestamp", "_key AS key", "value",
        *headers,
    )  # fmt: skip


def _other_rows(frame: Any) -> Any:
    own = [f"`{name}`" for name in frame.columns if name not in ("topic", "partition", "offset")]
    return frame.selectExpr(
        *own, "_metadata.file_path AS topic", "0 AS partition", "_metadata.row_index AS offset"
    )


def _condition(piece: OffsetRange) -> str:
    topic = piece.where.topic.replace("\\", "\\\\").replace("'", "\\'")
    return (
        f"(topic = '{topic}' AND partition = {piece.where.partition} "
        f"AND offset >= {piece.first_offset} AND offset < {piece.end_offset})"
    )


def _edge(ranges: tuple[OffsetRange, ...], edge: str) -> Places:
    ids = {piece.where.topic: piece.topic_id for piece in ranges if piece.topic_id}
    return Places({piece.where: getattr(piece, edge) for piece in ranges}, ids)
