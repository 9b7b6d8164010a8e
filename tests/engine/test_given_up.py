"""A partition that is given up at run time is told to clients as one that was offline at the start is."""

from __future__ import annotations

from types import SimpleNamespace

import trio

from tests.engine.faults import BrokenJournal
from tests.engine.in_place_core import Bench, on_core
from tests.engine.test_trouble import wait_until
from tpc_broker.broker.core import Core
from tpc_broker.broker.core_ground import CoreIdentity
from tpc_broker.broker.handlers.metadata import GROUP_KEY, _coordinator, _topic_metadata
from tpc_broker.broker.handlers.table import APIS
from tpc_broker.coordinator.messages import OffsetCommitRequest, OffsetCommitResponse, OffsetToCommit
from tpc_broker.engine.mailbox import Mailboxes, make_mailbox_listeners
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import PartitionNotMadeError, PartitionOfflineError
from tpc_broker.metadata.controller import Controller, DeletableTopic, GrowableTopic
from tpc_broker.metadata.listeners import Address, Listener, ListenerMode
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId
from tpc_broker.process.assembly import SystemChance

ADDRESSES = (Address("127.0.0.1", 9092),)
LISTENER = Listener("PLAINTEXT", ListenerMode.PER_CORE_PORT, ADDRESSES, ADDRESSES)


class BrokerBench(Bench):
    """A broker of one core instead of one partition; nobody is connected to it."""

    async def open(self) -> None:
        pass

    async def start(self, nursery: trio.Nursery) -> Core:
        names, (listener,) = make_mailbox_listeners(1)
        mailboxes = Mailboxes(CoreId(0), names, listener)
        settings = load_settings("", ("offsets.topic.num.partitions=1",))
        core = Core(
            CoreIdentity(CoreId(0), 1, (LISTENER,), self.storage._data, "cluster"), settings,
            apis=APIS, connections=self.core.connections, plane=self.plane, storage=self.storage, disk=self.core.disk,
            mailboxes=mailboxes, clock=self.core.clock, chance=SystemChance(), nursery=nursery,
        )  # fmt: skip
        core.serve_metadata_calls()
        await nursery.start(mailboxes.run)
        await core.start()
        nursery.start_soon(self.storage.run_maintenance)
        await core._serve_create_topic(CoreId(0), {"name": "topic"}, [])
        return core


def told(core: Core):
    (partition,) = _topic_metadata(core, SimpleNamespace(listener=0), core.view.topic("topic")).partitions
    return partition.error_code, partition.leader_id, partition.offline_replicas


def with_broker(tmp_path, body):
    async def main(bench):
        async with trio.open_nursery() as nursery:
            await body(bench, await bench.start(nursery))
            nursery.cancel_scope.cancel()

    on_core(tmp_path, main, BrokerBench)


def give_up(bench: BrokerBench, partition) -> None:
    """As the mending does with files that cannot be written again."""
    partition.files.fail("a sync that failed")
    bench.storage._mending._give_up(bench.storage._partitions.led[partition.handle], "for a test")


async def delete_topic(core):
    await core.metadata.change(
        lambda image: Controller(image, core.configuration).delete_topics([DeletableTopic(name="topic")])
    )


def test_a_partition_that_is_given_up_is_among_the_offline_replicas_at_once(tmp_path):
    async def body(bench, core):
        partition = core.partitions.find("topic", 0)
        assert told(core) == (ErrorCode.NONE, core.broker_id, [])
        give_up(bench, partition)
        assert core.partitions.find("topic", 0) is ErrorCode.KAFKA_STORAGE_ERROR
        await wait_until(lambda: told(core) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, [core.broker_id]))
        bench.storage._requests.mend.ask()
        await wait_until(lambda: partition.key in bench.storage._recovered.offline)
        assert told(core)[2] == [core.broker_id]
        await delete_topic(core)
        await wait_until(lambda: not partition.files.folder.path.exists())

    with_broker(tmp_path, body)


