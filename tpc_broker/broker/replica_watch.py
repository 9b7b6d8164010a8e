"""Whether the replicas of a core are as they should be, for who asks whether a node is ready, and for the log.

Since its start a core has *returned* with a replica when that is led here, or is in sync with who leads it. A node that
has not returned with all of them must not be taken for one that others can be stopped beside: a rolling restart would
take the majority away. Once returned is returned, whatever happens to the replica later.

A partition without a leader counts when that has lasted longer than a failover takes. One of whose replicas most nodes
are away cannot have a leader, and the best that this node can do is to serve all the others: such partitions are told,
and keep nobody out; unless this node is cut off, when others may well lead them, or nothing is well.
"""

from __future__ import annotations

import logging
import math
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from tpc_broker.broker.view import NOBODY
from tpc_broker.metadata.replica_moves import has_majority
from tpc_broker.model import PartitionIndex, Replica, TopicPartition
from tpc_broker.rounds import next_round

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tpc_broker.broker.replicated import CoreWithPartitions
    from tpc_broker.broker.replication_port import Leaderships
    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.model import NodeId

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
LOOKS_SHARE: Final = 0.03
"""Of a core's time: looks that take more come more seldom."""
LEADERLESS_S: Final = 10.0
"""A failover takes less."""
NAMES_MAX: Final = 3


class ReplicaFindings(NamedTuple):
    """For people. `reasons`: why the node is not ready."""

    reasons: list[str]
    warnings: list[str]


