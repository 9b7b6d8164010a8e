"""Who is in a consumer group, and what each member has: `ConsumerMembership`.

A heartbeat is all there is: a member joins with epoch 0, comes to its part of the target step by step, and leaves with
epoch -1 (or -2, a static member that will be back). Deadlines are of two kinds, by key:

* `consumer session`: no heartbeat for the session time-out: the member is out;
* `consumer rebalance`: it has not given back what it was told to, in the time that it asked for: it is out, too.

Members of the classic protocol (`classic_members`) have two others, of their own rebalance time-out: `consumer join`,
until they join again when they were told to, and `consumer sync`, until they ask for what they have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from tpc_broker.coordinator.consumer.assigning import Assigning
from tpc_broker.coordinator.consumer.group import ConsumerGroup, MemberState, partitions_of, size_of_subscription
from tpc_broker.coordinator.consumer.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeatResponse,
)
from tpc_broker.coordinator.consumer.reconcile import Target, reconciled
from tpc_broker.coordinator.consumer.records import (
    CURRENT_KEY,
    MEMBER_KEY,
    TARGET_KEY,
    ConsumerKey,
    CurrentAssignment,
    Subscription,
    consumer_record,
)
from tpc_broker.coordinator.consumer.step import Step
from tpc_broker.coordinator.consumer.subscribed import PATTERNS_MAX, SubscribedTopics
from tpc_broker.coordinator.effects import size_of
from tpc_broker.error_codes import ErrorCode
from tpc_broker.limits import GROUP_BYTES_MAX, OWN_BATCH_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from tpc_broker.coordinator.assignors.spec import Assignor, Partitions
    from tpc_broker.coordinator.consumer.ahead import Ahead
    from tpc_broker.coordinator.consumer.messages import ConsumerHeartbeat, ConsumerSettings, Topics
    from tpc_broker.coordinator.consumer.records import EpochPartitions
    from tpc_broker.coordinator.effects import Effects, Record, Timers, Token
    from tpc_broker.coordinator.group import Held

SESSION: Final = "consumer session"
REBALANCE: Final = "consumer rebalance"
CLASSIC_JOIN: Final = "consumer join"
CLASSIC_SYNC: Final = "consumer sync"
DEADLINES: Final = (SESSION, REBALANCE, CLASSIC_JOIN, CLASSIC_SYNC)
SOON_MS: Final = 500
SOON_MS_A_MEMBER: Final = 2
"""Between the heartbeats of a member while its group changes: at most 500 a second of a whole group."""
MEMBER_RECORD_BYTES_MAX: Final = OWN_BATCH_BYTES_MAX // 2
"""Of what is stored of a member's subscription: a record that no batch takes would cost all groups of the machine."""
NO_ROOM_RETRY_MS: Final = 1_000
"""A deadline that finds the disk far behind."""


class Refusal(Exception):  # noqa: N818 - an expected result inside the coordinator, which makes it a response
    """A request is refused, and nothing has changed."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code.name, message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A classic group as the consumer group that it becomes with its first member, and the records of that, which are
    applied to it. Nothing has changed before `carry_out`.
    """

    group: ConsumerGroup
    records: list[Record]
    carry_out: Callable[[int, Effects], None]


class Kinds(Protocol):
    """How groups become of another kind."""

    def upgraded(self, group_id: str) -> Upgrade | None:
        """What a classic group becomes; None where there is none, `Refusal` where it stays what it is."""
        ...

    def downgrade(self, group: ConsumerGroup, leaving: Collection[str], now_ms: int, effects: Effects) -> bool:
        """Whether a group is a classic one from now on, without these members."""
        ...


