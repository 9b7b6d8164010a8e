"""Whom a core takes for the leader of a partition that it has a replica of."""

import uuid
from types import SimpleNamespace

import pytest

from tpc_broker.model import CoreId, NodeId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.node.replicas.core_replicas import CoreReplicas, group_of
from tpc_broker.node.replicas.leaderships import ReplicaLeaderships
from tpc_broker.raft.items import Position, Voter

KEY = TopicPartition(TopicId(uuid.UUID(int=5)), PartitionIndex(0))
HERE, OTHER = Voter(NodeId(1), 0), Voter(NodeId(2), 0)


@pytest.mark.parametrize(
    ("heard", "told_epoch", "leads"),
    [(OTHER, 4, True), (OTHER, 3, False), (OTHER, -1, False), (HERE, 4, False), (None, 3, False), (None, 5, True)],
)
def test_another_node_leads_when_it_is_heard_and_has_told_so_or_has_told_of_a_later_epoch(heard, told_epoch, leads):
    """Clients are sent on to it then, and can be told where it is."""
    machine = SimpleNamespace(
        me=HERE, term=4, log=SimpleNamespace(last=Position(4, 10)), fresh_leader=lambda _now_ms: heard
    )
    replicas = CoreReplicas(CoreId(0), SimpleNamespace(), SimpleNamespace(), SimpleNamespace(monotonic_ms=lambda: 0))
    replicas.groups = {group_of(KEY): machine}
    assert ReplicaLeaderships(replicas).hears_leader(KEY, told_epoch) == leads
