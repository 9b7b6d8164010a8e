"""A log made of segments that came from another replica, in a folder of its own (`filled_folders`).

The last segment's indexes, the producers and where the log ends are found out by its batches. These are looked at as
they come, in the memory in which they came (`FilledLog.take`): read again from the disk they would have to pass it
twice, and who is filled would wait for it. What was not given is read.
"""

from __future__ import annotations

import os
from contextlib import aclosing, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tpc_broker.errors import StorageFailedError
from tpc_broker.log.batch import BatchDamageError
from tpc_broker.log.checkpoint import PartitionCheckpoint
from tpc_broker.log.files import (
    CLEANED_SUFFIXES,
    LOG_SUFFIX,
    PARTITION_METADATA_FILE,
    SEAL_SUFFIX,
    encode_partition_metadata,
    parse_segment_file_name,
    segment_file_name,
)
from tpc_broker.log.seals import Seal, SealedFile, SealError
from tpc_broker.model import Offset
from tpc_broker.storage.replicas.filled_files import write_seal
from tpc_broker.storage.segments.partition_storage import PartitionStorage
from tpc_broker.storage.segments.segment_swap import measured_file
from tpc_broker.storage.segments.segments import Segment, SegmentFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tpc_broker.log.segment import LogSettings
    from tpc_broker.model import TopicPartition
    from tpc_broker.native_bytes import Buffer
    from tpc_broker.storage.ports import Disk
    from tpc_broker.storage.segments.files import FileCache

WHOLE: Final = "whole"
"""A second name of the replica's segment of which only the front becomes part of what it is filled with."""
COPY_BYTES: Final = 4 * 1024 * 1024


# Rule: A replica gives its log up only for one that has everything of it that counts, in one entry of the journal.
# Whatever fails, all of one log or all of the other is there. Why: docs/decisions/2026-11-23-filling-replicas.md. See
# also tpc_broker/storage/replicas/installation.py, tpc_broker/storage/recovery/filled_folders.py,
# tpc_broker/node/replicas/filling.py. Held by tests/node/test_installation.py, tests/cluster/test_shipping.py.
class FilledLog:
    """A log of the records [starts, ends) by its segments alone, of which all but the last one's log are there whole.

    StorageFailedError of any method: they are no such log, or the disk refuses; OSError.
    """

    def __init__(self, files: FileCache, storage: PartitionStorage, ends: int) -> None:
        self._files = files
        self._storage = storage
        self._ends = ends

    @classmethod
    async def begin(
        cls, files: FileCache, path: Path, topic: str, key: TopicPartition, settings: LogSettings,
        *, starts: int, ends: int, coming: Segment | None = None,
    ) -> FilledLog:  # fmt: skip
        """`coming`: the last segment, whose file is not there yet, or being written."""
        folder = SegmentFolder(files, path)
        try:
            with _telling_damage("what was shipped"):
                storage = await _open_filled(folder, topic, key, settings, starts, ends, coming)
                await storage.begin_settling(ends)
        except BaseException:
            await folder.close()
            raise
        return cls(files, storage, ends)

    async def take(self, batches: Buffer, next_offset: int) -> None:
        """What comes next of the last segment: whole batches, up to an offset. They are written, or will be before
        `settle`, where they belong.
        """
        with _telling_damage("what was shipped"):
            await self._storage.take_settled(batches, next_offset, self._ends)

    async def settle(self) -> PartitionCheckpoint:
        """Everything is there: the partition as these files have it, all of it durable."""
        storage, folder = self._storage, self._storage.folder
        with _telling_damage("what was shipped"):
            await storage.settle(self._ends)
        await folder.write_file(PARTITION_METADATA_FILE, encode_partition_metadata(storage.key.topic_id))
        await self._files.sync(folder.path / PARTITION_METADATA_FILE)
        state = await storage.capture()
        folder.names_changed = True
        await storage.sync()
        await self._files.disk.fsync_directory(folder.path.parent)
        return replace(state, commit_offset=Offset(self._ends), filled=folder.path.name)

    async def close(self) -> None:
        await self._storage.folder.close()


@contextmanager
def _telling_damage(what: str) -> Iterator[None]:
    try:
        yield
    except (BatchDamageError, ValueError) as error:
        raise StorageFailedError(f"{what} is no whole log: {error}") from error


async def _open_filled(
    folder: SegmentFolder, topic: str, key: TopicPartition, settings: LogSettings, starts: int, ends: int,
    coming: Segment | None = None, *, upto_sealed: bool = True,
) -> PartitionStorage:  # fmt: skip
    """`upto_sealed`: the last segment stays as it is if it was cleaned, and an empty one follows it."""
    listing = await folder.disk.read_folders([folder.path], ())
    if listing[0] is None:
        raise StorageFailedError(f"{folder.path} is gone")
    sizes = {
        parsed[0]: size
        for name, size in listing[0].sizes_bytes.items()
        if (parsed := parse_segment_file_name(name)) is not None and parsed[1] == LOG_SUFFIX
    }
    if coming is not None:
        sizes[Offset(coming.base_offset)] = coming.size_bytes
    segments = [Segment(base, size) for base, size in sorted(sizes.items())] or [Segment(ends)]
    for segment in segments:
        segment.seal = await _seal_beside(folder, segment)
    if upto_sealed and _is_cleaned_upto(segments[-1], ends):
        segments.append(Segment(ends))  # what comes next is not appended to a segment that was cleaned
    if segments[0].base_offset > starts or segments[-1].base_offset > ends:
        raise StorageFailedError(f"what was shipped begins at {segments[0].base_offset}, not at {starts}")
    state = PartitionCheckpoint(
        key.topic_id, key.partition, topic, log_start_offset=Offset(starts), log_end_offset=Offset(ends)
    )
    return PartitionStorage(folder, state, segments, settings)


