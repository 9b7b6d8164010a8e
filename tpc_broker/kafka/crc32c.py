"""CRC-32C (Castagnoli): native where the byte helpers are built, else by a table, which is right and slow."""

from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def _table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901 - the shift register
        table.append(value)
    return tuple(table)


def crc32c_portable(data: bytes | bytearray | memoryview) -> int:
    """CRC-32C of bytes in pure Python, some megabytes per second."""
    table = _table()
    value = 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        value = value >> 8 ^ table[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def _native() -> Callable[[Any], int] | None:
    try:
        from tpc_broker._bytes import ffi, lib  # noqa: PLC0415 - optional, decided at import
    except ImportError:
        return None
    native = getattr(lib, "tpc_crc32c", None)
    if native is None:
        return None

    def crc32c_native(data: bytes | bytearray | memoryview) -> int:
        value: int = native(0, ffi.from_buffer(data), memoryview(data).nbytes)
        return value

    return crc32c_native


crc32c: Callable[[Any], int] = _native() or crc32c_portable
"""CRC-32C of a bytes-like object."""
