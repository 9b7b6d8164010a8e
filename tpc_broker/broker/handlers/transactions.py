"""What is told of transactions and of producers. Where there are no transactions nothing is listed or open, and who
asks for one is told so; producers that are only idempotent are known of, and told.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker import limits
from tpc_broker.auth.operations import Operation
from tpc_broker.broker.partition import Partition
from tpc_broker.coordinator.consumer.regexes import fault_of, matches
from tpc_broker.coordinator.transactions.machine import unknown_states
from tpc_broker.coordinator.transactions.messages import DescribedTransaction, ListedTransaction, ListFilter
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import LeadershipLostError, PartitionOfflineError
from tpc_broker.kafka import messages
from tpc_broker.kafka.errors import DecodeError
from tpc_broker.metadata.topic_names import topic_name_fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request
    from tpc_broker.broker.producers_port import ToldProducer
    from tpc_broker.broker.transaction_service import LoadedTransactions

ASKED_FOR = "transactions"
DESCRIBED_AT_ONCE: Final = 50
LISTED_AT_ONCE: Final = 500
"""Made for an answer in a step, about a microsecond each."""
TOLD_IN_PART = (
    f"An answer tells {limits.PRODUCERS_TOLD_MAX} producers at most: all that have a transaction open, and of the "
    "others as many as fit. Ask for fewer partitions at once."
)


def note_transactions(core: Core, request: Request) -> None:
    """Log that somebody wants them."""
    text = "a producer with a transactional.id is refused: the cluster is at a feature level that has none"
    core.dispatcher.note_in_vain(request, ASKED_FOR, text)


async def handle_list_transactions(
    core: Core, request: Request, message: messages.ListTransactionsRequest
) -> messages.ListTransactionsResponse:
    kind, pattern = messages.ListTransactionsResponse, message.transactional_id_pattern
    if pattern and fault_of(pattern) is not None:
        return kind(error_code=int(ErrorCode.INVALID_REGULAR_EXPRESSION))
    found: list[ListedTransaction] = []
    if not core.transactions.is_loading:
        for coordinator in core.transactions.loaded():
            found += await _listed(core, coordinator, message)
    if core.transactions.is_loading:
        return kind(error_code=int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    answer = kind(unknown_state_filters=sorted(set(unknown_states(message.state_filters))))
    for begin in range(0, len(found), LISTED_AT_ONCE):
        answer.transaction_states += [
            kind.TransactionState(
                transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=each.state
            )
            for each in found[begin : begin + LISTED_AT_ONCE]
            if core.access.allows_transaction(request, Operation.DESCRIBE, each.transactional_id, is_told=False)
        ]
        await trio.lowlevel.checkpoint()
    return answer


async def _listed(
    core: Core, coordinator: LoadedTransactions, message: messages.ListTransactionsRequest
) -> list[ListedTransaction]:
    """Nothing of one that coordinates no more."""
    wanted = ListFilter(
        states=frozenset(message.state_filters),
        producer_ids=frozenset(message.producer_id_filters),
        longer_than_ms=message.duration_filter,
    )
    found: list[ListedTransaction] = []
    for some in coordinator.machine.list_transactions(wanted, coordinator.now_ms()):
        found += some
        await trio.lowlevel.checkpoint()
    if message.transactional_id_pattern:
        names = [each.transactional_id for each in found]
        matching = set(await _matching(core, message.transactional_id_pattern, names))
        found = [each for each in found if each.transactional_id in matching]
    is_certain = found and await core.transactions.is_certain(found[0].transactional_id, coordinator)
    return found if is_certain else []


async def _matching(core: Core, pattern: str, names: list[str]) -> list[str]:
    """A step at a time, each a short job of a helper thread."""
    parts, found, has_more = matches(pattern, names), list[str](), True
    while has_more:
        async with core.groups.matching:
            part = await core.in_thread(next, parts, None)
        has_more = part is not None
        found += part or ()
    return found


async def handle_describe_transactions(
    core: Core, request: Request, message: messages.DescribeTransactionsRequest
) -> messages.DescribeTransactionsResponse:
    if len(message.transactional_ids) > limits.TRANSACTIONS_DESCRIBED_MAX:
        fault = f"it names more ids than the {limits.TRANSACTIONS_DESCRIBED_MAX:,} that one may"
        raise DecodeError(fault, "DescribeTransactionsRequest", request.api_version)
    may_see = partial(core.access.allows_transaction, request, Operation.DESCRIBE)
    if core.transactions.is_there:
        seen = [each for each in message.transactional_ids if may_see(each, is_told=False)]
        await core.transactions.until_all_confirmed(seen)
    kind = messages.DescribeTransactionsResponse
    may_see_topic = partial(core.access.allows_topic, request, Operation.DESCRIBE, is_told=False)
    states = []
    for number, each in enumerate(message.transactional_ids, 1):
        if may_see(each):
            states.append(_state(_described(core, each), may_see_topic))
        else:
            error = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            states.append(kind.TransactionState(transactional_id=each, error_code=error))
        if number % DESCRIBED_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    return kind(transaction_states=states)


def _described(core: Core, transactional_id: str) -> DescribedTransaction:
    if not transactional_id:
        return DescribedTransaction(transactional_id, ErrorCode.INVALID_REQUEST)
    if not core.transactions.is_there:
        return DescribedTransaction(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    found = core.transactions.coordinator_of(transactional_id)
    if isinstance(found, ErrorCode):
        return DescribedTransaction(transactional_id, found)
    return found.machine.describe(transactional_id)


def _state(
    found: DescribedTransaction, may_see: Callable[[str], bool]
) -> messages.DescribeTransactionsResponse.TransactionState:
    """With the topics that the client may see."""
    kind = messages.DescribeTransactionsResponse
    topics: dict[str, list[int]] = {}
    for topic, partition in found.partitions:
        topics.setdefault(topic, []).append(partition)
    return kind.TransactionState(
        error_code=int(found.error_code),
        transactional_id=found.transactional_id,
        transaction_state=found.state,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            kind.TopicData(topic=topic, partitions=partitions)
            for topic, partitions in topics.items()
            if may_see(topic)
        ],
    )


def handle_describe_producers(
    core: Core, request: Request, message: messages.DescribeProducersRequest
) -> messages.DescribeProducersResponse:
    """Of partitions that are here, led or followed, idempotent producers too. Who looks for a transaction that hangs
    is told of all that are open, however many producers there are beside.
    """
    kind, room = messages.DescribeProducersResponse, limits.PRODUCERS_TOLD_MAX
    answer = kind()
    for topic in message.topics:
        told = kind.TopicResponse(name=topic.name)
        answer.topics.append(told)
        if not core.access.allows_topic(request, Operation.READ, topic.name):
            told.partitions = [_no_right_to(index) for index in topic.partition_indexes]
            continue
        for index in topic.partition_indexes:
            told.partitions.append(_producers(core, topic.name, index, room))
            room -= len(told.partitions[-1].active_producers)
    return answer


def _no_right_to(index: int) -> messages.DescribeProducersResponse.PartitionResponse:
    error = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return messages.DescribeProducersResponse.PartitionResponse(partition_index=index, error_code=error)


def _producers(core: Core, name: str, index: int, room: int) -> messages.DescribeProducersResponse.PartitionResponse:
    """`room`: for so many."""
    found, why = _replica_here(core, name, index)
    producers: list[ToldProducer] | None = []
    if isinstance(found, Partition):
        try:
            producers, found = found.producers(room), ErrorCode.NONE
        except LeadershipLostError:
            found = ErrorCode.NOT_LEADER_OR_FOLLOWER
        except PartitionOfflineError:
            found = ErrorCode.KAFKA_STORAGE_ERROR
        if producers is None:
            found, why = ErrorCode.INVALID_REQUEST, TOLD_IN_PART
        elif len(producers) == room:
            why = TOLD_IN_PART
    state = messages.DescribeProducersResponse.ProducerState
    return messages.DescribeProducersResponse.PartitionResponse(
        partition_index=index,
        error_code=int(found),
        error_message=why,
        active_producers=[
            state(
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                last_sequence=one.last_sequence,
                last_timestamp=one.last_timestamp_ms,
                coordinator_epoch=one.coordinator_epoch,
                current_txn_start_offset=one.transaction_first_offset,
            )
            for one in producers or ()
        ],
    )


def _replica_here(core: Core, name: str, index: int) -> tuple[Partition | ErrorCode, str | None]:
    fault = topic_name_fault(name)
    if fault is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, fault
    if core.view.topic(name) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
    return core.partitions.find(name, index, with_followers=True), None
