"""Cores in memory that even out what they have to do, by themselves, as the settings say."""

from __future__ import annotations

import pytest
import trio

from tests.support.memory_node import running_node
from tpc_broker.kafka import messages
from tpc_broker.model import PartitionIndex, TopicPartition
from tpc_broker.routing import PartitionUse

CORES, PARTITIONS = 2, 4
INTERVAL_S, COOLDOWN_S = 10, 100
ON, SLOW = "core.rebalance.enable=true", f"core.rebalance.cooldown.ms={COOLDOWN_S * 1000}"
SETTINGS = (ON, f"core.rebalance.interval.ms={INTERVAL_S * 1000}", SLOW)


async def made(node):
    """A topic of which core 0 has everything."""
    kind = messages.CreateTopicsRequest
    assigned = [kind.CreatableReplicaAssignment(partition_index=n, broker_ids=[0]) for n in range(PARTITIONS)]
    topic = kind.CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assigned)
    assert (await node.ask(0, kind(topics=[topic], timeout_ms=1000))).topics[0].error_code == 0
    return [TopicPartition(node[0].view.topic("t").topic_id, PartitionIndex(n)) for n in range(PARTITIONS)]


async def set_enabled(node, value):
    kind = messages.IncrementalAlterConfigsRequest
    config = kind.AlterableConfig(name="core.rebalance.enable", config_operation=0, value=value)
    resource = kind.AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    assert (await node.ask(0, kind(resources=[resource]))).responses[0].error_code == 0


def owners(node):
    return node[0].view.topic("t").assignment.owners


async def work(node, keys, shares, seconds):
    """Clients that use partitions all the while: so much of a CPU each."""
    for _ in range(seconds):
        await trio.sleep(1)
        for key, share in zip(keys, shares, strict=True):
            for life in list(node.lives.values()):
                partition = life.core.partitions.get(key)
                if partition is not None:
                    before = life.plane.use(partition.handle)
                    life.plane.uses[partition.handle] = before._replace(reads=before.reads + round(share * 125_000))


async def settled(node):
    while node[0].view.image.moving:
        await trio.sleep(0.1)


async def test_busy_partitions_are_parted_then_nothing_moves_for_the_cooldown(autojump_clock):
    async with running_node(CORES, SETTINGS) as node:
        keys = await made(node)
        await work(node, keys, (0.4, 0.0, 0.4, 0.0), 3 * INTERVAL_S)
        await settled(node)
        assert sorted([owners(node)[0], owners(node)[2]]) == [0, 1]
        assert (owners(node)[1], owners(node)[3], node[0].moves.statistics.done) == (0, 0, 1)
        first, second = sorted((0, 2), key=owners(node).__getitem__)
        shares = [0.4 if n == first else 0.2 if owners(node)[n] == 0 else 0.0 for n in range(PARTITIONS)]
        await work(node, keys, shares, COOLDOWN_S - 3 * INTERVAL_S)
        assert node[0].moves.statistics.done == 1, "it cools down"
        await work(node, keys, shares, 5 * INTERVAL_S)
        await settled(node)
        assert node[0].moves.statistics.done > 1
        assert owners(node)[second] == 1


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        (SETTINGS[1:], (0.4, 0.4, 0.4, 0.4)),
        (SETTINGS, (0.01, 0.01, 0.01, 0.01)),
        (SETTINGS, (0.9, 0.0, 0.0, 0.0)),
    ],
    ids=["not enabled", "little to do", "one has all of it"],
)
async def test_what_is_left_as_it_is(autojump_clock, settings, shares):
    async with running_node(CORES, settings) as node:
        keys = await made(node)
        await work(node, keys, shares, 5 * INTERVAL_S)
        assert owners(node) == (0,) * PARTITIONS
        assert node[0].moves.statistics.done == 0


async def test_it_is_switched_on_and_off_while_the_broker_runs(autojump_clock):
    async with running_node(CORES, SETTINGS[1:]) as node:
        keys = await made(node)
        await set_enabled(node, "true")
        await work(node, keys, (0.4, 0.4, 0.0, 0.0), INTERVAL_S // 2)
        await set_enabled(node, "false")
        await work(node, keys, (0.4, 0.4, 0.0, 0.0), 3 * INTERVAL_S)
        assert owners(node) == (0,) * PARTITIONS
        await set_enabled(node, "true")
        await work(node, keys, (0.4, 0.4, 0.0, 0.0), 3 * INTERVAL_S)
        await settled(node)
        assert sorted(owners(node)[:2]) == [0, 1]


async def test_a_core_that_does_not_say_what_it_has_to_do_is_waited_for(autojump_clock):
    async with running_node(CORES, SETTINGS) as node:
        keys = await made(node)
        node.lives[0].mailboxes.lost.add("loads.use")
        await work(node, keys, (0.4, 0.4, 0.0, 0.0), 5 * INTERVAL_S)
        assert owners(node) == (0,) * PARTITIONS
        node.lives[0].mailboxes.lost.clear()
        await work(node, keys, (0.4, 0.4, 0.0, 0.0), 5 * INTERVAL_S)
        await settled(node)
        assert sorted(owners(node)[:2]) == [0, 1]


async def test_a_core_that_was_restarted_counts_from_its_new_beginning(autojump_clock):
    async with running_node(CORES, SETTINGS) as node:
        keys = await made(node)
        await work(node, keys, (0.4, 0.4, 0.0, 0.0), INTERVAL_S // 2)
        await node.restart(1)
        await work(node, keys, (0.4, 0.4, 0.0, 0.0), 4 * INTERVAL_S)
        await settled(node)
        assert sorted(owners(node)[:2]) == [0, 1]


async def test_reads_that_python_answers_are_counted(autojump_clock):
    async with running_node(1) as node:
        (key, *_others) = await made(node)
        partition = node[0].partitions.get(key)
        partition.files.log.append(b"", 0)
        node[0].plane.count_read(partition.handle, 1000)
        assert node[0].plane.use(partition.handle) == PartitionUse(0, 0, 1, 1000)
        facts = await node[0].loads.facts_of_node()
        assert facts["owners"] == {"t": (0,) * PARTITIONS}
        ((topic, index, cost),) = [row for row in facts["cores"][0]["costs_ns"] if row[2]]
        assert (topic, index, cost) == ("t", 0, 8_250)
