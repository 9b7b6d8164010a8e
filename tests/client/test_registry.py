"""Codecs with a registry, against one over HTTP on loopback: the frame, what is asked for and how often, what fails."""

from __future__ import annotations

import base64
import json
import ssl
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from tests.support.both_loops import on_both_loops
from tests.support.schema_registry import FakeRegistry, fake_registry
from tpc_broker.client.codecs import (
    Avro,
    Codec,
    DecodingError,
    EncodingError,
    JsonSchema,
    Place,
    Protobuf,
    Reference,
    Registry,
    RegistryError,
    Schema,
    UnknownSchemaError,
    by_record,
    by_topic_and_record,
)
from tpc_broker.client.codecs.codec import LackError
from tpc_broker.client.codecs.coding import encoded, supplied
from tpc_broker.client.codecs.framing import framed
from tpc_broker.client.codecs.registry import Kept
from tpc_broker.client.security import TlsSettings
from tpc_broker.client.values import Record

VALUE = Place("orders", "value")
ORDER = json.dumps({
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [{"name": "number", "type": "long"}, {"name": "item", "type": "string", "default": "nothing"}],
})  # fmt: skip
ORDER_BEFORE = json.dumps({
    "type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "number", "type": "long"}],
})  # fmt: skip
ORDER_CHECKED = json.dumps({
    "title": "Order", "type": "object", "properties": {"number": {"type": "integer"}, "item": {"type": "string"}},
    "required": ["number"], "additionalProperties": False,
})  # fmt: skip


class Order(msgspec.Struct):
    number: int
    item: str = "nothing"


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


async def decoded(codec: Codec[Any], data: bytes | None) -> Any:
    """As a typed stream does it."""
    record = Record("orders", 3, 41, 0, None, data, (), 0)
    while True:
        try:
            return codec.decode(data, VALUE)
        except LackError as lack:
            await supplied(codec, lack, record, VALUE)


@on_both_loops
async def test_avro_goes_through_and_asks_once(fake: FakeRegistry) -> None:
    number = fake.add("orders-value", ORDER)
    async with Registry(fake.address) as registry:
        plain, typed = Avro(registry, schema=ORDER), Avro(registry, Order, schema=ORDER)
        for _ in range(3):
            data = await encoded(typed, Order(7), VALUE)
            assert data == framed(number, b"\x0e\x0enothing")
            assert await decoded(typed, data) == Order(7)
            assert await decoded(plain, data) == {"number": 7, "item": "nothing"}
        assert await encoded(plain, {"number": 7}, VALUE) == data
    assert fake.requests == ["POST /subjects/orders-value", f"GET /schemas/ids/{number}"]


@on_both_loops
async def test_avro_of_an_earlier_version_is_read_as_ours(fake: FakeRegistry) -> None:
    before = fake.add("orders-value", ORDER_BEFORE)
    async with Registry(fake.address) as registry:
        data = framed(before, b"\x0e")
        assert await decoded(Avro(registry), data) == {"number": 7}
        assert await decoded(Avro(registry, Order, schema=ORDER), data) == Order(7, "nothing")


@on_both_loops
async def test_avros_logical_types_stay_what_they_are(fake: FakeRegistry) -> None:
    class Paid(msgspec.Struct):
        at: datetime
        amount: Decimal
        by: uuid.UUID
        receipt: bytes

    logical = {"at": ("long", "timestamp-millis"), "by": ("string", "uuid")}
    kinds: dict[str, Any] = {name: {"type": kind, "logicalType": what} for name, (kind, what) in logical.items()}
    kinds["amount"] = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    kinds["receipt"] = "bytes"
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    schema = json.dumps({"type": "record", "name": "Paid", "fields": fields})
    paid = Paid(datetime(2026, 11, 30, tzinfo=UTC), Decimal("12.50"), uuid.UUID(int=7), b"\xff\x00")
    async with Registry(fake.address) as registry:
        codec = Avro(registry, Paid, schema=schema, register=True)
        assert await decoded(codec, await encoded(codec, paid, VALUE)) == paid


