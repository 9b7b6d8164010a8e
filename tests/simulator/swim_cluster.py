"""A cluster of `Swim` machines on virtual time, with what may be said of them at any instant and at the end."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulator.network import Faults, Network
from tests.simulator.world import MS, Clock, Event, Process, World
from tpc_broker.model import NodeId
from tpc_broker.swim import machine as machine_module
from tpc_broker.swim.codec import SwimCodec
from tpc_broker.swim.lifeguard import suspicion_timeout_ms
from tpc_broker.swim.members import Member
from tpc_broker.swim.model import (
    GONE,
    Address,
    Change,
    MemberEvent,
    Message,
    NodeInfo,
    Sender,
    Settings,
    State,
    Update,
)
from tpc_broker.swim.rumours import Rumours

STREAM_MS = 5
"""One direction of an exchange."""


class InvariantError(AssertionError):
    """Something that must never be is."""


@dataclass(slots=True)
class Seen:
    """A change that a node told its driver."""

    at_us: int
    observer: NodeId
    event: MemberEvent


@dataclass(slots=True)
class Life:
    """What is true of a node, whatever others hold of it."""

    boots: set[uuid.UUID] = field(default_factory=set)
    incarnation_max: int = 0
    """The highest that any of its lives has had."""
    has_left: bool = False
    down_since_us: int | None = None
    down_until_us: int = 0
    """When it was last seen to be down, paused or cut off."""


class SimulatedNode:
    """A machine with its driver: what `Swim` says the driver's duties are."""

    def __init__(self, cluster: SwimCluster, node: NodeId, clock: Clock) -> None:
        self.cluster, self.node, self.clock = cluster, node, clock
        self.address = Address(f"10.0.{node // 250}.{node % 250 + 1}", 7_000)
        self.process = Process(cluster.world)
        self.life = Life(down_since_us=cluster.world.now_us)
        self.process.is_running = False
        self.machine: machine_module.Swim
        self._planned: tuple[int, Event] | None = None
        self.datagrams_kept = 100
        """What fits into the socket's buffer while the process is paused."""
        self._datagrams_waiting = 0
        self._times_at_once = 0
        self._ranks: dict[NodeId, tuple[int, int]] = {}

    @property
    def is_listening(self) -> bool:
        return self.process.is_running and not self.process.is_paused

    def start(self, seeds: Iterable[Address], rack: str = "") -> None:
        """A new life, with a boot id of its own and incarnation 0."""
        cluster = self.cluster
        if not self.process.is_running:
            self.process.start()
        boot_id = uuid.UUID(int=cluster.random.getrandbits(128))
        self.life.boots.add(boot_id)
        self.life.has_left = False
        self.life.down_since_us = None
        self.life.down_until_us = cluster.world.now_us
        self._planned = None
        self._ranks = {}
        self.machine = machine_module.Swim(
            self.node,
            NodeInfo(address=self.address, boot_id=boot_id, cores=2, rack=rack, version="0.1.0"),
            below=cluster.random.randrange,
            update_bytes=cluster.update_bytes,
            header_bytes=cluster.codec.header_bytes,
            now_ms=self.clock.now_ms(),
            seeds=tuple(seeds),
            settings=cluster.settings,
        )
        cluster.network.attach(self.address, self._on_datagram)
        self._serve()

    def stop(self) -> None:
        """The process is killed."""
        self.process.crash()
        self.cluster.network.detach(self.address)
        if self.life.down_since_us is None:
            self.life.down_since_us = self.cluster.world.now_us

    def _on_datagram(self, source: Address, carried: Message | bytes) -> None:
        def receive() -> None:
            message = self.cluster.codec.decode(carried) if isinstance(carried, bytes) else carried
            self.machine.receive(source, message, self.clock.now_ms())
            self._serve()

        if self.process.is_paused:
            self._datagrams_waiting += 1
            if self._datagrams_waiting > self.datagrams_kept:
                return
        else:
            self._datagrams_waiting = 0
        self.process.perform(receive)

    def _on_time(self) -> None:
        self._planned = None
        self.machine.on_deadline(self.clock.now_ms())
        self._serve(is_timely=True)
        now_ms, deadline_ms = self.clock.now_ms(), self.machine.next_deadline_ms()
        self._times_at_once = 0 if deadline_ms is None or deadline_ms > now_ms else self._times_at_once + 1
        if self._times_at_once > 5:
            raise InvariantError(f"node {self.node} is never done: a deadline at {deadline_ms}, and it is {now_ms}")

    def _serve(self, *, is_timely: bool = False) -> None:
        """Duty 3 of the driver, then duty 2; and the invariants of one machine."""
        cluster, ready = self.cluster, self.machine.ready()
        for target, message in ready.datagrams:
            cluster.network.send(self.address, target, cluster.carried(message))
        for target in ready.exchanges:
            self._exchange(target)
        now_us = cluster.world.now_us
        for event in ready.events:
            cluster.tell(Seen(now_us, self.node, event))
            if event.change is Change.LEAVE_DONE:
                self.life.has_left = True
        self.life.incarnation_max = max(self.life.incarnation_max, self.machine.incarnation)
        if cluster.is_strict and not self.machine.has_left:
            self._check(is_timely=is_timely)
        self._plan()

    def _plan(self) -> None:
        deadline_ms = self.machine.next_deadline_ms()
        if deadline_ms is None:
            return
        when_us = self.clock.instant_us(deadline_ms)
        if self._planned is not None:
            if self._planned[0] <= when_us:
                return
            self._planned[1].cancel()
        self._planned = when_us, self.process.call_at(when_us, self._on_time)

    # The stream of an exchange: there and back, or a failure when one side is not there.

    def _exchange(self, target: Address) -> None:
        cluster, sent = self.cluster, self._state_frames()
        peer = cluster.by_address[target]

        def arrive() -> None:
            if not peer.is_listening or peer.machine.has_left or cluster.network.is_blocked(self.address, target):
                self.process.call_at(cluster.world.now_us + 100 * MS, lambda: self._end_exchange(succeeded=False))
                return
            peer._take_state(sent)
            answer = peer._state_frames()
            self.process.call_at(cluster.world.now_us + STREAM_MS * MS, lambda: come_back(answer))

        def come_back(answer: list[bytes] | list[Update]) -> None:
            if cluster.network.is_blocked(target, self.address):
                self._end_exchange(succeeded=False)
                return
            self._take_state(answer, is_answer=True)
            self._end_exchange(succeeded=True)

        cluster.world.call_after(STREAM_MS * MS, arrive)

    def _state_frames(self) -> list[bytes] | list[Update]:
        updates = list(self.machine.snapshot(self.clock.now_ms()))
        if not self.cluster.is_encoded:
            return updates
        sender = Sender(self.node, self.machine.incarnation, self.machine.info.boot_id)
        return list(self.cluster.codec.encode_state(sender, updates))

    def _take_state(self, frames: list[bytes] | list[Update], *, is_answer: bool = False) -> None:
        updates: list[Update] = []
        for frame in frames:
            updates += self.cluster.codec.decode_state(frame[4:])[1] if isinstance(frame, bytes) else [frame]
        self.machine.merge(updates, self.clock.now_ms(), is_answer=is_answer)
        self._serve()

    def _end_exchange(self, *, succeeded: bool) -> None:
        self.machine.exchange_ended(self.clock.now_ms(), succeeded=succeeded)
        self._serve()

    def _check(self, *, is_timely: bool) -> None:
        """What holds of one machine after everything that happens to it."""
        cluster, settings, now_ms = self.cluster, self.cluster.settings, self.clock.now_ms()
        longest_ms = suspicion_timeout_ms(settings, cluster.nodes_count, 0, settings.local_health_max)
        longest_ms += settings.period_ms
        for member in self.machine.members:
            truth = cluster.nodes[member.node].life
            before = self._ranks.get(member.node, (0, 0))
            if member.rank < before:
                raise InvariantError(f"node {self.node} holds {member.node} at {member.rank}, after {before}")
            self._ranks[member.node] = member.rank
            if member.incarnation > truth.incarnation_max:
                raise InvariantError(
                    f"node {self.node} holds {member.node} at incarnation {member.incarnation}, which it never had"
                )
            if member.info.boot_id not in truth.boots:
                raise InvariantError(f"node {self.node} holds {member.node} under a boot id that it never had")
            suspicion = member.suspicion
            if is_timely and suspicion is not None and now_ms - suspicion.started_ms > longest_ms:
                raise InvariantError(f"node {self.node} suspects {member.node} for {now_ms - suspicion.started_ms} ms")
        statistics = self.machine.statistics()
        if statistics.rumours > cluster.nodes_count * (settings.suspicion_confirmations + 1):
            raise InvariantError(f"node {self.node} has {statistics.rumours} rumours of {cluster.nodes_count} members")


