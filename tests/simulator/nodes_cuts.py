"""One-way cuts between three simulated nodes, of which each leads a partition and one the metadata.

What is to be seen follows from how many links a cut (`tests.support.one_way_cuts`) leaves:

* Three or two (each node, or one of them, hears both others): everything is led, written and told by all nodes.
* One: the same by these two. The third one sends its clients to them.
* None: nobody leads anything, and nothing is acknowledged.

Where only datagrams are cut all links are there.
"""

from __future__ import annotations

from typing import Final

import trio

from tests.simulator.nodes_clients import Client, Producer
from tests.simulator.nodes_load import TOPIC, Load
from tests.simulator.nodes_network import TCP, UDP
from tests.simulator.nodes_oracle import partition_key
from tests.support.one_way_cuts import text_of, together
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.model import node_of
from tpc_broker.swim.model import State

MADE: Final = "made"
"""A topic, while a cut stands."""
PARTITIONS: Final = 3
PACE_S: Final = 0.8
SETTLED_S: Final = 5.0
SPREAD_S: Final = 10.0
ON_ITS_WAY_S: Final = 0.5
"""What was sent before a cut, and is answered after it."""
DOWN_S: Final = 3.0
READY_S: Final = 10.0
STANDS_S: Final = 15.0
"""Membership has given up by then who is heard by nobody."""
TOGETHER_S: Final = 30.0


class LoyalProducer(Producer):
    """Asks one node who leads, as clients do that prefer who has the least to do, for as long as that names itself."""

    def __init__(self, cluster, name, index, node):
        super().__init__(cluster, name, TOPIC, index)
        self.asks, self.last_s = node, 0.0

    def begin_anew(self, node):
        """It knows nothing, and asks that node."""
        self.asks, self._broker = node, None

    async def leader(self, topic, index):
        answer = await told(self, self.asks)
        if answer is None:
            return None
        nodes, leaders = answer
        if self.asks not in nodes:
            self.asks = self.chance.choice(sorted(nodes))
        return self.cluster.broker(leaders[index] * 1024) if leaders[index] is not None else None


