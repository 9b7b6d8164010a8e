"""Makes the encode function of one message version as Python source.

The function takes ``(o1, w)``: the message and the ``append`` of a list of buffers. Bytes and records are appended as
they are, so that large ones need not be copied. A field that the version lacks must have its default or be ignorable,
as in Kafka; a tagged field is written only when it differs from its default. What it raises is turned into
`EncodeError` by `tpc_broker.kafka.codec`.
"""

from struct import Struct
from typing import Any

from .errors import Refused
from .schema import FIXED_TYPES, NONE, FieldSchema, MessageSchema, StructSchema
from .source import STRING_BYTES_MAX, UVARINT_TABLE, Source, repeated, uvarint


class Opaque:
    """Base of records that lie outside of Python: ``len()`` is their bytes, and whoever sends the parts knows them."""

    __slots__ = ()

    def __len__(self) -> int:
        raise NotImplementedError

    def __bytes__(self) -> bytes:
        raise NotImplementedError


Piece = bytes | bytearray | memoryview | Opaque
"""Bytes of a message that are sent as they lie."""


def _flat(value: Any) -> Any:
    return value if type(value) is bytes or isinstance(value, Opaque) else memoryview(value).cast("B")


def put_blob(value: Any, w: Any, *, compact: bool) -> None:
    """Append bytes or records, given as one buffer or a list of buffers, with their length before them."""
    buffers = [_flat(part) for part in (value if isinstance(value, list | tuple) else (value,))]
    size = sum(map(len, buffers))
    w(uvarint(size + 1) if compact else size.to_bytes(4, "big"))
    for part in buffers:
        if part:
            w(part)


def put_string(value: str, w: Any, *, compact: bool) -> None:
    data = value.encode()
    size = len(data)
    if size > STRING_BYTES_MAX:
        raise Refused(f"a string of {size} bytes, the most is {STRING_BYTES_MAX}")
    w(uvarint(size + 1) if compact else size.to_bytes(2, "big"))
    w(data)


def differs(field: FieldSchema, value: str) -> str:
    """A Python condition: the expression ``value`` is not the field's default."""
    if field.is_array:
        return f"{value} is not None" if field.default_is_null else f"({value} is None or len({value}))"
    if field.struct is not None:
        if field.default_is_null:
            return f"{value} is not None"
        conditions = [differs(child, f"{value}.{child.name}") for child in field.struct.fields]
        if field.nullable != NONE:
            conditions.insert(0, f"{value} is None")
        return "(" + " or ".join(conditions) + ")"
    default = field.scalar_default()
    if default is None:
        return f"{value} is not None"
    if field.element in ("bytes", "records") and not default:
        return f"({value} is None or len({value}))"
    return f"{value} != {default!r}"


