"""Codecs by themselves: what goes through them, and what each says of bytes that are not its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tests.support.both_loops import on_both_loops
from tpc_broker.client.codecs import (
    Bytes,
    Codec,
    CodecError,
    DecodingError,
    EncodingError,
    Json,
    MessagePack,
    Nullable,
    Place,
    Str,
)
from tpc_broker.client.codecs.coding import encoded
from tpc_broker.client.codecs.framing import HEAD, UnframedError, framed, indexes_read, indexes_written, schema_id_of
from tpc_broker.client.errors import ClientError
from tpc_broker.client.values import Record

VALUE = Place("orders", "value")


class Order(msgspec.Struct):
    number: int
    item: str = "nothing"


@dataclass
class Parcel:
    weight: float


@pytest.mark.parametrize(
    ("codec", "value", "data"),
    [
        (Bytes(), b"\xff\x00", b"\xff\x00"),
        (Bytes(), b"", b""),
        (Bytes(), None, None),
        (Str(), "Öl ✓", "Öl ✓".encode()),
        (Str(), "", b""),
        (Json(), {"a": [1, None, "ö"]}, '{"a":[1,null,"ö"]}'.encode()),
        (Json(), None, b"null"),
        (Json(Order), Order(7, "x"), b'{"number":7,"item":"x"}'),
        (Json(Parcel), Parcel(1.5), b'{"weight":1.5}'),
        (MessagePack(Order), Order(7), b"\x82\xa6number\x07\xa4item\xa7nothing"),
        (Nullable(Str()), "x", b"x"),
        (Nullable(Str()), None, None),
        (Nullable(Json(Order)), None, None),
    ],
)
def test_what_goes_through(codec: Codec[Any], value: Any, data: bytes | None) -> None:
    assert codec.encode(value, VALUE) == data
    assert codec.decode(data, VALUE) == value


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (Str(), b"\xff"), (Str(), None),
        (Json(), b"{"), (Json(), b""), (Json(), b"NaN"), (Json(), b"[" * 100_000), (Json(), None),
        (Json(), b"1" * 5000),
        (Json(Order), b'{"number":"7"}'), (Json(Order), b"{}"), (Json(Order), None),
        (MessagePack(Order), b"\x82"), (MessagePack(Order), None),
        (Nullable(Str()), b"\xff"),
    ],
)  # fmt: skip
def test_what_is_not_its_own(codec: Codec[Any], data: bytes | None) -> None:
    with pytest.raises(Exception) as error:
        codec.decode(data, VALUE)
    told = DecodingError(Record("orders", 3, 41, 0, None, data, (), 0), "value", codec, error.value)
    expected = f"orders-3 at offset 41: the value is not what {codec} reads: {type(error.value).__name__}"
    assert str(told).startswith(expected)
    assert (told.topic, told.partition, told.offset, told.codec) == ("orders", 3, 41, codec)
    assert told.record.value == data
    assert isinstance(told, CodecError)
    assert isinstance(told, ClientError)


@on_both_loops
async def test_what_cannot_be_written_says_so_and_of_what() -> None:
    for codec, value in ((Bytes(), "x"), (Str(), b"x"), (Str(), None), (Json(), {1}), (Json(), math.nan)):
        with pytest.raises(EncodingError, match=rf"^orders: {codec} makes no value of this: \w+Error: ") as error:
            await encoded(codec, value, VALUE)  # type: ignore[arg-type]
        assert (error.value.topic, error.value.field) == VALUE
        assert error.value.__cause__ is not None


def test_a_codec_is_named_with_its_type() -> None:
    assert [repr(each) for each in (Str(), Json(), Json(Order), Nullable(MessagePack(Order)))] == [
        "Str", "Json", "Json(Order)", "Nullable(MessagePack(Order))",
    ]  # fmt: skip


def test_a_null_where_none_may_be_says_how_it_may() -> None:
    with pytest.raises(ValueError, match=r"Nullable\(codec\)"):
        Json(Order).decode(None, VALUE)


@pytest.mark.parametrize(
    ("indexes", "data"),
    [
        ((0,), "00"), ((1,), "0202"), ((0, 0), "040000"), ((2, 1), "040402"), ((64,), "028001"),
        ((1 << 20,), "0280808001"),
    ],
)
def test_paths_to_messages(indexes: tuple[int, ...], data: str) -> None:
    """The first as Confluent's clients write them: zigzag varints, and a single 0 for the first message."""
    assert indexes_written(indexes).hex() == data
    whole = framed(1, bytes.fromhex(data) + b"rest")
    assert indexes_read(whole) == (indexes, len(whole) - 4)


@pytest.mark.parametrize("data", ["", "80", "808080808080", "02", "01", "8101", "0480"])
def test_a_path_that_is_none(data: str) -> None:
    with pytest.raises(UnframedError):
        indexes_read(framed(1, bytes.fromhex(data)))


def test_the_schemas_id_stands_before() -> None:
    assert framed(0x01020304, b"x") == b"\0\1\2\3\4x"
    assert schema_id_of(framed(2**32 - 1, b"")) == 2**32 - 1
    for data in (b"", b"\0\0\0\0", b"\1\0\0\0\1", b'{"a":1}'):
        with pytest.raises(UnframedError):
            schema_id_of(data)
    assert HEAD.size == 5
