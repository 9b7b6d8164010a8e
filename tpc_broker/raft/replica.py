"""What every layer of a group's machine stands on: the state of one replica, and how it reaches journal, links and
time.

The layers are `elections`, `followers`, `leaders`, `membership`; `Group` is all of them. Each method that is a rule
of its own bears its number.

State (raft-rules 1)
    term, vote            in memory; `journalled_term` and `hard_sequence` say what of it stands in the journal, and
    where log                   undurable items included
    durable               D: the longest prefix of the log that the journal has durable
    commit                a position; never above D, never falls while the process lives
    matched               how much of the log is known to be the same as the current leader's
    steady                the armed machine, or None

Whatever binds waits for its sequence of the journal: requests, votes and acks are sent with `after_sequence`, and
nothing of the kind leaves before the first entries after a failure of the journal are durable (`binding_floor`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol
from zlib import crc32

from tpc_broker.raft.items import START, Address, Position
from tpc_broker.raft.journal import CutEntry, MarkerEntry, VoteEntry
from tpc_broker.raft.links import jitter
from tpc_broker.raft.log import ReplicaLog
from tpc_broker.raft.output import FOLLOWER, LEADER, Committed, LogCut, Role, RoleChanged
from tpc_broker.raft.steady import NONE, ON_DURABLE, REPLICATE, Outcome, Steady, SteadyPeer, SteadyRole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpc_broker.model import CoreId, NodeId
    from tpc_broker.raft.items import Config, GroupId, Marker, Voter
    from tpc_broker.raft.journal import Checkpoint, JournalEntry
    from tpc_broker.raft.links import Link
    from tpc_broker.raft.messages import GroupMessage
    from tpc_broker.raft.output import Event
    from tpc_broker.raft.patience import Patience
    from tpc_broker.raft.settings import Settings


class Mute(Protocol):
    """Peers that are heard and take nothing, of all groups of a core (`mute_peers`)."""

    def takes_nothing(self, address: Address, group: GroupId, now_ms: int) -> None:
        """It was asked in vain, or what was tried was."""
        ...

    def may_try(self, address: Address, group: GroupId) -> bool:
        """It has answered, and lacks still what it lacked: whether it is sent some of it now."""
        ...

    def takes_again(self, address: Address) -> None:
        """It has got somewhere: all of its groups go on."""
        ...


class Host(Protocol):
    """What a group needs of its core. `RaftCore` is one; the explorer has a smaller one."""

    settings: Settings
    boot_id: int
    durable_sequence: int
    journal_open: bool
    read_round: int
    patience: Patience

    @property
    def mute(self) -> Mute: ...

    @property
    def disk_hangs(self) -> bool:
        """Nothing is to be led here."""
        ...

    def journal(self, group: GroupId, entry: JournalEntry) -> int:
        """Puts an entry behind all others; its sequence number."""
        ...

    links: dict[Address, Link]

    def send(self, address: Address, message: GroupMessage, after_sequence: int) -> None: ...

    def tell(self, event: Event) -> None: ...

    def wake(self, group: GroupId, deadline_ms: int) -> None:
        """`on_deadline` is to be called then; an earlier call replaces a later one and the other way round."""
        ...

    def flush_later(self, group: GroupId) -> None:
        """`flush` is to be called at the end of the turn."""
        ...

    def may_stand(self, group: GroupId) -> bool:
        """Whether it may stand for election now; if not, `turn_has_come` is to be called when it may."""
        ...

    def ask_round(self, group: GroupId, term: int) -> None:
        """The turn's round of reads is to ask about this group."""
        ...

    def resigned(self, group: GroupId, term: int) -> None:
        """Heartbeats are to repeat it."""
        ...

    def members_changed(self, group: GroupId) -> None:
        """The replicas that this one knows of are others now."""
        ...


RESENDS_OF_MUTE: Final = 2
"""With `resend_ms`, and twice as long the second time: after a second."""


