"""Moves that nobody asks for: off nodes that drain or are silent for too long, and onto nodes that hold less.

On core 0 of each node, and done by the one that leads the metadata: which moves, is planned anew whenever the metadata
or who is away have changed (`metadata.rebalance`), and begun some at a time, so that what comes to be more urgent does
not wait behind everything else. Since when a node is silent each one knows by itself: a new controller waits as long
again as the old one has before it replaces anything.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.broker.reassignments import new_move_id
from tpc_broker.errors import MailboxError
from tpc_broker.feature_levels import FIRST_WITH_MOVES
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.cluster_core_moves import check_on_its_core
from tpc_broker.metadata.node_assignment import grouped
from tpc_broker.metadata.rebalance import Planned, Situation, plan_in_steps
from tpc_broker.metadata.replica_moves import BALANCED, CAN_WAIT, all_moves, coming, has_majority, moving
from tpc_broker.model import TopicPartition
from tpc_broker.rounds import next_round

if TYPE_CHECKING:
    from collections.abc import Container

    from tpc_broker.broker.core_ground import CoreGround
    from tpc_broker.broker.ports import ClusterNode
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.placement.replicas import Steps
    from tpc_broker.metadata.records import MetadataRecord
    from tpc_broker.model import NodeId

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
CALM_S: Final = 5.0
"""Without nodes that come or go, before anything is moved that need not move."""
UNDER_WAY_MAX: Final = 64
"""Moves of the cluster's own at a time; how many of them copy is bounded for each node."""
WAITING_PER_CORE: Final = 1
"""Of those that can wait, for each core of the cluster: each is carried out by the core that leads it, at its own pace
(`broker.pace`), and what is begun long before is in the way of what is more urgent by then.
"""
TOGETHER_SHARE: Final = 1 / 4
"""Of so many: each beginning is a change of the metadata, which every node has to follow. All of them at once would
have all nodes make files, and copy, at the same moment.
"""
STEPS_A_TURN: Final = 32
PLAN_KEPT: Final = 10
"""Times as long as it took to make it a plan is good for, unless nodes or topics have come or gone."""


