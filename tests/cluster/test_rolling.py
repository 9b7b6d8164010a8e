"""Nodes are restarted one after the other under load: neither a producer nor a group of consumers is told of an error.

For how long nobody was answered is printed (`pytest -s`), and is no test's matter. --failures N for more restarts.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Self

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.support.cluster_nodes import Cluster, admin, cluster, create_topic, eventually
from tests.support.replicated_load import Load, differences
from tests.support.waiting import LOOK_S

pytestmark = pytest.mark.cluster

PARTITIONS, MEMBERS, NODES = 6, 2, 3
COMMIT_EVERY_S = 0.1
PACE_S = 0.01


class Member(threading.Thread):
    """One of a group that reads `topic`, and commits what it has read, most of the time without waiting for it."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        super().__init__()
        self.topic = topic
        self.values: dict[int, list[int]] = defaultdict(list)
        """Of each partition, in the order in which they came."""
        self.assigned: list[list[int]] = []
        """What it was given, one after the other."""
        self.errors: list[str] = []
        self.commits = self.commits_put_off = 0
        self.gap_s = 0.0
        """The longest time between two records of a partition."""
        self._read_at: dict[int, float] = {}
        self._reached: dict[int, int] = {}
        self._commits_under_way = 0
        self.may_commit = threading.Event()
        """Not while the group forms: what a client commits while it waits to join is of the generation before."""
        self._is_last, self._all_committed, self._done = threading.Event(), threading.Event(), threading.Event()
        self._consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "log_level": 0, "reconnect.backoff.max.ms": 500,
            "error_cb": self._failed, "on_commit": self._is_committed,
        })  # fmt: skip

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._is_last.set()
        self._done.set()
        self.join()

    def commit_last(self) -> None:
        """All that was read, while it is a member; nothing is committed any more."""
        self._is_last.set()
        self._all_committed.wait()

    def _failed(self, error: KafkaError) -> None:
        """Asked for by nobody; that one broker is not there is all it may be told."""
        if error.code() != KafkaError._TRANSPORT:
            self.errors.append(str(error))

    def _is_committed(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        self._commits_under_way -= 1
        wrong = [found for found in (error, *(place.error for place in places)) if found is not None]
        if any(found.code() != KafkaError._WAIT_COORD for found in wrong):
            self.errors.append(f"commit: {wrong}")
        elif wrong:  # the client has sent nothing: it lost sight of the coordinator twice while this waited
            self.commits_put_off += 1
        else:
            self.commits += 1

    def _is_assigned(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        self.assigned.append(sorted(place.partition for place in places))
        if not self.may_commit.is_set():  # whoever has a partition now reads it from its beginning
            for table in (self.values, self._reached, self._read_at):
                table.clear()

    def _is_lost(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        self.errors.append(f"lost {len(places)} partitions")

    def run(self) -> None:
        self._consumer.subscribe([self.topic], on_assign=self._is_assigned, on_lost=self._is_lost)
        try:
            self._read()
            while not self._done.is_set():
                self._consumer.poll(0.05)
        except BaseException as problem:
            self.errors.append(repr(problem))
            raise
        finally:
            self._all_committed.set()
            self._consumer.close()

    def _read(self) -> None:
        commit_at = 0.0
        while not self._is_last.is_set() or self._commits_under_way:
            for message in self._consumer.consume(500, timeout=0.05):
                self._take(message)
            if self._is_time_to_commit(commit_at):
                self._consumer.commit(offsets=self._places(), asynchronous=True)
                self._commits_under_way += 1
                commit_at = time.monotonic() + COMMIT_EVERY_S
        places = self._places()
        for place in (places and self._consumer.commit(offsets=places, asynchronous=False)) or []:
            if place.error is not None:
                self.errors.append(f"last commit: {place.error}")
        self._all_committed.set()

    def _is_time_to_commit(self, commit_at: float) -> bool:
        if not self._reached or not self.may_commit.is_set():
            return False
        return time.monotonic() >= commit_at and not self._is_last.is_set()

    def _places(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, partition, offset) for partition, offset in self._reached.items()]

    def _take(self, message: Message) -> None:
        error, partition, now = message.error(), message.partition() or 0, time.monotonic()
        if error is not None:
            self.errors.append(f"{partition}: {error}")
            return
        self.values[partition].append(int(message.value() or b"-1"))
        self._reached[partition] = (message.offset() or 0) + 1
        self.gap_s = max(self.gap_s, now - self._read_at.get(partition, now))
        self._read_at[partition] = now


@pytest.fixture
def three(tmp_path):
    with cluster(tmp_path, NODES) as made:
        made.start()
        yield made


def is_whole(made: Cluster) -> bool:
    """Every replica is in sync: the next node may be stopped."""
    told = admin(made.bootstrap).list_topics(timeout=LOOK_S).topics
    parts = [part for each in told.values() for part in each.partitions.values()]
    return "kept" in told and all(len(part.isrs) == len(part.replicas) == NODES for part in parts)


def wait_read(load: Load, members: list[Member]) -> None:
    """Until what was acknowledged up to now was read."""
    wanted = [len(acknowledged) for acknowledged in load.acknowledged]

    def is_read() -> bool:
        read = [sum(len(member.values[part]) for member in members) for part in range(PARTITIONS)]
        return all(map(int.__ge__, read, wanted)) or any(member.errors for member in members)

    eventually(is_read, "the group goes on")
    assert not [member.errors for member in members if member.errors]


def wait_going_on(load: Load, members: list[Member]) -> None:
    """Until every partition has taken records sent from now on, which were read, and every member has committed."""
    commits = [member.commits for member in members]
    load.wait_progress()
    wait_read(load, members)
    eventually(lambda: all(map(int.__lt__, commits, [member.commits for member in members])), "the group commits")


def committed(bootstrap: str, topic: str, group: str) -> list[int]:
    asked = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        told = eventually(lambda: asked.committed(places, timeout=LOOK_S), "committed offsets are told")
    finally:
        asked.close()
    return [place.offset for place in told]


def restart(made: Cluster, number: int, load: Load, members: list[Member]) -> None:
    """A node, under load; the next one may follow."""
    load.gaps_s = [0.0] * PARTITIONS
    for member in members:
        member.gap_s = 0.0
    began_s = time.monotonic()
    made[number].stop()
    stopped_s = time.monotonic()
    wait_going_on(load, members)
    made.start(number)
    eventually(lambda: is_whole(made), f"node {number} has caught up")
    wait_going_on(load, members)
    print(
        f"node {number} took {stopped_s - began_s:.2f} s to stop; in no partition was nothing acknowledged for longer "
        f"than {max(load.gaps_s):.2f} s, or read for {max(member.gap_s for member in members):.2f} s"
    )


def are_shared(members: list[Member]) -> bool:
    """Each of them has a part of the topic, and together they have all of it."""
    parts = [member.assigned[-1] if member.assigned else [] for member in members]
    return all(parts) and sorted(partition for part in parts for partition in part) == list(range(PARTITIONS))


def test_nodes_are_restarted_one_after_the_other(three: Cluster, request: pytest.FixtureRequest):
    """Members keep their partitions, so that every record comes to them once and in order."""
    create_topic(three.bootstrap, "kept", PARTITIONS, replicas=NODES)
    eventually(lambda: is_whole(three), "three replicas")
    one, two = members = [Member(three.bootstrap, "kept", "readers") for _ in range(MEMBERS)]
    with Load(three.bootstrap, "kept", PARTITIONS, pace_s=PACE_S) as load, one, two:
        eventually(lambda: are_shared(members), "both read")
        for member in members:
            member.may_commit.set()
        wait_going_on(load, members)
        assigned = [list(member.assigned) for member in members]
        eventually(lambda: is_whole(three), "the topic of groups, too")
        for count in range(max(NODES, request.config.getoption("--failures"))):
            restart(three, count % NODES + 1, load, members)
        load.stop()
        wait_read(load, members)
        for member in members:
            member.commit_last()
        assert not [member.errors for member in members if member.errors]
    assert [member.assigned for member in members] == assigned, "nobody was sent away"
    assert not load.told or {error.code() for error in load.told} == {KafkaError._TRANSPORT}, load.told
    load.check(three.bootstrap)
    for partition in range(PARTITIONS):
        (values,) = [member.values[partition] for member in members if member.values[partition]]
        wrong = differences(values, range(load.sent[partition]))
        assert not wrong, f"partition {partition} as it was read: {wrong}"
    assert committed(three.bootstrap, "kept", "readers") == load.sent
    for node in three.nodes:
        assert not [line for line in node.log_messages() if "Traceback" in line or "AssertionError" in line]
