"""A broker whose background queue is saturated: clients and groups go on as if it were not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import tpc_broker
from tests.support.broker_process import TpcBroker
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.machine

TASKS, STEP_US = 5000, 1000
"""Without queues each turn of the loop takes five seconds, and an answer some turns."""
ROUNDS = 25


@pytest.fixture
def broker(tmp_path, monkeypatch) -> Iterator[TpcBroker]:
    monkeypatch.setenv("PYTHONPATH", str(Path(tpc_broker.__file__).parent / "bench" / "saturate"))
    monkeypatch.setenv("TPC_SATURATE", f"{TASKS},{STEP_US}")
    broker = TpcBroker(tmp_path, 1, {"group.initial.rebalance.delay.ms": "0"})
    broker.start()
    yield broker
    broker.stop()


def queues_of(broker: TpcBroker) -> dict:
    (counters,) = broker.counters()
    return counters["queues"]


def test_groups_and_their_deadlines_hold(broker):
    """Members join, records are written, read and committed one by one, and nobody loses its partitions."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    assigned, revoked, read = [], [], []
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "enable.auto.commit": False,
        }
    )  # fmt: skip
    consumer.subscribe(["t"], on_assign=lambda _c, p: assigned.append(p), on_revoke=lambda _c, p: revoked.append(p))
    give_up_at = time.monotonic() + PATIENCE_S
    try:
        for number in range(ROUNDS):
            producer.produce("t", b"%d" % number)
            assert producer.flush(PATIENCE_S) == 0
            while len(read) <= number:
                assert time.monotonic() < give_up_at, (number, assigned)
                message = consumer.poll(0.5)
                if message is not None:
                    assert message.error() is None
                    read.append(message.value())
            consumer.commit(asynchronous=False)
        assert not revoked
        assert len(assigned) == 1
    finally:
        consumer.close()
    assert read == [b"%d" % number for number in range(ROUNDS)]
    found = queues_of(broker)
    assert found["background"]["waiting_now"] > TASKS // 2, "it was saturated"
    assert found["background"]["runtime_ns"] > 0
    assert found["coordinators"]["selections"] > ROUNDS
