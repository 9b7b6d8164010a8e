"""UnregisterBroker: a node of a cluster is gone for good. Decided where the metadata are led.

A node is named by the id of its first broker. That the loss of what it had alone is accepted is said in a tagged field
above all of Kafka's numbers: a broker that does not know it passes over it, and refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.auth.operations import Operation
from tpc_broker.broker.handlers.refusals import while_allowed
from tpc_broker.broker.handlers.tags import request_tags
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.node_control import remove_node
from tpc_broker.model import BrokerId, CoreId, broker_id_of, core_of, node_of

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import MetadataRecord
    from tpc_broker.model import NodeId

ACCEPT_LOSS_TAG = 10_000


async def handle_unregister_broker(
    core: Core, request: Request, message: messages.UnregisterBrokerRequest
) -> messages.UnregisterBrokerResponse:
    accept_loss = ACCEPT_LOSS_TAG in request_tags(request, message)

    def decide(image: ClusterImage) -> tuple[list[MetadataRecord], None]:
        node = _node_named(core, image, message.broker_id)
        absent = core.view.absent | image.draining
        return remove_node(image, node, absent, core.full_nodes, accept_loss=accept_loss), None

    try:
        await core.metadata.change(while_allowed(core, request, Operation.ALTER, decide))
    except Refusal as refusal:
        return messages.UnregisterBrokerResponse(error_code=int(refusal.code), error_message=refusal.message)
    return messages.UnregisterBrokerResponse(error_message=None)


def _node_named(core: Core, image: ClusterImage, broker: int) -> NodeId:
    """The node of which this is the first broker, if it is gone. By the newest image: a core that was started just now,
    and is asked since its node leads the metadata, has none of its own yet. Refusal.
    """
    if core.cluster is None:
        if broker in {endpoint.broker_id for endpoint in core.view.endpoints(0)}:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"Broker {broker} is alone, and no node of a cluster.")
        raise Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker} is not currently registered")
    node = node_of(BrokerId(broker))
    if broker < 0 or node not in image.nodes:
        raise Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker} is not currently registered")
    if core_of(BrokerId(broker)) != 0:
        first = broker_id_of(node, CoreId(0))
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"Broker {broker} is a core of node {node}, which is removed as broker {first}."
        )
    not_gone = core.cluster.why_not_gone(node)
    if not_gone:
        raise Refusal(ErrorCode.INVALID_REQUEST, not_gone)
    return node
