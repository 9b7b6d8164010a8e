"""The data source ``tpc``: what Spark calls, in the order in which it calls it.

Batch: `TpcDataSource.reader`, `partitions` on the driver, then `read` in each task. Streaming: `streamReader`,
`initialOffset` for a query without checkpoint, then for each micro-batch `latestOffset` (bounded by the read limit),
`partitions` and `read`. Facts about Spark 4.2 that shape this: a reader must not define `pushFilters`; an empty list of
partitions gives one task with `InputPartition(None)`, which must read nothing; the first Arrow batch must have Spark's
schema exactly; offsets are compared as JSON text.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tpc_broker.client.columns import ColumnReader
from tpc_broker.client.reading import RangeReader, ReadSettings
from tpc_broker.spark.options import OptionError, ReadOptions, chosen_columns, read_options, write_options
from tpc_broker.spark.ranges import OffsetRange, Offsets, OffsetsJson, Planner, from_json, limit_offsets, to_json
from tpc_broker.spark.segments import SegmentReader
from tpc_broker.spark.tasks import cluster_of

COLUMN_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


class TpcDataSource(DataSource):
    """Topics of a broker as tables; see the package for the options."""

    @classmethod
    def name(cls) -> str:
        return "tpc"

    def schema(self) -> str:
        return ", ".join(f"`{name}` {COLUMN_TYPES[name]}" for name in chosen_columns(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = _checked(read_options(self.options, streaming=False), schema)
        return SegmentReader(options) if options.path else TpcReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return TpcStreamReader(_checked(read_options(self.options, streaming=True), schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's signature
        from tpc_broker.spark.sink import TpcWriter  # noqa: PLC0415 - a read does not need it

        return TpcWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802, FBT001
        from tpc_broker.spark.sink import TpcStreamWriter  # noqa: PLC0415 - a read does not need it

        del overwrite  # what a stream appends is never taken back
        return TpcStreamWriter(write_options(self.options), schema)


def _checked(options: ReadOptions, schema: StructType) -> ReadOptions:
    if tuple(schema.fieldNames()) != options.columns:
        raise OptionError(
            f"the schema's columns are {', '.join(schema.fieldNames())}, the read's are {', '.join(options.columns)}; "
            "use the option columns to choose"
        )
    return options


class RangePartition(InputPartition):
    """One task's range."""

    def __init__(self, piece: OffsetRange) -> None:
        super().__init__(piece)


def _read_range(options: ReadOptions, partition: InputPartition) -> Iterator[Any]:
    """A task: Arrow batches of its range."""
    if partition.value is None:
        return
    assert options.cluster is not None, options
    piece: OffsetRange = partition.value
    settings = ReadSettings(isolation=options.isolation, skips_missing=not options.fails_on_data_loss)
    reader = RangeReader(cluster_of(options.cluster), piece.where, piece.first_offset, piece.end_offset, settings)
    columns = ColumnReader(piece.where, options.columns, piece.first_offset, piece.end_offset)
    yield from columns.read(reader.chunks())


class TpcReader(DataSourceReader):
    """A batch read."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        assert self._options.cluster is not None, self._options
        return [RangePartition(piece) for piece in Planner(cluster_of(self._options.cluster), self._options).batch()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read_range(self._options, partition)


class TpcStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Its state is in Spark's checkpoint, save the target of a run with `Trigger.AvailableNow`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: Offsets | None = None

    def initialOffset(self) -> OffsetsJson:  # noqa: N802 - Spark's name
        return to_json(self._planner().start())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        rows_max = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:  # noqa: N802 - Spark's name
        begin, planner = from_json(start), self._planner()
        latest = planner.latest() if self._target is None else self._target
        latest = planner.not_before(begin, latest)
        if isinstance(limit, ReadMaxRows):
            new = [where for where in latest if where not in begin]
            first, _end = planner.bounds(new) if new else ({}, {})
            latest = limit_offsets({**first, **begin}, latest, limit.max_rows)
        return to_json(latest)

    def reportLatestOffset(self) -> OffsetsJson:  # noqa: N802 - Spark's name
        return to_json(self._planner().latest())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._planner().latest()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        pieces = self._planner().stream(from_json(dict(start)), from_json(dict(end)))
        return [RangePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read_range(self._options, partition)

    def _planner(self) -> Planner:
        assert self._options.cluster is not None, self._options
        return Planner(cluster_of(self._options.cluster), self._options)
