"""Message objects: one slotted class per structure, with the union of the fields of all versions.

Classes are made on first use from the schema. A nested structure's class is an attribute of its message's class, under
Kafka's name: ``MetadataResponse.MetadataResponseTopic``. Fields are given by keyword; what is left out has Kafka's
default (an array a new empty list, a non-null structure a new one with its own defaults).
"""

from functools import cache
from typing import Any, ClassVar

from .schema import FieldSchema, StructSchema, message_schema

UNSET: Any = type("Unset", (), {"__repr__": lambda _: "UNSET", "__slots__": ()})()
"""Stands for "not given" where None means null."""


class Message:
    """Base of all message classes: equality by fields, a readable repr, conversion to plain dictionaries."""

    __slots__ = ()
    FIELDS: ClassVar[tuple[str, ...]] = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.FIELDS)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.FIELDS)})"

    def to_dict(self) -> dict[str, Any]:
        """The message as dictionaries and lists; bytes and memory views become bytes."""
        return {name: _plain(getattr(self, name)) for name in self.FIELDS}


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return value.to_dict()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return bytes(value) if isinstance(value, memoryview) else value


def _parameter(field: FieldSchema) -> tuple[str, str]:
    """The default of a parameter and the expression that is assigned to the slot."""
    name = field.name
    if field.is_array or (field.struct is not None):
        if field.default_is_null:
            return "None", name
        made = "[]" if field.is_array else f"C_{field.element}()"
        return "UNSET", f"{made} if {name} is UNSET else {name}"
    return repr(field.scalar_default()), name


def _class_source(struct: StructSchema) -> str:
    names = [field.name for field in struct.fields]
    parameters = [(field.name, *_parameter(field)) for field in struct.fields]
    signature = ", ".join(f"{name}={default}" for name, default, _ in parameters)
    lines = [
        f"class {struct.name}(Message):",
        f"    __slots__ = {tuple(names)!r}",
        f"    FIELDS = {tuple(names)!r}",
        f"    def __init__(self{', *, ' + signature if names else ''}):",
        *[f"        self.{name} = {value}" for name, _, value in parameters],
        "        return None",
    ]
    return "\n".join(lines)


@cache
def message_classes(name: str) -> dict[str, type[Message]]:
    """All classes of the message of that name, by structure name; the message's own is under its own name."""
    schema = message_schema(name)
    scope: dict[str, Any] = {"Message": Message, "UNSET": UNSET, "__name__": "tpc_broker.kafka.messages"}
    classes: dict[str, type[Message]] = {}
    for struct in (*schema.structs.values(), schema.root):
        exec(compile(_class_source(struct), f"<{name} classes>", "exec"), scope)  # noqa: S102 - source made from our schema
        classes[struct.name] = scope["C_" + struct.name] = scope[struct.name]
    root = classes[name]
    for nested, class_ in classes.items():
        if nested != name:
            class_.__qualname__ = f"{name}.{nested}"
            setattr(root, nested, class_)
    return classes


def message_class(name: str) -> Any:
    """The class of the message of that name, for example ``message_class("MetadataResponse")``."""
    return message_classes(name)[name]
