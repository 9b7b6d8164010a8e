"""Groups on cores in memory: their coordinators' logs, timers, restarts and failures."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests.support.memory_clients import Member, create_topic, delete_topic
from tests.support.memory_node import running_node
from tpc_broker.broker import coordinator_driver, coordinators, group_service
from tpc_broker.broker.partition import Partition
from tpc_broker.broker.view import ClusterView
from tpc_broker.coordinator import Effects, GroupCoordinator
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import OffsetOutOfRangeError, PartitionOfflineError
from tpc_broker.kafka import messages
from tpc_broker.kafka.records import ControlType, Record, build_batch, control_batch
from tpc_broker.log.batch import empty_batch

NONE = ErrorCode.NONE
SETTINGS = ("offsets.topic.num.partitions=4",)


async def find_coordinator(node, core, group):
    kind = messages.FindCoordinatorRequest
    (found,) = (await node.ask(core, kind(key_type=0, coordinator_keys=[group]), 4)).coordinators
    return ErrorCode(found.error_code), found.node_id


async def with_group(node, topic="t"):
    """A topic to read, and the topic of groups, which the first question makes."""
    await create_topic(node, 0, topic, 4)
    with trio.fail_after(30):
        while (await find_coordinator(node, 0, "g"))[0] is not NONE:
            await trio.sleep(0.1)
        while any(life.core.groups.is_loading for life in node.lives.values()):
            await trio.sleep(0.1)
    return Member(node, "g", 10)


def log_of_groups(core):
    """The only partition of groups that has records."""
    (log,) = (one for one in core.partitions.opened() if one.topic_name == "__consumer_offsets" and one.bounds()[3])
    return log


async def test_every_core_names_the_coordinator_and_only_that_one_takes_members(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        for core in range(2):
            assert await find_coordinator(node, core, "g") == (NONE, member.coordinator())
        right = member.coordinator()
        member.coordinator = lambda: 1 - right
        assert await member.join() is ErrorCode.NOT_COORDINATOR
        assert await member.committed("t", [0]) == (ErrorCode.NOT_COORDINATOR, {})
        assert node[1 - right].statistics().asked_of_wrong_core == 2
        member.coordinator = lambda: right
        await member.begin()
        assert (member.assignment, await member.heartbeat()) == (b"all", NONE)


async def test_a_restart_is_a_replay(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        await member.begin()
        assert await member.commit("t", {0: 5, 1: 7}) == {0: NONE, 1: NONE}
        assert await member.commit("t", {0: 6}) == {0: NONE}
        await node.restart(member.coordinator())
        await trio.sleep(1)
        assert await member.heartbeat() is NONE, "it is still a member, and its session begins anew"
        assert await member.committed("t", [0, 1, 2]) == (NONE, {0: 6, 1: 7, 2: -1})


async def test_a_log_with_a_marker_and_an_emptied_batch_at_its_end_is_replayed(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        assert await member.commit("t", {0: 5}) == {0: NONE}
        log = log_of_groups(node[member.coordinator()]).files.log
        how = {"producer_id": 1, "producer_epoch": 0, "coordinator_epoch": 0, "timestamp_ms": 0}
        log.append(control_batch(ControlType.ABORT, **how), 0)
        log.append(empty_batch(0, 3, 0), 0)
        log.high_watermark = log.log_end_offset
        await node.restart(member.coordinator())
        await trio.sleep(1)
        assert await member.committed("t", [0]) == (NONE, {0: 5})
        assert await member.commit("t", {0: 6}) == {0: NONE}


async def test_a_member_that_falls_silent_is_gone_after_its_session_and_the_others_go_on(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        first = await with_group(node)
        second = Member(node, "g", 11)
        await first.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.join)
            await trio.sleep(0.1)
            assert await first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
            await first.join()
        assert sorted(first.others) == sorted([first.member_id, second.member_id])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.sync)
            await trio.sleep(0.1)
            assert not second.assignment, "what the leader says is not known yet"
            await first.sync({first.member_id: b"a", second.member_id: b"b"})
        assert (first.assignment, second.assignment) == (b"a", b"b")
        for _ in range(12):
            await trio.sleep(1)
            if await first.heartbeat() is not NONE:
                break
        assert await first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert await first.join() is NONE
        assert first.others == [first.member_id]
        assert await second.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_when_the_clock_jumps_members_are_heard_first(autojump_clock):
    """After a pause of the machine the sessions of all would be over, though nobody was given a chance."""
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        await member.begin()
        await trio.sleep(9)
        node.clock.wall_ahead_ms += 60_000
        await trio.sleep(2)  # its session was over by the clock a second ago
        assert await member.heartbeat() is NONE
        await trio.sleep(20)
        assert await member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
async def test_a_clock_that_is_set_makes_no_session_longer_or_shorter(autojump_clock, by_ms):
    """Set back by an hour, it would keep the partitions of a member that is gone from the others for that hour."""
    async with running_node(settings=SETTINGS) as node:
        gone, stays = await with_group(node), Member(node, "g", 11)
        await gone.begin()
        await trio.sleep(1)
        node.clock.wall_ahead_ms += by_ms
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stays.join)
            await trio.sleep(1)
            assert await gone.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
            node.clock.wall_ahead_ms += by_ms
            began_s = trio.current_time()
        assert stays.others == [stays.member_id]
        assert trio.current_time() < began_s + 15
        assert await stays.sync({stays.member_id: b"all"}) is NONE
        node.clock.wall_ahead_ms += by_ms
        for _ in range(20):
            await trio.sleep(2)
            assert await stays.heartbeat() is NONE
        await trio.sleep(20)
        assert await stays.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_what_could_not_be_written_is_refused_and_nothing_of_it_stays(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        await member.begin()
        assert await member.commit("t", {0: 5}) == {0: NONE}
        storage = node.lives[member.coordinator()].storage
        storage.has_space = False
        (refused,) = (await member.commit("t", {0: 6})).values()
        assert refused is not NONE
        assert await member.committed("t", [0]) == (NONE, {0: 5})
        storage.has_space = True
        assert await member.commit("t", {0: 7}) == {0: NONE}
        assert await member.committed("t", [0]) == (NONE, {0: 7})


async def test_an_offset_is_committed_when_it_is_durable(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        await member.begin()
        plane = node.lives[member.coordinator()].plane
        plane.holds = True
        told = []
        async with trio.open_nursery() as nursery:

            async def commit():
                told.append(await member.commit("t", {0: 5}))

            nursery.start_soon(commit)
            await trio.sleep(1)
            assert not told
            assert await Member(node, "g", 12).committed("t", [0]) == (NONE, {0: -1})
            plane.make_durable()
        assert told == [{0: NONE}]


async def test_a_coordinator_that_loads_says_so(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        await member.begin()
        assert await member.commit("t", {0: 5}) == {0: NONE}
        gate, number = trio.Event(), member.coordinator()
        await node.crash(number)
        load = group_service.LoadedCoordinator._load

        async def held(self):
            await gate.wait()
            await load(self)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(group_service.LoadedCoordinator, "_load", held)
            await node.start(number)
            assert (await member.committed("t", [0]))[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert await member.heartbeat() is NONE, "its session begins when all is loaded"
            assert await member.join() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            gate.set()
            await trio.testing.wait_all_tasks_blocked()
        assert await member.committed("t", [0]) == (NONE, {0: 5})


def _with_a_flipped_bit(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def _with_half_a_key(_data):
    return build_batch([Record(b"value", b"\x00\x01\x00", 0)])


def _short(data):
    return data[:-1]


def _empty(_data):
    return b""


@pytest.mark.parametrize(
    "fault",
    [
        _short, _empty, _with_a_flipped_bit, _with_half_a_key, PartitionOfflineError("EIO"),
        OffsetOutOfRangeError(),
    ],
)  # fmt: skip
async def test_groups_that_cannot_be_loaded_are_tried_again_and_end_nothing(autojump_clock, monkeypatch, fault, caplog):
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        await member.begin()
        assert await member.commit("t", {0: 5}) == {0: NONE}
        number, read, is_damaged = member.coordinator(), Partition.read_bytes, True

        async def damaged(self, *arguments):
            data = await read(self, *arguments)
            if not is_damaged or self.topic_name != "__consumer_offsets":
                return data
            if isinstance(fault, Exception):
                raise fault
            return fault(data)

        monkeypatch.setattr(Partition, "read_bytes", damaged)
        await node.restart(number)
        life = node.lives[number]
        await trio.sleep(40)
        assert node.lives[number] is life, "the core goes on"
        assert not life.core.groups.is_loading, "other groups are listed meanwhile"
        assert (await member.committed("t", [0]))[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        told = sum("its groups cannot be loaded" in line for line in caplog.messages)
        assert 3 <= told <= 7, "less and less often"
        is_damaged = False
        await trio.sleep(60)
        assert await member.committed("t", [0]) == (NONE, {0: 5})


async def test_groups_that_are_to_be_loaded_again_are_not_once_their_log_has_gone(autojump_clock, monkeypatch):
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        number, loads = member.coordinator(), 0

        async def refused(_self):
            nonlocal loads
            loads += 1
            raise PartitionOfflineError("EIO")

        monkeypatch.setattr(group_service.LoadedCoordinator, "_load", refused)
        await node.restart(number)
        await trio.sleep(2)
        groups = node[number].groups
        keys, before = list(groups._coordinators), loads
        assert keys
        for key in keys:
            groups.end(key)
        await trio.sleep(300)
        assert loads == before
        assert not groups._coordinators


@pytest.mark.parametrize("name", ["finish_loading", "next_deadline_ms", "clock_was_set", "heartbeat"])
async def test_groups_that_raise_are_loaded_again_and_end_nobody_elses(name, autojump_clock, monkeypatch, caplog):
    """Other partitions' groups on the same core are served all the while."""
    async with running_node(cores=1, settings=(*SETTINGS, "group.consumer.assignment.interval.ms=0")) as node:
        member, groups = await with_group(node), node[0].groups
        other = Member(node, next(f"h{n}" for n in range(99) if groups._key_of(f"h{n}") != groups._key_of("g")), 11)
        await member.begin()
        await other.begin()
        broken, is_broken = groups.coordinator_of("g"), True

        def breaks(machine, *arguments):
            if is_broken and machine is groups._coordinators[groups._key_of("g")][0].machine:
                raise ZeroDivisionError
            return whole(machine, *arguments)

        whole = getattr(GroupCoordinator, name)
        monkeypatch.setattr(GroupCoordinator, name, breaks)
        if name == "finish_loading":
            broken.do(lambda _now_ms: 1 / 0)
        if name == "clock_was_set":
            node.clock.wall_ahead_ms += 5_000
        if name == "heartbeat":
            assert await node.ask(0, messages.HeartbeatRequest(group_id="g"), connection=40) is None
        kind = messages.OffsetCommitRequest
        offsets = [kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
        commit = kind(group_id="g", generation_id_or_member_epoch=member.generation_id, member_id=member.member_id,
                      topics=[kind.OffsetCommitRequestTopic(name="t", partitions=offsets)])  # fmt: skip
        for number in range(20):
            await node.ask(0, commit, 8, connection=50 + number)
            await trio.sleep(1)
            assert await other.heartbeat() is NONE
        assert broken.has_raised
        is_broken = False
        await trio.sleep(61)
        assert groups.coordinator_of("g") not in {broken, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        assert (await member.committed("t", [0]))[0] is NONE
        assert node[0].statistics().machines_raised == caplog.text.count("its groups raised, and are loaded again") > 0


async def test_groups_that_raise_when_topics_are_looked_at_are_loaded_more_and_more_rarely(autojump_clock, monkeypatch):
    """They are whenever they are loaded: no client has part in it."""
    async with running_node(cores=1, settings=SETTINGS) as node:
        await with_group(node)
        groups, raised = node[0].groups, []
        key = groups._key_of("g")

        def breaks(machine, _now_ms, _deleted):
            if machine is groups._coordinators[key][0].machine:
                raised.append(machine)
                raise ZeroDivisionError
            return Effects()

        monkeypatch.setattr(GroupCoordinator, "topics_changed", breaks)
        groups.coordinator_of("g").topics_changed()
        await trio.sleep(1_000)
        assert 15 <= len(raised) <= 25


async def with_coordinator_that_loads(node, monkeypatch):
    """A member whose coordinator's core was started again, and loads when the event is set."""
    member = await with_group(node)
    await member.begin()
    gate, load = trio.Event(), group_service.LoadedCoordinator._load

    async def held(self):
        await gate.wait()
        await load(self)

    monkeypatch.setattr(group_service.LoadedCoordinator, "_load", held)
    await node.restart(member.coordinator())
    return member, gate


@pytest.mark.parametrize("is_carried", [False, True])
async def test_a_commit_waits_for_a_coordinator_that_loads(is_carried, autojump_clock, monkeypatch):
    """For a while, because clients try again for less time than that takes; also where another core has carried it."""
    async with running_node(settings=SETTINGS) as node:
        member, gate = await with_coordinator_that_loads(node, monkeypatch)
        if is_carried:
            right = member.coordinator()
            monkeypatch.setattr(ClusterView, "is_shared", lambda _view, _listener: True)
            member.coordinator = lambda: 1 - right
        began_s = trio.current_time()
        assert await member.commit("t", {0: 5}) == {0: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        assert trio.current_time() >= began_s + coordinators.COMMIT_HELD_S
        told = []

        async def commit():
            told.append(await member.commit("t", {0: 6}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await trio.sleep(1)
            assert not told
            gate.set()
        assert told == [{0: NONE}]
        assert await member.committed("t", [0]) == (NONE, {0: 6})


async def test_a_commit_waits_for_the_next_leader_of_the_log_of_groups(autojump_clock, monkeypatch):
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        await member.begin()
        assert await member.commit("t", {0: 5}) == {0: NONE}
        core = node[member.coordinator()]
        log, waiting, elected, told = log_of_groups(core), [], trio.Event(), []

        class Replicated:
            async def wait_leaders(self, partitions):
                waiting.extend(partitions)
                await elected.wait()

        async def commit():
            told.append(await member.commit("t", {0: 6}))

        with monkeypatch.context() as patched:
            patched.setattr(core, "replicated", Replicated())
            patched.setattr(log, "is_replicated", True)
            core.groups.end(log.key)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(commit)
                await trio.sleep(1)
                assert (told, waiting) == ([], [log])
                patched.undo()
                core.groups.begin_if_coordinates(log.key)
                elected.set()
        assert told == [{0: NONE}]


async def test_a_coordinator_loads_in_small_steps(autojump_clock, monkeypatch):
    """Whatever else the core has to do comes in between."""
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        await member.begin()
        await create_topic(node, 0, "wide", 500)
        for offset in range(2):
            assert await member.commit("wide", dict.fromkeys(range(500), offset)) == dict.fromkeys(range(500), NONE)
        number, replay = member.coordinator(), group_service.GroupCoordinator.replay
        turn, replayed_in = 0, Counter()

        def counted(machine, key, value):
            replayed_in[turn] += 1
            replay(machine, key, value)

        async def others():
            nonlocal turn
            while True:
                await trio.lowlevel.checkpoint()
                turn += 1

        await node.crash(number)
        monkeypatch.setattr(group_service.GroupCoordinator, "replay", counted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            await node.start(number)
            while node[number].groups.is_loading:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert 500 <= replayed_in.total() < 600
        assert max(replayed_in.values()) <= 2 * coordinator_driver.GIVEN_AT_ONCE, "tasks of a turn run in any order"
        assert await member.committed("wide", range(500)) == (NONE, dict.fromkeys(range(500), 1))


async def test_many_groups_come_to_life_in_small_steps_and_nobody_is_let_in_before(autojump_clock, monkeypatch):
    revived_in, told, turn, whole = Counter(), set(), 0, GroupCoordinator._revive

    def counted(*arguments):
        revived_in[turn] += 1
        return whole(*arguments)

    async def others(node):
        nonlocal turn
        while True:
            await trio.lowlevel.checkpoint()
            turn += 1
            found = node[0].groups.coordinator_of("g")
            told.add(found if isinstance(found, ErrorCode) else len(found.machine.list_groups()))

    async with running_node(cores=1, settings=("offsets.topic.num.partitions=1",)) as node:
        member = await with_group(node)
        for number in range(500):
            member.group = f"g{number}"
            assert await member.commit("t", {0: 1}) == {0: NONE}
        monkeypatch.setattr(GroupCoordinator, "_revive", counted)
        await node.crash(0)
        await node.start(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others, node)
            for _ in range(2_000):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert revived_in.total() == 500
    assert max(revived_in.values()) <= 2 * coordinator_driver.END_STEP, "tasks of a turn run in any order"
    assert told == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 500}


async def test_offsets_of_a_topic_go_with_it(autojump_clock):
    async with running_node(settings=SETTINGS) as node:
        member = await with_group(node)
        await create_topic(node, 0, "other", 1)
        assert await member.commit("t", {0: 5}) == {0: NONE}
        assert await member.commit("other", {0: 6}) == {0: NONE}
        await delete_topic(node, 0, "t")
        await trio.sleep(1)
        await create_topic(node, 0, "t", 4)
        for _ in range(2):
            assert await member.committed("t", [0]) == (NONE, {0: -1})
            assert await member.committed("other", [0]) == (NONE, {0: 6})
            await node.restart(member.coordinator())
            await trio.sleep(1)


@asynccontextmanager
async def joining(node):
    """A second member waits to join while the body runs; at its end the list has what it was told."""
    second, told = Member(node, "g", 11), []

    async def join():
        told.append(await second.join())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(join)
        await trio.sleep(0.1)
        yield told


async def test_a_partition_that_is_given_up_takes_its_groups_along(autojump_clock):
    async with running_node(cores=1, settings=SETTINGS) as node:
        member = await with_group(node)
        await member.begin()
        async with joining(node) as told:
            node.lives[0].storage.give_up(log_of_groups(node[0]).key, "its disk")
        assert told == [ErrorCode.NOT_COORDINATOR]
        assert await member.heartbeat() is ErrorCode.NOT_COORDINATOR
        assert (await find_coordinator(node, 0, "g"))[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_drain_tells_those_who_wait_for_others(autojump_clock):
    async with running_node(cores=1, settings=SETTINGS) as node:
        member = await with_group(node)
        await member.begin()
        async with joining(node) as told:
            with trio.fail_after(20):
                assert await node[0].drain()
        assert told == [ErrorCode.NOT_COORDINATOR]


async def test_groups_are_listed_described_and_deleted(autojump_clock):
    async with running_node(cores=1, settings=SETTINGS) as node:
        member = await with_group(node)
        await member.begin(b"mine")
        await member.commit("t", {0: 5})
        listed = await node.ask(0, messages.ListGroupsRequest(), 4)
        assert [(one.group_id, one.group_state) for one in listed.groups] == [("g", "Stable")]
        (found, missing) = (await node.ask(0, messages.DescribeGroupsRequest(groups=["g", "none"]), 5)).groups
        assert [(one.client_id, one.client_host, one.member_assignment) for one in found.members] == [
            ("a-client", "/127.0.0.1", b"mine")
        ]
        assert (missing.group_state, missing.members) == ("Dead", [])
        delete = messages.DeleteGroupsRequest(groups_names=["g"])
        assert (await node.ask(0, delete, 2)).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        kind = messages.LeaveGroupRequest
        await node.ask(0, kind(group_id="g", members=[kind.MemberIdentity(member_id=member.member_id)]), 4)
        assert (await node.ask(0, delete, 2)).results[0].error_code == NONE
        assert await member.committed("t", [0]) == (NONE, {0: -1})
        assert not (await node.ask(0, messages.ListGroupsRequest(), 4)).groups


async def test_a_commit_waits_no_longer_when_its_connection_is_closed(autojump_clock, monkeypatch):
    async with running_node(settings=SETTINGS) as node:
        member, gate = await with_coordinator_that_loads(node, monkeypatch)
        connections = node.lives[member.coordinator()].connections
        began_s, told = trio.current_time(), []

        async def commit():
            told.append(await member.commit("t", {0: 6}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await trio.sleep(0.5)
            connections.close(member.connection, "peer closed")
        assert trio.current_time() == began_s + 0.5
        gate.set()
        await trio.sleep(coordinators.COMMIT_HELD_S)
        member.connection += 1
        assert await member.committed("t", [0]) == (NONE, {0: -1}), "whoever is gone may have committed elsewhere"
