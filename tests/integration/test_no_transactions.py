"""Below the feature level that has transactions, a transactional producer of every client fails at once, and for good.

Where a client shows words of the broker's, they are the reason and what is to be done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import confluent_kafka
import kafka
import kafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError

from tests.support.broker_process import TpcBroker
from tests.support.kafka_peer import run_tool
from tests.support.raw_client import RawConnection
from tests.support.waiting import PATIENCE_S
from tpc_broker.feature_levels import FIRST_OF_CLUSTERS, FIRST_WITH_TRANSACTIONS

ID = "mover"
REFUSED, UNSUPPORTED_VERSION = 53, 35
REASON = "This cluster has no transactions below feature level 5: tpc cluster level --raise 5"


@pytest.fixture(scope="module")
def broker(module_tmp_path) -> Iterator[TpcBroker]:
    made = TpcBroker(module_tmp_path / "below")
    made.environment["TPC_TEST_FEATURE_LEVELS"] = f"{FIRST_OF_CLUSTERS}-{FIRST_WITH_TRANSACTIONS - 1}"
    made.start()
    yield made
    made.stop()


def test_the_answer_says_why(broker):
    with RawConnection(broker.host, broker.ports[0]) as connection:
        for version, code in ((1, REFUSED), (2, REFUSED), (3, UNSUPPORTED_VERSION)):
            found = connection.ask("FindCoordinator", version, {"Key": ID, "KeyType": 1})
            assert (found["ErrorCode"], found["ErrorMessage"]) == (code, REASON)
        for version in (4, 5, 6):
            asked = {"KeyType": 1, "CoordinatorKeys": [ID]}
            [found] = connection.ask("FindCoordinator", version, asked)["Coordinators"]
            assert (found["ErrorCode"], found["ErrorMessage"]) == (UNSUPPORTED_VERSION, REASON)
        made = connection.ask("InitProducerId", 5, {"TransactionalId": ID, "TransactionTimeoutMs": 1000})
        assert made["ErrorCode"] == REFUSED


def test_librdkafka(broker):
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": ID})
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        producer.init_transactions(PATIENCE_S)
    error = raised.value.args[0]
    assert error.fatal()
    assert error.code() == REFUSED
    assert error.str().endswith(REASON)


def test_kafka_python(broker):
    # One that tries again until it gives up tells of a time-out then, and not of the refusal.
    patience = {"max_block_ms": 1000 * PATIENCE_S}
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=ID, **patience)
    try:
        with pytest.raises(kafka.errors.KafkaError, match=r"Could not find a coordinator .*UnsupportedVersion"):
            producer.init_transactions()
    finally:
        producer.close(timeout=PATIENCE_S)


def test_aiokafka(broker):
    async def main():
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=ID)
        try:
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(AioKafkaError) as raised:
                    await producer.start()
            assert "TransactionalIdAuthorizationFailed" in type(raised.value).__name__
        finally:
            await producer.stop()

    asyncio.run(main())


@pytest.mark.kafka
@pytest.mark.usefixtures("kafka_tools")
def test_java(broker, topic):
    done = run_tool(
        "producer-perf-test", "--topic", topic, "--num-records", "10", "--record-size", "10", "--throughput", "-1",
        "--transactional-id", ID, "--bootstrap-server", broker.bootstrap,
        "--command-property", f"max.block.ms={1000 * PATIENCE_S:.0f}",
    )  # fmt: skip
    assert f"due to unexpected error: {REASON}\n" in done.stdout + done.stderr, done
