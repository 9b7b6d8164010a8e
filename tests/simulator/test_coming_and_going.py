"""Simulated nodes that join, are drained, are lost and come back: replicas and leaderships go by themselves."""

from __future__ import annotations

import trio

from tests.simulator.nodes_cluster import simulate
from tests.simulator.nodes_load import Load

PARTITIONS = 4
EVEN_S = 90.0
"""More than the delay after which a node that is away is replaced (`nodes_cluster.SETTINGS`)."""
LOST_S = 60.0
HANDED_S = 30.0
WRITTEN_S = 30.0


async def even(load, nodes, what):
    """Until these nodes have all replicas, within one, and nothing is under way."""

    def is_even():
        counts = {number: load.replicas(number) for number in load.cluster.nodes}
        within = [counts[number] for number in nodes]
        is_under_way = any(topic.moves for topic in load.image().topics.values())
        is_even = sum(within) == sum(counts.values()) and max(within) - min(within) <= 1
        return is_even and not is_under_way and all(map(load.votes_where_it_is, range(PARTITIONS)))

    await load.until(EVEN_S, is_even, f"{what}: not even")
    await load.progress(WRITTEN_S, f"{what}: nothing is written")


def test_a_node_joins_one_is_lost_and_comes_back_and_one_leaves():
    async def story(cluster):
        load = Load(cluster, PARTITIONS)
        await load.begin(1, 2, 3)
        load.read()
        await load.join(4)
        await even(load, {1, 2, 3, 4}, "node 4 has its share")
        await cluster.nodes[2].crash(is_silent=True)
        await even(load, {1, 3, 4}, "node 2 is replaced")
        await cluster.nodes[2].start()
        await even(load, {1, 2, 3, 4}, "node 2 gets replicas again")
        await load.admin.drain(4)
        await even(load, {1, 2, 3}, "node 4 has given all of its own away")
        await cluster.nodes[4].crash()
        await load.progress(WRITTEN_S, "nothing is written without node 4")
        await cluster.nodes[4].start()
        await load.admin.drain(4, ends=True)
        await load.end()

    simulate(31, story, nodes_count=4)


def test_two_nodes_join_and_leave_again():
    async def story(cluster):
        load = Load(cluster, PARTITIONS)
        await load.begin(1, 2, 3)
        load.read()
        for number in (4, 5):
            await load.join(number)
        await even(load, {1, 2, 3, 4, 5}, "the new nodes have their share")
        for number in (4, 5):
            await load.admin.drain(number)
        await even(load, {1, 2, 3}, "they have given all of their own away")
        for number in (4, 5):
            await load.admin.drain(number, ends=True)
        await load.end()

    simulate(32, story, nodes_count=5)


def test_who_leads_the_metadata_is_drained():
    """Another node leads the metadata and what it led, a spare one votes in its place, and it gets nothing new."""

    async def story(cluster):
        load = Load(cluster, PARTITIONS)
        await load.begin(1, 2, 3)
        await load.join(4)
        (drained,) = load.controllers()
        node = cluster.nodes[drained]
        await load.admin.drain(drained)
        await load.until(HANDED_S, lambda: load.controllers() not in ([], [drained]), "it leads the metadata")

        await load.until(HANDED_S, lambda: load.rows()[drained]["state"] == "draining", "it is not shown as draining")
        others = {1, 2, 3, 4} - {drained}
        await load.until(HANDED_S, lambda: load.metadata_voters() == others, "the spare one does not vote in its place")
        await load.until(HANDED_S, lambda: not load.led_by(node), "it leads partitions")
        await load.admin.create_topic("new", 4)
        await load.until(HANDED_S, lambda: load.topic("new"), "a topic that nobody knows")
        assert all(drained not in load.placed(index, "new") for index in range(4))
        await load.progress(WRITTEN_S, "nothing is written")
        await load.admin.drain(drained, ends=True)
        await load.until(HANDED_S, lambda: load.rows()[drained]["state"] == "alive", "it is not one of them again")
        await load.end()

    simulate(33, story, nodes_count=4)


def test_a_node_that_is_removed_is_missed_nowhere():
    """Another one has its replicas, and votes in its place; under its number a new one joins with an empty disk."""

    async def story(cluster):
        load = Load(cluster, PARTITIONS)
        await load.begin(1, 2, 3)
        load.read()
        await load.join(4)
        await even(load, {1, 2, 3, 4}, "node 4 has its share")
        await cluster.nodes[3].leave()
        with trio.move_on_after(LOST_S):  # refused until it is buried
            await load.admin.remove(3)
        await even(load, {1, 2, 4}, "node 3 is removed")
        assert 3 not in load.image().nodes
        await load.until(HANDED_S, lambda: load.metadata_voters() == {1, 2, 4}, "no other one votes on the metadata")
        await cluster.nodes[2].crash()
        await load.progress(WRITTEN_S, "two of the three that are left are no majority")
        await cluster.nodes[2].start()
        await cluster.nodes[3].come_new()
        await even(load, {1, 2, 3, 4}, "it joins as new")
        await load.end()

    simulate(34, story, nodes_count=4)
