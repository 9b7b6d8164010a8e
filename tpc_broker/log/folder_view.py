"""A partition's folder as recovery would leave it: what is looked at by whoever does not own it.

The swap of a cleaned segment begins with its seal (`log.seals`) and ends when the files under their `.cleaned-` names
have the names of those that they replace, and the segments that were merged into it are gone. A crash may lie between,
and who looks at a folder beside its core may come between: old files are still there then, which count for nothing any
more. This says which files count. Nothing is read or changed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.log.files import (
    CLEANED_SUFFIXES,
    LOG_SUFFIX,
    SEAL_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    cleaned_file_name,
    parse_segment_file_name,
    segment_file_name,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tpc_broker.log.seals import Seal


class ViewedSegment(NamedTuple):
    """One whose records count."""

    base_offset: int
    seal: Seal | None
    log_name: str
    """Of the file that has its records: in a swap that is not finished it has its `.cleaned-` name."""


class FolderView(NamedTuple):
    """`segments`: by their base offsets."""

    segments: tuple[ViewedSegment, ...]
    unfinished: tuple[Seal, ...]
    """Of swaps that are to be finished."""


def sealed_bases(names: Collection[str]) -> list[int]:
    """Base offsets of the seals among a folder's files."""
    parsed = (parse_segment_file_name(name) for name in names)
    return sorted(int(one[0]) for one in parsed if one is not None and one[1] == SEAL_SUFFIX)


def names_of(seal: Seal, names: Collection[str]) -> tuple[str | None, ...]:
    """Of the log and the indexes of a cleaned segment in a folder with these files, as `Seal.files`; None: an index
    that is empty, whatever an older one has left under its name.
    """
    found: list[str | None] = []
    for suffix, file in zip(CLEANED_SUFFIXES, seal.files, strict=True):
        name = segment_file_name(seal.base_offset, suffix)
        made = cleaned_file_name(name, seal.generation)
        found.append(made if made in names else name if file.size_bytes or suffix == LOG_SUFFIX else None)
    return tuple(found)


def folder_view(names: Collection[str], seals: Mapping[int, Seal]) -> FolderView:
    """Of a folder with these files, of which these are the seals that can be believed, by base offset."""
    parsed = [one for one in map(parse_segment_file_name, names) if one is not None]
    logs = {int(base) for base, suffix in parsed if suffix == LOG_SUFFIX}
    bases = {int(base) for base, _suffix in parsed}
    unfinished, replaced, found = [], set(), {}
    for base, seal in seals.items():
        log_name = names_of(seal, names)[0]
        merged = set(seal.replaced[1:])
        made = {cleaned_file_name(segment_file_name(base, suffix), seal.generation) for suffix in CLEANED_SUFFIXES}
        if log_name not in names:
            continue  # the segment is gone, and its seal is going
        stale = {
            segment_file_name(base, suffix)
            for suffix, file in zip(CLEANED_SUFFIXES[1:], seal.files[1:], strict=True)
            if suffix == TRANSACTION_INDEX_SUFFIX and not file.size_bytes
        }
        if not made.isdisjoint(names) or merged & bases or not stale.isdisjoint(names):
            unfinished.append(seal)
        replaced |= merged
        found[base] = ViewedSegment(base, seal, str(log_name))
    for base in logs - found.keys():
        found[base] = ViewedSegment(base, None, segment_file_name(base, LOG_SUFFIX))
    segments = tuple(found[base] for base in sorted(found.keys() - replaced))
    return FolderView(segments, tuple(sorted(unfinished, key=lambda seal: seal.base_offset)))
