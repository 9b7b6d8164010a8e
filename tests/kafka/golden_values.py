"""Values for the golden vectors, the same on every run: made from a field's path, not from its order or version.

Two variants of each message version: ``full`` has values that differ from the defaults, two elements per array and all
tagged fields; ``bare`` has nulls where they are allowed, empty arrays, and tagged fields at their defaults unless null
differs from it.
"""

import zlib

from tpc_broker.kafka.message import message_classes

VARIANTS = ("full", "bare")
BITS = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "uint32": 32, "int64": 63}


def number(path, bits):
    low = zlib.crc32(path.encode())
    return (low << 32 | zlib.crc32(path[::-1].encode())) % ((1 << bits) - 2) + 1


def scalar(element, path):
    if element == "bool":
        return True
    if element in BITS:
        value = number(path, BITS[element])
        return -value if element.startswith("int") and value % 3 == 0 else value
    if element == "float64":
        return number(path, 20) / 8
    if element == "uuid":
        return number(path, 63).to_bytes(8, "big") * 2
    text = f"{path}-é" if number(path, 8) % 4 == 0 else path
    return text if element == "string" else text.encode() * 3


def value_of(schema, field, version, path, variant):
    bare = variant == "bare"
    if bare and version in field.nullable:
        return None
    if field.is_array:
        return [] if bare else [element(schema, field, version, f"{path}{index}", variant) for index in range(2)]
    if bare and field.struct is None:
        return field.scalar_default() if field.scalar_default() is not None else scalar(field.element, path)
    return element(schema, field, version, path, variant)


def element(schema, field, version, path, variant):
    if field.struct is not None:
        return build_struct(schema, field.struct, version, path, variant)
    return scalar(field.element, path)


def null_is_special(field):
    """Whether null is allowed and not the default, so that a tagged field has to be written for it."""
    return field.nullable.end > 0 and not field.default_is_null


def build_struct(schema, struct, version, path, variant):
    values = {}
    for field in struct.fields:
        left_out = variant == "bare" and version in field.tagged and not null_is_special(field)
        if version not in field.versions or left_out:
            continue
        values[field.name] = value_of(schema, field, version, f"{path}.{field.name}", variant)
    return message_classes(schema.name)[struct.name](**values)


def build(schema, version, variant):
    """The message object of a variant."""
    return build_struct(schema, schema.root, version, schema.name, variant)
