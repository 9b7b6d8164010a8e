"""A partition that 200,000 producers have written to: an empty node is filled with it, and knows what each wrote."""

from __future__ import annotations

import shutil
import socket
import time
from typing import TYPE_CHECKING

import pytest

from tests.cluster.test_replication import in_sync_everywhere
from tests.cluster.test_shipping import lead_by, was_filled
from tests.log.log_batches import batch
from tests.support.cluster_nodes import Node, cluster, create_assigned, eventually
from tests.support.waiting import PATIENCE_S
from tpc_broker.bench.kafka_requests import PRODUCE_VERSION, list_end_offsets, produce_request
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import ApiKey, protocol

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.cluster

TOPIC, PRODUCERS, FIRST_ID = "kept", 200_000, 1 << 40
AT_ONCE = 200


def written(node: Node, now_ms: int) -> list[tuple[int, int]]:
    """Error and offset of each producer's first batch, all of them sent to that node."""
    found = []
    with socket.create_connection((node.host, node.ports[0]), PATIENCE_S) as client:
        for first in range(FIRST_ID, FIRST_ID + PRODUCERS, AT_ONCE):
            batches = [batch(0, timestamp=now_ms, producer=(one, 0, 0)) for one in range(first, first + AT_ONCE)]
            client.sendall(b"".join(produce_request(TOPIC, 0, each) for each in batches))
            for _request in batches:
                size = int.from_bytes(client.recv(4, socket.MSG_WAITALL), "big")
                frame = client.recv(size, socket.MSG_WAITALL)
                _correlation_id, answer = protocol.decode_response_frame(ApiKey.PRODUCE, PRODUCE_VERSION, frame)
                (partition,) = answer.responses[0].partition_responses
                found.append((partition.error_code, partition.base_offset))
    return found


def test_an_empty_node_is_filled_and_knows_each_producer(tmp_path: Path) -> None:
    """Whatever is sent once more to it, when it leads, is a repeat of what is there."""
    expected = [(ErrorCode.NONE, offset) for offset in range(PRODUCERS)]
    with cluster(tmp_path) as made:
        made.start()
        create_assigned(made.bootstrap, TOPIC, [[node.broker_id for node in (made[3], made[1], made[2])]])
        lead_by(made, 3)
        now_ms = int(time.time() * 1000)
        assert written(made[3], now_ms) == expected
        made[3].kill()
        shutil.rmtree(made[3].data_folder)
        made.start(3)
        eventually(lambda: in_sync_everywhere(made, TOPIC), "it has what is there, and votes")
        assert was_filled(made, 3)
        lead_by(made, 3)
        assert written(made[3], now_ms) == expected
        assert list_end_offsets((made[3].host, made[3].ports[0]), TOPIC, [0]) == {0: PRODUCERS}
