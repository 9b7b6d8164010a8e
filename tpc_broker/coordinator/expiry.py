"""Offsets that are too old go, and with the last of them the group: `Expiry`, some at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tpc_broker.coordinator.effects import ignore_failure
from tpc_broker.coordinator.group import GroupState
from tpc_broker.coordinator.looks import LOOKED_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tpc_broker.coordinator.consumer.group import ConsumerGroup
    from tpc_broker.coordinator.deletion import LifeAndDeath
    from tpc_broker.coordinator.effects import Effects, Record, Writes
    from tpc_broker.coordinator.group import Group
    from tpc_broker.coordinator.looks import Piece
    from tpc_broker.coordinator.offsets import Offsets


class Expiry:
    """Of one coordinator: the look that is under way, if one is."""

    def __init__(  # noqa: PLR0913 - what becomes of a group is its coordinator's
        self,
        groups: Mapping[str, Group],
        consumers: Mapping[str, ConsumerGroup],
        offsets: Offsets,
        writes: Writes,
        life: LifeAndDeath,
        begin_burial: Callable[[str, list[Record], Effects], None],
        forget_unused: Callable[[Group], None],
        maybe_unused: set[str],
    ) -> None:
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._writes = writes
        self._life = life
        self._begin_burial = begin_burial
        self._forget_unused = forget_unused
        self._maybe_unused = maybe_unused
        self._pieces: Iterator[Piece] | None = None

    @property
    def is_under_way(self) -> bool:
        return self._pieces is not None

    def begin(self) -> None:
        """First those of groups whose burial runs ahead, and so must find room."""
        if self._pieces is None:
            self._pieces = self._offsets.pieces([*self._consumers, *self._groups])

    # Rule: Offsets expire in short steps, each by what is true when it is made. A group of many is buried when it is
    # seen to have none any more. Held by tests/coordinator/test_looks.py.
    def go_on(self, now_ms: int, effects: Effects) -> None:
        """The next ones."""
        assert self._pieces is not None
        left = LOOKED_AT_ONCE
        for piece in self._pieces:
            if (consumers := self._consumers.get(piece.group_id)) is not None:
                self._expire_of_consumers(consumers, piece, now_ms, effects)
            elif (group := self._groups.get(piece.group_id)) is not None:
                self._expire_of_group(group, piece, now_ms, effects)
            left -= 1 + len(piece.partitions)
            if left <= 0 or effects.writes:
                return
        self._pieces = None

    def _expire_of_consumers(self, consumers: ConsumerGroup, piece: Piece, now_ms: int, effects: Effects) -> None:
        records, none_left = self._offsets.tombstones_of_expired(consumers, piece, now_ms)
        if records:
            self._begin_burial(consumers.group_id, records, effects)
        if none_left and not consumers.members:
            self._life.bury_consumers(consumers, effects)

    def _expire_of_group(self, group: Group, piece: Piece, now_ms: int, effects: Effects) -> None:
        records, none_left = self._offsets.tombstones_of_expired(group, piece, now_ms)
        is_over = none_left and group.state is GroupState.EMPTY and not group.pending_members
        # One that a later release wrote stays stored, and is forgotten here when the last of its offsets is gone.
        if is_over and not self._life.is_of_later_release(group.group_id):
            records = self._life.bury(group, now_ms, effects)
            self._begin_burial(group.group_id, records, effects)
        elif records:
            over = {group.group_id} if is_over else set()
            self._writes.begin_parts(effects, records, partial(self._note_unused, over), ignore_failure)
        elif is_over:
            self._forget_unused(group)

    def _note_unused(self, group_ids: set[str], _effects: Effects, _now_ms: int) -> None:
        self._maybe_unused |= group_ids
