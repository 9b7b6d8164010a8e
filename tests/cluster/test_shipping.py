"""Replicas that are filled with segments: where the first records are deleted, and where much is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.cluster.test_replication import in_sync_everywhere, leads
from tests.support.cluster_nodes import Cluster, cluster, create_topic, eventually
from tests.support.replicated_load import Load

PARTITIONS = 3


@pytest.fixture
def three(tmp_path: Path):
    with cluster(tmp_path, cores=1) as made:
        made.start()
        yield made


def delete_records(bootstrap: str, topic: str, starts: list[int]) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    asked = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(starts)]
    for answer in client.delete_records(asked).values():
        answer.result(30)


def was_filled(made: Cluster, number: int) -> int:
    return sum("was filled from node" in line for line in made[number].log_messages())


def test_an_empty_node_gets_a_log_whose_first_records_are_deleted(three: Cluster):
    """It cannot learn from the first record on; with it another node may go."""
    create_topic(three.bootstrap, "kept", PARTITIONS, replicas=3)
    with Load(three.bootstrap, "kept", PARTITIONS) as load:
        load.wait_progress()
        three[3].kill()
        shutil.rmtree(three[3].data_folder)
        load.wait_progress()
        load.starts = [len(each) // 2 for each in load.acknowledged]
        assert min(load.starts) > 0
        delete_records(three[1].bootstrap, "kept", load.starts)
        three.start(3)
        load.wait_progress()
        eventually(lambda: in_sync_everywhere(three, "kept"), "it has what is there, and votes")
        assert was_filled(three, 3) >= PARTITIONS
        killed = leads(three, "kept", but=3)
        three[killed].kill()
        load.wait_progress()
    load.check(three[3 if killed != 3 else 1].bootstrap)
    for node in three.nodes:
        assert not [line for line in node.log_messages() if "Traceback" in line or "AssertionError" in line]
