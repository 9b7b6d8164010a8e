"""A few cores in one process on virtual time: links that deliver or do not, journals that are durable when told.

Not the simulator: nothing here is random, and a test says what happens. Every turn of every node checks what must
always hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from tpc_broker.model import CoreId, NodeId
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.group import Group
from tpc_broker.raft.items import Address, Config, GroupId, Item, Position, Proposal, Voter, simple
from tpc_broker.raft.journal import EMPTY_CHECKPOINT, Checkpoint, JournalEntry, replay
from tpc_broker.raft.messages import Ack, Frame, Message
from tpc_broker.raft.output import Accepted, Event, Refusal, Role
from tpc_broker.raft.settings import Settings

GROUP = "g"
Told = TypeVar("Told", bound=Event)
Sent = TypeVar("Sent", bound=Message)


class Node:
    """One core: its machine, its journal (all that was ever written, and how much is durable) and what waits for it."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.address = Address(NodeId(number), CoreId(0))
        self.journal: list[tuple[int, JournalEntry]] = []
        self.durable = 0
        self.persists = True
        self.waiting: list[Frame] = []
        self.events: list[Event] = []
        self.configs: dict[GroupId, tuple[Voter, Config | None, Voter | None]] = {}
        self.checkpoints: dict[GroupId, tuple[int, Checkpoint]] = {}
        self.boots = 0
        self.up = True
        self.core = self.boot()

    def boot(self) -> RaftCore:
        self.boots += 1
        core = self.cluster.make_core(self.address, self.address.node * 1000 + self.boots)
        core.sequence = core.durable_sequence = self.durable
        self.core = core
        for other in self.cluster.addresses:
            if other != self.address:
                core.add_link(other, self.cluster.now_ms)
        for group, (me, config, first) in self.configs.items():
            core.create_group(group, me, config, self.cluster.now_ms, self.durable_state(group), first=first)
        return core

    def durable_state(self, group: GroupId) -> Checkpoint:
        at, checkpoint = self.checkpoints.get(group, (0, EMPTY_CHECKPOINT))
        entries = [entry for number, entry in self.journal if entry.group == group and at < number <= self.durable]
        return replay(checkpoint, entries, self.configs[group][1])

    def create(self, group: GroupId, me: Voter, config: Config | None, first: Voter | None = None) -> None:
        self.configs[group] = (me, config, first)
        self.core.create_group(group, me, config, self.cluster.now_ms, first=first)

    def crash(self) -> None:
        """Only what is durable stays."""
        self.up = False
        self.journal = [(number, entry) for number, entry in self.journal if number <= self.durable]
        self.waiting = []

    def restart(self) -> None:
        self.up = True
        self.boot()

    def turn(self) -> bool:
        """One turn: output is taken, the journal is written, frames leave. True if there was any."""
        if not self.up:
            return False
        ready = self.core.ready(self.cluster.now_ms)
        self.journal += ready.entries
        self.events += ready.events
        self.waiting += ready.frames
        self.cluster.check(self)
        some = bool(ready.entries or ready.frames)
        if self.persists and self.core.journal_open and self.journal and self.journal[-1][0] > self.durable:
            self.persist()
            some = True
        leaving = [frame for frame in self.waiting if frame.after_sequence <= self.durable]
        self.waiting = [frame for frame in self.waiting if frame.after_sequence > self.durable]
        for frame in leaving:
            self.cluster.put(frame)
        return some

    def persist(self, sequence: int | None = None) -> None:
        self.durable = self.journal[-1][0] if sequence is None else sequence
        self.core.persisted(self.durable, self.cluster.now_ms)

    def fail_journal(self, durable: int | None = None) -> None:
        """What is behind `durable` (now) is lost; reopened by `reopen_journal`."""
        self.durable = self.durable if durable is None else durable
        self.journal = [(number, entry) for number, entry in self.journal if number <= self.durable]
        self.waiting = [frame for frame in self.waiting if frame.after_sequence <= self.durable]
        self.core.journal_failed(self.durable, self.cluster.now_ms)

    def reopen_journal(self) -> None:
        self.core.journal_reopened(self.cluster.now_ms)

    def group(self, group: GroupId = GROUP) -> Group:
        return self.core.group(group)

    def told(self, kind: type[Told]) -> list[Told]:
        return [event for event in self.events if isinstance(event, kind)]


