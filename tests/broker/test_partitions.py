"""The partitions that a core owns, following the image: opened, altered, deleted, and what clients are told instead."""

from __future__ import annotations

import itertools
from functools import partial
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from tests.log.log_batches import batch
from tests.support.memory_core import MemoryCore, created, topic_id_of
from tpc_broker.broker.core import Core
from tpc_broker.broker.handlers.offsets import handle_delete_records
from tpc_broker.broker.lacking_partitions import RETRY_S_MAX
from tpc_broker.broker.partition import Partition
from tpc_broker.broker.partitions import OPEN_TOGETHER
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import JournalStoppedError, OffsetOutOfRangeError, PartitionNotMadeError, PartitionOfflineError
from tpc_broker.kafka import messages
from tpc_broker.log.batch import decode_header
from tpc_broker.metadata.records import BrokerConfigChanged, TopicConfigChanged, TopicDeleted
from tpc_broker.metadata.settings import BrokerConfiguration
from tpc_broker.model import PartitionIndex, TopicPartition
from tpc_broker.testing.logs import MemoryFiles


def key(number, index=0):
    return TopicPartition(topic_id_of(number), PartitionIndex(index))


@pytest.fixture
def core():
    return MemoryCore()


async def test_what_this_core_owns_is_opened_under_a_new_epoch(core):
    opened = await core.follow(created(1, "mine", owners=(0, 1, 0)), created(2, "theirs", owners=(1,)))
    assert sorted(opened) == [(key(1, 0), 1), (key(1, 2), 1)]
    assert core.storage.asked[:2] == [("forget_unclaimed",), ("prepare", [key(1, 0), key(1, 2)])]
    found = core.partitions.find("mine", 2)
    assert isinstance(found, Partition)
    assert core.partitions.find(key(1).topic_id, 0).label == "mine-0"
    assert core.partitions.find("mine", 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert core.owners_asked == [1], "its clients are to be told again"
    assert core.partitions.find("mine", 3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert core.partitions.find("nobody's", 0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert core.partitions.find(key(9).topic_id, 0) is ErrorCode.UNKNOWN_TOPIC_ID


async def test_thousands_of_partitions_that_are_opened_share_a_few_commits(core, autojump_clock, monkeypatch):
    """A commit of a second takes all epochs that wait for it, as the journal's does. Settings are read once."""
    topic_config, read = BrokerConfiguration.topic_config, []

    def counted(*arguments, **options):
        read.append(arguments)
        return topic_config(*arguments, **options)

    monkeypatch.setattr(BrokerConfiguration, "topic_config", counted)
    begin_epoch, beginning = core.storage.begin_epoch, []

    async def slowly(files):
        beginning.append(trio.current_time())
        await trio.sleep(1)
        await begin_epoch(files)

    core.storage.begin_epoch = slowly
    assert len(await core.follow(created(1, "many", owners=(0,) * 2_000))) == 2_000
    assert len(set(beginning)) <= 16
    assert len(read) == 1
    await core.follow(TopicConfigChanged(topic_id_of(1), "retention.ms", "1000"))
    found = core.partitions.find("many", 0)
    assert isinstance(found, Partition)
    assert found.config.retention_ms == 1000


async def test_what_a_start_finds_is_opened_together_and_waits_for_its_epochs_once(core):
    begun = []
    begin_epochs = core.storage.begin_epochs

    async def counted(opened):
        begun.append(len(opened))
        await begin_epochs(opened)

    core.storage.begin_epochs = counted
    for index in range(OPEN_TOGETHER + 5):
        core.storage.files[key(1, index)] = MemoryFiles(key(1, index), "found")
    core.storage.refuses[key(1, 7)] = PartitionOfflineError("damaged")
    opened = await core.follow(created(1, "found", owners=(0,) * (OPEN_TOGETHER + 6)))
    assert sorted(opened) == [(key(1, index), 1) for index in range(OPEN_TOGETHER + 6) if index != 7]
    assert begun == [OPEN_TOGETHER - 1, 5], "all but the one that is damaged, and the one that was not there"
    assert core.partitions.find("found", 7) is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("error", [PartitionNotMadeError("the journal failed"), JournalStoppedError("at the end")])
async def test_epochs_that_the_journal_does_not_take_leave_all_of_them_to_be_opened_again(core, error):
    async def fails(_opened):
        raise error

    begin_epochs, core.storage.begin_epochs = core.storage.begin_epochs, fails
    for index in range(3):
        core.storage.files[key(1, index)] = MemoryFiles(key(1, index), "found")
    assert await core.follow(created(1, "found", owners=(0, 0, 0))) == []
    assert len(core.partitions) == 0
    core.storage.begin_epochs = begin_epochs
    again = await core.partitions.make_what_could_not_be_made()
    is_for_good = isinstance(error, JournalStoppedError)
    assert len(again) == (0 if is_for_good else 3)


@pytest.mark.parametrize(
    ("error", "count"), [(PartitionNotMadeError("the journal failed"), 3), (JournalStoppedError("at the end"), 0)]
)
async def test_others_are_opened_where_the_journal_did_not_take_the_first_unless_it_has_stopped(core, error, count):
    begun = []
    begin_epochs = core.storage.begin_epochs

    async def fails_once(opened):
        begun.append(len(opened))
        if len(begun) == 1:
            raise error
        await begin_epochs(opened)

    core.storage.begin_epochs = fails_once
    for index in range(OPEN_TOGETHER + 3):
        core.storage.files[key(1, index)] = MemoryFiles(key(1, index), "found")
    opened = await core.follow(created(1, "found", owners=(0,) * (OPEN_TOGETHER + 3)))
    assert sorted(opened) == [(key(1, OPEN_TOGETHER + index), 1) for index in range(count)]
    assert begun == [OPEN_TOGETHER, 3][: 2 if count else 1]


async def test_a_damaged_partition_is_offline_and_its_deletion_removes_its_files(core):
    core.storage.refuses[key(1)] = PartitionOfflineError("damaged")
    assert await core.follow(created(1, "t", owners=(0, 0))) == [(key(1, 1), 1)]
    assert core.partitions.find("t", 0) is ErrorCode.KAFKA_STORAGE_ERROR
    assert await core.partitions.make_what_could_not_be_made() == [], "only an operator can mend it"
    await core.follow(TopicDeleted(key(1).topic_id))
    assert ("delete_offline", key(1)) in core.storage.asked
    assert ("delete", key(1, 1)) in core.storage.asked
    assert len(core.partitions) == 0


async def test_a_partition_that_could_not_be_made_is_tried_again(core, autojump_clock):
    core.storage.refuses[key(1)] = PartitionNotMadeError("no space")
    core.storage.once.add(key(1))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(core.partitions.wait_lacking)
            await trio.testing.wait_all_tasks_blocked()
            assert await core.follow(created(1, "t")) == []
    assert core.partitions.is_offline(key(1))
    assert core.partitions.find("t", 0) is ErrorCode.KAFKA_STORAGE_ERROR
    assert await core.partitions.make_what_could_not_be_made() == [(key(1), 1)]
    assert not core.partitions.is_offline(key(1))
    assert isinstance(core.partitions.find("t", 0), Partition)


async def test_what_cannot_be_made_for_long_is_tried_at_longer_and_longer_distances(core, autojump_clock):
    for number in (1, 2):
        core.storage.refuses[key(number)] = PartitionNotMadeError("the journal fails")
    opened, tried, announced = core.storage.open, {key(1): [], key(2): []}, []

    async def noted(wanted, *about):
        tried[wanted].append(trio.current_time())
        return await opened(wanted, *about)

    async def between_changes(change):
        return await change()

    async def announce(epochs):
        announced.extend(epochs)

    async def follow(_before, _after):
        pass

    core.storage.open = noted
    looking = SimpleNamespace(
        partitions=core.partitions, metadata=SimpleNamespace(between_changes=between_changes),
        coordinators=SimpleNamespace(follow=follow), view=core.view, _announce=announce,
    )  # fmt: skip
    looking._make_missing = partial(Core._make_missing, looking)
    await core.follow(created(1, "t"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Core._make_missing_partitions, looking)
        await trio.sleep(19)
        await core.follow(created(2, "later"))
        await trio.sleep(41)
        assert 8 <= len(tried[key(1)]) <= 14
        distances = [later - before for before, later in itertools.pairwise(tried[key(1)])]
        assert max(distances) <= RETRY_S_MAX + 0.5
        core.storage.refuses.clear()
        with trio.fail_after(30):
            while len(announced) < 2:
                await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert sorted(announced) == [(key(1), 1), (key(2), 1)]


async def test_a_topic_that_could_not_be_made_and_is_deleted_is_not_tried_again(core):
    core.storage.refuses[key(1)] = PartitionNotMadeError("no space")
    await core.follow(created(1, "t"))
    await core.follow(TopicDeleted(key(1).topic_id))
    core.storage.refuses.clear()
    assert await core.partitions.make_what_could_not_be_made() == []


async def test_a_topic_made_again_under_its_name_opens_after_the_old_one_is_gone(core):
    await core.follow(created(1, "t"))
    old = core.partitions.find("t", 0)
    await old.append_durably(batch(0))
    await core.follow(TopicDeleted(key(1).topic_id), created(2, "t"))
    asked = [one for one in core.storage.asked if one[0] in ("delete", "open")]
    assert asked == [("open", key(1)), ("delete", key(1)), ("open", key(2))]
    assert not old.is_open
    with pytest.raises(PartitionOfflineError):
        old.bounds()
    assert core.advanced == [old.handle], "who waits there is woken"
    assert core.partitions.find("t", 0).bounds().log_end_offset == 0


async def test_settings_are_told_when_they_are_others(core):
    await core.follow(created(1, "t"))
    await core.follow(TopicConfigChanged(key(1).topic_id, "retention.ms", "5000"))
    await core.follow(BrokerConfigChanged(None, "log.cleaner.threads", "2"))
    assert [one for one in core.storage.asked if one[0] == "alter"] == [("alter", key(1), 5000, False)]


async def test_a_partition_that_is_given_up_has_no_leader_any_more(core):
    await core.follow(created(1, "t"))
    partition = core.partitions.find("t", 0)
    core.storage.give_up(key(1), "its disk")
    assert core.partitions.find("t", 0) is ErrorCode.KAFKA_STORAGE_ERROR
    assert (core.without_leader, core.advanced) == ([key(1)], [partition.handle])
    with pytest.raises(PartitionOfflineError):
        await partition.append_durably(batch(0))


async def test_of_epochs_that_begin_by_themselves_clients_hear_for_what_is_open(core):
    await core.follow(created(1, "t"), created(2, "gone"))
    core.storage.give_up(key(2), "its disk")
    core.storage.tell_epochs([(key(1), 2), (key(2), 2)])
    assert core.in_new_epochs == [(key(1), 2)]


async def test_an_append_of_the_brokers_own_returns_when_it_is_durable_and_is_read_then(core):
    await core.follow(created(1, "t"))
    partition = core.partitions.find("t", 0)
    core.plane.holds = True
    offsets = []
    async with trio.open_nursery() as nursery:

        async def append():
            offsets.append(await partition.append_durably(batch(0, [b"a", b"b"])))

        nursery.start_soon(append)
        await trio.testing.wait_all_tasks_blocked()
        assert offsets == []
        assert (partition.bounds().high_watermark, partition.bounds().log_end_offset) == (0, 2)
        core.plane.make_durable()
    assert offsets == [0]
    upto = partition.bounds().high_watermark
    data = await partition.read_bytes(1, upto, 1 << 20)
    assert decode_header(data).base_offset == 0, "the batch that holds the offset"
    core.storage.has_space = False
    with pytest.raises(PartitionOfflineError):
        await partition.append_durably(batch(0))


async def test_an_append_that_finds_the_journal_full_waits_until_there_is_room(core, autojump_clock):
    await core.follow(created(1, "t"))
    partition, room, attempts, append = core.partitions.find("t", 0), trio.Event(), [], core.plane.append

    def append_if_there_is_room(handle, data):
        attempts.append(trio.current_time())
        return append(handle, data) if room.is_set() else None

    core.plane.append, core.storage.wait_journal_room = append_if_there_is_room, room.wait
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partition.append_durably, batch(0))
        await trio.sleep(1)
        room.set()
    assert attempts == [attempts[0], attempts[0] + 1]


async def test_retention_takes_partitions_of_clients(core):
    await core.partitions.open_metadata_log()
    await core.follow(created(1, "t", owners=(0, 0)))
    assert await core.partitions.retain_all() == 2
    retained = [one[1] for one in core.storage.asked if one[0] == "retain"]
    assert sorted(retained) == [key(1, 0), key(1, 1)]
    assert core.storage.asked[-1] == ("purge_folders",)


async def delete_records(core, name, index, offset):
    asked = messages.DeleteRecordsRequest
    partition = asked.DeleteRecordsPartition(partition_index=index, offset=offset)
    message = asked(topics=[asked.DeleteRecordsTopic(name=name, partitions=[partition])], timeout_ms=1000)
    ((answer,),) = [topic.partitions for topic in (await handle_delete_records(core, None, message)).topics]
    return ErrorCode(answer.error_code), answer.low_watermark


async def test_delete_records_moves_the_start_of_the_log_within_what_is_durable(core):
    await core.follow(created(1, "t"), created(2, "__consumer_offsets"), created(3, "c", cleanup_policy="compact"))
    partition = core.partitions.find("t", 0)
    for _ in range(3):
        await partition.append_durably(batch(0, [b"a", b"b"]))
    assert await delete_records(core, "t", 0, 3) == (ErrorCode.NONE, 3)
    assert await delete_records(core, "t", 0, 2) == (ErrorCode.NONE, 3), "it never goes back"
    assert await delete_records(core, "t", 0, 7) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await delete_records(core, "t", 0, -1) == (ErrorCode.NONE, 6), "up to the high watermark"
    with pytest.raises(OffsetOutOfRangeError):
        await partition.read(3, 6, 1, at_least_one=True)
    assert await delete_records(core, "t", 1, 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert await delete_records(core, "__consumer_offsets", 0, 0) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
    assert await delete_records(core, "c", 0, 0) == (ErrorCode.POLICY_VIOLATION, -1)
    core.storage.give_up(key(1), "its disk")
    assert await delete_records(core, "t", 0, 0) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
