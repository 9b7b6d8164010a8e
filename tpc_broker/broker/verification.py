"""Whether the batches of a Produce are part of their transaction: `Verification` asks that one's coordinator.

The data plane lets a batch begin a transaction in a partition only behind the coordinator's word, and only while the
verification stands that began before it was asked (`ProducePort.begin_verification`): a marker that comes in between
has ended that transaction. From Produce 12 on the coordinator adds the partitions (transaction.version 2), before that
it is only asked whether the client has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from tpc_broker.broker.partition import Partition
from tpc_broker.broker.transaction_calls import UNDER_WAY, Asked
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka.errors import DecodeError
from tpc_broker.log.batch import BATCH_HEADER_BYTES, decode_header

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable

    from tpc_broker.broker.handled import Request
    from tpc_broker.broker.partitions import Partitions
    from tpc_broker.broker.ports import AskedProduce
    from tpc_broker.broker.transaction_service import CoreWithTransactions

VERSION_THAT_IS_TOLD: Final = 11
"""From here on clients know TRANSACTION_ABORTABLE."""
VERSION_THAT_ADDS: Final = 12
NOT_HERE_S, LEAST_S = 0.002, 0.001
"""Time passes whenever it is asked: who asks looks at the clock."""
STEP: Final = 250
"""Batches that are looked at at once, some 5 µs each."""
COORDINATOR_ELSEWHERE: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)  # fmt: skip


class _Batch(NamedTuple):
    """A transactional batch: its place in the request, and whose it is."""

    place: int
    partition: Partition
    producer_id: int
    producer_epoch: int
    sequence: int


class Verification:
    """Of one Produce; `end` is to be called when it is over."""

    def __init__(self, core: CoreWithTransactions, request: Request, asked: AskedProduce) -> None:
        self._core = core
        self._request = request
        self._asked = asked
        self.guards: dict[int, int] = {}
        """For the verdicts, by the place in the request."""
        self.errors: dict[int, ErrorCode] = {}
        self._begun: list[tuple[int, int, int]] = []
        self._batches: list[_Batch] = []
        """That are asked about."""

    def end(self) -> None:
        for handle, producer_id, guard in self._begun:
            self._core.plane.end_verification(handle, producer_id, guard)
        self._begun.clear()

    # Rule: Whoever asks again begins to verify again: the marker that the coordinator waited for has ended what had
    # begun before it, and from transaction.version 2 on it has this batch's own epoch. Held by
    # tests/broker/test_verification.py.
    async def ask(self, deadline_ms: int) -> None:
        """While the coordinator ends a transaction just now, or is slow, it is asked again, until the time is over: the
        client would wait longer.
        """
        left_s = (deadline_ms - self._core.clock.monotonic_ms()) / 1000
        with trio.move_on_after(max(left_s, LEAST_S)) as scope:
            again = False
            while not await self._ask_once(again=again):
                again = True
        if scope.cancelled_caught:
            self.guards.clear()
            self._refuse(self._batches, ErrorCode.NOT_ENOUGH_REPLICAS)

    async def _ask_once(self, *, again: bool) -> bool:
        """Whether that was all."""
        self.end()
        self.guards.clear()
        batches = self._batches = await self._found()
        producers = {(batch.producer_id, batch.producer_epoch) for batch in batches}
        transactional_id = self._asked.transactional_id
        if transactional_id is None:
            self._refuse(batches, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        elif not batches:  # no longer here, or not yet
            await trio.sleep(NOT_HERE_S)
        elif len(producers) != 1:
            self._refuse(batches, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif begun := await self._begun_of(batches):
            return await self._has_heard(transactional_id, begun, again=again)
        return True

    def _refuse(self, batches: Iterable[_Batch], error: ErrorCode) -> None:
        self.errors.update((batch.place, error) for batch in batches)

    async def _found(self) -> list[_Batch]:
        """What cannot be read, or is not led here, is the data plane's to refuse."""
        found = []
        for index, part in enumerate(self._asked.parts):
            if index % STEP == STEP - 1:
                await trio.lowlevel.checkpoint()
            records = self._request.body[part.records_place : part.records_place + part.records_bytes]
            partition = find_to_write(self._core.partitions, part.topic, part.partition)
            if len(records) < BATCH_HEADER_BYTES or not isinstance(partition, Partition) or index in self.errors:
                continue
            try:
                header = decode_header(records)
            except (DecodeError, ValueError):
                continue
            if header.is_transactional and header.producer_id >= 0:
                found.append(
                    _Batch(index, partition, header.producer_id, header.producer_epoch, header.base_sequence)
                )
        return found

    async def _begun_of(self, batches: list[_Batch]) -> list[_Batch]:
        begun = []
        for number, batch in enumerate(batches, 1):
            if self._begin(batch):
                begun.append(batch)
            if number % STEP == 0:
                await trio.lowlevel.checkpoint()
        return begun

    def _begin(self, batch: _Batch) -> bool:
        handle = batch.partition.handle
        begun = self._core.plane.begin_verification(
            handle, batch.producer_id, batch.producer_epoch, batch.sequence,
            begins_anew=self._request.api_version >= VERSION_THAT_ADDS,
        )  # fmt: skip
        if isinstance(begun, ErrorCode):
            self.errors[batch.place] = begun
            return False
        self.guards[batch.place] = begun
        self._begun.append((handle, batch.producer_id, begun))
        return True

    async def _has_heard(self, transactional_id: str, batches: list[_Batch], *, again: bool) -> bool:
        version = self._request.api_version
        names = [(batch.partition.topic_name, batch.partition.index) for batch in batches]
        first = batches[0]
        asked = Asked(
            transactional_id, first.producer_id, first.producer_epoch, version >= VERSION_THAT_ADDS, again
        )
        told = await self._core.transactions.calls.verify(asked, names)
        found = [told[name] for name in names]
        if not UNDER_WAY.isdisjoint(found):
            return False
        for batch, code in zip(batches, found, strict=True):
            error = told_to_client(code, version)
            if error is not ErrorCode.NONE:
                self.errors[batch.place] = error
        return True


# Rule: Whoever writes finds a partition from when on the data plane takes its records, though clients may not be told
# its epoch yet: else a batch of a transaction that the data plane leaves to be verified is not looked at, and is left
# again, for as long as its request may last, and nothing else runs. Held by tests/broker/test_verification.py.
def find_to_write(partitions: Partitions, topic_key: str | uuid.UUID, index: int) -> Partition | ErrorCode:
    """The partition, or why records are not taken here."""
    found = partitions.find(topic_key, index)
    if found is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return partitions.find_written(topic_key, index) or found
    return found


def told_to_client(error: ErrorCode, version: int) -> ErrorCode:
    """What a Produce of that version answers for what the coordinator said, as Kafka has it."""
    if error in COORDINATOR_ELSEWHERE or error in UNDER_WAY:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < VERSION_THAT_IS_TOLD:
        return ErrorCode.INVALID_TXN_STATE
    return error
