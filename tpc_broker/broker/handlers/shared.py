"""Requests that came to a listener whose clients see one broker in place of all cores, to the cores that decide.

To such a client every core is the leader and the coordinator of everything. Produce and Fetch go from C to C
(`native/requests/forward.h`); the others, which are few, are taken apart here by owner, carried by the mailboxes and
put together again. A core that cannot be asked is answered for by this one, which refuses what is not its own in a
way that every client tries again. Each waiting request holds a credit of the mailbox between two cores: of more than
`MAILBOX_CALLS_MAX` members that wait for one coordinator's rebalance, some are told to look for it again.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from tpc_broker.broker.handled import EncodedResponse, ForwardedRequest, settled
from tpc_broker.broker.handlers.api_rows import Served
from tpc_broker.broker.handlers.forward import carry
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import MailboxError
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import api
from tpc_broker.kafka.codec import codec
from tpc_broker.kafka.message import Message
from tpc_broker.model import CONSUMER_OFFSETS_TOPIC, NOT_HERE, TRANSACTION_STATE_TOPIC, CoreId, coordinator_partition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tpc_broker.broker.core import Core, Handler
    from tpc_broker.broker.handled import Handled, Request
    from tpc_broker.metadata.image import TopicImage

    Split = Callable[[Core, Any], dict[CoreId, Message]]
    Merge = Callable[[Sequence[Any]], Message]  # `Any`: each takes the messages of its API
    _OfOneGroup = (
        messages.JoinGroupRequest
        | messages.SyncGroupRequest
        | messages.HeartbeatRequest
        | messages.ConsumerGroupHeartbeatRequest
        | messages.LeaveGroupRequest
        | messages.OffsetCommitRequest
        | messages.OffsetDeleteRequest
        | messages.OffsetFetchRequest
        | messages.TxnOffsetCommitRequest
    )
    _OfOneTransaction = (
        messages.InitProducerIdRequest | messages.AddOffsetsToTxnRequest | messages.EndTxnRequest
    )
    _OfPartitions = (
        messages.ListOffsetsRequest | messages.DeleteRecordsRequest | messages.OffsetForLeaderEpochRequest
    )
    _WithTopics = (
        messages.ListOffsetsResponse
        | messages.DeleteRecordsResponse
        | messages.OffsetForLeaderEpochResponse
        | messages.DescribeProducersResponse
        | messages.DescribeLogDirsResponse.DescribeLogDirsResult
    )

M = TypeVar("M", bound=Message)

WAIT_MS_MAX: Final = 60 * 60 * 1000
"""For an answer: a member may wait for a rebalance. A core that hangs or ends is noticed otherwise."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """A place (`api_rows.Place`): on listeners that share one address the owners are asked."""

    served: Served
    split: Split
    """The cores that answer, with the part of the message that each gets."""
    merge: Merge
    """Answers, to that of the whole; only where there are several."""
    of_missing: Callable[[], Message] | None = None
    """The part of a core that cannot be asked; None: this core refuses it, as what is not its own."""

    def serving(self, handler: Handler) -> Handler:
        def handle(core: Core, request: Request, message: Message) -> Handled | Awaitable[Handled]:
            if isinstance(request, ForwardedRequest) or not core.view.is_shared(request.listener):
                return handler(core, request, message)
            parts = self.split(core, message)
            if set(parts) <= {core.core_id}:
                return handler(core, request, message)
            return _ask_owners(core, request, parts, self, handler)

        return handle


async def _ask_owners(
    core: Core, request: Request, parts: dict[CoreId, Message], sharing: Sharing, handler: Handler
) -> Handled:
    core.note_forwarded()
    answers: dict[CoreId, Handled] = {}

    async def ask(owner: CoreId, message: Message) -> None:
        if owner != core.core_id:
            try:
                answers[owner] = await _carried(core, request, owner, message)
            except MailboxError:
                if sharing.of_missing is not None:
                    answers[owner] = sharing.of_missing()
        if owner not in answers:  # another's is refused, as by any core
            answers[owner] = await settled(handler(core, request, message))

    async with trio.open_nursery() as nursery:
        for owner, message in parts.items():
            nursery.start_soon(ask, owner, message)
    if len(parts) == 1:
        return next(iter(answers.values()))
    return sharing.merge([_decoded(request, answers[owner]) for owner in parts])


async def _carried(core: Core, request: Request, owner: CoreId, message: Message) -> EncodedResponse:
    encoded = codec(api(request.api_key).request_name, request.api_version).encode_parts(message)
    return await carry(core, request, owner, b"".join(encoded), timeout_ms=WAIT_MS_MAX)


def _decoded(request: Request, answer: Handled) -> Message | None:
    if not isinstance(answer, EncodedResponse):
        return answer
    kind = codec(api(request.api_key).response_name, request.api_version)
    decoded: Message = kind.decode(memoryview(answer.body))
    return decoded


# -- by group ----------------------------------------------------------------------------------------------------------


def _coordinator(core: Core, group_id: str, topic_name: str = CONSUMER_OFFSETS_TOPIC) -> CoreId:
    topic = core.view.topic(topic_name)
    if topic is None:
        return core.core_id
    return _owner(core, topic, coordinator_partition(group_id, topic.partitions_count))


def _owner(core: Core, topic: TopicImage, index: int) -> CoreId:
    """The core of this node that has a partition; this one, to refuse it, where it is on other nodes or nowhere."""
    if not 0 <= index < topic.partitions_count:
        return core.core_id
    owner = topic.core_on(core.view.node, index)
    return core.core_id if owner == NOT_HERE else owner


def _one_group(core: Core, message: _OfOneGroup) -> dict[CoreId, Message]:
    return {_coordinator(core, message.group_id): message}


def _several_groups(
    field: str, id_of: Callable[[Any], str], core: Core, message: Message
) -> dict[CoreId, Message]:
    by_core: dict[CoreId, list[object]] = defaultdict(list)
    for group in getattr(message, field):
        by_core[_coordinator(core, id_of(group))].append(group)
    return {owner: _with(message, field, groups) for owner, groups in by_core.items()}


def _offset_fetch(core: Core, message: messages.OffsetFetchRequest) -> dict[CoreId, Message]:
    if message.groups:
        return _several_groups("groups", lambda group: group.group_id, core, message)
    return _one_group(core, message)


# -- by transactional id -----------------------------------------------------------------------------------------------


def _of_transaction(core: Core, transactional_id: str | None) -> CoreId:
    if not transactional_id or not core.transactions.is_there:
        return core.core_id
    return _coordinator(core, transactional_id, TRANSACTION_STATE_TOPIC)


def _one_transaction(core: Core, message: _OfOneTransaction) -> dict[CoreId, Message]:
    return {_of_transaction(core, message.transactional_id): message}


def _added_partitions(core: Core, message: messages.AddPartitionsToTxnRequest) -> dict[CoreId, Message]:
    if not message.transactions:
        return {_of_transaction(core, message.v3_and_below_transactional_id): message}
    by_core: dict[CoreId, list[object]] = defaultdict(list)
    for each in message.transactions:
        by_core[_of_transaction(core, each.transactional_id)].append(each)
    return {owner: _with(message, "transactions", some) for owner, some in by_core.items()}


def _described_transactions(core: Core, message: messages.DescribeTransactionsRequest) -> dict[CoreId, Message]:
    by_core: dict[CoreId, list[str]] = defaultdict(list)
    for each in message.transactional_ids:
        by_core[_of_transaction(core, each)].append(each)
    return {owner: _with(message, "transactional_ids", some) for owner, some in by_core.items()}


def _all_transactions(core: Core, message: Message) -> dict[CoreId, Message]:
    return _every_core(core, message) if core.transactions.is_there else {core.core_id: message}


def _transactions_missing() -> Message:
    """Clients ask again."""
    return messages.ListTransactionsResponse(error_code=int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))


# -- by partition ------------------------------------------------------------------------------------------------------


def _partitions(name_of: str, index_of: str, core: Core, message: _OfPartitions) -> dict[CoreId, Message]:
    """What nobody owns is this core's to refuse."""
    by_core: dict[CoreId, list[Message]] = defaultdict(list)
    for topic in message.topics:
        image = core.view.topic(getattr(topic, name_of))
        of_topic: dict[CoreId, list[Message]] = defaultdict(list)
        for asked in topic.partitions:
            index = getattr(asked, index_of)
            of_topic[core.core_id if image is None else _owner(core, image, index)].append(asked)
        for owner, partitions in of_topic.items():
            by_core[owner].append(_with(topic, "partitions", partitions))
    return {owner: _with(message, "topics", topics) for owner, topics in by_core.items()}


