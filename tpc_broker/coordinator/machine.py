"""`GroupCoordinator`: the groups of one partition of `__consumer_offsets`, as a machine."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from tpc_broker.coordinator.consumer.ahead import Ahead
from tpc_broker.coordinator.consumer.classic_members import ClassicMembers
from tpc_broker.coordinator.consumer.groups import GROUP_TYPE, ConsumerGroups, tombstones_of
from tpc_broker.coordinator.consumer.heartbeats import DEADLINES, NO_ROOM_RETRY_MS, ConsumerMembership
from tpc_broker.coordinator.consumer.leaving import leave_consumers
from tpc_broker.coordinator.consumer.messages import (
    JOIN_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    ConsumerSettings,
    DescribedConsumerGroup,
    NoTopics,
    Topics,
)
from tpc_broker.coordinator.consumer.records import read_consumer_key
from tpc_broker.coordinator.deletion import Deletion, LifeAndDeath
from tpc_broker.coordinator.effects import (
    Effects,
    Record,
    Timers,
    Token,
    WriteId,
    Writes,
    client_error,
    ignore_failure,
    ignore_success,
)
from tpc_broker.coordinator.expiry import Expiry
from tpc_broker.coordinator.group import Group, GroupState, Held, group_of
from tpc_broker.coordinator.membership import GroupLimits, Membership
from tpc_broker.coordinator.messages import (
    DescribedGroup,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveResponse,
    LeavingMember,
    ListedGroup,
    OffsetCommitRequest,
    OffsetFetchResponse,
    Statistics,
    SyncRequest,
    TxnOffsetCommitRequest,
    WrittenResponse,
)
from tpc_broker.coordinator.migration import Migration
from tpc_broker.coordinator.offsets import FateOf, Offsets, is_there
from tpc_broker.coordinator.records import (
    OFFSET_KEY_PREFIXES,
    GroupKey,
    GroupMetadata,
    OffsetKey,
    group_record,
    is_of_later_release,
    read_group,
    read_key,
    read_stored_offset,
)
from tpc_broker.error_codes import ErrorCode
from tpc_broker.limits import GROUPS_BYTES_MAX, OWN_BATCH_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from tpc_broker.coordinator.assignors.spec import Assignor
    from tpc_broker.coordinator.consumer.group import ConsumerGroup
    from tpc_broker.coordinator.consumer.records import ResolvedRegex
    from tpc_broker.coordinator.effects import Producer, TransactionEnd
    from tpc_broker.coordinator.pending_offsets import PendingOffsets, TopicAndPartition

_EXPIRY_KEY = ("expiry",)
_WORK_KEY = ("work",)
_ENDED_KEY = ("ended",)
_LOOK_KEY = ("look",)
WRITES_AT_ONCE = 40
"""Asked for in one step by deadlines, or by one request: above it, or above the bytes of one batch, the rest comes
later. The driver, who was asked whether there is room, has taken none of them yet (`driven.Machine`).
"""


class GroupCoordinator:
    """One partition's groups: a `driven.Machine`, whose docstring tells what its driver does."""

    def __init__(
        self,
        limits: GroupLimits | None = None,
        fate_of: FateOf = is_there,
        bytes_left: Callable[[], int] = lambda: GROUPS_BYTES_MAX,
        *,
        settings_of: Callable[[str], ConsumerSettings] = lambda _group_id: ConsumerSettings(),
        topics: Topics | None = None,
        assignors: Mapping[str, Assignor] | None = None,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        """`bytes_left`: for members of any group, as far as all groups of the core leave it. `settings_of` a consumer
        group, by its id; `assignors` by their names. `has_room`: whether the driver takes what runs ahead
        (`driven.Machine`).
        """
        self._limits = limits or GroupLimits()
        self._settings_of = settings_of
        self._groups: dict[str, Group] = {}
        self._stored: dict[str, GroupMetadata] = {}
        self._foreign: dict[bytes, bytes] = {}
        """Live records of key types that others own, or of later releases."""
        self._timers = Timers()
        self._writes = Writes()
        self._held = Held()
        self._ahead = Ahead(self._writes, self.replay, has_room)
        self._consumers = ConsumerGroups(self._held)
        """An id is in at most one of these and the classic `_groups`."""
        topics = topics or NoTopics()
        self._consumer_membership = ConsumerMembership(
            self._consumers.by_id, self._timers, self._ahead, settings_of, topics, assignors or {}, self._held,
            bytes_left,
        )  # fmt: skip
        self._membership = Membership(
            self._groups, self._timers, self._writes, self._limits, self._forget_unused, self._held, bytes_left
        )
        self._migration = Migration(
            self._groups, self._membership, self._consumer_membership, self._ahead, self._limits, settings_of, topics,
            self._held, bytes_left, self._end, self.replay,
        )  # fmt: skip
        self._consumer_membership.kinds = self._migration
        self._classic_members = ClassicMembers(
            self._consumers.by_id, self._timers, self._ahead, settings_of, topics, self._consumer_membership,
            self._migration,
        )  # fmt: skip
        self._offsets = Offsets(
            self._groups, self._consumers.by_id, self._membership, self._writes, self._ahead, self._limits, fate_of,
            self._foreign, self._note_offsets_of,
        )  # fmt: skip
        life = LifeAndDeath(self._is_of_later_release, self._bury, self._bury_consumers, self._revive)
        self.pending: PendingOffsets = self._offsets.pending
        """What open transactions may yet commit."""
        self._deletion = Deletion(
            self._groups, self._consumers.by_id, self._offsets, self._writes, self._ahead, WRITES_AT_ONCE, life
        )
        self._is_loaded = False
        self._finishing: Iterator[None] | None = None
        self._effects_of_loading = Effects()
        self._finishing_since_ms = 0
        self._maybe_unused: set[str] = set()
        self._expiry = Expiry(
            self._groups, self._consumers.by_id, self._offsets, self._writes, life, self._begin_burial,
            self._forget_unused, self._maybe_unused,
        )  # fmt: skip

    # Replay: the only way in which what is stored changes.

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Applies one record of the log; RecordDamagedError when it cannot be read. Foreign types are only kept, and so
        are values of later releases, until they are written anew: such an offset is refused to those who ask for it.
        """
        name = read_key(key)
        if isinstance(name, OffsetKey):
            self.pending.outdo(name, is_tombstone=value is None)
            self._offsets.replay(name, key, value)
        else:
            self._apply(name, key, value)

    def replay_open(self, producer: Producer, key: bytes, value: bytes | None) -> None:
        """The same in an open transaction. An offset counts from a marker on, anything else at once, as in Kafka."""
        name = read_key(key)
        if isinstance(name, OffsetKey) and value is not None:  # as `waiting_keys` say
            offset = Record(key, value) if is_of_later_release(value) else read_stored_offset(value)
            self.pending.add(producer, name, offset)
            self._note_offsets_of(name.group_id)
        else:
            self.replay(key, value)

    def replay_end(self, producer_id: int, *, commit: bool) -> None:
        """A marker: of what the producer has written in its transaction all counts now, or nothing."""
        self.pending.end(producer_id, commit=commit)

    waiting_keys = OFFSET_KEY_PREFIXES
    """Of records that wait for the end of a transaction: offsets."""

    def _apply(self, name: GroupKey | None, key: bytes, value: bytes | None) -> None:
        self._foreign.pop(key, None)
        consumer_key = read_consumer_key(key) if name is None else None
        if consumer_key is not None and self._consumers.replay(key, consumer_key, value):
            return
        if value is not None and (name is None or is_of_later_release(value)):
            self._foreign[key], value = value, None
        if name is None:
            return
        if value is None:
            self._stored.pop(name.group_id, None)
        else:
            self._stored[name.group_id] = read_group(value)

    def _note_offsets_of(self, group_id: str) -> None:
        if self._is_loaded and not self._is_alive(group_id):
            self._groups[group_id] = Group(group_id, held=self._held)

    def finish_loading(self, now_ms: int) -> Effects:
        """The log has been replayed to its end: groups come to life, sessions begin; or RecordDamagedError."""
        assert not self._is_loaded
        for _group in self.groups_finished(now_ms):
            pass
        self._timers.shift(max(0, now_ms - self._finishing_since_ms))  # until now clients were not heard
        self._is_loaded = True
        return self._effects_of_loading

    def groups_finished(self, now_ms: int) -> Iterator[None]:
        """The same, but for its end: after each group others have their turn, but no other call comes in between."""
        if self._finishing is None:
            self._finishing, self._finishing_since_ms = self._finish(now_ms), now_ms
        return self._finishing

    def _finish(self, now_ms: int) -> Iterator[None]:
        effects = self._effects_of_loading
        self._foreign.update((yield from self._consumers.finish_loading()))
        # Of both kinds is none but in a damaged log. The classic one stays, as in Kafka: its record replaces the other.
        for group_id in sorted(self._stored.keys() & self._consumers.by_id.keys()):
            self._ahead.decide(group_id, tombstones_of(self._consumers.by_id[group_id]), effects)
        for group_id in dict.fromkeys([*self._stored, *self._offsets.committed, *self.pending.group_ids]):
            self._revive(group_id, now_ms, effects)
            yield
        for consumers in self._consumers.by_id.values():
            self._consumer_membership.begin_sessions(consumers, now_ms)
            yield
        self._timers.set(_EXPIRY_KEY, now_ms + self._limits.offsets_retention_check_interval_ms)

    def written(self, write_id: WriteId, now_ms: int) -> Effects:
        """A write is durable: its records are replayed here, and what waited for it is answered."""
        effects = Effects()
        write = self._writes.end(write_id)
        if write.end is not None:
            self.replay_end(write.end.producer.producer_id, commit=write.end.commit)
        for record in () if write.runs_ahead else write.records:
            if write.producer is None:
                self.replay(record.key, record.value)
            else:
                self.replay_open(write.producer, record.key, record.value)
        write.written(effects, now_ms)
        self._after_write()
        self._bring_in(now_ms)
        return effects

    def write_failed(self, write_id: WriteId, error: ErrorCode, now_ms: int) -> Effects:
        """A write did not become durable: nothing of it happened, and clients are told to try again."""
        effects = Effects()
        write = self._writes.fail(write_id)
        assert not write.runs_ahead, "what was decided on it cannot be taken back: the machine is to be unloaded"
        write.failed(effects, client_error(error), now_ms)
        self._after_write()
        return effects

    @property
    def size_bytes(self) -> int:
        """Held for the members of all groups."""
        return self._held.size_bytes

    # Requests

    def join_group(self, request: JoinRequest, token: Token, now_ms: int, unique: str) -> Effects:
        """JoinGroup. `unique` is a fresh random text (a UUID) for the id of a member that has none."""
        effects = Effects()
        consumers = self._consumers.by_id.get(request.group_id)
        if consumers is not None or self._consumers.is_of_later_release(request.group_id):
            fault = self._fault_of_classic_join(consumers, request)
            if fault is not ErrorCode.NONE:
                is_of_group = fault is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
                refused = partial(JoinResponse, member_id="" if is_of_group else request.member_id)
                self._answer(request.group_id, token, refused(error_code=fault), refused, effects, now_ms)
                return effects
        if consumers is not None and consumers.members:
            self._classic_members.join(consumers, request, token, now_ms, unique, effects)
            self._have_work_done(now_ms)
            return effects
        if consumers is not None:
            self._migration.emptied(consumers, now_ms, effects)
        self._membership.join(request, token, now_ms, unique, effects)
        return effects

    def _fault_of_classic_join(self, consumers: ConsumerGroup | None, request: JoinRequest) -> ErrorCode:
        """Why nobody can come to a consumer group, or to a group of a later release, by JoinGroup."""
        if consumers is None:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        fault = self._membership.fault_of_form(request)
        if fault is ErrorCode.NONE and not (request.protocol_type and request.protocols):
            fault = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if consumers.members or fault is not ErrorCode.NONE:
            return fault
        if request.member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if self._ahead.has_room() else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def sync_group(self, request: SyncRequest, token: Token, now_ms: int) -> Effects:
        """SyncGroup."""
        effects = Effects()
        consumers = self._consumers.by_id.get(request.group_id)
        if consumers is None:
            self._membership.sync(request, token, now_ms, effects)
        else:
            self._classic_members.sync(consumers, request, token, now_ms, effects)
        return effects

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Heartbeat; answered at once."""
        consumers = self._consumers.by_id.get(request.group_id)
        if consumers is None:
            return self._membership.heartbeat(request, now_ms)
        return self._classic_members.heartbeat(consumers, request, now_ms)

    def leave_group(self, group_id: str, members: Sequence[LeavingMember], token: Token, now_ms: int) -> Effects:
        """LeaveGroup."""
        effects = Effects()
        consumers = self._consumers.by_id.get(group_id)
        if consumers is None:
            self._membership.leave(group_id, members, token, now_ms, effects)
        else:
            response = leave_consumers(self._consumer_membership, consumers, members, now_ms, effects)
            self._answer(group_id, token, response, LeaveResponse, effects, now_ms)
        return effects

    def offset_commit(self, request: OffsetCommitRequest, token: Token, now_ms: int) -> Effects:
        """OffsetCommit. Whether topic and partition exist is for the caller to check."""
        effects = Effects()
        self._offsets.commit(request, token, now_ms, effects)
        return effects

    def txn_offset_commit(self, request: TxnOffsetCommitRequest, token: Token, now_ms: int) -> Effects:
        """TxnOffsetCommit, of a transaction that is open by `pending.is_open`, or a verification that is not over."""
        effects = Effects()
        self._offsets.txn_commit(request, token, now_ms, effects)
        return effects

    def marker(self, end: TransactionEnd, token: Token) -> Effects:
        """Writes a marker; answered with `MarkerResponse` when it is durable."""
        effects = Effects()
        self._offsets.end_transaction(end, token, effects)
        return effects

    def offset_fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicAndPartition] | None = None,
        member_id: str | None = None,
        member_epoch: int = -1,
        *,
        require_stable: bool = False,
    ) -> OffsetFetchResponse:
        """OffsetFetch for one group; None means everything that it has committed. For a member of a consumer group, in
        its epoch: an error shows what is decided, and may be told `when_written`.
        """
        return self._offsets.fetch(group_id, partitions, member_id, member_epoch, require_stable=require_stable)

    def offset_delete(
        self, group_id: str, partitions: Collection[TopicAndPartition], token: Token, now_ms: int
    ) -> Effects:
        """OffsetDelete."""
        effects = Effects()
        self._offsets.delete(group_id, partitions, token, now_ms, effects)
        return effects

    def consumer_heartbeat(self, request: ConsumerHeartbeat, token: Token, now_ms: int, unique: str) -> Effects:
        """ConsumerGroupHeartbeat, of sound form. `unique` is a fresh id for a member that has none."""
        effects = Effects()
        self._consumer_heartbeat(request, token, now_ms, unique, effects)
        self._have_work_done(now_ms)
        return effects

    def _consumer_heartbeat(
        self, request: ConsumerHeartbeat, token: Token, now_ms: int, unique: str, effects: Effects
    ) -> None:
        def refuse(later: Effects, error: ErrorCode, _now_ms: int, message: str | None = None) -> None:
            later.reply(token, ConsumerHeartbeatResponse(error_code=error, error_message=message))

        def failed(later: Effects, error: ErrorCode, later_ms: int) -> None:
            """A write that was not its own: its client gives up where it is told of a fault of the server."""
            is_fatal = error is ErrorCode.UNKNOWN_SERVER_ERROR
            refuse(later, ErrorCode.COORDINATOR_NOT_AVAILABLE if is_fatal else error, later_ms)

        def again(later: Effects, later_ms: int) -> None:
            if _is_much(later):  # others have waited for the same write
                refuse(later, ErrorCode.COORDINATOR_NOT_AVAILABLE, later_ms)
                return
            self._consumer_heartbeat(request, token, later_ms, unique, later)
            self._have_work_done(later_ms)

        group_id = request.group_id
        # Rule: A classic group becomes a consumer group only when all that is written of it is durable: a classic write
        # is applied when it ends, so that one under way would come to life behind the tombstone. Held by
        # tests/coordinator/consumer/test_migration_up.py.
        if self._is_of_later_release(group_id):
            refuse(effects, ErrorCode.UNKNOWN_SERVER_ERROR, now_ms, f"Group {group_id} is of a later release.")
        elif request.member_epoch != JOIN_EPOCH and group_id in self._groups:
            message = f"Group {group_id} is not a consumer group."
            refuse(effects, ErrorCode.GROUP_ID_NOT_FOUND, now_ms, message)
        elif group_id in self._consumers.by_id or not self._writes.wait_for(
            self._writes.last_of(group_record(group_id, None).key), again, failed
        ):
            self._consumer_membership.heartbeat(request, token, now_ms, unique, effects)

    def expressions_wanted(self) -> list[tuple[str, frozenset[str]]]:
        """Groups, and the expressions of each that are to be resolved now; to be asked after each heartbeat."""
        return self._consumer_membership.subscribed.wanted()

    def expressions_resolved(
        self, group_id: str, found: Mapping[str, ResolvedRegex], now_ms: int, *, has_more: bool = False
    ) -> Effects:
        """What the expressions of a group match, by metadata of one version. `has_more`: other parts of them follow."""
        effects = Effects()
        self._consumer_membership.subscribed.resolved(group_id, found, now_ms, effects, has_more=has_more)
        return effects

    def describe_consumer_group(self, group_id: str, token: Token, now_ms: int) -> Effects:
        """ConsumerGroupDescribe for one group."""
        effects = Effects()
        refused = partial(DescribedConsumerGroup, group_id=group_id)
        response = refused(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} {'is not a consumer group' if group_id in self._groups else 'not found'}.",
        )
        if group_id in self._consumers.by_id:
            response = self._consumers.described(group_id, self._settings_of(group_id)) or response
        self._answer(group_id, token, response, refused, effects, now_ms)
        return effects

    def when_written(self, group_id: str | None, token: Token, now_ms: int) -> Effects:
        """Answers with `WrittenResponse` when all is durable that was decided until now of a group, or with None of any
        group. To be awaited before an answer is sent that shows it and was given at once.
        """
        effects = Effects()
        self._answer(group_id, token, WrittenResponse(ErrorCode.NONE), WrittenResponse, effects, now_ms)
        return effects

    def _answer(
        self,
        group_id: str | None,
        token: Token,
        response: object,
        refused: Callable[..., object],
        effects: Effects,
        now_ms: int,
    ) -> None:
        """When all that was decided of a group is durable; or else what `refused` makes of the error code."""
        self._ahead.answer(
            group_id, effects, now_ms, lambda later, _now_ms: later.reply(token, response),
            lambda later, error, _now_ms: later.reply(token, refused(error_code=error)),
        )  # fmt: skip

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[ListedGroup]:
        """ListGroups; empty filters let everything through, names in any case. To be told `when_written`."""
        wanted_states = {state.strip().lower() for state in states}
        wanted_types = {name.strip().lower() for name in types}
        listed = []
        if not wanted_types or "classic" in wanted_types:
            listed += [
                ListedGroup(group.group_id, group.protocol_type or "", group.state.value)
                for group in self._groups.values()
                if not wanted_states or group.state.value.lower() in wanted_states
            ]
        if not wanted_types or GROUP_TYPE in wanted_types:
            listed += self._consumers.listed(wanted_states)
        return listed

    def describe_group(self, group_id: str) -> DescribedGroup:
        """DescribeGroups for one group. Of which kind it is is told before it is durable: nobody builds on that."""
        group = self._groups.get(group_id)
        if group is None:
            is_consumers = group_id in self._consumers.by_id
            message = f"Group {group_id} {'is not a classic group' if is_consumers else 'not found'}."
            return DescribedGroup(group_id, GroupState.DEAD.value, ErrorCode.GROUP_ID_NOT_FOUND, message)
        return group.described()

    def delete_groups(self, group_ids: Sequence[str], token: Token, now_ms: int) -> Effects:
        """DeleteGroups: only groups without members, with all their offsets. One that a later release stored stays, and
        is an error.
        """
        effects = Effects()
        self._deletion.delete(group_ids, token, now_ms, effects)
        return effects

    def topics_changed(self, now_ms: int, deleted: Collection[str] = ()) -> Effects:
        """Forgets what was committed for topics that are gone: when the log was replayed, and when more of them is
        known. `deleted`: names of those that went just now. Nobody waits for it; what fails is made good when
        offsets are next looked through.
        """
        effects = Effects()
        self._offsets.topics_changed(deleted)
        self._look_on(now_ms, effects)
        return effects

    def look_for_unknown_topics(self) -> Iterator[bool]:
        """Whether offsets are stored of topics that are not known here, or may be: in short steps, once it is True."""
        return self._offsets.look_for_unknown_topics()

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `on_deadline` wants to be called; to be asked again after every other call."""
        return self._timers.next_deadline_ms()

    def clock_was_set(self, by_ms: int) -> None:
        """Deadlines move by so much; times that are stored stay what they are."""
        self._timers.shift(by_ms)
        self._finishing_since_ms += by_ms

    def on_deadline(self, now_ms: int) -> Effects:
        """Does what is due: everything, unless that were more than the driver may have room for. Then, and when there
        is more work to do, it is due again at once.
        """
        effects = Effects()
        has_work = looks_on = False
        while not _is_much(effects) and (key := self._timers.pop_due(now_ms)) is not None:
            if key == _WORK_KEY:
                has_work = True
            elif key == _LOOK_KEY:
                looks_on = True
            elif key == _EXPIRY_KEY:
                self._begin_to_expire(now_ms)
                looks_on = True
            elif key != _ENDED_KEY:
                self._on_timer(key, now_ms, effects)
        if looks_on:
            self._look_on(now_ms, effects)
        if has_work and self._consumer_membership.assigning.has_work:
            self._consumer_membership.assigning.work(now_ms, effects)
            self._have_work_done(now_ms)
        self._bring_in(now_ms)
        return effects

    def _have_work_done(self, now_ms: int) -> None:
        """What assignments are being made is due by and by, a piece whenever the driver has heard its clients."""
        if self._consumer_membership.assigning.has_work:
            self._timers.set(_WORK_KEY, now_ms if self._ahead.has_room() else now_ms + NO_ROOM_RETRY_MS)

    def _bring_in(self, now_ms: int) -> None:
        """As much of ended transactions as a step may; of the rest the next piece is due at once, as above."""
        if self.pending.bring_in_some():
            self._timers.set(_ENDED_KEY, now_ms)

    def _on_timer(self, key: object, now_ms: int, effects: Effects) -> None:
        assert isinstance(key, tuple)
        kind, group_id, *rest = key
        if kind in DEADLINES:
            consumers = self._consumers.by_id.get(group_id)
            if consumers is not None:
                self._consumer_membership.on_deadline(kind, consumers, rest[0], now_ms, effects)
            return
        if group_id in self._groups:
            self._membership.on_deadline(kind, self._groups[group_id], rest, now_ms, effects)

    # What is looked through

    def _begin_to_expire(self, now_ms: int) -> None:
        """All offsets are looked through; first those of groups whose burial runs ahead, and so must find room."""
        self._timers.set(_EXPIRY_KEY, now_ms + self._limits.offsets_retention_check_interval_ms)
        self._expiry.begin()
        self._offsets.topics_changed()

    def _look_on(self, now_ms: int, effects: Effects) -> None:
        """The next piece, if there is room; the one behind it is due at once, as above. What transactions have left is
        brought in first.
        """
        has_room = self._ahead.has_room()
        if has_room and not self.pending.has_ended and not _is_much(effects):
            if self._expiry.is_under_way:
                self._expiry.go_on(now_ms, effects)
            elif self._offsets.looks_for_gone and (records := self._offsets.tombstones_of_gone()):
                self._writes.begin_parts(effects, records, ignore_success, ignore_failure)
        if self._expiry.is_under_way or self._offsets.looks_for_gone:
            self._timers.set(_LOOK_KEY, now_ms if has_room else now_ms + NO_ROOM_RETRY_MS)

    def _begin_burial(self, group_id: str, records: list[Record], effects: Effects) -> None:
        if records:
            self._writes.begin_parts(
                effects, records, ignore_success, lambda later, _error, now_ms: self._revive(group_id, now_ms, later)
            )

    # Life and death of groups

    def unload(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> Effects:
        """The partition goes to another core: everything that waits is answered; this machine is not used again."""
        effects = Effects()
        for group in self._groups.values():
            self._membership.dissolve(group, error, effects)
        for consumers in self._consumers.by_id.values():
            self._consumer_membership.dissolve(consumers)
        while self._writes:
            write_id = self._writes.oldest
            write = self._writes.end(write_id)
            write.failed(effects, error, 0)
        effects.forget_writes()
        return effects

    def statistics(self) -> Statistics:
        """Counts of what is here."""
        states = Counter(group.state.value for group in self._groups.values())
        consumer_states = Counter(group.state.value for group in self._consumers.by_id.values())
        return Statistics(
            groups_by_state=tuple(sorted(states.items())),
            consumer_groups_by_state=tuple(sorted(consumer_states.items())),
            members_count=sum(len(group.members) for group in self._groups.values())
            + sum(len(group.members) for group in self._consumers.by_id.values()),
            offsets_count=self._offsets.count,
            writes_pending=len(self._writes),
            next_deadline_ms=self.next_deadline_ms(),
        )

    def _bury(self, group: Group, now_ms: int, effects: Effects) -> list[Record]:
        """Removes a group from life at once; the records remove what is stored of it."""
        self._end(group, now_ms, effects, ErrorCode.UNKNOWN_MEMBER_ID)
        records = list(self._offsets.tombstones_of_group(group.group_id))
        if group.group_id in self._stored or self._writes:
            # A write under way may store it; its removal then comes after that.
            records.append(group_record(group.group_id, None))
        return records

    def _end(self, group: Group, now_ms: int, effects: Effects, error: ErrorCode) -> None:
        """Takes it out of life; whoever waits in it is told why."""
        self._membership.dissolve(group, error, effects)
        group.transition(GroupState.DEAD, now_ms)
        group.let_go()
        del self._groups[group.group_id]

    def _bury_consumers(self, group: ConsumerGroup, effects: Effects) -> None:
        """Removes a consumer group, but for its offsets."""
        self._consumer_membership.dissolve(group)
        self._ahead.decide(group.group_id, tombstones_of(group), effects)
        assert group.group_id not in self._consumers.by_id

    def _revive(self, group_id: str, now_ms: int, effects: Effects) -> None:
        """Makes a group anew from what is stored of it, unless it lives."""
        if self._is_alive(group_id) or not self._is_remembered(group_id):
            return
        metadata = self._stored.get(group_id)
        group = Group(group_id, held=self._held) if metadata is None else group_of(group_id, metadata, self._held)
        self._groups[group_id] = group
        self._membership.begin_sessions(group, now_ms, effects)

    def _is_alive(self, group_id: str) -> bool:
        """Whether there is a group of this id, of either kind."""
        is_classic, is_consumers = group_id in self._groups, group_id in self._consumers.by_id
        assert not (is_classic and is_consumers), group_id
        return is_classic or is_consumers

    def _is_remembered(self, group_id: str) -> bool:
        return group_id in self._stored or self._offsets.has(group_id) or group_id in self.pending.group_ids

    def _is_of_later_release(self, group_id: str) -> bool:
        """Whether what is stored of the group itself cannot be read here."""
        if self._consumers.is_of_later_release(group_id):
            return True
        return bool(self._foreign) and group_record(group_id, None).key in self._foreign

    def _forget_unused(self, group: Group) -> None:
        """A group that is empty and of which nothing is stored need not stay; what is being written is awaited."""
        unused = group.state is GroupState.EMPTY and not group.pending_members
        if not unused or self._is_remembered(group.group_id) or self._groups.get(group.group_id) is not group:
            return
        if self._writes:
            self._maybe_unused.add(group.group_id)
        else:
            del self._groups[group.group_id]

    def _after_write(self) -> None:
        """Looks again at groups that may be unused, once nothing is being written. One whose last offsets were deleted
        stays, Empty, until offsets are next looked through, as in Kafka: who deletes them goes on to describe it.
        """
        if not self._writes:
            for group_id in self._maybe_unused & self._groups.keys():
                self._forget_unused(self._groups[group_id])
            self._maybe_unused.clear()


def _is_much(effects: Effects) -> bool:
    """Whether so much is to be written that what runs ahead has to wait: the driver was asked before that."""
    return len(effects.writes) >= WRITES_AT_ONCE or effects.writes_bytes > OWN_BATCH_BYTES_MAX
