"""Cleaned segments in the place of those that they were made of: all of them or none, whatever happens.

Theory of operation
-------------------
The cleaner leaves its files, durable, beside the log under `.cleaned-GENERATION` names. The seal is written beside its
place and made durable. Then, when the partition's lock was taken, and its version is as the job saw it:

1. `BASE.seal` gets its name, and that is made durable: the commit point. Before, nothing has changed; behind it the
   swap is finished, by whoever comes next;
2. its files get their names;
3. the next version is published, and the data plane told, in one step, under the lock;
4. the other segments that it replaces go, with all that belongs to them.

The lock is held for the look at the version, and for step 3. In between, and until step 4 is done, the swap is *under
way*: what is written and rolled touches the active segment alone, and goes on; cuts, retention, mending and other swaps
of the partition wait. So the sources stay what they were. What fails meanwhile (a write) fails the partition, and
leaves the rest to mending, as if it had failed here.

Steps 2 and 4 can be done again (`put_in_place`) from any state in which they were cut short, also when the disk has
kept their parts in another order: the seal says which files are whose, and what is under a `.cleaned-` name of its
generation is not in its place yet. A start does so before it opens anything of a folder (`finish_swaps`), and so does
mending, when the disk has failed in the midst: the partition is failed then. `.cleaned-` files of which no seal says
anything are of jobs that came to nothing, and go.

Readers: `swap_guard`. The logs that went stay open until the lock is given back: freeing them takes its time.
"""

from __future__ import annotations

import errno
import os
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from tpc_broker.errors import StorageFailedError
from tpc_broker.log.files import (
    CLEANED_SUFFIXES,
    LOG_SUFFIX,
    LOSSES_FILE,
    SEAL_SUFFIX,
    SEGMENT_SUFFIXES,
    TEMPORARY_SUFFIX,
    cleaned_file_name,
    decode_losses,
    parse_cleaned_file_name,
    parse_segment_file_name,
    segment_file_name,
)
from tpc_broker.log.seals import SEAL_BYTES_MAX, Seal, SealedFile, SealError
from tpc_broker.native_bytes import crc32c
from tpc_broker.storage.segments.batch_ranges import missing
from tpc_broker.storage.segments.files_life import Change
from tpc_broker.storage.segments.segments import Segment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from tpc_broker.storage.ports import Disk
    from tpc_broker.storage.segments.folders import PartitionListing
    from tpc_broker.storage.segments.segment_log import SegmentLog
    from tpc_broker.storage.segments.segments import SegmentFolder


MEASURED_BYTES: Final = 4 * 1024 * 1024
"""Of a file, read at a time."""
KEPT_OPEN_MAX: Final = 64
"""Logs of one swap: more than these are so small that freeing them takes no time, and would take all descriptors."""
_OF_THE_MOMENT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class SwapRefusedError(Exception):
    """Nothing was changed: the log is not as the job saw it, or the disk refuses the seal."""


class Source(NamedTuple):
    """A segment that is to be replaced, and the inode of its log when the job began."""

    segment: Segment
    inode: int


