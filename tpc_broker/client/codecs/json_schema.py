"""JSON that is checked by a registry's JSON Schema, by jsonschema-rs (the extra `registry`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, overload

import jsonschema_rs

from tpc_broker.client.codecs.framing import HEAD
from tpc_broker.client.codecs.registered import RegisteredCodec, by_topic, no_schema
from tpc_broker.client.codecs.registry import Schema
from tpc_broker.client.codecs.structures import converters

if TYPE_CHECKING:
    from tpc_broker.client.codecs.registered import SubjectName
    from tpc_broker.client.codecs.registry import Registry

T = TypeVar("T")
MASK: Final = "what is there"
"""Errors have it in place of values."""


class JsonSchema(RegisteredCodec[T]):
    """``JsonSchema(registry)`` gives what JSON is in Python; ``JsonSchema(registry, Order)`` values of that type.

    What is read is checked by the schema that the record names, what is written by ``schema`` (its text, or a `Schema`
    with references), which has to be in the registry under its subject, unless ``register``. Nothing is fetched that a
    schema refers to and the registry does not have.
    """

    kind: ClassVar[str] = "JSON"

    @overload
    def __init__(
        self: JsonSchema[Any], registry: Registry, *, schema: str | Schema | None = None, register: bool = False,
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
        self._checker: Any = None
        self._plain, self._made = converters(kind, ())

    def _record_name(self) -> str:
        if self._own is None:
            raise no_schema(self)
        return str(json.loads(self._own.text).get("title", ""))

    async def _prepared(self) -> Schema:
        if self._own is None:
            raise no_schema(self)
        if self._checker is None:
            self._checker = _checker(self._own, await self._registry.referenced(self._own))
        return self._own

    def _reader(self, schema: Schema, referenced: dict[str, Schema]) -> Any:
        return _checker(schema, referenced)

    def _write(self, value: T) -> bytes:
        plain = self._plain(value)
        _check(self._checker, plain)
        return json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    def _read(self, reader: Any, data: bytes) -> T:
        plain = json.loads(data[HEAD.size :])
        _check(reader, plain)
        made: T = self._made(plain)
        return made


def _checker(schema: Schema, referenced: dict[str, Schema]) -> Any:
    known = {name: json.loads(each.text) for name, each in referenced.items()}

    def found(address: str) -> Any:
        """By its name, which a schema with an address of its own has made longer."""
        for name, named in known.items():
            if address == name or address.endswith("/" + name.lstrip("/")):
                return named
        raise ValueError(f"{address} is not among the schema's references, and nothing is fetched")

    return jsonschema_rs.validator_for(json.loads(schema.text), retriever=found, mask=MASK)


def _check(checker: Any, plain: Any) -> None:
    """`ValueError` without the record's contents."""
    for error in checker.iter_errors(plain):
        place = "".join(f"[{step!r}]" for step in error.instance_path)
        raise ValueError(f"{place or 'it'}: {error.message}")
