"""Reading from the replica that is nearest (KIP-392): on a leader who is sent where, on a follower who is answered.

A leader that is told to (`replica.selector.class`) sends a consumer whose rack (`client.rack`) is not its own to a
replica there that is in sync and has what is asked for. A follower answers whoever knows that it may be one, up to its
own high watermark, while the leader that it follows counts it as in sync: its leader's word and its own machine have to
agree on the term. So one that lags, is cut off, or is a replica no more sends clients back to the leader.

Where a log starts is each replica's own. A follower that is asked for less tells its leader, which then sends nobody
there for that: so there is nothing to be told while nobody asks.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.errors import MailboxError
from tpc_broker.metadata.replica_config import RACK_AWARE_SELECTOR
from tpc_broker.model import BrokerId, LeaderEpoch, NodeId, TopicPartition

if TYPE_CHECKING:
    from tpc_broker.broker.partition import Partition
    from tpc_broker.broker.replicated import CoreWithPartitions
    from tpc_broker.broker.replication_port import Followers, LaterStarts, Leaderships

LAST_RACK_BIT: Final = 63
TELL_S: Final = 1.0
"""A client waits for no longer until the leader has heard where a follower's log starts."""


class NearReads:
    """Of one core of a node of a cluster."""

    def __init__(
        self, core: CoreWithPartitions, leaderships: Leaderships, followers: Followers, later_starts: LaterStarts
    ) -> None:
        self._core = core
        self._leaderships = leaderships
        self._followers = followers
        self._later_starts = later_starts
        self._racks: dict[str, int] = {}
        """The place of each rack that a replica was seen in."""
        self._starts: dict[TopicPartition, dict[NodeId, int]] = {}
        """Where the logs of followers start, as far as they were asked for less."""
        self._told: dict[TopicPartition, tuple[int, int]] = {}
        """As a follower: in which term the leader was told what start."""
        self._nodes_looked_at: object = None
        leaderships.on_moved(self.look)
        later_starts.on_lacking(self._lacking)

    # -- a leader's --------------------------------------------------------------------------------------------------

    @property
    def _is_selecting(self) -> bool:
        return bool(self._core.settings.replica_selector_class == RACK_AWARE_SELECTOR)

    def led(self, key: TopicPartition) -> None:
        """It is led here, with others in sync than before; or no more."""
        partition = self._core.partitions.get(key)
        if partition is None or not self._is_selecting:
            return
        racks = 0 if partition.led_epoch is None else self._bits(self._followers.in_sync(key))
        if racks != partition.near_racks:
            partition.near_racks = racks
            self._core.plane.set_near_racks(partition.handle, racks)

    def lost(self, key: TopicPartition) -> None:
        """It is led here no more."""
        self._starts.pop(key, None)

    def look_at_racks(self) -> None:
        """Nodes of the cluster may be in other racks than before."""
        nodes = self._core.view.image.nodes
        if nodes is not self._nodes_looked_at:
            self._nodes_looked_at = nodes
            for partition in self._core.partitions.opened():
                if partition.is_replicated and partition.led_epoch is not None:
                    self.led(partition.key)

    def _bits(self, nodes: tuple[NodeId, ...]) -> int:
        """The racks of other nodes than this one; not the own rack, in which this leader is read."""
        known, found = len(self._racks), 0
        for node in nodes:
            rack = self._rack_of(node)
            if rack and rack != self._own_rack:
                found |= 1 << min(self._racks.setdefault(rack, len(self._racks)), LAST_RACK_BIT)
        if len(self._racks) > known:
            self._core.plane.set_racks(list(self._racks))
        return found

    @property
    def _own_rack(self) -> str:
        return self._core.settings.broker_rack or ""

    def _rack_of(self, node: NodeId) -> str:
        registered = self._core.view.image.nodes.get(node)
        return "" if registered is None else registered.rack

    def preferred(self, partition: Partition, offset: int, rack: str, listener: int) -> BrokerId | None:
        """The broker from which a consumer in a rack is to read, from an offset on: of several the one that has most.
        None: this leader.
        """
        if partition.led_epoch is None or not self._is_selecting or rack in ("", self._own_rack):
            return None
        view, key = self._core.view, partition.key
        topic, starts = view.image.topic_by_id(key.topic_id), self._starts.get(key, {})
        if topic is None:
            return None
        held, in_sync = self._followers.held(key), self._followers.in_sync(key)
        found = [
            (held[place.node], -endpoint.broker_id)
            for place in topic.places(key.partition)
            if place.node in in_sync and place.node in held and self._rack_of(place.node) == rack
            and starts.get(place.node, 0) <= offset <= held[place.node] and place.node not in view.image.draining
            and (endpoint := view.endpoint_at(listener, place)) is not None
        ]  # fmt: skip
        return BrokerId(-max(found)[1]) if found else None

    def _lacking(self, key: TopicPartition, node: NodeId, log_start_offset: int) -> None:
        partition = self._core.partitions.get(key)
        if partition is not None and partition.led_epoch is not None:  # else it came late
            self._starts.setdefault(key, {})[node] = log_start_offset

    # -- a follower's ------------------------------------------------------------------------------------------------

    def look(self, key: TopicPartition) -> None:
        """Its role, or what its leader tells, is another."""
        partition = self._core.partitions.get(key)
        if partition is None or not partition.is_replicated:
            return
        followed, told = self._leaderships.followed(key), self._core.view.told(key)
        epoch = None
        if followed is not None and told.place is not None and (told.place.node, told.epoch) == followed:
            epoch = LeaderEpoch(followed[1]) if self._core.view.node in told.in_sync else None
        if epoch != partition.followed_epoch:
            partition.followed_epoch = epoch
            self._core.plane.serve_reads(partition.handle, epoch)
            self._core.purgatory.advanced(partition.handle)

    async def lacks(self, partition: Partition, offset: int) -> None:
        """Somebody has asked this follower for what its log has not got: before they are sent back to the leader, that
        hears of it.
        """
        starts, term = partition.bounds().log_start_offset, int(partition.leader_epoch)
        if offset >= starts or self._told.get(partition.key) == (term, starts):
            return
        with trio.move_on_after(TELL_S), suppress(MailboxError):
            await self._later_starts.tell_start(partition.key, starts)
            if self._core.partitions.get(partition.key) is partition:
                self._told[partition.key] = term, starts

    def forget(self, key: TopicPartition) -> None:
        """It is not here any more."""
        self._told.pop(key, None)
