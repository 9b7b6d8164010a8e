"""Partitions that are added to some transactions, or verified, at once: `Additions`, where those are coordinated."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from tpc_broker.broker.coordinator_driver import MachineFailedError
from tpc_broker.coordinator.transactions.messages import AddPartitionsResponse
from tpc_broker.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.broker.coordinator_driver import PendingReply
    from tpc_broker.broker.transaction_service import LoadedTransactions, TransactionService
    from tpc_broker.coordinator.transactions.messages import AddPartitionsRequest

Answer = AddPartitionsResponse | ErrorCode
"""ErrorCode: why there is no coordinator here."""


class Additions:
    """Of the requests of one call. One round of a quorum confirms all that one coordinator answers from memory."""

    def __init__(self, service: TransactionService, asked: Sequence[AddPartitionsRequest]) -> None:
        self._service = service
        self._asked = asked
        self._answers: list[Answer] = [ErrorCode.REQUEST_TIMED_OUT] * len(asked)
        self._written: list[tuple[int, LoadedTransactions, PendingReply]] = []
        """Answered when that is durable."""
        self._settling: list[tuple[str, LoadedTransactions]] = []
        self._looked_up: dict[LoadedTransactions, dict[int, Answer]] = {}
        """Answered when it is certain."""

    async def until_answered(self, within_s: float) -> Sequence[Answer]:
        """To each, as soon as all can be told, or the time is over. CONCURRENT_TRANSACTIONS is told when that has
        ended, so it may be asked again at once; REQUEST_TIMED_OUT, too.
        """
        for number, each in enumerate(self._asked):
            self._hand_in(number, each)
        try:
            with trio.move_on_after(within_s):
                await self._wait()
        finally:
            for number, coordinator, pending in self._written:
                coordinator.forget(pending)
                self._answers[number] = _reply(pending) or self._answers[number]
        return self._answers

    def _hand_in(self, number: int, request: AddPartitionsRequest) -> None:
        coordinator = self._service.coordinator_of(request.transactional_id)
        if isinstance(coordinator, ErrorCode):
            self._answers[number] = coordinator
            return
        pending = coordinator.hand_in(partial(coordinator.machine.add_partitions, request))
        answer = _reply(pending)
        if answer is None:
            self._written.append((number, coordinator, pending))
        elif isinstance(answer, ErrorCode):
            self._answers[number] = answer
        elif answer.error_code is ErrorCode.CONCURRENT_TRANSACTIONS:
            self._answers[number] = answer
            self._settling.append((request.transactional_id, coordinator))
        else:
            self._looked_up.setdefault(coordinator, {})[number] = answer

    async def _wait(self) -> None:
        async with trio.open_nursery() as nursery:
            for coordinator in self._looked_up:
                nursery.start_soon(self._until_certain, coordinator)
            for _number, _coordinator, pending in self._written:
                await pending.wait()
            for name, coordinator in self._settling:
                await coordinator.until_settled(name)

    async def _until_certain(self, coordinator: LoadedTransactions) -> None:
        answers = self._looked_up[coordinator]
        name = self._asked[next(iter(answers))].transactional_id
        is_certain = await self._service.is_certain(name, coordinator)
        for number, answer in answers.items():
            self._answers[number] = answer if is_certain else ErrorCode.NOT_COORDINATOR


def _reply(pending: PendingReply) -> Answer | None:
    """What a machine has replied, or that it has failed; None: nothing yet."""
    found = pending.response
    if isinstance(found, MachineFailedError):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert found is None or isinstance(found, AddPartitionsResponse)
    return found
