"""OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete: committed offsets of groups."""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tpc_broker.auth.operations import Operation
from tpc_broker.broker.coordinator_driver import NotLoadedError
from tpc_broker.broker.group_service import LoadedCoordinator
from tpc_broker.broker.handled import ForwardedRequest
from tpc_broker.coordinator import Producer
from tpc_broker.coordinator.messages import (
    FetchedOffset,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetToCommit,
    TxnOffsetCommitRequest,
    WrittenResponse,
)
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.model import TopicId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request
    from tpc_broker.coordinator.pending_offsets import PendingOffsets

    _CommittedTopic = (
        messages.OffsetCommitRequest.OffsetCommitRequestTopic
        | messages.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    )
    _Topic = _CommittedTopic | messages.OffsetFetchRequest.OffsetFetchRequestTopics
    _Results = dict[tuple[str | TopicId, int], ErrorCode]

T = TypeVar("T")

TOPIC_IDS_VERSION = 10
TXN_TOPIC_IDS_VERSION = 6
ABORTABLE_VERSION = 4
"""From here on clients of TxnOffsetCommit know TRANSACTION_ABORTABLE."""
BATCHED_FETCH_VERSION = 8
TOP_LEVEL_ERROR_VERSION = 2
GROUP_NOT_FOUND_VERSION = 9
NOTHING_COMMITTED = -1
NO_EPOCH = -1
_OF_VERIFICATION: Final = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}
"""Clients know what to do with the latter (as in Kafka)."""
_OF_MEMBERS: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION)


async def handle_offset_commit(
    core: Core, request: Request, message: messages.OffsetCommitRequest
) -> messages.OffsetCommitResponse:
    by_id = request.api_version >= TOPIC_IDS_VERSION
    refusal = _refusal(core, request, message.group_id)
    offsets, results = _offsets_asked(core, request, message.topics, refusal, by_id=by_id)
    if offsets:
        await _commit(core, request, message, offsets, results)
    response = messages.OffsetCommitResponse
    topics = _answered(
        core, message.topics, results, response.OffsetCommitResponseTopic, response.OffsetCommitResponsePartition,
        by_id=by_id,
    )  # fmt: skip
    return response(topics=topics)


