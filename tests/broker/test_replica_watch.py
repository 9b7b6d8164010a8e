"""When a node is ready: after a start, while nodes are away, and what it says."""

from __future__ import annotations

import itertools
import logging
import uuid
from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio

from tpc_broker import limits
from tpc_broker.broker.log_limiter import LogLimiter
from tpc_broker.broker.replica_watch import LEADERLESS_S, LOOK_S, LOOKS_SHARE, ReplicaWatch
from tpc_broker.broker.view import NOBODY, ClusterView, Leader
from tpc_broker.metadata.image import ClusterImage, TopicImage
from tpc_broker.metadata.records import NodeAddress, NodeRegistered
from tpc_broker.model import CoreId, LeaderEpoch, NodeId, PartitionIndex, Replica, TopicId, TopicPartition
from tpc_broker.routing import Assignment
from tpc_broker.telemetry.health import health_of

HERE = NodeId(1)
READY = ([], [])


class Watched:
    """A core of node 1 of five; topics are named by the nodes of their replicas: t145 is on nodes 1, 4 and 5."""

    def __init__(self, *names, damaged=(), refused=()):
        self.view = ClusterView(HERE, 1, (), None, in_cluster=True)
        self.core_id = CoreId(0)
        self.leaders, self.epoch = {}, 0
        self.looked_at_s, self.look_takes = [], lambda: None
        nodes = {NodeId(node): _registered(node) for node in range(1, 6)}
        topics = [_topic(number, name) for number, name in enumerate(names)]
        self.view.image = replace(ClusterImage(), nodes=nodes, topics={topic.topic_id: topic for topic in topics})
        self.log_limiter = LogLimiter(trio.current_time)
        self.partitions = SimpleNamespace(
            damaged=lambda: [self.key(name) for name in damaged],
            is_offline=lambda key: key in [self.key(name) for name in refused],
        )
        self.watch = ReplicaWatch(self, self)

    def key(self, name):
        (topic,) = (topic for topic in self.view.image.topics.values() if topic.name == name)
        return TopicPartition(topic.topic_id, PartitionIndex(0))

    def lead(self, name, node, *in_sync):
        """Node 0: nobody."""
        self.epoch += 1
        self.leaders[self.key(name)] = node
        place = Replica(NodeId(node), CoreId(0)) if node else NOBODY
        told = Leader(LeaderEpoch(self.epoch), 0, place, tuple(map(NodeId, in_sync)))
        self.view.note_leaders([(self.key(name), told)])

    def leaderless(self):
        self.looked_at_s.append(trio.current_time())
        self.look_takes()
        keys = [self.key(topic.name) for topic in self.view.image.topics.values()]
        return [key for key in keys if not self.leaders.get(key)]

    def hears_leader(self, key, _epoch):
        return self.leaders.get(key, 0) not in (0, HERE)

    def findings(self):
        reasons, warnings = self.watch.findings()
        return reasons, warnings


def _registered(node):
    return NodeRegistered(NodeId(node), node, 1, "", "1", NodeAddress("h", 8000 + node), ())


def _topic(number, name):
    places = tuple(Replica(NodeId(int(node)), CoreId(0)) for node in name[1:])
    voters = (tuple((place.node, 7) for place in places),)
    return TopicImage(name, TopicId(uuid.UUID(int=number + 1)), Assignment((CoreId(0),)), 0, {}, (places,), voters)


async def test_a_core_without_replicas_is_ready(autojump_clock):
    assert Watched().findings() == READY
    assert Watched("t234").findings() == READY, "of other nodes"


async def test_after_a_start_each_replica_is_led_or_in_sync_first(autojump_clock):
    core = Watched("t123", "t124", "t1", "t134", "t125")
    (reason,), warnings = core.findings()
    assert reason == "5 partitions have no leader since its start (t1-0, t123-0, t124-0 and 2 more)"
    assert not warnings
    core.lead("t1", 1, 1)
    core.lead("t123", 2, 2, 3)
    core.lead("t124", 2, 1, 2, 4)
    core.lead("t134", 1, 1)
    (first, second), _warnings = core.findings()
    assert first == "1 partition has no leader since its start (t125-0)"
    assert second == "1 partition has not been in sync since its start (t123-0)"
    core.lead("t125", 5, 5, 2)
    assert core.findings()[0] == ["2 partitions have not been in sync since its start (t123-0, t125-0)"]
    core.lead("t123", 2, 1, 2, 3)
    core.lead("t125", 5, 5, 2, 1)
    assert core.findings() == READY


