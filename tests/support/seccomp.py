"""Runs a command under a seccomp filter, as a container engine or systemd does.

    python -m tests.support.seccomp PROFILE COMMAND…

PROFILE is a file in the engines' format (`--security-opt seccomp=`), or `no-io_uring`, which refuses io_uring alone.
The filter is made by libseccomp, which every Debian has because apt needs it; names that it does not know are left
out, as the engines do. What it sets cannot be taken back, so the command replaces this process. It is the thread's, so
a test can have a thread under a filter (`called_under`).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")

ACTIONS: Final = {"SCMP_ACT_ALLOW": 0x7FFF0000, "SCMP_ACT_ERRNO": 0x00050000}
COMPARISONS: Final = {"SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}
UNKNOWN: Final = -1
IO_URING: Final = ("io_uring_setup", "io_uring_enter", "io_uring_register")
NO_IO_URING: Final = "no-io_uring"


class Comparison(ctypes.Structure):
    """`struct scmp_arg_cmp`: one argument of the call, and what it is held against."""

    _fields_ = (("argument", ctypes.c_uint), ("how", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def libseccomp() -> ctypes.CDLL:
    """Raises `OSError` where there is none."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = (ctypes.c_uint32,)
    library.seccomp_load.argtypes = (ctypes.c_void_p,)
    library.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Comparison),
    )  # fmt: skip
    return library


def _action(name: str, errno: int) -> int:
    return ACTIONS[name] | (errno if name == "SCMP_ACT_ERRNO" else 0)


def refusing(errno: int, *names: str) -> dict[str, Any]:
    """A profile that allows all else."""
    rule = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno}
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}


def refusing_flag(errno: int, name: str, argument: int, flag: int) -> dict[str, Any]:
    """The same of one call where this argument of it has the flag."""
    has_flag = {"index": argument, "op": "SCMP_CMP_MASKED_EQ", "value": flag, "valueTwo": flag}
    profile = refusing(errno, name)
    profile["syscalls"][0]["args"] = [has_flag]
    return profile


def together(*profiles: dict[str, Any]) -> dict[str, Any]:
    """What any of them refuses, of profiles that allow all else."""
    return {**refusing(0), "syscalls": [rule for profile in profiles for rule in profile["syscalls"]]}


WAYS: Final = {
    "CPU pinning": refusing(errno.EPERM, "sched_setaffinity"),
    "O_DIRECT": refusing_flag(errno.EINVAL, "openat", 2, os.O_DIRECT),
    "RWF_DSYNC": refusing_flag(errno.EOPNOTSUPP, "pwritev2", 5, os.RWF_DSYNC),
    "fallocate": refusing(errno.EOPNOTSUPP, "fallocate"),
    "sendfile": refusing(errno.EINVAL, "sendfile"),
}
"""What hosts refuse besides io_uring, by its name in `tpc_broker.process.fallbacks`."""


def under(profile: dict[str, Any], folder: Path) -> list[str]:
    """What to write before a command so that it runs under the profile, which is kept in the folder."""
    path = folder / "seccomp.json"
    path.write_text(json.dumps(profile))
    return [sys.executable, "-m", "tests.support.seccomp", str(path)]


def load(profile: dict[str, Any]) -> None:
    """From here on, and in every child, calls are judged by the profile. `OSError` when the kernel refuses it."""
    library = libseccomp()
    context = library.seccomp_init(_action(profile["defaultAction"], profile.get("defaultErrnoRet", 1)))
    assert context
    for rule in profile["syscalls"]:
        compared = [
            Comparison(one["index"], COMPARISONS[one["op"]], one["value"], one.get("valueTwo", 0))
            for one in rule.get("args", ())
        ]
        array = (Comparison * max(len(compared), 1))(*compared)
        action = _action(rule["action"], rule.get("errnoRet", 1))
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number == UNKNOWN:
                continue
            error = library.seccomp_rule_add_array(context, action, number, len(compared), array)
            if error:
                raise OSError(-error, f"seccomp rule for {name}: {os.strerror(-error)}")
    error = library.seccomp_load(context)
    if error:
        raise OSError(-error, f"seccomp filter: {os.strerror(-error)}")


def called_under(profile: dict[str, Any], function: Callable[[], T]) -> T:
    """What it gives in a thread of its own whose calls, and no others, are judged by the profile."""
    with ThreadPoolExecutor(1) as one_thread:
        one_thread.submit(load, profile).result()
        return one_thread.submit(function).result()


if __name__ == "__main__":
    chosen = sys.argv[1]
    load(refusing(errno.EPERM, *IO_URING) if chosen == NO_IO_URING else json.loads(Path(chosen).read_text("utf-8")))
    os.execvp(sys.argv[2], sys.argv[2:])
