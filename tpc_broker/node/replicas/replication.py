"""The replication of one core (`broker.replication_port.Replication`): its parts put together, the driver of its
replicas' machines and its links to other cores.

Who this core is comes from the node's identity, which is there when the first image is: a core begins with it.
Partitions are added when their files are open, and from then on their machine decides who leads them.
"""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker import __version__
from tpc_broker.cluster.link_codec import Hello
from tpc_broker.cluster.raft_codec import encode_entry
from tpc_broker.engine.steady_plane import Machine
from tpc_broker.feature_levels import FIRST_WITH_COMPACTION, FIRST_WITH_MOVES, SPOKEN
from tpc_broker.limits import MIB
from tpc_broker.model import NodeId, TopicPartition
from tpc_broker.node.links.greeting import refusal_of_node
from tpc_broker.node.links.sealed_links import sealed
from tpc_broker.node.links.surroundings import SYSTEM, Surroundings
from tpc_broker.node.membership.identity import IdentityFile, next_core_boot
from tpc_broker.node.membership.options import read_secret
from tpc_broker.node.replicas.catching_up import COMMITTED, CatchingUp
from tpc_broker.node.replicas.core_replicas import CoreReplicas, group_of
from tpc_broker.node.replicas.damaged import DAMAGED, DamagedReplicas
from tpc_broker.node.replicas.filling import ReplicaFilling
from tpc_broker.node.replicas.followers import ReplicaFollowers
from tpc_broker.node.replicas.hand_overs import ReplicaHandOvers
from tpc_broker.node.replicas.lacking_space import LACKING_SPACE, LackingSpace
from tpc_broker.node.replicas.later_starts import LATER_START, ReplicaLaterStarts
from tpc_broker.node.replicas.leaderships import ReplicaLeaderships
from tpc_broker.node.replicas.leaving import LeavingReplicas
from tpc_broker.node.replicas.left_out import LEFT_OUT, LeftOutReplicas
from tpc_broker.node.replicas.log_starts import LOG_STARTS, LogStarts
from tpc_broker.node.replicas.new_groups import NewGroups
from tpc_broker.node.replicas.replica_counters import replica_counters
from tpc_broker.node.replicas.replica_driver import ReplicaDriver
from tpc_broker.node.replicas.replica_links import ReplicaLinks
from tpc_broker.node.replicas.replica_lives import ReplicaLives
from tpc_broker.node.replicas.shipping import FILL, SegmentSource
from tpc_broker.node.replicas.voters import ReplicaVoters
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.items import Address, Marker, Voter, simple
from tpc_broker.raft.journal import MarkerEntry
from tpc_broker.raft.settings import Settings
from tpc_broker.rounds import next_round
from tpc_broker.task_queue import TaskQueue, in_queue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from tpc_broker.engine.data_plane import RingDataPlane
    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.node.links.links import Handler, Links
    from tpc_broker.node.membership.identity import NodeIdentity
    from tpc_broker.node.replicas.steady_carrier import SteadyCarrier
    from tpc_broker.options import CoreOptions
    from tpc_broker.storage.journalled_storage import JournalledStorage
    from tpc_broker.storage.ports import Clock
    from tpc_broker.storage.replicas.installation import Install
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

SETTINGS: Final = Settings(link_inflight_bytes_max=32 * MIB, ships_to_empty=False, adopts=False)
"""Half of what a link's queue takes (`limits.LINK_QUEUE_BYTES_MAX`): nothing is lost for want of room."""
TEND_S: Final = 0.5


