"""bpf(2): maps and what the kernel says of a program. Errors are OSError with the kernel's number.

Structures are those of linux/bpf.h; a field that is missing at the end of one is 0 to the kernel.
"""

from __future__ import annotations

import ctypes
import os
import platform
from enum import IntEnum
from typing import Final, NamedTuple

_SYSTEM_CALLS: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE = 0, 1, 2, 3
_OBJECT_INFO, _ENABLE_STATISTICS = 15, 32
_RUN_TIME: Final = 0
MAP_MMAPABLE: Final = 1 << 10

_libc = ctypes.CDLL(None, use_errno=True)


class MapType(IntEnum):
    HASH = 1
    ARRAY = 2
    SOCKET_ARRAY = 20


class _Create(ctypes.Structure):
    _fields_ = (
        ("map_type", ctypes.c_uint32),
        ("key_size", ctypes.c_uint32),
        ("value_size", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("inner_map_fd", ctypes.c_uint32),
        ("numa_node", ctypes.c_uint32),
        ("map_name", ctypes.c_char * 16),
    )


class _Element(ctypes.Structure):
    _fields_ = (
        ("map_fd", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class _Info(ctypes.Structure):
    _fields_ = (("bpf_fd", ctypes.c_uint32), ("info_len", ctypes.c_uint32), ("info", ctypes.c_uint64))


class _ProgramInfo(ctypes.Structure):
    """struct bpf_prog_info up to run_cnt."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("_before", ctypes.c_uint8 * 184),
        ("run_time_ns", ctypes.c_uint64),
        ("run_count", ctypes.c_uint64),
    )


class _Statistics(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint32),)


class ProgramRuns(NamedTuple):
    """How often a program ran while runs were counted, and for how long in all."""

    runs: int
    time_ns: int


def create_map(  # noqa: PLR0913 (what a map is)
    kind: MapType, name: str, key_bytes: int, value_bytes: int, entries: int, flags: int = 0
) -> int:
    """A descriptor; closed on exec."""
    return _bpf(_MAP_CREATE, _Create(kind, key_bytes, value_bytes, entries, flags, 0, 0, name.encode()[:15]))


def update(map_fd: int, key: bytes, value: bytes) -> None:
    _bpf(_MAP_UPDATE, _Element(map_fd, _address(key), _address(value), 0))


def lookup(map_fd: int, key: bytes, value_bytes: int) -> bytes | None:
    value = ctypes.create_string_buffer(value_bytes)
    try:
        _bpf(_MAP_LOOKUP, _Element(map_fd, _address(key), ctypes.addressof(value), 0))
    except FileNotFoundError:
        return None
    return value.raw


def delete(map_fd: int, key: bytes) -> None:
    """Nothing happens when it is not there."""
    try:
        _bpf(_MAP_DELETE, _Element(map_fd, _address(key), 0, 0))
    except FileNotFoundError:
        return


def count_runs() -> int:
    """From now on the kernel counts runs of programs and their time, on the whole machine, at 20 to 30 ns a run; until
    the descriptor is closed.
    """
    return _bpf(_ENABLE_STATISTICS, _Statistics(_RUN_TIME))


def program_runs(program_fd: int) -> ProgramRuns:
    info = _ProgramInfo()
    _bpf(_OBJECT_INFO, _Info(program_fd, ctypes.sizeof(info), ctypes.addressof(info)))
    return ProgramRuns(info.run_count, info.run_time_ns)


def _address(value: bytes) -> int:
    """Of the bytes, which live as long as the caller holds them."""
    return ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value or 0


def _bpf(command: int, attributes: ctypes.Structure) -> int:
    number = _SYSTEM_CALLS.get(platform.machine())
    if number is None:
        raise OSError(38, f"bpf: no number of the system call is known for {platform.machine()}")
    result: int = _libc.syscall(number, command, ctypes.byref(attributes), ctypes.sizeof(attributes))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"bpf: {os.strerror(error)}")
    return result