class Cluster:
    """Nodes 0..n-1; groups are created by `create`."""

    def __init__(
        self,
        nodes: int = 3,
        settings: Settings | None = None,
        core: Callable[..., RaftCore] = RaftCore,
        groups: int = 1,
    ) -> None:
        self.settings = settings or Settings()
        self.now_ms = 0
        self.core_class = core
        self.addresses = [Address(NodeId(number), CoreId(0)) for number in range(nodes)]
        self.blocked: set[tuple[int, int]] = set()
        self.dropped: Callable[[Frame, Message], bool] = lambda _frame, _message: False
        self.wire: deque[Frame] = deque()
        self.sent: list[Message] = []
        self.leaders: dict[tuple[GroupId, int], Voter] = {}
        self.led: dict[tuple[GroupId, int], tuple[int, int, int]] = {}
        """Of each leadership: its last epoch, the end of its log, and how often its replica has cut."""
        self.committed: dict[tuple[GroupId, Position], Item] = {}
        self.shown: dict[tuple[int, GroupId], Position] = {}
        self.nodes: list[Node] = []
        self.nodes.extend(Node(self, number) for number in range(nodes))
        if groups:
            for number in range(groups):
                self.create(GROUP if groups == 1 else number, range(nodes))

    def make_core(self, address: Address, boot_id: int) -> RaftCore:
        return self.core_class(address, boot_id, self.now_ms, self.settings)

    def create(self, group: GroupId, voters: Iterable[int], learners: Iterable[int] = ()) -> None:
        config = simple([Voter(NodeId(number), 0) for number in voters])
        for number in {*voters, *learners}:
            self.nodes[number].create(group, Voter(NodeId(number), 0), config)

    # Network.

    def put(self, frame: Frame) -> None:
        self.sent += frame.messages
        if (frame.source.node, frame.target.node) not in self.blocked:
            kept = tuple(message for message in frame.messages if not self.dropped(frame, message))
            if kept:
                self.wire.append(frame._replace(messages=kept))

    def block(self, source: int, target: int) -> None:
        self.blocked.add((source, target))

    def isolate(self, number: int) -> None:
        self.blocked |= {(number, other) for other in range(len(self.nodes))}
        self.blocked |= {(other, number) for other in range(len(self.nodes))}

    def heal(self) -> None:
        self.blocked.clear()

    # Time.

    def settle(self) -> None:
        """Turns until nothing is said any more, at one instant."""
        for _ in range(10_000):
            some = any([node.turn() for node in self.nodes])  # noqa: C419 -- each has its turn
            while self.wire:
                frame = self.wire.popleft()
                node = self.nodes[frame.target.node]
                if node.up:
                    node.core.receive(frame, self.now_ms)
                    some = True
            if not some:
                return
        raise AssertionError("they never stop talking")

    def run(self, milliseconds: int, step_ms: int = 5) -> None:
        until = self.now_ms + milliseconds
        self.settle()
        while self.now_ms < until:
            self.now_ms += step_ms
            for node in self.nodes:
                if node.up:
                    node.core.tick(self.now_ms)
            self.settle()

    def run_until(self, condition: Callable[[], object], milliseconds: int = 20_000) -> None:
        until = self.now_ms + milliseconds
        while not condition():
            assert self.now_ms < until, "not within the time"
            self.run(5)

    # What is looked at.

    def leader(self, group: GroupId = GROUP) -> Node | None:
        """The leader of the largest term, if its marker is committed."""
        found = [node for node in self.nodes if node.up and group in node.core.groups]
        led = [node for node in found if node.group(group).is_leader and node.group(group).is_ready]
        return max(led, key=lambda node: node.group(group).term, default=None)

    def elect(self, group: GroupId = GROUP) -> Node:
        self.run_until(lambda: self.leader(group) is not None)
        found = self.leader(group)
        assert found is not None
        return found

    def hand_to(self, number: int, group: GroupId = GROUP) -> Node:
        """Makes one node the leader."""
        leader = self.elect(group)
        if leader is not self.nodes[number]:
            leader.core.transfer_leadership(group, self.nodes[number].group(group).me, self.now_ms)
            self.run_until(lambda: self.leader(group) is self.nodes[number])
        return self.nodes[number]

    def propose(self, node: Node, count: int = 1, group: GroupId = GROUP) -> Accepted:
        proposals = [Proposal(1, 10, f"{node.address.node}.{number}") for number in range(count)]
        found = node.core.propose(group, proposals, self.now_ms)
        assert isinstance(found, Accepted), found
        return found

    def refused(self, node: Node, group: GroupId = GROUP) -> Refusal:
        found = node.core.propose(group, [Proposal(1, 10)], self.now_ms)
        assert isinstance(found, Refusal), found
        return found

    def messages(self, kind: type[Sent]) -> list[Sent]:
        return [message for message in self.sent if isinstance(message, kind)]

    # What must always hold.

    def check(self, node: Node) -> None:
        for group, machine in node.core.groups.items():
            self._check_leader(group, machine)
            assert machine.commit <= machine.durable <= machine.log.last
            shown = self.shown.get((node.address.node, group))
            assert shown is None or shown <= machine.commit or node.core.boot_id % 1000 > 1, "the commit fell"
            self.shown[node.address.node, group] = machine.commit
            for item in machine.log.items:
                if item.position > machine.commit:
                    break
                known = self.committed.setdefault((group, item.position), item)
                assert known == item, "two committed items at one position"
        for waiting in node.waiting:
            for message in waiting.messages:
                if isinstance(message, Ack) and message.source.node == node.address.node:
                    assert message.position <= node.group(message.group).log.last

    def _check_leader(self, group: GroupId, machine: Group) -> None:
        if machine.role is Role.LEADER:
            assert self.leaders.setdefault((group, machine.term), machine.me) == machine.me, "two leaders of one term"
            led = machine.log.markers[-1].epoch, machine.log.end_offset, machine.cuts
            before = self.led.get((group, machine.term), led)
            assert before[0] == led[0] == machine.term, "a leader's log ends in its own term"
            assert before[1] <= led[1], "a leader only appends"
            assert before[2] == led[2], "a leader cuts nothing"
            self.led[group, machine.term] = led
            for (of, position), _item in self.committed.items():
                if of == group and position.epoch < machine.term and position >= machine.log.start:
                    assert machine.log.contains(position), f"leader of {machine.term} lacks {position}"
