"""Cleaned segments in a folder that somebody else may own: their seals, and whether their files are what these say."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.log.files import CLEANED_SUFFIXES, LOG_SUFFIX, SEAL_SUFFIX, cleaned_file_name, segment_file_name
from tpc_broker.log.folder_view import FolderView, folder_view, names_of, sealed_bases
from tpc_broker.log.seals import SEAL_BYTES_MAX, Seal, SealError
from tpc_broker.native_bytes import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tpc_broker.native_bytes import Buffer


def read_seal(folder: Path, base_offset: int) -> Seal | None:
    """Of the segment that begins there; None: it has none. SealError: it is damaged. OSError."""
    try:
        with (folder / segment_file_name(base_offset, SEAL_SUFFIX)).open("rb") as file:
            seal = Seal.decode(file.read(SEAL_BYTES_MAX + 1))
    except FileNotFoundError:
        return None
    if seal.base_offset != base_offset:
        raise SealError(f"a seal of the segment at {seal.base_offset}")
    return seal


class SealedFolder(NamedTuple):
    """A folder as recovery would leave it."""

    view: FolderView
    problems: dict[int, str]
    """Seals that cannot be believed, by base offset."""


def view_of(folder: Path, names: Iterable[str] | None = None) -> SealedFolder:
    """FileNotFoundError, OSError: there is no such folder, or it cannot be listed."""
    known = frozenset([path.name for path in folder.iterdir()] if names is None else names)
    seals: dict[int, Seal] = {}
    problems: dict[int, str] = {}
    for base in sealed_bases(known):
        try:
            seal = read_seal(folder, base)
        except (SealError, OSError) as error:
            problems[base] = str(error)
        else:
            seals |= {} if seal is None else {base: seal}
    return SealedFolder(folder_view(known, seals), problems)


class Unlike(NamedTuple):
    """A file that is not what its segment's seal says."""

    suffix: str
    name: str
    size_bytes: int
    """It has; -1: it is missing."""
    reason: str


def unlike_its_seal(
    folder: Path, seal: Seal, read: Callable[[Path], Iterable[Buffer]], suffixes: Iterable[str] = CLEANED_SUFFIXES
) -> list[Unlike]:
    """Those of a cleaned segment's files that are not what its seal says; `read` gives a file piece by piece.
    FileNotFoundError: its log is gone. OSError.
    """
    plain = [segment_file_name(seal.base_offset, suffix) for suffix in CLEANED_SUFFIXES]
    made = [cleaned_file_name(name, seal.generation) for name in plain]
    names = names_of(seal, [name for name in made if (folder / name).exists()])
    found = []
    for suffix, name, file in zip(CLEANED_SUFFIXES, names, seal.files, strict=True):
        if suffix not in suffixes or name is None:
            continue
        size = crc = 0
        try:
            for data in read(folder / name):
                size, crc = size + len(data), crc32c(data, crc)
        except FileNotFoundError:
            if suffix == LOG_SUFFIX:
                raise
            if file.size_bytes:
                found.append(Unlike(suffix, name, -1, "the file is missing, and its seal names it"))
            continue
        if size != file.size_bytes:
            found.append(Unlike(suffix, name, size, f"it has {size:,} bytes, and {file.size_bytes:,} by its seal"))
        elif crc != file.crc:
            found.append(Unlike(suffix, name, size, "its checksum is not the one of its seal"))
    return found
