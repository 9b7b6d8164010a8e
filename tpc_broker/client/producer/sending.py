"""What is sent with: `send`, `post` and `send_all` of a client and of a transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, overload

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tpc_broker.client.producer.bulk import Records, Sent
    from tpc_broker.client.producer.front import Producer
    from tpc_broker.client.producer.slip import Slip
    from tpc_broker.client.values import Delivered, HeadersLike, Record

_NOTHING: Final[Any] = object()


class Sending(ABC):
    """By a producer of its own."""

    @property
    @abstractmethod
    def producer(self) -> Producer:
        """What it sends with. `ClientError`: nothing can be sent any more."""

    @overload
    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Coroutine[Any, Any, Delivered]: ...
    @overload
    def send(
        self, topic: str, *, record: Record, partition: int | None = None, timestamp: int | None = None
    ) -> Coroutine[Any, Any, Delivered]: ...
    def send(  # noqa: PLR0913 - what a record has
        self,
        topic: str,
        value: bytes | None = _NOTHING,
        *,
        key: bytes | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp: int | None = None,
        record: Record | None = None,
    ) -> Coroutine[Any, Any, Delivered]:
        """Send one record and wait until it is in the log: gives where.

        ``key`` None: no key; b"" is a key. ``headers``: a mapping, or pairs of name and value, of which a name may have
        several. ``partition`` None: by the key as Java's clients choose it, or wherever there is most room.
        ``timestamp`` in ms since 1970, None: now. ``record``: one that was read, sent on with its key, value, headers
        and time stamp; its partition is chosen anew.

        `DeliveryError` after ``delivery_seconds``, or at once when the broker refuses it for good
        (`RecordRefusedError`); its ``fate`` says whether the record may be in the log. `UnknownTopicError`,
        `RecordTooLargeError`: it was not taken. Cancelled before its batch is sealed, the record was certainly not
        sent; later only the waiting ends.
        """
        if record is not None:
            return self.producer.send(topic, *_row_of(record, timestamp, partition))
        if value is _NOTHING:
            raise TypeError("send() needs a value (None for a null one) or record=")
        return self.producer.send(topic, value, key, headers, partition, timestamp)

    @overload
    def post(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Coroutine[Any, Any, Slip]: ...
    @overload
    def post(
        self, topic: str, *, record: Record, partition: int | None = None, timestamp: int | None = None
    ) -> Coroutine[Any, Any, Slip]: ...
    def post(  # noqa: PLR0913 - what a record has
        self,
        topic: str,
        value: bytes | None = _NOTHING,
        *,
        key: bytes | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp: int | None = None,
        record: Record | None = None,
    ) -> Coroutine[Any, Any, Slip]:
        """Hand over one record, as `send` has it, and wait only for room in the client's memory for records.

        The slip is awaitable, tells the record's ``fate`` at any time and can ``withdraw`` it. A slip may be dropped:
        what is not delivered then is told by `flush`, and when the client's block is left.
        """
        if record is not None:
            return self.producer.post(topic, *_row_of(record, timestamp, partition))
        if value is _NOTHING:
            raise TypeError("post() needs a value (None for a null one) or record=")
        return self.producer.post(topic, value, key, headers, partition, timestamp)

    async def send_all(self, topic: str, records: Records, *, partition: int | None = None) -> Sent:
        """Send what an iterable, or an asynchronous one, gives, and wait until all of it is in the log: gives how many
        records there are in which partition, and their first and last offset.

        An item is a value, a pair of key and value, or a `Record` that was read. In each partition they keep their
        order. Not more is taken from the iterable than there is room for. `UndeliveredError`: some were not delivered;
        no more was taken once that was known. Cancelled, what is not in a sealed batch is withdrawn.
        """
        return await self.producer.send_all(topic, records, partition)


def _row_of(
    record: Record, timestamp: int | None, partition: int | None
) -> tuple[bytes | None, bytes | None, HeadersLike, int | None, int | None]:
    if timestamp is None and record.timestamp >= 0:
        timestamp = record.timestamp
    return record.value, record.key, record.headers, partition, timestamp
