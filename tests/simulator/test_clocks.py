"""Simulated nodes whose wall clocks are wrong, by an hour, either way: nothing that counts goes by them."""

from __future__ import annotations

import trio

from tests.simulator.nodes_cluster import simulate
from tests.simulator.nodes_groups import GroupClient, Groups
from tests.simulator.nodes_load import TOPIC, Load

PARTITIONS = 3
HOUR_MS = 3_600_000
STAYS_S = 15.0
"""Longer than a session, an election and what a stalled disk is given."""
WRITTEN_S = 30.0


async def grouped(load, groups):
    with trio.move_on_after(WRITTEN_S):
        while await groups.why_unsettled():
            await trio.sleep(0.5)
        return
    load.cluster.fails(f"groups do not settle: {await groups.why_unsettled()}")
    await trio.sleep_forever()


async def goes_on(load, groups):
    """For a while: what is sent is acknowledged, and each group commits."""
    before = {group: sum(truth.committed.values()) for group, truth in groups.truths.items()}
    await trio.sleep(STAYS_S)
    await load.progress(WRITTEN_S, "nothing is written where a clock is wrong")
    assert all(sum(truth.committed.values()) > before[group] for group, truth in groups.truths.items())


def generations(groups):
    return {group: truth.newest for group, truth in groups.truths.items()}


def test_a_clock_that_jumps():
    """Ahead and back, on a node that leads and coordinates: nobody else comes to lead, no member is sent away, and who
    died is gone after its session. Then it starts again with a clock that is behind.
    """

    async def story(cluster):
        load = Load(cluster, PARTITIONS)
        await load.begin()
        load.read()
        groups = Groups(cluster, TOPIC, PARTITIONS)
        for member in groups.members:
            cluster.nursery.start_soon(member.run, lambda: load.is_over)
        await grouped(load, groups)
        node = (await GroupClient(cluster, "finder", groups.members[0].group)._coordinator()).node
        leaders = dict(load.oracle.leaders)
        formed = generations(groups)
        node.clock.wall_ahead_ms = HOUR_MS
        await goes_on(load, groups)
        assert generations(groups) == formed, "nobody is sent away"
        groups.die(0)
        node.clock.wall_ahead_ms = -HOUR_MS
        await grouped(load, groups)
        regrouped = generations(groups)
        await goes_on(load, groups)
        assert generations(groups) == regrouped
        assert load.oracle.leaders == leaders, "a clock makes nobody lead"
        await node.crash()
        await load.progress(WRITTEN_S, "others do not go on")
        await node.start()
        await load.progress(WRITTEN_S, "nothing is written afterwards")
        groups.end()
        await load.end()

    simulate(41, story, nodes_count=3)


def test_an_empty_disk_and_a_clock_that_is_behind():
    """A host that is put in the place of another one, whose clock was right: it votes in its place."""

    async def story(cluster):
        load = Load(cluster, PARTITIONS)
        await load.begin()
        load.read()
        replaced = cluster.nodes[3]
        await replaced.leave()
        await load.until(WRITTEN_S, lambda: load.rows()[3]["state"] == "dead", "it is not buried")
        replaced.clock.wall_ahead_ms = -HOUR_MS
        await replaced.come_new()

        def has_all():
            ends = replaced.ends()
            return all(ends.get(load.key(index)) for index in range(PARTITIONS))

        await load.until(WRITTEN_S, has_all, "it has got nothing")
        await load.until(WRITTEN_S, lambda: all(map(load.votes_where_it_is, range(PARTITIONS))), "it does not vote")
        await load.until(WRITTEN_S, lambda: load.metadata_voters() == {1, 2, 3}, "it does not vote on the metadata")
        await max((cluster.nodes[1], cluster.nodes[2]), key=load.led_by).crash()
        await load.progress(WRITTEN_S, "it is not of a majority")
        for number in (1, 2):
            if not cluster.nodes[number].is_on:
                await cluster.nodes[number].start()
        await load.end()

    simulate(42, story, nodes_count=3)
