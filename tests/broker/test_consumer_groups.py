"""Consumer groups of KIP-848 on cores in memory: heartbeats by the real handlers, restarts, disks that fail."""

from __future__ import annotations

import itertools
import uuid

import pytest
import trio
import trio.testing

from tests.broker.test_group_service import find_coordinator, with_group
from tests.support.consumer_members import ConsumerMember
from tests.support.memory_clients import Member, create_topic, delete_topic
from tests.support.memory_node import running_node
from tpc_broker.broker import group_service
from tpc_broker.coordinator import GroupCoordinator
from tpc_broker.coordinator.consumer import regexes
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.testing.node import answer_of

NONE = ErrorCode.NONE
SETTINGS = ("offsets.topic.num.partitions=4", "group.consumer.assignment.interval.ms=0")
ALL = {0, 1, 2, 3}


async def settle(*members, beats=6):
    """Heartbeats of all, until nobody is told anything new."""
    for _ in range(beats):
        for member in members:
            assert await member.beat() is NONE, member.answer
        await trio.sleep(1)


async def begun(node, *topics):
    """A member of group g that has all four partitions of its topic."""
    await with_group(node)
    member = ConsumerMember(node, "g", 10, topics or ("t",))
    assert await member.beat() is NONE
    return member


async def test_partitions_go_from_member_to_member_and_never_have_two(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        first = await begun(node)
        assert first.partitions() == ALL
        second = ConsumerMember(node, "g", 11)
        assert await second.beat() is NONE
        assert second.partitions() == set(), "the first one has yet to give back"
        assert await first.beat() is NONE
        assert len(first.partitions()) == 2
        assert await second.beat() is NONE
        assert second.partitions() == set(), "it has not said that it gave back"
        await settle(first, second)
        assert len(first.partitions()) == 2
        assert second.partitions() == ALL - first.partitions()
        assert await second.leave() is NONE
        await settle(first)
        assert first.partitions() == ALL
        group = await first.describe()
        assert (group.error_code, group.group_state, group.assignor_name) == (NONE, "Stable", "uniform")
        assert group.group_epoch == group.assignment_epoch == first.epoch
        assert group.authorized_operations > 0


async def test_what_is_described_is_what_members_have_and_are_to_have(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        first = await begun(node)
        second = ConsumerMember(node, "g", 11, instance="i")
        second.rack = "r"
        await second.beat()
        group = await first.describe()
        one, other = sorted(group.members, key=lambda member: member.member_id)
        assert (one.member_id, other.member_id) == (first.member_id, second.member_id)
        assert (one.client_id, one.client_host, one.member_type) == ("a-client", "/127.0.0.1", 1)
        assert (other.instance_id, other.rack_id, other.subscribed_topic_names) == ("i", "r", ["t"])
        (held,) = one.assignment.topic_partitions
        (wanted,) = other.target_assignment.topic_partitions
        assert (held.topic_name, held.partitions) == ("t", [0, 1, 2, 3])
        assert (wanted.topic_name, len(wanted.partitions), other.assignment.topic_partitions) == ("t", 2, [])
        await delete_topic(node, 0, "t")
        group = await first.describe()
        assert all(not each.assignment.topic_partitions for each in group.members), "it has no name any more"


async def test_groups_that_are_not_there_or_not_of_this_kind(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        classic = await with_group(node)
        await classic.begin()
        one = ConsumerMember(node, "g", 11)
        group = await one.describe()
        assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert group.error_message == "Group g is not a consumer group."
        kind = messages.ConsumerGroupDescribeRequest
        asked = [(await one.ask(kind(group_ids=[""]), version)).groups[0].error_code for version in (0, 1)]
        assert asked == [ErrorCode.INVALID_GROUP_ID] * 2
        assert (await one.ask_heartbeat(member_epoch=3)).error_code != NONE
        right = one.coordinator()
        one.coordinator = lambda: 1 - right
        assert await one.beat() is ErrorCode.NOT_COORDINATOR
        assert (await one.describe()).error_code == ErrorCode.NOT_COORDINATOR


def in_order(described):
    """Of members: they come in any."""
    described.members.sort(key=lambda member: member.member_id)
    return described


async def test_a_restart_is_a_replay(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        first = await begun(node)
        second = ConsumerMember(node, "g", 11, instance="i")
        await second.beat()
        await settle(first, second)
        of_second = second.partitions()
        assert await second.commit("t", dict.fromkeys(of_second, 7)) == dict.fromkeys(of_second, NONE)
        before, epochs = [first.owned, second.owned], [first.epoch, second.epoch]
        described = in_order(await first.describe())
        await node.restart(first.coordinator())
        await trio.sleep(1)
        assert in_order(await first.describe()) == described
        await settle(first, second, beats=3)
        assert ([first.owned, second.owned], [first.epoch, second.epoch]) == (before, epochs)
        assert await second.committed_as_member("t", of_second) == (NONE, dict.fromkeys(of_second, 7))


async def test_a_silent_member_is_out_and_its_commits_are_refused(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        first = await begun(node)
        second = ConsumerMember(node, "g", 11)
        await second.beat()
        await settle(first, second)
        for _ in range(25):
            await trio.sleep(2)
            assert await first.beat() is NONE
        await settle(first)
        assert first.partitions() == ALL
        assert set((await second.commit("t", {0: 1})).values()) == {ErrorCode.UNKNOWN_MEMBER_ID}
        assert (await second.committed_as_member("t", [0]))[0] is ErrorCode.UNKNOWN_MEMBER_ID
        assert await second.beat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_commits_of_an_epoch_that_is_over(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        first = await begun(node)
        second = ConsumerMember(node, "g", 11)
        await second.beat()
        old = first.epoch
        await settle(first, second)
        assert first.epoch > old
        (kept, *_), (gone, *_) = sorted(first.partitions()), sorted(second.partitions())
        stale = ErrorCode.STALE_MEMBER_EPOCH
        assert await first.commit("t", {kept: 1, gone: 1}, epoch=old) == {kept: NONE, gone: stale}
        assert await first.committed_as_member("t", [kept, gone]) == (NONE, {kept: 1, gone: -1})
        assert (await first.committed_as_member("t", [kept], epoch=old))[0] is stale


async def test_in_version_0_the_broker_makes_the_members_id(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        await with_group(node)
        one, other = (ConsumerMember(node, "g", number, version=0) for number in (10, 11))
        assert await one.beat() is NONE
        assert await other.beat() is NONE
        assert len(one.member_id) == len(other.member_id) == 22
        assert one.member_id != other.member_id
        later = ConsumerMember(node, "g", 12)
        later.member_id = ""
        assert await later.beat() is ErrorCode.INVALID_REQUEST
        assert later.answer.error_message == "MemberId can't be empty."


async def test_what_is_wrong_by_itself_is_said_before_it_is_asked_who_coordinates(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        await with_group(node)
        member = ConsumerMember(node, "g", 10)
        member.assignor = "sticky"
        right = member.coordinator()
        member.coordinator = lambda: 1 - right
        assert await member.beat() is ErrorCode.UNSUPPORTED_ASSIGNOR
        member.assignor, member.regex, member.coordinator = None, "(", lambda: right
        assert await member.beat() is ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_without_the_protocol_nobody_is_a_member(autojump_clock):
    settings = (*SETTINGS, "group.coordinator.rebalance.protocols=classic")
    async with running_node(settings=settings) as node:
        await with_group(node)
        member = ConsumerMember(node, "g", 10)
        assert await member.beat() is ErrorCode.UNSUPPORTED_VERSION
        assert (await member.describe()).error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_nobody_is_told_what_is_not_durable(autojump_clock):
    """Neither whoever asked for it, nor who looks at the group."""
    async with running_node(settings=SETTINGS) as node:
        first = await begun(node)
        plane = node.lives[first.coordinator()].plane
        plane.holds, told = True, []
        second = ConsumerMember(node, "g", 11)

        async def ask(question):
            told.append(await question)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, second.beat())
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask, ConsumerMember(node, "g", 12).describe())
            nursery.start_soon(ask, first.beat())
            nursery.start_soon(ask, node.ask(first.coordinator(), messages.ListGroupsRequest(), 5, connection=13))
            await trio.sleep(1)
            assert told == []
            while len(told) < 4:
                plane.make_durable()
                await trio.sleep(0.1)


async def test_a_write_that_fails_is_told_to_nobody_and_the_groups_are_loaded_again(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        first = await begun(node)
        number = first.coordinator()
        storage = node.lives[number].storage
        storage.has_space = False
        second = ConsumerMember(node, "g", 11)
        assert await second.beat() is ErrorCode.NOT_COORDINATOR
        await trio.sleep(3)
        epoch = first.epoch
        assert await first.beat() is NONE, "there is nothing to write for it"
        assert (first.epoch, first.partitions()) == (epoch, ALL)
        storage.has_space = True
        assert [member.member_id for member in (await first.describe()).members] == [first.member_id]
        assert await second.beat() is NONE
        await settle(first, second)
        assert second.partitions() == ALL - first.partitions()


async def test_a_fault_that_a_coordinator_told_is_not_said_when_that_one_is_gone(autojump_clock):
    """While another group's is waited for, its decision went with it: the member that it took out is still in."""
    async with running_node(cores=1, settings=SETTINGS) as node:
        one = await begun(node)
        key_of = node[0].groups._key_of
        other = ConsumerMember(node, next(f"h{n}" for n in range(99) if key_of(f"h{n}") != key_of("g")), 11)
        assert await other.beat() is NONE
        plane, kind = node.lives[0].plane, messages.OffsetFetchRequest
        plane.holds = True
        async with trio.open_nursery() as nursery:
            for member in (one, other):
                nursery.start_soon(member.commit, "t", {0: 1})
                await trio.testing.wait_all_tasks_blocked()
                last = ConsumerMember(node, member.group, member.connection + 10)
                last.member_id, last.epoch = member.member_id, member.epoch
                nursery.start_soon(last.leave)  # waits for the commit, and then for the disk
            await trio.testing.wait_all_tasks_blocked()
            groups = [
                kind.OffsetFetchRequestGroup(group_id=each.group, member_id=each.member_id, member_epoch=1, topics=None)
                for each in (one, other)
            ]
            asked = node.send(0, kind(groups=groups), 9, connection=30)
            await trio.testing.wait_all_tasks_blocked()
            node[0].groups.coordinator_of(other.group).unload()
            plane.make_durable()
            await trio.sleep(5)
            assert not asked.done.is_set()
            plane.make_durable()
            await asked.done.wait()
            plane.holds = False
            plane.make_durable()
        told = [ErrorCode(group.error_code) for group in answer_of(asked).groups]
        assert told == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NOT_COORDINATOR]
        assert await other.committed_as_member("t", [0]) == (NONE, {0: 1})


async def test_a_level_that_this_core_has_not_heard_of_is_looked_for_before_anybody_is_refused(
    autojump_clock, monkeypatch
):
    """Its clients have heard of it from another core. While it is not there, that is asked once a second."""
    raised_at = 1_000
    monkeypatch.setattr(ClusterImage, "knows_consumer_groups", property(lambda image: image.version >= raised_at))
    async with running_node(settings=SETTINGS) as node:
        await with_group(node)
        members = [ConsumerMember(node, f"g{n}", 10 + n) for n in range(20)]
        member = next(one for one in members if one.coordinator() == 1)
        asked, take = [], node[1].metadata.take_newest

        async def counted():
            asked.append(trio.current_time())
            await take()

        monkeypatch.setattr(node[1].metadata, "take_newest", counted)
        for _ in range(50):
            assert await member.beat() is ErrorCode.UNSUPPORTED_VERSION
            await trio.sleep(0.1)
        assert 4 <= len(asked) <= 6
        node.lives[0].mailboxes.lost.add("metadata.apply")
        assert await create_topic(node, 0, "later", 1) is NONE
        raised_at = node[0].view.image.version
        assert node[1].view.image.version < raised_at
        await trio.sleep(1)
        assert await member.beat() is NONE


async def test_a_coordinator_that_loads_says_so(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        member = await begun(node)
        gate, number = trio.Event(), member.coordinator()
        await node.crash(number)
        load = group_service.LoadedCoordinator._load

        async def held(self):
            await gate.wait()
            await load(self)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(group_service.LoadedCoordinator, "_load", held)
            await node.start(number)
            assert await member.beat() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert (await member.describe()).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            gate.set()
            await trio.testing.wait_all_tasks_blocked()
        assert await member.beat() is NONE


async def test_groups_of_both_kinds_are_listed_with_their_kind_and_deleted(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        member = await begun(node)
        classic = Member(node, "c", 20)
        await classic.begin()
        kind = messages.ListGroupsRequest

        async def listed(**how):
            answers = [await node.ask(core, kind(**how), 5) for core in range(2)]
            found = [each for answer in answers for each in answer.groups]
            return {each.group_id: (each.group_type.lower(), each.group_state) for each in found}

        assert await listed() == {"g": ("consumer", "Stable"), "c": ("classic", "Stable")}
        assert await listed(types_filter=["consumer"]) == {"g": ("consumer", "Stable")}
        assert await listed(states_filter=["empty"]) == {}

        async def delete():
            answer = await member.ask(messages.DeleteGroupsRequest(groups_names=["g"]), 2)
            return ErrorCode(answer.results[0].error_code)

        assert await member.commit("t", {0: 3}) == {0: NONE}
        assert await delete() is ErrorCode.NON_EMPTY_GROUP
        assert await member.leave() is NONE
        assert await listed(types_filter=["consumer"]) == {"g": ("consumer", "Empty")}
        assert await delete() is NONE
        assert await listed() == {"c": ("classic", "Stable")}
        assert await member.committed("t", [0]) == (NONE, {0: -1})


async def test_topics_that_come_grow_and_go(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        member = await begun(node, "t", "u")
        assert await create_topic(node, 0, "u", 2) is NONE
        await settle(member, beats=3)
        assert (member.partitions("t"), member.partitions("u")) == (ALL, {0, 1})
        kind = messages.CreatePartitionsRequest
        grown = kind.CreatePartitionsTopic(name="u", count=3, assignments=None)
        await node.ask(0, kind(topics=[grown], timeout_ms=1000))
        await settle(member, beats=3)
        assert member.partitions("u") == {0, 1, 2}
        await delete_topic(node, 0, "u")
        await settle(member, beats=3)
        assert len(member.owned) == 1
        assert await create_topic(node, 0, "u", 1) is NONE
        await settle(member, beats=3)
        assert member.partitions("u") == {0}


async def test_a_member_that_says_more_than_a_record_holds_is_refused_and_others_go_on(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        first = await begun(node)
        (before,) = [one for one in node[first.coordinator()].groups.loaded() if one.machine.list_groups()]
        names = [f"{number:04}" + 1_000 * "n" for number in range(9_000)]
        second = ConsumerMember(node, "g", 11, names)
        assert await second.beat() is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert "bytes" in second.answer.error_message
        assert await first.beat() is NONE
        assert before in node[first.coordinator()].groups.loaded()
        assert len((await first.describe()).members) == 1


# -- regular expressions -----------------------------------------------------------------------------------------------


async def test_an_expression_takes_topics_as_they_come_and_go(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        await with_group(node, "logs-a")
        member = ConsumerMember(node, "g", 10, (), regex="logs-.*")
        await settle(member, beats=3)
        assert member.partitions("logs-a") == ALL
        await create_topic(node, 0, "logs-b", 2)
        await create_topic(node, 0, "other", 2)
        await settle(member, beats=4)
        assert (member.partitions("logs-b"), member.partitions("other")) == ({0, 1}, set())
        epoch = member.epoch
        await create_topic(node, 0, "another", 2)
        await settle(member, beats=4)
        assert member.epoch == epoch, "what it matches is what it was"
        await delete_topic(node, 0, "logs-a")
        await settle(member, beats=4)
        assert set(member.owned) == {node[0].view.topic("logs-b").topic_id}
        await node.restart(member.coordinator())
        await trio.sleep(1)
        await settle(member, beats=3)
        assert member.partitions("logs-b") == {0, 1}


async def test_an_expression_that_takes_long_holds_up_no_other_group(autojump_clock, monkeypatch):
    """Each has a job in its turn, and members are answered all the while."""
    steps, whole = [], regexes.matches

    def counted(pattern, names):
        for part in whole(pattern, names):
            steps.append(pattern)
            yield part

    monkeypatch.setattr(regexes, "STEP_COST", 30)
    monkeypatch.setattr(regexes, "matches", counted)
    async with running_node(cores=1, settings=("offsets.topic.num.partitions=1", SETTINGS[1])) as node:
        await with_group(node, "t")
        for number in range(60):
            await create_topic(node, 0, f"t{number}", 1)
        slow = ConsumerMember(node, "slow", 10, (), regex="|".join(f"x{number}" for number in range(50)))
        quick = ConsumerMember(node, "quick", 11, (), regex="t1")
        await slow.beat()
        await quick.beat()
        await trio.testing.wait_all_tasks_blocked()
        assert steps[:20].count("t1") > 5, "not behind all of the other's"
        await settle(quick, slow, beats=2)
        assert quick.partitions("t1") == {0}


async def test_many_changes_of_topics_are_looked_at_once_a_second(autojump_clock, monkeypatch):
    times, whole = [], regexes.matches

    def noted(pattern, names):
        times.append(trio.current_time())
        return whole(pattern, names)

    monkeypatch.setattr(regexes, "matches", noted)
    async with running_node(settings=SETTINGS) as node:
        await with_group(node)
        member = ConsumerMember(node, "g", 10, (), regex="t.*")
        await member.beat()
        for number in range(40):
            await create_topic(node, 0, f"t{number}", 1)
            await member.beat()
            await trio.sleep(0.1)
        assert 3 <= len(times) <= 6
        assert all(later - earlier >= 1 for earlier, later in itertools.pairwise(times))


async def test_expressions_that_match_much_are_taken_in_parts_and_raise_the_epoch_once(autojump_clock, monkeypatch):
    monkeypatch.setattr(group_service, "RESOLVED_BYTES", 1)
    parts, whole = [], GroupCoordinator.expressions_resolved

    def counted(machine, group_id, found, now_ms, *, has_more):
        parts.append(len(found))
        return whole(machine, group_id, found, now_ms, has_more=has_more)

    monkeypatch.setattr(GroupCoordinator, "expressions_resolved", counted)
    async with running_node(settings=SETTINGS) as node:
        await with_group(node, "logs-a")
        members = [
            ConsumerMember(node, "g", 10 + number, (), regex=f"(logs-){{{number},3}}.*") for number in range(3)
        ]
        await settle(*members, beats=4)
        before = (await members[0].describe()).group_epoch
        parts.clear()
        await create_topic(node, 0, "logs-logs-b", 3)
        await settle(*members, beats=4)
        assert parts[:3] == [1, 1, 1]
        assert (await members[0].describe()).group_epoch == before + 1
        assert sorted(one for each in members for one in each.partitions("logs-logs-b")) == [0, 1, 2]


# -- hostile -----------------------------------------------------------------------------------------------------------


async def test_whatever_a_client_says_it_is_answered_and_others_go_on(autojump_clock):
    """Sizes, unknown topics, negative partitions, ids that are twins: each one a refusal, or nothing."""
    async with running_node(settings=SETTINGS) as node:
        good = await begun(node)
        kind = messages.ConsumerGroupHeartbeatRequest
        parts = kind.TopicPartitions
        unknown, known = uuid.UUID(int=99).bytes, node[0].view.topic("t").topic_id.bytes
        join = {"rebalance_timeout_ms": 1, "subscribed_topic_names": ["t"], "topic_partitions": []}
        owned = [
            [parts(topic_id=unknown, partitions=[0])], [parts(topic_id=known, partitions=[-1, 2**31 - 1])],
            [parts(topic_id=known, partitions=[0]), parts(topic_id=known, partitions=[0, 1])],
            [parts(topic_id=known, partitions=[])], [parts(topic_id=known, partitions=list(range(100_001)))],
        ]  # fmt: skip
        bad = ConsumerMember(node, "g", 66)
        asked = [
            *({**join, "rebalance_timeout_ms": ms} for ms in (-(2**31), -2, 0, 2**31 - 1)),
            {**join, "subscribed_topic_names": ["nobody"] * 10_000}, {**join, "subscribed_topic_names": ["t"] * 10_001},
            {**join, "subscribed_topic_names": ["", "/", "\x00", "t" * 5_000]},
            {**join, "member_id": good.member_id, "instance_id": "i"}, {**join, "instance_id": "i" * 1_001},
            {**join, "subscribed_topic_regex": "\\pL{1000}"}, {**join, "subscribed_topic_regex": "(" * 5_000},
            *({"member_epoch": epoch} for epoch in (-(2**31), -3, -2, -1, 1, 2**31 - 1)),
            *({"member_epoch": 1, "topic_partitions": each} for each in owned),
        ]  # fmt: skip
        for what in asked:
            answer = await bad.ask_heartbeat(**what)
            assert answer is not None, what
            assert answer.error_code != ErrorCode.UNKNOWN_SERVER_ERROR, (what, answer)
        await trio.sleep(1)
        await bad.leave()
        await settle(good)
        assert good.partitions() == ALL
        assert await find_coordinator(node, 0, "g") == (NONE, good.coordinator())
