"""What the codecs with a registry share: the frame, the ids, what is kept of schemas that were read."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from tpc_broker.client.codecs.codec import Codec, LackError
from tpc_broker.client.codecs.framing import framed, schema_id_of
from tpc_broker.client.codecs.plain import NullError
from tpc_broker.client.codecs.registry import Kept, RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.client.codecs.codec import Place
    from tpc_broker.client.codecs.registry import Registry, Schema

T = TypeVar("T")
SubjectName: TypeAlias = "Callable[[Place, str], str]"
"""The subject of a topic's keys or values; it is told the full name of the schema's record, too."""


def by_topic(place: Place, _record: str) -> str:
    """``orders-value``, ``orders-key``."""
    return f"{place.topic}-{place.field}"


def by_record(_place: Place, record: str) -> str:
    """``com.example.Order``: one schema for all topics that it is in."""
    return record


def by_topic_and_record(place: Place, record: str) -> str:
    """``orders-com.example.Order``: a topic with several kinds of records."""
    return f"{place.topic}-{record}"


class RegisteredCodec(Codec[T]):
    """A codec writes with one schema, and reads with the one that the record names."""

    kind: ClassVar[str]

    def __init__(self, registry: Registry, *, register: bool, subject: SubjectName) -> None:
        self._registry = registry
        self._register = register
        self._subject = subject
        self._readers: Kept[int, Any] = Kept(registry.schemas_max)
        self._ids: Kept[str, int] = Kept(registry.schemas_max)

    def encode(self, value: T, place: Place) -> bytes:
        subject = self._subject(place, self._record_name())
        schema_id = self._ids.get(subject)
        if schema_id is None:
            raise LackError(subject=subject)
        return framed(schema_id, self._write(value))

    def decode(self, data: bytes | None, _place: Place) -> T:
        if data is None:
            raise NullError
        schema_id = schema_id_of(data)
        reader = self._readers.get(schema_id)
        if reader is None:
            raise LackError(schema_id=schema_id)
        return self._read(reader, data)

    async def supply(self, lack: LackError, _place: Place) -> None:
        if lack.subject is None:
            schema = await self._registry.schema(lack.schema_id)
            if schema.kind != self.kind:
                raise ValueError(f"schema {lack.schema_id} is one of {schema.kind}")
            reader = self._reader(schema, await self._registry.referenced(schema))
            self._readers.keep(lack.schema_id, reader)
        else:
            schema = await self._prepared()
            found = await self._registry.schema_id(lack.subject, schema, register=self._register)
            self._ids.keep(lack.subject, found)

    @abstractmethod
    def _record_name(self) -> str:
        """For the names of subjects."""

    @abstractmethod
    async def _prepared(self) -> Schema:
        """The schema to write with; after it `_write` works."""

    @abstractmethod
    def _reader(self, schema: Schema, referenced: dict[str, Schema]) -> Any:
        """What `_read` is given for records with that schema."""

    @abstractmethod
    def _write(self, value: T) -> bytes: ...

    @abstractmethod
    def _read(self, reader: Any, data: bytes) -> T:
        """``data`` with its frame."""


def no_schema(codec: object) -> RegistryError:
    return RegistryError(f"{codec} has no schema to write with: give it one (`schema`)")
