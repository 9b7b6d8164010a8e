"""Partitions with several replicas on real nodes: what acks=all has acknowledged outlives whoever fails."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.cluster.test_leaders import PREFERRED, elect
from tests.support.cluster_nodes import Cluster, admin, cluster, create_topic, eventually, metadata_voters
from tests.support.replicated_load import Load
from tests.support.waiting import LOOK_S
from tpc_broker.model import CONSUMER_OFFSETS_TOPIC, coordinator_partition

pytestmark = pytest.mark.cluster

PARTITIONS = 6


@pytest.fixture
def three(tmp_path):
    with cluster(tmp_path, cores=2) as made:
        made.start()
        yield made


def described(bootstrap: str, topic: str) -> dict[int, tuple[int, list[int], list[int]]]:
    """(leader, replicas, replicas in sync) of each partition, as nodes, once each has a leader."""
    found = admin(bootstrap).list_topics(topic, timeout=LOOK_S).topics[topic].partitions
    if not found or any(each.leader < 0 for each in found.values()):
        return {}
    return {
        index: (each.leader // 1024, sorted(r // 1024 for r in each.replicas), sorted(r // 1024 for r in each.isrs))
        for index, each in found.items()
    }


def leads(made: Cluster, topic: str, but: int = 0) -> int:
    """The node that leads most of a topic, as one of the others says."""
    asked = next(node for node in made.nodes if node.number != but and node.process.is_running)
    found = eventually(lambda: described(asked.bootstrap, topic), "every partition has a leader")
    leaders = [leader for leader, _replicas, _in_sync in found.values()]
    return max(set(leaders), key=leaders.count)


def in_sync_everywhere(made: Cluster, topic: str) -> bool:
    found = described(made[1].bootstrap, topic)
    return bool(found) and all(in_sync == [1, 2, 3] for _leader, _replicas, in_sync in found.values())


def led_by_all(made: Cluster) -> bool:
    """Whoever is preferred is elected where another one leads: that one's timer may have been the first."""
    elect(made, PREFERRED, list(range(PARTITIONS)))
    return {leader for leader, *_ in described(made[1].bootstrap, "kept").values()} == {1, 2, 3}


def cores_of(made: Cluster, number: int) -> list[int]:
    """Process ids of a node's cores."""
    pid = made[number].process.pid
    found = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True, check=True)
    return [int(line) for line in found.stdout.split()]


def test_what_was_acknowledged_outlives_whoever_leads(three: Cluster):
    """A node is killed, a core is, a node hangs, a node is stopped in order: a producer that retries sees no error."""
    create_topic(three.bootstrap, "kept", PARTITIONS, replicas=3)
    eventually(lambda: in_sync_everywhere(three, "kept"), "three replicas")
    eventually(lambda: led_by_all(three), "each node leads some")
    with Load(three.bootstrap, "kept", PARTITIONS) as load:
        load.wait_progress()
        killed = leads(three, "kept")
        three[killed].kill()
        load.wait_progress()
        three.start(killed)
        eventually(lambda: in_sync_everywhere(three, "kept"), "it has caught up")

        os.kill(cores_of(three, leads(three, "kept"))[-1], signal.SIGKILL)
        load.wait_progress()

        paused = leads(three, "kept")
        os.killpg(three[paused].process.pid, signal.SIGSTOP)
        time.sleep(3)  # longer than a leader may be silent
        os.killpg(three[paused].process.pid, signal.SIGCONT)
        load.wait_progress()
        eventually(lambda: in_sync_everywhere(three, "kept"), "it has caught up")

        stopped = leads(three, "kept")
        three[stopped].stop()
        load.wait_progress()
        three.start(stopped)
        load.wait_progress()
    load.check(three.bootstrap)
    for node in three.nodes:
        assert not [line for line in node.log_messages() if "Traceback" in line or "AssertionError" in line]


def test_all_nodes_are_killed_at_once(three: Cluster):
    create_topic(three.bootstrap, "kept", PARTITIONS, replicas=3)
    with Load(three.bootstrap, "kept", PARTITIONS) as load:
        load.wait_progress()
        three.kill_all()
        three.start()
        load.wait_progress()
    load.check(three.bootstrap)


def test_a_node_with_an_empty_disk_votes_when_it_has_learned(three: Cluster):
    """Not as the one before it: it is another voter, and with it another node may go."""
    create_topic(three.bootstrap, "kept", PARTITIONS, replicas=3)
    with Load(three.bootstrap, "kept", PARTITIONS) as load:
        load.wait_progress()
        three[3].kill()
        shutil.rmtree(three[3].data_folder)
        three[3].cores_count = 1  # all of its replicas are on that one from now on
        three.start(3)
        load.wait_progress()
        eventually(lambda: in_sync_everywhere(three, "kept"), "it votes in place of the one before")
        eventually(lambda: metadata_voters(three.bootstrap) == [1, 2, 3], "on the metadata, too")
        killed = leads(three, "kept")
        three[killed].kill()
        load.wait_progress()
    load.check(three[3 if killed != 3 else 1].bootstrap)


