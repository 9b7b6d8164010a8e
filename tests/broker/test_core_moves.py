"""Moves of partitions between the cores of a node, conducted by real cores in memory: whatever crashes at whichever
step, one core leads in the end, with the log, and everybody knows.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from tests.support.memory_clients import produce_request
from tests.support.memory_node import running_node
from tpc_broker.broker.core_moves import AT_ONCE
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.kafka import messages
from tpc_broker.model import PartitionIndex, TopicPartition
from tpc_broker.testing.node import answer_of

SOURCE, TARGET, CORES = 1, 2, 3
STEPS = ("moves.release", "moves.adopt", "done")


async def made(node, name="t", core=SOURCE):
    """A topic with one partition on that core."""
    kind = messages.CreateTopicsRequest
    assigned = [kind.CreatableReplicaAssignment(partition_index=0, broker_ids=[core])]
    topic = kind.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assigned)
    answer = await node.ask(0, kind(topics=[topic], timeout_ms=1000))
    assert answer.topics[0].error_code == 0, answer
    return TopicPartition(node[0].view.topic(name).topic_id, PartitionIndex(0))


async def alter(node, brokers, on=0, name="t"):
    kind = messages.AlterPartitionReassignmentsRequest
    part = kind.ReassignablePartition(partition_index=0, replicas=brokers)
    answer = await node.ask(on, kind(topics=[kind.ReassignableTopic(name=name, partitions=[part])]))
    return answer.responses[0].partitions[0].error_code


async def ongoing(node):
    answer = await node.ask(0, messages.ListPartitionReassignmentsRequest(topics=None))
    return [(t.name, p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas)
            for t in answer.topics for p in t.partitions]  # fmt: skip


def leaders(node, key):
    return [number for number in sorted(node.lives) if node[number].partitions.is_led(key)]


def _all_know(node, key, owner):
    partition = node[owner].partitions.get(key)
    views = [node[number].view for number in range(CORES)]
    return partition is not None and all(
        not view.image.moving
        and view.image.owner_of(key) == owner
        and view.leader_of(0, view.image.topics[key.topic_id].name, 0) == (owner, partition.leader_epoch)
        for view in views
    )


async def settled(node, key, owner):
    """Until every core says so; then the log is where it should be, once."""
    while not _all_know(node, key, owner):
        await trio.sleep(0.05)
    assert leaders(node, key) == [owner]
    assert [number for number in range(CORES) if key in node.files[number]] == [owner]
    while any(node.files[number].away for number in range(CORES)):
        await trio.sleep(0.05)


async def stays(node, key):
    """Until the move is given up; then the log is where it was."""
    while await ongoing(node):
        await trio.sleep(0.05)
    await settled(node, key, SOURCE)
    assert node[0].moves.statistics.given_up == 1


def stop_at(node, step):
    """Core 0 stops in front of a step; what is told when it has come there, and what lets it go on."""
    reached, going = trio.Event(), trio.Event()
    core, mailboxes = node[0], node.lives[0].mailboxes
    call, change = mailboxes.call, core.metadata.change

    async def halt():
        reached.set()
        await going.wait()

    async def calling(to, method, *rest, **how):
        if method == step and not reached.is_set():
            await halt()
        return await call(to, method, *rest, **how)

    async def changing(decide):
        if step == "done" and core.view.image.moving and not reached.is_set():
            await halt()
        return await change(decide)

    mailboxes.call, core.metadata.change = calling, changing
    return reached, going


async def test_a_partition_is_led_by_another_core_and_everybody_knows(autojump_clock):
    async with running_node(CORES) as node:
        key = await made(node)
        log, epoch = node.files[SOURCE][key], node[SOURCE].partitions.get(key).leader_epoch
        for core, asked in ((TARGET, 0), (0, TARGET), (SOURCE, SOURCE)):
            assert await alter(node, [core], on=asked) == 0
            await settled(node, key, core)
            assert node.files[core][key] is log
            assert node[core].partitions.get(key).leader_epoch > epoch
            epoch = node[core].partitions.get(key).leader_epoch
        assert await ongoing(node) == []
        assert node[0].moves.statistics.done == 3


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victims", [(0,), (SOURCE,), (TARGET,), (1, 2), (0, 1, 2)])
async def test_a_move_goes_on_whatever_crashes_at_whichever_step(autojump_clock, step, victims):
    async with running_node(CORES) as node:
        key = await made(node)
        log = node.files[SOURCE][key]
        reached, going = stop_at(node, step)
        assert await alter(node, [TARGET]) == 0
        await reached.wait()
        assert await ongoing(node) == [("t", 0, [TARGET, SOURCE], [TARGET], [SOURCE])]
        assert len(leaders(node, key)) == (0 if step == "moves.adopt" else 1)
        for victim in victims:
            await node.crash(victim)
        for victim in victims:
            await node.start(victim)
        going.set()
        await settled(node, key, TARGET)
        assert node.files[TARGET][key] is log


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_produce_whose_partition_leaves_while_it_waits_for_room_is_sent_there(autojump_clock, comes_back):
    async with running_node(CORES) as node:
        key = await made(node)
        partitions = node[SOURCE].partitions
        make_room = partitions.make_room

        async def is_moved_meanwhile(_partition, _size):
            partitions.make_room = make_room
            for core in (TARGET, SOURCE) if comes_back else (TARGET,):
                assert await alter(node, [core]) == 0
                await settled(node, key, core)
            raise PartitionOfflineError("t-0 is closed")

        partitions.make_room = is_moved_meanwhile
        request = node.send(SOURCE, produce_request("t", 0, [b"x"]), 10)
        await request.done.wait()
        (part,) = answer_of(request).responses[0].partition_responses
        if comes_back:
            assert (part.error_code, part.base_offset) == (ErrorCode.NONE, 0)
        else:
            assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert part.current_leader.leader_id == node[SOURCE].view.leader_of(0, "t", 0)[0]


async def test_a_partition_that_cannot_leave_stays(autojump_clock):
    async with running_node(CORES) as node:
        key = await made(node)
        storage = node.lives[SOURCE].storage
        storage.refuses[key] = PartitionOfflineError("it fails, for a test")
        assert await alter(node, [TARGET]) == 0
        await stays(node, key)
        del storage.refuses[key]
        assert await alter(node, [TARGET]) == 0
        await settled(node, key, TARGET)


async def test_a_partition_that_its_target_cannot_open_is_taken_back(autojump_clock):
    async with running_node(CORES) as node:
        key = await made(node)
        log = node.files[SOURCE][key]
        node.lives[TARGET].storage.refuses[key] = PartitionOfflineError("its files are no good, for a test")
        assert await alter(node, [TARGET]) == 0
        await stays(node, key)
        assert node.files[SOURCE][key] is log
        assert not await node[SOURCE].partitions.wait_moved("t", 0), "nobody waits for a move that is over"


async def test_a_move_that_is_cancelled_when_the_target_has_it_is_done(autojump_clock):
    async with running_node(CORES) as node:
        key = await made(node)
        log = node.files[SOURCE][key]
        node.lives[SOURCE].storage.left_over.add(key)  # its folder is there, whoever has it
        reached, going = stop_at(node, "done")
        assert await alter(node, [TARGET]) == 0
        await reached.wait()
        assert await alter(node, None) == 0
        going.set()
        await settled(node, key, TARGET)
        assert node.files[TARGET][key] is log


@pytest.mark.parametrize("step", STEPS[:2])
async def test_a_move_that_is_cancelled_leaves_the_partition_where_it_was(autojump_clock, step):
    async with running_node(CORES) as node:
        key = await made(node)
        log = node.files[SOURCE][key]
        reached, going = stop_at(node, step)
        assert await alter(node, [TARGET]) == 0
        await reached.wait()
        assert await alter(node, [0]) == ErrorCode.REASSIGNMENT_IN_PROGRESS
        assert await alter(node, [TARGET]) == 0, "it is asked for already"
        assert await alter(node, None) == 0
        going.set()
        await settled(node, key, SOURCE)
        assert await alter(node, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        await trio.sleep(5)
        await settled(node, key, SOURCE)
        assert node.files[SOURCE][key] is log
        assert await alter(node, [TARGET]) == 0
        await settled(node, key, TARGET)


@pytest.mark.parametrize("victim", [SOURCE, TARGET])
async def test_moves_of_a_core_that_is_down_leave_others_their_places(autojump_clock, victim):
    async with running_node(CORES + 1) as node:
        waiting = [await made(node, f"waiting-{number}") for number in range(AT_ONCE)]
        await made(node, core=0)
        await node.crash(victim)
        for number in range(AT_ONCE):
            assert await alter(node, [TARGET], name=f"waiting-{number}") == 0
        assert await alter(node, [CORES]) == 0
        await only_these_are_under_way(node, waiting)
        await node.start(victim)
        for key in waiting:
            await settled(node, key, TARGET)


async def only_these_are_under_way(node, keys):
    """Until it is so; what is held up comes to its end too late."""
    with trio.fail_after(120):
        while set(node[0].view.image.moving) != set(keys):
            await trio.sleep(0.05)


@pytest.mark.parametrize("step", STEPS[:2])
async def test_moves_whose_core_goes_down_on_the_way_leave_others_their_places(autojump_clock, step):
    async with running_node(CORES + 1) as node:
        waiting = [await made(node, f"waiting-{number}") for number in range(AT_ONCE)]
        await made(node, core=0)
        mailboxes, reached = node.lives[0].mailboxes, []
        call, going = mailboxes.call, trio.Event()

        async def calling(to, method, payload, *rest, **how):
            if method == step and payload["target"] == TARGET:
                reached.append(payload["partition"])
                await going.wait()
            return await call(to, method, payload, *rest, **how)

        mailboxes.call = calling
        for number in range(AT_ONCE):
            assert await alter(node, [TARGET], name=f"waiting-{number}") == 0
        while len(reached) < AT_ONCE:
            await trio.sleep(0.05)
        assert await alter(node, [CORES]) == 0
        await node.crash(TARGET)
        going.set()
        await only_these_are_under_way(node, waiting)
        await node.start(TARGET)
        for key in waiting:
            await settled(node, key, TARGET)


async def test_an_adoption_that_comes_late_is_not_carried_out(autojump_clock):
    """Its move was cancelled, and another one to the same core is under way."""
    async with running_node(CORES) as node:
        key = await made(node)
        late = []
        mailboxes = node.lives[0].mailboxes
        call = mailboxes.call

        async def calling(to, method, payload, blobs=(), **how):
            if method == "moves.adopt" and not late:
                late.append((payload, list(blobs)))
                await trio.sleep_forever()
            return await call(to, method, payload, blobs, **how)

        mailboxes.call = calling
        assert await alter(node, [TARGET]) == 0
        while not late:
            await trio.sleep(0.01)
        ((payload, blobs),) = late
        assert await alter(node, None) == 0
        await settled(node, key, SOURCE)
        answer, _blobs = await call(TARGET, "moves.adopt", payload, blobs)
        assert "no such move" in answer["again"]
        assert leaders(node, key) == [SOURCE]


async def test_a_topic_may_be_deleted_while_its_partition_is_nowhere(autojump_clock):
    async with running_node(CORES) as node:
        key = await made(node)
        reached, going = stop_at(node, "moves.adopt")
        assert await alter(node, [TARGET]) == 0
        await reached.wait()
        kind = messages.DeleteTopicsRequest
        state = kind.DeleteTopicState(name=None, topic_id=key.topic_id.bytes)
        answer = await node.ask(0, kind(topics=[state], timeout_ms=1000))
        assert answer.responses[0].error_code == 0
        going.set()
        await trio.sleep(5)
        assert await ongoing(node) == []
        assert leaders(node, key) == []
        assert ("delete_offline", key) in node.lives[SOURCE].storage.asked
        assert not any(node.files[number].away for number in range(CORES))


async def test_who_asks_meanwhile_is_sent_to_the_new_leader(autojump_clock):
    """Who asks the old one waits until it is known."""
    async with running_node(CORES) as node:
        key = await made(node)
        epoch = node[SOURCE].partitions.get(key).leader_epoch
        reached, going = stop_at(node, "done")
        assert await alter(node, [TARGET]) == 0
        await reached.wait()
        waited = SimpleNamespace(over=False)

        async def ask():
            await node[SOURCE].partitions.wait_moved("t", 0)
            waited.over = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.1)
            assert not waited.over
            going.set()
        assert node[SOURCE].view.leader_of(0, "t", 0) == (TARGET, epoch + 1)
        assert node[SOURCE].partitions.find("t", 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
