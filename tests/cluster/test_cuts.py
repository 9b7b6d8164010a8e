"""Nodes on hosts of their own, of which one hears others that do not hear it, or the other way round, for 25 s each.

Links and datagrams are cut together and apart. In the gate: `tests/simulator/test_cuts.py`.
"""

from __future__ import annotations

import time

import pytest

from tests.cluster.test_replication import in_sync_everywhere
from tests.support.cluster_nodes import Cluster, Node, create_topic, eventually
from tests.support.host_nodes import cluster_on_hosts
from tests.support.namespaces import Hosts, why_no_loss, why_no_namespaces
from tests.support.raw_client import RawConnection
from tests.support.replicated_load import Load

WHY_NOT = why_no_namespaces() or why_no_loss()
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

TOPIC, PARTITIONS = "kept", 6
CUT_S = 25.0
TCP, UDP = "tcp", "udp"
IT, OTHERS, ANOTHER = "it", "the others", "another"
WAYS = [(OTHERS, IT), (IT, OTHERS), (ANOTHER, IT), (IT, ANOTHER)]


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

    def _all_led(self, near: list[int]) -> bool:
        """By nodes that hear each other, which tell so, and the same."""
        found = [told(self._made[number])[1] for number in near]
        return all(each == found[0] for each in found) and set(found[0]) <= set(near)


@pytest.mark.parametrize(
    ("leads_metadata", "kinds"),
    [(False, (TCP, UDP)), (True, (TCP, UDP)), (False, (TCP,)), (True, (UDP,))],
    ids=["follows the metadata", "leads the metadata", "links", "datagrams"],
)
def test_who_leads_is_settled_whatever_is_cut(tmp_path, leads_metadata, kinds):
    with cluster_on_hosts(tmp_path, Hosts) as (made, on):
        made.start()
        create_topic(made.bootstrap, TOPIC, PARTITIONS, replicas=3)
        eventually(lambda: in_sync_everywhere(made, TOPIC), "three replicas")
        with Load(made.bootstrap, TOPIC, PARTITIONS) as load:
            load.wait_progress()
            cuts = Cuts(made, on, load)
            for source, target in WAYS:
                cuts.cut(leads_metadata, source, target, kinds)
        load.check(made.bootstrap)
        for node in made.nodes:
            assert not [line for line in node.log_messages() if "Traceback" in line]
