"""A node among the others, on core 0: how it comes to its cluster, and what it does there.

Start, in order: who this directory is; links to the seeds; found or join (`cluster.founding`); membership; the metadata
group, where this node has a part of it; the newest image, from the controller; registration. Until all of that is
done no client is answered: without a majority of the metadata's voters a node waits, and never founds again.

Afterwards: voters follow the commits of their group, all others pull what is committed from a voter (`observer`). The
leader of the group is the *controller*: it decides changes, and tends the voters (`tending`): one whose data
directory is another by now is replaced by it, and as nodes come there are three, then five.
"""

from __future__ import annotations

import base64
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from tpc_broker import __version__
from tpc_broker.cluster.founding import Founding, SeedAddress
from tpc_broker.cluster.link_codec import Hello, LinkDecodeError, Reason
from tpc_broker.cluster.raft_codec import decode_frame, encode_frame
from tpc_broker.engine.steady_plane import Machine
from tpc_broker.errors import MailboxError
from tpc_broker.feature_levels import SPOKEN
from tpc_broker.metadata.controller import Controller
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import (
    MetadataDamagedError,
    MetadataRecord,
    NodeRegistered,
    decode_record,
    encode_record,
)
from tpc_broker.model import CoreId, MetadataVersion, NodeId
from tpc_broker.node.counters import ClusterCounters, Known, cluster_counters
from tpc_broker.node.joining import Joining, say_what_is_waited_for
from tpc_broker.node.links.greeting import refusal_of, refusal_of_registration, removed_text
from tpc_broker.node.links.links import Links, Peer
from tpc_broker.node.links.sealed_links import sealed
from tpc_broker.node.links.surroundings import SYSTEM, Surroundings
from tpc_broker.node.membership.cluster_news import ClusterNews
from tpc_broker.node.membership.hearsay import Hearsay
from tpc_broker.node.membership.identity import IdentityFile, NodeIdentity
from tpc_broker.node.membership.members import Members
from tpc_broker.node.membership.options import read_secret
from tpc_broker.node.membership.whereabouts import Whereabouts, full_nodes
from tpc_broker.node.metadata.controller_calls import ControllerCalls
from tpc_broker.node.metadata.metadata_group import MetadataGroup, NotControllerError
from tpc_broker.node.metadata.observer import PULL, Observer, answer_pull
from tpc_broker.node.metadata.quorum import APPLIED, describe_quorum
from tpc_broker.node.metadata.tending import SHIP, hand_over, ship_image, tend_voters, why_not_gone
from tpc_broker.node.metadata.voter_file import VoterFile, VoterFileDamagedError
from tpc_broker.node.metadata.voters import node_rows, registration_of, successor
from tpc_broker.options import StartError
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.items import Address, Position, Voter
from tpc_broker.rounds import next_round
from tpc_broker.swim.model import Change, MemberEvent, State
from tpc_broker.task_queue import TaskQueue, in_queue

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Sequence

    from tpc_broker.broker.payloads import NodeHandler
    from tpc_broker.broker.ports import Quorum
    from tpc_broker.metadata.settings import BrokerConfiguration
    from tpc_broker.node.links.link_errors import LinkRefusedError
    from tpc_broker.node.replicas.steady_carrier import SteadyCarrier
    from tpc_broker.options import ClusterOptions, CoreOptions
    from tpc_broker.raft.messages import Frame
    from tpc_broker.storage.ports import Disk

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S: Final = 0.2
TEND_S: Final = 0.5
LEAVE_S: Final = 2.0
FINAL_REASONS: Final = (Reason.REMOVED, Reason.LEVEL)
"""Refusals after which a node has no place in its cluster as it is."""


