"""Simulated nodes that do not all hear each other, in one direction or in both: who leads what, what clients are told.

A connection needs both directions, so a cut of one ends it when what was sent was not acknowledged for long enough.
Until then one end hears, and the other one does not. Datagrams go on in the direction that is open.
"""

from __future__ import annotations

from functools import partial

import pytest
import trio

from tests.simulator.nodes_clients import Client
from tests.simulator.nodes_cluster import simulate
from tests.simulator.nodes_cuts import PARTITIONS, SETTLED_S, TOGETHER_S, Cuts
from tests.simulator.nodes_load import TOPIC, Load
from tests.simulator.nodes_network import TCP, UDP
from tests.simulator.nodes_oracle import partition_key
from tests.support.one_way_cuts import ALL, UNLIKE, edges_of, text_of, together
from tpc_broker.kafka import messages
from tpc_broker.model import node_of
from tpc_broker.swim.model import State

CUT_S = 3.0
GIVEN_UP_S = 30.0
ALONE = "alone"
NOTHING = frozenset()
IT, OTHERS, ANOTHER = "it", "the others", "another"
WAYS = [(OTHERS, IT), (IT, OTHERS), (ANOTHER, IT), (IT, ANOTHER)]


class CutsOfOne(Cuts):
    """Of one node from others, or of others from it; a client of each partition asks this one who leads."""

    async def cut(self, leads_metadata, source, target, kinds):
        what = f"{kinds} from {source} to {target}, of which it {'leads' if leads_metadata else 'follows'} the metadata"
        nodes = list(self.cluster.nodes.values())
        (controller,) = self.load.controllers()
        it = max((node for node in nodes if (node.number == controller) is leads_metadata), key=self.load.led_by)
        others = [node for node in nodes if node is not it]
        named = {IT: [it], OTHERS: others, ANOTHER: others[:1]}
        for client in self.clients:
            client.asks = it.number
        for one in named[source]:
            for two in named[target]:
                self.cluster.network.block(one.host, two.host, kinds)
        near = nodes if ANOTHER in (source, target) or TCP not in kinds else others
        await self.load.until(SETTLED_S, lambda: self.is_settled(near), f"not settled: {what}")
        await self.until_all_write(what)
        await trio.sleep(CUT_S)
        if UDP in kinds and ANOTHER not in (source, target):
            is_given_up = partial(self.are_all, State.DEAD, [it], others)
            await self.load.until(GIVEN_UP_S, is_given_up, f"membership knows nothing: {what}")
            await trio.sleep(CUT_S)
        assert self.is_settled(near), f"not any more: {what}"
        await self.until_all_write(f"later, {what}")
        self.cluster.network.heal()
        await self.load.until(SETTLED_S, lambda: self.is_settled(nodes), f"not settled after {what}")
        await self.until_all_write(f"after {what}")
        await self.load.until(
            TOGETHER_S, lambda: self.are_all(State.ALIVE, nodes, nodes), f"not together after {what}"
        )


FOLLOWS, LEADS = pytest.param(False, id="follows the metadata"), pytest.param(True, id="leads them")


def cut_in_turn(ways, leads_metadata, kinds):
    async def story(cluster):
        cuts = CutsOfOne(cluster)
        await cuts.begin()
        for source, target in ways:
            await cuts.cut(leads_metadata, source, target, kinds)
        await cuts.end()

    simulate(31, story, nodes_count=3)


@pytest.mark.parametrize("leads_metadata", [FOLLOWS, LEADS])
def test_who_leads_is_settled_within_five_seconds_whatever_is_cut(leads_metadata):
    cut_in_turn(WAYS, leads_metadata, (TCP, UDP))


def test_who_is_not_heard_by_datagrams_leads_and_is_told():
    cut_in_turn([(IT, OTHERS)], leads_metadata=False, kinds=(UDP,))


