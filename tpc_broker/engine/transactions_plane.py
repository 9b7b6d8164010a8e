"""What the data plane has of transactions (`TransactionsPort`): verifications, and what was aborted."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from tpc_broker._ring import ffi, lib
from tpc_broker.broker.producers_port import KnownAborted
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.log.indexes import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker._ring import tpc_plane

ABORTED_FIRST: Final = 64


class TransactionsPlane:
    _plane: tpc_plane

    def take_transactions(self, *, on: bool) -> None:
        lib.tpc_plane_take_transactions(self._plane, on)

    def _producers_left(self, handle: int) -> int | None:
        values, state = ffi.new("tpc_plane_statistics *"), ffi.new("tpc_partition_state *")
        lib.tpc_plane_get_statistics(self._plane, values)
        is_there = lib.tpc_partition_get_state(self._plane, handle, state) == 0
        return int(state.producers_count) if values.producers_forgotten and is_there else None

    def bound_producers(self, bytes_max: int) -> None:
        lib.tpc_plane_bound_producers(self._plane, bytes_max)

    def begin_verification(
        self, handle: int, producer_id: int, producer_epoch: int, sequence: int, *, begins_anew: bool
    ) -> int | ErrorCode:
        guard = ffi.new("uint32_t *")
        result = lib.tpc_plane_begin_verification(
            self._plane, handle, producer_id, producer_epoch, sequence, begins_anew, guard
        )
        if result in (-errno.ENOENT, -errno.EPERM):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if result in (-errno.ENOMEM, -errno.EBUSY):
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode(result) if result else guard[0]

    def end_verification(self, handle: int, producer_id: int, guard: int) -> None:
        lib.tpc_plane_end_verification(self._plane, handle, producer_id, guard)

    def aborted(self, handle: int, offset: int, upto: int) -> KnownAborted:
        room, count = 0, ABORTED_FIRST
        known = ffi.new("tpc_known_aborted *")
        while count > room:
            room = count
            rows = ffi.new("tpc_told_aborted[]", room)
            count = lib.tpc_partition_aborted(self._plane, handle, offset, upto, rows, room, known)
        if count < 0:
            raise PartitionOfflineError("the partition was withdrawn")
        entries = [
            AbortedTransaction(row.producer_id, row.first_offset, row.last_offset, row.stable_offset)
            for row in rows[0:count]
        ]
        return KnownAborted(entries, known.from_offset, known.room)

    def add_aborted(self, handle: int, offset: int, upto: int, added: Sequence[AbortedTransaction]) -> None:
        rows = ffi.new("tpc_told_aborted[]", [tuple(entry) for entry in added])
        lib.tpc_partition_add_aborted(self._plane, handle, offset, upto, rows, len(added))
