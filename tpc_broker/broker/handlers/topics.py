"""CreateTopics, DeleteTopics, CreatePartitions, AlterConfigs, IncrementalAlterConfigs: decided on core 0.

Any core accepts them; `forward` carries the request to core 0, whose controller decides, and the answer back.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from tpc_broker.auth.operations import Operation
from tpc_broker.broker.handlers.forward import listener_name_of
from tpc_broker.broker.handlers.topic_changes import alterable, creatable, deletable, growable
from tpc_broker.error_codes import ErrorCode
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
    DeletedTopic,
    GrowableTopic,
    GrownTopic,
)
from tpc_broker.metadata.image import NODE_DRAINING
from tpc_broker.model import NO_TOPIC_ID, TopicId, broker_id_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import MetadataRecord

    _Resource = (
        messages.AlterConfigsRequest.AlterConfigsResource | messages.IncrementalAlterConfigsRequest.AlterConfigsResource
    )

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
    quota = core.quotas.mutation(request)

    def decide(image: ClusterImage) -> tuple[list[MetadataRecord], list[CreatedTopic]]:
        allowed, refused = creatable(core, request, topics)
        ids = topic_ids[: len(allowed)]
        records, made = core.controller(image).create_topics(
            allowed, ids, now_ms, validate_only=message.validate_only, charge=quota.charge
        )
        return records, [*made, *refused]

    results = await core.metadata.change(decide)
    by_name = {result.name: result for result in results}
    ordered = [by_name[name] for name in dict.fromkeys(topic.name for topic in topics)]
    return messages.CreateTopicsResponse(
        throttle_time_ms=quota.throttle_ms,
        topics=[
            _created(
                result,
                validate_only=message.validate_only,
                tells_configs=core.access.allows_topic(
                    request, Operation.DESCRIBE_CONFIGS, result.name, is_told=False
                ),
            )
            for result in ordered
        ],
    )


def _assigned(core: Core, request: Request, partition: int, brokers: Sequence[int]) -> tuple[int, ...]:
    """Brokers that a client names for a partition. Where one stands for all cores, they take turns."""
    named = [_brokers_named(core, request, broker) for broker in brokers]
    return tuple(cores[partition % len(cores)] for cores in named)


def _created(
    result: CreatedTopic, *, validate_only: bool, tells_configs: bool
) -> messages.CreateTopicsResponse.CreatableTopicResult:
    """`tells_configs`: also how many partitions and replicas there are by default."""
    if not tells_configs and not result.error_code:
        return messages.CreateTopicsResponse.CreatableTopicResult(
            name=result.name,
            topic_id=(NO_TOPIC_ID if validate_only else result.topic_id).bytes,
            error_message=None,
            topic_config_error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            num_partitions=-1,
            replication_factor=-1,
            configs=[],
        )
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
    quota = core.quotas.mutation(request)

    def decide(image: ClusterImage) -> tuple[list[MetadataRecord], list[DeletedTopic]]:
        allowed, refused = deletable(core, request, image, topics)
        records, deleted = core.controller(image).delete_topics(allowed, charge=quota.charge)
        return records, [*deleted, *refused]

    results = await core.metadata.change(decide)
    return messages.DeleteTopicsResponse(
        throttle_time_ms=quota.throttle_ms,
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
    quota = core.quotas.mutation(request)

    def decide(image: ClusterImage) -> tuple[list[MetadataRecord], list[GrownTopic]]:
        allowed, refused = growable(core, request, topics)
        records, grown = core.controller(image).create_partitions(
            allowed, validate_only=message.validate_only, charge=quota.charge
        )
        return records, [*grown, *refused]

    results = await core.metadata.change(decide)
    return messages.CreatePartitionsResponse(
        throttle_time_ms=quota.throttle_ms,
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
    asked = [
        _Asked(resource, name, tuple(AlterableConfig(config.name, config.value) for config in resource.configs))
        for resource in message.resources
        for name in _names(core, request, resource)
    ]
    resources = [one.as_stored() for one in asked]

    def decide(image: ClusterImage) -> tuple[list[MetadataRecord], list[AlteredResource]]:
        allowed, refused = alterable(core, request, resources)
        controller = ConfigController(image, core.configuration)
        records, altered = controller.alter_configs(allowed, validate_only=message.validate_only)
        return records, [*altered, *refused]

    results = await core.metadata.change(decide)
    answer = messages.AlterConfigsResponse.AlterConfigsResourceResponse
    return messages.AlterConfigsResponse(responses=[answer(**each) for each in _altered(asked, results)])


async def handle_incremental_alter_configs(
    core: Core, request: Request, message: messages.IncrementalAlterConfigsRequest
) -> messages.IncrementalAlterConfigsResponse:
    asked = [
        _Asked(
            resource,
            name,
            tuple(AlterableConfig(config.name, config.value, config.config_operation) for config in resource.configs),
        )
        for resource in message.resources
        for name in _names(core, request, resource)
    ]
    resources = [one.as_stored() for one in asked]

    def decide(image: ClusterImage) -> tuple[list[MetadataRecord], list[AlteredResource]]:
        allowed, refused = alterable(core, request, resources)
        controller = ConfigController(image, core.configuration)
        records, altered = controller.incremental_alter_configs(allowed, validate_only=message.validate_only)
        return records, [*altered, *refused]

    results = await core.metadata.change(decide)
    answer = messages.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    return messages.IncrementalAlterConfigsResponse(responses=[answer(**each) for each in _altered(asked, results)])


class _Asked(NamedTuple):
    """A change of what a request names; of a broker that stands for all cores there is one for each."""

    resource: _Resource
    name: str
    configs: tuple[AlterableConfig, ...]

    def as_stored(self) -> AlterableResource:
        return AlterableResource(self.resource.resource_type, self.name, self.configs)


def _names(core: Core, request: Request, resource: _Resource) -> list[str]:
    """A broker that stands for all cores is altered on each; what is of the node, by its first."""
    name: str = resource.resource_name
    if resource.resource_type != ResourceType.BROKER or not name.isascii() or not name.isdecimal():
        return [name]
    cores = [str(each) for each in _brokers_named(core, request, int(name))]
    is_of_node = any(config.name == NODE_DRAINING for config in resource.configs)
    return cores[:1] if is_of_node else cores


def _brokers_named(core: Core, request: Request, broker: int) -> tuple[int, ...]:
    """The cores that an id names to the client, as brokers; what it does not name is refused as it stands."""
    places = core.view.places_of_broker(listener_name_of(core, request), broker)
    if not places and not core.view.image.nodes and core.view.is_shared(request.listener):
        return (NO_BROKER,)  # the number might be a core's
    return tuple(broker_id_of(*place) for place in places) or (broker,)


class _Outcome(TypedDict):
    """Fields of an answer."""

    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


def _altered(asked: Sequence[_Asked], results: Sequence[AlteredResource]) -> list[_Outcome]:
    """Of a broker that stands for all cores one, with the first error if there is any."""
    named = {(one.resource.resource_type, one.name): one.resource.resource_name for one in asked}
    answers: dict[tuple[int, str], _Outcome] = {}
    for result in results:
        key = (result.resource_type, named[result.resource_type, result.resource_name])
        if key not in answers or (result.error_code and not answers[key]["error_code"]):
            answers[key] = {
                "error_code": int(result.error_code),
                "error_message": result.error_message,
                "resource_type": key[0],
                "resource_name": key[1],
            }
    return list(answers.values())
