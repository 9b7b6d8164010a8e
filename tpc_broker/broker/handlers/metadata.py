"""ApiVersions, Metadata, DescribeCluster, FindCoordinator: what a client asks before it works."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

from tpc_broker.broker.authorized_operations import NOT_ASKED_FOR, ON_CLUSTER, ON_TOPIC
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey, advertised_versions, api
from tpc_broker.model import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    NO_LEADER_EPOCH,
    NO_TOPIC_ID,
    PartitionIndex,
    TopicPartition,
    coordinator_partition,
)

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request
    from tpc_broker.metadata.image import TopicImage

SOFTWARE_TEXT = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
GROUP_KEY = 0
BROKER_ENDPOINTS = 1
TOPIC_IDS_VERSION = 12


def handle_api_versions(core: Core, request: Request, message: Any) -> Any:
    """Never refused: an unknown version is answered in version 0 with error 35 and the versions of this API."""
    if not api(ApiKey.API_VERSIONS).is_valid(request.api_version):
        response = messages.ApiVersionsResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION))
        response.api_keys.append(_api_version(ApiKey.API_VERSIONS))
        return response
    if request.api_version >= 3:
        if not SOFTWARE_TEXT.fullmatch(message.client_software_name) or not SOFTWARE_TEXT.fullmatch(
            message.client_software_version
        ):
            return messages.ApiVersionsResponse(error_code=int(ErrorCode.INVALID_REQUEST))
        core.dispatcher.note_client_software(
            request.connection, f"{message.client_software_name} {message.client_software_version}"
        )
    return messages.ApiVersionsResponse(api_keys=[_api_version(key) for key in core.offered_apis])


def _api_version(key: ApiKey) -> Any:
    first, last = advertised_versions(key)
    return messages.ApiVersionsResponse.ApiVersion(api_key=int(key), min_version=first, max_version=last)


async def handle_metadata(core: Core, request: Request, message: Any) -> Any:
    if request.api_version < TOPIC_IDS_VERSION and any(
        topic.name is None or uuid.UUID(bytes=bytes(topic.topic_id)) != NO_TOPIC_ID for topic in message.topics or ()
    ):
        return _ids_too_early(message.topics)
    response = messages.MetadataResponse(
        cluster_id=core.view.image.cluster_id,
        controller_id=core.view.controller_id,
        brokers=[
            messages.MetadataResponse.MetadataResponseBroker(
                node_id=endpoint.broker_id, host=endpoint.host, port=endpoint.port, rack=endpoint.rack
            )
            for endpoint in core.view.endpoints()
        ],
    )
    wants_all = message.topics is None or (request.api_version == 0 and not message.topics)
    if wants_all:
        image = core.view.image
        in_order = [image.topics[topic_id] for _name, topic_id in sorted(image.ids.items())]
        response.topics = [_topic_metadata(core, topic) for topic in in_order]
        return _with_operations(response, message)
    may_create = message.allow_auto_topic_creation or request.api_version < 4
    for asked in _unique(message.topics):
        topic = await _asked_topic(core, request, asked, may_create=may_create)
        if topic.error_code or all(topic.topic_id != other.topic_id for other in response.topics):
            response.topics.append(topic)  # once, also when it is named by its name and by its id
    return _with_operations(response, message)


def _with_operations(response: Any, message: Any) -> Any:
    """What the client may do, where it asked."""
    if message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = ON_CLUSTER
    if message.include_topic_authorized_operations:
        for topic in response.topics:
            topic.topic_authorized_operations = ON_TOPIC
    return response


def _ids_too_early(topics: list[Any]) -> Any:
    """Versions 10 and 11 carry topic ids that may not be used yet."""
    return messages.MetadataResponse(
        controller_id=-1,
        cluster_authorized_operations=NOT_ASKED_FOR,
        topics=[
            _topic_error(ErrorCode.INVALID_REQUEST, topic.name or "", uuid.UUID(bytes=bytes(topic.topic_id)))
            for topic in topics
        ],
    )


def _unique(topics: list[Any]) -> list[Any]:
    return list({(topic.name, bytes(topic.topic_id)): topic for topic in topics}.values())


async def _asked_topic(core: Core, request: Request, asked: Any, *, may_create: bool) -> Any:
    topic_id = uuid.UUID(bytes=bytes(asked.topic_id))
    if topic_id != NO_TOPIC_ID:
        topic = core.view.topic(topic_id)
        if topic is not None:
            return _topic_metadata(core, topic)
        return _topic_error(ErrorCode.UNKNOWN_TOPIC_ID, None if request.api_version >= 12 else "", topic_id)
    topic = core.view.topic(asked.name)
    if topic is not None:
        return _topic_metadata(core, topic)
    if not may_create or not core.settings.auto_create_topics_enable:
        error = core.check_topic_name(asked.name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _topic_error(error, asked.name, NO_TOPIC_ID)
    error = await core.create_topic_on_first_use(asked.name)
    topic = core.view.topic(asked.name)
    if topic is not None and not error:
        return _topic_metadata(core, topic)
    return _topic_error(error or ErrorCode.LEADER_NOT_AVAILABLE, asked.name, NO_TOPIC_ID)


def _topic_error(error: ErrorCode, name: str | None, topic_id: uuid.UUID) -> Any:
    return messages.MetadataResponse.MetadataResponseTopic(
        error_code=int(error),
        name=name,
        topic_id=topic_id.bytes,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=NOT_ASKED_FOR,
    )


def _topic_metadata(core: Core, topic: TopicImage) -> Any:
    result = messages.MetadataResponse.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id.bytes,
        is_internal=topic.is_internal,
        topic_authorized_operations=NOT_ASKED_FOR,
    )
    for index, owner in enumerate(topic.placement.owners):
        broker_id = core.view.endpoint(owner).broker_id
        epoch = core.view.leader_epoch(TopicPartition(topic.topic_id, PartitionIndex(index)))
        available = epoch is not None and core.is_available(owner)
        result.partitions.append(
            messages.MetadataResponse.MetadataResponsePartition(
                error_code=0 if available else int(ErrorCode.LEADER_NOT_AVAILABLE),
                partition_index=index,
                leader_id=broker_id if available else -1,
                leader_epoch=NO_LEADER_EPOCH if epoch is None else epoch,
                replica_nodes=[broker_id],
                isr_nodes=[broker_id],
                offline_replicas=[] if available else [broker_id],
            )
        )
    return result


def handle_describe_cluster(core: Core, request: Request, message: Any) -> Any:
    if request.api_version >= 1 and message.endpoint_type != BROKER_ENDPOINTS:
        supported = message.endpoint_type == 2
        return messages.DescribeClusterResponse(
            error_code=int(ErrorCode.MISMATCHED_ENDPOINT_TYPE if supported else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type "
            "CONTROLLER"
            if supported
            else f"Unsupported endpoint type {message.endpoint_type}",
            cluster_authorized_operations=NOT_ASKED_FOR,
        )
    return messages.DescribeClusterResponse(
        endpoint_type=BROKER_ENDPOINTS,
        cluster_id=core.view.image.cluster_id,
        controller_id=core.view.controller_id,
        cluster_authorized_operations=(
            ON_CLUSTER if message.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
        brokers=[
            messages.DescribeClusterResponse.DescribeClusterBroker(
                broker_id=endpoint.broker_id, host=endpoint.host, port=endpoint.port, rack=endpoint.rack
            )
            for endpoint in core.view.endpoints()
        ],
    )


async def handle_find_coordinator(core: Core, request: Request, message: Any) -> Any:
    if request.api_version >= 4:
        return messages.FindCoordinatorResponse(
            coordinators=[await _coordinator(core, message.key_type, key) for key in message.coordinator_keys]
        )
    found = await _coordinator(core, message.key_type, message.key)
    return messages.FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message or ErrorCode.NONE.name,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _coordinator(core: Core, key_type: int, key: str) -> Any:
    error = ErrorCode.NONE
    if key_type != GROUP_KEY:
        # Transactions are not offered yet; a share group's key (2) needs what is not offered either.
        error = ErrorCode.INVALID_REQUEST if key_type not in (1, 2) else ErrorCode.COORDINATOR_NOT_AVAILABLE
    elif core.view.topic(CONSUMER_OFFSETS_TOPIC) is None:
        error = await core.create_offsets_topic()
    topic = core.view.topic(CONSUMER_OFFSETS_TOPIC)
    if not error and topic is not None:
        owner = topic.placement.owners[coordinator_partition(key, topic.partitions_count)]
        if core.is_available(owner):
            endpoint = core.view.endpoint(owner)
            return messages.FindCoordinatorResponse.Coordinator(
                key=key, node_id=endpoint.broker_id, host=endpoint.host, port=endpoint.port
            )
    error = error or ErrorCode.COORDINATOR_NOT_AVAILABLE
    return messages.FindCoordinatorResponse.Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=int(error), error_message=error.name
    )
