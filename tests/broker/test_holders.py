"""Whose a partition is, when the metadata may be older than its place: cores ask each other, the metadata follow."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from tests.support.memory_core import MemoryCore, created, topic_id_of
from tpc_broker.broker.holders import Holders
from tpc_broker.broker.partition import Partition
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import CoreDownError, PartitionNotMadeError
from tpc_broker.metadata.controller import Controller
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import TopicAssigned
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import MetadataVersion, PartitionIndex, TopicPartition

KEY = TopicPartition(topic_id_of(1), PartitionIndex(0))


class Mailboxes:
    """Of core 0; what core 1 answers is `has`, or nothing while it is down."""

    def __init__(self):
        self.has, self.is_down, self.followed, self.asked = False, False, [], 0
        self.handlers = {}

    def serve(self, method, handler):
        self.handlers[method] = handler

    async def call(self, core, method, payload, **_options):
        await trio.lowlevel.checkpoint()
        if method == "partitions.follow":
            self.followed.append(payload["partitions"])
            return {}, []
        assert core == 1
        self.asked += 1
        if self.is_down:
            raise CoreDownError("core 1 is not there")
        if method == "partitions.forget":
            return {"forgotten": not self.has}, []
        return {"has": self.has}, []


@pytest.fixture
def core():
    one = MemoryCore()
    one.mailboxes = Mailboxes()
    one.holders = Holders(one, one.storage, 2)
    return one


async def test_a_folder_of_which_this_core_knows_nothing_is_taken_when_no_core_has_the_partition(core):
    core.storage.left_over.add(KEY)
    core.mailboxes.is_down = True
    assert await core.follow(created(1, "t", owners=(0,))) == []
    assert core.partitions.find("t", 0) is ErrorCode.KAFKA_STORAGE_ERROR, "core 1 may have it"
    assert ("open", KEY) not in core.storage.asked
    core.mailboxes.is_down = False
    assert await core.partitions.make_what_could_not_be_made() == [(KEY, 1)]
    assert isinstance(core.partitions.find("t", 0), Partition)


async def test_what_another_core_has_is_left_to_it_and_is_its_own_when_the_metadata_follow(core):
    core.storage.left_over.add(KEY)
    core.mailboxes.has = True
    assert await core.follow(created(1, "t", owners=(0,))) == []
    assert await core.partitions.make_what_could_not_be_made() == []
    assert ("open", KEY) not in core.storage.asked
    await core.follow(TopicAssigned(KEY.topic_id, (1,), (0,)))
    assert core.partitions.find("t", 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert core.partitions.offline_count == 0
    assert await core.partitions.make_what_could_not_be_made() == []


async def test_a_partition_that_is_made_now_is_nobody_elses(core):
    await core.follow(created(1, "t", owners=(0,)))
    assert not core.mailboxes.asked


async def test_what_is_here_and_given_to_another_is_reported_until_the_metadata_follow(core, autojump_clock):
    core.storage.unclaimed = lambda: [KEY] if core.view.image.owner_of(KEY) == 1 else []
    await core.follow(created(1, "t", owners=(1,)))
    core.mailboxes.is_down = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(core.holders.report_misplaced)
        await trio.sleep(1)
        assert not core.mailboxes.followed, "its owner might have made it"
        core.mailboxes.is_down = False
        await trio.sleep(1)
        assert core.mailboxes.followed[0] == [[KEY.topic_id.hex, 0]]
        await core.follow(TopicAssigned(KEY.topic_id, (0,), (0,)))


async def test_what_two_cores_have_stays_where_the_metadata_say(core, autojump_clock, caplog):
    core.storage.unclaimed = lambda: [KEY]
    core.mailboxes.has = True
    await core.follow(created(1, "t", owners=(1,)))
    with trio.fail_after(60):
        await core.holders.report_misplaced()
    assert not core.mailboxes.followed
    assert "journals of the cores 0 and 1" in caplog.text


async def test_a_core_says_of_what_it_has(core):
    ask = core.mailboxes.handlers["partitions.has"]
    payload = {"partitions": [[KEY.topic_id.hex, 0]]}
    assert await ask(1, payload, []) == ({"has": False}, [])
    core.storage.files[KEY] = SimpleNamespace(key=KEY)
    assert await ask(1, payload, []) == ({"has": True}, [])


async def test_a_core_forgets_by_a_checkpoint_what_it_had_and_does_not_say_so_before(core):
    """Its journal would have a start of it delete the folder that another core has by then under the same name."""
    forget = core.mailboxes.handlers["partitions.forget"]
    payload = {"partitions": [[KEY.topic_id.hex, 0]]}
    remembered, checkpoints = [KEY], []
    core.storage.remembers = lambda keys: not set(remembered).isdisjoint(keys)

    async def checkpoint(works):
        checkpoints.append(works)
        if works:
            remembered.clear()
        return works

    core.storage.files[KEY] = SimpleNamespace(key=KEY)
    assert await forget(1, payload, []) == ({"forgotten": False}, []), "it has it"
    assert not checkpoints, "none would help"
    del core.storage.files[KEY]
    core.storage.checkpoint = lambda: checkpoint(False)
    assert await forget(1, payload, []) == ({"forgotten": False}, [])
    core.storage.checkpoint = lambda: checkpoint(True)
    assert await forget(1, payload, []) == ({"forgotten": True}, [])
    assert await forget(1, payload, []) == ({"forgotten": True}, [])
    assert checkpoints == [False, True], "one is enough"


async def test_other_cores_have_to_say_that_they_know_nothing_of_what_comes_back(core):
    core.mailboxes.is_down = True
    with pytest.raises(PartitionNotMadeError, match="core 1 does not say"):
        await core.holders.others_forget([KEY])
    core.mailboxes.is_down, core.mailboxes.has = False, True
    with pytest.raises(PartitionNotMadeError, match="core 1 has not done yet"):
        await core.holders.others_forget([KEY])
    core.mailboxes.has = False
    await core.holders.others_forget([KEY])


def test_the_metadata_give_a_partition_to_its_holder_as_if_by_hand():
    image = ClusterImage().apply([created(1, "t", owners=(1, 0, 1))], MetadataVersion(1))
    keys = [KEY, TopicPartition(topic_id_of(9), PartitionIndex(0))]
    assert Controller(image, load_settings()).follow_holder(0, keys) == [TopicAssigned(KEY.topic_id, (0, 0, 1), (0,))]
    assert Controller(image, load_settings()).follow_holder(1, keys) == [], "it is there already"
