"""Requests and answers as plain values: what is asked, what came, which error codes mean what. No I/O.

Every ``…_request`` makes a message, every ``…_answer`` turns the response into values. Error codes of single partitions
are kept in the values, as one answer may hold good and bad ones.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tpc_broker.client.isolation import Isolation
from tpc_broker.kafka import ApiKey, ErrorCode, messages, protocol

EARLIEST, LATEST = -2, -1
NO_TOPIC_ID: Final = bytes(16)
"""What brokers say that know topics by name only."""
CREATE_TIMEOUT_MS = 15_000
FETCH_WITH_IDS_VERSION = 13
LOG_START_VERSION: Final = 5
"""Of Produce: from it on answers tell where the log begins."""
_MISSING_TOPIC = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)


class TopicPartition(NamedTuple):
    """A partition by name, as clients know it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Node(NamedTuple):
    host: str
    port: int


class TopicFacts(NamedTuple):
    """One topic of the metadata: its id and each partition's leader (-1: none now) with its epoch."""

    topic_id: bytes
    is_internal: bool
    leaders: dict[int, int]
    epochs: dict[int, int]


class ClusterFacts(NamedTuple):
    """`missing` are asked topics that do not exist, `errors` those that exist and cannot be told about now."""

    nodes: dict[int, Node]
    topics: dict[str, TopicFacts]
    missing: set[str]
    errors: dict[str, int]
    controller_id: int = -1


class OffsetAnswer(NamedTuple):
    """`offset` is -1 when no record is so late, `leader_epoch` when the broker did not say."""

    error_code: int
    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


class EpochEnd(NamedTuple):
    """Where the records of an epoch, or the last one before it, end in the leader's log. -1, -1: it knows none."""

    error_code: int
    leader_epoch: int
    end_offset: int


class FetchAnswer(NamedTuple):
    """One partition of a fetch. `records` is a view of the frame. `high_watermark` -1 without an error: nothing is said
    of the partition, because the client is above its quota.
    """

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    records: memoryview


class ProduceAnswer(NamedTuple):
    error_code: int
    base_offset: int
    message: str | None


def in_any_version(message: Any) -> Callable[[int], Any]:
    """For `Connection.call`: the same message, whichever version the connection uses."""
    return lambda _version: message


def metadata_request(topics: Iterable[str] | None) -> Any:
    """None asks for all topics. Topics are never created by asking."""
    asked = messages.MetadataRequest.MetadataRequestTopic
    return messages.MetadataRequest(
        topics=None if topics is None else [asked(name=name) for name in topics], allow_auto_topic_creation=False
    )


def metadata_answer(response: Any) -> ClusterFacts:
    nodes = {row.node_id: Node(row.host, row.port) for row in response.brokers}
    facts = ClusterFacts(nodes, {}, set(), {}, response.controller_id)
    for topic in response.topics:
        if topic.error_code in _MISSING_TOPIC:
            facts.missing.add(topic.name)
        elif topic.error_code:
            facts.errors[topic.name] = topic.error_code
        else:
            facts.topics[topic.name] = TopicFacts(
                bytes(topic.topic_id),
                topic.is_internal,
                {row.partition_index: row.leader_id for row in topic.partitions},
                {row.partition_index: row.leader_epoch for row in topic.partitions},
            )
    return facts


