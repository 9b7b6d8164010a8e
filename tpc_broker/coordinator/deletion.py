"""DeleteGroups: `Deletion` of a coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.coordinator.effects import size_of
from tpc_broker.coordinator.group import GroupState
from tpc_broker.coordinator.messages import DeleteGroupsResponse
from tpc_broker.error_codes import ErrorCode
from tpc_broker.limits import OWN_BATCH_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpc_broker.coordinator.consumer.ahead import Ahead
    from tpc_broker.coordinator.consumer.group import ConsumerGroup
    from tpc_broker.coordinator.effects import Effects, Record, Token, Writes
    from tpc_broker.coordinator.group import Group
    from tpc_broker.coordinator.offsets import Offsets


class LifeAndDeath(NamedTuple):
    """What a coordinator does with its groups: `bury` and `bury_consumers` take one out of life, `revive` makes one
    again from what is stored of it.
    """

    is_of_later_release: Callable[[str], bool]
    bury: Callable[[Group, int, Effects], list[Record]]
    bury_consumers: Callable[[ConsumerGroup, Effects], None]
    revive: Callable[[str, int, Effects], None]


class Deletion:
    """Of one coordinator's groups: `groups` are the classic ones. `at_once`: so many may be deleted by one request."""

    def __init__(
        self,
        groups: Mapping[str, Group],
        consumers: Mapping[str, ConsumerGroup],
        offsets: Offsets,
        writes: Writes,
        ahead: Ahead,
        at_once: int,
        life: LifeAndDeath,
    ) -> None:
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._writes = writes
        self._ahead = ahead
        self._at_once = at_once
        self._life = life

    # Rule: A group of which a transaction may yet commit offsets stays. (Kafka deletes it, and what is committed then
    # is nowhere.) Held by tests/coordinator/test_transactions.py.
    # Rule: A group goes with all its offsets in one batch. When they are more than one holds, they go first, a batch
    # after the other, while the group lives: what is to be written at a time has room, whatever a group has committed.
    # Held by tests/broker/test_group_bounds.py.
    def delete(self, group_ids: Sequence[str], token: Token, now_ms: int, effects: Effects) -> None:
        """DeleteGroups: only groups without members, with all their offsets."""
        results: dict[str, ErrorCode] = {}
        for group_id in dict.fromkeys(group_ids):
            results[group_id] = self._fault_of(group_id, has_room=len(results) < self._at_once)
        deleted = [group_id for group_id, error in results.items() if error is ErrorCode.NONE]
        first_part = self._more_than_a_batch(deleted)
        records = self._bury(deleted, now_ms, effects) if first_part is None else first_part
        left = 1 + bool(records) + len(results)

        def ended(later: Effects, _now_ms: int) -> None:
            nonlocal left
            left -= 1
            if not left:
                later.reply(token, DeleteGroupsResponse(tuple(results.items())))

        def failed(later: Effects, error: ErrorCode, later_ms: int) -> None:
            results.update(dict.fromkeys(deleted, error))
            for group_id in deleted:
                self._life.revive(group_id, later_ms, later)
            ended(later, later_ms)

        def go_on(later: Effects, later_ms: int) -> None:
            self.delete(group_ids, token, later_ms, later)

        if records:
            self._writes.begin_parts(effects, records, ended if first_part is None else go_on, failed)
        if first_part is None:
            self._bury_consumers(deleted, effects)
        for group_id in results:
            self._ahead.answer(group_id, effects, now_ms, ended, failed)
        ended(effects, now_ms)

    def _bury(self, group_ids: Sequence[str], now_ms: int, effects: Effects) -> list[Record]:
        records: list[Record] = []
        for group_id in group_ids:
            group = self._groups.get(group_id)
            of_offsets = self._offsets.tombstones_of_group(group_id)
            records += of_offsets if group is None else self._life.bury(group, now_ms, effects)
        return records

    def _bury_consumers(self, group_ids: Sequence[str], effects: Effects) -> None:
        for group_id in group_ids:
            consumers = self._consumers.get(group_id)
            if consumers is not None:
                self._life.bury_consumers(consumers, effects)

    def _more_than_a_batch(self, group_ids: Sequence[str]) -> list[Record] | None:
        """A batch of what forgets their offsets, if that is not all of it."""
        part: list[Record] = []
        part_bytes = 0
        for group_id in group_ids:
            for record in self._offsets.tombstones_of_group(group_id):
                part_bytes += size_of(record)
                if part_bytes > OWN_BATCH_BYTES_MAX:
                    return part
                part.append(record)
        return None

    def _fault_of(self, group_id: str, *, has_room: bool) -> ErrorCode:
        consumers = self._consumers.get(group_id)
        group = self._groups.get(group_id)
        if (consumers is not None and consumers.members) or (group is not None and group.state is not GroupState.EMPTY):
            return ErrorCode.NON_EMPTY_GROUP
        if self._life.is_of_later_release(group_id):
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if group is None and consumers is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self._offsets.pending.may_come(group_id):
            return ErrorCode.UNSTABLE_OFFSET_COMMIT
        if consumers is not None and not (has_room and self._ahead.has_room()):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE
