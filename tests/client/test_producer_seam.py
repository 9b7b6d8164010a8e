"""What transactions ask of a producer: whose batches they are, which partitions are announced, and what spoils them."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from tests.client.producer_logs import TOPIC, Logs, logged_client, refusing
from tests.support.both_loops import on_both_loops
from tests.support.scripted_broker import NO_ANSWER
from tpc_broker.client.batches import ProducerIdentity
from tpc_broker.client.errors import ClientError, DeliveryError, RefusedError
from tpc_broker.client.net.tasks import background_tasks
from tpc_broker.client.producer.front import Producer
from tpc_broker.client.producer.settings import ProducerSettings
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.values import Fate
from tpc_broker.kafka import ApiKey, ErrorCode


class Port:
    """A transaction whose announcements fail with these codes first."""

    transactional_id = "tx"
    produce_version_max = 11

    def __init__(self, *codes):
        self._codes = list(codes)
        self.announced = []

    async def announce(self, partitions):
        if self._codes:
            raise RefusedError(self._codes.pop(0), "announcing")
        self.announced += partitions


@asynccontextmanager
async def transactional(logs, port, **settings):
    async with logged_client(logs, partitions=2) as (client, brokers), background_tasks() as tasks:
        yield Producer(client.fleet, tasks, ProducerSettings(**settings), transaction=port), brokers


async def post(producer, value, partition=0):
    return await producer.post(TOPIC, value, None, (), partition, None)


@on_both_loops
async def test_batches_are_the_transaction_s_and_partitions_are_announced_once_each():
    logs, port = Logs(), Port(ErrorCode.CONCURRENT_TRANSACTIONS)
    async with transactional(logs, port) as (producer, brokers):
        for epoch in (3, 4):
            producer.begin(ProducerIdentity(9, epoch))
            for number in range(4):
                slip = await post(producer, b"%d" % number, number % 2)
                await slip
            await producer.drain()
        assert sorted(port.announced) == [TopicPartition(TOPIC, 0)] * 2 + [TopicPartition(TOPIC, 1)] * 2
        told = [(one.producer_id, one.producer_epoch, one.base_sequence, one.is_transactional) for one in logs.headers]
        assert told == [(9, epoch, number, True) for epoch in (3, 4) for number in (0, 0, 1, 1)]
        asked = brokers.asked_of(ApiKey.PRODUCE)
        assert {one.message.transactional_id for one in asked} == {"tx"}
        assert not brokers.asked_of(ApiKey.INIT_PRODUCER_ID)


@on_both_loops
async def test_numbers_go_on_where_the_identity_stays():
    logs = Logs()
    async with transactional(logs, Port()) as (producer, _brokers):
        for _transaction in range(2):
            producer.begin(ProducerIdentity(9, 3))
            await (await post(producer, b"v"))
        assert [one.base_sequence for one in logs.headers] == [0, 1]


@on_both_loops
async def test_an_announcement_that_is_refused_spoils_the_transaction():
    port = Port(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    async with transactional(Logs(), port) as (producer, brokers):
        producer.begin(ProducerIdentity(9, 0))
        slip = await post(producer, b"v")
        with pytest.raises(DeliveryError, match="INVALID_PRODUCER_ID_MAPPING"):
            await slip
        with pytest.raises(ClientError, match="can only be aborted"):
            await post(producer, b"w")
        with pytest.raises(ClientError, match="can only be aborted"):
            await producer.drain()
        assert not brokers.asked_of(ApiKey.PRODUCE)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER])
@on_both_loops
async def test_a_producer_that_was_replaced_writes_nothing_more(code):
    logs = Logs()

    async def instead(asked):
        return refusing(asked, code) if asked.number else None

    logs.instead = instead
    async with transactional(logs, Port()) as (producer, brokers):
        producer.begin(ProducerIdentity(9, 0))
        await (await post(producer, b"v"))
        slip = await post(producer, b"w")
        with pytest.raises(DeliveryError, match=code.name):
            await slip
        with pytest.raises(ClientError, match="can only be aborted"):
            await producer.drain()
        assert len(brokers.asked_of(ApiKey.PRODUCE)) == 2
        producer.begin(ProducerIdentity(9, 1))
        logs.instead = None
        assert (await (await post(producer, b"x"))).offset == 1


@on_both_loops
async def test_before_an_abort_nothing_is_under_way_and_what_waited_is_gone():
    logs = Logs()

    async def instead(_asked):
        return NO_ANSWER

    logs.instead = instead
    async with transactional(logs, Port()) as (producer, brokers):
        producer.begin(ProducerIdentity(9, 0))
        first = await post(producer, b"v")
        await brokers.wait_asked(ApiKey.PRODUCE)
        second = await post(producer, b"w")
        logs.instead = None
        brokers.lines[-1].close()
        await producer.discard()
        assert (first.fate, second.fate) == (Fate.UNKNOWN, Fate.REFUSED)
        assert producer.statistics()[0] == 0 == producer.statistics().requests_count
        producer.begin(ProducerIdentity(9, 1))
        await (await post(producer, b"x"))
        assert logs.values() == [b"x"]
