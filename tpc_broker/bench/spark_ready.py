"""A Spark data source that does nothing: it yields Arrow batches that are ready, and throws away what it is to write.

What it gives is the ceiling of every Python data source on a machine: the road between the Python worker and the JVM.
The columns are those of a Kafka topic. Options for reading: `rows`, `partitions`, `valueBytes`.
"""

from __future__ import annotations

import random
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from tpc_broker.native_columns import COLUMN_TYPES, ROWS_PER_BATCH
from tpc_broker.spark.source import COLUMN_TYPES as SPARK_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

NAMES: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
SCHEMA: Final = pa.schema([pa.field(name, COLUMN_TYPES[name]) for name in NAMES])


@lru_cache(maxsize=8)
def ready_batch(rows_count: int, value_bytes: int, partition: int = 0) -> Any:
    """One Arrow record batch of a topic's rows; every value is different and hardly compresses."""
    now_us = int(time.time() * 1e6)
    letters = random.Random(partition).randbytes(rows_count * value_bytes // 2).hex().encode()
    columns = {
        "key": pa.nulls(rows_count, pa.binary()),
        "value": pa.array([letters[at : at + value_bytes] for at in range(0, len(letters), value_bytes)], pa.binary()),
        "topic": pa.repeat("ready", rows_count),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), rows_count),
        "offset": pa.array(range(rows_count), pa.int64()),
        "timestamp": pa.array(range(now_us, now_us + rows_count), pa.int64()).cast(COLUMN_TYPES["timestamp"]),
        "timestampType": pa.repeat(pa.scalar(0, pa.int32()), rows_count),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in NAMES], schema=SCHEMA)


class ReadySource(DataSource):
    """``format("tpc_ready")``"""

    @classmethod
    def name(cls) -> str:
        return "tpc_ready"

    def schema(self) -> str:
        return ", ".join(f"`{name}` {SPARK_TYPES[name]}" for name in NAMES)

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return ReadyReader(*(int(self.options[name]) for name in ("rows", "partitions", "valueBytes")))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's signature
        del schema, overwrite
        return DiscardingWriter()


class ReadyReader(DataSourceReader):
    def __init__(self, rows: int, partitions: int, value_bytes: int) -> None:
        self._rows = rows
        self._partitions = partitions
        self._value_bytes = value_bytes

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        left = self._rows // self._partitions
        batch = ready_batch(ROWS_PER_BATCH, self._value_bytes, partition.value)
        while left:
            count = min(left, ROWS_PER_BATCH)
            yield batch.slice(0, count)
            left -= count


class DiscardingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _batch in iterator:
            pass
        return WriterCommitMessage()
