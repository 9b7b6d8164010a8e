"""Which way of writing the journal works here and is fast: found by writing, not by asking.

O_DIRECT may be accepted at open and refused at the write; a copy-on-write file system never overwrites in place;
RWF_DSYNC may be slower than write and fdatasync. So each mode writes a few blocks that were written before to a small
file beside the journal, and the fastest that worked is taken, O_DIRECT with
a head start. A journal that was written with O_DIRECT before goes on so when one write shows that it still can be.
"""

from __future__ import annotations

import logging
import mmap
import os
import time
from typing import TYPE_CHECKING

from tpc_broker import limits
from tpc_broker.log.journal import JournalMode

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

PROBE_BLOCKS = 8
ROUNDS_MAX = 4
"""A disk that was busy just while O_DIRECT was tried gets other chances; on a free one the first round decides."""
DIRECT_ADVANTAGE = 2.0
"""O_DIRECT keeps the journal out of the page cache and wins under load; a busy disk must not hide that from a probe."""
FLAGS = {
    JournalMode.DIRECT_DSYNC: os.O_DIRECT,
    JournalMode.BUFFERED_DSYNC: 0,
    JournalMode.BUFFERED_FDATASYNC: 0,
}


def probe_journal_mode(folder: Path, before: JournalMode = JournalMode.UNKNOWN) -> JournalMode:
    """The fastest mode that works for files in this folder, where `before` was found last. OSError when none does.

    Only O_DIRECT is taken again without comparing: another one may have been found because the disk was busy then.
    """
    if before is JournalMode.DIRECT_DSYNC and _still_works(folder, before):
        log.info("journal mode %s, as before", before.name)
        return before
    found = measure_journal_modes(folder)
    best = best_journal_mode(found)
    figures = ", ".join(f"{mode.name} {seconds * 1e6:.0f} µs" for mode, seconds in found.items())
    log.info("journal mode %s (the best of at least %d durable 4 KiB writes: %s)", best.name, PROBE_BLOCKS, figures)
    return best


def measure_journal_modes(folder: Path) -> dict[JournalMode, float]:
    """Seconds of a durable write in each mode that works in this folder. OSError when none does."""
    path = _probe_path(folder)
    found: dict[JournalMode, float] = {}
    error: OSError | None = None
    try:
        with path.open("wb") as file:
            file.write(bytes(PROBE_BLOCKS * limits.BLOCK_BYTES))
            file.flush()
            os.fsync(file.fileno())
        for mode in FLAGS:
            try:
                found[mode] = _measure(path, mode)
            except OSError as refused:
                error = refused
                log.debug("journal mode %s is refused here: %s", mode.name, refused)
        rounds = 1
        while JournalMode.DIRECT_DSYNC in found and rounds < ROUNDS_MAX:
            if best_journal_mode(found) is JournalMode.DIRECT_DSYNC:
                break
            found = {mode: min(seconds, _measure(path, mode)) for mode, seconds in found.items()}
            rounds += 1
    finally:
        path.unlink(missing_ok=True)
    if not found:
        assert error is not None
        raise error
    return found


def _still_works(folder: Path, mode: JournalMode) -> bool:
    path = _probe_path(folder)
    try:
        path.write_bytes(bytes(limits.BLOCK_BYTES))
        _measure(path, mode, blocks=1)
    except OSError as refused:
        log.info("journal mode %s is refused here now: %s", mode.name, refused)
        return False
    finally:
        path.unlink(missing_ok=True)
    return True


def _probe_path(folder: Path) -> Path:
    return folder / f"probe-{os.getpid()}.tmp"


def best_journal_mode(found: dict[JournalMode, float]) -> JournalMode:
    """The mode to take, of those that were measured."""
    return min(found, key=lambda mode: found[mode] / (DIRECT_ADVANTAGE if mode is JournalMode.DIRECT_DSYNC else 1))


def _measure(path: Path, mode: JournalMode, blocks: int = PROBE_BLOCKS) -> float:
    """Least seconds of a durable write of one block: what else the disk does at the moment must not decide."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | FLAGS[mode])
    block = mmap.mmap(-1, limits.BLOCK_BYTES)  # anonymous memory, aligned as O_DIRECT asks
    try:
        block.write(b"\xa5" * limits.BLOCK_BYTES)
        durations = []
        for number in range(blocks):
            started = time.perf_counter()
            position = number * limits.BLOCK_BYTES
            if mode is JournalMode.BUFFERED_FDATASYNC:
                written = os.pwritev(descriptor, [block], position)
                os.fdatasync(descriptor)
            else:
                written = os.pwritev(descriptor, [block], position, os.RWF_DSYNC)
            if written != limits.BLOCK_BYTES:
                raise OSError(0, f"a probe write of {mode.name} was short")
            durations.append(time.perf_counter() - started)
    finally:
        block.close()
        os.close(descriptor)
    return min(durations)
