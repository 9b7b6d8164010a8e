"""Moves of replicas between the cores of a node that are cancelled, as a cluster does it: at whichever step, and
whatever crashes, one core has the partition in the end, and nobody else can get it any more.

The metadata are those of a node alone here, and the record that cancels is written as the leader of a cluster's does.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio

from tests.broker.test_core_moves import (
    SOURCE,
    STEPS,
    TARGET,
    alter,
    leaders,
    made,
    ongoing,
    only_these_are_under_way,
    settled,
    stop_at,
)
from tests.metadata.test_cluster_core_moves import OnCores
from tests.support.memory_node import running_node
from tpc_broker.broker.core_moves import AT_ONCE
from tpc_broker.broker.reassignments import CANCEL_S, ClusterReassignments, WantedBrokers
from tpc_broker.broker.replica_moves import ReplicaMoves
from tpc_broker.cli.cluster_facts import move_rows
from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.cluster_core_moves import end_core_move, with_core
from tpc_broker.model import broker_id_of

CORES = 3
KEEP = "moves.keep"


async def cancel(node, key):
    await node[0].metadata.change(lambda image: ([replace(image.moving[key], is_cancelled=True)], None))


def stop_taking_back_at(node, step):
    """As `stop_at`, of the move that is cancelled then."""
    if step == KEEP:
        return stop_at(node, KEEP)
    reached, going = trio.Event(), trio.Event()
    core = node[0]
    change = core.metadata.change

    async def changing(decide):
        if any(move.is_cancelled for move in core.view.image.moving.values()) and not reached.is_set():
            reached.set()
            await going.wait()
        return await change(decide)

    core.metadata.change = changing
    return reached, going


async def begun(node, step):
    """A move that has come to a step: its partition, and what lets it go on."""
    key = await made(node)
    reached, going = stop_at(node, step)
    assert await alter(node, [TARGET]) == 0
    await reached.wait()
    return key, going


async def over(node):
    while node[0].view.image.moving:
        await trio.sleep(0.05)


@pytest.mark.parametrize("step", STEPS)
async def test_who_has_it_when_the_move_is_cancelled_keeps_it(autojump_clock, step):
    async with running_node(CORES) as node:
        key, going = await begun(node, step)
        log = node.lives[SOURCE].storage.folders.get(key) or {**node.files[SOURCE], **node.files[TARGET]}[key]
        await cancel(node, key)
        owner = TARGET if step == "done" else SOURCE
        await settled(node, key, owner)
        statistics = node[0].moves.statistics
        assert (statistics.done, statistics.taken_back) == ((1, 0) if step == "done" else (0, 1))
        going.set()
        await trio.sleep(5)
        await settled(node, key, owner)
        assert node.files[owner][key] is log
        assert statistics.done + statistics.taken_back + statistics.given_up == 1 + (step == "done")
        other = SOURCE if step == "done" else TARGET
        assert await alter(node, [other]) == 0
        await settled(node, key, other)


@pytest.mark.parametrize("at", [KEEP, "done"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victims", [(0,), (SOURCE,), (TARGET,), (1, 2), (0, 1, 2)])
async def test_a_move_is_taken_back_whatever_crashes_at_whichever_step(autojump_clock, step, at, victims):
    async with running_node(CORES) as node:
        key, going = await begun(node, step)
        log = node.lives[SOURCE].storage.folders.get(key) or {**node.files[SOURCE], **node.files[TARGET]}[key]
        reached, going_back = stop_taking_back_at(node, at)
        await cancel(node, key)
        await reached.wait()
        assert len(leaders(node, key)) == (0 if step == "moves.adopt" else 1)
        for victim in victims:
            await node.crash(victim)
        for victim in victims:
            await node.start(victim)
        going.set()
        going_back.set()
        owner = TARGET if step == "done" else SOURCE
        await settled(node, key, owner)
        await trio.sleep(5)
        await settled(node, key, owner)
        assert node.files[owner][key] is log


async def test_what_was_not_released_yet_needs_not_the_core_that_is_down(autojump_clock):
    async with running_node(CORES) as node:
        key = await made(node)
        await node.crash(TARGET)
        assert await alter(node, [TARGET]) == 0
        await trio.sleep(5)
        assert await ongoing(node)
        await cancel(node, key)
        await over(node)
        assert leaders_of(node, key) == [SOURCE]
        await node.start(TARGET)
        await settled(node, key, SOURCE)


def leaders_of(node, key):
    return [number for number, life in sorted(node.lives.items()) if life.core.partitions.is_led(key)]


async def test_what_was_released_waits_until_the_core_that_may_have_it_says_so(autojump_clock):
    async with running_node(CORES) as node:
        key, _going = await begun(node, "moves.adopt")
        await node.crash(TARGET)
        await cancel(node, key)
        await trio.sleep(30)
        assert node[0].view.image.moving[key].is_cancelled
        assert leaders_of(node, key) == []
        assert await alter(node, [TARGET]) == 0, "of a node alone: it is under way"
        await node.start(TARGET)
        await settled(node, key, SOURCE)


async def test_what_is_taken_back_from_a_core_that_is_down_leaves_others_their_places(autojump_clock):
    async with running_node(CORES + 1) as node:
        waiting = [await made(node, f"waiting-{number}") for number in range(AT_ONCE)]
        await made(node, core=0)
        mailboxes, reached = node.lives[0].mailboxes, []
        call = mailboxes.call

        async def calling(to, method, payload, *rest, **how):
            if method == "moves.adopt" and payload["target"] == TARGET:
                reached.append(payload["partition"])
                await trio.sleep(30)
            return await call(to, method, payload, *rest, **how)

        mailboxes.call = calling
        for number in range(AT_ONCE):
            assert await alter(node, [TARGET], name=f"waiting-{number}") == 0
        while len(reached) < AT_ONCE:
            await trio.sleep(0.05)
        await node.crash(TARGET)
        for key in waiting:
            await cancel(node, key)
        assert await alter(node, [CORES]) == 0
        await only_these_are_under_way(node, waiting)
        await node.start(TARGET)
        for key in waiting:
            await settled(node, key, SOURCE)


async def test_what_was_released_is_given_back_to_a_core_that_is_down(autojump_clock):
    async with running_node(CORES) as node:
        key, _going = await begun(node, "moves.adopt")
        await node.crash(SOURCE)
        await cancel(node, key)
        await over(node)
        await node.start(SOURCE)
        await settled(node, key, SOURCE)


@pytest.mark.parametrize("has_heard", [True, False])
async def test_nobody_adopts_what_is_being_taken_back(autojump_clock, has_heard):
    """Not by an order from before; and a core that has not heard of it says nothing of what it has."""
    async with running_node(CORES) as node:
        key = await made(node)
        late = []
        mailboxes = node.lives[0].mailboxes
        call = mailboxes.call

        async def calling(to, method, payload, blobs=(), **how):
            if method == "moves.adopt" and not late:
                late.append((payload, list(blobs)))
                await trio.sleep_forever()
            if method == KEEP:
                await trio.sleep_forever()
            return await call(to, method, payload, blobs, **how)

        mailboxes.call = calling
        assert await alter(node, [TARGET]) == 0
        while not late:
            await trio.sleep(0.01)
        ((payload, blobs),) = late
        if not has_heard:
            mailboxes.lost.add("metadata.apply")
        await cancel(node, key)
        asked = {**payload, "version": node[0].view.image.version}
        if has_heard:
            answer, _blobs = await call(TARGET, "moves.adopt", payload, blobs)
            assert "no such move" in answer["again"]
            answer, _blobs = await call(TARGET, KEEP, asked)
            assert answer == {"has": False}
        else:
            node[TARGET].metadata.behind = trio.Event()  # nobody waits for it: it stays behind
            answer, _blobs = await call(TARGET, KEEP, asked)
            assert "older metadata" in answer["again"]
        assert leaders(node, key) == []


# -- where the metadata are led --------------------------------------------------------------------------------------


class Cluster(OnCores):
    """The metadata's leader, on a node where nothing moves."""

    def __init__(self):
        super().__init__()
        self.changed = trio.Event()
        view = SimpleNamespace(absent=frozenset())
        self.core = SimpleNamespace(
            metadata=SimpleNamespace(
                change=self.change, wait_image=self.wait_image, serve_at_controller=lambda *_: None
            ),
            clock=SimpleNamespace(wall_ms=lambda: 1, monotonic_ms=lambda: 1), view=view, cluster=None,
            chance=SimpleNamespace(uuid=lambda: SimpleNamespace(int=1 << 90)), mailboxes=self,
            settings=SimpleNamespace(replica_moves_paused=False, replica_moves_per_node=8),
        )  # fmt: skip
        self.apply([])

    def serve(self, *_):
        pass

    def apply(self, records):
        super().apply(records)
        if hasattr(self, "core"):
            self.core.view.image = self.image
            self.changed.set()
            self.changed = trio.Event()

    async def change(self, decide):
        await trio.lowlevel.checkpoint()
        records, response = decide(self.image)
        self.apply(records)
        return response

    async def wait_image(self, is_so):
        while not is_so(self.image):
            await self.changed.wait()

    async def cancel(self, *names):
        wanted = [WantedBrokers(name, 0, None) for name in names or ("t",)]
        return await ClusterReassignments(self.core).alter(wanted, allow_factor_change=True)

    async def end_soon(self, owner):
        await trio.sleep(CANCEL_S / 2)
        self.end(owner)

    def rows(self):
        found = ReplicaMoves(self.core, None, None).rows()
        return [(row["reason"], row["state"], row["between_cores"]) for row in found], move_rows(found)


