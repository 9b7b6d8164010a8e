"""Simulated nodes that are started again under load, one after the other, and with other numbers of cores."""

from __future__ import annotations

import trio

from tests.simulator.nodes_clients import EVERY_BROKER
from tests.simulator.nodes_cluster import simulate
from tests.simulator.nodes_groups import Groups
from tests.simulator.nodes_load import TOPIC, Load
from tests.simulator.nodes_logs import logs_of
from tpc_broker.model import broker_id_of

PARTITIONS = 3
DOWN_S = 1.0
"""Shorter than a session: members that find their coordinator again are not sent away."""
WRITTEN_S = SETTLED_S = 30.0
MOVED_S = 40.0


async def settled(load, groups):
    """Each member has its partitions, and each replica votes: the next node may be stopped."""
    with trio.move_on_after(SETTLED_S):
        while await groups.why_unsettled() or not all(map(load.votes_where_it_is, range(PARTITIONS))):
            await trio.sleep(0.5)
        return
    load.cluster.fails(f"the nodes, or the groups, do not settle: {await groups.why_unsettled()}")
    await trio.sleep_forever()


async def goes_on_committing(load, groups):
    before = {group: sum(truth.committed.values()) for group, truth in groups.truths.items()}
    await load.until(
        WRITTEN_S,
        lambda: all(sum(truth.committed.values()) > before[group] for group, truth in groups.truths.items()),
        "a group does not commit",
    )


def test_nodes_are_restarted_one_after_the_other():
    """Members keep their partitions and go on committing, and every record comes to a consumer once and in order."""

    async def story(cluster):
        load = Load(cluster, PARTITIONS)
        await load.begin()
        load.read()
        groups = Groups(cluster, TOPIC, PARTITIONS)
        for member in groups.members:
            cluster.nursery.start_soon(member.run, lambda: load.is_over)
        await settled(load, groups)
        generations = {group: truth.newest for group, truth in groups.truths.items()}
        for node in cluster.nodes.values():
            await node.crash()
            await trio.sleep(DOWN_S)
            await node.start()
            await load.progress(WRITTEN_S, f"nothing is written after node {node.number} was restarted")
            await settled(load, groups)
            await goes_on_committing(load, groups)
        assert {group: truth.newest for group, truth in groups.truths.items()} == generations, "nobody was sent away"
        groups.end()
        await load.end()

    simulate(51, story, nodes_count=3)


def test_nodes_are_restarted_with_other_numbers_of_cores():
    """New cores are used; what a core had that is no more another one has, also when a core ended just before."""

    async def story(cluster):
        load = Load(cluster, PARTITIONS)
        for number, cores in {1: 1, 2: 1, 3: 2}.items():
            cluster.nodes[number].cores = cores
        await load.begin()
        load.read()
        await load.admin.configure(EVERY_BROKER, "replica.balance.enable", "false")

        async def again(number, cores):
            await cluster.nodes[number].crash()
            await cluster.nodes[number].start(cores)
            await load.until(WRITTEN_S, lambda: cluster.nodes[number].is_ready, "it does not start")
            await load.progress(WRITTEN_S, f"nothing is written after node {number} has {cores} cores")

        placed = [load.cores(index) for index in range(PARTITIONS)]
        assert {cores[3] for cores in placed} == {0, 1}
        await again(1, 2)
        assert [load.cores(index) for index in range(PARTITIONS)] == placed, "what is there stays"
        with trio.move_on_after(MOVED_S):
            while not await load.admin.move(TOPIC, 0, broker_id_of(1, 1)):
                await load.admin.again()
        await load.until(MOVED_S, lambda: load.cores(0)[1] == 1 and not load.image().moving, "it does not move")
        await load.admin.create_topic("new", 3)
        await load.until(WRITTEN_S, lambda: load.topic("new"), "a topic that nobody knows")
        assert 1 in {load.cores(index, "new")[1] for index in range(3)}, "a new core is used"
        await cluster.nodes[3].kill_core(1)
        await again(3, 1)
        await again(1, 1)

        def is_on_first_cores():
            return all(
                set(load.cores(index, name).values()) == {0} for name in (TOPIC, "new") for index in range(PARTITIONS)
            )

        await load.until(MOVED_S, is_on_first_cores, "a core that is no more has replicas")
        assert {life.number for _node, life in cluster.lives() if logs_of(life)} == {0}
        await load.progress(WRITTEN_S, "nothing is written on one core each")
        await load.end()

    simulate(52, story, nodes_count=3, cores_max=2)
