"""Committed offsets of the groups: OffsetCommit, OffsetFetch, OffsetDelete, and forgetting what is too old.

An offset is committed when its record has been replayed, so that nobody reads one that a crash could take back. Offsets
of transactions wait beside them, in `pending`, until their marker comes; who asks for stable ones is told so.

A topic that was deleted and made again under its name is another topic: what was committed for the first one is of no
use for it, and would let its readers skip records. So an offset counts as long as the topic of its id is there, whoever
heard of the deletion, and when (`Fate`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from tpc_broker.coordinator.consumer.group import ConsumerGroup
from tpc_broker.coordinator.consumer.groups import fault_of_fetch, faults_of_commit, faults_of_txn_commit
from tpc_broker.coordinator.effects import Record, size_of
from tpc_broker.coordinator.group import CONSUMER_PROTOCOL_TYPE, Group, GroupState
from tpc_broker.coordinator.looks import LOOKED_AT_ONCE, GoneTopics, pieces
from tpc_broker.coordinator.messages import (
    FetchedOffset,
    MarkerResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    OffsetToCommit,
    PartitionResult,
    TxnOffsetCommitRequest,
)
from tpc_broker.coordinator.pending_offsets import PendingOffsets, TopicAndPartition
from tpc_broker.coordinator.records import (
    CommittedOffset,
    OffsetKey,
    is_of_later_release,
    offset_of,
    offset_record,
    read_stored_offset,
    topic_id_of,
)
from tpc_broker.error_codes import ErrorCode
from tpc_broker.limits import OWN_BATCH_BYTES_MAX
from tpc_broker.model import NO_TOPIC_ID, LeaderEpoch, Offset, TopicId

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence

    from tpc_broker.coordinator.consumer.ahead import Ahead
    from tpc_broker.coordinator.effects import Effects, OnFailed, OnWritten, Producer, Token, TransactionEnd, Writes
    from tpc_broker.coordinator.looks import Piece
    from tpc_broker.coordinator.membership import GroupLimits, Membership
    from tpc_broker.coordinator.records import StoredOffset

class Fate(Enum):
    """What is known of the topic that an offset was committed for."""

    THERE = "there"
    GONE = "deleted, for certain"
    UNKNOWN = "not known here: it was deleted long ago, or made so lately that this core has not heard of it"


FateOf = Callable[[str, TopicId], Fate]
"""Of a topic, by its name and the id that was stored; NO_TOPIC_ID where none was."""


def is_there(_topic: str, _topic_id: TopicId) -> Fate:
    """For a coordinator without a cluster around it."""
    return Fate.THERE


class Offsets:
    """The committed offsets by group; changed only as records and markers are replayed."""

    def __init__(
        self,
        groups: Mapping[str, Group],
        consumers: Mapping[str, ConsumerGroup],
        membership: Membership,
        writes: Writes,
        ahead: Ahead,
        limits: GroupLimits,
        fate_of: FateOf,
        foreign: dict[bytes, bytes],
        note_group: Callable[[str], None],
    ) -> None:
        """`foreign`: records that cannot be read here. `note_group` is told of whom offsets were replayed."""
        self._groups = groups
        self._consumers = consumers
        self._ahead = ahead
        self._membership = membership
        self._writes = writes
        self._limits = limits
        self._fate_of = fate_of
        self._foreign = foreign
        self._note_group = note_group
        self.pending = PendingOffsets(self._replay_pending)
        self._committed: dict[str, dict[TopicAndPartition, StoredOffset]] = {}
        self._unreadable: dict[str, set[TopicAndPartition]] = {}
        self._committing: Counter[str] = Counter()
        """Writes of offsets under way, in no transaction, by group."""
        self._looks_for_gone: deque[GoneTopics] = deque()
        """The one under way, if one is, and one that follows it."""
        self._gone_pieces: Iterator[Piece] | None = None

    def replay(self, name: OffsetKey, key: bytes, value: bytes | None) -> None:
        """Applies a record that counts, but for what it means to `pending`; RecordDamagedError."""
        self._foreign.pop(key, None)
        is_later = value is not None and is_of_later_release(value)
        self._mark_unreadable(name, is_unreadable=is_later)
        if value is None or is_later:
            self._forget(name)
        else:
            self._put(name, read_stored_offset(value))
        if value is not None and is_later:
            self._foreign[key] = value

    def _replay_pending(self, name: OffsetKey, offset: StoredOffset | Record) -> None:
        """The same, when its transaction was committed."""
        if isinstance(offset, Record):
            self.replay(name, *offset)
        elif self._unreadable:
            self.replay(name, *offset_record(name, offset_of(offset)))
        else:
            self._put(name, offset)

    def _put(self, name: OffsetKey, offset: StoredOffset) -> None:
        self._committed.setdefault(name.group_id, {})[name.topic, name.partition] = offset
        for look in self._looks_for_gone:
            look.note_committed(name)
        self._note_group(name.group_id)

    def _forget(self, name: OffsetKey) -> None:
        offsets = self._committed.get(name.group_id)
        if offsets is not None:
            offsets.pop((name.topic, name.partition), None)
            if not offsets:
                del self._committed[name.group_id]

    @property
    def committed(self) -> Mapping[str, Mapping[TopicAndPartition, StoredOffset]]:
        """Of all groups."""
        self.pending.bring_in()
        return self._committed

    def _committed_of(
        self, group_id: str, partitions: Iterable[TopicAndPartition] | None = None
    ) -> Mapping[TopicAndPartition, StoredOffset]:
        """Of a group; only those of the `partitions` are certain, if these are given."""
        self.pending.bring_in_of(group_id, partitions)
        return self._committed.get(group_id, {})

    def has(self, group_id: str) -> bool:
        """Whether a group has committed anything that can be read."""
        return bool(self._committed_of(group_id))

    @property
    def count(self) -> int:
        """How many there are, but for what ended transactions have left."""
        return sum(map(len, self._committed.values()))

    def _mark_unreadable(self, key: OffsetKey, *, is_unreadable: bool) -> None:
        """What is committed there is or is not of a release that came later."""
        if not (is_unreadable or self._unreadable):
            return
        group = self._unreadable.setdefault(key.group_id, set())
        (group.add if is_unreadable else group.discard)((key.topic, key.partition))
        if not group:
            del self._unreadable[key.group_id]

    def commit(self, request: OffsetCommitRequest, token: Token, now_ms: int, effects: Effects) -> None:
        """OffsetCommit."""
        group = self._groups.get(request.group_id)
        consumers = self._consumers.get(request.group_id)
        fault = ErrorCode.NONE if consumers is not None else _commit_fault(group, request)
        if fault is not ErrorCode.NONE:
            effects.reply(token, OffsetCommitResponse(tuple(_result(offset, fault) for offset in request.offsets)))
            return
        if group is not None and request.member_id in group.members:
            self._membership.refresh(group, request.member_id, now_ms)
        fault_of = _no_fault if consumers is None else faults_of_commit(consumers, request)
        expiry_ms = None if request.retention_time_ms < 0 else now_ms + request.retention_time_ms
        self._write(request, fault_of, expiry_ms, token, now_ms, effects)

    def txn_commit(self, request: TxnOffsetCommitRequest, token: Token, now_ms: int, effects: Effects) -> None:
        """TxnOffsetCommit: what is written is pending until its transaction's marker comes."""
        group = self._groups.get(request.group_id)
        consumers = self._consumers.get(request.group_id)
        fault = _txn_commit_fault(group, request) if consumers is None else ErrorCode.NONE
        if not request.group_id:
            fault = ErrorCode.INVALID_GROUP_ID
        if fault is not ErrorCode.NONE:
            effects.reply(token, OffsetCommitResponse(tuple(_result(offset, fault) for offset in request.offsets)))
            return
        if group is not None and request.member_id in group.members:
            self._membership.refresh(group, request.member_id, now_ms)
        is_of_nobody = _is_of_nobody(request)
        fault_of = _no_fault if consumers is None or is_of_nobody else faults_of_txn_commit(consumers, request)
        self._write(request, fault_of, None, token, now_ms, effects)

    def _write(
        self,
        request: OffsetCommitRequest | TxnOffsetCommitRequest,
        fault_of: Callable[[OffsetToCommit], ErrorCode],
        expiry_ms: int | None,
        token: Token,
        now_ms: int,
        effects: Effects,
    ) -> None:
        records: dict[OffsetKey, Record] = {}  # the last one of a partition that is named again
        results: list[PartitionResult] = []
        size = 0
        for offset in request.offsets:
            metadata = offset.metadata or ""
            if (fault := fault_of(offset)) is not ErrorCode.NONE:
                results.append(_result(offset, fault))
                continue
            if len(metadata) > self._limits.offset_metadata_bytes_max:
                results.append(_result(offset, ErrorCode.OFFSET_METADATA_TOO_LARGE))
                continue
            committed = CommittedOffset(
                Offset(offset.offset), LeaderEpoch(offset.leader_epoch), metadata, now_ms, expiry_ms, offset.topic_id
            )
            key = OffsetKey(request.group_id, offset.topic, offset.partition)
            size -= size_of(records[key]) if key in records else 0
            records[key] = offset_record(key, committed)
            size += size_of(records[key])
            if size > OWN_BATCH_BYTES_MAX:  # no group id or name is copied for more partitions than can be written
                too_large = tuple(_result(each, ErrorCode.UNKNOWN_SERVER_ERROR) for each in request.offsets)
                effects.reply(token, OffsetCommitResponse(too_large))
                return
            results.append(_result(offset, ErrorCode.NONE))

        def written(later: Effects, _now_ms: int) -> None:
            later.reply(token, OffsetCommitResponse(tuple(results)))

        def failed(later: Effects, error: ErrorCode, _now_ms: int) -> None:
            later.reply(token, OffsetCommitResponse(tuple(_failed(result, error) for result in results)))

        if records and isinstance(request, TxnOffsetCommitRequest):
            self._begin_pending(list(records), list(records.values()), request.producer, effects, written, failed)
        elif records:
            self._begin_commit(request.group_id, list(records.values()), effects, written, failed)
        else:
            self._ahead.answer(request.group_id, effects, now_ms, written, failed)

    def _begin_commit(
        self, group_id: str, records: Sequence[Record], effects: Effects, on_written: OnWritten, on_failed: OnFailed
    ) -> None:
        self._committing[group_id] += 1

        def written(later: Effects, now_ms: int) -> None:
            self._end_commit(group_id)
            on_written(later, now_ms)

        def failed(later: Effects, error: ErrorCode, now_ms: int) -> None:
            self._end_commit(group_id)
            on_failed(later, error, now_ms)

        self._writes.begin(effects, records, written, failed)

    def _end_commit(self, group_id: str) -> None:
        self._committing[group_id] -= 1
        if not self._committing[group_id]:
            del self._committing[group_id]

    def _begin_pending(
        self,
        keys: Sequence[OffsetKey],
        records: Sequence[Record],
        producer: Producer,
        effects: Effects,
        on_written: OnWritten,
        on_failed: OnFailed,
    ) -> None:
        """Offsets in a transaction."""
        self.pending.begin_write(keys)

        def written(later: Effects, now_ms: int) -> None:
            self.pending.end_write(keys)
            on_written(later, now_ms)

        def failed(later: Effects, error: ErrorCode, now_ms: int) -> None:
            self.pending.end_write(keys)
            on_failed(later, error, now_ms)

        self._writes.begin(effects, records, written, failed, producer=producer)

    # Rule: A marker takes its place among the writes of its partition: what was sent in the transaction before is in
    # front of it, and nothing of it comes behind. Held by tests/coordinator/test_transactions.py.
    def end_transaction(self, end: TransactionEnd, token: Token, effects: Effects) -> None:
        """Writes a marker."""
        producer_id = end.producer.producer_id
        self.pending.begin_marker(producer_id)

        def written(later: Effects, _now_ms: int) -> None:
            self.pending.end_marker(producer_id)
            later.reply(token, MarkerResponse(ErrorCode.NONE))

        def failed(later: Effects, error: ErrorCode, _now_ms: int) -> None:
            self.pending.end_marker(producer_id)
            is_elsewhere = error is ErrorCode.NOT_COORDINATOR
            later.reply(token, MarkerResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER if is_elsewhere else error))

        self._writes.begin_end(effects, end, written, failed)

    def fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicAndPartition] | None,
        member_id: str | None = None,
        member_epoch: int = -1,
        *,
        require_stable: bool = False,
    ) -> OffsetFetchResponse:
        """OffsetFetch: these partitions, or with None all that are committed; an unknown group has nothing. What cannot
        be read is an error: as "nothing is committed" it would let the reader begin anew. So is what may be of a topic
        that is gone: it is to be asked for again; and with `require_stable` what an open transaction may yet commit.
        """
        consumers = self._consumers.get(group_id)
        fault = ErrorCode.NONE if consumers is None else fault_of_fetch(consumers, member_id, member_epoch)
        if fault is not ErrorCode.NONE:
            return OffsetFetchResponse(group_id, (), fault)
        partitions = None if partitions is None else list(partitions)
        committed = self._committed_of(group_id, partitions)
        unreadable = self._unreadable.get(group_id, set())
        fetched = []
        for topic, partition in [*committed, *sorted(unreadable)] if partitions is None else partitions:
            stored = committed.get((topic, partition))
            if require_stable and self.pending.is_pending(group_id, (topic, partition)):
                fetched.append(FetchedOffset(topic, partition, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT))
                continue
            fate = Fate.THERE if stored is None else self._fate_of(topic, topic_id_of(stored[-1]))
            if fate is Fate.GONE and partitions is None:
                continue
            if (topic, partition) in unreadable:
                fetched.append(FetchedOffset(topic, partition, error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
            elif stored is None or fate is Fate.GONE:
                fetched.append(FetchedOffset(topic, partition))
            elif fate is Fate.UNKNOWN:
                fetched.append(FetchedOffset(topic, partition, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT))
            else:
                offset, leader_epoch, metadata = stored[:3]
                fetched.append(FetchedOffset(topic, partition, Offset(offset), LeaderEpoch(leader_epoch), metadata))
        return OffsetFetchResponse(group_id, tuple(fetched))

    def delete(
        self, group_id: str, partitions: Collection[TopicAndPartition], token: Token, now_ms: int, effects: Effects
    ) -> None:
        """OffsetDelete: what is not committed counts as deleted; what cannot be read stays, and is an error. So is what
        an open transaction may yet commit.
        """
        fault, subscribed = self._subscribed_in(group_id)
        if fault is not ErrorCode.NONE:
            effects.reply(token, OffsetDeleteResponse(fault))
            return
        committed = self._committed_of(group_id, partitions)
        unreadable = self._unreadable.get(group_id, set())
        records: list[Record] = []
        results: list[PartitionResult] = []
        for topic, partition in dict.fromkeys(partitions):
            error = ErrorCode.NONE
            if subscribed is None or topic in subscribed:
                error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif (topic, partition) in unreadable:
                error = ErrorCode.UNKNOWN_SERVER_ERROR
            elif self.pending.may_come(group_id, (topic, partition)):
                error = ErrorCode.UNSTABLE_OFFSET_COMMIT
            results.append(PartitionResult(topic, partition, error))
            if error is ErrorCode.NONE and (topic, partition) in committed:
                records.append(offset_record(OffsetKey(group_id, topic, partition), None))

        def written(later: Effects, _now_ms: int) -> None:
            later.reply(token, OffsetDeleteResponse(ErrorCode.NONE, tuple(results)))

        def failed(later: Effects, error: ErrorCode, _now_ms: int) -> None:
            later.reply(token, OffsetDeleteResponse(error))

        if records:
            self._writes.begin_parts(effects, records, written, failed)
        else:
            self._ahead.answer(group_id, effects, now_ms, written, failed)

    def _subscribed_in(self, group_id: str) -> tuple[ErrorCode, frozenset[str] | None]:
        """The topics whose offsets have to stay, None for all of them; or why none may be deleted."""
        group = self._groups.get(group_id)
        consumers = self._consumers.get(group_id)
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID, None
        if consumers is not None:
            return ErrorCode.NONE, consumers.all_subscribed_names()
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, None
        if group.state is GroupState.EMPTY:
            return ErrorCode.NONE, frozenset()
        if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return ErrorCode.NON_EMPTY_GROUP, None
        return ErrorCode.NONE, group.subscribed_topics()

    def tombstones_of_group(self, group_id: str) -> Iterator[Record]:
        """Records that forget everything a group has committed."""
        for topic, partition in [*self._committed_of(group_id), *self._unreadable.get(group_id, ())]:
            yield offset_record(OffsetKey(group_id, topic, partition), None)

    def topics_changed(self, deleted: Collection[str] = ()) -> None:
        """All offsets are to be looked through for topics that are gone. Of `deleted` it is known by name: one of that
        name was deleted, which is all that is known of offsets without an id.
        """
        is_under_way = self._gone_pieces is not None
        if len(self._looks_for_gone) <= is_under_way:
            self._looks_for_gone.append(GoneTopics())
        self._looks_for_gone[-1].add(deleted)

    @property
    def looks_for_gone(self) -> bool:
        """Whether some have yet to be looked at."""
        return bool(self._looks_for_gone)

    # Rule: Offsets are looked through in short steps, each by what is true when it is made: what was committed since a
    # topic of its name was deleted stays. Held by tests/coordinator/test_looks.py.
    def tombstones_of_gone(self) -> list[Record]:
        """Of the next offsets, records that forget what was committed for topics that are gone. What is being written,
        or pending, is left for later: it may be of the next topic, and would come before its tombstone.
        """
        being_written, gone, left = self._writes.keys(), self._looks_for_gone[0], LOOKED_AT_ONCE
        if self._gone_pieces is None:
            self._gone_pieces = self.pieces(list(self._committed))
        records = []
        for piece in self._gone_pieces:
            committed = self._committed_of(piece.group_id, piece.partitions)
            for topic, partition in piece.partitions:
                stored = committed.get((topic, partition))
                if stored is None:
                    continue
                topic_id = topic_id_of(stored[-1])
                is_of_name = topic_id == NO_TOPIC_ID and OffsetKey(piece.group_id, topic, partition) in gone
                is_gone = is_of_name or self._fate_of(topic, topic_id) is Fate.GONE
                if is_gone and not self.pending.is_pending(piece.group_id, (topic, partition)):
                    records.append(offset_record(OffsetKey(piece.group_id, topic, partition), None))
            left -= 1 + len(piece.partitions)
            if left <= 0 or records:
                break
        else:
            self._gone_pieces = None
            self._looks_for_gone.popleft()
        return [record for record in records if record.key not in being_written]

    def pieces(self, group_ids: Iterable[str]) -> Iterator[Piece]:
        """What groups have committed, to be looked through."""
        return pieces(group_ids, self._committed)

    def look_for_unknown_topics(self) -> Iterator[bool]:
        """Whether offsets are stored of topics that are not known here, in steps: once it is True, and before maybe
        False. What transactions may yet commit counts as such: it is not looked at.
        """
        if self.pending.has_any:
            yield True
            return
        for piece in self.pieces(list(self._committed)):
            committed = self._committed.get(piece.group_id, {})
            found = (
                self._fate_of(partition[0], topic_id_of(stored[-1]))
                for partition in piece.partitions
                if (stored := committed.get(partition)) is not None
            )
            yield Fate.UNKNOWN in found

    def tombstones_of_expired(
        self, group: Group | ConsumerGroup, piece: Piece, now_ms: int
    ) -> tuple[list[Record], bool]:
        """Records that forget what is too old of a piece of a group's offsets, and whether the group then has none
        left, for certain. What cannot be read stays: nobody here knows how old it is. What is being committed anew
        stays as well.

        Old is counted from the commit; in a classic group that had members and has none, from when it became empty.
        Offsets of topics that a stable consumer group subscribes to do not age, nor any while it is unknown what is
        subscribed. In a group of KIP-848, which knows that at all times, those that nobody subscribes to do.
        """
        group_id, being_written = group.group_id, self._writes.keys()
        committed = self._committed_of(group_id, piece.partitions)
        subscribed, since_ms = _what_ages(group)
        expired = [
            record
            for key in piece.partitions
            if subscribed is not None
            and key[0] not in subscribed
            and (stored := committed.get(key)) is not None
            and self._is_too_old(stored, since_ms, now_ms)
            and not self.pending.is_pending(group_id, key)
            and (record := offset_record(OffsetKey(group_id, *key), None)).key not in being_written
        ]
        none_left = piece.is_whole and len(expired) == len(committed) and group_id not in self._unreadable
        may_come = group_id in self._committing or self.pending.may_come(group_id)
        return expired, none_left and not may_come

    def _is_too_old(self, stored: StoredOffset, since_ms: int | None, now_ms: int) -> bool:
        """`since_ms`: from when on it ages, None: from the commit."""
        _offset, _leader_epoch, _metadata, commit_timestamp_ms, expire_timestamp_ms, _topic_id = stored
        if expire_timestamp_ms is not None:
            return now_ms >= expire_timestamp_ms
        return now_ms - (commit_timestamp_ms if since_ms is None else since_ms) >= self._limits.offsets_retention_ms


def _what_ages(group: Group | ConsumerGroup) -> tuple[Container[str] | None, int | None]:
    """Of which topics offsets do not age (None: of none they do), and from when on (None: from their commit)."""
    if isinstance(group, ConsumerGroup):
        return group.all_subscribed_names(), None
    if group.protocol_type is None:
        return (), None
    if group.state is GroupState.EMPTY:
        return (), group.state_timestamp_ms
    return group.subscribed_topics() if group.state is GroupState.STABLE else None, None


def _commit_fault(group: Group | None, request: OffsetCommitRequest) -> ErrorCode:
    has_no_generation = request.generation_id < 0
    if has_no_generation and (group is None or group.state is GroupState.EMPTY):
        return ErrorCode.NONE
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND if request.knows_member_epochs else ErrorCode.ILLEGAL_GENERATION
    fault = group.fault_of_member(request.member_id, request.group_instance_id)
    if fault is not ErrorCode.NONE:
        return fault
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    completing = group.state is GroupState.COMPLETING_REBALANCE
    return ErrorCode.REBALANCE_IN_PROGRESS if completing else ErrorCode.NONE


def _is_of_nobody(request: TxnOffsetCommitRequest) -> bool:
    """It does not say which member sends it: clients of old cannot, and others need not."""
    return request.generation_id < 0 and not request.member_id and request.group_instance_id is None


def _txn_commit_fault(group: Group | None, request: TxnOffsetCommitRequest) -> ErrorCode:
    has_no_generation = request.generation_id < 0
    if group is None:
        return ErrorCode.NONE if has_no_generation else ErrorCode.ILLEGAL_GENERATION
    if _is_of_nobody(request) or (has_no_generation and group.state is GroupState.EMPTY):
        return ErrorCode.NONE
    fault = group.fault_of_member(request.member_id, request.group_instance_id)
    if fault is ErrorCode.NONE and request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    return fault


def _no_fault(_offset: OffsetToCommit) -> ErrorCode:
    return ErrorCode.NONE


def _result(offset: OffsetToCommit, error: ErrorCode) -> PartitionResult:
    return PartitionResult(offset.topic, offset.partition, error, offset.topic_id)


def _failed(result: PartitionResult, error: ErrorCode) -> PartitionResult:
    if result.error_code is not ErrorCode.NONE:
        return result
    return PartitionResult(result.topic, result.partition, error, result.topic_id)
