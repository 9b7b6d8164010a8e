"""How a core's process begins: ``python -m tpc_broker.process.core_start OPTIONS``, started by the supervisor.

Recovery reads the whole journal, and the interpreter needs as long as the disk does for that, to import everything
else. So the kernel is asked first to bring the journal into the page cache, by a thread beside the imports. That is a
hint and nothing more: what recovery reads is checked there, and where the hint cannot be given it reads from the disk.

An earlier life's ring may still write past the page cache, and what is brought in beside such a write could stay there
as it was before. So the journal's lock is looked at first: when it is not free, there is no hint. When it is, that ring
is gone, and this process's own does not write before recovery has read everything.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from pathlib import Path
from typing import Final

from tpc_broker.log.files import journal_file_name, journal_lock_name
from tpc_broker.log.journal import (
    BLOCK_BYTES,
    REGION_BLOCK_FIRST,
    JournalUnreadableError,
    Superblock,
    choose_superblock,
)
from tpc_broker.model import CoreId

STEP_BYTES: Final = 128 * 1024
"""Linux reads ahead no more at a time than the device's `read_ahead_kb`, whose default this is."""


def stretches_to_read(superblock: Superblock) -> list[tuple[int, int]]:
    """Positions of the file, [first, end), in the order in which recovery comes to them. None after an orderly stop."""
    if superblock.clean:
        return []
    first, replay, end = (
        block * BLOCK_BYTES for block in (REGION_BLOCK_FIRST, superblock.replay_block, superblock.end_block)
    )
    return [(replay, end), (first, replay)]


def read_ahead(data: Path, core: CoreId) -> int:
    """Have a core's journal read into the page cache; of how many bytes the kernel was told.

    0 when there is no journal yet, when somebody holds its lock, or when it needs no replay.
    """
    folder = data / "journals"
    try:
        lock = os.open(folder / journal_lock_name(core), os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(lock)
        return _advise(folder / journal_file_name(core))
    except (OSError, JournalUnreadableError):  # recovery comes to it, and says it better
        return 0


def _advise(path: Path) -> int:
    told_bytes = 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        superblock = choose_superblock(os.pread(fd, REGION_BLOCK_FIRST * BLOCK_BYTES, 0))
        for first, end in stretches_to_read(superblock):
            for position in range(first, end, STEP_BYTES):
                os.posix_fadvise(fd, position, min(STEP_BYTES, end - position), os.POSIX_FADV_WILLNEED)
                told_bytes += min(STEP_BYTES, end - position)
    finally:
        os.close(fd)
    return told_bytes


def main(arguments: list[str]) -> int:
    fields = json.loads(arguments[0])
    place = (Path(fields["data"]), CoreId(fields["core"]))
    threading.Thread(target=read_ahead, args=place, daemon=True, name="read ahead").start()
    from tpc_broker.process.core import main as run_core  # noqa: PLC0415 (what the thread runs beside)

    return run_core(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
