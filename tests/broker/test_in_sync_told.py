"""Who is in sync is told soon while somebody waits for it, and looked at seldom at rest."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import trio

from tpc_broker.broker.replicated import LOOK_S, LOOK_SOON_S, ReplicatedPartitions
from tpc_broker.model import CoreId, LeaderEpoch, NodeId, PartitionIndex, Replica, TopicId, TopicPartition

KEYS = [TopicPartition(TopicId(uuid.UUID(int=5)), PartitionIndex(index)) for index in range(2)]
EVERYBODY = (NodeId(1), NodeId(2), NodeId(3))
HERE = Replica(NodeId(1), CoreId(0))


class Leader:
    """Leads two partitions with replicas on three nodes; `looks` and `told`: when, and who was in sync then."""

    def __init__(self) -> None:
        self.nodes = dict.fromkeys(KEYS, EVERYBODY)
        self.looks: list[float] = []
        self.told: list[tuple[float, TopicPartition, tuple[NodeId, ...]]] = []
        places = tuple(Replica(node, CoreId(0)) for node in EVERYBODY)
        topic = SimpleNamespace(places=lambda _index: places)
        view = SimpleNamespace(
            node=HERE.node, image=SimpleNamespace(topic_by_id=lambda _topic: topic), note_leaders=self._note
        )
        followers = Mock(in_sync=self.nodes.__getitem__, perhaps_in_sync=self._look)
        self.made = ReplicatedPartitions(Mock(view=view, core_id=HERE.core), Mock(followers=followers))
        self.made.near = Mock()
        for key in KEYS:
            self.made._announce(key, LeaderEpoch(4), HERE)

    def _look(self) -> list[TopicPartition]:
        self.looks.append(trio.current_time())
        return KEYS

    def _note(self, leaders) -> None:
        for key, leader in leaders:
            self.told.append((trio.current_time(), key, leader.in_sync))


@pytest.fixture
async def leader(nursery):
    made = Leader()
    nursery.start_soon(made.made._look_who_is_in_sync)
    return made


async def test_replicas_that_are_in_sync_again_one_after_the_other_are_told_soon(leader, autojump_clock):
    for key in KEYS:
        leader.nodes[key] = EVERYBODY[:2]
    await trio.sleep(2 * LOOK_S)
    for key in KEYS:
        leader.told.clear()
        leader.nodes[key] = EVERYBODY
        at_s = trio.current_time()
        await trio.sleep(2 * LOOK_S)
        [(told_s, *what)] = leader.told
        assert what == [key, EVERYBODY]
        assert told_s <= at_s + LOOK_SOON_S


async def test_at_rest_looks_are_as_seldom_as_ever(leader, autojump_clock):
    leader.nodes[KEYS[0]] = EVERYBODY[:2]
    await trio.sleep(2 * LOOK_S)
    leader.nodes[KEYS[0]] = EVERYBODY
    await trio.sleep(2 * LOOK_S)
    leader.looks.clear()
    await trio.sleep(10 * LOOK_S)
    assert 9 <= len(leader.looks) <= 11


@pytest.mark.parametrize("how", ["lost", "removed"])
async def test_a_partition_that_is_not_led_here_any_more_is_not_waited_for(leader, autojump_clock, how):
    leader.nodes[KEYS[0]] = EVERYBODY[:2]
    await trio.sleep(2 * LOOK_S)
    if how == "lost":
        leader.made._lost(KEYS[0], LeaderEpoch(5))
    else:
        leader.made.remove(KEYS[0])
    leader.looks.clear()
    await trio.sleep(10 * LOOK_S)
    assert 9 <= len(leader.looks) <= 11