def test_a_node_that_hears_nobody_is_asked_for_what_it_has_alone_only():
    async def story(cluster):
        load = Load(cluster, PARTITIONS)
        await load.begin(writes=False)
        await load.admin.create_topic(ALONE, PARTITIONS, 1)
        it = cluster.nodes[2]
        for other in (1, 3):
            cluster.network.block(f"node{other}", it.host)
        await load.until(SETTLED_S, lambda: it.first.core.view.is_cut_off, "it does not know")
        kind, client, found = messages.MetadataRequest, Client(cluster, "client"), {}
        for name in (TOPIC, ALONE):
            asked = kind(topics=[kind.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
            answer = await client.ask(cluster.broker(it.number * 1024), asked, 12)
            leaders = {node_of(part.leader_id) for part in answer.topics[0].partitions}
            found[name] = it.number in leaders, {node_of(broker.node_id) for broker in answer.brokers}
        assert found == {TOPIC: (False, {1, 3}), ALONE: (True, {1, 2, 3})}
        cluster.network.heal()
        await load.end()

    simulate(32, story, nodes_count=3)


def test_of_who_leads_two_that_do_not_hear_each_other_are_told_by_the_third():
    async def story(cluster):
        cuts = CutsOfOne(cluster)
        await cuts.begin()
        one, two, third = cluster.nodes.values()
        for source, target in ((one, two), (two, one)):
            cluster.network.block(source.host, target.host)
        await trio.sleep(CUT_S)
        topic = cuts.load.topic()
        (index,) = (each for each in range(PARTITIONS) if Cuts.leads(third, topic, each))
        assert third.first.replication.hand_overs.transfer(partition_key(topic, index), two.number)
        await cuts.load.until(SETTLED_S, lambda: Cuts.leads(two, topic, index), "it is not handed over")
        await cuts.load.until(SETTLED_S, lambda: cuts.is_settled(cluster.nodes.values()), "one is not told")
        cluster.network.heal()
        await cuts.end()

    simulate(31, story, nodes_count=3)


def test_who_was_taken_for_gone_is_told_what_others_came_to_lead_meanwhile():
    """By one that does not hear it then either, and by way of the third, which does."""

    async def story(cluster):
        cuts = Cuts(cluster)
        await cuts.begin()
        await cuts.spread()
        it, leads, third = cluster.nodes.values()
        ways = [(it, leads), (it, third), (leads, it), (third, it)]
        for source, target in ways:
            cluster.network.block(source.host, target.host)
        await cuts.load.until(GIVEN_UP_S, lambda: it.number in leads.first.core.view.absent, "it is not taken for gone")
        topic = cuts.load.topic()
        index = next(each for each in range(PARTITIONS) if Cuts.leads(third, topic, each))
        assert third.first.replication.hand_overs.transfer(partition_key(topic, index), leads.number)
        await cuts.load.until(SETTLED_S, lambda: Cuts.leads(leads, topic, index), "it is not handed over")
        await trio.sleep(CUT_S)
        assert not cuts.is_settled([it])
        for source, target in ways:
            cluster.network.unblock(source.host, target.host)
        cluster.network.block(it.host, leads.host, (TCP,))
        nodes = list(cluster.nodes.values())
        await cuts.load.until(TOGETHER_S, lambda: cuts.are_all(State.ALIVE, nodes, nodes), "it is taken for gone still")
        await cuts.load.until(SETTLED_S, lambda: cuts.is_settled(nodes), "it is not told who leads")
        cluster.network.heal()
        await cuts.end()

    simulate(34, story, nodes_count=3)


def test_who_hears_nobody_for_a_moment_leads_what_it_alone_has():
    """Its leader is cut off before the third node, which lacks what was written meanwhile, is heard again."""

    async def story(cluster):
        cuts, network = Cuts(cluster), cluster.network
        await cuts.begin()
        await cuts.spread()
        it, leads, back = cluster.nodes.values()
        for other in (it, leads):
            network.block(other.host, back.host)
            network.block(back.host, other.host)
        await cuts.load.until(SETTLED_S, lambda: cuts.is_settled([it, leads]), "two do not go on")
        await cuts.until_all_write("while one is away")
        network.block(it.host, leads.host)
        network.block(leads.host, it.host)
        await trio.sleep(CUT_S)
        network.unblock(it.host, back.host)
        network.unblock(back.host, it.host)
        await cuts.load.until(SETTLED_S, lambda: cuts.is_settled([it, back]), "the other two do not go on")
        await cuts.until_all_write("while another one is away")
        network.heal()
        await cuts.end()

    simulate(35, story, nodes_count=3)


def stand(links, datagrams, restarts=None):
    async def story(cluster):
        cuts = Cuts(cluster)
        await cuts.begin()
        await cuts.stand(links, datagrams, restarts)
        await cuts.end()

    simulate(33, story, nodes_count=3)


def test_combinations_of_cuts_are_told_apart_by_the_links_they_leave():
    assert len(ALL) == 35
    assert [sum(len(together(edges)) == count for edges in ALL) for count in (3, 2, 0)] == [5, 15, 15]


@pytest.mark.parametrize(
    ("cut", "restarts"),
    [("M>a a>M", 1), ("a>b", 2), ("M>a b>M", None), ("M>a a>b b>M", None)],
    ids=["all, who leads them hears one of two", "all, two others do not hear each other", "two", "nobody"],
)
def test_who_can_hear_each_other_goes_on_within_five_seconds_and_all_do_afterwards(cut, restarts):
    stand(edges_of(cut), edges_of(cut), restarts)


@pytest.mark.parametrize(
    ("links", "datagrams"),
    [("a>b", "a>M a>b"), ("M>a", "M>a M>b")],
    ids=["who does not lead them", "who leads the metadata"],
)
def test_who_is_heard_by_way_of_another_is_told_though_its_datagrams_are_lost(links, datagrams):
    stand(edges_of(links), edges_of(datagrams))


@pytest.mark.sim
@pytest.mark.parametrize("restarts", [0, 1, 2])
@pytest.mark.parametrize("edges", ALL, ids=text_of)
def test_each_combination_of_cuts_and_each_node_restarts_behind_it(edges, restarts):
    stand(edges, edges, restarts)


@pytest.mark.sim
@pytest.mark.parametrize("edges", ALL, ids=text_of)
def test_each_combination_of_cuts_of_links_only(edges):
    stand(edges, NOTHING)


@pytest.mark.sim
@pytest.mark.parametrize("edges", ALL, ids=text_of)
def test_each_combination_of_cuts_of_datagrams_only(edges):
    stand(NOTHING, edges)


@pytest.mark.sim
@pytest.mark.parametrize("leads_metadata", [FOLLOWS, LEADS])
@pytest.mark.parametrize("kind", [TCP, UDP])
def test_who_leads_is_settled_when_only_links_or_only_datagrams_are_cut(leads_metadata, kind):
    cut_in_turn(WAYS, leads_metadata, (kind,))


@pytest.mark.sim
@pytest.mark.parametrize(
    ("links", "datagrams", "restarts"), UNLIKE, ids=lambda part: text_of(part) if isinstance(part, frozenset) else part
)
def test_links_and_datagrams_that_are_cut_in_other_ways(links, datagrams, restarts):
    stand(links, datagrams, restarts)
