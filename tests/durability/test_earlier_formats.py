"""A data directory of the first release (tests/durability/data, killed with records that only its journal held): it is
opened, nothing of it is lost, and it is upgraded by the rule of docs/formats.md.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from tests.durability.test_repair import consume, numbered, produce
from tests.support.broker_process import TpcBroker
from tpc_broker.log.journal import BLOCK_BYTES, decode_superblock

FIRST_RELEASE = Path(__file__).with_name("data") / "first-release.tar.xz"


def superblocks(broker):
    data = (broker.data_folder / "journals" / "0000.journal").read_bytes()[: 2 * BLOCK_BYTES]
    return [decode_superblock(data[:BLOCK_BYTES]), decode_superblock(data[BLOCK_BYTES:])]


def committed(broker):
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    try:
        return consumer.committed([TopicPartition("events", 0)], timeout=10)[0].offset
    finally:
        consumer.close()


def test_a_data_directory_of_the_first_release(tmp_path):
    broker = TpcBroker(tmp_path / "broker", 1)
    broker.data_folder.parent.mkdir(parents=True)
    with tarfile.open(FIRST_RELEASE) as archive:
        archive.extractall(broker.data_folder.parent, filter="data")
    assert all(one.is_of_version_1 for one in superblocks(broker))
    try:
        broker.start()
        assert committed(broker) == 17
        assert consume(broker, 0) == numbered(0, 30)
        assert produce(broker, 0, [b"more"]) is None
        broker.kill()
        assert not any(one.is_of_version_1 for one in superblocks(broker)), "the first release must not believe either"
        broker.start()
        assert consume(broker, 0)[-1] == (30, b"more")
        broker.stop()
    finally:
        broker.kill()
