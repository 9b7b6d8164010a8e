"""Cleaned segments in a repair: what their seals say of what is damaged, and the seals that they get instead.

Gaps in a cleaned segment are right, so what is missing in one that is damaged cannot be told from what was cleaned
away: between two batches that lie behind each other in its file nothing is missing, and where bytes cannot be read
records may be lost, or none. A segment that is written anew gets a fresh seal: without one its gaps would be damage.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.log.files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEAL_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    parse_cleaned_file_name,
    parse_segment_file_name,
    segment_file_name,
)
from tpc_broker.log.folder_view import FolderView, folder_view, names_of, sealed_bases
from tpc_broker.log.seals import Seal, SealedFile, SealError
from tpc_broker.native_bytes import crc32c
from tpc_broker.storage.segments.files import replace_file
from tpc_broker.storage.segments.segment_swap import files_after, measured_file, put_in_place, remove_cleaned

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from tpc_broker.log.segment import SegmentIndexes
    from tpc_broker.storage.ports import Disk
    from tpc_broker.storage.segments.folders import PartitionListing
    from tpc_broker.storage.segments.segments import SegmentFolder

NO_FILE = SealedFile(0, 0)


class Doubt(NamedTuple):
    """A cleaned segment of which it is not known what is missing."""

    base_offset: int
    end_offset: int
    reason: str


class SealedSegment(NamedTuple):
    """`seal`: what it has, or what is made up for one whose seal says nothing. `problem`: why it is written anew."""

    seal: Seal
    problem: str | None
    is_log_sound: bool = False
    """Nothing but its indexes is wrong, which are made anew."""


async def read_view(disk: Disk, path: Path, names: Collection[str]) -> tuple[FolderView, dict[int, str]]:
    """A folder as recovery leaves it, and which seals cannot be believed, by base offset. OSError."""
    wanted = tuple(segment_file_name(base, SEAL_SUFFIX) for base in sealed_bases(names))
    if not wanted:
        return folder_view(names, {}), {}
    [contents] = await disk.read_folders([path], wanted)
    seals: dict[int, Seal] = {}
    problems: dict[int, str] = {}
    for base, name in zip(sealed_bases(names), wanted, strict=True):
        if contents is None or (name not in contents.small_files and name not in contents.unreadable):
            continue
        if name in contents.unreadable:
            problems[base] = f"its seal cannot be read ({contents.unreadable[name].strerror})"
            continue
        try:
            seal = Seal.decode(contents.small_files[name])
        except SealError as error:
            problems[base] = str(error)
            continue
        if seal.base_offset == base:
            seals[base] = seal
        else:
            problems[base] = f"its seal is that of the segment at {seal.base_offset}"
    return folder_view(names, seals), problems


def waiting(names: Iterable[str], problems: Collection[int]) -> set[str]:
    """Cleaned files that seals may have named which cannot be believed, and which are of these segments: they may be
    all that is left of others that had gone by then.
    """
    cleaned = {name: parsed[0] for name in names if (parsed := parse_cleaned_file_name(name))}
    bases = {name: found[0] for name, file in cleaned.items() if (found := parse_segment_file_name(file))}
    return {name for name, base in bases.items() if base in problems}


async def finish_all_swaps(folder: SegmentFolder, listing: PartitionListing) -> PartitionListing:
    """A start leaves the folder of a partition that is set aside as it is: what it would do with swaps that were cut
    short, and with what a cleaner has left, whatever else is wrong with the files. Seals without a log go: no repair
    brings their segments back, and a start takes them for damage. OSError.
    """
    view, problems = await read_view(folder.disk, listing.path, listing.names)
    await folder.disk.fsync_directory(listing.path)  # the seals: who has left them may have gone before that
    for seal in view.unfinished:
        await put_in_place(folder, seal, listing.sizes)
        listing = listing.with_files(files_after(seal, listing.sizes))
    left = {name for name in listing.sizes if parse_cleaned_file_name(name)} - waiting(listing.sizes, problems)
    await remove_cleaned(folder, left)
    logs = {one.base_offset for one in listing.segments}
    for name in [segment_file_name(base, SEAL_SUFFIX) for base in sealed_bases(listing.names) if base not in logs]:
        await folder.remove(name)
        left.add(name)
    return listing.with_files({name: size for name, size in listing.sizes.items() if name not in left})


async def sealed_segments(
    disk: Disk, path: Path, names: Collection[str], folder: tuple[FolderView, Mapping[int, str]], log_end_offset: int
) -> dict[int, SealedSegment]:
    """The cleaned segments of a folder, by base offset, with their files held against their seals. `folder`: as of
    `read_view`. OSError.
    """
    view, problems = folder
    found: dict[int, SealedSegment] = {}
    bases = [one.base_offset for one in view.segments]
    for one, behind in zip(view.segments, [*bases, log_end_offset][1:], strict=True):
        if one.seal is not None:
            wrong = [
                _unlike(file, NO_FILE if name is None or name not in names else await measured_file(disk, path / name))
                for name, file in zip(names_of(one.seal, names), one.seal.files, strict=True)
            ]
            problem = wrong[0] or ("an index is not what its seal says" if any(wrong) else None)
            found[one.base_offset] = SealedSegment(one.seal, problem, is_log_sound=wrong[0] is None)
        elif one.base_offset in problems:
            end = max(behind, one.base_offset + 1)
            modified_ms = (await disk.stat(path / segment_file_name(one.base_offset, LOG_SUFFIX))).modified_ms
            seal = Seal("0" * 16, one.base_offset, end, (one.base_offset,), 0, end, 0, modified_ms, *[NO_FILE] * 4)
            found[one.base_offset] = SealedSegment(seal, problems[one.base_offset])
    return found


def _unlike(file: SealedFile, found: SealedFile) -> str | None:
    """How a file differs from what its seal says."""
    if found.size_bytes != file.size_bytes:
        return f"it has {found.size_bytes:,} bytes, and {file.size_bytes:,} by its seal"
    return None if found.crc == file.crc or not file.size_bytes else "its checksum is not the one of its seal"


def doubtful(
    segment: SealedSegment, stretches: Sequence[tuple[int, int, int, int]], size_bytes: int
) -> list[tuple[int, int]]:
    """Ranges of offsets of which records may be lost: those in front of, between and behind its sound stretches where
    the file has bytes that cannot be read, or ends too early. A stretch: position, end position, first and end offset.
    """
    if segment.problem is None or segment.is_log_sound:
        return []
    found, place, offset = [], 0, segment.seal.base_offset
    for position, end_position, first, end in stretches:
        if position != place and offset < first:
            found.append((offset, first))
        place, offset = end_position, end
    whole = max(size_bytes, segment.seal.log.size_bytes)
    if place != whole and offset < segment.seal.end_offset:
        found.append((offset, segment.seal.end_offset))
    return found


def doubt_of(segment: SealedSegment, ranges: Iterable[tuple[int, int]]) -> Doubt:
    """In words."""
    places = ", ".join(f"[{first}, {end})" for first, end in ranges)
    what = f"whether records in {places} are lost or were cleaned away cannot be told" if places else ""
    if not places:
        what = "its batches can be read, and whether they are what was stored cannot be told"
    return Doubt(segment.seal.base_offset, segment.seal.end_offset, f"{segment.problem}: {what}")


async def write_fresh_seal(
    folder: SegmentFolder, old: Seal, indexes: SegmentIndexes, batches_count: int
) -> None:
    """Of a segment whose log was written anew, and its indexes. They are durable then, but for the names of these.

    It is its own: what was merged into it is long gone. OSError.
    """
    contents = bytes(indexes.offsets.data), bytes(indexes.times.data), indexes.transactions.encode()
    suffixes = INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX
    for suffix, content in zip(suffixes, contents, strict=True):
        name = segment_file_name(old.base_offset, suffix)
        await folder.remove(name)
        if content or suffix != TRANSACTION_INDEX_SUFFIX:
            await folder.write_file(name, content)
            await folder.files.sync(folder.path / name)
    log = await measured_file(folder.disk, folder.path / segment_file_name(old.base_offset, LOG_SUFFIX))
    files = [log, *(SealedFile(len(content), crc32c(content)) for content in contents)]
    seal = Seal(
        os.urandom(8).hex(), old.base_offset, old.end_offset, (old.base_offset,), old.first_dirty_offset,
        old.removed_upto, batches_count, old.modified_ms, *files,
    )  # fmt: skip
    await replace_file(folder.disk, folder.path / segment_file_name(old.base_offset, SEAL_SUFFIX), seal.encode())
