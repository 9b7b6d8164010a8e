"""The follower: what it does with the items of a leader (raft-rules 3.2-3.4, 5; thesis 3.5, 5, 7).

Theory of operation
-------------------
In the steady state items continue the log and are of the leader's own epoch: the armed machine takes them. All else
comes here: the first items under a new leader, markers, items that are there already, items that are not what the
log has.

An AppendEntries is judged by its `prev`, the position in front of its first item. If the log does not contain it,
the answer says where the largest epoch up to that of `prev` ends, and the leader comes back with an earlier one;
markers make a step as long as an epoch. If it does, items that are contained are passed over, and only an item that
*differs* from the next one cuts. What merely follows behind the last sent item stays: a late or shorter message must
not take back what a later one brought.

The log is known to be the same as the leader's up to `matched`. An ack names the last durable position up to there,
never more: what lies behind may be another leader's. With the marker of the leader's own term in the log, all of it
is the same: then the group is armed.

Commit: only while armed, and as far as is durable. Frames without the marker are dropped, because what is durable
here may differ from what the leader means (raft-rules 3.4).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.raft.elections import Elections
from tpc_broker.raft.items import START, Batch, Item, Position
from tpc_broker.raft.journal import AdoptEntry, AppendEntry
from tpc_broker.raft.messages import Ack, AppendEntries, Install, Reject, RequestVote
from tpc_broker.raft.output import (
    FOLLOWER,
    Adopted,
)
from tpc_broker.raft.steady import (
    ACKNOWLEDGE,
    APPENDED,
    NOT_STEADY,
    ON_RECEIVE,
    SteadyRole,
    follow_commit,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.raft.items import Marker, Voter
    from tpc_broker.raft.log import LogImage


class Adopting(NamedTuple):
    """What was there before an adoption that is not durable yet."""

    position: Position
    log: LogImage
    durable: Position
    undurable: deque[tuple[int, Position]]


class Adoption(NamedTuple):
    """What was shipped, as far as the log has to know."""

    position: Position
    markers: tuple[Marker, ...]
    log_start_offset: int


class Followers(Elections):
    """Items, acks and commits of a replica that follows."""

    __slots__ = ("adopting", "lost_adoption")

    def init_layers(self) -> None:
        super().init_layers()
        self.adopting: Adopting | None = None
        self.lost_adoption: Adoption | None = None
        """While the journal is closed."""

    def on_append(self, message: AppendEntries, boot_id: int, now_ms: int) -> None:
        """`boot_id`: the start of the leader's core from which the message came."""
        if not self._follows(message.term, message):
            return
        self._accept_leader(message, boot_id)
        if self.steady is not None and self._is_steady(message):
            return
        self.steady = None
        self._take(message)
        self._arm_follower(message.commit)
        self.host.flush_later(self.group)
        self._rests_or_stands(now_ms)

    def _rests_or_stands(self, now_ms: int) -> None:
        """A fresh leader ends all waiting. A late message of an earlier start of its core brings none, but it may have
        made a voter of a replica that could not stand before: nobody else comes to wake it.
        """
        if self._leader_is_fresh(now_ms):
            self.deadline_ms = None
        elif self.deadline_ms is None:
            self.schedule_campaign(now_ms)

    def _follows(self, term: int, message: AppendEntries | Install) -> bool:
        """The term of a leader's message: an older one is told that it is over, a newer one is followed."""
        if term < self.term:
            end = self.log.largest_end_upto(self.log.last.epoch)
            prev = message.prev if isinstance(message, AppendEntries) else message.position
            self.send(Reject(self.group, self.me, message.source, self.term, prev, end))
            return False
        self.see_term(term)
        assert not self.is_leader, f"two leaders of term {term}: {message.source} and {self.me}"
        return True

    def _accept_leader(self, message: AppendEntries | Install, boot_id: int) -> None:
        if self.leader == message.source and self.role is FOLLOWER:
            self.leader_boot_id = boot_id
            return
        if self.role is not FOLLOWER:
            self.step_down()
            self.own_term_failed()
        if self.leader != message.source:
            self.matched = START
            self.ack_due = False
        self.leader = message.source
        self.leader_boot_id = boot_id
        self.changed_role()
        if message.source not in self.addresses or self.config is None or message.source not in self.config.voters:
            self.host.members_changed(self.group)

    def _is_steady(self, message: AppendEntries) -> bool:
        """Gives the message to the armed machine. False: it is not steady, and has changed nothing."""
        steady = self.steady
        assert steady is not None
        items, prev = message.items, message.prev
        if items and not self._are_batches_of(items, message.term, prev.offset):
            return False
        end_offset = items[-1].end_offset if items else prev.offset
        outcome = steady.step(ON_RECEIVE, message.term, *prev, end_offset, *message.commit)
        if outcome is NOT_STEADY:
            return False
        if outcome is APPENDED:
            self._append_batches(items)
        self.matched = self.log.last
        self.take_commit()
        if outcome is ACKNOWLEDGE:
            self.ack_due = True
            self.host.flush_later(self.group)
        return True

    def _are_batches_of(self, items: Sequence[Item], term: int, offset: int) -> bool:
        """All of them batches of this term, without a gap. C compares the same fields of the batches' headers."""
        for item in items:
            if item.epoch != term or not isinstance(item, Batch) or item.base_offset != offset:
                return False
            offset = item.end_offset
        return True

    # Not steady.

    def _take(self, message: AppendEntries) -> None:
        if not self._contains(message.prev):
            self.rejects += 1
            end = self.log.largest_end_upto(message.prev.epoch)
            self.send(Reject(self.group, self.me, message.source, self.term, message.prev, end))
            return
        at, new = self._first_difference(message)
        if new:
            if self._must_cut(at, message):
                self.cut(at)
            at = self._append_items(at, new)
        self.matched = max(self.matched, at)
        self.ack_due = self.ack_due or self.durable >= self.matched

    def _contains(self, position: Position) -> bool:
        """raft-rules 0: by the markers of the own log, never by an offset alone."""
        return self.log.contains(position)

    def _has(self, item: Item) -> bool:
        """The item is in the log. Below the first marker that is kept, all is committed, and so is in the
        leader's log.
        """
        return self._contains(item.position) or self.log.is_below_markers(item.position)

    def _first_difference(self, message: AppendEntries) -> tuple[Position, Sequence[Item]]:
        """raft-rules 3.2: passes over what the log has. The position reached, and the items from the first that it has
        not.
        """
        at = message.prev
        for index, item in enumerate(message.items):
            if not self._has(item):
                return at, message.items[index:]
            at = item.position
        return at, ()

    def _must_cut(self, at: Position, _message: AppendEntries) -> bool:
        """Something else than the first new item follows behind `at`."""
        return at != self.log.last

    def _append_items(self, at: Position, items: Sequence[Item]) -> Position:
        """Appends in order, as runs of batches between markers; stops at what cannot follow."""
        index = 0
        while index < len(items):
            item = items[index]
            if isinstance(item, Batch):
                run = index
                while run < len(items) and isinstance(items[run], Batch) and items[run].epoch == item.epoch:
                    run += 1
                if not self._may_append_batches(item):
                    return at
                self._append_batches(items[index:run])
                index = run
            else:
                if item.epoch <= self.log.last.epoch or item.start_offset != self.log.end_offset:
                    return at
                self.append_marker(item)
                index += 1
            at = self.log.last
        return at

    def _may_append_batches(self, first: Batch) -> bool:
        """raft-rules 3.2: a batch is accepted only if its epoch is that of the log's last item."""
        return first.epoch == self.log.last.epoch and first.base_offset == self.log.end_offset

    def _append_batches(self, items: Sequence[Item]) -> None:
        batches = tuple(items)
        self.journal_term()
        self.log.append_batches(batches)  # type: ignore[arg-type]
        self._queued(self.host.journal(self.group, AppendEntry(self.group, batches)))  # type: ignore[arg-type]

    def _arm_follower(self, commit: Position) -> None:
        """With the marker of the leader's term in the log, the log is a prefix of the leader's."""
        if self.log.last.epoch != self.term:
            return
        self.matched = self.log.last
        self.arm(SteadyRole.FOLLOWER, [], 0, 0)
        steady = self.steady
        assert steady is not None
        if commit.epoch == self.term:
            steady.leader_commit_offset = max(steady.leader_commit_offset, commit.offset)
            follow_commit(steady)
        self.take_commit()

    def on_request_vote(self, message: RequestVote, now_ms: int) -> None:
        """Somebody has lost the leader that this replica believes in: an ack asks that one whether it still leads."""
        super().on_request_vote(message, now_ms)
        if not self.is_leader and self.leader != message.source and self._leader_is_fresh(now_ms):
            self.ack_due = True
            self.host.flush_later(self.group)

    # Acks.

    def flush_follower(self) -> None:
        """At the end of a turn: one ack for all that was taken and all that became durable."""
        if not self.ack_due or self.leader is None or self.leader == self.me or self.role is not FOLLOWER:
            return
        self.ack_due = False
        message = Ack(self.group, self.me, self.leader, self.term, self._acknowledged(), self.commit)
        self.send(message, self.after_reopening())

    def _acknowledged(self) -> Position:
        """raft-rules 3.3: durable, and the leader's."""
        return min(self.durable, self.matched)

    # Segments in place of items.

    def on_install(self, message: Install, boot_id: int, now_ms: int) -> None:
        """raft-rules 5: judged at the moment at which it is journalled. Own term and vote stay."""
        if not self._follows(message.term, message):
            return
        self._accept_leader(message, boot_id)
        self.steady = None
        if self._may_adopt(message.position):
            self._adopt(message)
        if self._contains(message.position):
            self.matched = max(self.matched, message.position)
            self.ack_due = True
        self._arm_follower(START)
        self.host.flush_later(self.group)
        self._rests_or_stands(now_ms)

    def _may_adopt(self, position: Position) -> bool:
        """Not what the log contains already, and not below what is committed here. One at a time: until an adoption is
        durable the log before it is what a failing journal goes back to, and there is room for one such log only; the
        leader ships again.
        """
        if not self.settings.adopts:
            return False
        return self.adopting is None and not self.log.contains(position) and position > self.commit

    def _adopt(self, message: Install) -> None:
        """The log in memory is the shipped one at once; until its entry is durable the old one is kept for a
        failure.
        """
        self.journal_term()
        term, vote = self._hard_state_of_adopted(message)
        self.begin_adoption(Adoption(message.position, message.markers, message.log_start_offset), term, vote)

    def begin_adoption(self, adoption: Adoption, term: int, vote: Voter | None) -> None:
        position, markers, starts = adoption
        self.adopting = Adopting(position, self.log.image(), self.durable, self.undurable)
        self.log.adopt(position, markers, starts)
        entry = AdoptEntry(self.group, position, markers, starts, term, vote, position)
        self.durable = self.commit
        self.undurable = deque()
        self._queued(self.host.journal(self.group, entry))
        self.host.tell(Adopted(self.group, position))
        self.host.members_changed(self.group)

    def _hard_state_of_adopted(self, _message: Install) -> tuple[int, Voter | None]:
        return self.term, self.vote

    def durable_moved(self, now_ms: int) -> None:
        super().durable_moved(now_ms)
        adopting = self.adopting
        if adopting is not None and self.durable >= adopting.position:
            self.adopting = None
            self.raise_commit(adopting.position)

    def undo(self) -> None:
        """An adoption that was not durable has not happened: the old log is there, as far as it was durable."""
        adopting, self.adopting = self.adopting, None
        if adopting is not None:
            position, starts = adopting.position, self.log.log_start_offset
            self.lost_adoption = Adoption(position, self.log.markers_upto(position), starts)
            self.log.load(adopting.log)
            self.durable = adopting.durable
            for sequence, end in adopting.undurable:
                if sequence <= self.host.durable_sequence:
                    self.durable = end
        super().undo()

    def settle_on_disk(self) -> None:
        """A lost adoption is made again: if it is on the disk, no cut brings back the log that it has replaced.

        What was shipped is committed, and nothing has come in between.
        """
        lost, self.lost_adoption = self.lost_adoption, None
        if lost is None:
            super().settle_on_disk()
        else:
            self.begin_adoption(lost, self.term, self.vote)
