"""A producer and brokers that answer late, never, twice, or wrongly, and leaders that change: on both loops."""

from __future__ import annotations

import anyio
import pytest

from tests.client.producer_logs import TOPIC, Logs, answer_of, logged_client, refusing
from tests.support.both_loops import on_both_loops, on_loops_in_turn
from tests.support.scripted_broker import CLOSE, NO_ANSWER, Behind, Cut, Raw, Twice, size_of
from tpc_broker.client.errors import DeliveryError, RecordRefusedError, UndeliveredError
from tpc_broker.client.producer import sender
from tpc_broker.client.values import Fate
from tpc_broker.kafka import ApiKey, ErrorCode, messages

RECORDS = [b"%d" % number for number in range(200)]


async def post_all(client, partitions=1):
    """`RECORDS` in turn to each partition, in several rounds so that many batches are under way."""
    slips = []
    for number, value in enumerate(RECORDS):
        slips.append(await client.post(TOPIC, value, partition=number % partitions))
        if number % 7 == 0:
            await slips[len(slips) // 2]
    await client.flush()
    return slips


def expected(partition, partitions):
    return RECORDS[partition::partitions]


@on_loops_in_turn("fault", ["lost answer", "lost request", "cut", "twice", "behind", "garbage", "huge"])
async def test_each_record_is_there_once_and_in_order_when_connections_break(fault):
    logs = Logs()

    async def instead(asked):
        if asked.number not in ((2,) if fault == "behind" else (2, 5, 8)):
            return None
        if fault == "lost request":
            return CLOSE
        answer = logs.produce(asked)
        if fault in ("twice", "behind", "cut"):
            return {"twice": Twice, "behind": Behind, "cut": lambda whole: Cut(whole, 9)}[fault](answer)
        return {"lost answer": CLOSE, "garbage": Raw(size_of(8) + b"\xff" * 8), "huge": Raw(size_of(2**31 - 1))}[fault]

    logs.instead = instead
    async with logged_client(logs, partitions=3, fleet={"request_seconds": 0.5}) as (client, _brokers):
        slips = await post_all(client, partitions=3)
        assert {slip.fate for slip in slips} == {Fate.DELIVERED}
        for partition in range(3):
            assert logs.values(partition) == expected(partition, 3)


@on_both_loops
async def test_a_record_alone_is_sent_at_once_and_those_behind_it_together():
    logs, answers = Logs(), anyio.Event()

    async def instead(asked):
        if asked.number == 1:
            await answers.wait()

    logs.instead = instead
    async with logged_client(logs) as (client, brokers):
        await client.send(TOPIC, b"first")
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(client.send, TOPIC, b"%d" % number)
            await brokers.wait_asked(ApiKey.PRODUCE, 2)
            assert client.producer.statistics().batches_count == 2
            answers.set()
        sent = [(batch.base_sequence, batch.records_count) for batch in logs.headers]
        assert sent == [(0, 1), (1, 1), (2, 4)]
        assert sorted(logs.values()) == [*(b"%d" % number for number in range(5)), b"first"]


@on_both_loops
async def test_a_broker_that_falls_silent_is_asked_again():
    logs = Logs()

    async def instead(asked):
        return NO_ANSWER if asked.number == 1 else None

    logs.instead = instead
    async with logged_client(logs, fleet={"request_seconds": 0.2}) as (client, _brokers):
        for value in RECORDS[:3]:
            await client.send(TOPIC, value)
        assert logs.values() == RECORDS[:3]


@on_both_loops
async def test_batches_follow_the_leader_in_order():
    logs = Logs()
    leader = 0

    async def instead(asked):
        nonlocal leader
        if asked.number % 5 == 4:
            leader = 1 - leader
            brokers.leaders[TOPIC, 0] = leader
        return refusing(asked, ErrorCode.NOT_LEADER_OR_FOLLOWER) if asked.broker_id != leader else None

    logs.instead = instead
    async with logged_client(logs, brokers_count=2) as (client, brokers):
        brokers.leaders[TOPIC, 0] = leader
        await post_all(client)
        assert logs.values() == RECORDS
        assert {asked.broker_id for asked in brokers.asked_of(ApiKey.PRODUCE)} == {0, 1}


@on_both_loops
async def test_without_a_leader_a_record_waits_for_one():
    logs = Logs()
    async with logged_client(logs) as (client, brokers):
        await client.send(TOPIC, b"before")
        brokers.leaders[TOPIC, 0] = -1

        async def instead(asked):
            return refusing(asked, ErrorCode.NOT_LEADER_OR_FOLLOWER)

        logs.instead = instead
        slip = await client.post(TOPIC, b"after")
        await brokers.wait_asked(ApiKey.METADATA, len(brokers.asked_of(ApiKey.METADATA)) + 2)
        assert slip.fate is Fate.UNDER_WAY
        logs.instead = None
        brokers.leaders[TOPIC, 0] = 0
        assert (await slip).offset == 1


@on_both_loops
async def test_a_repetition_that_the_broker_knows_is_a_success_whose_place_is_not_known():
    logs = Logs()

    async def instead(asked):
        return refusing(asked, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)

    logs.instead = instead
    async with logged_client(logs) as (client, _brokers):
        assert (await client.send(TOPIC, b"v", timestamp=5))[:] == (TOPIC, 0, -1, 5)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER])
