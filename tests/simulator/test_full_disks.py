"""Simulated nodes whose disks are full: others lead while they can, and nothing goes round when nobody can."""

from __future__ import annotations

import trio

from tests.simulator.nodes_clients import Admin
from tests.simulator.nodes_cluster import simulate
from tests.simulator.nodes_load import LOOK_S, Load
from tpc_broker import limits

PARTITIONS = 3
FIRST_S = (limits.SPACELESS_MS_MAX + limits.SPACELESS_TRANSFER_MS) / 1000
HANDED_S = 10.0
RECORD_BYTES = 20_000
"""So what has its place on a disk is soon used up."""
STAYS_S = 20.0

def test_what_a_full_node_leads_others_lead_and_it_comes_back_when_there_is_space():
    async def story(cluster):
        load = Load(cluster, PARTITIONS, RECORD_BYTES)
        await load.begin()
        full = max(cluster.nodes.values(), key=load.led_by)
        assert load.led_by(full)
        full.disk.is_full = True
        await load.until(FIRST_S + HANDED_S, lambda: not load.led_by(full), "it leads, and takes nothing")
        await load.progress(HANDED_S, "what others lead is not written")
        leaderships = load.leaderships()
        with trio.move_on_after(STAYS_S):
            while not load.led_by(full):
                await trio.sleep(LOOK_S)
            cluster.fails("it leads again without space")
        assert load.leaderships() == leaderships
        await load.progress(HANDED_S, "what others lead is not written any more")
        full.disk.is_full = False
        await trio.sleep(HANDED_S)
        await load.progress(HANDED_S, "nothing is written afterwards")
        await load.end()

    simulate(3, story, nodes_count=3)


def test_a_full_node_gets_no_new_replicas_while_others_can_have_them():
    async def story(cluster):
        load = Load(cluster, PARTITIONS)
        await load.begin()
        full = cluster.nodes[2]

        def known(*numbers):
            return all(node.first.core.full_nodes == frozenset(numbers) for node in cluster.nodes.values())

        async def placed(topic, factor):
            await Admin(cluster, "admin").create_topic(topic, PARTITIONS, factor)
            view = cluster.nodes[1].first.core.view
            await load.until(HANDED_S, lambda: view.topic(topic), "a topic that nobody knows")
            return {replica.node for replicas in view.topic(topic).replicas for replica in replicas}

        full.disk.is_full = True
        await load.until(HANDED_S, lambda: known(2), "nobody knows that it is full")
        facts = cluster.nodes[1].first.core.cluster.facts()
        assert [row["node"] for row in facts["nodes"] if row["full"]] == [2]
        assert await placed("others", 2) == {1, 3}
        assert await placed("all", 3) == {1, 2, 3}, "there are too few others"
        full.disk.is_full = False
        await load.until(HANDED_S, known, "nobody knows that it has space again")
        assert 2 in await placed("afterwards", 2)
        await load.end()

    simulate(5, story, nodes_count=3)


def test_when_all_are_full_nothing_goes_round_and_all_goes_on_when_one_majority_has_space():
    async def story(cluster):
        load = Load(cluster, PARTITIONS)
        await load.begin()
        before = load.leaderships()
        for node in cluster.nodes.values():
            node.disk.is_full = True
        await trio.sleep(2 * STAYS_S)
        assert load.leaderships() - before <= 2 * PARTITIONS, "who knows that all are full gives nothing up"
        for number in (1, 2):
            cluster.nodes[number].disk.is_full = False
        again_s = limits.SPACELESS_AGAIN_MS_MAX / 1000
        await load.progress(again_s + HANDED_S, "a majority has space, and nothing is written")
        cluster.nodes[3].disk.is_full = False
        await load.progress(HANDED_S, "nothing is written afterwards")
        await load.end()

    simulate(4, story, nodes_count=3)
