"""Makes the types of what is made at run time, for mypy and for editors: ``.venv/bin/python tools/generate_stubs.py``.

- `tpc_broker/_bytes.pyi` and `_ring.pyi`: functions, constants and structures of the two C extensions, as built.
- `tpc_broker/kafka/messages.pyi`: the Kafka messages that the product's source names, with the fields of all versions.

`tests/tidy/test_stubs.py` compares what is committed with what this makes.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.kafka.schema import FieldSchema, StructSchema, message_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE: Final = Path(__file__).parent.parent / "tpc_broker"
MADE_BY: Final = "# Made by tools/generate_stubs.py: change what it is made from.\n"

NATIVE_HEAD: Final = """\
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Literal, Self, TypeVar, final, overload

from typing_extensions import Buffer

_T = TypeVar("_T")

# A C object, a pointer or an array.
class CData:
    def __bool__(self) -> bool: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

# Fits every pointer.
@final
class Null(CData): ...

# To one or to many of a type that is no structure.
class Pointer(CData, Generic[_T]):
    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __setitem__(self, index: int | slice, value: Any) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[_T]: ...
    def __add__(self, count: int) -> Self: ...

# One, a pointer to one, or an array of them: the fields are reached in the same way.
class Structure(CData):
    def __getitem__(self, index: int | slice) -> Self: ...
    def __setitem__(self, index: int, value: Any) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Self]: ...
    def __add__(self, count: int) -> Self: ...

class Field:
    type: CType

class CType:
    cname: str
    kind: str
    fields: Sequence[tuple[str, Field]]
"""
FFI_TAIL: Final = """\
    @overload
    def new(self, cdecl: Literal[{primitives}], init: Any = ...) -> Pointer[int]: ...
    @overload
    def new(self, cdecl: str | CType, init: Any = ...) -> Any: ...
    def new_allocator(
        self, alloc: Callable[..., Any] | None = ..., free: Callable[..., Any] | None = ..., *,
        should_clear_after_alloc: bool = ...,
    ) -> Callable[..., Any]: ...
    def cast(self, cdecl: str | CType, value: Any) -> Any: ...
    def typeof(self, cdecl: str | CData | Callable[..., Any]) -> CType: ...
    def sizeof(self, cdecl: str | CType | CData) -> int: ...
    def addressof(self, cdata: CData, *fields_or_indexes: str | int) -> Any: ...
    @overload
    def from_buffer(self, python_buffer: Buffer, /, require_writable: bool = ...) -> Pointer[int]: ...
    @overload
    def from_buffer(
        self, cdecl: Literal["uint8_t[]"], python_buffer: Buffer, /, require_writable: bool = ...
    ) -> Pointer[int]: ...
    @overload
    def from_buffer(self, cdecl: str, python_buffer: Buffer, /, require_writable: bool = ...) -> Any: ...
    def buffer(self, cdata: CData, size: int = ...) -> Any: ...
    def string(self, cdata: CData, maxlen: int = ...) -> bytes: ...
    def unpack(self, cdata: CData, length: int) -> Any: ...
    def memmove(self, dest: CData | Buffer, src: CData | Buffer, n: int) -> None: ...
    def gc(self, cdata: Any, destructor: Callable[..., Any] | None, size: int = ...) -> Any: ...
    def release(self, cdata: CData) -> None: ...

