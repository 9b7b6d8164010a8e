"""The lock on a journal outlasts the last write of a killed process, on both backends.

A frozen file system keeps a write in the kernel for as long as the test wants: nothing ends it, not even SIGKILL. It is
past the page cache, as the journal's are: a thread's reaches the disk after its process was killed, while io_uring may
give up what it had not begun.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.durability.loop_device import new_file_system
from tests.support.backends import on_io_uring
from tests.support.waiting import PATIENCE_S, eventually

FREEZE, THAW = 0xC0045877, 0xC0045878
"""FIFREEZE and FITHAW, linux/fs.h."""
BLOCK_BYTES = 4096
IN_ITS_END = {"plain": "Z", "io_uring": "D"}
"""With io_uring the first thread itself waits for what the kernel's workers do."""
WRITER = """
import fcntl, mmap, os, sys
from tpc_broker._ring import ffi, lib
from tpc_broker.engine.ring import Ring

lock_path, journal_path, backend = sys.argv[1:]
ring = Ring(64, backend=backend)
lock = os.open(lock_path, os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
assert lib.tpc_ring_hold_file(ring.pointer, lock) == 0
os.close(lock)
journal = os.open(journal_path, os.O_RDWR | os.O_DIRECT)
block = mmap.mmap(-1, 4096)
block[:] = b"l" * 4096
assert lib.tpc_operation_write(ring.pointer, 1, journal, ffi.from_buffer(block), 4096, 0, os.RWF_DSYNC) > 0
ring.wait(0)
print("written", flush=True)
ring.wait(-1)
"""

pytestmark = pytest.mark.crash


@contextmanager
def frozen(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, FREEZE, struct.pack("i", 0))
        try:
            yield
        finally:
            fcntl.ioctl(descriptor, THAW, struct.pack("i", 0))
    finally:
        os.close(descriptor)


def states(pid: int) -> dict[int, str]:
    """Of each thread, workers of io_uring too."""
    return {
        int(task.name): (task / "stat").read_text().rpartition(")")[2].split()[0]
        for task in Path(f"/proc/{pid}/task").iterdir()
    }


@pytest.mark.parametrize("backend", [on_io_uring("io_uring"), pytest.param("plain", marks=pytest.mark.plain)])
def test_the_lock_is_held_until_the_last_write_of_a_killed_process_is_over(tmp_path: Path, backend: str) -> None:
    with new_file_system(tmp_path / "disk", 64 << 20) as disk:
        lock_path, journal_path = disk.mount_point / "lock", disk.mount_point / "journal"
        lock_path.touch()
        journal_path.write_bytes(b"f" * BLOCK_BYTES)
        os.sync()
        command = [sys.executable, "-c", WRITER, str(lock_path), str(journal_path), backend]
        with lock_path.open("r+") as lock:

            def take() -> bool:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                return True

            with frozen(disk.mount_point):
                writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                assert writer.stdout is not None
                assert writer.stdout.readline() == "written\n"
                eventually(lambda: "D" in states(writer.pid).values(), "a write that waits for the file system")
                writer.kill()
                eventually(lambda: states(writer.pid)[writer.pid] == IN_ITS_END[backend], "the end of its first thread")
                assert not take()
            eventually(take, "the lock")
            found = journal_path.read_bytes()
            writer.wait(PATIENCE_S)
            writer.stdout.close()
            assert journal_path.read_bytes() == found, "a write came after the lock was free"
            assert backend == "io_uring" or found == b"l" * BLOCK_BYTES
