"""Cores in memory that even out what they have to do, by themselves, as the settings say."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from tests.metadata.test_replica_moves import Moving
from tests.support.memory_node import running_node
from tpc_broker.broker.core_loads import CoreLoads
from tpc_broker.kafka import messages
from tpc_broker.metadata.cluster_core_moves import with_core
from tpc_broker.metadata.records import TopicAssigned
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId, NodeId, PartitionIndex, Replica, TopicPartition
from tpc_broker.routing import PartitionUse, cost_ns

CORES, PARTITIONS = 2, 4
INTERVAL_S, COOLDOWN_S = 10, 100
ON, SLOW = "core.rebalance.enable=true", f"core.rebalance.cooldown.ms={COOLDOWN_S * 1000}"
SETTINGS = (ON, f"core.rebalance.interval.ms={INTERVAL_S * 1000}", SLOW)


async def made(node):
    """A topic of which core 0 has everything."""
    kind = messages.CreateTopicsRequest
    assigned = [kind.CreatableReplicaAssignment(partition_index=n, broker_ids=[0]) for n in range(PARTITIONS)]
    topic = kind.CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assigned)
    assert (await node.ask(0, kind(topics=[topic], timeout_ms=1000))).topics[0].error_code == 0
    return [TopicPartition(node[0].view.topic("t").topic_id, PartitionIndex(n)) for n in range(PARTITIONS)]


async def set_enabled(node, value):
    kind = messages.IncrementalAlterConfigsRequest
    config = kind.AlterableConfig(name="core.rebalance.enable", config_operation=0, value=value)
    resource = kind.AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    assert (await node.ask(0, kind(resources=[resource]))).responses[0].error_code == 0


def owners(node):
    return node[0].view.topic("t").assignment.owners


async def work(node, keys, shares, seconds):
    """Clients that use partitions all the while: so much of a CPU each."""
    for _ in range(seconds):
        await trio.sleep(1)
        for key, share in zip(keys, shares, strict=True):
            for life in list(node.lives.values()):
                partition = life.core.partitions.get(key)
                if partition is not None:
                    before = life.plane.use(partition.handle)
                    life.plane.uses[partition.handle] = before._replace(reads=before.reads + round(share * 125_000))


async def settled(node):
    while node[0].view.image.moving:
        await trio.sleep(0.1)


async def test_busy_partitions_are_parted_then_nothing_moves_for_the_cooldown(autojump_clock):
    async with running_node(CORES, SETTINGS) as node:
        keys = await made(node)
        await work(node, keys, (0.4, 0.0, 0.4, 0.0), 3 * INTERVAL_S)
        await settled(node)
        assert sorted([owners(node)[0], owners(node)[2]]) == [0, 1]
        assert (owners(node)[1], owners(node)[3], node[0].moves.statistics.done) == (0, 0, 1)
        first, second = sorted((0, 2), key=owners(node).__getitem__)
        shares = [0.4 if n == first else 0.2 if owners(node)[n] == 0 else 0.0 for n in range(PARTITIONS)]
        await work(node, keys, shares, COOLDOWN_S - 3 * INTERVAL_S)
        assert node[0].moves.statistics.done == 1, "it cools down"
        await work(node, keys, shares, 5 * INTERVAL_S)
        await settled(node)
        assert node[0].moves.statistics.done > 1
        assert owners(node)[second] == 1


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        (SETTINGS[1:], (0.4, 0.4, 0.4, 0.4)),
        (SETTINGS, (0.01, 0.01, 0.01, 0.01)),
        (SETTINGS, (0.9, 0.0, 0.0, 0.0)),
    ],
    ids=["not enabled", "little to do", "one has all of it"],
)
async def test_what_is_left_as_it_is(autojump_clock, settings, shares):
    async with running_node(CORES, settings) as node:
        keys = await made(node)
        await work(node, keys, shares, 5 * INTERVAL_S)
        assert owners(node) == (0,) * PARTITIONS
        assert node[0].moves.statistics.done == 0


async def test_it_is_switched_on_and_off_while_the_broker_runs(autojump_clock):
    async with running_node(CORES, SETTINGS[1:]) as node:
        keys = await made(node)
        await set_enabled(node, "true")
        await work(node, keys, (0.4, 0.4, 0.0, 0.0), INTERVAL_S // 2)
        await set_enabled(node, "false")
        await work(node, keys, (0.4, 0.4, 0.0, 0.0), 3 * INTERVAL_S)
        assert owners(node) == (0,) * PARTITIONS
        await set_enabled(node, "true")
        await work(node, keys, (0.4, 0.4, 0.0, 0.0), 3 * INTERVAL_S)
        await settled(node)
        assert sorted(owners(node)[:2]) == [0, 1]


async def test_a_core_that_does_not_say_what_it_has_to_do_is_waited_for(autojump_clock):
    async with running_node(CORES, SETTINGS) as node:
        keys = await made(node)
        node.lives[0].mailboxes.lost.add("loads.use")
        await work(node, keys, (0.4, 0.4, 0.0, 0.0), 5 * INTERVAL_S)
        assert owners(node) == (0,) * PARTITIONS
        node.lives[0].mailboxes.lost.clear()
        await work(node, keys, (0.4, 0.4, 0.0, 0.0), 5 * INTERVAL_S)
        await settled(node)
        assert sorted(owners(node)[:2]) == [0, 1]


async def test_a_core_that_was_restarted_counts_from_its_new_beginning(autojump_clock):
    async with running_node(CORES, SETTINGS) as node:
        keys = await made(node)
        await work(node, keys, (0.4, 0.4, 0.0, 0.0), INTERVAL_S // 2)
        await node.restart(1)
        await work(node, keys, (0.4, 0.4, 0.0, 0.0), 4 * INTERVAL_S)
        await settled(node)
        assert sorted(owners(node)[:2]) == [0, 1]


async def test_reads_that_python_answers_are_counted(autojump_clock):
    async with running_node(1) as node:
        (key, *_others) = await made(node)
        partition = node[0].partitions.get(key)
        partition.files.log.append(b"", 0)
        node[0].plane.count_read(partition.handle, 1000)
        assert node[0].plane.use(partition.handle) == PartitionUse(0, 0, 1, 1000)
        facts = await node[0].loads.facts_of_node()
        assert facts["owners"] == {"t": (0,) * PARTITIONS}
        ((topic, index, cost),) = [row for row in facts["cores"][0]["costs_ns"] if row[2]]
        assert (topic, index, cost) == ("t", 0, 8_250)


class InCluster(Moving):
    """Core 0 of node 1 of a cluster, as its loads see it: both partitions of `t` that are busy are on its core 0."""

    def __init__(self):
        super().__init__()
        self.begun, self.use_ns = [], {}
        settings = load_settings("", [*SETTINGS, "node.id=1"]).settings
        mailboxes = SimpleNamespace(serve=lambda *_: None, call=self.call)
        self.core = SimpleNamespace(
            core_id=CoreId(0), cluster=object(), settings=settings, mailboxes=mailboxes, view=self, node=NodeId(1),
            moves=SimpleNamespace(begin_own=self.begin_own), is_up=lambda _core: True, clock=self,
            partitions=self, plane=self,
        )  # fmt: skip
        self.node, self.cores, self.cpu = NodeId(1), CORES, 0
        self.keys = [TopicPartition(self.topic.topic_id, PartitionIndex(n)) for n in range(3)]
        for index in range(3):
            self.put(index, 0)

    def put(self, index, core):
        place = Replica(NodeId(1), CoreId(core))
        replicas = list(self.topic.replicas)
        replicas[index] = tuple(place if each.node == 1 else each for each in replicas[index])
        owners = tuple(each[0].core for each in replicas)
        self.apply([TopicAssigned(self.topic.topic_id, owners, (), tuple(replicas), self.topic.voters)])

    def place(self, node, index):
        return self.topic.core_on(NodeId(node), index)

    def here(self, core):
        return [key for key in self.keys if self.topic.core_on(self.node, key.partition) == core]

    def cpu_ns(self):
        return round(trio.current_time() * 1e9)

    def opened(self):
        return [SimpleNamespace(key=key, handle=key) for key in self.here(0)]

    def use(self, key):
        """Partitions 0 and 1 take a third of a CPU each."""
        return PartitionUse(reads=round(trio.current_time() * 40_000) if key.partition < 2 else 0)

    async def call(self, _core, method, _payload, **_more):
        assert method == "loads.use"
        costs = [[key.topic_id.hex, key.partition, cost_ns(self.use(key))] for key in self.here(1)]
        return {"cpu_ns": self.cpu_ns(), "costs_ns": costs}, []

    async def begin_own(self, shifts):
        self.begun.append([(one.key.partition, one.source, one.target) for one in shifts])
        for one in shifts:
            self.put(one.key.partition, one.target)
        return len(shifts)

    async def run(self, seconds):
        with trio.move_on_after(seconds):
            await CoreLoads(self.core, self.core.moves).run()
        return self.begun


async def test_a_node_of_a_cluster_evens_its_own_cores_out(autojump_clock):
    node = InCluster()
    assert await node.run(5 * INTERVAL_S) == [[(0, 0, 1)]]
    node.put(0, 0)
    assert len(await node.run(COOLDOWN_S + 5 * INTERVAL_S)) == 2


async def test_what_a_node_of_a_cluster_leaves_as_it_is(autojump_clock):
    node = InCluster()
    node.ask(("t", 0, with_core(node.image, "t", 0, Replica(NodeId(2), CoreId(1 - node.place(2, 0))))))
    node.ask(("t", 1, node.brokers(4, 2, 3, index=1)))
    assert len(node.image.moving) == len(node.topic.moves) == 1
    assert await node.run(5 * INTERVAL_S) == [], "other replicas of the one are on their way, and of the other"
    node = InCluster()
    node.ask(("t", 2, with_core(node.image, "t", 2, Replica(NodeId(1), CoreId(1)))))
    assert await node.run(5 * INTERVAL_S) == [], "a replica of its own is on its way"
    node = InCluster()
    node.core.settings = load_settings("", [*SETTINGS, "replica.moves.paused=true"]).settings
    assert await node.run(5 * INTERVAL_S) == []
