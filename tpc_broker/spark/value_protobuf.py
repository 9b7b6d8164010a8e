"""Protobuf values as columns, with the protobuf runtime and a descriptor set (``protoc --descriptor_set_out``).

Messages are parsed one by one, in C, and turned into columns field by field. Types become Spark's as those of its
``from_protobuf``: messages are structs, enums their names (a number without name is that number), ``uint32`` a bigint,
``uint64`` a decimal(20,0), `google.protobuf.Timestamp` a timestamp, maps maps. A field that knows whether it is set
(``optional``, messages, ``oneof``) is null when it is not; other fields have their default then, as proto3 cannot tell.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from google.protobuf.descriptor import FieldDescriptor
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tpc_broker.spark.values import Decoded, Malformed, check_type

TIMESTAMP: Final = "google.protobuf.Timestamp"
_TYPES: Final[dict[int, DataType]] = {
    FieldDescriptor.CPPTYPE_INT32: IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: LongType(),
    FieldDescriptor.CPPTYPE_UINT32: LongType(),
    FieldDescriptor.CPPTYPE_UINT64: DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: DoubleType(),
    FieldDescriptor.CPPTYPE_FLOAT: FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: StringType(),
}
_MICROSECONDS_MAX: Final = 2**63 - 1


class MessageSchema:
    """A message of a descriptor set. `ValueError` says what is wrong with it."""

    def __init__(self, descriptor_set: bytes, name: str) -> None:
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file:
                pool.Add(file)
        except (message.DecodeError, TypeError, ValueError) as error:
            raise ValueError(f"no descriptor set of Protobuf: {error}") from None
        try:
            self.descriptor = pool.FindMessageTypeByName(name)
        except KeyError:
            raise ValueError(f"the descriptor set has no message {name!r}") from None
        self.parse: Callable[[bytes], Any] = message_factory.GetMessageClass(self.descriptor).FromString
        self.spark_type = _struct_type(self.descriptor, ())


def _struct_type(descriptor: Any, outer: tuple[str, ...]) -> DataType:
    if descriptor.full_name in outer:
        raise ValueError(f"no Protobuf schema for Spark: {descriptor.full_name} contains itself")
    inside = (*outer, descriptor.full_name)
    return StructType([StructField(field.name, _field_type(field, inside)) for field in descriptor.fields])


def _field_type(field: Any, outer: tuple[str, ...]) -> DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return MapType(_item_type(key, outer), _item_type(value, outer))
    return ArrayType(_item_type(field, outer)) if field.is_repeated else _item_type(field, outer)


def _item_type(field: Any, outer: tuple[str, ...]) -> DataType:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if field.message_type.full_name == TIMESTAMP:
            return TimestampType()
        return _struct_type(field.message_type, outer)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else StringType()
    return _TYPES[field.cpp_type]


def _is_map(field: Any) -> bool:
    kind = field.message_type
    return field.is_repeated and kind is not None and kind.GetOptions().map_entry


class ProtobufDecoder:
    """Messages of one type."""

    def __init__(self, schema: MessageSchema, arrow_type: Any) -> None:
        """`ValueError` when messages cannot become the type."""
        self._schema = schema
        self._type = arrow_type
        check_type(to_arrow_type(schema.spark_type, timezone="UTC"), arrow_type)

    def decode(self, values: Any) -> Decoded:
        malformed: list[Malformed] = []
        messages: list[Any] = []
        parse = self._schema.parse
        for row, value in enumerate(values.to_pylist()):
            try:
                messages.append(None if value is None else parse(value))
            except (message.DecodeError, ValueError) as error:
                messages.append(None)
                malformed.append(Malformed(row, f"no message {self._schema.descriptor.full_name}: {error}"))
        return Decoded(_struct_column(messages, self._schema.descriptor).cast(self._type), malformed)


def _struct_column(messages: Sequence[Any], descriptor: Any) -> Any:
    """Messages (None: null) as a struct column."""
    children = [_field_column(messages, field) for field in descriptor.fields]
    fields = [pa.field(field.name, child.type) for field, child in zip(descriptor.fields, children, strict=True)]
    mask = pa.array([one is None for one in messages], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _field_column(messages: Sequence[Any], field: Any) -> Any:
    name = field.name
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
        found = [None if one is None else getattr(one, name) for one in messages]
        keys = _item_column([item for one in found if one for item in one], key)
        items = _item_column([one[item] for one in found if one for item in one], value)
        return pa.MapArray.from_arrays(_offsets(found), keys, items)
    if field.is_repeated:
        found = [None if one is None else getattr(one, name) for one in messages]
        items = _item_column([item for one in found if one for item in one], field)
        return pa.ListArray.from_arrays(_offsets(found), items)
    if field.has_presence:
        is_set = (one is not None and one.HasField(name) for one in messages)
        found = [getattr(one, name) if there else None for one, there in zip(messages, is_set, strict=True)]
        return _item_column(found, field)
    return _item_column([None if one is None else getattr(one, name) for one in messages], field)


def _offsets(found: Sequence[Any]) -> Any:
    """Where each list begins; what lies in null messages is an empty list."""
    bounds = [0]
    for one in found:
        bounds.append(bounds[-1] + (len(one) if one else 0))
    return pa.array(bounds, pa.int32())


def _item_column(items: list[Any], field: Any) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if field.message_type.full_name == TIMESTAMP:
            times = [None if one is None else _microseconds(one) for one in items]
            return pa.array(times, pa.timestamp("us", tz="UTC"))
        return _struct_column(items, field.message_type)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return pa.array([None if one is None else names.get(one, str(one)) for one in items], pa.string())
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return pa.array([None if one is None else Decimal(one) for one in items], pa.decimal128(20, 0))
    return pa.array(items, to_arrow_type(_item_type(field, ()), timezone="UTC"))


def _microseconds(time: Any) -> int | None:
    """Null beyond what 64 bits hold."""
    found = int(time.seconds) * 1_000_000 + int(time.nanos) // 1000
    return found if -_MICROSECONDS_MAX <= found <= _MICROSECONDS_MAX else None
