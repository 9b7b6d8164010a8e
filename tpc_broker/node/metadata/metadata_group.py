"""The cluster's metadata as one Raft group: this node's replica of it, if it has one, and its driver.

The package docstring of `raft` numbers a driver's duties; this is one for a core that has one group, whose journal is a
file of its own (`voter_file`), and whose state is the `ClusterImage`: batches are records of `metadata.records`, one
JSON object a line, and the image after a committed batch is made in the same turn in which the commit is known. So
there is always an image of just the commit position, which is what a replica that has nothing, or too little, is sent.

A write of the file that fails ends the core: it is started again, and begins with what is durable.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from tpc_broker.cluster.raft_codec import encode_entry
from tpc_broker.engine.disk_stalls import DiskStalls
from tpc_broker.errors import CoreDownError, MailboxError, NotDeliveredError
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import decode_record, encode_record
from tpc_broker.model import CoreId, MetadataVersion, NodeId
from tpc_broker.node.metadata.voter_file import GROUP
from tpc_broker.raft.items import START, Address, Batch, Config, Position, Proposal, Voter, simple
from tpc_broker.raft.journal import EMPTY_CHECKPOINT, AdoptEntry, Checkpoint, replay
from tpc_broker.raft.messages import Install, Reject
from tpc_broker.raft.output import (
    Accepted,
    Adopted,
    Committed,
    ReadFailed,
    ReadItems,
    ReadReady,
    Refusal,
    RoleChanged,
    ShipSegments,
)
from tpc_broker.rounds import next_round

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpc_broker.cluster.raft_codec import FileEntry
    from tpc_broker.metadata.records import MetadataRecord
    from tpc_broker.node.metadata.voter_file import VoterFile
    from tpc_broker.raft.core import RaftCore
    from tpc_broker.raft.group import Group
    from tpc_broker.raft.messages import Frame
    from tpc_broker.storage.ports import Clock

log = logging.getLogger(__name__)

ROUND_S: Final = 0.5
CHECKPOINT_BYTES: Final = 4 << 20
"""Of entries in the file, and as much as the last checkpoint had, before the next one."""
SHIPPED_KEPT_MAX: Final = 2
HELD_RETRY_S: Final = 0.05
BATCH_BYTES_MAX: Final = 8 << 20
CHANGE_TIMEOUT_S: Final = 10.0

T = TypeVar("T")


class ChangeTooLargeError(MailboxError):
    """Nothing was done, and nothing will be if it is asked for again."""


class NotControllerError(NotDeliveredError):
    """Another node leads the metadata, or none: nothing was done."""


def encode_records(records: Iterable[MetadataRecord]) -> bytes:
    return b"\n".join(map(encode_record, records))


def decode_records(payload: bytes) -> list[MetadataRecord]:
    return [decode_record(line) for line in payload.split(b"\n")]


class MetadataGroup:
    """Touched by core 0's thread only. `image` is the cluster at the commit position `applied`."""

    def __init__(self, core: RaftCore, file: VoterFile, me: Voter, clock: Clock, send: Callable[[Frame], None]) -> None:
        self.core = core
        DiskStalls(core, file.disk_watch, None, "the metadata")
        core.on_due_earlier = self.look_at_time
        self.me = me
        self.image = ClusterImage()
        self.applied: Position = START
        self.on_committed: Callable[[list[MetadataRecord] | None, ClusterImage], None] = lambda _records, _image: None
        """Called with the records, or with None where the image was taken over whole."""
        self.on_ship: Callable[[Voter, Position, bytes], None] = lambda _target, _position, _image: None
        self.on_role: Callable[[], None] = lambda: None
        self._file = file
        self._clock = clock
        self._send = send
        self._held: list[Frame] = []
        self._to_write: deque[tuple[int, bytes]] = deque()
        self._wake_writer = trio.Event()
        self._wake_timer = trio.Event()
        self._moved = trio.Event()
        self._deciding = trio.Lock()
        self._shipped: dict[Position, bytes] = {}
        self._reads: dict[object, tuple[trio.Event, list[bool]]] = {}
        self._checkpoint_bytes = 0
        self._incarnations: dict[Address, int | None] = {}
        self._caught_up: dict[Voter, int] = {}
        """While this replica leads: when each other one was last known to have everything."""

    # -- life --------------------------------------------------------------------------------------------------------

    def recover(self, found: tuple[FileEntry, list[FileEntry]], first_voters: Iterable[Voter]) -> None:
        """The replica of the file. `first_voters`: of the founding; no configuration where it is none of them."""
        kept, entries = found
        base = kept.entry if isinstance(kept.entry, Checkpoint) else EMPTY_CHECKPOINT
        image, applied = kept.image, base.commit_hint
        for entry in entries:
            if isinstance(entry.entry, AdoptEntry):
                image, applied = entry.image, entry.entry.position
        config = simple(first_voters)
        named = config if self.me in config.voters else None
        machine_entries = [entry.entry for entry in entries if not isinstance(entry.entry, Checkpoint)]
        checkpoint = replay(base, machine_entries, named)
        if image:
            self.image = ClusterImage.from_bytes(image)
        self.applied = applied
        self.core.create_group(GROUP, self.me, config, self._now_ms(), checkpoint)
        self._apply()
        self.turn()

    @property
    def has_replica(self) -> bool:
        return GROUP in self.core.groups

    @property
    def group(self) -> Group:
        return self.core.group(GROUP)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_time)
            nursery.start_soon(self._keep_rounds)
            nursery.start_soon(self._write)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()

    # -- what happens ------------------------------------------------------------------------------------------------

    def receive(self, frame: Frame, incarnation: int | None = None) -> None:
        """`incarnation`: of the disk of the node that sends; there is one with a connection at a time."""
        if self._incarnations.setdefault(frame.source, incarnation) != incarnation:
            self._incarnations[frame.source] = incarnation
            self.core.another_life(frame.source)
        missing = [each for each in frame.messages if isinstance(each, Install) and each.position not in self._shipped]
        if missing:  # it came before this node was started again, or was given up for later ones
            log.info("metadata: node %d names an image that is not here; it is asked for again", frame.source.node)
            frame = frame._replace(messages=tuple(each for each in frame.messages if each not in missing))
            for each in missing:
                lacks = Reject(each.group, each.target, each.source, each.term, each.position, START)
                self.core.send(frame.source, lacks)
        self.core.receive(frame, self._now_ms())
        self.turn()

    def connected(self, node: int) -> None:
        address = next((each for each in self.core.links if each.node == node), None)
        if address is not None:
            self.core.connected(address, self._now_ms())
            self.turn()

    def disconnected(self, node: int) -> None:
        self.core.vouching_lost(Address(NodeId(node), CoreId(0)), self._now_ms())

    def heard(self) -> frozenset[int]:
        """Nodes whose links are not silent."""
        now_ms = self._now_ms()
        return frozenset(address.node for address, link in self.core.links.items() if link.is_fresh(now_ms))

    def look_at_time(self) -> None:
        """Something is due earlier."""
        self._wake_timer.set()

    def turn(self) -> None:
        """Duties 2 to 4."""
        ready = self.core.ready(self._now_ms())
        for sequence, entry in ready.entries:
            image = self._shipped[entry.position] if isinstance(entry, AdoptEntry) else b""
            self._to_write.append((sequence, encode_entry(entry, image)))
        for frame in ready.frames:
            if frame.after_sequence <= self.core.durable_sequence:
                self._send(frame)
            else:
                self._held.append(frame)
        for event in ready.events:
            self._carry_out(event)
        if self._to_write:
            self._wake_writer.set()
        self._wake_timer.set()
        self._note_caught_up()
        self._moved.set()
        self._moved = trio.Event()

    def _note_caught_up(self) -> None:
        if not self.is_leader:
            self._caught_up.clear()
            return
        end_offset, now_ms = self.group.log.end_offset, self._now_ms()
        for voter, peer in self.group.peers.items():
            if peer.match >= end_offset:
                self._caught_up[voter] = now_ms

    def _carry_out(self, event: object) -> None:
        match event:
            case Committed():
                self._apply()
            case Adopted():
                self._adopt(event.position)
            case ShipSegments():
                self._apply()
                self.on_ship(event.target, self.applied, self.image.to_bytes())
            case ReadItems():  # nothing of the log is in files: whoever needs more than memory has is sent the image
                self.core.compacted(GROUP, self.group.high_watermark)
            case ReadReady() | ReadFailed():
                for token in event.tokens:
                    done, outcome = self._reads.pop(token, (trio.Event(), []))
                    outcome.append(isinstance(event, ReadReady))
                    done.set()
            case RoleChanged():
                self.on_role()

    def _apply(self) -> None:
        """Bring the image to the commit position."""
        group = self.group
        if group.commit <= self.applied:
            return
        items = group.log.items_after(self.applied, 1 << 62, 1 << 62)
        assert items is not None, (self.applied, group.log.start)
        for item in items:
            if item.position > group.commit:
                break
            if isinstance(item, Batch):
                records = decode_records(item.payload)  # type: ignore[arg-type]  # bytes, by the codec
                self.image = self.image.apply(records, MetadataVersion(item.end_offset))
                self.on_committed(records, self.image)
        self.applied = group.commit

    def _adopt(self, position: Position) -> None:
        self.image = ClusterImage.from_bytes(self._shipped[position])
        self.applied = position
        self.on_committed(None, self.image)
        self._apply()

    async def _keep_time(self) -> None:
        while True:
            self._wake_timer = trio.Event()
            wait_ms = self.core.next_deadline_ms() - self._now_ms()
            with trio.move_on_after(max(0, wait_ms) / 1000):
                await self._wake_timer.wait()
            if self.core.next_deadline_ms() <= self._now_ms():
                self.core.tick(self._now_ms())
                self.turn()

    async def _keep_rounds(self) -> None:
        """At the node's rounds links are looked at, and heartbeats leave that may: little is left to wake up for."""
        while True:
            await next_round(ROUND_S)
            self.core.tick(self._now_ms())
            self.turn()

    async def _write(self) -> None:
        """Duties 2, 5 and 8."""
        while True:
            while self._to_write:
                writes = list(self._to_write)
                self._to_write.clear()
                await self._file.append([entry for _sequence, entry in writes])
                self.core.persisted(writes[-1][0], self._now_ms())
                held, self._held = self._held, []
                for frame in held:
                    if frame.after_sequence <= self.core.durable_sequence:
                        self._send(frame)
                    else:
                        self._held.append(frame)
                self.turn()
            if self._file.bytes_since_checkpoint > CHECKPOINT_BYTES + self._checkpoint_bytes:
                await self._take_checkpoint()
                continue
            self._wake_writer = trio.Event()
            if not self._to_write:
                await self._wake_writer.wait()

    async def _take_checkpoint(self) -> None:
        """Everything that was given to the journal is durable here, and nothing was given since."""
        self._apply()
        image = self.image.to_bytes()
        self.core.truncate_start(GROUP, self.applied.offset)
        checkpoint = self.core.checkpoint(GROUP)
        assert checkpoint.commit_hint == self.applied, (checkpoint.commit_hint, self.applied)
        self._checkpoint_bytes = len(image)
        await self._file.replace(checkpoint, image)

    # -- what others ask for -----------------------------------------------------------------------------------------

    def take_shipped(self, position: Position, image: bytes) -> None:
        """What `Install` will name."""
        ClusterImage.from_bytes(image)  # refused here, and not when it is the only one
        while len(self._shipped) >= SHIPPED_KEPT_MAX:
            del self._shipped[next(iter(self._shipped))]
        self._shipped[position] = image

    def shipped(self, target: Voter, position: Position) -> None:
        if self.has_replica:
            self.core.shipped(GROUP, target, position, self._now_ms())
            self.turn()

    @property
    def leader(self) -> Voter | None:
        """As far as this replica knows."""
        return self.group.leader if self.has_replica else None

    @property
    def is_leader(self) -> bool:
        return self.has_replica and self.group.is_leader

    @property
    def is_ready(self) -> bool:
        """Leads, and knows everything that was committed before."""
        return self.is_leader and self.group.is_ready and self.applied.epoch == self.group.term

    async def moved(self) -> None:
        """Until anything has happened to the replica."""
        await self._moved.wait()

    async def confirm(self) -> None:
        """Until a quorum has said that this leader is still the leader, so that what is known here is the newest.
        NotControllerError.
        """
        token, done, outcome = object(), trio.Event(), list[bool]()
        self._reads[token] = (done, outcome)
        try:
            refusal = self.core.read_index(GROUP, token, self._now_ms())
            self.turn()
            if refusal is not None:
                raise NotControllerError(refusal.value)
            await done.wait()
        finally:
            self._reads.pop(token, None)
        if not outcome[0]:
            raise NotControllerError("another node may lead the metadata")

    async def change(
        self, decide: Callable[[ClusterImage], tuple[list[MetadataRecord], T]]
    ) -> tuple[MetadataVersion, T]:
        """Decides on the newest image and commits what was decided, one change after the other.

        Whoever waits for a commit may give up, by a time-out or because nobody is there to be answered, while what it
        has proposed is still in the log and will be committed: what comes next is not decided before that is.
        NotControllerError: nothing was done. Other MailboxErrors: whether it will be made is not known.
        """
        async with self._deciding:
            deadline_s = trio.current_time() + CHANGE_TIMEOUT_S
            with trio.move_on_at(deadline_s) as wait:
                await self._wait_settled()
            if wait.cancelled_caught:
                raise NotControllerError("the metadata's voters have not committed an earlier change yet")
            image = self.image
            records, response = decide(image)
            if not records:
                with trio.move_on_at(deadline_s):
                    await self.confirm()  # what was decided by is still the newest
                    return image.version, response
                raise NotControllerError("the metadata's voters do not answer")
            with trio.move_on_at(deadline_s):
                return await self.commit(records), response
        raise MailboxError("the metadata's voters did not commit a change in time; whether they will is not known")

    async def _wait_settled(self) -> None:
        """Until everything in the log is in `image`. Of a leader that is ready only its own term's can be missing."""
        while self.is_ready and self.group.log.last > self.applied:
            await self._moved.wait()
        if not self.is_ready:
            raise NotControllerError("this node does not lead the metadata")

    async def commit(self, records: list[MetadataRecord]) -> MetadataVersion:
        """Proposes, and returns the version when they are committed and in `image`.

        NotControllerError, ChangeTooLargeError: nothing was done. What was proposed is waited for, whoever leads; where
        it was cut from this replica's log another one may still have it, so that what becomes of it is not known
        (CoreDownError).
        """
        payload = encode_records(records)
        if len(payload) > BATCH_BYTES_MAX:
            raise ChangeTooLargeError(f"a change of {len(payload)} bytes; at most {BATCH_BYTES_MAX} are allowed")
        decided_offset = self.group.log.end_offset
        while True:
            answer = self.core.propose(GROUP, [Proposal(len(records), len(payload), payload)], self._now_ms())
            self.turn()
            if isinstance(answer, Accepted):
                break
            if answer is not Refusal.HELD:
                raise NotControllerError(answer.value)
            await trio.sleep(HELD_RETRY_S)
            if self.group.log.end_offset != decided_offset:
                raise NotControllerError("another leader came in between")
        while not self.group.is_committed(answer.position):
            if not self.group.log.contains(answer.position):
                raise CoreDownError("another leader came in between; whether the change was made is not known")
            await self._moved.wait()
        return MetadataVersion(answer.position.offset)

    def progress(self) -> list[tuple[Voter, int, int | None, int | None]]:
        """Of every voter and learner, where this replica leads: where its log ends (-1: not known yet), when it was
        last heard, and when it last had everything; of the monotonic clock.
        """
        group, now_ms = self.group, self._now_ms()
        rows: list[tuple[Voter, int, int | None, int | None]] = [(self.me, group.log.end_offset, now_ms, now_ms)]
        for voter, peer in sorted(group.peers.items()):
            link = group.links.get(voter)
            if link is not None:
                link.look()
            heard_ms = None if link is None else link.heard_ms
            has_all = peer.match >= group.log.end_offset
            rows.append((voter, peer.match, heard_ms, heard_ms if has_all else self._caught_up.get(voter)))
        return rows

    @property
    def voters(self) -> set[int]:
        """Nodes that vote for certain, as far as this replica knows."""
        if not self.has_replica or self.group.config is None:
            return set()
        configs = [self.group.config]
        for marker in reversed(self.group.log.markers):
            configs.append(marker.config)
            if self.group.is_committed(marker.position):
                break
        return certain_voters(configs, self.image)


def certain_voters(configs: Iterable[Config], image: ClusterImage) -> set[int]:
    """The nodes whose data directory votes whatever becomes of a change of voters that is under way: in each half of
    each configuration that may hold, and as the disk that the node has now. With such a voter, and only with such a
    one, another voter may go.
    """
    halves = [half for config in configs for half in (config.old, config.new)]
    voters = frozenset.intersection(*halves) if halves else frozenset()
    known = image.nodes
    return {int(each.node) for each in voters
            if each.node not in known or known[each.node].incarnation == each.incarnation}  # fmt: skip
