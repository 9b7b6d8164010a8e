"""Reading from brokers that answer late, half, twice, never, with errors or old versions, move and lose their data."""

from __future__ import annotations

from typing import Any, Final

import anyio
import pytest

from tests.support.both_loops import on_both_loops, on_loops_in_turn
from tests.support.cancelled import at_each_await
from tests.support.scripted_broker import CLOSE, NO_ANSWER, Bytewise, Cut, Twice, scripted_client
from tests.support.scripted_log import ScriptedLog
from tpc_broker.client import Position, TopicPartition
from tpc_broker.client.consumer import fetching
from tpc_broker.client.errors import DamagedDataError, OffsetsMissingError, RefusedError, TopicReplacedError
from tpc_broker.kafka import ApiKey, ErrorCode, messages
from tpc_broker.kafka.records import Record

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
COUNT: Final = 12


def a_log(*places: TopicPartition) -> ScriptedLog:
    """Batches of three records."""
    log = ScriptedLog()
    for where in places or (T0,):
        for number in range(0, COUNT, 3):
            log.add(where, [Record(b"%d" % (number + index)) for index in range(3)])
    return log


async def read_all(client: Any, count: int = COUNT, **options: Any) -> list[int]:
    async with client.read("t", **options) as stream:
        records = [await anext(stream) for _ in range(count)]
    assert all(record.value == b"%d" % record.offset for record in records)
    return [record.offset for record in records]


@on_loops_in_turn(
    "instead",
    [NO_ANSWER, CLOSE, Bytewise, Twice, *(lambda answer, count=count: Cut(answer, count) for count in (0, 30))],
)
async def test_an_answer_that_is_none(instead: Any) -> None:
    log = a_log()

    async def fault(asked: Any) -> Any:
        if asked.key != ApiKey.FETCH or asked.number != 1:
            return None
        return instead(await log.fetched(asked)) if callable(instead) else instead

    log.fault = fault
    async with scripted_client(log.script, topics={"t": 1}, request_seconds=0.1) as (client, _brokers):
        assert await read_all(client, partition_bytes=100, wait_seconds=0.05) == list(range(COUNT))


@on_loops_in_turn(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)  # fmt: skip
async def test_what_a_partition_is_refused_with_for_a_while(code: int) -> None:
    log = a_log()

    async def fault(asked: Any) -> Any:
        if asked.key != ApiKey.FETCH or asked.number != 1:
            return None
        answer = await log.fetched(asked)
        for topic in answer.responses:
            for row in topic.partitions:
                row.error_code, row.records = code, b""
        return answer

    log.fault = fault
    async with scripted_client(log.script, topics={"t": 1}) as (client, _brokers):
        assert await read_all(client, partition_bytes=100) == list(range(COUNT))


@on_loops_in_turn(
    "code",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)  # fmt: skip
async def test_a_whole_fetch_that_is_refused(code: int) -> None:
    log = a_log()

    async def fault(asked: Any) -> Any:
        is_it = asked.key == ApiKey.FETCH and asked.number == 1
        return messages.FetchResponse(error_code=code) if is_it else None

    log.fault = fault
    async with scripted_client(log.script, topics={"t": 1}) as (client, _brokers):
        assert await read_all(client, partition_bytes=100) == list(range(COUNT))


@on_both_loops
async def test_what_cannot_be_mended_names_topic_partition_and_broker() -> None:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    log = a_log()

    async def fault(asked: Any) -> Any:
        if asked.key != ApiKey.FETCH:
            return None
        answer = await log.fetched(asked)
        answer.responses[0].partitions[0].error_code = code
        return answer

    log.fault = fault
    async with scripted_client(log.script, topics={"t": 1}) as (client, _brokers), client.read("t") as stream:
        with pytest.raises(RefusedError, match="t-0, offset 0, from broker 0: TOPIC_AUTHORIZATION_FAILED"):
            await anext(stream)
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        log.fault = ScriptedLog().fault
        stream.seek(T0, Position(0))
        assert (await anext(stream)).offset == 0


