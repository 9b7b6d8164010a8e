"""Cleaned segments made by hand in a partition's folder, and the swap that puts them in their place, step by step.

Independent of the cleaner and of the core's swap: what is kept the test says, batch by batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.log.batch import decode_header, empty_batch, walk_headers
from tpc_broker.log.files import (
    CLEANED_SUFFIXES,
    SEAL_SUFFIX,
    SEGMENT_SUFFIXES,
    cleaned_file_name,
    segment_file_name,
)
from tpc_broker.log.indexes import TransactionIndex
from tpc_broker.log.seals import Seal, SealedFile
from tpc_broker.log.segment import SegmentIndexes
from tpc_broker.native_bytes import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tpc_broker.log.batch import BatchHeader
    from tpc_broker.log.indexes import AbortedTransaction

INTERVAL_BYTES = 100


class Cleaned(NamedTuple):
    """`contents`: of the log and the indexes, as `CLEANED_SUFFIXES`."""

    seal: Seal
    contents: tuple[bytes, bytes, bytes, bytes]

    def made_names(self) -> list[str]:
        names = (segment_file_name(self.seal.base_offset, suffix) for suffix in CLEANED_SUFFIXES)
        return [cleaned_file_name(name, self.seal.generation) for name in names]


def every_other(header: BatchHeader, batch: bytes) -> bytes | None:
    """Leaves out batches with an odd base offset."""
    return None if header.base_offset % 2 else batch


def emptied(header: BatchHeader) -> bytes:
    """A batch of which no record is left."""
    return empty_batch(header.base_offset, header.next_offset, header.partition_leader_epoch)


def make_cleaned(
    folder: Path,
    bases: Sequence[int],
    end_offset: int,
    keep: Callable[[BatchHeader, bytes], bytes | None] = every_other,
    *,
    number: int = 1,
    keep_aborted: Callable[[AbortedTransaction], bool] = lambda _entry: True,
    removed_upto: int = 0,
) -> Cleaned:
    """What comes in the place of segments; nothing is written. `keep` gives what is left of a batch."""
    data, indexes, count = b"", SegmentIndexes(bases[0], INTERVAL_BYTES), 0
    entries = []
    for base in bases:
        stored = (folder / segment_file_name(base, ".log")).read_bytes()
        for header, place in walk_headers(stored):
            kept = keep(header, stored[place : place + header.size_bytes])
            if kept is not None:
                indexes.add(decode_header(kept), len(data))
                data, count = data + kept, count + 1
        aborted = folder / segment_file_name(base, ".txnindex")
        entries += TransactionIndex.decode(aborted.read_bytes() if aborted.exists() else b"").entries
    indexes.seal()
    transactions = TransactionIndex([one for one in entries if keep_aborted(one)]).encode()
    contents = data, bytes(indexes.offsets.data), bytes(indexes.times.data), transactions
    files = [SealedFile(len(one), crc32c(one)) for one in contents]
    seal = Seal(f"{number:016x}", bases[0], end_offset, tuple(bases), end_offset, removed_upto, count, 1, *files)
    return Cleaned(seal, contents)


def swap_steps(folder: Path, cleaned: Cleaned) -> Iterator[str]:
    """Makes one step of the swap, as `segments.segment_swap`, and says which. What the cleaner does comes first."""
    seal = cleaned.seal
    for name, content in zip(cleaned.made_names(), cleaned.contents, strict=True):
        if content or not name.startswith(segment_file_name(seal.base_offset, ".txnindex")):
            (folder / name).write_bytes(content)
            yield f"made {name}"
    path = folder / segment_file_name(seal.base_offset, SEAL_SUFFIX)
    path.with_suffix(".tmp").write_bytes(seal.encode())
    path.with_suffix(".tmp").rename(path)
    yield "sealed"
    for base in seal.replaced[1:]:
        for suffix in SEGMENT_SUFFIXES:
            (folder / segment_file_name(base, suffix)).unlink(missing_ok=True)
            yield f"removed {segment_file_name(base, suffix)}"
    for name, suffix in zip(cleaned.made_names(), CLEANED_SUFFIXES, strict=True):
        plain = folder / segment_file_name(seal.base_offset, suffix)
        if (folder / name).exists():
            (folder / name).rename(plain)
            yield f"renamed {name}"
        elif plain.exists():
            plain.unlink()
            yield f"removed {plain.name}"


def swap(folder: Path, cleaned: Cleaned) -> None:
    """All of it."""
    for _step in swap_steps(folder, cleaned):
        pass
