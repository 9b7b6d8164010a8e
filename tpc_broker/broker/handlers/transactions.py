"""As long as there are no transactions: nothing is listed or open, and who asks for one is told so.

Producers that are only idempotent are known of, and told.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpc_broker import limits
from tpc_broker.broker.partition import Partition
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import LeadershipLostError, PartitionOfflineError
from tpc_broker.kafka import messages
from tpc_broker.metadata.topic_names import topic_name_fault

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request
    from tpc_broker.broker.producers_port import ToldProducer

ASKED_FOR = "transactions"
STATES = frozenset(
    (
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    )
)
"""The names that are known; case counts."""
TOO_MANY_PRODUCERS = f"An answer tells {limits.PRODUCERS_TOLD_MAX} producers at most: ask for fewer partitions at once."


def note_transactions(core: Core, request: Request) -> None:
    """Log that somebody wants them."""
    text = "a producer with a transactional.id is refused: there are no transactions yet"
    core.dispatcher.note_in_vain(request, ASKED_FOR, text)


def handle_list_transactions(
    _core: Core, _request: Request, message: messages.ListTransactionsRequest
) -> messages.ListTransactionsResponse:
    if message.transactional_id_pattern and not _is_pattern(message.transactional_id_pattern):
        return messages.ListTransactionsResponse(error_code=int(ErrorCode.INVALID_REGULAR_EXPRESSION))
    return messages.ListTransactionsResponse(unknown_state_filters=sorted(set(message.state_filters) - STATES))


def handle_describe_transactions(
    _core: Core, _request: Request, message: messages.DescribeTransactionsRequest
) -> messages.DescribeTransactionsResponse:
    kind = messages.DescribeTransactionsResponse
    return kind(
        transaction_states=[
            kind.TransactionState(
                transactional_id=one,
                error_code=int(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if one else ErrorCode.INVALID_REQUEST),
            )
            for one in message.transactional_ids
        ]
    )


def _is_pattern(text: str) -> bool:
    """Kafka's are RE2's, which have more classes and escapes than Python's, and not all of their groups."""
    try:
        re.compile(text.replace("(?<", "(?P<"))
    except re.error as error:
        return error.msg.startswith("bad escape")
    except (OverflowError, RecursionError):  # numbers and depths that no pattern needs
        return False
    return True


def handle_describe_producers(
    core: Core, _request: Request, message: messages.DescribeProducersRequest
) -> messages.DescribeProducersResponse:
    """Of partitions that are here, led or followed, idempotent producers too: all that are known."""
    kind, room = messages.DescribeProducersResponse, limits.PRODUCERS_TOLD_MAX
    answer = kind()
    for topic in message.topics:
        told = kind.TopicResponse(name=topic.name)
        answer.topics.append(told)
        for index in topic.partition_indexes:
            told.partitions.append(_producers(core, topic.name, index, room))
            room -= len(told.partitions[-1].active_producers)
    return answer


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
            found, why = ErrorCode.INVALID_REQUEST, TOO_MANY_PRODUCERS
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
