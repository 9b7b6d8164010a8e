"""Makes the decode function of one message version as Python source.

The function takes ``(buf, p)`` and returns ``(message, position)``. Every count is compared with the bytes that are
left before anything is made of it, and every length before it is sliced; fixed-size fields that follow each other are
unpacked by one struct. ``room`` is how many array elements the message may still have. What it raises is turned into
`DecodeError` by `tpc_broker.kafka.codec`.
"""

from struct import Struct
from typing import Any

from .errors import Refused
from .message import message_classes
from .schema import FIXED_TYPES, FieldSchema, MessageSchema, StructSchema
from .source import (
    ELEMENTS_MAX,
    STRING_BYTES_MAX,
    TAGGED_FIELDS_MAX,
    Source,
    element_minimum_size,
    read_uvarint,
    repeated,
)


def has_views(struct: StructSchema) -> bool:
    """Whether a structure holds bytes or records anywhere, which are decoded as slices of the buffer."""
    return any(
        field.element in ("bytes", "records") or (field.struct is not None and has_views(field.struct))
        for field in struct.fields
    )


def keeps_buffer(schema: MessageSchema) -> bool:
    """Whether the function wants a memory view (True) or, as there is nothing to slice, the bytes themselves."""
    return schema.type == "header" or has_views(schema.root)


