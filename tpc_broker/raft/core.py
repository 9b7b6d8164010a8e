"""All groups of one core: links, timers, the order of the journal, and the output of a turn.

Theory of operation
-------------------
What costs is what happens. A group without anything under way has no deadline and is in no list; a tick looks at the
links, whose number is that of the other nodes, and at what is due: a heap of instants, each with its groups, because
thousands of groups wait for the same few. A cancelled timer is passed over when it is due. When a link falls silent,
the groups with a replica there are walked once: those that it led stand for election, one after the other by rank, and
all their requests of a turn leave in one frame; those that lead here look whether they still hear a quorum.

A turn's messages to one core form at most two frames: what may leave at once, and what waits for the journal. The
second waits for the largest of its sequences: they are in the same commit anyhow.

The journal's sequences are counted here, and never given twice. `_pending` holds, in their order, which group has
something to learn from each; durability is a prefix, so it is a queue.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, TypeGuard

from tpc_broker.raft.group import Group
from tpc_broker.raft.items import Marker
from tpc_broker.raft.links import Link, Vouching
from tpc_broker.raft.messages import (
    OF_LINKS,
    Ack,
    AppendEntries,
    Frame,
    GroupList,
    Heartbeat,
    ReadRound,
    ReadRoundReply,
    Reject,
    RequestVote,
    Resign,
)
from tpc_broker.raft.mute_peers import MutePeers
from tpc_broker.raft.output import Accepted, CoreStatistics, Outbox, Ready, Refusal, Role
from tpc_broker.raft.own_disk import OwnDisk
from tpc_broker.raft.patience import Patience, Resignations
from tpc_broker.raft.settings import Settings
from tpc_broker.raft.standing import EarlyRequests, StandingOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tpc_broker.model import CoreId, NodeId
    from tpc_broker.raft.carrying import Carried
    from tpc_broker.raft.items import Address, Batch, Config, GroupId, Position, Proposal, Voter
    from tpc_broker.raft.journal import Checkpoint, JournalEntry
    from tpc_broker.raft.messages import GroupMessage, LinkMessage, Message
    from tpc_broker.raft.output import Event


class RaftCore:
    """See the package's docstring for how it is driven."""

    def __init__(self, address: Address, boot_id: int, now_ms: int, settings: Settings | None = None) -> None:
        self.address = address
        self.boot_id = boot_id
        self.settings = settings or Settings()
        self.groups: dict[GroupId, Group] = {}
        self.links: dict[Address, Link] = {}
        self.sequence = 0
        self.durable_sequence = 0
        self.journal_open = True
        self.read_round = 1
        self.links_changed = 0
        """How often a link fell silent or was heard again: until then a carried leader is in touch with the same."""
        self.mute = MutePeers(self)
        self._now_ms = now_ms
        self.disk = OwnDisk(self.settings, now_ms)
        self._pending: deque[tuple[int, GroupId]] = deque()
        self._entries: list[tuple[int, JournalEntry]] = []
        self._events: list[Event] = []
        self._dirty: dict[GroupId, None] = {}
        self._outboxes: dict[Address, Outbox] = {}
        self._deadlines: list[int] = []
        self._due_at: dict[int, list[GroupId]] = {}
        self._groups_at: dict[Address, dict[GroupId, Voter]] = {}
        self._addresses: dict[GroupId, dict[Address, Voter]] = {}
        self._round_groups: dict[GroupId, int] = {}
        self._resigned = Resignations(self.settings)
        self.patience = Patience(self.settings, self.links)
        self._early = EarlyRequests()
        places = self.settings.elections_min, self.settings.elections_max
        self._standing = StandingOrder(places, self.settings.resend_ms // 3, 2 * self.settings.election_timeout_ms)
        self.carrier: Callable[[GroupId], Carried | None] = lambda _group: None
        """Ends the carrying of a group, and tells what has become of it (`raft.carrying`)."""
        self.observer: Callable[[GroupId], Carried | None] = lambda _group: None
        """The same without ending it."""
        self.takes_ack: Callable[[Group, Ack], bool] = lambda _machine, _message: False
        """Whether whoever carries a leader has taken an acknowledgement."""
        self.vouching = Vouching()
        self.on_due_earlier: Callable[[], None] = lambda: None
        self._messages_sent = self._frames_sent = self._messages_received = self._groups_walked = 0

    # What a group needs (`Host`).

    def journal(self, group: GroupId, entry: JournalEntry) -> int:
        assert self.journal_open, "nothing is written to a journal that has failed"
        if not self._pending:
            self.disk.asked(self._now_ms)
        self.sequence += 1
        self._entries.append((self.sequence, entry))
        self._pending.append((self.sequence, group))
        return self.sequence

    def send(self, address: Address, message: Message, after_sequence: int = 0) -> None:
        outbox = self._outboxes.get(address)
        if outbox is None:
            outbox = self._outboxes[address] = Outbox()
        if after_sequence > self.durable_sequence:
            outbox.bound.append(message)
            outbox.after_sequence = max(outbox.after_sequence, after_sequence)
        else:
            outbox.at_once.append(message)

    def tell(self, event: Event) -> None:
        self._events.append(event)

    def wake(self, group: GroupId, deadline_ms: int) -> None:
        due = self._due_at.get(deadline_ms)
        if due is None:
            heapq.heappush(self._deadlines, deadline_ms)
            self._due_at[deadline_ms] = [group]
        else:
            due.append(group)

    def flush_later(self, group: GroupId) -> None:
        self._dirty[group] = None

    @property
    def disk_hangs(self) -> bool:
        return self.disk.hangs

    def may_stand(self, group: GroupId) -> bool:
        return self._standing.ask(group, self._now_ms)

    def ask_round(self, group: GroupId, term: int) -> None:
        self._round_groups[group] = term

    def resigned(self, group: GroupId, term: int) -> None:
        self._resigned.add(group, term, self._now_ms)
        for link in self.links.values():
            self._speak(link)

    def members_changed(self, group: GroupId) -> None:
        """Keeps the index of groups by link in step with a replica's configuration, learners and leader."""
        machine = self.groups.get(group)
        if machine is None:
            return
        known = {machine.address_of(voter): voter for voter in machine.known()}
        before = self._addresses.get(group, {})
        if known == before:
            return
        for address in before:
            if address not in known:
                del self._groups_at[address][group]
        for address, voter in known.items():
            self._groups_at.setdefault(address, {})[group] = voter
        self._addresses[group] = known

    # Links and groups come and go.

    def add_link(self, address: Address, now_ms: int) -> None:
        self._now_ms = now_ms
        assert address != self.address
        if address not in self.links:
            link = self.links[address] = Link(address, self.settings, self.boot_id, now_ms)
            link.heard_elsewhere = lambda boot_id: self.vouching.heard(address, boot_id)

    def connected(self, address: Address, now_ms: int) -> None:
        """raft-rules 3.5: a new session begins with the list of the groups that both have."""
        self._now_ms = now_ms
        link = self.links[address]
        shared = self._groups_at.get(address, {})
        groups = [self.groups[group] for group in shared]
        listed = tuple((g.group, g.term, g.role is Role.LEADER) for g in groups if g.role is not Role.CANDIDATE)
        self.send(address, GroupList(listed))
        link.next_heartbeat_ms = now_ms
        if link.was_fresh:
            self._link_up(link, anew=False)

    def vouching_lost(self, address: Address, now_ms: int) -> None:
        """What said in the machine's place that this core is there has broken, or the machine's own connection."""
        self._now_ms = now_ms
        if (link := self.links.get(address)) is not None:
            self._speak(link)

    def another_life(self, address: Address) -> None:
        """That core is one with another disk from now on: how often it has started says nothing of the one before."""
        link = self.links.get(address)
        if link is not None:
            link.forget_life()

    def link_refused(self, address: Address, now_ms: int) -> None:
        """raft-rules 3.5: its connection is lost, nobody listens. The core has ended, so what it led may be led by
        others at once. Freshness delays elections and decides none: it does no harm if this is not so.
        """
        self._now_ms = now_ms
        link = self.links.get(address)
        if link is not None and link.was_fresh:
            link.forget()
            self._speak(link)
            self._link_silent(link)

    def create_group(
        self,
        group: GroupId,
        me: Voter,
        config: Config | None,
        now_ms: int,
        checkpoint: Checkpoint | None = None,
        cores: Mapping[NodeId, CoreId] | None = None,
        first: Voter | None = None,
    ) -> Group:
        """`first`: who leads the first term, where the record that made the group says so."""
        self._now_ms = now_ms
        assert group not in self.groups, group
        assert me.node == self.address.node, me
        named = config if config is not None and me in config.voters else None
        machine = self.groups[group] = self.make_group(group, me, named, checkpoint, cores or {})
        if first is not None:
            machine.begin_named(first)
        machine.start(now_ms)
        for message, boot_id in self._early.take(group, machine.others()):
            machine.receive(message, boot_id, now_ms)
        return machine

    def make_group(
        self,
        group: GroupId,
        me: Voter,
        config: Config | None,
        checkpoint: Checkpoint | None,
        cores: Mapping[NodeId, CoreId],
    ) -> Group:
        """A simulator with mutants makes other machines here."""
        return Group(self, group, me, config, checkpoint, cores, self.address.core)

    def remove_group(self, group: GroupId, now_ms: int) -> None:
        """raft-rules 4, 5: a replica that is damaged, deleted or moved has left; what is queued is its last word."""
        self._now_ms = now_ms
        machine = self.awake(self.groups[group])
        if machine.is_leader:
            machine.resign(now_ms)
        for address in self._addresses.pop(group, {}):
            del self._groups_at[address][group]
        del self.groups[group]
        self._dirty.pop(group, None)
        self._standing.forget(group)

    # From one core of the node to another.

    def leave(self, group: GroupId, now_ms: int) -> None:
        self._now_ms = now_ms
        self.awake(self.groups[group]).leave(now_ms)

    def stay(self, group: GroupId, now_ms: int) -> None:
        self._now_ms = now_ms
        self.groups[group].stay(now_ms)

    def has_left(self, group: GroupId) -> bool:
        """Everything of it is durable: its log may be brought to files, and then it may be removed here."""
        machine = self.groups[group]
        return machine.leaving and machine.is_settled() and self.journal_open

    def replica_moved(self, group: GroupId, node: NodeId, core: CoreId, now_ms: int) -> None:
        """Another node's replica lives on another of its cores now."""
        self._now_ms = now_ms
        machine = self.groups.get(group)
        if machine is not None:
            self.awake(machine).replica_moved(node, core, now_ms)

    def group(self, group: GroupId) -> Group:
        return self.groups[group]

    # Groups that somebody else carries.

    def awake(self, machine: Group) -> Group:
        """The machine, taken back if it was carried: something is to be done that is not steady."""
        if machine.carried:
            machine.take_back(self.carrier(machine.group), self._now_ms)
        return machine

    def take_back(self, group: GroupId, now_ms: int) -> None:
        self._now_ms = now_ms
        self.awake(self.groups[group])

    def look(self, group: GroupId) -> Group:
        """The machine, as its group stands now, carried or not."""
        machine = self.groups[group]
        found = self.observer(group) if machine.carried else None
        if found is not None:
            machine.look(found)
        return machine

    def find(self, group: GroupId) -> Group | None:
        """As `look`; None: it is not here."""
        return self.look(group) if group in self.groups else None

    def carrying_lost(self, address: Address, now_ms: int) -> None:
        """What carried to that core has broken: what was under way may be lost."""
        self._now_ms = now_ms
        for group, voter in list(self._groups_at.get(address, {}).items()):
            machine = self.groups[group]
            if machine.carried:
                self.awake(machine).reset_peer(voter)

    # Frames.

    def receive(self, frame: Frame, now_ms: int) -> None:
        """One from a core that is not linked is dropped."""
        self._now_ms = now_ms
        link = self.links.get(frame.source)
        if link is None:
            return
        if link.hear(frame.boot_id, now_ms):
            self._link_up(link, anew=True)
        groups, boot_id = self.groups, frame.boot_id
        self._messages_received += len(frame.messages)
        for message in frame.messages:
            if isinstance(message, OF_LINKS):
                self._receive_from_link(link, frame, message)
            else:
                group = groups.get(message.group)
                if group is not None and group.me == message.target:
                    if group.carried:
                        if type(message) is Ack and group.is_leader and self._is_dealt_with(group, message):
                            continue
                        self.awake(group)
                    group.receive(message, boot_id, now_ms)
                elif group is None and _is_early(message):
                    self._early.put(message, boot_id)
                elif isinstance(message, Ack | Reject):
                    gone = Resign(message.group, message.target, message.source, message.term)
                    self.send(frame.source, gone)

    def _is_dealt_with(self, machine: Group, message: Ack) -> bool:
        """Of one that is carried: nothing is left for the machine to do."""
        return self.takes_ack(machine, message) or machine.is_no_news(message)

    def _receive_from_link(self, link: Link, frame: Frame, message: LinkMessage) -> None:
        if frame.boot_id != link.boot_id:
            return  # late, from an earlier start of that core
        if isinstance(message, Heartbeat):
            self.patience.told(link, message.silent_ms)
            for group, term in message.resigned:
                self._peer_leads(link, group, term, leads=False)
        elif isinstance(message, GroupList):
            self._compare_groups(link, message)
        elif isinstance(message, ReadRound):
            self._answer_round(link, message)
        else:
            for group, term, voter in message.groups:
                machine = self.groups.get(group)
                if machine is not None and machine.is_leader and machine.term == term:
                    machine.round_confirmed(message.round_number, voter)

    def _peer_leads(self, link: Link, group: GroupId, term: int, *, leads: bool) -> None:
        machine = self.groups.get(group)
        voter = self._groups_at.get(link.address, {}).get(group)
        if machine is None or voter is None:
            return
        if not machine.carried or (voter == machine.leader and not (leads and term == machine.term)):
            self.awake(machine).peer_leads(voter, term, self._now_ms, leads=leads)

    def _compare_groups(self, link: Link, message: GroupList) -> None:
        """raft-rules 3.5: who is not in the list of a new session is not vouched for by its core any more."""
        listed = {group for group, _term, _leads in message.groups}
        for group, term, leads in message.groups:
            self._peer_leads(link, group, term, leads=leads)
        for group, voter in list(self._groups_at.get(link.address, {}).items()):
            if group not in listed and self.groups[group].leader == voter:
                self.awake(self.groups[group]).doubt_leader(self._now_ms)

    def _answer_round(self, link: Link, message: ReadRound) -> None:
        machines = [(self.groups.get(group), term) for group, term in message.groups]
        confirmed = tuple((g.group, term, g.me) for g, term in machines if g is not None and g.confirms(term))
        if confirmed:
            self.send(link.address, ReadRoundReply(message.round_number, confirmed))

    def _link_up(self, link: Link, *, anew: bool) -> None:
        self.links_changed += 1
        for machine, voter in self._concerned_by(link):
            self.awake(machine).link_up(voter, self._now_ms, anew=anew)

    def _link_silent(self, link: Link) -> None:
        self.links_changed += 1
        for machine, voter in self._concerned_by(link):
            self.awake(machine).link_silent(voter, self._now_ms)

    def _concerned_by(self, link: Link) -> list[tuple[Group, Voter]]:
        """Groups with a replica at a core; but who is carried and follows another one has nothing to do with it."""
        found, groups = self._groups_at.get(link.address, {}), self.groups
        self._groups_walked += len(found)
        return [
            (groups[group], voter)
            for group, voter in found.items()
            if not groups[group].carried or groups[group].is_leader or groups[group].leader == voter
        ]

    # Time.

    def next_deadline_ms(self) -> int:
        """When `tick` is to be called at the latest."""
        due = [link.next_heartbeat_ms for link in self.links.values()]
        due += [link.try_ms for link in self.links.values() if link.mute]
        due += [link.silent_at_ms for link in self.links.values() if link.silent_at_ms is not None]
        while self._deadlines and not self._is_anybody_due(self._deadlines[0]):
            del self._due_at[heapq.heappop(self._deadlines)]
        if self._deadlines:
            due.append(self._deadlines[0])
        if (hangs_ms := self.disk.due_ms(self._now_ms, is_waiting=self._waits_for_disk())) is not None:
            due.append(hangs_ms)
        self.patience.promised_ms = due_ms = min(due, default=self._now_ms + self.settings.heartbeat_ms)
        return due_ms

    def _is_anybody_due(self, deadline_ms: int) -> bool:
        """Whether a group still wants to be called then; those in front that do not are forgotten."""
        due, groups = self._due_at[deadline_ms], self.groups
        for index, name in enumerate(due):
            group = groups.get(name)
            if group is not None and group.deadline_ms == deadline_ms:
                del due[:index]
                return True
        return False

    def tick(self, now_ms: int) -> None:
        """Heartbeats, links that fell silent, groups that are due."""
        self._now_ms = now_ms
        self.patience.look(self.vouching.late_ms(), now_ms, self.vouching.busy_ms)
        if self._resigned.is_due(now_ms):
            for link in self.links.values():
                self._speak(link)
        for link in self.links.values():
            if link.heartbeat_may_leave(self.settings, now_ms):
                self._heartbeat(link)
            if link.has_turned(now_ms):
                self._link_turned(link)
            self.mute.tick(link, now_ms)
        self._look_at_disk()
        while self._deadlines and self._deadlines[0] <= now_ms:
            deadline_ms = heapq.heappop(self._deadlines)
            for name in self._due_at.pop(deadline_ms):
                group = self.groups.get(name)
                if group is not None and group.deadline_ms == deadline_ms:
                    self._groups_walked += 1
                    self.awake(group).on_deadline(now_ms)

    def _heartbeat(self, link: Link) -> None:
        now_ms = self._now_ms
        due = self._resigned.due(now_ms, self.patience.slowness * self.settings.link_silent_ms)
        shared, known = self._groups_at.get(link.address, {}) if due else {}, self.groups
        resigned = tuple((group, term) for group, term in due if group in shared or group not in known)
        link.number += 1
        link.is_vouched = link.was_fresh and not due and self.vouching.begin(link.address)
        link.next_heartbeat_ms = max(now_ms, link.next_heartbeat_ms) + link.heartbeat_every_ms(self.settings)
        self.send(link.address, Heartbeat(link.number, resigned, self.patience.ms))

    def _speak(self, link: Link) -> None:
        """The machine's heartbeats are needed again."""
        if link.is_vouched:
            link.is_vouched = False
            link.next_heartbeat_ms = self._now_ms
            self.vouching.end(link.address)
            self.on_due_earlier()

    def _link_turned(self, link: Link) -> None:
        if link.was_fresh:
            self._link_up(link, anew=True)
        else:
            self._speak(link)
            self._link_silent(link)

    def _look_at_disk(self) -> None:
        """raft-rules 3.5: a leader without a disk is none. One that hangs ends all leaderships here."""
        was_hanging = self.disk.hangs
        self.disk.look(self._now_ms, is_waiting=self._waits_for_disk())
        if self.disk.hangs and not was_hanging:
            for machine in list(self.groups.values()):
                if machine.is_leader:
                    self._groups_walked += 1
                    self.awake(machine).resign(self._now_ms)
        elif was_hanging and not self.disk.hangs:
            self._start_again()

    def _waits_for_disk(self) -> bool:
        return bool(self._pending) or not self.journal_open

    def _start_again(self) -> None:
        for machine in list(self.groups.values()):
            if not machine.carried:
                machine.start_again(self._now_ms)

    # The journal.

    def persisted(self, sequence: int, now_ms: int) -> None:
        """The journal is durable up to `sequence`."""
        self._now_ms = now_ms
        if sequence <= self.durable_sequence:
            return
        self.durable_sequence = sequence
        pending = self._pending
        touched: dict[GroupId, None] = {}
        while pending and pending[0][0] <= sequence:
            touched[pending.popleft()[1]] = None
        for group in touched:
            machine = self.groups.get(group)
            if machine is not None:
                machine.became_durable(sequence, now_ms)
        if self.disk.answered(self._now_ms):
            self._start_again()

    def journal_failed(self, durable_sequence: int, now_ms: int, unheard: Iterable[GroupId] = ()) -> None:
        """raft-rules 4: what is not durable is undone, with every leadership that it touched.

        `unheard`: groups whose log has got, or has lost, items that were not proposed yet. They are touched too.
        """
        self._now_ms = now_ms
        self.persisted(durable_sequence, now_ms)
        self.journal_open = False
        touched = dict.fromkeys([*(group for _, group in self._pending), *unheard])
        self._pending.clear()
        self._entries = [(sequence, entry) for sequence, entry in self._entries if sequence <= durable_sequence]
        self._drop_bound()
        for group in touched:
            machine = self.groups.get(group)
            if machine is not None:
                self.awake(machine).undo()

    def _drop_bound(self) -> None:
        for outbox in self._outboxes.values():
            outbox.bound.clear()
            outbox.after_sequence = 0

    def journal_reopened(self, now_ms: int) -> None:
        """What is written first says which of the lost bytes do not count."""
        self._now_ms = now_ms
        assert not self.journal_open
        self.journal_open = True
        self.disk.answered(now_ms)
        for machine in list(self.groups.values()):
            machine.reopen()
            machine.start_again(now_ms)

    # Commands.

    def propose(self, group: GroupId, proposals: Sequence[Proposal], now_ms: int) -> Accepted | Refusal:
        self._now_ms = now_ms
        return self.awake(self.groups[group]).propose(proposals)

    def read_index(self, group: GroupId, token: object, now_ms: int) -> Refusal | None:
        self._now_ms = now_ms
        return self.look(group).read_index(token)

    def stand_at_once(self, group: GroupId, now_ms: int) -> None:
        """Where it has no leader; for who is to lead a new group."""
        self._now_ms = now_ms
        self.awake(self.groups[group]).stand_at_once(now_ms)

    def transfer_leadership(self, group: GroupId, target: Voter, now_ms: int) -> Refusal | None:
        self._now_ms = now_ms
        return self.awake(self.groups[group]).transfer_leadership(target, now_ms)

    def set_learners(self, group: GroupId, learners: Iterable[Voter], now_ms: int) -> Refusal | None:
        self._now_ms = now_ms
        return self.awake(self.groups[group]).set_learners(learners, now_ms)

    def change_voters(self, group: GroupId, target: Iterable[Voter], now_ms: int) -> Refusal | None:
        self._now_ms = now_ms
        return self.awake(self.groups[group]).change_voters(target, now_ms)

    def abort_change(self, group: GroupId, now_ms: int) -> None:
        self._now_ms = now_ms
        self.awake(self.groups[group]).abort_change(now_ms)

    def items_read(self, group: GroupId, target: Voter, prev: Position, batches: Sequence[Batch], now_ms: int) -> None:
        self._now_ms = now_ms
        self.awake(self.groups[group]).items_read(target, prev, batches, now_ms)

    def not_read(self, group: GroupId, target: Voter, prev: Position, now_ms: int, *, ships: bool) -> None:
        """In place of `items_read`: there is too much to read (`ships`), or it could not be read."""
        self._now_ms = now_ms
        self.awake(self.groups[group]).not_read(target, prev, ships=ships)

    def shipped(self, group: GroupId, target: Voter, position: Position, now_ms: int) -> None:
        self._now_ms = now_ms
        self.awake(self.groups[group]).shipped(target, position, now_ms)

    def checkpoint(self, group: GroupId) -> Checkpoint:
        return self.look(group).checkpoint()

    def release(self, group: GroupId, position: Position) -> None:
        """Items up to there are in files; not beyond what is durable."""
        machine = self.look(group)
        machine.log.release(min(position, machine.durable))

    def compacted(self, group: GroupId, contiguous_from_offset: int) -> None:
        """Below this offset segments have gaps from now on. A group that is carried stays so: who reads for it asks
        what needs segments (`Group.needs_segments`) after it has read.
        """
        self.look(group).compacted(contiguous_from_offset)

    def truncate_start(self, group: GroupId, log_start_offset: int) -> None:
        machine = self.look(group)
        assert log_start_offset <= machine.high_watermark, (log_start_offset, machine.commit)
        machine.log.truncate_start(log_start_offset, machine.commit)

    # Output.

    def ready(self, now_ms: int) -> Ready:
        """The end of a turn."""
        self._now_ms, self._standing.leisure = now_ms, self.patience.leisure
        while chosen := self._standing.next(self._is_electing, now_ms):
            for waited in map(self.groups.__getitem__, chosen):
                if waited.fresh_leader(now_ms) is None:
                    self.awake(waited).turn_has_come(now_ms)
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            for group in dirty:
                machine = self.groups.get(group)
                if machine is not None:
                    self._groups_walked += 1
                    machine.flush(now_ms)
        self._send_round()
        entries, self._entries = self._entries, []
        events, self._events = self._events, []
        return Ready(entries, self._frames(), events)

    def _is_electing(self, group: GroupId) -> bool:
        machine = self.groups.get(group)
        return machine is not None and machine.is_electing()

    def _send_round(self) -> None:
        """raft-rules 7.3: one message per link for all reads of the turn."""
        if not self._round_groups:
            return
        by_address: dict[Address, list[tuple[GroupId, int]]] = {}
        for group, term in self._round_groups.items():
            for address in self._addresses.get(group, {}):
                by_address.setdefault(address, []).append((group, term))
        for address, groups in by_address.items():
            self.send(address, ReadRound(self.read_round, tuple(groups)))
        self._round_groups = {}
        self.read_round += 1

    def _frames(self) -> list[Frame]:
        frames = []
        for address, outbox in self._outboxes.items():
            if outbox.at_once:
                frames.append(Frame(self.address, address, self.boot_id, 0, tuple(outbox.at_once)))
            if outbox.bound:
                frames.append(Frame(self.address, address, self.boot_id, outbox.after_sequence, tuple(outbox.bound)))
            self._messages_sent += len(outbox.at_once) + len(outbox.bound)
        self._frames_sent += len(frames)
        self._outboxes = {}
        return frames

    def statistics(self) -> CoreStatistics:
        machines = self.groups.values()
        led, armed = sum(m.is_leader for m in machines), sum(m.steady is not None for m in machines)
        return CoreStatistics(
            len(self.groups), led, armed, self.sequence, self.durable_sequence, self._messages_sent, self._frames_sent,
            self._messages_received, self._groups_walked, sum(map(len, self._due_at.values())),
            tuple(link.statistics(self._now_ms) for link in self.links.values()),
        )  # fmt: skip


def _is_early(message: GroupMessage) -> TypeGuard[RequestVote | AppendEntries]:
    """What another core begins a group with that is not here yet: a request, or the marker of a leader by name."""
    if isinstance(message, RequestVote):
        return True
    return isinstance(message, AppendEntries) and all(isinstance(item, Marker) for item in message.items)
