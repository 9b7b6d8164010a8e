"""A replica whose group goes on without it, and that has heard of a later term than its group, in simulated nodes."""

from __future__ import annotations

import pytest
import trio

from tests.simulator.nodes_clients import Admin, Producer
from tests.simulator.nodes_cluster import simulate
from tests.simulator.nodes_oracle import Oracle, partition_key
from tpc_broker.model import broker_id_of
from tpc_broker.node.replicas.core_replicas import group_of
from tpc_broker.raft.items import Address
from tpc_broker.raft.messages import TIMEOUT, Frame, RequestVote

NOBODY_HEARD_S = 3.0
MOVED_S = 30.0
ENDS_S = 20.0
HELD_S = 0.1


def hears_of_term(node, key, term):
    """A request for its vote in that term, of a candidate that nobody else hears."""
    core = node.first.replication._driver.core
    machine = core.groups[group_of(key)]
    (other, *_others) = machine.others()
    address = Address(other.node, 0)
    asked = RequestVote(machine.group, other, machine.me, term, machine.log.last, TIMEOUT)
    frame = Frame(address, core.address, core.links[address].boot_id, 0, (asked,))
    node.first.replication._driver.receive(frame)


async def until(cluster, seconds, condition, what):
    with trio.move_on_after(seconds):
        while not condition():
            await trio.sleep(HELD_S)
        return
    cluster.fails(what)
    await trio.sleep_forever()


async def left_out_while_away(cluster, ahead, *, crashes):
    """One of three is cut off, and hears of a later term; the others bring in node 4 in its place. The nodes, and what
    it has a replica of.
    """
    for node in cluster.nodes.values():
        cluster.nursery.start_soon(node.start)
    await until(cluster, 60, lambda: len(cluster.ready()) == len(cluster.nodes), "no cluster")
    admin = Admin(cluster, "admin")
    await admin.create_topic("t", 1)
    producer = Producer(cluster, "p", "t", 0)
    await producer.send(5)
    topic = cluster.nodes[1].first.core.view.topic("t")
    key, places = partition_key(topic, 0), [int(place.node) for place in topic.replicas[0]]
    (coming,) = set(cluster.nodes) - set(places)
    leader = await admin.leader("t", 0)
    going = next(cluster.nodes[number] for number in places if number != leader.node.number)
    for other in cluster.nodes.values():
        for one, two in ((going, other), (other, going)):
            cluster.network.block(one.host, two.host)
    await trio.sleep(NOBODY_HEARD_S)
    machine = going.first.replication.replicas.machine_of(key)
    later = machine.term + ahead
    hears_of_term(going, key, later)
    await trio.sleep(HELD_S)
    assert machine.term >= later, "nobody else was heard, so nothing forbids it"
    if crashes:
        await going.crash()
    wanted = [coming, *(number for number in places if number != going.number)]
    other_admin = Admin(cluster, "other admin")
    while not await other_admin.reassign("t", 0, [broker_id_of(number, 0) for number in wanted]):
        await trio.sleep(HELD_S)
    await producer.send(5)
    image = lambda: leader.life.core.view.image  # noqa: E731
    await until(cluster, MOVED_S, lambda: not image().topic("t").moves and image().topic("t").lives, "it does not move")
    assert image().topic("t").lives[0, going.number].term < later, "the metadata say less than it has heard of"
    return going, key


@pytest.mark.parametrize(("ahead", "crashes"), [(3, True), (6, False)], ids=["down", "cut off"])
def test_a_replica_that_has_heard_of_a_later_term_ends_when_its_group_goes_on_without_it(ahead, crashes):
    """In that term: nothing is given up by the word of an earlier one."""

    async def story(cluster):
        oracle = Oracle(cluster)
        cluster.nursery.start_soon(oracle.run)
        going, key = await left_out_while_away(cluster, ahead, crashes=crashes)
        assert going.has_files("t", 0)
        cluster.network.heal()
        if crashes:
            await going.start()
        await until(cluster, ENDS_S, lambda: not going.has_files("t", 0), "the replica stays")
        topic = going.first.core.view.topic("t")
        holder = cluster.nodes[topic.replicas[0][1].node]
        term = holder.first.replication.leaderships.term_of(key)
        assert topic.lives[0, going.number] == (1, term), "by a leader's own term"
        await oracle.must_settle()

    simulate(7, story, nodes_count=4)
