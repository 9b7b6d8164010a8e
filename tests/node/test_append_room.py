"""What leaders send where a disk hangs waits in front of the machine, and is bounded for all groups together."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import trio
from trio.testing import wait_all_tasks_blocked

from tpc_broker.model import CoreId, NodeId
from tpc_broker.node.replicas.append_room import AppendRoom
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.items import START, Address, Batch, Voter
from tpc_broker.raft.messages import AppendEntries, Frame
from tpc_broker.raft.settings import Settings

SETTINGS = Settings(append_bytes_max=100, inflight_bytes_max=200, link_inflight_bytes_max=500)
GROUPS = [f"g{number}" for number in range(10)]
LEADER, ME = Voter(NodeId(2), 0), Voter(NodeId(1), 0)
HERE, THERE = Address(NodeId(1), CoreId(0)), Address(NodeId(2), CoreId(0))


class HungStorage:
    """Gives no room before it is told to. `asked`: how much, each time."""

    def __init__(self):
        self.goes_on = trio.Event()
        self.asked = []

    async def make_replica_room(self, _files, _handle, size):
        self.asked.append(size)
        await self.goes_on.wait()


def append(group, size):
    items = (Batch(1, 1, 0, size, None),)
    return AppendEntries(group, LEADER, ME, 1, START, items, START)


def test_what_waits_for_space_is_bounded_for_all_groups_together_and_goes_on_afterwards():
    async def main():
        core = RaftCore(HERE, 1, 0, SETTINGS)
        for group in GROUPS:
            core.create_group(group, ME, None, 0)
        storage, inbox = HungStorage(), deque()
        plane = SimpleNamespace(state=lambda _handle: SimpleNamespace(bytes_admitted=0))
        replica = SimpleNamespace(handle=1, files=None, entries=deque())
        room = AppendRoom(core, plane, storage, dict.fromkeys(GROUPS, replica), (inbox, lambda: None))

        def hear(*messages):
            return room.let_through(Frame(THERE, HERE, 1, 0, messages), tasks).messages

        def waiting():
            return [group for group in GROUPS if room.waits(group)]

        async with trio.open_nursery() as tasks:
            assert hear(*(append(group, 100) for group in GROUPS)) == ()
            assert hear(append("g0", 100), append("g0", 0), append("g9", 100), append("g9", 100)) == ()
            await wait_all_tasks_blocked()
            assert waiting() == GROUPS
            assert storage.asked == [100] * len(GROUPS), "also for what is dropped, which its leader sends again"
            storage.goes_on.set()
            await wait_all_tasks_blocked()
            assert waiting() == []
            assert sorted(frame.messages[0].group for frame in inbox) == ["g0", *GROUPS[:5]]
            assert sum(item.length for frame in inbox for item in frame.messages[0].items) == 500
            inbox.clear()
            assert hear(*(append(group, 100) for group in GROUPS[5:])) == ()
            await wait_all_tasks_blocked()
            assert sorted(frame.messages[0].group for frame in inbox) == GROUPS[5:]

    trio.run(main)
