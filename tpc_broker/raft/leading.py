"""What a leader has under way beside its log: reads that wait for a round, and a hand-over.

raft-rules 7.3; thesis 6.4.

Reads by read index: the commit offset is taken when the own marker is committed, then a round asks all voters
whether their term is still not above this one; a quorum of answers to a round that began after the read shows that
nobody was elected before it. Heartbeats alone would not show that: they vouch for the core and not for the group.
There are no leases.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpc_broker.raft.followers import Followers
from tpc_broker.raft.output import ReadFailed, ReadReady, Refusal

if TYPE_CHECKING:
    from tpc_broker.raft.items import Voter


@dataclass
class Read:
    """Reads that share a round."""

    round_number: int
    tokens: tuple[object, ...]
    offset: int
    confirmed: set[Voter] = field(default_factory=set)


@dataclass
class Transfer:
    """A hand-over under way: given up at `deadline_ms`, not begun before all is committed until `settles_until_ms`."""

    target: Voter
    deadline_ms: int
    settles_until_ms: int
    told_ms: int | None = None


class Reading(Followers):
    """What a leader answers without writing it. `is_ready`: its own marker is committed."""

    __slots__ = ("is_ready", "reads", "reads_new")

    def init_layers(self) -> None:
        super().init_layers()
        self.is_ready = False

    def begin_reading(self) -> None:
        self.is_ready = False
        self.reads_new: list[object] = []
        self.reads: list[Read] = []

    def end_reading(self) -> None:
        tokens = tuple(self.reads_new) + tuple(token for read in self.reads for token in read.tokens)
        if tokens:
            self.host.tell(ReadFailed(self.group, tokens))
        self.begin_reading()

    def read_index(self, token: object) -> Refusal | None:
        if not self.is_leader:
            return Refusal.NOT_LEADER
        self.reads_new.append(token)
        self.host.flush_later(self.group)
        return None

    def _begin_reads(self) -> None:
        """raft-rules 7.3: the offset is taken now, the round leaves behind it."""
        assert self.is_ready
        tokens, self.reads_new = tuple(self.reads_new), []
        self.reads.append(Read(self.host.read_round, tokens, self.commit.offset, {self.me}))
        self.host.ask_round(self.group, self.term)
        self._answer_reads()

    def _ask_again(self) -> None:
        """The round was lost, or a quorum is not there: those who wait join this turn's round."""
        for read in self.reads:
            read.round_number = self.host.read_round
        self.host.ask_round(self.group, self.term)

    def round_confirmed(self, round_number: int, voter: Voter) -> None:
        """A later round confirms the earlier reads as well."""
        for read in self.reads:
            if read.round_number <= round_number:
                read.confirmed.add(voter)
        self._answer_reads()

    def _answer_reads(self) -> None:
        config = self.config
        assert config is not None
        while self.reads and config.has_quorum(self.reads[0].confirmed):
            read = self.reads.pop(0)
            self.host.tell(ReadReady(self.group, read.tokens, read.offset))

    def confirms(self, term: int) -> bool:
        """The answer to another's round: this replica has promised nothing in a later term."""
        return self.term <= term and self.host.journal_open
