"""One core of a simulated node: the real `RaftCore`, driven as `tpc_broker.raft` says, over a simulated disk."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulator.network import Network
from tests.simulator.raft_disk import Journal, Mirror, Numbered, Shipped
from tests.simulator.raft_oracle import BrokenInvariantError, Oracle
from tests.simulator.world import MS, Clock, Event, Process, World
from tpc_broker.node.replicas.item_reads import without_gaps
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.group import Group
from tpc_broker.raft.items import START, Address, Batch, Config, GroupId, Position, Proposal, Voter
from tpc_broker.raft.journal import (
    EMPTY_CHECKPOINT,
    AdoptEntry,
    AppendEntry,
    Checkpoint,
    CutEntry,
    MarkerEntry,
    ReplayError,
    replay,
)
from tpc_broker.raft.messages import Frame
from tpc_broker.raft.output import (
    Accepted,
    Committed,
    ConfigCommitted,
    LogCut,
    ReadFailed,
    ReadItems,
    ReadReady,
    RoleChanged,
    ShipSegments,
)
from tpc_broker.raft.output import Role as RaftRole
from tpc_broker.raft.settings import Settings


@dataclass
class Replica:
    """What a core knows of one of its groups beside the machine: its own record of the log, and who waits."""

    me: Voter
    creation_config: Config | None
    first: Voter | None = None
    """Who leads the first term, by the record that made the group."""
    since_sequence: int = 0
    """Of this life of the core: what the journal was given before belonged to another incarnation."""
    written: Mirror = field(default_factory=Mirror)
    """Everything given to the journal."""
    durable: Mirror = field(default_factory=Mirror)
    """Everything that a completion has told to be durable."""
    unsettled: list[Numbered] = field(default_factory=list)
    """Cuts and adoptions that are not durable yet."""
    checkpointed: Mirror = field(default_factory=Mirror)
    """As of the last checkpoint: what the segments certainly hold."""
    shipped: dict[Position, Shipped] = field(default_factory=dict)
    waits: list[tuple[Position, object]] = field(default_factory=list)
    reads: dict[object, Position] = field(default_factory=dict)
    commit: Position = START

    def cuts_under_way(self) -> list[Numbered]:
        """Cuts that have happened in memory and are not durable, but for those of a log whose adoption is not."""
        return list(itertools.takewhile(lambda numbered: isinstance(numbered[1], CutEntry), self.unsettled))

    def kept_by_checkpoint(self) -> Mirror:
        """What is durable, with the cuts that are under way already made, and so the term and vote that were written
        in front of them.
        """
        kept = Mirror(self.durable)
        for _sequence, entry in self.cuts_under_way():
            kept.apply(entry, self.shipped.__getitem__)
        kept.term, kept.voted_for = self.written.term, self.written.voted_for
        return kept


@dataclass(frozen=True)
class Ports:
    """What a core needs of the cluster around it."""

    world: World
    network: Network
    oracle: Oracle
    peers: Callable[[], list[Address]]
    ship: Callable[[CoreDriver, ShipSegments], None]
    config_committed: Callable[[ConfigCommitted], None]
    settings: Settings


class CoreDriver:
    """One core. Survives its own crashes as what the disk has; `core` is None while it is down."""

    def __init__(self, ports: Ports, address: Address, drift_ppm: int) -> None:
        self.address = address
        self.process = Process(ports.world)
        self.journal = Journal(ports.world, f"{address.node}/{address.core}")
        self.replicas: dict[GroupId, Replica] = {}
        self.core: RaftCore | None = None
        self._ports = ports
        self._random = ports.world.stream(f"core {address.node}/{address.core}")
        self._drift_ppm = drift_ppm
        self._clock = Clock(ports.world)
        self._held: list[Frame] = []
        self._deadline: Event | None = None
        self._proposals_count = 0
        self._checkpointing_life = -1  # one at a time in each life
        self.process.is_running = False

    # -- lives -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new life from what the disk has. The monotonic clock begins anywhere."""
        self.process.start()
        self._clock = Clock(self._ports.world, int(self._random.random() * 10**6), self._drift_ppm)
        self._held = []
        boot_id = (self.journal.life + 1) << 32 | self._random.getrandbits(32)
        self.core = RaftCore(self.address, boot_id, self._clock.now_ms(), self._ports.settings)
        for peer in self._ports.peers():
            if peer.node != self.address.node:
                self.core.add_link(peer, self._clock.now_ms())
        for group in list(self.replicas):
            self._recover(group)
        self._ports.network.attach(self.address, lambda _source, frame: self.process.perform(lambda: self._got(frame)))
        self.turn()

    def crash(self) -> None:
        """`kill -9`."""
        self.process.crash()
        self.journal.crash()
        self._ports.network.detach(self.address)
        self.core = None
        for replica in self.replicas.values():
            replica.waits.clear()
            replica.reads.clear()

    def _recover(self, group: GroupId) -> None:
        replica = self.replicas[group]
        found = self.found(group)
        mirror = self._mirror_of_disk(group)
        replica.written, replica.durable, replica.commit, replica.since_sequence = mirror, Mirror(mirror), START, 0
        replica.unsettled = []
        mirror_of_disk = mirror.term, mirror.voted_for
        mirror.begin_named(replica.first)
        self._ports.oracle.restarts(group, replica.me, mirror)
        hard_state = (0, None) if found is None else found[:2]
        if hard_state not in (mirror_of_disk, (mirror.term, mirror.voted_for)):
            raise BrokenInvariantError(f"I9 {replica.me} of {group} is back with {hard_state}, not {mirror.term}")
        self._create(group, replica, found)

    def _mirror_of_disk(self, group: GroupId) -> Mirror:
        replica = self.replicas[group]
        mirror = Mirror(replica.checkpointed) if group in self.journal.checkpoints else Mirror()
        for entry in self.journal.of_group(group):
            mirror.apply(entry, replica.shipped.__getitem__)
        return mirror

    def found(self, group: GroupId) -> Checkpoint | None:
        """What the journal says of a group that it has heard of."""
        kept, entries = self.journal.checkpoints.get(group), self.journal.of_group(group)
        if kept is None and not entries:
            return None
        try:
            replica = self.replicas[group]
            return replay(
                kept or EMPTY_CHECKPOINT, entries, replica.creation_config, self._mirror_of_disk(group).cleaned_upto
            )
        except ReplayError as error:
            raise BrokenInvariantError(f"replay of {group} at {self.address}: {error}") from error

    def create_replica(
        self, group: GroupId, me: Voter, config: Config | None, first: Voter | None = None
    ) -> None:
        """A group that this node did not have, in this incarnation."""
        self.replicas[group] = Replica(me, config, first, 0 if self.core is None else self.core.sequence)
        self.replicas[group].written.begin_named(first)
        if self.core is not None:
            self.process.perform(lambda: (self._create(group, self.replicas[group], None), self.turn()))

    def _create(self, group, replica, checkpoint) -> None:
        now_ms, config = self._clock.now_ms(), replica.creation_config
        machine = self.core.create_group(group, replica.me, config, now_ms, checkpoint, first=replica.first)
        machine.contiguous_from_offset = replica.written.cleaned_upto
        self._compare(group)

    def remove_replica(self, group: GroupId) -> None:
        """Deletes a replica and all it had."""
        self.core.remove_group(group, self._clock.now_ms())
        self.turn()
        self.replicas.pop(group, None)
        self.journal.forget(group, self.core.sequence)

    def forget_earlier(self, group: GroupId) -> None:
        """What the journal has of earlier incarnations is not the new one's."""
        self.journal.forget(group, 0 if self.core is None else self.core.sequence)

    def machine(self, group: GroupId) -> Group | None:
        """The group's machine; None while the core is down, or paused since before the replica was made."""
        return None if self.core is None else self.core.groups.get(group)

    # -- inputs ----------------------------------------------------------------------------------------------------

    def _got(self, frame: Frame) -> None:
        self.core.receive(frame, self._clock.now_ms())
        self.turn()

    def connected(self, peer: Address) -> None:
        """A new connection to another core."""
        self.process.perform(lambda: self._connected(peer))

    def _connected(self, peer: Address) -> None:
        self.core.connected(peer, self._clock.now_ms())
        self.turn()

    def refused(self, peer: Address) -> None:
        """Nobody listened there, a moment ago: by now somebody may."""
        self.process.perform(lambda: self._refused(peer))

    def _refused(self, peer: Address) -> None:
        self.core.link_refused(peer, self._clock.now_ms())
        self.turn()

    def perform(self, group: GroupId, action: Callable[[RaftCore, int], object]) -> None:
        """A command to a group from outside, and the turn that follows it; nothing while the core is down."""

        def act() -> None:
            if self.machine(group) is not None:
                action(self.core, self._clock.now_ms())
                self.turn()

        self.process.perform(act)

    def propose(self, group: GroupId, batches_count: int) -> None:
        """A client's request; answered when it is committed, if the replica takes it."""
        self.process.perform(lambda: self._propose(group, batches_count))

    def _propose(self, group: GroupId, batches_count: int) -> None:
        if self.machine(group) is None:
            return
        proposals = []
        for _number in range(batches_count):
            self._proposals_count += 1
            payload = (*self.address, self.journal.life, self._proposals_count)
            proposals.append(Proposal(1 + int(self._random.random() * 5), 100, payload))
        answer = self.core.propose(group, proposals, self._clock.now_ms())
        if isinstance(answer, Accepted):
            self.replicas[group].waits.append((answer.position, proposals[-1].payload))
        self.turn()

    def read(self, group: GroupId) -> None:
        """A client's request that decides: everything acknowledged before now must be seen."""
        floor = self._ports.oracle.history(group).acked_end
        self.process.perform(lambda: self._read(group, floor))

    def _read(self, group: GroupId, floor: Position) -> None:
        replica = self.replicas.get(group)
        if replica is None or self.machine(group) is None:
            return
        token = object()
        replica.reads[token] = floor
        if self.core.read_index(group, token, self._clock.now_ms()) is not None:
            del replica.reads[token]
        self.turn()

    def _tick(self) -> None:
        self._deadline = None
        self.core.tick(self._clock.now_ms())
        self.turn()

    # -- outputs ---------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """The driver's duties 1 to 4."""
        core = self.core
        if core is None:
            return
        ready = core.ready(self._clock.now_ms())
        for sequence, entry in ready.entries:
            self._journalled(sequence, entry)
        self.journal.write(list(ready.entries), self.process, self._written)
        for frame in ready.frames:
            if frame.after_sequence <= self.journal.durable_sequence:
                self._send(frame)
            else:
                self._held.append(frame)
        for event in ready.events:
            self._happened(event)
        for entry in {entry.group: entry for _sequence, entry in ready.entries}:
            self._compare(entry)
        if self.core is not None:
            for group in core.groups:
                self._wakes(group)
            self._wake_at(core.next_deadline_ms())

    def _wake_at(self, deadline_ms: int | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if deadline_ms is not None:
            when_us = max(self._clock.instant_us(deadline_ms), self._ports.world.now_us + MS // 10)
            self._deadline = self.process.call_at(when_us, self._tick)

    def _journalled(self, sequence, entry) -> None:
        replica = self.replicas.get(entry.group)
        if replica is None:
            return
        before = replica.written.last
        if isinstance(entry, MarkerEntry):
            self._ports.oracle.item(entry.group, before, entry.marker, f"log of {replica.me}")
        elif isinstance(entry, AppendEntry):
            for batch in entry.batches:
                self._ports.oracle.item(entry.group, before, batch, f"log of {replica.me}")
                before = batch.position
        elif isinstance(entry, CutEntry | AdoptEntry):
            replica.unsettled.append((sequence, entry))
        replica.written.apply(entry, replica.shipped.__getitem__)
        if isinstance(entry, AdoptEntry):  # a driver begins the group anew then
            machine = self.machine(entry.group)
            machine.contiguous_from_offset = max(machine.contiguous_from_offset, replica.written.cleaned_upto)

    def _send(self, frame: Frame) -> None:
        for message in frame.messages:
            group = getattr(message, "group", None)
            replica = self.replicas.get(group) if group is not None else None
            self._ports.oracle.sent(message, replica and replica.durable)
        self._ports.network.send(self.address, frame.target, frame)

    def _happened(self, event) -> None:
        replica = self.replicas.get(event.group)
        if replica is None:
            return
        oracle = self._ports.oracle
        if isinstance(event, RoleChanged):
            if event.role is RaftRole.LEADER:
                oracle.leads(event.group, replica.me, self.journal.life, event.term, replica.written)
            elif event.leader not in (None, replica.me):
                replica.waits.clear()
        elif isinstance(event, LogCut):
            oracle.cut(event.group, replica.me, replica.commit, event.position)
            replica.waits = [wait for wait in replica.waits if wait[0] <= event.position]
        elif isinstance(event, Committed):
            self._committed(event.group, replica, event.position)
        elif isinstance(event, ReadReady):
            for token in event.tokens:
                oracle.read(event.group, replica.reads.pop(token), event.offset)
        elif isinstance(event, ReadFailed):
            for token in event.tokens:
                replica.reads.pop(token, None)
        elif isinstance(event, ShipSegments):
            self._ports.ship(self, event)
        elif isinstance(event, ReadItems):
            self._read_items(event, replica)
        elif isinstance(event, ConfigCommitted):
            self._ports.config_committed(event)

    def _committed(self, group: GroupId, replica: Replica, position: Position) -> None:
        self._ports.oracle.commits_upto(group, replica.me, position, replica.written)
        if not replica.durable.contains(position):
            raise BrokenInvariantError(f"I5 {replica.me} of {group} shows {position} before it is durable there")
        replica.commit = position
        done = [wait for wait in replica.waits if wait[0] <= position]
        replica.waits = [wait for wait in replica.waits if wait[0] > position]
        for where, payload in done:
            self._ports.oracle.acknowledges(group, where, payload)

    def _read_items(self, event: ReadItems, replica: Replica) -> None:
        """Batches of a peer that is far behind come from files, after a while."""
        behind = replica.written.index_of(event.prev) + 1
        batches, size = [], 0
        for item in replica.written.items[behind:]:
            if size >= event.bytes_max:
                break
            if isinstance(item, Batch):
                batches.append(item)
                size += item.length
        delay_us = int(self._random.random() * 20 * MS)
        self.process.call_at(self._ports.world.now_us + delay_us, lambda: self._items_read(event, batches))

    def _items_read(self, event: ReadItems, batches: list[Batch]) -> None:
        replica, now_ms = self.replicas.get(event.group), self._clock.now_ms()
        if self.machine(event.group) is None or replica is None:
            return
        try:
            found = without_gaps(_in_files(batches, replica.written.cleaned_upto), event.prev.offset)
        except ValueError:
            self.core.not_read(event.group, event.target, event.prev, now_ms, ships=False)
        else:
            self.core.items_read(event.group, event.target, event.prev, found, now_ms)
        self.turn()

    def _compare(self, group: GroupId) -> None:
        """The machine's log is what its entries say."""
        replica = self.replicas.get(group)
        if replica is None or self.machine(group) is None:
            return
        log, mirror = self.machine(group).log, replica.written
        if log.last != mirror.last or log.items != mirror.items[len(mirror.items) - len(log.items) :]:
            raise BrokenInvariantError(f"log {replica.me} of {group}: {log.image()}, journalled {mirror.items[-5:]}")
        if any(mirror.marker(marker.epoch) != marker for marker in log.markers):
            raise BrokenInvariantError(f"log {replica.me} of {group}: {log.markers}, journalled {mirror.items}")

    def _wakes(self, group: GroupId) -> None:
        """A voter that hears a quorum, and no leader, will stand: nobody may come and wake it."""
        machine = self.machine(group)
        if machine.role is not RaftRole.FOLLOWER or machine.deadline_ms is not None or self.core.disk_hangs:
            return
        now_ms = self._clock.now_ms()
        if machine._leader_is_fresh(now_ms) or not machine._may_campaign():
            return
        unnoticed = any(link.was_fresh and not link.is_fresh(now_ms) for link in self.core.links.values())
        if not unnoticed and machine._quorum_is_heard(now_ms):
            raise BrokenInvariantError(f"sleeps {machine.me} of {group} in term {machine.term} follows nobody")

    # -- disk ------------------------------------------------------------------------------------------------------

    def _written(self, entries: list[Numbered] | None) -> None:
        """The driver's duties 5 and 6."""
        if entries is None:
            self._journal_failed()
            return
        for sequence, entry in entries:
            replica = self.replicas.get(entry.group)
            if replica is None or sequence <= replica.since_sequence:
                continue
            replica.durable.apply(entry, replica.shipped.__getitem__)
        durable = self.journal.durable_sequence
        for replica in self.replicas.values():
            replica.unsettled = [numbered for numbered in replica.unsettled if numbered[0] > durable]
        leaving = [frame for frame in self._held if frame.after_sequence <= durable]
        self._held = [frame for frame in self._held if frame.after_sequence > durable]
        for frame in leaving:
            self._send(frame)
        self.core.persisted(durable, self._clock.now_ms())
        self.turn()

    def _journal_failed(self) -> None:
        self._held.clear()
        for replica in self.replicas.values():
            replica.written = Mirror(replica.durable)
            # A lost cut has happened in memory; one of a log that was adopted, and is lost with it, has not.
            replica.unsettled = replica.cuts_under_way()
            for _sequence, entry in replica.unsettled:
                replica.written.apply(entry, replica.shipped.__getitem__)
        self.core.journal_failed(self.journal.durable_sequence, self._clock.now_ms())
        self.turn()
        delay_us = int(self._random.random() * self._random.choice((1, 20, 1500)) * MS)
        self.process.call_at(self._ports.world.now_us + delay_us, self._reopen)

    def _reopen(self) -> None:
        self.journal.reopen()
        self.core.journal_reopened(self._clock.now_ms())
        self.turn()

    def retain(self, group: GroupId) -> None:
        """The log starts at what was committed when the last checkpoint was made, or earlier."""
        self.process.perform(lambda: self._retain(group))

    def _retain(self, group: GroupId) -> None:
        replica = self.replicas[group]
        start = min(replica.commit.offset, replica.checkpointed.last.offset)
        if self.machine(group) is not None and start > 0:
            self.core.truncate_start(group, start)
            self._compare(group)
            self.turn()

    def clean(self, group: GroupId) -> None:
        """Segments that were committed when the last checkpoint was made are compacted."""
        self.process.perform(lambda: self._clean(group))

    def _clean(self, group: GroupId) -> None:
        replica, kept = self.replicas[group], self.journal.checkpoints.get(group)
        is_adopting = any(isinstance(entry, AdoptEntry) for entry in self.journal.of_group(group))
        if kept is None or is_adopting or replica.unsettled or self._checkpointing_life == self.journal.life:
            return
        upto = min(kept.commit_hint.offset, replica.checkpointed.last.offset, replica.commit.offset)
        if self.machine(group) is None or upto <= replica.written.cleaned_upto:
            return
        for mirror in (replica.written, replica.durable, replica.checkpointed):
            mirror.cleaned_upto = upto
        self.core.compacted(group, upto)
        self._compare(group)
        self.turn()

    def checkpoint(self, *, release: bool) -> None:
        """Segments and a checkpoint take the place of the journal's entries; then memory may be given back."""
        self.process.perform(lambda: self._checkpoint(release))

    def _checkpoint(self, release) -> None:
        if not self.journal.is_open or self._checkpointing_life == self.journal.life:
            return
        self._checkpointing_life = self.journal.life
        life, sequence = self.journal.life, self.journal.durable_sequence
        taken = {group: self.core.checkpoint(group) for group in self.core.groups}
        mirrors = {
            group: (replica.me, replica.kept_by_checkpoint())
            for group in taken if (replica := self.replicas.get(group)) is not None
        }  # fmt: skip
        delay_us = int(self._random.random() * 200 * MS)
        self.process.call_at(
            self._ports.world.now_us + delay_us, lambda: self._checkpointed(taken, mirrors, (life, sequence), release)
        )

    def _checkpointed(self, taken, mirrors, place, release) -> None:
        self._checkpointing_life = -1
        found = {group: self.replicas.get(group) for group in mirrors}
        here = [group for group, replica in found.items() if replica is not None and replica.me == mirrors[group][0]]
        self.journal.checkpoint({group: taken[group] for group in here}, *place)
        for group in here:
            replica, mirror = found[group], mirrors[group][1]
            replica.checkpointed = mirror
            if release and group in self.core.groups:
                upto = min(replica.commit, mirror.last)
                if replica.written.contains(upto):
                    self.core.release(group, upto)
                    self._compare(group)
        self.turn()


def _in_files(batches: list[Batch], cleaned_upto: int) -> list[Batch]:
    """As compaction leaves them: of two batches one is gone, and what was in the other one was rewritten."""
    kept = [batch for batch in batches if batch.end_offset > cleaned_upto or batch.base_offset % 2]
    return [
        batch._replace(payload=("cleaned", batch.payload)) if batch.end_offset <= cleaned_upto else batch
        for batch in kept
    ]
