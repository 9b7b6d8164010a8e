"""Offsets of consumer groups: who may commit, fetch and delete them, and when they grow old."""

import pytest

from tests.coordinator.consumer.scenario import ConsumerScenario
from tpc_broker.coordinator.consumer.messages import ConsumerSettings
from tpc_broker.coordinator.consumer.records import (
    CURRENT_KEY,
    MEMBER_KEY,
    ClassicPart,
    ConsumerKey,
    CurrentAssignment,
    Subscription,
    consumer_record,
)
from tpc_broker.error_codes import ErrorCode

NONE, STALE, UNKNOWN = ErrorCode.NONE, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID
DAY = 24 * 60 * 60 * 1000
WEEK = 7 * DAY


def with_epochs():
    """A member `a` in epoch 5: of `t` it has 0 since epoch 3 and 1 since epoch 5; 2, which it has had since epoch 2, it
    has yet to give back. And `c`, which speaks the classic protocol, in epoch 5 as well, with 3 since epoch 4.
    """
    s = ConsumerScenario()
    t = s.topics.named("t").topic_id
    for name, classic, assigned, pending in (
        ("a", None, {0: 3, 1: 5}, {2: 2}), ("c", ClassicPart(45_000, (("range", b""),)), {3: 4}, {}),
    ):  # fmt: skip
        subscription = Subscription(None, None, "client", "/host", ("t",), "", 10_000, None, classic)
        held = ({t: partitions} if partitions else {} for partitions in (assigned, pending))
        s.log.append(consumer_record(ConsumerKey(MEMBER_KEY, "g", name), subscription))
        current = CurrentAssignment(5, 4, 1 if pending else 0, *held)
        s.log.append(consumer_record(ConsumerKey(CURRENT_KEY, "g", name), current))
    s.start()
    return s, t


