"""Who writes to a partition is told by the core that leads it."""

from __future__ import annotations

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.raw_client import RawConnection
from tests.support.waiting import PATIENCE_S

SENT_MS = 1_700_000_000_000
PARTITIONS = 4
NOT_LEADER_OR_FOLLOWER = 6


def test_an_idempotent_producer_is_told_where_its_partitions_are_led(broker, topic):
    settings = {"bootstrap.servers": broker.bootstrap}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(PATIENCE_S)
    producer = Producer({**settings, "enable.idempotence": True})
    for number in range(3 * PARTITIONS):
        producer.produce(topic, b"a", partition=number % PARTITIONS, timestamp=SENT_MS + number)
    assert producer.flush(PATIENCE_S) == 0
    asked, found = {"Topics": [{"Name": topic, "PartitionIndexes": list(range(PARTITIONS))}]}, {}
    for port in broker.ports:
        with RawConnection(broker.host, port) as connection:
            (told,) = connection.ask("DescribeProducers", 0, asked)["Topics"]
        for one in told["Partitions"]:
            assert one["ErrorCode"] in (0, NOT_LEADER_OR_FOLLOWER)
            if one["ErrorCode"] == 0:
                assert one["PartitionIndex"] not in found, "it has one leader"
                found[one["PartitionIndex"]] = one["ActiveProducers"]
    assert sorted(found) == list(range(PARTITIONS))
    (producer_id,) = {one["ProducerId"] for producers in found.values() for one in producers}
    assert found == {
        index: [{
            "ProducerId": producer_id, "ProducerEpoch": 0, "LastSequence": 2,
            "LastTimestamp": SENT_MS + 2 * PARTITIONS + index, "CoordinatorEpoch": -1, "CurrentTxnStartOffset": -1,
        }]
        for index in range(PARTITIONS)
    }  # fmt: skip
