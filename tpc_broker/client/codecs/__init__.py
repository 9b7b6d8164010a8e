"""Typed keys and values: what makes bytes of them, and values of bytes.

Purpose
    `Client.topic` gives a topic whose keys and values have types. A client without codecs hands on bytes, and does
    nothing here.

Modules
    `codec`        what a codec is, and its errors
    `plain`        `Bytes`, `Str`, `Nullable`, `Json`, `MessagePack`
    `registry`     schemas over HTTP, kept within bounds (extra `registry`)
    `framing`      the bytes that name a schema; no I/O
    `registered`   what the next three share; how subjects are named
    `avro` `protobuf` `json_schema`   with a registry (extra `registry`)
    `structures`   values of one's own types as plain ones, by msgspec (extra `msgspec`)
    `topics`       the typed topic and its streams

Invariants: a codec that cannot code never passes on what it was given: `EncodingError` says that nothing was sent,
`DecodingError` names the record's place and holds it. A registry that cannot be reached loses no record: reading goes
on with the same one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.client.codecs.codec import Codec, CodecError, DecodingError, EncodingError, Place
from tpc_broker.client.codecs.plain import Bytes, Json, MessagePack, Nullable, Str

if TYPE_CHECKING:
    from tpc_broker.client.codecs.avro import Avro as Avro
    from tpc_broker.client.codecs.json_schema import JsonSchema as JsonSchema
    from tpc_broker.client.codecs.protobuf import Protobuf as Protobuf
    from tpc_broker.client.codecs.registered import by_record as by_record
    from tpc_broker.client.codecs.registered import by_topic as by_topic
    from tpc_broker.client.codecs.registered import by_topic_and_record as by_topic_and_record
    from tpc_broker.client.codecs.registry import Reference as Reference
    from tpc_broker.client.codecs.registry import Registry as Registry
    from tpc_broker.client.codecs.registry import RegistryError as RegistryError
    from tpc_broker.client.codecs.registry import Schema as Schema
    from tpc_broker.client.codecs.registry import UnknownSchemaError as UnknownSchemaError

__all__ = [
    "Bytes", "Codec", "CodecError", "DecodingError", "EncodingError", "Json", "MessagePack", "Nullable", "Place", "Str",
]  # fmt: skip

_LATER: Final = {
    "Avro": "avro", "JsonSchema": "json_schema", "Protobuf": "protobuf", "Reference": "registry",
    "Registry": "registry", "RegistryError": "registry", "Schema": "registry", "UnknownSchemaError": "registry",
    "by_record": "registered", "by_topic": "registered", "by_topic_and_record": "registered",
}  # fmt: skip
"""What needs the extra `registry`, and its module."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    except ModuleNotFoundError as error:
        text = f"{name} needs {error.name}: pip install 'tpc-broker[registry]'"
        raise ModuleNotFoundError(text, name=error.name) from None


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATER])
