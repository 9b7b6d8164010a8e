"""Answers to administrative requests that nobody has carried out, or perhaps somebody did: no controller of the cluster
was there, or its journal took no change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import JournalStoppedError, LeadershipLostError, NotDeliveredError, PartitionOfflineError
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.errors import MailboxError
    from tpc_broker.kafka.message import Message

_NAMES_ONLY_VERSION = 5
"""DeleteTopics up to here has names only."""


class _Said(TypedDict):
    error_code: int
    error_message: str


class _Named(TypedDict):
    resource_type: int
    resource_name: str


def answer_without_controller(
    api_key: int, version: int, message: Message, error: MailboxError | PartitionOfflineError
) -> Message:
    """NOT_CONTROLLER or KAFKA_STORAGE_ERROR where nothing was done, for which clients try again; REQUEST_TIMED_OUT
    where that is not known.
    """
    code = ErrorCode.REQUEST_TIMED_OUT
    if isinstance(error, NotDeliveredError):
        code = ErrorCode.NOT_CONTROLLER
    elif isinstance(error, PartitionOfflineError) and not isinstance(error, JournalStoppedError | LeadershipLostError):
        code = ErrorCode.KAFKA_STORAGE_ERROR
    said: _Said = {"error_code": int(code), "error_message": str(error)}
    return _ANSWERS[ApiKey(api_key)](version, message, said)


def _create_topics(
    _version: int, message: messages.CreateTopicsRequest, said: _Said
) -> messages.CreateTopicsResponse:
    result = messages.CreateTopicsResponse.CreatableTopicResult
    names = dict.fromkeys(topic.name for topic in message.topics)
    return messages.CreateTopicsResponse(
        topics=[result(name=name, num_partitions=-1, replication_factor=-1, configs=[], **said) for name in names]
    )


def _delete_topics(
    version: int, message: messages.DeleteTopicsRequest, said: _Said
) -> messages.DeleteTopicsResponse:
    result = messages.DeleteTopicsResponse.DeletableTopicResult
    if version <= _NAMES_ONLY_VERSION:
        return messages.DeleteTopicsResponse(responses=[result(name=name, **said) for name in message.topic_names])
    return messages.DeleteTopicsResponse(
        responses=[result(name=topic.name, topic_id=bytes(topic.topic_id), **said) for topic in message.topics]
    )


def _create_partitions(
    _version: int, message: messages.CreatePartitionsRequest, said: _Said
) -> messages.CreatePartitionsResponse:
    result = messages.CreatePartitionsResponse.CreatePartitionsTopicResult
    return messages.CreatePartitionsResponse(results=[result(name=topic.name, **said) for topic in message.topics])


def _alter_configs(
    _version: int, message: messages.AlterConfigsRequest, said: _Said
) -> messages.AlterConfigsResponse:
    result = messages.AlterConfigsResponse.AlterConfigsResourceResponse
    return messages.AlterConfigsResponse(responses=[result(**_resource(each), **said) for each in message.resources])


def _incremental_alter_configs(
    _version: int, message: messages.IncrementalAlterConfigsRequest, said: _Said
) -> messages.IncrementalAlterConfigsResponse:
    result = messages.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    return messages.IncrementalAlterConfigsResponse(
        responses=[result(**_resource(each), **said) for each in message.resources]
    )


def _alter_reassignments(
    _version: int, message: messages.AlterPartitionReassignmentsRequest, said: _Said
) -> messages.AlterPartitionReassignmentsResponse:
    return messages.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=message.allow_replication_factor_change, responses=[], **said
    )


def _list_reassignments(
    _version: int, _message: messages.ListPartitionReassignmentsRequest, said: _Said
) -> messages.ListPartitionReassignmentsResponse:
    return messages.ListPartitionReassignmentsResponse(topics=[], **said)


def _describe_quorum(
    _version: int, _message: messages.DescribeQuorumRequest, said: _Said
) -> messages.DescribeQuorumResponse:
    return messages.DescribeQuorumResponse(**said)


def _unregister_broker(
    _version: int, _message: messages.UnregisterBrokerRequest, said: _Said
) -> messages.UnregisterBrokerResponse:
    return messages.UnregisterBrokerResponse(**said)


def _update_features(
    _version: int, _message: messages.UpdateFeaturesRequest, said: _Said
) -> messages.UpdateFeaturesResponse:
    return messages.UpdateFeaturesResponse(**said)


def _elect_leaders(
    version: int, message: messages.ElectLeadersRequest, said: _Said
) -> messages.ElectLeadersResponse:
    response = messages.ElectLeadersResponse
    if version:
        return response(error_code=said["error_code"])
    results = [
        response.ReplicaElectionResult(
            topic=each.topic,
            partition_result=[response.PartitionResult(partition_id=index, **said) for index in each.partitions],
        )
        for each in message.topic_partitions or ()
    ]
    return response(replica_election_results=results)


def _resource(
    resource: messages.AlterConfigsRequest.AlterConfigsResource
    | messages.IncrementalAlterConfigsRequest.AlterConfigsResource,
) -> _Named:
    return {"resource_type": resource.resource_type, "resource_name": resource.resource_name}


_ANSWERS: dict[ApiKey, Callable[[int, Any, _Said], Message]] = {  # `Any`: each takes the message of its API
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _incremental_alter_configs,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _alter_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _list_reassignments,
    ApiKey.DESCRIBE_QUORUM: _describe_quorum,
    ApiKey.UNREGISTER_BROKER: _unregister_broker,
    ApiKey.UPDATE_FEATURES: _update_features,
    ApiKey.ELECT_LEADERS: _elect_leaders,
}
