"""UnregisterBroker on a core that leads the metadata."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.metadata.test_replica_moves import Moving
from tpc_broker.broker.handlers.nodes import handle_unregister_broker
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.kafka.protocol import encode_request
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import NodeRemoved
from tpc_broker.testing.connections import MemoryRequest


class JustStarted:
    """A core whose node leads the metadata before the core has its own image of them."""

    def __init__(self, newest):
        self.view = SimpleNamespace(image=ClusterImage(), absent=frozenset())
        self.cluster = SimpleNamespace(why_not_gone=lambda _node: "")
        self.full_nodes, self.metadata = frozenset(), self
        self.access = SimpleNamespace(allows_change=lambda *_asked: True)
        self.newest, self.written = newest, []

    async def change(self, decide):
        records, response = decide(self.newest)
        self.written += records
        return response


@pytest.mark.parametrize(("node", "code"), [(5, ErrorCode.NONE), (6, ErrorCode.BROKER_ID_NOT_REGISTERED)])
async def test_a_node_is_removed_by_the_newest_metadata_and_not_by_what_a_core_has_of_them(node, code):
    core = JustStarted(Moving().image)
    message = messages.UnregisterBrokerRequest(broker_id=node * 1024)
    body = memoryview(encode_request(ApiKey.UNREGISTER_BROKER, 0, message))
    request = MemoryRequest(1, int(ApiKey.UNREGISTER_BROKER), 0, 1, body, 0)
    answer = await handle_unregister_broker(core, request, message)
    assert answer.error_code == code
    assert [record.node for record in core.written if isinstance(record, NodeRemoved)] == ([node] if not code else [])
