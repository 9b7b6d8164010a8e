"""TxnOffsetCommit, and OffsetFetch of stable offsets, on cores in memory. What knows of transactions is played here."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from tests.broker.test_group_service import SETTINGS, log_of_groups, with_group
from tests.support.memory_clients import create_topic, delete_topic
from tests.support.memory_node import running_node
from tpc_broker.broker.producers_port import EndMarker
from tpc_broker.coordinator import Producer, TransactionEnd
from tpc_broker.coordinator.messages import MarkerResponse
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.feature_levels import FIRST_WITH_TRANSACTIONS, Levels
from tpc_broker.kafka import messages
from tpc_broker.kafka.records import read_batches
from tpc_broker.metadata import image

NONE, UNSTABLE = ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT
A = Producer(7, 3)


class Transactions:
    """What is answered about them, and what was asked. `holds`: answers wait for `answered`."""

    def __init__(self):
        self.answer, self.asked, self.held = NONE, [], None

    async def verify(self, *asked):
        self.asked.append(asked)
        answer = self.answer
        if self.held is not None:
            await self.held.wait()
        else:
            await trio.lowlevel.checkpoint()
        return answer


class Sender:
    """Of `A`'s transactional offsets for group `g`, to its coordinator."""

    def __init__(self, node, member):
        self.node, self.member, self.transactions = node, member, Transactions()
        self.of_nobody, self.groups.verify_offsets = self.groups.verify_offsets, self.transactions.verify

    @property
    def groups(self):
        return self.node[self.member.coordinator()].groups

    async def send(self, *offsets, topic="t", version=5, group="g", epoch=A.producer_epoch, core=None, **details):
        """Errors by partition, of (partition, offset)."""
        kind = messages.TxnOffsetCommitRequest
        partitions = [
            kind.TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
            for index, offset in offsets
        ]
        named = {"topic_id": topic} if version >= 6 else {"name": topic}
        message = kind(
            transactional_id="a", group_id=group, producer_id=A.producer_id, producer_epoch=epoch,
            topics=[kind.TxnOffsetCommitRequestTopic(partitions=partitions, **named)], **details,
        )  # fmt: skip
        number = self.member.coordinator() if core is None else core
        answer = await self.node.ask(number, message, version, connection=20)
        if answer is None:
            return None
        return {one.partition_index: ErrorCode(one.error_code) for one in answer.topics[0].partitions}

    async def end(self, *, commit, coordinator_epoch=1, epoch=A.producer_epoch, version=0):
        driver = self.groups.coordinator_of("g")
        end = TransactionEnd(A._replace(producer_epoch=epoch), commit, coordinator_epoch, version)
        return await driver.call(MarkerResponse, lambda token, _now_ms: driver.machine.marker(end, token))

    async def told(self, *, version=9, stable=True):
        """Offset or error, by partition."""
        kind = messages.OffsetFetchRequest
        if version < 8:
            topics = [kind.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
            message = kind(group_id="g", topics=topics, require_stable=stable)
            answer = await self.node.ask(self.member.coordinator(), message, version, connection=21)
        else:
            topics = [kind.OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])]
            message = kind(groups=[kind.OffsetFetchRequestGroup(group_id="g", topics=topics)], require_stable=stable)
            answer = (await self.node.ask(self.member.coordinator(), message, version, connection=21)).groups[0]
        partitions = answer.topics[0].partitions
        return {one.partition_index: ErrorCode(one.error_code) or one.committed_offset for one in partitions}


@asynccontextmanager
async def sending(level, monkeypatch):
    monkeypatch.setattr(image, "SPOKEN", Levels(2, level))
    async with running_node(settings=SETTINGS) as node:
        yield Sender(node, await with_group(node))


@pytest.fixture
async def sender(monkeypatch, autojump_clock):
    async with sending(FIRST_WITH_TRANSACTIONS, monkeypatch) as found:
        yield found


async def test_below_the_level_of_transactions_it_is_not_offered(monkeypatch, autojump_clock):
    async with sending(FIRST_WITH_TRANSACTIONS - 1, monkeypatch) as sender:
        assert await sender.send((0, 5)) is None
        versions = await sender.node.ask(0, messages.ApiVersionsRequest(), 2)
        assert 28 not in {each.api_key for each in versions.api_keys}


