"""A replica leaves its core and is taken over from its files, on real disks: it is the voter that it was, its group
goes on, and whatever crashes in between, it is all there.

It is the same core that takes it over here: what the journal says is the same.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from tests.engine.in_place_core import KEY, Bench
from tests.log.log_batches import batch
from tests.support.replica_cores import GROUP
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.model import CoreId, NodeId
from tpc_broker.node.replicas.leaving import LeavingReplicas
from tpc_broker.raft.items import Voter, simple
from tpc_broker.raft.output import LEADER

MOVE = 7


@pytest.fixture(params=[False, True], ids=["by the machine", "carried by C"])
def cores(make_cores, request):
    return make_cores(is_carried=request.param)


@pytest.fixture
def alone(make_cores):
    return make_cores(count=1)


def values(name, count):
    return [f"{name}-{number}".encode() for number in range(count)]


def leaving_of(node):
    replicas = SimpleNamespace(
        group_name=lambda _key: GROUP,
        look_at=lambda _key: node.driver.core.find(GROUP),
        bounds_of=lambda _key: node.plane.bounds(node.handle),
    )
    made = LeavingReplicas(replicas, SimpleNamespace(), node.plane)
    made.begin(node.driver)
    return made


def promises(node):
    machine = node.driver.core.group(GROUP)
    return machine.term, machine.vote, machine.log.last


async def released_by(node, before=lambda: None):
    """What goes over, and what the replica had promised when it had left. `before`: called just before it does."""
    leaving, promised = leaving_of(node), []

    async def leave():
        before()
        await leaving.leave(KEY)

    def gone():
        promised.append(promises(node))
        node.driver.remove(GROUP)

    released = await node.storage.release(node.handle, CoreId(0), MOVE, gone, leave)
    return released, promised[0]


def release(node):
    """As `released_by`; nobody looks at it until it is adopted."""
    found = node.ask(released_by, node)
    node.cores.nodes[node.number] = None
    return found


def adopt(node):
    """Its promises as it begins."""

    async def work():
        config = Bench.make_config()
        node.files = await node.storage.open(KEY, "topic", config)  # as `take_back`
        node.handle = node.storage.register(node.files, config, is_internal=False, is_replicated=True)
        voters = [Voter(NodeId(number), 0) for number in range(node.count)]
        node.driver.add(GROUP, node.handle, node.files, voters[node.number], simple(voters))
        return promises(node)

    node.cores.nodes[node.number] = node
    return node.ask(work)


@pytest.mark.parametrize("leads", [True, False])
def test_a_replica_that_moves_is_the_voter_that_it_was(cores, leads):
    first = cores.leader()
    cores.produce(first, values("a", 20))
    cores.check()
    moving = first if leads else next(node for node in cores.up() if node is not first)
    released, promised = release(moving)
    assert released.released.move_id == MOVE
    assert released.log_end_offset == 20
    cores.produce_at_leader(values("b", 5))
    assert adopt(moving) == promised
    cores.check()
    cores.produce_at_leader(values("c", 5))
    cores.check()
    assert moving.role()[0] is not LEADER or not leads or moving.role()[1] > promised[0]


def test_a_replica_that_nobody_has_taken_over_when_its_node_ends_is_all_there(cores):
    first = cores.leader()
    cores.produce(first, values("a", 20))
    cores.check()
    moving = next(node for node in cores.up() if node is not first)
    _released, promised = release(moving)
    cores.produce_at_leader(values("b", 5))
    cores.nodes[moving.number] = moving
    cores.crash(moving.number)
    cores.start(moving.number)
    again = cores.nodes[moving.number]
    assert again.ask(lambda: again.driver.core.group(GROUP).term) >= promised[0]
    assert again.bounds().log_end_offset >= 20
    cores.check()


def test_who_waits_for_a_group_of_one_that_moves_is_answered_and_it_goes_on(alone):
    """Nobody else could lead it, or commit."""
    node = alone.leader()
    alone.produce(node, values("a", 20))

    async def move():
        await node.storage.make_room(node.files, node.handle, 1 << 20)
        async with trio.open_nursery() as nursery:

            def append():
                appended = node.plane.append(node.handle, batch(0, [b"who waits"]))
                nursery.start_soon(node.plane.wait_committed, node.handle, appended.end_offset, appended.leader_epoch)

            return await released_by(node, append)

    released, promised = node.ask(move)
    assert (released.log_end_offset, released.committed_end_offset) == (21, 21)
    term, _vote, last = adopt(node)
    assert (term, last) == (promised[0] + 1, promised[2]), "it stands at once, in a term that is new"
    alone.leader()
    alone.produce(node, values("b", 5))
    alone.check()
    alone.crash(0)
    alone.start(0)
    alone.leader()
    alone.check()


@pytest.mark.parametrize("count", [1, 3])
def test_a_replica_that_cannot_leave_stays_and_takes_part(make_cores, count):
    """Its files fail when it has left already."""
    cores = make_cores(count)
    first = cores.leader()
    cores.produce(first, values("a", 5))

    async def fail():
        leaving = leaving_of(first)

        async def leave():
            await leaving.leave(KEY)
            assert first.driver.core.group(GROUP).leaving
            raise PartitionOfflineError("for a test")

        with pytest.raises(PartitionOfflineError, match="for a test"):
            await first.storage.release(first.handle, CoreId(0), MOVE, lambda: None, leave)
        leaving.stay(KEY)

    first.ask(fail)
    cores.check()
    cores.produce_at_leader(values("b", 5))
    cores.check()
