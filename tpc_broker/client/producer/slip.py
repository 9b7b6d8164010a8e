"""What `post` gives: a receipt for one record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tpc_broker.client.net.loops import Event
    from tpc_broker.client.producer.batch import Batch
    from tpc_broker.client.producer.front import Producer
    from tpc_broker.client.values import Delivered, Fate


class Slip:
    """Await it for `Delivered`; otherwise it raises `DeliveryError`, each time. A cancelled wait only ends the wait.

    Slips need not be awaited: what fails then is told by `flush`, and when the client's block is left.
    """

    __slots__ = ("_batch", "_producer", "_row")

    def __init__(self, producer: Producer, batch: Batch, row: int) -> None:
        self._producer = producer
        self._batch = batch
        self._row = row

    @property
    def topic(self) -> str:
        return self._batch.where.topic

    @property
    def partition(self) -> int:
        """Chosen when the record was posted."""
        return self._batch.where.partition

    @property
    def fate(self) -> Fate:
        """What is known of the record now."""
        return self._batch.fate_of(self._row)

    def withdraw(self) -> bool:
        """Take the record back. False: its batch is sealed, and what became of it is its `fate`."""
        return self._producer.withdraw(self._batch, self._row)

    def __await__(self) -> Generator[Any, Any, Delivered]:
        return self._wait().__await__()

    async def _wait(self) -> Delivered:
        batch, row = self._batch, self._row
        if batch.is_withdrawn(row):
            raise self._producer.withdrawn_error(batch.where)
        if row not in batch.rows_seen:
            self._producer.see(batch, row)
            if not batch.is_decided:
                try:
                    await decided(batch, self._producer.make_event)
                except BaseException:
                    self._producer.unsee(batch, row)
                    raise
        elif not batch.is_decided:
            await decided(batch, self._producer.make_event)
        if batch.is_withdrawn(row):
            raise self._producer.withdrawn_error(batch.where)
        return batch.result_of(row)


async def decided(batch: Batch, make_event: Callable[[], Event]) -> None:
    """Until a batch's fate is certain."""
    if batch.decided is None:
        batch.decided = make_event()
    await batch.decided.wait()