class ConsumerMembership:
    """Shares `groups` with the coordinator. `bytes_left`: for members of any group, as far as all groups of the core
    leave it.
    """

    def __init__(
        self,
        groups: dict[str, ConsumerGroup],
        timers: Timers,
        ahead: Ahead,
        settings_of: Callable[[str], ConsumerSettings],
        topics: Topics,
        assignors: Mapping[str, Assignor],
        held: Held,
        bytes_left: Callable[[], int],
    ) -> None:
        self._groups = groups
        self._timers = timers
        self._ahead = ahead
        self._settings_of = settings_of
        self._topics = topics
        self._held = held
        self._bytes_left = bytes_left
        self.assigning = Assigning(groups, ahead, settings_of, topics, assignors)
        self.subscribed = SubscribedTopics(groups, ahead, settings_of, topics, bytes_left)
        self.kinds: Kinds
        """Set before the first request: it needs this itself."""
        self.has_room = ahead.has_room

    # Heartbeats

    def heartbeat(
        self, request: ConsumerHeartbeat, token: Token, now_ms: int, unique: str, effects: Effects
    ) -> None:
        """ConsumerGroupHeartbeat, of which the form has been looked at. `unique` is a fresh id for a member that has
        none.
        """
        try:
            if not self._ahead.has_room():
                raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The disk of the coordinator is far behind.")
            if request.member_epoch in {LEAVE_EPOCH, STATIC_LEAVE_EPOCH}:
                response = self._leave(request, now_ms, effects)
            else:
                response = self._beat(request, now_ms, unique, effects)
        except Refusal as refusal:
            response = ConsumerHeartbeatResponse(error_code=refusal.code, error_message=refusal.message)
        self._ahead.answer(
            request.group_id,
            effects,
            now_ms,
            lambda later, _now_ms: later.reply(token, response),
            lambda later, error, _now_ms: later.reply(token, ConsumerHeartbeatResponse(error_code=error)),
        )

    def _beat(
        self, request: ConsumerHeartbeat, now_ms: int, unique: str, effects: Effects
    ) -> ConsumerHeartbeatResponse:
        is_join = request.member_epoch == JOIN_EPOCH
        group, upgrade = self._groups.get(request.group_id), None
        if group is None:
            if not is_join:
                raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no consumer group {request.group_id}.")
            upgrade = self.kinds.upgraded(request.group_id)
            group = ConsumerGroup(request.group_id, self._held) if upgrade is None else upgrade.group
            if upgrade is None:
                group.finish_loading()
        member_id = request.member_id or unique
        settings = self._settings_of(request.group_id)
        replaced = _place_of(group, request, member_id)
        before = group.members.get(member_id if replaced is None else replaced)
        subscription = _subscription(request, before)
        if before is None and len(group.members) >= settings.size_max:
            text = f"The consumer group has reached its maximum capacity of {settings.size_max} members."
            raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        self.check_bytes(group, before, subscription)
        _check_expression(group, before, subscription)

        self._groups[group.group_id] = group
        step = Step(group)
        if upgrade is not None:
            step.records.extend(upgrade.records)
            upgrade.carry_out(now_ms, effects)
        if replaced is not None:
            self.replace(step, replaced, member_id)
        self.subscribed.change(step, member_id, subscription, now_ms)
        self.assigning.begin_if_due(step, now_ms)
        had = group.current_of(member_id)
        has = self.reconcile(step, member_id, request.owned, now_ms, is_changed=subscription != before)
        self._timers.set((SESSION, group.group_id, member_id), now_ms + settings.session_timeout_ms)
        for kind in (CLASSIC_JOIN, CLASSIC_SYNC):
            self._timers.cancel((kind, group.group_id, member_id))
        self._ahead.write(group.group_id, step.records, effects)
        is_told = is_join or _is_full(request)
        if not is_told and has is not had:
            is_told = partitions_of(has.assigned) != partitions_of(had.assigned)
        return ConsumerHeartbeatResponse(
            member_id=member_id,
            member_epoch=has.epoch,
            heartbeat_interval_ms=_interval_ms(group, settings, now_ms),
            assignment=partitions_of(has.assigned) if is_told else None,
        )

    def check_bytes(self, group: ConsumerGroup, before: Subscription | None, after: Subscription) -> None:
        """Whether there is room for what a member says, in the group and among all groups: there until others go."""
        if after is before:
            return
        size = size_of_subscription(after)
        # Of a record most is text: a character has four bytes at most.
        if 4 * size > MEMBER_RECORD_BYTES_MAX and _record_bytes(group, after) > MEMBER_RECORD_BYTES_MAX:
            text = f"What a member says has {MEMBER_RECORD_BYTES_MAX} bytes when it is stored."
            raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        growth = size - (0 if before is None else size_of_subscription(before))
        if growth <= 0:
            return
        if group.size_bytes + growth > GROUP_BYTES_MAX:
            raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, f"The members of a group have {GROUP_BYTES_MAX} bytes.")
        if growth > self._bytes_left():
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The groups of this coordinator have no memory left.")

    def replace(self, step: Step, old_id: str, member_id: str) -> None:
        """A static member is back, under this id: it takes what was kept for it. Where the id was another member's,
        that one is gone, and what it had is to be divided.
        """
        group = step.group
        if member_id != old_id and member_id in group.members:
            self._remove(step, [member_id])
        subscription, target, current = group.members[old_id], group.target_of(old_id), group.current_of(old_id)
        self._forget_timers(group, old_id)
        step.remove_member(old_id)
        self.assigning.replaced(group.group_id, old_id, member_id)
        step.put(MEMBER_KEY, subscription, member_id)
        step.put(TARGET_KEY, target, member_id)
        kept = CurrentAssignment(JOIN_EPOCH, 0, current.state, current.assigned, current.pending_revocation)
        step.put(CURRENT_KEY, kept, member_id)
        if 4 * sum(map(size_of, step.records)) > OWN_BATCH_BYTES_MAX:  # with what follows it may take several batches
            step.raise_epoch(self.subscribed.hash_of(group))

    def reconcile(
        self, step: Step, member_id: str, owned: Partitions | None, now_ms: int, *, is_changed: bool
    ) -> CurrentAssignment:
        """Brings a member a step nearer to its part of the target. `owned`: what it says that it has."""
        group = step.group
        current = group.current_of(member_id)
        if group.is_settled(member_id) and not is_changed:
            return current
        target = Target(group.target_epoch, group.target_of(member_id))
        if self.assigning.is_target_mixed(group.group_id):
            # It may say what it gave back, and come to be in the epoch that there is, with what it has.
            if current.state == MemberState.UNRELEASED_PARTITIONS and not is_changed and current.epoch == target.epoch:
                return current
            target = Target(group.target_epoch, partitions_of(current.assigned))
        subscribed = self.subscribed.ids_of(group, member_id)
        after = reconciled(current, target, owned, group.is_owned, subscribed)
        if after is not current:
            step.put(CURRENT_KEY, after, member_id)
            key = (REBALANCE, group.group_id, member_id)
            if after.state == MemberState.UNREVOKED_PARTITIONS:
                self._timers.set(key, now_ms + group.members[member_id].rebalance_timeout_ms)
            else:
                self._timers.cancel(key)
        return after

    # Leaving

    def _leave(self, request: ConsumerHeartbeat, now_ms: int, effects: Effects) -> ConsumerHeartbeatResponse:
        group = self._groups.get(request.group_id)
        if group is None:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no consumer group {request.group_id}.")
        member_id = request.member_id
        if request.instance_id is not None:
            _check_instance(group, request.instance_id, member_id)
        if member_id not in group.members:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member of group {group.group_id}.")
        if request.member_epoch == STATIC_LEAVE_EPOCH and group.members[member_id].instance_id is not None:
            step = Step(group)
            current = group.current_of(member_id)
            kept = CurrentAssignment(STATIC_LEAVE_EPOCH, 0, current.state, _since_epoch_0(current.assigned), {})
            step.put(CURRENT_KEY, kept, member_id)
            self._timers.cancel((REBALANCE, group.group_id, member_id))
            self._ahead.write(group.group_id, step.records, effects)
        else:
            self.fence(group, [member_id], now_ms, effects)
        return ConsumerHeartbeatResponse(member_id=member_id, member_epoch=request.member_epoch)

    def fence(self, group: ConsumerGroup, member_ids: Collection[str], now_ms: int, effects: Effects) -> None:
        """These are members no more. The rest of the group is to be divided anew, by its members where all of them
        speak the classic protocol.
        """
        if self.kinds.downgrade(group, member_ids, now_ms, effects):
            return
        step = Step(group)
        self._remove(step, member_ids)
        self._ahead.write(group.group_id, step.records, effects)

    def _remove(self, step: Step, member_ids: Iterable[str]) -> None:
        for member_id in member_ids:
            pattern = step.group.members[member_id].topic_regex
            self._forget_timers(step.group, member_id)
            step.remove_member(member_id)
            self.subscribed.forget_unused(step, pattern)
        step.raise_epoch(self.subscribed.hash_of(step.group))

    # Deadlines

    def begin_sessions(self, group: ConsumerGroup, now_ms: int) -> None:
        """After loading: every member has one session's time to show itself, and its own to give back what it is to.
        Those of the classic protocol are told to join again by their first heartbeats, where they have to.
        """
        self.assigning.loaded(group)
        session_ms = self._settings_of(group.group_id).session_timeout_ms
        for member_id, member in group.members.items():
            own_ms = session_ms if member.classic is None else member.classic.session_timeout_ms
            self._timers.set((SESSION, group.group_id, member_id), now_ms + own_ms)
            # The state alone may be of a static member that is away.
            if member.classic is None and group.current_of(member_id).pending_revocation:
                self._timers.set((REBALANCE, group.group_id, member_id), now_ms + member.rebalance_timeout_ms)

    def on_deadline(self, kind: str, group: ConsumerGroup, member_id: str, now_ms: int, effects: Effects) -> None:
        """A member's session, or its time to do what it was told to, is over."""
        if member_id not in group.members:
            return
        if kind == REBALANCE and group.current_of(member_id).state != MemberState.UNREVOKED_PARTITIONS:
            return
        if not self._ahead.has_room():
            self._timers.set((kind, group.group_id, member_id), now_ms + NO_ROOM_RETRY_MS)
            return
        self.fence(group, [member_id], now_ms, effects)

    def dissolve(self, group: ConsumerGroup) -> None:
        """It is no longer ours: its deadlines, and what is being made for it, are forgotten."""
        self.assigning.forget(group.group_id)
        for member_id in group.members:
            self._forget_timers(group, member_id)

    def _forget_timers(self, group: ConsumerGroup, member_id: str) -> None:
        for kind in DEADLINES:
            self._timers.cancel((kind, group.group_id, member_id))


