"""Members of consumer groups by KIP-848 go on where their coordinator's node is killed, stands still or is cut off.

What they were told is kept by the next one (`raw_members`): nobody is fenced or unknown, no partition has two owners,
no commit is lost. Each failure comes twice: to a group that is stable, and while members that come wait for their
shares.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.test_replication import in_sync_everywhere
from tests.support.cluster_nodes import Cluster, Node, cluster, create_topic, eventually
from tests.support.host_nodes import cluster_on_hosts
from tests.support.namespaces import Hosts, why_no_namespaces
from tests.support.raw_members import RawMembers

TOPIC, PARTITIONS, GROUP = "shared-out", 12, "g"
TURNS = 100
"""They take seconds: what a node has yet to end comes in between."""
pytestmark = pytest.mark.cluster


@contextmanager
def group_of(made: Cluster) -> Iterator[RawMembers]:
    for node in made.nodes:
        node.overrides["offsets.topic.num.partitions"] = "3"
    made.start()
    create_topic(made.bootstrap, TOPIC, PARTITIONS, replicas=3)
    eventually(lambda: in_sync_everywhere(made, TOPIC), "three replicas")
    members = RawMembers(made.nodes, GROUP, TOPIC, PARTITIONS)
    members.come(2)
    try:
        members.wait_stable()
        eventually(lambda: in_sync_everywhere(made, "__consumer_offsets"), "and three of what the coordinators write")
        yield members
    finally:
        members.close()


def fails(
    made: Cluster, members: RawMembers, fail: Callable[[Node], object], mend: Callable[[Node], object]
) -> None:
    for more in (0, 2):
        members.come(more)
        if more:
            members.turn()  # they are in, and their shares still others'
        place = members.place
        (failed,) = (node for node in made.nodes if (node.host, node.ports[0]) == place)
        epochs = [member.epoch for member in members.members]
        fail(failed)
        try:
            members.wait_stable()
            assert members.place != place, "another one has the group"
            after = [member.epoch for member in members.members]
            assert more or after == epochs, "a group that was stable is not assigned anew"
            members.check_offsets()
        finally:
            mend(failed)
        eventually(lambda: in_sync_everywhere(made, "__consumer_offsets"), "it has caught up")
        members.wait_stable()
        members.check_offsets()


def test_the_node_of_the_coordinator_is_killed(tmp_path):
    with cluster(tmp_path) as made, group_of(made) as members:
        fails(made, members, Node.kill, lambda node: made.start(node.number))


def test_the_node_of_the_coordinator_stands_still(tmp_path):
    """Its clients' connections stay: they come to it first, and it may not answer by what it knew."""
    with cluster(tmp_path) as made, group_of(made) as members:
        fails(
            made,
            members,
            lambda node: os.killpg(node.process.pid, signal.SIGSTOP),
            lambda node: os.killpg(node.process.pid, signal.SIGCONT),
        )


@pytest.mark.skipif(why_no_namespaces() is not None, reason=str(why_no_namespaces()))
def test_the_node_of_the_coordinator_is_cut_off(tmp_path):
    """Clients reach it as before."""
    with cluster_on_hosts(tmp_path, Hosts) as (made, on), group_of(made) as members:
        fails(made, members, lambda node: on.isolate(node.number), lambda node: on.heal(node.number))


def test_the_group_comes_back_to_nodes_that_have_just_lost_it(tmp_path):
    """Each that has it stands still until another one has it, and no longer: what it has yet to end of the time before
    may not end what begins there anew.
    """
    with cluster(tmp_path) as made, group_of(made) as members:
        epochs = [member.epoch for member in members.members]
        places = [members.place]
        for _failure in range(4):
            place = places[-1]
            (failed,) = (node for node in made.nodes if (node.host, node.ports[0]) == place)
            members.close()
            members.nodes = [node for node in made.nodes if node is not failed]
            os.killpg(failed.process.pid, signal.SIGSTOP)
            try:
                eventually(lambda place=place: members.coordinator() != place, "another one has the group")
            finally:
                os.killpg(failed.process.pid, signal.SIGCONT)
            members.wait_stable()
            members.check_offsets()
            places.append(members.place)
            if places[-1] in places[:-1]:
                for _turn in range(TURNS):
                    members.turn()
                members.wait_stable()
        assert len(set(places)) < len(places), "one has had it again"
        members.nodes = list(made.nodes)
        members.wait_stable()
        assert [member.epoch for member in members.members] == epochs, "a group that was stable is not assigned anew"