def test_a_topic_is_deleted_whose_partition_was_given_up_and_not_set_aside(tmp_path):
    async def body(bench, core):
        partition = core.partitions.find("topic", 0)
        give_up(bench, partition)
        await delete_topic(core)
        await wait_until(lambda: not partition.files.folder.path.exists())
        assert partition.key not in bench.storage._partitions.storages
        assert not bench.storage._partitions.given_up

    with_broker(tmp_path, body)


def test_a_partition_that_was_given_up_and_not_set_aside_stays_offline_when_its_topic_changes(tmp_path):
    async def body(bench, core):
        partition = core.partitions.find("topic", 0)
        give_up(bench, partition)
        more = GrowableTopic(name="topic", count=2)
        await core.metadata.change(lambda image: Controller(image, core.configuration).create_partitions([more]))
        assert core.partitions.find("topic", 0) is ErrorCode.KAFKA_STORAGE_ERROR
        assert core.partitions.find("topic", 1).is_open

    with_broker(tmp_path, body)


def test_a_partition_that_a_stopped_journal_left_unopened_may_be_asked_for_again(tmp_path):
    async def body(bench, core):
        bench.plane.stop_journal()
        before = core.view.image
        more = GrowableTopic(name="topic", count=2)
        records, _results = Controller(before, core.configuration).create_partitions([more])
        after = before.apply(records, before.version + 1)
        for _ in range(2):  # the core ends; images may come until then
            assert await core.partitions.follow(before, after) == []

    with_broker(tmp_path, body)


def grown(core, count):
    """The image of now, and the one in which the topic has so many partitions."""
    before = core.view.image
    more = GrowableTopic(name="topic", count=count)
    records, _results = Controller(before, core.configuration).create_partitions([more])
    return before, before.apply(records, before.version + 1)


def test_a_folder_that_cannot_be_read_keeps_no_other_partition_from_being_opened(tmp_path):
    async def body(bench, core):
        unreadable = bench.storage._data / "topics" / "topic-1" / "partition.metadata"
        unreadable.mkdir(parents=True)  # reading it is an error, as on a bad disk or without descriptors
        before, core.view.image = grown(core, 3)
        opened = await core.partitions.follow(before, core.view.image)
        assert [key.partition for key, _epoch in opened] == [2]
        assert core.partitions.find("topic", 1) is ErrorCode.KAFKA_STORAGE_ERROR
        unreadable.rmdir()
        opened = await core.partitions.make_what_could_not_be_made()
        assert [key.partition for key, _epoch in opened] == [1]

    with_broker(tmp_path, body)


def without_topic(core):
    """The image of now, and the one in which the topic is deleted."""
    before = core.view.image
    records, _results = Controller(before, core.configuration).delete_topics([DeletableTopic(name="topic")])
    return before, before.apply(records, before.version + 1)


async def set_aside(bench, partition):
    give_up(bench, partition)
    bench.storage._requests.mend.ask()
    await wait_until(lambda: partition.key in bench.storage._recovered.offline)


def test_an_offline_partition_is_deleted_when_the_journal_works_again(tmp_path):
    async def body(bench, core):
        partition = core.partitions.find("topic", 0)
        await set_aside(bench, partition)
        before, core.view.image = without_topic(core)
        with BrokenJournal(bench):
            await core.partitions.follow(before, core.view.image)
            assert partition.files.folder.path.exists()
        await wait_until(lambda: not bench.storage.has(partition.key))
        assert not partition.files.folder.path.exists()

    with_broker(tmp_path, body)


def test_an_offline_partition_is_left_to_the_next_start_when_the_journal_has_stopped(tmp_path):
    async def body(bench, core):
        partition = core.partitions.find("topic", 0)
        await set_aside(bench, partition)
        bench.plane.stop_journal()
        before, core.view.image = without_topic(core)
        await core.partitions.follow(before, core.view.image)
        assert partition.files.folder.path.exists()

    with_broker(tmp_path, body)


