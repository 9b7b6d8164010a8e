"""JSON, Avro and Protobuf values as columns: what fits, what is malformed, and that rows stay apart."""

import datetime as dt
import io
import json
import random
import re
from decimal import Decimal

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
fastavro = pytest.importorskip("fastavro", reason="the extra `spark` is not installed")
pytest.importorskip("google.protobuf", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP_FILE
from pyspark.sql.pandas.types import to_arrow_type

from tpc_broker.spark.value_json import ONE_BY_ONE_ROWS, JsonDecoder
from tpc_broker.spark.values import FormatName, GivenSchema, ValueFormat, sql_text

UTC = pa.timestamp("us", tz="UTC")
EVENT = pa.struct([
    ("user", pa.string()), ("count", pa.int32()), ("price", pa.float64()), ("at", UTC), ("ok", pa.bool_()),
    ("tags", pa.list_(pa.field("element", pa.string()))),
    ("place", pa.struct([("x", pa.int64()), ("day", pa.date32())])),
])  # fmt: skip


def events(count, **changes):
    return [
        json.dumps({
            "user": f"u{number}", "count": number, "price": number / 4, "at": f"2026-11-21T10:00:{number % 60:02}.5Z",
            "ok": number % 2 == 0, "tags": ["a", None][: number % 3], "place": {"x": -number, "day": "2026-11-21"},
            "unknown": [1, {}],
        } | changes).encode()
        for number in range(count)
    ]  # fmt: skip


def decode(kind, values):
    decoded = JsonDecoder(kind).decode(pa.array(values, pa.binary()))
    decoded.column.validate(full=True)
    assert len(decoded.column) == len(values)
    assert decoded.column.type.equals(kind)
    return decoded.column.to_pylist(), [row for row, _reason in decoded.malformed]


def test_json_at_once_and_one_by_one_agree():
    values = events(100)
    rows, malformed = decode(EVENT, values)
    assert malformed == []
    assert rows[5] == {
        "user": "u5", "count": 5, "price": 1.25, "at": dt.datetime(2026, 11, 21, 10, 0, 5, 500_000, dt.UTC),
        "ok": False, "tags": ["a", None], "place": {"x": -5, "day": dt.date(2026, 11, 21)},
    }  # fmt: skip
    assert [decode(EVENT, [value])[0][0] for value in values] == rows
    assert decode(EVENT, []) == ([], [])
    assert decode(EVENT, [None] * 20) == ([None] * 20, [])


BAD = [
    b"", b" ", b"nonsense", b"\xff", b"[]", b"3", b'{"count": 1', b'{"count": "1"}', b'{"count": 1.0}',
    b'{"count": true}',
    b'{"count": 99999999999}', b'{"user": "a\x00"}', b'{"user": "\\ud800"}', b'{"price": "NaN"}',
    b'{"at": "yesterday"}',
    b'{"place": 3}', b'{"tags": {}}', b"{}{}", b"{} {}", b'{"count":1}\n{"count":2}', b'{"user": "\xff"}', b"{},{}",
    b'{"user": "a\nb"}', b'{\n"count": 1\n}\n{\n}',
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_malformed_json_is_named_and_shifts_nothing(bad):
    values = [*events(60), bad, *events(3)]
    rows, malformed = decode(EVENT, values)
    assert malformed == [60]
    assert rows[60] is None
    assert [row["count"] for row in rows[:60]] == list(range(60))
    assert [row["count"] for row in rows[61:]] == [0, 1, 2]


def test_values_that_make_up_for_each_other_are_not_mixed_up():
    """One value with two objects and one with none: the number of objects is right, the rows are not."""
    for pair in ([b"{}{}", b""], [b'{"count":1,"place":{}', b',"count":3}{}'], [b'{"user":{}', b"{}}"]):
        values = [*events(20), *pair, *events(20)]
        rows, malformed = decode(EVENT, values)
        assert malformed == [20, 21]
        assert [row["count"] for row in rows[22:]] == list(range(20))


def test_bare_nulls_are_null_values_and_crash_nothing():
    """Arrow's reader dies of a text that begins with one."""
    assert decode(EVENT, [b"null"] * 40) == ([None] * 40, [])
    rows, malformed = decode(EVENT, [b"null", *events(30), b"{}null{}", b"null"])
    assert (rows[0], rows[32], malformed) == (None, None, [31])
    assert decode(EVENT, [b"{}null{}"] * 40)[1] == list(range(40))


def test_json_over_several_lines_is_parsed_at_once(monkeypatch):
    values = [json.dumps(json.loads(value), indent=2).encode() for value in events(200)]
    expected = decode(EVENT, events(200))
    monkeypatch.setattr(JsonDecoder, "_one_by_one", None)
    values[100:] = [value.replace(b"\n", b"\r\n") + b"\n" for value in values[100:]]
    assert decode(EVENT, values) == expected


def test_random_json_decodes_as_by_the_standard_library():
    chance = random.Random(11)
    for _ in range(60):
        choices = [*events(12), *BAD, None, b'  {"count": 7}\r\n', b"null", b'{\r\n "count":\n 8\n}']
        values = [chance.choice(choices) for _ in range(chance.randrange(80))]
        rows, malformed = decode(EVENT, values)
        alone = [decode(EVENT, [value]) for value in values]
        assert rows == [found[0] for found, _bad in alone]
        assert malformed == [number for number, (_found, bad) in enumerate(alone) if bad]


def test_json_understands_more_one_by_one():
    assert ONE_BY_ONE_ROWS < 20
    kind = pa.struct([
        ("d", pa.decimal128(6, 2)), ("b", pa.binary()), ("m", pa.map_(pa.string(), pa.int32())), ("s", pa.string()),
        ("t", UTC), ("n", pa.timestamp("us")),
    ])  # fmt: skip
    value = b'{"d": 12.5, "b": "AAE=", "m": {"k": 1}, "s": {"x": [1.5]}, "t": 1.5, "n": "2026-11-21T10:00:00"}'
    rows, malformed = decode(kind, [value] * 20)
    assert malformed == []
    assert rows[19] == {
        "d": Decimal("12.50"), "b": b"\0\1", "m": [("k", 1)], "s": '{"x":[1.5]}',
        "t": dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, dt.UTC), "n": dt.datetime(2026, 11, 21, 10),  # noqa: DTZ001
    }  # fmt: skip
    assert decode(pa.list_(pa.field("element", pa.int8())), [b"[1, null]", b"[300]"]) == ([[1, None], None], [1])
    naive = pa.struct([("t", UTC)])
    noon = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
    assert decode(naive, [b'{"t": "2026-11-21T12:00:00"}'] * 9)[0] == [{"t": noon}] * 9
    assert decode(naive, [b'{"t": "2026-11-21T14:00:00+02:00"}'] * 9)[0] == [{"t": noon}] * 9


AVRO = {
    "type": "record", "name": "Event", "fields": [
        {"name": "user", "type": "string"},
        {"name": "count", "type": ["null", "int"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "more", "type": {"type": "map", "values": ["long", "double"]}},
        {"name": "kinds", "type": {"type": "array", "items": "Kind"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
    ],
}  # fmt: skip
AVRO_SQL = (
    "struct<`user`: string, `count`: int, `at`: timestamp, `day`: date, `price`: decimal(8,2), `kind`: string, "
    "`more`: map<string, double>, `kinds`: array<string>, `id`: string, `hash`: binary>"
)


def avro_bytes(number, schema=AVRO):
    row = {
        "user": f"u{number}", "count": number if number % 2 else None, "at": 1_700_000_000_123 + number, "day": number,
        "price": Decimal(number) / 4, "kind": "AB"[number % 2], "more": {"k": number, "f": number / 2},
        "kinds": ["B"] * (number % 3), "id": "7d444840-9dc0-11d1-b245-5ffdce74fad2", "hash": b"\1\2",
    }  # fmt: skip
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def of_avro(schema):
    return ValueFormat(FormatName.AVRO, GivenSchema(json.dumps(schema)))


def arrow_type(value_format):
    return to_arrow_type(value_format._own_type(), timezone="UTC")


def test_avro_rows_and_malformed_ones():
    format_ = of_avro(AVRO)
    assert format_.sql_type() == AVRO_SQL
    values = [avro_bytes(number) for number in range(40)]
    bad = {3: b"", 4: values[4][:-1], 5: values[5] + b"x", 6: b"\xff" * 30, 7: None}
    decoded = format_.decoder(arrow_type(format_)).decode(pa.array([bad.get(n, v) for n, v in enumerate(values)]))
    decoded.column.validate(full=True)
    assert [row for row, _reason in decoded.malformed] == [3, 4, 5, 6]
    rows = decoded.column.to_pylist()
    assert rows[3:8] == [None] * 5
    assert rows[9] == {
        "user": "u9", "count": 9, "at": dt.datetime(2023, 11, 14, 22, 13, 20, 132_000, dt.UTC),
        "day": dt.date(1970, 1, 10), "price": Decimal("2.25"), "kind": "B", "more": [("k", 9.0), ("f", 4.5)],
        "kinds": [], "id": "7d444840-9dc0-11d1-b245-5ffdce74fad2", "hash": b"\1\2",
    }  # fmt: skip
    assert [rows[number]["user"] for number in range(8, 40)] == [f"u{number}" for number in range(8, 40)]


def test_avro_times_that_arrow_cannot_hold_are_malformed():
    schema = {"type": "long", "logicalType": "timestamp-millis"}
    format_ = of_avro(schema)
    assert format_.sql_type() == "timestamp"
    values = []
    for number in (1, 2**62, 5):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, {"type": "long"}, number)
        values.append(out.getvalue())
    decoded = format_.decoder(UTC).decode(pa.array(values))
    assert [row for row, _reason in decoded.malformed] == [1]
    assert decoded.column.cast(pa.int64()).to_pylist() == [1000, None, 5000]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "no Avro schema"),
        ('{"type": "recordx"}', "no Avro schema"),
        ('["string", "int"]', "a union of"),
        ('{"type": "record", "name": "a", "fields": [{"name": "x", "type": ["null", "a"]}]}', "a contains itself"),
    ],
)
def test_avro_schemas_that_cannot_be_used(schema, said):
    with pytest.raises(ValueError, match=said):
        ValueFormat(FormatName.AVRO, GivenSchema(schema)).sql_type()