def test_failures_by_chance(three: Cluster, request: pytest.FixtureRequest, chance: random.Random):
    """One after the other, and sometimes the next one before everybody has caught up; --failures N for a long run."""
    create_topic(three.bootstrap, "kept", PARTITIONS, replicas=3)
    with Load(three.bootstrap, "kept", PARTITIONS) as load:
        load.wait_progress()
        for number in range(request.config.getoption("--failures")):
            fail(three, chance, chance.randint(1, 3), load, number)
            if chance.random() < 0.5:
                eventually(lambda: in_sync_everywhere(three, "kept"), f"all have caught up after failure {number}")
        load.wait_progress()
    load.check(three.bootstrap)
    for node in three.nodes:
        assert not [line for line in node.log_messages() if "Traceback" in line or "AssertionError" in line]


def fail(made: Cluster, chance: random.Random, number: int, load: Load, count: int) -> None:
    """One node fails in one way, and is back in the end."""
    node, how = made[number], chance.choice(("kill", "core", "pause", "stop", "all"))
    print(f"{count}: {how} node {number}, {sum(map(len, load.acknowledged))} acknowledged")
    if how == "kill":
        node.kill()
        time.sleep(chance.uniform(0, 2))
        made.start(number)
    elif how == "core":
        os.kill(chance.choice(cores_of(made, number)), signal.SIGKILL)
    elif how == "pause":
        os.killpg(node.process.pid, signal.SIGSTOP)
        time.sleep(chance.uniform(0.1, 4))
        os.killpg(node.process.pid, signal.SIGCONT)
    elif how == "stop":
        node.stop()
        made.start(number)
    else:
        made.kill_all()
        made.start()
    if chance.random() < 0.7:
        load.wait_progress()


def coordinator(made: Cluster, group: str, but: int = 0) -> int:
    """The node of a group's coordinator."""
    asked = next(node for node in made.nodes if node.number != but and node.process.is_running)

    def look() -> int:
        found = described(asked.bootstrap, CONSUMER_OFFSETS_TOPIC)
        return found[coordinator_partition(group, len(found))][0] if found else 0

    return eventually(look, "the group has a coordinator")


class Reader:
    """A member of a group that commits what it has read; a commit that was acknowledged counts."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.seen: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.committed = [0] * PARTITIONS
        self._consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "session.timeout.ms": 20_000, "log_level": 0,
            "reconnect.backoff.max.ms": 500,
        })  # fmt: skip
        self._consumer.subscribe([topic])

    def read(self) -> bool:
        """Some records, and the commit of their offsets; whether it was acknowledged."""
        reached: dict[int, int] = {}
        for message in self._consumer.consume(500, timeout=0.5):
            if message.error() is None:
                partition, offset = message.partition() or 0, message.offset() or 0
                self.seen[partition].add(int(message.value() or b""))
                reached[partition] = offset + 1
        if not reached:
            return False
        offsets = [TopicPartition("kept", partition, offset) for partition, offset in reached.items()]
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False) or []
        except KafkaException:
            return False
        for one in done:
            if one.error is None:
                self.committed[one.partition] = max(self.committed[one.partition], one.offset)
        return True

    def close(self) -> None:
        self._consumer.close()


def test_groups_go_on_where_they_have_committed(three: Cluster):
    """Their coordinator is killed, then all nodes at once: no commit that was acknowledged is forgotten."""
    create_topic(three.bootstrap, "kept", PARTITIONS, replicas=3)
    for node in three.nodes:
        eventually(lambda node=node: described(node.bootstrap, "kept"), "each node has heard of it")
    reader = Reader(three.bootstrap, "kept", "readers")
    with Load(three.bootstrap, "kept", PARTITIONS) as load:
        eventually(reader.read, "it reads and commits")
        killed = coordinator(three, "readers")
        three[killed].kill()
        assert coordinator(three, "readers", but=killed)
        before = sum(reader.committed)
        eventually(lambda: reader.read() and sum(reader.committed) > before, "it commits to another one")
        three.kill_all()
        three.start()
        before = sum(reader.committed)
        eventually(lambda: reader.read() and sum(reader.committed) > before, "it commits again")
    sent = [set(range(count)) for count in load.sent]
    eventually(lambda: not reader.read() and reader.seen == sent, "it has read everything")
    reader.close()
    load.check(three.bootstrap)
    asked = Consumer({"bootstrap.servers": three.bootstrap, "group.id": "readers", "log_level": 0})
    try:
        places = [TopicPartition("kept", partition) for partition in range(PARTITIONS)]
        told = eventually(lambda: asked.committed(places, timeout=LOOK_S), "committed offsets are told")
        for one in told:
            assert one.offset >= reader.committed[one.partition]
    finally:
        asked.close()