@on_both_loops
async def test_avro_with_references(fake: FakeRegistry) -> None:
    fields = [{"name": "name", "type": "string"}]
    customer = json.dumps({"type": "record", "name": "Customer", "namespace": "shop", "fields": fields})
    fake.add("customers", customer)
    text = json.dumps({"type": "record", "name": "Sale", "fields": [{"name": "to", "type": "shop.Customer"}]})
    schema = Schema("AVRO", text, (Reference("shop.Customer", "customers", 1),))
    async with Registry(fake.address) as registry:
        writing = Avro(registry, schema=schema, register=True)
        data = await encoded(writing, {"to": {"name": "x"}}, VALUE)
        assert await decoded(Avro(registry), data) == {"to": {"name": "x"}}


@on_both_loops
async def test_a_schema_that_is_not_there_is_not_registered_unasked(fake: FakeRegistry) -> None:
    async with Registry(fake.address) as registry:
        with pytest.raises(EncodingError, match=r"orders: Avro makes no value of this: UnknownSchemaError.*not found"):
            await encoded(Avro(registry, schema=ORDER), {"number": 1}, VALUE)
        assert fake.subjects == {}
        await encoded(Avro(registry, schema=ORDER, register=True), {"number": 1}, VALUE)
    assert list(fake.subjects) == ["orders-value"]


@on_both_loops
async def test_names_of_subjects(fake: FakeRegistry) -> None:
    async with Registry(fake.address) as registry:
        for subject in (by_record, by_topic_and_record):
            await encoded(Avro(registry, schema=ORDER, register=True, subject=subject), {"number": 1}, VALUE)
        await encoded(JsonSchema(registry, schema=ORDER_CHECKED, register=True), {"number": 1}, Place("a/b", "key"))
    assert list(fake.subjects) == ["shop.Order", "orders-shop.Order", "a/b-key"]


@on_both_loops
async def test_an_unknown_id_is_an_error_that_names_the_record(fake: FakeRegistry) -> None:
    async with Registry(fake.address) as registry:
        for codec in (Avro(registry), JsonSchema(registry), Protobuf(registry, timestamp_pb2.Timestamp)):
            with pytest.raises(DecodingError, match=r"orders-3 at offset 41: the value is not what .*schema") as error:
                await decoded(codec, framed(9, b"\0"))
            assert isinstance(error.value.__cause__, UnknownSchemaError)
    assert fake.requests == ["GET /schemas/ids/9"], "and is not asked for again at once"


@on_both_loops
async def test_a_schema_of_another_kind_is_refused(fake: FakeRegistry) -> None:
    number = fake.add("orders-value", ORDER)
    async with Registry(fake.address) as registry:
        for codec in (JsonSchema(registry), Protobuf(registry, timestamp_pb2.Timestamp)):
            with pytest.raises(DecodingError, match="is one of AVRO"):
                await decoded(codec, framed(number, b"\0"))


@on_both_loops
async def test_bytes_that_are_not_of_their_schema(fake: FakeRegistry) -> None:
    number, checked = fake.add("orders-value", ORDER), fake.add("checked", ORDER_CHECKED, "JSON")
    async with Registry(fake.address) as registry:
        avro, schema = Avro(registry), JsonSchema(registry)
        await decoded(avro, framed(number, b"\x0e\0"))
        await decoded(schema, framed(checked, b'{"number":1}'))
        for codec, data in (
            (avro, framed(number, b"")), (avro, framed(number, b"\x0e\xff")), (avro, framed(number, b"\x0e\0\0")),
            (avro, b"plain text"), (avro, None),
            (schema, framed(checked, b"{")), (schema, framed(checked, b'{"item":"x"}')),
            (schema, framed(checked, b'{"number":1,"b":2}')),
        ):  # fmt: skip
            with pytest.raises((ValueError, EOFError, IndexError)) as error:
                codec.decode(data, VALUE)
            assert "secret" not in str(error.value)


