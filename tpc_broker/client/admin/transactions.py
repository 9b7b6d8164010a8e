"""Transactions from outside: which there are, which hang, and how they are ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.client import transactions
from tpc_broker.client.coordinators import CoordinatorKind
from tpc_broker.client.errors import ClientError, RefusedError, UnknownTopicError, UnreachableError
from tpc_broker.kafka import ErrorCode
from tpc_broker.model import TRANSACTION_STATE_TOPIC

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable

    from tpc_broker.client.admin.asking import Asker
    from tpc_broker.client.exchange import Exchange
    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.client.transactions import Hanging, ListedTransaction, PartitionProducer, Transaction

_PARTITIONS_AT_ONCE: Final = 100
"""That are asked for their producers: a broker tells some thousands of them at most."""


class Transactions:
    """`client.admin.transactions`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def list(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), longer_than_ms: int = -1
    ) -> builtins.list[ListedTransaction]:
        """Of all brokers, by transactional id. Empty conditions are none."""
        asked = list(states), list(producer_ids), longer_than_ms
        told = await self._asker.all_brokers(lambda broker_id: transactions.to_list(broker_id, *asked))
        found = {one.transactional_id: one for part in told for one in part}
        return [found[name] for name in sorted(found)]

    async def describe(self, *transactional_ids: str) -> dict[str, Transaction]:
        """As their coordinators tell them; without those that these do not know."""
        found: dict[str, Transaction] = {}
        for name in dict.fromkeys(transactional_ids):
            found |= await self._asker.with_coordinator(
                CoordinatorKind.TRANSACTION, name,
                lambda channel, name=name: transactions.to_describe(channel.broker_id, [name]).through(channel),  # type: ignore[misc]
            )  # fmt: skip
        return found

    async def producers(
        self, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, builtins.list[PartitionProducer]]:
        """Of each partition those that its leader knows; also those that are idempotent and no more."""
        left = list(dict.fromkeys(places))
        found: dict[TopicPartition, list[PartitionProducer]] = {}
        while left:
            some, left = left[:_PARTITIONS_AT_ONCE], left[_PARTITIONS_AT_ONCE:]
            try:
                found |= await self._asker.leaders(some, _to_tell_producers)
            except RefusedError as error:
                if error.code != ErrorCode.INVALID_REQUEST or len(some) == 1:
                    raise
                for where in some:  # too many for one answer
                    found |= await self._asker.leaders([where], _to_tell_producers)
        return found

    async def hanging(self, places: Iterable[TopicPartition]) -> builtins.list[Hanging]:
        """Those that are open in one of these partitions and that no coordinator has open: nothing will end them, and
        who reads committed records gets no further.
        """
        before = transactions.opened(await self.producers(places))
        known = await self._by_producers({one.producer_id for _where, one in before})
        suspected = transactions.suspects(before, known)
        after = transactions.opened(await self.producers({each.where for each in suspected}))
        return transactions.hanging(suspected, after)

    async def _by_producers(self, producer_ids: set[int]) -> dict[int, Transaction | None]:
        if not producer_ids:
            return {}
        found = await self._listed(producer_ids)
        if found.keys() >= producer_ids:
            return found

        async def ask() -> dict[int, Transaction | None]:
            before = await self._coordinators()
            found = await self._listed(producer_ids)
            if await self._coordinators() != before:
                raise UnreachableError("coordinators of transactions move just now")
            return found

        return await self._asker.answered(ask)

    async def _listed(self, producer_ids: set[int]) -> dict[int, Transaction | None]:
        listed = await self.list(producer_ids=sorted(producer_ids))
        described = await self.describe(*(one.transactional_id for one in listed))
        return {one.producer_id: described.get(one.transactional_id) for one in listed}

    async def _coordinators(self) -> dict[int, int]:
        """Which broker coordinates each partition; `UnreachableError`: of one there is nobody."""
        fleet = self._asker.fleet
        fleet.forget()
        try:
            leaders = (await fleet.topic(TRANSACTION_STATE_TOPIC)).leaders
        except UnknownTopicError:
            return {}
        away = [partition for partition, leader in leaders.items() if leader < 0]
        if away:
            raise UnreachableError(f"{TRANSACTION_STATE_TOPIC}-{away[0]} has no leader now")
        return dict(leaders)

    async def abort(self, transactional_id: str) -> Transaction:
        """Abort what is open under the id, and fence its producer. What it was. `ClientError`: there is none open."""
        found = (await self.describe(transactional_id)).get(transactional_id)
        if found is None or not found.is_open:
            state = "unknown to its coordinator" if found is None else found.state
            raise ClientError(f"transactional id {transactional_id}: nothing to abort, it is {state}")
        await self._asker.coordinator(CoordinatorKind.TRANSACTION, transactional_id, transactions.to_abort(found))
        return found

    async def abort_hanging(self, found: Hanging) -> None:
        """Write the marker that no coordinator will, at the partition's leader."""
        exchange = transactions.to_mark_aborted(found.where, found.producer)

        async def ask() -> None:
            await exchange.through(await self._asker.fleet.leader(found.where))

        await self._asker.answered(ask)


def _to_tell_producers(places: list[TopicPartition]) -> Exchange[transactions.Producers]:
    return transactions.to_tell_producers(places)
