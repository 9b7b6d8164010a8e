"""`connect` and the `Client` it gives: everything a program asks of a cluster, in one place."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from tpc_broker.client.errors import ClosedError
from tpc_broker.client.net.fleet import Fleet, FleetSettings
from tpc_broker.client.net.settings import fleet_settings
from tpc_broker.client.net.tasks import background_tasks
from tpc_broker.client.producer.front import CLOSED, Producer
from tpc_broker.client.producer.sending import Sending
from tpc_broker.client.producer.settings import ProducerSettings, bytes_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from tpc_broker.client.admin import Admin
    from tpc_broker.client.codecs.codec import Codec
    from tpc_broker.client.codecs.topics import Topic
    from tpc_broker.client.consumer.options import AssignmentLike, IsolationLike, OnMissing, TopicsLike
    from tpc_broker.client.consumer.starts import StartLike
    from tpc_broker.client.consumer.stream import Stream
    from tpc_broker.client.membership.settings import GroupSettings
    from tpc_broker.client.net.fleet import Dial
    from tpc_broker.client.net.settings import AuthSettings
    from tpc_broker.client.net.tasks import Background
    from tpc_broker.client.producer.settings import CompressionName, Partitioner
    from tpc_broker.client.security import TlsSettings
    from tpc_broker.client.transaction.front import Transaction, Transactors

K = TypeVar("K")
V = TypeVar("V")


class Reachable(Protocol):
    """What `connect` takes in place of an address: where, and a way there of its own (`tpc_broker.testing`)."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def dial(self) -> Dial: ...