@on_both_loops
async def test_json_schema_says_what_is_wrong_and_not_what_is_there(fake: FakeRegistry) -> None:
    async with Registry(fake.address) as registry:
        codec = JsonSchema(registry, Order, schema=ORDER_CHECKED, register=True)
        data = await encoded(codec, Order(7), VALUE)
        assert data == framed(1, b'{"number":7,"item":"nothing"}')
        assert await decoded(codec, data) == Order(7)
        with pytest.raises(EncodingError, match=r"\['number'\]: what is there is not of type") as error:
            await encoded(JsonSchema(registry, schema=ORDER_CHECKED), {"number": "secret"}, VALUE)
        assert "secret" not in str(error.value)


@on_both_loops
async def test_json_schemas_references_come_from_the_registry_and_from_nowhere_else(fake: FakeRegistry) -> None:
    inner = json.dumps({"type": "object", "required": ["name"]})
    fake.add("customers", inner, "JSON")
    rows = (Reference("customer.json", "customers", 1),)
    async with Registry(fake.address) as registry:
        for own in ({}, {"$id": "https://example.org/sale.json"}):
            text = json.dumps({**own, "properties": {"to": {"$ref": "customer.json"}}})
            codec = JsonSchema(registry, schema=Schema("JSON", text, rows), register=True)
            await encoded(codec, {"to": {"name": "x"}}, VALUE)
            with pytest.raises(EncodingError, match=r"\['to'\]: \"name\" is a required property"):
                await encoded(codec, {"to": {}}, VALUE)
        for address in (f"{fake.address}/other.json", "file:///etc/hostname"):
            codec = JsonSchema(registry, schema=json.dumps({"$ref": address}), register=True)
            with pytest.raises(EncodingError, match="nothing is fetched"):
                await encoded(codec, {}, VALUE)
    assert not any("other.json" in each for each in fake.requests)


@on_both_loops
async def test_protobuf_goes_through(fake: FakeRegistry) -> None:
    async with Registry(fake.address) as registry:
        codec = Protobuf(registry, timestamp_pb2.Timestamp, register=True)
        value = timestamp_pb2.Timestamp(seconds=5)
        data = await encoded(codec, value, VALUE)
        assert data == framed(1, b"\0\x08\x05")
        assert await decoded(codec, data) == value
        with pytest.raises(EncodingError, match=r"a google.protobuf.Timestamp, not a Duration"):
            await encoded(codec, duration_pb2.Duration(), VALUE)
        for body in (b"", b"\0\x08", b"\x80"):
            with pytest.raises(Exception):  # noqa: B017
                codec.decode(framed(1, body), VALUE)
    written = fake.schemas[1]
    assert written["schemaType"] == "PROTOBUF"
    assert FileDescriptorProto.FromString(base64.b64decode(written["schema"])).package == "google.protobuf"


@on_both_loops
async def test_protobufs_path_of_a_nested_message(fake: FakeRegistry) -> None:
    async with Registry(fake.address) as registry:
        codec = Protobuf(registry, DescriptorProto.ExtensionRange, register=True)
        data = await encoded(codec, DescriptorProto.ExtensionRange(start=1), VALUE)
        assert data is not None
        assert data[5:] == b"\x04\x04\x00" + b"\x08\x01"


@on_both_loops
async def test_what_fails_for_a_while_is_tried_again(fake: FakeRegistry) -> None:
    number = fake.add("orders-value", ORDER)
    fake.failures = [503, 500, 429]
    async with Registry(fake.address) as registry:
        assert await registry.schema(number) == Schema("AVRO", ORDER)
    assert len(fake.requests) == 4


@on_both_loops
async def test_a_registry_that_is_away_is_no_word_about_the_record(fake: FakeRegistry) -> None:
    fake.failures = [503] * 1000
    async with Registry(fake.address, retry_seconds=0.1) as registry:
        with pytest.raises(RegistryError, match=r"status 503.*for 0.1 s \(retry_seconds\)"):
            await decoded(Avro(registry), framed(1, b""))
    async with Registry("http://127.0.0.1:1", retry_seconds=0.1) as registry:
        with pytest.raises(RegistryError, match=r"127.0.0.1:1: ConnectError"):
            await registry.schema(1)
    with pytest.raises(RegistryError, match="not open"):
        await registry.schema(1)


