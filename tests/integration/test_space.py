"""How much of the disk partitions take that hold next to nothing."""

from __future__ import annotations

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker_process import TpcBroker

PARTITIONS = 40
TAKEN_BYTES_MAX = 640 * 1024
"""Of one partition: space for what may come is reserved, with no regard to what has come at first."""


def test_a_partition_with_one_record_takes_little_space(tmp_path) -> None:
    broker = TpcBroker(tmp_path, cores_count=1)
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("sparse", PARTITIONS, 1)])["sparse"].result(20)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for partition in range(PARTITIONS):
            producer.produce("sparse", b"one", partition=partition)
        assert producer.flush(20) == 0
        for folder in (broker.data_folder / "topics").glob("sparse-*"):
            taken = sum(file.stat().st_blocks * 512 for file in folder.iterdir())
            assert taken <= TAKEN_BYTES_MAX, (folder.name, taken)
    finally:
        broker.kill()
