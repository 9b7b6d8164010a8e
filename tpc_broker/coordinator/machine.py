"""`GroupCoordinator`: the groups of one partition of `__consumer_offsets`, as a machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tpc_broker.coordinator.effects import Effects, Record, Timers, Token, WriteId, Writes
from tpc_broker.coordinator.group import Group, GroupState, Held, group_of
from tpc_broker.coordinator.membership import GroupLimits, Membership
from tpc_broker.coordinator.messages import (
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedMember,
    HeartbeatRequest,
    JoinRequest,
    LeavingMember,
    ListedGroup,
    OffsetCommitRequest,
    OffsetFetchResponse,
    SyncRequest,
)
from tpc_broker.coordinator.offsets import FateOf, Offsets, TopicAndPartition, is_there
from tpc_broker.coordinator.records import (
    GroupKey,
    GroupMetadata,
    OffsetKey,
    group_record,
    is_of_later_release,
    read_group,
    read_key,
    read_offset,
)
from tpc_broker.error_codes import ErrorCode
from tpc_broker.limits import GROUPS_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

_EXPIRY_KEY = ("expiry",)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts at one moment."""

    groups_by_state: tuple[tuple[str, int], ...]
    members_count: int
    offsets_count: int
    writes_pending: int
    next_deadline_ms: int | None


