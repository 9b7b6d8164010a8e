"""Simulated nodes whose disks are full: others lead while they can, and nothing goes round when nobody can."""

from __future__ import annotations

import trio

from tests.simulator.nodes_clients import Admin, Producer
from tests.simulator.nodes_cluster import simulate
from tests.simulator.nodes_oracle import Oracle, partition_key
from tpc_broker import limits
from tpc_broker.raft.output import LEADER

PARTITIONS = 6
FIRST_S = (limits.SPACELESS_MS_MAX + limits.SPACELESS_TRANSFER_MS) / 1000
HANDED_S = 10.0
STAYS_S = 20.0
LOOK_S = 0.1


class World:
    """Nodes with a topic, whose partitions producers write to all the time."""

    def __init__(self, cluster):
        self.cluster, self.oracle = cluster, Oracle(cluster)
        self.sent = [0] * PARTITIONS
        self.is_over = False

    async def begin(self):
        cluster = self.cluster
        for node in cluster.nodes.values():
            cluster.nursery.start_soon(node.start)
        await self.until(60, lambda: len(cluster.ready()) == len(cluster.nodes), "no cluster")
        cluster.nursery.start_soon(self.oracle.run)
        await Admin(cluster, "admin").create_topic("t", PARTITIONS)
        for index in range(PARTITIONS):
            cluster.nursery.start_soon(self._produce, index)
        await self.progress(30, "nothing is written")

    async def _produce(self, index):
        producer = Producer(self.cluster, f"p{index}", "t", index)
        while not self.is_over:
            await producer.send()
            self.sent[index] += 1
            await trio.sleep(producer.chance.uniform(0, 0.2))

    async def until(self, seconds, condition, what):
        with trio.move_on_after(seconds):
            while not condition():
                await trio.sleep(LOOK_S)
            return
        self.cluster.fails(what)
        await trio.sleep_forever()

    async def progress(self, seconds, what):
        before = list(self.sent)
        await self.until(seconds, lambda: all(now > was for now, was in zip(self.sent, before, strict=True)), what)

    def led_by(self, node):
        """Partitions of the topic."""
        life = node.first
        topic = life.core.view.topic("t")
        machines = (life.replication.machine_of(partition_key(topic, index)) for index in range(PARTITIONS))
        return sum(machine is not None and machine.role is LEADER for machine in machines)

    def leaderships(self):
        """Of the topic, since the beginning."""
        names = {name for life in (node.first for node in self.cluster.ready()) for name in life.replication._keys}
        return sum(name in names for name, _term in self.oracle.leaders)

    async def end(self):
        self.is_over = True
        await self.oracle.must_settle()


def test_what_a_full_node_leads_others_lead_and_it_comes_back_when_there_is_space():
    async def story(cluster):
        world = World(cluster)
        await world.begin()
        full = max(cluster.nodes.values(), key=world.led_by)
        assert world.led_by(full)
        full.disk.is_full = True
        await world.until(FIRST_S + HANDED_S, lambda: not world.led_by(full), "it leads, and takes nothing")
        await world.progress(HANDED_S, "what others lead is not written")
        leaderships = world.leaderships()
        with trio.move_on_after(STAYS_S):
            while not world.led_by(full):
                await trio.sleep(LOOK_S)
            cluster.fails("it leads again without space")
        assert world.leaderships() == leaderships
        await world.progress(HANDED_S, "what others lead is not written any more")
        full.disk.is_full = False
        await trio.sleep(HANDED_S)
        await world.progress(HANDED_S, "nothing is written afterwards")
        await world.end()

    simulate(3, story, nodes_count=3)


def test_a_full_node_gets_no_new_replicas_while_others_can_have_them():
    async def story(cluster):
        world = World(cluster)
        await world.begin()
        full = cluster.nodes[2]

        def known(*numbers):
            return all(node.first.core.full_nodes == frozenset(numbers) for node in cluster.nodes.values())

        async def placed(topic, factor):
            await Admin(cluster, "admin").create_topic(topic, PARTITIONS, factor)
            view = cluster.nodes[1].first.core.view
            await world.until(HANDED_S, lambda: view.topic(topic), "a topic that nobody knows")
            return {replica.node for replicas in view.topic(topic).replicas for replica in replicas}

        full.disk.is_full = True
        await world.until(HANDED_S, lambda: known(2), "nobody knows that it is full")
        facts = cluster.nodes[1].first.core.cluster.facts()
        assert [row["node"] for row in facts["nodes"] if row["full"]] == [2]
        assert await placed("others", 2) == {1, 3}
        assert await placed("all", 3) == {1, 2, 3}, "there are too few others"
        full.disk.is_full = False
        await world.until(HANDED_S, known, "nobody knows that it has space again")
        assert 2 in await placed("afterwards", 2)
        await world.end()

    simulate(5, story, nodes_count=3)


def test_when_all_are_full_nothing_goes_round_and_all_goes_on_when_one_majority_has_space():
    async def story(cluster):
        world = World(cluster)
        await world.begin()
        before = world.leaderships()
        for node in cluster.nodes.values():
            node.disk.is_full = True
        await trio.sleep(2 * STAYS_S)
        assert world.leaderships() - before <= 2 * PARTITIONS, "who knows that all are full gives nothing up"
        for number in (1, 2):
            cluster.nodes[number].disk.is_full = False
        again_s = limits.SPACELESS_AGAIN_MS_MAX / 1000
        await world.progress(again_s + HANDED_S, "a majority has space, and nothing is written")
        cluster.nodes[3].disk.is_full = False
        await world.progress(HANDED_S, "nothing is written afterwards")
        await world.end()

    simulate(4, story, nodes_count=3)
