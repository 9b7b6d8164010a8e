"""Replicas that come back to a node are other voters than before: what is left of those goes first, by one checkpoint
if there is anything.
"""

from __future__ import annotations

import logging
import uuid
from types import SimpleNamespace

import pytest

from tpc_broker.broker.lacking_partitions import LackingPartitions
from tpc_broker.broker.partitions import Partitions
from tpc_broker.errors import JournalStoppedError, PartitionNotMadeError
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import FirstVoter, TopicCreated
from tpc_broker.model import CoreId, MetadataVersion, NodeId, PartitionIndex, Replica, TopicId, TopicPartition

TOPIC = TopicId(uuid.UUID(int=5))
NODE, CORE = NodeId(1), CoreId(0)
KEYS = [TopicPartition(TOPIC, PartitionIndex(index)) for index in range(6)]
IMAGE = SimpleNamespace(name="t", topic_id=TOPIC, is_replicated=lambda index: index != 0)


class Core:
    """Replicas 2 to 5 of a topic have come back; the files of 2 are here yet, and damaged. Partition 0 has no group."""

    def __init__(self, *, checkpoints: bool = True) -> None:
        self.checkpoints = checkpoints
        self.done: list[str] = []
        self.others = set(KEYS[2:])
        self.remembered = set(KEYS[5:])
        self.unmarked: set[TopicPartition] = set()
        self.failure: Exception | None = None
        self.other_core_remembers = False
        replication = SimpleNamespace(has_other_life=lambda _topic, key: key in self.others, begin_lives=self._begin)
        self.made = object.__new__(Partitions)
        self.made._core = SimpleNamespace(
            replicated=SimpleNamespace(replication=replication),
            holders=SimpleNamespace(others_forget=self._others_forget),
            view=SimpleNamespace(node=NODE, image=ClusterImage()),
            core_id=CORE,
        )
        self.made._here = Replica(NODE, CORE)
        self.made._storage = SimpleNamespace(
            has=lambda key: key == KEYS[2], damaged=lambda: KEYS[2:3], checkpoint=self._checkpoint,
            remembers=lambda keys: not self.remembered.isdisjoint(keys),
            keep_aside=lambda key, _reason: self._note("aside", key), delete_offline=self._delete,
            forget_mark=self._forget_mark,
            prepare=self._prepare, unclaimed=list, unclaimed_terms=list, all_released=list, released=lambda _key: None,
            follow_level=lambda _image: None,
        )  # fmt: skip
        self.made._offline, self.made._not_made, self.made._ending = {}, LackingPartitions(), set()
        self.made._open = {}

    def _note(self, what: str, key: TopicPartition) -> None:
        self.done.append(f"{what} {key.partition}")

    async def _begin(self, _topic, keys) -> None:
        self.done.append(f"begin {[int(key.partition) for key in keys]}")
        self.others.difference_update(keys)

    async def _others_forget(self, _keys) -> None:
        if self.other_core_remembers:
            raise PartitionNotMadeError("core 1 has not done yet with the replica before")

    async def _delete(self, key) -> None:
        self._note("delete", key)
        self.remembered.add(key)

    async def _forget_mark(self, key) -> None:
        self.unmarked.add(key)

    async def _checkpoint(self) -> bool:
        self.done.append("checkpoint")
        if self.failure is not None:
            raise self.failure
        if self.checkpoints:
            self.remembered.clear()
        return self.checkpoints

    async def _prepare(self, wanted) -> None:
        if wanted:
            self.done.append(f"prepare {[int(key.partition) for key, _topic in wanted]}")

    async def follow(self) -> None:
        """The topic is new to this core: its partitions are opened."""

        async def open_into(_topic, key, *_more) -> None:
            self._note("open", key)

        self.made._open_into = open_into
        places = ((Replica(NODE, CORE), Replica(NodeId(2), CORE)),) * len(KEYS)
        voters = ((), *((FirstVoter(NODE, 1), FirstVoter(NodeId(2), 1)),) * (len(KEYS) - 1))
        topic = TopicCreated("t", TOPIC, (CORE,) * len(KEYS), 0, replicas=places, voters=voters)
        image = ClusterImage(version=MetadataVersion(1))
        await self.made.follow(image, image.apply([topic], MetadataVersion(2)))

    async def may_be_opened(self, keys=KEYS) -> list[int]:
        return [int(key.partition) for key in await self.made._end_earlier_lives(IMAGE, keys)]


