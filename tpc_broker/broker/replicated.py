"""The partitions of this core that have replicas on other nodes: who leads them, as the rest of the broker needs it.

A partition that is led here serves clients from the moment on when its machine says that they may be told its epoch; it
is announced, with its place, and a partition of ``__consumer_offsets`` begins its coordinator. When the leadership ends
all of that does, at once. How leaders are known: each one tells all cores of all nodes (`MetadataService`), when it
begins, when it ends, and when other replicas are in sync than before. Nothing of it is in the metadata: a leader is
fenced by its epoch, and what others believe of it only says where clients ask first.
"""

from __future__ import annotations

import logging
import uuid
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.broker.core_ground import CoreGround
from tpc_broker.broker.holds import Holds
from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.broker.near_reads import NearReads
from tpc_broker.broker.view import NOBODY, Leader
from tpc_broker.metadata.replica_moves import left_out, renewed
from tpc_broker.model import NO_LEADER_EPOCH, LeaderEpoch, NodeId, PartitionIndex, Replica, TopicId, TopicPartition
from tpc_broker.rounds import next_round

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.broker.coordinators_of_core import CoordinatorsOfCore
    from tpc_broker.broker.holders import Holders
    from tpc_broker.broker.partition import Partition
    from tpc_broker.broker.partitions import Partitions
    from tpc_broker.broker.payloads import Answer, Payload
    from tpc_broker.broker.replication_port import Replication
    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.model import CoreId
    from tpc_broker.storage.replicas.installation import Judge

log = logging.getLogger(__name__)

HELD_S: Final = 2.0
"""For so long a Produce waits for a leader: the silence after which one is given up, and an election."""
LOOK_S: Final = 1.0
"""Between two looks at which replicas are in sync."""
LOOK_SOON_S: Final = 0.1
"""The same while some are not: who waits for them hears soon, and of many that come back one after the other most are
told together.
"""
LOOK_SHARE: Final = 0.05
"""Of the time, for such looks."""

_Ended = tuple[TopicPartition, NodeId, int, int]
"""A replica that counts no more: its partition and node, a life, and the term of the leader that goes on without it."""


class CoreWithPartitions(CoreGround):
    """It has partitions, alone or as one of several replicas, and tells all cores whom it leads."""

    holders: Holders
    replicated: ReplicatedPartitions | None
    partitions: Partitions
    coordinators: CoordinatorsOfCore

    def has_no_leader(self, key: TopicPartition) -> None:
        """A partition of this core can be led no more: every core's Metadata says so, and its groups hear it."""
        self.coordinators.end(key)
        self._nursery.start_soon(self._announce, [(key, NO_LEADER_EPOCH)])

    def leads_in_new_epochs(self, leaders: list[tuple[TopicPartition, LeaderEpoch]]) -> None:
        """Partitions of this core, which go on under a later leader epoch: every core's Metadata says so."""
        self._nursery.start_soon(self._announce, leaders)

    async def _announce(self, opened: list[tuple[TopicPartition, LeaderEpoch]]) -> None:
        """Leaders of partitions with one replica."""
        await self.metadata.announce_leaders([(key, Leader(epoch)) for key, epoch in opened])


