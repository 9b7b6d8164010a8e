"""How much is read from the disk in front of readers who go through segments that are not in memory.

Such a reader is answered by Python once, for what is not in the page cache, and from there on by C as far as the page
cache reaches. So what counts is how far it reaches: the kernel reads ahead 128 KiB on most machines, and less when the
headers of batches are looked at in between. A reader that comes back where the last reading ended gets twice as much
each time. Whoever reads here and there gets nothing more than was asked for, and so does everybody while more read than
may at once: what is read ahead and goes before it is read was read in vain.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tpc_broker.model import TopicPartition

FIRST_BYTES: Final = 2 << 20
BYTES_MAX: Final = 16 << 20
READERS_MAX: Final = 64
"""With the most for each that is a gibibyte of the page cache."""


class _Reader(NamedTuple):
    base_offset: int
    begin: int
    end: int
    """Of what was asked for, as positions in the segment with that base offset."""


class ReadAhead:
    """Of one core. A partition has one reader here: several that are behind follow each other, or get nothing."""

    def __init__(self) -> None:
        self._readers: OrderedDict[TopicPartition, _Reader] = OrderedDict()

    def bytes_from(self, partition: TopicPartition, base_offset: int, position: int, wanted: int, end: int) -> int:
        """How many bytes the page cache is to have from a position of a segment on, which ends at `end`, where `wanted`
        of them are to be read and are not there; 0: no more than these.
        """
        last = self._readers.pop(partition, None)
        length, ahead = FIRST_BYTES, 0
        if last is not None and _follows(last, base_offset, position):
            if last.base_offset == base_offset and position + wanted <= (last.begin + last.end) // 2:
                self._readers[partition] = last  # it is on its way
                return 0
            length = min(2 * (last.end - last.begin), BYTES_MAX)
            ahead = min(length, end - position)
        if len(self._readers) == READERS_MAX:
            self._readers.popitem(last=False)
        self._readers[partition] = _Reader(base_offset, position, position + length)
        return ahead if ahead > wanted else 0


def _follows(last: _Reader, base_offset: int, position: int) -> bool:
    """Whether a reader goes on there, or in the next segment; the kernel may have read further than it was asked to."""
    if last.base_offset == base_offset:
        return last.begin < position <= last.end + BYTES_MAX
    return last.base_offset < base_offset and position <= BYTES_MAX