def _refusal(core: Core, request: Request, group_id: str, transactional_id: str | None = None) -> ErrorCode:
    """Of all offsets: the client may not commit for the group, or not in that transaction."""
    access = core.access
    if transactional_id is not None and not access.allows_transaction(request, Operation.WRITE, transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    is_allowed = access.allows_group(request, Operation.READ, group_id)
    return ErrorCode.NONE if is_allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED


def _offsets_asked(
    core: Core, request: Request, topics: Sequence[_CommittedTopic], refusal: ErrorCode, *, by_id: bool
) -> tuple[list[OffsetToCommit], _Results]:
    """Those of partitions that are there and may be read, and the errors of the others; `refusal`: of all."""
    results: _Results = {}
    offsets = []
    for topic in topics:
        key, name = _names(core, topic, by_id=by_id)
        image = core.view.topic(key)
        is_refused = (image is not None or not by_id) and not core.access.allows_topic(request, Operation.READ, name)
        for partition in topic.partitions:
            if refusal:
                results[key, partition.partition_index] = refusal
            elif is_refused:
                results[key, partition.partition_index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif image is None:
                results[key, partition.partition_index] = _unknown(by_id=by_id)
            elif not 0 <= partition.partition_index < image.partitions_count:
                results[key, partition.partition_index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                offsets.append(
                    OffsetToCommit(
                        topic=name,
                        partition=partition.partition_index,
                        offset=partition.committed_offset,
                        leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.committed_metadata,
                        topic_id=image.topic_id,
                    )
                )
    return offsets, results


def _unknown(*, by_id: bool) -> ErrorCode:
    return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _answered(  # noqa: PLR0913 - of two APIs, whose answers have the same fields
    core: Core,
    topics: Sequence[_CommittedTopic],
    results: _Results,
    topic_kind: Callable[..., T],
    partition_kind: Callable[..., Any],
    *,
    by_id: bool,
) -> list[T]:
    answers = []
    for topic in topics:
        key, _name = _names(core, topic, by_id=by_id)
        named = {"topic_id": bytes(topic.topic_id)} if by_id else {"name": topic.name}
        partitions = [
            partition_kind(
                partition_index=partition.partition_index,
                error_code=int(results[key, partition.partition_index]),
            )
            for partition in topic.partitions
        ]
        answers.append(topic_kind(partitions=partitions, **named))
    return answers


def _names(
    core: Core, topic: _Topic, *, by_id: bool
) -> tuple[str | TopicId, str]:
    """The key the request uses for a topic, and the topic's name ("" when it is not known)."""
    if not by_id:
        return topic.name, topic.name
    topic_id = TopicId(uuid.UUID(bytes=bytes(topic.topic_id)))
    image = core.view.topic(topic_id)
    return topic_id, image.name if image is not None else ""


def _while_open(core: Core, request: Request) -> AbstractContextManager[object]:
    """For a wait: it ends when the client goes, who may commit something else elsewhere. Of one that another core has
    carried here that is not known.
    """
    is_carried = isinstance(request, ForwardedRequest)
    return nullcontext() if is_carried else core.dispatcher.while_open(request.connection)


async def _commit(
    core: Core,
    request: Request,
    message: messages.OffsetCommitRequest,
    offsets: list[OffsetToCommit],
    results: _Results,
) -> None:
    by_id = request.api_version >= TOPIC_IDS_VERSION
    with _while_open(core, request):
        await core.groups.wait_coordinator(message.group_id)
    found = core.groups.coordinator_of(message.group_id)
    if not isinstance(found, LoadedCoordinator):
        for offset in offsets:
            results[offset.topic_id if by_id else offset.topic, offset.partition] = found
        return
    refusal = _refusal(core, request, message.group_id)
    offsets = _still_good(core, request, offsets, refusal, results, by_id=by_id)
    if not offsets:
        return
    commit = OffsetCommitRequest(
        group_id=message.group_id,
        offsets=tuple(offsets),
        generation_id=message.generation_id_or_member_epoch,
        member_id=message.member_id,
        group_instance_id=message.group_instance_id,
        retention_time_ms=message.retention_time_ms,
        knows_member_epochs=request.api_version >= GROUP_NOT_FOUND_VERSION,
    )
    answer = await found.call(
        OffsetCommitResponse, lambda token, now_ms: found.machine.offset_commit(commit, token, now_ms)
    )
    for result in answer.partitions:
        results[result.topic_id if by_id else result.topic, result.partition] = result.error_code


def _still_good(  # noqa: PLR0913 - what may have changed
    core: Core,
    request: Request,
    offsets: list[OffsetToCommit],
    refusal: ErrorCode,
    results: _Results,
    *,
    by_id: bool,
) -> list[OffsetToCommit]:
    """While it waited, a topic may have been deleted, and made again under its name; and a right may be gone."""
    good = []
    for offset in offsets:
        error = refusal
        if not error and core.view.topic(offset.topic_id) is None:
            error = _unknown(by_id=by_id)
        elif not error and not core.access.allows_topic(request, Operation.READ, offset.topic):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if error:
            results[offset.topic_id if by_id else offset.topic, offset.partition] = error
        else:
            good.append(offset)
    return good


async def handle_txn_offset_commit(
    core: Core, request: Request, message: messages.TxnOffsetCommitRequest
) -> messages.TxnOffsetCommitResponse:
    by_id = request.api_version >= TXN_TOPIC_IDS_VERSION
    refusal = _refusal(core, request, message.group_id, message.transactional_id)
    offsets, results = _offsets_asked(core, request, message.topics, refusal, by_id=by_id)
    if offsets:
        error = await _commit_in_transaction(core, request, message, offsets, results)
        for offset in offsets:
            results.setdefault((offset.topic_id if by_id else offset.topic, offset.partition), error)
    response = messages.TxnOffsetCommitResponse
    topics = _answered(
        core, message.topics, results, response.TxnOffsetCommitResponseTopic,
        response.TxnOffsetCommitResponsePartition, by_id=by_id,
    )  # fmt: skip
    return response(topics=topics)


async def _commit_in_transaction(
    core: Core,
    request: Request,
    message: messages.TxnOffsetCommitRequest,
    offsets: list[OffsetToCommit],
    results: _Results,
) -> ErrorCode:
    """What is told of all offsets that have no result yet."""
    if not message.group_id:
        return ErrorCode.INVALID_GROUP_ID
    with _while_open(core, request):
        await core.groups.wait_coordinator(message.group_id)
    found = core.groups.coordinator_of(message.group_id)
    if not isinstance(found, LoadedCoordinator):
        return found
    producer = Producer(message.producer_id, message.producer_epoch)
    error = await _until_open(core, request, message, producer, found.machine.pending)
    if error is not ErrorCode.NONE:
        return _told_of_verification(error, request.api_version)
    by_id = request.api_version >= TXN_TOPIC_IDS_VERSION
    refusal = _refusal(core, request, message.group_id, message.transactional_id)
    offsets = _still_good(core, request, offsets, refusal, results, by_id=by_id)
    if not offsets:
        return ErrorCode.NONE
    commit = TxnOffsetCommitRequest(
        group_id=message.group_id,
        offsets=tuple(offsets),
        producer=producer,
        generation_id=message.generation_id_or_member_epoch,
        member_id=message.member_id,
        group_instance_id=message.group_instance_id,
        knows_member_epochs=by_id,
    )
    try:
        answer = await found.call(OffsetCommitResponse, partial(found.machine.txn_offset_commit, commit))
    except NotLoadedError as not_loaded:
        return not_loaded.error_code
    for result in answer.partitions:
        results[result.topic_id if by_id else result.topic, result.partition] = result.error_code
    return ErrorCode.NONE


def _told_of_verification(error: ErrorCode, version: int) -> ErrorCode:
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    return _OF_VERIFICATION.get(error, error)


# Rule: Offsets of a transaction are written only when it is certain that it is open, and has been without a break since
# that was found out: behind its marker they would open another one, which nobody ends. So nothing is awaited between
# this and handing them in. Held by tests/broker/test_txn_offset_commit.py.
async def _until_open(
    core: Core,
    request: Request,
    message: messages.TxnOffsetCommitRequest,
    producer: Producer,
    pending: PendingOffsets,
) -> ErrorCode:
    """NONE: the producer's transaction is open, with the partition of the group. Else why that is not so."""
    while not pending.is_open(producer):
        verification = pending.begin_verification(producer.producer_id)
        try:
            error = await core.groups.verify_offsets(
                message.transactional_id, producer, message.group_id, request.api_version
            )
        finally:
            pending.end_verification(verification)
        if error is not ErrorCode.NONE:
            return error
        if not verification.is_over:
            break
    return ErrorCode.NONE


def handle_offset_fetch(
    core: Core, request: Request, message: messages.OffsetFetchRequest
) -> messages.OffsetFetchResponse | Awaitable[messages.OffsetFetchResponse]:
    """The answer; where others may lead the groups by now, the wait for a quorum that says no. A member that is refused
    for its epoch waits for that to be durable.
    """
    if core.replicated is not None:
        return _confirm_and_tell(core, request, message)
    response = _offsets_told(core, request, message)
    return _when_written(core, response) if any(map(_shows_decided, response.groups)) else response


async def _confirm_and_tell(
    core: Core, request: Request, message: messages.OffsetFetchRequest
) -> messages.OffsetFetchResponse:
    batched = request.api_version >= BATCHED_FETCH_VERSION
    for group_id in [group.group_id for group in message.groups] if batched else [message.group_id]:
        await core.groups.until_confirmed(group_id)
    return await _when_written(core, _offsets_told(core, request, message))


def _shows_decided(group: messages.OffsetFetchResponse.OffsetFetchResponseGroup) -> bool:
    return group.error_code in _OF_MEMBERS


async def _when_written(core: Core, response: messages.OffsetFetchResponse) -> messages.OffsetFetchResponse:
    """Of each group by the coordinator that has told of it just now: the next one has nothing that was not written."""
    shown = list(filter(_shows_decided, response.groups))
    told_by = [core.groups.coordinator_of(group.group_id) for group in shown]
    for group, found in zip(shown, told_by, strict=True):
        if not isinstance(found, LoadedCoordinator):
            group.error_code = int(found)
            continue
        try:
            answer = await found.call(WrittenResponse, partial(found.machine.when_written, group.group_id))
            group.error_code = int(answer.error_code or group.error_code)
        except NotLoadedError as error:
            group.error_code = int(error.error_code)
    return response


def _offsets_told(core: Core, request: Request, message: messages.OffsetFetchRequest) -> messages.OffsetFetchResponse:
    if request.api_version >= BATCHED_FETCH_VERSION:
        return messages.OffsetFetchResponse(
            groups=[
                _fetched_group(core, request, group, require_stable=message.require_stable)
                for group in message.groups
            ]
        )
    response = messages.OffsetFetchResponse()
    wanted = (
        None
        if message.topics is None
        else [(topic.name, index) for topic in message.topics for index in topic.partition_indexes]
    )
    error, offsets = _fetch(core, request, message.group_id, wanted, require_stable=message.require_stable)
    if error and request.api_version >= TOP_LEVEL_ERROR_VERSION:
        response.error_code = int(error)
        return response
    topics: dict[str, messages.OffsetFetchResponse.OffsetFetchResponseTopic] = {}
    for offset in offsets:
        topic = topics.get(offset.topic)
        if topic is None:
            topic = topics[offset.topic] = messages.OffsetFetchResponse.OffsetFetchResponseTopic(name=offset.topic)
            response.topics.append(topic)
        topic.partitions.append(
            messages.OffsetFetchResponse.OffsetFetchResponsePartition(
                partition_index=offset.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                error_code=int(offset.error_code),
            )
        )
    if error:
        for name, index in wanted or ():
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = messages.OffsetFetchResponse.OffsetFetchResponseTopic(name=name)
                response.topics.append(topic)
            topic.partitions.append(
                messages.OffsetFetchResponse.OffsetFetchResponsePartition(
                    partition_index=index, committed_offset=NOTHING_COMMITTED, metadata="", error_code=int(error)
                )
            )
    return response


def _fetch(  # noqa: PLR0913 - what OffsetFetch asks of a group
    core: Core,
    request: Request,
    group_id: str,
    wanted: list[tuple[str, int]] | None,
    member_id: str | None = None,
    member_epoch: int = NO_EPOCH,
    *,
    require_stable: bool,
) -> tuple[ErrorCode, Sequence[FetchedOffset]]:
    """Of all topics those that the client may see; of others that it asks for, that it may not."""
    access = core.access
    if not access.allows_group(request, Operation.DESCRIBE, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED, ()
    found = core.groups.coordinator_of(group_id)
    if not isinstance(found, LoadedCoordinator):
        return found, ()
    may_see = cache(partial(access.allows_topic, request, Operation.DESCRIBE, is_told=wanted is not None))
    shown = None if wanted is None else [each for each in wanted if may_see(each[0])]
    answer = found.machine.offset_fetch(group_id, shown, member_id, member_epoch, require_stable=require_stable)
    if answer.error_code:
        return answer.error_code, ()
    hidden = [
        FetchedOffset(name, index, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for name, index in wanted or ()
        if not may_see(name)
    ]
    return answer.error_code, [*(offset for offset in answer.offsets if may_see(offset.topic)), *hidden]


def _fetched_group(
    core: Core,
    request: Request,
    asked: messages.OffsetFetchRequest.OffsetFetchRequestGroup,
    *,
    require_stable: bool,
) -> messages.OffsetFetchResponse.OffsetFetchResponseGroup:
    by_id = request.api_version >= TOPIC_IDS_VERSION
    answer = messages.OffsetFetchResponse.OffsetFetchResponseGroup(group_id=asked.group_id)
    wanted: list[tuple[str, int]] | None = None
    unknown: list[messages.OffsetFetchRequest.OffsetFetchRequestTopics] = []
    if asked.topics is not None:
        wanted = []
        for topic in asked.topics:
            _key, name = _names(core, topic, by_id=by_id)
            if by_id and not name:
                unknown.append(topic)
                continue
            wanted += [(name, index) for index in topic.partition_indexes]
    error, offsets = _fetch(
        core, request, asked.group_id, wanted, asked.member_id, asked.member_epoch, require_stable=require_stable
    )
    if error:
        answer.error_code = int(error)
        return answer
    told: dict[str, messages.OffsetFetchResponse.OffsetFetchResponseTopics] = {}
    for offset in offsets:
        if offset.topic not in told:
            fetched = _fetched_topic(core, offset.topic, by_id=by_id)
            if fetched is None:
                continue
            told[offset.topic] = fetched
            answer.topics.append(fetched)
        told[offset.topic].partitions.append(_fetched_partition(offset))
    answer.topics += [_unknown_topic(topic) for topic in unknown]
    return answer


def _fetched_topic(
    core: Core, name: str, *, by_id: bool
) -> messages.OffsetFetchResponse.OffsetFetchResponseTopics | None:
    kind = messages.OffsetFetchResponse.OffsetFetchResponseTopics
    if not by_id:
        return kind(name=name)
    image = core.view.topic(name)
    return None if image is None else kind(topic_id=image.topic_id.bytes)


def _fetched_partition(offset: FetchedOffset) -> messages.OffsetFetchResponse.OffsetFetchResponsePartitions:
    return messages.OffsetFetchResponse.OffsetFetchResponsePartitions(
        partition_index=offset.partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error_code=int(offset.error_code),
    )


def _unknown_topic(
    asked: messages.OffsetFetchRequest.OffsetFetchRequestTopics,
) -> messages.OffsetFetchResponse.OffsetFetchResponseTopics:
    return messages.OffsetFetchResponse.OffsetFetchResponseTopics(
        topic_id=bytes(asked.topic_id),
        partitions=[
            messages.OffsetFetchResponse.OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=NOTHING_COMMITTED,
                metadata="",
                error_code=int(ErrorCode.UNKNOWN_TOPIC_ID),
            )
            for index in asked.partition_indexes
        ],
    )


async def handle_offset_delete(
    core: Core, request: Request, message: messages.OffsetDeleteRequest
) -> messages.OffsetDeleteResponse:
    if not core.access.allows_group(request, Operation.DELETE, message.group_id):
        return messages.OffsetDeleteResponse(error_code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    found = core.groups.coordinator_of(message.group_id) if message.group_id else ErrorCode.INVALID_GROUP_ID
    if not isinstance(found, LoadedCoordinator):
        return messages.OffsetDeleteResponse(error_code=int(found))
    results: dict[tuple[str, int], ErrorCode] = {}
    wanted = []
    for topic in message.topics:
        image = core.view.topic(topic.name)
        is_allowed = core.access.allows_topic(request, Operation.READ, topic.name)
        for partition in topic.partitions:
            key = (topic.name, partition.partition_index)
            if not is_allowed:
                results[key] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif image is None or not 0 <= partition.partition_index < image.partitions_count:
                results[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                wanted.append(key)
    answer = await found.call(
        OffsetDeleteResponse, lambda token, now_ms: found.machine.offset_delete(message.group_id, wanted, token, now_ms)
    )
    if answer.error_code:
        return messages.OffsetDeleteResponse(error_code=int(answer.error_code))
    results |= {(result.topic, result.partition): result.error_code for result in answer.partitions}
    return messages.OffsetDeleteResponse(
        topics=[
            messages.OffsetDeleteResponse.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    messages.OffsetDeleteResponse.OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=int(results.get((topic.name, partition.partition_index), ErrorCode.NONE)),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