async def test_what_an_earlier_leader_said_is_not_believed_where_nobody_is_heard(autojump_clock):
    core = Watched("t123")
    core.lead("t123", 2, 1, 2, 3)
    del core.leaders[core.key("t123")]
    assert core.findings()[0]


async def test_who_has_returned_stays_ready_while_leaders_change_and_replicas_fall_behind(autojump_clock):
    core = Watched("t123", "t124")
    core.lead("t123", 2, 1, 2, 3)
    core.lead("t124", 2, 1, 2, 4)
    assert core.findings() == READY
    core.lead("t123", 2, 2, 3)
    assert core.findings() == READY, "it lags behind"
    core.lead("t123", 0)
    assert core.findings() == READY
    await trio.sleep(LEADERLESS_S / 2)
    core.lead("t123", 3, 1, 3)
    assert core.findings() == READY, "a failover"
    core.lead("t123", 0)
    assert core.findings() == READY
    await trio.sleep(LEADERLESS_S)
    assert core.findings()[0] == ["1 partition has no leader for 10 s and longer (t123-0)"]
    core.lead("t123", 1, 1)
    assert core.findings() == READY


@pytest.mark.parametrize("is_started_late", [False, True])
async def test_a_topic_that_cannot_come_back_is_told_and_keeps_nobody_out(autojump_clock, is_started_late):
    core = Watched("t145", "t123")
    core.lead("t123", 2, 1, 2, 3)
    if not is_started_late:
        core.lead("t145", 4, 1, 4, 5)
        assert core.findings() == READY
    core.lead("t145", 0)
    core.view.note_absent(frozenset({NodeId(4), NodeId(5)}))
    await trio.sleep(2 * LEADERLESS_S)
    reasons, (warning,) = core.findings()
    assert not reasons
    assert warning == "1 partition has no leader, and cannot have one: nodes 4, 5 are away (t145-0)"
    core.view.note_absent(frozenset())
    core.lead("t145", 4, 4, 5, 1)
    assert core.findings() == READY


async def test_a_node_that_is_cut_off_is_not_ready_and_waits_for_all_of_its_replicas(autojump_clock):
    core = Watched("t145", "t12", "t1")
    core.lead("t145", 4, 1, 4, 5)
    core.lead("t1", 1, 1)
    assert core.findings()[0] == ["1 partition has no leader since its start (t12-0)"]
    core.view.note_absent(frozenset(map(NodeId, (2, 3, 4, 5))), is_cut_off=True)
    core.lead("t145", 0)
    core.lead("t1", 0)
    core.findings()
    await trio.sleep(LEADERLESS_S)
    assert core.findings() == (
        ["2 partitions have no leader for 10 s and longer (t1-0, t145-0)",
         "1 partition has no leader since its start (t12-0)"],
        [],
    )  # fmt: skip
    core.view.note_absent(frozenset())
    core.lead("t1", 1, 1)
    core.lead("t145", 4, 1, 4, 5)
    core.lead("t12", 2, 2)
    assert core.findings()[0] == ["1 partition has not been in sync since its start (t12-0)"]


async def test_who_serves_all_that_can_be_served_is_ready_also_beside_half_of_the_nodes(autojump_clock):
    core = Watched("t145", "t123")
    core.lead("t123", 1, 1, 2)
    core.view.note_absent(frozenset({NodeId(3), NodeId(4), NodeId(5)}))
    core.findings()
    await trio.sleep(2 * LEADERLESS_S)
    assert core.findings() == (
        [], ["1 partition has no leader, and cannot have one: nodes 4, 5 are away (t145-0)"]
    )  # fmt: skip


async def test_a_replica_that_is_alone_and_offline_is_told_elsewhere(autojump_clock):
    assert Watched("t1", damaged=["t1"]).findings() == READY
    assert Watched("t123", damaged=["t123"]).findings()[0], "the others have it, and it is to be rebuilt"


async def test_a_partition_that_could_not_be_made_keeps_its_node_out_only_if_it_is_elsewhere(autojump_clock):
    assert Watched("t1", refused=["t1"]).findings() == READY
    assert Watched("t123", refused=["t123"]).findings()[0]


async def test_topics_that_are_deleted_or_have_moved_are_not_waited_for(autojump_clock):
    core = Watched("t123", "t124")
    assert core.findings()[0]
    core.view.image = replace(core.view.image, topics={})
    assert core.findings() == READY


