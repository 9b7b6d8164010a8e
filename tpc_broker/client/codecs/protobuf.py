"""Protobuf with a registry, by Google's library (the extra `registry`)."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from tpc_broker.client.codecs.framing import indexes_read, indexes_written
from tpc_broker.client.codecs.registered import RegisteredCodec, by_topic
from tpc_broker.client.codecs.registry import Reference, Schema

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from tpc_broker.client.codecs.registered import SubjectName
    from tpc_broker.client.codecs.registry import Registry

M = TypeVar("M", bound="Message")
_EVERYWHERE = "google/protobuf/"
"""Files that every registry and every library has."""


class Protobuf(RegisteredCodec[M]):
    """``Protobuf(registry, Order)``, a generated class. What is read is parsed as that message, whatever the record's
    schema calls it; the schema has to be known to the registry, and to be one of Protobuf.

    With ``register`` the message's file, and the files that it imports, get subjects where they have none.
    """

    kind: ClassVar[str] = "PROTOBUF"

    def __init__(
        self, registry: Registry, message: type[M], *, register: bool = False, subject: SubjectName = by_topic
    ) -> None:
        super().__init__(registry, register=register, subject=subject)
        self._message = message
        self._indexes = indexes_written(_path(message.DESCRIPTOR))

    def _record_name(self) -> str:
        return str(self._message.DESCRIPTOR.full_name)

    async def _prepared(self) -> Schema:
        return await self._schema_of(self._message.DESCRIPTOR.file)

    async def _schema_of(self, file: Any) -> Schema:
        references = []
        for imported in file.dependencies:
            if not imported.name.startswith(_EVERYWHERE):
                schema = await self._schema_of(imported)
                await self._registry.schema_id(imported.name, schema, register=self._register)
                version = await self._registry.version_of(imported.name, schema)
                references.append(Reference(imported.name, imported.name, version))
        return Schema(self.kind, base64.b64encode(file.serialized_pb).decode(), tuple(references))

    def _reader(self, schema: Schema, _referenced: dict[str, Schema]) -> Any:
        return schema

    def _write(self, value: M) -> bytes:
        if not isinstance(value, self._message):
            raise TypeError(f"a {self._record_name()}, not a {type(value).__name__}")
        body: bytes = value.SerializeToString()
        return self._indexes + body

    def _read(self, _reader: Any, data: bytes) -> M:
        _indexes, begin = indexes_read(data)
        made: M = self._message()
        made.ParseFromString(data[begin:])
        return made

    def __repr__(self) -> str:
        return f"Protobuf({self._record_name()})"


def _path(descriptor: Any) -> tuple[int, ...]:
    """Where a message is in its file."""
    outer = descriptor.containing_type
    if outer is not None:
        return (*_path(outer), [each.name for each in outer.nested_types].index(descriptor.name))
    file = FileDescriptorProto()
    descriptor.file.CopyToProto(file)
    return ([each.name for each in file.message_type].index(descriptor.name),)