class ReplicatedPartitions:
    """Of one core of a node of a cluster."""

    def __init__(self, core: CoreWithPartitions, replication: Replication) -> None:
        self._core = core
        self.replication = replication
        self._told: dict[TopicPartition, Leader] = {}
        self._to_tell: dict[TopicPartition, Leader] = {}
        self._lacking: set[TopicPartition] = set()
        """Of what is led here: those of which it was told last that not all replicas are in sync."""
        self._tell = trio.Event()
        self.near = NearReads(core, replication.leaderships, replication.followers, replication.later_starts)
        self.holds = Holds(int(HELD_S * 1e9))
        core.view.on_leader = self._leader_told
        replication.leaderships.on_roles(self._led, self._lost)
        replication.on_filled(self._install, lambda: int(core.settings.replica_move_bytes_per_second))

    def begin(self) -> None:
        """The rest of the core is there."""
        self.replication.on_damaged(self._renew, self._core.partitions.damaged)
        self.replication.on_left_out(self._leave_out, self._core.partitions.staying)
        self._core.metadata.serve_at_controller("replicas.renew", self._serve_renew)
        self._core.metadata.serve_at_controller("replicas.leave_out", self._serve_leave_out)

    async def follow(self, image: ClusterImage) -> None:
        await self.replication.follow(image)

    def add(self, topic: TopicImage, partition: Partition) -> None:
        """One that is open and has its place in the data plane; nobody leads it here yet."""
        self.replication.add(topic, partition.key, partition.files, partition.handle)

    def is_left_out(self, topic: TopicImage, key: TopicPartition, term: int) -> bool:
        """Whether a replica that has heard of no later term than this one is to be given up: its group goes on without
        this node, as the metadata say.
        """
        since = self.left_out_in(topic, key)
        return since is not None and term <= since

    def left_out_in(self, topic: TopicImage, key: TopicPartition) -> int | None:
        """In which term the metadata say that a group goes on without this node; None: they do not."""
        here = Replica(self._core.view.node, self._core.core_id)
        life = topic.lives.get((key.partition, here.node))
        move = self._core.view.image.moving.get(key)
        if move is not None and move.is_on(here.node):
            return None  # it goes from core to core; this one may have it already
        return None if life is None or topic.is_on(here, key.partition) else life.term

    def remove(self, key: TopicPartition) -> None:
        self.replication.remove(key)
        self.near.forget(key)
        self._told.pop(key, None)
        self._lacking.discard(key)

    async def hand_over(self) -> None:
        """Before a drain."""
        await self.replication.hand_overs.hand_over()
        self._tell_now()
        await self._core.metadata.wait_told()

    async def _install(self, key: TopicPartition, judge: Judge) -> bool:
        """What another replica has shipped takes the place of this one's files."""
        return await self._core.metadata.between_changes(partial(self._core.partitions.install, key, judge))

    async def _renew(self, *ended: *_Ended) -> None:
        """MailboxError."""
        await self._core.mailboxes.call(METADATA_CORE, "replicas.renew", _told(*ended))

    async def _leave_out(self, *ended: *_Ended) -> None:
        """MailboxError."""
        await self._core.mailboxes.call(METADATA_CORE, "replicas.leave_out", _told(*ended))

    async def _serve_renew(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        ended = _heard(payload)
        await self._core.metadata.change(lambda image: (renewed(image, *ended), None))
        return {}, []

    async def _serve_leave_out(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        ended = _heard(payload)
        await self._core.metadata.change(lambda image: (left_out(image, *ended), None))
        return {}, []

    # -- roles -------------------------------------------------------------------------------------------------------

    # Rule: Clients are served by a leader whose term's marker is committed. Groups begin and end with that leader, and
    # a committed offset is told when a quorum says that nobody else coordinates. See also
    # tpc_broker/broker/group_service.py, tpc_broker/broker/handlers/group_offsets.py. Held by
    # tests/cluster/test_replication.py.
    def _led(self, key: TopicPartition, epoch: LeaderEpoch) -> None:
        partition = self._core.partitions.get(key)
        if partition is None:
            return
        partition.led_epoch = epoch
        self._announce(key, epoch, Replica(self._core.view.node, self._core.core_id))
        self._core.coordinators.begin_if_coordinates(key)

    def _lost(self, key: TopicPartition, epoch: LeaderEpoch) -> None:
        partition = self._core.partitions.get(key)
        if partition is not None:
            partition.led_epoch = None
            self._core.purgatory.advanced(partition.handle)
        self._core.coordinators.end(key)
        self.near.lost(key)
        self._announce(key, epoch, NOBODY)

    def _announce(self, key: TopicPartition, epoch: LeaderEpoch, place: Replica) -> None:
        told = self._told.get(key)
        serial = told.serial + 1 if told is not None and told.epoch == epoch else 0
        in_sync: tuple[NodeId, ...] = () if place == NOBODY else self.replication.followers.in_sync(key)
        self._told[key] = self._to_tell[key] = leader = Leader(epoch, serial, place, in_sync)
        self._note_lacking(key, leader)
        self._core.view.note_leaders([(key, leader)])
        self.near.led(key)
        self._tell.set()

    def _note_lacking(self, key: TopicPartition, leader: Leader) -> None:
        topic = self._core.view.image.topic_by_id(key.topic_id)
        if topic is None or leader.place == NOBODY or len(leader.in_sync) >= len(topic.places(key.partition)):
            self._lacking.discard(key)
        else:
            self._lacking.add(key)

    def _leader_told(self, key: TopicPartition) -> None:
        self.near.look(key)
        self.replication.leaderships.leader_told(key)

    async def run(self) -> None:
        """Tell the others, many at once, as soon as there is something; and look who is in sync."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_who_is_in_sync)
            while True:
                await self._tell.wait()
                self._tell_now()

    def _tell_now(self) -> None:
        self._tell = trio.Event()
        told, self._to_tell = self._to_tell, {}
        self._core.metadata.tell_leaders(list(told.items()))

    async def _look_who_is_in_sync(self) -> None:
        near_at_s = trio.current_time()
        while True:
            if self._lacking:
                await trio.sleep(LOOK_SOON_S)
            else:
                await next_round(LOOK_S)
            begun_s = trio.current_time()
            self._tell_changes_of_sync()
            if begun_s >= near_at_s:
                self.near.look_at_racks()
                near_at_s = begun_s + LOOK_S / 2
            if self._lacking:
                await trio.sleep((trio.current_time() - begun_s) / LOOK_SHARE)

    def _tell_changes_of_sync(self) -> None:
        here = Replica(self._core.view.node, self._core.core_id)
        for key in self.replication.followers.perhaps_in_sync():
            leader = self._told.get(key)
            if leader is None or leader.place != here:
                continue
            if self.replication.followers.in_sync(key) != leader.in_sync:
                self._announce(key, leader.epoch, here)

    # -- what requests wait for --------------------------------------------------------------------------------------

    async def wait_leaders(
        self, partitions: Iterable[Partition], seconds: float = HELD_S, *, to_write: bool = False
    ) -> None:
        """Until each is led, here or by another node that is heard; or for as long as an election takes."""
        with trio.move_on_after(seconds):
            for partition in partitions:
                while self.is_between_leaders(partition, to_write=to_write):
                    await self.replication.leaderships.wait_moved(partition.key)

    def cut_off(self) -> None:
        """Nobody is waited for any more."""
        self.replication.leaderships.all_moved()

    def is_between_leaders(self, partition: Partition, *, to_write: bool = False) -> bool:
        """Whether nobody is known to lead it, or who leads it here is handing it over. Who has been elected here takes
        records at once, and serves everything else when its epoch is committed. A node that is cut off would not hear
        of the next leader: its clients are to ask the others.
        """
        if not partition.is_open:
            return False
        if partition.takes_records if to_write else partition.is_led:
            return self.replication.hand_overs.is_handing_over(partition.key)
        if self._core.view.is_cut_off:
            return False
        told = self._core.view.told(partition.key)
        is_elsewhere = told.place is not None and told.place.node not in (NOBODY.node, self._core.view.node)
        told_epoch = told.epoch if is_elsewhere else NO_LEADER_EPOCH
        return not self.replication.leaderships.hears_leader(partition.key, told_epoch)


def _told(key: TopicPartition, node: NodeId, life: int, term: int) -> dict[str, object]:
    return {"partition": [key.topic_id.hex, int(key.partition)], "node": node, "life": life, "term": term}


def _heard(payload: Payload) -> _Ended:
    topic_id, index = payload["partition"]
    key = TopicPartition(TopicId(uuid.UUID(hex=topic_id)), PartitionIndex(int(index)))
    return key, NodeId(int(payload["node"])), int(payload["life"]), int(payload["term"])