def _record_bytes(group: ConsumerGroup, subscription: Subscription) -> int:
    """Of the record of a member, but for its id, which is a short one."""
    return size_of(consumer_record(ConsumerKey(MEMBER_KEY, group.group_id, ""), subscription))


def _check_expression(group: ConsumerGroup, before: Subscription | None, after: Subscription) -> None:
    pattern = after.topic_regex
    is_new = pattern and (before is None or before.topic_regex != pattern) and pattern not in group.patterns
    if is_new and len(group.patterns) >= PATTERNS_MAX:
        text = f"The members of a group subscribe with {PATTERNS_MAX} regular expressions at most."
        raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, text)


def _interval_ms(group: ConsumerGroup, settings: ConsumerSettings, now_ms: int) -> int:
    """Until a member's next heartbeat. While a group changes its members come sooner, as often as the coordinator can
    bear: one gives back what others wait for, and each step of them is a heartbeat's.
    """
    usual_ms = settings.heartbeat_interval_ms
    is_settling = group.epoch > group.target_epoch or 0 <= now_ms - group.assigned_ms < 2 * usual_ms
    return min(usual_ms, max(SOON_MS, SOON_MS_A_MEMBER * len(group.members))) if is_settling else usual_ms


def _place_of(group: ConsumerGroup, request: ConsumerHeartbeat, member_id: str) -> str | None:
    """The static member whose place the sender takes, None where it has or gets its own; or a `Refusal`."""
    is_join = request.member_epoch == JOIN_EPOCH
    holder = None if request.instance_id is None else group.static_members.get(request.instance_id)
    if request.instance_id is not None and not is_join:
        _check_instance(group, request.instance_id, member_id)
    if holder is not None and is_join:
        is_classic = group.members[holder].classic is not None
        is_free = is_classic or group.current_of(holder).epoch == STATIC_LEAVE_EPOCH
        if holder != member_id and not is_free:
            text = f"Instance id {request.instance_id} is that of member {holder}, which has not left."
            raise Refusal(ErrorCode.UNRELEASED_INSTANCE_ID, text)
        if is_free:
            return holder
    if member_id in group.members:
        _check_epoch(request, group.current_of(member_id))
    elif not is_join:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member of group {group.group_id}.")
    return None


