"""The bytes before a value whose schema a registry has: 0, four bytes of the schema's id, then what the codec wrote.

Protobuf has the path to its message there, too: how many numbers, then each, as zigzag varints; a single 0 stands for
the first message. The format is Confluent's, which every registry of that interface shares.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

MAGIC: Final = 0
HEAD: Final = Struct(">bI")
NESTED_MAX: Final = 64
"""Messages within messages."""
_VARINT_BYTES_MAX: Final = 5


class UnframedError(ValueError):
    """The bytes do not begin as those with a schema's id do."""


def framed(schema_id: int, body: bytes) -> bytes:
    return HEAD.pack(MAGIC, schema_id) + body


def schema_id_of(data: bytes) -> int:
    """What the head says. `UnframedError`: there is none."""
    if len(data) < HEAD.size or data[0] != MAGIC:
        raise UnframedError(f"no schema's id stands before it: it begins with {bytes(data[:5]).hex(' ') or 'nothing'}")
    return int(HEAD.unpack_from(data)[1])


def indexes_written(indexes: tuple[int, ...]) -> bytes:
    """The path to a message within its file, as Protobuf's frames have it."""
    if indexes == (0,):
        return b"\0"
    return b"".join(map(_zigzag, (len(indexes), *indexes)))


def indexes_read(data: bytes) -> tuple[tuple[int, ...], int]:
    """The path to a message, and where the message begins in ``data``."""
    count, position = _unzigzag(data, HEAD.size)
    if count == 0:
        return (0,), position
    if not 0 < count <= NESTED_MAX:
        raise UnframedError(f"a path to a message with {count} steps")
    found = []
    for _ in range(count):
        index, position = _unzigzag(data, position)
        found.append(index)
    return tuple(found), position


def _zigzag(number: int) -> bytes:
    left, out = number << 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _unzigzag(data: bytes, position: int) -> tuple[int, int]:
    found = 0
    for number, byte in enumerate(data[position : position + _VARINT_BYTES_MAX]):
        found |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return found >> 1 ^ -(found & 1), position + number + 1
    raise UnframedError("the path to its message ends in the middle")
