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
from tpc_broker.runtime.cluster.voters import node_rows
from tpc_broker.runtime.cluster.whereabouts import LOOK_S, Whereabouts, full_nodes
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


def looked(states, voters, heard):
    """What node 1 of four finds, and tells."""
    whereabouts = Whereabouts(None, "/data")
    members = SimpleNamespace(state_of=states.get)
    image = SimpleNamespace(nodes={NodeId(node): None for node in range(1, 5)})
    assert whereabouts.look(members, image, 1, voters, heard) == (whereabouts.told(NodeId(1)) != frozenset())
    return set(whereabouts.told(NodeId(1)))


def test_who_is_heard_over_its_link_is_not_gone_unless_it_has_said_goodbye():
    states = {2: State.DEAD, 3: State.DEAD, 4: State.LEFT}
    assert looked(states, (), {3, 4}) == {2, 4}
    assert looked(dict.fromkeys((2, 3, 4), State.SUSPECT), (), ()) == set()


def test_who_hears_no_majority_of_the_voters_says_that_of_itself_and_of_nobody_else():
    dead = dict.fromkeys((2, 3), State.DEAD)
    assert looked(dead, (1, 2, 3), ()) == {1}
    assert looked(dead, (1, 2, 3), {4}) == {1}, "who has no vote is not asked"
    assert looked(dead, (1, 2, 3), {2}) == {3}
    assert looked(dead, (2, 3, 4), {3}) == {1}, "it has no vote itself"
    assert looked(dead, (2, 3, 4), {3, 4}) == {2}
    assert looked({}, (1,), ()) == set()
    assert looked({}, (1, 2), ()) == {1}
    assert looked({}, (), ()) == set(), "nobody has told it who votes"
