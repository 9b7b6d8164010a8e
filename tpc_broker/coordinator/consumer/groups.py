"""The consumer groups of a coordinator by their id, and what is asked of them beside heartbeats: `ConsumerGroups`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.coordinator.consumer.group import ConsumerGroup, partitions_of
from tpc_broker.coordinator.consumer.messages import DescribedConsumer, DescribedConsumerGroup
from tpc_broker.coordinator.consumer.records import (
    CURRENT_KEY,
    GROUP_EPOCH_KEY,
    MEMBER_KEY,
    PARTITION_METADATA_KEY,
    REGEX_KEY,
    TARGET_EPOCH_KEY,
    TARGET_KEY,
    ConsumerKey,
    consumer_record,
    is_of_later_release,
    read_consumer_key,
    read_consumer_value,
)
from tpc_broker.coordinator.group import CONSUMER_PROTOCOL_TYPE
from tpc_broker.coordinator.messages import ListedGroup
from tpc_broker.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator

    from tpc_broker.coordinator.assignors.spec import Partitions
    from tpc_broker.coordinator.consumer.messages import ConsumerSettings
    from tpc_broker.coordinator.consumer.records import CurrentAssignment
    from tpc_broker.coordinator.effects import Record
    from tpc_broker.coordinator.group import Held
    from tpc_broker.coordinator.messages import OffsetCommitRequest, OffsetToCommit, TxnOffsetCommitRequest

GROUP_TYPE: Final = "consumer"


class ConsumerGroups:
    """`by_id` has a group from the first of its records until the last one is gone."""

    def __init__(self, held: Held) -> None:
        self.by_id: dict[str, ConsumerGroup] = {}
        self._held = held
        self._is_loaded = False
        self._of_later_release: dict[str, set[bytes]] = {}
        """Keys whose values came from a later release, by the id of their group."""

    def replay(self, key: bytes, name: ConsumerKey, value: bytes | None) -> bool:
        """Applies a record; False when its value is of a later release, and is to be kept as it is."""
        if name.key_type == PARTITION_METADATA_KEY:
            return True
        is_later = value is not None and is_of_later_release(value)
        self._mark(key, name.group_id, is_later=is_later)
        read = None if value is None or is_later else read_consumer_value(name.key_type, value)
        group = self.by_id.get(name.group_id)
        if group is None and read is None:
            return not is_later
        if group is None:
            group = self.by_id[name.group_id] = ConsumerGroup(name.group_id, self._held)
            if self._is_loaded:
                group.finish_loading()
        group.apply(name, read)
        if not group.is_stored:
            del self.by_id[name.group_id]
        return not is_later

    def _mark(self, key: bytes, group_id: str, *, is_later: bool) -> None:
        keys = self._of_later_release.setdefault(group_id, set())
        (keys.add if is_later else keys.discard)(key)
        if not keys:
            del self._of_later_release[group_id]

    def finish_loading(self) -> Generator[None, None, dict[bytes, bytes]]:
        """All is replayed; group by group. Returns what can be read of those of which a later release has stored
        something: they do not come to life here, and all of what is stored of them is kept for it.
        """
        self._is_loaded = True
        kept: dict[bytes, bytes] = {}
        for group_id in self._of_later_release:
            kept |= self._take_out(group_id)
        for group_id, group in list(self.by_id.items()):
            group.finish_loading()
            if not group.is_stored:
                del self.by_id[group_id]
            yield
        return kept

    def _take_out(self, group_id: str) -> dict[bytes, bytes]:
        group = self.by_id.pop(group_id, None)
        stored = {} if group is None else {key: value for key, value in group.records() if value is not None}
        for key in stored:
            name = read_consumer_key(key)
            if group is not None and name is not None:
                group.apply(name, None)  # so that it counts for nothing
        return stored

    def is_of_later_release(self, group_id: str) -> bool:
        """Whether something is stored of a group that cannot be read here."""
        return group_id in self._of_later_release

    # Questions

    def listed(self, states: Collection[str]) -> Iterator[ListedGroup]:
        """For ListGroups; `states` in small letters, all of them when it is empty."""
        for group in self.by_id.values():
            state = group.state.value
            if not states or state.lower() in states:
                yield ListedGroup(group.group_id, CONSUMER_PROTOCOL_TYPE, state, GROUP_TYPE)

    def described(self, group_id: str, settings: ConsumerSettings) -> DescribedConsumerGroup | None:
        """For ConsumerGroupDescribe; None when there is no such group."""
        group = self.by_id.get(group_id)
        if group is None:
            return None
        members = tuple(
            DescribedConsumer(
                member_id=member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=group.current_of(member_id).epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                topic_names=member.topic_names,
                topic_regex=member.topic_regex,
                assignment=_held_by(group.current_of(member_id)),
                target=group.target_of(member_id),
                is_classic=member.classic is not None,
            )
            for member_id, member in group.members.items()
        )
        return DescribedConsumerGroup(
            group_id=group_id,
            state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor=group.preferred_assignor(settings.assignors),
            members=members,
        )


def _held_by(current: CurrentAssignment) -> Partitions:
    """What a member has: also what it has yet to give back."""
    held = partitions_of(current.assigned)
    if not current.pending_revocation:
        return held
    for topic_id, partitions in partitions_of(current.pending_revocation).items():
        held[topic_id] = held.get(topic_id, frozenset()) | partitions
    return held


def tombstones_of(group: ConsumerGroup) -> list[Record]:
    """That remove all that is stored of a group but its offsets, in Kafka's order. The one of metadata of partitions is
    among them, whether older releases of Kafka have written any or not.
    """
    by_type: tuple[tuple[int, Iterable[str]], ...] = (
        (CURRENT_KEY, group.currents),
        (TARGET_KEY, group.targets),
        (TARGET_EPOCH_KEY, ("",)),
        (MEMBER_KEY, group.members),
        (REGEX_KEY, group.regexes),
        (PARTITION_METADATA_KEY, ("",)),
        (GROUP_EPOCH_KEY, ("",)),
    )
    return [
        consumer_record(ConsumerKey(key_type, group.group_id, name), None)
        for key_type, names in by_type
        for name in names
    ]


# Rule: A member of a consumer group commits in its epoch, or in an earlier one what it has had since then: a commit
# that was sent before its client heard of the new epoch counts, and one of a partition's former owner does not. Held by
# tests/coordinator/consumer/test_commits.py.
def faults_of_commit(group: ConsumerGroup, request: OffsetCommitRequest) -> Callable[[OffsetToCommit], ErrorCode]:
    """What is wrong with each partition of a commit to a group."""
    epoch = request.generation_id
    if epoch < 0 and not group.members:
        return lambda _offset: ErrorCode.NONE
    member = group.members.get(request.member_id)
    if member is None:
        return lambda _offset: ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic is None and not request.knows_member_epochs:
        return lambda _offset: ErrorCode.UNSUPPORTED_VERSION
    return _faults_by_epoch(group, request.member_id, epoch)


def faults_of_txn_commit(
    group: ConsumerGroup, request: TxnOffsetCommitRequest
) -> Callable[[OffsetToCommit], ErrorCode]:
    """The same of one in a transaction, which says that a member sends it."""
    if request.generation_id < 0 and not group.members:
        return lambda _offset: ErrorCode.NONE
    if request.member_id not in group.members:
        return lambda _offset: ErrorCode.UNKNOWN_MEMBER_ID
    fault_of = _faults_by_epoch(group, request.member_id, request.generation_id)
    if request.knows_member_epochs:
        return fault_of
    return lambda offset: ErrorCode.NONE if fault_of(offset) is ErrorCode.NONE else ErrorCode.ILLEGAL_GENERATION


def _faults_by_epoch(group: ConsumerGroup, member_id: str, epoch: int) -> Callable[[OffsetToCommit], ErrorCode]:
    is_classic = group.members[member_id].classic is not None
    current = group.current_of(member_id)
    stale = ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH

    def fault_of(offset: OffsetToCommit) -> ErrorCode:
        if epoch == current.epoch:
            return ErrorCode.NONE
        if epoch > current.epoch:
            return stale
        for held in (current.assigned, current.pending_revocation):
            since = held.get(offset.topic_id, {}).get(offset.partition)
            if since is not None:
                return ErrorCode.NONE if epoch >= since else stale
        return stale

    return fault_of


def fault_of_fetch(group: ConsumerGroup, member_id: str | None, member_epoch: int) -> ErrorCode:
    """What is wrong with an OffsetFetch; one without a member is an administrator's."""
    if member_id is None and member_epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member_epoch == group.current_of(member_id or "").epoch:
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
