"""How much of the disk partitions take that hold next to nothing, and space for what comes at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker_process import TpcBroker
from tests.support.raw_client import RawConnection
from tests.support.record_batches import Record, batch
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.machine

PARTITIONS = 40
TAKEN_BYTES_MAX = 640 * 1024
"""Of one partition: space for what may come is reserved, with no regard to what has come at first."""
VALUE_BYTES = 700_000
"""Two of them are more than the space that is reserved for one."""


@pytest.fixture
def broker(tmp_path) -> Iterator[TpcBroker]:
    one = TpcBroker(tmp_path, cores_count=1)
    one.start()
    yield one
    one.kill()


def create_topic(broker, name, partitions) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(PATIENCE_S)


def test_a_partition_with_one_record_takes_little_space(broker) -> None:
    create_topic(broker, "sparse", PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(PARTITIONS):
        producer.produce("sparse", b"one", partition=partition)
    assert producer.flush(PATIENCE_S) == 0
    folders = list((broker.data_folder / "topics").glob("sparse-*"))
    assert len(folders) == PARTITIONS
    for folder in folders:
        taken = sum(file.stat().st_blocks * 512 for file in folder.iterdir())
        assert taken <= TAKEN_BYTES_MAX, (folder.name, taken)


def test_a_partition_that_a_request_names_twice_gets_space_for_both(broker) -> None:
    """Kafka keeps the last of two, and tells nobody; here both are stored."""
    create_topic(broker, "twice", 1)
    part = {"Index": 0, "Records": batch([Record(bytes(VALUE_BYTES))])}
    data = [{"Name": "twice", "PartitionData": [part, part]}]
    with RawConnection(broker.host, broker.ports[0]) as connection:
        (answers,) = connection.ask("Produce", 9, {"Acks": -1, "TimeoutMs": 5000, "TopicData": data})["Responses"]
    assert [(one["ErrorCode"], one["BaseOffset"]) for one in answers["PartitionResponses"]] == [(0, 0), (0, 1)]
