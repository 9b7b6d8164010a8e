"""ListOffsets, OffsetForLeaderEpoch and reads while records are deleted, on cores in memory."""

from __future__ import annotations

import trio.testing

from tests.support.memory_clients import create_topic, fetch_request, fetched, owner_of, produce
from tests.support.memory_node import running_node
from tests.support.record_batches import GZIP
from tests.support.record_batches import Record as PackedRecord
from tests.support.record_batches import batch as packed
from tpc_broker.broker.producers_port import KnownAborted
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.log.batch import BatchDamageError

NONE = ErrorCode.NONE
LATEST, EARLIEST, LARGEST = -1, -2, -3
SEGMENT_GONE = FileNotFoundError("a segment, for a test")


async def list_offset(node, core, name, index, timestamp, *, version=9, isolation_level=0, epoch=-1):
    """Error, offset, timestamp, leader epoch."""
    kind = messages.ListOffsetsRequest
    asked = kind.ListOffsetsPartition(partition_index=index, timestamp=timestamp, current_leader_epoch=epoch)
    topics = [kind.ListOffsetsTopic(name=name, partitions=[asked])]
    answer = await node.ask(core, kind(replica_id=-1, isolation_level=isolation_level, topics=topics), version)
    (found,) = answer.topics[0].partitions
    return ErrorCode(found.error_code), found.offset, found.timestamp, found.leader_epoch


async def delete_records(node, core, name, index, offset):
    kind = messages.DeleteRecordsRequest
    asked = kind.DeleteRecordsPartition(partition_index=index, offset=offset)
    message = kind(topics=[kind.DeleteRecordsTopic(name=name, partitions=[asked])], timeout_ms=1000)
    (found,) = (await node.ask(core, message, connection=9)).topics[0].partitions
    return ErrorCode(found.error_code), found.low_watermark


async def with_records(node, stamps=(100, 300, 200, 300)):
    """Two records with each time stamp."""
    await create_topic(node, 0, "t", 1)
    for stamp in stamps:
        assert (await produce(node, 0, "t", 0, [b"a", b"b"], timestamp=stamp))[0] is NONE
    return node[0].partitions.find("t", 0)


async def test_offsets_by_time_and_the_ends_of_a_log(autojump_clock):
    async with running_node(cores=1) as node:
        await with_records(node)
        wanted = {
            LATEST: (8, -1), EARLIEST: (0, -1), LARGEST: (2, 300),
            0: (0, 100), 101: (2, 300), 300: (2, 300), 301: (-1, -1),
        }  # fmt: skip
        for timestamp, (offset, found) in wanted.items():
            epoch = -1 if offset == -1 else 1
            assert await list_offset(node, 0, "t", 0, timestamp) == (NONE, offset, found, epoch), timestamp
        assert await delete_records(node, 0, "t", 0, 5) == (NONE, 5)
        for timestamp, offset in {EARLIEST: 5, LARGEST: 6, 0: 5, 250: 6}.items():
            assert (await list_offset(node, 0, "t", 0, timestamp))[:2] == (NONE, offset), timestamp
        await delete_records(node, 0, "t", 0, -1)
        assert (await list_offset(node, 0, "t", 0, LARGEST))[:2] == (NONE, -1)


async def test_what_is_not_durable_is_not_listed(autojump_clock):
    async with running_node(cores=1) as node:
        await with_records(node)
        node.lives[0].plane.holds = True
        node[0].plane.append(node[0].partitions.find("t", 0).handle, node[0].plane.logs[2].batches[1])
        for timestamp, offset in {LATEST: 8, LARGEST: 2}.items():
            assert (await list_offset(node, 0, "t", 0, timestamp))[:2] == (NONE, offset)


async def test_questions_about_offsets_are_refused_with_their_reason(autojump_clock):
    async with running_node() as node:
        await create_topic(node, 0, "t", 4)
        here, there = (next(one for one in range(4) if owner_of(node, "t", one) == core) for core in (0, 1))
        assert (await list_offset(node, 0, "t", there, LATEST))[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await list_offset(node, 0, "t", 9, LATEST))[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await list_offset(node, 0, "t", here, LATEST, epoch=0))[0] is ErrorCode.FENCED_LEADER_EPOCH
        assert (await list_offset(node, 0, "t", here, LATEST, epoch=2))[0] is ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await list_offset(node, 0, "t", here, LARGEST, version=6))[0] is ErrorCode.UNSUPPORTED_VERSION
        assert (await list_offset(node, 0, "t", here, -7))[0] is ErrorCode.UNSUPPORTED_VERSION
        node.lives[0].storage.give_up(node[0].partitions.find("t", here).key, "its disk")
        assert (await list_offset(node, 0, "t", here, LATEST))[0] is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_search_goes_on_when_what_it_looks_at_is_deleted(autojump_clock):
    async with running_node(cores=1) as node:
        partition = await with_records(node)

        async def delete_then_find_nothing(*_asked):
            if partition.bounds().log_start_offset < 4:
                await delete_records(node, 0, "t", 0, 4)
                raise SEGMENT_GONE

        partition.files.offset_for_timestamp = partition.files.largest_timestamp = delete_then_find_nothing
        assert (await list_offset(node, 0, "t", 0, 300))[:2] == (NONE, 6)
        partition.files.log.log_start_offset = 0
        assert (await list_offset(node, 0, "t", 0, LARGEST))[:2] == (NONE, 6)

        async def fail(*_asked):
            raise SEGMENT_GONE

        partition.files.offset_for_timestamp = fail
        assert (await list_offset(node, 0, "t", 0, 300))[0] is ErrorCode.KAFKA_STORAGE_ERROR
        assert not node.lives[0].connections.closed