def test_a_wanted_type_that_the_schema_does_not_give():
    for wanted, said in (
        (pa.struct([("user", pa.struct([("x", pa.int32())]))]), "value.user is string by its schema"),
        (pa.struct([("kinds", pa.list_(pa.struct([])))]), r"value.kinds\[\] is string"),
        (pa.struct([("users", pa.string())]), "value has no field users; its schema has user, count"),
    ):
        with pytest.raises(ValueError, match=said):
            of_avro(AVRO).decoder(wanted)
    part = pa.struct([("count", pa.int64()), ("user", pa.binary())])
    decoded = of_avro(AVRO).decoder(part).decode(pa.array([avro_bytes(7), None]))
    assert decoded.column.to_pylist() == [{"count": 7, "user": b"u7"}, None]
    with pytest.raises(LookupError, match="no registry to find the schema 7"):
        GivenSchema("x").resolve(7)


def descriptor_set():
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="event.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    event = file.message_type.add(name="Event")
    entry = event.nested_type.add(name="MoreEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=1)
    file.enum_type.add(name="Kind").value.extend(
        [descriptor_pb2.EnumValueDescriptorProto(name=name, number=number) for number, name in enumerate("AB")]
    )
    item = file.message_type.add(name="Item")
    item.field.add(name="name", number=1, type=field.TYPE_STRING, label=1)
    for number, (name, kind, label, type_name) in enumerate(
        [
            ("user", field.TYPE_STRING, 1, ""), ("big", field.TYPE_UINT64, 1, ""), ("raw", field.TYPE_BYTES, 1, ""),
            ("kind", field.TYPE_ENUM, 1, ".shop.Kind"), ("items", field.TYPE_MESSAGE, 3, ".shop.Item"),
            ("first", field.TYPE_MESSAGE, 1, ".shop.Item"), ("more", field.TYPE_MESSAGE, 3, ".shop.Event.MoreEntry"),
            ("at", field.TYPE_MESSAGE, 1, ".google.protobuf.Timestamp"), ("numbers", field.TYPE_SINT32, 3, ""),
        ],
        start=1,
    ):  # fmt: skip
        event.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="below", number=1, type=field.TYPE_MESSAGE, label=3, type_name=".shop.Tree")
    timestamps = descriptor_pb2.FileDescriptorProto.FromString(TIMESTAMP_FILE.serialized_pb)
    return descriptor_pb2.FileDescriptorSet(file=[timestamps, file])


