"""As long as there are no transactions: nothing is listed or open, and who asks for one is told so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.metadata.topic_names import topic_name_fault

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request

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
    kind = messages.DescribeProducersResponse
    return kind(
        topics=[
            kind.TopicResponse(
                name=topic.name,
                partitions=[_no_producers(core, topic.name, index) for index in topic.partition_indexes],
            )
            for topic in message.topics
        ]
    )


def _no_producers(core: Core, name: str, index: int) -> messages.DescribeProducersResponse.PartitionResponse:
    code, why = ErrorCode.NONE, None
    fault = topic_name_fault(name)
    if fault is not None:
        code, why = ErrorCode.INVALID_TOPIC_EXCEPTION, fault
    elif core.view.topic(name) is None:
        code, why = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
    else:
        found = core.partitions.find(name, index)
        code = found if isinstance(found, ErrorCode) else ErrorCode.NONE
    return messages.DescribeProducersResponse.PartitionResponse(
        partition_index=index, error_code=int(code), error_message=why
    )