@on_both_loops
async def test_a_registry_that_does_not_answer(fake: FakeRegistry) -> None:
    fake.is_awake.clear()
    async with Registry(fake.address, request_seconds=0.05, retry_seconds=0) as registry:
        with pytest.raises(RegistryError, match=r"no answer within 0.05 s \(request_seconds\)"):
            await registry.schema(1)


@on_both_loops
async def test_of_several_addresses_one_is_enough(fake: FakeRegistry) -> None:
    number = fake.add("orders-value", ORDER)
    async with Registry(f"http://127.0.0.1:1, {fake.address}/") as registry:
        assert (await registry.schema(number)).text == ORDER


@on_both_loops
async def test_who_asks_for_the_same_waits_for_the_first(fake: FakeRegistry) -> None:
    number = fake.add("orders-value", ORDER)
    async with Registry(fake.address) as registry:
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(registry.schema, number)
        assert registry._asking == {}
        with anyio.CancelScope() as scope:
            scope.cancel()
            await registry.schema(number + 1)
        assert registry._asking == {}
    assert len(fake.requests) == 1


@on_both_loops
async def test_what_is_kept_is_bounded(fake: FakeRegistry) -> None:
    texts = [json.dumps({"type": "fixed", "name": "F", "size": size}) for size in range(1, 6)]
    numbers = [fake.add("orders-value", text) for text in texts]
    async with Registry(fake.address, schemas_max=3) as registry:
        codec = Avro(registry)
        for size, number in enumerate(numbers, start=1):
            assert await decoded(codec, framed(number, b"x" * size)) == b"x" * size
        assert [number for number in numbers if registry.known(number)] == numbers[-3:]
        assert len(codec._readers) == 3
    kept: Kept[int, int] = Kept(1)
    assert [kept.keep(1, 1), kept.keep(2, 2), dict(kept)] == [1, 2, {2: 2}]


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"schema":1,"references":[{}]}', b"x"])
@on_both_loops
async def test_an_answer_that_is_none(fake: FakeRegistry, body: bytes) -> None:
    fake.bodies["/schemas/ids/1"] = body
    async with Registry(fake.address, retry_seconds=0.1) as registry:
        with pytest.raises(RegistryError):
            await registry.schema(1)


@on_both_loops
async def test_an_answer_is_bounded(fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpc_broker.client.codecs.registry.ANSWER_BYTES_MAX", 10)
    fake.bodies["/schemas/ids/1"] = b" " * 1_000_000
    async with Registry(fake.address) as registry:
        with pytest.raises(RegistryError, match="more than 10 bytes"):
            await registry.schema(1)


@on_both_loops
async def test_a_password_and_a_token(fake: FakeRegistry) -> None:
    number = fake.add("orders-value", ORDER)
    basic = "Basic " + base64.b64encode(b"reader:secret").decode()
    for expected, given in ((basic, {"auth": ("reader", "secret")}), ("Bearer abc", {"token": "abc"})):
        fake.authorization = expected
        async with Registry(fake.address, plain_text_secrets=True, **given) as registry:
            assert (await registry.schema(number)).text == ORDER
        async with Registry(fake.address) as registry:
            with pytest.raises(RegistryError, match="401: Unauthorized"):
                await registry.schema(number)
        with pytest.raises(ValueError, match="needs https") as error:
            Registry(fake.address, **given)
        assert "reader" not in str(error.value)


@pytest.mark.parametrize("address", ["", "localhost:8081", "ftp://x", "https://", "https://u:p@x", "https://x?a", "https://x,"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ValueError, match="registry"):
        Registry(address)


@on_both_loops
async def test_its_certificate_is_checked(certificates: Path) -> None:
    for name, trusted, reached in (("server", "ca", True), ("server", "other-ca", False), ("elsewhere", "ca", False)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
        with fake_registry(context) as fake:
            number = fake.add("orders-value", ORDER)
            tls = TlsSettings(trusted=(certificates / f"{trusted}.pem").read_text())
            async with Registry(fake.address, tls=tls, token="abc", retry_seconds=0) as registry:
                if reached:
                    assert (await registry.schema(number)).text == ORDER
                else:
                    with pytest.raises(RegistryError, match="CERTIFICATE_VERIFY_FAILED"):
                        await registry.schema(number)
        assert bool(fake.requests) == reached
