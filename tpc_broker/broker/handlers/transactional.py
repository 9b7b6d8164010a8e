"""What a producer with a transactional id asks of its coordinator from InitProducerId on: AddPartitionsToTxn,
AddOffsetsToTxn, EndTxn. And WriteTxnMarkers, which a coordinator of Kafka would ask of the partitions' leaders: here it
is for tools, and writes just what our coordinators have written.

Versions are folded in here (`tpc_broker.coordinator.transactions.messages`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from tpc_broker import limits
from tpc_broker.auth.operations import Operation
from tpc_broker.broker.producers_port import EndMarker
from tpc_broker.coordinator.transactions.messages import (
    AddPartitionsRequest,
    AddPartitionsResponse,
    EndRequest,
    ProducerResponse,
)
from tpc_broker.coordinator.transactions.transaction import TopicPartition
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.kafka.errors import DecodeError
from tpc_broker.model import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS, coordinator_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request

    AskedTopics = Sequence[messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]

FENCED_VERSION: Final = 2
"""From here on PRODUCER_FENCED is known."""
OF_BROKERS_VERSION: Final = 4
"""AddPartitionsToTxn of brokers: several transactions, internal topics too."""
RAISES_EPOCH_VERSION: Final = 5
"""EndTxn of clients that know that each end raises their epoch (KIP-890)."""
WHILE_ENDING_S: Final = 0.1
"""A client that adds partitions waits at most; its later requests wait behind it."""
ADDED_AT_ONCE: Final = 100
"""Transactions of one AddPartitionsToTxn that wait for their coordinators together."""


async def handle_add_partitions_to_txn(
    core: Core, request: Request, message: messages.AddPartitionsToTxnRequest
) -> messages.AddPartitionsToTxnResponse:
    kind, asked = messages.AddPartitionsToTxnResponse, messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    if request.api_version < OF_BROKERS_VERSION:
        one = asked(
            transactional_id=message.v3_and_below_transactional_id,
            producer_id=message.v3_and_below_producer_id,
            producer_epoch=message.v3_and_below_producer_epoch,
            topics=message.v3_and_below_topics,
        )
        return kind(results_by_topic_v3_and_below=await _add_partitions(core, request, one))
    if not core.access.allows_on_cluster(request, Operation.CLUSTER_ACTION):
        return kind(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    if _are_too_many(topic.partitions for each in message.transactions for topic in each.topics):
        return kind(error_code=int(ErrorCode.POLICY_VIOLATION))
    results: dict[int, messages.AddPartitionsToTxnResponse.AddPartitionsToTxnResult] = {}

    async def add(number: int, one: messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction) -> None:
        topics = await _add_partitions(core, request, one)
        results[number] = kind.AddPartitionsToTxnResult(transactional_id=one.transactional_id, topic_results=topics)

    for begin in range(0, len(message.transactions), ADDED_AT_ONCE):
        async with trio.open_nursery() as nursery:
            for number, each in enumerate(message.transactions[begin : begin + ADDED_AT_ONCE], begin):
                nursery.start_soon(add, number, each)
    return kind(results_by_transaction=[result for _number, result in sorted(results.items())])


async def _add_partitions(
    core: Core, request: Request, one: messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
) -> list[messages.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]:
    """All or nothing. Of too many only the first one is answered for: that the request was in vain is what counts."""
    if _are_too_many(topic.partitions for topic in one.topics):
        first = next((topic for topic in one.topics if topic.partitions), one.topics[0])
        row = type(first)(name=first.name, partitions=first.partitions[:1])
        return _results([row], dict.fromkeys(_partitions_of([row]), ErrorCode.POLICY_VIOLATION))
    is_of_broker = request.api_version >= OF_BROKERS_VERSION
    if not is_of_broker and not core.access.allows_transaction(request, Operation.WRITE, one.transactional_id):
        refusal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return _results(one.topics, dict.fromkeys(_partitions_of(one.topics), refusal))
    refused = set() if is_of_broker else _not_writable(core, request, one.topics)
    faults = {
        TopicPartition(topic.name, index): ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if topic.name in refused
        else _fault_of(core, topic.name, index)
        for topic in one.topics
        for index in topic.partitions
    }
    if any(faults.values()):
        return _results(one.topics, {each: code or ErrorCode.OPERATION_NOT_ATTEMPTED for each, code in faults.items()})
    asked = AddPartitionsRequest(
        transactional_id=one.transactional_id,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        partitions=tuple(faults),
        client_version=2 if is_of_broker else 0,
        verify_only=one.verify_only,
        knows_fenced=request.api_version >= FENCED_VERSION,
    )
    found = await _added(core, asked)
    return _results(one.topics, {each: found.error_of(each) for each in faults})


# Rule: What a request names is counted before anything is made of it. Held by tests/broker/test_transaction_floods.py.
def _are_too_many(indexes_by_topic: Iterable[Sequence[int]]) -> bool:
    """A topic counts, whatever there is of it."""
    count = 0
    for indexes in indexes_by_topic:
        count += max(1, len(indexes))
        if count > limits.TRANSACTION_PARTITIONS_MAX:
            return True
    return False


def _partitions_of(topics: AskedTopics) -> Iterator[TopicPartition]:
    for topic in topics:
        for index in topic.partitions:
            yield TopicPartition(topic.name, index)


def _not_writable(core: Core, request: Request, topics: AskedTopics) -> set[str]:
    """By a client: internal topics are nobody's."""
    names = {topic.name for topic in topics}
    allows = core.access.allows_topic
    return {name for name in names if name in INTERNAL_TOPICS or not allows(request, Operation.WRITE, name)}


