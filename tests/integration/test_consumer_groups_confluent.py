"""Groups of KIP-848 whose members are librdkafka as it is installed, each a process of its own, while records flow."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker_process import TpcBroker
from tests.support.group_story import Story
from tests.support.raw_client import RawConnection
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.clients
PARTITIONS = 6
PACE_S = 0.01
"""At most, before a producer writes again to all partitions."""
TIMES = {
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.min.session.timeout.ms": "4000",
}
"""Shorter than Kafka's, so that who is killed is soon out."""


@pytest.fixture(scope="module")
def own_broker(module_tmp_path: Path) -> Iterator[TpcBroker]:
    broker = TpcBroker(module_tmp_path / "broker", overrides=TIMES)
    broker.start()
    yield broker
    broker.stop()


def make_topic(broker: TpcBroker, name: str, partitions_count: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions_count, 1)])[name].result(PATIENCE_S)


def story(broker: TpcBroker, group: str, folder: Path, **more: str) -> Story:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "group.protocol": "consumer"}
    return Story(folder / "story", {**settings, **more})


@contextmanager
def producing(broker: TpcBroker, *topics: str) -> Iterator[set[tuple[str, int, int]]]:
    """Writes to all partitions until it is left; then the places of all records are in the set."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "enable.idempotence": True})
    places: set[tuple[str, int, int]] = set()
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
                for partition in range(PARTITIONS):
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


def share(told: Story, *names: str, count: int = PARTITIONS) -> None:
    """Wait until these members, and nobody else, have all partitions."""

    def shared() -> bool:
        owned = told.owned()
        return owned.keys() == set(names) and sum(map(len, owned.values())) == count

    eventually(shared, f"{', '.join(names)} share {count} partitions")


def handle_more(told: Story, count: int = 200) -> None:
    begun = told.handled().total()
    eventually(lambda: told.handled().total() >= begun + count, f"{count} more records are handled")


def all_handled(told: Story, places: set[tuple[str, int, int]]) -> None:
    eventually(lambda: places <= told.handled().keys(), "each record is handled", pause_s=0.2)
    told.check_positions()


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


def committed(broker: TpcBroker, group: str) -> dict[tuple[str, int], int]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(PATIENCE_S)
    return {(one.topic, one.partition): one.offset for one in asked.topic_partitions}


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_come_go_and_are_killed(own_broker, topic, tmp_path, assignor):
    broker = own_broker
    make_topic(broker, topic)
    with story(broker, topic, tmp_path, **{"group.remote.assignor": assignor}) as told:
        with producing(broker, topic) as places:
            told.comes("a", topic)
            share(told, "a")
            told.comes("b", topic)
            share(told, "a", "b")
            told.comes("c", topic)
            share(told, "a", "b", "c")
            assert {len(one) for one in told.owned().values()} == {2}
            handle_more(told)
            told.leaves("a")
            share(told, "b", "c")
            told.comes("d", topic)
            share(told, "b", "c", "d")
            handle_more(told)
            told.is_killed("b")
            share(told, "c", "d")
            told.comes("e", topic)
            share(told, "c", "d", "e")
            handle_more(told)
        all_handled(told, places)
        for name in ("c", "d", "e"):
            told.leaves(name)
        told.check_positions()
        assert not told.owned()
    assert committed(broker, topic) == {
        (topic, partition): 1 + max(offset for _topic, number, offset in places if number == partition)
        for partition in range(PARTITIONS)
    }
    assert epochs(broker, topic)[1] == {}


def test_a_pattern_finds_a_topic_that_is_made_later(own_broker, topic, tmp_path):
    broker = own_broker
    make_topic(broker, f"{topic}-1")
    make_topic(broker, f"other-{topic}")
    with story(broker, topic, tmp_path) as told:
        for name in "ab":
            told.comes(name, f"^{topic}-.*")
        share(told, "a", "b")
        make_topic(broker, f"{topic}-2")
        share(told, "a", "b", count=2 * PARTITIONS)
        with producing(broker, f"{topic}-1", f"{topic}-2") as places:
            handle_more(told)
        all_handled(told, places)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.delete_topics([f"{topic}-1"])[f"{topic}-1"].result(PATIENCE_S)
        share(told, "a", "b", count=PARTITIONS)


def test_static_members_keep_what_they_have(own_broker, topic, tmp_path):
    broker = own_broker
    make_topic(broker, topic)
    with story(broker, topic, tmp_path) as told:
        with producing(broker, topic) as places:
            for name in ("a", "b"):
                told.comes(name, topic, group_instance_id=name)
            share(told, "a", "b")
            before, epoch = told.owned(), epochs(broker, topic)[0]
            handle_more(told)
            told.leaves("a")
            told.comes("a again", topic, group_instance_id="a")
            share(told, "a again", "b")
            assert told.owned() == {"a again": before["a"], "b": before["b"]}
            assert epochs(broker, topic)[0] == epoch, "nothing was to be assigned"
            handle_more(told)
            told.is_killed("b")
            share(told, "a again")  # its instance is taken again only when the session is over
            told.comes("b again", topic, group_instance_id="b")
            share(told, "a again", "b again")
        all_handled(told, places)


def test_members_outlive_a_killed_broker(own_broker, topic, tmp_path):
    broker = own_broker
    make_topic(broker, topic)
    names = ("a", "b", "c")
    with story(broker, topic, tmp_path) as told:
        with producing(broker, topic) as places:
            for name in names:
                told.comes(name, topic)
            share(told, *names)

            def settled() -> bool:
                epoch, members = epochs(broker, topic)
                return set(members.values()) == {epoch} and len(members) == 3

            eventually(settled, "all have the newest epoch")
            before, owned, kept = epochs(broker, topic), told.owned(), committed(broker, topic)
            handle_more(told)
            broker.kill()
            broker.start()
            handle_more(told)
            assert told.owned() == owned
            assert epochs(broker, topic) == before
            now = committed(broker, topic)
            assert all(now[place] >= kept[place] for place in kept)
            told.leaves("c")
            share(told, "a", "b")
        all_handled(told, places)
        assert told.handled().most_common(1)[0][1] == 1, "nobody was killed, so nothing is handled twice"
