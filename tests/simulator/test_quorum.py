"""Who votes on the metadata and how far everybody is: any simulated node tells the same."""

from __future__ import annotations

import uuid

from tests.simulator.nodes_clients import Client
from tests.simulator.nodes_cluster import simulate
from tests.simulator.nodes_load import Load
from tpc_broker.kafka import messages

TOLD_S = 30.0
VOTERS, OBSERVERS = (1024, 2048, 3072), (4096,)


class Asker(Client):
    """Notes what each node tells: who leads, voters, observers, incarnations, and whether all have everything."""

    def __init__(self, cluster):
        super().__init__(cluster, "asker")
        self.quorum, self.controllers = {}, {}

    async def run(self):
        while True:
            for number in self.cluster.nodes:
                broker = self.cluster.broker(number * 1024)
                self._note_quorum(number, await self.ask(broker, self._quorum_asked()))
                await self._ask_for_controller(number, broker)
            await self.again()

    @staticmethod
    def _quorum_asked():
        kind = messages.DescribeQuorumRequest
        part = kind.PartitionData(partition_index=0)
        return kind(topics=[kind.TopicData(topic_name="__cluster_metadata", partitions=[part])])

    def _note_quorum(self, number, answer):
        self.quorum.pop(number, None)
        if answer is None or answer.error_code:
            return
        (found,) = answer.topics[0].partitions
        every = found.current_voters + found.observers
        if not found.error_code and all(one.log_end_offset == found.high_watermark for one in every):
            voters, observers = (
                tuple(one.replica_id for one in some) for some in (found.current_voters, found.observers)
            )
            self.quorum[number] = found.leader_id, voters, observers, {one.replica_directory_id for one in every}

    async def _ask_for_controller(self, number, broker):
        told = set()
        for request, version in ((messages.MetadataRequest(topics=[]), 9), (messages.DescribeClusterRequest(), 0)):
            answer = await self.ask(broker, request, version)
            told.add(None if answer is None else answer.controller_id)
        self.controllers[number] = told


def test_any_node_tells_the_same_quorum_and_controller():
    async def story(cluster):
        load = Load(cluster, 2)
        await load.begin(1, 2, 3)
        await load.join(4)
        asker = Asker(cluster)
        cluster.nursery.start_soon(asker.run)

        def is_told():
            controllers = [number * 1024 for number in load.controllers()]
            up = [node.number for node in cluster.ready()]
            told = [asker.quorum.get(number, (None,) * 4) for number in up]
            return len(controllers) == 1 and all(
                (leader, voters, observers) == (*controllers, VOTERS, OBSERVERS)
                and len(incarnations - {uuid.UUID(int=0)}) == 4
                and asker.controllers[number] == set(controllers)
                for number, (leader, voters, observers, incarnations) in zip(up, told, strict=True)
            )

        await load.until(TOLD_S, is_told, "not all nodes tell of three voters and an observer")
        (before,) = load.controllers()
        await cluster.nodes[before].crash()
        await load.until(TOLD_S, lambda: load.controllers() not in ([], [before]), "nobody else leads the metadata")
        await cluster.nodes[before].start()
        await load.until(TOLD_S, is_told, "not all nodes tell of who leads now")
        await load.end()

    simulate(61, story, nodes_count=4)
