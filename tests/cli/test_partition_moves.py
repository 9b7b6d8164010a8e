"""What `tpc partition move` and `balance` ask for, and where they ask for nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tpc_broker.cli.core_loads import NodeUse
from tpc_broker.cli.partitions import _require_one_node, alter
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


def test_cores_of_a_cluster_s_nodes_are_left_as_they_are(capsys):
    nodes = [NodeUse(number, {}, {}) for number in range(3)]
    _require_one_node(nodes[:1])
    with pytest.raises(SystemExit) as ended:
        _require_one_node(nodes)
    assert ended.value.code == 5
    assert capsys.readouterr().err.startswith("tpc: partitions are not moved between cores in a cluster of nodes yet")
