"""DescribeConfigs and ListConfigResources: each core answers for itself and for every topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.auth.operations import CLUSTER_NAME, Operation, Resource
from tpc_broker.broker.handlers.refusals import GROUP_REFUSED, NOT_ALLOWED, TOPIC_REFUSED
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.metadata.config_control import ResourceType
from tpc_broker.metadata.config_types import ConfigSource
from tpc_broker.metadata.describe import (
    ConfigEntry,
    describe_broker,
    describe_client_metrics,
    describe_group,
    describe_topic,
)
from tpc_broker.metadata.topic_names import topic_name_fault

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request

LISTED_BY_TYPE_VERSION = 1
"""Before it ListConfigResources lists client metrics alone."""


def handle_list_config_resources(
    core: Core, request: Request, message: messages.ListConfigResourcesRequest
) -> messages.ListConfigResourcesResponse:
    """Topics and brokers always have settings; groups and client metrics are listed while some are set."""
    kind = messages.ListConfigResourcesResponse
    asked = set(message.resource_types) or set(ResourceType)
    if request.api_version < LISTED_BY_TYPE_VERSION:
        asked = {ResourceType.CLIENT_METRICS}
    if not asked <= set(ResourceType):
        return kind(error_code=int(ErrorCode.UNSUPPORTED_VERSION))
    listed: list[tuple[ResourceType, str]] = []
    if ResourceType.BROKER in asked:
        listed += ((ResourceType.BROKER, str(one.broker_id)) for one in core.view.endpoints(request.listener))
    if ResourceType.TOPIC in asked:
        listed += ((ResourceType.TOPIC, name) for name in sorted(core.view.image.ids))
    if ResourceType.GROUP in asked:
        listed += ((ResourceType.GROUP, name) for name in sorted(core.view.image.group_configs))
    if ResourceType.CLIENT_METRICS in asked:
        listed += ((ResourceType.CLIENT_METRICS, name) for name in sorted(core.view.image.client_metrics_configs))
    return kind(
        config_resources=[kind.ConfigResource(resource_name=name, resource_type=int(type_)) for type_, name in listed]
    )


def handle_describe_configs(
    core: Core, request: Request, message: messages.DescribeConfigsRequest
) -> messages.DescribeConfigsResponse:
    return messages.DescribeConfigsResponse(
        results=[_resource(core, request, message, asked) for asked in message.resources]
    )


_REFUSED: Final = {
    ResourceType.TOPIC: (Resource.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED, TOPIC_REFUSED),
    ResourceType.GROUP: (Resource.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED, GROUP_REFUSED),
}


def refusal_of(
    core: Core, request: Request, operation: Operation, resource_type: int, name: str
) -> tuple[ErrorCode, str] | None:
    """Whether the client may do it to the settings of that: what is neither a topic's nor a group's is the cluster's.
    None: it may.
    """
    resource, code, why = Resource.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NOT_ALLOWED["error_message"]
    if resource_type in _REFUSED:
        resource, code, why = _REFUSED[ResourceType(resource_type)]
    on = CLUSTER_NAME if resource is Resource.CLUSTER else name
    return None if core.access.allows(request, operation, resource, on) else (code, why)


def _resource(
    core: Core,
    request: Request,
    message: messages.DescribeConfigsRequest,
    asked: messages.DescribeConfigsRequest.DescribeConfigsResource,
) -> messages.DescribeConfigsResponse.DescribeConfigsResult:
    result = messages.DescribeConfigsResponse.DescribeConfigsResult(
        resource_type=asked.resource_type, resource_name=asked.resource_name
    )
    refusal = refusal_of(core, request, Operation.DESCRIBE_CONFIGS, asked.resource_type, asked.resource_name)
    if refusal is not None:
        result.error_code, result.error_message = int(refusal[0]), refusal[1]
        return result
    names = set(asked.configuration_keys) if asked.configuration_keys else None
    match asked.resource_type:
        case ResourceType.TOPIC:
            entries = _topic(core, asked.resource_name, names, result)
        case ResourceType.BROKER:
            entries = _broker(core, request.listener, asked.resource_name, names, result)
        case ResourceType.GROUP if asked.resource_name:
            own = core.view.image.group_configs.get(asked.resource_name, {})
            entries = describe_group(own, core.configuration, names)
        case ResourceType.CLIENT_METRICS if asked.resource_name:
            own = core.view.image.client_metrics_configs.get(asked.resource_name, {})
            entries = describe_client_metrics(own, names)
        case ResourceType.GROUP | ResourceType.CLIENT_METRICS as kind:
            what = "Group" if kind == ResourceType.GROUP else "Client metrics subscription"
            result.error_code, result.error_message = int(ErrorCode.INVALID_REQUEST), f"{what} name must not be empty"
            return result
        case _:
            result.error_code = int(ErrorCode.INVALID_REQUEST)
            result.error_message = f"Unsupported resource type: {asked.resource_type}"
            return result
    result.configs = [_entry(entry, message) for entry in entries]
    return result


def _topic(
    core: Core, name: str, names: set[str] | None, result: messages.DescribeConfigsResponse.DescribeConfigsResult
) -> list[ConfigEntry]:
    fault = topic_name_fault(name)
    if fault is not None:
        result.error_code, result.error_message = int(ErrorCode.INVALID_TOPIC_EXCEPTION), fault
        return []
    topic = core.view.topic(name)
    if topic is None:
        result.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return []
    return describe_topic(topic.configs, core.configuration, names, is_internal=topic.is_internal)


def _broker(
    core: Core,
    listener: int,
    name: str,
    names: set[str] | None,
    result: messages.DescribeConfigsResponse.DescribeConfigsResult,
) -> list[ConfigEntry]:
    here = core.view.endpoint(listener, core.core_id).broker_id
    if name and name != str(here):
        result.error_code = int(ErrorCode.INVALID_REQUEST)
        result.error_message = (
            f"Unexpected broker id, expected {here} or empty string, but received {name}"
            if name.lstrip("-").isdigit()
            else f"Broker id must be an integer, but it is: {name}"
        )
        return []
    entries = describe_broker(core.configuration, names)
    if not name:  # the defaults of the cluster: only what was altered for all brokers
        return [entry for entry in entries if entry.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG]
    return entries


def _entry(
    entry: ConfigEntry, message: messages.DescribeConfigsRequest
) -> messages.DescribeConfigsResponse.DescribeConfigsResourceResult:
    kind = messages.DescribeConfigsResponse
    return kind.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=int(entry.source),
        is_sensitive=entry.sensitive,
        config_type=int(entry.type),
        documentation=entry.documentation if message.include_documentation else None,
        synonyms=[
            kind.DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=int(synonym.source))
            for synonym in entry.synonyms
        ]
        if message.include_synonyms
        else [],
    )
