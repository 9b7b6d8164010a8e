"""A reader that is told of a cut log asks the broker, and fails when the broker has not got what was read."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.durability.conftest import against_kafka, new_broker
from tests.durability.following import FollowingReader, contradiction
from tests.durability.workload import client_settings, create_topics
from tests.support.waiting import PATIENCE_S

PLACE = ("two-epochs", 0)
RESET = KafkaError(KafkaError._AUTO_OFFSET_RESET, "Partition log truncation detected at offset 9 (leader epoch 1)")

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(against_kafka(), reason="its leader epochs do not rise with every start"),
]


def produce(bootstrap: str, values: list[bytes]) -> None:
    producer = Producer(client_settings(bootstrap))
    for value in values:
        producer.produce(PLACE[0], value, partition=PLACE[1])
    assert producer.flush(PATIENCE_S) == 0


@pytest.fixture
def broker(tmp_path):
    """Three records in epoch 0, two in epoch 1."""
    made = new_broker(tmp_path, 1)
    made.start()
    try:
        create_topics(made.bootstrap, {PLACE[0]: 1})
        produce(made.bootstrap, [b"0", b"1", b"2"])
        made.restart()
        produce(made.bootstrap, [b"3", b"4"])
        yield made
    finally:
        made.kill()


@pytest.mark.parametrize(
    ("offset", "epoch", "told"),
    [
        (2, 0, ""),
        (3, 0, "epoch 0 ended at 3"),
        (4, 1, ""),
        (5, 1, "epoch 1 ended at 5"),
        (4, 2, "epoch -1 ended at -1"),
    ],
)
def test_the_broker_is_asked_for_what_was_read(broker, offset, epoch, told):
    consumer = Consumer(client_settings(broker.bootstrap, **{"group.id": "asks"}))
    try:
        found = contradiction(consumer, PLACE, offset, epoch, given_up=lambda: False)
    finally:
        consumer.close()
    assert found.endswith(told)
    assert bool(found) == bool(told)


@pytest.mark.parametrize(("known", "failures_count"), [((5, 1), 0), ((7, 1), 1), ((5, 2), 1)])
def test_the_reader_goes_on_behind_a_truncation_that_the_broker_denies(broker, known, failures_count):
    got: list[tuple[int, bytes]] = []
    failures: list[str] = []
    stop = threading.Event()

    def take(_key: tuple[str, int], offset: int, value: bytes) -> None:
        got.append((offset, value))
        if len(got) == 2:
            stop.set()

    reader = FollowingReader(client_settings(broker.bootstrap), [PLACE], take=take, fail=failures.append)
    reader._next[PLACE], reader._epochs[PLACE] = known
    consumer = Consumer(reader._settings)
    consumer.assign([TopicPartition(*PLACE, 0)])
    reader._judge(consumer, PLACE, RESET, lambda: False)
    consumer.close()
    assert (len(failures), reader.false_truncations) == (failures_count, 1 - failures_count)
    if not failures_count:
        produce(broker.bootstrap, [b"5", b"6"])
        give_up = threading.Timer(60, stop.set)
        give_up.start()
        reader.run(stop, lambda: False)
        give_up.cancel()
        assert got == [(5, b"5"), (6, b"6")]