async def _seal_beside(folder: SegmentFolder, segment: Segment) -> Seal | None:
    """None: it was not cleaned. StorageFailedError."""
    data = await folder.read_file(segment_file_name(segment.base_offset, SEAL_SUFFIX))
    try:
        return None if data is None else Seal.decode(data)
    except SealError as error:
        raise StorageFailedError(f"the seal of segment {segment.base_offset} is damaged: {error}") from error


def _is_cleaned_upto(segment: Segment, ends: int) -> bool:
    """Whether it was cleaned; StorageFailedError: and ends elsewhere."""
    if segment.seal is not None and segment.seal.end_offset != ends:
        end = segment.seal.end_offset
        raise StorageFailedError(f"what was shipped ends with a cleaned segment at {end}, not at {ends}")
    return segment.seal is not None


async def bring_own(own: PartitionStorage, path: Path, upto: int, first_dirty_offset: int) -> int:
    """What a replica has itself of the log that it is filled with, [its start, `upto`), all of it committed: into the
    folder, durably. Sealed segments are linked, since nothing of them changes any more but for seals; the last one is
    copied, and cut there. From where on keys are to be collected in the whole log, at most `first_dirty_offset`.
    StorageFailedError; OSError: also when retention takes a segment in the midst.
    """
    async with own.swaps_held():
        files, last = own.folder.files, own.segments[own.segment_number(upto - 1)]
        first_dirty_offset = min(first_dirty_offset, own.cleaned.first_dirty_offset)
        is_cut = last is own.active or own.end_of(last) != upto
        kept = [each for each in own.segments if each.base_offset <= last.base_offset]
        whole = kept[:-1] if is_cut else kept
        linked = [name for segment in whole for name in await _link(own, segment, path)]
        if is_cut:
            await files.disk.link(own.folder.path / last.log_name, path / WHOLE)
    for name in linked:  # of what is linked nothing changes: the disk takes its time without holding up anybody
        await _sync(files.disk, path / name)
    for segment in whole:
        if segment.seal is not None:
            name = segment_file_name(segment.base_offset, SEAL_SUFFIX)
            await write_seal(files.disk, path / name, segment.seal, first_dirty_offset)
    if is_cut:
        await _copy(files, path / WHOLE, path / last.log_name)
        await files.disk.unlink(path / WHOLE)
        await _cut_own(SegmentFolder(files, path), own, last, upto, first_dirty_offset)
    await files.disk.fsync_directory(path)
    return first_dirty_offset


async def _link(own: PartitionStorage, segment: Segment, path: Path) -> list[str]:
    """All files of a sealed segment that are there, but for its seal: their names."""
    linked = []
    for name in segment.file_names[:-1]:
        with suppress(FileNotFoundError) if name != segment.log_name else nullcontext():
            await own.folder.disk.link(own.folder.path / name, path / name)
            linked.append(name)
    return linked


async def _cut_own(
    folder: SegmentFolder, own: PartitionStorage, last: Segment, upto: int, first_dirty_offset: int
) -> None:  # fmt: skip
    """A segment that was cleaned may have no batch that ends at the cut: it gets a seal of its own."""
    try:
        with _telling_damage("what is here"):
            what = own.topic, own.key, own.settings, last.base_offset, upto
            part = await _open_filled(folder, *what, upto_sealed=False)
            await part.begin_settling(upto)
            await part.settle(upto, is_sealed=True, has_gaps=last.seal is not None)
            await folder.sync([])
        if last.seal is not None:
            seal = await _seal_of(folder, part.active, last.seal, upto)
            name = segment_file_name(last.base_offset, SEAL_SUFFIX)
            await write_seal(folder.disk, folder.path / name, seal, first_dirty_offset)
    finally:
        await folder.close()


async def _seal_of(folder: SegmentFolder, segment: Segment, before: Seal, upto: int) -> Seal:
    """Of the front of a segment that was cleaned, by its files."""
    batches_count = 0
    async with aclosing(folder.walk(segment, 0)) as batches:
        async for _batch in batches:
            batches_count += 1
    names = [segment_file_name(segment.base_offset, suffix) for suffix in CLEANED_SUFFIXES]
    files = [await _sealed_file(folder, name) for name in names]
    return Seal(
        os.urandom(8).hex(), segment.base_offset, upto, (segment.base_offset,), before.first_dirty_offset,
        min(before.removed_upto, upto), batches_count, before.modified_ms, *files,
    )  # fmt: skip


async def _sealed_file(folder: SegmentFolder, name: str) -> SealedFile:
    try:
        return await measured_file(folder.disk, folder.path / name)
    except FileNotFoundError:
        return SealedFile(0, 0)


async def _copy(files: FileCache, source: Path, target: Path) -> None:
    disk = files.disk
    fd = await disk.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        async with files.use(source) as file:
            position = 0
            while data := await disk.read(file.fd, COPY_BYTES, position):
                await disk.write_at(fd, data, position)
                position += len(data)
        await disk.fdatasync(fd)
    finally:
        await disk.close(fd)


async def _sync(disk: Disk, path: Path) -> None:
    """Of a sealed segment, which a checkpoint would sync at some time."""
    fd = await disk.open(path, os.O_RDWR)
    try:
        await disk.fdatasync(fd)
    finally:
        await disk.close(fd)
