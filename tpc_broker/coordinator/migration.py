"""Groups that become of the other kind while their members work: `Migration`.

Up: the first heartbeat of KIP-848 that joins a classic group of consumers makes it a consumer group. Its members stay,
with what they have, in an epoch that is the group's generation; whoever of them waits is told to join again. From then
on they are looked after by `consumer.classic_members`, and the coordinator divides the partitions.

Down: when the last member of KIP-848 goes, or is replaced by one of the classic protocol, and there are others, the
group is a classic one again: its generation is the epoch it had, each member keeps what it has, and a rebalance begins.

Without members there is nothing to hand on: the group is of the kind of who comes next. Offsets stay in any case.

Both directions run ahead of the disk, and are one write: the tombstones of the one kind and the records of the other. A
group that does not fit into one stays what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.coordinator.consumer.client_protocol import (
    by_id,
    read_assignment,
    read_subscription,
    version_of,
    written_assignment,
)
from tpc_broker.coordinator.consumer.group import (
    FIRST_EPOCH,
    ConsumerGroup,
    MemberState,
    partitions_of,
    size_of_current,
    size_of_member,
    size_of_partitions,
)
from tpc_broker.coordinator.consumer.groups import tombstones_of
from tpc_broker.coordinator.consumer.heartbeats import ConsumerMembership, Refusal, Upgrade
from tpc_broker.coordinator.consumer.records import (
    CURRENT_KEY,
    GROUP_EPOCH_KEY,
    MEMBER_KEY,
    TARGET_EPOCH_KEY,
    TARGET_KEY,
    ClassicPart,
    ConsumerKey,
    CurrentAssignment,
    GroupEpoch,
    Subscription,
    TargetEpoch,
    consumer_record,
)
from tpc_broker.coordinator.driven import RecordDamagedError
from tpc_broker.coordinator.effects import size_of
from tpc_broker.coordinator.group import CONSUMER_PROTOCOL_TYPE, Group, GroupState, Held, Member
from tpc_broker.coordinator.records import group_record
from tpc_broker.error_codes import ErrorCode
from tpc_broker.limits import GROUP_BYTES_MAX, GROUP_MEMBER_BYTES, OWN_BATCH_BYTES_MAX, OWN_RECORD_OVERHEAD_BYTES
from tpc_broker.model import GenerationId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from tpc_broker.coordinator.assignors.spec import Partitions
    from tpc_broker.coordinator.consumer.ahead import Ahead
    from tpc_broker.coordinator.consumer.client_protocol import ClientSubscription
    from tpc_broker.coordinator.consumer.messages import ConsumerSettings, Topics
    from tpc_broker.coordinator.consumer.records import ConsumerValue, EpochPartitions
    from tpc_broker.coordinator.consumer.step import Step
    from tpc_broker.coordinator.effects import Effects, Record
    from tpc_broker.coordinator.membership import GroupLimits, Membership
    from tpc_broker.model import TopicId


Values = list[tuple[ConsumerKey, "ConsumerValue"]]
STORED_BESIDE_BYTES: Final = 2 * OWN_RECORD_OVERHEAD_BYTES
"""At most, of a record beside what has a length of its own."""


class Migration:
    """Of one coordinator, with whom it shares `groups`, the classic ones. `end` takes a classic group out of life, and
    answers whoever waits in it; `replay` applies a record; `bytes_left`: for members of any group.
    """

    def __init__(
        self,
        groups: dict[str, Group],
        membership: Membership,
        consumers: ConsumerMembership,
        ahead: Ahead,
        limits: GroupLimits,
        settings_of: Callable[[str], ConsumerSettings],
        topics: Topics,
        held: Held,
        bytes_left: Callable[[], int],
        end: Callable[[Group, int, Effects, ErrorCode], None],
        replay: Callable[[bytes, bytes | None], None],
    ) -> None:
        self._groups = groups
        self._membership = membership
        self._consumers = consumers
        self._ahead = ahead
        self._limits = limits
        self._settings_of = settings_of
        self._topics = topics
        self._held = held
        self._bytes_left = bytes_left
        self._end = end
        self._replay = replay

    # Up

    def upgraded(self, group_id: str) -> Upgrade | None:
        """What a classic group becomes; None where there is none, `Refusal` where it stays what it is. No write of its
        record is under way.
        """
        classic = self._groups.get(group_id)
        if classic is None:
            return None
        values: Values = []
        group = ConsumerGroup(group_id, Held())
        group.finish_loading()
        if classic.state is not GroupState.EMPTY:
            self._check_upgrade(classic)
            try:
                values = self._values_of(group, classic)
            except RecordDamagedError:
                raise _refusal(group_id, "the embedded consumer protocol is malformed") from None

        def carry_out(step: Step, now_ms: int, effects: Effects) -> None:
            tombstone = group_record(group_id, None)
            step.records += [tombstone, *(consumer_record(key, value) for key, value in values)]
            assert sum(map(size_of, step.records)) <= OWN_BATCH_BYTES_MAX, group_id
            self._end(classic, now_ms, effects, ErrorCode.REBALANCE_IN_PROGRESS)
            self._replay(tombstone.key, tombstone.value)
            group.move_to(self._held)
            self._consumers.begin_sessions(group, now_ms)

        return Upgrade(group, carry_out)

    def _check_upgrade(self, classic: Group) -> None:
        settings = self._settings_of(classic.group_id)
        if not settings.may_upgrade:
            raise _refusal(classic.group_id, "online upgrade is disabled")
        if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise _refusal(classic.group_id, "the group does not use the consumer embedded protocol")
        if len(classic.members) > settings.size_max:
            raise _refusal(classic.group_id, "the group size exceeds the consumer group maximum size")

    # Rule: A classic group is refused before it is converted: each client that is refused comes again, and a conversion
    # takes as long as the group is large. Held by tests/coordinator/consumer/test_migration_up.py.
    def _values_of(self, group: ConsumerGroup, classic: Group) -> Values:
        """What is to be stored of the members as they are in the last round, which `group` has now. RecordDamagedError
        when one of them cannot be read.
        """
        if classic.size_bytes - GROUP_MEMBER_BYTES * len(classic.members) > OWN_BATCH_BYTES_MAX:
            raise _refusal(classic.group_id, "it is too large to do so at once")
        # A group whose first round has not ended has told nobody of a generation.
        epoch = max(classic.generation_id, FIRST_EPOCH)
        targets = self._targets_of(classic)
        said = {
            member.member_id: read_subscription(member.metadata_for(classic.protocol) or member.protocols[0][1])
            for member in classic.members.values()
        }
        owned = {member_id: by_id(each.owned, self._topics) for member_id, each in said.items()}
        members = {each.member_id: _subscription(each, said[each.member_id]) for each in classic.members.values()}
        currents = {
            member_id: CurrentAssignment(epoch, epoch, MemberState.STABLE, _all_since(epoch, held), {})
            for member_id, held in _held(targets, owned).items()
        }
        self._check_sizes(classic, members, targets, currents)
        values: Values = []

        def put(key_type: int, of_names: Mapping[str, ConsumerValue]) -> None:
            for name, value in of_names.items():
                key = ConsumerKey(key_type, classic.group_id, name)
                group.apply(key, value)
                values.append((key, value))

        put(MEMBER_KEY, members)
        put(GROUP_EPOCH_KEY, {"": GroupEpoch(epoch, self._consumers.subscribed.hash_of(group))})
        put(TARGET_KEY, targets)
        put(TARGET_EPOCH_KEY, {"": TargetEpoch(epoch)})
        put(CURRENT_KEY, currents)
        return values

    def _check_sizes(
        self,
        classic: Group,
        members: Mapping[str, Subscription],
        targets: Mapping[str, Partitions],
        currents: Mapping[str, CurrentAssignment],
    ) -> None:
        of_group = 3  # records: two epochs, and the tombstone of the classic group
        size_bytes, stored_bytes = 0, of_group * (len(classic.group_id.encode()) + STORED_BESIDE_BYTES)
        for member_id, member in members.items():
            size_bytes += size_of_member(member_id, member)
            size_bytes += size_of_partitions(targets[member_id]) + size_of_current(currents[member_id])
            stored_bytes += _stored_bytes(classic.group_id, classic.members[member_id], member)
            stored_bytes += _stored_bytes_of(targets[member_id]) + _stored_bytes_of(currents[member_id].assigned)
        if stored_bytes > OWN_BATCH_BYTES_MAX or size_bytes > GROUP_BYTES_MAX:
            raise _refusal(classic.group_id, "it is too large to do so at once")
        if size_bytes - classic.size_bytes > self._bytes_left():
            text = "The groups of this coordinator have no memory left."
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)

    def _targets_of(self, classic: Group) -> dict[str, Partitions]:
        """What each member was given. A leader may give anything to anybody: a group in which two members have a
        partition cannot be one where that must not happen.
        """
        targets: dict[str, Partitions] = {}
        taken: dict[TopicId, set[int]] = {}
        for member in classic.members.values():
            assignment = read_assignment(member.assignment)
            target = by_id(assignment.partitions, self._topics)
            are_free = all(taken.get(topic_id, set()).isdisjoint(indexes) for topic_id, indexes in target.items())
            if assignment.user_data or not are_free:
                raise _refusal(classic.group_id, "an unsupported custom assignor is in use")
            for topic_id, indexes in target.items():
                taken.setdefault(topic_id, set()).update(indexes)
            targets[member.member_id] = target
        return targets

    # Down

    def downgrade(self, group: ConsumerGroup, leaving: Collection[str], now_ms: int, effects: Effects) -> bool:
        """Whether a group is a classic one from now on, without these members."""
        gone = set(leaving)
        are_classic = sum(group.members[member_id].classic is not None for member_id in gone)
        size = len(group.members) - len(gone)
        if group.classic_count - are_classic != size or not self._may_downgrade(group, size):
            return False
        classic = self._classic_of(group, (each for each in group.members if each not in gone), now_ms)
        return classic is not None and self._begin_classic(classic, group, (), now_ms, effects, is_divided=False)

    def may_downgrade_for(self, group: ConsumerGroup, member_id: str) -> bool:
        """Whether a group is to be a classic one once this member has been replaced by one of the classic protocol."""
        is_last = group.classic_count == len(group.members) - 1 and group.members[member_id].classic is None
        return is_last and self._may_downgrade(group, len(group.members))

    def downgrade_for(self, step: Step, now_ms: int, effects: Effects, *, is_divided: bool) -> Group | None:
        """The classic group that it is after this step. `is_divided`: what its members have is what they are to have;
        otherwise it is divided anew.
        """
        group = step.group
        classic = self._classic_of(group, group.members, now_ms)
        if classic is None:
            return None
        done = self._begin_classic(classic, group, step.records, now_ms, effects, is_divided=is_divided)
        return classic if done else None

    def _may_downgrade(self, group: ConsumerGroup, size: int) -> bool:
        settings = self._settings_of(group.group_id)
        return settings.may_downgrade and 0 < size <= self._limits.group_size_max

    def _classic_of(self, group: ConsumerGroup, member_ids: Iterable[str], now_ms: int) -> Group | None:
        """A stable classic group of these members, each with what it has; None where that cannot be."""
        classic = Group(
            group.group_id,
            state=GroupState.STABLE,
            state_timestamp_ms=now_ms,
            generation_id=GenerationId(group.epoch),
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            held=self._held,
        )
        for member_id in member_ids:
            member = _classic_member(member_id, group.members[member_id])
            classic.add(member)
        classic.protocol = classic.select_protocol()
        try:
            for member in classic.members.values():
                version = version_of(member.metadata_for(classic.protocol))
                assigned = partitions_of(group.current_of(member.member_id).assigned)
                classic.assign(member, written_assignment(assigned, self._topics, version))
        except RecordDamagedError:
            classic.let_go()
            return None
        return classic

    def _begin_classic(
        self,
        classic: Group,
        group: ConsumerGroup,
        applied: Sequence[Record],
        now_ms: int,
        effects: Effects,
        *,
        is_divided: bool,
    ) -> bool:
        """Whether its records fit into one write."""
        assignments = {member.member_id: member.assignment for member in classic.members.values()}
        records = [*tombstones_of(group), group_record(group.group_id, classic.metadata(assignments))]
        if sum(map(size_of, [*applied, *records])) > OWN_BATCH_BYTES_MAX:
            classic.let_go()
            return False
        self._consumers.dissolve(group)
        self._ahead.decide(group.group_id, records, effects, applied)
        self._groups[group.group_id] = classic
        self._membership.begin_sessions(classic, now_ms, effects)
        if not is_divided:
            self._membership.prepare_rebalance(classic, now_ms, effects)
        return True

    # Without members

    def emptied(self, group: ConsumerGroup, now_ms: int, effects: Effects) -> None:
        """A consumer group without members becomes a classic one of which nothing is known."""
        classic = Group(group.group_id, state_timestamp_ms=now_ms, held=self._held)
        self._consumers.dissolve(group)
        records = [*tombstones_of(group), group_record(group.group_id, classic.metadata({}))]
        self._ahead.decide(group.group_id, records, effects)
        self._groups[group.group_id] = classic


def _refusal(group_id: str, why: str) -> Refusal:
    text = f"Cannot upgrade classic group {group_id} to consumer group because {why}."
    return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, text)


# Rule: What a member said that it has when it joined last is its own until it joins again, whatever it was given since:
# it may not have heard of that, and so not have given anything back. Held by
# tests/coordinator/consumer/test_migration_up.py.
def _held(targets: Mapping[str, Partitions], owned: Mapping[str, Partitions]) -> dict[str, Partitions]:
    """What members have: what they were given, and what they said that they have and nobody else was given."""
    taken: dict[TopicId, set[int]] = {}
    for target in targets.values():
        for topic_id, indexes in target.items():
            taken.setdefault(topic_id, set()).update(indexes)
    held: dict[str, Partitions] = {}
    for member_id, target in targets.items():
        mine = dict(target)
        for topic_id, indexes in owned[member_id].items():
            of_topic = taken.setdefault(topic_id, set())
            kept = indexes - of_topic
            if kept:
                of_topic |= kept
                mine[topic_id] = mine.get(topic_id, frozenset()) | kept
        held[member_id] = mine
    return held


def _all_since(epoch: int, held: Partitions) -> EpochPartitions:
    return {topic_id: dict.fromkeys(partitions, epoch) for topic_id, partitions in held.items()}


def _stored_bytes(group_id: str, member: Member, said: Subscription) -> int:
    """At most, of the three records of a member but for its partitions. A character has four bytes at most."""
    names_bytes = len(group_id.encode()) + len(member.member_id.encode())
    texts = (member.group_instance_id or "", said.rack_id or "", member.client_id, member.client_host)
    of_protocols = sum(4 * len(name) + len(metadata) + 16 for name, metadata in member.protocols)
    of_topics = sum(len(name.encode()) + 8 for name in said.topic_names)
    of_texts = sum(len(text.encode()) for text in texts)
    return 3 * (names_bytes + STORED_BESIDE_BYTES) + of_texts + of_protocols + of_topics


def _stored_bytes_of(partitions: Mapping[TopicId, Collection[int]]) -> int:
    return sum(32 + 8 * len(indexes) for indexes in partitions.values())


def _subscription(member: Member, said: ClientSubscription) -> Subscription:
    return Subscription(
        member.group_instance_id,
        said.rack_id,
        member.client_id,
        member.client_host,
        said.topic_names,
        "",
        member.rebalance_timeout_ms,
        None,
        ClassicPart(member.session_timeout_ms, member.protocols),
    )


def _classic_member(member_id: str, member: Subscription) -> Member:
    assert member.classic is not None, member_id
    return Member(
        member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        member.classic.protocols,
    )
