"""CreateTopics, DeleteTopics, CreatePartitions, AlterConfigs, IncrementalAlterConfigs: decided on core 0.

Any core accepts them; `forward` carries the request to core 0, whose controller decides, and the answer back.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from tpc_broker.kafka import messages
from tpc_broker.metadata.config_control import AlterableConfig, AlterableResource, AlteredResource, ConfigController
from tpc_broker.metadata.controller import (
    Controller,
    CreatableTopic,
    CreatedTopic,
    DeletableTopic,
    GrowableTopic,
)
from tpc_broker.model import NO_TOPIC_ID, TopicId

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import MetadataRecord

NAMES_ONLY_VERSION = 5  # DeleteTopics up to here has names only


async def handle_create_topics(core: Core, _request: Request, message: Any) -> Any:
    topics = [
        CreatableTopic(
            name=topic.name,
            num_partitions=topic.num_partitions,
            replication_factor=topic.replication_factor,
            assignments=tuple((item.partition_index, tuple(item.broker_ids)) for item in topic.assignments),
            configs=tuple((config.name, config.value) for config in topic.configs),
        )
        for topic in message.topics
    ]
    topic_ids = [TopicId(uuid.uuid4()) for _ in topics]
    now_ms = core.clock.wall_ms()

    def decide(image: ClusterImage) -> tuple[list[MetadataRecord], list[CreatedTopic]]:
        controller = Controller(image, core.configuration)
        return controller.create_topics(topics, topic_ids, now_ms, validate_only=message.validate_only)

    results = await core.metadata.change(decide)
    by_name = {result.name: result for result in results}
    ordered = [by_name[name] for name in dict.fromkeys(topic.name for topic in topics)]
    return messages.CreateTopicsResponse(
        topics=[_created(result, validate_only=message.validate_only) for result in ordered]
    )


def _created(result: CreatedTopic, *, validate_only: bool) -> Any:
    answer = messages.CreateTopicsResponse.CreatableTopicResult(
        name=result.name,
        topic_id=(NO_TOPIC_ID if validate_only else result.topic_id).bytes,
        error_code=int(result.error_code),
        error_message=result.error_message,
        num_partitions=result.num_partitions,
        replication_factor=result.replication_factor,
        configs=[],
    )
    for entry in result.configs:
        answer.configs.append(
            messages.CreateTopicsResponse.CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=int(entry.source),
                is_sensitive=entry.sensitive,
            )
        )
    return answer


async def handle_delete_topics(core: Core, request: Request, message: Any) -> Any:
    if request.api_version > NAMES_ONLY_VERSION:
        topics = [
            DeletableTopic(name=topic.name, topic_id=TopicId(uuid.UUID(bytes=bytes(topic.topic_id))))
            for topic in message.topics
        ]
    else:
        topics = [DeletableTopic(name=name) for name in message.topic_names]
    results = await core.metadata.change(
        lambda image: Controller(image, core.configuration).delete_topics(topics)
    )
    return messages.DeleteTopicsResponse(
        responses=[
            messages.DeleteTopicsResponse.DeletableTopicResult(
                name=result.name,
                topic_id=result.topic_id.bytes,
                error_code=int(result.error_code),
                error_message=result.error_message,
            )
            for result in results
        ]
    )


async def handle_create_partitions(core: Core, _request: Request, message: Any) -> Any:
    topics = [
        GrowableTopic(
            name=topic.name,
            count=topic.count,
            assignments=None
            if topic.assignments is None
            else tuple(tuple(assignment.broker_ids) for assignment in topic.assignments),
        )
        for topic in message.topics
    ]
    results = await core.metadata.change(
        lambda image: Controller(image, core.configuration).create_partitions(
            topics, validate_only=message.validate_only
        )
    )
    return messages.CreatePartitionsResponse(
        results=[
            messages.CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=result.name, error_code=int(result.error_code), error_message=result.error_message
            )
            for result in results
        ]
    )


async def handle_alter_configs(core: Core, _request: Request, message: Any) -> Any:
    resources = [
        AlterableResource(
            resource.resource_type,
            resource.resource_name,
            tuple(AlterableConfig(config.name, config.value) for config in resource.configs),
        )
        for resource in message.resources
    ]
    results = await core.metadata.change(
        lambda image: ConfigController(image, core.configuration).alter_configs(
            resources, validate_only=message.validate_only
        )
    )
    return messages.AlterConfigsResponse(
        responses=[
            messages.AlterConfigsResponse.AlterConfigsResourceResponse(**_altered(result)) for result in results
        ]
    )


async def handle_incremental_alter_configs(core: Core, _request: Request, message: Any) -> Any:
    resources = [
        AlterableResource(
            resource.resource_type,
            resource.resource_name,
            tuple(AlterableConfig(config.name, config.value, config.config_operation) for config in resource.configs),
        )
        for resource in message.resources
    ]
    results = await core.metadata.change(
        lambda image: ConfigController(image, core.configuration).incremental_alter_configs(
            resources, validate_only=message.validate_only
        )
    )
    return messages.IncrementalAlterConfigsResponse(
        responses=[
            messages.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(**_altered(result))
            for result in results
        ]
    )


def _altered(result: AlteredResource) -> dict[str, Any]:
    return {
        "error_code": int(result.error_code),
        "error_message": result.error_message,
        "resource_type": result.resource_type,
        "resource_name": result.resource_name,
    }