class Client(Sending):
    """Made by `connect`. All of its tasks belong to one event loop."""

    def __init__(self, fleet: Fleet, tasks: Background, producer_settings: ProducerSettings | None = None) -> None:
        self.fleet = fleet
        self._tasks = tasks
        self._producer_settings = producer_settings or ProducerSettings()
        self._producer: Producer | None = None
        self._streams: list[Stream] = []
        self._is_left = False

    @property
    def producer(self) -> Producer:
        """What `send` and its kin use; made when it is first asked for. `ClosedError`: the block has been left."""
        if self._producer is None:
            self._check_open()
            self._producer = Producer(self.fleet, self._tasks, self._producer_settings)
        return self._producer

    async def flush(self) -> None:
        """Wait until everything that was handed over before is delivered or has failed. Nothing lingers meanwhile.

        `UndeliveredError` for records that were not delivered and whose slips nobody awaited; they are told of once.
        """
        if self._producer is not None:
            await self._producer.flush()

    @cached_property
    def admin(self) -> Admin:
        """Topics, settings, groups and their offsets, users, rules of access, quotas, transactions, the cluster."""
        from tpc_broker.client.admin import Admin  # noqa: PLC0415 - for who asks for it

        return Admin(self.fleet)

    def read(  # noqa: PLR0913 - each is a setting of its own
        self,
        topics: TopicsLike | None = None,
        *,
        assignment: AssignmentLike | None = None,
        group: str | GroupSettings | None = None,
        start: StartLike = "earliest",
        isolation: IsolationLike = "read_committed",
        on_missing: OnMissing = "raise",
        memory: int | str = "64MiB",
        fetch_bytes: int = 16 * 1024 * 1024,
        partition_bytes: int = 1024 * 1024,
        wait_seconds: float = 0.5,
        rack: str | None = None,
        commit_seconds: float = 5.0,
        leave_seconds: float = 10.0,
        topics_seconds: float = 30.0,
    ) -> AbstractAsyncContextManager[Stream]:
        """``async with client.read("orders") as stream: async for record in stream: …``

        ``topics`` are a name, names, or an expression (`re.compile`) that names are to match as a whole. In their
        place, ``assignment`` names partitions and where each begins: an offset, a `Position`, "earliest", "latest",
        or None (what is committed, or else ``start``).

        Without ``group`` all partitions of the topics are read, also those that are added later, and nothing is
        committed. With one, the partitions are divided among its members, and each goes on where its group has
        committed; a `GroupSettings` in place of the name says more. With a group and an assignment, the group only
        keeps positions.

        ``start`` is where a partition begins that has no position: "earliest", "latest", an `Offset`, a datetime, or
        ms since 1970 (the first record that is not older). ``isolation`` "read_committed" leaves out records of
        transactions that were aborted and waits for those that are open; "read_uncommitted" does neither.
        ``on_missing``: what to do when the offset to read at is not in the log (any more): raise
        `OffsetsMissingError`, or go on at the "earliest" or the "latest" there is, with a warning in the log.

        ``memory`` bounds what was fetched and not handed out, as bytes or "64MiB"; ``fetch_bytes`` one answer of a
        broker, ``partition_bytes`` one partition in it. A single batch that is larger comes all the same.
        ``wait_seconds``: how long a broker holds a fetch that finds nothing. ``rack``: where this program is (the
        client's, if None), so that a replica nearby may be read from.

        ``commit_seconds``: how often what is finished is committed in the background, with a group. ``leave_seconds``
        bounds the last commit, and then the goodbye to the group. ``topics_seconds``: between two looks at which
        partitions there are.

        Raises `ValueError` for an option that cannot be; `UnknownTopicError` for a topic that is not there. Reading
        raises `OffsetsMissingError`, `DamagedDataError`, `TopicReplacedError`, or what could not be mended within the
        client's ``retry_seconds``.
        """
        from tpc_broker.client.consumer.options import Chosen, ReadOptions, reading  # noqa: PLC0415 - who only writes needs none

        options = ReadOptions(
            start=start,
            isolation=isolation,
            on_missing=on_missing,
            memory=memory,
            fetch_bytes=fetch_bytes,
            partition_bytes=partition_bytes,
            wait_seconds=wait_seconds,
            rack=self.fleet.settings.rack if rack is None else rack,
            commit_seconds=commit_seconds,
            leave_seconds=leave_seconds,
            topics_seconds=topics_seconds,
        )
        return self._kept(reading(self.fleet, Chosen(topics, assignment, group), options, self.send))

    @overload
    def topic(self, name: str) -> Topic[bytes, bytes | None]: ...
    @overload
    def topic(self, name: str, *, value: Codec[V]) -> Topic[bytes, V]: ...
    @overload
    def topic(self, name: str, *, key: Codec[K]) -> Topic[K, bytes | None]: ...
    @overload
    def topic(self, name: str, *, key: Codec[K], value: Codec[V]) -> Topic[K, V]: ...
    def topic(self, name: str, *, key: Codec[Any] | None = None, value: Codec[Any] | None = None) -> Topic[Any, Any]:
        """A topic whose keys and values have types, to send to and read from: `tpc_broker.client.codecs`.

        Without a codec they are bytes. A key may always be missing; a value that may be null has the codec
        ``Nullable(…)``. Nothing is asked of the cluster yet.
        """
        from tpc_broker.client.codecs import Bytes  # noqa: PLC0415 - who sends bytes needs none
        from tpc_broker.client.codecs.topics import Topic  # noqa: PLC0415

        return Topic(self, name, Bytes() if key is None else key, Bytes() if value is None else value)

    @asynccontextmanager
    async def _kept(self, made: AbstractAsyncContextManager[Stream]) -> AsyncIterator[Stream]:
        """What is done in transactions is looked for in the streams that are open."""
        async with made as stream:
            self._streams.append(stream)
            try:
                yield stream
            finally:
                self._streams.remove(stream)

    def transaction(
        self, transactional_id: str, *, timeout_seconds: float = 60.0
    ) -> AbstractAsyncContextManager[Transaction]:
        """``async with client.transaction("billing-1") as tx: await tx.send("invoices", value); tx.done(batch)``

        Readers of committed records see what was sent in it, and groups have what was done in it, all or nothing: when
        the block ends well it is committed, when an error or a cancellation leaves it it is aborted. `tx.outcome` says
        which, also of a block that was cancelled while it ended.

        One client has one transaction of an id at a time (`TransactionInUseError`), and any number one after the other.
        Another client that takes the same id fences this one: `FencedError`, from then on. After ``timeout_seconds``
        (at most the broker's transaction.max.timeout.ms) the coordinator aborts what is open.

        The end raises `TransactionAbortedError` when something in it was not delivered or its time was over,
        `TransactionInDoubtError` when the coordinator did not say within ``retry_seconds`` whether a commit was carried
        out, or what the coordinator said.
        """
        self._check_open()
        return self._transactors.begin(transactional_id, timeout_seconds, self._streams)

    @cached_property
    def _transactors(self) -> Transactors:
        from tpc_broker.client.transaction.front import Transactors  # noqa: PLC0415 - for who asks for it

        return Transactors(self.fleet, self._tasks, self._producer_settings, self.producer.budget)

    async def leave(self) -> None:
        """The block has ended well."""
        try:
            if self._producer is not None:
                await self._producer.leave()
        finally:
            self._close()

    def abandon(self, error: BaseException) -> None:
        """The block has ended by an error: nothing is waited for."""
        if self._producer is not None:
            self._producer.abandon("the client's block was left by an error")
            self._producer.note_losses(error)
        self._close()

    def _close(self) -> None:
        """Transactions that other tasks have open still are aborted by those, whose waiting ends now."""
        self._is_left = True
        if "_transactors" in self.__dict__:
            self._transactors.abandon("the client was left while the transaction was open")

    def _check_open(self) -> None:
        if self._is_left:
            raise ClosedError(CLOSED)


