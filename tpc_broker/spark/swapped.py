"""Files of segments that a broker may replace by cleaned ones at any moment: of one version each time.

A broker puts a cleaned segment in the place of one or of several (`tpc_broker.log.folder_view`). Its seal comes first,
so what the seal says counts from then on, also in a folder in which a swap was cut short. Whoever has read names or
files looks again whether they are still those: if not, all of it is read once more.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from tpc_broker.client.errors import DamagedDataError
from tpc_broker.log.files import (
    CLEANED_SUFFIXES,
    LOG_SUFFIX,
    SEAL_SUFFIX,
    TIME_INDEX_SUFFIX,
    cleaned_file_name,
    segment_file_name,
)
from tpc_broker.log.folder_view import FolderView, folder_view, names_of, sealed_bases
from tpc_broker.log.seals import SEAL_BYTES_MAX, Seal, SealError
from tpc_broker.native_bytes import crc32c

LOOKS_MAX: Final = 100
"""A swap takes some milliseconds, and another one of the same segment comes no sooner than after seconds."""


class SegmentIndexData(NamedTuple):
    """`data` of an offset index; empty where there is none that belongs to the log."""

    data: bytes
    seal: Seal | None


class Listing(NamedTuple):
    """A folder's names, and what counts of them."""

    names: frozenset[str]
    view: FolderView


def list_folder(folder: Path) -> Listing:
    """FileNotFoundError: there is none. `DamagedDataError`: it changes without end."""
    names = _names(folder)
    for _look in range(LOOKS_MAX):
        seals = {base: seal for base in sealed_bases(names) if (seal := read_seal(folder, base)) is not None}
        before, names = names, _names(folder)
        if names == before:
            return Listing(names, folder_view(names, seals))
    raise DamagedDataError(f"{folder} changes faster than it can be listed")


def _names(folder: Path) -> frozenset[str]:
    return frozenset(os.listdir(folder))  # noqa: PTH208 - names only


def read_seal(folder: Path, base_offset: int) -> Seal | None:
    """None: there is none that can be believed, and gaps are what the log's own bytes say."""
    try:
        with (folder / segment_file_name(base_offset, SEAL_SUFFIX)).open("rb") as file:
            seal = Seal.decode(file.read(SEAL_BYTES_MAX + 1))
    except (FileNotFoundError, SealError):
        return None
    return seal if seal.base_offset == base_offset else None


def read_listed(folder: Path, names: frozenset[str], name: str | None) -> bytes:
    """A small file whole; nothing when it is not among the names. FileNotFoundError: it is, and is gone."""
    return (folder / name).read_bytes() if name is not None and name in names else b""


def _names_now(folder: Path, base_offset: int, seal: Seal | None) -> tuple[str | None, ...]:
    """Of the log and the indexes, as `CLEANED_SUFFIXES`."""
    plain = tuple(segment_file_name(base_offset, suffix) for suffix in CLEANED_SUFFIXES)
    if seal is None:
        return plain
    made = [cleaned_file_name(name, seal.generation) for name in plain]
    return names_of(seal, [name for name in made if (folder / name).exists()])


def read_time_index(folder: Path, base_offset: int) -> bytes:
    """Of a segment; nothing where there is none, or none that its seal knows: what a swap that is not finished has left
    says nothing of the segments that were merged into this one.
    """
    seal = read_seal(folder, base_offset)
    name = _names_now(folder, base_offset, seal)[CLEANED_SUFFIXES.index(TIME_INDEX_SUFFIX)]
    data = b""
    if name is not None:
        with suppress(FileNotFoundError):
            data = (folder / name).read_bytes()
    return data if seal is None or (len(data), crc32c(data)) == seal.time_index else b""


# Rule: What is read of a segment is of one version: its log, its index, and what is said of where it ends. Held by
# tests/spark/test_cleaned_segments.py.
@contextmanager
def open_segment(folder: Path, base_offset: int) -> Iterator[tuple[Any, SegmentIndexData]]:
    """A segment's log, open, with its index. FileNotFoundError: it is gone, or was merged into another one.
    `DamagedDataError`: it changes without end.
    """
    for _look in range(LOOKS_MAX):
        seal = read_seal(folder, base_offset)
        log_name, index_name, *_others = _names_now(folder, base_offset, seal)
        path = folder / str(log_name)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            if _is_same(folder, base_offset, seal):
                raise
            continue
        with file:
            data = b""
            if index_name is not None:
                with suppress(FileNotFoundError):
                    data = (folder / index_name).read_bytes()
            if not (_is_same(folder, base_offset, seal) and _is_at(folder, base_offset, log_name, file)):
                continue
            if seal is not None and (len(data), crc32c(data)) != seal.offset_index:
                data = b""
            yield file, SegmentIndexData(data, seal)
            return
    raise DamagedDataError(f"{folder}: the segment at {base_offset} changes faster than it can be opened")


def _is_same(folder: Path, base_offset: int, seal: Seal | None) -> bool:
    now = read_seal(folder, base_offset)
    return (now and now.generation) == (seal and seal.generation)


def _is_at(folder: Path, base_offset: int, name: str | None, file: Any) -> bool:
    """Whether the segment's log is still the open one, which may have got its name meanwhile."""
    opened = os.fstat(file.fileno())
    for one in (name, segment_file_name(base_offset, LOG_SUFFIX)):
        with suppress(FileNotFoundError):
            status = (folder / str(one)).stat()
            return (status.st_dev, status.st_ino) == (opened.st_dev, opened.st_ino)
    return False
