"""DescribeLogDirs: the data directory and the size of this core's partitions in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request

UNKNOWN_BYTES = -1


async def handle_describe_log_dirs(
    core: Core, _request: Request, message: messages.DescribeLogDirsRequest
) -> messages.DescribeLogDirsResponse:
    asked = None if message.topics is None else {(t.topic, index) for t in message.topics for index in t.partitions}
    result = messages.DescribeLogDirsResponse.DescribeLogDirsResult(log_dir=str(core.data_path))
    try:
        status = await core.disk.statvfs(core.data_path)
        result.total_bytes, result.usable_bytes = status.total_bytes, status.available_bytes
    except OSError:
        result.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
        result.total_bytes = result.usable_bytes = UNKNOWN_BYTES
    topics: dict[str, messages.DescribeLogDirsResponse.DescribeLogDirsTopic] = {}
    for partition in core.partitions.opened():
        if asked is not None and (partition.topic_name, partition.index) not in asked:
            continue
        topic = topics.get(partition.topic_name)
        if topic is None:
            topic = topics[partition.topic_name] = messages.DescribeLogDirsResponse.DescribeLogDirsTopic(
                name=partition.topic_name
            )
            result.topics.append(topic)
        topic.partitions.append(
            messages.DescribeLogDirsResponse.DescribeLogDirsPartition(
                partition_index=partition.index, partition_size=partition.size_bytes()
            )
        )
    return messages.DescribeLogDirsResponse(results=[result])
