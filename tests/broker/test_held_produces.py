"""How long Produces wait at replicas of which nobody is known to lead them, and what becomes of them when their client
goes.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import trio

from tests.support.memory_clients import create_topic, produce_request
from tests.support.memory_node import MemoryClock, running_node
from tpc_broker.auth.principals import ANONYMOUS
from tpc_broker.broker.handlers import produce
from tpc_broker.broker.holds import KEPT_NS, Holds
from tpc_broker.broker.ports import AskedProduce, ProduceFallback
from tpc_broker.broker.replicated import HELD_S, ReplicatedPartitions
from tpc_broker.broker.view import NO_LEADER, NOBODY, Leader
from tpc_broker.model import CoreId, LeaderEpoch, NodeId, Replica

SECOND_NS = 1_000_000_000


class Held:
    """A core whose one replica has no leader until `elect`."""

    def __init__(self) -> None:
        self.clock, self._moved = MemoryClock(), trio.Event()
        self.epoch, self.told = 4, NO_LEADER
        """Of the last leader of which something has come here; what another one has told."""
        self.is_handing_over = False
        self.partition = partition = SimpleNamespace(key="t-0", takes_records=False, is_open=True)
        replicated = object.__new__(ReplicatedPartitions)
        replicated.holds = Holds(int(HELD_S * 1e9))
        leaderships = SimpleNamespace(
            hears_leader=lambda _key, told_epoch: self._moved.is_set() or told_epoch > self.epoch,
            wait_moved=lambda _key: self._moved.wait(), leader_told=lambda _key: self._moved.set(),
            all_moved=self._all_moved,
        )  # fmt: skip
        hand_overs = SimpleNamespace(is_handing_over=lambda _key: self.is_handing_over)
        replicated.replication = SimpleNamespace(leaderships=leaderships, hand_overs=hand_overs)
        replicated.near = SimpleNamespace(look=lambda _key: None)
        self.view = SimpleNamespace(node=1, told=lambda _key: self.told, is_cut_off=False)
        replicated._core = SimpleNamespace(view=self.view)
        find = lambda _key, _index: partition if replicated.is_between_leaders(partition, to_write=True) else None  # noqa: E731
        partitions = SimpleNamespace(waiting_for_leader=find)
        dispatcher = SimpleNamespace(while_open=lambda _connection: nullcontext(), is_open=lambda _connection: True)
        self.core = SimpleNamespace(
            replicated=replicated, clock=self.clock, partitions=partitions, dispatcher=dispatcher
        )

    def elect(self) -> None:
        """Of another node: if it was led here, that is over."""
        self.partition.takes_records = False
        self._moved.set()

    def _all_moved(self) -> None:
        moved, self._moved = self._moved, trio.Event()
        moved.set()

    def give_up(self) -> None:
        """The hand-over: it is led here as before."""
        self.partition.takes_records, self.is_handing_over = True, False
        self._moved.set()

    def tell(self, epoch: int, place: Replica) -> None:
        self.told, moved = Leader(LeaderEpoch(epoch), 0, place), self._moved
        self._moved = trio.Event()
        moved.set()

    def came(self, connection: int = 1):
        """A request, now."""
        return SimpleNamespace(connection=connection, received_ns=self.clock.monotonic_ns())

    async def waits_s(self, request) -> float:
        """How long it waits from now on."""
        begun_s = trio.current_time()
        await produce._wait_between_leaders(produce._Hold(self.core, request, AskedProduce([], 0)), [("t", 0)])
        return trio.current_time() - begun_s


async def test_what_came_on_a_connection_meanwhile_waits_no_longer_than_what_stands_in_front_of_it(autojump_clock):
    held = Held()
    requests = [held.came(), held.came(), held.came(2)]
    assert await held.waits_s(requests[0]) == HELD_S
    requests.append(held.came())
    assert await held.waits_s(requests[1]) == 0
    assert await held.waits_s(requests[2]) == HELD_S, "it stands behind nothing on its own connection"
    assert await held.waits_s(requests[3]) == 0, "it came at the end"
    await trio.sleep(0.001)
    assert await held.waits_s(held.came()) == HELD_S, "whoever comes back waits for another election"


async def test_what_is_left_of_a_hold_that_ended_early_is_for_the_next(autojump_clock):
    held = Held()
    first, second = held.came(), held.came()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.waits_s, first)
        await trio.sleep(0.5)
        held.elect()
    held._moved = trio.Event()
    assert await held.waits_s(second) == HELD_S - 0.5


async def test_who_hears_nothing_of_its_group_any_more_holds_until_a_later_leader_tells_that_it_leads(autojump_clock):
    """As one that has led until others vote: the next leader sends it nothing."""
    held, elsewhere, here = Held(), Replica(NodeId(2), CoreId(0)), Replica(NodeId(1), CoreId(0))
    for connection, told in enumerate(((4, elsewhere), (5, NOBODY), (5, here))):
        held.tell(*told)
        assert await held.waits_s(held.came(connection)) == HELD_S, "the last one it knows, or nobody: that is over"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.waits_s, held.came(10))
        await trio.sleep(HELD_S / 4)
        held.tell(5, elsewhere)
        begun_s = trio.current_time()
    assert trio.current_time() == begun_s
    assert await held.waits_s(held.came(11)) == 0


async def test_what_is_handed_over_holds_until_another_leads_or_nobody_shall(autojump_clock):
    held = Held()
    held.partition.takes_records = True
    assert await held.waits_s(held.came()) == 0
    for connection, end in enumerate((held.elect, held.give_up)):
        held.partition.takes_records, held.is_handing_over, held._moved = True, True, trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(held.waits_s, held.came(connection))
            await trio.sleep(HELD_S / 4)
            end()
            begun_s = trio.current_time()
        assert trio.current_time() == begun_s


async def test_a_node_that_is_cut_off_waits_for_no_leader(autojump_clock):
    held = Held()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.waits_s, held.came())
        await trio.sleep(HELD_S / 4)
        held.view.is_cut_off = True
        held.core.replicated.cut_off()
        begun_s = trio.current_time()
    assert trio.current_time() == begun_s
    assert await held.waits_s(held.came(2)) == 0
    held.view.is_cut_off = False
    assert await held.waits_s(held.came(3)) == HELD_S


class Waits:
    """What a Produce is held for at a core in memory that leads its partition: `over` ends it."""

    def __init__(self, life, what: str) -> None:
        self.over, self.begun = trio.Event(), trio.Event()
        self._partition = next(p for p in life.core.partitions.opened() if p.label == "t-0")
        self._take, core = life.plane.produce_with, life.core
        replication = SimpleNamespace(leaderships=SimpleNamespace(confirm=self._confirm))
        if what == "leader":
            core.replicated = object.__new__(ReplicatedPartitions)
            core.replicated.holds, core.replicated.wait_leaders = Holds(int(HELD_S * 1e9)), self._wait
            core.partitions.waiting_for_leader = lambda *_part: None if self.over.is_set() else self._partition
        elif what == "move":
            core.partitions.wait_moved = self._wait
            core.partitions._going[self._partition.key] = LeaderEpoch(1 << 30), self.over
        elif what == "gap":
            core.replicated = SimpleNamespace(
                replication=replication, is_between_leaders=lambda _partition, **_how: False
            )
            life.plane.produce_with = self._leave
        else:
            core.partitions.make_room = self._wait

    async def _wait(self, *_which, **_how) -> bool:
        self.begun.set()
        await self.over.wait()
        return True

    async def _confirm(self, _key) -> bool:
        return await self._wait()

    def _leave(self, request, verdicts, endpoints) -> ProduceFallback:
        """The first time for a gap, which the leader itself fills meanwhile."""
        return self._take(request, verdicts, endpoints) if self.begun.is_set() else ProduceFallback.GAP

    def end_offset(self, life) -> int:
        return life.plane.bounds(self._partition.handle).log_end_offset


async def held(node, what: str, acks: int = -1, rules=None):
    """A Produce that waits at the node's one core; on connection 7."""
    await create_topic(node, 0, "t", 1)
    life = node.lives[0]
    life.core.access.authorizer = rules
    waits = Waits(life, what)
    request = node.send(0, produce_request("t", 0, [b"x"], acks=acks), 12, connection=7)
    await waits.begun.wait()
    return life, waits, request


