"""What the plane in memory judges batches of producers by, as `native/log/producer.c` and `verification.c` do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpc_broker.error_codes import ErrorCode
from tpc_broker.log.producer_state import NO_OFFSET

if TYPE_CHECKING:
    from tpc_broker.log.batch import BatchHeader
    from tpc_broker.log.producer_state import ProducedBatch, Producer

SEQUENCE_MAX = (1 << 31) - 1


def judged(known: Producer | None, header: BatchHeader) -> tuple[ErrorCode, ProducedBatch | None]:
    """Error of a batch by its producer's epoch and sequence, and what the batch was that it repeats."""
    if known is None:
        return ErrorCode.NONE, None
    if header.producer_epoch < known.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH, None
    if known.transaction_first_offset != NO_OFFSET and not header.is_transactional:
        return ErrorCode.INVALID_TXN_STATE, None
    follows, is_new = header.base_sequence == 0, header.producer_epoch > known.epoch
    if not is_new and known.batches:
        last = header.last_sequence, header.last_offset_delta
        for batch in known.batches:
            if (batch.last_sequence, batch.offset_delta) == last:
                return ErrorCode.NONE, batch
        follows = header.base_sequence == (known.batches[-1].last_sequence + 1) & SEQUENCE_MAX
    return (ErrorCode.NONE if follows else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), None


def is_of_open(known: Producer | None, header: BatchHeader) -> bool:
    return (
        known is not None and known.transaction_first_offset != NO_OFFSET and known.epoch == header.producer_epoch
    )


@dataclass
class _Verification:
    epoch: int
    lowest_sequence: int
    begins_anew: bool
    guard: int
    asking: int = 0


class MemoryGuards:
    """Verifications of a plane, by handle and producer."""

    def __init__(self) -> None:
        self._given = 0
        self.standing: dict[tuple[int, int], _Verification] = {}

    def begin(  # noqa: PLR0913  (what a verification is of)
        self, handle: int, known: Producer | None, producer_id: int, epoch: int, sequence: int, *, begins_anew: bool
    ) -> int | ErrorCode:
        asked = self.standing.get((handle, producer_id))
        if epoch < max(-1 if known is None else known.epoch, -1 if asked is None else asked.epoch):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if asked is None or asked.epoch < epoch:
            self._given += 1
            asked = self.standing[handle, producer_id] = _Verification(epoch, sequence, begins_anew, self._given)
        asked.lowest_sequence = min(asked.lowest_sequence, sequence)
        asked.begins_anew |= begins_anew
        asked.asking += 1
        return asked.guard

    def leave(self, handle: int, producer_id: int, guard: int) -> None:
        asked = self.standing.get((handle, producer_id))
        if asked is not None and asked.guard == guard:
            asked.asking -= 1
            if not asked.asking:
                del self.standing[handle, producer_id]

    def _standing(self, handle: int, header: BatchHeader, guard: int) -> _Verification | None:
        asked = self.standing.get((handle, header.producer_id))
        stands = asked is not None and asked.guard == guard and asked.epoch == header.producer_epoch
        return asked if stands else None

    def is_overtaken(self, handle: int, known: Producer | None, header: BatchHeader, guard: int) -> bool:
        """By a marker of the transaction before, so that the coordinator is to be asked once more."""
        is_of_epoch = known is not None and known.epoch == header.producer_epoch and not known.batches
        return is_of_epoch and self._standing(handle, header, guard) is None

    def refusal(self, handle: int, known: Producer | None, header: BatchHeader, guard: int) -> ErrorCode:
        """Of a batch of a transaction that is judged to be the next."""
        if not header.is_transactional or is_of_open(known, header):
            return ErrorCode.NONE
        asked = self._standing(handle, header, guard)
        if asked is None:
            return ErrorCode.INVALID_TXN_STATE
        is_unknown = known is None or not known.batches
        if is_unknown and (
            header.base_sequence > asked.lowest_sequence or (asked.begins_anew and header.base_sequence)
        ):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return ErrorCode.NONE

    def end(self, handle: int, header: BatchHeader) -> None:
        """A batch was appended: it begins the transaction, or is its marker."""
        asked = self.standing.get((handle, header.producer_id))
        if header.is_transactional and asked is not None and asked.epoch <= header.producer_epoch:
            del self.standing[handle, header.producer_id]

    def forget(self, handle: int) -> None:
        for key in [key for key in self.standing if key[0] == handle]:
            del self.standing[key]
