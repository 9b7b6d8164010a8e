"""CreateTopics, DeleteTopics, CreatePartitions, AlterConfigs, IncrementalAlterConfigs: decided on core 0.

Any core accepts them; `forward` carries the request to core 0, whose controller decides, and the answer back.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from tpc_broker.kafka import messages
from tpc_broker.metadata.config_control import (
    AlterableConfig,
    AlterableResource,
    AlteredResource,
    ConfigController,
    ResourceType,
)
from tpc_broker.metadata.controller import (
    CreatableTopic,
    CreatedTopic,
    DeletableTopic,
    GrowableTopic,
)
from tpc_broker.model import NO_TOPIC_ID, TopicId, broker_id_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import MetadataRecord

NO_BROKER = -1
NAMES_ONLY_VERSION = 5  # DeleteTopics up to here has names only


async def handle_create_topics(
    core: Core, request: Request, message: messages.CreateTopicsRequest
) -> messages.CreateTopicsResponse:
    topics = [
        CreatableTopic(
            name=topic.name,
            num_partitions=topic.num_partitions,
            replication_factor=topic.replication_factor,
            assignments=tuple(
                (item.partition_index, _assigned(core, request, item.partition_index, item.broker_ids))
                for item in topic.assignments
            ),
            configs=tuple((config.name, config.value) for config in topic.configs),
        )
        for topic in message.topics
    ]
    topic_ids = [TopicId(core.chance.uuid()) for _ in topics]
    now_ms = core.clock.wall_ms()

    def decide(image: ClusterImage) -> tuple[list[MetadataRecord], list[CreatedTopic]]:
        return core.controller(image).create_topics(topics, topic_ids, now_ms, validate_only=message.validate_only)

    results = await core.metadata.change(decide)
    by_name = {result.name: result for result in results}
    ordered = [by_name[name] for name in dict.fromkeys(topic.name for topic in topics)]
    return messages.CreateTopicsResponse(
        topics=[_created(result, validate_only=message.validate_only) for result in ordered]
    )


def _assigned(core: Core, request: Request, partition: int, brokers: Sequence[int]) -> tuple[int, ...]:
    """Brokers that a client names for a partition. Where one stands for all cores, they take turns."""
    if not core.view.is_shared(request.listener):
        return tuple(brokers)
    cores = [core.view.cores_of_broker(request.listener, broker) for broker in brokers]
    return tuple(broker_id_of(core.view.node, each[partition % len(each)]) if each else NO_BROKER for each in cores)


def _created(result: CreatedTopic, *, validate_only: bool) -> messages.CreateTopicsResponse.CreatableTopicResult:
    return messages.CreateTopicsResponse.CreatableTopicResult(
        name=result.name,
        topic_id=(NO_TOPIC_ID if validate_only else result.topic_id).bytes,
        error_code=int(result.error_code),
        error_message=result.error_message,
        num_partitions=result.num_partitions,
        replication_factor=result.replication_factor,
        configs=[
            messages.CreateTopicsResponse.CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=int(entry.source),
                is_sensitive=entry.sensitive,
            )
            for entry in result.configs
        ],
    )


async def handle_delete_topics(
    core: Core, request: Request, message: messages.DeleteTopicsRequest
) -> messages.DeleteTopicsResponse:
    if request.api_version > NAMES_ONLY_VERSION:
        topics = [
            DeletableTopic(name=topic.name, topic_id=TopicId(uuid.UUID(bytes=bytes(topic.topic_id))))
            for topic in message.topics
        ]
    else:
        topics = [DeletableTopic(name=name) for name in message.topic_names]
    results = await core.metadata.change(lambda image: core.controller(image).delete_topics(topics))
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


async def handle_create_partitions(
    core: Core, request: Request, message: messages.CreatePartitionsRequest
) -> messages.CreatePartitionsResponse:
    topics = [
        GrowableTopic(
            name=topic.name,
            count=topic.count,
            assignments=None
            if topic.assignments is None
            else tuple(
                _assigned(core, request, place, assignment.broker_ids)
                for place, assignment in enumerate(topic.assignments)
            ),
        )
        for topic in message.topics
    ]
    results = await core.metadata.change(
        lambda image: core.controller(image).create_partitions(topics, validate_only=message.validate_only)
    )
    return messages.CreatePartitionsResponse(
        results=[
            messages.CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=result.name, error_code=int(result.error_code), error_message=result.error_message
            )
            for result in results
        ]
    )


async def handle_alter_configs(
    core: Core, request: Request, message: messages.AlterConfigsRequest
) -> messages.AlterConfigsResponse:
    resources = [
        AlterableResource(
            resource.resource_type,
            name,
            tuple(AlterableConfig(config.name, config.value) for config in resource.configs),
        )
        for resource in message.resources
        for name in _names(core, request, resource)
    ]
    results = await core.metadata.change(
        lambda image: ConfigController(image, core.configuration).alter_configs(
            resources, validate_only=message.validate_only
        )
    )
    answer = messages.AlterConfigsResponse.AlterConfigsResourceResponse
    return messages.AlterConfigsResponse(responses=[answer(**each) for each in _altered(core, request, results)])


async def handle_incremental_alter_configs(
    core: Core, request: Request, message: messages.IncrementalAlterConfigsRequest
) -> messages.IncrementalAlterConfigsResponse:
    resources = [
        AlterableResource(
            resource.resource_type,
            name,
            tuple(AlterableConfig(config.name, config.value, config.config_operation) for config in resource.configs),
        )
        for resource in message.resources
        for name in _names(core, request, resource)
    ]
    results = await core.metadata.change(
        lambda image: ConfigController(image, core.configuration).incremental_alter_configs(
            resources, validate_only=message.validate_only
        )
    )
    answer = messages.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    altered = _altered(core, request, results)
    return messages.IncrementalAlterConfigsResponse(responses=[answer(**each) for each in altered])


def _names(core: Core, request: Request, resource: Any) -> list[str]:
    """A broker that stands for all cores is altered on each."""
    name: str = resource.resource_name
    if resource.resource_type != ResourceType.BROKER or not core.view.is_shared(request.listener):
        return [name]
    if not name.isascii() or not name.isdecimal():
        return [name]
    cores = core.view.cores_of_broker(request.listener, int(name))
    return [str(broker_id_of(core.view.node, each)) for each in cores] or [str(NO_BROKER)]


def _altered(core: Core, request: Request, results: Sequence[AlteredResource]) -> list[dict[str, Any]]:
    """Fields of the answers; of a broker that stands for all cores one, with the first error if there is any."""
    is_shared = core.view.is_shared(request.listener)
    answers: dict[tuple[int, str], dict[str, Any]] = {}
    for place, result in enumerate(results):
        name = result.resource_name
        is_one_of_all = is_shared and result.resource_type == ResourceType.BROKER and name != ""
        name = str(core.view.endpoints(request.listener)[0].broker_id) if is_one_of_all else name
        key = (result.resource_type, name if is_one_of_all else f"{place}")
        if key not in answers or (result.error_code and not answers[key]["error_code"]):
            answers[key] = {
                "error_code": int(result.error_code),
                "error_message": result.error_message,
                "resource_type": result.resource_type,
                "resource_name": name,
            }
    return list(answers.values())