class DecoderSource(Source):
    """Generator of ``decode(buf, p)``. Methods named ``read_…`` emit the lines that set ``target``."""

    def __init__(self, schema: MessageSchema, version: int) -> None:
        super().__init__(schema, version)
        self.views = keeps_buffer(schema)
        self.classes = message_classes(schema.name)
        self.scope = {"Refused": Refused, "uv": read_uvarint, "repeated": repeated}
        self.emit("def decode(buf, p):")
        self.depth = 1
        self.emit(f"end = len(buf); room = {ELEMENTS_MAX}")
        root = self.read_struct(schema.root)
        self.emit(f"return {root}, p")

    def refuse(self, condition: str, reason: str) -> None:
        self.emit(f"if {condition}: raise Refused({reason!r})")

    def read_struct(self, struct: StructSchema) -> str:
        """Make an object in a new local and fill it; returns the local's name."""
        class_ = self.classes[struct.name]
        local = self.name("o")
        self.constant(f"C_{struct.name}", class_)
        self.constant(f"N_{struct.name}", class_.__new__)
        self.emit(f"{local} = N_{struct.name}(C_{struct.name})")
        outer = self.path
        run: list[FieldSchema] = []
        tagged: list[FieldSchema] = []
        for field in struct.fields:
            if self.version not in field.versions:
                self.set_default(field, f"{local}.{field.name}")
            elif self.version in field.tagged:
                self.set_default(field, f"{local}.{field.name}")
                tagged.append(field)
            elif field.element in FIXED_TYPES and not field.is_array:
                run.append(field)
            else:
                self.read_run(run, local, outer)
                run = []
                self.path = f"{outer}.{field.name}" if outer else field.name
                self.read_value(field, f"{local}.{field.name}")
                self.path = outer
        self.read_run(run, local, outer)
        if self.flexible:
            self.read_tags(tagged, local, outer)
        return local

    def set_default(self, field: FieldSchema, target: str) -> None:
        if field.is_array:
            value = "None" if field.default_is_null else "[]"
        elif field.struct is not None:
            self.constant(f"C_{field.element}", self.classes[field.element])
            value = "None" if field.default_is_null else f"C_{field.element}()"
        else:
            value = repr(field.scalar_default())
        self.emit(f"{target} = {value}")

    def read_run(self, run: list[FieldSchema], local: str, outer: str) -> None:
        """Consecutive fixed-size fields in one unpack."""
        if not run:
            return
        codes = "".join(FIXED_TYPES[field.element][0] for field in run)
        layout = Struct(">" + codes)
        name = self.constant(f"U_{codes}".replace("?", "z"), layout.unpack_from)
        self.path = f"{outer}.{run[0].name}" if outer else run[0].name
        targets = ", ".join(f"{local}.{field.name}" for field in run)
        self.emit(f"{targets}{',' if len(run) == 1 else ''} = {name}(buf, p)")
        self.emit(f"p += {layout.size}")
        self.path = outer

    def read_value(self, field: FieldSchema, target: str) -> None:
        if field.is_array:
            self.read_array(field, target)
        elif field.struct is not None:
            self.read_nested(field, field.struct, target)
        elif field.element in FIXED_TYPES:
            code, size, _ = FIXED_TYPES[field.element]
            unpack = self.constant(f"U_{code}".replace("?", "z"), Struct(">" + code).unpack_from)
            self.emit(f"{target}, = {unpack}(buf, p)")
            self.emit(f"p += {size}")
        else:
            self.read_blob(field, target, self.version in field.nullable)

    def read_length(self, field: FieldSchema, code: str, size: int) -> None:
        """Set ``n`` to the length or count, -1 for null."""
        if self.is_flexible(field):
            self.emit("n = buf[p]")
            self.emit("if n < 128: p += 1")
            self.emit("else: n, p = uv(buf, p)")
            self.emit("n -= 1")
        else:
            unpack = self.constant(f"U_{code}", Struct(">" + code).unpack_from)
            self.emit(f"n, = {unpack}(buf, p)")
            self.emit(f"p += {size}")

    def read_blob(self, field: FieldSchema, target: str, nullable: bool) -> None:  # noqa: FBT001 - generator, one caller pair
        """A string, bytes or records."""
        is_string = field.element == "string"
        if is_string:
            self.read_length(field, "h", 2)
        else:
            self.read_length(field, "i", 4)
        self.emit("if n < 0:")
        self.depth += 1
        if nullable:
            if not self.is_flexible(field):
                self.refuse("n < -1", "a negative length")
            self.emit(f"{target} = None")
        else:
            self.emit("raise Refused('null where it is not allowed' if n == -1 else 'a negative length')")
        self.depth -= 1
        self.emit("else:")
        self.depth += 1
        if is_string and self.is_flexible(field):
            self.refuse(f"n > {STRING_BYTES_MAX}", f"a string of more than {STRING_BYTES_MAX} bytes")
        self.emit("q = p + n")
        self.refuse("q > end", "a length beyond the end of the message")
        if is_string:
            self.emit(f"{target} = str(buf[p:q], 'utf-8')" if self.views else f"{target} = buf[p:q].decode()")
        else:
            self.emit(f"{target} = buf[p:q]")
        self.emit("p = q")
        self.depth -= 1

    def read_nested(self, field: FieldSchema, struct: StructSchema, target: str) -> None:
        if self.version not in field.nullable:
            local = self.read_struct(struct)
            self.emit(f"{target} = {local}")
            return
        # Kafka marks a null structure with -1, and with 0 where it is a tagged field.
        unpack = self.constant("U_b", Struct(">b").unpack_from)
        self.emit(f"n, = {unpack}(buf, p)")
        self.emit("p += 1")
        self.emit(f"if n {'<=' if self.version in field.tagged else '<'} 0: {target} = None")
        self.emit("else:")
        self.depth += 1
        local = self.read_struct(struct)
        self.emit(f"{target} = {local}")
        self.depth -= 1

    def read_array(self, field: FieldSchema, target: str) -> None:
        self.read_length(field, "i", 4)
        self.emit("if n < 0:")
        self.depth += 1
        if self.version in field.nullable:
            if not self.is_flexible(field):
                self.refuse("n < -1", "a negative count")
            self.emit(f"{target} = None")
        else:
            self.emit("raise Refused('null where it is not allowed' if n == -1 else 'a negative count')")
        self.depth -= 1
        self.emit("else:")
        self.depth += 1
        self.emit("room -= n")
        self.refuse("room < 0", f"more than {ELEMENTS_MAX} elements")
        smallest = element_minimum_size(field, self.schema, self.version)
        self.refuse(f"n * {smallest} > end - p", "more elements than the bytes that are left can hold")
        if field.element in FIXED_TYPES:
            code, size, _ = FIXED_TYPES[field.element]
            if field.element == "uuid":
                self.emit(f"{target} = [bytes(buf[q:q + 16]) for q in range(p, p + 16 * n, 16)]")
            else:
                self.emit(f"{target} = list(repeated({code!r}, n).unpack_from(buf, p)) if n else []")
            self.emit(f"p += n * {size}")
        else:
            self.read_elements(field, target)
        self.depth -= 1

    # Rule: The codec checks counts against the bytes that are left before it makes anything. See also
    # native/bytes/request.c. Held by tests/kafka/test_fuzz.py, tests/native_bytes/test_mutations.py.
    def read_elements(self, field: FieldSchema, target: str) -> None:
        items, counter = self.name("a"), self.name("i")
        self.emit(f"{items} = {target} = []")
        self.emit(f"for {counter} in range(n):")
        self.depth += 1
        outer = self.path
        self.path = f"{outer}[{{{counter}}}]"
        if field.struct is not None:
            local = self.read_struct(field.struct)
        else:
            local = self.name("s")
            self.read_blob(field, local, nullable=False)
        self.emit(f"{items}.append({local})")
        self.path = outer
        self.depth -= 1

    def read_tags(self, tagged: list[FieldSchema], local: str, outer: str) -> None:
        self.path = f"{outer}.tagged fields" if outer else "tagged fields"
        count, counter, tag, stop = (self.name(prefix) for prefix in ("n", "t", "g", "e"))
        self.emit("if not buf[p]: p += 1")
        self.emit("else:")
        self.depth += 1
        self.emit(f"{count}, p = uv(buf, p)")
        self.refuse(f"{count} > {TAGGED_FIELDS_MAX}", f"more than {TAGGED_FIELDS_MAX} tagged fields")
        self.refuse(f"{count} * 2 > end - p", "more tagged fields than the bytes that are left can hold")
        self.emit(f"for {counter} in range({count}):")
        self.depth += 1
        self.emit(f"{tag}, p = uv(buf, p)")
        self.emit("n, p = uv(buf, p)")
        self.emit(f"{stop} = p + n")
        self.refuse(f"{stop} > end", "a tagged field beyond the end of the message")
        for index, field in enumerate(tagged):
            self.emit(f"{'elif' if index else 'if'} {tag} == {field.tag}:")
            self.depth += 1
            self.path = f"{outer}.{field.name}" if outer else field.name
            self.read_value(field, f"{local}.{field.name}")
            self.refuse(f"p != {stop}", "a tagged field whose size is not that of its value")
            self.depth -= 1
        self.emit("else:" if tagged else "if True:")
        self.emit(f"    p = {stop}")
        self.depth -= 2
        self.path = outer


def make_decoder(schema: MessageSchema, version: int) -> tuple[Any, DecoderSource]:
    """The compiled ``decode(buf, p)`` and the source that can locate its errors."""
    source = DecoderSource(schema, version)
    return source.compile("decode"), source
