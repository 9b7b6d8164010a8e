"""Where bytes of batches lie: in buffers that follow each other, in a file that holds some of them already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.log.batch import BATCH_HEADER_BYTES, BatchHeader, decode_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.log.batch import Buffer


def missing(begin: int, end: int, present: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What of [begin, end) lies in none of the ranges, which are in order."""
    found = []
    for first, last in present:
        if begin < min(first, end):
            found.append((begin, min(first, end)))
        begin = max(begin, last)
    return [*found, (begin, end)] if begin < end else found


def part(run: list[memoryview], begin: int, end: int) -> list[memoryview]:
    """Bytes [begin, end) of buffers that follow each other."""
    found, place = [], 0
    for view in run:
        if place < end and begin < place + len(view):
            found.append(view[max(begin - place, 0) : end - place])
        place += len(view)
    return found


def find_offset(data: Buffer, offset: int) -> tuple[int, BatchHeader | None]:
    """Where the first batch that ends at or behind an offset begins; None when it is not in the bytes, and how far
    one has to go on.
    """
    place = 0
    while place + BATCH_HEADER_BYTES <= len(data):
        header = decode_header(data, place)
        if header.last_offset >= offset:
            return place, header
        place += header.size_bytes
    return place, None


def end_of_batches(data: Buffer, start: int, bytes_max: int, upto: int) -> int:
    """End of the last batch that is whole, begins below `upto`, and ends within the limit; at least the first."""
    end = start
    while end + BATCH_HEADER_BYTES <= len(data):
        header = decode_header(data, end)
        behind = end + header.size_bytes
        if behind > len(data) or header.base_offset >= upto or (end > start and behind - start > bytes_max):
            break
        end = behind
    return end
