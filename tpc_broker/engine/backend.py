"""Which backend a broker's rings have, why, and what brings io_uring back.

io_uring is how it is meant to run. Where the host refuses it, or its kernel is too old, `auto` takes the plain backend
(native/io/plain.c): the same answers and the same durability, with more system calls and threads for files. The
supervisor decides once and gives the answer to its cores.
"""

from __future__ import annotations

import errno
import os
import platform
import re
from pathlib import Path
from typing import Final

from tpc_broker.engine.ring import (
    BACKEND_VARIABLE,
    HIDE_VARIABLE,
    KERNEL_NEEDED,
    SECCOMP_NEEDED,
    Backend,
    Ring,
    RingUnavailable,
    hidden_features,
    is_filtered,
)
from tpc_broker.engine.trio_ring import RingOptions
from tpc_broker.options import ChosenBackend

AUTO: Final = "auto"
CHOICES: Final = (AUTO, Backend.IO_URING.value, Backend.PLAIN.value)
KERNEL_MIN: Final = (5, 8)
PROBE_ENTRIES: Final = 8
SYSCTL: Final = Path("/proc/sys/kernel/io_uring_disabled")
MEND_SYSCTL: Final = "sysctl -w kernel.io_uring_disabled=0"
MEND_FILTER: Final = (
    "container: --security-opt seccomp=packaging/container/seccomp.json; "
    "service: SystemCallFilter=io_uring_setup io_uring_enter io_uring_register"
)
COSTS: Final = "all works, with more system calls for each request and threads for files"


def choose_backend(asked: str = AUTO) -> ChosenBackend:
    """RingUnavailable: io_uring is insisted on, and refused. ValueError: TPC_HIDE_FEATURES or TPC_BACKEND names what
    there is not.
    """
    hidden_features(os.environ.get(HIDE_VARIABLE, ""))
    asked = _wanted(asked)
    if asked not in CHOICES:
        raise ValueError(f"{BACKEND_VARIABLE}: {asked!r} is no backend: {', '.join(CHOICES)} are")
    if asked == Backend.PLAIN:
        return ChosenBackend(Backend.PLAIN, "it was asked for", "--backend auto")
    try:
        Ring(PROBE_ENTRIES, backend=Backend.IO_URING).close()
    except RingUnavailable as refused:
        if asked == Backend.IO_URING:
            raise
        return ChosenBackend(Backend.PLAIN, *why_refused(refused.errno, sysctl=_sysctl(), filtered=is_filtered()))
    if asked == AUTO and kernel_version(platform.release()) < KERNEL_MIN:
        return ChosenBackend(Backend.PLAIN, f"Linux {platform.release()} is too old for io_uring", KERNEL_NEEDED)
    return ChosenBackend(Backend.IO_URING, "", "")


def insists_on_io_uring(asked: str) -> bool:
    return _wanted(asked) == Backend.IO_URING


def _wanted(asked: str) -> str:
    """By the setting, or by the variable where the setting leaves it open."""
    return (os.environ.get(BACKEND_VARIABLE) or AUTO) if asked == AUTO else asked


def ring_options() -> RingOptions:
    """Of a ring for a command beside the broker: the backend that `auto` takes here."""
    return RingOptions(backend=Backend(choose_backend().name))


def why_refused(error: int, *, sysctl: int | None, filtered: bool) -> tuple[str, str]:
    """The reason, and what mends it. `sysctl`: kernel.io_uring_disabled; None: it is not there, or cannot be read."""
    forbidden = error in {errno.EPERM, errno.EACCES}
    found = f"io_uring cannot be set up: {os.strerror(error)}", f"{KERNEL_NEEDED}; {SECCOMP_NEEDED}"
    if forbidden and sysctl:
        found = f"the sysctl kernel.io_uring_disabled is {sysctl}", MEND_SYSCTL
    elif forbidden and filtered:
        found = "a seccomp filter refuses io_uring", MEND_FILTER
    elif forbidden:
        found = "io_uring is forbidden here", f"{MEND_SYSCTL}; {MEND_FILTER}"
    elif error == errno.ENOSYS and filtered:
        found = "a seccomp filter or the kernel refuses io_uring", f"{MEND_FILTER}; kernel: {KERNEL_NEEDED}"
    elif error == errno.ENOSYS:
        found = "this kernel has no io_uring", KERNEL_NEEDED
    elif error == errno.ENOMEM:
        found = "not even a small io_uring fits into the locked-memory limit", "ulimit -l unlimited (LimitMEMLOCK=)"
    return found


def kernel_version(release: str) -> tuple[int, int]:
    """``6.1.0-18-amd64`` to (6, 1); (0, 0) where there are no numbers."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def described(chosen: ChosenBackend) -> str:
    """For the start's line and for `status`."""
    if chosen.name == Backend.IO_URING:
        return "io_uring"
    return f"{chosen.name}, without io_uring: {chosen.reason}; {COSTS}; mend: {chosen.mend}"


def _sysctl() -> int | None:
    try:
        return int(SYSCTL.read_text())
    except (OSError, ValueError):
        return None
