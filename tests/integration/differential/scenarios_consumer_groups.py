"""Consumer groups of KIP-848: heartbeats that are refused, reconciliation, static members, time-outs, descriptions."""

from __future__ import annotations

from typing import Any

from tests.integration.differential.consumer_members import (
    assigned_at_once,
    at_epoch,
    beat,
    beat_until,
    describe,
    is_refused,
    is_told,
    join,
    owned,
    partitions,
    scenario,
    setting,
    subscribing,
    until_known,
)
from tests.integration.differential.dialogue import Dialogue
from tests.integration.differential.scenarios_data import STRANGE_ID


def _topic_and_group(d: Dialogue, partitions_count: int = 3) -> tuple[str, str]:
    """Assignments of the group come at once."""
    group = f"{d.prefix}-group"
    topic = d.topic("one", partitions_count)
    assigned_at_once(d, group)
    until_known(d, group, topic)
    return topic, group


# ---- what is refused -------------------------------------------------------------------------------------------------


@scenario
def heartbeats_that_make_no_sense(d: Dialogue) -> None:
    """All of them are refused for what they say, whatever groups there are."""
    topic, group = _topic_and_group(d)
    for version in (0, 1):
        first = subscribing(topic)

        def ask(member: str, epoch: int, version: int = version, **more: Any) -> None:
            beat(d, more.pop("group", group), member, epoch, version, **more)

        ask("m", 0, group="", **first)
        ask("m", 0, group="  ", **first)
        ask("", 1)
        ask("", -1)
        ask("", -2, InstanceId="one")
        ask("m", -2)
        ask("m", -3, InstanceId="one")
        ask("m", -3)
        ask("m", 0)
        ask("m", 0, **{**first, "RebalanceTimeoutMs": -1})
        ask("m", 0, **{**first, "RebalanceTimeoutMs": 0})
        ask("m", 0, **{**first, "RebalanceTimeoutMs": -2})
        ask("m", 0, **{**first, "SubscribedTopicNames": None})
        ask("m", 0, **{**first, "TopicPartitions": None})
        ask("m", 0, **{**first, "TopicPartitions": partitions(d, topic, 0)})
        ask("m", 0, InstanceId="", **first)
        ask("m", 0, RackId="", **first)
        ask("m", 0, ServerAssignor="", **first)
        ask("m", 0, ServerAssignor="none such", **first)
        ask("m", 0, ServerAssignor="RANGE", **first)
        ask("stranger", 5, RebalanceTimeoutMs=0)
        ask("stranger", 5, ServerAssignor="none such")
        ask("stranger", 5, InstanceId="")
        ask("stranger", 5, TopicPartitions=partitions(d, topic, 0))
        describe(d, group)


@scenario
def member_ids_that_are_missing(d: Dialogue) -> None:
    """Version 0 makes one; from version 1 on a member brings its own."""
    topic, group = _topic_and_group(d)
    join(d, group, "", topic, version=1)
    describe(d, group)
    made = join(d, group, "", topic, version=0)["MemberId"]
    beat(d, group, made, 2, version=0)
    beat(d, group, made, 2, version=1)
    describe(d, group)
    beat(d, group, made, -1, version=0)
    describe(d, group)


@scenario
def patterns_that_are_refused(d: Dialogue) -> None:
    _, group = _topic_and_group(d)
    for pattern in ("[", "(", "*", "a{2,1}", "(?=a)", r"(a)\1", "(?!a)", r"\p{Nothing}", "a{1001}", "x" * 5000 + "["):
        join(d, group, "m", SubscribedTopicRegex=pattern)
        join(d, group, "m", SubscribedTopicNames=None, SubscribedTopicRegex=pattern)
    describe(d, group)
    join(d, group, "m", SubscribedTopicNames=None, SubscribedTopicRegex="")
    join(d, group, "n", SubscribedTopicNames=None, SubscribedTopicRegex=None)
    describe(d, group)
    beat(d, group, "m", 1, SubscribedTopicRegex="(")
    beat(d, group, "m", 2, SubscribedTopicRegex="(")
    describe(d, group)


