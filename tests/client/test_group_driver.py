"""Members on connections: when handlers take long, coordinators move, answers fail, and somebody is cancelled."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager

import anyio
import pytest

from tests.support.both_loops import on_both_loops
from tests.support.cancelled import AWAITS_MAX, _Watched, at_each_await
from tests.support.coordinated_broker import grouped_client
from tests.support.recording_reader import RecordingReader
from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.errors import ClientError, PartitionsLostError, RefusedError
from tpc_broker.client.membership.by_hand import HandMembership
from tpc_broker.client.membership.group import GroupMembership
from tpc_broker.client.membership.settings import GroupSettings, Subscription
from tpc_broker.client.requests import TopicPartition
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import ApiKey

PLACES = frozenset(TopicPartition("t", partition) for partition in range(4))
T0 = TopicPartition("t", 0)
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


def settings(protocol, **details):
    return GroupSettings("g", protocol=protocol, heartbeat_seconds=0.01, session_seconds=10, **details)


def membership(client, given, topics=("t",), pattern=None):
    reader = RecordingReader()
    return reader, GroupMembership(client.fleet, reader, Subscription(tuple(topics), pattern), given)


@asynccontextmanager
async def member(client, given, topics=("t",), pattern=None):
    reader, made = membership(client, given, topics, pattern)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        try:
            yield reader, made
        finally:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await made.leave()


@PROTOCOLS
@on_both_loops
async def test_whoever_is_cancelled_in_joining_leaves_nothing_behind(protocol):
    async with grouped_client({"t": 4}) as (client, groups):
        for place in range(1, AWAITS_MAX):
            reader, made = membership(client, settings(protocol))
            has_all = False
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:

                    async def watch(reader=reader, scope=scope):
                        nonlocal has_all
                        await reader.wait_until(lambda: reader.held.keys() == PLACES)
                        has_all = True
                        scope.cancel()

                    tasks.start_soon(watch)
                    await _Watched(made.run(), place, scope.cancel)
            await made.leave()
            assert not groups.member_ids("g")
            if has_all:
                break
            groups.passes(20_000)  # until who was told its id, and did not hear it, is forgotten
        assert place > 5


@PROTOCOLS
@on_both_loops
async def test_a_commit_that_is_cancelled_leaves_the_next_one_whole(protocol):
    async with grouped_client({"t": 4}) as (client, _groups), member(client, settings(protocol)) as (reader, made):
        await reader.wait_until(lambda: reader.held.keys() == PLACES)
        offsets = iter(range(1_000))
        async for cancelled in at_each_await(lambda: made.commit({T0: Position(next(offsets))})):
            await made.commit({T0: Position(1_000 + cancelled.place)})
        assert cancelled.place > 1


@PROTOCOLS
@on_both_loops
async def test_leaving_that_is_cancelled_ends_its_connections(protocol):
    async with grouped_client({"t": 4}) as (client, groups):
        for place in range(1, AWAITS_MAX):
            reader, made = membership(client, settings(protocol))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(made.run)
                await reader.wait_until(lambda reader=reader: reader.held.keys() == PLACES)
                tasks.cancel_scope.cancel()
            own = list(client.fleet._own)
            with anyio.CancelScope() as scope:
                await _Watched(made.leave(), place, scope.cancel)
            assert all(channel.is_closed for channel in own)
            if not scope.cancel_called:
                break
            groups.passes(20_000)  # and where it was not told, it notices
        assert place > 1
        assert not groups.member_ids("g")


@PROTOCOLS
@on_both_loops
async def test_what_is_under_way_is_finished_and_committed_before_it_is_given_back(protocol):
    given = settings(protocol, grace_seconds=60)
    async with grouped_client({"t": 4}) as (client, _groups), member(client, given) as (first, _):
        await first.wait_until(lambda: first.held.keys() == PLACES)
        for where in PLACES:
            first.works_at(where)
        async with member(client, given) as (second, _other):
            await first.wait_until(lambda: first.told[-1][0] == "revoke")
            assert not second.held
            for where in PLACES:
                first.done[where] = Position(50 + where.partition, 3, "m")
                first.works_no_more(where)
            await second.wait_until(lambda: len(second.held) == 2)
            assert second.held == {where: Position(50 + where.partition, 3, "m") for where in second.held}
            await first.wait_until(lambda: len(first.held) == 2)
            assert first.held.keys() | second.held.keys() == PLACES


@PROTOCOLS
@on_both_loops
async def test_a_grace_that_is_over_is_told(protocol, caplog):
    given = settings(protocol, grace_seconds=0.05)
    async with grouped_client({"t": 4}) as (client, _groups), member(client, given) as (first, _):
        await first.wait_until(lambda: first.held.keys() == PLACES)
        for where in PLACES:
            first.works_at(where)
        async with member(client, given) as (second, _other):
            await second.wait_until(lambda: len(second.held) == 2)
    assert "grace_seconds is 0.05" in caplog.text


@PROTOCOLS
@on_both_loops
async def test_a_handler_that_is_stuck_is_named_and_its_member_leaves_until_it_is_back(protocol, caplog):
    caplog.set_level(logging.INFO)
    given = settings(protocol, max_work_seconds=0.2)
    async with grouped_client({"t": 4}) as (client, groups), member(client, given) as (reader, made):
        await reader.wait_until(lambda: reader.held.keys() == PLACES)
        await made.commit({T0: Position(6)})
        reader.done = {T0: Position(7)}
        reader.works_at(T0)
        await reader.wait_until(lambda: not reader.held)
        assert reader.told[-1] == ("forget", PLACES)
        assert "t-0 at offset 7" in caplog.text
        assert "max_work_seconds (0.2)" in caplog.text
        while groups.member_ids("g"):
            await anyio.sleep(0.005)
        with pytest.raises(PartitionsLostError, match="t-0"):
            await made.commit({T0: Position(8)})
        reader.works_no_more(T0)
        await reader.wait_until(lambda: reader.held.keys() == PLACES)
        assert reader.held[T0] == Position(6)


@PROTOCOLS
@on_both_loops
async def test_a_coordinator_that_moves_costs_nothing(protocol):
    async with (
        grouped_client({"t": 4}, brokers_count=3) as (client, groups),
        member(client, settings(protocol)) as (reader, made),
    ):
        await reader.wait_until(lambda: reader.held.keys() == PLACES)
        told = len(reader.told)
        for broker_id in (1, 2, 0):
            groups.moves("g", broker_id)
            await made.commit({T0: Position(broker_id + 1)})
            keys = (ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT)
            count = len(groups.brokers.asked)
            while not any(asked.key in keys and asked.broker_id == broker_id for asked in groups.brokers.asked[count:]):
                await anyio.sleep(0.005)
            for line in groups.brokers.lines:
                line.close()
        await made.commit({T0: Position(100)})
        assert len(reader.told) == told


@PROTOCOLS
@on_both_loops
async def test_what_a_member_had_that_was_silent_is_lost_and_it_joins_again(protocol):
    async with grouped_client({"t": 4}) as (client, groups), member(client, settings(protocol)) as (reader, made):
        await reader.wait_until(lambda: reader.held.keys() == PLACES)
        groups.passes(100_000)
        await reader.wait_until(lambda: ("forget", PLACES) in reader.told)
        assert ("revoke", PLACES) not in reader.told
        await reader.wait_until(lambda: reader.held.keys() == PLACES)
        await made.commit({T0: Position(5)})


@PROTOCOLS
@on_both_loops
async def test_a_commit_of_who_was_forgotten_says_so(protocol):
    async with grouped_client({"t": 4}) as (client, groups), member(client, settings(protocol)) as (reader, made):
        await reader.wait_until(lambda: reader.held.keys() == PLACES)
        if protocol == "classic":
            groups.silent = {ApiKey.JOIN_GROUP}
        groups.passes(100_000)  # what tells is the commit, or a heartbeat before it
        with pytest.raises(PartitionsLostError, match="t-0"):
            await made.commit({T0: Position(5)})
        groups.silent = set()


@PROTOCOLS
@on_both_loops
async def test_partitions_that_are_not_read_are_not_committed(protocol):
    async with (
        grouped_client({"t": 4, "u": 1}) as (client, _groups),
        member(client, settings(protocol)) as (reader, made),
    ):
        with pytest.raises(PartitionsLostError, match=r"u-0|no member"):
            await made.commit({TopicPartition("u", 0): Position(5)})
        await reader.wait_until(lambda: reader.held.keys() == PLACES)
        with pytest.raises(PartitionsLostError, match="u-0"):
            await made.commit({TopicPartition("u", 0): Position(5)})


@PROTOCOLS
@on_both_loops
async def test_commits_are_tried_again(protocol):
    async with grouped_client({"t": 4}) as (client, groups), member(client, settings(protocol)) as (reader, made):
        await reader.wait_until(lambda: reader.held.keys() == PLACES)
        groups.refusals[ApiKey.OFFSET_COMMIT] = [
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT,
        ]  # fmt: skip
        await made.commit({T0: Position(5)})
        groups.refusals[ApiKey.OFFSET_COMMIT] = [ErrorCode.OFFSET_METADATA_TOO_LARGE]
        with pytest.raises(RefusedError, match=r"group g member .*t-0.*offset\.metadata\.max\.bytes"):
            await made.commit({T0: Position(6)})


@PROTOCOLS
@on_both_loops
async def test_a_commit_that_took_long_is_no_proof_that_a_topic_stays_missing(protocol, clock_of):
    clock = clock_of("membership.group")

    class Late(list):
        def pop(self, *place):
            clock.passes(3)
            return super().pop(*place)

    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    async with grouped_client({"t": 4}) as (client, groups), member(client, settings(protocol)) as (reader, made):
        await reader.wait_until(lambda: reader.held.keys() == PLACES)
        groups.refusals[ApiKey.OFFSET_COMMIT] = Late([missing])
        await made.commit({T0: Position(5)})
        groups.refusals[ApiKey.OFFSET_COMMIT] = Late([missing, missing])
        with pytest.raises(RefusedError, match=r"group g member .*t-0.*UNKNOWN_TOPIC_OR_PARTITION"):
            await made.commit({T0: Position(6)})


@PROTOCOLS
@on_both_loops
async def test_a_commit_that_is_tried_again_moves_no_position_back(protocol):
    async with grouped_client({"t": 4}) as (client, groups), member(client, settings(protocol)) as (reader, made):
        await reader.wait_until(lambda: reader.held.keys() == PLACES)
        groups.refusals[ApiKey.OFFSET_COMMIT] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.commit, {T0: Position(5), TopicPartition("t", 1): Position(5)})
            await groups.brokers.wait_asked(ApiKey.OFFSET_COMMIT)
            await made.commit({T0: Position(6)})
        told = groups.coordinator.machine.offset_fetch("g", [("t", 0), ("t", 1)])
        assert [row.offset for row in told.offsets] == [6, 5]


@pytest.mark.parametrize(
    ("protocol", "details", "key", "code", "told"),
    [
        ("classic", {}, ApiKey.JOIN_GROUP, ErrorCode.INVALID_SESSION_TIMEOUT, "session_seconds is 10.*group.min"),
        ("classic", {}, ApiKey.JOIN_GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED, "READ of group g"),
        ("classic", {}, ApiKey.JOIN_GROUP, ErrorCode.GROUP_MAX_SIZE_REACHED, "group.max.size"),
        ("classic", {"assignors": ("range",)}, ApiKey.JOIN_GROUP, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "`assignors`"),
        ("classic", {"instance_id": "i"}, ApiKey.SYNC_GROUP, ErrorCode.FENCED_INSTANCE_ID, "instance_id='i'"),
        ("consumer", {"server_assignor": "x"}, ApiKey.CONSUMER_GROUP_HEARTBEAT, ErrorCode.UNSUPPORTED_ASSIGNOR,
         "server_assignor is 'x'"),
        ("consumer", {}, ApiKey.CONSUMER_GROUP_HEARTBEAT, ErrorCode.UNSUPPORTED_VERSION, "protocol='consumer'"),
        ("consumer", {}, ApiKey.CONSUMER_GROUP_HEARTBEAT, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "READ and DESCRIBE"),
        ("consumer", {}, ApiKey.OFFSET_FETCH, ErrorCode.GROUP_AUTHORIZATION_FAILED, "broker 0, scripted:9092"),
    ],
)  # fmt: skip
@on_both_loops
async def test_what_cannot_be_mended_names_group_coordinator_and_setting(protocol, details, key, code, told):
    async with grouped_client({"t": 4}) as (client, groups):
        groups.refusals[key] = [code]
        _reader, made = membership(client, settings(protocol, **details))
        with pytest.raises(RefusedError, match=f"(?s)group g.*{told}.*{code.name}"):
            await made.run()
        await made.leave()


@on_both_loops
async def test_who_was_never_a_member_gives_up_in_the_end(clock_of):
    clock = clock_of("membership.line")

    async def be_over(groups):
        await groups.brokers.wait_asked(ApiKey.CONSUMER_GROUP_HEARTBEAT, 2)
        clock.passes(1001)

    async with grouped_client({"t": 4}, retry_seconds=1000) as (client, groups), anyio.create_task_group() as tasks:
        tasks.start_soon(be_over, groups)
        groups.refusals[ApiKey.CONSUMER_GROUP_HEARTBEAT] = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 100
        _reader, made = membership(client, settings("consumer"))
        with pytest.raises(RefusedError, match="COORDINATOR_NOT_AVAILABLE"):
            await made.run()


@pytest.mark.parametrize("code", [ErrorCode.UNSUPPORTED_VERSION, ErrorCode.GROUP_ID_NOT_FOUND])
@on_both_loops
async def test_a_group_that_is_classic_is_joined_as_such(code):
    async with grouped_client({"t": 4}) as (client, groups):
        groups.refusals[ApiKey.CONSUMER_GROUP_HEARTBEAT] = [code]
        async with member(client, settings("auto")) as (reader, _made):
            await reader.wait_until(lambda: reader.held.keys() == PLACES)
            assert groups.brokers.asked_of(ApiKey.SYNC_GROUP)


@on_both_loops
async def test_older_brokers_have_classic_groups():
    versions = {ApiKey.CONSUMER_GROUP_HEARTBEAT: None}
    async with grouped_client({"t": 4}, versions=versions) as (client, _groups):
        async with member(client, settings("auto")) as (reader, _made):
            await reader.wait_until(lambda: reader.held.keys() == PLACES)
        _reader, made = membership(client, settings("consumer"))
        with pytest.raises(RefusedError, match="protocol='consumer'"):
            await made.run()


@pytest.mark.parametrize("version", [None, 0])
@on_both_loops
async def test_expressions_are_matched_here_where_the_broker_does_not(version):
    versions = {ApiKey.CONSUMER_GROUP_HEARTBEAT: None if version is None else (0, version)}
    given = settings("auto", topics_seconds=0.02)
    async with (
        grouped_client({"t": 4, "tt": 1, "u": 1}, versions=versions) as (client, groups),
        member(client, given, (), "t+") as (reader, _made),
    ):
        await reader.wait_until(lambda: {where.topic for where in reader.held} == {"t", "tt"})
        groups.coordinator.topics.make("ttt", 2)
        groups.brokers.topics["ttt"] = 2
        await reader.wait_until(lambda: {where.topic for where in reader.held} == {"t", "tt", "ttt"})


@on_both_loops
async def test_a_topic_that_grows_begins_a_round():
    async with (
        grouped_client({"t": 4}) as (client, groups),
        member(client, settings("classic", topics_seconds=0.02)) as (reader, _made),
    ):
        await reader.wait_until(lambda: reader.held.keys() == PLACES)
        groups.brokers.topics["t"] = 5
        await reader.wait_until(lambda: len(reader.held) == 5)


@on_both_loops
async def test_a_static_member_that_is_back_has_what_it_had():
    given = settings("consumer", instance_id="i")
    async with grouped_client({"t": 4}) as (client, groups):
        async with member(client, given) as (reader, _made):
            await reader.wait_until(lambda: reader.held.keys() == PLACES)
        assert groups.member_ids("g")
        async with member(client, given) as (reader, _made):
            await reader.wait_until(lambda: reader.held.keys() == PLACES)


@on_both_loops
async def test_positions_of_an_assignment_by_hand_are_kept_in_a_group():
    given = settings("auto")
    async with grouped_client({"t": 4}) as (client, _groups):
        for expected in (None, Position(9)):
            reader = RecordingReader()
            made = HandMembership(client.fleet, reader, {T0: None, TopicPartition("t", 1): Position(3)}, given)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(made.run)
                await reader.wait_until(lambda reader=reader: reader.held)
                assert reader.held == {T0: expected, TopicPartition("t", 1): Position(3)}
                await made.commit({T0: Position(9)})
                tasks.cancel_scope.cancel()
            await made.leave()
        async with member(client, given) as (other, _membership):
            await other.wait_until(lambda: other.held.keys() == PLACES)
            made = HandMembership(client.fleet, RecordingReader(), {T0: None}, given)
            with pytest.raises(RefusedError, match="has members"):
                await made.commit({T0: Position(10)})


@on_both_loops
async def test_without_a_group_nothing_is_committed_and_later_partitions_are_read():
    async with grouped_client({"t": 4}) as (client, groups):
        reader = RecordingReader()
        made = HandMembership(client.fleet, reader, Subscription(("t",)), None, topics_seconds=0.02)
        assert made.identity is None
        with pytest.raises(ClientError, match="group="):
            await made.commit({T0: Position(1)})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.run)
            await reader.wait_until(lambda: reader.held.keys() == PLACES)
            groups.brokers.topics["t"] = 6
            await reader.wait_until(lambda: len(reader.held) == 6)
            tasks.cancel_scope.cancel()