async def test_it_is_told_of_from_its_level_on(sender):
    versions = await sender.node.ask(0, messages.ApiVersionsRequest(), 2)
    assert 28 in {each.api_key for each in versions.api_keys}


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [False, True])
async def test_offsets_are_unstable_until_the_marker(commit, version, sender):
    assert await sender.member.commit("t", {0: 1}) == {0: NONE}
    assert await sender.send((0, 5), (1, 6), version=version) == {0: NONE, 1: NONE}
    assert sender.transactions.asked == [("a", A, "g", version)]
    for fetch_version in (7, 9):
        assert await sender.told(version=fetch_version) == {0: UNSTABLE, 1: UNSTABLE}
        assert await sender.told(version=fetch_version, stable=False) == {0: 1, 1: -1}
    assert (await sender.end(commit=commit)).error_code is NONE
    assert await sender.told() == ({0: 5, 1: 6} if commit else {0: 1, 1: -1})
    log = log_of_groups(sender.node[sender.member.coordinator()])
    batches = [batch for data in log.files.log.batches for batch in read_batches(data)]
    shapes = [(each.is_transactional, each.is_control, each.producer_id, each.producer_epoch) for each in batches]
    assert shapes[-2:] == [(True, False, *A), (True, True, *A)]


async def test_topics_may_be_named_by_their_ids(sender):
    topic_id = sender.node[0].view.topic("t").topic_id
    assert await sender.send((0, 5), topic=topic_id.bytes, version=6) == {0: NONE}
    assert await sender.send((0, 5), topic=bytes(15) + b"\x01", version=6) == {0: ErrorCode.UNKNOWN_TOPIC_ID}
    await sender.end(commit=True)
    assert await sender.told() == {0: 5, 1: -1}


async def test_what_is_not_there_is_refused_by_itself(sender):
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await sender.send((0, 5), (9, 5)) == {0: NONE, 9: unknown}
    assert await sender.send((0, 5), topic="other") == {0: unknown}
    assert len(sender.transactions.asked) == 1
    assert await sender.send((0, 5), group="") == {0: ErrorCode.INVALID_GROUP_ID}
    other = 1 - sender.member.coordinator()
    assert await sender.send((0, 5), core=other) == {0: ErrorCode.NOT_COORDINATOR}
    who = {"member_id": "m", "generation_id_or_member_epoch": 1}
    assert await sender.send((0, 5), **who) == {0: ErrorCode.UNKNOWN_MEMBER_ID}


