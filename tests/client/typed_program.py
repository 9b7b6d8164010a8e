"""A program of a user's, for mypy: each type that the client gives is asserted, each wrong use is an error.

`make lint` checks it with the package; tests/packaging/test_client_wheel.py does so where only the wheel is installed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_type

from tpc_broker.client import (
    Client,
    Delivered,
    Fate,
    GroupSettings,
    Mechanism,
    OAuthSettings,
    Offset,
    Outcome,
    Position,
    Record,
    Retry,
    SaslSettings,
    Sent,
    Skip,
    Slip,
    Stop,
    Stream,
    TlsSettings,
    TopicPartition,
    Transaction,
    connect,
    dead_letter,
)
from tpc_broker.client.codecs import (
    Avro,
    Codec,
    DecodingError,
    Json,
    JsonSchema,
    MessagePack,
    Nullable,
    Place,
    Registry,
    Str,
)
from tpc_broker.client.errors import ClientError, DeliveryError


@dataclass
class Order:
    item: str
    amount: int


class Number(Codec[int]):
    """A user's own codec."""

    def encode(self, value: int, place: Place) -> bytes:
        return b"%d" % value

    def decode(self, data: bytes | None, place: Place) -> int:
        if data is None:
            raise ValueError(f"no {place.field}")
        return int(data)


async def token() -> str:
    return "a token"


async def connecting() -> None:
    login = SaslSettings(Mechanism.PLAIN, "cashier", "a secret")
    async with connect("localhost:9092", tls=TlsSettings(), auth=login, memory="16MiB", compression="zstd") as client:
        assert_type(client, Client)
    async with connect("localhost:9092", tls=True, auth=OAuthSettings(token), delivery_seconds=5, acks="all"):
        pass
    async with connect("localhost:9092", compression="brotli"):  # type: ignore[arg-type]
        pass
    async with connect("localhost:9092", colour="red"):  # type: ignore[call-arg]
        pass


async def sending(client: Client, record: Record) -> None:
    done = await client.send("orders", b"value", key=b"key", headers={"a": b"1"}, timestamp=0)
    assert_type(done, Delivered)
    assert_type(done.offset, int)
    slip = await client.post("orders", None, headers=[("a", None), ("a", b"")])
    assert_type(slip, Slip)
    assert_type(slip.fate, Fate)
    assert_type(await slip, Delivered)
    assert_type(await client.send("others", record=record), Delivered)
    assert_type(await client.send_all("orders", [b"a", (b"k", b"v"), (None, None)]), Sent)
    await client.flush()
    await client.send("orders", "text")  # type: ignore[call-overload]
    try:
        await slip
    except DeliveryError as error:
        assert_type(error.fate, Fate)


async def reading(client: Client) -> None:
    settings = GroupSettings("billing", instance_id="one", max_work_seconds=60)
    async with client.read(["a", "b"], group=settings, start="latest", on_missing="earliest") as stream:
        assert_type(stream, Stream)
        async for record in stream:
            assert_type(record, Record)
            assert_type(record.value, bytes | None)
            assert_type(record.headers, tuple[tuple[str, bytes | None], ...])
        async for batch in stream.batches(100):
            assert_type(batch.where, TopicPartition)
            assert_type(batch.records, Sequence[Record])
        await stream.commit()
        assert_type(stream.positions, dict[TopicPartition, Position])
    async with client.read(re.compile("orders-.*"), start=datetime.now(UTC)):
        pass
    async with client.read(assignment={TopicPartition("a", 0): Offset(3), TopicPartition("a", 1): "earliest"}):
        pass
    async with client.read("a", isolation="read_everything"):  # type: ignore[arg-type]
        pass


async def working(client: Client) -> None:
    async def handle(record: Record) -> str:
        return str(record.offset)

    async def wrong(record: str) -> None: ...

    async with client.read("jobs", group="workers") as stream:
        await stream.for_each(handle, concurrency=8, order="partition", on_error=Retry(3, then=dead_letter("dead")))
        await stream.for_each(handle, on_error=Skip())
        await stream.for_each(handle, on_error=Stop())
        await stream.for_each(wrong)  # type: ignore[arg-type]
        async with stream.work(max_records=10) as work:
            assert_type(work.records, Sequence[Record])
        async with stream.partitions() as parts:
            async for part in parts:
                async with part:
                    async for record in part:
                        assert_type(record, Record)


async def transacting(client: Client) -> None:
    async with client.read("orders", group="biller") as stream:
        async for batch in stream.batches():
            async with client.transaction("biller-1") as tx:
                assert_type(tx, Transaction)
                assert_type(await tx.send("invoices", b"x"), Delivered)
                tx.done(batch)
            assert_type(tx.outcome, Outcome)
        async with stream.work(commit=False) as work, client.transaction("biller-1") as tx:
            tx.done(work)
            tx.done(work.records)  # type: ignore[arg-type]


async def administering(client: Client) -> None:
    await client.admin.topics.create("orders", partitions=3, configs={"retention.ms": "1000"}, exist_ok=True)
    for topic in await client.admin.topics.list():
        assert_type(topic.name, str)
    lags = await client.admin.groups.lag("billing")
    assert_type([lag.records for lag in lags.values()], list[int])
    await client.admin.topics.create("orders", partitions="3")  # type: ignore[arg-type]


async def typed(client: Client) -> None:
    orders = client.topic("orders", key=Str(), value=Json(Order))
    assert_type(await orders.send(Order("coffee", 2), key="table 7"), Delivered)
    await orders.send("coffee")  # type: ignore[arg-type]
    await orders.send(Order("coffee", 2), key=b"table 7")  # type: ignore[arg-type]
    async with orders.read(group="billing", start="earliest") as stream:
        async for record in stream:
            assert_type(record.key, str | None)
            assert_type(record.value, Order)
        async for batch in stream.batches():
            assert_type([each.value.amount for each in batch.records], list[int])
        async with stream.work() as work:
            assert_type(work.records[0].value, Order)
    async with orders.read(colour="red"):  # type: ignore[call-arg]
        pass
    async with client.topic("numbers", value=Number()).read() as numbers:
        assert_type((await anext(numbers)).value, int)
    async with client.topic("orders", value=Nullable(Json(Order))).read() as compacted:
        assert_type((await anext(compacted)).value, Order | None)
    async with client.topic("raw").read() as raw:
        assert_type((await anext(raw)).value, bytes | None)
    async with client.topic("any", value=Json()).read() as loose:
        assert_type((await anext(loose)).value, Any)
    async with client.topic("packed", value=MessagePack(Order)).read() as packed:
        assert_type((await anext(packed)).value, Order)


async def registered(client: Client) -> None:
    async with Registry("https://registry:8081", auth=("cashier", "a secret")) as registry:
        orders = client.topic("orders", value=Avro(registry, Order, schema="{}"))
        async with orders.read() as stream:
            try:
                assert_type((await anext(stream)).value, Order)
            except DecodingError as error:
                assert_type(error.record, Record)
            except ClientError as error:
                assert_type(str(error), str)
        async with client.topic("loose", value=JsonSchema(registry)).read() as loose:
            assert_type((await anext(loose)).value, Any)