class ClusterNodeMain:
    """`broker.ports.ClusterNode`."""

    def __init__(self, options: CoreOptions, disk: Disk, data: Any, surroundings: Surroundings = SYSTEM) -> None:
        assert options.cluster is not None
        self._core_options = options
        self._options: ClusterOptions = options.cluster
        self._disk = disk
        self._secret = read_secret(self._options.secret_path)
        surroundings = sealed(surroundings, self._secret, self._options.encryption)
        self._surroundings, self._clock = surroundings, surroundings.clock
        self._file = IdentityFile(data, surroundings)
        self._file.open(self._options.node_id, options.cores)
        self.links = Links(self._own_hello, self._secret, self._check_hello, surroundings)
        self.links.on_up = self._link_up
        self.links.on_down = self._link_down
        self.links.on_raft = self._take_frame
        self._members: Members | None = None
        self._group: MetadataGroup | None = None
        self._voter_file = VoterFile(disk, self._file.folder)
        self._beginning_replica = trio.Lock()
        self._joining = Joining(self._options, self._file, self._voter_file, self.links, surroundings)
        self._fed = ClusterImage()
        self._feed: list[tuple[list[MetadataRecord] | None, ClusterImage]] = []
        self._feed_filled = trio.Event()
        self._observer = Observer(
            self.links, follows=lambda: self._follows, newest=lambda: self.image, committed=self._committed
        )
        self._calls = ControllerCalls(
            self.links, is_controller=lambda: self.is_controller, known=lambda: self._controller_node,
            followed=lambda: self._followed, is_by_hearsay=lambda: self._is_told_more, told=self._told_of_controller,
            check=self._check_member,
        )  # fmt: skip
        self._hearsay, self._whereabouts = Hearsay(self.links, self._check_member), Whereabouts(disk, options.data)
        self._conflict, self._news = "", ClusterNews(self._options.node_id)
        self.on_peer_up: Callable[[NodeId], None] = lambda _node: None
        self.on_absent_changed: Callable[[frozenset[NodeId]], None] = lambda _nodes: None
        self.on_removed: Callable[[str], Awaitable[None]] = _wait_for_ever
        """Called with the reason when this node is told that it was removed from its cluster."""
        self._started_ms = self._clock.monotonic_ms()
        self.on_controller_changed: Callable[[NodeId | None], None] = lambda _node: None
        self._told_controller: int | None = None
        self._configuration: BrokerConfiguration
        self._nursery: trio.Nursery
        self._serve_own()

    # -- what the broker asks (`ClusterNode`) --------------------------------------------------------------------------

    async def run(
        self,
        bound: tuple[socket.socket, socket.socket],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """`bound`: the sockets of links and of datagrams."""
        links, self._datagrams = bound
        async with trio.open_nursery() as self._nursery:
            with in_queue(TaskQueue.REPLICATION):
                await self._nursery.start(self.links.run, links)
            for seed in self._options.seeds:
                if seed != self._options.address:
                    self.links.peer(seed)
            task_status.started()

    async def start(self, local: ClusterImage, configuration: BrokerConfiguration) -> ClusterImage:
        self._configuration = configuration
        self._joining.local = local
        founding = await self._joining.run()
        self._begin_membership(founding)
        await self._begin_group(founding)
        self._nursery.start_soon(self._observer.run)
        self._nursery.start_soon(self._tend)
        await self._register()
        await self._be_up_to_date()
        self._fed = self.image
        log.info("node %d is in cluster %s", self._identity.node, founding.cluster)
        return self._fed

    async def next_image(self, current: ClusterImage) -> tuple[list[MetadataRecord] | None, ClusterImage]:
        while True:
            found = [each for each in self._feed if each[1].version > current.version]
            self._feed.clear()
            if found:
                parts = [records for records, _image in found]
                whole = None if any(records is None for records in parts) else [r for part in parts for r in part or ()]
                begins = found[-1][1].version - len(whole) if whole is not None else -1
                return (whole if begins == current.version else None), found[-1][1]
            self._feed_filled = trio.Event()
            await self._feed_filled.wait()

    @property
    def image(self) -> ClusterImage:
        """The newest committed one that is known here."""
        group = self._group
        if group is not None and group.image.version >= self._observer.image.version:
            return group.image
        return self._observer.image

    @property
    def is_controller(self) -> bool:
        return self._group is not None and self._group.is_ready

    async def change(
        self, decide: Callable[[ClusterImage], tuple[list[MetadataRecord], Any]]
    ) -> tuple[MetadataVersion, Any]:
        if self._group is None:
            raise NotControllerError("this node has no part of the metadata group")
        return await self._group.change(decide)

    async def quorum(self) -> Quorum:
        if self._group is None or not self._group.is_ready:
            raise NotControllerError("this node does not lead the metadata")
        return await describe_quorum(self._group, self.links, self._clock)

    async def call_controller(
        self, method: str, payload: dict[str, Any], blobs: Sequence[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        return await self._calls.call(method, payload, blobs)

    def serve_controller(self, method: str, handler: NodeHandler) -> None:
        self._calls.serve(method, handler)

    def serve(self, method: str, handler: NodeHandler) -> None:
        async def serve(hello: Hello, payload: dict[str, Any], blobs: list[bytes]) -> Any:
            self._check_member(hello)
            return await handler(payload, blobs)

        self.links.serve(method, serve)

    def linked(self) -> list[NodeId]:
        return [NodeId(peer.hello.node) for peer in self.links.peers.values() if peer.hello is not None]

    def tell(self, node: NodeId | None, method: str, payload: dict[str, Any]) -> None:
        for each in self.linked() if node is None else [node]:
            self._nursery.start_soon(self.links.tell, each, method, payload)

    async def ask(self, node: NodeId, method: str, payload: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        return await self.links.call(node, method, payload)

    def absent(self) -> frozenset[NodeId]:
        return self._whereabouts.absent

    def is_cut_off(self) -> bool:
        return self._whereabouts.is_cut_off

    def full(self) -> frozenset[NodeId]:
        return full_nodes(self._members, self.image)

    def start_soon(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._nursery.start_soon(function, *arguments)

    async def leave(self) -> None:
        """The node is being stopped: somebody else is to lead, and nobody is to suspect it."""
        with trio.move_on_after(LEAVE_S):
            if self._configuration.settings.controlled_shutdown_enable:
                await self._hand_over()
            if self._members is not None:
                self._members.leave()
                while not self._members.has_left:
                    await trio.sleep(LOOK_S / 4)

    async def _hand_over(self) -> None:
        """Until another one leads; given up when nobody is there to."""
        group = self._group
        while group is not None and group.is_leader:
            if hand_over(group, self.image, self._is_within_reach, self._clock, why="this node is being stopped"):
                while group.is_leader and group.group.transfer is not None:
                    await group.moved()
            elif successor(group, self.image, self._is_within_reach) is None:
                return
            else:
                await trio.sleep(LOOK_S / 4)

    def why_not_gone(self, node: NodeId) -> str:
        assert self._members is not None
        known = self.image.nodes.get(node)
        has_link = node == self._identity.node or (known is not None and self._is_alive(known))
        has_link |= node in self._hearsay.heard_by(self._heard())
        uptime_ms = self._clock.monotonic_ms() - self._started_ms
        return why_not_gone(node, self._members.state_of(node), has_link=has_link, uptime_ms=uptime_ms)

    @property
    def _identity(self) -> NodeIdentity:
        return self._file.identity

    # -- greeting ------------------------------------------------------------------------------------------------------

    @property
    def _cluster(self) -> str:
        return self._identity.founding.cluster if self._identity.founding is not None else ""

    def _own_hello(self) -> Hello:
        identity, address = self._identity, self._options.address
        who = NodeId(identity.node), identity.incarnation, identity.boot
        has = self._options.has_authorizer
        return Hello(self._cluster, *who, CoreId(0), *address, __version__, levels=SPOKEN, has_authorizer=has)

    def _check_hello(self, hello: Hello) -> LinkRefusedError | None:
        return refusal_of(hello, self._own_hello(), self.links.incoming.values(), self.image)

    def _check_member(self, hello: Hello) -> None:
        if not self._cluster or hello.cluster != self._cluster:
            raise MailboxError(f"node {hello.node} is not in this cluster yet")
        if hello.incarnation in self.image.removed:
            raise MailboxError(removed_text(hello.node, self._cluster))

    def _link_up(self, peer: Peer) -> None:
        assert peer.hello is not None
        node = peer.hello.node
        if self._group is not None:
            self._group.core.add_link(Address(node, CoreId(0)), self._clock.monotonic_ms())
            self._group.connected(node)
        if self._cluster:
            self.on_peer_up(node)

    def _link_down(self, _peer: Peer, hello: Hello) -> None:
        if self._group is not None:
            self._group.disconnected(hello.node)

    def carry_beats(self, carrier: SteadyCarrier) -> None:
        """The metadata's heartbeats can leave over the links of this core's partitions."""
        assert self._group is not None, "a core has partitions when its node is in the cluster"
        core, links = self._group.core, self.links
        carrier.carry_beats(Machine.OF_METADATA, core, lambda address: links.peer_of(address.node) is not None)

    # -- membership ---

    def _begin_membership(self, founding: Founding) -> None:
        identity = self._identity
        who = identity.node, identity.incarnation, identity.boot
        cores = self._core_options.cores
        self._members = Members(
            self._options, who, founding.cluster, self._secret, self.links, cores,
            is_removed=lambda incarnation: incarnation in self.image.removed, surroundings=self._surroundings,
        )  # fmt: skip
        self._members.on_event = self._member_changed
        with in_queue(TaskQueue.REPLICATION):
            self._nursery.start_soon(self._members.run, self._datagrams)
            self._nursery.start_soon(self._whereabouts.watch_space, self._members)

    def _member_changed(self, event: MemberEvent) -> None:
        self._news.member_changed(event)
        if event.change is Change.CONFLICT:
            self._conflict = f"another process claims to be node {event.node}"
            log.error("%s: stop one of the two, or give it another --node-id", self._conflict)
        self._look_who_is_absent()

    def _look_who_is_absent(self) -> None:
        assert self._members is not None
        heard = self._heard()
        by_others, voters = self._hearsay.heard_by(heard), self._voters_known()[1]
        if self._whereabouts.look(self._members, self.image, self._identity.node, voters, heard, by_others):
            self.on_absent_changed(self.absent())
        self._hearsay.tell(heard)

    def _heard(self) -> frozenset[int]:
        return frozenset() if self._group is None else self._group.heard()

    # -- the metadata group --------------------------------------------------------------------------------------------

    async def _begin_group(self, founding: Founding) -> None:
        identity, now_ms = self._identity, self._clock.monotonic_ms()
        me = Voter(NodeId(identity.node), identity.incarnation)
        core = RaftCore(Address(NodeId(identity.node), CoreId(0)), identity.boot, now_ms)
        for voter in founding.voters:
            if voter.node != identity.node:
                core.add_link(Address(voter.node, CoreId(0)), now_ms)
        self._group = group = MetadataGroup(core, self._voter_file, me, self._clock, self._send_frame)
        group.on_committed = self._committed
        group.on_ship = self._ship
        group.on_role = self._role_changed
        if identity.has_replica:
            await self._begin_replica(group)
        for peer in self.links.peers.values():
            if peer.is_up:
                self._link_up(peer)
        with in_queue(TaskQueue.REPLICATION):
            self._nursery.start_soon(group.run)

    async def _begin_replica(self, group: MetadataGroup) -> None:
        """It is open afterwards. Others may ask meanwhile, and who asks may go away at any await, with the rest left to
        the next one. The file is made only as long as nothing can have been promised.
        """
        async with self._beginning_replica:
            if not self._identity.has_replica:
                await self._voter_file.create()
                self._file.gets_replica()
            if not group.has_replica:
                await self._open_replica(group)

    async def _open_replica(self, group: MetadataGroup) -> None:
        try:
            found = await self._voter_file.open()
        except VoterFileDamagedError as error:
            raise StartError(str(error)) from error
        if found is None:
            raise StartError(f"{self._voter_file.path} is gone: what this node has promised as a voter is lost")
        try:
            group.recover(found, self._founding.voters)
        except MetadataDamagedError as error:
            text = f"{self._voter_file.path} was written by a later release, or is damaged: {error}"
            raise StartError(text) from error

    def _send_frame(self, frame: Frame) -> None:
        peer = self.links.peer_of(frame.target.node)
        if peer is not None:
            peer.send_raft(encode_frame(frame))

    def _take_frame(self, hello: Hello, body: bytes) -> None:
        if self._group is None or not self._cluster or hello.cluster != self._cluster:
            return
        if hello.incarnation in self.image.removed:
            return
        frame = decode_frame(body)
        if frame.source.node != hello.node or frame.target != self._group.core.address:
            raise LinkDecodeError(f"node {hello.node} sent a frame of {frame.source} for {frame.target}")
        self._group.core.add_link(frame.source, self._clock.monotonic_ms())
        self._group.receive(frame, hello.incarnation)

    def _committed(self, records: list[MetadataRecord] | None, image: ClusterImage) -> None:
        if image.version <= self._fed.version:
            return
        self._file.is_at_level(image.feature_level)
        follows = records is not None and image.version - len(records) == self._fed.version
        self._fed = image
        self._feed.append((records if follows else None, image))
        self._feed_filled.set()
        if self._members is not None:
            self._look_who_is_absent()

    def _role_changed(self) -> None:
        assert self._group is not None
        self._news.role_changed(self._group.group)
        self._look_who_controls()

    def _ship(self, target: Voter, position: Position, image: bytes) -> None:
        assert self._group is not None
        self._nursery.start_soon(ship_image, self._group, self.links, target, position, image)

    # -- observers ---

    @property
    def _is_voter(self) -> bool:
        return self._group is not None and self._group.has_replica and self._group.group.is_voter

    @property
    def _follows(self) -> bool:
        """Its own replica of the metadata votes, and hears who leads them."""
        group = self._group
        leader = None if group is None or not self._is_voter else group.leader
        return leader is not None and group is not None and leader.node in {self._identity.node, *group.heard()}

    async def _serve_pull(self, hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> Any:
        self._check_member(hello)
        group = self._group
        if group is None or not self._follows:
            return {"known": False}, []
        return await answer_pull(group, int(payload["after"]))

    # -- the controller ---

    @property
    def _followed(self) -> int | None:
        """The node that leads the metadata, as this one's replica of them knows."""
        leader = None if self._group is None else self._group.leader
        return None if leader is None else leader.node

    @property
    def _controller_node(self) -> int | None:
        """The same, also by hearsay."""
        followed = None if self._is_told_more else self._followed
        return self._observer.controller if followed is None else followed

    def _told_of_controller(self, node: int | None) -> None:
        self._observer.controller = node

    def _look_who_controls(self) -> None:
        node = self._controller_node
        if node != self._told_controller:
            self._told_controller = node
            self.on_controller_changed(None if node is None else NodeId(node))

    async def _register(self) -> None:
        answer: dict[str, Any] = {}
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(say_what_is_waited_for, self.links)
                if self._founding.data_node == self._identity.node and not self.image.cluster_id:
                    local = {"image": base64.b64encode(self._joining.local.to_bytes()).decode()}
                    await self._calls.ask("cluster.begin", local)
                if counts := self._identity.counts_to_tell:  # nothing is placed on other cores before it is written
                    answer = await self._ask_to_register(counts[-1], counts)
                    if "refused" not in answer:
                        self._file.counts_told()
                if "refused" not in answer:
                    answer = await self._ask_to_register(self._core_options.cores, ())
                scope.cancel()
        if "refused" in answer:
            raise StartError(str(answer["refused"]))

    async def _ask_to_register(self, cores: int, counts: Sequence[int]) -> dict[str, Any]:
        """With so many of its cores; `counts` as `Controller.register_node` has them."""
        record = registration_of(self._identity, self._core_options, cores)
        fields = {"record": encode_record(record).decode(), "counts": list(counts)}
        answer = await self._calls.ask("nodes.register", fields)
        while "wait" in answer:
            await trio.sleep(LOOK_S)
            answer = await self._calls.ask("nodes.register", fields)
        return answer

    @property
    def _founding(self) -> Founding:
        assert self._identity.founding is not None
        return self._identity.founding

    async def _serve_register(self, payload: dict[str, Any], _blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        record = decode_record(str(payload["record"]).encode())
        if not isinstance(record, NodeRegistered):
            raise MailboxError("not the registration of a node")
        counts = [int(each) for each in payload.get("counts", ())]
        if not self.image.cluster_id:
            if self._founding.data_node is not None:
                return {"wait": "the node that brings data has not begun yet"}, []
            await self.change(self._begin(None))
        refused = ""

        def decide(image: ClusterImage) -> tuple[list[MetadataRecord], None]:
            nonlocal refused
            refused = refusal_of_registration(record, image, self._is_alive)
            if refused:
                return [], None
            return Controller(image, self._configuration).register_node(record, counts), None

        version, _none = await self.change(decide)
        return ({"refused": refused} if refused else {"version": version}), []

    def _is_alive(self, known: NodeRegistered) -> bool:
        return any(
            hello.node == known.node and hello.incarnation == known.incarnation
            for hello in self.links.incoming.values()
        )

    def _begin(self, brought: ClusterImage | None) -> Callable[[ClusterImage], tuple[list[MetadataRecord], None]]:
        founding, node = self._founding, NodeId(self._founding.data_node or 0)
        incarnation = next((each.incarnation for each in founding.voters if each.node == node), None)

        def decide(image: ClusterImage) -> tuple[list[MetadataRecord], None]:
            controller = Controller(image, self._configuration)
            return controller.begin_cluster(self._cluster, brought, node, founding.level, incarnation), None

        return decide

    async def _serve_begin(self, payload: dict[str, Any], _blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        brought = ClusterImage.from_bytes(base64.b64decode(payload["image"]))
        await self.change(self._begin(brought))
        return {}, []

    # Rule: A node of a cluster answers no client, and puts no partition aside, before it has the newest metadata. Held
    # by tests/cluster/test_nodes.py, tests/cluster/test_partitions.py.
    async def _be_up_to_date(self) -> None:
        """An old image must not be acted on: what it does not know yet would be put aside as unknown."""
        answer = await self._calls.ask("metadata.version", {})
        while self.image.version < answer["version"]:
            await trio.sleep(LOOK_S / 10)

    async def _serve_version(self, _payload: dict[str, Any], _blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        version, _none = await self.change(lambda _image: ([], None))
        return {"version": version}, []

    # -- keeping house ---

    async def _tend(self) -> None:
        while True:
            await next_round(TEND_S)
            self._tend_peers()
            self._look_who_is_absent()
            self._look_who_controls()
            leader = self._controller_node if self._follows or self._observer.is_told else None
            self._news.look_at_metadata(trio.current_time(), leader, self.image, self.links.heard())
            await self._look_whether_refused()
            group = self._group
            if group is None or not self.is_controller:
                continue
            await tend_voters(group, self.image, self.links, self._is_within_reach, self._clock)
            if NodeId(self._identity.node) in self.image.draining and group.is_leader:
                self._lead_no_more(group)

    def _lead_no_more(self, group: MetadataGroup) -> None:
        """The node is draining; another one that is, too, would do no better."""
        target = successor(group, self.image, self._is_within_reach)
        if target is not None and target.node not in self.image.draining and group.group.transfer is None:
            hand_over(group, self.image, self._is_within_reach, self._clock, why="this node is draining")

    async def _look_whether_refused(self) -> None:
        """For good, by who has proved the secret: this node learns nothing of its cluster any more."""
        for peer in self.links.peers.values():
            refused = peer.refused
            if refused is not None and refused.is_proven and refused.by_peer and refused.reason in FINAL_REASONS:
                await self.on_removed(str(refused))
                await trio.sleep_forever()

    def _tend_peers(self) -> None:
        """To registered nodes, seeds, and who has dialled: a voter that starts may know of the leader by that alone."""
        known = {SeedAddress(*each.address) for each in self.image.nodes.values()}
        known |= {SeedAddress(*hello.address) for hello in self.links.incoming.values() if hello.cluster}
        wanted = (known | set(self._options.seeds)) - {self._options.address}
        for address in sorted(wanted):  # in an order that a seed repeats
            self.links.peer(address)
        for address in sorted(self.links.peers.keys() - wanted):
            if self.links.peers[address].hello is None:
                self.links.peers.pop(address).close()
        for peer in self.links.peers.values():
            if peer.hello is not None and peer.hello.incarnation in self.image.removed:
                peer.reconnect()  # and be refused

    def _is_within_reach(self, node: NodeId) -> bool:
        assert self._members is not None
        return node == self._identity.node or (
            self._members.state_of(node) is State.ALIVE and self.links.peer_of(node) is not None
        )

    async def _become_replica(self, hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> Any:
        self._check_member(hello)
        if payload["incarnation"] != self._identity.incarnation:
            raise MailboxError(f"node {self._identity.node} has another incarnation")
        group = self._group
        if group is None:
            raise MailboxError(f"node {self._identity.node} is still starting")
        await self._begin_replica(group)
        return {}, []

    async def _take_shipped(self, hello: Hello, payload: dict[str, Any], blobs: list[bytes]) -> Any:
        self._check_member(hello)
        if payload["incarnation"] != self._identity.incarnation or self._group is None:
            raise MailboxError(f"node {self._identity.node} has another incarnation, or is still starting")
        epoch, offset = payload["position"]
        self._group.take_shipped(Position(int(epoch), int(offset)), blobs[0])
        return {}, []

    async def _serve_applied(self, hello: Hello, _payload: dict[str, Any], _blobs: list[bytes]) -> Any:
        self._check_member(hello)
        return {"version": self.image.version}, []

    def _serve_own(self) -> None:
        self.links.serve(PULL, self._serve_pull)
        self.links.serve(APPLIED, self._serve_applied)
        self.links.serve(SHIP, self._take_shipped)
        self.links.serve("metadata.become_replica", self._become_replica)
        self.serve_controller("nodes.register", self._serve_register)
        self.serve_controller("cluster.begin", self._serve_begin)
        self.serve_controller("metadata.version", self._serve_version)

    @property
    def _is_told_more(self) -> bool:
        """Than its replica knows, which seems to vote and has no leader, or does not hear it; nor was it told of a term
        that is over.
        """
        group = self._group
        knows_newer = group is not None and group.leader is not None and group.group.term > self._observer.term
        return not self._follows and self._observer.is_told and not knows_newer

    def _voters_known(self) -> tuple[int | None, set[int]]:
        """Who leads the metadata and who votes on them, as far as this node knows."""
        if self._group is not None and self._is_voter and not self._is_told_more:
            return self._group.leader and self._group.leader.node, self._group.voters
        return self._observer.controller, self._observer.voters

    def counters(self) -> ClusterCounters:
        known = Known(self._whereabouts.absent, *self._voters_known(), self._conflict)
        return cluster_counters(self._identity, self.image, self.links, self._members, self._group, known)

    def facts(self) -> dict[str, Any]:
        states = self._members.states() if self._members is not None else {}
        metadata = self.counters()["metadata"]
        return {
            "cluster_id": self.image.cluster_id, "asked": self._identity.node,
            "controller": metadata["leader"],
            "version": metadata["version"], "term": metadata["term"] if self._is_voter else None,
            "nodes": node_rows(self.image, states, metadata["voters"], metadata["leader"]),
        }


async def _wait_for_ever(_reason: str) -> None:
    await trio.sleep_forever()
