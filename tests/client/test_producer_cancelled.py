"""What a cancelled wait leaves behind, at each await, and who waits for room: on both loops, without a clock."""

from __future__ import annotations

import anyio
import pytest

from tests.client.producer_logs import TOPIC, Logs, logged_client
from tests.support.both_loops import on_both_loops
from tests.support.cancelled import at_each_await, cancelled_at
from tpc_broker.client.errors import DeliveryError, RecordTooLargeError
from tpc_broker.client.producer.batch import RECORD_BYTES
from tpc_broker.client.values import Fate
from tpc_broker.kafka import ApiKey


@on_both_loops
async def test_a_cancelled_send_is_withdrawn_or_arrives_once():
    logs = Logs()
    async with logged_client(logs) as (client, _brokers):
        sent = []

        async def send():
            sent.append(b"%d" % len(sent))
            return await client.send(TOPIC, sent[-1])

        async for cancelled in at_each_await(send):
            if not cancelled.is_done and sent[-1] not in logs.asked_values:
                await client.flush()
                assert sent[-1] not in logs.asked_values, "sent after it was withdrawn"
        await client.flush()
        assert logs.values() == [value for value in sent if value in logs.asked_values]
        assert client.producer.statistics().bytes_held == 0
        sequences = [batch.base_sequence for batch in logs.headers]
        assert sequences == list(range(len(sequences)))


@on_both_loops
async def test_on_an_idle_connection_a_record_leaves_before_its_sender_first_waits():
    logs = Logs()
    async with logged_client(logs) as (client, _brokers):
        await client.send(TOPIC, b"first")
        cancelled = await cancelled_at(1, lambda: client.send(TOPIC, b"second"))
        assert not cancelled.is_done
        await client.flush()
        assert logs.values() == [b"first", b"second"]


@on_both_loops
async def test_a_send_that_waits_behind_a_full_pipe_is_withdrawn_when_it_is_cancelled():
    logs = Logs()
    answers = anyio.Event()

    async def instead(_asked):
        await answers.wait()

    logs.instead = instead
    async with logged_client(logs) as (client, brokers):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.send, TOPIC, b"first")
            await brokers.wait_asked(ApiKey.PRODUCE)
            cancelled = await cancelled_at(1, lambda: client.send(TOPIC, b"second"))
            assert not cancelled.is_done
            answers.set()
        await client.send(TOPIC, b"third")
        assert logs.values() == [b"first", b"third"]
        assert b"second" not in logs.asked_values


@on_both_loops
async def test_a_cancelled_wait_for_a_slip_ends_only_the_wait():
    logs = Logs()
    async with logged_client(logs) as (client, _brokers):
        slips = []

        async def wait():
            slips.append(await client.post(TOPIC, b"%d" % len(slips)))
            return await slips[-1]

        async for _cancelled in at_each_await(wait):
            pass
        await client.flush()
        assert {slip.fate for slip in slips} == {Fate.DELIVERED}
        assert logs.values() == [b"%d" % number for number in range(len(slips))]


@on_both_loops
async def test_a_cancelled_send_all_leaves_a_beginning():
    logs = Logs()
    async with logged_client(logs, memory_bytes=4000, batch_bytes=600) as (client, _brokers):
        rounds = 0

        async def send_all():
            nonlocal rounds
            rounds += 1
            return await client.send_all(TOPIC, [b"%d-%d" % (rounds, number) for number in range(60)])

        async for cancelled in at_each_await(send_all):
            await client.flush()
            mine = [value for value in logs.values() if value.startswith(b"%d-" % rounds)]
            whole = [b"%d-%d" % (rounds, number) for number in range(60)]
            assert mine == whole[: len(mine)]
            assert len(mine) == 60 or not cancelled.is_done
            assert client.producer.statistics().bytes_held == 0


@on_both_loops
async def test_a_cancelled_wait_for_room_takes_none():
    logs = Logs()
    answers = anyio.Event()

    async def instead(_asked):
        await answers.wait()

    logs.instead = instead
    size = 100 + RECORD_BYTES
    async with logged_client(logs, memory_bytes=2 * size) as (client, brokers):
        await client.post(TOPIC, b"x" * 100)
        await brokers.wait_asked(ApiKey.PRODUCE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.post, TOPIC, b"y" * 100)
            await anyio.wait_all_tasks_blocked()
            with anyio.CancelScope() as scope:
                scope.cancel()
                await client.post(TOPIC, b"z" * 100)
            assert client.producer.statistics().posts_waiting_count <= 1
            answers.set()
        await client.flush()
        assert logs.values() == [b"x" * 100, b"y" * 100]
        assert client.producer.statistics() == (0, 2 * size, 0, 0, 0)


