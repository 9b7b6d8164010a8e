"""The replicas of one core: the driver of their machines, its links to other cores, and what the broker hears of them.

`broker.replication_port.Replication`. Who this core is comes from the node's identity, which is there when the first
image is: a core begins with it. Partitions are added when their files are open, and from then on their machine decides
who leads them; the broker is told when one is led here and clients may know (`on_led`), and when it is no more
(`on_lost`).
"""

from __future__ import annotations

import logging
import socket
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from tpc_broker import __version__
from tpc_broker.broker.replication_port import ReplicaFacts, ReplicaProgress
from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.cluster.link_codec import Hello
from tpc_broker.cluster.raft_codec import encode_entry
from tpc_broker.engine.steady_plane import Machine
from tpc_broker.errors import MailboxError, PartitionOfflineError
from tpc_broker.feature_levels import FIRST_WITH_COMPACTION, FIRST_WITH_MOVES, SPOKEN
from tpc_broker.limits import MIB
from tpc_broker.metadata.image import ClusterImage, changed_partitions
from tpc_broker.model import LeaderEpoch, NodeId, TopicPartition
from tpc_broker.node.links.greeting import refusal_of_node
from tpc_broker.node.links.sealed_links import sealed
from tpc_broker.node.links.surroundings import SYSTEM, Surroundings
from tpc_broker.node.membership.identity import IdentityFile, next_core_boot
from tpc_broker.node.membership.options import read_secret
from tpc_broker.node.replicas.catching_up import COMMITTED, CatchingUp
from tpc_broker.node.replicas.damaged import DAMAGED, DamagedReplicas
from tpc_broker.node.replicas.filling import ReplicaFilling
from tpc_broker.node.replicas.lacking_space import LACKING_SPACE, LackingSpace
from tpc_broker.node.replicas.leaving import LeavingReplicas
from tpc_broker.node.replicas.left_out import LEFT_OUT, LeftOutReplicas
from tpc_broker.node.replicas.log_starts import LOG_STARTS, LogStarts
from tpc_broker.node.replicas.replica_counters import replica_counters
from tpc_broker.node.replicas.replica_driver import ReplicaDriver
from tpc_broker.node.replicas.replica_links import ReplicaLinks
from tpc_broker.node.replicas.replica_lives import ReplicaLives
from tpc_broker.node.replicas.shipping import FILL, SegmentSource
from tpc_broker.node.replicas.voter_changes import VoterChanges
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.items import Address, Marker, Voter, simple
from tpc_broker.raft.journal import MarkerEntry
from tpc_broker.raft.output import FOLLOWER, LEADER
from tpc_broker.raft.settings import Settings
from tpc_broker.rounds import next_round
from tpc_broker.task_queue import TaskQueue, in_queue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from tpc_broker.engine.data_plane import RingDataPlane
    from tpc_broker.metadata.image import TopicImage
    from tpc_broker.node.links.links import Handler, Links
    from tpc_broker.node.membership.identity import NodeIdentity
    from tpc_broker.node.replicas.steady_carrier import AwakeGroups, SteadyCarrier
    from tpc_broker.options import CoreOptions
    from tpc_broker.raft.group import Group
    from tpc_broker.raft.output import Role
    from tpc_broker.storage.installation import Install
    from tpc_broker.storage.journalled_storage import JournalledStorage
    from tpc_broker.storage.partition_storage import PartitionStorage
    from tpc_broker.storage.ports import Bounds, Clock
    from tpc_broker.storage.segment_space import Lack

log = logging.getLogger(__name__)