# Rule: After a start a node is ready when each of its replicas is led or in sync again; one that cannot be, because
# most of its nodes are away, keeps no node out. See also tpc_broker/telemetry/health.py. Held by
# tests/broker/test_replica_watch.py.
class ReplicaWatch:
    """Of one core."""

    def __init__(self, core: CoreWithPartitions, leaderships: Leaderships) -> None:
        self._core = core
        self._leaderships = leaderships
        self._here = Replica(core.view.node, core.core_id)
        self._pending: set[TopicPartition] | None = None
        """Replicas that this core has not returned with; None: it has not looked yet."""
        self._since_s: dict[TopicPartition, float] = {}
        """Without a leader, and since when."""
        self._lost: set[TopicPartition] = set()
        """Of them, those that cannot have one."""
        self._looked_at: tuple[ClusterImage, Collection[NodeId], bool] | None = None
        """What decides which partitions have replicas here and which are lost, as it was at the last look."""
        self._told: dict[TopicPartition, float] = {}
        """Of those without a leader, those that a line was about."""
        self._told_until_s = -math.inf
        """Which were without one by then."""

    async def run(self) -> None:
        """Until cancelled. Where thousands have no leader a look takes of the time in which they could get one."""
        while True:
            began_s = trio.current_time()
            self.look()
            self._tell()
            took_s = trio.current_time() - began_s
            await next_round(min(max(LOOK_S, took_s / LOOKS_SHARE), LEADERLESS_S))

    def look(self) -> None:
        view, now_s = self._core.view, trio.current_time()
        image = view.image
        if self._pending is None:
            self._pending = set(self._replicas(image))
        for key in [key for key in self._pending if self._has_returned(image, key)]:
            self._pending.remove(key)
        before, before_s, lost_before = self._looked_at, self._since_s, self._lost
        self._looked_at = image, view.absent, view.is_cut_off
        is_same = before is not None and before[0] is image and before[1:] == self._looked_at[1:]
        self._since_s, self._lost = {}, set()
        never_led = (key for key in self._pending if view.leader_epoch(key) is None)
        for key in chain(self._leaderships.leaderless(), never_led):
            since_s = before_s.get(key)
            is_known = is_same and since_s is not None
            if not is_known and not self._is_replica(image, key):
                continue
            self._since_s[key] = now_s if since_s is None else since_s
            if key in lost_before if is_known else self._is_lost(image, key):
                self._lost.add(key)

    def _is_lost(self, image: ClusterImage, key: TopicPartition) -> bool:
        view = self._core.view
        topic = image.topics[key.topic_id]
        return not view.is_cut_off and not has_majority(image, topic, key.partition, view.absent)

    def findings(self) -> ReplicaFindings:
        """As it is now."""
        self.look()
        pending, now_s = (self._pending or set()) - self._lost, trio.current_time()
        leaderless = self._since_s.keys() - self._lost
        lasting = {key for key in leaderless if now_s - self._since_s[key] >= LEADERLESS_S}
        reasons = [
            self._said(lasting - pending, f"no leader for {LEADERLESS_S:.0f} s and longer"),
            self._said(pending & leaderless, "no leader since its start"),
            self._said(pending - leaderless, "not been in sync since its start"),
        ]
        lost = self._said(self._lost, f"no leader, and cannot have one: {self._away(self._lost)}")
        return ReplicaFindings([each for each in reasons if each], [lost] if lost else [])

    def _replicas(self, image: ClusterImage) -> Iterator[TopicPartition]:
        """Of this core."""
        for topic in image.topics.values():
            for index in range(topic.partitions_count):
                key = TopicPartition(topic.topic_id, PartitionIndex(index))
                if self._is_replica(image, key):
                    yield key

    def _is_replica(self, image: ClusterImage, key: TopicPartition) -> bool:
        """Whether the core is to have one. One that is on its way here is missed by nobody."""
        topic = image.topics.get(key.topic_id)
        return topic is not None and topic.is_replicated(key.partition) and self._here in topic.replicas[key.partition]

    def _has_returned(self, image: ClusterImage, key: TopicPartition) -> bool:
        """With what nobody misses any more, too; and with what is offline and nowhere else, damaged or not made yet,
        which is told otherwise.
        """
        if not self._is_replica(image, key):
            return True
        topic, partitions = image.topics[key.topic_id], self._core.partitions
        if len(topic.replicas[key.partition]) == 1 and (partitions.is_offline(key) or key in partitions.damaged()):
            return True
        told = self._core.view.told(key)
        if told.place is None or told.place == NOBODY:
            return False
        if told.place.node == self._here.node:
            return told.place == self._here
        return self._here.node in told.in_sync and self._leaderships.hears_leader(key, told.epoch)

    # -- words ---------------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """A line when it begins, and one when it is over."""
        now_s = trio.current_time()
        told_until_s, self._told_until_s = self._told_until_s, now_s - LEADERLESS_S
        led = [key for key in self._told if key not in self._since_s]
        new = [key for key, since_s in self._since_s.items() if told_until_s < since_s <= self._told_until_s]
        if led:
            led_since_s = min(self._told.pop(key) for key in led)
            text = self._said(led, f"a leader again, after {now_s - led_since_s:.1f} s")
            self._core.log_limiter.say(log, "leaders again", "", text)
        if new:
            self._told |= {key: self._since_s[key] for key in new}
            text = self._said(new, f"no leader for {LEADERLESS_S:.0f} s and longer: {self._away(new)}")
            self._core.log_limiter.say(log, "no leader", "", text)

    def _said(self, keys: Collection[TopicPartition], what: str) -> str:
        """Empty: of none."""
        if not keys:
            return ""
        names = sorted(self._name(key) for key in keys)
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        count = "1 partition has" if len(names) == 1 else f"{len(names)} partitions have"
        return f"{count} {what} ({', '.join(names[:NAMES_MAX])}{more})"

    def _name(self, key: TopicPartition) -> str:
        topic = self._topic(key)
        return f"{key.topic_id if topic is None else topic.name}-{key.partition}"

    def _topic(self, key: TopicPartition) -> TopicImage | None:
        return self._core.view.image.topics.get(key.topic_id)

    def _away(self, keys: Collection[TopicPartition]) -> str:
        """Which nodes their replicas wait for."""
        if self._core.view.is_cut_off:
            return "this node hears no majority of the metadata's voters"
        places = {place.node for key in keys if (topic := self._topic(key)) for place in topic.places(key.partition)}
        away = sorted(places & self._core.view.absent)
        return f"{_nodes(away)} away" if away else "no node of its replicas is known to be away"


def _nodes(numbers: Sequence[NodeId]) -> str:
    return f"node {numbers[0]} is" if len(numbers) == 1 else f"nodes {', '.join(map(str, numbers))} are"
