"""Consumer groups of KIP-848 whose members subscribe by patterns, which are looked up some time after the answer."""

from __future__ import annotations

from tests.integration.differential.consumer_members import (
    assigned_at_once,
    at_epoch,
    beat,
    beat_until,
    describe,
    join,
    matching,
    owned,
    partitions,
    scenario,
    until_known,
)
from tests.integration.differential.dialogue import Dialogue
from tests.integration.differential.scenarios_groups import join as classic_join
from tests.integration.differential.scenarios_groups import subscription


@scenario
def topics_by_pattern(d: Dialogue) -> None:
    """The whole name has to match. A topic that is made later, or deleted, is noticed within some ten seconds."""
    group = f"{d.prefix}-group"
    one, _ = d.topic("one", 2), d.topic("one-more")
    assigned_at_once(d, group)
    until_known(d, group, one)
    beat(d, group, "a", 0, **matching(f"{d.prefix}-(one|two)"))
    beat_until(d, at_epoch(2), group, "a", 1)
    beat(d, group, "a", 2, TopicPartitions=partitions(d, one, 0, 1))
    describe(d, group)
    two = d.topic("two")
    beat_until(d, at_epoch(3), group, "a", 2)
    describe(d, group)
    d.guide("DeleteTopics", 5, {"TopicNames": [one], "TimeoutMs": 10_000})
    beat_until(d, at_epoch(4), group, "a", 3, TopicPartitions=partitions(d, two, 0))
    describe(d, group)


@scenario
def patterns_of_two_members(d: Dialogue) -> None:
    """A pattern that is known already counts at once; another one only when it has been looked up."""
    group = f"{d.prefix}-group"
    one, two = d.topic("one", 4), d.topic("two", 1)
    assigned_at_once(d, group)
    until_known(d, group, one)
    until_known(d, group, two)
    beat(d, group, "a", 0, **matching(f"{d.prefix}-on."))
    beat_until(d, at_epoch(2), group, "a", 1)
    beat(d, group, "b", 0, **matching(f"{d.prefix}-on."))
    describe(d, group)
    told = beat(d, group, "a", 2)
    beat(d, group, "a", 2, TopicPartitions=owned(told))
    got = beat(d, group, "b", 3)
    beat(d, group, "b", 3, TopicPartitions=owned(got))
    beat(d, group, "b", 3, SubscribedTopicRegex=f"{d.prefix}-tw.")
    describe(d, group)
    beat(d, group, "a", 3)
    beat_until(d, at_epoch(4), group, "b", 3, TopicPartitions=[])
    describe(d, group)


@scenario
def patterns_and_names(d: Dialogue) -> None:
    group = f"{d.prefix}-group"
    one, two = d.topic("one"), d.topic("two", 2)
    assigned_at_once(d, group)
    until_known(d, group, one)
    until_known(d, group, two)
    join(d, group, "a", one, SubscribedTopicRegex=f"{d.prefix}-t.*")
    beat_until(d, at_epoch(3), group, "a", 2)
    describe(d, group)
    beat(d, group, "a", 3, SubscribedTopicRegex="")
    beat(d, group, "a", 3, TopicPartitions=partitions(d, one, 0))
    describe(d, group)
    beat(d, group, "a", 4, SubscribedTopicNames=[], SubscribedTopicRegex="")
    beat(d, group, "a", 4, TopicPartitions=[])
    describe(d, group)


@scenario
def pattern_that_nothing_matches(d: Dialogue) -> None:
    group = f"{d.prefix}-group"
    assigned_at_once(d, group)
    beat(d, group, "a", 0, **matching(f"{d.prefix}-nothing"))
    beat(d, group, "a", 1)
    describe(d, group)
    beat(d, group, "a", -1)
    describe(d, group)


@scenario
def pattern_that_matches_internal_topics(d: Dialogue) -> None:
    group = f"{d.prefix}-group"
    assigned_at_once(d, group)
    beat(d, group, "a", 0, **matching("__consumer_offset."))
    beat_until(d, at_epoch(2), group, "a", 1)
    beat(d, group, "a", -1)


@scenario
def static_member_with_a_pattern(d: Dialogue) -> None:
    """It goes for a while and comes back by another id; then with names, and then as a classic member."""
    group = f"{d.prefix}-group"
    one, two = d.topic("one", 2), d.topic("two")
    assigned_at_once(d, group)
    until_known(d, group, one)
    until_known(d, group, two)
    static = {"InstanceId": "one", **matching(f"{d.prefix}-on.")}
    beat(d, group, "a", 0, **static)
    beat_until(d, at_epoch(2), group, "a", 1, InstanceId="one")
    beat(d, group, "a", -2, InstanceId="one")
    describe(d, group)
    beat(d, group, "b", 0, **static)
    describe(d, group)
    beat(d, group, "b", -2, InstanceId="one")
    beat(d, group, "c", 0, **{**static, "SubscribedTopicNames": [two], "SubscribedTopicRegex": None})
    describe(d, group)
    beat(d, group, "c", -2, InstanceId="one")
    join(d, group, "d", two, InstanceId="one", SubscribedTopicRegex="")
    describe(d, group)
    join(d, group, "other", one)
    beat(d, group, "d", -2, InstanceId="one")
    protocols = [{"Name": "range", "Metadata": subscription(one)}]
    classic_join(d.coordinator(group), 9, group, GroupInstanceId="one", Protocols=protocols)
    describe(d, group)


@scenario
def classic_member_in_the_place_of_a_pattern(d: Dialogue) -> None:
    """What a static member subscribed to by a pattern is dropped with it."""
    group = f"{d.prefix}-group"
    one, two = d.topic("one", 2), d.topic("two")
    assigned_at_once(d, group)
    until_known(d, group, one)
    until_known(d, group, two)
    beat(d, group, "a", 0, InstanceId="one", **matching(f"{d.prefix}-on."))
    beat_until(d, at_epoch(2), group, "a", 1, InstanceId="one")
    join(d, group, "other", two)
    beat(d, group, "a", -2, InstanceId="one")
    protocols = [{"Name": "range", "Metadata": subscription(two)}]
    classic_join(d.coordinator(group), 9, group, GroupInstanceId="one", Protocols=protocols)
    describe(d, group)
    beat(d, group, "other", 3)
    describe(d, group)


@scenario
def fenced_member_with_a_pattern(d: Dialogue) -> None:
    group = f"{d.prefix}-group"
    one = d.topic("one", 2)
    assigned_at_once(d, group)
    until_known(d, group, one)
    beat(d, group, "a", 0, **matching(f"{d.prefix}-on."))
    beat_until(d, at_epoch(2), group, "a", 1)
    beat(d, group, "a", 7)
    beat(d, group, "a", 0, **matching(f"{d.prefix}-on."))
    describe(d, group)
    beat(d, group, "a", 2)
    beat(d, group, "a", 0, **matching(f"{d.prefix}-other"))
    describe(d, group)