@asynccontextmanager
async def connect(  # noqa: PLR0913 - what there is to say, by keyword
    bootstrap: str | Reachable,
    *,
    client_id: str = "tpc",
    tls: TlsSettings | bool | None = None,
    auth: AuthSettings | None = None,
    rack: str = "",
    connect_seconds: float = 10.0,
    request_seconds: float = 30.0,
    retry_seconds: float = 120.0,
    memory: int | str = "64MiB",
    compression: CompressionName = "none",
    batch_bytes: int | str = "1MiB",
    linger_seconds: float = 0.0,
    delivery_seconds: float = 120.0,
    leave_seconds: float = 10.0,
    idempotent: bool = True,
    acks: Literal["all", 1] = "all",
    partitioner: Partitioner | None = None,
) -> AsyncIterator[Client]:
    """A client of the cluster that has a broker at ``bootstrap`` (host:port, several with commas; or a `MemoryBroker`).

    ``client_id`` names the program to the brokers (quotas, logs). ``tls``: True for TLS with the certificates that the
    system trusts, or `TlsSettings`; a broker that cannot prove its name is not talked to. ``auth``: `SaslSettings` for
    PLAIN and SCRAM, `OAuthSettings` for tokens; without ``tls``, PLAIN and tokens can be read by the network. ``rack``:
    where this program runs, for reading from replicas nearby.

    Times in seconds: ``connect_seconds`` for one connection with TLS and login, ``request_seconds`` for one answer,
    ``retry_seconds`` for an operation with all its repetitions: what may be tried again is an error only after that.

    For sending: ``memory`` that records may take, in bytes or as "64MiB"; who has more to send waits. ``compression``:
    none, gzip, snappy, lz4, zstd. ``batch_bytes``: of a batch before it is compressed. ``linger_seconds``: how long a
    batch waits for more records though the broker could take it. ``delivery_seconds``: after which a record that is not
    delivered fails. ``idempotent``: what is sent again is in the log once. ``acks``: "all", or 1 for the leader's word
    alone (without ``idempotent``). ``partitioner``: a function of topic, key and number of partitions that chooses one.

    When the block ends, what was posted is delivered first, for ``leave_seconds`` at most; what was not is told by
    `UndeliveredError`. A block that ends by an error or is cancelled is left at once; the error then has a note of what
    was not delivered.

    `ValueError` says what is wrong with an argument. `AuthenticationError`: certificates or a key cannot be used.
    Nothing is sent before something is asked for.
    """
    where, dial = (bootstrap, None) if isinstance(bootstrap, str) else (bootstrap.bootstrap, bootstrap.dial)
    settings = fleet_settings(
        where, client_id=client_id, tls=tls, auth=auth, rack=rack,
        connect_seconds=connect_seconds, request_seconds=request_seconds, retry_seconds=retry_seconds,
    )  # fmt: skip
    sending = ProducerSettings(
        memory_bytes=bytes_of(memory, "memory"), batch_bytes=bytes_of(batch_bytes, "batch_bytes"),
        compression=compression,
        linger_seconds=linger_seconds, delivery_seconds=delivery_seconds, leave_seconds=leave_seconds,
        idempotent=idempotent, acks=acks, partitioner=partitioner,
    )  # fmt: skip
    async with opened(settings, dial, sending=sending) as client:
        yield client


@asynccontextmanager
async def opened(
    settings: FleetSettings, dial: Dial | None = None, sending: ProducerSettings | None = None
) -> AsyncIterator[Client]:
    """`connect` with all settings; ``dial``: another way to the brokers than the network."""
    async with background_tasks() as tasks:
        fleet = Fleet(settings, tasks) if dial is None else Fleet(settings, tasks, dial)
        client = Client(fleet, tasks, sending)
        try:
            yield client
            await client.leave()
        except BaseException as error:
            client.abandon(error)
            raise
        finally:
            fleet.close()
