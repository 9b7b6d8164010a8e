"""What groups may take: of one write, of what waits for the disk, of memory for what their members say."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
import trio.testing

from tests.broker.test_group_service import SETTINGS, log_of_groups, with_group
from tests.support.consumer_members import ConsumerMember
from tests.support.memory_clients import Member, create_topic, delete_topic
from tests.support.memory_node import running_node
from tpc_broker import limits
from tpc_broker.broker import group_service
from tpc_broker.coordinator import deletion, effects, machine
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.model import coordinator_partition

NONE = ErrorCode.NONE


def commit_request(member, topic, offsets, metadata=""):
    """`offsets` may name a partition several times."""
    kind = messages.OffsetCommitRequest
    partitions = [
        kind.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata=metadata)
        for index, offset in offsets
    ]
    topics = [kind.OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    return kind(group_id=member.group, generation_id_or_member_epoch=-1, member_id="", topics=topics)


async def commit_errors(member, *asked, **how):
    answer = await member.ask(commit_request(member, *asked, **how), 8)
    return {ErrorCode(one.error_code) for topic in answer.topics for one in topic.partitions}


def largest_batch(node, core):
    return max(len(one) for one in log_of_groups(node[core]).files.log.batches)


async def test_one_clients_largest_commit_is_written_or_refused_to_that_client_alone(autojump_clock):
    """A partition that is named again is one offset; more than can be written is refused, as by Kafka."""
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        await create_topic(node, 0, "wide", 2_500)
        text = "m" * 4_000
        assert await commit_errors(member, "t", [(0, offset) for offset in range(20_000)], metadata=text) == {NONE}
        assert await member.committed("t", [0]) == (NONE, {0: 19_999})
        everything = [(index, 1) for index in range(2_500)]
        assert await commit_errors(member, "wide", everything, metadata=text) == {ErrorCode.UNKNOWN_SERVER_ERROR}
        assert await commit_errors(member, "wide", everything[:2_000], metadata=text) == {NONE}
        assert (await member.committed("wide", [1_999, 2_000]))[1] == {1_999: 1, 2_000: -1}
        assert largest_batch(node, member.coordinator()) <= limits.OWN_BATCH_BYTES_MAX


async def test_commits_of_many_clients_are_not_joined_without_bound(autojump_clock):
    """While the disk is slow, what waits is bounded, and so is each batch that is made of it. Who finds no room is told
    to come back, whatever waits before it.
    """
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        await create_topic(node, 0, "wide", 2_000)
        number = member.coordinator()
        plane = node.lives[number].plane
        plane.holds = True
        told = []

        async def commit(connection):
            each = Member(node, member.group, connection)
            told.append(await commit_errors(each, "wide", [(index, 1) for index in range(2_000)], metadata="m" * 4_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, 20)
            await trio.testing.wait_all_tasks_blocked()  # it is with the disk already
            for connection in range(21, 32):
                nursery.start_soon(commit, connection)
            await trio.sleep(1)
            assert told == [{ErrorCode.COORDINATOR_NOT_AVAILABLE}] * 3
            while len(told) < 12:
                await trio.sleep(1)
                plane.make_durable()
        assert told[3:] == [{NONE}] * 9
        assert largest_batch(node, number) <= limits.OWN_BATCH_BYTES_MAX


async def test_assignments_that_cannot_be_written_are_refused_to_that_group_alone(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        assert await member.join() is NONE
        told = await member.sync({member.member_id: bytes(limits.OWN_BATCH_BYTES_MAX)})
        assert told is ErrorCode.UNKNOWN_SERVER_ERROR
        other = Member(node, "g", 11)
        other.group += "-" * next(n for n in range(1_000) if is_beside(member, "g" + "-" * n) and n)
        await other.begin()
        assert await other.heartbeat() is NONE


async def test_what_members_say_is_bounded_by_group_and_by_core(autojump_clock, monkeypatch):
    async with running_node(cores=1, settings=SETTINGS) as node:
        member = await with_group(node)
        large = Member(node, "large", 11)
        large.metadata = bytes(60 * limits.MIB)
        assert await large.join() is ErrorCode.GROUP_MAX_SIZE_REACHED
        monkeypatch.setattr(limits, "GROUPS_BYTES_MAX", 64 * limits.KIB)
        held = []
        for number in range(20):
            one = Member(node, f"g{number}", 20 + number)
            one.metadata = bytes(5_000)
            told = await one.join()
            if told is not NONE:
                break
            held.append(one)
        assert (told, len(held)) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, 10)
        assert await held[0].heartbeat() is NONE, "those who are in stay in"
        assert await held[0].join() is NONE, "also when they join again"
        assert node[0].groups.bytes_left() < 6_000
        await trio.sleep(20)  # their sessions are over
        assert node[0].groups.bytes_left() == limits.GROUPS_BYTES_MAX
        await member.begin()


async def test_ids_that_are_asked_for_and_never_used_are_bounded(autojump_clock, monkeypatch):
    async with running_node(cores=1, settings=SETTINGS) as node:
        await with_group(node)
        monkeypatch.setattr(limits, "GROUPS_BYTES_MAX", 64 * limits.KIB)
        kind = messages.JoinGroupRequest
        protocols = [kind.JoinGroupRequestProtocol(name="range", metadata=b"m")]
        asked = kind(group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=5_000, member_id="",
                     protocol_type="consumer", protocols=protocols)  # fmt: skip
        told = Counter([ErrorCode((await node.ask(0, asked, 7)).error_code) for _ in range(100)])
        assert 40 < told[ErrorCode.MEMBER_ID_REQUIRED] < 64
        assert told[ErrorCode.COORDINATOR_NOT_AVAILABLE] == 100 - told[ErrorCode.MEMBER_ID_REQUIRED]
        await trio.sleep(11)
        assert node[0].groups.bytes_left() == limits.GROUPS_BYTES_MAX


def is_beside(member, group):
    """Whether a group has the same partition."""
    count = member.node[0].view.topic("__consumer_offsets").partitions_count
    return coordinator_partition(group, count) == coordinator_partition(member.group, count)


async def test_what_forgets_is_divided(autojump_clock):
    """The tombstones of a group with many offsets are more than one batch may be."""
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        await create_topic(node, 0, "wide", 2_000)
        number = member.coordinator()
        everything = [(index, 1) for index in range(2_000)]
        assert await commit_errors(member, "wide", everything, metadata="m" * 4_000) == {NONE}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(limits, "OWN_BATCH_BYTES_MAX", 64 * limits.KIB)
            patched.setattr(effects, "OWN_BATCH_BYTES_MAX", 64 * limits.KIB)
            log = log_of_groups(node[number])
            assert await member.commit("t", {0: 7}) == {0: NONE}
            before = len(log.files.log.batches)
            await delete_topic(node, 0, "wide")
            await trio.sleep(1)
            assert await member.committed("t", [0]) == (NONE, {0: 7})
            parts = log.files.log.batches[before:]
            assert len(parts) > 1
            assert max(map(len, parts)) <= 64 * limits.KIB
        await node.restart(number)
        await trio.sleep(1)
        (loaded,) = (one for one in node[number].groups.loaded() if one.machine.statistics().offsets_count)
        assert loaded.machine.statistics().offsets_count == 1


def shrink(patched, batch_bytes, waiting_bytes):
    """Writes of a coordinator are of so many bytes, and so many, and eight of them, may wait."""
    patched.setattr(limits, "COORDINATOR_WRITES_MAX", 8)
    for module in (limits, effects, deletion, machine):
        patched.setattr(module, "OWN_BATCH_BYTES_MAX", batch_bytes, raising=False)
    patched.setattr(limits, "COORDINATOR_WRITES_BYTES_MAX", waiting_bytes)
    patched.setattr(group_service, "DECISION_BYTES_MAX", waiting_bytes // 2)


async def emptied_with_many_offsets(node, protocol):
    """A member that has left: its group has committed far more offsets than a batch can forget."""
    await with_group(node)
    await create_topic(node, 0, "wide", 3_000)
    member = ConsumerMember(node, "g", 12) if protocol == "consumer" else Member(node, "g", 12)
    if protocol == "consumer":
        assert await member.beat() is NONE
        assert await member.leave() is NONE
    everything = [(index, 1) for index in range(3_000)]
    assert await commit_errors(member, "wide", everything) == {NONE}
    return member


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_a_group_of_many_offsets_is_deleted_in_bounded_batches(protocol, autojump_clock, monkeypatch):
    async with running_node(settings=SETTINGS) as node:
        member = await emptied_with_many_offsets(node, protocol)
        (before,) = (each for each in node[member.coordinator()].groups.loaded() if each.machine.list_groups())
        other = Member(node, "g" + "-" * next(n for n in range(1, 99) if is_beside(member, "g" + "-" * n)), 13)
        await other.begin()
        with monkeypatch.context() as patched:
            shrink(patched, 10 * limits.KIB, 100 * limits.KIB)
            answer = await member.ask(messages.DeleteGroupsRequest(groups_names=["g"]), 2)
            assert ErrorCode(answer.results[0].error_code) is NONE
            assert await other.heartbeat() is NONE, "its groups were not loaded again"
            assert before in node[member.coordinator()].groups.loaded()
        await node.restart(member.coordinator())
        await trio.sleep(1)
        (loaded,) = (each for each in node[member.coordinator()].groups.loaded() if each.machine.list_groups())
        assert [group.group_id for group in loaded.machine.list_groups()] == [other.group]
        assert loaded.machine.statistics().offsets_count == 0


async def test_a_group_whose_many_offsets_are_too_old_goes_in_bounded_batches(autojump_clock, monkeypatch):
    settings = (*SETTINGS, "offsets.retention.minutes=1", "offsets.retention.check.interval.ms=20000")
    async with running_node(settings=settings) as node:
        member = await emptied_with_many_offsets(node, "consumer")
        (before,) = (each for each in node[member.coordinator()].groups.loaded() if each.machine.list_groups())
        with monkeypatch.context() as patched:
            shrink(patched, 10 * limits.KIB, 100 * limits.KIB)
            await trio.sleep(200)
            assert before in node[member.coordinator()].groups.loaded()
            assert before.machine.list_groups() == []
            assert before.machine.statistics().offsets_count == 0
