"""DescribeQuorum: who has a copy of the metadata, who votes on them, and how far each copy is.

A node is named by the id of its first broker, where its copy is; the directory id is its incarnation. A broker that is
no node of a cluster is a quorum of itself.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from tpc_broker.broker.ports import Quorum, QuorumReplica
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.model import METADATA_TOPIC, CoreId, broker_id_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request

CLUSTER_LISTENER = "CLUSTER"
"""What the address of a node's links is called."""
NODES_VERSION = 2
"""From here on the answer has directory ids and the nodes' addresses."""
NO_DIRECTORY = bytes(16)


async def handle_describe_quorum(
    core: Core, request: Request, message: messages.DescribeQuorumRequest
) -> messages.DescribeQuorumResponse:
    asked = [
        (topic.topic_name, partition.partition_index) for topic in message.topics for partition in topic.partitions
    ]
    if asked != [(METADATA_TOPIC, 0)]:
        return _unknown_partitions(message)
    response = _alone(core, request) if core.cluster is None else _of_cluster(core, await core.cluster.quorum())
    return response if request.api_version >= NODES_VERSION else _without_nodes(response)


def _of_cluster(core: Core, quorum: Quorum) -> messages.DescribeQuorumResponse:
    nodes = [
        _node(broker_id_of(known.node, CoreId(0)), CLUSTER_LISTENER, *known.address)
        for known in core.view.image.nodes.values()
    ]
    return _described(
        broker_id_of(quorum.leader, CoreId(0)),
        quorum,
        [(broker_id_of(one.node, CoreId(0)), one) for one in quorum.voters],
        [(broker_id_of(one.node, CoreId(0)), one) for one in quorum.observers],
        nodes,
    )


def _alone(core: Core, request: Request) -> messages.DescribeQuorumResponse:
    log = core.metadata.log
    bounds = log.bounds()
    endpoint = core.view.endpoint(request.listener, CoreId(0))
    now_ms = core.clock.wall_ms()
    me = QuorumReplica(core.view.node, 0, bounds.log_end_offset, now_ms, now_ms)
    quorum = Quorum(core.view.node, log.leader_epoch, bounds.high_watermark, (me,), ())
    node = _node(endpoint.broker_id, core.view.listener_name(request.listener), endpoint.host, endpoint.port)
    return _described(endpoint.broker_id, quorum, [(endpoint.broker_id, me)], [], [node])


def _described(
    leader_id: int,
    quorum: Quorum,
    voters: Iterable[tuple[int, QuorumReplica]],
    observers: Iterable[tuple[int, QuorumReplica]],
    nodes: list[messages.DescribeQuorumResponse.Node],
) -> messages.DescribeQuorumResponse:
    partition = messages.DescribeQuorumResponse.PartitionData(
        partition_index=0,
        leader_id=leader_id,
        leader_epoch=quorum.term,
        high_watermark=quorum.high_watermark,
        current_voters=[_replica(*each) for each in voters],
        observers=[_replica(*each) for each in observers],
    )
    topic = messages.DescribeQuorumResponse.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    return messages.DescribeQuorumResponse(topics=[topic], nodes=nodes)


def _without_nodes(response: messages.DescribeQuorumResponse) -> messages.DescribeQuorumResponse:
    """As earlier versions have it."""
    response.nodes = []
    for replica in (*response.topics[0].partitions[0].current_voters, *response.topics[0].partitions[0].observers):
        replica.replica_directory_id = NO_DIRECTORY
    return response


def _replica(broker_id: int, replica: QuorumReplica) -> messages.DescribeQuorumResponse.ReplicaState:
    return messages.DescribeQuorumResponse.ReplicaState(
        replica_id=broker_id,
        replica_directory_id=uuid.UUID(int=replica.incarnation).bytes,
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp=replica.heard_ms,
        last_caught_up_timestamp=replica.caught_up_ms,
    )


def _node(broker_id: int, name: str, host: str, port: int) -> messages.DescribeQuorumResponse.Node:
    listener = messages.DescribeQuorumResponse.Listener(name=name, host=host, port=port)
    return messages.DescribeQuorumResponse.Node(node_id=broker_id, listeners=[listener])


def _unknown_partitions(message: messages.DescribeQuorumRequest) -> messages.DescribeQuorumResponse:
    """Each that was asked for, with its error, as Kafka does when it is asked for anything else too."""
    response = messages.DescribeQuorumResponse
    return response(
        topics=[
            response.TopicData(
                topic_name=topic.topic_name,
                partitions=[
                    response.PartitionData(
                        partition_index=partition.partition_index,
                        error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                        error_message=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
