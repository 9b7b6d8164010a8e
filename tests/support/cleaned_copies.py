"""Segments as a cleaner would leave them beside a log, made by hand: byte-equal, or without some of the batches."""

import itertools
import os

from tpc_broker.log.batch import walk_headers
from tpc_broker.log.files import CLEANED_SUFFIXES, cleaned_file_name, segment_file_name
from tpc_broker.log.seals import Seal, SealedFile
from tpc_broker.log.segment import SegmentIndexes
from tpc_broker.native_bytes import crc32c
from tpc_broker.storage.segments.segment_reader import SegmentReader
from tpc_broker.storage.segments.segment_swap import Source

_GENERATIONS = itertools.count(1)


async def sources_of(files, segments):
    return [
        Source(segment, (await files.folder.disk.stat(files.folder.path / segment.log_name)).inode)
        for segment in segments
    ]


async def cleaned_copy(files, segments, *, keep=lambda _header: True, keep_aborted=lambda _entry: True, removed_upto=0,
                       first_dirty_offset=None):  # fmt: skip
    """Files under their `.cleaned-` names for these segments, which follow each other, and their seal."""
    disk, folder, base = files.folder.disk, files.folder.path, segments[0].base_offset
    end_offset = files.end_of(segments[-1])
    indexes, kept, aborted = SegmentIndexes(base, files.settings.index_interval_bytes), [], []
    for segment in segments:
        data = await read_file(disk, folder / segment.log_name)
        for header, place in walk_headers(data[: segment.size_bytes]):
            if keep(header):
                batch = data[place : place + header.size_bytes]
                indexes.add(header, sum(map(len, kept)))
                kept.append(batch)
        loaded = await SegmentReader(files).load(segment)
        aborted += [entry for entry in loaded.transactions.entries if keep_aborted(entry)]
    indexes.seal()
    for entry in aborted:
        indexes.transactions.append(entry)
    contents = [b"".join(kept), indexes.offsets.data, indexes.times.data, indexes.transactions.encode()]
    modified_ms = max([(await disk.stat(folder / segment.log_name)).modified_ms for segment in segments])
    seal = Seal(
        f"{next(_GENERATIONS):016x}", base, end_offset, tuple(segment.base_offset for segment in segments),
        end_offset if first_dirty_offset is None else first_dirty_offset, removed_upto, len(kept), modified_ms,
        *(SealedFile(len(content), crc32c(content)) for content in contents),
    )  # fmt: skip
    for content, suffix in zip(contents, CLEANED_SUFFIXES, strict=True):
        if content or suffix != CLEANED_SUFFIXES[3]:
            path = folder / cleaned_file_name(segment_file_name(base, suffix), seal.generation)
            await _write(disk, path, content)
            await set_modified(disk, path, modified_ms)
    await disk.fsync_directory(folder)
    return seal


async def swap_copy(files, segments, published=lambda: None, **how):
    """Put a copy in their place; its seal."""
    sources = await sources_of(files, segments)
    seal = await cleaned_copy(files, segments, **how)
    await files.swap(sources, seal, published)
    return seal


def cleanable(files):
    """Segments that a swap may replace."""
    upto = min(files.checkpointed.segment_base, files.checkpointed.committed_end_offset)
    return [segment for segment in files.segments[:-1] if files.end_of(segment) <= upto]


def some_of(segments, rng, count_max=4):
    """A few that follow each other."""
    first = rng.randrange(len(segments))
    return segments[first : first + rng.randint(1, count_max)]


async def read_file(disk, path):
    """Nothing: it is not there."""
    try:
        fd = await disk.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        size = (await disk.stat(path)).size_bytes
        return bytes(await disk.read(fd, size, 0))
    finally:
        await disk.close(fd)


async def _write(disk, path, content):
    fd = await disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        if content:
            await disk.write_at(fd, bytes(content), 0)
        await disk.fdatasync(fd)
    finally:
        await disk.close(fd)


async def set_modified(disk, path, modified_ms):
    names = getattr(disk, "names", None)
    if names is not None:
        names[path].modified_ms = modified_ms
    else:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

