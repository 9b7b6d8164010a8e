"""What both source generators share: lines with the field they belong to, and what generated code calls.

Generated functions carry no bookkeeping of where they are. Each line of their source has a field path template in a
side table; when one raises, the line number in the traceback and the loop counters among the frame's locals say which
field of which element it was. So a good message costs nothing for the quality of the errors of a bad one.
"""

from collections.abc import Callable
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is an exception class
from types import TracebackType
from typing import Any

from .errors import Refused
from .schema import FIXED_TYPES, FieldSchema, MessageSchema, StructSchema

ELEMENTS_MAX = 1_000_000
"""Elements of all arrays of a message together. An element of three bytes becomes an object of about 200, and arrays
nest, so a bound for each array alone would let a large frame take fifty times its size."""
TAGGED_FIELDS_MAX = 10_000
STRING_BYTES_MAX = 0x7FFF
UVARINT_TABLE = tuple(bytes((value,)) for value in range(0x80))
REPEATED_STRUCTS_MAX = 64
DECODE_CAUGHT = (StructError, IndexError, ValueError)
"""What wrong bytes make generated code raise; anything else is a bug of ours and is not hidden."""
ENCODE_CAUGHT = (*DECODE_CAUGHT, TypeError, AttributeError, OverflowError)
"""What wrong values make generated code raise."""


class Source:
    """Lines of a function under construction, each with its field path, and the constants its scope needs."""

    def __init__(self, schema: MessageSchema, version: int) -> None:
        self.schema = schema
        self.version = version
        self.flexible = version in schema.flexible
        self.lines: list[str] = []
        self.paths: list[str] = []
        self.path = ""
        self.depth = 0
        self.scope: dict[str, Any] = {}
        self._names = 0

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)
        self.paths.append(self.path)

    def name(self, prefix: str) -> str:
        """A local name that is not used yet."""
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, name: str, value: Any) -> str:
        self.scope[name] = value
        return name

    def is_flexible(self, field: FieldSchema) -> bool:
        return self.version in (field.flexible or self.schema.flexible)

    def compile(self, name: str) -> Callable[..., Any]:
        code = compile("\n".join(self.lines) + "\n", f"<{self.schema.name} v{self.version} {name}>", "exec")
        exec(code, self.scope)  # noqa: S102 - source made from our schema
        function: Callable[..., Any] = self.scope[name]
        return function

    def locate(self, traceback: TracebackType | None, name: str) -> tuple[str, dict[str, Any]]:
        """Field path and locals of the generated frame in a traceback."""
        filename = f"<{self.schema.name} v{self.version} {name}>"
        path, frame_locals = "", {}
        while traceback is not None:
            frame = traceback.tb_frame
            if frame.f_code.co_filename == filename:
                frame_locals = frame.f_locals
                path = self.paths[traceback.tb_lineno - 1].format_map(_Counters(frame_locals))
            traceback = traceback.tb_next
        return path, frame_locals


class _Counters(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def minimum_size(struct: StructSchema, schema: MessageSchema, version: int) -> int:
    """The fewest bytes that an element of this structure takes on the wire."""
    flexible = version in schema.flexible
    size = 1 if flexible else 0
    for field in struct.fields:
        if version in field.versions and version not in field.tagged:
            size += field_minimum_size(field, schema, version)
    return size


def field_minimum_size(field: FieldSchema, schema: MessageSchema, version: int) -> int:
    compact = version in (field.flexible or schema.flexible)
    if field.is_array:
        return 1 if compact else 4
    if field.struct is not None:
        return 1 if version in field.nullable else minimum_size(field.struct, schema, version)
    if field.element in FIXED_TYPES:
        return FIXED_TYPES[field.element][1]
    if compact:
        return 1
    return 2 if field.element == "string" else 4


def element_minimum_size(field: FieldSchema, schema: MessageSchema, version: int) -> int:
    """The fewest bytes of one element of an array field; at least one, so that a count is always bounded by bytes."""
    if field.struct is not None:
        return max(1, minimum_size(field.struct, schema, version))
    if field.element in FIXED_TYPES:
        return FIXED_TYPES[field.element][1]
    return 1 if version in (field.flexible or schema.flexible) else 2


def read_uvarint(buffer: Any, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits and the position after it."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise Refused("a varint is longer than five bytes")
    if value > 0xFFFFFFFF:
        raise Refused("a varint does not fit in 32 bits")
    return value, position


def uvarint(value: int) -> bytes:
    """``value`` as an unsigned varint."""
    if value < 0x80:
        return UVARINT_TABLE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_REPEATED: dict[tuple[str, int], Struct] = {}


def repeated(code: str, count: int) -> Struct:
    """A struct of ``count`` values of one type; the small ones are kept."""
    if count > REPEATED_STRUCTS_MAX:
        return Struct(f">{count}{code}")
    found = _REPEATED.get((code, count))
    if found is None:
        found = _REPEATED[code, count] = Struct(f">{count}{code}")
    return found
