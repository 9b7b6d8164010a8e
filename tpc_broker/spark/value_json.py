"""JSON values as columns, with Arrow's JSON reader.

Arrow parses lines, so the values are joined by newlines and parsed at once; newlines inside values that were printed
over several lines become tabs before, which JSON allows and forbids in the same places. That keeps rows apart: a value
that begins with ``{``, ends with ``}`` and holds no newline gives at least one object, and none that spans two lines,
as ``}``, newline, ``{`` stands nowhere inside an object. So when there are as many objects as values, each is one
value's. (It also keeps the process alive: Arrow 26 crashes when the first thing it reads is a bare ``null``.) Where
that does not hold, or Arrow refuses something, the column is halved until the values in question are few, and those are
parsed one by one by the standard library.

One value at a time more is understood, as Spark's own JSON source does: numbers and objects for strings, numbers
(seconds) for timestamps, base64 for binary, objects for maps, decimals. Times without a zone are UTC. A value is either
whole or malformed: no half rows.
"""

import base64
import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from tpc_broker.spark.values import Decoded, Malformed

ONE_BY_ONE_ROWS: Final = 8
_UTC: Final = dt.UTC
_REFUSALS: Final = (ValueError, TypeError, KeyError, OverflowError, InvalidOperation, RecursionError)


# Rule: A malformed value shifts no other row. See also tpc_broker/spark/rows.py. Held by tests/spark/test_values.py.
class JsonDecoder:
    """Values of any Arrow type; the fast way is for structs of plain types."""

    def __init__(self, arrow_type: Any) -> None:
        self._type = arrow_type
        self._parsed_type = _parsed_type(arrow_type) if pa.types.is_struct(arrow_type) else None
        if self._parsed_type is not None and self._parsed_type.num_fields:
            self._options = pa.json.ParseOptions(
                explicit_schema=pa.schema(list(self._parsed_type)), unexpected_field_behavior="ignore"
            )
        else:
            self._parsed_type = None

    def decode(self, values: Any) -> Decoded:
        malformed: list[Malformed] = []
        pieces = list(self._pieces(values, 0, malformed))
        column = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces) if pieces else pa.array([], self._type)
        return Decoded(column, malformed)

    def _pieces(self, values: Any, first_row: int, malformed: list[Malformed]) -> list[Any]:
        if self._parsed_type is None or len(values) <= ONE_BY_ONE_ROWS:
            return [self._one_by_one(values, first_row, malformed)] if len(values) else []
        try:
            return [self._at_once(values)]
        except (ValueError, NotImplementedError):  # pa.ArrowInvalid is a ValueError
            half = len(values) // 2
            left = self._pieces(values[:half], first_row, malformed)
            return left + self._pieces(values[half:], first_row + half, malformed)

    def _at_once(self, values: Any) -> Any:
        """All values in one parse; ``ValueError`` when they do not all fit."""
        assert self._parsed_type is not None
        lines = pc.fill_null(values, b"{}").cast(pa.string())
        if not _are_objects(lines):
            lines = pc.replace_substring(pc.ascii_trim_whitespace(lines), "\n", "\t")
            if not _are_objects(lines):
                raise ValueError("not all are objects")
        bounds = pa.array([0, len(lines)], pa.int32())
        text = pc.binary_join(pa.ListArray.from_arrays(bounds, lines), "\n")[0].as_buffer()
        table = pa.json.read_json(
            pa.BufferReader(text),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=self._options,
        )
        if table.num_rows != len(values):
            raise ValueError("a value holds more than one object")
        children = [table.column(field.name).combine_chunks() for field in self._parsed_type]
        fields = list(self._type)
        converted = [_converted(child, field.type) for child, field in zip(children, fields, strict=True)]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(converted, fields=fields, mask=mask)

    def _one_by_one(self, values: Any, first_row: int, malformed: list[Malformed]) -> Any:
        convert = _converter(self._type)
        rows: list[Any] = []
        for row, value in enumerate(values.to_pylist(), start=first_row):
            try:
                rows.append(None if value is None else convert(_loads(value)))
            except _REFUSALS as error:
                rows.append(None)
                malformed.append(Malformed(row, f"no JSON of the schema: {error}"))
        return pa.array(rows, self._type)


def _are_objects(lines: Any) -> bool:
    shaped = pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))
    return bool(pc.all(shaped).as_py()) and not pc.any(pc.match_substring(lines, "\n")).as_py()