class Peer(SteadyPeer):
    """A row of the leader's table, with what only the unsteady side needs.

    prev        PROBE: where the next message begins
    upto        PROBE: where what was sent last ends, and CATCH_UP: what was sent before; `prev`, if nothing was
    awaiting    PROBE: an answer is due. CATCH_UP, INSTALL: the driver is at it, or the Install is under way
    sent_ms     when something was last sent that wants an answer
    waits_ms    REPLICATE: since when what is under way has brought nothing
    resent      how often something was sent again since it last got somewhere
    asks        PROBE: the next message is a question only, for the last one with items was not answered
    lacks       REPLICATE: where the log ended when it became so; below that it is not in sync
    round_end   where the log ended when its present round of catching up began (thesis 4.2.1), at `round_began_ms`
    round_ms    how long the last whole round took; None before the first
    """

    __slots__ = (
        "asks", "awaiting", "install", "lacks", "link", "prev", "resent", "round_began_ms", "round_end", "round_ms",
        "sent_ms", "upto", "voter", "waits_ms",
    )  # fmt: skip

    def __init__(self, voter: Voter, prev: Position) -> None:
        super().__init__()
        self.voter = voter
        self.prev = self.upto = prev
        self.awaiting = self.asks = False
        self.lacks = self.sent_ms = self.waits_ms = self.resent = 0
        self.install: Position | None = None
        self.link: Link | None = None
        self.round_end: int | None = None
        self.round_began_ms = 0
        self.round_ms: int | None = None

    @property
    def is_mute(self) -> bool:
        """It is heard, perhaps, and takes nothing."""
        return self.resent >= RESENDS_OF_MUTE

    @property
    def is_in_sync(self) -> bool:
        """Whether it has had everything since its way was found: the last moments may be under way to it."""
        return self.state is REPLICATE and self.match >= self.lacks


@dataclass(frozen=True)
class PeerStatistics:
    voter: Voter
    state: str
    match: int
    next: int
    inflight_messages: int
    inflight_bytes: int


@dataclass(frozen=True)
class GroupStatistics:
    """What a replica says of itself."""

    role: Role
    term: int
    vote: Voter | None
    leader: Voter | None
    last: Position
    durable: Position
    commit: Position
    is_armed: bool
    is_voter: bool
    elections_started: int
    elections_won: int
    cuts: int
    rejects: int
    peers: tuple[PeerStatistics, ...]