@pytest.mark.parametrize(
    ("member_id", "epoch", "partition", "told"),
    [
        ("a", 5, 0, NONE),
        ("a", 5, 3, NONE),  # its own epoch is enough: what it commits in it is not looked at, as in Kafka
        ("a", 4, 0, NONE),
        ("a", 3, 0, NONE),
        ("a", 2, 0, STALE),
        ("a", 4, 1, STALE),
        ("a", 2, 2, NONE),  # which it has yet to give back
        ("a", 1, 2, STALE),
        ("a", 4, 3, STALE),
        ("a", 6, 0, STALE),
        ("a", -1, 0, STALE),
        ("b", 5, 0, UNKNOWN),
        ("", 5, 0, UNKNOWN),
        ("", -1, 0, UNKNOWN),  # a group with members is nobody else's to commit in
        ("c", 5, 3, NONE),
        ("c", 4, 3, NONE),  # before it has heard that it joined again: that one of its own goes on, as in Kafka
        ("c", 3, 3, ErrorCode.ILLEGAL_GENERATION),
        ("c", 4, 0, ErrorCode.ILLEGAL_GENERATION),
        ("c", 6, 3, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_a_member_commits_in_its_epoch_or_what_it_has_had_since(member_id, epoch, partition, told):
    s, t = with_epochs()
    details = {"member_id": member_id, "generation_id": epoch, "partition": partition, "topic_id": t}
    assert s.commit_code(**details) is told
    assert s.offset(partition=partition) == (5 if told is NONE else -1)


@pytest.mark.parametrize(
    ("member_id", "epoch", "told"),
    [("a", 5, ErrorCode.UNSUPPORTED_VERSION), ("b", 5, UNKNOWN), ("", -1, UNKNOWN), ("c", 5, NONE)],
)
def test_members_with_epochs_commit_by_versions_that_know_them(member_id, epoch, told):
    s, t = with_epochs()
    details = {"member_id": member_id, "generation_id": epoch, "topic_id": t, "knows_member_epochs": False}
    assert s.commit_code(partition=3, **details) is told


def test_another_topic_of_the_same_name_is_not_what_a_member_had():
    s, t = with_epochs()
    other = s.topics.make("t", 4)
    assert s.commit_code(member_id="a", generation_id=4, topic_id=t) is NONE
    assert s.commit_code(member_id="a", generation_id=4, topic_id=other) is STALE


def test_who_is_no_member_commits_while_the_group_is_empty():
    s = ConsumerScenario()
    client = s.stable_consumers("a")["a"]
    assert s.commit_code() is UNKNOWN
    client.leave()
    assert s.described().state == "Empty"
    assert s.commit_code(offset=7) is NONE
    assert s.commit_code(generation_id=1, member_id="a") is UNKNOWN
    s.start()
    assert s.offset() == 7
    assert [(one.group_id, one.group_type, one.group_state) for one in s.machine.list_groups()] == [
        ("g", "consumer", "Empty")
    ]


def test_a_partition_that_is_refused_is_refused_alone_and_nothing_of_it_is_stored():
    s, t = with_epochs()
    s.hold = True
    token = s.commit(member_id="a", generation_id=4, topic_id=t, partition=1)
    assert s.replies[token].partitions[0].error_code is STALE, "nothing was decided that it could wait for"
    assert s.held == []


def test_a_refusal_waits_for_what_it_shows():
    s = ConsumerScenario()
    client = s.stable_consumers("a")["a"]
    s.hold = True
    s.beat("a", -1)
    token = s.commit(member_id="a", generation_id=client.epoch, topic_id=s.topics.named("t").topic_id)
    fetched = s.machine.offset_fetch("g", [("t", 0)], "a", client.epoch)
    assert fetched.error_code is UNKNOWN
    s.run(s.machine.when_written("g", "waits", s.now))
    assert not {token, "waits"} & s.replies.keys()
    s.settle()
    assert (s.replies[token].partitions[0].error_code, s.replies["waits"].error_code) == (UNKNOWN, NONE)


@pytest.mark.parametrize(
    ("member_id", "epoch", "told"),
    [
        (None, -1, NONE),
        ("a", 5, NONE),
        ("a", 4, STALE),
        ("a", 6, STALE),
        ("a", -1, STALE),
        ("b", 5, UNKNOWN),
        ("", -1, UNKNOWN),
        (None, 5, UNKNOWN),
        ("c", 5, NONE),
        ("c", 4, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_a_member_fetches_in_its_epoch(member_id, epoch, told):
    s, t = with_epochs()
    assert s.commit_code(member_id="a", generation_id=5, topic_id=t, offset=9) is NONE
    fetched = s.machine.offset_fetch("g", [("t", 0)], member_id, epoch)
    assert fetched.error_code is told
    assert [one.offset for one in fetched.offsets] == ([9] if told is NONE else [])


def test_in_other_groups_a_fetch_names_any_member():
    s = ConsumerScenario()
    s.commit(group="classic", offset=3)
    assert s.machine.offset_fetch("classic", [("t", 0)], "a", 5).offsets[0].offset == 3
    assert s.machine.offset_fetch("unknown", [("t", 0)], "a", 5).offsets[0].offset == -1


def test_offsets_of_subscribed_topics_stay():
    """By name, and by what an expression matches."""
    s = ConsumerScenario(topics={"t": 1, "by-pattern": 1, "free": 1})
    client = s.stable_consumers("a")["a"]
    s.told("a", client.epoch, topic_regex="by-.*")
    s.resolve("by-.*", "by-pattern")
    for topic in ("t", "by-pattern", "free"):
        topic_id = s.topics.named(topic).topic_id
        assert s.commit_code(member_id="a", generation_id=client.epoch, topic=topic, topic_id=topic_id) is NONE
    wanted = [("t", 0), ("by-pattern", 0), ("free", 0), ("never", 0)]
    told = s.delete_offsets(*wanted)
    subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert [one.error_code for one in told.partitions] == [subscribed, subscribed, NONE, NONE]
    assert [s.offset(topic=topic) for topic in ("t", "by-pattern", "free")] == [5, 5, -1]
    client.leave()
    assert {one.error_code for one in s.delete_offsets(*wanted).partitions} == {NONE}
    assert s.machine.offset_fetch("g").offsets == ()
    assert s.described().state == "Empty"


def test_offsets_that_nobody_subscribes_to_grow_old_and_others_do_not():
    s = with_long_sessions(topics={"t": 1, "u": 1})
    client = s.stable_consumers("a")["a"]
    for topic in "tu":
        topic_id = s.topics.named(topic).topic_id
        assert s.commit_code(member_id="a", generation_id=client.epoch, topic=topic, topic_id=topic_id) is NONE
    alive(s, client, WEEK + DAY)
    assert (s.offset(topic="t"), s.offset(topic="u")) == (5, -1)


def test_in_an_empty_group_age_counts_from_the_commit_and_the_group_goes_with_its_last_offset():
    """Not from when it became empty, as in classic groups: what is a week old then goes at once."""
    s = with_long_sessions()
    client = s.stable_consumers("a")["a"]
    assert s.commit_code(member_id="a", generation_id=client.epoch, partition=0, topic_id=client.topic_id()) is NONE
    alive(s, client, 4 * DAY)
    assert s.commit_code(member_id="a", generation_id=client.epoch, partition=1, topic_id=client.topic_id()) is NONE
    alive(s, client, 4 * DAY)
    assert (s.offset(partition=0), s.offset(partition=1)) == (5, 5)
    client.leave()
    s.wait(DAY)
    assert (s.offset(partition=0), s.offset(partition=1)) == (-1, 5)
    assert s.described().state == "Empty"
    before = len(s.log)
    s.wait(3 * DAY)
    assert s.described().error_code is ErrorCode.GROUP_ID_NOT_FOUND
    types = [int.from_bytes(record.key[:2], "big") for record in s.log[before:]]
    assert (types, {record.value for record in s.log[before:]}) == ([1, 6, 4, 3], {None})
    assert s.machine.list_groups() == s.stored_records() == []
    assert s.machine.size_bytes == 0


def test_an_empty_group_without_offsets_goes_when_offsets_are_next_looked_through():
    s = ConsumerScenario(offsets_retention_check_interval_ms=600_000)
    s.stable_consumers("a")["a"].leave()
    s.wait(590_000)
    assert s.described().state == "Empty"
    s.wait(20_000)
    assert s.described().error_code is ErrorCode.GROUP_ID_NOT_FOUND
    s.start()
    assert s.machine.list_groups() == []


def test_an_offset_that_is_being_committed_keeps_its_group():
    s = ConsumerScenario(offsets_retention_check_interval_ms=600_000)
    s.stable_consumers("a")["a"].leave()
    s.hold = True
    token = s.commit()
    s.wait(601_000)
    assert s.described().state == "Empty"
    s.settle()
    assert s.replies[token].partitions[0].error_code is NONE
    assert (s.described().state, s.offset()) == ("Empty", 5)


def test_many_groups_go_a_few_at_a_time_and_the_rest_a_second_later():
    """What runs ahead must find room, which was asked for before."""
    s = ConsumerScenario(offsets_retention_check_interval_ms=600_000)
    for number in range(100):
        group = f"g{number}"
        s.told("a", 0, group, rebalance_timeout_ms=10_000, topic_names=("t",), owned={})
        s.told("a", -1, group)
    s.hold = True
    while not s.held:
        s.now = s.machine.next_deadline_ms()
        s.run(s.machine.on_deadline(s.now))
    assert 0 < len(s.held) <= 50
    s.hold = False
    s.settle()
    s.wait(3_000)
    assert s.machine.list_groups() == []


def test_without_room_nothing_grows_old():
    s = ConsumerScenario(offsets_retention_check_interval_ms=600_000)
    s.stable_consumers("a")["a"].leave()
    s.room = False
    s.wait(700_000)
    assert s.described().state == "Empty"
    s.room = True
    s.wait(1_000)
    assert s.described().error_code is ErrorCode.GROUP_ID_NOT_FOUND


def alive(s, client, ms):
    """Time goes by, and the client goes on with its heartbeats; its session is a day in these tests."""
    for _ in range(ms // (DAY // 2)):
        s.wait(DAY // 2)
        assert client.beat().error_code is NONE


def with_long_sessions(**details):
    s = ConsumerScenario(offsets_retention_ms=WEEK, **details)
    s.settings = ConsumerSettings(session_timeout_ms=DAY)
    return s