ffi: _FFI
lib: _Lib
"""


# -- C extensions ------------------------------------------------------------------------------------------------------


class NativeStub:
    """Of one extension."""

    def __init__(self, extension: str) -> None:
        module = importlib.import_module(f"tpc_broker.{extension}")
        self.ffi, self.lib = module.ffi, module.lib
        self.structures: dict[str, Any] = {}
        typedefs, tags, _unions = self.ffi.list_types()
        for name in (*typedefs, *(f"struct {tag}" for tag in tags)):
            self._note(self.ffi.typeof(name))

    def _fields(self, ctype: Any) -> Any:
        """None of a structure that only C sees into."""
        try:
            self.ffi.sizeof(ctype)
        except self.ffi.error:
            return ()
        return ctype.fields

    def _note(self, ctype: Any) -> None:
        """A structure, and those that its fields have."""
        if ctype.kind != "struct" or self._name(ctype) in self.structures:
            return
        self.structures[self._name(ctype)] = ctype
        for _, field in self._fields(ctype):
            self._note(field.type)

    def _name(self, ctype: Any) -> str:
        return re.sub(r"\W+", "_", ctype.cname.removeprefix("struct "))

    def _value(self, ctype: Any) -> str:  # noqa: PLR0911 (one for each kind)
        """What Python gets for it, and has in a field."""
        if ctype.kind == "void":
            return "None"
        if ctype.kind == "primitive":
            return {"_Bool": "bool", "float": "float", "double": "float", "char": "bytes"}.get(ctype.cname, "int")
        if ctype.kind == "enum":
            return "int"
        if ctype.kind == "struct":
            self._note(ctype)
            return self._name(ctype)
        if ctype.kind in {"pointer", "array"}:
            item = ctype.item
            if item.kind == "struct":
                return self._value(item)
            return "CData" if item.kind in {"void", "function"} else f"Pointer[{self._value(item)}]"
        return "Any"

    def _argument(self, ctype: Any) -> str:
        """What a function takes for it."""
        if ctype.kind == "pointer":
            item = ctype.item
            if item.kind in {"void", "function"}:
                return "CData | bytes"
            if item.kind == "primitive" and self.ffi.sizeof(item) == 1:
                return "Pointer[int] | bytes | Null"
            return f"{self._value(ctype)} | Null"
        return self._value(ctype)

    def _field(self, name: str, ctype: Any) -> list[str]:
        """Its declaration; an array is set from what it can be made of."""
        value = self._value(ctype)
        if ctype.kind != "array":
            return [f"    {name}: {value}"]
        return [
            "    @property", f"    def {name}(self) -> {value}: ...",
            f"    @{name}.setter", f"    def {name}(self, value: {value} | bytes | Sequence[Any]) -> None: ...",
        ]  # fmt: skip

    def _function(self, name: str, ctype: Any) -> str:
        arguments = [f"_{number}: {self._argument(one)}" for number, one in enumerate(ctype.args)]
        if arguments:
            arguments.append("/")
        return f"    def {name}({', '.join(['self', *arguments])}) -> {self._value(ctype.result)}: ..."

    def text(self) -> str:
        """The whole stub."""
        functions, constants = [], []
        for name in sorted(dir(self.lib)):
            value = getattr(self.lib, name)
            if isinstance(value, int):
                constants.append(f"    {name}: int")
            else:
                functions.append(self._function(name, self.ffi.typeof(value)))
        for ctype in list(self.structures.values()):  # so that all that fields lead to is known
            for _, field in self._fields(ctype):
                self._value(field.type)
        parts = [MADE_BY + NATIVE_HEAD]
        for name in sorted(self.structures):
            fields = self._fields(self.structures[name])
            lines = [line for field, of in fields if field for line in self._field(field, of.type)]
            parts.append("\n".join([f"class {name}(Structure):" + ("" if lines else " ..."), *lines]) + "\n")
        parts.append("class _Lib:\n" + "\n".join([*constants, *functions]) + "\n")
        parts.append(self._new())
        return "\n".join(parts)

    def _new(self) -> str:
        lines = ["class _FFI:", "    NULL: Null", "    errno: int"]
        for name in sorted(self.structures):
            if "anonymous" in name or name.startswith("_"):
                continue
            if self._fields(self.structures[name]):
                kinds = f'"{name} *", "{name}[]"'
                lines += [
                    "    @overload",
                    f"    def new(self, cdecl: Literal[{kinds}], init: Any = ...) -> {name}: ...",
                ]
            lines += [
                "    @overload",
                f'    def new(self, cdecl: Literal["{name} **"], init: Any = ...) -> Pointer[{name}]: ...',
            ]
        integers = [f"{sign}int{bits}_t" for bits in (8, 16, 32, 64) for sign in ("", "u")]
        primitives = ", ".join(f'"{one} *", "{one}[]"' for one in integers)
        return "\n".join(lines) + "\n" + FFI_TAIL.format(primitives=primitives)


# -- Kafka messages ----------------------------------------------------------------------------------------------------

SCALARS: Final = {
    "bool": "bool", "float64": "float", "string": "str", "uuid": "bytes", "bytes": "Bytes", "records": "Records",
}  # fmt: skip


def messages_named() -> set[str]:
    """By the product's own source."""
    named = re.compile(r"\bmessages\.([A-Z]\w+)")
    return {name for path in PACKAGE.rglob("*.py") for name in named.findall(path.read_text(encoding="utf-8"))}


def _field_type(field: FieldSchema, root: str) -> str:
    element = f"{root}.{field.element}" if field.struct is not None else SCALARS.get(field.element, "int")
    made = f"list[{element}]" if field.is_array else element
    can_be_null = field.nullable.end > field.nullable.first or field.default_is_null
    return f"{made} | None" if can_be_null else made


def _structure(struct: StructSchema, root: str, indent: str, inner: list[str]) -> Iterator[str]:
    yield f"{indent}class {struct.name}(Message):"
    yield from inner
    fields = [(field.name, _field_type(field, root)) for field in struct.fields]
    for name, type_ in fields:
        yield f"{indent}    {name}: {type_}"
    if not fields:
        yield f"{indent}    def __init__(self) -> None: ..."
        return
    yield f"{indent}    def __init__("
    yield f"{indent}        self,"
    yield f"{indent}        *,"
    for name, type_ in fields:
        yield f"{indent}        {name}: {type_.replace('list[', 'Sequence[')} = ...,"
    yield f"{indent}    ) -> None: ..."


def messages_text() -> str:
    """The whole stub."""
    lines = [
        MADE_BY + "from collections.abc import Sequence",
        "from typing import Any, TypeAlias",
        "",
        "from .message import Message",
        "",
        "Bytes: TypeAlias = bytes | bytearray | memoryview",
        "Records: TypeAlias = Any  # one buffer, or the buffers of an answer one behind the other",
        "",
    ]
    for name in sorted(messages_named()):
        schema = message_schema(name)
        inner: list[str] = []
        for struct in schema.structs.values():
            inner += _structure(struct, name, "    ", [])
        lines += [*_structure(schema.root, name, "", inner), ""]
    return "\n".join(lines)


def stubs() -> dict[Path, str]:
    """Text by file."""
    return {
        PACKAGE / "_bytes.pyi": NativeStub("_bytes").text(),
        PACKAGE / "_ring.pyi": NativeStub("_ring").text(),
        PACKAGE / "kafka" / "messages.pyi": messages_text(),
    }


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text)