class Replica:
    """State, journal, term and durability of one replica.

    All layers have slots: a core has thousands of replicas, and the dictionary of one with 60 attributes takes 5 kB, in
    which every call of a method would look first.
    """

    __slots__ = (
        "ack_due",
        "addresses",
        "binding_floor",
        "commit",
        "cores",
        "cuts",
        "deadline_ms",
        "durable",
        "elections_started",
        "elections_won",
        "group",
        "group_hash",
        "hard_sequence",
        "host",
        "journalled_term",
        "journalled_vote",
        "leader",
        "leader_boot_id",
        "learners",
        "leaving",
        "links",
        "log",
        "matched",
        "me",
        "must_reopen",
        "own_core",
        "peers",
        "rejects",
        "resigned_term",
        "role",
        "rows",
        "settings",
        "steady",
        "term",
        "undurable",
        "vote",
        "yields",
    )

    def __init__(
        self,
        host: Host,
        group: GroupId,
        me: Voter,
        creation_config: Config | None,
        checkpoint: Checkpoint | None,
        cores: Mapping[NodeId, CoreId],
        core: CoreId,
    ) -> None:
        self.host = host
        self.settings = host.settings
        self.group = group
        self.group_hash = crc32(repr(group).encode())
        self.me = me
        self.cores = dict(cores)
        self.own_core = core
        self.addresses: dict[Voter, Address] = {}
        self.links: dict[Voter, Link] = {}
        self.log = ReplicaLog(creation_config)
        self.term = 0
        self.vote: Voter | None = None
        self.commit = START
        self.leaving = False
        """On the way to another core of this node: takes nothing, says nothing."""
        self.yields = False
        """It would be a bad leader now, and stands when the others have had their turn."""
        if checkpoint is not None:
            self.term, self.vote, self.commit, image = checkpoint
            self.log.load(image)
        assert self.log.last.epoch <= self.term, "the term of every item is in the journal in front of it"
        self.durable = self.log.last
        self.journalled_term = self.term
        self.journalled_vote = self.vote
        self.hard_sequence = 0
        self.binding_floor = 0
        self.must_reopen = False
        self.undurable: deque[tuple[int, Position]] = deque()
        self.role = FOLLOWER
        self.leader: Voter | None = None
        self.leader_boot_id: int | None = None
        self.resigned_term = 0
        self.matched = START
        self.ack_due = False
        self.steady: Steady | None = None
        self.peers: dict[Voter, Peer] = {}
        self.rows: list[Peer] = []
        self.learners: frozenset[Voter] = frozenset()
        self.deadline_ms: int | None = None
        self.elections_started = self.elections_won = self.cuts = self.rejects = 0
        self.init_layers()

    def init_layers(self) -> None:
        """The state of the layers above, each of which adds its own."""

    # What it is.

    @property
    def config(self) -> Config | None:
        """The configuration in force: that of the last marker of the log, committed or not."""
        return self.log.config

    @property
    def is_voter(self) -> bool:
        config = self.log.config
        return config is not None and self.me in config.voters

    @property
    def votes_alone(self) -> bool:
        """Whether it needs nobody to be elected and to commit."""
        return self.config is not None and self.config.voters == {self.me}

    @property
    def is_leader(self) -> bool:
        return self.role is LEADER

    @property
    def high_watermark(self) -> int:
        return self.commit.offset

    def others(self) -> list[Voter]:
        """The replicas that this one knows of beside itself, in an order that is the same everywhere."""
        known = set(self.learners)
        if self.config is not None:
            known |= self.config.voters
        known.discard(self.me)
        return sorted(known)

    def known(self) -> list[Voter]:
        """The others, and a leader that the own log does not name yet."""
        others = self.others()
        unnamed = self.leader is not None and self.leader != self.me and self.leader not in others
        return [*others, self.leader] if unnamed and self.leader is not None else others

    def statistics(self) -> GroupStatistics:
        rows = tuple(
            PeerStatistics(p.voter, p.state.name, p.match, p.next, len(p.inflight), p.inflight_bytes) for p in self.rows
        )
        ids = (self.role, self.term, self.vote, self.leader)
        places = (self.log.last, self.durable, self.commit)
        counts = (self.elections_started, self.elections_won, self.cuts, self.rejects)
        return GroupStatistics(*ids, *places, self.steady is not None, self.is_voter, *counts, rows)

    # The world around it.

    def send(self, message: GroupMessage, after_sequence: int = 0) -> None:
        address = self.addresses.get(message.target) or self.address_of(message.target)
        self.host.send(address, message, after_sequence)

    def address_of(self, voter: Voter) -> Address:
        """The core that has this replica: of the own number, where nothing else is said."""
        found = self.addresses.get(voter)
        if found is None:
            core = self.cores.get(voter.node, self.own_core)
            found = self.addresses[voter] = Address(voter.node, core)
        return found

    def after_reopening(self) -> int:
        """raft-rules 4: what binds waits for the first entries of a reopened journal."""
        return self.binding_floor if self.binding_floor > self.host.durable_sequence else 0

    def link_to(self, voter: Voter) -> Link | None:
        link = self.links.get(voter)
        if link is None:
            link = self.host.links.get(self.address_of(voter))
            if link is not None:
                self.links[voter] = link
        return link

    def is_left_alone(self, peer: Peer) -> bool:
        """It is mute, and is asked now and then (`mute_peers`): nothing else is sent to it, or waits for it."""
        if not peer.is_mute:
            return False
        link = self.link_to(peer.voter)
        return link is not None and self.group in link.mute and link.trying != self.group

    def is_heard(self, voter: Voter, now_ms: int) -> bool:
        link = self.links.get(voter) or self.link_to(voter)
        return voter == self.me or (link is not None and link.is_fresh(now_ms))

    def wake_in(self, milliseconds: int, now_ms: int) -> None:
        self.deadline_ms = now_ms + milliseconds
        self.host.wake(self.group, self.deadline_ms)

    def jitter(self, below: int) -> int:
        return jitter(below, self.host.boot_id, self.group_hash, self.me.node, self.term, self.elections_started)

    def changed_role(self) -> None:
        self.host.tell(RoleChanged(self.group, self.role, self.term, self.leader))

    # Term and vote.

    def journal_hard_state(self) -> int:
        """Writes term and vote, if the journal does not have them yet; the sequence that must be durable for them
        to bind.
        """
        if self.term != self.journalled_term or self.vote != self.journalled_vote:
            self.hard_sequence = self.host.journal(self.group, VoteEntry(self.group, self.term, self.vote))
            self.journalled_term, self.journalled_vote = self.term, self.vote
        return self.hard_sequence

    def journal_term(self) -> None:
        """raft-rules 1: a learned term stands in front of the first cut or item that is made under it."""
        if self.journalled_term < self.term:
            self.journal_hard_state()

    def see_term(self, term: int) -> bool:
        """A higher term: whatever this replica was in its own, it follows now, and has not voted. True if it was
        higher.
        """
        if term <= self.term:
            return False
        self.step_down()
        self.term, self.vote = term, None
        self.leader = None
        self.matched = START
        self.changed_role()
        return True

    def step_down(self) -> None:
        """raft-rules 2: disarms, whatever the role was. Layers above add what ends with a leadership or a campaign."""
        self.steady = None
        self.role = FOLLOWER

    # The log.

    def append_marker(self, marker: Marker) -> None:
        self.journal_term()
        config = self.config
        self.log.append_marker(marker)
        self._queued(self.host.journal(self.group, MarkerEntry(self.group, marker)))
        if marker.config != config:
            self.host.members_changed(self.group)

    def _queued(self, sequence: int) -> None:
        self.undurable.append((sequence, self.log.last))

    def cut(self, position: Position) -> None:
        """raft-rules 3.2: what is behind `position` goes. Never below the commit position."""
        self._check_cut(position)
        self.journal_term()
        self._cut_in_memory(position)
        sequence = self.host.journal(self.group, CutEntry(self.group, position.offset, self._last_epoch_kept(position)))
        self._queued(sequence)

    def _check_cut(self, position: Position) -> None:
        assert position >= self.commit, f"cut at {position} below commit {self.commit}"

    def _last_epoch_kept(self, position: Position) -> int:
        return position.epoch

    def _cut_in_memory(self, position: Position) -> None:
        self.cuts += 1
        self.log.cut(position.offset, self._last_epoch_kept(position))
        self.durable = min(self.durable, position)
        self.undurable = deque((sequence, min(end, position)) for sequence, end in self.undurable)
        self.host.tell(LogCut(self.group, position))
        self.host.members_changed(self.group)

    # Durability.

    def became_durable(self, sequence: int, now_ms: int) -> None:
        """The journal is durable up to `sequence`."""
        undurable, durable = self.undurable, self.durable
        while undurable and undurable[0][0] <= sequence:
            durable = undurable.popleft()[1]
        if durable != self.durable:
            self.durable = durable
            self.durable_moved(now_ms)

    def durable_moved(self, now_ms: int) -> None:
        steady = self.steady
        if steady is None:
            self.ack_due = True
        elif self.durable.epoch == steady.term:
            self.on_outcome(steady.step(ON_DURABLE, self.durable.offset), now_ms)
        if self.ack_due:
            self.host.flush_later(self.group)

    def on_outcome(self, outcome: Outcome, now_ms: int) -> None:
        """What the steady machine asks for."""
        raise NotImplementedError

    # Commit.

    def take_commit(self) -> None:
        """The steady machine's commit offset, as a position. It never falls."""
        steady = self.steady
        if steady is None or steady.commit_offset == NONE:
            return
        self.raise_commit(Position(steady.term, steady.commit_offset))

    def raise_commit(self, position: Position) -> None:
        if position <= self.commit:
            return
        assert position <= self.durable, f"commit {position} above durable {self.durable}"
        self.commit = position
        self.host.tell(Committed(self.group, position))

    # Arming.

    def durable_in(self, term: int) -> int:
        """The durable end within the epoch of `term`, or none: the marker itself must be durable."""
        return self.durable.offset if self.durable.epoch == term else NONE

    def commit_in(self, term: int) -> int:
        return self.commit.offset if self.commit.epoch == term else NONE

    def arm(self, role: SteadyRole, rows: list[Peer], voters_old: int, voters_new: int) -> None:
        """The log has the marker of the own term, and behind it only batches of it."""
        marker = self.log.markers[-1]
        assert marker.epoch == self.term, (marker, self.term)
        self.steady = Steady(
            role,
            self.term,
            marker.start_offset,
            self.log.end_offset,
            self.durable_in(self.term),
            self.commit_in(self.term),
            list[SteadyPeer](rows),
            voters_old,
            voters_new,
            self.settings.inflight_messages_max,
            self.settings.inflight_bytes_max,
        )

    # The journal fails.

    def undo(self) -> None:
        """raft-rules 4: what was not durable is gone, markers too, and this leadership with it."""
        lost = bool(self.undurable) and self.undurable[-1][1] != self.durable
        self.step_down()
        self.leader = None
        self.matched = START
        self.must_reopen = True
        self.ack_due = False
        self.undurable.clear()
        if lost or self.log.last != self.durable:
            self._cut_in_memory(self.durable)
        self.changed_role()

    def reopen(self) -> None:
        """The first entries of the reopened journal: term and vote, then a cut, because the lost bytes may be on
        the disk.
        """
        if not self.must_reopen:
            return
        self.must_reopen = False
        self.journalled_term, self.journalled_vote = 0, None
        self.journal_hard_state()
        self.settle_on_disk()
        self.binding_floor = self.undurable[-1][0]

    def settle_on_disk(self) -> None:
        """What was lost may be on the disk or not: behind this it is the same."""
        entry = CutEntry(self.group, self.durable.offset, self.durable.epoch)
        self._queued(self.host.journal(self.group, entry))
