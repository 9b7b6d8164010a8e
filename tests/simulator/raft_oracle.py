"""What must hold in a simulated cluster, checked after each event from what the cores gave out.

The names are those of raft-rules 9: I1 one leadership per term; I2 a leader holds, markers included, what was committed
in lower terms; I3 log matching on positions, over all logs and all that was ever sent; I4 a committed item never
differs; I5 what was shown never leaves a replica that keeps its disk; I6 no cut below commit; I7 an ack names a
position that is durable here and that its leader's term has; I8 a batch follows the marker of its epoch; I9 (term,
vote) never goes back behind what was sent. Beyond these: what is committed is on the disks of a quorum (`quorum`), what
a client was told to be committed stays (`acked`), and a read by read index shows at least what was acknowledged before
it (`linear`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.simulator.raft_disk import Mirror
from tpc_broker.raft.items import START, GroupId, Item, Marker, Position, Voter
from tpc_broker.raft.messages import Ack, AppendEntries, Message, RequestVote, Vote

DurableMirrors = Callable[[GroupId], Iterable[tuple[Voter, Mirror]]]


class BrokenInvariantError(AssertionError):
    """Which one, and how."""


class GroupHistory:
    """Everything that ever happened to one group, on all of its replicas."""

    def __init__(self) -> None:
        self.leaders: dict[int, tuple[Voter, int]] = {}
        self.votes: dict[tuple[Voter, int], Voter] = {}
        self.terms_sent: dict[Voter, int] = {}
        self.before: dict[Position, tuple[Item, Position]] = {}
        self.chain: dict[Position, Item] = {}
        self.committed = START
        self.shown: dict[Voter, Position] = {}
        self.commit_in_this_life: dict[Voter, Position] = {}
        self.acked: dict[Position, object] = {}
        self.acked_end = START


class Oracle:
    """Judges. Raises BrokenInvariantError with the name of what is broken."""

    def __init__(self, durable_mirrors: DurableMirrors) -> None:
        self.groups: dict[GroupId, GroupHistory] = {}
        self._durable_mirrors = durable_mirrors
        self.commits = self.acks = self.reads = self.elections = 0

    def history(self, group: GroupId) -> GroupHistory:
        return self.groups.setdefault(group, GroupHistory())

    # -- logs ------------------------------------------------------------------------------------------------------

    def item(self, group: GroupId, before: Position, item: Item, where: str) -> None:
        """An item stands behind a position, in a log or in a message."""
        known = self.history(group).before.setdefault(item.position, (item, before))
        if known != (item, before):
            raise BrokenInvariantError(f"I3 {where}: {item} behind {before}, elsewhere {known[0]} behind {known[1]}")
        if not isinstance(item, Marker) and before.epoch != item.epoch:
            raise BrokenInvariantError(f"I8 {where}: {item} behind {before}")

    def cut(self, group: GroupId, me: Voter, commit: Position, position: Position) -> None:
        """A replica removes what is behind a position."""
        if position < commit:
            raise BrokenInvariantError(f"I6 {me} of {group} cuts at {position}, below its commit {commit}")
        self._keeps_shown(group, me, position)

    def _keeps_shown(self, group: GroupId, me: Voter, last: Position) -> None:
        shown = self.history(group).shown.get(me, START)
        if last < shown:
            raise BrokenInvariantError(f"I5 {me} of {group} has shown {shown} and ends at {last}")

    # -- elections -------------------------------------------------------------------------------------------------

    def leads(self, group: GroupId, me: Voter, life: int, term: int, mirror: Mirror) -> None:
        """A replica says that it leads a term."""
        history = self.history(group)
        first = history.leaders.setdefault(term, (me, life))
        if first != (me, life):
            raise BrokenInvariantError(f"I1 {me} in life {life} leads term {term} of {group}, so did {first}")
        self.elections += 1
        lower = next((position for position in reversed(history.chain) if position.epoch < term), START)
        if not mirror.contains(lower):
            raise BrokenInvariantError(f"I2 {me} leads term {term} of {group} without {lower}: {mirror.items[-3:]}")

    def sent(self, message: Message, durable: Mirror | None) -> None:
        """A message leaves its sender; `durable` is what the sender's disk has of the group."""
        if isinstance(message, RequestVote) and not message.pre_vote:
            self._binds(message.group, message.source, message.term, message.source)
        elif isinstance(message, Vote) and message.granted and not message.pre_vote:
            self._binds(message.group, message.source, message.term, message.target)
        elif isinstance(message, Ack):
            self._acks(message, durable)
        elif isinstance(message, AppendEntries):
            before = message.prev
            for item in message.items:
                self.item(message.group, before, item, f"sent by {message.source}")
                before = item.position

    def _binds(self, group: GroupId, voter: Voter, term: int, candidate: Voter) -> None:
        history = self.history(group)
        if history.votes.setdefault((voter, term), candidate) != candidate:
            raise BrokenInvariantError(f"I9 {voter} of {group} votes twice in term {term}")
        history.terms_sent[voter] = max(term, history.terms_sent.get(voter, 0))

    def _acks(self, ack: Ack, durable: Mirror | None) -> None:
        history = self.history(ack.group)
        # Only a position of the term's own epoch counts for it; any other answers a probe and promises nothing.
        history.terms_sent[ack.source] = max(ack.position.epoch, history.terms_sent.get(ack.source, 0))
        if durable is None or not durable.contains(ack.position):
            raise BrokenInvariantError(f"I7 {ack} while on the disk {durable.items[-3:] if durable else 'nothing'}")
        if ack.position not in history.before and ack.position != START:
            raise BrokenInvariantError(f"I7 {ack}: nobody has that position")

    def restarts(self, group: GroupId, me: Voter, mirror: Mirror) -> None:
        """A replica comes back with what its disk has."""
        history = self.history(group)
        history.commit_in_this_life.pop(me, None)

        sent = history.terms_sent.get(me, 0)
        if mirror.term < sent:
            raise BrokenInvariantError(f"I9 {me} of {group} is back in term {mirror.term}, it has sent {sent}")
        for (voter, term), candidate in history.votes.items():
            if voter == me and term == mirror.term and mirror.voted_for != candidate:
                raise BrokenInvariantError(f"I9 {me} of {group} forgot in term {term} its vote for {candidate}")
        shown = history.shown.get(me, START)
        if not mirror.contains(shown):
            raise BrokenInvariantError(f"I5 {me} of {group} has shown {shown} and is back with {mirror.items[-3:]}")

    # -- commits ---------------------------------------------------------------------------------------------------

    def commits_upto(self, group: GroupId, me: Voter, position: Position, mirror: Mirror) -> None:
        """A replica's commit position rises: readers see what is below."""
        history = self.history(group)
        if not mirror.contains(position):
            raise BrokenInvariantError(f"I4 {me} of {group} commits {position}, which it does not have")
        if position > history.committed:
            self._extend(history, group, me, position, mirror)
        elif position != START and position not in history.chain:
            raise BrokenInvariantError(f"I4 {me} of {group} commits {position}, which is not what was committed")
        before = history.commit_in_this_life.get(me, START)
        if position < before:
            raise BrokenInvariantError(f"I5 {me} of {group} commits {position} below {before}")
        history.commit_in_this_life[me] = position
        history.shown[me] = max(position, history.shown.get(me, START))
        self.commits += 1

    def _extend(self, history: GroupHistory, group: GroupId, me: Voter, position: Position, mirror: Mirror) -> None:
        if not mirror.contains(history.committed):
            raise BrokenInvariantError(f"I4 {me} of {group} commits {position} without {history.committed}")
        new = mirror.items[mirror.index_of(history.committed) + 1 : mirror.index_of(position) + 1]
        marker = mirror.marker(position.epoch)
        if marker is None:
            raise BrokenInvariantError(f"I8 {me} of {group} commits {position} without the marker of its epoch")
        has = {voter for voter, durable in self._durable_mirrors(group) if durable.contains(position)}
        if not marker.config.has_quorum(has):
            raise BrokenInvariantError(f"quorum {group}: {position} committed; only {has} of {marker.config} have it")
        history.chain.update((item.position, item) for item in new)
        history.committed = position

    def acknowledges(self, group: GroupId, position: Position, payload: object) -> None:
        """A client is told that its batch, which ends at `position`, is committed."""
        history = self.history(group)
        found = history.chain.get(position)
        if found is None or isinstance(found, Marker) or found.payload != payload:
            raise BrokenInvariantError(f"acked {group}: {payload} at {position}, committed there: {found}")
        history.acked[position] = payload
        history.acked_end = max(history.acked_end, position)
        self.acks += 1

    def read(self, group: GroupId, floor: Position, offset: int) -> None:
        """A read that began when everything up to `floor` was acknowledged is answered from what is below `offset`."""
        if offset < floor.offset:
            raise BrokenInvariantError(f"linear {group}: a read shows {offset}, {floor} was acknowledged before it")
        self.reads += 1

    def at_the_end(self, group: GroupId, mirrors: Iterable[tuple[Voter, Mirror]]) -> None:
        """Everything healed: every voter has everything that was acknowledged."""
        history = self.history(group)
        for me, mirror in mirrors:
            for position, payload in history.acked.items():
                index = mirror.index_of(position)
                if index < 0 or getattr(mirror.items[index], "payload", None) != payload:
                    raise BrokenInvariantError(f"acked {group}: {me} lost {payload} at {position}")
