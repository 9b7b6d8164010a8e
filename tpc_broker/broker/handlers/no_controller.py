"""Answers to administrative requests that nobody has carried out, or perhaps somebody did: no controller of the cluster
was there, or its journal took no change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import JournalStoppedError, LeadershipLostError, NotDeliveredError, PartitionOfflineError
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from tpc_broker.errors import MailboxError

_NAMES_ONLY_VERSION = 5
"""DeleteTopics up to here has names only."""


class Said(TypedDict):
    error_code: int
    error_message: str


class _Named(TypedDict):
    resource_type: int
    resource_name: str


def what_is_said(error: MailboxError | PartitionOfflineError) -> Said:
    """NOT_CONTROLLER or KAFKA_STORAGE_ERROR where nothing was done, for which clients try again; REQUEST_TIMED_OUT
    where that is not known.
    """
    code = ErrorCode.REQUEST_TIMED_OUT
    if isinstance(error, NotDeliveredError):
        code = ErrorCode.NOT_CONTROLLER
    elif isinstance(error, PartitionOfflineError) and not isinstance(error, JournalStoppedError | LeadershipLostError):
        code = ErrorCode.KAFKA_STORAGE_ERROR
    return {"error_code": int(code), "error_message": str(error)}


def create_topics(_version: int, message: messages.CreateTopicsRequest, said: Said) -> messages.CreateTopicsResponse:
    result = messages.CreateTopicsResponse.CreatableTopicResult
    names = dict.fromkeys(topic.name for topic in message.topics)
    return messages.CreateTopicsResponse(
        topics=[result(name=name, num_partitions=-1, replication_factor=-1, configs=[], **said) for name in names]
    )


def delete_topics(version: int, message: messages.DeleteTopicsRequest, said: Said) -> messages.DeleteTopicsResponse:
    result = messages.DeleteTopicsResponse.DeletableTopicResult
    if version <= _NAMES_ONLY_VERSION:
        return messages.DeleteTopicsResponse(responses=[result(name=name, **said) for name in message.topic_names])
    return messages.DeleteTopicsResponse(
        responses=[result(name=topic.name, topic_id=bytes(topic.topic_id), **said) for topic in message.topics]
    )


def create_partitions(
    _version: int, message: messages.CreatePartitionsRequest, said: Said
) -> messages.CreatePartitionsResponse:
    result = messages.CreatePartitionsResponse.CreatePartitionsTopicResult
    return messages.CreatePartitionsResponse(results=[result(name=topic.name, **said) for topic in message.topics])


def alter_configs(_version: int, message: messages.AlterConfigsRequest, said: Said) -> messages.AlterConfigsResponse:
    result = messages.AlterConfigsResponse.AlterConfigsResourceResponse
    return messages.AlterConfigsResponse(responses=[result(**_resource(each), **said) for each in message.resources])


def incremental_alter_configs(
    _version: int, message: messages.IncrementalAlterConfigsRequest, said: Said
) -> messages.IncrementalAlterConfigsResponse:
    result = messages.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    return messages.IncrementalAlterConfigsResponse(
        responses=[result(**_resource(each), **said) for each in message.resources]
    )


def alter_client_quotas(
    _version: int, message: messages.AlterClientQuotasRequest, said: Said
) -> messages.AlterClientQuotasResponse:
    kind = messages.AlterClientQuotasResponse
    return kind(
        entries=[
            kind.EntryData(
                entity=[
                    kind.EntityData(entity_type=each.entity_type, entity_name=each.entity_name) for each in entry.entity
                ],
                **said,
            )
            for entry in message.entries
        ]
    )


def alter_reassignments(
    _version: int, message: messages.AlterPartitionReassignmentsRequest, said: Said
) -> messages.AlterPartitionReassignmentsResponse:
    return messages.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=message.allow_replication_factor_change, responses=[], **said
    )


def list_reassignments(
    _version: int, _message: messages.ListPartitionReassignmentsRequest, said: Said
) -> messages.ListPartitionReassignmentsResponse:
    return messages.ListPartitionReassignmentsResponse(topics=[], **said)


def describe_quorum(
    _version: int, _message: messages.DescribeQuorumRequest, said: Said
) -> messages.DescribeQuorumResponse:
    return messages.DescribeQuorumResponse(**said)


def unregister_broker(
    _version: int, _message: messages.UnregisterBrokerRequest, said: Said
) -> messages.UnregisterBrokerResponse:
    return messages.UnregisterBrokerResponse(**said)


def update_features(
    _version: int, _message: messages.UpdateFeaturesRequest, said: Said
) -> messages.UpdateFeaturesResponse:
    return messages.UpdateFeaturesResponse(**said)


def alter_users(
    _version: int, message: messages.AlterUserScramCredentialsRequest, said: Said
) -> messages.AlterUserScramCredentialsResponse:
    result = messages.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    names = dict.fromkeys([*(each.name for each in message.deletions), *(each.name for each in message.upsertions)])
    return messages.AlterUserScramCredentialsResponse(results=[result(user=name, **said) for name in names])


def create_acls(_version: int, message: messages.CreateAclsRequest, said: Said) -> messages.CreateAclsResponse:
    result = messages.CreateAclsResponse.AclCreationResult
    return messages.CreateAclsResponse(results=[result(**said) for _ in message.creations])


def delete_acls(_version: int, message: messages.DeleteAclsRequest, said: Said) -> messages.DeleteAclsResponse:
    result = messages.DeleteAclsResponse.DeleteAclsFilterResult
    return messages.DeleteAclsResponse(filter_results=[result(matching_acls=[], **said) for _ in message.filters])


def elect_leaders(version: int, message: messages.ElectLeadersRequest, said: Said) -> messages.ElectLeadersResponse:
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
