"""Avro values as columns, with fastavro.

Values are single datums in Avro's binary encoding, as Spark's ``from_avro`` takes them. Types become Spark's as there:
records are structs, enums strings, ``fixed`` binary, a union with null a type that may be null; dates, timestamps and
decimals are what they say, other logical types are left as what they are stored in (``uuid`` a string, ``time-millis``
an int). Unions of several types that are not null become the wider number where they are numbers, and are refused
otherwise.
"""

import io
import json
import struct
from decimal import InvalidOperation
from typing import Any, Final

import fastavro
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tpc_broker.spark.values import Decoded, Malformed, check_type

_PLAIN: Final[dict[str, DataType]] = {
    "null": NullType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}
_TIMES: Final[dict[str, tuple[DataType, str]]] = {
    "timestamp-millis": (TimestampType(), "ms"),
    "timestamp-micros": (TimestampType(), "us"),
    "local-timestamp-millis": (TimestampNTZType(), "ms"),
    "local-timestamp-micros": (TimestampNTZType(), "us"),
    "date": (DateType(), ""),
}
_NUMBERS: Final = ("int", "long", "float", "double")
_REFUSALS: Final = (
    ValueError, TypeError, KeyError, IndexError, EOFError, StopIteration, OverflowError, MemoryError, RecursionError,
    struct.error, InvalidOperation,
)  # fmt: skip


class AvroSchema:
    """A schema checked and translated. `ValueError` says what is wrong with it.

    ``spark_type`` is the column's type; ``read_type`` the Arrow type whose numbers are those that Avro stores (times in
    their own units); ``stored`` the schema for fastavro, without the logical types that are Arrow's business.
    """

    def __init__(self, text: str) -> None:
        try:
            whole = fastavro.parse_schema(json.loads(text), expand=True)
            self.stored = fastavro.parse_schema(_without_logical_types(json.loads(text)))
        except (ValueError, TypeError, KeyError, fastavro.schema.SchemaParseException) as error:
            raise ValueError(f"no Avro schema: {error}") from None
        self.spark_type, self.read_type = _translated(whole)


def _without_logical_types(schema: Any) -> Any:
    """The same schema; only decimals stay what they are."""
    if isinstance(schema, list):
        return [_without_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    is_decimal = schema.get("logicalType") == "decimal"
    kept = {name: value for name, value in schema.items() if name != "logicalType" or is_decimal}
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = _without_logical_types(kept[name])
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [_without_logical_types(field) for field in kept["fields"]]
    return kept


def _translated(schema: Any) -> tuple[DataType, Any]:  # noqa: C901, PLR0911 - a table of types
    """Spark's type and the type to read with, for a schema whose names are all expanded."""
    if isinstance(schema, list):
        return _union(schema)
    if isinstance(schema, str):
        if schema not in _PLAIN:
            raise ValueError(f"no Avro schema for Spark: {schema} contains itself")
        return _plain(_PLAIN[schema])
    kind, logical = schema["type"], schema.get("logicalType")
    if kind in ("record", "error"):
        fields = [(field["name"], *_translated(field["type"])) for field in schema["fields"]]
        types = StructType([StructField(name, found) for name, found, _arrow in fields])
        return types, pa.struct([pa.field(name, arrow) for name, _found, arrow in fields])
    if kind in ("array", "map"):
        item, arrow = _translated(schema["items" if kind == "array" else "values"])
        if kind == "array":
            return ArrayType(item), pa.list_(arrow)
        return MapType(StringType(), item), pa.map_(pa.string(), arrow)
    if kind == "enum":
        return _plain(StringType())
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _plain(DecimalType(schema["precision"], schema.get("scale", 0)))
    if kind == "fixed":
        return _plain(BinaryType())
    if logical in _TIMES and kind in ("int", "long"):
        spark_type, unit = _TIMES[logical]
        arrow = to_arrow_type(spark_type, timezone="UTC")
        return spark_type, pa.timestamp(unit, tz=arrow.tz) if unit else arrow
    return _translated(kind)


def _plain(kind: DataType) -> tuple[DataType, Any]:
    return kind, to_arrow_type(kind, timezone="UTC")


def _union(branches: list[Any]) -> tuple[DataType, Any]:
    kept = [branch for branch in branches if branch != "null"]
    if len(kept) == 1:
        return _translated(kept[0])
    if kept and all(isinstance(branch, str) and branch in _NUMBERS for branch in kept):
        return _plain(DoubleType() if {"float", "double"} & set(kept) else LongType())
    raise ValueError(f"no Avro schema for Spark: a union of {json.dumps(kept)[:200]}")


class AvroDecoder:
    """Single datums, each of which has to end where its value ends."""

    def __init__(self, schema: AvroSchema, arrow_type: Any) -> None:
        """`ValueError` when values of the schema cannot become the type."""
        self._schema = schema
        self._type = arrow_type
        check_type(schema.read_type, arrow_type)

    def decode(self, values: Any) -> Decoded:
        malformed: list[Malformed] = []
        rows: list[Any] = []
        read, stored = fastavro.schemaless_reader, self._schema.stored
        for row, value in enumerate(values.to_pylist()):
            if value is None:
                rows.append(None)
                continue
            data = io.BytesIO(value)
            try:
                rows.append(read(data, stored))
                if data.tell() != len(value):
                    raise ValueError(f"{len(value) - data.tell()} bytes are left over")
            except _REFUSALS as error:
                del rows[row:]
                rows.append(None)
                malformed.append(Malformed(row, f"no Avro datum of the schema: {error or type(error).__name__}"))
        return Decoded(self._column(rows, malformed), malformed)

    def _column(self, rows: list[Any], malformed: list[Malformed]) -> Any:
        """The rows as a column; one that Arrow refuses (a time out of range) is malformed too."""
        try:
            return pa.array(rows, self._schema.read_type).cast(self._type)
        except (ValueError, TypeError, OverflowError):
            pass
        for row, value in enumerate(rows):
            try:
                pa.array([value], self._schema.read_type).cast(self._type)
            except (ValueError, TypeError, OverflowError) as error:
                rows[row] = None
                malformed.append(Malformed(row, f"no value of the schema: {error}"))
        malformed.sort()
        return pa.array(rows, self._schema.read_type).cast(self._type)
