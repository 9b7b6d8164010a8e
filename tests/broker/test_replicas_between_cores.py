"""What a core asks of its replication when a replica leaves it for another core of the node, or comes from there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio
import trio.testing

from tests.support.memory_core import MemoryCore, topic_id_of
from tpc_broker.broker.replicated import ReplicatedPartitions
from tpc_broker.broker.view import Leader
from tpc_broker.errors import PartitionNotMadeError, PartitionOfflineError
from tpc_broker.metadata.image import Life
from tpc_broker.metadata.records import MoveBegun, MoveDone, TopicCreated
from tpc_broker.model import CoreId, FirstVoter, LeaderEpoch, NodeId, PartitionIndex, Replica, TopicPartition

KEY = TopicPartition(topic_id_of(1), PartitionIndex(0))
HERE, THERE, OTHER = Replica(NodeId(0), CoreId(0)), Replica(NodeId(0), CoreId(1)), Replica(NodeId(1), CoreId(0))
MOVE = 9
LIFE = 2


class Replication:
    """Notes what it is asked."""

    def __init__(self):
        self.asked = []
        self.leaderships = self.leaving = self
        self.life = 0
        self.has_no_space = False

    def note(self, what):
        self.asked.append(what)

    async def step_aside(self, _key):
        self.note("step aside")

    async def leave(self, _key):
        self.note("leave")

    def stay(self, _key):
        self.note("stay")

    def term_of(self, _key):
        return 5

    def first_note(self, _topic, _key, _files):
        return b""

    def has_other_life(self, topic, key):
        return topic.life_of(key.partition, HERE.node) != self.life

    async def begin_lives(self, topic, keys):
        if self.has_no_space:
            raise OSError("no space, for a test")
        [key] = keys
        self.life = topic.life_of(key.partition, HERE.node)
        self.note(f"life {self.life}")


def core_with(replication):
    core = MemoryCore()
    register = core.storage.register
    core.storage.register = lambda files, config, *, is_internal, is_replicated: register(
        files, config, is_internal=is_internal and is_replicated
    )
    core.replicated = SimpleNamespace(
        replication=replication,
        add=lambda _topic, _partition: replication.note("add"),
        remove=lambda _key: replication.note("remove"),
        is_left_out=lambda *_: False,
    )
    return core


def created(place, lives=()):
    voters = ((FirstVoter(NodeId(0), 7), FirstVoter(NodeId(1), 7)),)
    return TopicCreated("t", KEY.topic_id, (place.core,), 1, (), {}, ((place, OTHER),), voters, lives)


def lead(core, epoch, place):
    """Heard of by the core."""
    core.view.note_leaders([(KEY, Leader(LeaderEpoch(epoch), 0, place, (HERE.node, OTHER.node)))])
    core.partitions.look_at_moves()


def begun(target):
    return MoveBegun(*KEY, target.core, MOVE, 1, target.node)


async def test_a_replica_leaves_its_group_before_it_is_released_and_is_no_more_when_it_is():
    replication = Replication()
    core = core_with(replication)
    await core.follow(created(HERE))
    await core.follow(begun(THERE))
    await core.partitions.step_aside(KEY)
    released = await core.partitions.release(KEY, THERE.core, MOVE)
    assert replication.asked == ["add", "step aside", "leave", "remove"]
    assert released.released.move_id == MOVE
    assert not core.partitions.is_led(KEY)
    assert core.coordinators.ended == [], "its coordinator goes with its leadership"
    await core.follow(MoveDone(*KEY, THERE.core, THERE.node))
    assert ("forget_release", KEY) in core.storage.asked
    await core.partitions.step_aside(KEY)
    assert replication.asked[-1] == "remove", "it is not here"


@pytest.mark.parametrize("is_back", [False, True])
async def test_nobody_waits_for_the_move_of_a_follower(is_back):
    """Who leads it is known all the time, and its group begins no term for that. Of one that led it the next is."""
    core = core_with(Replication())
    await core.follow(created(HERE))
    lead(core, 5, OTHER)
    await core.follow(begun(THERE))
    await core.partitions.release(KEY, THERE.core, MOVE)
    assert not await core.partitions.wait_moved("t", 0)
    await core.follow(begun(HERE) if is_back else MoveDone(*KEY, THERE.core, THERE.node))
    assert not await core.partitions.wait_moved("t", 0)


@pytest.mark.parametrize(("epoch", "place"), [(6, OTHER), (6, THERE), (5, OTHER)])
async def test_the_move_of_a_leader_is_waited_for_until_a_leader_is_known(epoch, place, autojump_clock):
    core = core_with(Replication())
    await core.follow(created(HERE))
    lead(core, 5 if place == THERE else 4, HERE)
    await core.follow(begun(THERE))
    await core.partitions.release(KEY, THERE.core, MOVE)
    waited = []

    async def wait():
        waited.append(await core.partitions.wait_moved("t", 0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await core.follow(MoveDone(*KEY, THERE.core, THERE.node))
        core.partitions.look_at_moves()
        await trio.testing.wait_all_tasks_blocked()
        assert not waited
        began_s = trio.current_time()
        lead(core, epoch, place)
        await trio.testing.wait_all_tasks_blocked()
        assert waited == [True]
        assert trio.current_time() == began_s
    assert not await core.partitions.wait_moved("t", 0)


async def test_a_replica_that_cannot_be_released_stays_in_its_group():
    replication = Replication()
    core = core_with(replication)
    await core.follow(created(HERE))
    await core.follow(begun(THERE))
    core.storage.refuses[KEY] = PartitionOfflineError("it fails, for a test")
    with pytest.raises(PartitionOfflineError, match="it fails"):
        await core.partitions.release(KEY, THERE.core, MOVE)
    assert replication.asked == ["add", "leave", "stay"]
    assert core.partitions.is_led(KEY)


async def test_which_life_a_replica_has_is_written_before_this_core_has_it():
    """Else a start would take it for one that was given up, with all that it has promised."""
    replication = Replication()
    core = core_with(replication)
    await core.follow(created(THERE, lives=((0, 0, LIFE, 4),)), begun(HERE))
    assert core.view.image.topics[KEY.topic_id].lives == {(KEY.partition, HERE.node): Life(LIFE, 4)}
    asked, core.storage.asked = core.storage.asked, replication.asked
    replication.has_no_space = True
    with pytest.raises(PartitionNotMadeError, match="no space"):
        await core.partitions.adopt(KEY, SimpleNamespace(key=KEY))
    assert replication.asked == []
    replication.has_no_space = False
    core.storage.folders[KEY] = SimpleNamespace(key=KEY, leader_epoch=3, settings=None)
    await core.partitions.adopt(KEY, SimpleNamespace(key=KEY))
    assert replication.asked == [f"life {LIFE}", ("adopt", KEY)]
    core.storage.asked = asked


def test_a_replica_between_two_cores_is_not_left_out_of_its_group():
    """The metadata name the other core until the move is done, and a life of before that was left out."""
    core = core_with(Replication())
    image = core.view.image.apply([created(THERE, lives=((0, 0, LIFE, 4),))], 1)
    here = object.__new__(ReplicatedPartitions)
    here._core = core
    topic = image.topics[KEY.topic_id]
    core.view.image = image
    assert here.is_left_out(topic, KEY, 4)
    core.view.image = image.apply([begun(HERE)], 2)
    assert not here.is_left_out(topic, KEY, 4)