async def test_one_checkpoint_stands_behind_the_ends_of_all_that_come_back_together():
    core = Core()
    assert await core.may_be_opened() == [0, 1, 2, 3, 4, 5]
    assert core.done == ["aside 2", "delete 2", "checkpoint", "begin [2, 3, 4, 5]", "prepare [2, 3, 4, 5]"]
    assert core.unmarked == set(KEYS[3:]), "what an earlier run set aside was the replica before"
    core.done.clear()
    assert await core.may_be_opened() == [0, 1, 2, 3, 4, 5]
    assert core.done == [], "they are what they are to be"


async def test_none_is_taken_for_those_that_nothing_is_left_of():
    """A checkpoint synchronises all that the core has written, while clients and all that the metadata say wait."""
    core = Core()
    assert await core.may_be_opened([KEYS[3], KEYS[4]]) == [3, 4]
    assert core.done == ["begin [3, 4]", "prepare [3, 4]"]


async def test_without_a_checkpoint_they_wait_and_the_others_are_opened():
    core = Core(checkpoints=False)
    assert await core.may_be_opened() == [0, 1]
    assert core.others == set(KEYS[2:])
    assert core.made._not_made == set(KEYS[2:]), "they are tried again"


async def test_when_the_journal_has_stopped_they_are_not_opened_any_more():
    core = Core()
    core.failure = JournalStoppedError("it ends")
    assert await core.may_be_opened() == [0, 1]
    assert not core.made._not_made


async def test_they_wait_until_the_one_before_is_deleted():
    """The journal failed: what is left of it is another voter's, and must not be taken for this one's."""
    core = Core()
    core.made._storage.remembers = lambda keys: KEYS[2] in keys
    assert await core.may_be_opened() == [0, 1]
    assert core.others == set(KEYS[2:])
    assert core.made._not_made == set(KEYS[2:]), "they are tried again"


async def test_that_the_one_before_goes_is_told_once_however_often_it_is_tried(caplog):
    caplog.set_level(logging.INFO)
    core = Core(checkpoints=False)
    for _ in range(3):
        await core.may_be_opened()
    assert sum("removing its old files" in record.getMessage() for record in caplog.records) == 1
    core.checkpoints = True
    await core.may_be_opened()
    core.others = set(KEYS[2:])  # it has gone and come back once more
    await core.may_be_opened()
    assert sum("removing its old files" in record.getMessage() for record in caplog.records) == 2


async def test_they_wait_for_another_core_that_would_take_their_files_for_those_before():
    core = Core()
    core.other_core_remembers = True
    assert await core.may_be_opened() == [0, 1]
    assert core.others == set(KEYS[2:])
    assert core.made._not_made == set(KEYS[2:]), "they are tried again"
    core.other_core_remembers = False
    assert await core.may_be_opened() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("other_core_remembers", [True, False])
async def test_their_folders_are_made_when_no_core_remembers_the_one_before(other_core_remembers):
    """The folder has that one's name: a start of the core that had it removes the folder."""
    core = Core()
    core.other_core_remembers = other_core_remembers
    await core.follow()
    later = [] if other_core_remembers else ["begin [2, 3, 4, 5]", "prepare [2, 3, 4, 5]"]
    assert [each for each in core.done if each.startswith(("begin", "prepare"))] == ["prepare [0, 1]", *later]
    opened = {each for each in core.done if each.startswith("open")}
    assert opened == {f"open {index}" for index in range(2 if other_core_remembers else len(KEYS))}