@pytest.mark.parametrize("is_back", [True, False])
async def test_who_cancels_hears_whether_it_came_too_late(autojump_clock, is_back):
    nodes = Cluster()
    assert nodes.ask_core(2) == [None]
    source, target = nodes.place(2).core, nodes.other(2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(nodes.end_soon, source if is_back else target.core)
        (outcome,) = await nodes.cancel()
    if is_back:
        assert outcome == (ErrorCode.NONE, None)
    else:
        assert outcome.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert f"Broker {broker_id_of(*target)} had taken" in outcome.error_message
    assert not nodes.image.moving


async def test_a_cancel_is_accepted_where_the_node_is_away(autojump_clock):
    nodes = Cluster()
    assert nodes.ask_core(2) == [None]
    began_s = trio.current_time()
    none, accepted = await nodes.cancel("none", "t")
    assert (none.error_code, accepted) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, (ErrorCode.NONE, None))
    assert trio.current_time() - began_s == CANCEL_S
    (again,) = await nodes.cancel()
    assert again.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert "already" in again.error_message
    assert trio.current_time() - began_s == CANCEL_S, "it does not wait again"


async def test_a_move_between_cores_is_told_to_clients_and_people(autojump_clock):
    nodes = Cluster()
    assert nodes.rows() == ([], [])
    assert nodes.ask_core(2) == [None]
    source, target = nodes.place(2), nodes.other(2)
    cores = {"node": 2, "from": source.core, "to": target.core}
    rows, shown = nodes.rows()
    assert rows == [("cores", "handing over", cores)]
    assert shown == [("t-0", f"2, core {target.core}", f"2, core {source.core}", "cores", "handing over", "", "")]
    (one,) = ClusterReassignments(nodes.core).ongoing()
    assert (one.adding, one.removing) == ((broker_id_of(*target),), (broker_id_of(*source),))
    await nodes.cancel()
    assert nodes.rows()[0] == [("cancelled", "going back", cores)]
    (one,) = ClusterReassignments(nodes.core).ongoing()
    before = tuple(broker_id_of(*place) for place in nodes.topic.replicas[0])
    coming = broker_id_of(*target)
    assert one == ("t", 0, (*before, coming), (), (coming,))
    nodes.core.view.absent = frozenset([2])
    assert nodes.rows()[0] == [("cancelled", "waiting", cores)]
    move = nodes.image.moving[nodes.key]
    nodes.apply(end_core_move(nodes.image, nodes.key, move.move_id, source.core))
    assert nodes.rows() == ([], [])
    assert with_core(nodes.image, "t", 0, source) == before
