"""The data directory: the sizes of this core's partitions in it (DescribeLogDirs), and that there is no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.model import NOT_HERE

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request

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


def handle_alter_replica_log_dirs(
    core: Core, request: Request, message: messages.AlterReplicaLogDirsRequest
) -> messages.AlterReplicaLogDirsResponse:
    """There is one directory: what is to be there is there already, and there is no other."""
    wanted = {
        (topic.name, index): each.path for each in message.dirs for topic in each.topics for index in topic.partitions
    }
    kind = messages.AlterReplicaLogDirsResponse
    results: dict[str, messages.AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = {}
    for (name, index), path in wanted.items():
        error = ErrorCode.LOG_DIR_NOT_FOUND if path != str(core.data_path) else _fault_here(core, request, name, index)
        topic = results.setdefault(name, kind.AlterReplicaLogDirTopicResult(topic_name=name))
        topic.partitions.append(kind.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=int(error)))
    return kind(results=list(results.values()))


def _fault_here(core: Core, request: Request, name: str, index: int) -> ErrorCode:
    """Whether the broker that the client sees has a replica of a partition."""
    topic = core.view.topic(name)
    if topic is None or not 0 <= index < topic.partitions_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    on = topic.core_on(core.view.node, index)
    is_here = on != NOT_HERE and (on == core.core_id or core.view.is_shared(request.listener))
    return ErrorCode.NONE if is_here else ErrorCode.REPLICA_NOT_AVAILABLE
