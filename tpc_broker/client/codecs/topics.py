"""A topic whose keys and values have types, and what is read of it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypedDict, TypeVar, cast

from tpc_broker.client.codecs.codec import Codec, DecodingError, LackError, Place
from tpc_broker.client.codecs.coding import encoded, supplied
from tpc_broker.client.work.for_each import WINDOW_RECORDS
from tpc_broker.client.work.policies import Stop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
    from typing import Unpack

    import anyio

    from tpc_broker.client.consumer.options import IsolationLike, OnMissing
    from tpc_broker.client.consumer.starts import StartLike
    from tpc_broker.client.consumer.stream import Batches, Stream
    from tpc_broker.client.handle import Client
    from tpc_broker.client.membership.settings import GroupSettings
    from tpc_broker.client.producer.slip import Slip
    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.client.values import Batch, Delivered, Headers, HeadersLike, Record
    from tpc_broker.client.work.batches import WorkBatch
    from tpc_broker.client.work.policies import OnError

K = TypeVar("K")
V = TypeVar("V")


class TypedRecord(NamedTuple, Generic[K, V]):
    """A `Record` whose key and value have gone through codecs. ``key`` None: it has none. Times in ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: K | None
    value: V
    headers: Headers
    leader_epoch: int


class ReadOptionsGiven(TypedDict, total=False):
    """What `Client.read` takes beside topics and assignments; its docstring explains each."""

    group: str | GroupSettings | None
    start: StartLike
    isolation: IsolationLike
    on_missing: OnMissing
    memory: int | str
    fetch_bytes: int
    partition_bytes: int
    wait_seconds: float
    rack: str | None
    commit_seconds: float
    leave_seconds: float
    topics_seconds: float


@dataclass(slots=True)
class TypedBatch(Generic[K, V]):
    """Records of one partition, in order; iterating gives them. ``next_offset``: where reading goes on behind them."""

    where: TopicPartition
    records: Sequence[TypedRecord[K, V]]
    next_offset: int

    def __iter__(self) -> Iterator[TypedRecord[K, V]]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


class TypedWork(NamedTuple, Generic[K, V]):
    """What `TypedStream.work` gives. ``batch`` is what a transaction takes: ``tx.done(work.batch)``."""

    batch: WorkBatch
    records: Sequence[TypedRecord[K, V]]


class Sends(Protocol):
    """What a typed topic sends with: a `Client`, or a transaction."""

    def send(  # noqa: PLR0913 - what a record has
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike = (),
        partition: int | None = None, timestamp: int | None = None,
    ) -> Coroutine[Any, Any, Delivered]: ...  # fmt: skip

    def post(  # noqa: PLR0913
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike = (),
        partition: int | None = None, timestamp: int | None = None,
    ) -> Coroutine[Any, Any, Slip]: ...  # fmt: skip