def _producers(core: Core, message: messages.DescribeProducersRequest) -> dict[CoreId, Message]:
    by_core: dict[CoreId, list[Message]] = defaultdict(list)
    for topic in message.topics:
        image = core.view.topic(topic.name)
        of_topic: dict[CoreId, list[int]] = defaultdict(list)
        for index in topic.partition_indexes:
            of_topic[core.core_id if image is None else _owner(core, image, index)].append(index)
        for owner, indexes in of_topic.items():
            by_core[owner].append(_with(topic, "partition_indexes", indexes))
    return {owner: _with(message, "topics", topics) for owner, topics in by_core.items()}


def _merge_topics(name_of: str, answers: Sequence[_WithTopics]) -> _WithTopics:
    """Each topic once, with all its partitions."""
    topics: dict[str, Any] = {}  # all of one kind, which a union of kinds does not say
    for answer in answers:
        for topic in answer.topics:
            if getattr(topic, name_of) in topics:
                topics[getattr(topic, name_of)].partitions.extend(topic.partitions)
            else:
                topics[getattr(topic, name_of)] = topic
    return _with(answers[0], "topics", list(topics.values()))


# -- by core -----------------------------------------------------------------------------------------------------------


def _every_core(core: Core, message: Message) -> dict[CoreId, Message]:
    return {CoreId(each): message for each in range(core.view.cores)}