def _check_instance(group: ConsumerGroup, instance_id: str, member_id: str) -> None:
    holder = group.static_members.get(instance_id)
    if holder is None:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is of no member of the group.")
    if holder != member_id:
        raise Refusal(ErrorCode.FENCED_INSTANCE_ID, f"Instance id {instance_id} is that of member {holder}.")


def _check_epoch(request: ConsumerHeartbeat, current: CurrentAssignment) -> None:
    """A lower one is fine for a join, and of a member that did not hear of its newest: it sends the one before, and has
    no more than that gave it.
    """
    epoch = request.member_epoch
    if epoch in {current.epoch, JOIN_EPOCH}:
        return
    was_not_heard = epoch == current.previous_epoch and _has_no_more(request.owned, current.assigned)
    if epoch > current.epoch or not was_not_heard:
        text = f"The member's epoch {epoch} is not {current.epoch}, its own: it is to give up all and to join again."
        raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH, text)


def _has_no_more(owned: Partitions | None, assigned: EpochPartitions) -> bool:
    return owned is not None and all(
        partitions <= assigned.get(topic_id, {}).keys() for topic_id, partitions in owned.items()
    )


def _since_epoch_0(assigned: EpochPartitions) -> EpochPartitions:
    """What is kept for a static member, of whose epochs nothing is known to who comes for it."""
    return {topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in assigned.items()}


