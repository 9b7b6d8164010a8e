"""Nodes that are stopped (SIGSTOP) while others go on: what waits in their sockets they read before anything else."""

from __future__ import annotations

import os
import signal

import pytest

from tests.cluster.test_replication import in_sync_everywhere, leads
from tests.support.cluster_nodes import Cluster, cluster, create_topic, eventually, produce
from tests.support.definitions import decode_response
from tests.support.raw_client import RawConnection
from tpc_broker.error_codes import ErrorCode

TOPIC = "ends"
ROUNDS = 4
RECORDS = 20
LATEST = -1
pytestmark = pytest.mark.cluster


@pytest.fixture
def three(tmp_path):
    with cluster(tmp_path) as made:
        made.start()
        yield made


def fetch_of(offset: int) -> dict[str, object]:
    part = {"Partition": 0, "CurrentLeaderEpoch": -1, "FetchOffset": offset, "LastFetchedEpoch": -1,
            "LogStartOffset": -1, "PartitionMaxBytes": 1 << 20}  # fmt: skip
    return {"ReplicaId": -1, "MaxWaitMs": 100, "MinBytes": 1, "MaxBytes": 1 << 20, "IsolationLevel": 0,
            "SessionId": 0, "SessionEpoch": -1, "Topics": [{"Topic": TOPIC, "Partitions": [part]}],
            "ForgottenTopicsData": [], "RackId": ""}  # fmt: skip


def end_of_log() -> dict[str, object]:
    part = {"PartitionIndex": 0, "CurrentLeaderEpoch": -1, "Timestamp": LATEST}
    return {"ReplicaId": -1, "IsolationLevel": 0, "Topics": [{"Name": TOPIC, "Partitions": [part]}]}


def answer(client: RawConnection, api: str, version: int) -> dict[str, object]:
    body = decode_response(api, version, client.receive_frame())[1]
    (topic,) = body.get("Responses") or body["Topics"]
    (part,) = topic["Partitions"]
    return part


def test_a_leader_that_was_stopped_does_not_say_that_what_others_have_committed_is_nowhere(three: Cluster):
    create_topic(three.bootstrap, TOPIC, 1, replicas=3)
    eventually(lambda: in_sync_everywhere(three, TOPIC), "three replicas")
    produce(three.bootstrap, TOPIC, ["before"] * RECORDS, 1)
    for number in range(1, ROUNDS + 1):
        stopped = three[leads(three, TOPIC)]
        others = ",".join(node.bootstrap for node in three.nodes if node is not stopped)
        with (
            RawConnection(stopped.host, stopped.ports[0]) as reader,
            RawConnection(*reader.socket.getpeername()) as asker,
        ):
            os.killpg(stopped.process.pid, signal.SIGSTOP)
            try:
                produce(others, TOPIC, ["while it stands still"] * RECORDS, 1)
                end_offset = (number + 1) * RECORDS
                reader.send("Fetch", 12, fetch_of(end_offset))
                asker.send("ListOffsets", 5, end_of_log())
            finally:
                os.killpg(stopped.process.pid, signal.SIGCONT)
            fetched, listed = answer(reader, "Fetch", 12), answer(asker, "ListOffsets", 5)
        assert fetched["ErrorCode"] in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert listed["ErrorCode"] == ErrorCode.NOT_LEADER_OR_FOLLOWER or listed["Offset"] == end_offset
        eventually(lambda: in_sync_everywhere(three, TOPIC), "it has caught up")