def test_what_is_deleted_later_is_nothing_that_was_begun_anew_meanwhile(tmp_path):
    async def body(bench, core):
        partition, storage = core.partitions.find("topic", 0), bench.storage
        await set_aside(bench, partition)
        with BrokenJournal(bench):
            await storage.delete_offline(partition.key)
            assert storage._deletions._left
            left, storage._deletions._left = storage._deletions._left, {}
        await storage._mending.mend_once()
        await storage.delete_offline(partition.key)
        assert not storage.has(partition.key)
        config = core.partitions._config_of(core.view.topic("topic"))
        files = await storage.open(partition.key, "topic", config)
        await storage.begin_epoch(files)
        for delete in left.values():
            await delete()
        assert files.folder.path.exists()
        assert storage.has(partition.key)

    with_broker(tmp_path, body)


def commit(coordinator):
    offsets = (OffsetToCommit(topic="topic", partition=0, offset=5),)
    request = OffsetCommitRequest(group_id="group", offsets=offsets)
    return coordinator.call(
        OffsetCommitResponse, lambda token, now_ms: coordinator.machine.offset_commit(request, token, now_ms)
    )


async def coordinator_is_at(core):
    return (await _coordinator(core, SimpleNamespace(listener=0), GROUP_KEY, "group")).node_id


def test_groups_of_a_partition_that_is_given_up_have_no_coordinator_and_whoever_waits_is_answered(tmp_path):
    async def body(bench, core):
        await core.create_coordinators_topic("__consumer_offsets")
        await wait_until(lambda: not core.groups.is_loading)
        assert await coordinator_is_at(core) == core.broker_id
        partition, coordinator = core.partitions.find("__consumer_offsets", 0), core.groups.coordinator_of("group")
        writing, fails, answers = trio.Event(), trio.Event(), []

        async def append_durably(_batch):
            writing.set()
            await fails.wait()
            raise PartitionOfflineError("it is given up")

        partition.append_durably = append_durably
        async with trio.open_nursery() as nursery:

            async def wait_for_answer():
                answers.append(await commit(coordinator))

            nursery.start_soon(wait_for_answer)
            await writing.wait()
            fails.set()
            give_up(bench, partition)
            assert core.groups.coordinator_of("group") is ErrorCode.NOT_COORDINATOR
        assert [result.error_code for result in answers[0].partitions] == [ErrorCode.NOT_COORDINATOR]
        await wait_until(lambda: core.view.leader_epoch(partition.key) is None)
        assert await coordinator_is_at(core) == -1

    with_broker(tmp_path, body)


def test_a_partition_of_groups_that_is_made_later_has_a_coordinator(tmp_path, monkeypatch):
    async def body(bench, core):
        async def full(*_args):
            raise PartitionNotMadeError("no space")

        with monkeypatch.context() as patch:
            patch.setattr(bench.storage, "_make", full)
            await core.create_coordinators_topic("__consumer_offsets")
            assert core.groups.coordinator_of("group") is ErrorCode.NOT_COORDINATOR
        await wait_until(lambda: core.groups.coordinator_of("group") is not ErrorCode.NOT_COORDINATOR)

    with_broker(tmp_path, body)


def test_a_deletion_that_is_asked_for_again_while_the_journal_fails_is_left_once_and_told_once(tmp_path, caplog):
    async def body(bench, core):
        partition = core.partitions.find("topic", 0)
        await set_aside(bench, partition)
        with BrokenJournal(bench):
            for _ in range(5):
                await bench.storage.delete_offline(partition.key)
            assert len(bench.storage._deletions._left) == 1
        await wait_until(lambda: not bench.storage.has(partition.key))

    with_broker(tmp_path, body)
    assert sum("when the journal works again" in record.getMessage() for record in caplog.records) == 1