def offsets_request(
    wanted: Mapping[TopicPartition, int],
    isolation: Isolation,
    leader_epochs: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> Any:
    """``wanted`` gives a time in ms, `EARLIEST` or `LATEST` for each partition, ``leader_epochs`` the one that the
    leader is to have.
    """
    request = messages.ListOffsetsRequest
    topics: dict[str, Any] = {}
    for where, timestamp in wanted.items():
        row = topics.setdefault(where.topic, request.ListOffsetsTopic(name=where.topic))
        asked = request.ListOffsetsPartition(partition_index=where.partition, timestamp=timestamp)
        asked.current_leader_epoch = leader_epochs.get(where, -1)
        row.partitions.append(asked)
    return request(replica_id=-1, isolation_level=int(isolation), topics=list(topics.values()))


def offsets_answer(response: Any) -> dict[TopicPartition, OffsetAnswer]:
    return {
        TopicPartition(topic.name, row.partition_index): OffsetAnswer(
            row.error_code, row.offset, row.timestamp, row.leader_epoch
        )
        for topic in response.topics
        for row in topic.partitions
    }


def epochs_request(wanted: Mapping[TopicPartition, tuple[int, int]]) -> Any:
    """``wanted``: the epoch of the last record read, and the one that the leader is to have (-1: any)."""
    request = messages.OffsetForLeaderEpochRequest
    topics: dict[str, Any] = {}
    for (topic, partition), (epoch, leader_epoch) in wanted.items():
        row = topics.setdefault(topic, request.OffsetForLeaderTopic(topic=topic))
        asked = request.OffsetForLeaderPartition(partition=partition, leader_epoch=epoch)
        asked.current_leader_epoch = leader_epoch
        row.partitions.append(asked)
    return request(replica_id=-1, topics=list(topics.values()))


def epochs_answer(response: Any) -> dict[TopicPartition, EpochEnd]:
    return {
        TopicPartition(topic.topic, row.partition): EpochEnd(row.error_code, row.leader_epoch, row.end_offset)
        for topic in response.topics
        for row in topic.partitions
    }


def fetch_request(  # noqa: PLR0913 - the fields of the request
    version: int,
    where: TopicPartition,
    topic_id: bytes,
    offset: int,
    *,
    isolation: Isolation,
    wait_ms: int,
    bytes_max: int,
) -> Any:
    """One partition from one offset, without a session."""
    request = messages.FetchRequest
    topic = request.FetchTopic(
        partitions=[
            request.FetchPartition(partition=where.partition, fetch_offset=offset, partition_max_bytes=bytes_max)
        ]
    )
    if version >= FETCH_WITH_IDS_VERSION:
        topic.topic_id = topic_id
    else:
        topic.topic = where.topic
    return request(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=int(isolation),
        session_id=0,
        session_epoch=-1,
        topics=[topic],
    )


def fetch_answer(response: Any) -> FetchAnswer:
    """The answer for the one partition that was asked for."""
    if response.error_code or not response.responses:
        return FetchAnswer(response.error_code, -1, -1, -1, [], memoryview(b""))
    row = response.responses[0].partitions[0]
    aborted = [(entry.producer_id, entry.first_offset) for entry in row.aborted_transactions or ()]
    return FetchAnswer(
        row.error_code,
        row.high_watermark,
        row.last_stable_offset,
        row.log_start_offset,
        aborted,
        memoryview(row.records if row.records is not None else b""),
    )


def log_dirs_request(places: Iterable[TopicPartition]) -> Any:
    request = messages.DescribeLogDirsRequest
    topics: dict[str, Any] = {}
    for topic, partition in places:
        topics.setdefault(topic, request.DescribableLogDirTopic(topic=topic)).partitions.append(partition)
    return request(topics=list(topics.values()))


def log_dirs_answer(response: Any) -> dict[TopicPartition, int]:
    """Bytes of each partition's log; directories that cannot be told about are left out, and so are future replicas."""
    return {
        TopicPartition(topic.name, row.partition_index): row.partition_size
        for result in response.results
        if not result.error_code
        for topic in result.topics
        for row in topic.partitions
        if not row.is_future_key
    }


def create_topic_request(name: str, partitions_count: int, configuration: Mapping[str, str]) -> Any:
    """One topic with the cluster's number of replicas."""
    request = messages.CreateTopicsRequest
    topic = request.CreatableTopic(name=name, num_partitions=partitions_count, replication_factor=-1)
    topic.configs = [request.CreatableTopicConfig(name=key, value=value) for key, value in configuration.items()]
    return request(topics=[topic], timeout_ms=CREATE_TIMEOUT_MS)


def produce_request(
    batches: Mapping[TopicPartition, bytes | bytearray],
    timeout_ms: int,
    transactional_id: str | None = None,
    acks: int = -1,
) -> Any:
    """One batch per partition. ``acks`` -1: to be acknowledged by all replicas."""
    request = messages.ProduceRequest
    topics: dict[str, Any] = {}
    for (topic, partition), batch in batches.items():
        row = topics.setdefault(topic, request.TopicProduceData(name=topic))
        row.partition_data.append(request.PartitionProduceData(index=partition, records=batch))
    rows = list(topics.values())
    return request(transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=rows)


def appended_answer(where: TopicPartition, version: int) -> protocol.FixedResponse:
    """What the answer to a Produce for one partition looks like that tells nothing but its base offset and its time of
    appending, in ms.
    """
    kind = messages.ProduceResponse

    def make(base_offset: int) -> Any:
        row = kind.PartitionProduceResponse(index=where.partition, base_offset=base_offset)
        return kind(responses=[kind.TopicProduceResponse(name=where.topic, partition_responses=[row])])

    log_start_offset = "8x" if version >= LOG_START_VERSION else ""
    return protocol.FixedResponse(ApiKey.PRODUCE, version, f"qq{log_start_offset}", make)


def produce_answer(response: Any) -> dict[TopicPartition, ProduceAnswer]:
    return {
        TopicPartition(topic.name, row.index): ProduceAnswer(row.error_code, row.base_offset, row.error_message)
        for topic in response.responses
        for row in topic.partition_responses
    }
