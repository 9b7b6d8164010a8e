"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: questions and orders about the bounds of partitions."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from tpc_broker.auth.operations import Operation
from tpc_broker.broker.confirmed import Confirmed, confirm
from tpc_broker.broker.partition import Partition
from tpc_broker.broker.unpacking import NotUnpackedError
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import OffsetOutOfRangeError, PartitionOfflineError, RecordsDamagedError
from tpc_broker.kafka import messages
from tpc_broker.metadata.cleaner_settings import decompressed_bytes_max
from tpc_broker.model import NO_LEADER_EPOCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request

log = logging.getLogger(__name__)

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6
FIRST_VERSION_OF = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
TELL_NO_END = frozenset({EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP})
"""All else that ListOffsets is asked is answered by where the log ends, or by what is not in it."""
LEADER_EPOCH_VERSION = 4
UNKNOWN = -1
READ_COMMITTED = 1
DELETE_TO_HIGH_WATERMARK = -1


async def handle_list_offsets(
    core: Core, request: Request, message: messages.ListOffsetsRequest
) -> messages.ListOffsetsResponse:
    duplicates = _duplicates(message.topics)
    is_allowed = partial(core.access.allows_topic, request, Operation.DESCRIBE)
    asked_of = [
        (topic.name, asked.partition_index)
        for topic in message.topics
        for asked in topic.partitions
        if asked.timestamp not in TELL_NO_END
    ]
    confirmed = await _confirm(core, is_allowed, asked_of)
    response = messages.ListOffsetsResponse()
    for topic in message.topics:
        answer = messages.ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(answer)
        for asked in {asked.partition_index: asked for asked in topic.partitions}.values():
            partition = messages.ListOffsetsResponse.ListOffsetsPartitionResponse(
                partition_index=asked.partition_index, timestamp=UNKNOWN, offset=UNKNOWN
            )
            answer.partitions.append(partition)
            if not is_allowed(topic.name):
                partition.error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                continue
            if (topic.name, asked.partition_index) in duplicates:
                partition.error_code = int(ErrorCode.INVALID_REQUEST)
                continue
            await _list_one(core, request.api_version, message.isolation_level, topic.name, asked, partition, confirmed)
    return response


async def _confirm(core: Core, is_allowed: Callable[[str], bool], asked: Iterable[tuple[str, int]]) -> Confirmed:
    """Ask the quorums of those that are led here, of topics that the client is allowed."""
    found = (core.partitions.find_written(name, index) for name, index in asked if is_allowed(name))
    return await confirm(core, [partition for partition in found if partition is not None])


def _duplicates(topics: list[messages.ListOffsetsRequest.ListOffsetsTopic]) -> set[tuple[str, int]]:
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in topics:
        for asked in topic.partitions:
            key = (topic.name, asked.partition_index)
            (twice if key in seen else seen).add(key)
    return twice


async def _list_one(  # noqa: PLR0913  (one question with all that it depends on)
    core: Core,
    version: int,
    isolation_level: int,
    name: str,
    asked: messages.ListOffsetsRequest.ListOffsetsPartition,
    answer: messages.ListOffsetsResponse.ListOffsetsPartitionResponse,
    confirmed: Confirmed,
) -> None:
    found = core.partitions.find(name, asked.partition_index)
    if not isinstance(found, Partition):
        answer.error_code = int(found)
        return
    answer.error_code = int(found.check_leader_epoch(asked.current_leader_epoch))
    if answer.error_code:
        return
    if asked.timestamp < 0 and (
        asked.timestamp < EARLIEST_PENDING_UPLOAD_TIMESTAMP or version < FIRST_VERSION_OF.get(asked.timestamp, 0)
    ):
        answer.error_code = int(ErrorCode.UNSUPPORTED_VERSION)
        return
    if asked.timestamp not in TELL_NO_END and not confirmed.has(found):
        answer.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return
    bounds = found.bounds()
    upto = bounds.last_stable_offset if isolation_level == READ_COMMITTED else bounds.high_watermark
    try:
        await _fill(found, asked.timestamp, upto, answer, decompressed_bytes_max(core.settings))
    except NotUnpackedError as error:
        answer.error_code = int(ErrorCode.INVALID_RECORD)
        text = f"{found.label} cannot be searched for a time stamp: {error}"
        core.log_limiter.say(log, "batches that cannot be unpacked", found.label, text)
    except RecordsDamagedError as error:
        answer.error_code = int(ErrorCode.CORRUPT_MESSAGE)
        core.note_damaged(found, error)
    except PartitionOfflineError:
        answer.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
    if version < LEADER_EPOCH_VERSION:
        answer.leader_epoch = NO_LEADER_EPOCH