PROTOBUF_SQL = (
    "struct<`user`: string, `big`: decimal(20,0), `raw`: binary, `kind`: string, "
    "`items`: array<struct<`name`: string>>, `first`: struct<`name`: string>, "
    "`more`: map<string, int>, `at`: timestamp, `numbers`: array<int>>"
)


def event_class(files):
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Event"))


def protobuf_values(count):
    """The descriptor set and values of ``shop.Event``."""
    files = descriptor_set()
    event = event_class(files)
    made = [event(user=f"u{n}", big=n, kind=1, items=[{"name": "a"}], more={"k": n}) for n in range(count)]
    return files.SerializeToString(), [one.SerializeToString() for one in made]


def test_protobuf_rows_and_malformed_ones():
    files = descriptor_set()
    event = event_class(files)
    full = event(user="u", big=2**64 - 1, raw=b"\xff", kind=1, items=[{"name": "a"}, {}], first={"name": "b"},
                 more={"k": 4}, numbers=[1, -1])  # fmt: skip
    full.at.FromMilliseconds(1_700_000_000_123)
    odd = event(kind=9)
    format_ = ValueFormat(FormatName.PROTOBUF, GivenSchema(files.SerializeToString()), "shop.Event")
    assert format_.sql_type() == PROTOBUF_SQL
    values = [full.SerializeToString(), None, b"\xff\xff", b"", odd.SerializeToString(), full.SerializeToString()]
    decoded = format_.decoder(arrow_type(format_)).decode(pa.array(values, pa.binary()))
    decoded.column.validate(full=True)
    assert [row for row, _reason in decoded.malformed] == [2]
    rows = decoded.column.to_pylist()
    assert rows[0] == rows[5] == {
        "user": "u", "big": Decimal(2**64 - 1), "raw": b"\xff", "kind": "B", "items": [{"name": "a"}, {"name": ""}],
        "first": {"name": "b"}, "more": [("k", 4)], "at": dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, dt.UTC),
        "numbers": [1, -1],
    }  # fmt: skip
    assert rows[1:3] == [None, None]
    assert [rows[3][name] for name in ("user", "first", "at", "items")] == ["", None, None, []]
    assert rows[4]["kind"] == "9"


