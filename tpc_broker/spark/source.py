"""The data source ``tpc``: what Spark calls first.

Spark asks for the data source's name, for its columns, and for a read's plan, in a Python process of its own each time,
and waits ten seconds at most for one to start. So each imports what it needs when it is asked, and this module next to
nothing (`tests/spark/test_surroundings.py` has which).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

import tpc_broker._bytes  # noqa: F401 - where it does not work nothing does, and whoever asks first is told
from tpc_broker.spark.shipping import ShippedType

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

    from tpc_broker.spark.rows import RowPlan

COLUMN_TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


class TpcDataSource(DataSource, metaclass=ShippedType):
    """Topics of a broker as tables; see the package for the options."""

    @classmethod
    def name(cls) -> str:
        return "tpc"

    def schema(self) -> str:
        """The table as the options describe it; ``.schema(…)`` of the user takes its place."""
        from tpc_broker.spark.options import OptionError, table_options
        from tpc_broker.spark.rows import Mode
        from tpc_broker.spark.values import FormatName

        table = table_options(self.options)
        values, mode = table.shape.values, table.shape.mode
        if values.name == FormatName.JSON and not values.json_type and "value" in table.columns:
            raise OptionError("valueFormat=json needs the option valueSchema, or a column value in .schema(…)")
        try:
            types = COLUMN_TYPES | {"value": values.sql_type()}
        except (ValueError, ImportError) as error:
            raise OptionError(f"valueFormat={values.name}: {error}") from None
        columns = [f"`{name}` {types[name]}" for name in table.columns]
        if mode == Mode.PERMISSIVE:
            columns.append(f"`{table.shape.corrupt_column}` binary")
        return ", ".join(columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        from tpc_broker.spark.options import read_options
        from tpc_broker.spark.readers import TpcReader

        return TpcReader(read_options(self.options, streaming=False), self._row_plan(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from tpc_broker.spark.options import read_options
        from tpc_broker.spark.readers import TpcStreamReader

        return TpcStreamReader(read_options(self.options, streaming=True), self._row_plan(schema))

    def _row_plan(self, schema: StructType) -> RowPlan:
        from tpc_broker.spark.options import OptionError, table_options
        from tpc_broker.spark.rows import RowPlan, RowsError

        table = table_options(self.options)
        named = [name for name in schema.fieldNames() if name != table.shape.corrupt_column]
        if table.names_columns and tuple(named) != table.columns:
            raise OptionError(
                f"the option columns says {', '.join(table.columns)}, the schema {', '.join(named)}; give one of them"
            )
        try:
            return RowPlan.of(schema, table.shape.values, table.shape.mode, table.shape.corrupt_column)
        except RowsError as error:
            raise OptionError(str(error)) from None

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's signature
        from tpc_broker.spark.options import write_options
        from tpc_broker.spark.sink import TpcWriter

        return TpcWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802, FBT001
        from tpc_broker.spark.options import write_options
        from tpc_broker.spark.sink import TpcStreamWriter

        del overwrite  # what a stream appends is never taken back
        return TpcStreamWriter(write_options(self.options), schema)
