"""What a log's batches, and the beginnings of its epochs, have made of it: one machine, with one encoding.

Theory of operation
-------------------
As of an offset, a log has *producers* with their last batches and open transactions (`producer_state`), from which
its last stable offset follows, and *leader epochs* with the offsets where they begin (`epochs`). Batches are taken in
order, one at a time (`take`) or a buffer of them in C (`segment.AppendWalk`); epochs begin; the log is cut at either
end.

Segments have one as of what is written in them (`storage.segment_log`), repair while it reads a log again. A copy is
part of a partition's checkpoint, and so of what goes to another core, or fills a replica, in an entry of the journal.
The data plane has the producers at the end of the log, and takes and gives them in the same encoding
(`native/ring/producer.c`).

The encoding is little-endian and has neither length nor CRC of its own: it is part of something that has both. Epochs:
for each its number i32 and its first offset i64. Producers: their number u32, and for each `ProducerState.encode_full`
says what.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from tpc_broker.log.epochs import LeaderEpochs
from tpc_broker.log.files import EpochStart
from tpc_broker.log.producer_state import ProducerState
from tpc_broker.model import LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.log.batch import BatchHeader, Buffer
    from tpc_broker.log.indexes import AbortedTransaction

_EPOCH: Final = struct.Struct("<iq")


class LogState:
    """See the module."""

    __slots__ = ("epochs", "producers")

    def __init__(self, epochs: Iterable[EpochStart] = (), producers: ProducerState | None = None) -> None:
        self.epochs = LeaderEpochs(epochs)
        self.producers = ProducerState() if producers is None else producers

    def last_stable_offset(self, upto: int) -> int:
        """The first offset of the oldest open transaction; `upto` when there is none."""
        return self.producers.last_stable_offset(upto)

    def take(self, header: BatchHeader, data: Buffer, position: int = 0) -> AbortedTransaction | None:
        """A batch follows, which is `data` from `position` on. The transaction that it aborts, if any."""
        self.begin_epoch(header.partition_leader_epoch, header.base_offset)
        return self.producers.apply(header, data, position)

    def begin_epoch(self, epoch: int, offset: int) -> bool:
        """An epoch begins. False: it is known."""
        return self.epochs.assign(LeaderEpoch(epoch), Offset(offset))

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


def encode_state(epochs: Iterable[EpochStart], producers: ProducerState) -> tuple[bytes, bytes]:
    """Epochs and producers, each by itself."""
    return b"".join(_EPOCH.pack(*entry) for entry in epochs), producers.encode_full()


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