HOLDS = ("leader", "move", "gap")


@pytest.mark.parametrize("what", HOLDS)
async def test_what_is_held_is_dropped_when_its_client_goes(what, autojump_clock):
    async with running_node(cores=1) as node:
        life, waits, request = await held(node, what)
        closed_s = trio.current_time()
        life.connections.close(7, "peer closed")
        await request.done.wait()
        assert trio.current_time() == closed_s, "it does not wait for the end of its hold"
        waits.over.set()
        await trio.sleep(2 * HELD_S)
        assert (request.answer, waits.end_offset(life)) == (None, 0)
        life.core.replicated = None


@pytest.mark.parametrize("what", HOLDS)
async def test_what_is_held_is_dropped_when_its_client_goes_as_the_hold_ends(what, autojump_clock):
    async with running_node(cores=1) as node:
        life, waits, request = await held(node, what)
        waits.over.set()
        life.connections.close(7, "peer closed")
        await request.done.wait()
        assert (request.answer, waits.end_offset(life)) == (None, 0)
        life.core.replicated = None


async def test_what_was_held_is_dropped_when_its_client_goes_while_it_waits_for_room(autojump_clock):
    async with running_node(cores=1) as node:
        life, waits, request = await held(node, "leader")
        room = Waits(life, "room")
        waits.over.set()
        await room.begun.wait()
        life.connections.close(7, "peer closed")
        room.over.set()
        await request.done.wait()
        assert (request.answer, waits.end_offset(life)) == (None, 0)
        life.core.replicated = None


@pytest.mark.parametrize("what", HOLDS)
async def test_what_is_held_is_carried_out_when_its_client_waits_for_it(what, autojump_clock):
    async with running_node(cores=1) as node:
        life, waits, request = await held(node, what)
        waits.over.set()
        await request.done.wait()
        assert request.answer is not None
        assert waits.end_offset(life) == 1
        life.core.replicated = None


class Writers:
    """An authorizer: the anonymous may do everything, and nobody else anything."""

    def allows(self, subject, _operation, _resource, _name) -> bool:
        return subject.principal == ANONYMOUS


@pytest.mark.parametrize("has_rules", [False, True])
async def test_what_waits_for_room_alone_is_carried_out_though_its_client_is_gone(has_rules, autojump_clock):
    """With acks=0 a client has nothing to wait for. Who it was is known all the same."""
    async with running_node(cores=1) as node:
        life, waits, _request = await held(node, "room", acks=0, rules=Writers() if has_rules else None)
        life.connections.close(7, "peer closed")
        waits.over.set()
        await trio.sleep(1)
        assert waits.end_offset(life) == 1


@pytest.mark.parametrize("connections", [1, 1000])
def test_holds_are_forgotten(connections):
    holds = Holds(2 * SECOND_NS)
    for number in range(connections):
        assert holds.left_s(number, number, number) == 2
    assert len(holds) == connections
    assert holds.left_s(connections, 0, KEPT_NS + 3 * SECOND_NS) == 2
    assert len(holds) == 1
