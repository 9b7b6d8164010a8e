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

from typing import TYPE_CHECKING

from tpc_broker.coordinator.consumer.client_protocol import (
    by_id,
    read_assignment,
    read_subscription,
    version_of,
    written_assignment,
)
from tpc_broker.coordinator.consumer.group import FIRST_EPOCH, ConsumerGroup, MemberState, partitions_of
from tpc_broker.coordinator.consumer.groups import tombstones_of
from tpc_broker.coordinator.consumer.heartbeats import ConsumerMembership, Refusal, Upgrade
from tpc_broker.coordinator.consumer.records import (
    CURRENT_KEY,
    GROUP_EPOCH_KEY,
    MEMBER_KEY,
    TARGET_EPOCH_KEY,
    TARGET_KEY,
    ClassicPart,
    CurrentAssignment,
    GroupEpoch,
    Subscription,
    TargetEpoch,
)
from tpc_broker.coordinator.consumer.step import Step
from tpc_broker.coordinator.driven import RecordDamagedError
from tpc_broker.coordinator.effects import size_of
from tpc_broker.coordinator.group import CONSUMER_PROTOCOL_TYPE, Group, GroupState, Held, Member
from tpc_broker.coordinator.records import group_record
from tpc_broker.error_codes import ErrorCode
from tpc_broker.limits import GROUP_BYTES_MAX, GROUP_MEMBER_BYTES, OWN_BATCH_BYTES_MAX
from tpc_broker.model import GenerationId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from tpc_broker.coordinator.assignors.spec import Partitions
    from tpc_broker.coordinator.consumer.ahead import Ahead
    from tpc_broker.coordinator.consumer.client_protocol import ClientSubscription
    from tpc_broker.coordinator.consumer.messages import ConsumerSettings, Topics
    from tpc_broker.coordinator.effects import Effects, Record
    from tpc_broker.coordinator.membership import GroupLimits, Membership
    from tpc_broker.model import TopicId


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
        group = ConsumerGroup(group_id, Held())
        group.finish_loading()
        tombstone = group_record(group_id, None)
        step = Step(group)
        if classic.state is not GroupState.EMPTY:
            self._check_upgrade(classic)
            try:
                self._fill(step, classic)
            except RecordDamagedError:
                raise _refusal(group_id, "the embedded consumer protocol is malformed") from None
        records = [tombstone, *step.records]
        if sum(map(size_of, records)) > OWN_BATCH_BYTES_MAX or group.size_bytes > GROUP_BYTES_MAX:
            raise _refusal(group_id, "it is too large to do so at once")
        if group.size_bytes - classic.size_bytes > self._bytes_left():
            text = "The groups of this coordinator have no memory left."
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)

        def carry_out(now_ms: int, effects: Effects) -> None:
            self._end(classic, now_ms, effects, ErrorCode.REBALANCE_IN_PROGRESS)
            self._replay(tombstone.key, tombstone.value)
            group.move_to(self._held)
            self._consumers.begin_sessions(group, now_ms)

        return Upgrade(group, records, carry_out)

    def _check_upgrade(self, classic: Group) -> None:
        settings = self._settings_of(classic.group_id)
        if not settings.may_upgrade:
            raise _refusal(classic.group_id, "online upgrade is disabled")
        if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise _refusal(classic.group_id, "the group does not use the consumer embedded protocol")
        if len(classic.members) > settings.size_max:
            raise _refusal(classic.group_id, "the group size exceeds the consumer group maximum size")

    def _fill(self, step: Step, classic: Group) -> None:
        """The members as they are in the last round; RecordDamagedError when one cannot be read."""
        if classic.size_bytes - GROUP_MEMBER_BYTES * len(classic.members) > OWN_BATCH_BYTES_MAX:
            raise _refusal(classic.group_id, "it is too large to do so at once")
        # A group whose first round has not ended has told nobody of a generation.
        epoch = max(classic.generation_id, FIRST_EPOCH)
        targets = self._targets_of(classic)
        owned: dict[str, Partitions] = {}
        for member in classic.members.values():
            said = read_subscription(member.metadata_for(classic.protocol) or member.protocols[0][1])
            owned[member.member_id] = by_id(said.owned, self._topics)
            step.put(MEMBER_KEY, _subscription(member, said), member.member_id)
        step.put(GROUP_EPOCH_KEY, GroupEpoch(epoch, self._consumers.subscribed.hash_of(step.group)))
        for member_id, target in targets.items():
            step.put(TARGET_KEY, target, member_id)
        step.put(TARGET_EPOCH_KEY, TargetEpoch(epoch))
        for member_id, held in _held(targets, owned).items():
            assigned = {topic_id: dict.fromkeys(partitions, epoch) for topic_id, partitions in held.items()}
            step.put(CURRENT_KEY, CurrentAssignment(epoch, epoch, MemberState.STABLE, assigned, {}), member_id)

    def _targets_of(self, classic: Group) -> dict[str, Partitions]:
        """What each member was given. A leader may give anything to anybody: a group in which two members have a
        partition cannot be one where that must not happen.
        """
        targets: dict[str, Partitions] = {}
        taken: set[tuple[TopicId, int]] = set()
        for member in classic.members.values():
            assignment = read_assignment(member.assignment)
            target = by_id(assignment.partitions, self._topics)
            pairs = _pairs(target)
            if assignment.user_data or not taken.isdisjoint(pairs):
                raise _refusal(classic.group_id, "an unsupported custom assignor is in use")
            taken |= pairs
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
    taken = {pair for target in targets.values() for pair in _pairs(target)}
    held: dict[str, Partitions] = {}
    for member_id, target in targets.items():
        kept = _pairs(owned[member_id]) - taken
        taken |= kept
        mine = {topic_id: set(partitions) for topic_id, partitions in target.items()}
        for topic_id, partition in kept:
            mine.setdefault(topic_id, set()).add(partition)
        held[member_id] = {topic_id: frozenset(partitions) for topic_id, partitions in mine.items()}
    return held


def _pairs(partitions: Partitions) -> set[tuple[TopicId, int]]:
    return {(topic_id, partition) for topic_id, indexes in partitions.items() for partition in indexes}


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
