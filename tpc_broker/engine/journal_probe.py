"""Which way of writing the journal works here and is fast: found by writing, not by asking.

O_DIRECT may be accepted at open and refused at the write; a copy-on-write file system never overwrites in place;
RWF_DSYNC may be slower than write and fdatasync. So each mode writes a few blocks that were written before to a small
file beside the journal, in turn with the others: what else the disk does meanwhile meets all of them.

O_DIRECT keeps the journal out of the page cache, lets large batches be written once and wins under load. So it is taken
unless another mode is clearly better: twice as fast in most pairs of writes, of which a disk that was busy gets more.
A journal that was written with O_DIRECT before goes on so when one write shows that it still can be.
"""

from __future__ import annotations

import logging
import mmap
import os
import time
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import TYPE_CHECKING

from tpc_broker import limits
from tpc_broker.log.journal import JournalMode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

PROBE_BLOCKS = 8
"""A round's writes in each mode."""
ROUNDS_MAX = 6
ROUNDS_S_MAX = 2.0
"""No round begins later: a start does not wait longer for a slow disk."""
CLEAR_FACTOR = 2.0
CLEAR_SHARE = 0.75
"""Of all pairs of writes: chance alone makes half of them, at most, look as if O_DIRECT was slow."""
FLAGS = {
    JournalMode.DIRECT_DSYNC: os.O_DIRECT,
    JournalMode.BUFFERED_DSYNC: 0,
    JournalMode.BUFFERED_FDATASYNC: 0,
}


def probe_journal_mode(folder: Path, before: JournalMode = JournalMode.UNKNOWN) -> JournalMode:
    """The mode to take for files in this folder, where `before` was found last. OSError when none works.

    Only O_DIRECT is taken again without comparing: another one may have been found because the disk was busy then.
    """
    if before is JournalMode.DIRECT_DSYNC and _still_works(folder, before):
        log.info("journal mode %s, as before", before.name)
        return before
    found = measure_journal_modes(folder)
    best = best_journal_mode(found)
    figures = ", ".join(f"{mode.name} {median(seconds) * 1e6:.0f} µs" for mode, seconds in found.items())
    count = len(found[best])
    log.info("journal mode %s (medians of %d durable 4 KiB writes in turn: %s)", best.name, count, figures)
    return best


def measure_journal_modes(folder: Path) -> dict[JournalMode, list[float]]:
    """Seconds of durable writes in each mode that works in this folder; those of one number were made one after the
    other. OSError when none does.
    """
    found: dict[JournalMode, list[float]] = {mode: [] for mode in FLAGS}
    with _probe_file(folder, len(FLAGS) * PROBE_BLOCKS) as path, _aligned_block() as block, ExitStack() as stack:
        ends_s = time.perf_counter() + ROUNDS_S_MAX
        descriptors = _opened_in_each(path, stack)
        for _round in range(ROUNDS_MAX):
            _write_in_turn(descriptors, block, found)
            found = {mode: seconds for mode, seconds in found.items() if mode in descriptors}
            is_in_doubt = len(found) > 1 and JournalMode.DIRECT_DSYNC in found
            if not is_in_doubt or best_journal_mode(found) is JournalMode.DIRECT_DSYNC or time.perf_counter() > ends_s:
                break
    return found


def _opened_in_each(path: Path, stack: ExitStack) -> dict[JournalMode, int]:
    descriptors: dict[JournalMode, int] = {}
    refused: OSError | None = None
    for mode in FLAGS:
        try:
            descriptors[mode] = _opened(path, mode)
        except OSError as error:
            refused = error
            log.debug("journal mode %s is refused here: %s", mode.name, error)
        else:
            stack.callback(os.close, descriptors[mode])
    if not descriptors and refused is not None:
        raise refused
    return descriptors


def _write_in_turn(
    descriptors: dict[JournalMode, int], block: mmap.mmap, found: dict[JournalMode, list[float]]
) -> None:
    """A round. Each mode has blocks of its own: what others have put into the page cache would be in its way. What is
    refused is not among the descriptors any more; OSError when nothing is left.
    """
    modes = list(FLAGS)
    for number in range(PROBE_BLOCKS):
        for turn in range(len(modes)):
            place = (number + turn) % len(modes)
            mode = modes[place]
            if mode not in descriptors:
                continue
            try:
                found[mode].append(_write(descriptors[mode], mode, block, place * PROBE_BLOCKS + number))
            except OSError as error:
                del descriptors[mode]
                log.debug("journal mode %s is refused here: %s", mode.name, error)
                if not descriptors:
                    raise


# Rule: The journal's mode is found by writing: O_DIRECT unless another one is clearly better. Held by
# tests/engine/test_journal_probe.py.
def best_journal_mode(found: Mapping[JournalMode, Sequence[float]]) -> JournalMode:
    """The mode to take, of those that were measured."""
    others = [mode for mode in found if mode is not JournalMode.DIRECT_DSYNC]
    best = min(others, key=lambda mode: median(found[mode]), default=JournalMode.DIRECT_DSYNC)
    direct = found.get(JournalMode.DIRECT_DSYNC)
    if direct is None:
        return best
    wins = sum(CLEAR_FACTOR * seconds < slower for seconds, slower in zip(found[best], direct, strict=True))
    return best if wins >= CLEAR_SHARE * len(direct) else JournalMode.DIRECT_DSYNC


def _still_works(folder: Path, mode: JournalMode) -> bool:
    try:
        with _probe_file(folder, 1) as path, _aligned_block() as block:
            descriptor = _opened(path, mode)
            try:
                _write(descriptor, mode, block, 0)
            finally:
                os.close(descriptor)
    except OSError as refused:
        log.info("journal mode %s is refused here now: %s", mode.name, refused)
        return False
    return True


@contextmanager
def _probe_file(folder: Path, blocks: int) -> Iterator[Path]:
    """A file whose blocks were written before."""
    path = folder / f"probe-{os.getpid()}.tmp"
    try:
        with path.open("wb") as file:
            file.write(bytes(blocks * limits.BLOCK_BYTES))
            file.flush()
            os.fsync(file.fileno())
        yield path
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _aligned_block() -> Iterator[mmap.mmap]:
    block = mmap.mmap(-1, limits.BLOCK_BYTES)  # anonymous memory, aligned as O_DIRECT asks
    try:
        block.write(b"\xa5" * limits.BLOCK_BYTES)
        yield block
    finally:
        block.close()


def _opened(path: Path, mode: JournalMode) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | FLAGS[mode])


def _write(descriptor: int, mode: JournalMode, block: mmap.mmap, number: int) -> float:
    """Seconds of a durable write of one block."""
    started, position = time.perf_counter(), number * limits.BLOCK_BYTES
    if mode is JournalMode.BUFFERED_FDATASYNC:
        written = os.pwritev(descriptor, [block], position)
        os.fdatasync(descriptor)
    else:
        written = os.pwritev(descriptor, [block], position, os.RWF_DSYNC)
    if written != limits.BLOCK_BYTES:
        raise OSError(0, f"a probe write of {mode.name} was short")
    return time.perf_counter() - started