@scenario
def names_of_any_length(d: Dialogue) -> None:
    """Group, member, instance, rack and topics: what is long, odd or not there."""
    topic, group = _topic_and_group(d)
    long = "x" * 900
    join(d, group, long, topic)
    beat(d, group, long, -1)
    join(d, group, "m", topic, InstanceId=long, RackId=long)
    beat(d, group, "m", -1, InstanceId=long)
    join(d, group, "m", long, "bad name", "", f"{d.prefix}-absent", topic, topic)
    describe(d, group)
    beat(d, group, "m", -1)
    join(d, f"{d.prefix}-{long}", "m", topic)
    beat(d, f"{d.prefix}-{long}", "m", -1)
    join(d, f"{d.prefix} \x00 é", "m \x00 é", topic)
    beat(d, f"{d.prefix} \x00 é", "m \x00 é", -1)


@scenario
def names_that_are_too_long(d: Dialogue) -> None:
    """Kafka takes any that fit into a string."""
    topic, group = _topic_and_group(d)
    long = "x" * 1001
    join(d, group, long, topic)
    join(d, group, "m", topic, InstanceId=long)
    join(d, group, "m", topic, RackId=long)
    join(d, long, "m", topic)


@scenario
def strangers(d: Dialogue) -> None:
    """Heartbeats for groups and members that are not there."""
    topic, group = _topic_and_group(d)
    for epoch in (1, 5, -1):
        beat(d, group, "stranger", epoch)
        beat(d, group, "stranger", epoch, InstanceId="one")
    beat(d, group, "stranger", -2, InstanceId="one")
    describe(d, group)
    join(d, group, "m", topic)
    for epoch in (1, 2, 5, -1):
        beat(d, group, "stranger", epoch)
        beat(d, group, "stranger", epoch, InstanceId="one")
    beat(d, group, "stranger", -2, InstanceId="one")
    beat(d, group, "m", 2)
    beat(d, group, "m", -1)
    beat(d, group, "m", -1)
    beat(d, group, "m", 2)
    describe(d, group)


@scenario
def group_that_is_full(d: Dialogue) -> None:
    topic, group = _topic_and_group(d)
    for member in "abcd":
        join(d, group, member, topic)
    join(d, group, "e", topic)
    join(d, group, "e", topic, InstanceId="one")
    join(d, group, "", topic, version=0)
    join(d, group, "a", topic)
    beat(d, group, "b", -1)
    join(d, group, "e", topic)
    describe(d, group)


@scenario
def static_member_that_comes_back_to_a_full_group(d: Dialogue) -> None:
    topic, group = _topic_and_group(d)
    for member in "abc":
        join(d, group, member, topic)
    join(d, group, "d", topic, InstanceId="one")
    beat(d, group, "d", -2, InstanceId="one")
    join(d, group, "e", topic)
    join(d, group, "f", topic, InstanceId="one")


# ---- epochs ----------------------------------------------------------------------------------------------------------


@scenario
def epochs_of_one_member(d: Dialogue) -> None:
    topic, group = _topic_and_group(d)
    got = join(d, group, "m", topic)
    beat(d, group, "m", 1)
    beat(d, group, "m", 1, TopicPartitions=owned(got))
    beat(d, group, "m", 3)
    beat(d, group, "m", 2)
    beat(d, group, "m", 2, TopicPartitions=owned(got))
    beat(d, group, "m", 2, TopicPartitions=partitions(d, topic, 0))
    beat(d, group, "m", 2, TopicPartitions=[])
    beat(d, group, "m", 2, TopicPartitions=partitions(d, topic, 0, 1, 2, 3, 4))
    beat(d, group, "m", 2, TopicPartitions=[{"TopicId": STRANGE_ID, "Partitions": [0]}])
    beat(d, group, "m", 2, **subscribing(topic))
    beat(d, group, "m", 0)
    join(d, group, "m", topic)
    join(d, group, "m", topic, TopicPartitions=partitions(d, topic, 0))
    join(d, group, "m", topic, f"{d.prefix}-absent")
    beat(d, group, "m", 2)
    beat(d, group, "m", 3)
    describe(d, group)


@scenario
def previous_epoch_with_a_part_of_what_is_owned(d: Dialogue) -> None:
    """An answer that was lost: the member repeats its epoch, and says what it has."""
    topic, group = _topic_and_group(d)
    join(d, group, "a", topic)
    join(d, group, "b", topic)
    told = beat_until(d, is_told, group, "a", 2, TopicPartitions=partitions(d, topic, 0, 1, 2))
    beat(d, group, "a", 2, TopicPartitions=owned(told))
    beat(d, group, "a", 2, TopicPartitions=owned(told))
    beat(d, group, "a", 2, TopicPartitions=[])
    beat(d, group, "a", 2, TopicPartitions=partitions(d, topic, 0, 1, 2))
    beat(d, group, "a", 2, TopicPartitions=[{"TopicId": STRANGE_ID, "Partitions": [0]}])
    beat(d, group, "a", 2, TopicPartitions=partitions(d, topic, 7))
    beat(d, group, "a", 2)
    beat(d, group, "a", 1, TopicPartitions=[])
    beat(d, group, "a", 3)
    describe(d, group)


