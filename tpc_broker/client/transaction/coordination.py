"""What the coordinators of a transactional id and of groups are asked, and what their refusals mean."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from tpc_broker.client import transacting, transactions
from tpc_broker.client.coordinators import CoordinatorKind
from tpc_broker.client.errors import RefusedError, UnreachableError
from tpc_broker.client.transacting import OpenTransaction
from tpc_broker.kafka import ApiKey, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from tpc_broker.client.consumer.ports import GroupIdentity, Position
    from tpc_broker.client.exchange import Exchange
    from tpc_broker.client.net.channel import Channel
    from tpc_broker.client.net.fleet import Fleet
    from tpc_broker.client.requests import TopicPartition

LOST: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
"""Another epoch is the last: another client's, or the coordinator's own after the transaction's time was over."""
FORGOTTEN: Final = frozenset({ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.UNKNOWN_PRODUCER_ID})
"""The coordinator has not this producer: the id was not used for so long that it was given up."""
ANNOUNCED_VERSIONS: Final = {
    ApiKey.PRODUCE: 11, ApiKey.TXN_OFFSET_COMMIT: 4, ApiKey.END_TXN: 4,
}  # fmt: skip
"""The highest version of each where partitions are announced (below `transaction.version` 2): who speaks a higher one
says that it knows KIP-890.
"""
_GOES_ON_VERSION: Final = 3
"""Of InitProducerId: from it on, an owner says who it was (KIP-360, Kafka 2.5)."""
_PAUSE_SECONDS_FIRST: Final = 0.002
_PAUSE_SECONDS_MAX: Final = 0.1
_ABORTED: Final = frozenset({"PrepareAbort", "CompleteAbort"})
_NOBODY: Final = -1
T = TypeVar("T")


class Coordination:
    """``level`` of `transaction.version`, of the transaction that is open."""

    def __init__(self, fleet: Fleet, transactional_id: str) -> None:
        self.fleet = fleet
        self.transactional_id = transactional_id
        self.level = 0

    async def begin(self, timeout_ms: int, before: OpenTransaction | None) -> OpenTransaction:
        """A new epoch, and what was open is aborted. ``before``: go on from it, unless another client has the id.
        None: whoever has it is fenced.
        """
        fleet = self.fleet

        async def ask_level() -> int:
            return await transacting.to_tell_level().through(await fleet.any_channel())

        self.level = await fleet.answered(ask_level)
        exchange = transacting.to_begin(self.transactional_id, timeout_ms, before)
        if before is not None:
            channel = await fleet.answered(self._coordinator)
            if channel.version(ApiKey.INIT_PRODUCER_ID) < _GOES_ON_VERSION:
                raise RefusedError(ErrorCode.PRODUCER_FENCED, f"going on with {before}, which a broker this old cannot")
        return await self._answered(self._coordinator, exchange)

    async def after_its_time(self, transaction: OpenTransaction) -> OpenTransaction | None:
        """Who has the id when the coordinator itself has aborted this transaction, and nobody has come since; else
        None. Below level 2 that is refused as another client's coming is.
        """
        exchange = transactions.to_describe(_NOBODY, [transaction.transactional_id])
        found = (await self._answered(self._coordinator, exchange)).get(transaction.transactional_id)
        raised = transaction.producer_id, transaction.producer_epoch + 1
        if found is None or found.state not in _ABORTED or (found.producer_id, found.producer_epoch) != raised:
            return None
        return OpenTransaction(transaction.transactional_id, *raised)

    async def add_partitions(self, transaction: OpenTransaction, places: Collection[TopicPartition]) -> None:
        """Below level 2: before the first batch of each."""
        await self._answered(self._coordinator, transacting.to_add_partitions(transaction, places))

    async def commit_offsets(
        self, transaction: OpenTransaction, identity: GroupIdentity, positions: Mapping[TopicPartition, Position]
    ) -> None:
        """The group has them when the transaction is committed."""
        if self.level < transacting.FEATURE_LEVEL:
            await self._answered(self._coordinator, transacting.to_add_group(transaction, identity.group))

        async def group_coordinator() -> Channel:
            return await self.fleet.coordinator(CoordinatorKind.GROUP, identity.group)

        await self._answered(group_coordinator, transacting.to_commit_offsets(transaction, identity, positions))

    async def end(
        self, transaction: OpenTransaction, on_unanswered: Callable[[], None], *, commits: bool
    ) -> OpenTransaction:
        """Until an answer is known; who owns the id then. ``on_unanswered``: a request may have been carried out."""
        exchange = transacting.to_end(transaction, commits=commits)
        return await self._answered(self._coordinator, exchange, on_unanswered)

    async def _coordinator(self) -> Channel:
        return await self.fleet.coordinator(CoordinatorKind.TRANSACTION, self.transactional_id)

    async def _answered(
        self,
        find: Callable[[], Awaitable[Channel]],
        exchange: Exchange[T],
        on_unanswered: Callable[[], None] | None = None,
    ) -> T:
        async def ask() -> T:
            channel = await find()
            try:
                return await self._past_the_one_before(channel, exchange)
            except UnreachableError:
                if on_unanswered is not None:
                    on_unanswered()
                raise

        return await self.fleet.answered(ask)

    async def _past_the_one_before(self, channel: Channel, exchange: Exchange[T]) -> T:
        """The coordinator refuses a transaction while it is about to end the one before: some milliseconds mostly."""
        deadline = time.monotonic() + self.fleet.settings.retry_seconds
        pause = _PAUSE_SECONDS_FIRST
        version_max = None if self.level >= transacting.FEATURE_LEVEL else ANNOUNCED_VERSIONS.get(exchange.key)
        while True:
            try:
                return await exchange.through(channel, version_max)
            except RefusedError as error:
                if error.code != ErrorCode.CONCURRENT_TRANSACTIONS or time.monotonic() + pause > deadline:
                    raise
            await anyio.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)