@on_both_loops
async def test_a_broker_that_forgot_the_producer_sees_another_epoch(code):
    logs = Logs()

    async def instead(asked):
        return refusing(asked, code) if asked.number == 1 else None

    logs.instead = instead
    async with logged_client(logs) as (client, _brokers):
        for value in RECORDS[:3]:
            await client.send(TOPIC, value)
        assert logs.values() == RECORDS[:3]
        numbers = [(batch.producer_epoch, batch.base_sequence) for batch in logs.headers]
        assert numbers == [(0, 0), (0, 1), (1, 0), (1, 1)]


@on_both_loops
async def test_after_the_deadline_the_error_says_what_is_known(clock_of):
    clock = clock_of("producer.front", "producer.sender")
    logs = Logs()

    async def instead(_asked):
        clock.passes(1000)
        return NO_ANSWER

    logs.instead = instead
    async with logged_client(logs, delivery_seconds=1000, leave_seconds=0.0) as (client, _brokers):
        with pytest.raises(DeliveryError, match=r"t-0: .*delivery_seconds=1000") as told:
            await client.send(TOPIC, b"v")
        assert told.value.fate is Fate.UNKNOWN


@on_both_loops
async def test_what_no_broker_could_be_given_is_certainly_not_there(clock_of):
    clock = clock_of("producer.front", "producer.sender")
    logs = Logs()
    async with logged_client(logs, delivery_seconds=1000, brokers_count=2) as (client, brokers):
        brokers.leaders[TOPIC, 0] = 1
        brokers.refused.add(1)
        slip = await client.post(TOPIC, b"v")
        while len(brokers.dials) < 4:
            await anyio.sleep(0.001)
        clock.passes(1000)
        with pytest.raises(DeliveryError, match=r"t-0: .*delivery_seconds=1000.*scripted:9093.*refused") as told:
            await slip
        assert told.value.fate is slip.fate is Fate.REFUSED