class Rebalancing:
    """Of a node, on core 0."""

    def __init__(self, core: CoreGround, cluster: ClusterNode) -> None:
        self._core = core
        self._cluster = cluster
        self._silent_since_s: dict[NodeId, float] = {}
        self._nodes: tuple[frozenset[NodeId], frozenset[NodeId]] = frozenset(), frozenset()
        self._changed_s = 0.0
        self._planned_for: object = None
        self._plan: list[Planned] = []
        """What is left of it to begin."""
        self._plan_is_of: object = None
        self._plan_until_s = 0.0

    async def run(self) -> None:
        while True:
            await next_round(LOOK_S)
            situation = self._look()
            image = self._core.view.image
            if not self._cluster.is_controller or image.feature_level < FIRST_WITH_MOVES:
                self._planned_for = None
                continue
            if self._core.settings.replica_moves_paused or self._planned_for == (image.version, situation):
                continue
            if await self._begin(image, situation):
                self._planned_for = image.version, situation

    def _look(self) -> Situation:
        """Who is away, and since when, and who is full; seen by every node, since each may lead the metadata next."""
        view, now_s = self._core.view, trio.current_time()
        nodes, away = frozenset(view.image.nodes), view.absent & frozenset(view.image.nodes)
        if (nodes, away) != self._nodes:
            self._nodes, self._changed_s = (nodes, away), now_s
        self._silent_since_s = {node: self._silent_since_s.get(node, now_s) for node in away}
        delay_s = self._core.settings.replica_replace_delay_ms / 1000
        gone = frozenset(node for node, since_s in self._silent_since_s.items() if now_s - since_s >= delay_s)
        is_calm = now_s - self._changed_s >= CALM_S
        may_balance = is_calm and self._core.settings.replica_balance_enable
        return Situation(gone, away, may_balance, self._cluster.full() & nodes)

    async def _begin(self, image: ClusterImage, situation: Situation) -> bool:
        """Whether all that is to be done is begun."""
        # Those of partitions without a majority stand still, wherever they go, and are not planned anew either.
        own = [
            (topic, move) for topic, move in all_moves(image)
            if not move.is_by_hand and has_majority(image, topic, move.partition, situation.away)
        ]  # fmt: skip
        # Those that wait for a node to come back are in nobody's way: they must not hold back what can be done.
        under_way = sum(situation.away.isdisjoint(coming(topic, move)) for topic, move in own)
        room = UNDER_WAY_MAX - len(own)
        if room <= 0 and under_way == len(own):
            return False
        cores = sum(node.cores for node in image.nodes.values())
        own_keys = {TopicPartition(move.topic_id, move.partition) for _topic, move in own}
        has_plan = bool(self._plan) and self._plan_is_of == _what_counts(image, situation)
        fitting = _fitting(self._plan, own_keys, room) if has_plan else []
        if fitting and not _count_to_begin(fitting, under_way, cores):
            return False
        is_new = await self._look_at_plan(image, situation)
        fitting = _fitting(self._plan, own_keys, room)
        chosen = fitting[: _count_to_begin(fitting, under_way, cores)]
        if not chosen:
            return is_new
        keys = {one.key for one in chosen}
        left = [one for one in self._plan if one.key not in keys]
        try:
            begun = await self._core.metadata.change(lambda newest: self._decide(newest, chosen))
        except MailboxError as error:
            log.info("moves could not be begun: %s", error)
            return False
        self._plan = left
        if begun:
            reasons = ", ".join(f"{count} {reason}" for reason, count in begun.items())
            log.info("moves of replicas begin: %s; %d more are due", reasons, len(left))
        return is_new and not left

    async def _look_at_plan(self, image: ClusterImage, situation: Situation) -> bool:
        """Make a plan if there is none that is good enough, a little at a time. Whether it is one of this image."""
        is_of, begun_s = _what_counts(image, situation), trio.current_time()
        if is_of == self._plan_is_of and begun_s < self._plan_until_s:
            return False
        steps, made = plan_in_steps(image, situation), None
        while made is None:
            made = _some(steps)
            await trio.lowlevel.checkpoint()
        self._plan = [one for one in made if _can_begin(image, one, situation)]
        self._plan_is_of = is_of
        self._plan_until_s = begun_s + PLAN_KEPT * (trio.current_time() - begun_s)
        return True

    def _decide(self, image: ClusterImage, planned: list[Planned]) -> tuple[list[MetadataRecord], Counter[str]]:
        """Of what was planned all that still begins where it was planned from."""
        records: list[MetadataRecord] = []
        begun: Counter[str] = Counter()
        keys: list[TopicPartition] = []
        for one in planned:
            topic = image.topic_by_id(one.key.topic_id)
            if topic is None or topic.wanted(one.key.partition) != one.before:
                continue
            if not {place.node for place in one.wanted} <= image.nodes.keys():
                continue
            if one.reason == BALANCED and one.key.partition in topic.assignment.manual:
                continue
            now_ms = self._core.clock.wall_ms()
            try:
                check_on_its_core(image, topic, one.key.partition)
                records.append(
                    moving(topic, one.key.partition, one.wanted, one.reason, new_move_id(self._core), now_ms)
                )
            except Refusal as refusal:
                log.debug("%s-%d does not move: %s", topic.name, one.key.partition, refusal.message)
                continue
            begun[one.reason] += 1
            keys.append(one.key)
        return [*grouped(image, keys), *records], begun


def _can_begin(image: ClusterImage, one: Planned, situation: Situation) -> bool:
    """What has no majority is planned again when nodes have come back."""
    topic = image.topics[one.key.topic_id]
    return has_majority(image, topic, one.key.partition, situation.away)


def _what_counts(image: ClusterImage, situation: Situation) -> object:
    """For a plan to be good still."""
    return situation, image.nodes, image.draining, image.ids


def _fitting(plan: list[Planned], own: Container[TopicPartition], room: int) -> list[Planned]:
    """The first ones of a plan for which there is room: there is for what takes the place of a move under way."""
    found: list[Planned] = []
    for one in plan:
        is_another = one.key not in own
        if room > 0 or not is_another:
            found.append(one)
            room -= is_another
        if len(found) == UNDER_WAY_MAX:
            break
    return found


def _count_to_begin(plan: list[Planned], under_way: int, cores: int) -> int:
    """Of a plan that has the most urgent ones first."""
    urgent = sum(one.reason not in CAN_WAIT for one in plan[:UNDER_WAY_MAX])
    if urgent:
        return max(min(urgent, UNDER_WAY_MAX - under_way), 0)
    bound = min(cores * WAITING_PER_CORE, UNDER_WAY_MAX)
    together = max(int(bound * TOGETHER_SHARE), 1)
    return 0 if under_way > bound - together else together


def _some(steps: Steps[list[Planned]]) -> list[Planned] | None:
    """The plan, if these are the last ones."""
    try:
        for _step in range(STEPS_A_TURN):
            next(steps)
    except StopIteration as end:
        plan: list[Planned] = end.value
        return plan
    return None
