"""Transactions as a directory of data holds them, and what is told of them when that is opened: some that were
committed and aborted, and one that is open, each with an offset of a group. The open one ends by its time-out, whenever
that is found, so that nothing is told that its end would change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.support.broker_process import TpcBroker
from tests.support.raw_client import RawConnection
from tests.support.waiting import LOOK_S, PATIENCE_S, eventually

TOPIC: Final = "transfers"
"""Of one partition."""
GROUP: Final = "kept-transfers"
ENDED, OPEN = "kept-ended", "kept-open"


def add_kept_transactions(bootstrap: str, number: int) -> None:
    """`number`: how often it was done before, which is the offset that is committed, too."""
    ended, left_open = _producer(bootstrap, ENDED), _producer(bootstrap, OPEN)
    _begin(ended, bootstrap, f"committed {number}", number)
    ended.commit_transaction(PATIENCE_S)
    _begin(ended, bootstrap, f"aborted {number}", 1000)
    ended.abort_transaction(PATIENCE_S)
    _begin(left_open, bootstrap, f"open {number}", 2000)


def _producer(bootstrap: str, transactional_id: str) -> Producer:
    settings = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
    made = Producer({**settings, "transaction.timeout.ms": 900_000, "log_level": 0})
    made.init_transactions(PATIENCE_S)
    return made


def _begin(producer: Producer, bootstrap: str, value: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        producer.begin_transaction()
        producer.produce(TOPIC, value, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        at = [TopicPartition(TOPIC, 0, offset)]
        producer.send_offsets_to_transaction(at, consumer.consumer_group_metadata(), PATIENCE_S)
    finally:
        consumer.close()


def told_of_kept_transactions(nodes: Sequence[TpcBroker]) -> dict[str, Any] | None:
    """None where there are none, as in the data of an earlier release."""
    bootstrap = ",".join(node.bootstrap for node in nodes)
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": GROUP, "enable.partition.eof": True, "log_level": 0,
        "enable.auto.commit": False, "isolation.level": "read_committed",
    })  # fmt: skip
    plain = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "isolation.level": "read_uncommitted"})
    try:
        if TOPIC not in consumer.list_topics(timeout=LOOK_S).topics:
            return None
        producers = eventually(lambda: _listed(nodes), "both are listed")
        (committed,) = plain.committed([TopicPartition(TOPIC, 0)], timeout=PATIENCE_S)
        return {"committed": committed.offset, "producers": producers, "values": _read(consumer)}
    finally:
        consumer.close()
        plain.close()


def _listed(nodes: Sequence[TpcBroker]) -> dict[str, int]:
    """Their producers."""
    found: dict[str, int] = {}
    for node in nodes:
        for port in node.ports:
            with RawConnection(node.host, port) as client:
                answer = client.ask("ListTransactions", 0, {})
            found |= {one["TransactionalId"]: one["ProducerId"] for one in answer["TransactionStates"]}
    assert {ENDED, OPEN} <= found.keys(), found
    return found


def _read(consumer: Consumer) -> list[str]:
    """As far as nothing is open."""
    values: list[str] = []
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    while True:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, values
        error = message.error()
        if error is None:
            values.append((message.value() or b"").decode())
        elif error.code() == KafkaError._PARTITION_EOF:
            return values
