"""One consumer group as its records say, and what follows from them: `ConsumerGroup`.

`apply` is the only way in which it changes, at replay and when a decision has made records, so that a coordinator that
takes over has the same. Who looks at the last record of each key alone has them in any order of keys: nothing that
looks at two of them is kept before `finish_loading`.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final

from tpc_broker.coordinator.consumer.records import (
    CURRENT_KEY,
    GROUP_EPOCH_KEY,
    MEMBER_KEY,
    REGEX_KEY,
    TARGET_EPOCH_KEY,
    TARGET_KEY,
    ConsumerKey,
    CurrentAssignment,
    GroupEpoch,
    ResolvedRegex,
    Subscription,
    TargetEpoch,
    consumer_record,
)
from tpc_broker.coordinator.driven import RecordDamagedError
from tpc_broker.coordinator.group import CONSUMER_PROTOCOL_TYPE
from tpc_broker.limits import GROUP_MEMBER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tpc_broker.coordinator.assignors.spec import Partitions
    from tpc_broker.coordinator.consumer.records import ConsumerValue
    from tpc_broker.coordinator.effects import Record
    from tpc_broker.coordinator.group import Held
    from tpc_broker.model import TopicId

PARTITION_BYTES: Final = 64
"""Counted of each partition in an assignment."""
NAME_BYTES: Final = 64
"""Counted of each name beside its characters."""


class ConsumerState(Enum):
    """Of a group, with the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(IntEnum):
    """Of a member, as they are stored."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


STATES: Final[Mapping[ConsumerState, tuple[str, str]]] = {
    ConsumerState.EMPTY: ("no members; offsets may be kept", "a member joins"),
    ConsumerState.ASSIGNING: ("the group's epoch is above that of the target assignment", "the target is made"),
    ConsumerState.RECONCILING: (
        "a member is not in the epoch of the target, or has yet to give back or to be given partitions",
        "the last member has its part, or something changes",
    ),
    ConsumerState.STABLE: ("all members have their parts of the target", "a member or a topic comes, goes or changes"),
    ConsumerState.DEAD: ("there is no such group", "a member joins"),
}
"""What each means, and what ends it."""
MEMBER_STATES: Final[Mapping[MemberState, str]] = {
    MemberState.STABLE: "it has its part of the target, or has not yet heard that it changed",
    MemberState.UNREVOKED_PARTITIONS: (
        "it was told to give back partitions, and stays in its epoch until it says it did"
    ),
    MemberState.UNRELEASED_PARTITIONS: "it is in the epoch of the target, and waits for what others have to give back",
    MemberState.UNKNOWN: "stored by a later release",
}
"""What each means; the numbers are those that are stored."""


def states_page() -> str:
    """Both tables in Markdown, for the documentation."""
    lines = ["| State of a group | Meaning | Ends when |", "| --- | --- | --- |"]
    lines += [f"| {state.value} | {meaning} | {end} |" for state, (meaning, end) in STATES.items()]
    lines += ["", "| State of a member | Stored as | Meaning |", "| --- | --- | --- |"]
    lines += [f"| {state.name} | {state.value} | {meaning} |" for state, meaning in MEMBER_STATES.items()]
    return "\n".join(lines)


FIRST_EPOCH: Final = 1
"""Of a group of which no epoch is stored: as if it had been given one, and an assignment, when it had no members."""
NEW_MEMBER: Final = CurrentAssignment(0, 0, MemberState.STABLE, {}, {})
NO_PARTITIONS: Final[Partitions] = {}


def partitions_of(held: Mapping[TopicId, Mapping[int, int]]) -> Partitions:
    """Without their epochs."""
    return {topic_id: frozenset(partitions) for topic_id, partitions in held.items() if partitions}


class ConsumerGroup:
    """The state of a group. Members are those with a `Subscription`; a new one has `NEW_MEMBER` as its current
    assignment until it is stored.
    """

    def __init__(self, group_id: str, held: Held) -> None:
        self.group_id = group_id
        self.stored_epoch: GroupEpoch | None = None
        self.stored_target_epoch: TargetEpoch | None = None
        self.members: dict[str, Subscription] = {}
        self.targets: dict[str, Partitions] = {}
        self.currents: dict[str, CurrentAssignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.static_members: dict[str, str] = {}
        """Instance id → member id."""
        self.names: Counter[str] = Counter()
        """How many members subscribe to a topic by name."""
        self.patterns: Counter[str] = Counter()
        """How many members subscribe by an expression."""
        self.classic_count = 0
        self.classic_protocols: Counter[str] = Counter()
        """How many members speak the classic protocol, and how many of them support a protocol of theirs."""
        self.subscribed_version = 0
        """Rises whenever names, or what expressions match, may be others; not stored."""
        self.hashed: tuple[int, int, int] | None = None
        """The hash of its topics, behind the version of the metadata and its own that it is of; not stored."""
        self.checked_version = -1
        """Of the metadata, when what members subscribe to was last compared with them; not stored."""
        self.resolved_version = -1
        self.resolved_ms = 0
        """By which metadata, and when, its expressions were resolved last; not stored."""
        self.held_back: dict[str, ResolvedRegex] = {}
        self.lacks_part = False
        """Of what its expressions match, while it comes in parts: what waits for the last one, and whether there was no
        room for one of them; not stored.
        """
        self.size_bytes = 0
        self._held = held
        self._epochs: Counter[tuple[int, int]] = Counter()
        """How many members are in an epoch and a state, of those of whom that is stored."""
        self._owners: dict[TopicId, dict[int, str]] | None = None
        """Who has a partition, or has yet to give it back. None while it is loaded."""

    def finish_loading(self) -> None:
        """All its records have been replayed. What is of no member is left behind by nothing but a damaged log; it
        would own partitions for ever. RecordDamagedError where a partition is of two members.
        """
        for member_id in [*self.targets.keys() - self.members.keys()]:
            self._apply_target(member_id, None)
        for member_id in [*self.currents.keys() - self.members.keys()]:
            self._apply_current(member_id, None)
        self._owners = {}
        for member_id, current in self.currents.items():
            fault = self._own(member_id, current)
            if fault is not None:
                raise RecordDamagedError(fault)

    # What is stored

    @property
    def is_stored(self) -> bool:
        """Whether any record of it is left."""
        stored = (self.stored_epoch, self.stored_target_epoch, self.members, self.targets, self.currents, self.regexes)
        return any(each for each in stored)

    @property
    def epoch(self) -> int:
        """Of the group."""
        return FIRST_EPOCH if self.stored_epoch is None else self.stored_epoch.epoch

    @property
    def metadata_hash(self) -> int:
        """Of the topics that members subscribe to, when the epoch was last raised."""
        return 0 if self.stored_epoch is None else self.stored_epoch.metadata_hash

    @property
    def target_epoch(self) -> int:
        """The group epoch that the target assignment was made for."""
        return FIRST_EPOCH if self.stored_target_epoch is None else self.stored_target_epoch.epoch

    @property
    def assigned_ms(self) -> int:
        """When that was."""
        return 0 if self.stored_target_epoch is None else self.stored_target_epoch.timestamp_ms

    def apply(self, key: ConsumerKey, value: ConsumerValue | None) -> None:
        """A record was replayed, or is about to be written."""
        if key.key_type == GROUP_EPOCH_KEY:
            assert value is None or isinstance(value, GroupEpoch)
            self.stored_epoch = value
        elif key.key_type == MEMBER_KEY:
            assert value is None or isinstance(value, Subscription)
            self._apply_member(key.name, value)
        elif key.key_type == TARGET_EPOCH_KEY:
            assert value is None or isinstance(value, TargetEpoch)
            self.stored_target_epoch = value
        elif key.key_type == TARGET_KEY:
            assert value is None or isinstance(value, dict)
            self._apply_target(key.name, value)
        elif key.key_type == CURRENT_KEY:
            assert value is None or isinstance(value, CurrentAssignment)
            self._apply_current(key.name, value)
        else:
            assert key.key_type == REGEX_KEY, key
            assert value is None or isinstance(value, ResolvedRegex)
            self._apply_regex(key.name, value)

    def records(self) -> Iterator[Record]:
        """All that is stored of it."""
        if self.stored_epoch is not None:
            yield self._record(GROUP_EPOCH_KEY, self.stored_epoch)
        if self.stored_target_epoch is not None:
            yield self._record(TARGET_EPOCH_KEY, self.stored_target_epoch)
        by_type: tuple[tuple[int, Mapping[str, ConsumerValue]], ...] = (
            (MEMBER_KEY, self.members), (REGEX_KEY, self.regexes), (TARGET_KEY, self.targets),
            (CURRENT_KEY, self.currents),
        )  # fmt: skip
        for key_type, values in by_type:
            for name, value in values.items():
                yield self._record(key_type, value, name)

    def _record(self, key_type: int, value: ConsumerValue, name: str = "") -> Record:
        return consumer_record(ConsumerKey(key_type, self.group_id, name), value)

    def _apply_member(self, member_id: str, subscription: Subscription | None) -> None:
        old = self.members.pop(member_id, None)
        if old is not None:
            self._hold(-size_of_member(member_id, old))
            self._count(self.names, old.topic_names, -1)
            self._count(self.patterns, (old.topic_regex,) if old.topic_regex else (), -1)
            self._count_classic(old, -1)
            if old.instance_id is not None and self.static_members.get(old.instance_id) == member_id:
                del self.static_members[old.instance_id]
        if subscription is not None:
            self.members[member_id] = subscription
            self._hold(size_of_member(member_id, subscription))
            self._count(self.names, subscription.topic_names, 1)
            self._count(self.patterns, (subscription.topic_regex,) if subscription.topic_regex else (), 1)
            self._count_classic(subscription, 1)
            if subscription.instance_id is not None:
                self.static_members[subscription.instance_id] = member_id

    def _count(self, counted: Counter[str], names: tuple[str, ...], by: int) -> None:
        """Of `names` or `patterns`."""
        for name in names:
            before = counted[name]
            counted[name] = before + by
            if not before or before + by <= 0:
                self.subscribed_version += 1
            if before + by <= 0:
                del counted[name]

    def _count_classic(self, subscription: Subscription, by: int) -> None:
        if subscription.classic is None:
            return
        self.classic_count += by
        for name in {name for name, _metadata in subscription.classic.protocols}:
            self.classic_protocols[name] += by
            if not self.classic_protocols[name]:
                del self.classic_protocols[name]

    def _apply_target(self, member_id: str, target: Partitions | None) -> None:
        self._hold(-size_of_partitions(self.targets.pop(member_id, NO_PARTITIONS)))
        if target is not None:
            self.targets[member_id] = target
            self._hold(size_of_partitions(target))

    def _apply_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        old = self.currents.pop(member_id, None)
        if old is not None:
            self._hold(-size_of_current(old))
            self._disown(member_id, old)
            self._epochs[old.epoch, old.state] -= 1
            if not self._epochs[old.epoch, old.state]:
                del self._epochs[old.epoch, old.state]
        if current is not None:
            self.currents[member_id] = current
            self._epochs[current.epoch, current.state] += 1
            self._hold(size_of_current(current))
            fault = self._own(member_id, current)
            assert fault is None, fault

    def _apply_regex(self, pattern: str, resolved: ResolvedRegex | None) -> None:
        self.subscribed_version += 1
        old = self.regexes.pop(pattern, None)
        if old is not None:
            self._hold(-size_of_names(old.topics))
        if resolved is not None:
            self.regexes[pattern] = resolved
            self._hold(size_of_names(resolved.topics))

    # Rule: A partition of a consumer group has one owner: it is given to a member when none has it, or has yet to give
    # it back. Held by tests/coordinator/consumer (the model's property), and here by an assertion.
    def _own(self, member_id: str, current: CurrentAssignment) -> str | None:
        """Why it cannot be: somebody has a partition already."""
        if self._owners is None:
            return None
        for held in (current.assigned, current.pending_revocation):
            for topic_id, partitions in held.items():
                owners = self._owners.setdefault(topic_id, {})
                for partition in partitions:
                    if partition in owners:
                        both = f"member {owners[partition]!r} and of member {member_id!r}"
                        return f"group {self.group_id!r}: partition {partition} of topic {topic_id} is of {both}"
                    owners[partition] = member_id
        return None

    def _disown(self, member_id: str, current: CurrentAssignment) -> None:
        if self._owners is None:
            return
        for held in (current.assigned, current.pending_revocation):
            for topic_id, partitions in held.items():
                owners = self._owners.get(topic_id, {})
                for partition in partitions:
                    if owners.get(partition) == member_id:
                        del owners[partition]
                if not owners:
                    self._owners.pop(topic_id, None)

    # What follows

    def is_owned(self, topic_id: TopicId, partition: int) -> bool:
        """Whether a member has a partition, or has yet to give it back."""
        assert self._owners is not None, f"{self.group_id} is being loaded"
        return partition in self._owners.get(topic_id, {})

    def current_of(self, member_id: str) -> CurrentAssignment:
        return self.currents.get(member_id, NEW_MEMBER)

    def target_of(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NO_PARTITIONS)

    def subscribed_names(self, subscription: Subscription) -> frozenset[str]:
        """What a member subscribes to, by names and by its expression as far as that is resolved."""
        resolved = self.regexes.get(subscription.topic_regex or "")
        return frozenset(subscription.topic_names) | frozenset(() if resolved is None else resolved.topics)

    def all_subscribed_names(self) -> frozenset[str]:
        """What any member subscribes to."""
        names = set(self.names)
        for pattern in self.patterns:
            resolved = self.regexes.get(pattern)
            if resolved is not None:
                names.update(resolved.topics)
        return frozenset(names)

    def is_settled(self, member_id: str) -> bool:
        """Whether a member has come to its target."""
        current = self.current_of(member_id)
        return current.epoch == self.target_epoch and current.state == MemberState.STABLE

    def waits_for_others(self, member_id: str) -> bool:
        """Whether a member is to have partitions that others have not given back yet."""
        assigned = self.current_of(member_id).assigned
        return any(
            partition not in assigned.get(topic_id, {}) and self.is_owned(topic_id, partition)
            for topic_id, partitions in self.target_of(member_id).items()
            for partition in partitions
        )

    def supports_classic(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Whether a member of the classic protocol fits in: one of its protocols is of all the others, too."""
        is_common = any(self.classic_protocols[name] == self.classic_count for name in protocols)
        return protocol_type == CONSUMER_PROTOCOL_TYPE and is_common

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerState.ASSIGNING
        if self._epochs[self.target_epoch, MemberState.STABLE] == len(self.members):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    def preferred_assignor(self, known: tuple[str, ...]) -> str:
        """The one that most members ask for, of those that are known; the first known where nobody asks."""
        votes = Counter(member.assignor for member in self.members.values() if member.assignor in known)
        best = max(votes.values(), default=0)
        return min((name for name in known if votes[name] == best and best), key=known.index, default=known[0])

    def move_to(self, held: Held) -> None:
        """It is among these groups from now on."""
        held.size_bytes += self.size_bytes
        self._held = held

    def _hold(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self._held.size_bytes += size_bytes
        assert self.size_bytes >= 0, self.group_id


def size_of_names(names: tuple[str, ...]) -> int:
    """What it takes to remember them, about."""
    return sum(map(len, names)) + NAME_BYTES * len(names)


def size_of_member(member_id: str, subscription: Subscription) -> int:
    """What it takes to remember a member, about, but for its assignments, which have the id once more each."""
    classic = () if subscription.classic is None else subscription.classic.protocols
    texts = (
        3 * member_id,
        subscription.client_id,
        subscription.client_host,
        subscription.topic_regex or "",
        subscription.instance_id or "",
        subscription.rack_id or "",
    )
    return (
        GROUP_MEMBER_BYTES
        + sum(map(len, texts))
        + size_of_names(subscription.topic_names)
        + sum(len(name) + len(metadata) + NAME_BYTES for name, metadata in classic)
    )


def size_of_partitions(partitions: Mapping[TopicId, frozenset[int] | dict[int, int]]) -> int:
    """What it takes to remember them, about."""
    return PARTITION_BYTES * sum(map(len, partitions.values()))


def size_of_current(current: CurrentAssignment) -> int:
    """What it takes to remember what a member has, about."""
    return size_of_partitions(current.assigned) + size_of_partitions(current.pending_revocation)
