"""Who begins moves of replicas by a plan: how often that is made, in what steps, and that it comes to its end."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import trio

from tests.metadata.test_rebalance import Balanced, spread
from tpc_broker.broker import rebalancing
from tpc_broker.broker.rebalancing import (
    CALM_S,
    LOOK_S,
    STEPS_A_TURN,
    TOGETHER_SHARE,
    UNDER_WAY_MAX,
    WAITING_PER_CORE,
    Rebalancing,
)
from tpc_broker.metadata.replica_moves import BALANCED, REPLACED, all_moves, coming, move_done, moving
from tpc_broker.model import NodeId, PartitionIndex, TopicPartition


class Moving:
    """A controller whose nodes carry moves out `at_once` in each round; making a plan takes `step_s` for each turn."""

    def __init__(self, nodes: Balanced, monkeypatch, step_s: float = 0.0, at_once: int = 16) -> None:
        self.nodes, self.at_once = nodes, at_once
        self.plans = self.steps = self.changes = 0
        settings = SimpleNamespace(
            replica_moves_paused=False, replica_replace_delay_ms=600_000, replica_balance_enable=True
        )
        clock = SimpleNamespace(wall_ms=lambda: 1)
        self.settings = settings
        core = SimpleNamespace(view=self, settings=settings, metadata=self, clock=clock)
        self.absent: frozenset[int] = frozenset()
        self.moving = Rebalancing(core, SimpleNamespace(is_controller=True, full=frozenset))
        self._move_ids = iter(range(1, 1 << 30))
        monkeypatch.setattr(rebalancing, "new_move_id", lambda _core: next(self._move_ids))
        plan, some = rebalancing.plan_in_steps, rebalancing._some

        def counted(image, situation):
            self.plans += 1
            return plan(image, situation)

        def slow(steps):
            self.steps += 1
            trio.lowlevel.current_clock().jump(step_s)
            return some(steps)

        monkeypatch.setattr(rebalancing, "plan_in_steps", counted)
        monkeypatch.setattr(rebalancing, "_some", slow)

    @property
    def image(self):
        return self.nodes.image

    async def change(self, decide):
        records, answer = decide(self.image)
        if records:
            self.changes += 1
            self.nodes.apply(records)
        await trio.lowlevel.checkpoint()
        return answer

    def under_way(self):
        return list(all_moves(self.image))

    async def carry_out(self):
        while True:
            await trio.sleep(LOOK_S)
            for _topic, move in self.under_way()[: self.at_once]:
                key = TopicPartition(move.topic_id, move.partition)
                self.nodes.apply(move_done(self.image, key, move.move_id, 3))

    async def run(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.moving.run)
                nursery.start_soon(self.carry_out)


def three_nodes_and_two_more(partitions: int, cores: int = 7, replicas: int = 3) -> Balanced:
    nodes = Balanced("")
    for node in (1, 2, 3):
        nodes.join(node, cores=cores)
    nodes.make(partitions, replicas)
    nodes.join(4, cores=cores)
    nodes.join(5, cores=cores)
    return nodes


def together(nodes: Balanced) -> int:
    """How many that can wait are begun in one change."""
    return int(sum(node.cores for node in nodes.image.nodes.values()) * WAITING_PER_CORE * TOGETHER_SHARE)


async def test_a_plan_is_made_a_few_times_and_not_for_each_change_of_the_metadata(mock_clock, monkeypatch):
    mock_clock.autojump_threshold = 0
    made = Moving(three_nodes_and_two_more(400), monkeypatch, step_s=0.1)
    await made.run(60)
    assert spread(made.nodes.held(), made.image.nodes) <= 1
    assert not made.under_way()
    moved = sum(made.nodes.held()[node] for node in (4, 5))
    assert moved == 480
    assert made.steps / made.plans > 400 / STEPS_A_TURN, "others have their turn in between"
    assert made.plans <= 6
    assert made.changes <= moved / together(made.nodes) + 5


async def test_no_plan_is_made_while_there_is_no_room_for_another_move(autojump_clock, monkeypatch):
    made = Moving(three_nodes_and_two_more(400), monkeypatch, at_once=0)
    await made.run(CALM_S + 30)
    assert len(made.under_way()) == 5 * 7 * WAITING_PER_CORE // together(made.nodes) * together(made.nodes)
    assert made.plans <= 2 + 2 * CALM_S / LOOK_S


async def test_what_can_wait_is_begun_one_for_each_core_at_a_time_and_what_is_urgent_all_at_once(
    autojump_clock, monkeypatch
):
    made = Moving(three_nodes_and_two_more(400, cores=1), monkeypatch, at_once=0)
    await made.run(CALM_S + 30)
    assert Counter(move.reason for _topic, move in made.under_way()) == {BALANCED: 5 * WAITING_PER_CORE}
    made.nodes.drain(1)
    await made.run(CALM_S + 30)
    assert len(made.under_way()) == 5 * WAITING_PER_CORE
    made.settings.replica_replace_delay_ms = 0
    made.absent = frozenset({NodeId(2)})
    await made.run(CALM_S + 30)
    assert Counter(move.reason for _topic, move in made.under_way())[REPLACED] >= UNDER_WAY_MAX - 5 * WAITING_PER_CORE
    assert len(made.under_way()) == UNDER_WAY_MAX


async def test_moves_that_wait_for_a_node_that_is_away_hold_nothing_back(autojump_clock, monkeypatch):
    made = Moving(three_nodes_and_two_more(400, cores=1, replicas=2), monkeypatch, at_once=0)
    await made.run(CALM_S + 30)
    few = 5 * WAITING_PER_CORE
    assert len(made.under_way()) == few
    made.absent = frozenset({NodeId(4)})
    made.nodes.drain(1)
    await made.run(CALM_S + 30)
    stuck = [move for _topic, move in made.under_way() if 4 in {place.node for place in move.wanted}]
    assert stuck
    assert {move.reason for move in stuck} == {BALANCED}
    assert len(made.under_way()) == few + len(stuck), "as many others as if those were not there"


def four_nodes_without(*numbers: int) -> Balanced:
    """All replicas were made on those that are there first."""
    nodes = Balanced("")
    for node in (1, 2, 3):
        nodes.join(node, cores=1)
    nodes.make(100, 3)
    for node in numbers:
        nodes.join(node, cores=1)
    return nodes


def to_nodes(made: Moving) -> Counter[NodeId]:
    return Counter(node for topic, move in made.under_way() for node in coming(topic, move))


async def test_as_many_moves_as_there_may_be_are_planned_anew_when_their_node_goes_away(autojump_clock, monkeypatch):
    """And never are there more, however often nodes come and go."""
    made = Moving(four_nodes_without(4, 5), monkeypatch, at_once=0)
    made.settings.replica_replace_delay_ms = 0
    for away, target in ((5, 4), (4, 5), (5, 4), (4, 5)):
        made.absent = frozenset({NodeId(3), NodeId(away)})
        await made.run(CALM_S)
        assert to_nodes(made) == {target: UNDER_WAY_MAX}
        assert {move.reason for _topic, move in made.under_way()} == {REPLACED}
        assert len(made.under_way()) == UNDER_WAY_MAX
    made.at_once = 16
    await made.run(60)
    assert not made.under_way()
    assert made.nodes.held()[3] == 0


async def test_as_many_moves_as_there_may_be_go_back_when_there_is_no_other_node(autojump_clock, monkeypatch):
    made = Moving(four_nodes_without(4), monkeypatch, at_once=0)
    made.settings.replica_replace_delay_ms = 0
    made.absent = frozenset({NodeId(3)})
    await made.run(CALM_S)
    assert to_nodes(made) == {4: UNDER_WAY_MAX}
    made.absent = frozenset({NodeId(3), NodeId(4)})
    await made.run(CALM_S)
    assert not to_nodes(made)
    made.at_once = 16
    await made.run(CALM_S)
    assert not made.under_way(), "there is room again"


async def test_moves_that_wait_for_an_absent_node_and_cannot_be_planned_anew_are_not_planned_for_all_the_time(
    autojump_clock, monkeypatch
):
    """Nobody is there who could give these replicas away."""
    made = Moving(four_nodes_without(4), monkeypatch, at_once=0)
    made.settings.replica_replace_delay_ms = 0
    made.absent = frozenset({NodeId(3)})
    await made.run(CALM_S)
    made.nodes.join(5, cores=1)
    made.absent = frozenset({NodeId(node) for node in (1, 2, 3, 4)})
    before = made.plans
    await made.run(60)
    assert to_nodes(made) == {4: UNDER_WAY_MAX}
    assert made.plans <= before + 2


async def test_moves_of_partitions_without_a_majority_hold_nothing_back_and_are_not_begun(autojump_clock, monkeypatch):
    """Their groups have no leader, who could change the voters, until a node comes back."""
    made = Moving(four_nodes_without(4, 5), monkeypatch, at_once=0)
    made.nodes.make(200, 3)
    made.settings.replica_replace_delay_ms = 0
    made.absent = frozenset({NodeId(3)})
    await made.run(CALM_S)
    assert len(made.under_way()) == UNDER_WAY_MAX
    made.absent = frozenset({NodeId(2), NodeId(3)})

    def stuck() -> set[int]:
        nodes = ((move, {place.node for place in topic.replicas[move.partition]}) for topic, move in made.under_way())
        return {move.move_id for move, before in nodes if len(before & made.absent) == 2}

    before = stuck()
    assert before
    await made.run(60)
    assert stuck() == before, "they are as they were, and no other one is begun"
    assert len(made.under_way()) == UNDER_WAY_MAX + len(before)
    made.absent = frozenset({NodeId(3)})
    made.at_once = 16
    await made.run(60)
    assert not made.under_way()
    assert made.nodes.held()[3] == 0


async def test_of_a_plan_that_is_kept_what_was_moved_by_hand_meanwhile_stays(autojump_clock, monkeypatch):
    nodes = three_nodes_and_two_more(200)
    made = Moving(nodes, monkeypatch, at_once=0)
    made.moving._plan_until_s = 0.0
    await made.run(CALM_S + 2)
    topic = next(iter(made.image.topics.values()))
    left = made.moving._plan[0]
    index = PartitionIndex(left.key.partition)
    by_hand = moving(topic, index, topic.replicas[index][::-1], "asked", 10_000, 1)
    nodes.apply([by_hand])
    nodes.apply(move_done(made.image, left.key, 10_000, 3))
    topic = next(iter(made.image.topics.values()))
    assert index in topic.assignment.manual
    records, begun = made.moving._decide(made.image, [left._replace(before=topic.wanted(index))])
    assert (records, begun.total()) == ([], 0)


async def test_a_node_that_drains_has_another_plan_made_at_once(mock_clock, monkeypatch):
    mock_clock.autojump_threshold = 0
    made = Moving(three_nodes_and_two_more(100), monkeypatch, step_s=1.0)
    await made.run(8)
    before = made.plans
    made.nodes.drain(5)
    await made.run(60)
    assert made.plans > before
    assert made.nodes.held()[5] == 0
    assert not made.under_way()