async def test_a_search_through_records_that_cannot_be_unpacked_says_so(autojump_clock, caplog):
    """As a producer may have sent them: a batch's checksum says nothing of what is compressed in it."""
    async with running_node(cores=1) as node:
        await with_records(node)
        batches = node[0].plane.logs[2].batches
        batches[1] = batches[1][:22] + bytes([1]) + batches[1][23:]
        assert (await list_offset(node, 0, "t", 0, 300))[0] is ErrorCode.CORRUPT_MESSAGE
        assert (await list_offset(node, 0, "t", 0, 100))[:2] == (NONE, 0)
        assert (await list_offset(node, 0, "t", 0, LATEST))[:2] == (NONE, 8)
        assert not node.lives[0].connections.closed
        assert "cannot be read: t-0: " in caplog.text


async def test_a_search_through_a_batch_that_unpacks_to_too_much_says_whose_doing_that_is(autojump_clock, caplog):
    latest_ms = 1_700_000_000_000
    large = packed([PackedRecord(bytes(5000), b"k"), PackedRecord(b"", b"k")], base_offset=2, codec=GZIP)
    for settings, found in ((), (NONE, 2)), (("max.decompressed.message.bytes=1000",), (ErrorCode.INVALID_RECORD, -1)):
        async with running_node(cores=1, settings=settings) as node:
            await with_records(node)
            node[0].plane.logs[2].batches[1] = large
            assert (await list_offset(node, 0, "t", 0, latest_ms))[:2] == found
            assert (await list_offset(node, 0, "t", 0, LARGEST))[:2] == found
            assert (await list_offset(node, 0, "t", 0, 100))[:2] == (NONE, 0)
    assert "t-0 cannot be searched for a time stamp: the batch at offset 2: gzip data" in caplog.text
    assert "cannot be read" not in caplog.text, "it is no damage"


def lets_segments_tell_what_was_aborted(core, partition):
    """Those whose indexes are not loaded."""
    core.plane.aborted = lambda _handle, _offset, _upto: KnownAborted([], 8, 0)
    partition.files.aborted_now = lambda *_asked: None


async def test_damaged_batches_are_an_error_of_their_partition(autojump_clock):
    async with running_node(cores=1) as node:
        partition = await with_records(node)

        async def find_damage(*_asked):
            raise BatchDamageError("batch at 12: a length of 0")

        read, node[0].plane.read = node[0].plane.read, lambda *_asked: None
        partition.files.read_once = find_damage
        assert fetched(await node.ask(0, fetch_request("t", 0, 0), 12))[0] is ErrorCode.CORRUPT_MESSAGE
        assert (await list_offset(node, 0, "t", 0, 300))[0] is ErrorCode.CORRUPT_MESSAGE
        partition.files.load_aborted = find_damage
        lets_segments_tell_what_was_aborted(node[0], partition)
        node[0].plane.read = read
        asked = fetch_request("t", 0, 8)
        asked.isolation_level = 1
        assert fetched(await node.ask(0, asked, 12))[0] is NONE
        asked.topics[0].partitions[0].fetch_offset = 2
        assert fetched(await node.ask(0, asked, 12))[0] is ErrorCode.CORRUPT_MESSAGE
        assert not node.lives[0].connections.closed


async def test_a_reader_of_committed_records_is_told_when_what_it_asks_for_is_deleted(autojump_clock):
    async with running_node(cores=1) as node:
        partition = await with_records(node)
        lets_segments_tell_what_was_aborted(node[0], partition)

        async def delete_and_miss(*_asked):
            await delete_records(node, 0, "t", 0, 4)
            raise LookupError("offset 0 lies in front of 4")

        partition.files.load_aborted = delete_and_miss
        asked = fetch_request("t", 0, 0)
        asked.isolation_level = 1
        assert fetched(await node.ask(0, asked, 12))[0] is ErrorCode.OFFSET_OUT_OF_RANGE
        assert not node.lives[0].connections.closed


async def test_epochs_end_where_the_next_one_began(autojump_clock):
    async with running_node(cores=1) as node:
        await with_records(node)
        await node.restart(0)
        await produce(node, 0, "t", 0, [b"c"])
        kind = messages.OffsetForLeaderEpochRequest

        async def end_of(epoch, current=-1):
            asked = kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
            message = kind(replica_id=-1, topics=[kind.OffsetForLeaderTopic(topic="t", partitions=[asked])])
            (found,) = (await node.ask(0, message)).topics[0].partitions
            return ErrorCode(found.error_code), found.leader_epoch, found.end_offset

        assert await end_of(1) == (NONE, 1, 8)
        assert await end_of(2) == (NONE, 2, 9)
        assert await end_of(3) == (NONE, -1, -1)
        assert (await end_of(1, current=1))[0] is ErrorCode.FENCED_LEADER_EPOCH
        await trio.testing.wait_all_tasks_blocked()