def _is_full(request: ConsumerHeartbeat) -> bool:
    """Whether it says all that a member says when it joins."""
    says_topics = request.topic_names is not None or request.topic_regex is not None
    return request.rebalance_timeout_ms != -1 and says_topics and request.owned is not None


def _says_nothing_new(request: ConsumerHeartbeat, before: Subscription) -> bool:
    """As most heartbeats do: its client is the same, and nothing is asked for."""
    return (
        request.topic_names is None
        and request.topic_regex is None
        and request.rack_id is None
        and request.assignor is None
        and request.rebalance_timeout_ms == -1
        and request.client_id == before.client_id
        and request.client_host == before.client_host
        and request.instance_id in {None, before.instance_id}
        and before.classic is None
    )


def _subscription(request: ConsumerHeartbeat, before: Subscription | None) -> Subscription:
    """What a member asks for from now on."""
    if before is not None and _says_nothing_new(request, before):
        return before
    old = before or Subscription(None, None, "", "", (), "", -1, None)
    names = old.topic_names if request.topic_names is None else tuple(sorted(set(request.topic_names)))
    after = replace(
        old,
        client_id=request.client_id,
        client_host=request.client_host,
        topic_names=names,
        topic_regex=old.topic_regex if request.topic_regex is None else request.topic_regex,
        instance_id=old.instance_id if request.instance_id is None else request.instance_id,
        rack_id=old.rack_id if request.rack_id is None else request.rack_id,
        assignor=old.assignor if request.assignor is None else request.assignor,
        rebalance_timeout_ms=(
            old.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        classic=None,
    )
    return old if before is not None and after == old else after
