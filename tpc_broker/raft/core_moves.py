"""Replicas on their way from one core of a node to another (rules 5): the releases and adoptions of one core.

Theory of operation
-------------------
The voter is the node, so this is no change of voters: one journal ends a replica's life, and another goes on with it.
Both say so in one entry, and a crash at any moment leaves exactly one of two pictures:

    leave       the replica leads, votes and acknowledges no more. Nothing is durable yet: a crash undoes it
    settled     all that it ever gave this journal is durable, and the driver has brought its log to files
    RELEASED    the last thing that this journal says of it: term, vote, commit and log as they go over
    ADOPT       in the target's journal, given to it only when RELEASED is durable. What it sends waits for that

Whoever starts with a RELEASED and no ADOPT does not create the replica, but has it adopted by the core that the entry
names. So until that has happened, every checkpoint of the source carries the release on.

A write that failed may be on the disk all the same. So a release or an adoption that the journal lost is not taken
back: it is written again, first thing when the journal is open. That is also why the target is a part of the
release: a second core could not know of an adoption that the first has on its disk.

Moves are counted in what goes over. Of two cores that both know a replica, the one with the larger count is later;
by that, and not by what it remembers, the source learns after any number of crashes that it may forget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.raft.journal import AdoptEntry, Checkpoint, ReleasedEntry

if TYPE_CHECKING:
    from tpc_broker.model import CoreId, NodeId
    from tpc_broker.raft.core import RaftCore
    from tpc_broker.raft.group import Group
    from tpc_broker.raft.items import Config, GroupId, Voter

Adoption = tuple["Voter", "Config | None", "Checkpoint", "dict[NodeId, CoreId]"]


class CoreMoves:
    """The releases that are not adopted yet, and the adoptions that are not durable yet."""

    def __init__(self, core: RaftCore) -> None:
        self._core = core
        self._released: dict[GroupId, tuple[int, ReleasedEntry]] = {}
        self._adopting: dict[GroupId, tuple[int, Adoption]] = {}

    def release(self, group: GroupId, target: CoreId) -> None:
        machine = self._core.groups[group]
        assert machine.leaving, f"{group} has not left"
        assert machine.is_settled(), f"{group} has something that is not durable"
        self.forget_adoption(group)
        self._write_release(ReleasedEntry(group, target, machine.handed_over()))

    def _write_release(self, entry: ReleasedEntry) -> None:
        self._released[entry.group] = self._core.journal(entry.group, entry), entry

    def restore(self, entry: ReleasedEntry) -> None:
        """After a start: `released_by` has found it."""
        assert entry.group not in self._core.groups, entry.group
        self._released[entry.group] = 0, entry

    def released(self, group: GroupId) -> ReleasedEntry | None:
        """The release, once it is durable: only then may the target know of it."""
        sequence, entry = self._released.get(group, (0, None))
        return entry if sequence <= self._core.durable_sequence else None

    def forget(self, group: GroupId) -> None:
        """The target has it durably."""
        del self._released[group]

    def adopt(self, group: GroupId, adoption: Adoption, now_ms: int) -> Group:
        me, config, checkpoint, cores = adoption
        log = checkpoint.log
        position, starts = log.start, log.log_start_offset
        machine = self._core.add_machine(group, me, config, checkpoint, cores)
        ids = (checkpoint.term, checkpoint.voted_for)
        entry = AdoptEntry(group, position, log.markers, starts, *ids, checkpoint.commit_hint, checkpoint.moves)
        sequence = self._core.journal(group, entry)
        self._adopting[group] = sequence, adoption
        machine.begins_with(sequence)
        machine.start(now_ms)
        return machine

    def forget_adoption(self, group: GroupId) -> None:
        """The replica is removed, or moves on."""
        self._adopting.pop(group, None)

    def replica_moved(self, group: GroupId, node: NodeId, core: CoreId) -> None:
        """Should the adoption have to be written again, another replica has moved since."""
        if group in self._adopting:
            self._adopting[group][1][3][node] = core

    def is_adopting(self, group: GroupId) -> bool:
        return self._adopting.get(group, (0, None))[0] > self._core.durable_sequence

    def checkpoints(self) -> dict[GroupId, Checkpoint | ReleasedEntry]:
        """What a checkpoint of the core has to hold: not what is not its own yet, but what no other has yet. A release
        that is not durable has not happened: the replica is still here, as it was when it was settled.
        """
        found: dict[GroupId, Checkpoint | ReleasedEntry] = {
            group: machine.checkpoint() for group, machine in self._core.groups.items() if not self.is_adopting(group)
        }
        for group, (_sequence, entry) in self._released.items():
            here = entry.checkpoint._replace(moves=entry.checkpoint.moves - 1)
            found[group] = here if self.released(group) is None else entry
        return found

    def journal_failed(self) -> None:
        """What was adopted and not durable has not come yet."""
        for group in self._adopting:
            if self.is_adopting(group):
                self._core.drop_machine(group)

    def journal_reopened(self, now_ms: int) -> None:
        """What the journal lost is written again, because it may be on the disk all the same."""
        for group, (_sequence, entry) in self._released.items():
            if self.released(group) is None:
                self._write_release(entry)
        for group, (_sequence, adoption) in list(self._adopting.items()):
            if self.is_adopting(group):
                self.adopt(group, adoption, now_ms)