SETTINGS: Final = Settings(link_inflight_bytes_max=32 * MIB, ships_to_empty=False, adopts=False)
"""Half of what a link's queue takes (`limits.LINK_QUEUE_BYTES_MAX`): nothing is lost for want of room."""
STAND_EVERY_S: Final = 0.1
STAND_TIMES_MAX: Final = 20
STAND_AT_ONCE: Final = 4 * SETTINGS.elections_max
"""Of new groups, the first ones: the others' turn has not come."""
HAND_OVER_S: Final = 3.0
LOOK_S: Final = 0.02
TEND_S: Final = 0.5
GROUPS_KEPT: Final = 1 << 16
"""Names of groups: they are asked for all the time."""
LATER_START: Final = "replicas.later_start"


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
        self._identity: NodeIdentity
        self._driver: ReplicaDriver | None = None
        self._voters: VoterChanges
        self._lives = ReplicaLives(self._data, options.core)
        self._offered: list[Links] = []
        self.links: ReplicaLinks
        self._wanted: set[Address] = set()
        self._keys: dict[str, TopicPartition] = {}
        self._handles: dict[str, int] = {}
        self._in_touch: dict[str, tuple[tuple[int, ...], tuple[NodeId, ...]]] = {}
        """Of groups that C carries: what tells whether it is so still, and who was in sync."""
        self._awake_in_sync: AwakeGroups
        self._awake_voters: AwakeGroups
        self._links_looked_at = 0
        self._led: dict[TopicPartition, LeaderEpoch] = {}
        self._moved: dict[TopicPartition, trio.Event] = {}
        self._new: dict[str, int] = {}
        self._new_came = trio.Event()
        self._image = ClusterImage()
        self.source = SegmentSource(storage.shipments, plane, self._clock)
        self.filling = ReplicaFilling(storage, self._data, options.core)
        self.damaged = DamagedReplicas(self, self._data, options.core, self._clock)
        self.left_out = LeftOutReplicas(self)
        self.catching_up = CatchingUp(self)
        self.log_starts = LogStarts(self)
        self._lacking = LackingSpace(self)
        self._leaving = LeavingReplicas(self, plane)
        self.handlers: dict[str, Handler] = {
            LOG_STARTS: self.log_starts.serve,
            LATER_START: self._serve_later_start,
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
        self._on_led: Callable[[TopicPartition, LeaderEpoch], None]
        self._on_lost: Callable[[TopicPartition, LeaderEpoch], None]
        self._on_moved: Callable[[TopicPartition], None] = lambda _key: None
        self._on_lacking: Callable[[TopicPartition, NodeId, int], None] = lambda _key, _node, _offset: None

    # -- what the broker asks (`broker.replication_port.Replication`) --------------------------------------------------

    def on_roles(
        self,
        led: Callable[[TopicPartition, LeaderEpoch], None],
        lost: Callable[[TopicPartition, LeaderEpoch], None],
    ) -> None:
        self._on_led, self._on_lost = led, lost

    def on_moved(self, moved: Callable[[TopicPartition], None]) -> None:
        self._on_moved = moved

    def on_lacking(self, lacks: Callable[[TopicPartition, NodeId, int], None]) -> None:
        self._on_lacking = lacks

    def followed(self, key: TopicPartition) -> tuple[NodeId, int] | None:
        machine = self.machine_of(key)
        if machine is None or machine.role is not FOLLOWER or machine.leader is None:
            return None
        return machine.leader.node, machine.term

    def held(self, key: TopicPartition) -> dict[NodeId, int]:
        machine = self.look_at(key)
        if machine is None or not machine.is_leader:
            return {}
        return {peer.voter.node: peer.match for peer in machine.peers.values()}

    async def tell_start(self, key: TopicPartition, log_start_offset: int) -> None:
        machine = self.machine_of(key)
        if machine is None or machine.leader is None:
            raise MailboxError("the partition follows no leader")
        told = {group_of(key): [machine.term, log_start_offset]}
        await self.links.tell(machine.address_of(machine.leader), LATER_START, told)

    async def _serve_later_start(self, hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> None:
        for group, (term, starts) in payload.items():
            key = self._keys.get(group)
            machine = None if key is None else self.machine_of(key)
            if key is not None and machine is not None and machine.is_leader and machine.term == term:
                self._on_lacking(key, NodeId(hello.node), int(starts))

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

    # -- what its parts ask (`core_replicas`) ------------------------------------------------------------------------

    @property
    def image(self) -> ClusterImage:
        return self._image

    @property
    def node(self) -> NodeId:
        return NodeId(self._identity.node)

    @property
    def incarnation(self) -> int:
        """Of the node's data directory."""
        return self._identity.incarnation

    def now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def group_name(self, key: TopicPartition) -> str:
        return group_of(key)

    def key_of(self, group: str) -> TopicPartition | None:
        return self._keys.get(group)

    def replicas_here(self) -> list[TopicPartition]:
        """Of the replicas that take part."""
        return list(self._keys.values())

    def bounds_of(self, key: TopicPartition) -> Bounds | None:
        """None: it was withdrawn this moment."""
        handle = self._handles.get(group_of(key))
        try:
            return None if handle is None else self._plane.bounds(handle)
        except PartitionOfflineError:
            return None

    def look_at(self, key: TopicPartition) -> Group | None:
        """A replica's machine, as it stands now."""
        return None if self._driver is None else self._driver.core.find(group_of(key))

    def lacking(self) -> dict[TopicPartition, Lack]:
        """Replicas without segment space."""
        lacking = self._storage.lacking
        found = ((self._keys[group], lacking.get(handle)) for group, handle in self._handles.items()) if lacking else ()
        return {key: lack for key, lack in found if lack is not None}

    def others(self) -> list[Address]:
        """Cores that have replicas of what is here."""
        return sorted(self._wanted)

    def open_files(self) -> list[tuple[TopicPartition, PartitionStorage]]:
        """Of the replicas that take part."""
        assert self._driver is not None
        found = ((key, self._driver.files_of(group)) for group, key in self._keys.items())
        return [(key, files) for key, files in found if files is not None]

    def files_of(self, key: TopicPartition) -> PartitionStorage | None:
        """None: it takes no part."""
        return None if self._driver is None else self._driver.files_of(group_of(key))

    # -- what the broker asks, again ---------------------------------------------------------------------------------

    async def follow(self, image: ClusterImage) -> None:
        if self._driver is None:
            await self._begin(image)
        before, self._image = self._image, image
        self._voters.image = image
        self.filling.is_allowed = image.feature_level >= FIRST_WITH_MOVES
        self.source.tells_gaps = image.feature_level >= FIRST_WITH_COMPACTION
        self._meet_new_replicas(before)
        self._link()

    def _meet_new_replicas(self, before: ClusterImage) -> None:
        """Of partitions that are here: another node may have got one in place of a node that is gone."""
        assert self._driver is not None
        core, now_ms = self._driver.core, self._clock.monotonic_ms()
        for key in changed_partitions(before, self._image):
            group = group_of(key)
            machine = core.groups.get(group)
            if machine is None:
                continue
            for replica in self._image.topics[key.topic_id].places(key.partition):
                if replica.node == self._identity.node or machine.cores.get(replica.node) == replica.core:
                    continue
                address = Address(*replica)
                if address not in self._wanted:
                    self._wanted.add(address)
                    core.add_link(address, now_ms)
                core.replica_moved(group, replica.node, replica.core, now_ms)

    def add(self, topic: TopicImage, key: TopicPartition, files: PartitionStorage, handle: int) -> None:
        assert self._driver is not None, "the first image comes before its partitions"
        group = group_of(key)
        config = simple(Voter(*voter) for voter in topic.voters[key.partition])
        replicas = topic.places(key.partition)
        self.want_links(Address(*each) for each in replicas if each.node != self._identity.node)
        self._keys[group], self._handles[group] = key, handle
        self.damaged.opened(f"{topic.name}-{key.partition}")
        me = self._own_voter(topic, key)
        leads_first = topic.first_leader(key.partition)
        first = next((voter for voter in config.voters if voter.node == leads_first), None)
        self._driver.add(group, handle, files, me, config, {each.node: each.core for each in replicas}, first)
        if self._driver.core.groups[group].votes_alone:
            self._driver.core.stand_at_once(group, self._clock.monotonic_ms())
        if first is None and replicas[0].node == self._identity.node and not files.leader_epoch > 0:
            self._new[group] = STAND_TIMES_MAX
            self._new_came.set()

    def want_links(self, addresses: Iterable[Address]) -> None:
        """To cores that have replicas of what is here."""
        assert self._driver is not None
        new, now_ms = sorted(set(addresses) - self._wanted), self._clock.monotonic_ms()
        for address in new:
            self._driver.core.add_link(address, now_ms)
        if new:
            self._wanted.update(new)
            self._link()

    def _own_voter(self, topic: TopicImage, key: TopicPartition) -> Voter:
        return Voter(self.node, self._identity.incarnation + topic.life_of(key.partition, self.node))

    async def step_aside(self, key: TopicPartition) -> None:
        await self._leaving.step_aside(key)

    async def leave(self, key: TopicPartition) -> None:
        await self._leaving.leave(key)

    def stay(self, key: TopicPartition) -> None:
        self._leaving.stay(key)

    def first_note(self, topic: TopicImage, key: TopicPartition, files: PartitionStorage) -> bytes:
        me = self._own_voter(topic, key)
        if files.leader_epoch < 0 or files.notes or list(topic.voters[key.partition]) != [tuple(me)]:
            return b""
        marker = Marker(files.leader_epoch + 1, files.written_end_offset, simple([me]))
        return encode_entry(MarkerEntry(group_of(key), marker))

    def remove(self, key: TopicPartition) -> None:
        group = group_of(key)
        if self._keys.pop(group, None) is None:
            return
        assert self._driver is not None
        self._new.pop(group, None)
        del self._handles[group]
        self._in_touch.pop(group, None)
        self.log_starts.removed(group)
        self._driver.remove(group)
        self._lost(key)
        self._moved.pop(key, trio.Event()).set()

    def hears_leader(self, key: TopicPartition, told_epoch: int) -> bool:
        if (machine := self.machine_of(key)) is None:
            return False
        leads = machine.fresh_leader(self._clock.monotonic_ms()) not in (None, machine.me)
        return (leads and told_epoch >= machine.term) or told_epoch > machine.log.last.epoch

    def leader_told(self, key: TopicPartition) -> None:
        self._moved.pop(key, trio.Event()).set()

    def all_moved(self) -> None:
        moved, self._moved = self._moved, {}
        for event in moved.values():
            event.set()

    async def wait_moved(self, key: TopicPartition) -> None:
        await self._moved.setdefault(key, trio.Event()).wait()

    async def confirm(self, key: TopicPartition) -> bool:
        return self._driver is not None and await self._driver.confirm(group_of(key))

    async def hand_over(self) -> None:
        if self._driver is None or not (led := self._led_of_several()):
            return
        count = len(led)
        with trio.move_on_after(HAND_OVER_S):
            while led := self._led_of_several():
                for key in led:
                    self.transfer_to_best(key)
                await trio.sleep(LOOK_S)
        log.info("%d of %d leaderships were handed over", count - len(led), count)

    def _led_of_several(self) -> list[TopicPartition]:
        """What is led here and others could lead."""
        machines = ((key, self.machine_of(key)) for key in self._led)
        return [key for key, machine in machines if machine is not None and not machine.votes_alone]

    def transfer(self, key: TopicPartition, node: NodeId) -> bool:
        """Begin to hand a leadership over to a voter's node; False: it is not led here, or that is no voter."""
        machine = self.machine_of(key)
        if machine is None or self._driver is None or not machine.is_leader or machine.config is None:
            return False
        target = next((voter for voter in machine.config.voters if voter.node == node), None)
        if target is None or machine.transfer is not None:
            return False
        begin = partial(self._driver.core.transfer_leadership, group_of(key), target)
        return self._driver.act(begin) is None

    def is_handing_over(self, key: TopicPartition) -> bool:
        machine = self.machine_of(key)
        return machine is not None and machine.transfer is not None

    def has_space(self, key: TopicPartition, node: NodeId) -> bool:
        machine = self.machine_of(key)
        if machine is None:
            return True
        return self._lacking.has_space(Address(node, machine.cores.get(node, self._options.core)))

    def in_sync(self, key: TopicPartition) -> tuple[NodeId, ...]:
        machine = self.machine_of(key)
        if machine is None or self._driver is None or not machine.is_leader:
            return ()
        group, stamp = group_of(key), (machine.term, machine.carries, self._driver.core.links_changed)
        known = self._in_touch.get(group) if machine.carried else None
        if known is not None and known[0] == stamp:
            return known[1]
        found = tuple(voter.node for voter in machine.in_touch())
        if machine.carried:
            self._in_touch[group] = stamp, found
        else:
            self._in_touch.pop(group, None)
        return found

    def perhaps_in_sync(self) -> Iterable[TopicPartition]:
        if self._driver is None:
            return ()
        awake, links_changed = self._awake_in_sync.take(), self._driver.core.links_changed
        if links_changed != self._links_looked_at:
            self._links_looked_at = links_changed
            return list(self._led)
        return self._known(awake)

    def _known(self, groups: Iterable[str]) -> list[TopicPartition]:
        return [self._keys[group] for group in groups if group in self._keys]

    def allow_moves(self, keys: frozenset[TopicPartition]) -> None:
        self._voters.allowed = keys

    def changes_to_confirm(self) -> dict[TopicPartition, int]:
        return {} if self._driver is None else self._voters.to_confirm()

    def confirm_changes(self, terms: Mapping[TopicPartition, int], version: int) -> None:
        self._voters.confirm(terms, version)

    def settled_term(self, key: TopicPartition) -> int | None:
        machine = self.machine_of(key)
        return None if machine is None or key not in self._led else self._voters.settled_term(key, machine)

    def begin_next_term(self, key: TopicPartition) -> None:
        """Of one that is led here: as it is, in a later term."""
        if self._driver is not None and (group := group_of(key)) in self._driver.core.groups:
            self._driver.act(partial(self._voters.begin_next_term, group))

    def progress(self, key: TopicPartition) -> ReplicaProgress | None:
        machine = self.machine_of(key)
        return None if machine is None else self._voters.progress(key, machine)

    def leaderless(self) -> list[TopicPartition]:
        """Quick where thousands are well: C carries those."""
        if self._driver is None:
            return []
        now_ms, groups = self._clock.monotonic_ms(), self._driver.core.groups
        return self._known(
            str(group) for group, machine in groups.items()
            if not machine.carried and not machine.is_leader and machine.fresh_leader(now_ms) is None
        )  # fmt: skip

    def term_of(self, key: TopicPartition) -> int | None:
        machine = self.machine_of(key)
        return None if machine is None else machine.term

    def has_other_life(self, topic: TopicImage, key: TopicPartition) -> bool:
        return self._lives.of(group_of(key)) != topic.life_of(key.partition, NodeId(self._identity.node))

    async def begin_lives(self, topic: TopicImage, keys: Sequence[TopicPartition]) -> None:
        lives = {group_of(key): topic.life_of(key.partition, self.node) for key in keys}
        await self._lives.begin(self._storage.files.disk, lives)

    def facts(self) -> Iterator[ReplicaFacts]:
        for group, key in self._keys.items():
            machine = self.machine_of(key)
            if machine is not None and self._driver is not None:
                self._driver.core.look(group)
                leader = machine.leader.node if machine.leader is not None else None
                voters = () if machine.config is None else tuple(sorted(v.node for v in machine.config.voters))
                yield ReplicaFacts(
                    key, machine.role.value, LeaderEpoch(machine.term), leader, voters, self.in_sync(key),
                    machine.log.end_offset, machine.high_watermark,
                )  # fmt: skip

    def counters(self) -> dict[str, int]:
        """See `replica_counters`; empty before this core has replicas."""
        if self._driver is None:
            return {}
        return replica_counters(self._driver, self.links, self._clock.monotonic_ms())

    def take(self, hello: Hello, body: bytes) -> None:
        """A frame for core 0, whose port is the node's. LinkDecodeError: it is none."""
        if self._driver is not None:
            self.links.take(hello, body)

    def offer_steady(self, links: Links) -> None:
        """The node's, for core 0: connections for the steady state come by its port."""
        self._offered.append(links)

    # -- life --------------------------------------------------------------------------------------------------------

    async def _begin(self, image: ClusterImage) -> None:
        """There is an image, so the node is in its cluster, and registered in it."""
        identity = IdentityFile(self._data).read()
        assert identity is not None, "a core has an image when its node is in the cluster"
        self._identity = identity
        core = self._options.core
        boot = next_core_boot(self._data, core, image.version)
        address = Address(NodeId(identity.node), core)
        machine = RaftCore(address, boot, self._clock.monotonic_ms(), SETTINGS)
        secret = read_secret(self._cluster.secret_path)
        surroundings = sealed(self._surroundings, secret, self._cluster.encryption)
        self.links = ReplicaLinks(address, self._own_hello, secret, surroundings)
        self._driver = ReplicaDriver(machine, self._plane, self._storage, self._clock, self.links.send)
        self._voters = VoterChanges(machine)
        carrier = self._driver.carrier
        self._awake_in_sync, self._awake_voters = carrier.watch_awake(), carrier.watch_awake()
        self._driver.on_leader_ready = self._leader_ready
        self._driver.on_role = self._role_changed
        self.links.check_node = lambda hello: refusal_of_node(hello, self._own_hello(), self._image)
        self.links.on_frame = self._driver.receive
        self.links.on_up = self._is_connected
        self.links.on_down = self._driver.disconnected
        self._driver.carrier.carry_beats(Machine.OF_PARTITIONS, machine, self.links.is_up)
        self.on_carrier(self._driver.carrier)
        self.links.on_refused = self._driver.refused
        for method, handler in self.handlers.items():
            self.links.serve(method, handler)
        self._leaving.begin(self._driver)
        self._lacking.begin(self._driver)
        bulk = self.links.another()
        self.source.begin(self._driver, self.links)
        self.filling.begin(self._driver, self.links, bulk, self._keys, self._nursery)
        self.links.boot_id = boot
        self.links.on_steady = self._driver.adopt_steady
        self.links.has_steady = self._driver.carrier.has_link
        self.links.end_steady = self._driver.carrier.close
        for links in self._offered:
            self.links.offer_steady(links)
        with in_queue(TaskQueue.REPLICATION):
            await self._nursery.start(self.links.run, self._listener())
            await self._nursery.start(bulk.run, None)
            self._nursery.start_soon(self._driver.run)
            self._nursery.start_soon(self.source.run)
            self._nursery.start_soon(self._stand_for_new)
            self._nursery.start_soon(self._tend)
            self._nursery.start_soon(self.damaged.run)
            self._nursery.start_soon(self.left_out.run)
            self._nursery.start_soon(self._lacking.run)

    def _listener(self) -> socket.socket | None:
        """Core 0's is the node's."""
        return socket.socket(fileno=self._options.cluster_fds[0]) if self._options.core else None

    def _own_hello(self) -> Hello:
        identity = self._identity
        assert identity.founding is not None
        host, port = self._cluster.address
        who = NodeId(identity.node), identity.incarnation, identity.boot
        core = self._options.core
        cluster = identity.founding.cluster
        return Hello(
            cluster, *who, core, host, port + core, __version__, replication=True, levels=SPOKEN,
            has_authorizer=self._cluster.has_authorizer,
        )  # fmt: skip

    def _link(self) -> None:
        """To all that there are: a node may have fewer cores than before."""
        nodes = self._image.nodes
        wanted = {
            address: SeedAddress(known.address.host, known.address.port + address.core)
            for address in self._wanted
            if (known := nodes.get(address.node)) is not None and address.core < known.cores
        }
        self.links.follow(wanted)

    async def _stand_for_new(self) -> None:
        """The preferred leaders of new groups need not wait for an election's time: nobody else leads them."""
        assert self._driver is not None
        while True:
            if not self._new:
                self._new_came = trio.Event()
                await self._new_came.wait()
            await trio.sleep(STAND_EVERY_S)
            now_ms = self._clock.monotonic_ms()
            for group, times in list(islice(self._new.items(), STAND_AT_ONCE)):
                machine = self._driver.core.groups.get(group)
                if machine is None or machine.term or machine.leader is not None or machine.yields or not times:
                    self._new.pop(group, None)
                    continue
                self._new[group] = times - 1
                self._driver.core.stand_at_once(group, now_ms)
            self._driver.wake()

    async def _tend(self) -> None:
        while True:
            await next_round(TEND_S)
            round_ends_s = trio.current_time() + TEND_S
            self._change_voters()
            while (wait_s := self._voters.look_again_s(self._clock.monotonic_ms())) is not None:
                if trio.current_time() + wait_s > round_ends_s:
                    break
                await trio.sleep(wait_s)
                self._change_voters()
            await self.log_starts.tell(self._led)

    def _change_voters(self) -> None:
        assert self._driver is not None
        due = self._voters.due(self._led, self._known(self._awake_voters.take()))
        led = [(key, machine) for key in due if (machine := self.machine_of(key)) is not None]
        self._driver.act(partial(self._voters.look, led))

    def _is_connected(self, address: Address) -> None:
        assert self._driver is not None
        self.log_starts.connected(address)
        self._driver.connected(address)

    async def set_log_start(self, key: TopicPartition, offset: int) -> None:
        """PartitionOfflineError."""
        await self._storage.set_log_start(self._handles[group_of(key)], offset)

    # -- roles -------------------------------------------------------------------------------------------------------

    def machine_of(self, key: TopicPartition) -> Group | None:
        return None if self._driver is None else self._driver.core.groups.get(group_of(key))

    def _leader_ready(self, group: str, term: int) -> None:
        key = self._keys.get(group)
        if key is not None:
            self._led[key] = LeaderEpoch(term)
            self._on_led(key, LeaderEpoch(term))
            self._tell_moved(key)

    def _role_changed(self, group: str, role: Role, _term: int) -> None:
        key = self._keys.get(group)
        if key is not None:
            if role is not LEADER:
                self._lost(key)
            self._tell_moved(key)

    def _lost(self, key: TopicPartition) -> None:
        term = self._led.pop(key, None)
        self._voters.forget(key)
        if term is not None:
            self._on_lost(key, term)

    def _tell_moved(self, key: TopicPartition) -> None:
        self._moved.pop(key, trio.Event()).set()
        self._on_moved(key)

    def transfer_to_best(self, key: TopicPartition) -> None:
        """To the voter that is heard and has most of the log; to one without segment space if there is no other."""
        machine = self.machine_of(key)
        if machine is None or machine.config is None or machine.transfer is not None or self._driver is None:
            return
        self._driver.core.look(group_of(key))
        now_ms = self._clock.monotonic_ms()
        heard = [each for each in machine.peers.values()
                 if each.voter in machine.config.voters and machine.is_heard(each.voter, now_ms)]  # fmt: skip
        if heard:
            able = [peer for peer in heard if self._lacking.has_space(machine.address_of(peer.voter))]
            self.transfer(key, max(able or heard, key=lambda peer: (peer.match, peer.voter)).voter.node)


@lru_cache(maxsize=GROUPS_KEPT)
def group_of(key: TopicPartition) -> str:
    """The name of a partition's group."""
    return f"{key.topic_id.hex}-{key.partition}"