# Rule: Cleaned segments take the place of others by one seal: before it is durable nothing has changed, behind it the
# swap is finished by whoever comes next. Whatever fails, all of them are there or none. Held by
# tests/storage/test_segment_swap.py, tests/durability/test_compaction.py.
class SegmentSwap:
    """Of one partition. No state of its own, as `SegmentReader`."""

    __slots__ = ("_log",)

    def __init__(self, log: SegmentLog) -> None:
        self._log = log

    async def swap(
        self,
        sources: Sequence[Source],
        seal: Seal,
        published: Callable[[], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> float:
        """Put a cleaned segment, whose files are there, in the place of these. `published` is called in the step that
        shows it to readers; `is_wanted` is asked when the partition is locked. For how many seconds it was.

        SwapRefusedError: nothing has changed. StorageFailedError: the partition has failed, or is not open.
        """
        log = self._log
        async with AsyncExitStack() as kept:
            await self._check_files(sources, seal, kept)
            written = await kept.enter_async_context(self._seal_beside(seal))
            while True:
                await log.swaps.wait_over()
                await log.swaps.wait_free()
                with ExitStack() as begun:
                    async with log.changing(Change.REPLACE):
                        looked_s = trio.current_time()
                        if log.swaps.is_held or log.swaps.is_under_way:
                            continue
                        self._check_version(sources, seal)
                        if not is_wanted():
                            raise SwapRefusedError("it is not to be cleaned any more")
                        begun.enter_context(log.swaps.under_way())
                        begun.enter_context(trio.CancelScope(shield=True))
                        looked_s = trio.current_time() - looked_s
                    segments = [one.segment for one in sources]
                    await self._carry_out(segments, seal, written)
                    async with log.changing(Change.REPLACE):
                        locked_s = trio.current_time()
                        self._publish(segments, seal, published)
                        locked_s = trio.current_time() - locked_s
                    await self._remove_merged(seal)
                return looked_s + locked_s

    async def _check_files(self, sources: Sequence[Source], seal: Seal, kept: AsyncExitStack) -> None:
        """The sources are the files that the job saw, and the cleaned ones are there, in full."""
        folder = self._log.folder
        try:
            for number, (segment, inode) in enumerate(sources):
                status = await folder.disk.stat(folder.path / segment.log_name)
                if (status.inode, status.size_bytes) != (inode, segment.size_bytes):
                    raise SwapRefusedError(f"segment {segment.base_offset} is another file")
                if number < KEPT_OPEN_MAX:
                    await kept.enter_async_context(folder.use_log(segment))
            for file, name in zip(seal.files, _cleaned_names(seal), strict=True):
                size_bytes = await _size_of(folder, name)
                if size_bytes != file.size_bytes:
                    raise SwapRefusedError(f"{name} has {size_bytes} bytes, its seal says {file.size_bytes}")
        except (OSError, LookupError) as error:
            raise SwapRefusedError(str(error)) from error

    def _check_version(self, sources: Sequence[Source], seal: Seal) -> None:
        version, segments = self._log.version, [one.segment for one in sources]
        number = version.segments.index(segments[0]) if segments[0] in version.segments else len(version.segments)
        behind = number + len(segments)
        if list(version.segments[number:behind]) != segments or behind >= len(version.segments):
            raise SwapRefusedError("its segments have changed")
        if tuple(one.base_offset for one in segments) != seal.replaced:
            raise SwapRefusedError(f"the seal replaces {seal.replaced}")
        if version.segments[behind].base_offset != seal.end_offset:
            raise SwapRefusedError(f"the seal ends at {seal.end_offset}")
        checkpointed = self._log.checkpointed
        if seal.end_offset > min(checkpointed.segment_base, checkpointed.committed_end_offset):
            raise SwapRefusedError("a start may have to cut there")

    # Rule: Nothing but the active segment of a partition changes while cleaned segments get their names, which is done
    # without its lock. Held by tests/storage/test_segment_swap.py.
    async def _carry_out(self, segments: Sequence[Segment], seal: Seal, written: str) -> None:
        log = self._log
        for segment in segments:
            segment.give_way()
        try:
            await log.folder.rename(written, _name(seal, SEAL_SUFFIX))
            await log.folder.disk.fsync_directory(log.folder.path)
            await _rename_cleaned(log.folder, seal)
        except OSError as error:
            raise self._failed(error) from error

    async def _remove_merged(self, seal: Seal) -> None:
        try:
            await _remove_replaced(self._log.folder, seal)
            await self._log.folder.disk.fsync_directory(self._log.folder.path)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StorageFailedError:
        """What is in the files is there: mending finishes this."""
        self._log.fail(f"{Change.REPLACE.value}: {error}", pages_in_doubt=False)
        return StorageFailedError(self._log.failed)

    def _publish(self, segments: Sequence[Segment], seal: Seal, published: Callable[[], None]) -> None:
        log, fresh = self._log, Segment(seal.base_offset, seal.log.size_bytes, seal=seal)
        number = log.segments.index(segments[0])
        before, behind = log.segments[:number], log.segments[number + len(segments) :]
        log.publish(log.written_end_offset, (*before, fresh, *behind))
        published()

    @asynccontextmanager
    async def _seal_beside(self, seal: Seal) -> AsyncIterator[str]:
        """The name under which it is, durable. Where it does not get to its place it is removed."""
        folder = self._log.folder
        name = segment_file_name(seal.base_offset, f".{seal.generation}{SEAL_SUFFIX}{TEMPORARY_SUFFIX}")
        try:
            try:
                await self._write_seal(name, seal)
            except OSError as error:
                raise SwapRefusedError(f"its seal cannot be written: {error}") from error
            yield name
        except BaseException:
            with trio.CancelScope(shield=True), suppress(OSError):
                await folder.disk.unlink(folder.path / name)
            raise

    async def _write_seal(self, name: str, seal: Seal) -> None:
        disk = self._log.folder.disk
        fd = await disk.open(self._log.folder.path / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            await disk.write_at(fd, seal.encode(), 0)
            await disk.fdatasync(fd)
        finally:
            await disk.close(fd)


async def put_in_place(folder: SegmentFolder, seal: Seal, sizes: Mapping[str, int]) -> None:
    """What is left of steps 2 and 4: durably when this returns. `sizes`: of the files that are there, by name. OSError:
    to be done again.
    """
    await _remove_replaced(folder, seal, sizes)
    await _rename_cleaned(folder, seal, sizes)
    await folder.disk.fsync_directory(folder.path)


async def _remove_replaced(folder: SegmentFolder, seal: Seal, sizes: Mapping[str, int] | None = None) -> None:
    """`sizes`: as of `put_in_place`; None: all of them are there, and the cleaned ones under the names that the cleaner
    gave them.
    """
    for base in seal.replaced[1:]:
        for suffix in SEGMENT_SUFFIXES:
            name = segment_file_name(base, suffix)
            if sizes is None or name in sizes:
                await folder.remove(name)


async def _rename_cleaned(folder: SegmentFolder, seal: Seal, sizes: Mapping[str, int] | None = None) -> None:
    for file, suffix, cleaned in zip(seal.files, CLEANED_SUFFIXES, _cleaned_names(seal), strict=True):
        name = _name(seal, suffix)
        is_there = file.size_bytes > 0 or await _is_there(folder, cleaned) if sizes is None else cleaned in sizes
        if is_there:
            await folder.rename_over(cleaned, name)
        elif not file.size_bytes and (sizes is None or sizes.get(name)):
            await folder.remove(name)


async def _is_there(folder: SegmentFolder, name: str) -> bool:
    try:
        await folder.disk.stat(folder.path / name)
    except FileNotFoundError:
        return False
    return True


async def _size_of(folder: SegmentFolder, name: str) -> int:
    """0: it is empty, or not there."""
    try:
        return (await folder.disk.stat(folder.path / name)).size_bytes
    except FileNotFoundError:
        return 0


def _name(seal: Seal, suffix: str) -> str:
    return segment_file_name(seal.base_offset, suffix)


def _cleaned_names(seal: Seal) -> list[str]:
    return [cleaned_file_name(_name(seal, suffix), seal.generation) for suffix in CLEANED_SUFFIXES]


# -- what comes next -----------------------------------------------------------------------------------------------


# Rule: A seal without its log is damage, unless the log starts behind it, and so is one with a hole behind it, unless a
# repair has told of it. Held by tests/storage/test_segment_swap.py, tests/storage/test_repair_cleaned.py.
async def finish_swaps(
    folder: SegmentFolder, listing: PartitionListing, segment_base: int, log_start_offset: int
) -> PartitionListing:
    """Before anything of a partition's folder is opened: the folder, and its seals, when all swaps are finished, and
    what came to nothing is gone. `segment_base`: of the active segment; what is behind it is not looked at.

    SealError: a seal and the files do not belong together. OSError.
    """
    names = listing.sizes
    bases = sorted(
        parsed[0] for name in names if (parsed := parse_segment_file_name(name)) and parsed[1] == SEAL_SUFFIX
    )
    if not bases and not any(parse_cleaned_file_name(name) for name in names):
        return listing
    sizes, seals, upto = dict(names), dict[int, Seal](), 0
    for base in bases:
        name = segment_file_name(base, SEAL_SUFFIX)
        if base > segment_base or base < upto:  # goes with its segment
            continue
        seal = await read_seal(folder, base)
        log_name = _name(seal, LOG_SUFFIX)
        if log_name not in sizes and cleaned_file_name(log_name, seal.generation) not in sizes:
            if seal.end_offset > log_start_offset:
                raise SealError(f"the log of cleaned segment {base} is missing")
            await folder.remove(name)
            del sizes[name]
            continue
        if _is_left_over(seal, sizes):
            await folder.disk.fsync_directory(folder.path)  # whoever left it may have gone before its seal was durable
            await put_in_place(folder, seal, sizes)
            sizes = files_after(seal, sizes)
        _check_files(seal, sizes, segment_base)
        seals[base], upto = seal, seal.end_offset
    for name in [name for name in sizes if parse_cleaned_file_name(name)]:
        await folder.remove(name)
        del sizes[name]
    for seal in seals.values():
        await _check_behind(folder, seal, sizes, segment_base, log_start_offset)
    return replace(listing.with_files(sizes), seals=seals)


async def _check_behind(
    folder: SegmentFolder, seal: Seal, sizes: Mapping[str, int], segment_base: int, log_start_offset: int
) -> None:
    """Where a cleaned segment ends the next one begins: else what is missing would count as cleaned away from the next
    cleaning on. What is not in the log any more may be missing, and what a repair has told to be lost. SealError,
    OSError.
    """
    parsed = (parse_segment_file_name(name) for name in sizes)
    logs = (one[0] for one in parsed if one and one[1] == LOG_SUFFIX and one[0] > seal.base_offset)
    first, next_base = max(seal.end_offset, log_start_offset), min((segment_base, *logs))
    if first >= next_base:
        return
    losses = decode_losses(await folder.read_file(LOSSES_FILE) or b"")
    if missing(first, next_base, sorted(losses)):
        raise SealError(f"no segment has the records behind cleaned segment {seal.base_offset}: [{first}, {next_base})")


def _check_files(seal: Seal, sizes: Mapping[str, int], segment_base: int) -> None:
    """Of a segment that is in its place. SealError."""
    base, size_bytes = seal.base_offset, sizes.get(_name(seal, LOG_SUFFIX), 0)
    if size_bytes != seal.log.size_bytes:
        raise SealError(f"segment {base} has {size_bytes} bytes, its seal says {seal.log.size_bytes}")
    if seal.end_offset > segment_base:
        raise SealError(f"cleaned segment {base} ends at {seal.end_offset}, the log goes on from {segment_base}")


async def measured_file(disk: Disk, path: Path) -> SealedFile:
    """What a file is, as a seal says it. OSError."""
    fd, size_bytes, crc = await disk.open(path, os.O_RDONLY), 0, 0
    try:
        while data := await disk.read(fd, MEASURED_BYTES, size_bytes):
            size_bytes, crc = size_bytes + len(data), crc32c(data, crc)
    finally:
        await disk.close(fd)
    return SealedFile(size_bytes, crc)


async def read_seal(folder: SegmentFolder, base_offset: int) -> Seal:
    """SealError: there is none of this segment that can be believed. OSError: it may be there in a moment."""
    name = segment_file_name(base_offset, SEAL_SUFFIX)
    try:
        fd = await folder.disk.open(folder.path / name, os.O_RDONLY)
        try:
            data = await folder.disk.read(fd, SEAL_BYTES_MAX + 1, 0)
        finally:
            await folder.disk.close(fd)
    except OSError as error:
        if error.errno in _OF_THE_MOMENT:
            raise
        raise SealError(f"{name} cannot be read: {error}") from error
    seal = Seal.decode(bytes(data))
    if seal.base_offset != base_offset:
        raise SealError(f"{name} is of segment {seal.base_offset}")
    return seal


def _is_left_over(seal: Seal, names: Mapping[str, int]) -> bool:
    """Whether something of a swap is not done, or has not become durable."""
    replaced = (segment_file_name(base, suffix) for base in seal.replaced[1:] for suffix in SEGMENT_SUFFIXES)
    stale = (
        _name(seal, suffix)
        for file, suffix in zip(seal.files, CLEANED_SUFFIXES, strict=True)
        if not file.size_bytes and names.get(_name(seal, suffix))
    )
    return any(name in names for name in (*_cleaned_names(seal), *replaced, *stale))


def files_after(seal: Seal, names: Mapping[str, int]) -> dict[str, int]:
    """Files and their sizes when `put_in_place` is done."""
    bases = set(seal.replaced[1:])
    sizes = {
        name: size
        for name, size in names.items()
        if not ((parsed := parse_segment_file_name(name)) and parsed[0] in bases)
    }
    for file, suffix, cleaned in zip(seal.files, CLEANED_SUFFIXES, _cleaned_names(seal), strict=True):
        if cleaned in sizes:
            sizes[_name(seal, suffix)] = sizes.pop(cleaned)
        elif not file.size_bytes and sizes.get(_name(seal, suffix)):
            del sizes[_name(seal, suffix)]
    return sizes


async def remove_cleaned(folder: SegmentFolder, names: Collection[str]) -> None:
    """What a job has left that nobody took: at its end, and before the next one. OSError."""
    for name in names:
        if parse_cleaned_file_name(name):
            await folder.remove(name)
