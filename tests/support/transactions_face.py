"""What the face of the data plane for its tests offers of transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.plane_values import checked
from tpc_broker._ring import ffi, lib
from tpc_broker.error_codes import ErrorCode

if TYPE_CHECKING:
    from tests.support.plane_face import Appended


class TransactionsFace:
    pointer: Any

    def _appended(self, result: Any) -> Appended:
        raise NotImplementedError

    def take_transactions(self, *, on: bool = True) -> None:
        lib.tpc_plane_take_transactions(self.pointer, on)

    def begin_verification(
        self, handle: int, producer: tuple[int, int], sequence: int = 0, *, begins_anew: bool = True
    ) -> int | ErrorCode:
        """`producer`: id and epoch. The guard, or the error that a batch of it has."""
        guard = ffi.new("uint32_t *")
        result = lib.tpc_plane_begin_verification(self.pointer, handle, *producer, sequence, begins_anew, guard)
        return ErrorCode(result) if checked(result, "verify") else guard[0]

    def end_verification(self, handle: int, producer_id: int, guard: int) -> None:
        lib.tpc_plane_end_verification(self.pointer, handle, producer_id, guard)

    def append_marker(
        self, handle: int, producer: tuple[int, int], coordinator_epoch: int, *, commits: bool, version: int = 2
    ) -> Appended:
        """`producer`: id and epoch; `version` of transactions."""
        result = ffi.new("tpc_append_result *")
        returned = lib.tpc_plane_append_marker(
            self.pointer, handle, *producer, coordinator_epoch, commits, version, result
        )
        checked(returned, "append a marker")
        return self._appended(result)