@on_both_loops
async def test_a_post_that_is_cancelled_at_any_await_took_nothing():
    logs = Logs()
    size = 100 + RECORD_BYTES
    async with logged_client(logs, memory_bytes=2 * size) as (client, _brokers):
        posted = []

        async def fill_and_post():
            for number in range(3):
                value = b"%d-%d" % (len(posted), number) + b"x" * 90
                slip = await client.post(TOPIC, value)
                posted.append((value, slip))

        async for _cancelled in at_each_await(fill_and_post):
            await client.flush()
            assert client.producer.statistics() == (0, 2 * size, 0, 0, 0)
        assert logs.values() == [value for value, _slip in posted]


@on_both_loops
async def test_a_cancelled_flush_ends_only_the_wait():
    logs = Logs()
    async with logged_client(logs) as (client, _brokers):
        slips = []

        async def post_and_flush():
            slips.append(await client.post(TOPIC, b"%d" % len(slips)))
            await client.flush()

        async for _cancelled in at_each_await(post_and_flush):
            pass
        await client.flush()
        assert logs.values() == [b"%d" % number for number in range(len(slips))]


@on_both_loops
async def test_a_posted_record_can_be_withdrawn_until_its_batch_is_sealed():
    logs = Logs()
    answers = anyio.Event()

    async def instead(_asked):
        await answers.wait()

    logs.instead = instead
    async with logged_client(logs) as (client, brokers):
        first = await client.post(TOPIC, b"0")
        await brokers.wait_asked(ApiKey.PRODUCE)
        slips = [await client.post(TOPIC, b"%d" % number) for number in range(1, 6)]
        assert not first.withdraw()
        assert slips[1].withdraw()
        assert not slips[1].withdraw()
        assert slips[3].withdraw()
        answers.set()
        with pytest.raises(DeliveryError, match="withdrawn"):
            await slips[1]
        assert [(await slip).offset for slip in (first, slips[0], slips[2], slips[4])] == [0, 1, 2, 3]
        assert [slip.fate for slip in slips] == [
            Fate.DELIVERED, Fate.WITHDRAWN, Fate.DELIVERED, Fate.WITHDRAWN, Fate.DELIVERED,
        ]  # fmt: skip
        assert logs.values() == [b"0", b"1", b"3", b"5"]


@on_both_loops
async def test_posting_never_holds_more_than_the_memory_and_drops_nothing():
    logs = Logs()
    used = []

    async def instead(_asked):
        used.append(client.producer.statistics().bytes_held)

    logs.instead = instead
    async with logged_client(logs, partitions=3, memory_bytes=1500, batch_bytes=500) as (client, _brokers):
        async with anyio.create_task_group() as tasks:

            async def post(poster):
                for number in range(50):
                    await client.post(TOPIC, b"%d-%d" % (poster, number), partition=poster % 3)

            for poster in range(6):
                tasks.start_soon(post, poster)
        await client.flush()
        assert max(used) <= 1500
        for poster in range(6):
            mine = [value for value in logs.values(poster % 3) if value.startswith(b"%d-" % poster)]
            assert mine == [b"%d-%d" % (poster, number) for number in range(50)]


@on_both_loops
async def test_a_slow_partition_leaves_room_for_others():
    logs = Logs()
    answers = anyio.Event()

    async def instead(asked):
        if asked.broker_id == 0:
            await answers.wait()

    logs.instead = instead
    async with logged_client(logs, partitions=2, brokers_count=2, memory_bytes=4000) as (client, _brokers):
        async with anyio.create_task_group() as tasks:

            async def post_to_the_slow_one():
                for number in range(100):
                    await client.post(TOPIC, b"%d" % number, partition=0)

            tasks.start_soon(post_to_the_slow_one)
            for number in range(100):
                await client.send(TOPIC, b"%d" % number, partition=1)
            assert client.producer.statistics().posts_waiting_count == 1
            answers.set()
        await client.flush()
        assert logs.values(0) == logs.values(1) == [b"%d" % number for number in range(100)]


@on_both_loops
async def test_a_record_larger_than_the_memory_is_refused_at_once():
    async with logged_client(Logs(), memory_bytes=1000) as (client, _brokers):
        with pytest.raises(RecordTooLargeError, match=r"t-0: a record of 2036 bytes .* 1000 bytes .*memory="):
            await client.post(TOPIC, b"x" * 2000)


@on_both_loops
async def test_lingering_waits_for_a_whole_batch_or_a_flush():
    logs = Logs()
    async with logged_client(logs, linger_seconds=3600.0, batch_bytes=10 * (1 + RECORD_BYTES)) as (client, brokers):
        slips = [await client.post(TOPIC, b"v") for _record in range(15)]
        await slips[9]
        assert [slip.fate for slip in slips[10:]] == [Fate.WAITING] * 5
        await client.flush()
        assert len(brokers.asked_of(ApiKey.PRODUCE)) == 2
        assert {slip.fate for slip in slips} == {Fate.DELIVERED}
