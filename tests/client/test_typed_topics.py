"""Topics with types: what is sent comes back as it was, and what cannot be read is named and does not stop the rest."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
import pytest

from tests.support.both_loops import on_both_loops
from tests.support.schema_registry import FakeRegistry, fake_registry
from tpc_broker.client import Client, Outcome, connect
from tpc_broker.client.codecs import (
    Avro,
    DecodingError,
    EncodingError,
    Json,
    Nullable,
    Registry,
    RegistryError,
    Str,
)
from tpc_broker.client.codecs.topics import ReadOptionsGiven, TypedBatch, TypedRecord
from tpc_broker.client.work.failures import HandlerError
from tpc_broker.client.work.policies import Retry, dead_letter
from tpc_broker.kafka import ApiKey, messages

SCHEMA: Final = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "number", "type": "long"}]})

NUMBERS: Final = itertools.count()


@dataclass
class Order:
    number: int


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


@asynccontextmanager
async def client_with_topic(broker: Any) -> AsyncIterator[tuple[Client, str]]:
    """Of one partition."""
    name = f"typed-topic-{next(NUMBERS)}"
    async with connect(broker.bootstrap) as client:
        topic = messages.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        request = messages.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        await (await client.fleet.any_channel()).call(ApiKey.CREATE_TOPICS, lambda _version: request)
        yield client, name


@on_both_loops
async def test_what_is_sent_comes_back_with_its_type(shared_broker: Any) -> None:
    async with client_with_topic(shared_broker) as (client, name):
        orders = client.topic(name, key=Str(), value=Json(Order))
        done = await orders.send(Order(1), key="ö", headers={"a": b"1"}, timestamp=5)
        assert (done.partition, done.offset) == (0, 0)
        slip = await orders.post(Order(2), partition=0)
        await slip
        async with orders.read(start="earliest") as stream:
            first, second = await anext(stream), await anext(stream)
        assert first == TypedRecord(name, 0, 0, 5, "ö", Order(1), (("a", b"1"),), first.leader_epoch)
        assert (second.key, second.value) == (None, Order(2))
        async with client.read(name) as raw:
            assert (await anext(raw)).value == b'{"number":1}'


@on_both_loops
async def test_without_codecs_it_is_bytes_and_nulls_go_through(shared_broker: Any) -> None:
    async with client_with_topic(shared_broker) as (client, name):
        plain, nullable = client.topic(name), client.topic(name, value=Nullable(Str()))
        await plain.send(None, key=b"")
        await nullable.send(None, key=b"k")
        await nullable.send("x")
        async with plain.read() as stream:
            assert [((await anext(stream)).key, (await anext(stream)).value) for _ in range(1)] == [(b"", None)]
            assert (await anext(stream)).value == b"x"
        async with nullable.read() as typed:
            assert [(await anext(typed)).value for _ in range(3)] == [None, None, "x"]


@on_both_loops
async def test_what_cannot_be_written_is_not_sent(shared_broker: Any) -> None:
    async with client_with_topic(shared_broker) as (client, name):
        with pytest.raises(EncodingError, match=rf"^{name}: Json makes no value of this"):
            await client.topic(name, value=Json()).send({1, 2})
        with pytest.raises(EncodingError, match=rf"^{name}: Str makes no key of this"):
            await client.topic(name, key=Str()).post(b"x", key=b"k")  # type: ignore[arg-type]
        assert (await client.topic(name, value=Str()).send("first")).offset == 0


@on_both_loops
async def test_what_cannot_be_read_is_named_and_the_next_one_comes(shared_broker: Any) -> None:
    async with client_with_topic(shared_broker) as (client, name):
        for value, key in ((b'{"number":0}', b"k"), (b"{", b"k"), (b'{"number":2}', b"\xff"), (b'{"number":3}', None)):
            await client.send(name, value, key=key)
        orders = client.topic(name, key=Str(), value=Json(Order))
        async with orders.read() as stream:
            assert (await anext(stream)).value == Order(0)
            with pytest.raises(DecodingError, match=rf"{name}-0 at offset 1: the value is not what Json\(Ord") as bad:
                await anext(stream)
            assert (bad.value.record.value, bad.value.offset) == (b"{", 1)
            with pytest.raises(DecodingError, match=f"{name}-0 at offset 2: the key is not what Str"):
                await anext(stream)
            assert (await anext(stream)).value == Order(3)


@on_both_loops
async def test_a_batch_ends_before_what_cannot_be_read(shared_broker: Any) -> None:
    async with client_with_topic(shared_broker) as (client, name):
        await client.send_all(name, [b'{"number":0}', b'{"number":1}', b"{", b"", b'{"number":4}'])
        found: list[Any] = []
        async with client.topic(name, value=Json(Order)).read() as stream:
            batches = stream.batches()
            while len(found) < 4:
                try:
                    batch: TypedBatch[bytes, Order] = await anext(batches)
                    found.append(([each.value.number for each in batch.records], batch.next_offset))
                except DecodingError as error:
                    found.append(error.offset)
        assert found == [([0, 1], 2), 2, 3, ([4], 5)]


@on_both_loops
async def test_a_registry_that_is_away_loses_no_record(shared_broker: Any, fake: FakeRegistry) -> None:
    async with client_with_topic(shared_broker) as (client, name), Registry(fake.address, retry_seconds=0) as registry:
        orders = client.topic(name, value=Avro(registry, Order, schema=SCHEMA, register=True))
        await client.send_all(name, [b"none of ours"])
        await client.send_all(name, [await orders.coded(Order(1)), await orders.coded(Order(2))])
        async with (
            Registry(fake.address, retry_seconds=0) as other,
            client.topic(name, value=Avro(other, Order, schema=SCHEMA)).read() as stream,
        ):
            with pytest.raises(DecodingError, match=r"at offset 0: .* no schema's id stands before it"):
                await anext(stream)
            fake.failures = [503] * 2
            for _ in range(2):
                with pytest.raises(RegistryError):
                    await anext(stream)
            assert [(await anext(stream)).value for _ in range(2)] == [Order(1), Order(2)]
        async with (
            Registry(fake.address, retry_seconds=0) as third,
            client.topic(name, value=Avro(third, Order)).read() as stream,
        ):
            batches = stream.batches()
            with pytest.raises(DecodingError):
                await anext(batches)
            fake.failures = [503]
            with pytest.raises(RegistryError):
                await anext(batches)
            assert [each.value for each in (await anext(batches)).records] == [Order(1), Order(2)]


@on_both_loops
async def test_for_each_takes_what_cannot_be_read_for_a_failure_that_stays(shared_broker: Any) -> None:
    async with client_with_topic(shared_broker) as (client, name), client_with_topic(shared_broker) as (_, dead):
        await client.send_all(name, [b'{"number":0}', b"{", b'{"number":2}'])
        orders, handled, stop = client.topic(name, value=Json(Order)), set(), anyio.Event()

        async def handle(record: TypedRecord[bytes, Order]) -> None:
            handled.add(record.value.number)
            if handled == {0, 2}:
                stop.set()

        policy = Retry(1000, delay_seconds=1000, then=dead_letter(dead))
        async with orders.read(group=name) as stream:
            await stream.for_each(handle, on_error=policy, stop=stop)
        async with client.read(dead) as letters:
            letter = await anext(letters)
        told = dict(letter.headers)
        assert letter.value == b"{"
        assert told["dead_letter.error"] == b"tpc_broker.client.codecs.codec.DecodingError"
        assert told["dead_letter.attempts"] == b"1"


@on_both_loops
async def test_for_each_stops_at_what_cannot_be_read(shared_broker: Any) -> None:
    async with client_with_topic(shared_broker) as (client, name):
        await client.send(name, b"{")

        async def handle(_record: TypedRecord[bytes, Any]) -> None:
            raise AssertionError

        async with client.topic(name, value=Json()).read(group=name) as stream:
            with pytest.raises(HandlerError, match=f"{name}-0 at offset 0") as error:
                await stream.for_each(handle)
        assert isinstance(error.value.__cause__, DecodingError)


@on_both_loops
async def test_work_has_types_and_gives_back_what_cannot_be_read(shared_broker: Any) -> None:
    async with client_with_topic(shared_broker) as (client, name):
        await client.send(name, b'{"number":0}')
        async with client.topic(name, value=Json(Order)).read(group=name) as stream:
            async with stream.work() as work:
                assert [each.value for each in work.records] == [Order(0)]
            await client.send(name, b"{")
            with pytest.raises(DecodingError):
                async with stream.work():
                    raise AssertionError
            async with stream.stream.work() as raw:
                assert [record.offset for record in raw.records] == [1]


@on_both_loops
async def test_typed_work_in_a_transaction_is_done_or_comes_again(shared_broker: Any) -> None:
    async with client_with_topic(shared_broker) as (client, name), client_with_topic(shared_broker) as (_, other):
        orders, results = client.topic(name, value=Json(Order)), client.topic(other, value=Json(Order))
        await client.send_all(name, [b'{"number":1}'])
        async with orders.read(group=name) as stream:
            for fails in (True, False):
                try:
                    async with stream.work(commit=False) as work, client.transaction(name) as tx:
                        for record in work.records:
                            await results.within(tx).post(Order(-record.value.number))
                        tx.done(work.batch)
                        if fails:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    assert tx.outcome is Outcome.ABORTED
            assert tx.outcome is Outcome.COMMITTED
        async with results.read() as found:
            assert (await anext(found)).value == Order(-1)


def test_a_typed_topic_is_read_with_all_options_of_the_client() -> None:
    given = set(inspect.signature(Client.read).parameters) - {"self", "topics", "assignment"}
    assert set(ReadOptionsGiven.__annotations__) == given
