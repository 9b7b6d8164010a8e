"""AlterPartitionReassignments and ListPartitionReassignments, over `Reassignments`; decided on core 0."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tpc_broker.auth.operations import Operation
from tpc_broker.broker.handlers.forward import listener_name_of
from tpc_broker.broker.handlers.refusals import ask_again
from tpc_broker.broker.handlers.tags import request_tags
from tpc_broker.broker.reassignments import Outcome, WantedBrokers
from tpc_broker.kafka import messages
from tpc_broker.metadata.cluster_core_moves import with_core
from tpc_broker.model import BrokerId, Replica, broker_id_of, core_of, node_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request
    from tpc_broker.broker.reassignments import Ongoing


IDS_ARE_CORES_TAG = 10_000
"""Of a client that knows of cores (`tpc partition move`): also the first core's id means it, and not the node."""


async def handle_alter_partition_reassignments(
    core: Core, request: Request, message: messages.AlterPartitionReassignmentsRequest
) -> messages.AlterPartitionReassignmentsResponse:
    wanted = [
        WantedBrokers(topic.name, asked.partition_index, _brokers(asked.replicas))
        for topic in message.topics
        for asked in topic.partitions
    ]
    node = None
    if core.cluster is not None:
        if IDS_ARE_CORES_TAG in request_tags(request, message):
            wanted = [_with_other_replicas(core, one) for one in wanted]
        else:
            wanted = [_on_cores(core, one, listener_name_of(core, request)) for one in wanted]
    elif core.view.is_shared(request.listener) and IDS_ARE_CORES_TAG not in request_tags(request, message):
        node = core.view.endpoints(request.listener)[0].broker_id
    stays = [_stays_on_node(core, one, node) for one in wanted]
    altered = iter(
        await core.reassignments.alter(
            [one for one, stay in zip(wanted, stays, strict=True) if not stay],
            allow_factor_change=bool(message.allow_replication_factor_change),
            check=partial(ask_again, core, request, Operation.ALTER),
        )
    )
    outcomes = [Outcome() if stay else next(altered) for stay in stays]
    return _altered(message, iter(outcomes), allow_factor_change=message.allow_replication_factor_change)


def _with_other_replicas(core: Core, one: WantedBrokers) -> WantedBrokers:
    """Who knows of cores names one, and means the replica on its node; the others stay where they are."""
    if one.brokers is None or len(one.brokers) != 1:
        return one
    (broker,) = one.brokers
    target = Replica(node_of(broker), core_of(broker))
    return one._replace(brokers=with_core(core.view.image, one.topic, one.partition, target))


def _brokers(replicas: list[int] | None) -> tuple[BrokerId, ...] | None:
    return None if replicas is None else tuple(map(BrokerId, replicas))


def _on_cores(core: Core, one: WantedBrokers, listener_name: str) -> WantedBrokers:
    """Of nodes that a client knows as one broker: the core that has the partition, or else its cores by turns."""
    topic = core.view.topic(one.topic)
    if one.brokers is None or topic is None or not 0 <= one.partition < topic.partitions_count:
        return one
    found = []
    for broker in one.brokers:
        cores = core.view.places_of_broker(listener_name, broker)
        there = [place for place in cores if place in topic.places(one.partition)]
        place = there[0] if there else cores[one.partition % len(cores)] if cores else None
        found.append(broker if place is None else broker_id_of(*place))
    return one._replace(brokers=tuple(found))


def _stays_on_node(core: Core, one: WantedBrokers, node: BrokerId | None) -> bool:
    """Whether a client that takes all cores for one broker, `node`, says that a partition is where it is. That
    broker's id is the first core's too; the other cores' ids name those, as everywhere.
    """
    return node is not None and one.brokers == (node,) and core.view.topic(one.topic) is not None


def _altered(
    message: messages.AlterPartitionReassignmentsRequest, outcomes: Iterator[Outcome], *, allow_factor_change: bool
) -> messages.AlterPartitionReassignmentsResponse:
    answer = messages.AlterPartitionReassignmentsResponse
    return answer(
        error_message=None,
        allow_replication_factor_change=allow_factor_change,
        responses=[
            answer.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    answer.ReassignablePartitionResponse(
                        partition_index=asked.partition_index,
                        error_code=int(outcome.error_code),
                        error_message=outcome.error_message,
                    )
                    for asked, outcome in zip(topic.partitions, outcomes, strict=False)
                ],
            )
            for topic in message.topics
        ],
    )


async def handle_list_partition_reassignments(
    core: Core, request: Request, message: messages.ListPartitionReassignmentsRequest
) -> messages.ListPartitionReassignmentsResponse:
    """Of the partitions asked for; null: all. Without a cluster, where one broker stands for all cores, they are named
    as cores: that is what moves are between.
    """
    named = partial(_named, core, request)
    asked = None
    if message.topics is not None:
        asked = {(topic.name, index) for topic in message.topics for index in topic.partition_indexes}
    found: dict[str, list[Ongoing]] = {}
    for one in core.reassignments.ongoing():
        if asked is None or (one.topic, one.partition) in asked:
            found.setdefault(one.topic, []).append(one)
    answer = messages.ListPartitionReassignmentsResponse
    return answer(
        error_message=None,
        topics=[
            answer.OngoingTopicReassignment(
                name=name,
                partitions=[
                    answer.OngoingPartitionReassignment(
                        partition_index=one.partition,
                        replicas=named(one.brokers),
                        adding_replicas=named(one.adding),
                        removing_replicas=named(one.removing),
                    )
                    for one in ongoing
                ],
            )
            for name, ongoing in found.items()
        ],
    )


def _named(core: Core, request: Request, brokers: Iterable[BrokerId]) -> list[int]:
    """As the client calls them."""
    if core.cluster is None:
        return list(brokers)
    named = partial(core.view.broker_id, listener_name_of(core, request))
    return [named(Replica(node_of(broker), core_of(broker))) for broker in brokers]