class GroupCoordinator:
    """One partition's groups: a `driven.Machine`, whose docstring tells what its driver does."""

    def __init__(
        self,
        limits: GroupLimits | None = None,
        fate_of: FateOf = is_there,
        bytes_left: Callable[[], int] = lambda: GROUPS_BYTES_MAX,
    ) -> None:
        """`bytes_left`: for members of any group, as far as all groups of the core leave it."""
        self._limits = limits or GroupLimits()
        self._groups: dict[str, Group] = {}
        self._stored: dict[str, GroupMetadata] = {}
        self._foreign: dict[bytes, bytes] = {}
        """Live records of key types that others own, or later releases: snapshots carry them as they are."""
        self._timers = Timers()
        self._writes = Writes()
        self._held = Held()
        self._membership = Membership(
            self._groups, self._timers, self._writes, self._limits, self._forget_unused, self._held, bytes_left
        )
        self._offsets = Offsets(self._groups, self._membership, self._writes, self._limits, fate_of)
        self._is_loaded = False
        self._maybe_unused: set[str] = set()

    # Replay: the only way in which what is stored changes.

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Applies one record of the log; RecordDamagedError when it cannot be read. Foreign types are only kept, and so
        are values of later releases, until they are written anew: such an offset is refused to those who ask for it.
        """
        name = read_key(key)
        self._foreign.pop(key, None)
        is_later = name is not None and value is not None and is_of_later_release(value)
        if isinstance(name, OffsetKey):
            self._offsets.mark_unreadable(name, is_unreadable=is_later)
        if value is not None and (name is None or is_later):
            self._foreign[key], value = value, None
        if name is None:
            return
        if isinstance(name, OffsetKey):
            self._offsets.apply(name, None if value is None else read_offset(value))
            if self._is_loaded and value is not None and name.group_id not in self._groups:
                self._groups[name.group_id] = Group(name.group_id, held=self._held)
        elif isinstance(name, GroupKey):
            if value is None:
                self._stored.pop(name.group_id, None)
            else:
                self._stored[name.group_id] = read_group(value)

    def finish_loading(self, now_ms: int) -> Effects:
        """The log has been replayed to its end: groups come to life, sessions begin."""
        assert not self._is_loaded
        effects = Effects()
        self._is_loaded = True
        for group_id in {**self._stored, **self._offsets.committed}:
            self._revive(group_id, now_ms, effects)
        self._timers.set(_EXPIRY_KEY, now_ms + self._limits.offsets_retention_check_interval_ms)
        return effects

    def written(self, write_id: WriteId, now_ms: int) -> Effects:
        """A write is durable: its records are replayed here, and what waited for it is answered."""
        effects = Effects()
        write = self._writes.end(write_id)
        if not write.runs_ahead:
            for record in write.records:
                self.replay(record.key, record.value)
        write.written(effects, now_ms)
        self._after_write()
        return effects

    def write_failed(self, write_id: WriteId, error: ErrorCode, now_ms: int) -> Effects:
        """A write did not become durable: nothing of it happened, and clients are told to try again."""
        effects = Effects()
        write = self._writes.fail(write_id)
        write.failed(effects, _client_error(error), now_ms)
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
        self._membership.join(request, token, now_ms, unique, effects)
        return effects

    def sync_group(self, request: SyncRequest, token: Token, now_ms: int) -> Effects:
        """SyncGroup."""
        effects = Effects()
        self._membership.sync(request, token, now_ms, effects)
        return effects

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Heartbeat; answered at once."""
        return self._membership.heartbeat(request, now_ms)

    def leave_group(self, group_id: str, members: Sequence[LeavingMember], token: Token, now_ms: int) -> Effects:
        """LeaveGroup."""
        effects = Effects()
        self._membership.leave(group_id, members, token, now_ms, effects)
        return effects

    def offset_commit(self, request: OffsetCommitRequest, token: Token, now_ms: int) -> Effects:
        """OffsetCommit. Whether topic and partition exist is for the caller to check."""
        effects = Effects()
        self._offsets.commit(request, token, now_ms, effects)
        return effects

    def offset_fetch(self, group_id: str, partitions: Iterable[TopicAndPartition] | None = None) -> OffsetFetchResponse:
        """OffsetFetch for one group; None means everything that it has committed."""
        return self._offsets.fetch(group_id, partitions)

    def offset_delete(self, group_id: str, partitions: Collection[TopicAndPartition], token: Token) -> Effects:
        """OffsetDelete."""
        effects = Effects()
        self._offsets.delete(group_id, partitions, token, effects)
        return effects

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[ListedGroup]:
        """ListGroups; empty filters let everything through, names in any case."""
        wanted = {state.strip().lower() for state in states}
        if types and "classic" not in {name.strip().lower() for name in types}:
            return []
        return [
            ListedGroup(group.group_id, group.protocol_type or "", group.state.value)
            for group in self._groups.values()
            if not wanted or group.state.value.lower() in wanted
        ]

    def describe_group(self, group_id: str) -> DescribedGroup:
        """DescribeGroups for one group."""
        group = self._groups.get(group_id)
        if group is None:
            message = f"Group {group_id} not found."
            return DescribedGroup(group_id, GroupState.DEAD.value, ErrorCode.GROUP_ID_NOT_FOUND, message)
        stable = group.state is GroupState.STABLE
        members = tuple(
            DescribedMember(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                m.metadata_for(group.protocol) if stable else b"",
                m.assignment,
            )
            for m in group.members.values()
        )
        return DescribedGroup(
            group_id,
            group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=group.protocol or "" if stable else "",
            members=members,
        )

    def delete_groups(self, group_ids: Sequence[str], token: Token, now_ms: int) -> Effects:
        """DeleteGroups: only groups without members, with all their offsets. One that a later release stored stays, and
        is an error.
        """
        effects = Effects()
        results: dict[str, ErrorCode] = {}
        records: list[Record] = []
        for group_id in dict.fromkeys(group_ids):
            group = self._groups.get(group_id)
            if group is not None and group.state is not GroupState.EMPTY:
                results[group_id] = ErrorCode.NON_EMPTY_GROUP
            elif self._is_of_later_release(group_id):
                results[group_id] = ErrorCode.UNKNOWN_SERVER_ERROR
            elif group is None:
                results[group_id] = ErrorCode.GROUP_ID_NOT_FOUND
            else:
                results[group_id] = ErrorCode.NONE
                records.extend(self._bury(group, now_ms, effects))
        deleted = [group_id for group_id, error in results.items() if error is ErrorCode.NONE]

        def respond(later: Effects) -> None:
            later.reply(token, DeleteGroupsResponse(tuple(results.items())))

        def failed(later: Effects, error: ErrorCode, later_ms: int) -> None:
            results.update(dict.fromkeys(deleted, error))
            for group_id in deleted:
                self._revive(group_id, later_ms, later)
            respond(later)

        if records:
            self._writes.begin_parts(effects, records, lambda later, _now: respond(later), failed)
        else:
            respond(effects)
        return effects

    def topics_changed(self, deleted: Collection[str] = ()) -> Effects:
        """Forgets what was committed for topics that are gone: when the log was replayed, and when more of them is
        known. `deleted`: names of those that went just now. Nobody waits for it; what fails is made good when
        offsets are next looked through.
        """
        effects = Effects()
        self._forget_gone(effects, deleted)
        return effects

    @property
    def has_unknown_topics(self) -> bool:
        """Whether offsets are stored of topics that are not known here."""
        return self._offsets.has_unknown_topics()

    def _forget_gone(self, effects: Effects, deleted: Collection[str] = ()) -> None:
        records = self._offsets.tombstones_of_gone(deleted)
        if records:
            self._writes.begin_parts(effects, records, _ignore_success, _ignore_failure)

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `on_deadline` wants to be called; to be asked again after every other call."""
        return self._timers.next_deadline_ms()

    def clock_was_set(self, by_ms: int) -> None:
        """Deadlines move by so much; times that are stored stay what they are."""
        self._timers.shift(by_ms)

    def on_deadline(self, now_ms: int) -> Effects:
        """Does everything that is due."""
        effects = Effects()
        while (key := self._timers.pop_due(now_ms)) is not None:
            self._on_timer(key, now_ms, effects)
        return effects

    def _on_timer(self, key: object, now_ms: int, effects: Effects) -> None:
        if key == _EXPIRY_KEY:
            self._expire_offsets(now_ms, effects)
            self._timers.set(_EXPIRY_KEY, now_ms + self._limits.offsets_retention_check_interval_ms)
            return
        assert isinstance(key, tuple)
        kind, group_id, *rest = key
        group = self._groups.get(group_id)
        if group is None:
            return
        if kind == "join":
            self._membership.on_join_deadline(group, now_ms, effects)
        elif kind == "sync":
            self._membership.on_sync_deadline(group, now_ms, effects)
        elif kind == "member":
            self._membership.on_member_deadline(group, rest[0], now_ms, effects)
        else:
            self._membership.on_pending_deadline(group, rest[0], now_ms, effects)

    def _expire_offsets(self, now_ms: int, effects: Effects) -> None:
        self._forget_gone(effects)
        for group in list(self._groups.values()):
            records, none_left = self._offsets.tombstones_of_expired(group, now_ms)
            is_over = none_left and group.state is GroupState.EMPTY and not group.pending_members
            # One that a later release wrote stays stored, and is forgotten here when the last of its offsets is gone.
            if is_over and not self._is_of_later_release(group.group_id):
                records = self._bury(group, now_ms, effects)
                self._begin_burial(group.group_id, records, effects)
            elif records:
                over = {group.group_id} if is_over else set()
                self._writes.begin_parts(effects, records, partial(self._note_unused, over), _ignore_failure)
            elif is_over:
                self._forget_unused(group)

    def _note_unused(self, group_ids: set[str], _effects: Effects, _now_ms: int) -> None:
        self._maybe_unused |= group_ids

    def _begin_burial(self, group_id: str, records: list[Record], effects: Effects) -> None:
        if records:
            self._writes.begin_parts(
                effects, records, _ignore_success, lambda later, _error, now_ms: self._revive(group_id, now_ms, later)
            )

    # Life and death of groups

    def snapshot(self) -> Iterator[Record]:
        """Records that rebuild what is stored, which may change between two of them."""
        for group_id in list(self._stored):
            metadata = self._stored.get(group_id)
            if metadata is not None:
                yield group_record(group_id, metadata)
        yield from self._offsets.records()
        for key in list(self._foreign):
            value = self._foreign.get(key)
            if value is not None:
                yield Record(key, value)

    def unload(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> Effects:
        """The partition goes to another core: everything that waits is answered; this machine is not used again."""
        effects = Effects()
        for group in self._groups.values():
            self._membership.dissolve(group, error, effects)
        while self._writes:
            write_id = self._writes.oldest
            write = self._writes.end(write_id)
            write.failed(effects, error, 0)
        effects.writes.clear()
        return effects

    def statistics(self) -> Statistics:
        """Counts of what is here."""
        states = Counter(group.state.value for group in self._groups.values())
        return Statistics(
            groups_by_state=tuple(sorted(states.items())),
            members_count=sum(len(group.members) for group in self._groups.values()),
            offsets_count=sum(len(offsets) for offsets in self._offsets.committed.values()),
            writes_pending=len(self._writes),
            next_deadline_ms=self.next_deadline_ms(),
        )

    def _bury(self, group: Group, now_ms: int, effects: Effects) -> list[Record]:
        """Removes a group from life at once; the records remove what is stored of it."""
        self._membership.dissolve(group, ErrorCode.UNKNOWN_MEMBER_ID, effects)
        group.transition(GroupState.DEAD, now_ms)
        group.let_go()
        del self._groups[group.group_id]
        records = self._offsets.tombstones_of_group(group.group_id)
        if group.group_id in self._stored or self._writes:
            # A write under way may store it; its removal then comes after that.
            records.append(group_record(group.group_id, None))
        return records

    def _revive(self, group_id: str, now_ms: int, effects: Effects) -> None:
        """Makes a group anew from what is stored of it, unless it lives."""
        if group_id in self._groups or not self._is_remembered(group_id):
            return
        metadata = self._stored.get(group_id)
        group = Group(group_id, held=self._held) if metadata is None else group_of(group_id, metadata, self._held)
        self._groups[group_id] = group
        self._membership.begin_sessions(group, now_ms, effects)

    def _is_remembered(self, group_id: str) -> bool:
        return group_id in self._stored or group_id in self._offsets.committed

    def _is_of_later_release(self, group_id: str) -> bool:
        """Whether what is stored of the group itself cannot be read here."""
        return group_record(group_id, None).key in self._foreign

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
        """Looks again at groups that may be unused, once nothing is being written any more. One whose last offsets have
        just been deleted stays, Empty, until offsets are next looked through, as in Kafka: who deletes them goes on to
        describe it, or to commit others.
        """
        if not self._writes:
            for group_id in self._maybe_unused & self._groups.keys():
                self._forget_unused(self._groups[group_id])
            self._maybe_unused.clear()


def _ignore_success(_effects: Effects, _now_ms: int) -> None:
    """Nobody waits for this write."""


def _ignore_failure(_effects: Effects, _error: ErrorCode, _now_ms: int) -> None:
    """Nobody waits for this write, and it will be tried again."""


def _client_error(error: ErrorCode) -> ErrorCode:
    """What a client of the coordinator is told when the log refused: codes of Produce mean nothing to it."""
    if error in {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR}:
        return ErrorCode.NOT_COORDINATOR
    if error in {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE}:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