class EncoderSource(Source):
    """Generator of ``encode(o1, w)``. Methods named ``write_…`` emit the lines that append the expression ``value``."""

    def __init__(self, schema: MessageSchema, version: int) -> None:
        super().__init__(schema, version)
        self.scope = {
            "Refused": Refused, "uvarint": uvarint, "UV": UVARINT_TABLE, "repeated": repeated,
            "put_blob": put_blob, "put_string": put_string,
        }  # fmt: skip
        self.emit("def encode(o1, w):")
        self.depth = 1
        self.write_struct(schema.root, "o1", "w")

    def write_struct(self, struct: StructSchema, local: str, w: str) -> None:
        outer = self.path
        run: list[FieldSchema] = []
        tagged: list[FieldSchema] = []
        for field in struct.fields:
            if self.version not in field.versions:
                self.write_absent(field, local, outer)
            elif self.version in field.tagged:
                tagged.append(field)
            elif field.element in FIXED_TYPES and not field.is_array:
                run.append(field)
            else:
                self.write_run(run, local, w, outer)
                run = []
                self.enter(field, outer)
                self.write_value(field, f"{local}.{field.name}", w)
        self.write_run(run, local, w, outer)
        if self.flexible:
            self.write_tags(sorted(tagged, key=lambda field: field.tag), local, w, outer)
        self.path = outer
        self.emit("pass")

    def enter(self, field: FieldSchema, outer: str) -> None:
        self.path = f"{outer}.{field.name}" if outer else field.name

    def write_absent(self, field: FieldSchema, local: str, outer: str) -> None:
        if field.ignorable:
            return
        self.enter(field, outer)
        condition = differs(field, f"{local}.{field.name}")
        self.emit(f"if {condition}: raise Refused('this version has no such field, so it must have its default')")

    def write_run(self, run: list[FieldSchema], local: str, w: str, outer: str) -> None:
        if not run:
            return
        codes = "".join(FIXED_TYPES[field.element][0] for field in run)
        for field in run:
            self.enter(field, outer)
            if field.element == "uuid":
                self.emit(f"if len({local}.{field.name}) != 16: raise Refused('a uuid is 16 bytes')")
        self.path = f"{outer}.{run[0].name}" if outer else run[0].name
        if len(run) > 1:
            self.path += f" to {run[-1].name}"
        pack = self.constant(f"P_{codes}".replace("?", "z"), Struct(">" + codes).pack)
        self.emit(f"{w}({pack}({', '.join(f'{local}.{field.name}' for field in run)}))")

    def write_null(self, field: FieldSchema, w: str, size: int) -> None:
        """Emit the branch for None; the caller goes on in the ``else`` that this opens."""
        if self.version in field.nullable:
            null = b"\0" if self.is_flexible(field) else b"\xff" * size
            self.emit(f"{w}({null!r})")
        else:
            self.emit("raise Refused('null where it is not allowed')")
        self.depth -= 1
        self.emit("else:")
        self.depth += 1

    def write_value(self, field: FieldSchema, value: str, w: str) -> None:
        if field.is_array:
            self.write_array(field, value, w)
        elif field.struct is not None:
            self.write_nested(field, field.struct, value, w)
        elif field.element in FIXED_TYPES:
            code = FIXED_TYPES[field.element][0]
            pack = self.constant(f"P_{code}".replace("?", "z"), Struct(">" + code).pack)
            if field.element == "uuid":
                self.emit(f"if len({value}) != 16: raise Refused('a uuid is 16 bytes')")
            self.emit(f"{w}({pack}({value}))")
        else:
            self.write_blob(field, value, w)

    def write_blob(self, field: FieldSchema, value: str, w: str) -> None:
        """A string, bytes or records. Short strings are written in place, which is faster than a call."""
        compact = self.is_flexible(field)
        local = self.name("v")
        self.emit(f"{local} = {value}")
        self.emit(f"if {local} is None:")
        self.depth += 1
        self.write_null(field, w, 2 if field.element == "string" else 4)
        if field.element != "string":
            self.emit(f"put_blob({local}, {w}, compact={compact})")
        elif compact:
            self.emit(f"b = {local}.encode()")
            self.emit(f"if len(b) < 127: {w}(UV[len(b) + 1]); {w}(b)")
            self.emit(f"else: put_string({local}, {w}, compact=True)")
        else:
            self.emit(f"put_string({local}, {w}, compact=False)")
        self.depth -= 1

    def write_nested(self, field: FieldSchema, struct: StructSchema, value: str, w: str) -> None:
        local = self.name("o")
        self.emit(f"{local} = {value}")
        if self.version not in field.nullable:
            self.write_struct(struct, local, w)
            return
        null = b"\0" if self.version in field.tagged else b"\xff"
        self.emit(f"if {local} is None: {w}({null!r})")
        self.emit("else:")
        self.depth += 1
        self.emit(f"{w}(b'\\x01')")
        self.write_struct(struct, local, w)
        self.depth -= 1

    def write_array(self, field: FieldSchema, value: str, w: str) -> None:
        items = self.name("a")
        self.emit(f"{items} = {value}")
        self.emit(f"if {items} is None:")
        self.depth += 1
        self.write_null(field, w, 4)
        self.emit(f"n = len({items})")
        if self.is_flexible(field):
            self.emit(f"{w}(UV[n + 1] if n < 127 else uvarint(n + 1))")
        else:
            pack = self.constant("P_i", Struct(">i").pack)
            self.emit(f"{w}({pack}(n))")
        if field.element in FIXED_TYPES and field.element != "uuid":
            self.emit(f"if n: {w}(repeated({FIXED_TYPES[field.element][0]!r}, n).pack(*{items}))")
        else:
            self.write_elements(field, items, w)
        self.depth -= 1

    def write_elements(self, field: FieldSchema, items: str, w: str) -> None:
        counter, local = self.name("i"), self.name("o")
        self.emit(f"for {counter}, {local} in enumerate({items}):")
        self.depth += 1
        outer = self.path
        self.path = f"{outer}[{{{counter}}}]"
        if field.struct is not None:
            self.write_struct(field.struct, local, w)
        elif field.element == "uuid":
            self.emit(f"if len({local}) != 16: raise Refused('a uuid is 16 bytes')")
            self.emit(f"{w}(bytes({local}))")
        else:
            function = "put_string" if field.element == "string" else "put_blob"
            self.emit(f"{function}({local}, {w}, compact={self.is_flexible(field)})")
        self.path = outer
        self.depth -= 1

    def write_tags(self, tagged: list[FieldSchema], local: str, w: str, outer: str) -> None:
        """Tagged fields in the order of their tags: count, then tag, size and value of each that is not the default."""
        if not tagged:
            self.emit(f"{w}(b'\\0')")
            return
        found = self.name("t")
        self.emit(f"{found} = 0")
        for field in tagged:
            self.enter(field, outer)
            self.emit(f"if {differs(field, f'{local}.{field.name}')}:")
            self.depth += 1
            inner, parts = self.name("w"), self.name("q")
            self.emit(f"if not {found}: {found} = []")
            self.emit(f"{parts} = []; {inner} = {parts}.append")
            self.write_value(field, f"{local}.{field.name}", inner)
            self.emit(f"{parts} = b''.join({parts})")
            self.emit(f"{found}.append(uvarint({field.tag}) + uvarint(len({parts})) + {parts})")
            self.depth -= 1
        self.emit(f"if {found}: {w}(uvarint(len({found}))); {w}(b''.join({found}))")
        self.emit(f"else: {w}(b'\\0')")


def make_encoder(schema: MessageSchema, version: int) -> tuple[Any, EncoderSource]:
    """The compiled ``encode(message, append)`` and the source that can locate its errors."""
    source = EncoderSource(schema, version)
    return source.compile("encode"), source
