"""One replica as the explorer drives it: the real `Group` over a disk that makes entries durable one by one.

What a replica does depends on its own state and on what happens to it, and on nothing else. So each state that a
replica ever has is kept once, as a `Local`, with the outcomes of what was done to it. The states of a whole group are
combinations of a few thousand of these, and hardly any of them needs the machine to run again.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from typing import Any, NamedTuple

from tpc_broker.raft.followers import Adoption
from tpc_broker.raft.group import Group
from tpc_broker.raft.items import START, Config, Item, Marker, Position, Voter
from tpc_broker.raft.journal import (
    EMPTY_CHECKPOINT,
    AdoptEntry,
    Checkpoint,
    CutEntry,
    JournalEntry,
    VoteEntry,
    replay,
)
from tpc_broker.raft.log import ReplicaLog
from tpc_broker.raft.messages import Ack, GroupMessage, Install, Reason, RequestVote, TimeoutNow, Vote
from tpc_broker.raft.mute_peers import MutePeers
from tpc_broker.raft.output import Role
from tpc_broker.raft.patience import Patience
from tpc_broker.raft.replica import Peer
from tpc_broker.raft.settings import Settings
from tpc_broker.raft.steady import PeerState

GROUP = "g"
SETTINGS = Settings()


class Budget(NamedTuple):
    """How often a replica may still crash, and its journal fail."""

    crashes: int
    failures: int


NEVER = Budget(0, 0)
"""Nothing is ever lost here: what is journalled is durable at once (`Explorer` says why that may be)."""


class Bounds(NamedTuple):
    """How far it goes."""

    terms: int = 2
    batches: int = 1
    crashes: int = 1
    failures: int = 0
    voters: int = 3
    changes: int = 0
    old: tuple[int, ...] = ()
    new: tuple[int, ...] = ()
    checkpoints: int = 0
    snapshots: int = 0
    """Whether there are any: 0 or 1. How many is not bounded."""

    @property
    def first_voters(self) -> tuple[int, ...]:
        return self.old or tuple(range(self.voters))

    @property
    def used_max(self) -> tuple[int, ...]:
        return (self.batches, self.changes, self.checkpoints)

    def budgets(self, count: int) -> set[tuple[Budget, ...]]:
        """Who may crash how often, and whose journal may fail: in every way that keeps to the bounds."""
        shares = [
            [share for share in itertools.product(range(most + 1), repeat=count) if sum(share) == most]
            for most in (self.crashes, self.failures)
        ]
        return {tuple(map(Budget, *both)) for both in itertools.product(*shares)}


class Shipped(NamedTuple):
    """An Install with the segments that it speaks of: what the log has up to its position."""

    install: Install
    items: tuple[Item, ...]


class Host:
    """What surrounds one replica: entries that are not durable yet, the disk, and what was said in this action."""

    def __init__(self) -> None:
        self.settings = SETTINGS
        self.boot_id = 1
        self.sequence = self.durable_sequence = 0
        self.journal_open, self.disk_hangs = True, False
        self.read_round = 1
        self.patience = Patience(SETTINGS, {})
        self.links: dict[Any, Any] = {}
        self.mute = MutePeers(self)
        self.pending: list[tuple[int, JournalEntry]] = []
        self.disk: Checkpoint = EMPTY_CHECKPOINT
        self.disk_below: tuple[Item, ...] = ()
        self.waiting: list[tuple[int, GroupMessage]] = []

    def journal(self, _group: object, entry: JournalEntry) -> int:
        self.sequence += 1
        self.pending.append((self.sequence, entry))
        return self.sequence

    def send(self, _address: object, message: GroupMessage, after_sequence: int) -> None:
        if isinstance(message, Ack):
            message = message._replace(commit=START)
        if isinstance(message, RequestVote | Vote | Ack) and (after_sequence, message) not in self.waiting:
            self.waiting.append((after_sequence, message))

    def has_durable(self, position: Position) -> bool:
        log = ReplicaLog()
        log.load(self.disk.log)
        return log.contains(position)

    def leaving(self) -> list[GroupMessage]:
        sent = [message for after, message in self.waiting if after <= self.durable_sequence]
        self.waiting = [(after, message) for after, message in self.waiting if after > self.durable_sequence]
        return sent

    def nothing(self, *_arguments: object) -> None:
        return None

    tell = wake = flush_later = ask_round = resigned = members_changed = nothing

    def may_stand(self, _group: object) -> bool:
        return True


class Explored(Group):
    """The real machine without what only delays elections and changes.

    Segments hold what its log has not in memory: `below` is that, and `below_before` what it was until an adoption is
    durable.
    """

    below: tuple[Item, ...] = ()
    below_before: tuple[Item, ...] = ()
    shipped_items: tuple[Item, ...] = ()

    def receive(self, message: GroupMessage | Shipped, boot_id: int, now_ms: int) -> None:
        if isinstance(message, Shipped):
            message, self.shipped_items = message
        super().receive(message, boot_id, now_ms)
        self.shipped_items = ()

    def begin_adoption(self, adoption: Adoption, term: int, vote: Voter | None) -> None:
        self.below_before, self.below = self.below, self.shipped_items
        super().begin_adoption(adoption, term, vote)

    def undo(self) -> None:
        if self.adopting is not None:
            self.shipped_items, self.below = self.below, self.below_before
        super().undo()

    def reopen(self) -> None:
        super().reopen()
        self.shipped_items = ()

    @property
    def all_items(self) -> tuple[Item, ...]:
        return (*self.below, *self.log.items)

    def _needs_pre_vote(self, _reason: Reason) -> bool:
        return False

    def _protects_leader(self, _message: RequestVote, _now_ms: int) -> bool:
        return False

    def is_heard(self, _voter: Voter, _now_ms: int) -> bool:
        return True

    def may_answer(self, _voter: Voter) -> bool:
        return True

    def wake_in(self, _milliseconds: int, _now_ms: int) -> None:
        return None

    def answer(self) -> None:
        """The end of a turn."""
        if self.role is not Role.LEADER:
            self.flush_follower()

    def _go_on(self, _now_ms: int) -> None:
        """A change begins and ends when the explorer says so: at any time."""

    def _finish_change(self, _config: Config, _now_ms: int) -> None:
        return None


_SLOTS = [name for layer in Group.__mro__ for name in getattr(layer, "__slots__", ())]


def fork(group: Explored) -> Explored:
    """A copy that shares nothing that changes."""
    new = object.__new__(type(group))
    for name in _SLOTS:
        if hasattr(group, name):  # some are there only from the first leadership on
            setattr(new, name, getattr(group, name))
    new.__dict__.update(group.__dict__)
    host = object.__new__(Host)
    host.__dict__.update(group.host.__dict__)
    host.pending, host.waiting = list(host.pending), list(host.waiting)
    new.host = host
    log = object.__new__(type(group.log))
    for name in log.__slots__:
        setattr(log, name, getattr(group.log, name))
    log.items, log.markers = list(log.items), list(log.markers)
    new.log = log
    new.undurable = deque(group.undurable)
    new.granted = set(group.granted)
    new.peers = {voter: _copy_peer(peer) for voter, peer in group.peers.items()}
    new.rows = [new.peers[peer.voter] for peer in group.rows]
    if group.steady is not None:
        new.steady = copy.copy(group.steady)
        new.steady.peers = list(new.rows)
    return new


def _copy_peer(peer: Peer) -> Peer:
    new = Peer(peer.voter, START)
    new.match = peer.match
    return new


def normalise(group: Explored) -> None:
    """What a leader would send next is no part of the state: everything it may send can arrive anyhow."""
    for peer in group.rows:
        peer.state, peer.awaiting, peer.inflight_bytes = PeerState.PROBE, False, 0
        peer.inflight = deque()
        peer.next, peer.prev, peer.told, peer.known = 0, START, -1, -1
    if group.adopting is None:
        group.below_before = ()
    if group.role is not Role.CANDIDATE:
        group.granted = set()
    if group.leader is None or group.is_leader:
        group.matched, group.ack_due = START, False  # whoever is followed next begins anew


def persist(group: Explored) -> None:
    """The next entry of the journal becomes durable."""
    host = group.host
    sequence, entry = host.pending.pop(0)
    host.disk = replay(host.disk, [entry], group.log.creation_config)
    if isinstance(entry, AdoptEntry):
        host.disk_below = group.below
    host.durable_sequence = sequence
    group.became_durable(sequence, 0)


def ask(voter: Explored, request: RequestVote) -> Vote | None:
    """A request, and the vote if it was granted. The voter's journal becomes durable first, unless the answer does
    not wait for it.
    """
    voter.receive(request, 1, 0)
    host = voter.host
    votes = [(after, message) for after, message in host.waiting if isinstance(message, Vote) and message.granted]
    host.waiting = [(after, message) for after, message in host.waiting if not isinstance(message, Vote)]
    while votes and host.pending and host.durable_sequence < votes[0][0]:
        persist(voter)
    return votes[0][1] if votes else None


def take_checkpoint(group: Explored) -> None:
    """What the disk has, a cut that is under way with its term, and how much of it is known to be committed.

    Not compared while an adoption is under way: what became durable of the old log since then may be left out, because
    nobody was told so.
    """
    host, made = group.host, group.checkpoint()
    under_way = [entry for _, entry in host.pending if isinstance(entry, VoteEntry | CutEntry)]
    expected = replay(host.disk, under_way, group.log.creation_config)
    if group.adopting is None:
        assert made == expected._replace(commit_hint=group.commit), (made, expected)
    host.disk = made


def fail_journal(group: Explored) -> None:
    """Nothing that is queued becomes durable; the journal is open again at once.

    Between, the log is what is durable, but for a cut, which has happened in memory.
    """
    host = group.host
    is_cut = any(isinstance(entry, CutEntry) for _, entry in host.pending)
    host.pending = []
    host.waiting = [(after, message) for after, message in host.waiting if after <= host.durable_sequence]
    host.journal_open = False
    group.undo()
    found, on_disk = group.all_items, (*host.disk_below, *host.disk.log.items)
    assert found == (on_disk[: len(found)] if is_cut else on_disk), (found, host.disk)
    host.journal_open = True
    group.reopen()


def restart(group: Explored, creation_config: Config | None) -> Explored:
    """The process is another one, and knows what the disk has."""
    host = Host()
    host.disk, host.disk_below = group.host.disk, group.host.disk_below
    core = group.own_core
    new = type(group)(host, group.group, group.me, creation_config, host.disk, {}, core)
    new.below = host.disk_below
    return new


class Names:
    """Replicas by other names, under which equal states are equal."""

    def __init__(self, names: dict[Voter, int]) -> None:
        self.of: dict[Voter | None, int] = {None: -1, **names}
        self._configs: dict[Config | None, tuple[Any, ...]] = {None: ()}

    def config(self, config: Config | None) -> tuple[Any, ...]:
        found = self._configs.get(config)
        if found is None:
            assert config is not None
            sets = (config.old, config.new)
            found = self._configs[config] = tuple(tuple(sorted(self.of[voter] for voter in some)) for some in sets)
        return found

    def item(self, item: Item) -> tuple[Any, ...]:
        return (*item[:2], self.config(item.config) if isinstance(item, Marker) else ())

    def items(self, items: tuple[Item, ...] | list[Item]) -> tuple[Any, ...]:
        return tuple([self.item(item) for item in items])

    def message(self, message: GroupMessage) -> tuple[Any, ...]:
        rest = tuple([part if isinstance(part, int | tuple) else 0 for part in message[3:]])
        return (type(message).__name__, self.of[message.source], self.of[message.target], rest)

    def entry(self, entry: JournalEntry) -> tuple[Any, ...]:
        fields: list[Any] = [type(entry).__name__]
        for part in entry[1:]:
            if part is None or isinstance(part, Voter):
                fields.append(self.of[part])
            elif isinstance(part, Marker):
                fields.append(self.item(part))
            elif isinstance(part, Position):
                fields.append(part)
            else:
                fields.append(tuple([batch[:2] for batch in part]) if isinstance(part, tuple) else part)
        return tuple(fields)

    def replica(self, group: Explored) -> tuple[Any, ...]:
        """All that matters for what can follow."""
        host, steady, of = group.host, group.steady, self.of
        floor = host.durable_sequence
        pending = tuple([self.entry(entry) for _, entry in host.pending])
        waiting = tuple(sorted([(after - floor, self.message(message)) for after, message in host.waiting]))
        matches = tuple(sorted([(of[peer.voter], peer.match) for peer in group.rows]))
        armed = None if steady is None else (steady.leader_commit_offset, steady.durable_offset)
        places = (group.log.last, group.durable, group.commit, group.matched, group.ack_due)
        disk = (host.disk.term, of[host.disk.voted_for], self.items(host.disk.log.items), host.disk.commit_hint)
        ids = (of[group.me], group.term, of[group.vote], group.role.value, of[group.leader])
        granted = tuple(sorted([of[voter] for voter in group.granted]))
        hard = (group.journalled_term, of[group.journalled_vote], group.must_reopen, group.binding_floor > floor)
        return (ids, granted, hard, places, self.items(group.log.items), pending, waiting, matches, armed, disk,
                self._change(group), self._segments(group))  # fmt: skip

    def _segments(self, group: Explored) -> tuple[Any, ...]:
        """Of what was shipped; nothing where nothing was."""
        adopting = group.adopting
        if not group.below and not group.host.disk_below and adopting is None:
            return ()
        before = adopting and (adopting.position, adopting.durable, self.items(adopting.log.items))
        return tuple(map(self.items, (group.below, group.below_before, group.host.disk_below))), before

    def _change(self, group: Explored) -> tuple[Any, ...]:
        """Of a change of voters; nothing where there is none."""
        if group.target is None and not group.aborting:
            return (group.is_leader and group.is_ready and bool(group.config and group.config.is_joint),)
        target = tuple(sorted([self.of[voter] for voter in group.target or ()]))
        return (target, group.aborting, group.is_ready, group.reason is Reason.OWN_NEXT_TERM)


class Outcome(NamedTuple):
    """What one action made of a replica: the number of its state, and of the messages that left it."""

    after: int
    sent: tuple[int, ...]
    vote: int = -1
    """The vote that answers a request, if it was granted."""
    wrong: str = ""
    """An assertion of the machine, or an invariant, that does not hold."""


class Led(NamedTuple):
    """A leadership: whose, and all of its log that may be on its way."""

    term: int
    leader: int
    items: tuple[Item, ...]
    commit: Position

    def timeout_now(self, voters: list[Voter], target: Voter) -> TimeoutNow:
        return TimeoutNow(GROUP, voters[self.leader], target, self.term, self.commit)


class Local:
    """A replica in one of its states, and what is known of it."""

    __slots__ = (
        "budget",
        "committed",
        "group",
        "index",
        "led",
        "log",
        "moves",
        "named",
        "number",
        "profile",
        "received",
        "shape",
        "taken",
        "term",
    )

    def __init__(self, number: int, index: int, group: Explored, budget: Budget) -> None:
        self.budget = budget
        self.number = number
        self.index = index
        self.group = group
        self.term = group.term
        self.named: list[int] = []
        """The number of its key, for each naming of the replicas."""
        self.shape = 0
        """The number of its key without names."""
        self.led = self.log = self.committed = self.profile = -1
        self.moves: list[tuple[Any, int, Outcome]] | None = None
        self.received: dict[int, Outcome | None] = {}
        self.taken: dict[int, list[tuple[Any, Outcome]]] = {}
        """What it can be sent of each leadership."""