@on_both_loops
async def test_records_for_a_topic_that_was_deleted_fail_before_their_deadline(clock_of):
    clock = clock_of("producer.sender")
    logs = Logs()
    async with logged_client(logs, delivery_seconds=1000, fleet={"retry_seconds": 1000.0}) as (client, brokers):

        async def instead(asked):
            return None if TOPIC in brokers.topics else refusing(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

        async def asked_again():
            await brokers.wait_asked(ApiKey.METADATA, len(brokers.asked_of(ApiKey.METADATA)) + 2)

        logs.instead = instead
        await client.send(TOPIC, b"before")
        del brokers.topics[TOPIC]
        slip = await client.post(TOPIC, b"a")
        await asked_again()
        brokers.topics[TOPIC] = 1  # in time
        assert (await slip).offset == 1
        del brokers.topics[TOPIC]
        slip = await client.post(TOPIC, b"b")
        await asked_again()
        clock.passes(sender.GONE_SECONDS)
        with pytest.raises(RecordRefusedError, match="t-0: there is no topic 't' any more, for 10 s") as told:
            await slip
        assert told.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert told.value.fate is Fate.REFUSED
        brokers.topics[TOPIC] = 1
        await client.send(TOPIC, b"after")
        assert logs.values() == [b"before", b"a", b"after"]


@on_both_loops
async def test_what_is_refused_for_good_names_its_reason_and_leaves_no_gap():
    logs = Logs()
    async with logged_client(logs) as (client, _brokers):
        await client.send(TOPIC, b"a")
        with pytest.raises(RecordRefusedError, match=r"t-0 at broker 0 .*INVALID_RECORD") as told:
            await client.send(TOPIC, b"bad")
        assert (told.value.fate, told.value.code) == (Fate.REFUSED, ErrorCode.INVALID_RECORD)
        await client.send(TOPIC, b"b")
        assert logs.values() == [b"a", b"b"]


@on_both_loops
async def test_without_a_right_to_a_producer_id_a_record_is_refused_at_once():
    logs = Logs()

    async def script(asked):
        if asked.key == ApiKey.INIT_PRODUCER_ID:
            return messages.InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return None

    async with logged_client(logs) as (client, brokers):
        brokers.script = script
        with pytest.raises(RecordRefusedError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await client.send(TOPIC, b"v")


@on_both_loops
async def test_a_producer_id_is_asked_for_again():
    logs = Logs()

    async def script(asked):
        if asked.key == ApiKey.INIT_PRODUCER_ID and asked.number < 2:
            return messages.InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return await logs.script(asked)

    async with logged_client(logs) as (client, brokers):
        brokers.script = script
        await client.send(TOPIC, b"v")
        assert logs.values() == [b"v"]


@on_both_loops
async def test_leaving_is_bounded_and_tells_what_was_not_delivered():
    logs = Logs()

    async def instead(_asked):
        return NO_ANSWER

    logs.instead = instead
    with pytest.raises(UndeliveredError, match=r"3 records were not delivered \(t-0: 1 refused; t-0: 2 unknown\)"):
        async with logged_client(logs, leave_seconds=0.0, batch_bytes=90) as (client, brokers):
            for _record in range(2):
                await client.post(TOPIC, b"v")
            await brokers.wait_asked(ApiKey.PRODUCE)
            await client.post(TOPIC, b"w")


@on_both_loops
async def test_an_error_that_ends_the_block_is_not_held_up_and_has_a_note():
    logs = Logs()

    async def instead(_asked):
        return NO_ANSWER

    logs.instead = instead
    with pytest.raises(ZeroDivisionError) as told:
        async with logged_client(logs) as (client, brokers):
            slip = await client.post(TOPIC, b"v")
            await brokers.wait_asked(ApiKey.PRODUCE)
            raise ZeroDivisionError
    assert "t-0: 1 unknown" in told.value.__notes__[0]
    assert slip.fate is Fate.UNKNOWN


@on_both_loops
async def test_a_failure_is_told_once_to_who_awaits_or_else_to_who_flushes():
    logs = Logs()
    async with logged_client(logs) as (client, _brokers):
        first, _second = await client.post(TOPIC, b"bad 1"), await client.post(TOPIC, b"bad 2")
        with pytest.raises(RecordRefusedError):
            await first
        with pytest.raises(UndeliveredError, match="1 records"):
            await client.flush()
        await client.flush()
        with pytest.raises(RecordRefusedError):
            await first


@on_both_loops
async def test_send_all_tells_how_many_were_not_delivered_and_takes_no_more():
    logs = Logs()
    taken = []

    def records():
        for number in range(100_000):
            taken.append(number)
            yield b"bad" if number == 100 else b"v" * 100

    async with logged_client(logs, memory_bytes=50_000, batch_bytes=3000) as (client, _brokers):
        with pytest.raises(UndeliveredError, match=r"t-0: .* refused.*INVALID_RECORD"):
            await client.send_all(TOPIC, records())
        assert len(taken) < 10_000
        await client.flush()


@on_both_loops
async def test_partitions_that_a_topic_got_later_can_be_written_to():
    logs = Logs()
    async with logged_client(logs) as (client, brokers):
        await client.send(TOPIC, b"a", partition=0)
        brokers.topics[TOPIC] = 2
        await client.send(TOPIC, b"b", partition=1)
        assert logs.values(1) == [b"b"]


@pytest.mark.parametrize("last", [3, 7, 9])
@on_both_loops
async def test_old_brokers_are_written_to(last):
    logs = Logs()
    async with logged_client(logs, versions={ApiKey.PRODUCE: (0, last)}) as (client, _brokers):
        await client.send(TOPIC, b"a", headers={"h": b"1"})
        with pytest.raises(RecordRefusedError, match="INVALID_RECORD"):
            await client.send(TOPIC, b"bad")
        await client.send(TOPIC, b"b")
        assert logs.values() == [b"a", b"b"]


@on_both_loops
async def test_a_broker_without_producer_ids_can_be_written_to_without_idempotence():
    logs = Logs()
    without = {ApiKey.INIT_PRODUCER_ID: None}
    async with logged_client(logs, versions=without, leave_seconds=0.0) as (client, _brokers):
        with pytest.raises(DeliveryError, match="idempotent=False"):
            await client.send(TOPIC, b"v")
    async with logged_client(logs, versions=without, idempotent=False) as (client, _brokers):
        assert (await client.send(TOPIC, b"v")).offset == 0


@on_both_loops
async def test_without_idempotence_one_batch_of_a_partition_is_under_way():
    logs = Logs()
    async with logged_client(logs, idempotent=False, acks=1) as (client, brokers):
        slips = [await client.post(TOPIC, b"%d" % number) for number in range(10)]
        for slip in slips:
            await slip
        asked = brokers.asked_of(ApiKey.PRODUCE)
        assert {one.message.acks for one in asked} == {1}
        assert not brokers.asked_of(ApiKey.INIT_PRODUCER_ID)
        assert {(batch.producer_id, batch.base_sequence) for batch in logs.headers} == {(-1, -1)}


@on_both_loops
async def test_nothing_is_sealed_for_a_broker_that_is_to_be_left_alone():
    logs = Logs()
    asked_at = []

    async def instead(asked):
        asked_at.append(anyio.current_time())
        answer = logs.produce(asked)
        answer.throttle_time_ms = 80 if len(asked_at) == 1 else 0
        return answer

    logs.instead = instead
    async with logged_client(logs) as (client, _brokers):
        await client.send(TOPIC, b"a")
        slips = [await client.post(TOPIC, value) for value in (b"b", b"c", b"d")]
        await anyio.wait_all_tasks_blocked()
        assert {slip.fate for slip in slips} == {Fate.WAITING}
        assert slips[1].withdraw()
        await slips[0]
        assert logs.values() == [b"a", b"b", b"d"]
        assert asked_at[1] - asked_at[0] >= 0.079
        assert len(asked_at) == 2


@on_both_loops
async def test_an_answer_that_lacks_a_partition_is_none():
    logs = Logs()

    async def instead(asked):
        if asked.number:
            return None
        answer = answer_of(asked, lambda _partition, _data: (0, 0))
        answer.responses[0].partition_responses = []
        return answer

    logs.instead = instead
    async with logged_client(logs) as (client, _brokers):
        await client.send(TOPIC, b"v")
        assert logs.values() == [b"v"]
