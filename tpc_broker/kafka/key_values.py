"""Keys and values of a stretch of a log, read in C a few at a time: `KeyValues`.

For whoever replays a log of which only each key's last value counts, and who has other things to do in between.
"""

from __future__ import annotations

from enum import IntEnum
from struct import iter_unpack
from typing import Any

from tpc_broker.native_bytes import ffi, lib, pinned

from .errors import DecodeError

PLACE_BYTES = ffi.sizeof("tpc_key_value")
KeyValue = tuple[bytes | None, bytes | None]


class Kind(IntEnum):
    """What a step of the walk has read."""

    PLAIN = lib.TPC_KEY_VALUES_PLAIN
    """Records of no transaction, or of one that commits a few batches further on."""
    TRANSACTION = lib.TPC_KEY_VALUES_TRANSACTION
    """Some of a producer's transaction, of which it is open how it ends."""
    ABORT = lib.TPC_KEY_VALUES_ABORT
    COMMIT = lib.TPC_KEY_VALUES_COMMIT
    """The end of the producer's transaction: no records."""


class KeyValues:
    """A walk over the whole batches in `data`, whose CRCs are checked; one that is cut off at the end is left out."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pointer, self._size, self._held = pinned(data)
        self._walk: Any = ffi.new("tpc_key_values_walk *")
        self._places: Any = ffi.NULL
        self._room = 0
        self.is_at_end = False
        self.is_at_compressed = False
        """Whether at `position` is a batch that is compressed: for the caller, who then calls `pass_over`."""

    @property
    def position(self) -> int:
        """Within the bytes: of the next batch or record."""
        return int(self._walk.position)

    @property
    def next_offset(self) -> int:
        """Behind the last batch that was read whole."""
        return int(self._walk.next_offset)

    @property
    def producer(self) -> tuple[int, int]:
        """Id and epoch, of what was read last, if that is of a transaction."""
        return self._walk.producer_id, self._walk.producer_epoch

    def take(self, count_max: int, *, is_none_open: bool = False) -> tuple[int, list[KeyValue], int]:
        """The `Kind` of what comes next, the records, and how many records, markers and empty batches were looked at.
        `is_none_open`: no TRANSACTION was read that has not ended: markers until the next one are passed over.
        `DecodeError`: damage.
        """
        walk, places = self._walk, self._places
        walk.is_none_open = is_none_open
        if count_max > self._room:
            places = self._places = ffi.new("tpc_key_value[]", count_max)
            self._room = count_max
        count = lib.tpc_key_values_read(self._pointer, self._size, walk, places, count_max)
        if count < 0:
            raise DecodeError("what is there is no sound batch", "RecordBatch", 2, "", self.position)
        stopped = walk.stopped
        self.is_at_end = stopped == lib.TPC_KEY_VALUES_END
        self.is_at_compressed = stopped == lib.TPC_KEY_VALUES_COMPRESSED
        data = self._data
        pairs: list[KeyValue] = [
            (data[key:key_end] if key >= 0 else None, data[value:value_end] if value >= 0 else None)
            for key, key_end, value, value_end in iter_unpack("4i", ffi.buffer(places, count * PLACE_BYTES))
        ] if count else []  # fmt: skip
        return walk.kind, pairs, count + walk.batches_passed

    def pass_over(self, size_bytes: int, next_offset: int) -> None:
        """Go on behind a batch that the caller has read."""
        assert self.is_at_compressed
        self._walk.position += size_bytes
        self._walk.next_offset = next_offset
        self.is_at_compressed = False
