"""A codec for Kafka's messages that is driven by Kafka's own message definitions, read from the `kafka-clients` jar.

It is independent of the codec under test and trusts the caller: it encodes null where a definition forbids it, so that
a test can send what no client would. Messages are dictionaries with the field names of the definitions. Encoding: a
missing field takes its default, a field that the version does not have is left out, a key that no version has is an
error. Decoding: every field of the version is there, unknown tagged fields under `_tags`, trailing bytes are an error.
Slow, and meant to be read.
"""

from __future__ import annotations

import json
import re
import struct
import uuid
import zipfile
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.support.kafka_peer import message_definitions_jar

NO_ID = uuid.UUID(int=0)

_FIXED = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "uint32": struct.Struct(">I"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
}


class Malformed(ValueError):  # noqa: N818 (it says what the bytes are)
    """The bytes are not a message of that version."""


@dataclass(frozen=True)
class VersionRange:
    """Inclusive, as the definitions write it."""

    lowest: int
    highest: int

    def __contains__(self, version: int) -> bool:
        return self.lowest <= version <= self.highest


def _range_of(text: str | None) -> VersionRange:
    if text is None or text == "none":
        return VersionRange(0, -1)
    if text.endswith("+"):
        return VersionRange(int(text[:-1]), 32767)
    lowest, _, highest = text.partition("-")
    return VersionRange(int(lowest), int(highest or lowest))


@dataclass(frozen=True)
class Field:
    name: str
    kind: str
    """Element kind for an array."""
    is_array: bool
    versions: VersionRange
    nullable: VersionRange
    tagged: VersionRange
    tag: int
    flexible: VersionRange | None
    default: Any
    members: tuple[Field, ...] = ()

    def default_value(self, version: int) -> Any:
        if self.default == "null":
            return None
        if self.is_array:
            return []
        if self.members:
            return {member.name: member.default_value(version) for member in self.members if version in member.versions}
        return _scalar_default(self.kind, self.default)


def _scalar_default(kind: str, text: Any) -> Any:
    if kind == "bool":
        return text in (True, "true")
    if kind == "string":
        return text or ""
    if kind in ("bytes", "records"):
        return b""
    if kind == "uuid":
        return NO_ID
    if kind == "float64":
        return float(text or 0)
    return int(str(text or 0), 0)


@dataclass(frozen=True)
class Message:
    name: str
    api_key: int
    versions: VersionRange
    flexible: VersionRange
    fields: tuple[Field, ...] = field(repr=False)


def _parse_fields(described: list[dict[str, Any]], shared: dict[str, list[dict[str, Any]]]) -> tuple[Field, ...]:
    parsed = []
    for one in described:
        kind = one["type"]
        is_array = kind.startswith("[]")
        element = kind.removeprefix("[]")
        inner = one.get("fields") or shared.get(element) or []
        parsed.append(
            Field(
                name=one["name"],
                kind=element,
                is_array=is_array,
                versions=_range_of(one["versions"]),
                nullable=_range_of(one.get("nullableVersions")),
                tagged=_range_of(one.get("taggedVersions")),
                tag=one.get("tag", -1),
                flexible=_range_of(one["flexibleVersions"]) if "flexibleVersions" in one else None,
                default=one.get("default"),
                members=_parse_fields(inner, shared) if inner else (),
            )
        )
    return tuple(parsed)


@cache
def _definitions() -> dict[str, Message]:
    messages = {}
    with zipfile.ZipFile(message_definitions_jar()) as jar:
        for path in jar.namelist():
            if not re.fullmatch(r"common/message/\w+\.json", path):
                continue
            text = re.sub(r"(?m)^\s*//.*$", "", jar.read(path).decode())
            described = json.loads(text)
            shared = {struct_["name"]: struct_["fields"] for struct_ in described.get("commonStructs", [])}
            messages[described["name"]] = Message(
                name=described["name"],
                api_key=described.get("apiKey", -1),
                versions=_range_of(described["validVersions"]),
                flexible=_range_of(described.get("flexibleVersions")),
                fields=_parse_fields(described.get("fields", []), shared),
            )
    return messages


