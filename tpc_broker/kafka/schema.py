"""Message definitions: the committed facts of ``schema.jsonl``, parsed one message at a time.

`message_schema(name)` gives a `MessageSchema`; reading the file and indexing its lines costs well under a
millisecond, parsing happens on the first use of a message.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .errors import UnsupportedVersionError

VERSION_MAX = 32767
FIXED_TYPES = {
    "bool": ("?", 1, False),
    "int8": ("b", 1, 0),
    "int16": ("h", 2, 0),
    "uint16": ("H", 2, 0),
    "int32": ("i", 4, 0),
    "uint32": ("I", 4, 0),
    "int64": ("q", 8, 0),
    "float64": ("d", 8, 0.0),
    "uuid": ("16s", 16, bytes(16)),
}
"""Type name to struct format, size in bytes and Kafka's implicit default."""


@dataclass(frozen=True, slots=True)
class Versions:
    """A range of versions, half-open: ``first <= v < end``."""

    first: int
    end: int

    @classmethod
    def parse(cls, text: str) -> "Versions":
        if text == "none":
            return cls(0, 0)
        first, dash, last = text.partition("-")
        if text.endswith("+"):
            return cls(int(text[:-1]), VERSION_MAX + 1)
        return cls(int(first), int(last if dash else first) + 1)

    def __contains__(self, version: int) -> bool:
        return self.first <= version < self.end


NONE = Versions(0, 0)


@dataclass(frozen=True, slots=True)
class FieldSchema:
    """One field. ``element`` is the type inside an array, else the type; ``struct`` is set when that is a structure."""

    name: str
    kafka_name: str
    element: str
    is_array: bool
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    flexible: Versions | None
    default: Any
    has_default: bool
    ignorable: bool
    struct: "StructSchema | None"

    @property
    def default_is_null(self) -> bool:
        return self.has_default and self.default is None

    def scalar_default(self) -> Any:
        """The default of a field that is neither array nor structure: the stated one, else Kafka's for the type."""
        if self.has_default:
            return self.default.encode() if self.element in ("bytes", "records") and self.default else self.default
        if self.element in FIXED_TYPES:
            return FIXED_TYPES[self.element][2]
        return "" if self.element == "string" else b""


@dataclass(frozen=True, slots=True)
class StructSchema:
    name: str
    versions: Versions
    fields: tuple[FieldSchema, ...]


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """A message: ``root`` has its fields, ``structs`` every structure in it by Kafka's name (unique in a message)."""

    name: str
    type: str
    key: int
    valid: Versions
    flexible: Versions
    root: StructSchema
    structs: dict[str, StructSchema]


def snake_case(name: str) -> str:
    """Kafka's ``PartitionIndex`` as ``partition_index``, ``KRaftVersion`` as ``kraft_version``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@cache
def _lines() -> dict[str, str]:
    text = (Path(__file__).parent / "schema.jsonl").read_text(encoding="ascii")
    return {line[9 : line.index('"', 9)]: line for line in text.splitlines()}


def message_names() -> tuple[str, ...]:
    """Kafka's names of all messages in the schema, sorted."""
    return tuple(_lines())


@cache
def message_schema(name: str) -> MessageSchema:
    """The definition of the message of that name, or `UnsupportedVersionError`."""
    line = _lines().get(name)
    if line is None:
        raise UnsupportedVersionError(f"no message is named {name}")
    facts = json.loads(line)
    shared = {struct["name"]: struct for struct in facts.get("structs", ())}
    structs: dict[str, StructSchema] = {}
    valid = Versions.parse(facts["valid"])
    root = StructSchema(name, valid, tuple(_field(field, shared, structs) for field in facts["fields"]))
    flexible = Versions.parse(facts["flexible"])
    return MessageSchema(name, facts["type"], facts.get("key", -1), valid, flexible, root, structs)


def _field(facts: dict[str, Any], shared: dict[str, Any], structs: dict[str, StructSchema]) -> FieldSchema:
    is_array = facts["type"].startswith("[]")
    element = facts["type"].removeprefix("[]")
    struct = None
    if element not in FIXED_TYPES and element not in ("string", "bytes", "records"):
        struct = structs.get(element)
        if struct is None:
            definition = facts if "fields" in facts else shared[element]
            children = tuple(_field(child, shared, structs) for child in definition["fields"])
            versions = Versions.parse(definition["versions"])
            struct = structs[element] = StructSchema(element, versions, children)
    return FieldSchema(
        name=snake_case(facts["name"]),
        kafka_name=facts["name"],
        element=element,
        is_array=is_array,
        versions=Versions.parse(facts["versions"]),
        nullable=Versions.parse(facts.get("nullable", "none")),
        tagged=Versions.parse(facts.get("tagged", "none")),
        tag=facts.get("tag", -1),
        flexible=Versions.parse(facts["flexible"]) if "flexible" in facts else None,
        default=facts.get("default"),
        has_default="default" in facts,
        ignorable=facts.get("ignorable", False),
        struct=struct,
    )
