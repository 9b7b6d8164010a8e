"""What members subscribe to, by names and by expressions, and when that raises the group's epoch: `SubscribedTopics`.

Expressions are resolved beside the coordinator, over the names that there are: `wanted` says what is to be resolved,
`resolved` takes the result. It is asked for when there is an expression that was never resolved, when topics have
changed, at most once a second, and now and then in any case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.coordinator.consumer.group import size_of_names
from tpc_broker.coordinator.consumer.records import MEMBER_KEY, REGEX_KEY
from tpc_broker.coordinator.consumer.step import Step
from tpc_broker.coordinator.consumer.topic_hash import group_hash, topic_hash
from tpc_broker.limits import GROUP_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpc_broker.coordinator.consumer.ahead import Ahead
    from tpc_broker.coordinator.consumer.group import ConsumerGroup
    from tpc_broker.coordinator.consumer.messages import ConsumerSettings, KnownTopic, Topics
    from tpc_broker.coordinator.consumer.records import ResolvedRegex, Subscription
    from tpc_broker.coordinator.effects import Effects
    from tpc_broker.model import TopicId

RESOLVED_AGAIN_MS: Final = 1_000
"""Between the times that the expressions of a group are resolved, at least."""
PATTERNS_MAX: Final = 100
"""Of the members of a group: each is resolved again and again."""
HASHES_MIN: Final = 1_000
ALIKE_MAX: Final = 8
"""Of those whose ids are kept: as a rule all members of a group subscribe to the same, of some ten thousand at most."""


class SubscribedTopics:
    """Of all groups of a coordinator."""

    def __init__(
        self,
        groups: Mapping[str, ConsumerGroup],
        ahead: Ahead,
        settings_of: Callable[[str], ConsumerSettings],
        topics: Topics,
        bytes_left: Callable[[], int],
    ) -> None:
        self._groups = groups
        self._bytes_left = bytes_left
        self._ahead = ahead
        self._settings_of = settings_of
        self._topics = topics
        self._hashes: dict[TopicId, tuple[KnownTopic, int]] = {}
        self._hashes_max = HASHES_MIN
        """With so many, those of topics that are gone are forgotten."""
        self._alike: dict[tuple[tuple[str, ...], tuple[str, ...]], frozenset[TopicId]] = {}
        self._alike_version = -1
        """The ids of what some members subscribe to, by names and by an expression, and the metadata they are of."""
        self._wanted: dict[str, frozenset[str]] = {}

    def change(self, step: Step, member_id: str, subscription: Subscription, now_ms: int) -> None:
        """A member says what it asks for. The group's epoch rises when that changes what it subscribes to, or when its
        topics are not what they were. With an expression that has yet to be resolved it rises when it is.
        """
        group = step.group
        old = group.members.get(member_id)
        is_raised = False
        if subscription != old:
            before = frozenset() if old is None else group.subscribed_names(old)
            step.put(MEMBER_KEY, subscription, member_id)
            if old is not None and old.topic_regex != subscription.topic_regex:
                self.forget_unused(step, old.topic_regex)
            names_differ = subscription.topic_names != (() if old is None else old.topic_names)
            awaits = bool(subscription.topic_regex) and subscription.topic_regex not in group.regexes
            is_raised = names_differ or (not awaits and group.subscribed_names(subscription) != before)
        version = self._topics.version
        if is_raised or group.checked_version != version:
            metadata_hash = self.hash_of(group)
            if is_raised or metadata_hash != group.metadata_hash:
                step.raise_epoch(metadata_hash)
            group.checked_version = version
        if group.patterns:
            self._want(group, now_ms)

    def hash_of(self, group: ConsumerGroup) -> int:
        """Of the topics that its members subscribe to, as they are now."""
        by = self._topics.version, group.subscribed_version
        if group.hashed is None or group.hashed[:2] != by:
            topics = map(self._topics.named, sorted(group.all_subscribed_names()))
            group.hashed = *by, group_hash(self._hash(topic) for topic in topics if topic is not None)
        return group.hashed[2]

    def _hash(self, topic: KnownTopic) -> int:
        known = self._hashes.get(topic.topic_id)
        if known is not None and (known[0] is topic or known[0] == topic):
            return known[1]
        if len(self._hashes) >= self._hashes_max:
            of_id = self._topics.of_id
            self._hashes = {topic_id: each for topic_id, each in self._hashes.items() if of_id(topic_id) == each[0]}
            self._hashes_max = HASHES_MIN + 2 * len(self._hashes)
        value = topic_hash(topic)
        self._hashes[topic.topic_id] = topic, value
        return value

    def ids_of(self, group: ConsumerGroup, member_id: str) -> frozenset[TopicId]:
        """What a member subscribes to, as far as it exists."""
        member = group.members[member_id]
        resolved = group.regexes.get(member.topic_regex or "")
        said = member.topic_names, () if resolved is None else resolved.topics
        if self._alike_version != self._topics.version or len(self._alike) >= ALIKE_MAX:
            self._alike_version, self._alike = self._topics.version, {}
        ids = self._alike.get(said)
        if ids is None:
            topics = map(self._topics.named, group.subscribed_names(member))
            ids = self._alike[said] = frozenset(topic.topic_id for topic in topics if topic is not None)
        return ids

    # Expressions

    def forget_unused(self, step: Step, pattern: str | None) -> None:
        """An expression that no member subscribes with any more."""
        if pattern and pattern not in step.group.patterns and pattern in step.group.regexes:
            step.put(REGEX_KEY, None, pattern)

    # Rule: A resolved expression is looked at again when topics change, and the group's epoch rises when, and only
    # when, what it matches has changed. Held by tests/coordinator/consumer.
    def _want(self, group: ConsumerGroup, now_ms: int) -> None:
        """Asks for the group's expressions to be resolved, if that is due."""
        since_ms = now_ms - group.resolved_ms
        is_old = (
            since_ms >= self._settings_of(group.group_id).regex_refresh_interval_ms
            or (group.resolved_version != self._topics.version and since_ms >= RESOLVED_AGAIN_MS)
            or since_ms < 0
        )
        if is_old or not group.patterns.keys() <= group.regexes.keys():
            self._wanted[group.group_id] = frozenset(group.patterns)

    def wanted(self) -> list[tuple[str, frozenset[str]]]:
        """What is to be resolved: groups, and their expressions. They are not asked for again before the next
        heartbeat.
        """
        wanted, self._wanted = self._wanted, {}
        return list(wanted.items())

    def _has_bytes(self, group: ConsumerGroup, old: ResolvedRegex | None, resolved: ResolvedRegex) -> bool:
        """Whether there is room for what an expression matches; otherwise what it matched before stays."""
        growth = size_of_names(resolved.topics) - (0 if old is None else size_of_names(old.topics))
        return growth <= 0 or (group.size_bytes + growth <= GROUP_BYTES_MAX and growth <= self._bytes_left())

    # Rule: What raises a group's epoch is stored no sooner than the epoch: a coordinator that loads some parts of what
    # was resolved finds the rest when it is resolved again. Held by tests/coordinator/consumer/test_expressions.py.
    def resolved(
        self, group_id: str, found: Mapping[str, ResolvedRegex], now_ms: int, effects: Effects, *, has_more: bool
    ) -> None:
        """What expressions match, by metadata of the same version each. It may come in parts, of which the last one
        raises the group's epoch for all; until then one that would raise it is held back. Where the disk is far behind
        all are asked for again.
        """
        group = self._groups.get(group_id)
        if group is None:
            return
        group.lacks_part = group.lacks_part or not self._ahead.has_room()
        if group.lacks_part:
            if not has_more:
                group.lacks_part, group.held_back = False, {}
            return
        step = Step(group)
        is_raised = bool(group.held_back)
        to_store = {**group.held_back, **found}
        group.held_back = {}
        for pattern, resolved in to_store.items():
            old = group.regexes.get(pattern)
            if pattern not in group.patterns or (old is not None and old.topics == resolved.topics):
                continue
            has_bytes = self._has_bytes(group, old, resolved)
            raises = has_bytes and resolved.topics != (() if old is None else old.topics)
            raises = raises or (old is None and self._is_owed(group, pattern, is_new=has_bytes))
            is_raised = is_raised or raises
            if has_bytes and raises and has_more and not group.held_back:
                group.held_back[pattern] = resolved
            elif has_bytes:
                step.put(REGEX_KEY, resolved, pattern)
        if not has_more:
            group.resolved_ms = now_ms
            group.resolved_version = max((each.version for each in found.values()), default=group.resolved_version)
            if is_raised:
                step.raise_epoch(self.hash_of(group))
        self._ahead.write(group_id, step.records, effects)

    def _is_owed(self, group: ConsumerGroup, pattern: str, *, is_new: bool) -> bool:
        """Whether others are to have what members with an expression had by another one, though this one matches
        nothing. `is_new`: a target that is being made may still give it to them.
        """
        if is_new and group.epoch > group.target_epoch:
            return True
        with_pattern = (member_id for member_id, member in group.members.items() if member.topic_regex == pattern)
        had = (member_id for member_id in with_pattern if group.target_of(member_id))
        return any(not group.target_of(member_id).keys() <= self.ids_of(group, member_id) for member_id in had)