def _parsed_type(kind: Any) -> Any | None:
    """The type that Arrow's reader is asked for, from which `_converted` makes the wanted one; None: it cannot."""
    if pa.types.is_struct(kind):
        fields = [pa.field(field.name, _parsed_type(field.type)) for field in kind if _parsed_type(field.type)]
        names = {field.name for field in kind}
        return pa.struct(fields) if len(fields) == kind.num_fields == len(names) else None
    if pa.types.is_list(kind):
        item = _parsed_type(kind.value_type)
        return None if item is None else pa.list_(item)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string()
    plain = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return kind if plain or pa.types.is_string(kind) else None


def _converted(array: Any, kind: Any) -> Any:
    """An array as Arrow's reader gives it as the type wanted. ``ValueError``: a time that cannot be read."""
    if array.type.equals(kind):
        return array
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        children = [_converted(array.field(number), field.type) for number, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(array.offsets, _converted(array.values, kind.value_type), type=kind, mask=mask)
    if pa.types.is_timestamp(kind):
        return _timestamps(array, kind)
    return array.cast(kind)


def _timestamps(texts: Any, kind: Any) -> Any:
    if kind.tz is None:
        return texts.cast(kind)
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return pc.assume_timezone(texts.cast(pa.timestamp("us")), "UTC").cast(kind)


def _loads(value: bytes) -> Any:
    return json.loads(value.decode(), parse_float=Decimal, parse_constant=float)


def _wrong(value: Any, wanted: str) -> ValueError:
    text = repr(value)
    return ValueError(f"{text if len(text) <= 60 else text[:57] + '...'} is no {wanted}")


def _converter(kind: Any) -> Callable[[Any], Any]:  # noqa: C901, PLR0911 - a table of types
    """A function from what `json` gives to what Arrow takes for a type; null is null everywhere."""
    if pa.types.is_struct(kind):
        return _nullable(_struct_converter(kind))
    if pa.types.is_map(kind):
        return _nullable(_map_converter(kind))
    if pa.types.is_list(kind):
        item = _converter(kind.value_type)
        return _nullable(lambda value: [item(one) for one in _instance(value, list, "array")])
    if pa.types.is_boolean(kind):
        return _nullable(lambda value: _instance(value, bool, "boolean"))
    if pa.types.is_integer(kind):
        return _nullable(lambda value: _integer(value, kind.bit_width))
    if pa.types.is_floating(kind):
        return _nullable(lambda value: float(_number(value)))
    if pa.types.is_decimal(kind):
        return _nullable(lambda value: _decimal(value, kind))
    if pa.types.is_timestamp(kind):
        return _nullable(lambda value: _timestamp(value, has_zone=kind.tz is not None))
    if pa.types.is_date(kind):
        return _nullable(lambda value: dt.date.fromisoformat(_instance(value, str, "date")))
    if pa.types.is_binary(kind):
        return _nullable(lambda value: base64.b64decode(_instance(value, str, "base64"), validate=True))
    if pa.types.is_string(kind):
        return _nullable(_string)
    raise TypeError(f"JSON has nothing for the type {kind}")


def _nullable(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _struct_converter(kind: Any) -> Callable[[Any], Any]:
    fields = {field.name: _converter(field.type) for field in kind}

    def convert(value: Any) -> Any:
        found = _instance(value, dict, "object")
        return {name: field(found.get(name)) for name, field in fields.items()}

    return convert


def _map_converter(kind: Any) -> Callable[[Any], Any]:
    key, item = _converter(kind.key_type), _converter(kind.item_type)
    return lambda value: [(key(name), item(one)) for name, one in _instance(value, dict, "object").items()]


def _instance(value: Any, kind: type, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise _wrong(value, wanted)
    return value


def _number(value: Any) -> int | float | Decimal:
    """`float`: NaN and the infinities, which Arrow and Spark take as well."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _wrong(value, "number")
    return value


def _integer(value: Any, bits: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise _wrong(value, f"integer of {bits} bits")
    return value


def _decimal(value: Any, kind: Any) -> Decimal:
    number = Decimal(value) if isinstance(value, str) else Decimal(_number(value))
    if not number.is_finite():
        raise _wrong(value, "decimal")
    rounded = number.quantize(Decimal(1).scaleb(-kind.scale))
    if len(rounded.as_tuple().digits) > kind.precision:
        raise _wrong(value, f"decimal({kind.precision},{kind.scale})")
    return rounded


def _timestamp(value: Any, *, has_zone: bool) -> dt.datetime:
    if not isinstance(value, str):
        found = dt.datetime.fromtimestamp(float(_number(value)), _UTC)
    else:
        found = dt.datetime.fromisoformat(value)
    if not has_zone:
        return found.replace(tzinfo=None)
    return found.replace(tzinfo=_UTC) if found.tzinfo is None else found


def _string(value: Any) -> str:
    if isinstance(value, str):
        value.encode()  # half a surrogate pair is refused
        return value
    return json.dumps(value, default=float, separators=(",", ":"), ensure_ascii=False)