def _merge_lists(field: str, answers: Sequence[M]) -> M:
    """The first error counts for all."""
    first = next((answer for answer in answers if getattr(answer, "error_code", 0)), answers[0])
    return _with(first, field, [item for answer in answers for item in getattr(answer, field)])


def _groups_missing() -> Message:
    """Clients ask again."""
    return messages.ListGroupsResponse(error_code=int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))


def _log_dir_missing() -> Message:
    result = messages.DescribeLogDirsResponse.DescribeLogDirsResult(error_code=int(ErrorCode.KAFKA_STORAGE_ERROR))
    return messages.DescribeLogDirsResponse(results=[result])


def _merge_log_dirs(answers: Sequence[messages.DescribeLogDirsResponse]) -> Message:
    """All cores have the one directory. An error says that it is not all of it."""
    refused = next((answer for answer in answers if answer.error_code), None)
    if refused is not None:
        return refused
    results = [result for answer in answers for result in answer.results]
    whole = next((result for result in results if not result.error_code), results[0])
    error = next((result.error_code for result in results if result.error_code), 0)
    topics = _merge_topics("name", results).topics
    merged = _with(_with(whole, "topics", topics), "error_code", error)
    return _with(answers[0], "results", [merged])


def _with(message: M, field: str, value: object) -> M:
    changed = copy.copy(message)
    setattr(changed, field, value)
    return changed


OF_GROUP: Final = Sharing(Served.BY_GROUP, _one_group, partial(_merge_lists, "topics"))
OF_OFFSETS_OF_GROUPS: Final = Sharing(Served.BY_GROUP, _offset_fetch, partial(_merge_lists, "groups"))
OF_DESCRIBED_GROUPS: Final = Sharing(
    Served.BY_GROUP, partial(_several_groups, "groups", lambda group: group), partial(_merge_lists, "groups")
)
OF_DESCRIBED_CONSUMER_GROUPS: Final = Sharing(
    Served.BY_GROUP, partial(_several_groups, "group_ids", lambda group: group), partial(_merge_lists, "groups")
)
OF_DELETED_GROUPS: Final = Sharing(
    Served.BY_GROUP, partial(_several_groups, "groups_names", lambda group: group), partial(_merge_lists, "results")
)
OF_ALL_GROUPS: Final = Sharing(Served.EVERY_CORE, _every_core, partial(_merge_lists, "groups"), _groups_missing)
OF_TRANSACTION: Final = Sharing(Served.BY_TRANSACTION, _one_transaction, partial(_merge_lists, "topics"))
OF_ADDED_PARTITIONS: Final = Sharing(
    Served.BY_TRANSACTION, _added_partitions, partial(_merge_lists, "results_by_transaction")
)
OF_DESCRIBED_TRANSACTIONS: Final = Sharing(
    Served.BY_TRANSACTION, _described_transactions, partial(_merge_lists, "transaction_states")
)
OF_ALL_TRANSACTIONS: Final = Sharing(
    Served.EVERY_CORE, _all_transactions, partial(_merge_lists, "transaction_states"), _transactions_missing
)
OF_LOG_DIRS: Final = Sharing(Served.EVERY_CORE, _every_core, _merge_log_dirs, _log_dir_missing)
OF_PARTITIONS: Final = Sharing(
    Served.BY_PARTITION, partial(_partitions, "name", "partition_index"), partial(_merge_topics, "name")
)
OF_EPOCHS: Final = Sharing(
    Served.BY_PARTITION, partial(_partitions, "topic", "partition"), partial(_merge_topics, "topic")
)
OF_PRODUCERS: Final = Sharing(Served.BY_PARTITION, _producers, partial(_merge_topics, "name"))
