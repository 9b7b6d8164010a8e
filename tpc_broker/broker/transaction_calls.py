"""Questions of a core to the coordinators of transactions, wherever those are: `TransactionCalls`.

Those of a turn go together, one call to each core; of one producer they are one question (for which AddPartitionsToTxn
has several transactions from version 4 on). A core that coordinates several ids answers when all are answered, or soon:
an id whose log is slow holds up no other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from tpc_broker.broker.additions import Additions
from tpc_broker.broker.calls_to_leaders import CALL_TIMEOUT_MS, CallsToLeaders
from tpc_broker.coordinator.transactions.messages import AddPartitionsRequest
from tpc_broker.coordinator.transactions.transaction import TopicPartition
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import MailboxError
from tpc_broker.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, coordinator_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpc_broker.broker.payloads import Row
    from tpc_broker.broker.transaction_service import CoreWithTransactions
    from tpc_broker.coordinator.effects import Producer
    from tpc_broker.model import Replica

VERIFY = "transactions.verify"
QUESTIONS_PER_CALL: Final = 256
PARTITIONS_PER_CALL: Final = 10_000
"""One question may have more."""
FIRST_S, AGAIN_S = 0.02, 0.1
"""Of the questions of one call the answers wait so long for the slowest: those that are asked for the first time, and
those that were `UNDER_WAY`, which hold up no others.
"""
OFFSETS_VERSION_THAT_ADDS: Final = 5
"""Of TxnOffsetCommit: its clients leave it to the broker to add the group's partition (transaction.version 2)."""
UNDER_WAY: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.REQUEST_TIMED_OUT})
"""A step of that id is: it can be asked again."""


class Asked(NamedTuple):
    """Whether partitions are part of a transaction. What is equal is one question."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool
    """They are added, if they are not."""
    again: bool = False
    """It was UNDER_WAY."""


@dataclass(slots=True, eq=False)
class _Question:
    asked: Asked
    partitions: dict[tuple[str, int], ErrorCode] = field(default_factory=dict)
    has_answer: trio.Event = field(default_factory=trio.Event)

    def row(self) -> Row:
        return [*self.asked, list(self.partitions)]

    def answer(self, errors: Sequence[int]) -> None:
        self.partitions = dict(zip(self.partitions, map(ErrorCode, errors), strict=True))
        self.has_answer.set()

    def refuse(self, error: ErrorCode) -> None:
        self.answer([error] * len(self.partitions))


class TransactionCalls:
    """Of one core."""

    def __init__(self, core: CoreWithTransactions, nursery: trio.Nursery) -> None:
        self._core = core
        self.verifications = 0
        """Asked by this core, also of itself; only grows."""
        self._nursery = nursery
        self._calls = CallsToLeaders(core, VERIFY, self._here)
        self._new: dict[Asked, _Question] = {}
        self._has_new = trio.Event()
        nursery.start_soon(self._run)

    async def verify(
        self, asked: Asked, partitions: Iterable[tuple[str, int]]
    ) -> Mapping[tuple[str, int], ErrorCode]:
        """As AddPartitionsToTxn of version 4 and later: of each partition, by its topic's name, whether it is part of
        the transaction (or now is, with `adds`), or why not; others may be there as well. Errors of the coordinator
        itself are those of all. `UNDER_WAY` comes when a step of the id has ended, or nearly: ask `again`, at once.
        """
        self.verifications += 1
        question = self._new.get(asked)
        if question is None:
            question = self._new[asked] = _Question(asked)
            self._has_new.set()
        for each in partitions:
            question.partitions[each] = ErrorCode.REQUEST_TIMED_OUT
        await question.has_answer.wait()
        return question.partitions

    async def verify_offsets(
        self, transactional_id: str, producer: Producer, group_id: str, version: int
    ) -> ErrorCode:
        """See `group_service.VerifyOffsets`."""
        topic = self._core.view.topic(CONSUMER_OFFSETS_TOPIC)
        if topic is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        partition = (CONSUMER_OFFSETS_TOPIC, coordinator_partition(group_id, topic.partitions_count))
        deadline_ms, is_slow = self._core.clock.monotonic_ms() + CALL_TIMEOUT_MS, False
        while self._core.clock.monotonic_ms() < deadline_ms:
            asked = Asked(transactional_id, *producer, version >= OFFSETS_VERSION_THAT_ADDS, is_slow)
            error = (await self.verify(asked, [partition]))[partition]
            is_slow |= error is ErrorCode.REQUEST_TIMED_OUT
            if not is_slow or error not in UNDER_WAY:
                return error
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    # -- asking ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Once in a turn."""
        while True:
            await self._has_new.wait()
            self._has_new = trio.Event()
            new, self._new = self._new, {}
            by_place: dict[tuple[Replica, bool], list[_Question]] = defaultdict(list)
            topic = self._core.view.topic(TRANSACTION_STATE_TOPIC)
            for question in new.values():
                if topic is None:
                    question.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                    continue
                index = coordinator_partition(question.asked.transactional_id, topic.partitions_count)
                by_place[self._core.view.place_of(topic, index), question.asked.again].append(question)
            for (place, _again), questions in by_place.items():
                for some in _in_calls(questions):
                    self._nursery.start_soon(self._ask, place, some)

    async def _ask(self, place: Replica, questions: Sequence[_Question]) -> None:
        try:
            answers = await self._calls.ask(place, [each.row() for each in questions])
        except MailboxError:
            for each in questions:
                each.refuse(ErrorCode.NETWORK_EXCEPTION)
        else:
            for each, errors in zip(questions, answers, strict=True):
                each.answer(errors)

    # -- being asked -------------------------------------------------------------------------------------------------

    async def _here(self, rows: Sequence[Row]) -> Row:
        asked = [
            AddPartitionsRequest(
                transactional_id=name,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partitions=tuple(TopicPartition(topic, index) for topic, index in partitions),
                client_version=2,
                verify_only=not adds,
            )
            for name, producer_id, producer_epoch, adds, _again, partitions in rows
        ]
        within_s = AGAIN_S if any(again for *_asked, again, _partitions in rows) else FIRST_S
        told = await Additions(self._core.transactions, asked).until_answered(within_s)
        return [
            [int(answer if isinstance(answer, ErrorCode) else answer.error_of(each)) for each in one.partitions]
            for one, answer in zip(asked, told, strict=True)
        ]


def _in_calls(questions: Sequence[_Question]) -> list[list[_Question]]:
    """So many that one is no long step where it is answered."""
    calls: list[list[_Question]] = []
    room = 0
    for each in questions:
        if room < len(each.partitions) or len(calls[-1]) >= QUESTIONS_PER_CALL:
            calls.append([])
            room = PARTITIONS_PER_CALL
        calls[-1].append(each)
        room -= len(each.partitions)
    return calls