@scenario
def fenced_and_back(d: Dialogue) -> None:
    """A member with a wrong epoch begins anew with epoch 0, by the same id."""
    topic, group = _topic_and_group(d)
    join(d, group, "a", topic)
    join(d, group, "b", topic)
    beat(d, group, "a", 7)
    join(d, group, "a", topic)
    describe(d, group)
    beat(d, group, "a", 2, TopicPartitions=[])
    beat(d, group, "a", 3)
    beat(d, group, "b", 3)
    describe(d, group)


# ---- reconciliation --------------------------------------------------------------------------------------------------


def _moved_on(d: Dialogue, group: str, member: str, epoch: int, held: list[dict[str, Any]]) -> tuple[int, list[Any]]:
    """A member's heartbeat, and at once another that says it has what it was told; its epoch and what it has."""
    told = beat(d, group, member, epoch)
    if told["Assignment"] is not None:
        held = owned(told)
        told = beat(d, group, member, told["MemberEpoch"], TopicPartitions=held)
    return told["MemberEpoch"], owned(told) if told["Assignment"] else held


def _three_members(d: Dialogue, assignor: str | None) -> None:
    topic, group = _topic_and_group(d, 6)
    more = {} if assignor is None else {"ServerAssignor": assignor}
    got = join(d, group, "a", topic, **more)
    beat(d, group, "a", 2, TopicPartitions=owned(got))
    describe(d, group)
    join(d, group, "b", topic, **more)
    describe(d, group)
    beat(d, group, "b", 3, TopicPartitions=[])
    told = beat(d, group, "a", 2)
    describe(d, group)
    beat(d, group, "a", 2, TopicPartitions=partitions(d, topic, *range(6)))
    beat(d, group, "b", 3)
    of_a = owned(told)
    beat(d, group, "a", 2, TopicPartitions=of_a)
    describe(d, group)
    of_b = owned(beat(d, group, "b", 3))
    beat(d, group, "b", 3, TopicPartitions=of_b)
    describe(d, group)
    join(d, group, "c", topic, **more)
    epochs = {"a": 3, "b": 3, "c": 4}
    held: dict[str, list[Any]] = {"a": of_a, "b": of_b, "c": []}
    for member in "abcabc":
        epochs[member], held[member] = _moved_on(d, group, member, epochs[member], held[member])
    describe(d, group)
    beat(d, group, "b", -1)
    describe(d, group)
    for member in "acac":
        epochs[member], held[member] = _moved_on(d, group, member, epochs[member], held[member])
    describe(d, group)
    beat(d, group, "a", -1)
    beat(d, group, "c", epochs["c"])
    beat(d, group, "c", -1)
    describe(d, group)
    join(d, group, "d", topic, **more)


@scenario
def three_members_by_default(d: Dialogue) -> None:
    _three_members(d, None)


@scenario
def three_members_uniform(d: Dialogue) -> None:
    _three_members(d, "uniform")


@scenario
def three_members_range(d: Dialogue) -> None:
    _three_members(d, "range")


@scenario
def two_topics_by_range(d: Dialogue) -> None:
    """Co-partitioned topics, one with fewer partitions, and a member that wants only one of them."""
    topic, group = _topic_and_group(d, 4)
    other = d.topic("two", 2)
    until_known(d, group, other)
    join(d, group, "a", topic, other, ServerAssignor="range")
    join(d, group, "b", topic, other, ServerAssignor="range")
    describe(d, group)
    join(d, group, "c", other, ServerAssignor="range")
    describe(d, group)


@scenario
def assignors_of_members(d: Dialogue) -> None:
    """The most wanted one is the group's; a member that changes its mind."""
    topic, group = _topic_and_group(d)
    join(d, group, "a", topic, ServerAssignor="range")
    describe(d, group)
    join(d, group, "b", topic, ServerAssignor="uniform")
    describe(d, group)
    join(d, group, "c", topic, ServerAssignor="uniform")
    describe(d, group)
    beat(d, group, "c", 4, ServerAssignor="range")
    describe(d, group)
    beat(d, group, "c", 4, ServerAssignor="none such")
    beat(d, group, "b", 3, RackId="rack")
    beat(d, group, "b", 4, RebalanceTimeoutMs=9000)
    describe(d, group)


