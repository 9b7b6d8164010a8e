"""What a log's batches, and the beginnings of its epochs, have made of it: one machine, with one encoding.

Theory of operation
-------------------
As of an offset, a log has *producers* with their last batches and open transactions (`producer_state`), and *leader
epochs* with the offsets where they begin (`epochs`). It has *ended* transactions as long as their markers may be above
the high watermark: readers see the end of none before its marker. From those and the open ones its last stable offset
follows. Batches are taken in order, one at a time (`take`) or a buffer of them in C (`segment.AppendWalk`); epochs
begin; the log is cut at either end.

Segments have one as of what is written in them (`storage.segments.segment_log`), repair while it reads a log again. A
copy is part of a partition's checkpoint, and so of what goes to another core, or fills a replica, in an entry of the
journal. The data plane has the producers and ended transactions at the end of the log, and takes and gives them in the
same encoding (`native/log/producer.c`).

The encoding is little-endian and has neither length nor CRC of its own: it is part of something that has both. Epochs:
for each its number i32 and its first offset i64. Producers: their number u32, and for each `ProducerState.encode_full`
says what. Ended transactions: for each the producer's id, its first offset and the offset behind its marker, i64 each.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.log.epochs import LeaderEpochs
from tpc_broker.log.files import EpochStart
from tpc_broker.log.producer_state import NO_OFFSET, ProducerState
from tpc_broker.model import LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.log.batch import BatchHeader, Buffer
    from tpc_broker.log.indexes import AbortedTransaction

_EPOCH: Final = struct.Struct("<iq")
_ENDED: Final = struct.Struct("<qqq")


class EndedTransaction(NamedTuple):
    """`marker_end` is the offset behind its marker."""

    producer_id: int
    first_offset: int
    marker_end: int


class LogState:
    """See the module. `ended` is in the order of the markers."""

    __slots__ = ("ended", "epochs", "producers")

    def __init__(
        self,
        epochs: Iterable[EpochStart] = (),
        producers: ProducerState | None = None,
        ended: Iterable[EndedTransaction] = (),
    ) -> None:
        self.epochs = LeaderEpochs(epochs)
        self.producers = ProducerState() if producers is None else producers
        self.ended = list(ended)

    # Rule: The last stable offset is that of the oldest transaction which is open, or whose marker is at or above the
    # high watermark. C computes it when that moves, before readers are woken. See also native/log/transaction.c,
    # native/log/commit.c. Held by tests/engine/test_plane_transactions.py, tests/engine/test_transactions_random.py.
    def last_stable_offset(self, high_watermark: int) -> int:
        """The high watermark when nothing holds it back."""
        unseen = (one.first_offset for one in self.ended if one.marker_end > high_watermark)
        return min(high_watermark, self.producers.last_stable_offset(high_watermark), *unseen)

    def take(self, header: BatchHeader, data: Buffer, position: int = 0) -> AbortedTransaction | None:
        """A batch follows, which is `data` from `position` on. The transaction that it aborts, if any."""
        self.begin_epoch(header.partition_leader_epoch, header.base_offset)
        first_offset = self.producers.open_since(header.producer_id)
        aborted = self.producers.apply(header, data, position)
        if first_offset != NO_OFFSET and self.producers.open_since(header.producer_id) == NO_OFFSET:
            self.ended.append(EndedTransaction(header.producer_id, first_offset, header.next_offset))
        return aborted

    def settle(self, high_watermark: int) -> None:
        """Readers see the markers below it, and what these have ended holds nobody back any more."""
        del self.ended[: bisect_right(self.ended, high_watermark, key=lambda one: one.marker_end)]

    def begin_epoch(self, epoch: int, offset: int) -> bool:
        """An epoch begins. False: it is known."""
        return self.epochs.assign(LeaderEpoch(epoch), Offset(offset))

    def cut_producers(self, offset: int, producers: ProducerState) -> None:
        """The log ends at an offset, where it has these."""
        self.producers = producers
        del self.ended[bisect_right(self.ended, offset, key=lambda one: one.marker_end) :]

    def cut_epochs(self, offset: int, last_epoch_kept: int = 0) -> None:
        """The log ends at an offset; producers there are the caller's to find, in the segments and their snapshots.

        `last_epoch_kept` as of `LeaderEpochs.truncate_end`.
        """
        self.epochs.truncate_end(Offset(offset), last_epoch_kept)

    def advance_start(self, offset: int) -> None:
        """The log begins at an offset. Producers stay: what they last wrote may be gone, and still be repeated."""
        self.epochs.truncate_start(Offset(offset))

    def follow_plan(self, before: Iterable[EpochStart], planned: Iterable[EpochStart], log_start_offset: int) -> None:
        """After a replay: epochs are those that the journal's entries lead to, and those that only batches tell.

        `before`: of the checkpoint, from which both began.
        """
        known = {entry.epoch for entry in before}
        learned = [entry for entry in self.epochs.entries if entry.epoch not in known]
        self.epochs = LeaderEpochs(planned)
        self.epochs.learn(learned)
        self.advance_start(log_start_offset)


def encode_epochs(epochs: Iterable[EpochStart]) -> bytes:
    """By themselves."""
    return b"".join(_EPOCH.pack(*entry) for entry in epochs)


def encode_ended(ended: Iterable[EndedTransaction]) -> bytes:
    """By themselves."""
    return b"".join(_ENDED.pack(*one) for one in ended)


def decode_ended(data: Buffer) -> list[EndedTransaction]:
    """struct.error: it is no whole number of them."""
    return [EndedTransaction._make(values) for values in _ENDED.iter_unpack(data)]


def encode_producers(producers: ProducerState, ended: Iterable[EndedTransaction] = ()) -> bytes:
    """Both, as the data plane takes them: those that are in a transaction in the order in which these began."""
    has_begun = [one for one in producers if one.transaction_first_offset >= 0]
    if has_begun:
        ordered, has_begun = ProducerState(), sorted(has_begun, key=lambda one: one.transaction_first_offset)
        ordered.producers = {one.producer_id: one for one in producers if one.transaction_first_offset < 0}
        ordered.producers |= {one.producer_id: one for one in has_begun}
        producers = ordered
    return producers.encode_full() + encode_ended(ended)


def decode_state(
    data: Buffer, place: int, epochs_count: int
) -> tuple[tuple[EpochStart, ...], ProducerState, int]:
    """Epochs, producers, and the place behind them. struct.error: the bytes end before."""
    epochs = []
    for _number in range(epochs_count):
        epoch, start_offset = _EPOCH.unpack_from(data, place)
        epochs.append(EpochStart(LeaderEpoch(epoch), Offset(start_offset)))
        place += _EPOCH.size
    producers, place = ProducerState.decode_full(data, place)
    return tuple(epochs), producers, place
