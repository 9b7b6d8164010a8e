"""Questions of a core to the coordinator of a transaction, wherever that is: `TransactionCalls`.

This core's own is asked by a call, another core of the node by its mailbox, one on another node by way of its core 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.coordinator.transactions.messages import AddPartitionsRequest, AddPartitionsResponse
from tpc_broker.coordinator.transactions.transaction import TopicPartition
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import MailboxError
from tpc_broker.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, CoreId, NodeId, coordinator_partition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.payloads import Answer, Payload
    from tpc_broker.coordinator.effects import Producer

VERIFY, VERIFY_ON_NODE = "transactions.verify", "transactions.verify_on_node"
CALL_TIMEOUT_MS: Final = 10_000
WHILE_CHANGING_S: Final = 0.1
"""An answer waits at most, in case its coordinator goes meanwhile."""
OFFSETS_VERSION_THAT_ADDS: Final = 5
"""Of TxnOffsetCommit: its clients leave it to the broker to add the group's partition (transaction.version 2)."""


class TransactionCalls:
    """Of one core."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.verifications = 0
        """Asked by this core, also of itself; only grows."""
        core.mailboxes.serve(VERIFY, self._serve_verify)
        core.mailboxes.serve(VERIFY_ON_NODE, self._serve_verify_on_node)
        if core.cluster is not None:
            core.cluster.serve(VERIFY, self._serve_node)

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[tuple[str, int]],
        *,
        adds: bool,
    ) -> Mapping[tuple[str, int], ErrorCode]:
        """As AddPartitionsToTxn of version 4 and later: of each partition, by its topic's name, whether it is part of
        the transaction (or now is, with `adds`), or why not. Errors of the coordinator itself are those of all.
        CONCURRENT_TRANSACTIONS comes when it is over, or after `WHILE_CHANGING_S`: so it may be asked again at once.
        """
        self.verifications += 1
        payload: Payload = {
            "id": transactional_id, "producer": [producer_id, producer_epoch],
            "partitions": [[topic, index] for topic, index in partitions], "adds": adds,
        }  # fmt: skip
        try:
            answer = await self._ask(transactional_id, payload)
        except MailboxError:
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        return dict(zip(partitions, map(ErrorCode, answer["errors"]), strict=True))

    async def verify_offsets(
        self, transactional_id: str, producer: Producer, group_id: str, version: int
    ) -> ErrorCode:
        """See `group_service.VerifyOffsets`."""
        topic = self._core.view.topic(CONSUMER_OFFSETS_TOPIC)
        if topic is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        partition = (CONSUMER_OFFSETS_TOPIC, coordinator_partition(group_id, topic.partitions_count))
        told = await self.verify(
            transactional_id, producer.producer_id, producer.producer_epoch, [partition],
            adds=version >= OFFSETS_VERSION_THAT_ADDS,
        )  # fmt: skip
        return told[partition]

    async def _ask(self, transactional_id: str, payload: Payload) -> Payload:
        core = self._core
        topic = core.view.topic(TRANSACTION_STATE_TOPIC)
        if topic is None:
            return {"errors": [int(ErrorCode.COORDINATOR_NOT_AVAILABLE)] * len(payload["partitions"])}
        place = core.view.place_of(topic, coordinator_partition(transactional_id, topic.partitions_count))
        if place.node != core.view.node:
            payload |= {"node": place.node, "core": place.core}
            answer, _blobs = await core.mailboxes.call(
                METADATA_CORE, VERIFY_ON_NODE, payload, timeout_ms=CALL_TIMEOUT_MS
            )
            return answer
        return await self._on(place.core, payload)

    async def _on(self, number: CoreId, payload: Payload) -> Payload:
        if number == self._core.core_id:
            return await self._here(payload)
        answer, _blobs = await self._core.mailboxes.call(number, VERIFY, payload, timeout_ms=CALL_TIMEOUT_MS)
        return answer

    async def _here(self, payload: Payload) -> Payload:
        partitions = tuple(TopicPartition(topic, index) for topic, index in payload["partitions"])
        producer_id, producer_epoch = payload["producer"]
        asked = AddPartitionsRequest(
            transactional_id=payload["id"],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=partitions,
            client_version=2,
            verify_only=not payload["adds"],
        )
        told = await self._core.transactions.answer(
            payload["id"],
            AddPartitionsResponse,
            lambda machine, token, now_ms: machine.add_partitions(asked, token, now_ms),
        )
        if not isinstance(told, ErrorCode) and told.error_code is ErrorCode.CONCURRENT_TRANSACTIONS:
            with trio.move_on_after(WHILE_CHANGING_S):
                await self._core.transactions.until_settled(payload["id"])
        errors = [told if isinstance(told, ErrorCode) else told.error_of(each) for each in partitions]
        return {"errors": [int(each) for each in errors]}

    async def _serve_verify(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        return await self._here(payload), []

    async def _serve_verify_on_node(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        """On core 0, which has the links."""
        assert self._core.cluster is not None
        return await self._core.cluster.ask(NodeId(payload.pop("node")), VERIFY, payload)

    async def _serve_node(self, payload: Payload, _blobs: list[bytes]) -> Answer:
        """On core 0 of the node that is asked."""
        number = CoreId(payload.pop("core"))
        return await self._on(number, payload), []