async def told(client, number):
    """By that node to a client of the topic: the nodes to ask, and who leads each partition; None: nothing."""
    kind = messages.MetadataRequest
    asked = kind(topics=[kind.MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False)
    answer = await client.ask(client.cluster.broker(number * 1024), asked, 12)
    if answer is None:
        return None
    leaders = {part.partition_index: part.leader_id for part in answer.topics[0].partitions}
    numbers = [node_of(leaders[index]) if leaders.get(index, -1) >= 0 else None for index in range(PARTITIONS)]
    return {node_of(broker.node_id) for broker in answer.brokers}, numbers


class Cuts:
    """Between nodes that are written to by clients of each partition, of which each asks one node who leads."""

    def __init__(self, cluster):
        self.cluster, self.load = cluster, Load(cluster, PARTITIONS)
        self.nodes = list(cluster.nodes.values())
        self.clients = [LoyalProducer(cluster, f"client {index}", index, node=1) for index in range(PARTITIONS)]
        self.looker = Client(cluster, "looker")

    async def begin(self):
        await self.load.begin(writes=False)
        for client in self.clients:
            self.cluster.nursery.start_soon(self._write, client)
        await self.until_all_write("at first")

    async def end(self):
        self.load.read()
        await self.load.end()

    async def _write(self, client):
        while not self.load.is_over:
            await client.send()
            client.last_s = trio.current_time()
            await trio.sleep(client.chance.uniform(0.5, 1.5) * PACE_S)

    async def until_all_write(self, what):
        """Also by those who ask a node that is cut off."""
        since_s = trio.current_time()
        await self.load.until(
            SETTLED_S, lambda: all(client.last_s > since_s for client in self.clients), f"not all is written: {what}"
        )

    # -- a combination -------------------------------------------------------------------------------------------------

    async def stand(self, links, datagrams, restarts=None):
        """From the cut of these ways until all is as before. `restarts`: the place of a node that is killed and started
        while the cut stands.
        """
        what = f"links {text_of(links)}, datagrams {text_of(datagrams)}"
        (controller,) = self.load.controllers()
        order = sorted(self.nodes, key=lambda node: (node.number != controller, node.number))
        await self.spread()
        near = [order[place] for place in together(links)]
        far = [node for node in order if node not in near]
        for kind, edges in ((TCP, links), (UDP, datagrams)):
            for source, target in sorted(edges):
                self.cluster.network.block(order[source].host, order[target].host, (kind,))
        for place, client in enumerate(self.clients):
            client.begin_anew((far or order)[place % len(far or order)].number)
        if near:
            await self._go_on(near, far, what)
        else:
            await self._stop(what)
        if restarts is not None:
            await self._restart(order[restarts], near, f"{what}, node {restarts} restarts")
        self.cluster.network.heal()
        await self.load.until(SETTLED_S, lambda: self.is_settled(self.nodes), f"not settled after {what}")
        await self.until_all_write(f"after {what}")
        await self.load.until(
            TOGETHER_S, lambda: self.are_all(State.ALIVE, self.nodes, self.nodes), f"not together after {what}"
        )

    async def spread(self):
        """Each node leads a partition."""
        topic = self.load.topic()

        def isspread():
            for index, node in enumerate(self.nodes):
                for other in self.nodes:
                    if other is not node and self.leads(other, topic, index):
                        other.first.replication.hand_overs.transfer(partition_key(topic, index), node.number)
            return all(self.leads(node, topic, index) for index, node in enumerate(self.nodes))

        await self.load.until(SPREAD_S, lambda: isspread() and self.is_settled(self.nodes), "not each leads something")

    async def _go_on(self, near, far, what):
        await self.load.until(SETTLED_S, lambda: self.is_settled(near), f"not settled: {what}")
        await self.until_all_write(what)
        for client, node in zip(self.clients, [*far, *near], strict=False):
            client.begin_anew(node.number)
        await self._make_topic(near[1], near, what)
        await trio.sleep(STANDS_S)
        for node in far:
            nodes, leaders = await told(self.looker, node.number) or (set(), [])
            if node.number in nodes | set(leaders) or not nodes:
                self.cluster.fails(f"{what}: clients of node {node.number} are sent to {nodes}, leaders {leaders}")
        await self._stays_settled(near, f"later, {what}")

    async def _make_topic(self, asked, near, what):
        """By a node, also one that does not hear who leads the metadata."""
        kind = messages.CreateTopicsRequest
        topic = kind.CreatableTopic(name=MADE, num_partitions=1, replication_factor=3)
        code = None
        with trio.move_on_after(SETTLED_S):
            while code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                answer = await self.looker.ask(self.cluster.broker(asked.number * 1024), kind(topics=[topic]))
                code = answer and ErrorCode(answer.topics[0].error_code)
                await self.looker.again()
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self.cluster.fails(f"node {asked.number} makes no topic ({code}): {what}")
        self.cluster.promises.topics[MADE] = 1
        await self.load.until(
            SETTLED_S, lambda: all(self._told(node, MADE) not in ([], [None]) for node in near), f"not told: {what}"
        )

    async def _restart(self, node, near, what):
        before = [client.last_s for client in self.clients]
        await node.crash()
        await trio.sleep(DOWN_S)
        await node.start()
        if node in near:
            await self.load.until(READY_S, lambda: node.is_ready, f"not ready: {what}")
            await self.load.until(SETTLED_S, lambda: self.is_settled(near), f"not settled: {what}")
        else:
            await trio.sleep(STANDS_S)
        if near:
            await self._stays_settled(near, what)
        elif not self._leads_nobody() or before != [client.last_s for client in self.clients]:
            self.cluster.fails(f"somebody leads: {what}")

    async def _stays_settled(self, near, what):
        if not self.is_settled(near):
            self.cluster.fails(f"not any more: {what}")
        await self.until_all_write(what)

    async def _stop(self, what):
        await trio.sleep(ON_ITS_WAY_S)
        since_s = trio.current_time()
        await self.load.until(SETTLED_S, self._leads_nobody, f"somebody leads: {what}")
        await trio.sleep(STANDS_S)
        if not self._leads_nobody():
            self.cluster.fails(f"somebody leads again: {what}")
        if any(client.last_s > since_s for client in self.clients):
            self.cluster.fails(f"it was acknowledged by nobody else: {what}")

    # -- what nodes believe --------------------------------------------------------------------------------------------

    def _leads_nobody(self):
        """One that is starting has no partition yet."""
        return not self.load.controllers() and not any(map(self.load.led_by, self.cluster.ready()))

    def is_settled(self, near):
        """One node leads the metadata, and each partition one, of those that hear each other; and these tell so."""
        topic = self.load.topic()
        leading = [
            node.number
            for index in range(PARTITIONS) for node in self.nodes
            if self.leads(node, topic, index)
        ]  # fmt: skip
        if len(self.load.controllers()) != 1 or len(leading) != PARTITIONS:
            return False
        return all(self._told(node) == leading for node in near) and {node.number for node in near} >= set(leading)

    @staticmethod
    def are_all(state, nodes, to):
        """What membership says of some to others."""
        found = [one.first.node_main._members.states().get(two.number) for one in to for two in nodes]
        return all(known is not None and known[0] is state for known in found)

    @staticmethod
    def leads(node, topic, index):
        machine = node.first and node.first.replication.replicas.machine_of(partition_key(topic, index))
        return machine is not None and machine.is_leader

    @staticmethod
    def _told(node, name=TOPIC):
        """Who leads each partition; None: nobody."""
        core = node.is_ready and node.first.core
        topic = core and core.view.topic(name)
        rows = core.told.of_topic(0, topic) if topic else []
        return [node_of(row.leader_id) if row.leader_id >= 0 else None for row in rows]
