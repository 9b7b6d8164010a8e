"""Groups of KIP-848 whose members are librdkafka as it is installed, each a process of its own, while records flow."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.group_story import PARTITIONS, committed, epochs, make_topic, producing, story, wait_settled
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_come_go_and_are_killed(brisk_broker, topic, tmp_path, assignor):
    broker = brisk_broker
    make_topic(broker, topic)
    with story(broker, topic, tmp_path, **{"group.remote.assignor": assignor}) as told:
        with producing(broker, topic) as places:
            told.comes("a", topic)
            told.share("a")
            told.comes("b", topic)
            told.share("a", "b")
            told.comes("c", topic)
            told.share("a", "b", "c")
            eventually(lambda: {len(one) for one in told.owned().values()} == {2}, "each has two")
            told.handle_more()
            told.leaves("a")
            told.share("b", "c")
            told.comes("d", topic)
            told.share("b", "c", "d")
            told.handle_more()
            told.is_killed("b")
            told.share("c", "d")
            told.comes("e", topic)
            told.share("c", "d", "e")
            told.handle_more()
        told.all_handled(places)
        for name in ("c", "d", "e"):
            told.leaves(name)
        told.check_positions()
        assert not told.owned()
    assert committed(broker, topic) == {
        (topic, partition): 1 + max(offset for _topic, number, offset in places if number == partition)
        for partition in range(PARTITIONS)
    }
    assert epochs(broker, topic)[1] == {}


def test_a_pattern_finds_a_topic_that_is_made_later(brisk_broker, topic, tmp_path):
    broker = brisk_broker
    make_topic(broker, f"{topic}-1")
    make_topic(broker, f"other-{topic}")
    with story(broker, topic, tmp_path) as told:
        for name in "ab":
            told.comes(name, f"^{topic}-.*")
        told.share("a", "b")
        make_topic(broker, f"{topic}-2")
        told.share("a", "b", count=2 * PARTITIONS)
        with producing(broker, f"{topic}-1", f"{topic}-2") as places:
            told.handle_more()
        told.all_handled(places)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.delete_topics([f"{topic}-1"])[f"{topic}-1"].result(PATIENCE_S)
        told.share("a", "b", count=PARTITIONS)


def test_static_members_keep_what_they_have(brisk_broker, topic, tmp_path):
    broker = brisk_broker
    make_topic(broker, topic)
    with story(broker, topic, tmp_path) as told:
        with producing(broker, topic) as places:
            for name in ("a", "b"):
                told.comes(name, topic, group_instance_id=name)
            told.share("a", "b")
            before, epoch = told.owned(), epochs(broker, topic)[0]
            told.handle_more()
            told.leaves("a")
            told.comes("a again", topic, group_instance_id="a")
            told.share("a again", "b")
            assert told.owned() == {"a again": before["a"], "b": before["b"]}
            assert epochs(broker, topic)[0] == epoch, "nothing was to be assigned"
            told.handle_more()
            told.is_killed("b")
            told.share("a again")  # its instance is taken again only when the session is over
            told.comes("b again", topic, group_instance_id="b")
            told.share("a again", "b again")
        told.all_handled(places)


def test_members_outlive_a_killed_broker(brisk_broker, topic, tmp_path):
    broker = brisk_broker
    make_topic(broker, topic)
    names = ("a", "b", "c")
    with story(broker, topic, tmp_path) as told:
        with producing(broker, topic) as places:
            for name in names:
                told.comes(name, topic)
            told.share(*names)
            wait_settled(broker, topic)
            before, owned, kept = epochs(broker, topic), told.owned(), committed(broker, topic)
            told.handle_more()
            broker.kill()
            broker.start()
            told.handle_more()
            assert told.owned() == owned
            assert epochs(broker, topic) == before
            now = committed(broker, topic)
            assert all(now[place] >= kept[place] for place in kept)
            told.leaves("c")
            told.share("a", "b")
        told.all_handled(places)
        told.check_once()