def message(name: str) -> Message:
    """By its name in the definitions, such as `FetchRequest`, `RequestHeader` or `OffsetCommitKey`."""
    return _definitions()[name]


@cache
def api_name(api_key: int) -> str:
    """`Fetch` for 1."""
    for name, one in _definitions().items():
        if one.api_key == api_key and name.endswith("Request"):
            return name.removesuffix("Request")
    raise KeyError(api_key)


@cache
def _keys_in_any_version(fields: tuple[Field, ...]) -> frozenset[str]:
    return frozenset(one.name for one in fields)


# ---- encoding ---------------------------------------------------------------------------------------------------


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag_varint(value: int) -> bytes:
    return unsigned_varint((value << 1) ^ (value >> 63))


def _encode_length(length: int | None, compact: bool, narrow: bool) -> bytes:
    if compact:
        return unsigned_varint(0 if length is None else length + 1)
    return struct.pack(">h" if narrow else ">i", -1 if length is None else length)


def _encode_one(one: Field, value: Any, version: int, flexible: bool) -> bytes:
    if one.members:
        prefix = b""
        if not one.is_array and one.nullable.highest >= 0 and version in one.nullable:
            if value is None:
                return b"\xff"
            prefix = b"\x01"
        return prefix + _encode_fields(one.members, value, version, flexible)
    if one.kind == "bool":
        return b"\x01" if value else b"\x00"
    if one.kind == "uuid":
        return (value or NO_ID).bytes
    if one.kind == "string":
        raw = value.encode() if isinstance(value, str) else value
        return _encode_length(None if raw is None else len(raw), flexible, narrow=True) + (raw or b"")
    if one.kind in ("bytes", "records"):
        return _encode_length(None if value is None else len(value), flexible, narrow=False) + (value or b"")
    return _FIXED[one.kind].pack(value)


def _encode_value(one: Field, value: Any, version: int, flexible: bool) -> bytes:
    if one.flexible is not None:
        flexible = version in one.flexible
    if not one.is_array:
        return _encode_one(one, value, version, flexible)
    head = _encode_length(None if value is None else len(value), flexible, narrow=False)
    return head + b"".join(_encode_one(one, item, version, flexible) for item in value or ())


def _encode_fields(fields: tuple[Field, ...], values: dict[str, Any], version: int, flexible: bool) -> bytes:
    unknown = values.keys() - _keys_in_any_version(fields) - {"_tags"}
    if unknown:
        raise KeyError(f"no such field: {sorted(unknown)}")
    out = []
    tagged = dict(values.get("_tags", {}))
    for one in fields:
        if version not in one.versions:
            continue
        value = values[one.name] if one.name in values else one.default_value(version)
        if version in one.tagged:
            if value != one.default_value(version):
                tagged[one.tag] = _encode_value(one, value, version, flexible)
        else:
            out.append(_encode_value(one, value, version, flexible))
    if flexible:
        out.append(unsigned_varint(len(tagged)))
        for tag, raw in sorted(tagged.items()):
            out.append(unsigned_varint(tag) + unsigned_varint(len(raw)) + raw)
    return b"".join(out)


def encode(name: str, version: int, values: dict[str, Any]) -> bytes:
    described = message(name)
    return _encode_fields(described.fields, values, version, version in described.flexible)


def encode_request(
    api: str, version: int, values: dict[str, Any], correlation_id: int, client_id: str | None = "referee"
) -> bytes:
    """Header and body, without the length in front. `api` is a name such as `Fetch`; any version may be asked for."""
    described = message(f"{api}Request")
    header = {
        "RequestApiKey": described.api_key,
        "RequestApiVersion": version,
        "CorrelationId": correlation_id,
        "ClientId": client_id,
    }
    head = encode("RequestHeader", 2 if version in described.flexible else 1, header)
    return head + _encode_fields(described.fields, values, version, version in described.flexible)


