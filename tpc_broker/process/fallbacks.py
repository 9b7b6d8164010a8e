"""What this host refuses, what is done instead, what that costs, and what mends it: each said once, at the start.

Nothing of it stops a broker. Every way is tried and not asked for, because a seccomp filter, a sandbox and a file
system refuse in different places. The parts that take the other way find the refusal themselves (the journal's probe,
the file cache, the reserved space, the connections that send from files); here it is only told. The backend is told by
`engine.backend`, and what eBPF steers by who asked for it.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import socket
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker._ring import ffi, lib
from tpc_broker.limits import BLOCK_BYTES
from tpc_broker.options import why_not_pinned

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

MOUNTS: Final = Path("/proc/self/mountinfo")
LOCAL_DISK: Final = "--data on a local disk with ext4 or xfs; in a container a volume"
IN_MEMORY: Final = ("tmpfs", "ramfs")
OF_CONTAINERS: Final = "overlay"
_OF_THE_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOENT})
"""The last one where /proc is not mounted. None of them is a refusal."""


class Fallback(NamedTuple):
    """One line of the log, and a row of docs/deployment.md."""

    refused: str
    instead: str
    costs: str
    mend: str

    def __str__(self) -> str:
        return f"{self.refused}: {self.instead}; {self.costs}; mend: {self.mend}"


def find_fallbacks(data: Path) -> list[Fallback]:
    """Of the data directory, in a file without a name. A disk that is full or fails shows nothing: others say so."""
    found = [_kept_for_a_time(file_system_of(data))]
    try:
        with TemporaryFile(dir=data) as file, mmap.mmap(-1, BLOCK_BYTES) as block:  # aligned as O_DIRECT asks
            file.write(bytes(BLOCK_BYTES))
            file.flush()
            found += [_refusal(each, file.fileno(), block) for each in (_DIRECT, _DURABLE, _RESERVED, _SENT)]
    except OSError as error:
        log.debug("what the file system of %s refuses cannot be tried: %s", data, error)
    return [each for each in found if each is not None]


def without_pins() -> Fallback | None:
    """Where a core cannot be given a CPU of its own; None where it can."""
    reason = why_not_pinned()
    return None if reason is None else Fallback(
        f"CPU pinning is refused here ({reason})",
        "the kernel moves cores between CPUs",
        "answers are a little slower and less even",
        "a filter that allows sched_setaffinity",
    )


def _kept_for_a_time(kind: str) -> Fallback | None:
    if kind in IN_MEMORY:
        lost = "all are gone when the host or the container restarts"
        return Fallback(f"--data is on a {kind}", "records are kept in memory", lost, LOCAL_DISK)
    if kind == OF_CONTAINERS:
        lost = "slower, and all are gone when the container is removed"
        return Fallback("--data is on an overlay", "records are kept in the container's own layer", lost, LOCAL_DISK)
    return None


def file_system_of(path: Path) -> str:
    """Its kind, as proc(5) has it; empty where that cannot be told."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = [line.split() for line in MOUNTS.read_text(errors="replace").splitlines()]
    except OSError:
        return ""
    return next((words[words.index("-") + 1] for words in lines if words[2] == number), "")


def _refusal(way: _Way, fd: int, block: mmap.mmap) -> Fallback | None:
    try:
        way.attempt(fd, block)
    except OSError as error:
        if error.errno in _OF_THE_DISK:
            return None
        refused = f"{way.name} is refused here ({os.strerror(error.errno or 0)})"
        return Fallback(refused, way.instead, way.costs, way.mend)
    return None


# -- ways -------------------------------------------------------------------------------------------------------------


class _Way(NamedTuple):
    name: str
    attempt: Callable[[int, mmap.mmap], object]
    """With a file of a block, and memory for one. OSError: it is refused."""
    instead: str
    costs: str
    mend: str


def _write_direct(fd: int, block: mmap.mmap) -> None:
    direct_fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    try:
        os.pwritev(direct_fd, [block], 0)
    finally:
        os.close(direct_fd)


def _write_durably(fd: int, block: mmap.mmap) -> None:
    os.pwritev(fd, [block], 0, os.RWF_DSYNC)


def _reserve(fd: int, _block: mmap.mmap) -> None:
    space = ffi.new("tpc_file_space[]", [(0, 2 * BLOCK_BYTES, fd, 0)])
    lib.tpc_reserve_many(space, 1)  # glibc's posix_fallocate writes where the call is refused
    if space[0].result < 0:
        raise OSError(-space[0].result, os.strerror(-space[0].result))


def _send(fd: int, _block: mmap.mmap) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        os.sendfile(ours.fileno(), fd, 0, BLOCK_BYTES)


_DIRECT: Final = _Way(
    "O_DIRECT", _write_direct,
    "journal and segments are written through the page cache",
    "each byte is copied once more, and takes memory from what consumers read",
    LOCAL_DISK,
)  # fmt: skip
_DURABLE: Final = _Way(
    "RWF_DSYNC", _write_durably,
    "a durable write is a write and an fdatasync",
    "acknowledgements mean the same, and each takes another call to the disk",
    f"a filter or a sandbox that allows pwritev2 with it; {LOCAL_DISK}",
)  # fmt: skip
_RESERVED: Final = _Way(
    "fallocate", _reserve,
    "no space is taken ahead of what is written",
    "a disk that runs full is noticed only when segments are written, behind what was acknowledged: that stays in the "
    "journal until there is space",
    f"{LOCAL_DISK}, with free space that is watched",
)  # fmt: skip
_SENT: Final = _Way(
    "sendfile", _send,
    "what consumers fetch from files is read into memory and sent from there",
    "one copy more of each byte",
    f"a filter or a sandbox that allows sendfile; {LOCAL_DISK}",
)  # fmt: skip
