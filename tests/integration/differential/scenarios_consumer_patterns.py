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
