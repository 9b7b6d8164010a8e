"""Keys and values of a stretch of a log, read in C a few at a time: `KeyValues`.

For whoever replays a log of which only each key's last value counts, and who has other things to do in between.
"""

from __future__ import annotations

from struct import iter_unpack
from typing import Any

from tpc_broker.native_bytes import ffi, lib, pinned

from .errors import DecodeError

PLACE_BYTES = ffi.sizeof("tpc_key_value")
KeyValue = tuple[bytes | None, bytes | None]


class KeyValues:
    """A walk over the whole batches in `data`, whose CRCs are checked; one that is cut off at the end is left out."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pointer, self._size, self._held = pinned(data)
        self._walk: Any = ffi.new("tpc_key_values_walk *")
        self._places: Any = ffi.NULL
        self._room = 0
        self.is_at_end = False
        self.is_at_other = False
        """Whether at `position` is a batch whose records have another meaning, or are compressed: for the caller, who
        then calls `take_other` until it is read, or `pass_over`.
        """

    @property
    def position(self) -> int:
        """Within the bytes: of the next batch or record."""
        return int(self._walk.position)

    @property
    def attributes(self) -> int:
        """Of that other batch."""
        return int(self._walk.attributes)

    @property
    def producer(self) -> tuple[int, int]:
        """The same: id and epoch."""
        return int(self._walk.producer_id), int(self._walk.producer_epoch)

    @property
    def next_offset(self) -> int:
        """Behind the last batch that was read whole."""
        return int(self._walk.next_offset)

    def take(self, count_max: int) -> tuple[list[KeyValue], int]:
        """The next records, and how many records and empty batches were looked at: fewer than `count_max` only at the
        end or where another batch is. `DecodeError`: damage.
        """
        assert not self._walk.takes_other
        return self._read(count_max)

    def take_other(self, count_max: int) -> tuple[list[KeyValue], int]:
        """The same of the other batch where it is, which is not compressed; `is_at_other` until all of it was read."""
        assert self.is_at_other
        self._walk.takes_other = 1
        found = self._read(count_max)
        self.is_at_other = bool(self._walk.takes_other)
        return found

    def _read(self, count_max: int) -> tuple[list[KeyValue], int]:
        walk, places = self._walk, self._places
        if count_max > self._room:
            places = self._places = ffi.new("tpc_key_value[]", count_max)
            self._room = count_max
        count = lib.tpc_key_values_read(self._pointer, self._size, walk, places, count_max)
        if count < 0:
            raise DecodeError("what is there is no sound batch", "RecordBatch", 2, "", self.position)
        self.is_at_end = walk.stopped == lib.TPC_KEY_VALUES_END
        self.is_at_other = walk.stopped == lib.TPC_KEY_VALUES_OTHER
        data = self._data
        pairs: list[KeyValue] = [
            (data[key:key_end] if key >= 0 else None, data[value:value_end] if value >= 0 else None)
            for key, key_end, value, value_end in iter_unpack("4i", ffi.buffer(places, count * PLACE_BYTES))
        ]  # fmt: skip
        return pairs, count + int(walk.batches_passed)

    def pass_over(self, size_bytes: int, next_offset: int) -> None:
        """Go on behind a batch that the caller has read."""
        assert self.is_at_other
        self._walk.position += size_bytes
        self._walk.next_offset = next_offset
        self.is_at_other = False