async def _fill(
    partition: Partition,
    timestamp: int,
    upto: int,
    answer: messages.ListOffsetsResponse.ListOffsetsPartitionResponse,
    bytes_max: int,
) -> None:
    """`bytes_max`: of a batch that has to be unpacked."""
    bounds = partition.bounds()
    if timestamp == LATEST_TIMESTAMP:
        answer.offset = upto
        answer.leader_epoch = partition.leader_epoch
    elif timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        answer.offset = bounds.log_start_offset
        answer.leader_epoch = partition.epoch_of(bounds.log_start_offset)
    elif timestamp in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
        answer.leader_epoch = NO_LEADER_EPOCH
    else:
        found = await (
            partition.find_max_timestamp(upto, bytes_max)
            if timestamp == MAX_TIMESTAMP
            else partition.find_timestamp(timestamp, upto, bytes_max)
        )
        if found is not None:
            answer.timestamp, answer.offset, answer.leader_epoch = found


async def handle_offset_for_leader_epoch(
    core: Core, request: Request, message: messages.OffsetForLeaderEpochRequest
) -> messages.OffsetForLeaderEpochResponse:
    access = core.access

    def is_allowed(name: str) -> bool:
        is_broker = access.allows_on_cluster(request, Operation.CLUSTER_ACTION, is_told=False)
        return is_broker or access.allows_topic(request, Operation.DESCRIBE, name)

    asked_of = [(topic.topic, asked.partition) for topic in message.topics for asked in topic.partitions]
    confirmed = await _confirm(core, is_allowed, asked_of)
    response = messages.OffsetForLeaderEpochResponse()
    for topic in message.topics:
        answer = messages.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(answer)
        for asked in topic.partitions:
            result = messages.OffsetForLeaderEpochResponse.EpochEndOffset(
                partition=asked.partition, leader_epoch=NO_LEADER_EPOCH, end_offset=UNKNOWN
            )
            answer.partitions.append(result)
            if not is_allowed(topic.topic):
                result.error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                continue
            found = core.partitions.find(topic.topic, asked.partition)
            if not isinstance(found, Partition):
                result.error_code = int(found)
                continue
            result.error_code = int(found.check_leader_epoch(asked.current_leader_epoch))
            if not result.error_code and not confirmed.has(found):
                result.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if not result.error_code:
                result.leader_epoch, result.end_offset = found.end_of_epoch(asked.leader_epoch)
    return response


async def handle_delete_records(
    core: Core, request: Request, message: messages.DeleteRecordsRequest
) -> messages.DeleteRecordsResponse:
    asked_of = [(topic.name, asked.partition_index) for topic in message.topics for asked in topic.partitions]
    is_allowed = partial(core.access.allows_topic, request, Operation.DELETE)
    confirmed = await _confirm(core, is_allowed, asked_of)
    response = messages.DeleteRecordsResponse()
    for topic in message.topics:
        answer = messages.DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(answer)
        for asked in topic.partitions:
            result = messages.DeleteRecordsResponse.DeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=UNKNOWN
            )
            answer.partitions.append(result)
            if not is_allowed(topic.name):
                result.error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                continue
            found = core.partitions.find(topic.name, asked.partition_index)
            if not isinstance(found, Partition):
                result.error_code = int(found)
                continue
            if found.is_internal or not found.deletes_records:
                refusal = ErrorCode.INVALID_TOPIC_EXCEPTION if found.is_internal else ErrorCode.POLICY_VIOLATION
                result.error_code = int(refusal)
                continue
            if not confirmed.has(found):
                result.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                continue
            try:
                upto = found.bounds().high_watermark if asked.offset == DELETE_TO_HIGH_WATERMARK else asked.offset
                result.low_watermark = await found.move_log_start(upto)
            except OffsetOutOfRangeError:
                result.error_code = int(ErrorCode.OFFSET_OUT_OF_RANGE)
            except PartitionOfflineError:
                result.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
    return response
