"""A node of one replicated partition, turned by hand: a plane with a real journal, driven by a `RaftCore`.

The driver is the least that does its duties in Python, synchronously: one partition, no segments, frames handed over in
memory. What it shows is the order of calls that `docs/decisions/2026-11-23-replicated-partitions.md` asks for.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tests.support.journal_file import EPOCH
from tests.support.plane_bench import PlaneBench, topic_id_of
from tests.support.record_batches import read_batches
from tpc_broker._ring import ffi, lib
from tpc_broker.model import CoreId, NodeId
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.items import Address, Proposal, Voter, simple
from tpc_broker.raft.journal import AppendEntry, CutEntry, MarkerEntry, VoteEntry
from tpc_broker.raft.output import Accepted, Committed, Role, RoleChanged
from tpc_broker.raft.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from tpc_broker.raft.journal import JournalEntry
    from tpc_broker.raft.messages import Frame

TOPIC = "replicated"


class ReplicaNode:
    """Node `number` of `count`. `frames` are those that it wants to send."""

    def __init__(self, folder: Path, number: int, count: int) -> None:
        self.bench = PlaneBench(folder / f"{number}.journal", region_blocks=1024)
        self.plane = self.bench.plane
        self.handle = self.bench.lead(TOPIC, is_led=False)
        self.plane.set_replicated(self.handle)
        self.bench.plane.set_hot(on=True)
        self.me = Voter(NodeId(number), 0)
        self.core = RaftCore(Address(NodeId(number), CoreId(0)), number + 1, 0, Settings())
        for other in range(count):
            if other != number:
                self.core.add_link(Address(NodeId(other), CoreId(0)), 0)
        self.core.create_group(TOPIC, self.me, simple([Voter(NodeId(other), 0) for other in range(count)]), 0)
        self.frames: list[Frame] = []
        self.role, self.term = Role.FOLLOWER, 0
        self._waiting: list[Frame] = []
        self._entries: deque[JournalEntry] = deque()
        self._journalled: deque[tuple[int, int]] = deque()
        self._proposed: deque[int] = deque()
        self._cuts = 0

    # -- one turn ----------------------------------------------------------------------------------------------------

    def turn(self, now_ms: int, received: list[Frame]) -> None:
        """The ring's turn, and the machine's: nothing comes between what was appended and what is proposed."""
        self.bench.turn(0)
        self._propose(now_ms)
        for frame in received:
            self.core.receive(frame, now_ms)
        self.core.tick(now_ms)
        self._tell_durable(now_ms)
        ready = self.core.ready(now_ms)
        for event in ready.events:
            if isinstance(event, RoleChanged):
                self.role, self.term = event.role, event.term
                if event.role is not Role.LEADER:
                    self.plane.disarm(self.handle)
        self._entries += ready.entries
        self._journal()
        for event in ready.events:
            if isinstance(event, Committed):
                self._commit(event.position.offset)
        self._waiting += ready.frames
        self.frames = [frame for frame in self._waiting if frame.after_sequence <= self.core.durable_sequence]
        self._waiting = [frame for frame in self._waiting if frame.after_sequence > self.core.durable_sequence]

    def _propose(self, now_ms: int) -> None:
        ranges = ffi.new("tpc_appended_range[]", 4)
        for one in ranges[0 : lib.tpc_plane_take_appended(self.plane.pointer, ranges, 4)]:
            data = self.plane.read_log(self.handle, one.base_offset, one.next_offset)
            proposal = Proposal(one.next_offset - one.base_offset, len(data), data)
            accepted = self.core.propose(TOPIC, [proposal], now_ms)
            assert isinstance(accepted, Accepted), accepted
            assert (accepted.base_offset, accepted.position.epoch) == (one.base_offset, one.leader_epoch)
            self._proposed.append(one.sequence)

    def _tell_durable(self, now_ms: int) -> None:
        durable, reached = self.plane.journal_statistics()["durable_sequence"], 0
        while self._journalled and self._journalled[0][1] <= durable:
            reached = self._journalled.popleft()[0]
        if reached:
            self.core.persisted(reached, now_ms)

    def _commit(self, offset: int) -> None:
        state = self.plane.state(self.handle)
        if state.role:
            self.plane.commit(self.handle, self.term, min(offset, state.durable_offset))

    # -- the journal -------------------------------------------------------------------------------------------------

    def _journal(self) -> None:
        """Entries in their order. A cut waits until what is in front of it is durable, and so does what is behind."""
        while self._entries:
            number, entry = self._entries[0]
            if isinstance(entry, CutEntry) and self.plane.state(self.handle).appends_undurable:
                return
            self._journalled.append((number, self._put(entry)))
            self._entries.popleft()
        state = self.plane.state(self.handle)
        if self.role is not Role.LEADER and not state.role and self.term:
            self.plane.follow(self.handle, self.term)

    def _put(self, entry: JournalEntry) -> int:
        if isinstance(entry, VoteEntry):
            return self._epoch(-1, entry.term)
        if isinstance(entry, MarkerEntry):
            sequence = self._epoch(entry.marker.start_offset, entry.marker.epoch)
            if self.role is Role.LEADER:
                self.plane.arm(self.handle, self.term)
            return sequence
        if isinstance(entry, CutEntry):
            self._cuts += 1
            self.plane.disarm(self.handle)
            sequence = self.plane.truncate(self.handle, entry.offset, entry.last_epoch_kept).sequence
            self.plane.reset_producers(self.handle, [])
            return sequence
        assert isinstance(entry, AppendEntry)
        if self.role is Role.LEADER:
            return self._proposed.popleft()
        if not self.plane.state(self.handle).role:
            self.plane.follow(self.handle, self.term)
        data = b"".join(batch.payload for batch in entry.batches)
        return self.plane.append_replica(self.handle, self.term, data).commit.sequence

    def _epoch(self, offset: int, term: int) -> int:
        return self.plane.journal_entry(EPOCH, topic_id_of(TOPIC), 0, offset=offset, argument=term).sequence

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def cuts(self) -> int:
        return self._cuts

    def log(self) -> list[tuple[int, int, bytes]]:
        """(base offset, epoch, first value) of every batch, committed or not."""
        return [
            (one["base_offset"], one["leader_epoch"], one["records"][0][3])
            for one in read_batches(self.plane.read_log(self.handle, 0))
        ]

    def visible(self) -> list[bytes]:
        return [value for _base, values in self.bench.readable(self.handle) for value in values]