class Topic(Generic[K, V]):
    """Made by `Client.topic`. Costs nothing to make, and holds nothing open."""

    def __init__(self, client: Client, name: str, key: Codec[K], value: Codec[V], sends: Sends | None = None) -> None:
        self.name = name
        self._client = client
        self._sends: Sends = client if sends is None else sends
        self._key = key
        self._value = value
        self._key_place = Place(name, "key")
        self._value_place = Place(name, "value")

    def within(self, transaction: Sends) -> Topic[K, V]:
        """The same topic; what is sent to it belongs to the transaction."""
        return Topic(self._client, self.name, self._key, self._value, transaction)

    async def send(
        self, value: V, *, key: K | None = None, headers: HeadersLike = (), partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivered:  # fmt: skip
        """As `Client.send`. `EncodingError`: nothing was sent, as a codec makes no bytes of this. `RegistryError`."""
        at, data = await self.coded(value, key=key)
        return await self._sends.send(
            self.name, data, key=at, headers=headers, partition=partition, timestamp=timestamp
        )  # fmt: skip

    async def post(
        self, value: V, *, key: K | None = None, headers: HeadersLike = (), partition: int | None = None,
        timestamp: int | None = None,
    ) -> Slip:  # fmt: skip
        """As `Client.post`. `EncodingError`: nothing was sent, as a codec makes no bytes of this. `RegistryError`."""
        at, data = await self.coded(value, key=key)
        return await self._sends.post(
            self.name, data, key=at, headers=headers, partition=partition, timestamp=timestamp
        )  # fmt: skip

    async def coded(self, value: V, *, key: K | None = None) -> tuple[bytes | None, bytes | None]:
        """Key and value as bytes: what `Client.send_all` takes. `EncodingError`, `RegistryError`."""
        data = await encoded(self._value, value, self._value_place)
        return None if key is None else await encoded(self._key, key, self._key_place), data

    @asynccontextmanager
    async def read(self, **options: Unpack[ReadOptionsGiven]) -> AsyncIterator[TypedStream[K, V]]:
        """As `Client.read`, and with the same options."""
        async with self._client.read(self.name, **options) as stream:
            yield TypedStream(self, stream)

    async def decoded(self, record: Record) -> TypedRecord[K, V]:
        """A record of this topic that was read as bytes. `DecodingError`, `RegistryError`."""
        while True:
            place, codec = self._key_place, cast("Codec[Any]", self._key)
            try:
                key = None if record.key is None else codec.decode(record.key, place)
                place, codec = self._value_place, self._value
                value: V = codec.decode(record.value, place)
            except LackError as lack:
                await supplied(codec, lack, record, place)
            except Exception as error:
                raise DecodingError(record, place.field, codec, error) from error
            else:
                return TypedRecord(record[0], record[1], record[2], record[3], key, value, record[6], record[7])

    async def decoded_all(self, records: Iterable[Record]) -> list[TypedRecord[K, V]]:
        """All of them, or the first one's `DecodingError`."""
        return [await self.decoded(record) for record in records]


class TypedStream(Generic[K, V]):
    """What `Topic.read` gives: a `Stream` whose records have types. ``stream`` is the one of bytes: its positions,
    commits, pauses are that one's.

    A record that a codec cannot read is raised as `DecodingError`, and counts as handed out: the next item is the next
    record. With a `RegistryError` the next item is the same record again.
    """

    def __init__(self, topic: Topic[K, V], stream: Stream) -> None:
        self.topic = topic
        self.stream = stream
        self._held: Record | None = None

    def __aiter__(self) -> TypedStream[K, V]:
        return self

    async def __anext__(self) -> TypedRecord[K, V]:
        record = self._held
        if record is None:
            record = self._held = await self.stream.__anext__()
        try:
            typed = await self.topic.decoded(record)
        except DecodingError:
            self._held = None
            raise
        self._held = None
        return typed

    def batches(self, max_records: int = 1000) -> TypedBatches[K, V]:
        """As `Stream.batches`. A batch ends before a record that cannot be read, which the next one begins with: it is
        raised then.
        """
        return TypedBatches(self.topic, self.stream.batches(max_records))

    @asynccontextmanager
    async def work(self, *, max_records: int = 1000, commit: bool = True) -> AsyncIterator[TypedWork[K, V]]:
        """As `Stream.work`. A record that cannot be read gives the batch back, as any error in the block does."""
        async with self.stream.work(max_records=max_records, commit=commit) as batch:
            yield TypedWork(batch, await self.topic.decoded_all(batch.records))

    async def for_each(  # noqa: PLR0913 - options with defaults
        self,
        handle: Callable[[TypedRecord[K, V]], Awaitable[object]],
        *,
        concurrency: int = 64,
        order: Literal["key", "partition", "none"] = "key",
        on_error: OnError = Stop(),  # noqa: B008 - it is frozen
        window: int = WINDOW_RECORDS,
        stop: anyio.Event | None = None,
    ) -> None:
        """As `Stream.for_each`. A record that cannot be read is what ``handle`` fails with, so that ``on_error``
        decides, without trying again: a dead letter of it has the bytes as they were.
        """

        async def typed(record: Record) -> None:
            await handle(await self.topic.decoded(record))

        await self.stream.for_each(
            typed, concurrency=concurrency, order=order, on_error=on_error, window=window, stop=stop
        )  # fmt: skip


class TypedBatches(Generic[K, V]):
    """The batches of a typed stream, as an asynchronous iterator."""

    def __init__(self, topic: Topic[K, V], batches: Batches) -> None:
        self._topic = topic
        self._batches = batches
        self._batch: Batch | None = None
        self._index = 0
        """In the batch that is held: of the record that comes next."""

    def __aiter__(self) -> TypedBatches[K, V]:
        return self

    async def __anext__(self) -> TypedBatch[K, V]:
        if self._batch is None:
            self._batch, self._index = await self._batches.__anext__(), 0
        where, records = self._batch.where, self._batch.records
        next_offset = self._batch.next_offset
        typed = []
        for record in records[self._index :]:
            try:
                typed.append(await self._topic.decoded(record))
            except DecodingError:
                if typed:
                    next_offset = record.offset
                    break
                self._passed(1)
                raise
        self._passed(len(typed))
        return TypedBatch(where, typed, next_offset)

    def _passed(self, count: int) -> None:
        self._index += count
        if self._batch is not None and self._index >= len(self._batch.records):
            self._batch = None
