"""Seals: what a cleaned segment is, in a small file beside it (`BASE.seal`).

The seal is the commit point of the swap that puts cleaned files in place of a segment, or of several that follow each
other (`storage.segments.segment_swap`): once it is durable the swap is finished, by whoever comes next, from the files
that the cleaner has left under their `.cleaned-` names. It stays with the segment for its life: it says what its files
hold to the last byte, where the segment ends whatever its last batches were, and that gaps between batches are right in
it and nowhere else. What is asked of a whole log (how far it was cleaned, which deletions it has forgotten) is asked of
all its seals.

The file is one line of JSON behind `tpc-seal 1 ` and the CRC-32C of the JSON in hexadecimal.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.native_bytes import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

SEAL_BYTES_MAX: Final = 64 * 1024
SEGMENTS_MAX: Final = 2048
"""Of those that one cleaned segment may take the place of."""
_MAGIC: Final = b"tpc-seal 1 "
_GENERATION: Final = re.compile(r"[0-9a-f]{16}")
_OFFSET_MAX: Final = 2**63 - 1


class SealError(ValueError):
    """A seal that cannot be believed."""


class SealedFile(NamedTuple):
    """Size and CRC-32C of all of a file. A size of 0: it is empty, or not there."""

    size_bytes: int
    crc: int


class Seal(NamedTuple):
    """Of one cleaned segment."""

    generation: str
    """Of the files under their `.cleaned-` names: 16 hexadecimal digits, drawn for each segment that is made."""
    base_offset: int
    end_offset: int
    """The base of the segment behind it: none of its offsets is at or above it, whatever its last batch ends with."""
    replaced: tuple[int, ...]
    """The bases of all segments in whose place it came, `base_offset` first."""
    first_dirty_offset: int
    """Below it every key had one record, when the swap was made: where the next job begins to collect keys."""
    removed_upto: int
    """1 + the offset of the newest tombstone or marker that was removed from this segment, or of which the entry in the
    index of aborted transactions was, in this or an earlier cleaning; 0: none was."""
    batches_count: int
    modified_ms: int
    """When the newest of its records was appended, by the clock of files."""
    log: SealedFile
    offset_index: SealedFile
    time_index: SealedFile
    transaction_index: SealedFile

    @property
    def files(self) -> tuple[SealedFile, SealedFile, SealedFile, SealedFile]:
        """In the order of `files.CLEANED_SUFFIXES`."""
        return self.log, self.offset_index, self.time_index, self.transaction_index

    @property
    def may_lack_markers(self) -> bool:
        """Whether markers that were in it, or in what it came in place of, may have been removed."""
        return self.removed_upto > self.base_offset

    def encode(self) -> bytes:
        """The file's content."""
        text = json.dumps(self._asdict(), separators=(",", ":")).encode()
        return b"%s%08x %s\n" % (_MAGIC, crc32c(text), text)

    @classmethod
    def decode(cls, data: bytes) -> Seal:
        """SealError: it is damaged, or none."""
        if len(data) > SEAL_BYTES_MAX or not data.startswith(_MAGIC):
            raise SealError(f"no seal of a segment: {len(data)} bytes")
        crc, _, text = data[len(_MAGIC) :].removesuffix(b"\n").partition(b" ")
        if crc != b"%08x" % crc32c(text):
            raise SealError("a seal whose checksum is wrong")
        try:
            seal = cls._of(json.loads(text))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SealError(f"a seal that cannot be read: {error!r}") from error
        return seal

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Seal:
        """KeyError, ValueError, TypeError: a field is missing, of another type, or out of its bounds."""
        seal = cls(**{
            **fields,
            "replaced": tuple(fields["replaced"]),
            **{name: SealedFile(*fields[name]) for name in cls._fields[-4:]},
        })  # fmt: skip
        replaced = seal.replaced
        numbers = [*seal[1:3], *replaced, *seal[4:8], *(number for file in seal.files for number in file)]
        if not all(type(number) is int and 0 <= number <= _OFFSET_MAX for number in numbers):
            raise ValueError("a number that is none")
        if not isinstance(seal.generation, str) or not _GENERATION.fullmatch(seal.generation):
            raise ValueError(f"generation {seal.generation!r}")
        if not replaced or replaced[0] != seal.base_offset or sorted(set(replaced)) != list(replaced):
            raise ValueError(f"segments {replaced} of a segment at {seal.base_offset}")
        if len(replaced) > SEGMENTS_MAX or not replaced[-1] < seal.end_offset:
            raise ValueError(f"segments {replaced} that end at {seal.end_offset}")
        return seal


class CleanedState(NamedTuple):
    """What the seals of a log say together."""

    end_offset: int
    """Where its last cleaned segment ends: below it there are gaps. 0: nothing was cleaned."""
    first_dirty_offset: int
    removed_upto: int


def cleaned_state(seals: Iterable[Seal]) -> CleanedState:
    """Of a log with these seals."""
    end_offset = first_dirty_offset = removed_upto = 0
    for seal in seals:
        end_offset = max(end_offset, seal.end_offset)
        first_dirty_offset = max(first_dirty_offset, seal.first_dirty_offset)
        removed_upto = max(removed_upto, seal.removed_upto)
    return CleanedState(end_offset, first_dirty_offset, removed_upto)
