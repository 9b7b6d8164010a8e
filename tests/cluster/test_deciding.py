"""Changes of the metadata are decided by everything that is in the log, also by what nobody waits for any more."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from tpc_broker.cluster.raft_codec import FileEntry
from tpc_broker.errors import MailboxError
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import ClusterCreated, MetadataRecord, TopicCreated
from tpc_broker.model import CoreId, NodeId, TopicId
from tpc_broker.node.metadata import metadata_group
from tpc_broker.node.metadata.metadata_group import GROUP, MetadataGroup, NotControllerError, encode_records
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.items import Address, Proposal, Voter
from tpc_broker.raft.journal import EMPTY_CHECKPOINT
from tpc_broker.raft.output import Refusal
from tpc_broker.storage.disk_watch import DiskWatch

ME = Voter(NodeId(1), 11)


class TrioClock:
    def monotonic_ms(self) -> int:
        return int(trio.current_time() * 1000)


class StallingFile:
    """A voter's file whose disk may stand still."""

    bytes_since_checkpoint = 0

    def __init__(self) -> None:
        self.disk_watch = DiskWatch()
        self._goes_on = trio.Event()
        self._goes_on.set()

    async def append(self, _entries: list[FileEntry]) -> None:
        await trio.sleep(0.001)
        await self._goes_on.wait()

    def stall(self) -> None:
        self._goes_on = trio.Event()

    def go_on(self) -> None:
        self._goes_on.set()


def run(story: Callable[[MetadataGroup, StallingFile], Awaitable[None]]) -> None:
    """With the leader of a cluster of one voter."""
    trio.run(_lead, story, clock=MockClock(autojump_threshold=0))


async def _lead(story: Callable[[MetadataGroup, StallingFile], Awaitable[None]]) -> None:
    file, clock = StallingFile(), TrioClock()
    core = RaftCore(Address(ME.node, CoreId(0)), 1, clock.monotonic_ms())
    group = MetadataGroup(core, file, ME, clock, lambda _frame: None)  # type: ignore[arg-type]
    group.recover((FileEntry(EMPTY_CHECKPOINT), []), [ME])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(group.run)
        while not group.is_ready:
            await group.moved()
        await group.change(lambda _image: ([ClusterCreated("c")], None))
        await story(group, file)
        nursery.cancel_scope.cancel()


def create(name: str) -> Callable[[ClusterImage], tuple[list[MetadataRecord], str]]:
    def decide(image: ClusterImage) -> tuple[list[MetadataRecord], str]:
        if name in image.ids:
            return [], "exists"
        topic_id = TopicId(uuid.uuid5(uuid.NAMESPACE_OID, name))
        return [TopicCreated(name, topic_id, (CoreId(0),), 1, configs={})], "created"

    return decide


async def gives_up(group: MetadataGroup, name: str) -> None:
    """Asks for a topic, and is cancelled when that is in the log."""
    end_offset = group.group.log.end_offset
    async with trio.open_nursery() as nursery:
        nursery.start_soon(group.change, create(name))
        while group.group.log.end_offset == end_offset:
            await trio.sleep(0.001)
        nursery.cancel_scope.cancel()


def test_what_somebody_has_proposed_who_waits_no_more_is_known_to_the_next_decision():
    async def story(group: MetadataGroup, file: StallingFile) -> None:
        file.stall()
        await gives_up(group, "t")
        answers: list[str] = []

        async def ask(name: str) -> None:
            answers.append((await group.change(create(name)))[1])

        async with trio.open_nursery() as nursery:
            for name in ("t", "t", "u"):
                nursery.start_soon(ask, name)
            await trio.sleep(1)
            assert "t" not in group.image.ids
            assert not answers
            file.go_on()
        assert sorted(answers) == ["created", "exists", "exists"]
        assert sorted(topic.name for topic in group.image.topics.values()) == ["t", "u"]

    run(story)


def test_nothing_is_done_while_an_earlier_change_is_not_committed(monkeypatch):
    monkeypatch.setattr(metadata_group, "CHANGE_TIMEOUT_S", 1.0)  # before a leader whose own disk stalls leads no more

    async def story(group: MetadataGroup, file: StallingFile) -> None:
        file.stall()
        with pytest.raises(MailboxError, match="not known") as unknown:
            await group.change(create("t"))
        assert not isinstance(unknown.value, NotControllerError), "it may be made, so it is not tried again"
        end_offset = group.group.log.end_offset
        for name in ("t", "u"):
            with pytest.raises(NotControllerError, match="earlier change"):
                await group.change(create(name))
        assert group.group.log.end_offset == end_offset
        file.go_on()
        assert (await group.change(create("t")))[1] == "exists"
        assert (await group.change(create("u")))[1] == "created"
        assert len(group.image.topics) == 2

    run(story)


def test_who_leads_no_more_while_an_earlier_change_is_waited_for_decides_nothing():
    async def story(group: MetadataGroup, file: StallingFile) -> None:
        file.stall()
        await gives_up(group, "t")
        decided: list[str] = []

        def decide(image: ClusterImage) -> tuple[list[MetadataRecord], None]:
            decided.append(str(image.version))
            return [], None

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(_is_refused, group, decide))
            await trio.sleep(1)
            group.group.resign(group._now_ms())
            group.turn()
        assert not decided

    run(story)


async def _is_refused(
    group: MetadataGroup, decide: Callable[[ClusterImage], tuple[list[MetadataRecord], None]]
) -> None:
    with pytest.raises(NotControllerError, match="does not lead"):
        await group.change(decide)


def test_a_proposal_that_was_held_back_is_dropped_when_another_came_in_between(monkeypatch):
    """Its leader led no more for a moment, handed over and back: the image it was decided by is not the newest."""

    async def story(group: MetadataGroup, _file: StallingFile) -> None:
        propose, held = group.core.propose, [True]

        def hold_once(*arguments):
            if not held.pop():
                return propose(*arguments)
            records = create("t")(group.image)[0]
            group.core.groups[GROUP].propose([Proposal(1, 1, encode_records(records))])
            held.append(False)
            return Refusal.HELD

        monkeypatch.setattr(group.core, "propose", hold_once)
        with pytest.raises(NotControllerError, match="in between"):
            await group.change(create("t"))
        monkeypatch.undo()
        assert (await group.change(create("t")))[1] == "exists"
        assert len(group.image.topics) == 1

    run(story)
