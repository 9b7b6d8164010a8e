"""The real machine with one rule broken; the explorer must find each of them."""

from __future__ import annotations

from typing import Any

from tests.raft.explore_replica import Bounds, Explored
from tpc_broker.raft.items import Config, Position, Voter, simple
from tpc_broker.raft.messages import AppendEntries, Install, Reason, RequestVote
from tpc_broker.raft.output import Role
from tpc_broker.raft.replica import Peer
from tpc_broker.raft.steady import SteadyRole


class VoteBeforeDurable(Explored):
    def _vote_after(self, _sequence: int) -> int:
        return 0


class AckBeforeDurable(Explored):
    def _acknowledged(self) -> Position:
        return self.matched


class VoteWithoutMarkers(Explored):
    def _may_grant(self, message: RequestVote) -> bool:
        free = message.term > self.term or (message.term == self.term and self._vote_is_free(message.source))
        return free and message.last.offset >= self.log.end_offset


class CutWhatFollows(Explored):
    def _must_cut(self, at: Position, message: AppendEntries) -> bool:
        return at != self.log.last

    def _first_difference(self, message: AppendEntries) -> tuple[Position, Any]:
        at, new = super()._first_difference(message)
        if not new and at != self.log.last and message.items:
            self.cut(at)
        return at, new


class CountsOwnUndurable(Explored):
    def arm(self, *arguments: Any) -> None:
        super().arm(*arguments)
        if self.is_leader and self.steady is not None:
            self.steady.durable_offset = self.log.end_offset


class KeepsTermAfterFailure(Explored):
    """raft-rules 4: goes on leading its term after its journal failed, and gives the same offsets again."""

    def undo(self) -> None:
        role, rows, peers, leader = self.role, self.rows, self.peers, self.leader
        super().undo()
        if role is Role.LEADER and self.log.last.epoch == self.term:
            self.role, self.rows, self.peers, self.leader = role, rows, peers, leader
            self._arm_leader()


class NewVotersTooEarly(Explored):
    """Writes the new configuration alone before the joint one is committed."""

    def _joint_is_committed(self) -> bool:
        return True


class JointByOffset(Explored):
    """Takes the joint marker for committed because something at its offset is."""

    def _joint_is_committed(self) -> bool:
        return self.commit.offset >= self.log.markers[-1].start_offset


class JointTermByNewVoters(Explored):
    """The leader of the joint term is elected by those who are to vote after it."""

    def _quorum_config(self) -> Config:
        if self.target is not None and self.reason is Reason.OWN_NEXT_TERM and not self.aborting:
            return simple(self.target)
        return super()._quorum_config()


class JointByOneSet(Explored):
    """Commits in the joint term with a majority of the new voters alone."""

    def arm(self, role: SteadyRole, rows: list[Peer], _voters_old: int, voters_new: int) -> None:
        super().arm(role, rows, voters_new, voters_new)


class AbortByAnybody(Explored):
    """Goes back from a joint configuration that another leader may have committed."""

    def _may_abort(self) -> bool:
        return self.config is not None and self.config.is_joint and not self.is_ready


class AdoptsBlindly(Explored):
    """Takes what was shipped though the log has it, and more."""

    def _may_adopt(self, _position: Position) -> bool:
        return self.adopting is None


class AdoptsTermAndVote(Explored):
    """Term and vote become what belongs to the end of what was shipped."""

    def _hard_state_of_adopted(self, message: Install) -> tuple[int, Voter | None]:
        return message.position.epoch, None


class CommitsAdoptedAtOnce(Explored):
    """Takes an adoption for done before it is durable."""

    def _adopt(self, message: Install) -> None:
        super()._adopt(message)
        self.durable = message.position
        self.durable_moved(0)


class AdoptsOverAnother(Explored):
    """Takes a second shipped log before the first one is durable, and goes back to that one."""

    def _may_adopt(self, position: Position) -> bool:
        return not self.log.contains(position) and position > self.commit


MOVE = {"old": (0,), "new": (1,)}

MUTANTS: dict[str, tuple[type[Explored], Bounds]] = {
    "vote-before-durable": (VoteBeforeDurable, Bounds(1, 0, 1)),
    "ack-before-durable": (AckBeforeDurable, Bounds(1, 1, 1)),
    "vote-without-markers": (VoteWithoutMarkers, Bounds(2, 0, 0)),
    "cut-what-follows": (CutWhatFollows, Bounds(1, 1, 0)),
    "counts-own-undurable": (CountsOwnUndurable, Bounds(1, 1, 1)),
    "keeps-term-after-failure": (KeepsTermAfterFailure, Bounds(1, 2, 0, 1)),
    "new-voters-too-early": (NewVotersTooEarly, Bounds(4, 0, 1, changes=1, **MOVE)),
    "joint-by-offset": (JointByOffset, Bounds(4, 0, 1, changes=1, **MOVE)),
    "joint-term-by-new-voters": (JointTermByNewVoters, Bounds(2, 0, 0, changes=1, old=(0, 1, 2), new=(0,))),
    "joint-by-one-set": (JointByOneSet, Bounds(4, 0, 1, changes=1, **MOVE)),
    "adopts-blindly": (AdoptsBlindly, Bounds(1, 1, 1, snapshots=1)),
    "adopts-term-and-vote": (AdoptsTermAndVote, Bounds(2, 0, 1, snapshots=1)),
    "commits-adopted-at-once": (CommitsAdoptedAtOnce, Bounds(1, 1, 1, snapshots=1)),
    "adopts-over-another": (AdoptsOverAnother, Bounds(1, 2, 0, 1, snapshots=1)),
    "abort-by-anybody": (AbortByAnybody, Bounds(4, 0, 1, changes=2, **MOVE)),
}
"""With the smallest bounds that are enough."""
