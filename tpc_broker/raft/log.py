"""The log of one replica: markers by epoch, items in memory, and what can be said about positions.

Theory of operation
-------------------
`contains` needs only the markers: the log contains (e, o) if and only if it has the marker of e and o lies between the
start of e and its end, which is the start of the *next marker of this log*, or the log's end. So batches may leave
memory (`release`) and a replica that comes back from files needs none of them to judge an AppendEntries. Given that
the item in front is contained, an item is the same as ours if and only if its position is contained: that is log
matching.

Several markers may stand at one offset (elections without records between), and all of them are kept: a voter that
forgets the marker of 7 at X claims (4, X) afterwards and lets a log that ends in a divergent epoch 5 win. So
truncation is told both the offset and the last epoch that stays, and removes a marker by its epoch, never by its
offset.

    start                 position before the first item in memory; what is below lies in files only
    log_start_offset      first offset that a reader may ask for
    markers               from the last one at or below `log_start_offset` on, at least; more do no harm

A log that was adopted from another replica begins behind the position that came with it; the markers came with it too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.raft.items import START, Batch, Marker, Position, item_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpc_broker.raft.items import Config, Item


class LogImage(NamedTuple):
    """A log as a value: in checkpoints and in tests."""

    start: Position
    log_start_offset: int
    end_offset: int
    markers: tuple[Marker, ...]
    items: tuple[Item, ...]


class ReplicaLog:
    """Items in order. Judges nothing: who may append or cut what is decided by the group."""

    __slots__ = ("config", "creation_config", "end_offset", "items", "last", "log_start_offset", "markers", "start")

    def __init__(self, creation_config: Config | None = None) -> None:
        self.creation_config = creation_config
        self.config = creation_config
        """Of the last marker, committed or not; of the creation record while there is none."""
        self.start = START
        self.log_start_offset = 0
        self.end_offset = 0
        self.markers: list[Marker] = []
        self.items: list[Item] = []
        self.last = START
        """Position of the last item, durable or not."""

    def _end_changed(self) -> None:
        """After anything that does not only append."""
        self.config = self.markers[-1].config if self.markers else self.creation_config
        self.last = Position(self.markers[-1].epoch, self.end_offset) if self.markers else START

    def _marker_index(self, epoch: int) -> int:
        """Index of the marker of the largest epoch <= `epoch`; -1 if there is none."""
        return bisect_left(self.markers, (epoch + 1,)) - 1

    def marker(self, epoch: int) -> Marker | None:
        """The marker of just this epoch."""
        index = self._marker_index(epoch)
        return self.markers[index] if index >= 0 and self.markers[index].epoch == epoch else None

    def end_of(self, epoch: int) -> int:
        """Where the largest epoch <= `epoch` ends: at the next marker of this log, or at the log's end."""
        index = self._marker_index(epoch) + 1
        return self.markers[index].start_offset if index < len(self.markers) else self.end_offset

    def contains(self, position: Position) -> bool:
        epoch, offset = position
        if epoch == 0:
            return offset == 0
        marker = self.marker(epoch)
        return marker is not None and marker.start_offset <= offset <= self.end_of(epoch)

    def is_below_markers(self, position: Position) -> bool:
        """Below the first marker of a log whose start was moved: committed, because that marker is, but not known
        here.
        """
        return self.log_start_offset > 0 and bool(self.markers) and position < self.markers[0].position

    def largest_end_upto(self, epoch: int) -> Position:
        """The end of the largest epoch <= `epoch`: what a follower answers when it does not contain what was sent.

        (0, log start) where the log has no such epoch.
        """
        index = self._marker_index(epoch)
        if index < 0:
            return Position(0, self.log_start_offset)
        found = self.markers[index].epoch
        return Position(found, self.end_of(found))

    def common_with(self, epoch: int, end_offset: int) -> Position:
        """Where to try next with a replica that says: my largest epoch <= yours is `epoch`, and ends at
        `end_offset`.
        """
        index = self._marker_index(epoch)
        if index < 0:
            return START
        found = self.markers[index].epoch
        end = self.end_of(found)
        return Position(found, min(end, end_offset) if found == epoch else end)

    def items_after(self, position: Position, items_max: int, bytes_max: int) -> list[Item] | None:
        """The next items behind a position, at least one if there are any; None if they are not in memory any more."""
        if position < self.start:
            return None
        first = _index_after(self.items, position)
        chosen = self.items[first : first + items_max]
        bytes_left = bytes_max
        for count, item in enumerate(chosen):
            bytes_left -= item_bytes(item)
            if bytes_left < 0 and count:
                return chosen[:count]
        return chosen

    def bytes_after(self, position: Position, bytes_max: int) -> int:
        """How many bytes lie behind a position; `bytes_max` when it is that much or cannot be told."""
        if position < self.start:
            return bytes_max
        total = 0
        for item in self.items[_index_after(self.items, position) :]:
            total += item_bytes(item)
            if total >= bytes_max:
                return bytes_max
        return total

    def append_marker(self, marker: Marker) -> None:
        assert marker.end_offset == self.end_offset, (marker, self.end_offset)
        assert marker.epoch > self.last.epoch, (marker, self.last)
        self.markers.append(marker)
        self.items.append(marker)
        self.config = marker.config
        self.last = Position(marker.epoch, marker.end_offset)

    def append_batches(self, batches: Sequence[Batch]) -> None:
        """Batches of the last marker's epoch, without a gap."""
        epoch = self.markers[-1].epoch
        end_offset = self.end_offset
        for batch in batches:
            assert batch.epoch == epoch, (batch, self.last)
            assert batch.base_offset == end_offset < batch.end_offset, (batch, self.last)
            end_offset = batch.end_offset
        self.items.extend(batches)
        self.end_offset = end_offset
        self.last = Position(epoch, end_offset)

    def extend(self, end_offset: int) -> None:
        """Batches of the last marker's epoch that somebody else has appended: none of the log is in memory now."""
        assert end_offset >= self.end_offset, (end_offset, self.end_offset)
        self.items = []
        self.end_offset = end_offset
        self.last = self.start = Position(self.markers[-1].epoch, end_offset)

    def cut(self, offset: int, last_epoch_kept: int) -> None:
        """Removes batches that end above `offset` and markers of epochs above `last_epoch_kept`, and no others."""
        del self.markers[self._marker_index(last_epoch_kept) + 1 :]
        while self.items and _is_cut(self.items[-1], offset, last_epoch_kept):
            self.items.pop()
        self.end_offset = min(self.end_offset, offset)
        self._end_changed()
        self.start = min(self.start, self.last)

    def release(self, position: Position) -> None:
        """Forgets items up to a position: from now on they are in files only."""
        if position > self.start:
            assert self.contains(position), (position, self.last)
            del self.items[: _index_after(self.items, position)]
            self.start = position

    def truncate_start(self, log_start_offset: int, committed: Position) -> None:
        """Moves the log's start; every marker from the last committed one on stays."""
        self.log_start_offset = max(self.log_start_offset, log_start_offset)
        last_committed = _index_after(self.markers, committed) - 1
        below = bisect_right(self.markers, self.log_start_offset, key=lambda marker: marker.start_offset) - 1
        del self.markers[: max(0, min(below, last_committed))]
        if self.markers and self.log_start_offset > self.start.offset:
            self.release(min(self.position_at(self.log_start_offset), committed))

    def position_at(self, offset: int) -> Position:
        """The least position at an offset: the one at the end of a batch."""
        index = bisect_left(self.markers, offset, key=lambda marker: marker.start_offset) - 1
        return Position(self.markers[max(index, 0)].epoch, offset)

    def adopt(self, position: Position, markers: Iterable[Marker], log_start_offset: int) -> None:
        """The log is what another replica has up to `position`, all of it in files."""
        self.markers = [marker for marker in markers if marker.position <= position]
        assert (self.markers[-1].epoch if self.markers else 0) == position.epoch, (position, self.markers)
        self.items = []
        self.start = position
        self.log_start_offset = log_start_offset
        self.end_offset = position.offset
        self._end_changed()

    def markers_upto(self, position: Position) -> tuple[Marker, ...]:
        return tuple(marker for marker in self.markers if marker.position <= position)

    def image(self) -> LogImage:
        return LogImage(self.start, self.log_start_offset, self.end_offset, tuple(self.markers), tuple(self.items))

    def load(self, image: LogImage) -> None:
        self.start, self.log_start_offset, self.end_offset = image[:3]
        self.markers, self.items = list(image.markers), list(image.items)
        self._end_changed()


def _index_after(items: Sequence[Item], position: Position) -> int:
    """Index of the first item behind a position. Items are tuples that begin with theirs."""
    return bisect_left(items, (position.epoch, position.offset + 1))


def _is_cut(item: Item, offset: int, last_epoch_kept: int) -> bool:
    return item.epoch > last_epoch_kept if isinstance(item, Marker) else item.end_offset > offset