def test_protobuf_schemas_that_cannot_be_used():
    good = descriptor_set().SerializeToString()
    for data, name, said in (
        (b"\xff\xff", "shop.Event", "no descriptor set"),
        (good, "shop.Nothing", "no message 'shop.Nothing'"),
        (good, "shop.Tree", "shop.Tree contains itself"),
    ):
        with pytest.raises(ValueError, match=said):
            ValueFormat(FormatName.PROTOBUF, GivenSchema(data), name).sql_type()


def test_types_of_json_schemas():
    assert ValueFormat(FormatName.JSON, json_type="a int, b string").sql_type() == "struct<a int, b string>"
    assert ValueFormat(FormatName.JSON, json_type="array<int>").sql_type() == "array<int>"
    text = '{"type": "struct", "fields": [{"name": "a`b", "type": "long", "nullable": true, "metadata": {}}]}'
    assert ValueFormat(FormatName.JSON, json_type=text).sql_type() == "struct<`a``b`: bigint>"
    assert sql_text(of_avro({"type": "array", "items": "boolean"})._own_type()) == "array<boolean>"


@pytest.mark.parametrize(
    "text",
    [
        "user string, n int", "user: string", "map<string,int>",
        "`a b` array<struct<x: int, y: map<string, decimal(10, 2)>>>",
        "struct<at TIMESTAMP_NTZ NOT NULL COMMENT 'when, \\'really\\'', n double>", "array<struct<>>", "s varchar(5)",
    ],
)
def test_schemas_of_json_that_spark_understands(text):
    assert ValueFormat(FormatName.JSON, json_type=text).sql_type().endswith(("t", ">", ")"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("user strong", "valueSchema 'user strong': there is 'strong' where a type should be"),
        ("user", "there is 'an end' where a type should be"),
        ("user string n int", "there is 'n' where 'the end' should be"),
        ("user string,", "there is 'an end' where a field's name should be"),
        ("a array<int", "there is 'an end' where '>' should be"),
        ("a map<int>", "there is '>' where ',' should be"),
        ("a decimal(ten)", "there is 'ten' in the size of a decimal"),
        ("a int comment", "a comment has to stand in quotation marks"),
        ('{"type": "strukt"}', "valueSchema"),
        ('{"type": "struct"', "valueSchema"),
    ],
)
def test_schemas_of_json_that_are_wrong(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        ValueFormat(FormatName.JSON, json_type=text).sql_type()
