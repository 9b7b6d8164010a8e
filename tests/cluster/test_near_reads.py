"""Consumers that read from the replica in their rack (KIP-392), in a cluster whose nodes are in different racks."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.cluster.test_replication import described, in_sync_everywhere
from tests.support.cluster_nodes import Cluster, Node, cluster, create_topic, eventually, produce
from tests.support.kafka_peer import run_tool
from tests.support.replicated_load import Load

pytestmark = pytest.mark.cluster

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RECORDS = 2_000


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The last test leaves one node dead."""
    with cluster(tmp_path_factory.mktemp("near")) as made:
        for node in made.nodes:
            node.rack = f"rack{node.number}"
            node.overrides = {"replica.selector.class": SELECTOR}
        made.start()
        yield made


def make(made: Cluster, topic: str) -> tuple[Node, Node, Node]:
    """A topic of one partition; the nodes of its leader, of another replica, and of the third one."""
    create_topic(made.bootstrap, topic, 1, replicas=3)
    eventually(lambda: in_sync_everywhere(made, topic), "three replicas")
    led = eventually(lambda: described(made[1].bootstrap, topic), "it is led")
    leader = made[led[0][0]]
    near, other = (node for node in made.nodes if node is not leader)
    return leader, near, other


def read_bytes(node: Node) -> int:
    """Of records that clients have got from a node."""
    return sum(counters["fetches"]["record_bytes"] for counters in node.counters())


def read_of(nodes: list[Node], read: Callable[[], None]) -> set[Node]:
    """From which nodes records came meanwhile."""
    before = [read_bytes(node) for node in nodes]
    read()
    return {node for node, then in zip(nodes, before, strict=True) if read_bytes(node) > then}


class Reader:
    """A consumer in a rack: every record of the partition in its order, and from which broker the last ones came."""

    def __init__(self, bootstrap: str, rack: str) -> None:
        self.found: list[tuple[int, int]] = []
        self.errors: list[str] = []
        self.broker = -1
        self._stop = threading.Event()
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap, "client.rack": rack, "group.id": rack, "enable.auto.commit": False,
            "auto.offset.reset": "error", "statistics.interval.ms": 100, "stats_cb": self._told,
            "topic.metadata.refresh.interval.ms": 1_000, "reconnect.backoff.max.ms": 500, "log_level": 0,
        }  # fmt: skip
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition("near", 0, 0)])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _told(self, statistics: str) -> None:
        partitions = json.loads(statistics)["topics"].get("near", {}).get("partitions", {})
        self.broker = partitions.get("0", {}).get("broker", -1)

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1_000, timeout=0.1):
                if (error := message.error()) is not None:
                    self.errors += [str(error)] if error.name() == "OFFSET_OUT_OF_RANGE" else []
                else:
                    self.found.append((message.offset() or 0, int(message.value() or b"-1")))
        self._consumer.close()

    def wait_at(self, node: Node) -> None:
        """Until what comes from now on comes from a node."""
        eventually(lambda: self.broker == node.broker_id, f"it reads from node {node.number}; now {self.broker}")
        self.wait_progress()

    def wait_progress(self) -> None:
        count = len(self.found)
        eventually(lambda: len(self.found) > count + 100, "it reads on")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.kafka
@pytest.mark.usefixtures("kafka_tools")
def test_kafkas_consumer_reads_in_its_rack(three: Cluster) -> None:
    _leader, near, _other = make(three, "java")
    values = [str(number) for number in range(RECORDS)]
    produce(three.bootstrap, "java", values, 1)
    bounds = ["--from-beginning", "--max-messages", str(RECORDS), "--timeout-ms", "60000"]
    rack = ["--command-property", f"client.rack={near.rack}"]

    def read() -> None:
        done = run_tool("console-consumer", "--bootstrap-server", three.bootstrap, "--topic", "java", *bounds, *rack)
        assert done.stdout.splitlines() == values, done.stderr

    read_from = [read_of(three.nodes, read)]
    while read_from[-1] != {near} and len(read_from) < 5:  # it was out of sync for a moment, as under load
        read_from.append(read_of(three.nodes, read))
    assert read_from[-1] == {near}


def transactions(bootstrap: str, topic: str, count: int) -> tuple[list[str], Producer]:
    """Each third one is aborted. The values of the others, and a producer that has one more open."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0}
    producer, committed = Producer(settings), []
    producer.init_transactions(60)
    for number in range(count + 1):
        producer.begin_transaction()
        values = [f"{number}-{each}" for each in range(5)]
        for value in values:
            producer.produce(topic, value.encode())
        producer.flush(60)
        if number == count:
            break
        if number % 3:
            producer.commit_transaction(60)
            committed += values
        else:
            producer.abort_transaction(60)
    return committed, producer


def test_a_follower_shows_readers_of_committed_records_no_others(three: Cluster) -> None:
    _leader, near, _other = make(three, "committed")
    settings: dict[str, Any] = {
        "bootstrap.servers": three.bootstrap, "client.rack": near.rack, "group.id": "committed", "log_level": 0,
        "isolation.level": "read_committed", "enable.auto.commit": False, "topic.metadata.refresh.interval.ms": 1_000,
    }  # fmt: skip
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("committed", 0, 0)])
    committed, producer = transactions(three.bootstrap, "committed", 60)
    found: list[str] = []

    def read_on() -> bool:
        found.extend((message.value() or b"").decode() for message in consumer.consume(1_000, timeout=0.2))
        return len(found) >= len(committed)

    def read_again() -> None:
        found.clear()
        consumer.assign([TopicPartition("committed", 0, 0)])
        eventually(read_on, "what was committed is read")

    eventually(lambda: near in read_of(three.nodes, read_again), "records came from the follower")
    assert found == committed
    assert not consumer.consume(1, timeout=1), "the last one is open"
    producer.commit_transaction(60)
    committed += [f"60-{each}" for each in range(5)]
    assert eventually(read_on, "it is woken where it waits")
    assert found == committed
    consumer.close()
    left = [counters["fetch_fallbacks"]["transactions"] for counters in near.counters()]
    assert sum(left) == 0, "all of that by C"


def test_a_consumer_reads_in_its_rack_and_survives_what_happens_there(three: Cluster) -> None:
    """The bytes are that node's. It is killed: the leader goes on where it ended. It comes back: it is
    read again. The leader is killed: whoever leads then, nothing is missing and nothing comes twice.
    """
    leader, near, other = make(three, "near")
    with Load(other.bootstrap, "near", 1) as load:
        load.wait_progress()
        reader = Reader(f"{leader.bootstrap},{other.bootstrap}", near.rack)
        try:
            reader.wait_at(near)
            # A stretch in which it was not out of sync for a moment, as under load.
            eventually(lambda: read_of(three.nodes, reader.wait_progress) == {near}, "the bytes are that node's")
            near.kill()
            reader.wait_at(leader)
            near.launch()
            near.wait_ready()
            reader.wait_at(near)
            leader.kill()
            reader.wait_progress()
            load.stop()
            eventually(lambda: len(reader.found) >= load.sent[0], "everything is read")
        finally:
            reader.stop()
    assert not reader.errors
    assert [value for _offset, value in reader.found] == list(range(load.sent[0]))
    assert all(one[0] < two[0] for one, two in itertools.pairwise(reader.found))
