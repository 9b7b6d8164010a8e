"""A producer whose brokers fail it in all ways at once, by seed: each record is there once, and in order."""

from __future__ import annotations

import random

import anyio
import pytest

from tests.client.producer_logs import TOPIC, Logs, answer_of, logged_client, refusing
from tests.support.both_loops import on_both_loops
from tests.support.scripted_broker import CLOSE, NO_ANSWER
from tpc_broker.kafka import ErrorCode

pytestmark = pytest.mark.clients
SEEDS = range(25)
PARTITIONS = 4
BROKERS = 3
POSTERS = 8
POSTS = 60
RETRIABLE = (
    ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)  # fmt: skip


class Storm:
    """What happens to a Produce, by chance, until it is over."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rate = self.chance.random() * 0.6
        self.logs = Logs()
        self.logs.instead = self.instead
        self.leaders = {partition: partition % BROKERS for partition in range(PARTITIONS)}
        self.is_over = False
        self.brokers = None
        for partition in range(PARTITIONS):
            self.logs.partitions[partition].bytes_max = self.chance.choice([10**6, 3000])

    async def instead(self, asked):
        if self.is_over or self.chance.random() > self.rate:
            return self.carry_out(asked)
        what = self.chance.randrange(7)
        if what == 0:
            return CLOSE
        if what == 1:
            return refusing(asked, self.chance.choice(RETRIABLE))
        if what == 2:
            self.move(self.chance.randrange(PARTITIONS))
        if what == 3:
            await anyio.sleep(self.chance.random() * 0.02)
        answer = self.carry_out(asked)
        if what == 4:
            for row in answer.responses[0].partition_responses:
                row.error_code = row.error_code or ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return {5: CLOSE, 6: NO_ANSWER}.get(what, answer)

    def move(self, partition):
        self.leaders[partition] = self.brokers.leaders[TOPIC, partition] = self.chance.randrange(BROKERS)

    def carry_out(self, asked):
        def append(partition, data):
            if self.leaders[partition] != asked.broker_id:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
            return self.logs.partitions[partition].append(data)

        return answer_of(asked, append)

    async def post(self, client, poster, slips):
        for number in range(POSTS):
            value = b"%d:%d" % (poster, number) + b"x" * self.chance.randrange(50)
            slip = await client.post(TOPIC, value, partition=poster % PARTITIONS)
            slips.append((poster, value, slip))
            if self.chance.random() < 0.2:
                await anyio.sleep(0.001)
            if self.chance.random() < 0.05:
                await slip

    async def give_up(self, client, poster):
        for number in range(20):
            with anyio.move_on_after(self.chance.random() * 0.01):
                await client.send(TOPIC, b"c%d:%d" % (poster, number), partition=poster % PARTITIONS)


@pytest.mark.parametrize("seed", SEEDS)
@on_both_loops
async def test_each_record_is_there_once_and_in_order(seed):
    storm = Storm(seed)
    chance, logs = storm.chance, storm.logs
    settings = {
        "memory_bytes": chance.choice([10**6, 20_000]), "batch_bytes": chance.choice([10**6, 4000]),
        "linger_seconds": chance.choice([0.0, 0.0, 0.003]),
    }  # fmt: skip
    fleet = {"request_seconds": 0.3}
    async with logged_client(logs, partitions=PARTITIONS, brokers_count=BROKERS, fleet=fleet, **settings) as found:
        client, storm.brokers = found
        slips = []
        async with anyio.create_task_group() as tasks:
            for poster in range(POSTERS):
                tasks.start_soon(storm.post, client, poster, slips)
            for poster in range(PARTITIONS):
                tasks.start_soon(storm.give_up, client, poster)
        storm.is_over = True
        await client.flush()
        for poster in range(POSTERS):
            values = logs.values(poster % PARTITIONS)
            mine = [value for value in values if value.startswith(b"%d:" % poster)]
            assert mine == [value for who, value, _slip in slips if who == poster]
            assert len(values) == len(set(values))
        for poster, value, slip in slips:
            offset = (await slip).offset
            assert offset < 0 or logs.values(poster % PARTITIONS)[offset] == value
        there = {value for partition in range(PARTITIONS) for value in logs.values(partition)}
        assert logs.asked_values == there, "what was sent is there, also if nobody waited for it"
        assert client.producer.statistics()[0] == 0 == client.producer.statistics().batches_count