class SwimCluster:
    """Nodes, a network, and what they told. `is_encoded` sends real datagrams; `is_strict` checks after each event."""

    def __init__(
        self,
        seed: int,
        *,
        settings: Settings | None = None,
        faults: Faults | None = None,
        is_encoded: bool = False,
        is_strict: bool = False,
    ) -> None:
        self.world = World(seed)
        self.network = Network(self.world, faults or Faults())
        self.random = self.world.stream("swim")
        self.settings = settings or Settings()
        self.codec = SwimCodec("simulated")
        self.is_encoded, self.is_strict = is_encoded, is_strict
        self.nodes: dict[NodeId, SimulatedNode] = {}
        self.by_address: dict[Address, SimulatedNode] = {}
        self.seen: list[Seen] = []
        self.on_seen: Callable[[Seen], None] | None = None
        self._bytes: dict[bool, int] = {}

    @property
    def nodes_count(self) -> int:
        return len(self.nodes)

    def add(self, node: int, *, drift_ppm: int = 0) -> SimulatedNode:
        """A node that does not run yet. Its clock shows whatever it likes."""
        clock = Clock(self.world, self.random.randrange(1_000_000), drift_ppm)
        added = SimulatedNode(self, NodeId(node), clock)
        self.nodes[added.node] = self.by_address[added.address] = added
        return added

    def carried(self, message: Message) -> Message | bytes:
        return self.codec.encode(message) if self.is_encoded else message

    def update_bytes(self, update: Update) -> int:
        """The codec's answer; in large clusters, where all updates are much alike, remembered."""
        if self.is_encoded:
            return self.codec.update_bytes(update)
        has_info = update.info is not None
        if has_info not in self._bytes:
            self._bytes[has_info] = self.codec.update_bytes(update) + 4
        return self._bytes[has_info]

    def acquaint(self) -> None:
        """All running nodes know each other already: what a cluster is after a while, without the while."""
        running = [node for node in self.nodes.values() if node.process.is_running]
        updates = [next(iter(node.machine.snapshot(node.clock.now_ms()))) for node in running]
        for node in running:
            for one in updates:
                if one.node != node.node and one.info is not None:
                    node.machine.members.add(Member(one.node, one.info, one.incarnation, State.ALIVE, one.node))
            node.machine.exchange_ended(node.clock.now_ms(), succeeded=True)
            node.machine._rumours = Rumours(self.update_bytes)
            node.machine.ready()
            node._serve()

    def tell(self, seen: Seen) -> None:
        self.seen.append(seen)
        if self.on_seen is not None:
            self.on_seen(seen)

    def seen_of(self, node: int, change: Change, since_us: int = 0) -> list[Seen]:
        return [
            seen
            for seen in self.seen
            if seen.event.node == node and seen.event.change is change and seen.at_us >= since_us
        ]

    def run_for(self, duration_ms: int) -> None:
        self.world.run_for(duration_ms * MS)

    def running(self) -> list[SimulatedNode]:
        return [node for node in self.nodes.values() if node.process.is_running and not node.machine.has_left]

    def held(self, observer: SimulatedNode, node: NodeId) -> State | None:
        member = observer.machine.members.get(node)
        return None if member is None else member.state

    def disagreements(self) -> list[str]:
        """Where what is held is not the truth: of nodes that run, that they are alive with the present boot and
        incarnation; of the others, that they are gone; and that nobody has a rumour or news about itself to tell."""
        faults = []
        running = self.running()
        for observer in running:
            if len(observer.machine._rumours):
                faults.append(f"node {observer.node} still has {len(observer.machine._rumours)} rumours")
            if observer.machine._news is not None:
                faults.append(f"node {observer.node} still has news about itself that it may not tell yet")
            for other in self.nodes.values():
                if other is observer:
                    continue
                member = observer.machine.members.get(other.node)
                if other in running:
                    machine = other.machine
                    wanted = (State.ALIVE, machine.incarnation, machine.info)
                    found = None if member is None else (member.state, member.incarnation, member.info)
                    if found != wanted:
                        faults.append(f"node {observer.node} holds {other.node}: {found} and not {wanted}")
                elif member is not None and member.state not in GONE:
                    faults.append(f"node {observer.node} holds {other.node}: {member.state.name}, and it is not there")
        return faults

    def remembered(self) -> list[str]:
        """Who still holds whom of those that are not there."""
        running = self.running()
        return [
            f"node {observer.node} holds {member.node}: {member.state.name}"
            for observer in running for member in observer.machine.members if self.nodes[member.node] not in running
        ]  # fmt: skip

    def wait_agreement(self, limit_ms: int, step_ms: int = 500) -> int:
        """Milliseconds until there are no disagreements; InvariantError names the first ones after `limit_ms`."""
        began_us = self.world.now_us
        while faults := self.disagreements():
            if self.world.now_us - began_us >= limit_ms * MS:
                raise InvariantError(f"after {limit_ms} ms without faults: {'; '.join(faults[:4])}")
            self.run_for(step_ms)
        return (self.world.now_us - began_us) // MS

    def set_faults(self, **changes: float) -> None:
        self.network.faults = replace(self.network.faults, **changes)


def cluster_of(nodes_count: int, seed: int = 1, *, acquainted: bool = True, **options: Any) -> SwimCluster:
    """Nodes 0 to n - 1, running; acquainted already, or with node 0 as their seed."""
    cluster = SwimCluster(seed, **options)
    for number in range(nodes_count):
        cluster.add(number)
    first = cluster.nodes[NodeId(0)].address
    for node in cluster.nodes.values():
        node.start([] if acquainted else [first])
    if acquainted:
        cluster.acquaint()
    return cluster
