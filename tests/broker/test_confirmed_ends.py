"""What is told of where a log ends, by a leader of replicas: only behind a quorum's word (raft-rules 7.2)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio

from tests.broker.test_offsets import EARLIEST, LARGEST, LATEST, delete_records, list_offset
from tests.support.memory_clients import create_topic, fetch_of_several, fetch_request, fetched, produce
from tests.support.memory_node import running_node
from tpc_broker.broker.confirmed import BESIDE_S, CONFIRM_S, confirm
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

NONE, REFUSED = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
EPOCH = 1
RECORDS = 4
SAYS = [(True, 0.1), (False, 0.1), (None, CONFIRM_S)]
"""Whether a quorum follows it, and after how long that is known; None: nobody answers."""
IDS = ["a quorum follows it", "another one leads", "nobody answers"]


class Quorum:
    """Of the only partition. `then`: what happens meanwhile."""

    def __init__(self, says):
        self.says, self.asked = says, 0
        self.then = lambda: None

    async def confirm(self, _key):
        self.asked += 1
        await trio.sleep(60 if self.says is None else 0.1)
        self.then()
        return self.says


@asynccontextmanager
async def leader_of_replicas(says=True, others=0):
    """A node with `RECORDS` records in a partition that it leads in `EPOCH`, and the quorum of that. `others`: so many
    more partitions of its topic without replicas, of which all but the last hold a record.
    """
    quorum = Quorum(says)
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", 1 + others)
        await produce(node, 0, "t", 0, [b"v"] * RECORDS)
        for index in range(1, others):
            await produce(node, 0, "t", index, [b"v"])
        core, partition = node[0], node[0].partitions.find("t", 0)
        partition.is_replicated, partition.led_epoch = True, EPOCH
        core.partitions._replicated = lambda *_which: partition
        core.replicated = SimpleNamespace(
            replication=SimpleNamespace(leaderships=quorum),
            near=SimpleNamespace(preferred=lambda *_asked: None),
            is_between_leaders=lambda *_: False,
        )
        yield node, partition, quorum
        core.replicated, partition.is_replicated = None, False


async def end_of_epoch(node, epoch):
    kind = messages.OffsetForLeaderEpochRequest
    asked = kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
    message = kind(replica_id=-1, topics=[kind.OffsetForLeaderTopic(topic="t", partitions=[asked])])
    (found,) = (await node.ask(0, message)).topics[0].partitions
    return ErrorCode(found.error_code), found.leader_epoch, found.end_offset


async def fetch_error(node, offset):
    return fetched(await node.ask(0, fetch_request("t", 0, offset), 12))[0]


@pytest.mark.parametrize(("says", "took_s"), SAYS, ids=IDS)
async def test_that_an_offset_is_nowhere_a_quorum_says(says, took_s, autojump_clock):
    async with leader_of_replicas(says) as (node, partition, quorum):
        begun_s = trio.current_time()
        assert await fetch_error(node, RECORDS + 1) is (ErrorCode.OFFSET_OUT_OF_RANGE if says else REFUSED)
        assert trio.current_time() - begun_s == pytest.approx(took_s, abs=0.05)
        partition.files.log.log_start_offset = 2
        assert await fetch_error(node, 1) is (ErrorCode.OFFSET_OUT_OF_RANGE if says else REFUSED)
        assert quorum.asked == 2
        assert await fetch_error(node, 2) is NONE
        assert quorum.asked == 2, "what it has it gives"


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside others without records"])
async def test_who_waits_for_a_quorum_holds_no_memory(others, autojump_clock):
    async with leader_of_replicas(others=others) as (node, _partition, quorum):
        reserved = []
        quorum.then = lambda: reserved.extend(fetch.is_reserved for fetch in node[0].plane.fetches)
        await node.ask(0, fetch_of_several("t", {0: RECORDS + 1, 1: 0} if others else {0: RECORDS + 1}), 12)
        assert reserved == [False]


@pytest.mark.parametrize(("says", "took_s"), [*SAYS[:2], (None, BESIDE_S)], ids=IDS)
async def test_what_others_have_waits_for_a_quorum_no_longer_than_for_a_few_rounds(says, took_s, autojump_clock):
    async with leader_of_replicas(says, others=2) as (node, _partition, quorum):
        begun_s = trio.current_time()
        answer = await node.ask(0, fetch_of_several("t", {0: RECORDS + 1, 1: 0, 2: 0}), 12)
        assert trio.current_time() - begun_s == pytest.approx(took_s, abs=0.05)
        doubted, full, empty = answer.responses[0].partitions
        assert doubted.error_code == (ErrorCode.OFFSET_OUT_OF_RANGE if says else REFUSED)
        assert not full.error_code
        assert full.records
        assert (empty.error_code, bytes(empty.records)) == (NONE, b"")
        assert quorum.asked == 1


@pytest.mark.parametrize(("says", "took_s"), SAYS, ids=IDS)
async def test_where_a_log_ends_a_quorum_says(says, took_s, autojump_clock):
    async with leader_of_replicas(says) as (node, _partition, _quorum):
        begun_s = trio.current_time()
        assert (await list_offset(node, 0, "t", 0, LATEST))[:2] == ((NONE, RECORDS) if says else (REFUSED, -1))
        assert trio.current_time() - begun_s == pytest.approx(took_s, abs=0.05)
        for timestamp, offset in {LARGEST: 0, 1: 0, 1 << 50: -1}.items():
            found = (await list_offset(node, 0, "t", 0, timestamp))[:2]
            assert found == ((NONE, offset) if says else (REFUSED, -1)), timestamp
        for epoch, end in {EPOCH: (EPOCH, RECORDS), EPOCH + 1: (-1, -1)}.items():
            assert await end_of_epoch(node, epoch) == ((NONE, *end) if says else (REFUSED, -1, -1))


async def test_where_a_log_starts_needs_no_quorum(autojump_clock):
    async with leader_of_replicas(says=None) as (node, _partition, quorum):
        assert (await list_offset(node, 0, "t", 0, EARLIEST))[:2] == (NONE, 0)
        assert not quorum.asked


@pytest.mark.parametrize(("says", "_took_s"), SAYS, ids=IDS)
async def test_what_is_to_be_deleted_is_out_of_range_by_a_quorums_word(says, _took_s, autojump_clock):
    async with leader_of_replicas(says) as (node, _partition, _quorum):
        wanted = (ErrorCode.OFFSET_OUT_OF_RANGE, -1) if says else (REFUSED, -1)
        assert await delete_records(node, 0, "t", 0, RECORDS + 1) == wanted
        assert await delete_records(node, 0, "t", 0, -1) == ((NONE, RECORDS) if says else (REFUSED, -1))


async def test_what_was_read_before_the_quorum_spoke_is_read_again(autojump_clock):
    async with leader_of_replicas() as (node, partition, quorum):

        def grow():
            quorum.then = lambda: None
            data = node[0].plane.logs[partition.handle].batches[0]
            node[0].plane.append(partition.handle, data)

        quorum.then = grow
        assert (await list_offset(node, 0, "t", 0, LATEST))[:2] == (NONE, 2 * RECORDS)
        quorum.then = grow
        assert await fetch_error(node, 2 * RECORDS + 1) is NONE, "it has it by now"


async def test_a_quorums_word_is_for_the_epoch_that_it_was_said_of(autojump_clock):
    async with leader_of_replicas() as (node, partition, _quorum):
        confirmed = await confirm(node[0], [partition])
        assert confirmed.has(partition)
        partition.led_epoch = EPOCH + 1
        assert not confirmed.has(partition), "its log may have been cut meanwhile"
        partition.led_epoch = None
        assert not confirmed.has(partition)
        partition.is_replicated = False
        assert confirmed.has(partition), "it has no quorum"


async def test_a_leadership_that_ends_while_a_quorum_is_asked_is_not_confirmed(autojump_clock):
    async with leader_of_replicas() as (node, partition, quorum):
        quorum.then = lambda: setattr(partition, "led_epoch", None)
        assert await fetch_error(node, RECORDS + 1) is REFUSED
        partition.led_epoch = EPOCH
        assert (await list_offset(node, 0, "t", 0, LATEST))[0] is REFUSED
