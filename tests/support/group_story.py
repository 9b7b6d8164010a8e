"""What members of a group, each a process of its own, did: told by the file that they share (`group_member`)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker_process import TpcBroker
from tests.support.cluster_nodes import Cluster
from tests.support.raw_client import RawConnection
from tests.support.waiting import PATIENCE_S, eventually

Place = tuple[str, int]
Records = set[tuple[str, int, int]]
"""By topic, partition and offset."""
PARTITIONS: Final = 6
PACE_S: Final = 0.01
"""At most, before a producer writes again to all partitions."""
TIMES: Final = {
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.session.timeout.ms": "8000",
    "group.consumer.min.session.timeout.ms": "8000",
}
"""Shorter than Kafka's, so that who is killed is soon out."""
PROGRAM = [sys.executable, "-m", "tests.integration.group_member"]


class Story:
    """The members of one group and their file. Usable as a context manager, which ends those that still run."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path, self._settings = path, settings
        self._members: dict[str, subprocess.Popen[bytes]] = {}
        path.touch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._members.values():
            process.kill()
            process.communicate()

    def comes(self, name: str, topics: str, program: Sequence[str] = PROGRAM, **more: Any) -> None:
        """A member, by a name that no other one had. `more`: settings of its own, with underscores for dots."""
        assert name not in self._members
        own = {key.replace("_", "."): value for key, value in more.items()}
        given = [str(self._path), name, topics, json.dumps({**self._settings, **own})]
        self._members[name] = subprocess.Popen(
            [*program, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def leaves(self, name: str) -> None:
        """It closes its consumer, and has ended."""
        said, _none = self._members[name].communicate(timeout=PATIENCE_S)
        assert self._members.pop(name).returncode == 0, said.decode()

    def is_killed(self, name: str) -> None:
        process = self._members.pop(name)
        process.kill()
        process.communicate()
        with self._path.open("a") as file:  # what a member writes is whole, so this is a line of its own
            file.write(json.dumps([name, "killed"]) + "\n")

    def has_ended(self, name: str) -> str:
        """What a member said that ended by itself."""
        return self._members.pop(name).communicate(timeout=PATIENCE_S)[0].decode()

    def lines_so_far(self) -> list[list[Any]]:
        """Whoever may have ended by itself."""
        return [json.loads(line) for line in self._path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def lines(self) -> list[list[Any]]:
        for name, process in self._members.items():
            assert process.poll() is None, f"{name} has ended: {process.communicate()[0].decode()}"
        return self.lines_so_far()

    def owned(self) -> dict[str, set[Place]]:
        """What each member that is there has now. A partition that two have at a time, one of them not killed and not
        told that it has lost it, fails, and so does a record that is handled by who has not its partition.
        """
        has: dict[str, set[Place]] = {}
        for name, what, *facts in self.lines():
            if what == "given":
                for place in map(tuple, facts[0]):
                    holders = [other for other, places in has.items() if place in places]
                    assert not holders, f"{place} is given to {name}, and {holders} have it"
                    has.setdefault(name, set()).add(place)
            elif what in ("back", "lost"):
                has[name] = has.get(name, set()) - set(map(tuple, facts[0]))
            elif what in ("left", "killed"):
                has.pop(name, None)
            elif what == "handled":
                assert (facts[0], facts[1]) in has.get(name, ()), f"{name} handles {facts}, and has not its partition"
        return {name: places for name, places in has.items() if places}

    def handled(self) -> Counter[tuple[str, int, int]]:
        """How often each record was, by topic, partition and offset."""
        return Counter((facts[0], facts[1], facts[2]) for _name, what, *facts in self.lines() if what == "handled")

    def check_once(self) -> None:
        """Nobody was killed, so nothing is handled twice: who gives a partition back has committed what it handled."""
        again = [record for record, times in self.handled().items() if times > 1]
        troubles = [line for line in self.lines() if line[1] in ("not committed", "lost", "error")]
        assert not again, f"{len(again)} records, first {sorted(again)[:3]}; what members complained of: {troubles}"

    def places(self) -> set[Place]:
        """Of which any record was handled."""
        return {(topic, partition) for topic, partition, _offset in self.handled()}

    def check_positions(self) -> None:
        """Each owner begins where what was handled before it is committed: nothing is left out, what is handled again
        was not committed, and no commit goes back.
        """
        committed: Counter[Place] = Counter()
        after: Counter[Place] = Counter()  # the highest that was handled, and one
        has: dict[Place, str] = {}
        for name, what, *facts in self.lines():
            if what == "committed":
                for topic, partition, offset in facts[0]:
                    assert offset >= committed[topic, partition], (name, topic, partition, offset)
                    committed[topic, partition] = offset
            elif what == "handled":
                place, offset = (facts[0], facts[1]), facts[2]
                if has.get(place) != name:
                    assert committed[place] <= offset <= after[place], (name, place, offset, committed[place])
                else:
                    assert offset == after[place], (name, place, offset)
                has[place], after[place] = name, offset + 1
            elif what == "given":
                for place in map(tuple, facts[0]):
                    has.pop(place, None)

    def share(self, *names: str, count: int = PARTITIONS) -> None:
        """Wait until these members, and nobody else, have all partitions."""

        def shared() -> bool:
            owned = self.owned()
            return owned.keys() == set(names) and sum(map(len, owned.values())) == count

        eventually(shared, f"{', '.join(names)} share {count} partitions")

    def handle_more(self, count: int = 200) -> None:
        begun = self.handled().total()
        eventually(lambda: self.handled().total() >= begun + count, f"{count} more records are handled")

    def all_handled(self, places: Records) -> None:
        eventually(lambda: places <= self.handled().keys(), "each record is handled", pause_s=0.2)
        self.check_positions()


def make_topic(broker: TpcBroker, name: str, partitions_count: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions_count, 1)])[name].result(PATIENCE_S)


def story(broker: TpcBroker | Cluster, group: str, folder: Path, **more: str) -> Story:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "group.protocol": "consumer"}
    return Story(folder / "story", {**settings, **more})


@contextmanager
def producing(broker: TpcBroker, *topics: str, partitions_count: int = PARTITIONS) -> Iterator[Records]:
    """Writes to all partitions until it is left; then the places of all records are in the set."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "enable.idempotence": True})
    places: Records = set()
    failures: list[object] = []
    is_over = threading.Event()

    def delivered(error: object, record: object) -> None:
        if error is not None:
            failures.append(error)
        else:
            places.add((record.topic(), record.partition(), record.offset()))

    def write() -> None:
        while not is_over.is_set():
            for topic in topics:
                for partition in range(partitions_count):
                    producer.produce(topic, b"x", partition=partition, on_delivery=delivered)
            producer.poll(PACE_S)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield places
    finally:
        is_over.set()
        writer.join()
        left = producer.flush(PATIENCE_S)
    assert (left, failures[:3]) == (0, [])


def described(broker: TpcBroker, group: str) -> dict:
    """By who coordinates it."""
    for port in broker.ports:
        with RawConnection(broker.host, port, PATIENCE_S) as connection:
            (told,) = connection.ask("ConsumerGroupDescribe", 1, {"GroupIds": [group]})["Groups"]
        if told["ErrorCode"] == 0:
            return told
    raise AssertionError(told)


def epochs(broker: TpcBroker, group: str) -> tuple[int, dict[str, int]]:
    told = described(broker, group)
    return told["GroupEpoch"], {one["MemberId"]: one["MemberEpoch"] for one in told["Members"]}


def wait_settled(broker: TpcBroker, group: str) -> None:
    """Until each member, of either protocol, has heard of the group's newest epoch."""

    def is_settled() -> bool:
        epoch, members = epochs(broker, group)
        return set(members.values()) == {epoch}

    eventually(is_settled, "all have the newest epoch")


def committed(broker: TpcBroker, group: str) -> dict[tuple[str, int], int]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(PATIENCE_S)
    return {(one.topic, one.partition): one.offset for one in asked.topic_partitions}
