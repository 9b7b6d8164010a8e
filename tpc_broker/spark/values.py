"""What record values mean: raw bytes, JSON, Avro or Protobuf of a given schema, column by column.

A decoder turns a column of bytes into a column of Spark's type for the values, row for row: what is null stays null,
what is malformed becomes null and is named. `ValueFormat` is what a read's options say about values; it is plain, can
be pickled to tasks, and makes the decoder there.

Where the schema comes from is a `SchemaSource`. So far it is given with the read (`GivenSchema`); a registry, which
finds it by the id in front of each value, is another one.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, _parse_datatype_json_string

from tpc_broker.spark.ddl import check_ddl_fields, check_ddl_type


class Malformed(NamedTuple):
    """One value that its schema does not fit; ``row`` counts from 0 in the column."""

    row: int
    reason: str


class Decoded(NamedTuple):
    """``column`` is as long as the values; rows are null where the value was null or ``malformed`` (rising rows)."""

    column: Any
    malformed: list[Malformed]


class Decoder(Protocol):
    """Values of one format and schema."""

    def decode(self, values: Any) -> Decoded:
        """Decode an Arrow array of ``binary``; never raises for what a value holds."""


class SchemaSource(Protocol):
    """Where the schema comes from that values were written with."""

    def resolve(self, schema_id: int | None) -> str | bytes:
        """The schema's text (Avro) or descriptor set (Protobuf). None: that of values which name none.

        `LookupError` when there is none.
        """


@dataclass(frozen=True, slots=True)
class GivenSchema:
    """One schema for all values."""

    schema: str | bytes

    def resolve(self, schema_id: int | None) -> str | bytes:
        if schema_id is not None:
            raise LookupError(f"there is no registry to find the schema {schema_id} in")
        return self.schema


class FormatName(StrEnum):
    RAW = "raw"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """``source`` is for Avro and Protobuf, ``json_type`` (DDL or Spark's JSON for a type) for JSON.

    ``message_name`` is the full name of Protobuf's message.
    """

    name: FormatName = FormatName.RAW
    source: SchemaSource | None = None
    message_name: str = ""
    json_type: str = ""

    def sql_type(self) -> str:
        """The column's type as DDL, as far as the options tell. `ValueError`: the schema cannot be used."""
        if self.name == FormatName.RAW:
            return "binary"
        if self.name == FormatName.JSON:
            return self._json_sql_type()
        return sql_text(self._own_type())

    def _json_sql_type(self) -> str:
        """Spark parses DDL itself: of a table's columns `struct<…>` can be made, a type is left as it is."""
        text = self.json_type.strip()
        is_type = text.lower().startswith(("struct<", "array<", "map<"))
        try:
            if text.startswith("{"):
                return sql_text(_parse_datatype_json_string(text))
            (check_ddl_type if is_type else check_ddl_fields)(text)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"valueSchema {text!r}: {error}") from None
        return text if is_type else f"struct<{text}>"

    def _own_type(self) -> DataType:
        """The type that an Avro or Protobuf schema means."""
        assert self.source is not None, self
        if self.name == FormatName.AVRO:
            from tpc_broker.spark.value_avro import AvroSchema  # noqa: PLC0415 - the library is optional

            return AvroSchema(_text(self.source.resolve(None))).spark_type
        from tpc_broker.spark.value_protobuf import MessageSchema  # noqa: PLC0415 - likewise

        return MessageSchema(_bytes(self.source.resolve(None)), self.message_name).spark_type

    def decoder(self, arrow_type: Any) -> Decoder:
        """A decoder whose columns have exactly this type."""
        if self.name == FormatName.JSON:
            from tpc_broker.spark.value_json import JsonDecoder  # noqa: PLC0415 - only what is read with is imported

            return JsonDecoder(arrow_type)
        assert self.source is not None, self
        if self.name == FormatName.AVRO:
            from tpc_broker.spark.value_avro import AvroDecoder, AvroSchema  # noqa: PLC0415 - likewise

            return AvroDecoder(AvroSchema(_text(self.source.resolve(None))), arrow_type)
        from tpc_broker.spark.value_protobuf import MessageSchema, ProtobufDecoder  # noqa: PLC0415 - likewise

        return ProtobufDecoder(MessageSchema(_bytes(self.source.resolve(None)), self.message_name), arrow_type)


def check_type(own: Any, wanted: Any, name: str = "value") -> None:
    """`ValueError` when values of the Arrow type ``own`` cannot be cast to ``wanted``; ``name`` is the column's."""
    if pa.types.is_struct(own) and pa.types.is_struct(wanted):
        known = {field.name: field.type for field in own}
        for field in wanted:
            if field.name not in known:
                raise ValueError(f"{name} has no field {field.name}; its schema has {', '.join(known)}")
            check_type(known[field.name], field.type, f"{name}.{field.name}")
    elif pa.types.is_list(own) and pa.types.is_list(wanted):
        check_type(own.value_type, wanted.value_type, f"{name}[]")
    elif pa.types.is_map(own) and pa.types.is_map(wanted):
        check_type(own.item_type, wanted.item_type, f"{name}[]")
    else:
        try:
            pa.nulls(1, own).cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise ValueError(f"{name} is {own} by its schema and cannot be {wanted}") from None


def sql_text(kind: DataType) -> str:
    """A type as DDL in which any field name may stand."""
    if isinstance(kind, StructType):
        fields = (f"`{field.name.replace('`', '``')}`: {sql_text(field.dataType)}" for field in kind.fields)
        return f"struct<{', '.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{sql_text(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{sql_text(kind.keyType)}, {sql_text(kind.valueType)}>"
    return str(kind.simpleString())


def _text(schema: str | bytes) -> str:
    return schema if isinstance(schema, str) else schema.decode()


def _bytes(schema: str | bytes) -> bytes:
    return schema if isinstance(schema, bytes) else schema.encode()
