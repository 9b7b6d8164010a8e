"""Simulated nodes whose replicas move: asked for, cancelled, paused, and brought back to where they were before."""

from __future__ import annotations

import trio

from tests.simulator.nodes_clients import EVERY_BROKER
from tests.simulator.nodes_cluster import simulate
from tests.simulator.nodes_load import TOPIC, Load
from tpc_broker.model import broker_id_of

MOVED_S = 40.0
STAYS_S = 10.0
WRITTEN_S = 30.0


async def moved(load, wanted):
    """Until these partitions are on these nodes, which alone have files of them."""
    nodes = load.cluster.nodes.values()

    def is_moved():
        return all(load.placed(index) == places and holders(index) == up(places) for index, places in wanted.items())

    def up(numbers):
        return {number for number in numbers if load.cluster.nodes[number].is_on}

    def holders(index):
        return {node.number for node in nodes if node.is_on and node.has_files(TOPIC, index)}

    await load.until(MOVED_S, is_moved, f"it does not move to {wanted}")
    await load.progress(WRITTEN_S, f"what moved to {wanted} is not written")


def test_replicas_move_to_other_nodes_and_back():
    """Records are there at every step, a node that gave a replica up has no files of it, also after a restart."""

    async def story(cluster):
        load = Load(cluster, 2)
        await load.begin(1, 2, 3)
        load.read()
        await load.join(4)
        for index, nodes in enumerate(([4, 2, 3], [4, 1, 2])):
            await load.reassign(index, nodes)
        await moved(load, {0: [4, 2, 3], 1: [4, 1, 2]})
        await cluster.nodes[4].crash()
        await load.reassign(0, [1, 2, 3])
        await moved(load, {0: [1, 2, 3]})
        assert cluster.nodes[4].has_files(TOPIC, 0), "it has not heard of that"
        await load.reassign(0, [4, 2, 3])
        await cluster.nodes[4].start()
        await moved(load, {0: [4, 2, 3], 1: [4, 1, 2]})
        assert cluster.nodes[4].life_of(load.key(0)), "it is another replica by now, which began anew"
        for index in (0, 1):
            await load.reassign(index, [1, 2, 3])
        await moved(load, {0: [1, 2, 3], 1: [1, 2, 3]})
        for number in (1, 2, 3):
            await cluster.nodes[number].crash(is_silent=True)
        for number in (1, 2, 3):
            await cluster.nodes[number].start()
        await load.progress(WRITTEN_S, "nothing is written after all were down")
        await load.end()

    simulate(21, story, nodes_count=4)


def test_a_move_to_a_node_that_is_away_is_cancelled():
    """Nothing is given up before it is there; the replication factor changes where that is allowed."""

    async def story(cluster):
        load = Load(cluster, 1)
        await load.begin(1, 2, 3)
        load.read()
        before = load.placed(0)
        await load.join(4)
        await cluster.nodes[4].crash()
        await load.reassign(0, [4, *before[1:]])
        await trio.sleep(STAYS_S)
        assert not load.placed(0), "it waits for the one that is away"
        await load.progress(WRITTEN_S, "nothing is written while it waits")
        holders = {number for number, node in cluster.nodes.items() if node.has_files(TOPIC, 0)}
        assert holders == set(before), "nothing is given up"
        await load.reassign(0, None)
        await moved(load, {0: before})
        assert not await load.admin.reassign("t", 0, None), "there is nothing to cancel"
        fewer = [broker_id_of(number, 0) for number in before[:2]]
        assert not await load.admin.reassign("t", 0, fewer, allows_factor_change=False)
        await load.reassign(0, before[:1])
        await moved(load, {0: before[:1]})
        await cluster.nodes[4].start()
        await load.reassign(0, [*before[:2], 4])
        await moved(load, {0: [*before[:2], 4]})
        await load.end()

    simulate(22, story, nodes_count=4)


def test_moves_that_are_paused_wait_and_go_on():
    async def story(cluster):
        load = Load(cluster, 1)
        await load.begin(1, 2, 3)
        before = load.placed(0)
        await load.admin.configure(EVERY_BROKER, "replica.moves.paused", "true")
        await load.join(4)
        await load.reassign(0, [4, *before[1:]])
        await trio.sleep(STAYS_S)
        assert not load.placed(0), "it is under way, and waits"
        assert cluster.nodes[before[0]].has_files(TOPIC, 0)
        await load.progress(WRITTEN_S, "nothing is written while it waits")
        await load.admin.configure(EVERY_BROKER, "replica.moves.paused", None)
        await moved(load, {0: [4, *before[1:]]})
        await load.end()

    simulate(23, story, nodes_count=4)