@on_both_loops
async def test_a_retry_has_an_end_that_names_the_setting(clock_of: Any) -> None:
    log, clock = a_log(), clock_of("consumer.fetching")

    async def fault(asked: Any) -> Any:
        is_it = asked.key == ApiKey.FETCH
        clock.passes(400 if is_it else 0)
        return messages.FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR) if is_it else None

    log.fault = fault
    async with scripted_client(log.script, topics={"t": 1}, retry_seconds=1000) as (client, _brokers):
        with pytest.raises(RefusedError, match=r"t-0 at offset 0 .*retry_seconds"):
            await read_all(client)


@on_loops_in_turn("versions", [(4, 4), (4, 6), (7, 8), (4, 11), (12, 12), (13, 13)])
async def test_old_brokers(versions: tuple[int, int]) -> None:
    log = a_log()
    offered = {ApiKey.FETCH: versions, ApiKey.OFFSET_FOR_LEADER_EPOCH: None}
    async with scripted_client(log.script, topics={"t": 1}, versions=offered) as (client, brokers):
        assert await read_all(client, partition_bytes=100) == list(range(COUNT))
        assert {asked.version for asked in brokers.asked_of(ApiKey.FETCH)} == {versions[1]}


@on_both_loops
async def test_a_leader_that_changes() -> None:
    log = a_log()
    log.only[T0] = {0}
    async with scripted_client(log.script, topics={"t": 1}, brokers_count=2) as (client, brokers):
        async with client.read("t", partition_bytes=100) as stream:
            assert (await anext(stream)).offset == 0
            log.only[T0] = {1}
            brokers.leaders["t", 0], brokers.leader_epochs["t", 0] = 1, 1
            assert [(await anext(stream)).offset for _ in range(COUNT - 1)] == list(range(1, COUNT))
        [checked] = brokers.asked_of(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        [row] = checked.message.topics[0].partitions
        assert (checked.broker_id, row.current_leader_epoch, row.leader_epoch) == (1, 1, 0)


async def cut_off(end_offset: int, policy: Any) -> tuple[Any, ...]:
    """A stream that has read offsets 0 to 5, and whose next leader has the log up to there only."""
    log = a_log()
    log.only[T0] = {0}
    read = []
    async with (
        scripted_client(log.script, topics={"t": 1}, brokers_count=2) as (client, brokers),
        client.read("t", on_missing=policy, partition_bytes=1) as stream,
    ):
        for _ in range(6):
            read.append((await anext(stream)).offset)
        log.batches[T0] = log.batches[T0][: end_offset // 3]
        log.epoch_ends[T0] = {0: (0, end_offset)}
        log.only[T0] = {1}
        brokers.leaders["t", 0], brokers.leader_epochs["t", 0] = 1, 1
        log.add(T0, [Record(b"other")] * 3, partition_leader_epoch=1)
        while True:
            record = await anext(stream)
            read.append(record.offset)
            if record.value == b"other":
                return tuple(read)


@on_both_loops
async def test_a_log_that_was_cut_off_below_what_was_read() -> None:
    with pytest.raises(OffsetsMissingError, match=r"t-0: offsets \[3, 6\) were read and are not in the log any more"):
        await cut_off(3, "raise")
    assert (await cut_off(3, "earliest"))[-1] == 3
    assert (await cut_off(6, "raise"))[-1] == 6


@on_both_loops
async def test_a_committed_position_is_checked_before_it_is_read_from() -> None:
    log = a_log()
    log.epoch_ends[T0] = {4: (2, 5)}
    async with scripted_client(log.script, topics={"t": 1}) as (client, _brokers):
        async with client.read(assignment={T0: Position(7, 4)}) as stream:
            with pytest.raises(OffsetsMissingError, match=r"\[5, 7\)"):
                await anext(stream)
        async with client.read(assignment={T0: Position(5, 4)}) as stream:
            assert (await anext(stream)).offset == 5


@on_both_loops
async def test_a_topic_that_was_made_again() -> None:
    log = a_log()
    is_replaced = False

    async def fault(asked: Any) -> Any:
        if not is_replaced:
            return None
        if asked.key == ApiKey.METADATA:
            answer = brokers.usual(asked)
            for topic in answer.topics:
                topic.topic_id = b"another id......"
            return answer
        if asked.key == ApiKey.FETCH:
            return messages.FetchResponse(error_code=ErrorCode.UNKNOWN_TOPIC_ID)
        return None

    log.fault = fault
    async with (
        scripted_client(log.script, topics={"t": 1}) as (client, brokers),
        client.read("t", partition_bytes=100) as stream,
    ):
        assert (await anext(stream)).offset == 0
        is_replaced = True
        with pytest.raises(TopicReplacedError, match="t-0: the topic was deleted and created again"):
            while True:
                await anext(stream)


@on_both_loops
async def test_an_answer_that_is_empty_because_of_a_quota() -> None:
    log = a_log()

    async def fault(asked: Any) -> Any:
        if asked.key != ApiKey.FETCH or asked.number != 1:
            return None
        answer = await log.fetched(asked)
        for row in answer.responses[0].partitions:
            row.high_watermark = row.last_stable_offset = row.log_start_offset = -1
            row.records = b""
        return answer

    log.fault = fault
    async with scripted_client(log.script, topics={"t": 1}) as (client, _brokers):
        assert await read_all(client, partition_bytes=100) == list(range(COUNT))


@on_both_loops
async def test_a_replica_nearby_is_read_from() -> None:
    log = a_log()

    async def fault(asked: Any) -> Any:
        if asked.key != ApiKey.FETCH or asked.message.session_epoch < 0:
            return None
        assert asked.message.rack_id == "here"
        answer = await log.fetched(asked)
        if asked.broker_id == 0:
            for row in answer.responses[0].partitions:
                row.preferred_read_replica, row.records = 1, b""
        return answer

    log.fault = fault
    async with scripted_client(log.script, topics={"t": 1}, brokers_count=2, rack="here") as (client, brokers):
        assert await read_all(client, partition_bytes=100) == list(range(COUNT))
        assert [asked.broker_id for asked in brokers.asked_of(ApiKey.FETCH) if asked.message.topics][:2] == [0, 1]


@on_both_loops
async def test_a_replica_that_is_behind_is_left_for_its_leader() -> None:
    log = a_log()

    async def fault(asked: Any) -> Any:
        if asked.key != ApiKey.FETCH:
            return None
        answer = await log.fetched(asked)
        for topic in answer.responses:
            for row in topic.partitions:
                if asked.number == 0:
                    row.preferred_read_replica, row.records = 1, b""
                elif asked.broker_id == 1:
                    row.error_code, row.records = ErrorCode.OFFSET_OUT_OF_RANGE, b""
        return answer

    log.fault = fault
    async with scripted_client(log.script, topics={"t": 1}, brokers_count=2, rack="here") as (client, brokers):
        assert await read_all(client, partition_bytes=100) == list(range(COUNT))
        assert not brokers.asked_of(ApiKey.LIST_OFFSETS)[1:]


@on_both_loops
async def test_damage_names_its_offset_and_how_to_go_on() -> None:
    log = a_log()
    damaged = bytearray(log.batches[T0][1])
    damaged[-2] ^= 1
    log.batches[T0][1] = bytes(damaged)
    async with scripted_client(log.script, topics={"t": 1}) as (client, _brokers), client.read("t") as stream:
        assert [(await anext(stream)).offset for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(DamagedDataError, match=r"t-0, offset 3: .*CRC.*seek\(…, Offset\(6\)\)"):
                await anext(stream)
        stream.seek(T0, Position(6))
        assert (await anext(stream)).offset == 6


@on_both_loops
async def test_an_answer_without_a_batch() -> None:
    log = a_log()

    async def fault(asked: Any) -> Any:
        if asked.key != ApiKey.FETCH:
            return None
        answer = await log.fetched(asked)
        for topic in answer.responses:
            topic.partitions[0].records = b"no batch" * 20
        return answer

    log.fault = fault
    async with scripted_client(log.script, topics={"t": 1}) as (client, _brokers), client.read("t") as stream:
        with pytest.raises(DamagedDataError, match="t-0, offset 0: the answer of 160 bytes holds no whole"):
            await anext(stream)


@on_both_loops
async def test_a_reader_cancelled_at_each_await() -> None:
    log = a_log(T0, T1)
    async with scripted_client(log.script, topics={"t": 2}, brokers_count=2) as (client, brokers):

        async def some() -> int:
            async with client.read("t") as stream:
                return len([await anext(stream) for _ in range(5)])

        async for cancelled in at_each_await(some):
            assert cancelled.result in {None, 5}
        assert cancelled.place > 2
        assert sorted(await read_all(client, 2 * COUNT)) == sorted([*range(COUNT), *range(COUNT)])
        assert len([line for line in brokers.lines if not line.is_closed]) <= 2  # those that all share


@on_both_loops
async def test_a_take_cancelled_at_each_await_takes_nothing() -> None:
    log = ScriptedLog()
    log.add(T0, [Record(b"0")])
    added = 1
    async with scripted_client(log.script, topics={"t": 1}) as (client, _brokers), client.read("t") as stream:
        read = []

        async def two() -> None:
            for _ in range(2):
                read.append((await anext(stream)).offset)

        async for _cancelled in at_each_await(two):
            log.add(T0, [Record(b"%d" % added)])
            added += 1
        while len(read) < added:
            read.append((await anext(stream)).offset)
        assert read == list(range(added))


@on_both_loops
async def test_a_slow_reader_does_not_let_memory_grow() -> None:
    log = ScriptedLog()
    for number in range(40):
        for where in (T0, T1):
            log.add(where, [Record(b"%d" % number * 10_000)])
    async with (
        scripted_client(log.script, topics={"t": 2}) as (client, _brokers),
        client.read("t", memory="64KiB") as stream,
    ):
        most = 0
        for turn in range(80):
            await anext(stream)
            while turn == 0 and stream.held_bytes <= 16 * 1024:
                await anyio.sleep(0.001)
            for _ in range(50):  # for it to read as much ahead as it does
                await anyio.lowlevel.checkpoint()
            most = max(most, stream.held_bytes)
        assert 16 * 1024 < most <= 64 * 1024 + 21_000
        assert stream.held_bytes == 0


@on_both_loops
async def test_a_partition_that_nobody_takes_holds_up_no_other() -> None:
    log = ScriptedLog()
    for number in range(40):
        for where in (T0, T1):
            log.add(where, [Record(b"%d" % number * 10_000)])
    async with (
        scripted_client(log.script, topics={"t": 2}) as (client, _brokers),
        client.read("t", memory="64KiB") as stream,
    ):
        source = stream.ledger
        for _ in range(40):
            assert (await source.take(1, {T1})).where == T1
        read = [await source.take(1) for _ in range(40)]
        assert [batch.records[0].offset for batch in read] == list(range(40))


@on_both_loops
async def test_other_tasks_run_while_there_is_always_a_record() -> None:
    log = ScriptedLog()
    log.add(T0, [Record(b"")] * 8000)
    turns = 0
    async with scripted_client(log.script, topics={"t": 1}) as (client, _brokers), client.read("t") as stream:

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        async with anyio.create_task_group() as tasks:
            await anext(stream)
            tasks.start_soon(count_turns)
            for _ in range(7999):
                await anext(stream)
            assert turns >= 5
            tasks.cancel_scope.cancel()


def ended_sessions(brokers: Any) -> set[tuple[int, int]]:
    """Broker and session of each fetch that says that it is the last one."""
    return {
        (asked.broker_id, asked.message.session_id)
        for asked in brokers.asked
        if asked.key == ApiKey.FETCH and asked.message.session_epoch == -1 and not asked.message.topics
    }


@on_both_loops
async def test_who_leaves_ends_the_fetch_sessions() -> None:
    """While a fetch of each is still waited for."""
    log = a_log(T0, T1)
    log.only = {T0: {0}, T1: {1}}
    async with scripted_client(log.script, topics={"t": 2}, brokers_count=2) as (client, brokers):
        async with client.read("t", wait_seconds=60.0) as stream:
            for _ in range(2 * COUNT):
                await anext(stream)
        assert {broker_id for broker_id, _session in ended_sessions(brokers)} == {0, 1}
        assert log.sessions_count() == 0


@on_both_loops
async def test_a_broker_that_does_not_hear_that_a_session_is_over_holds_up_nobody(monkeypatch: Any) -> None:
    log = a_log()

    async def fault(asked: Any) -> Any:
        return NO_ANSWER if asked.key == ApiKey.FETCH and asked.message.session_epoch == -1 else None

    log.fault = fault
    monkeypatch.setattr(fetching, "GOODBYE_SECONDS", 0.01)
    async with scripted_client(log.script, topics={"t": 1}) as (client, brokers):
        assert await read_all(client) == list(range(COUNT))
        assert len(ended_sessions(brokers)) == 1