def _fault_of(core: Core, topic: str, index: int) -> ErrorCode:
    image = core.view.topic(topic)
    is_there = image is not None and 0 <= index < image.partitions_count
    return ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _results(
    topics: AskedTopics, codes: Mapping[TopicPartition, ErrorCode]
) -> list[messages.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]:
    kind = messages.AddPartitionsToTxnResponse
    return [
        kind.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                kind.AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=int(codes[TopicPartition(topic.name, index)])
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


async def _added(core: Core, asked: AddPartitionsRequest) -> AddPartitionsResponse:
    """A client begins its next transaction before the markers of the last one are written. Told so at once it would
    wait for longer than that takes: librdkafka for 100 ms.
    """
    if not asked.transactional_id:
        return AddPartitionsResponse(ErrorCode.INVALID_REQUEST)
    found = await _added_now(core, asked)
    if found.error_code is ErrorCode.CONCURRENT_TRANSACTIONS:
        coordinator = core.transactions.coordinator_of(asked.transactional_id)
        if not isinstance(coordinator, ErrorCode):
            with trio.move_on_after(WHILE_ENDING_S):
                await coordinator.until_settled(asked.transactional_id)
            found = await _added_now(core, asked)
    return found


async def _added_now(core: Core, asked: AddPartitionsRequest) -> AddPartitionsResponse:
    found = await core.transactions.answer(
        asked.transactional_id,
        AddPartitionsResponse,
        lambda machine, token, now_ms: machine.add_partitions(asked, token, now_ms),
    )
    return AddPartitionsResponse(found) if isinstance(found, ErrorCode) else found


async def handle_add_offsets_to_txn(
    core: Core, request: Request, message: messages.AddOffsetsToTxnRequest
) -> messages.AddOffsetsToTxnResponse:
    access = core.access
    if not access.allows_transaction(request, Operation.WRITE, message.transactional_id):
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return messages.AddOffsetsToTxnResponse(error_code=int(error))
    if not access.allows_group(request, Operation.READ, message.group_id):
        return messages.AddOffsetsToTxnResponse(error_code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    topic = core.view.topic(CONSUMER_OFFSETS_TOPIC)
    count = core.settings.offsets_topic_num_partitions if topic is None else topic.partitions_count
    asked = AddPartitionsRequest(
        transactional_id=message.transactional_id,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        partitions=(TopicPartition(CONSUMER_OFFSETS_TOPIC, coordinator_partition(message.group_id, count)),),
        knows_fenced=request.api_version >= FENCED_VERSION,
    )
    return messages.AddOffsetsToTxnResponse(error_code=int((await _added(core, asked)).error_code))


async def handle_end_txn(core: Core, request: Request, message: messages.EndTxnRequest) -> messages.EndTxnResponse:
    asked = EndRequest(
        transactional_id=message.transactional_id,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        commit=message.committed,
        client_version=2 if request.api_version >= RAISES_EPOCH_VERSION else 0,
        knows_fenced=request.api_version >= FENCED_VERSION,
    )
    if not core.access.allows_transaction(request, Operation.WRITE, asked.transactional_id):
        return messages.EndTxnResponse(error_code=int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    if not asked.transactional_id:
        return messages.EndTxnResponse(error_code=int(ErrorCode.INVALID_REQUEST))
    found = await core.transactions.answer(
        asked.transactional_id, ProducerResponse, lambda machine, token, now_ms: machine.end(asked, token, now_ms)
    )
    if isinstance(found, ErrorCode):
        found = ProducerResponse(found)
    return messages.EndTxnResponse(
        error_code=int(found.error_code), producer_id=found.producer_id, producer_epoch=found.producer_epoch
    )


async def handle_write_txn_markers(
    core: Core, request: Request, message: messages.WriteTxnMarkersRequest
) -> messages.WriteTxnMarkersResponse:
    if _are_too_many(topic.partition_indexes for one in message.markers for topic in one.topics):
        fault = f"it names more partitions than the {limits.TRANSACTION_PARTITIONS_MAX:,} that one may"
        raise DecodeError(fault, "WriteTxnMarkersRequest", request.api_version)
    asked = [
        (topic.name, index, _marker(one))
        for one in message.markers
        for topic in one.topics
        for index in topic.partition_indexes
    ]
    sound = [each for each in asked if each[2].producer_id >= 0 <= each[2].producer_epoch]
    errors = iter(await core.transactions.markers.write_on_node(sound))
    kind = messages.WriteTxnMarkersResponse

    def error_of(one: messages.WriteTxnMarkersRequest.WritableTxnMarker) -> int:
        return int(next(errors) if one.producer_id >= 0 <= one.producer_epoch else ErrorCode.INVALID_REQUEST)

    return kind(
        markers=[
            kind.WritableTxnMarkerResult(
                producer_id=one.producer_id,
                topics=[
                    kind.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            kind.WritableTxnMarkerPartitionResult(partition_index=index, error_code=error_of(one))
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in one.topics
                ],
            )
            for one in message.markers
        ]
    )


def _marker(one: messages.WriteTxnMarkersRequest.WritableTxnMarker) -> EndMarker:
    return EndMarker(
        one.producer_id, one.producer_epoch, one.coordinator_epoch, one.transaction_result, one.transaction_version
    )
