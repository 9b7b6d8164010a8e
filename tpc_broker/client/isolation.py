"""Which batches a reader of committed records may see.

A fetch answer names the aborted transactions that overlap it, as producer id and first offset. Walking over the
batches in order, a transaction's batches are invisible from its first offset to the producer's abort marker.
Control batches are never records. Source: KIP-98, "Reading Transactional Messages".
"""

import sys
from collections.abc import Iterable
from enum import IntEnum
from typing import Protocol


class Isolation(IntEnum):
    """The `isolation_level` of the protocol."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class TransactionalBatch(Protocol):
    """What has to be known about a batch."""

    @property
    def last_offset(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_control(self) -> bool: ...


# Rule: Aborted records are left out wherever a range, a window or a split begins. See also
# tpc_broker/spark/segments.py. Held by tests/spark/test_transactions.py.
class AbortedTransactions:
    """The walk over one answer's batches; ``aborted`` are producer id and first offset, and the marker's offset where
    it is known: such a transaction ends there, though its marker may be gone since.
    """

    def __init__(self, aborted: Iterable[tuple[int, ...]]) -> None:
        self._waiting = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        self._producers: dict[int, int] = {}
        """Of each with an aborted transaction where that ends at the latest."""

    def admits(self, batch: TransactionalBatch, *, is_abort: bool) -> bool:
        """Whether the next batch's records are visible. ``is_abort``: it is a control batch that marks an abort."""
        while self._waiting and self._waiting[-1][1] <= batch.last_offset:
            producer_id, _first_offset, *last_offset = self._waiting.pop()
            self._producers[producer_id] = last_offset[0] if last_offset else sys.maxsize
        if batch.is_control:
            if is_abort:
                self._producers.pop(batch.producer_id, None)
            return False
        return not (batch.is_transactional and batch.last_offset <= self._producers.get(batch.producer_id, -1))
