"""When a node tells the others that its disk is full, and who is taken for full."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from tpc_broker import limits
from tpc_broker.cli.cluster import state_of
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.model import NodeId
from tpc_broker.node.membership.whereabouts import LOOK_S, Whereabouts, full_nodes
from tpc_broker.node.metadata.voters import node_rows
from tpc_broker.storage.ports import FileSystemStatus
from tpc_broker.swim.model import Address, NodeInfo, State

LARGE, SMALL = 1 << 40, 160 << 20


class Node:
    """A disk, and the members that hear of it."""

    def __init__(self, total_bytes):
        self.total_bytes, self.left, self.error = total_bytes, total_bytes, None
        self.told = []
        self.whereabouts = Whereabouts(self, "/data")

    async def statvfs(self, _path):
        if self.error is not None:
            raise self.error
        return FileSystemStatus(self.total_bytes, self.left + min(limits.DISK_HEADROOM_BYTES, self.total_bytes // 16))

    def tell_space(self, *, lacks):
        if self.told[-1:] != [lacks]:
            self.told.append(lacks)


@pytest.mark.parametrize(("total_bytes", "least"), [(LARGE, limits.DISK_FULL_BYTES), (SMALL, SMALL // 16)])
def test_a_disk_is_full_until_it_has_twice_what_makes_it_so(total_bytes, least, caplog):
    node = Node(total_bytes)

    async def story():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.whereabouts.watch_space, node)
            for left, full in ((least, False), (least - 1, True), (2 * least - 1, True), (2 * least, False), (0, True)):
                node.left = left
                await trio.sleep(2 * LOOK_S)
                assert node.told[-1] is full, left
            node.left, node.error = LARGE, OSError("no answer")
            await trio.sleep(2 * LOOK_S)
            assert node.told[-1], "what is not known is as it was"
            nursery.cancel_scope.cancel()

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(caplog.records) == 3


def test_full_are_registered_nodes_that_are_there_and_say_so():
    def info(*, full):
        return NodeInfo(address=Address("h", 1), boot_id=uuid.UUID(int=1), lacks_space=full)

    states = {
        1: (State.ALIVE, info(full=True)), 2: (State.ALIVE, info(full=False)), 3: (State.SUSPECT, info(full=True)),
        4: (State.DEAD, info(full=True)), 9: (State.ALIVE, info(full=True)),
    }  # fmt: skip
    known = SimpleNamespace(cores=1, rack="", version="1", levels=(1, 1), address=("h", 1))
    image = SimpleNamespace(nodes={NodeId(node): known for node in range(1, 6)}, draining=set())
    assert full_nodes(SimpleNamespace(states=lambda: states), image) == {1, 3}
    assert full_nodes(None, ClusterImage()) == frozenset()
    shown = [state_of(row) for row in node_rows(image, states, (), None)]
    assert shown == ["alive, full", "alive", "suspected, full", "dead", "unknown"]
    assert state_of({"state": "alive"}) == "alive", "told by an earlier release"


def looked(states, voters, heard, nodes=4, by_others=()):
    """Who is gone, and whether it is cut off, as node 1 of so many finds that has heard all of them before."""
    whereabouts = Whereabouts(None, "/data")
    image = SimpleNamespace(nodes={NodeId(node): None for node in range(1, nodes + 1)})
    assert not whereabouts.look(SimpleNamespace(state_of={}.get), image, 1, voters, set(range(2, nodes + 1)))
    is_changed = whereabouts.look(SimpleNamespace(state_of=states.get), image, 1, voters, heard, by_others)
    assert is_changed == (whereabouts.absent != frozenset() or whereabouts.is_cut_off)
    return set(whereabouts.absent), whereabouts.is_cut_off


def test_who_is_heard_over_its_link_is_not_gone_unless_it_has_said_goodbye():
    states = {2: State.DEAD, 3: State.DEAD, 4: State.LEFT}
    assert looked(states, (), {3, 4}) == ({2, 4}, False)
    assert looked(dict.fromkeys((2, 3, 4), State.SUSPECT), (), ()) == (set(), False)


def test_who_is_heard_by_one_that_is_heard_is_not_gone_either():
    states = {2: State.DEAD, 3: State.DEAD, 4: State.LEFT}
    assert looked(states, (1, 2, 3), {2}, by_others={1, 3, 4}) == ({4}, False)
    assert looked(states, (1, 2, 3), (), by_others={2, 3}) == ({4}, True), "and that is not hearing it"


def test_who_hears_neither_most_voters_nor_most_nodes_is_cut_off():
    dead = dict.fromkeys((2, 3), State.DEAD)
    assert looked(dead, (1, 2, 3), ()) == ({2, 3}, True)
    assert looked(dead, (1, 2, 3), {4}) == ({2, 3}, True), "who has no vote is one of two in four"
    assert looked(dead, (1, 2, 3), {2}) == ({3}, False)
    assert looked(dead, (2, 3, 4), {3}) == ({2}, True), "it has no vote itself"
    assert looked(dead, (2, 3, 4), {3, 4}) == ({2}, False)
    assert looked({}, (1,), ()) == (set(), False)
    assert looked({}, (), ()) == (set(), False), "nobody has told it who votes"


def test_who_may_be_the_only_one_that_is_left_is_not_cut_off():
    dead = dict.fromkeys((2, 3), State.DEAD)
    assert looked(dead, (1, 2), ()) == ({2, 3}, False), "of two voters it cannot know"
    assert looked(dead, (2,), ()) == ({2, 3}, False), "nor of one, which is dead"
    assert looked(dead, (1, 2, 3), {3, 4}) == ({2}, False)
    assert looked(dead, (1, 2, 3), {4, 5}, nodes=5) == ({2, 3}, False), "most nodes are here, two voters are dead"


def test_who_starts_is_not_cut_off_before_it_has_heard_the_others():
    whereabouts = Whereabouts(None, "/data")
    image = SimpleNamespace(nodes={NodeId(node): None for node in range(1, 4)})
    members = SimpleNamespace(state_of={}.get)
    assert not whereabouts.look(members, image, 1, (1, 2, 3), ())
    assert not whereabouts.look(members, image, 1, (1, 2, 3), (2,))
    assert whereabouts.look(members, image, 1, (1, 2, 3), ())
    assert whereabouts.is_cut_off

