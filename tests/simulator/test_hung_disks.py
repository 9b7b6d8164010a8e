"""Simulated nodes with a disk on which nothing comes back any more: neither a sync nor a reservation of space."""

from __future__ import annotations

from unittest import mock

import pytest
import trio

from tests.simulator.nodes_cluster import simulate
from tests.simulator.nodes_load import Load
from tpc_broker.raft.messages import AppendEntries
from tpc_broker.raft.settings import Settings

PARTITIONS = 3
STALLED_S = Settings().disk_hangs_ms / 1000
ELECTED_S = 5.0
CLIENTS_S = 15.0
"""A client waits for the answer of who does not answer, and then asks others who leads."""
HANGS_S = 15.0
MANY = 12
MUTE_S = 3.0
"""Until those who lead have found out that it takes nothing."""
AGAIN_S = 10.0


@pytest.mark.parametrize("has_metadata", [True, False], ids=["leads the metadata", "does not"])
def test_what_a_node_with_a_hung_disk_leads_others_lead_in_some_seconds(has_metadata):
    async def story(cluster):
        load = Load(cluster, PARTITIONS)
        await load.begin()
        load.read()
        (controller,) = load.controllers()
        candidates = [node for node in cluster.nodes.values() if (node.number == controller) is has_metadata]
        hung = max(candidates, key=load.led_by)
        assert load.led_by(hung), "else there is nothing to see"
        hung.disk.is_hung = True
        await load.until(STALLED_S + ELECTED_S, lambda: not load.led_by(hung), "it leads, and nothing becomes durable")
        await load.progress(ELECTED_S + CLIENTS_S, "what others lead is not written")
        with trio.move_on_after(STALLED_S + ELECTED_S + CLIENTS_S):
            await load.admin.create_topic("more", 1)
        assert "more" in cluster.promises.topics, "the metadata are not written"
        await trio.sleep(HANGS_S)
        assert not load.led_by(hung)
        assert hung.number not in load.controllers()
        await load.progress(ELECTED_S, "what others lead is not written any more")
        hung.disk.is_hung = False
        await load.progress(ELECTED_S + CLIENTS_S, "nothing is written afterwards")
        await load.end()

    simulate(11, story, nodes_count=3)


def test_what_was_never_written_before_its_leaders_disk_hung_others_lead_too():
    async def story(cluster):
        load = Load(cluster, PARTITIONS)
        await load.begin(writes=False)
        nodes = cluster.nodes.values()
        await load.until(ELECTED_S, lambda: sum(map(load.led_by, nodes)) == PARTITIONS, "not all are led")
        hung = max(nodes, key=load.led_by)
        hung.disk.is_hung = True
        load.write()
        await load.until(2 * (STALLED_S + ELECTED_S), lambda: not load.led_by(hung), "it leads, and takes nothing")
        hung.disk.is_hung = False
        await load.end()

    simulate(12, story, nodes_count=3)


def test_a_follower_with_a_hung_disk_costs_what_others_lead_no_more_than_a_dead_one():
    """What others lead is written as fast; it is sent little for all partitions together, and soon has everything."""
    settings, sent = Settings(), []

    def all_in_sync(load):
        lives = [life for _node, life in load.cluster.lives()]
        led = [one for life in lives for one in life.replication._driver.core.groups.values() if one.is_leader]
        return len(led) >= MANY and all(machine.all_in_sync() for machine in led)

    async def written(load):
        before = sum(load.sent)
        await trio.sleep(HANGS_S)
        return sum(load.sent) - before

    async def story(cluster):
        load = Load(cluster, MANY)
        await load.begin()
        hung = min(cluster.nodes.values(), key=load.led_by)
        core = hung.first.replication._driver.core
        hung.disk.is_hung = True
        await load.until(STALLED_S + ELECTED_S, lambda: not load.led_by(hung), "it leads, and nothing becomes durable")
        await load.progress(ELECTED_S + CLIENTS_S, "what others lead is not written")
        await trio.sleep(MUTE_S)
        receive = core.receive

        def note(frame, now_ms):
            sent.extend(one for one in frame.messages if isinstance(one, AppendEntries) and one.items)
            receive(frame, now_ms)

        with mock.patch.object(core, "receive", note):
            while_hung = await written(load)
        rounds = HANGS_S * 1000 / settings.resend_ms_max + 1
        assert len(sent) <= 2 * rounds, "each of the two others tries one message in each round"
        hung.disk.is_hung = False
        await load.until(AGAIN_S, lambda: all_in_sync(load), "it lacks something still")
        await hung.crash()
        await load.progress(ELECTED_S + CLIENTS_S, "what others lead is not written")
        while_dead = await written(load)
        assert while_hung > 0.8 * while_dead, (while_hung, while_dead)
        await hung.start()
        await load.progress(ELECTED_S + CLIENTS_S, "nothing is written afterwards")
        await load.end()

    simulate(13, story, nodes_count=3)