@scenario
def assignors_that_are_wanted_alike(d: Dialogue) -> None:
    topic, group = _topic_and_group(d)
    join(d, group, "a", topic, ServerAssignor="uniform")
    join(d, group, "b", topic, ServerAssignor="range")
    describe(d, group)
    join(d, group, "c", topic)
    describe(d, group)
    beat(d, group, "a", -1)
    describe(d, group)


@scenario
def other_subscriptions(d: Dialogue) -> None:
    topic, group = _topic_and_group(d)
    other = d.topic("two")
    until_known(d, group, other)
    join(d, group, "a", topic)
    beat(d, group, "a", 2, SubscribedTopicNames=[topic])
    beat(d, group, "a", 2, SubscribedTopicNames=[topic, other])
    beat(d, group, "a", 3, SubscribedTopicNames=[other, topic])
    told = beat(d, group, "a", 3, SubscribedTopicNames=[other])
    describe(d, group)
    beat(d, group, "a", 3)
    beat(d, group, "a", 3, TopicPartitions=owned(told))
    beat(d, group, "a", 4, SubscribedTopicNames=[])
    beat(d, group, "a", 4, TopicPartitions=[])
    beat(d, group, "a", 5, SubscribedTopicNames=[f"{d.prefix}-absent"])
    describe(d, group)


@scenario
def assignments_at_intervals(d: Dialogue) -> None:
    """By default there is one a second at most; what comes between only raises the group's epoch."""
    group = f"{d.prefix}-group"
    topic = d.topic("one", 3)
    until_known(d, group, topic)
    setting(d, group, "consumer.assignment.interval.ms", "3000")
    join(d, group, "a", topic)
    join(d, group, "b", topic)
    describe(d, group)
    beat(d, group, "a", 2)
    told = beat_until(d, is_told, group, "a", 2)
    beat(d, group, "a", 2, TopicPartitions=owned(told))
    beat(d, group, "b", 2)
    describe(d, group)
    beat(d, group, "b", -1)
    beat(d, group, "a", 3)
    describe(d, group)
    beat_until(d, at_epoch(4), group, "a", 3)
    describe(d, group)


# ---- static members --------------------------------------------------------------------------------------------------


@scenario
def static_members_that_go_and_come(d: Dialogue) -> None:
    topic, group = _topic_and_group(d)
    join(d, group, "a", topic, InstanceId="one")
    describe(d, group)
    join(d, group, "b", topic, InstanceId="one")
    join(d, group, "b", topic, InstanceId="two")
    beat(d, group, "b", 3, InstanceId="one")
    beat(d, group, "b", 3, InstanceId="nobody")
    beat(d, group, "b", 3)
    beat(d, group, "a", 2, InstanceId="two")
    beat(d, group, "a", -2)
    beat(d, group, "a", -2, InstanceId="two")
    beat(d, group, "b", -2, InstanceId="one")
    beat(d, group, "a", -2, InstanceId="one")
    describe(d, group)
    beat(d, group, "a", 2, InstanceId="one")
    beat(d, group, "a", -2, InstanceId="one")
    describe(d, group)
    join(d, group, "c", topic, InstanceId="one")
    describe(d, group)
    beat(d, group, "a", 2, InstanceId="one")
    beat(d, group, "a", -1, InstanceId="one")
    beat(d, group, "c", 3, InstanceId="one")
    beat(d, group, "c", -1)
    describe(d, group)
    beat(d, group, "b", -1, InstanceId="two")
    describe(d, group)


@scenario
def static_member_comes_back_as_it_was(d: Dialogue) -> None:
    """With the same names and by the same id; then while the others have moved on; then with other names."""
    topic, group = _topic_and_group(d)
    other = d.topic("two")
    until_known(d, group, other)
    join(d, group, "a", topic, InstanceId="one")
    beat(d, group, "a", -2, InstanceId="one")
    join(d, group, "a", topic, InstanceId="one")
    describe(d, group)
    beat(d, group, "a", -2, InstanceId="one")
    join(d, group, "b", topic)
    describe(d, group)
    beat(d, group, "b", 3)
    join(d, group, "c", topic, InstanceId="one")
    beat(d, group, "b", 3)
    describe(d, group)
    beat(d, group, "c", -2, InstanceId="one")
    join(d, group, "e", topic, other, InstanceId="one")
    describe(d, group)
    beat(d, group, "e", -2, InstanceId="one")
    join(d, group, "f", topic, other, InstanceId="one", RackId="rack", ServerAssignor="range")
    describe(d, group)
    join(d, group, "f", topic, other)
    beat(d, group, "f", 5)
    describe(d, group)


