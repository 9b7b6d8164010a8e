"""Nodes whose wall clocks are wrong, by an hour, either way: nothing that counts goes by them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.cluster.test_replication import PARTITIONS, Reader, cores_of, in_sync_everywhere, leads
from tests.log.log_batches import batch
from tests.support.cluster_nodes import Cluster, Node, admin, cluster, create_topic, eventually, metadata_voters
from tests.support.raw_client import RawConnection
from tests.support.replicated_load import Load
from tests.support.waiting import PATIENCE_S

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
HOUR_S = 3600
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed (Debian: faketime)"),
]


def set_clock(node: Node, seconds: int) -> None:
    """So far ahead is this node's wall clock, from its next start on or, if it runs so already, within a second."""
    node.folder.mkdir(exist_ok=True)
    file = node.folder / "clock"
    file.with_suffix(".new").write_text(f"{seconds:+d}")
    file.with_suffix(".new").rename(file)
    node.environment.update({
        "LD_PRELOAD": str(LIBRARY), "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    })  # fmt: skip


def is_set(node: Node, seconds: int) -> bool:
    """Whether a record that it stamps says so."""
    data = {"PartitionData": [{"Index": 0, "Records": batch(0, [b"0"])}], "Name": "stamped"}
    with RawConnection(node.host, node.ports[0]) as client:
        (answer,) = client.ask("Produce", 9, {"Acks": -1, "TimeoutMs": 5_000, "TopicData": [data]})["Responses"]
    (found,) = answer["PartitionResponses"]
    return bool(abs(found["LogAppendTimeMs"] - (time.time() + seconds) * 1000) < 60_000)


@pytest.fixture
def three(tmp_path):
    with cluster(tmp_path) as made:
        yield made


def test_a_clock_that_jumps(three: Cluster):
    """Ahead and back, on a node that leads and coordinates; then it starts again with a clock that is behind."""
    set_clock(three[1], 0)
    three.start()
    create_topic(three.bootstrap, "kept", PARTITIONS, replicas=3)
    at_first = [[three[1].broker_id]]
    stamped = NewTopic("stamped", 1, replica_assignment=at_first, config={"message.timestamp.type": "LogAppendTime"})
    client = admin(three.bootstrap)
    client.create_topics([stamped])["stamped"].result(PATIENCE_S)
    eventually(lambda: in_sync_everywhere(three, "kept"), "three replicas")
    reader = Reader(three.bootstrap, "kept", "readers")
    with Load(three.bootstrap, "kept", PARTITIONS) as load:
        eventually(reader.read, "it reads and commits")
        before = cores_of(three, 1)
        for seconds in (HOUR_S, -HOUR_S):
            set_clock(three[1], seconds)
            eventually(lambda seconds=seconds: is_set(three[1], seconds), "its clock is an hour off")
            load.wait_progress()
            committed = sum(reader.committed)
            eventually(lambda committed=committed: reader.read() and sum(reader.committed) > committed, "it commits")
        assert cores_of(three, 1) == before, "no core was started again"
        three[1].kill()
        load.wait_progress()
        three.start(1)
        load.wait_progress()
        eventually(lambda: in_sync_everywhere(three, "kept"), "it has caught up")
    reader.close()
    load.check(three.bootstrap)
    for node in three.nodes:
        assert not [line for line in node.log_messages() if "Traceback" in line or "AssertionError" in line]


def test_an_empty_disk_and_a_clock_that_is_behind(three: Cluster):
    """A host that is put in the place of another one, whose clock was right."""
    three.start()
    create_topic(three.bootstrap, "kept", PARTITIONS, replicas=3)
    with Load(three.bootstrap, "kept", PARTITIONS) as load:
        load.wait_progress()
        three[3].kill()
        shutil.rmtree(three[3].data_folder)
        set_clock(three[3], -HOUR_S)
        three.start(3)
        eventually(lambda: in_sync_everywhere(three, "kept"), "it votes in place of the one before")
        eventually(lambda: metadata_voters(three.bootstrap) == [1, 2, 3], "on the metadata, too")
        killed = leads(three, "kept")
        three[killed].kill()
        load.wait_progress()
    load.check(three[3 if killed != 3 else 1].bootstrap)