# Rule: What acks=all has acknowledged outlives whoever fails, once and in order. A leader without a majority
# acknowledges nothing. Why: docs/decisions/2026-11-23-simulated-nodes.md. See also
# tpc_broker/node/replicas/replica_driver.py. Held by tests/cluster/test_replication.py,
# tests/cluster/test_partitions.py, tests/simulator/nodes_run.py (whole nodes from seeds).
class CoreReplication:
    """Of one core, touched by its thread only."""

    def __init__(
        self,
        options: CoreOptions,
        plane: RingDataPlane,
        storage: JournalledStorage,
        nursery: trio.Nursery,
        surroundings: Surroundings = SYSTEM,
    ) -> None:
        assert options.cluster is not None
        self._surroundings = surroundings
        self._options = options
        self._cluster = options.cluster
        self._data = Path(options.data)
        self._plane = plane
        self._storage = storage
        self._clock: Clock = surroundings.clock
        self._nursery = nursery
        self._driver: ReplicaDriver | None = None
        self._new_groups: NewGroups
        self._lives = ReplicaLives(self._data, options.core)
        self._offered: list[Links] = []
        self.replicas = CoreReplicas(options.core, plane, storage, self._clock)
        self.source = SegmentSource(storage.shipments, plane, self._clock)
        self.filling = ReplicaFilling(storage, self._data, options.core)
        self._lacking = LackingSpace(self.replicas)
        self.leaderships = ReplicaLeaderships(self.replicas)
        self.followers = ReplicaFollowers(self.replicas, self.leaderships.led)
        self.voters = ReplicaVoters(self.replicas, self.leaderships.led)
        self.leaderships.on_ended = self.voters.forget
        self.hand_overs = ReplicaHandOvers(self.replicas, self.leaderships.led, self._lacking.has_space)
        self.damaged = DamagedReplicas(self.replicas, self.hand_overs, self._data, self._clock)
        self.left_out = LeftOutReplicas(self.replicas, self.leaderships, self.voters)
        self.catching_up = CatchingUp(self.replicas, self.leaderships)
        self.log_starts = LogStarts(self.replicas)
        self.later_starts = ReplicaLaterStarts(self.replicas)
        self.leaving = LeavingReplicas(self.replicas, self.hand_overs, plane)
        self.handlers: dict[str, Handler] = {
            LOG_STARTS: self.log_starts.serve,
            LATER_START: self.later_starts.serve,
            FILL: self.filling.serve_fill,
            **self.source.handlers,
            DAMAGED: self.damaged.serve,
            LEFT_OUT: self.left_out.serve,
            COMMITTED: self.catching_up.serve,
            LACKING_SPACE: self._lacking.serve,
        }
        """What other cores ask this one; core 0 is asked at its node's port."""
        self.on_carrier: Callable[[SteadyCarrier], None] = lambda _carrier: None
        """Called when there is one."""

    # -- what the broker asks (`broker.replication_port.Replication`) --------------------------------------------------

    def on_filled(self, install: Install, bytes_per_s: Callable[[], int]) -> None:
        self.filling.install, self.filling.bytes_per_s = install, bytes_per_s

    def on_damaged(
        self,
        renew: Callable[[TopicPartition, NodeId, int, int], Awaitable[None]],
        offline: Callable[[], Iterable[TopicPartition]],
    ) -> None:
        self.damaged.renew, self.damaged.offline = renew, offline

    def on_left_out(
        self,
        leave_out: Callable[[TopicPartition, NodeId, int, int], Awaitable[None]],
        staying: Callable[[], Iterable[tuple[TopicPartition, int]]],
    ) -> None:
        self.left_out.leave_out, self.left_out.staying = leave_out, staying

    async def follow(self, image: ClusterImage) -> None:
        if self._driver is None:
            await self._begin(image)
        self.voters.follow(image)
        self.filling.is_allowed = image.feature_level >= FIRST_WITH_MOVES
        self.source.tells_gaps = image.feature_level >= FIRST_WITH_COMPACTION
        self.replicas.follow(image)

    def add(self, topic: TopicImage, key: TopicPartition, files: PartitionStorage, handle: int) -> None:
        assert self._driver is not None, "the first image comes before its partitions"
        group = group_of(key)
        config = simple(Voter(*voter) for voter in topic.voters[key.partition])
        replicas = topic.places(key.partition)
        self.replicas.want_links(Address(*each) for each in replicas if each.node != self.replicas.node)
        self.replicas.add(key, handle)
        self.damaged.opened(f"{topic.name}-{key.partition}")
        me = self._own_voter(topic, key)
        leads_first = topic.first_leader(key.partition)
        first = next((voter for voter in config.voters if voter.node == leads_first), None)
        self._driver.add(group, handle, files, me, config, {each.node: each.core for each in replicas}, first)
        if self._driver.core.groups[group].votes_alone:
            self._driver.core.stand_at_once(group, self._clock.monotonic_ms())
        if first is None and replicas[0].node == self.replicas.node and not files.leader_epoch > 0:
            self._new_groups.add(group)

    def _own_voter(self, topic: TopicImage, key: TopicPartition) -> Voter:
        return Voter(self.replicas.node, self.replicas.incarnation + topic.life_of(key.partition, self.replicas.node))

    def first_note(self, topic: TopicImage, key: TopicPartition, files: PartitionStorage) -> bytes:
        me = self._own_voter(topic, key)
        if files.leader_epoch < 0 or files.notes or list(topic.voters[key.partition]) != [tuple(me)]:
            return b""
        marker = Marker(files.leader_epoch + 1, files.written_end_offset, simple([me]))
        return encode_entry(MarkerEntry(group_of(key), marker))

    def remove(self, key: TopicPartition) -> None:
        if not self.replicas.remove(key):
            return
        assert self._driver is not None
        group = group_of(key)
        self._new_groups.remove(group)
        self.followers.removed(group)
        self.log_starts.removed(group)
        self._driver.remove(group)
        self.leaderships.removed(key)

    def has_other_life(self, topic: TopicImage, key: TopicPartition) -> bool:
        return self._lives.of(group_of(key)) != topic.life_of(key.partition, self.replicas.node)

    async def begin_lives(self, topic: TopicImage, keys: Sequence[TopicPartition]) -> None:
        lives = {group_of(key): topic.life_of(key.partition, self.replicas.node) for key in keys}
        await self._lives.begin(self._storage.files.disk, lives)

    def counters(self) -> dict[str, int]:
        """See `replica_counters`; empty before this core has replicas."""
        if self._driver is None:
            return {}
        return replica_counters(self._driver, self.replicas.links, self._clock.monotonic_ms())

    def take(self, hello: Hello, body: bytes) -> None:
        """A frame for core 0, whose port is the node's. LinkDecodeError: it is none."""
        if self._driver is not None:
            self.replicas.links.take(hello, body)

    def offer_steady(self, links: Links) -> None:
        """The node's, for core 0: connections for the steady state come by its port."""
        self._offered.append(links)

    # -- life --------------------------------------------------------------------------------------------------------

    async def _begin(self, image: ClusterImage) -> None:
        """There is an image, so the node is in its cluster, and registered in it."""
        identity = IdentityFile(self._data).read()
        assert identity is not None, "a core has an image when its node is in the cluster"
        core = self._options.core
        boot = next_core_boot(self._data, core, image.version)
        address = Address(NodeId(identity.node), core)
        machine = RaftCore(address, boot, self._clock.monotonic_ms(), SETTINGS)
        secret = read_secret(self._cluster.secret_path)
        surroundings = sealed(self._surroundings, secret, self._cluster.encryption)
        own_hello = partial(self._own_hello, identity)
        links = ReplicaLinks(address, own_hello, secret, surroundings)
        self._driver = ReplicaDriver(machine, self._plane, self._storage, self._clock, links.send)
        self.replicas.begin(identity, self._driver, links)
        self._new_groups = NewGroups(self._driver, self._clock)
        self.leaderships.begin(self._driver)
        self.hand_overs.begin(self._driver)
        self.followers.begin(self._driver)
        self.voters.begin(self._driver)
        links.check_node = lambda hello: refusal_of_node(hello, own_hello(), self.replicas.image)
        links.on_frame = self._driver.receive
        links.on_up = self._is_connected
        links.on_down = self._driver.disconnected
        self._driver.carrier.carry_beats(Machine.OF_PARTITIONS, machine, links.is_up)
        self.on_carrier(self._driver.carrier)
        links.on_refused = self._driver.refused
        for method, handler in self.handlers.items():
            links.serve(method, handler)
        self.leaving.begin(self._driver)
        self._lacking.begin(self._driver, self.hand_overs)
        bulk = links.another()
        self.source.begin(self._driver, links)
        self.filling.begin(self._driver, links, bulk, self.replicas.keys, self._nursery)
        links.boot_id = boot
        links.on_steady = self._driver.adopt_steady
        links.has_steady = self._driver.carrier.has_link
        links.end_steady = self._driver.carrier.close
        for offered in self._offered:
            links.offer_steady(offered)
        with in_queue(TaskQueue.REPLICATION):
            await self._nursery.start(links.run, self._listener())
            await self._nursery.start(bulk.run, None)
            self._nursery.start_soon(self._driver.run)
            self._nursery.start_soon(self.source.run)
            self._nursery.start_soon(self._new_groups.run)
            self._nursery.start_soon(self._tend)
            self._nursery.start_soon(self.damaged.run)
            self._nursery.start_soon(self.left_out.run)
            self._nursery.start_soon(self._lacking.run)

    def _listener(self) -> socket.socket | None:
        """Core 0's is the node's."""
        return socket.socket(fileno=self._options.cluster_fds[0]) if self._options.core else None

    def _own_hello(self, identity: NodeIdentity) -> Hello:
        assert identity.founding is not None
        host, port = self._cluster.address
        who = NodeId(identity.node), identity.incarnation, identity.boot
        core = self._options.core
        cluster = identity.founding.cluster
        return Hello(
            cluster, *who, core, host, port + core, __version__, replication=True, levels=SPOKEN,
            has_authorizer=self._cluster.has_authorizer,
        )  # fmt: skip

    async def _tend(self) -> None:
        while True:
            await next_round(TEND_S)
            await self.voters.look_until(trio.current_time() + TEND_S)
            await self.log_starts.tell(self.leaderships.led)

    def _is_connected(self, address: Address) -> None:
        assert self._driver is not None
        self.log_starts.connected(address)
        self._driver.connected(address)
