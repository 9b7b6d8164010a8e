"""What `tpc partition move` and `balance` ask for, and where they ask for nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tpc_broker.cli.core_loads import NodeUse
from tpc_broker.cli.partitions import _rounds, _target, alter
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka import ErrorCode, messages


def test_a_move_never_takes_replicas_away():
    """Who does not know that a partition has several would leave it with one."""
    asked = []

    def call_tagged(_key, make, _tag):
        asked.append(make(1))
        return messages.AlterPartitionReassignmentsResponse(error_code=int(ErrorCode.NONE), responses=[]), b""

    connection = SimpleNamespace(call_tagged=call_tagged)
    alter(SimpleNamespace(any_connection=lambda: connection), {("t", 0): 1, ("t", 2): 0, ("u", 1): 1})
    (request,) = asked
    assert request.allow_replication_factor_change is False
    found = {(topic.name, one.partition_index): one.replicas for topic in request.topics for one in topic.partitions}
    assert found == {("t", 0): [1], ("t", 2): [0], ("u", 1): [1]}


def test_a_replica_is_named_by_its_node_and_by_default_it_is_the_leader_s(capsys):
    leaders = SimpleNamespace(leaders={0: 2 * 1024 + 1})
    client = SimpleNamespace(topic=lambda _name: leaders)
    place = TopicPartition("t", 0)
    nodes = [NodeUse(1, {}, {}), NodeUse(2, {}, {place: 1}), NodeUse(3, {}, {place: 0})]
    assert _target(client, nodes, ("t", 0), 0, None) == 2 * 1024
    assert _target(client, nodes, ("t", 0), 1, 3) == 3 * 1024 + 1
    with pytest.raises(SystemExit) as ended:
        _target(client, nodes, ("t", 0), 1, 1)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("tpc: t-0 is on nodes 2, 3, not on node 1; ")


def test_two_replicas_of_a_partition_move_one_after_the_other():
    shifts = [(TopicPartition("t", 0), 1024, 1025, 0.1), (TopicPartition("u", 0), 1024, 1025, 0.1),
              (TopicPartition("t", 0), 2048, 2049, 0.1)]  # fmt: skip
    assert _rounds(shifts) == [{("t", 0): 1025, ("u", 0): 1025}, {("t", 0): 2049}]
