"""What a codec is, and what goes wrong with one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from tpc_broker.client.errors import ClientError

if TYPE_CHECKING:
    from tpc_broker.client.values import Record

T = TypeVar("T")
Field: TypeAlias = Literal["key", "value"]


class Place(NamedTuple):
    """What is coded: a topic's keys or its values."""

    topic: str
    field: Field


class LackError(Exception):
    """Raised by a codec that has to ask before it can go on; its `Codec.supply` is awaited then, and it is asked again.

    ``subject`` of a schema that is to be written with; or None, and the ``schema_id`` to read with.
    """

    def __init__(self, subject: str | None = None, schema_id: int = -1) -> None:
        self.subject = subject
        self.schema_id = schema_id
        super().__init__(subject if subject is not None else f"schema {schema_id}")


class Codec(ABC, Generic[T]):
    """Makes bytes of values and values of bytes. Without state between calls, so that one may serve many topics.

    What it cannot code it says by any exception: an `EncodingError` or a `DecodingError` is made of it, which names
    topic, partition, offset and codec.
    """

    @abstractmethod
    def encode(self, value: T, place: Place) -> bytes | None:
        """None: a null, as a tombstone has it."""

    @abstractmethod
    def decode(self, data: bytes | None, place: Place) -> T:
        """None: the record has a null there."""

    async def supply(self, lack: LackError, place: Place) -> None:
        """Ask for what one of the two lacked."""
        raise NotImplementedError(f"{self}: {lack}")

    def __repr__(self) -> str:
        """The name that errors have."""
        return type(self).__name__


class CodecError(ClientError):
    """The family: a key or a value, and a codec that has no use for it. Trying again does not help."""


class EncodingError(CodecError):
    """Nothing was sent: the codec makes no bytes of what it was given."""

    def __init__(self, place: Place, codec: Codec[T], reason: Exception) -> None:
        self.topic, self.field = place
        self.codec = codec
        super().__init__(f"{place.topic}: {codec} makes no {place.field} of this: {_said(reason)}")


class DecodingError(CodecError):
    """A record that was read, whole in ``record``, and whose key or value is not what the codec reads."""

    def __init__(self, record: Record, field: Field, codec: Codec[T], reason: Exception) -> None:
        self.record = record
        self.topic, self.partition, self.offset = record.topic, record.partition, record.offset
        self.field = field
        self.codec = codec
        where = f"{record.topic}-{record.partition} at offset {record.offset}"
        super().__init__(f"{where}: the {field} is not what {codec} reads: {_said(reason)}")


def _said(reason: Exception) -> str:
    text = str(reason)
    return f"{type(reason).__name__}: {text}" if text else type(reason).__name__