async def test_a_lost_majority_is_a_warning_that_names_topics_and_nodes_and_so_is_its_end(autojump_clock, caplog):
    caplog.set_level(logging.INFO)
    core = Watched("t123", "t124")
    core.lead("t123", 2, 1, 2, 3)
    core.lead("t124", 2, 1, 2, 4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(core.watch.run)
        await trio.sleep(LEADERLESS_S)
        core.view.note_absent(frozenset({NodeId(2), NodeId(3)}))
        core.lead("t123", 0)
        await trio.sleep(LEADERLESS_S / 2)
        assert not caplog.messages
        await trio.sleep(LEADERLESS_S)
        assert caplog.messages == ["1 partition has no leader for 10 s and longer: nodes 2, 3 are away (t123-0)"]
        core.lead("t124", 0)
        await trio.sleep(LEADERLESS_S + limits.LOG_LINE_PERIOD_S)
        core.log_limiter.tell()
        assert "node 2 is away (t124-0)" in caplog.messages[1], "of another one too"
        core.lead("t123", 1, 1)
        await trio.sleep(2 * LOOK_S)
        nursery.cancel_scope.cancel()
    assert caplog.messages[2].startswith("1 partition has a leader again, after ")
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


async def test_a_partition_that_loses_its_leader_again_is_told_again(autojump_clock, caplog):
    core = Watched("t123")
    core.lead("t123", 2, 1, 2, 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(core.watch.run)
        for _ in range(2):
            core.lead("t123", 0)
            await trio.sleep(2 * LEADERLESS_S)
            core.lead("t123", 0)
            core.findings()
            core.lead("t123", 1, 1)
            await trio.sleep(2 * LOOK_S + limits.LOG_LINE_PERIOD_S)
            core.log_limiter.tell()
        nursery.cancel_scope.cancel()
    lines = [message.split(":")[0].split(", after")[0] for message in caplog.messages]
    lost, led = "1 partition has no leader for 10 s and longer", "1 partition has a leader again"
    assert lines == [lost, led, lost, led]


async def test_what_one_look_has_found_is_looked_at_again_when_the_nodes_or_the_topics_are_others(autojump_clock):
    core = Watched("t145", "t123")
    core.findings()
    await trio.sleep(2 * LEADERLESS_S)
    assert not core.findings()[1]
    core.view.note_absent(frozenset({NodeId(4), NodeId(5)}))
    assert core.findings()[1] == ["1 partition has no leader, and cannot have one: nodes 4, 5 are away (t145-0)"]
    core.view.note_absent(frozenset({NodeId(4), NodeId(5)}), is_cut_off=True)
    assert not core.findings()[1]
    core.view.note_absent(frozenset({NodeId(4)}))
    assert not core.findings()[1]
    core.view.image = replace(core.view.image, nodes={HERE: core.view.image.nodes[HERE]})
    assert len(core.findings()[1]) == 1
    core.view.image = replace(core.view.image, topics={})
    assert core.findings() == READY


async def test_a_look_that_takes_long_comes_more_seldom(autojump_clock):
    """With thousands that have no leader it took a tenth of the time that their elections needed."""
    core = Watched("t123")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(core.watch.run)
        await trio.sleep(10.5 * LOOK_S)
        quick = len(core.looked_at_s)
        core.look_takes = lambda: autojump_clock.jump(0.15)
        await trio.sleep(50 * LOOK_S)
        slow = core.looked_at_s[quick + 1 :]
        core.look_takes = lambda: autojump_clock.jump(60)
        await trio.sleep(600)
        slowest = core.looked_at_s[-2:]
        nursery.cancel_scope.cancel()
    assert quick == 11
    assert min(later - earlier for earlier, later in itertools.pairwise(slow)) >= 0.15 / LOOKS_SHARE - LOOK_S
    assert slowest[1] - slowest[0] <= 60 + 1.5 * LEADERLESS_S


def test_the_answer_of_ready_names_the_core_and_the_reason():
    core = {"core": 1, "pid": 7, "ready": True, "restarts": 0, "up_ms": 1}
    well = {"journal": {"error": 0}, "storage": {"disk_full": 0}, "broker": {"partitions_offline": 0}, "replicas": {}}
    told = {"reasons": ["2 partitions have no leader since its start (a-0, b-1)"], "warnings": ["something"]}
    health = health_of([{**core, "counters": {**well, "readiness": told}}], is_draining=False)
    assert health.reasons == ["core 1: 2 partitions have no leader since its start (a-0, b-1)"]
    assert health.warnings == ["core 1: something"]
    assert not health.is_ready
    assert health_of([{**core, "counters": {**well, "readiness": {}}}], is_draining=False).is_ready