@scenario
def instance_that_moves_to_a_dynamic_member(d: Dialogue) -> None:
    topic, group = _topic_and_group(d)
    join(d, group, "a", topic)
    join(d, group, "a", topic, InstanceId="one")
    describe(d, group)
    beat(d, group, "a", 2, InstanceId="one")
    beat(d, group, "a", 2)
    beat(d, group, "a", -2, InstanceId="one")
    describe(d, group)


# ---- time ------------------------------------------------------------------------------------------------------------


def _short_session(d: Dialogue, group: str) -> None:
    setting(d, group, "consumer.heartbeat.interval.ms", "400")
    setting(d, group, "consumer.session.timeout.ms", "1000")


def _is_empty(d: Dialogue, group: str) -> bool:
    [found] = d.guide_coordinator(group, "ConsumerGroupDescribe", 1, {"GroupIds": [group]})["Groups"]
    return found["GroupState"] == "Empty"


@scenario
def sessions_that_end(d: Dialogue) -> None:
    topic, group = _topic_and_group(d)
    _short_session(d, group)
    join(d, group, "a", topic)
    d.until(lambda: _is_empty(d, group))
    beat(d, group, "a", 2)
    describe(d, group)
    join(d, group, "b", topic, InstanceId="one")
    d.until(lambda: _is_empty(d, group))
    join(d, group, "c", topic, InstanceId="one")
    beat(d, group, "c", -2, InstanceId="one")
    d.until(lambda: _is_empty(d, group))
    describe(d, group)
    join(d, group, "d", topic, InstanceId="one")
    describe(d, group)


@scenario
def a_member_that_gives_nothing_back(d: Dialogue) -> None:
    topic, group = _topic_and_group(d)
    join(d, group, "a", topic, RebalanceTimeoutMs=1500)
    join(d, group, "b", topic)
    beat(d, group, "a", 2)
    beat_until(d, is_refused, group, "a", 2, TopicPartitions=partitions(d, topic, 0, 1, 2))
    describe(d, group)
    beat(d, group, "b", 3)
    describe(d, group)
    join(d, group, "a", topic, RebalanceTimeoutMs=1500)


# ---- topics that change ----------------------------------------------------------------------------------------------


@scenario
def topics_that_come_grow_and_go(d: Dialogue) -> None:
    group = f"{d.prefix}-group"
    assigned_at_once(d, group)
    join(d, group, "a", f"{d.prefix}-one", f"{d.prefix}-two")
    one = d.topic("one")
    beat_until(d, at_epoch(3), group, "a", 2)
    more = {"Topics": [{"Name": one, "Count": 2, "Assignments": None}], "TimeoutMs": 10_000}
    d.guide("CreatePartitions", 3, more)
    d.wait_for_topic(one, 2)
    beat_until(d, at_epoch(4), group, "a", 3)
    describe(d, group)
    two = d.topic("two")
    beat_until(d, at_epoch(5), group, "a", 4)
    describe(d, group)
    d.guide("DeleteTopics", 5, {"TopicNames": [one], "TimeoutMs": 10_000})
    beat_until(d, at_epoch(6), group, "a", 5, TopicPartitions=partitions(d, two, 0))
    describe(d, group)
    one = d.topic("one", 3)
    beat_until(d, at_epoch(7), group, "a", 6)
    beat(d, group, "a", 7, TopicPartitions=[*partitions(d, two, 0), *partitions(d, one, 0, 1, 2)])
    describe(d, group)


@scenario
def topic_deleted_that_is_owned(d: Dialogue) -> None:
    """The member is told to give it back, although it is gone."""
    topic, group = _topic_and_group(d)
    join(d, group, "a", topic)
    beat(d, group, "a", 2, TopicPartitions=partitions(d, topic, 0, 1, 2))
    d.guide("DeleteTopics", 5, {"TopicNames": [topic], "TimeoutMs": 10_000})
    beat_until(d, is_told, group, "a", 2)
    describe(d, group)
    beat(d, group, "a", 2)
    beat(d, group, "a", 2, TopicPartitions=[])
    describe(d, group)
