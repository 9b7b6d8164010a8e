"""Drives the replicated partitions of a core: one `RaftCore`, the data plane, and the storage between them.

A *turn* is synchronous (docs/decisions/2026-11-23-replicated-partitions.md). What takes an await holds up later entries
of its own partition only. Frames leave by `send` when the journal is as far as they say.

Rule: A turn of the driver proposes what was appended before it hears anybody, and carries roles out before anything
else: nothing is appended that the machine does not know of. Held by tests/node/test_replica_driver.py.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import trio

from tpc_broker.cluster.raft_codec import encode_entry
from tpc_broker.engine.disk_stalls import DiskStalls
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import JournalStoppedError, LeaderSentDamageError, LeadershipLostError, PartitionOfflineError
from tpc_broker.node.replicas.append_room import AppendRoom
from tpc_broker.node.replicas.item_reads import ItemReads
from tpc_broker.node.replicas.recovered_replicas import checkpoint_of, follow_cleaning
from tpc_broker.node.replicas.steady_carrier import SteadyCarrier, batches_of
from tpc_broker.raft.items import Position, Proposal
from tpc_broker.raft.journal import AppendEntry, CutEntry, MarkerEntry, TakenEntry, VoteEntry
from tpc_broker.raft.output import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    PRE_CANDIDATE,
    Accepted,
    Committed,
    HandOverBegun,
    LeaderReady,
    ReadFailed,
    ReadItems,
    ReadReady,
    Role,
    RoleChanged,
    ShipSegments,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpc_broker.broker.ports import AppendedRange
    from tpc_broker.engine.data_plane import RingDataPlane
    from tpc_broker.model import CoreId, NodeId
    from tpc_broker.node.links.sealed_links import Handed
    from tpc_broker.node.replicas.steady_carrier import SteadyLink
    from tpc_broker.raft.core import RaftCore
    from tpc_broker.raft.group import Group
    from tpc_broker.raft.items import Address, Batch, Config, Voter
    from tpc_broker.raft.journal import JournalEntry
    from tpc_broker.raft.messages import Frame
    from tpc_broker.storage.journalled_storage import JournalledStorage
    from tpc_broker.storage.ports import Clock
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

log = logging.getLogger(__name__)

MENDED_S: Final = 0.05
"""Between two looks at a journal that has failed."""
ROOM_RETRY_S: Final = 0.5
RELEASE_MS: Final = 1_000
RELEASE_AT_ONCE, RELEASE_ROUNDS = 100, 100
T = TypeVar("T")
WAIT_MS_MAX: Final = 1_000


class _Unproposed(NamedTuple):
    """What a leader has appended, as the machine is told it. It may have left memory when it is told again."""

    appended: AppendedRange
    proposals: list[Proposal]


@dataclass(slots=True)
class _Replica:
    """`entries` wait for the journal, the first one perhaps for a task of its own. `armed_term`: of its role in the
    data plane; None: it has none.
    """

    group: str
    handle: int
    files: PartitionStorage
    me: Voter
    config: Config | None
    cores: Mapping[NodeId, CoreId] | None
    role: Role = FOLLOWER
    term: int = 0
    armed_term: int | None = None
    commit_offset: int = 0
    entries: deque[tuple[int, JournalEntry]] = field(default_factory=deque)
    unproposed: deque[_Unproposed] = field(default_factory=deque)
    proposed: deque[tuple[Position, int]] = field(default_factory=deque)
    is_busy: bool = False
    is_refusing: bool = False
    """Too much waits for a quorum: nothing is appended meanwhile."""
    generation: int = 0
    """Rises when the journal fails: what was under way is void."""


class ReplicaDriver:
    """Of one core; touched by its thread only."""

    def __init__(
        self,
        core: RaftCore,
        plane: RingDataPlane,
        storage: JournalledStorage,
        clock: Clock,
        send: Callable[[Frame], None],
    ) -> None:
        self.core = core
        self.on_leader_ready: Callable[[str, int], None] = lambda _group, _term: None
        """Called with a group that is led here in a term of which clients may be told."""
        self.on_role: Callable[[str, Role, int], None] = lambda _group, _role, _term: None
        self.on_ship: Callable[[str, Voter], None] = lambda _group, _target: None
        """Called with a group that is led here and a replica that needs its segments."""
        self._plane = plane
        self._storage = storage
        self._clock = clock
        self._send = send
        self._replicas: dict[str, _Replica] = {}
        self._due: dict[str, _Replica] = {}
        """Those with entries, or with a commit that is not shown yet."""
        self._reads: dict[object, tuple[trio.Event, list[bool]]] = {}
        self._by_handle: dict[int, _Replica] = {}
        self._inbox: deque[Frame] = deque()
        self._refused: deque[Address] = deque()
        self._leaving: deque[str] = deque()
        self._held: list[Frame] = []
        self.commits = 0
        """How often a partition's high watermark rose here, since the start."""
        self.ended: Counter[str] = Counter()
        """What replicas that are here no more had counted: elections begun and won, cuts."""
        self._open: dict[int, int | None] = {}
        self._released_ms = 0
        self._to_release: list[str] = []
        self._refusing: dict[str, _Replica] = {}
        self._touched: dict[str, None] = {}
        """Since the last release: they may have items in memory."""
        self._wake = trio.Event()
        self._tasks: trio.Nursery
        self._has_failed = False
        self._carry_again_ms: int | None = None
        self._links_lost: deque[int] = deque()
        self.carrier = SteadyCarrier(core, plane)
        self.carrier.label_of = self.label_of
        DiskStalls(core, storage.disk_watch, plane, "its partitions")
        self.item_reads = ItemReads(core, plane, self._replicas, self.carrier.lagging, self._now_ms, self.wake)
        self._room = AppendRoom(core, plane, storage, self._replicas, (self._inbox, self.wake))
        core.on_due_earlier = self.wake
        plane.on_steady(self.wake, self._link_lost)
        plane.on_appended(self.wake)
        plane.on_durable(lambda _sequence: self.wake())
        plane.on_journal_failed(self._journal_failed)

    # -- groups ------------------------------------------------------------------------------------------------------

    def add(  # noqa: PLR0913 (a replica with all that makes it)
        self,
        group: str,
        handle: int,
        files: PartitionStorage,
        me: Voter,
        config: Config | None,
        cores: Mapping[NodeId, CoreId] | None = None,
        first: Voter | None = None,
    ) -> None:
        """A replicated partition that was registered. `config`: of its creation; None: it is a learner's. `cores`:
        which core of each node has its replica. `first`: who leads the first term, by the record that made it.
        """
        replica = _Replica(group, handle, files, me, config, cores)
        self._replicas[group] = self._by_handle[handle] = replica
        self.carrier.add(group, handle, files.key.topic_id.bytes, files.key.partition)
        checkpoint = checkpoint_of(group, files, config)
        machine = self.core.create_group(group, me, config, self._now_ms(), checkpoint, cores, first)
        follow_cleaning(self.core, machine, files, checkpoint, self.wake)
        self.wake()

    def remove(self, group: str) -> None:
        """It is deleted, or damaged: it resigns, and says nothing more. No effect when it has been removed."""
        replica = self._replicas.pop(group, None)
        if replica is None:
            return
        self._due.pop(group, None)
        self._refusing.pop(group, None)
        del self._by_handle[replica.handle]
        had = self.core.group(group).statistics()
        self.ended += Counter(elections=had.elections_started, elections_won=had.elections_won, cuts=had.cuts)
        replica.generation += 1
        for number, _entry in replica.entries:
            if number:  # a cut of the driver's own has none
                self._open[number] = 0
        self.core.remove_group(group, self._now_ms())
        key = replica.files.key
        self.carrier.remove(group, key.topic_id.bytes, key.partition)
        self.wake()

    def leave(self, group: str) -> None:
        """In the next turn it ends what it does here: it is to go to another core of the node (`RaftCore.leave`)."""
        self._leaving.append(group)
        self.wake()

    def has_left(self, group: str) -> bool:
        """Whether all of it is durable, and the data plane hears nothing more. PartitionOfflineError: it is gone."""
        replica = self._replicas.get(group)
        if replica is None:
            raise PartitionOfflineError("the replica was removed")
        waits = replica.entries or replica.unproposed or replica.is_busy or group in self._due or group in self._leaving
        return not waits and not self._has_failed and self.core.has_left(group)

    def stay(self, group: str) -> None:
        """It was to leave, and takes part again."""
        if group in self._leaving:
            self._leaving.remove(group)
        if group in self._replicas and self.core.group(group).leaving:
            self.core.stay(group, self._now_ms())
            self.wake()

    def files_of(self, group: str) -> PartitionStorage | None:
        """None: it is not here."""
        return replica.files if (replica := self._replicas.get(group)) is not None else None

    def label_of(self, group: str) -> str:
        """What people call its partition."""
        return group if (files := self.files_of(group)) is None else files.label

    def handle_of(self, group: str) -> int:
        """Of one that is here."""
        return self._replicas[group].handle

    def may_replace(self, group: str, position: Position) -> bool:
        """Whether a replica's log may give way to one that ends at a committed position: nothing of its own is on the
        way to the journal, and it has acknowledged nothing behind (`filling`).
        """
        replica = self._replicas.get(group)
        if replica is None or replica.entries or replica.is_busy or self._has_failed:
            return False
        self.core.take_back(group, self._now_ms())
        machine = self.core.group(group)
        is_silent = machine.role in (FOLLOWER, PRE_CANDIDATE)
        return is_silent and position > machine.log.last and position > machine.commit

    def uncommitted(self, machine: Group) -> int:
        """Records of one that is led here, whoever drives it."""
        log_end_offset, high_watermark = machine.log.end_offset, machine.high_watermark
        if machine.carried:
            try:
                bounds = self._plane.bounds(self._replicas[str(machine.group)].handle)
            except PartitionOfflineError:
                return 0
            log_end_offset, high_watermark = bounds.log_end_offset, bounds.high_watermark
        return max(0, log_end_offset - high_watermark)

    @property
    def refusing(self) -> int:
        """Replicas that take nothing now, because too much waits for a quorum."""
        return len(self._refusing)

    # -- what others ask for -----------------------------------------------------------------------------------------

    def connected(self, address: Address) -> None:
        """A core's connection is new."""
        if address in self.core.links:
            self.core.connected(address, self._now_ms())
            self.wake()

    def disconnected(self, address: Address) -> None:
        """A core's connection has ended."""
        self.core.vouching_lost(address, self._now_ms())

    def adopt_steady(self, handed: Handed, link: SteadyLink) -> None:
        """A connected socket for the steady state. OSError: it is the caller's."""
        self.carrier.adopt(handed, link, self._now_ms())
        self.wake()

    def refused(self, address: Address) -> None:
        """Nobody listens at a core's place; heard in the next turn."""
        self._refused.append(address)
        self.wake()

    async def confirm(self, group: str) -> bool:
        """Whether a quorum still follows this leader, so what is committed here is all there is (raft-rules 7.3)."""
        token, done, outcome = object(), trio.Event(), list[bool]()
        if group not in self._replicas or self.core.read_index(group, token, self._now_ms()) is not None:
            return False
        self._reads[token] = (done, outcome)
        self.wake()
        try:
            await done.wait()
        finally:
            del self._reads[token]
        return outcome[0]

    # -- turns -------------------------------------------------------------------------------------------------------

    def receive(self, frame: Frame) -> None:
        """From another core's driver; heard in the next turn."""
        self._inbox.append(frame)
        self.wake()

    def wake(self) -> None:
        """There is something for a turn."""
        self._wake.set()

    def act(self, command: Callable[[int], T]) -> T:
        """Carry out what may end a leadership, and a turn. What its machine has not heard of by then would be cut."""
        now_ms = self._now_ms()
        self._take_appended(now_ms)
        done = command(now_ms)
        self._turn()
        self.wake()
        return done

    async def run(self) -> None:
        """Turn by turn, until cancelled."""
        async with trio.open_nursery() as self._tasks:
            while True:
                self._wake = trio.Event()
                self._turn()
                if self._has_failed:
                    await trio.sleep(MENDED_S)
                    continue
                next_ms = self.core.next_deadline_ms()
                if self._carry_again_ms is not None:
                    next_ms = min(next_ms, self._carry_again_ms)
                wait_ms = min(max(next_ms - self._now_ms(), 0), WAIT_MS_MAX)
                with trio.move_on_after(wait_ms / 1000):
                    await self._wake.wait()

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def _turn(self) -> None:
        now_ms = self._now_ms()
        if self._has_failed and not self._plane.journal_error():
            self._has_failed = False
            self.core.journal_reopened(now_ms)
        self._take_appended(now_ms)
        self._hear(now_ms)
        self.core.tick(now_ms)
        self.carrier.look_at_stalled(now_ms)
        self.carrier.lagging.turn(self._tasks, self.files_of, self._now_ms, self.wake)
        if reached := self._reached():
            self.core.persisted(reached, now_ms)
        for refusing in list(self._refusing.values()):
            if self.core.groups[refusing.group].refuses() is None:
                self._guarded(refusing, lambda replica: self._propose(replica, now_ms))
        ready = self.core.ready(now_ms)
        for event in ready.events:
            self._carry_out(event)
        for number, entry in ready.entries:
            self._open[number] = None
            replica = self._replicas.get(str(entry.group))
            if replica is None:
                self._open[number] = 0
            else:
                replica.entries.append((number, entry))
                self._due[replica.group] = replica
                self._touched[replica.group] = None
                self.carrier.look_at(replica.group)
        for replica in list(self._due.values()):
            self._guarded(replica, self._journal)
        self._put_frames(ready.frames)
        if now_ms - self._released_ms >= RELEASE_MS:
            self._released_ms = now_ms
            self._release()
        self._carry_again_ms = self.carrier.carry(self._is_settled, now_ms)

    def _is_settled(self, group: str) -> bool:
        """All that the machine has said of it is in the data plane, and it knows of all that is there."""
        replica = self._replicas[group]
        if self.core.groups[group].leaving:
            return False
        if replica.role is FOLLOWER and not replica.entries and not replica.is_busy:
            self._guarded(replica, self._follow)
        waiting = replica.entries or replica.unproposed or replica.proposed or replica.is_busy or replica.is_refusing
        waiting = waiting or self._room.waits(group)
        return not waiting and not self._has_failed and replica.armed_term == self.core.groups[group].term

    def _link_lost(self, link: int) -> None:
        self._links_lost.append(link)
        self.wake()

    def _hear(self, now_ms: int) -> None:
        self._inbox.extend(self.carrier.frames(now_ms))
        while self._links_lost:
            self.carrier.lost(self._links_lost.popleft(), now_ms)
        self._room.begin_turn()
        while self._inbox:
            self.core.receive(self._room.let_through(self._inbox.popleft(), self._tasks), now_ms)
        while self._refused:
            self.core.link_refused(self._refused.popleft(), now_ms)
        while self._leaving:
            if (group := self._leaving.popleft()) in self._replicas:
                self.core.leave(group, now_ms)

    def _reached(self) -> int:
        """The machine's last sequence of which everything is durable, or 0."""
        durable, reached = self._plane.durable_sequence(), 0
        while self._open:
            number, sequence = next(iter(self._open.items()))
            if sequence is None or sequence > durable:
                break
            del self._open[number]
            reached = number
        return reached

    def _put_frames(self, frames: list[Frame]) -> None:
        self._held += frames
        durable = self.core.durable_sequence
        for frame in self._held:
            if frame.after_sequence <= durable:
                self._send(frame)
        self._held = [frame for frame in self._held if frame.after_sequence > durable]

    def _guarded(self, replica: _Replica, step: Callable[[_Replica], object]) -> None:
        """A partition that was deleted, or whose journal has failed this moment, holds up nobody else."""
        try:
            step(replica)
        except LeadershipLostError as error:
            log.debug("%s: %s", replica.group, error)
            replica.armed_term = None
        except JournalStoppedError as error:  # in each turn until the end of the process
            log.debug("%s: %s", replica.group, error)
        except PartitionOfflineError as error:
            log.info("%s: %s", replica.files.label, error)
        except LeaderSentDamageError as error:
            log.error("%s: its leader has sent damaged records (%s): this replica is silent until the next start",
                      replica.files.label, error)  # fmt: skip
            self.remove(replica.group)

    # -- a leader's appends ------------------------------------------------------------------------------------------

    def _take_appended(self, now_ms: int) -> None:
        touched = {}
        for one in self._plane.take_appended():
            replica = self._by_handle.get(one.handle)
            if replica is not None:
                proposals = [
                    Proposal(batch.end_offset - batch.base_offset, batch.length, batch.payload)
                    for batch in self._in_memory(replica, one.base_offset, one.end_offset)
                ]
                replica.unproposed.append(_Unproposed(one, proposals))
                touched[replica.group] = replica
        for replica in touched.values():
            self._propose(replica, now_ms)

    def _propose(self, replica: _Replica, now_ms: int) -> None:
        """What was refused stays, and nothing is appended to it meanwhile: it is tried again in each turn."""
        while replica.unproposed:
            one, proposals = replica.unproposed[0]
            answer = self.core.propose(replica.group, proposals, now_ms)
            if not isinstance(answer, Accepted):
                log.debug("%s: records up to %d are not proposed: %s", replica.group, one.end_offset, answer)
                self._refuse(replica, is_refusing=True)
                return
            assert answer.position == (one.leader_epoch, one.end_offset), (answer, one)
            replica.unproposed.popleft()
            replica.proposed.append((answer.position, one.sequence))
        self._refuse(replica, is_refusing=False)

    def _refuse(self, replica: _Replica, *, is_refusing: bool) -> None:
        if replica.is_refusing == is_refusing:
            return
        replica.is_refusing, error_code = is_refusing, ErrorCode.NONE
        self._refusing.pop(replica.group, None)
        if is_refusing:
            self._refusing[replica.group], error_code = replica, ErrorCode.NOT_ENOUGH_REPLICAS
        self._plane.refuse(replica.handle, error_code, all_acks=True)
        if not is_refusing and replica.role is LEADER:
            self.on_role(replica.group, LEADER, replica.term)  # who waits may go on

    def _in_memory(self, replica: _Replica, offset: int, upto: int) -> list[Batch]:
        """What was just taken has not left memory yet (`native/log/tail.c`)."""
        found: list[Batch] = []
        while offset < upto:
            data = self._plane.read_log(replica.handle, offset, upto, upto)
            assert data, (replica.group, offset, upto)
            found += batches_of(data, offset)
            offset = found[-1].end_offset
        return found

    # -- events ------------------------------------------------------------------------------------------------------

    def _carry_out(self, event: Any) -> None:
        if isinstance(event, ReadReady | ReadFailed):  # of a group that was removed, too
            self._reads_answered(event)
            return
        replica = self._replicas.get(event.group) if hasattr(event, "group") else None
        if replica is None:
            return
        self.carrier.look_at(replica.group)
        match event:
            case RoleChanged():
                self._guarded(replica, lambda replica: self._role_changed(replica, event))
            case Committed():
                replica.commit_offset = max(replica.commit_offset, event.position.offset)
                self.commits += 1
                self._due[replica.group] = replica
            case LeaderReady():
                self.on_leader_ready(replica.group, event.term)
            case HandOverBegun():
                self._guarded(replica, lambda replica: self._refuse(replica, is_refusing=True))
            case ReadItems():
                self._tasks.start_soon(self.item_reads.read, replica, event)
            case ShipSegments():
                self.on_ship(replica.group, event.target)

    def _reads_answered(self, event: ReadReady | ReadFailed) -> None:
        for token in event.tokens:
            if token in self._reads:
                done, outcome = self._reads[token]
                outcome.append(isinstance(event, ReadReady))
                done.set()

    def _role_changed(self, replica: _Replica, event: RoleChanged) -> None:
        was_leader = replica.role is LEADER
        if was_leader:
            self._guarded(replica, self._show)  # whoever waits for what is committed is answered
        replica.role, replica.term = event.role, event.term
        if event.role is not LEADER and (was_leader or event.role is FOLLOWER):
            replica.armed_term = None
            self._refuse(replica, is_refusing=False)
            leads_again = was_leader and event.role is CANDIDATE
            self._plane.disarm(replica.handle, keep_waits=leads_again)
            if not leads_again:
                self._storage.leads_no_more(replica.handle)
        if was_leader and event.role is not LEADER and replica.unproposed:
            # The machine does not know of it; its log may have what the next leader has sent by now.
            first = replica.unproposed[0].appended
            replica.unproposed.clear()
            replica.entries.append((0, CutEntry(replica.group, first.base_offset, first.leader_epoch)))
            self._due[replica.group] = replica
        self.on_role(replica.group, event.role, event.term)

    # -- the journal -------------------------------------------------------------------------------------------------

    def _journal(self, replica: _Replica) -> None:
        """Entries in their order, as far as nothing has to be waited for; then what is committed is shown."""
        while replica.entries and not replica.is_busy:
            number, entry = replica.entries[0]
            if isinstance(entry, CutEntry):
                self._begin_task(replica, self._cut, number, entry)
                return
            sequence = self._put(replica, entry)
            if sequence is None:
                self._begin_task(replica, self._wait_room, number, entry)
                return
            replica.entries.popleft()
            self._open[number] = sequence
            if self._plane.watch_durable(sequence):
                self.wake()
        if not replica.is_busy and self._show(replica) and not replica.entries:
            self._due.pop(replica.group, None)

    def _put(self, replica: _Replica, entry: JournalEntry) -> int | None:
        if isinstance(entry, VoteEntry):
            return self._storage.note_term(replica.handle, entry.term, encode_entry(entry))
        if isinstance(entry, MarkerEntry):
            epoch = entry.marker.epoch
            sequence = self._storage.begin_term(replica.handle, epoch, encode_entry(entry))
            if sequence is not None and replica.role is LEADER and epoch == replica.term:
                self._plane.lead(replica.handle, epoch)
                replica.armed_term = epoch
            return sequence
        if isinstance(entry, TakenEntry):
            return entry.sequence
        assert isinstance(entry, AppendEntry), entry
        if replica.proposed and replica.proposed[0][0] == entry.batches[-1].position:
            return replica.proposed.popleft()[1]
        self._follow(replica)
        data = b"".join(batch.payload for batch in entry.batches)  # type: ignore[misc]
        result = self._plane.append_replica(replica.handle, replica.term, data)
        if result is None:
            return None
        if result.error_code:
            raise LeaderSentDamageError(ErrorCode(result.error_code).name)
        return result.sequence

    def _follow(self, replica: _Replica) -> None:
        if replica.armed_term != replica.term:
            self._plane.follow(replica.handle, replica.term)
            replica.armed_term = replica.term

    def _show(self, replica: _Replica) -> bool:
        """Whether all that is committed is shown now."""
        state = self._plane.state(replica.handle)
        offset = min(replica.commit_offset, state.durable_offset)
        if offset <= state.high_watermark:
            return replica.commit_offset <= state.high_watermark
        if replica.role is FOLLOWER:  # who stands may have led, and have appends that wait for it to lead again
            self._follow(replica)
        if replica.armed_term is not None:
            self._plane.commit(replica.handle, replica.armed_term, offset)
        return False  # looked at again

    def _begin_task(self, replica: _Replica, work: Any, number: int, entry: JournalEntry) -> None:
        replica.is_busy = True
        self._tasks.start_soon(self._do, replica, work, number, entry)

    async def _do(self, replica: _Replica, work: Any, number: int, entry: JournalEntry) -> None:
        generation = replica.generation
        try:
            is_done = await work(replica, entry)
        except (PartitionOfflineError, OSError) as error:
            log.info("%s: %s", replica.files.label, error)
            await trio.sleep(ROOM_RETRY_S)
            is_done = False
        replica.is_busy = False
        if is_done and replica.generation == generation:
            replica.entries.popleft()
            if number in self._open:
                self._open[number] = 0
        self.wake()

    async def _cut(self, replica: _Replica, entry: CutEntry) -> bool:
        replica.armed_term = None
        await self._storage.cut(replica.handle, entry.offset, entry.last_epoch_kept)
        return True

    async def _wait_room(self, replica: _Replica, entry: JournalEntry) -> bool:
        if isinstance(entry, AppendEntry):
            size = sum(batch.length for batch in entry.batches)
            await self._storage.make_replica_room(replica.files, replica.handle, size)
        else:
            await self._storage.wait_journal_room()
        return False

    # -- trouble -----------------------------------------------------------------------------------------------------

    def _journal_failed(self, _error: int) -> None:
        """In the turn in which it did: the data plane has undone what was not durable, the machine does the same.

        Of what was appended and not proposed yet the machine has never heard. It may be durable, undone, or undone and
        on the disk all the same: it goes, with the leadership, by the cut that the machine writes at the reopening.
        """
        now_ms = self._now_ms()
        reached = self._reached() or self.core.durable_sequence
        appended_to = {one.handle for one in self._plane.take_appended()}
        for replica in self._replicas.values():
            if self.core.groups[replica.group].carried:
                self.core.take_back(replica.group, now_ms)
                if not self._plane.has_role(replica.handle):
                    appended_to.add(replica.handle)
        unheard = [replica.group for replica in self._replicas.values() if self._is_unheard(replica, appended_to)]
        self._open.clear()
        self._held = [frame for frame in self._held if frame.after_sequence <= reached]
        for replica in self._replicas.values():
            replica.generation += 1
            for waiting in (replica.entries, replica.unproposed, replica.proposed):
                waiting.clear()
        self._has_failed = True
        self.core.journal_failed(reached, now_ms, unheard)
        self.wake()

    def _is_unheard(self, replica: _Replica, appended_to: set[int]) -> bool:
        """Of a leader that the data plane has disarmed records are undone, and what it had appended is not told. A cut
        of what was never proposed, which has no number, is lost with the entries: the machine's own takes its place.
        """
        is_as_told = replica.armed_term is None or replica.role is not LEADER or self._plane.leads(replica.handle)
        if replica.unproposed or replica.handle in appended_to:
            self._guarded(replica, lambda replica: self._plane.disarm(replica.handle))
        elif is_as_told and all(number for number, _entry in replica.entries):
            return False
        replica.armed_term = None
        return True

    def _release(self) -> None:
        """Items that are in files need not be in the machine's memory. A share of all replicas each time: those that
        are carried, or at rest, have none.
        """
        if not self._to_release:
            self._to_release = list(self._replicas)
        count = max(RELEASE_AT_ONCE, len(self._replicas) // RELEASE_ROUNDS)
        chosen = {**self._touched, **dict.fromkeys(self._to_release[:count])}
        del self._to_release[:count]
        self._touched.clear()
        for group in chosen:
            replica = self._replicas.get(group)
            if replica is None:
                continue
            try:
                written_offset = self._plane.state(replica.handle).written_offset
                log_start_offset = self._plane.bounds(replica.handle).log_start_offset
            except PartitionOfflineError:
                continue
            machine_log = (machine := self.core.look(replica.group)).log
            if machine_log.log_start_offset < log_start_offset <= machine.high_watermark:
                self.core.truncate_start(replica.group, log_start_offset)
            if machine_log.markers and written_offset > machine_log.start.offset:
                position = machine_log.position_at(min(written_offset, machine_log.end_offset))
                if machine_log.contains(position):
                    self.core.release(replica.group, position)
