"""Which leaderships of this core other nodes should have: those of a node that is drained, those that are elsewhere by
preference, and those that an operator asks to move (ElectLeaders).

The preferred leader of a partition is the first of its replicas. Everything is decided anew from the image and what is
known of the replicas; a transfer that comes to nothing is tried again. A leadership only goes to a replica that has
everything, so nobody waits for it long.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.broker.pace import rest_after
from tpc_broker.model import CoreId, NodeId, PartitionIndex, Replica, TopicId, TopicPartition
from tpc_broker.rounds import next_round

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpc_broker.broker.core_ground import CoreGround
    from tpc_broker.broker.payloads import Answer, Payload, Row
    from tpc_broker.broker.replication_port import Followers, HandOvers

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
STEP_S: Final = 0.02
GIVEN_UP_S: Final = 2.0
"""After so long one that has not got there holds up the others no more."""


class Leadership:
    """Of one core of a node of a cluster."""

    def __init__(self, core: CoreGround, hand_overs: HandOvers, followers: Followers) -> None:
        self._core = core
        self._hand_overs = hand_overs
        self._followers = followers
        self._balanced_s = 0.0
        core.mailboxes.serve("replica.prefer", self._serve_prefer)

    async def run(self) -> None:
        self._balanced_s = trio.current_time()
        while True:
            await next_round(LOOK_S)
            if self._is_draining():
                given = await self._hand_over(self.led(), self._give_away)
                if given:
                    log.info("%d leaderships were handed over: this node is draining", given)
            elif self._is_time_to_balance():
                await self._balance()

    def led(self) -> list[TopicPartition]:
        """What is led here."""
        return [key for key, _leader in self._core.view.leaders_of(self._core.core_id) if self._is_replicated(key)]

    def _is_replicated(self, key: TopicPartition) -> bool:
        topic = self._core.view.image.topics.get(key.topic_id)
        return topic is not None and topic.is_replicated(key.partition)

    def _heirs(self, key: TopicPartition) -> list[NodeId]:
        """Other nodes that could lead a partition just as well, the preferred one first."""
        view = self._core.view
        in_sync, draining = self._followers.in_sync(key), view.image.draining
        places = view.image.topics[key.topic_id].replicas[key.partition]
        return [
            place.node for place in places
            if place.node != view.node and place.node in in_sync and place.node not in draining
            and view.is_present(place.node) and self._hand_overs.has_space(key, place.node)
        ]  # fmt: skip

    async def _hand_over(self, keys: Iterable[TopicPartition], give: Callable[[TopicPartition], bool]) -> int:
        """One after the other, at a pace that leaves those alone who produce; how many were begun."""
        given = 0
        for key in keys:
            if self._is_led_here(key) and give(key):
                given += 1
                await trio.sleep(rest_after(await self._until_another_leads(key)))
        return given

    async def _until_another_leads(self, key: TopicPartition) -> float:
        """Seconds that it took, or until it was given up."""
        begun_s, view = trio.current_time(), self._core.view
        while trio.current_time() < begun_s + GIVEN_UP_S and (view.leader_epoch(key) is None or self._is_led_here(key)):
            await trio.sleep(STEP_S)
        return trio.current_time() - begun_s

    def _is_led_here(self, key: TopicPartition) -> bool:
        view = self._core.view
        topic = view.image.topics.get(key.topic_id)
        here = Replica(view.node, self._core.core_id)
        return topic is not None and view.leader_epoch(key) is not None and view.place_of(topic, key.partition) == here

    def prefer(self, key: TopicPartition) -> bool:
        """Begin to hand it over to its preferred leader; False: that is this core, or cannot lead now."""
        preferred = self.preferred(key)
        if preferred is None or self._heirs(key)[:1] != [preferred]:
            return False
        return self._hand_overs.transfer(key, preferred)

    def preferred(self, key: TopicPartition) -> NodeId | None:
        topic = self._core.view.image.topics.get(key.topic_id)
        return None if topic is None or not self._is_replicated(key) else topic.replicas[key.partition][0].node

    # -- a node that is drained --------------------------------------------------------------------------------------

    def _is_draining(self) -> bool:
        return self._core.view.node in self._core.view.image.draining

    def _give_away(self, key: TopicPartition) -> bool:
        """To who is to be preferred when its replicas have moved, if that one has everything."""
        heirs = self._heirs(key) if self._is_draining() else []
        if not heirs:
            return False
        wanted = [place.node for place in self._core.view.image.topics[key.topic_id].wanted(key.partition)]
        return self._hand_overs.transfer(key, next((node for node in wanted if node in heirs), heirs[0]))

    # -- preference --------------------------------------------------------------------------------------------------

    def _is_time_to_balance(self) -> bool:
        settings, now_s = self._core.settings, trio.current_time()
        if now_s - self._balanced_s < settings.leader_imbalance_check_interval_seconds:
            return False
        self._balanced_s = now_s
        return bool(settings.auto_leader_rebalance_enable)

    async def _balance(self) -> None:
        """Of what is led here, what a node should lead that leads too little of what it should."""
        lacking = self._lacking()
        chosen = [key for key in self.led() if self.preferred(key) in lacking]
        given = await self._hand_over(chosen, lambda key: not self._is_draining() and self.prefer(key))
        if given:
            log.info("%d leaderships were handed over to the replicas that are preferred", given)

    def _lacking(self) -> set[NodeId]:
        """Nodes that do not lead more than `leader.imbalance.per.broker.percentage` of what they should."""
        view = self._core.view
        should: Counter[NodeId] = Counter()
        elsewhere: Counter[NodeId] = Counter()
        for topic_id, topic in view.image.topics.items():
            for index in range(topic.partitions_count):
                if topic.is_replicated(index):
                    preferred = topic.replicas[index][0].node
                    should[preferred] += 1
                    is_led = view.leader_epoch(TopicPartition(topic_id, PartitionIndex(index))) is not None
                    elsewhere[preferred] += is_led and view.place_of(topic, index).node != preferred
        percentage = self._core.settings.leader_imbalance_per_broker_percentage
        return {node for node, count in elsewhere.items() if count * 100 > percentage * should[node]}

    # -- on demand ---------------------------------------------------------------------------------------------------

    async def _serve_prefer(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        for topic_id, index in payload["partitions"]:
            self.prefer(TopicPartition(TopicId(uuid.UUID(hex=topic_id)), PartitionIndex(index)))
        return {}, []


class LeadershipOnDemand:
    """On core 0 of a node: leaders of this node and of others are asked to hand over to who is preferred."""

    def __init__(self, core: CoreGround) -> None:
        self._core = core
        assert core.cluster is not None
        core.cluster.serve("replica.prefer", self._serve)

    def ask(self, keys: dict[TopicPartition, Replica]) -> None:
        """`keys`: partitions and who leads them. Nobody waits for it: who leads is seen."""
        cluster, view = self._core.cluster, self._core.view
        assert cluster is not None
        by_place: dict[Replica, list[Row]] = {}
        for key, place in keys.items():
            by_place.setdefault(place, []).append([key.topic_id.hex, int(key.partition)])
        for place, partitions in by_place.items():
            payload = {"core": place.core, "partitions": partitions}
            if place.node == view.node:
                cluster.start_soon(self._core.mailboxes.notify, place.core, "replica.prefer", payload)
            else:
                cluster.tell(place.node, "replica.prefer", payload)

    async def _serve(self, payload: Payload, _blobs: list[bytes]) -> Answer:
        await self._core.mailboxes.notify(CoreId(int(payload["core"])), "replica.prefer", payload)
        return {}, []