# ---- decoding ---------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.position + count > len(self.data):
            raise Malformed(f"{count} bytes asked for at {self.position} of {len(self.data)}")
        start = self.position
        self.position += count
        return self.data[start : self.position]

    def fixed(self, kind: str) -> Any:
        form = _FIXED[kind]
        return form.unpack(self.take(form.size))[0]

    def unsigned_varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
        raise Malformed("varint too long")

    def length(self, compact: bool, narrow: bool) -> int:
        if compact:
            return self.unsigned_varint() - 1
        return int(self.fixed("int16" if narrow else "int32"))


def _decode_one(one: Field, reader: _Reader, version: int, flexible: bool) -> Any:
    if one.members:
        nullable = not one.is_array and one.nullable.highest >= 0 and version in one.nullable
        if nullable and reader.fixed("int8") < 0:
            return None
        return _decode_fields(one.members, reader, version, flexible)
    if one.kind == "bool":
        return reader.take(1) != b"\x00"
    if one.kind == "uuid":
        return uuid.UUID(bytes=reader.take(16))
    if one.kind in ("string", "bytes", "records"):
        length = reader.length(flexible, narrow=one.kind == "string")
        if length == -1:
            if version not in one.nullable:
                raise Malformed(f"{one.name} is null")
            return None
        raw = reader.take(length)
        return raw.decode() if one.kind == "string" else raw
    return reader.fixed(one.kind)


def _decode_value(one: Field, reader: _Reader, version: int, flexible: bool) -> Any:
    if one.flexible is not None:
        flexible = version in one.flexible
    if not one.is_array:
        return _decode_one(one, reader, version, flexible)
    count = reader.length(flexible, narrow=False)
    if count == -1:
        if version not in one.nullable:
            raise Malformed(f"{one.name} is null")
        return None
    if count < 0 or count > len(reader.data):
        raise Malformed(f"{one.name} has {count} elements")
    return [_decode_one(one, reader, version, flexible) for _ in range(count)]


def _decode_fields(fields: tuple[Field, ...], reader: _Reader, version: int, flexible: bool) -> dict[str, Any]:
    values: dict[str, Any] = {}
    tagged: dict[int, Field] = {}
    for one in fields:
        if version not in one.versions:
            continue
        if version in one.tagged:
            tagged[one.tag] = one
            values[one.name] = one.default_value(version)
        else:
            values[one.name] = _decode_value(one, reader, version, flexible)
    if flexible:
        _decode_tags(tagged, values, reader, version)
    return values


def _decode_tags(tagged: dict[int, Field], values: dict[str, Any], reader: _Reader, version: int) -> None:
    previous = -1
    for _ in range(reader.unsigned_varint()):
        tag = reader.unsigned_varint()
        if tag <= previous:
            raise Malformed(f"tag {tag} after {previous}")
        previous = tag
        raw = reader.take(reader.unsigned_varint())
        if tag in tagged:
            inner = _Reader(raw)
            values[tagged[tag].name] = _decode_value(tagged[tag], inner, version, True)
            if inner.position != len(raw):
                raise Malformed(f"trailing bytes in tag {tag}")
        else:
            values.setdefault("_tags", {})[tag] = raw


def decode(name: str, version: int, data: bytes) -> dict[str, Any]:
    described = message(name)
    reader = _Reader(data)
    values = _decode_fields(described.fields, reader, version, version in described.flexible)
    if reader.position != len(data):
        raise Malformed(f"{len(data) - reader.position} bytes after {name} {version}: {data[reader.position :][:40]!r}")
    return values


def decode_response(api: str, version: int, data: bytes) -> tuple[int, dict[str, Any]]:
    """Correlation id and body of an answer without its length; an ApiVersions answer has header version 0 always."""
    described = message(f"{api}Response")
    reader = _Reader(data)
    correlation_id = reader.fixed("int32")
    if api != "ApiVersions" and version in described.flexible:
        _decode_tags({}, {}, reader, version)
    return correlation_id, decode(f"{api}Response", version, data[reader.position :])
