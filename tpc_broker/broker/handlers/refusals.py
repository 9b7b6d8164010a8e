"""Answers to requests about the whole cluster, to who may do nothing of the kind: the row of an API names its one. Some
are those that are given where there is no controller (`no_controller`).

They are asked for their right in one place, `only_allowed`, before the handler sees what is wanted. What changes rules,
users, quotas, levels or nodes waits for the changes before it, and is asked again behind the wait (`while_allowed`); so
is what moves replicas and leaders, by `ask_again` itself.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final, TypeVar

from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tpc_broker.auth.operations import Operation
    from tpc_broker.broker.core import Core, Handler
    from tpc_broker.broker.handled import Handled, Request
    from tpc_broker.broker.handlers.api_rows import ApiRow
    from tpc_broker.broker.handlers.no_controller import Said
    from tpc_broker.kafka.message import Message
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import MetadataRecord

T = TypeVar("T")

NOT_ALLOWED: Final[Said] = {
    "error_code": int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    "error_message": "Cluster authorization failed.",
}
TOPIC_REFUSED: Final = "Topic authorization failed."
GROUP_REFUSED: Final = "Group authorization failed."


class _NoLongerAllowedError(Exception):
    """The right was there when the request came, and is taken away. It is answered as if it had never been there."""


# Rule: Each API asks for the rights that its row names before it looks at anything else. Held by
# tests/broker/test_rights.py (all rows).
def only_allowed(row: ApiRow) -> Handler:
    """The row's handler, for who may do one of the things that it needs. It runs where the request is served."""
    refused = row.refused
    if refused is None:
        return row.handler
    handler = row.handler
    *others, told = (need.operation for need in row.needs)

    async def finish(request: Request, message: Message, result: Awaitable[Handled]) -> Handled:
        try:
            return await result
        except _NoLongerAllowedError:
            return refused(request.api_version, message, NOT_ALLOWED)

    def handle(core: Core, request: Request, message: Message) -> Handled | Awaitable[Handled]:
        access = core.access
        by_others = any(access.allows_on_cluster(request, operation, is_told=False) for operation in others)
        if by_others or access.allows_on_cluster(request, told):
            result = handler(core, request, message)
            return finish(request, message, result) if inspect.isawaitable(result) else result
        return refused(request.api_version, message, NOT_ALLOWED)

    return handle


# Rule: A change of rules, users, quotas, levels, nodes, replicas or leaders is decided by the rights of that moment:
# the one before it may have taken them away. Held by tests/broker/test_rights_taken_away.py.
def ask_again(core: Core, request: Request, operation: Operation, image: ClusterImage) -> None:
    """In a handler behind `only_allowed`: ends it as that would have, if the right is gone. `operation`: on the
    cluster, by the rules of this image.
    """
    if not core.access.allows_change(request, operation, image.acls):
        raise _NoLongerAllowedError


def while_allowed(
    core: Core,
    request: Request,
    operation: Operation,
    decide: Callable[[ClusterImage], tuple[list[MetadataRecord], T]],
) -> Callable[[ClusterImage], tuple[list[MetadataRecord], T]]:
    """A change for `core.metadata.change`, of a handler behind `only_allowed`; `operation`: on the cluster."""

    def decide_if_allowed(image: ClusterImage) -> tuple[list[MetadataRecord], T]:
        ask_again(core, request, operation, image)
        return decide(image)

    return decide_if_allowed


def write_txn_markers(
    _version: int, message: messages.WriteTxnMarkersRequest, said: Said
) -> messages.WriteTxnMarkersResponse:
    kind, code = messages.WriteTxnMarkersResponse, said["error_code"]
    part = kind.WritableTxnMarkerPartitionResult
    return kind(
        markers=[
            kind.WritableTxnMarkerResult(
                producer_id=one.producer_id,
                topics=[
                    kind.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[part(partition_index=index, error_code=code) for index in topic.partition_indexes],
                    )
                    for topic in one.topics
                ],
            )
            for one in message.markers
        ]
    )


def describe_acls(_version: int, _message: messages.DescribeAclsRequest, said: Said) -> messages.DescribeAclsResponse:
    return messages.DescribeAclsResponse(resources=[], **said)


def alter_replica_log_dirs(
    _version: int, message: messages.AlterReplicaLogDirsRequest, said: Said
) -> messages.AlterReplicaLogDirsResponse:
    kind, code = messages.AlterReplicaLogDirsResponse, said["error_code"]
    part = kind.AlterReplicaLogDirPartitionResult
    return kind(
        results=[
            kind.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[part(partition_index=index, error_code=code) for index in topic.partitions],
            )
            for each in message.dirs
            for topic in each.topics
        ]
    )


def describe_log_dirs(
    _version: int, _message: messages.DescribeLogDirsRequest, said: Said
) -> messages.DescribeLogDirsResponse:
    return messages.DescribeLogDirsResponse(error_code=said["error_code"], results=[])


def elect_leaders(version: int, message: messages.ElectLeadersRequest, said: Said) -> messages.ElectLeadersResponse:
    kind = messages.ElectLeadersResponse
    return kind(
        error_code=said["error_code"] if version else 0,
        replica_election_results=[
            kind.ReplicaElectionResult(
                topic=each.topic,
                partition_result=[kind.PartitionResult(partition_id=index, **said) for index in each.partitions],
            )
            for each in message.topic_partitions or ()
        ],
    )


def alter_reassignments(
    _version: int, message: messages.AlterPartitionReassignmentsRequest, said: Said
) -> messages.AlterPartitionReassignmentsResponse:
    kind = messages.AlterPartitionReassignmentsResponse
    return kind(
        responses=[
            kind.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    kind.ReassignablePartitionResponse(partition_index=one.partition_index, **said)
                    for one in topic.partitions
                ],
            )
            for topic in message.topics
        ],
        **said,
    )


def describe_client_quotas(
    _version: int, _message: messages.DescribeClientQuotasRequest, said: Said
) -> messages.DescribeClientQuotasResponse:
    return messages.DescribeClientQuotasResponse(entries=None, **said)


def describe_user_scram_credentials(
    _version: int, message: messages.DescribeUserScramCredentialsRequest, said: Said
) -> messages.DescribeUserScramCredentialsResponse:
    """Whoever is asked for, all users too: an answer without an error would be one about users."""
    kind = messages.DescribeUserScramCredentialsResponse
    users = [kind.DescribeUserScramCredentialsResult(user=one.name, **said) for one in message.users or ()]
    return kind(results=users, **said)


def list_config_resources(
    _version: int, _message: messages.ListConfigResourcesRequest, said: Said
) -> messages.ListConfigResourcesResponse:
    return messages.ListConfigResourcesResponse(error_code=said["error_code"], config_resources=[])