@pytest.mark.parametrize(
    ("answer", "version", "told"),
    [
        (ErrorCode.INVALID_PRODUCER_EPOCH, 5, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.PRODUCER_FENCED, 5, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, 3, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.NETWORK_EXCEPTION, 5, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
async def test_a_transaction_that_is_not_open_is_refused_and_writes_nothing(answer, version, told, sender):
    sender.transactions.answer = answer
    assert await sender.send((0, 5), (9, 5), version=version) == {0: told, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert await sender.told() == {0: -1, 1: -1}


async def test_nobody_is_asked_where_there_are_no_transactions(sender):
    sender.groups.verify_offsets = sender.of_nobody
    assert await sender.send((0, 5)) == {0: ErrorCode.COORDINATOR_NOT_AVAILABLE}


async def test_a_transaction_that_is_open_here_is_not_asked_about_again_until_its_marker(sender):
    for _ in range(2):
        assert await sender.send((0, 5)) == {0: NONE}
    assert len(sender.transactions.asked) == 1
    assert await sender.send((0, 5), epoch=4) == {0: NONE}
    assert len(sender.transactions.asked) == 2, "of another epoch"
    await sender.end(commit=True)
    await sender.send((0, 5))
    assert len(sender.transactions.asked) == 3


async def test_what_was_verified_is_asked_about_again_when_a_marker_came_meanwhile(sender):
    """Else it would open another transaction, which nobody ends."""
    transactions, told = sender.transactions, []
    transactions.held = trio.Event()

    async def send():
        told.append(await sender.send((0, 5)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        assert (await sender.end(commit=False)).error_code is NONE
        transactions.answer = ErrorCode.INVALID_TXN_STATE
        transactions.held.set()
    assert told == [{0: ErrorCode.INVALID_TXN_STATE}]
    assert len(transactions.asked) == 2
    assert await sender.told() == {0: -1, 1: -1}


async def test_what_changed_while_it_was_verified_counts(sender):
    transactions, told = sender.transactions, []

    async def send(**how):
        told.append(await sender.send((0, 5), **how))

    for topic, change in (("gone", "topic"), ("t", "coordinator")):
        await create_topic(sender.node, 0, "gone", 1)
        transactions.held = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda topic=topic: send(topic=topic))
            await trio.testing.wait_all_tasks_blocked()
            if change == "topic":
                await delete_topic(sender.node, 0, "gone")
            else:
                sender.groups.end(sender.groups._key_of("g"))
            transactions.held.set()
    assert told == [{0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}, {0: ErrorCode.NOT_COORDINATOR}]


async def test_a_marker_of_the_past_ends_nothing(sender):
    """Of a coordinator that another one has followed; of an epoch that was; and of one that does not raise it."""
    await sender.send((0, 5))
    assert (await sender.end(commit=True, coordinator_epoch=2)).error_code is NONE
    await sender.send((0, 6))
    fenced, old = ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await sender.end(commit=False, coordinator_epoch=1)).error_code is fenced
    assert (await sender.end(commit=False, coordinator_epoch=2, epoch=A.producer_epoch - 1)).error_code is old
    assert (await sender.end(commit=False, coordinator_epoch=2, version=2)).error_code is old
    assert await sender.told() == {0: UNSTABLE, 1: -1}
    last = await sender.end(commit=True, coordinator_epoch=2, epoch=A.producer_epoch + 1, version=2)
    assert last.error_code is NONE
    assert await sender.told() == {0: 6, 1: -1}


async def test_of_markers_that_are_written_together_each_is_judged_by_itself(sender):
    node = sender.node
    plane = node.lives[sender.member.coordinator()].plane
    await sender.send((0, 5))
    await sender.end(commit=True, coordinator_epoch=2)
    await sender.send((0, 6))
    codes = []

    async def end(**how):
        codes.append((how["coordinator_epoch"], (await sender.end(**how)).error_code))

    plane.holds = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.member.commit, "t", {1: 1})  # the disk is busy
        await trio.testing.wait_all_tasks_blocked()
        for coordinator_epoch, commit in ((1, False), (3, True), (2, False)):
            nursery.start_soon(partial(end, coordinator_epoch=coordinator_epoch, commit=commit))
            await trio.testing.wait_all_tasks_blocked()
        plane.holds = False
        plane.make_durable()
    fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert dict(codes) == {1: fenced, 2: fenced, 3: NONE}
    assert await sender.told() == {0: 6, 1: 1}


async def test_markers_for_which_there_is_no_room_are_not_written_and_those_before_them_are(sender, monkeypatch):
    await sender.send((0, 5))
    core = sender.node[sender.member.coordinator()]
    log = log_of_groups(core)
    rooms, make_room, plane = [None, OSError("no space")], log._storage.make_room, core.plane

    async def make_room_once(*arguments):
        error = rooms.pop(0)
        if error is not None:
            raise error
        await make_room(*arguments)

    monkeypatch.setattr(log._storage, "make_room", make_room_once)
    markers = [EndMarker(each, 0, 1, True, 0) for each in (50, 51, 52)]
    plane.holds, told = True, []

    async def append():
        told.append(await log.append_markers(markers))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(append)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [], "the first one is not durable"
        plane.make_durable()
    assert told == [[NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR]]
    assert [each.producer_id for each in plane.producers(log.handle, 100)] == [A.producer_id, 50]
    rooms[:] = [OSError("no space")]
    with pytest.raises(PartitionOfflineError, match="no space"):
        await log.append_markers(markers)
