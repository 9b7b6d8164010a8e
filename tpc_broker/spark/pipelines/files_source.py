"""A data source of this package's own: each task writes its range of a topic to Parquet and gives its files as rows.

For `archive`, where the archive is a folder that tasks reach by themselves. What goes through Spark is one row for each
file, not the records. The options are those of ``tpc`` for reading, and `FOLDER`, `COMPRESSION` and `TARGET_BYTES`.

Spark counts the result of exactly one attempt of each task, so the files that its rows name hold every record of an
epoch once; files of other attempts are named by nobody.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tpc_broker.native_columns import COLUMN_TYPES
from tpc_broker.spark.options import ReadOptions, read_options, table_options
from tpc_broker.spark.pipelines.dated_files import DatedFiles, WrittenFile, archive_schema
from tpc_broker.spark.readers import TpcStreamReader
from tpc_broker.spark.rows import RowPlan
from tpc_broker.spark.source import TpcDataSource

FOLDER: Final = "files.folder"
COMPRESSION: Final = "files.compression"
TARGET_BYTES: Final = "files.bytes"
_OWN: Final = (FOLDER, COMPRESSION, TARGET_BYTES)


class FilesDataSource(TpcDataSource):
    """``format("tpc_files")``, streaming reads only."""

    @classmethod
    def name(cls) -> str:
        return "tpc_files"

    def schema(self) -> str:
        return "name string, rows bigint"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        del schema
        own = {name: value for name, value in self.options.items() if name in _OWN}
        topic = {name: value for name, value in self.options.items() if name not in _OWN}
        table = table_options(topic)
        columns = pa.schema([pa.field(name, COLUMN_TYPES[name]) for name in table.columns])
        plan = RowPlan(columns, table.shape.values, table.shape.mode, table.shape.corrupt_column)
        return FilesStreamReader(read_options(topic, streaming=True), plan, own)


class FilesStreamReader(TpcStreamReader):
    """Offsets and ranges as ``tpc`` has them; what a task reads, it writes."""

    def __init__(self, options: ReadOptions, plan: RowPlan, own: Mapping[str, str]) -> None:
        super().__init__(options, plan)
        self._folder = own[FOLDER]
        self._schema = archive_schema(with_headers="headers" in plan.columns)
        self._compression = own[COMPRESSION]
        self._target_bytes = int(own[TARGET_BYTES])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        written = self._write(super().read(partition))
        if written:
            names, rows = [file.name for file in written], [file.rows_count for file in written]
            yield pa.RecordBatch.from_arrays([pa.array(names), pa.array(rows, pa.int64())], names=["name", "rows"])

    def _write(self, batches: Iterator[Any]) -> list[WrittenFile]:
        files = DatedFiles(self._folder, self._schema, self._compression, self._target_bytes)
        try:
            for batch in batches:
                files.add(batch)
            return files.finish()
        except BaseException:
            files.abandon()
            raise
