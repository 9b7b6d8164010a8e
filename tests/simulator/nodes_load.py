"""Simulated nodes with a topic that is written to all the time: what scripted stories of nodes have in common."""

from __future__ import annotations

import trio

from tests.simulator.nodes_clients import Admin, Consumer, Producer
from tests.simulator.nodes_oracle import Oracle, partition_key
from tpc_broker.model import broker_id_of
from tpc_broker.raft.output import LEADER

TOPIC = "t"
LOOK_S = 0.1
FOUNDED_S = 60.0
WRITTEN_S = ASKED_S = 30.0


class Load:
    """`partitions` of the topic `TOPIC`, one producer each, and the oracle of seeded runs, which looks at all nodes."""

    def __init__(self, cluster, partitions, record_bytes=0):
        """`record_bytes`: each is longer by so many than it would be."""
        self.cluster, self.oracle, self.partitions = cluster, Oracle(cluster), partitions
        self.admin = Admin(cluster, "admin")
        self.sent, self._padding = [0] * partitions, "-" * record_bytes
        self._consumers = []
        self.is_over = False

    async def begin(self, *numbers, writes=True):
        """Founds the cluster, of these nodes or of all, and makes the topic."""
        cluster = self.cluster
        nodes = [cluster.nodes[number] for number in numbers or cluster.nodes]
        for node in nodes:
            cluster.nursery.start_soon(node.start)
        await self.until(FOUNDED_S, lambda: len(cluster.ready()) == len(nodes), "no cluster")
        cluster.nursery.start_soon(self.oracle.run)
        await self.admin.create_topic(TOPIC, self.partitions)
        if writes:
            self.write()
            await self.progress(WRITTEN_S, "nothing is written")

    def write(self):
        """From now on."""
        for index in range(self.partitions):
            self.cluster.nursery.start_soon(self._produce, index)

    async def _produce(self, index):
        producer = Producer(self.cluster, f"p{index}{self._padding}", TOPIC, index)
        while not self.is_over:
            await producer.send()
            self.sent[index] += 1
            await trio.sleep(producer.chance.uniform(0, 0.2))

    def read(self):
        """By a consumer of each partition; `end` waits until each has read all."""
        self._consumers = [Consumer(self.cluster, f"c{index}", TOPIC, index) for index in range(self.partitions)]
        for consumer in self._consumers:
            self.cluster.nursery.start_soon(self._consume, consumer)

    async def _consume(self, consumer):
        while True:
            await consumer.read()
            await consumer.again()

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

    # -- what the nodes believe ----------------------------------------------------------------------------------------

    def asked(self):
        """The first core of the node that has the newest metadata."""
        return max((node.first for node in self.cluster.ready()), key=lambda life: life.core.view.image.version)

    def image(self):
        return self.asked().core.view.image

    def topic(self, name=TOPIC):
        return self.image().topic(name)

    def key(self, index):
        return partition_key(self.topic(), index)

    def placed(self, index, name=TOPIC):
        """The nodes of its replicas, of which the first one is preferred; none while they are on their way."""
        topic = self.topic(name)
        return [] if topic.moves.get(index) is not None else [int(place.node) for place in topic.replicas[index]]

    def cores(self, index, name=TOPIC):
        """The core of each node that has a replica."""
        return {int(place.node): int(place.core) for place in self.topic(name).replicas[index]}

    def replicas(self, number):
        """So many replicas does a node have, of all topics, also while they are on their way."""
        return sum(
            place.node == number
            for topic in self.image().topics.values()
            for index in range(topic.partitions_count)
            for place in topic.places(index)
        )

    def led_by(self, node):
        """Partitions of the topic; none as long as the node has not heard of it."""
        topic = node.first.core.view.topic(TOPIC)
        if topic is None:
            return 0
        machines = [
            life.replication.replicas.machine_of(partition_key(topic, index))
            for life in node.lives.values() for index in range(self.partitions)
        ]  # fmt: skip
        return sum(machine is not None and machine.role is LEADER for machine in machines)

    def votes_where_it_is(self, index):
        """The voters of a partition, as its leader knows them, are the nodes that it is to be on."""
        machines = [life.replication.replicas.machine_of(self.key(index)) for _node, life in self.cluster.lives()]
        leading = [machine for machine in machines if machine is not None and machine.role is LEADER]
        if not leading:
            return False
        config = max(leading, key=lambda machine: machine.term).config
        return not config.is_joint and sorted(int(voter.node) for voter in config.old) == sorted(self.placed(index))

    def leaderships(self):
        """Of the topic, since the beginning."""
        names = {name for node in self.cluster.ready() for name in node.first.replication.replicas.keys}
        return sum(name in names for name, _term in self.oracle.leaders)

    def rows(self):
        """What people are told of each node."""
        return {row["node"]: row for row in self.asked().core.cluster.facts()["nodes"]}

    def metadata_voters(self):
        return {number for number, row in self.rows().items() if row["metadata"] != "observer"}

    def controllers(self):
        return [node.number for node in self.cluster.ready() if node.first.node_main.is_controller]

    # -- what is asked of them -----------------------------------------------------------------------------------------

    async def join(self, number):
        await self.cluster.nodes[number].start()
        await self.until(FOUNDED_S, lambda: number in self.image().nodes, f"node {number} does not join")

    async def reassign(self, index, nodes):
        """Until it is begun; None in place of nodes takes back what is under way."""
        brokers = None if nodes is None else [broker_id_of(number, 0) for number in nodes]
        with trio.move_on_after(ASKED_S):
            while not await self.admin.reassign(TOPIC, index, brokers):
                await self.admin.again()
            return
        self.cluster.fails(f"{TOPIC}-{index} is not sent to {nodes}")
        await trio.sleep_forever()

    async def end(self):
        """Nothing more is sent, all was read, and the nodes agree on what was promised."""
        self.is_over = True
        await self.oracle.must_settle()
        acknowledged = self.cluster.promises.acknowledged
        await self.until(
            WRITTEN_S,
            lambda: all(one.offset > max(acknowledged[one.key], default=-1) for one in self._consumers),
            "not all that was acknowledged was read",
        )
