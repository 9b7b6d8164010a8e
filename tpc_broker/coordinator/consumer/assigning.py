"""Target assignments of consumer groups, made beside everything else: `Assigning`.

An assignor, and the records of what it changed, take as long as a group is large. So both are one generator, of which a
heartbeat takes the first pieces, which is all there is of a small group; the rest is `work`, piece by piece. Meanwhile
the group may change. What comes out is the target of the epoch in which it began: members that have left are not in it,
members that have come wait for the next one, which begins when this is done, and `reconcile` gives nobody what it does
not subscribe to. So it ends however steadily members come and go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.coordinator.assignors.spec import GroupSpec, MemberSpec, TopicSpec
from tpc_broker.coordinator.consumer.records import TARGET_EPOCH_KEY, TARGET_KEY, TargetEpoch
from tpc_broker.coordinator.consumer.step import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from tpc_broker.coordinator.assignors.spec import Assignor
    from tpc_broker.coordinator.consumer.ahead import Ahead
    from tpc_broker.coordinator.consumer.group import ConsumerGroup
    from tpc_broker.coordinator.consumer.messages import ConsumerSettings, Topics
    from tpc_broker.coordinator.effects import Effects
    from tpc_broker.model import TopicId

PIECES_AT_ONCE: Final = 2
"""Of an assignor's, within a heartbeat."""
TARGETS_AT_ONCE: Final = 50
"""Records of members, some 30 µs each with as many as ten topics, and as much for each ten topics more."""


class Assigning:
    """Of all groups of a coordinator."""

    def __init__(
        self,
        groups: Mapping[str, ConsumerGroup],
        ahead: Ahead,
        settings_of: Callable[[str], ConsumerSettings],
        topics: Topics,
        assignors: Mapping[str, Assignor],
    ) -> None:
        self._groups = groups
        self._ahead = ahead
        self._settings_of = settings_of
        self._topics = topics
        self._assignors = assignors
        self._running: dict[str, _Run] = {}
        self._loaded_in_between: set[str] = set()
        """Groups of whose next target some may have been stored when they were loaded."""

    def begin_if_due(self, step: Step, now_ms: int) -> None:
        """Makes the target of the group's epoch, unless one is being made, or was so lately that more changes are
        awaited first. As far as it comes at once, its records are among those of `step`.
        """
        group = step.group
        if group.epoch <= group.target_epoch or group.group_id in self._running:
            return
        interval_ms = self._settings_of(group.group_id).assignment_interval_ms
        if group.assigned_ms <= now_ms < group.assigned_ms + interval_ms:
            return
        run = _Run(step, self._targets_of(group), now_ms)
        if run.go_on(PIECES_AT_ONCE):
            self._loaded_in_between.discard(group.group_id)
        else:
            self._running[group.group_id] = run

    def loaded(self, group: ConsumerGroup) -> None:
        """The group was, as its records say."""
        if group.epoch > group.target_epoch:
            self._loaded_in_between.add(group.group_id)

    # Rule: A target that is there in part is nobody's yet: who came to it in the epoch of the one before would be in
    # the same epoch with what it gave back. Held by tests/coordinator/consumer/test_corners.py.
    def is_target_mixed(self, group_id: str) -> bool:
        """Whether members may have parts of the next target while its epoch is not there."""
        run = self._running.get(group_id)
        return group_id in self._loaded_in_between or (run is not None and run.has_begun_to_apply)

    @property
    def has_work(self) -> bool:
        """Whether `work` has anything to do."""
        return bool(self._running)

    def work(self, now_ms: int, effects: Effects) -> None:
        """One piece of one group's; nothing where the disk is far behind."""
        group_id, run = next(iter(self._running.items()))
        del self._running[group_id]
        if self._groups.get(group_id) is not run.step.group or not run.step.group.members:
            return
        if self._ahead.has_room():
            run.step, run.now_ms = Step(run.step.group), now_ms
            is_done = run.go_on(1)
            self._ahead.write(group_id, run.step.records, effects)
            if is_done:
                self._loaded_in_between.discard(group_id)
                return
        self._running[group_id] = run  # behind the others

    def replaced(self, group_id: str, old_id: str, member_id: str) -> None:
        """A static member is back under another id. What is being made for it is for that one: no other target follows,
        for the group's epoch does not rise.
        """
        run = self._running.get(group_id)
        if run is not None:
            run.replaced(old_id, member_id)

    def forget(self, group_id: str) -> None:
        """The group goes."""
        self._running.pop(group_id, None)
        self._loaded_in_between.discard(group_id)

    def _targets_of(self, group: ConsumerGroup) -> Generator[None, None, dict[str, dict[TopicId, frozenset[int]]]]:
        name = group.preferred_assignor(self._settings_of(group.group_id).assignors)
        return self._assignors[name](self._spec_of(group))

    def _spec_of(self, group: ConsumerGroup) -> GroupSpec:
        """The group and its topics as they are now."""
        topics: dict[TopicId, TopicSpec] = {}
        ids: dict[str, TopicId] = {}
        for name in group.all_subscribed_names():
            topic = self._topics.named(name)
            if topic is not None:
                ids[name] = topic.topic_id
                topics[topic.topic_id] = TopicSpec(topic.partitions_count, topic.racks)
        alike: dict[tuple[tuple[str, ...], str | None], frozenset[TopicId]] = {}
        members: dict[str, MemberSpec] = {}
        for member_id, member in group.members.items():
            said = (member.topic_names, member.topic_regex)
            if said not in alike:
                alike[said] = frozenset(ids[name] for name in group.subscribed_names(member) if name in ids)
            members[member_id] = MemberSpec(
                alike[said], group.target_of(member_id), member.rack_id, member.instance_id
            )
        return GroupSpec(members, topics)


class _Run:
    """One target assignment. `step` takes the records of the piece that is under way."""

    def __init__(
        self, step: Step, targets: Generator[None, None, dict[str, dict[TopicId, frozenset[int]]]], now_ms: int
    ) -> None:
        self.step = step
        self.now_ms = now_ms
        self._pieces = self._run(step.group.epoch, targets)
        self._now_ids: dict[str, str] = {}
        """Of static members that have been replaced since it began."""
        self.has_begun_to_apply = False

    def replaced(self, old_id: str, member_id: str) -> None:
        for first_id, now_id in self._now_ids.items():
            if now_id == old_id:
                self._now_ids[first_id] = member_id
        self._now_ids.setdefault(old_id, member_id)

    def go_on(self, pieces: int) -> bool:
        """Whether it is done after so many pieces."""
        for _ in range(pieces):
            try:
                next(self._pieces)
            except StopIteration:
                return True
        return False

    def _run(
        self, epoch: int, targets: Generator[None, None, dict[str, dict[TopicId, frozenset[int]]]]
    ) -> Generator[None, None, None]:
        made = yield from targets
        group = self.step.group
        count = 0
        for first_id, target in made.items():
            member_id = self._now_ids.get(first_id, first_id)
            if member_id in group.members and group.targets.get(member_id) != target:
                self.step.put(TARGET_KEY, target, member_id)
                self.has_begun_to_apply = True
                count += 1 + len(target) // 10
                if count >= TARGETS_AT_ONCE:
                    count = 0
                    yield
        self.step.put(TARGET_EPOCH_KEY, TargetEpoch(epoch, self.now_ms))
