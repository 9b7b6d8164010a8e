"""Avro with a registry, by fastavro (the extra `registry`)."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

import fastavro

from tpc_broker.client.codecs.framing import HEAD
from tpc_broker.client.codecs.registered import RegisteredCodec, by_topic, no_schema
from tpc_broker.client.codecs.registry import Schema
from tpc_broker.client.codecs.structures import KEPT, converters

if TYPE_CHECKING:
    from tpc_broker.client.codecs.registered import SubjectName
    from tpc_broker.client.codecs.registry import Registry

T = TypeVar("T")


class Avro(RegisteredCodec[T]):
    """``Avro(registry)`` gives dicts as they were written; ``Avro(registry, Order)`` values of that type, by msgspec.

    ``schema`` (its text, or a `Schema` with references) is what is written with, and what records of other versions are
    read as, by Avro's rules of resolution. It has to be in the registry under its subject, unless ``register``.
    """

    kind: ClassVar[str] = "AVRO"

    @overload
    def __init__(
        self: Avro[Any], registry: Registry, *, schema: str | Schema | None = None, register: bool = False,
        subject: SubjectName = by_topic,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self, registry: Registry, kind: type[T], *, schema: str | Schema | None = None, register: bool = False,
        subject: SubjectName = by_topic,
    ) -> None: ...  # fmt: skip
    def __init__(
        self, registry: Registry, kind: Any = None, *, schema: str | Schema | None = None, register: bool = False,
        subject: SubjectName = by_topic,
    ) -> None:  # fmt: skip
        super().__init__(registry, register=register, subject=subject)
        self._own = Schema(self.kind, schema) if isinstance(schema, str) else schema
        self._parsed: Any = None
        self._plain, self._made = converters(kind, KEPT)

    async def supply(self, lack: Any, place: Any) -> None:
        if self._own is not None and self._parsed is None:
            self._parsed = _parsed(self._own, await self._registry.referenced(self._own))
        await super().supply(lack, place)

    def _record_name(self) -> str:
        if self._own is None:
            raise no_schema(self)
        named = json.loads(self._own.text)
        if not isinstance(named, dict) or "name" not in named:
            return ""
        return ".".join(filter(None, (named.get("namespace"), named["name"])))

    async def _prepared(self) -> Schema:
        if self._own is None:
            raise no_schema(self)
        return self._own

    def _reader(self, schema: Schema, referenced: dict[str, Schema]) -> Any:
        return _parsed(schema, referenced)

    def _write(self, value: T) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._parsed, self._plain(value), strict_allow_default=True)
        return out.getvalue()

    def _read(self, reader: Any, data: bytes) -> T:
        body = io.BytesIO(data)
        body.seek(HEAD.size)
        value = fastavro.schemaless_reader(body, reader, self._parsed)
        if body.tell() != len(data):
            raise ValueError(f"{len(data) - body.tell()} bytes are left over")
        made: T = self._made(value)
        return made


def _parsed(schema: Schema, referenced: dict[str, Schema]) -> Any:
    names: dict[str, Any] = {}
    for each in referenced.values():
        fastavro.parse_schema(json.loads(each.text), named_schemas=names)
    return fastavro.parse_schema(json.loads(schema.text), named_schemas=names)
