"""Nodes on hosts of their own, of which one hears others that do not hear it, or the other way round, for 25 s each.

Links and datagrams are cut together and apart. In the gate, and all combinations: `tests/simulator/test_cuts.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.test_replication import in_sync_everywhere
from tests.support.cluster_nodes import Cluster, Node, create_topic, eventually
from tests.support.host_nodes import cluster_on_hosts
from tests.support.namespaces import Hosts, why_no_loss, why_no_namespaces
from tests.support.one_way_cuts import edges_of, together
from tests.support.raw_client import RawConnection
from tests.support.replicated_load import Load

WHY_NOT = why_no_namespaces() or why_no_loss()
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

TOPIC, PARTITIONS = "kept", 6
CUT_S = 25.0
TCP, UDP = "tcp", "udp"
IT, OTHERS, ANOTHER = "it", "the others", "another"
WAYS = [(OTHERS, IT), (IT, OTHERS), (ANOTHER, IT), (IT, ANOTHER)]
MIXED = {
    "all go on by way of one": ["M>a a>M", "a>b", "a>b b>a"],
    "two go on": ["M>a b>M", "a>M M>a a>b b>a", "M>a a>M M>b b>M"],
    "nobody goes on": ["M>a a>b b>M", "M>a a>M M>b b>M a>b b>a"],
}
"""One of each kind that is not among `WAYS`, as `one_way_cuts` names them; those that are alike behave alike."""


def told(node: Node) -> tuple[list[int], list[int]]:
    """By that node itself, as clients ask that work with the topic: nodes to ask, and the node that leads each
    partition (-1: none).
    """
    with RawConnection(node.host, node.ports[0]) as connection:
        answer = connection.ask("Metadata", 9, {"Topics": [{"Name": TOPIC}], "AllowAutoTopicCreation": False})
    leaders = {part["PartitionIndex"]: part["LeaderId"] >> 10 for part in answer["Topics"][0]["Partitions"]}
    return sorted(broker["NodeId"] >> 10 for broker in answer["Brokers"]), [leaders[each] for each in range(PARTITIONS)]


class Cuts:
    def __init__(self, made: Cluster, on: Hosts, load: Load) -> None:
        self._made, self._on, self._load = made, on, load

    def cut(self, leads_metadata: bool, source: str, target: str, kinds: tuple[str, ...]) -> None:
        made, load = self._made, self._load
        controller = eventually(made.controller, "somebody leads the metadata")
        it = next(node.number for node in made.nodes if (node.number == controller) is leads_metadata)
        others = [node.number for node in made.nodes if node.number != it]
        named = {IT: [it], OTHERS: others, ANOTHER: others[:1]}
        load.gaps_s = [0.0] * PARTITIONS
        began_s = time.monotonic()
        for one in named[source]:
            for two in named[target]:
                self._on.cut(one, two, *kinds)
        near = [1, 2, 3] if ANOTHER in (source, target) or TCP not in kinds else others
        eventually(lambda: self._all_led(near), "all is led")
        led_s = time.monotonic() - began_s
        if it not in near:
            eventually(lambda: it not in told(made[it])[0], "its clients are sent to the others")
        told_s = time.monotonic() - began_s
        load.wait_progress()
        written_s = time.monotonic() - began_s
        time.sleep(max(0.0, began_s + CUT_S - time.monotonic()))
        assert self._all_led(near), "and stays so"
        load.wait_progress()
        for each in named[target]:
            self._on.mend(each)
        gaps = ", ".join(f"{gap:.1f}" for gap in load.gaps_s)
        print(f"node {it}, {'+'.join(kinds)} from {source} to {target}: led after {led_s:.1f} s, told after "
              f"{told_s:.1f} s, written after {written_s:.1f} s; longest gaps {gaps} s")  # fmt: skip
        assert max(load.gaps_s) < CUT_S, "nothing waits for the end of a cut"
        eventually(lambda: self._all_led([1, 2, 3]), "all nodes tell the same again")
        eventually(lambda: in_sync_everywhere(made, TOPIC), "and have everything")
        load.wait_progress()

    def combined(self, text: str, restarts: int | None = None) -> None:
        """`restarts`: the place of a node that is killed and started while the cut stands."""
        made, load, edges = self._made, self._load, edges_of(text)
        first = eventually(made.controller, "somebody leads the metadata")
        order = sorted((node.number for node in made.nodes), key=lambda number: (number != first, number))
        near = [order[place] for place in together(edges)]
        load.gaps_s = [0.0] * PARTITIONS
        began_s = time.monotonic()
        for source, target in sorted(edges):
            self._on.cut(order[source], order[target], TCP, UDP)
        settled = self._go_on(order, near, restarts) if near else "nobody leads"
        time.sleep(max(0.0, began_s + CUT_S - time.monotonic()) / 2)
        before = sum(map(len, load.acknowledged))
        time.sleep(max(0.0, began_s + CUT_S - time.monotonic()))
        assert near or sum(map(len, load.acknowledged)) == before, "nobody has a majority"
        if near:
            assert self._all_led(near), "and stays so"
            load.wait_progress()
        healed_s = time.monotonic()
        for each in order:
            self._on.mend(each)
        load.wait_progress()
        written_s = time.monotonic() - healed_s
        eventually(lambda: self._all_led([1, 2, 3]), "all nodes tell the same again")
        eventually(lambda: in_sync_everywhere(made, TOPIC), "and have everything")
        gaps = ", ".join(f"{gap:.1f}" for gap in load.gaps_s)
        print(f"{text}: {settled}; written {written_s:.1f} s after it; longest gaps {gaps} s")
        assert not near or max(load.gaps_s) < CUT_S, "nothing waits for the end of a cut"

    def _go_on(self, order: list[int], near: list[int], restarts: int | None) -> str:
        began_s = time.monotonic()
        if restarts is not None:
            self._made.kill(order[restarts])
            self._made.start(order[restarts])
        eventually(lambda: self._all_led(near), "all is led")
        led_s = time.monotonic() - began_s
        for it in set(order) - set(near):
            eventually(lambda: it not in told(self._made[it])[0], "its clients are sent to the others")  # noqa: B023
        self._load.wait_progress()
        return f"led after {led_s:.1f} s, written after {time.monotonic() - began_s:.1f} s"

    def _all_led(self, near: list[int]) -> bool:
        """By nodes that hear each other, which tell so, and the same."""
        found = [told(self._made[number])[1] for number in near]
        return all(each == found[0] for each in found) and set(found[0]) <= set(near)


@contextmanager
def cut_cluster(folder: Path) -> Iterator[Cuts]:
    """That is written to; at the end all is there that was acknowledged."""
    with cluster_on_hosts(folder, Hosts) as (made, on):
        made.start()
        create_topic(made.bootstrap, TOPIC, PARTITIONS, replicas=3)
        eventually(lambda: in_sync_everywhere(made, TOPIC), "three replicas")
        with Load(made.bootstrap, TOPIC, PARTITIONS) as load:
            load.wait_progress()
            yield Cuts(made, on, load)
        load.check(made.bootstrap)
        for node in made.nodes:
            assert not [line for line in node.log_messages() if "Traceback" in line]


@pytest.mark.parametrize(
    ("leads_metadata", "kinds"),
    [(False, (TCP, UDP)), (True, (TCP, UDP)), (False, (TCP,)), (True, (UDP,))],
    ids=["follows the metadata", "leads the metadata", "links", "datagrams"],
)
def test_who_leads_is_settled_whatever_is_cut(tmp_path, leads_metadata, kinds):
    with cut_cluster(tmp_path) as cuts:
        for source, target in WAYS:
            cuts.cut(leads_metadata, source, target, kinds)


@pytest.mark.parametrize("kind", MIXED)
def test_combinations_of_cuts(tmp_path, kind):
    with cut_cluster(tmp_path) as cuts:
        for text in MIXED[kind]:
            cuts.combined(text)


@pytest.mark.parametrize(("text", "place"), [("M>a a>M", 1), ("a>b", 2)], ids=["the controller", "another one"])
def test_a_node_restarts_that_does_not_hear_all(tmp_path, text, place):
    with cut_cluster(tmp_path) as cuts:
        cuts.combined(text, place)
