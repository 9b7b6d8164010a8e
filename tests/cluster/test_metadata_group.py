"""The driver of the metadata group over real files: checkpoints, starts, and a replica that is far behind or empty."""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import trio

from tpc_broker.cluster.raft_codec import decode_frame, encode_frame
from tpc_broker.engine.clocks import SystemClock
from tpc_broker.engine.disk import RingDisk
from tpc_broker.engine.trio_ring import current_ring
from tpc_broker.engine.trio_ring import run as run_on_ring
from tpc_broker.errors import MailboxError
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import ClusterCreated, MetadataRecord, TopicCreated, TopicDeleted
from tpc_broker.model import CoreId, MetadataVersion, NodeId, TopicId
from tpc_broker.node.metadata import metadata_group
from tpc_broker.node.metadata.metadata_group import SHIPPED_KEPT_MAX, MetadataGroup, NotControllerError
from tpc_broker.node.metadata.voter_file import GROUP, VoterFile
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.items import START, Address, Marker, Position, Voter, simple
from tpc_broker.raft.messages import Ack, Frame, Install, Message, Reject

DEADLINE_S = 180
CHANGE_S = 30
VOTERS = tuple(Voter(NodeId(number), 10 + number) for number in (1, 2, 3))


class Nodes:
    """Three voters in one loop; frames go through their bytes, and a tenth of them is lost."""

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self.folder = folder
        self.nursery = nursery
        self.groups: dict[int, MetadataGroup] = {}
        self.committed: dict[int, ClusterImage] = {}
        self.shipped = 0
        self._scopes: dict[int, trio.CancelScope] = {}
        self._changes: dict[int, set[trio.CancelScope]] = {}
        self._ended: dict[int, trio.Event] = {}
        self._files: dict[int, VoterFile] = {}
        self._boot = 0
        self._chooser = random.Random(1)

    async def start(self, number: int) -> None:
        folder = self.folder / f"node{number}"
        folder.mkdir(exist_ok=True)
        file = VoterFile(RingDisk(current_ring()), folder)
        if not file.path.exists():
            await file.create()
            await file.close()
        self._boot += 1
        core = RaftCore(Address(NodeId(number), CoreId(0)), self._boot, SystemClock.monotonic_ms())
        for other in VOTERS:
            if other.node != number:
                core.add_link(Address(other.node, CoreId(0)), SystemClock.monotonic_ms())
        group = MetadataGroup(core, file, VOTERS[number - 1], SystemClock(), self._send)
        group.on_ship = self._ship
        group.on_committed = partial(self._took, number)
        found = await file.open()
        assert found is not None
        self.committed[number] = ClusterImage()
        group.recover(found, VOTERS)
        self.groups[number], self._files[number], self._scopes[number] = group, file, trio.CancelScope()
        self._ended[number], self._changes[number] = trio.Event(), set()
        self.nursery.start_soon(self._run, number, group)

    async def _run(self, number: int, group: MetadataGroup) -> None:
        ended = self._ended[number]
        with self._scopes[number]:
            await group.run()
        ended.set()

    async def stop(self, number: int) -> None:
        """As `kill -9`: what is not durable is lost."""
        del self.groups[number]
        for change in self._changes[number]:
            change.cancel()
        self._scopes[number].cancel()
        await self._ended[number].wait()  # a write that has begun goes on to its end
        await self._files[number].close()

    def _send(self, frame: Frame) -> None:
        if self._chooser.random() < 0.9:
            self.nursery.start_soon(self._deliver, frame.target.node, encode_frame(frame))

    async def _deliver(self, number: int, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if number in self.groups:
            self.groups[number].receive(decode_frame(data))

    def _ship(self, target: Voter, position: Position, image: bytes) -> None:
        self.shipped += 1
        self.nursery.start_soon(self._ship_later, target, position, image)

    async def _ship_later(self, target: Voter, position: Position, image: bytes) -> None:
        """Until it is there, as `tending.ship_image`: who ships waits for that, and asks for it no second time."""
        await trio.sleep(0.01)
        while target.node not in self.groups:
            await trio.sleep(0.01)
        self.groups[target.node].take_shipped(position, image)
        for group in list(self.groups.values()):
            group.shipped(target, position)

    def _took(self, number: int, records: list[MetadataRecord] | None, image: ClusterImage) -> None:
        before = self.committed[number]
        assert image.version > before.version or records is None, "a commit never falls"
        self.committed[number] = image

    async def leader(self) -> MetadataGroup:
        while True:
            for group in self.groups.values():
                if group.is_ready:
                    return group
            await trio.sleep(0.02)

    async def commit(self, records: list[MetadataRecord]) -> bool:
        """False: whoever was asked has ended, and nobody knows."""
        while True:
            group = await self.leader()
            changes = self._changes[group.me.node]
            with trio.CancelScope() as change:
                changes.add(change)
                try:
                    await group.commit(records)
                except NotControllerError:
                    continue
                finally:
                    changes.discard(change)
            return not change.cancelled_caught

    async def wait_equal(self) -> ClusterImage:
        """Nothing is committed meanwhile, but one that leads no more may not have heard of the last commits yet."""
        await self.leader()
        while True:
            wanted = max((group.image for group in self.groups.values()), key=lambda image: image.version)
            behind = [group for group in self.groups.values() if group.image.version < wanted.version]
            if not behind:
                break
            await behind[0].moved()
        for group in self.groups.values():
            assert group.image.topics == wanted.topics
        return wanted


def topic(number: int) -> TopicCreated:
    return TopicCreated(f"t{number}", TopicId(uuid.UUID(int=number + 100)), (CoreId(0),), 1, configs={"a": "x" * 50})


def run(folder: Path, main: Callable[[Nodes], Awaitable[None]]) -> None:
    async def within() -> None:
        async with AsyncExitStack() as stack:
            nursery = await stack.enter_async_context(trio.open_nursery())
            nodes = Nodes(folder, nursery)
            for voter in VOTERS:
                await nodes.start(voter.node)
            with trio.fail_after(DEADLINE_S):
                await nodes.commit([ClusterCreated("c")])
                await main(nodes)
            for number in list(nodes.groups):
                await nodes.stop(number)
            nursery.cancel_scope.cancel()

    run_on_ring(within)


@pytest.fixture
def soon(monkeypatch):
    """A checkpoint each few changes."""
    monkeypatch.setattr(metadata_group, "CHECKPOINT_BYTES", 500)


def test_what_was_committed_is_there_after_checkpoints_and_starts(tmp_path, soon):
    async def main(nodes: Nodes) -> None:
        for number in range(40):
            await nodes.commit([topic(number)])
            if number % 3 == 2:
                await nodes.commit([TopicDeleted(topic(number).topic_id)])
        await nodes.wait_equal()
        for number in (1, 2, 3):
            assert nodes._files[number].bytes_since_checkpoint < 20_000, "the file does not only grow"
            await nodes.stop(number)
        for number in (1, 2, 3):
            await nodes.start(number)
        image = await nodes.wait_equal()
        assert set(image.ids) == {f"t{number}" for number in range(40) if number % 3 != 2}
        assert image.cluster_id == "c"

    run(tmp_path, main)


def test_one_that_was_away_for_longer_than_the_others_remember_is_sent_the_whole(tmp_path, soon):
    async def main(nodes: Nodes) -> None:
        await nodes.commit([topic(0)])
        away = next(number for number, group in nodes.groups.items() if not group.is_leader)
        await nodes.stop(away)
        for number in range(1, 30):
            await nodes.commit([topic(number)])
        before = nodes.shipped
        await nodes.start(away)
        assert set((await nodes.wait_equal()).ids) == {f"t{number}" for number in range(30)}
        assert nodes.shipped > before
        while (core := nodes.groups[away].core).durable_sequence < core.sequence:
            await nodes.groups[away].moved()
        await nodes.stop(away)
        await nodes.start(away)  # what was sent is in its file
        assert set(nodes.groups[away].image.ids) >= {"t0"}
        await nodes.commit([topic(99)])
        assert "t99" in (await nodes.wait_equal()).ids

    run(tmp_path, main)


def test_an_image_that_was_lost_before_it_was_named_is_asked_for_again(tmp_path):
    """A voter is started again between the image and the message that names it, or other images have come since."""

    async def main(nodes: Nodes) -> None:
        for number in (2, 3):
            await nodes.stop(number)
        image = ClusterImage().apply([ClusterCreated("c"), topic(1)], MetadataVersion(7))
        position, leader = Position(90, 7), VOTERS[1]
        term = simple(VOTERS)
        names = Install(GROUP, leader, VOTERS[0], 90, position, (Marker(90, 0, term),), 0)
        frame = Frame(Address(leader.node, CoreId(0)), Address(NodeId(1), CoreId(0)), 77, 0, (names,))
        told: list[Message] = []

        def keep(frame: Frame) -> None:
            told.extend(each for each in frame.messages if isinstance(each, Ack | Reject))

        group = nodes.groups[1]
        group._send = keep
        group.take_shipped(position, image.to_bytes())
        for number in range(SHIPPED_KEPT_MAX):
            group.take_shipped(Position(91, number), image.to_bytes())
        group.receive(frame)
        refusal = Reject(GROUP, VOTERS[0], leader, 90, position, START)
        assert told == [refusal]
        await nodes.stop(1)
        await nodes.start(1)
        assert nodes.groups[1].applied < position, "nothing of it is in the file"
        group = nodes.groups[1]
        group._send = keep
        told.clear()  # what it had written before may have been durable, and told, before it was stopped
        group.receive(frame)
        assert told == [refusal]
        group.take_shipped(position, image.to_bytes())
        group.receive(frame)
        while group.core.durable_sequence < group.core.sequence:
            await group.moved()
        await nodes.stop(1)
        await nodes.start(1)
        assert (nodes.groups[1].applied, set(nodes.groups[1].image.ids)) == (position, {"t1"})

    run(tmp_path, main)


def test_a_change_that_is_too_large_is_refused_and_the_next_one_made(tmp_path, monkeypatch):
    async def main(nodes: Nodes) -> None:
        await nodes.commit([topic(0)])
        leader = await nodes.leader()
        monkeypatch.setattr(metadata_group, "BATCH_BYTES_MAX", 100)
        with pytest.raises(MailboxError, match="at most 100 are allowed"):
            await leader.change(lambda _image: ([topic(1), topic(2)], None))
        monkeypatch.undo()
        await nodes.commit([topic(3)])
        assert set((await nodes.wait_equal()).ids) == {"t0", "t3"}

    run(tmp_path, main)


def test_two_go_on_when_the_leader_ends_in_the_midst(tmp_path, soon):
    """Every change that was answered is there, with one voter stopped and started again and again."""

    async def main(nodes: Nodes) -> None:
        done: list[int] = []

        async def change() -> None:
            for number in range(60):
                with trio.move_on_after(CHANGE_S):
                    if await nodes.commit([topic(number)]):
                        done.append(number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            for _time in range(2):
                await trio.sleep(0.5)
                leader = (await nodes.leader()).me.node
                await nodes.stop(leader)
                await trio.sleep(0.3)
                await nodes.start(leader)
        image = await nodes.wait_equal()
        assert {f"t{number}" for number in done} <= set(image.ids)
        assert len(done) > 50

    run(tmp_path, main)


def test_an_image_that_cannot_be_read_is_not_taken(tmp_path):
    async def main(nodes: Nodes) -> None:
        with pytest.raises(Exception, match="not a cluster image"):
            nodes.groups[1].take_shipped(Position(1, 1), b"{}")

    run(tmp_path, main)
    shutil.rmtree(tmp_path)
