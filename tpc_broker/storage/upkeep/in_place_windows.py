"""When the data plane may write a partition's large batches once, in place into their segment.

`native/journal/in_place.h` says how, `storage.PartitionStorage.place` where. Here is when: a partition has to be busy,
and no cut may lie behind the journal's replay position, because recovery cuts before it looks for such batches. A cut
follows a failure of the journal, and is behind the replay position until a checkpoint that began after it. A busy
partition whose segment no checkpoint names yet asks for one: until then each of its bytes is written twice.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker import limits
from tpc_broker.errors import LeadershipLostError, PartitionOfflineError
from tpc_broker.storage.ports import InPlaceWindowParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpc_broker.storage.ports import StoragePlane
    from tpc_broker.storage.segments.leader_partition import LeaderPartition
    from tpc_broker.storage.segments.partition_storage import PartitionStorage
    from tpc_broker.storage.upkeep.maintenance_requests import MaintenanceRequests

log = logging.getLogger(__name__)

IN_PLACE_BYTES_MIN_OPEN = limits.MIB // 2
"""A partition that brings so much at once may write large batches in place into its segment from then on."""
IN_PLACE_BATCH_BYTES_MIN = 64 * limits.KIB
"""Two parts of it, up to a block each, go to the journal and through the page cache."""
CHECKPOINT_ASKED_S: Final = 0.2
"""Between two checkpoints that are made so that an in-place window can be opened."""


@dataclass(frozen=True, slots=True)
class PlaneWindow:
    """`roll_guard.InPlaceWindow` of one partition."""

    plane: StoragePlane
    handle: int

    def close(self) -> None:
        self.plane.close_in_place_window(self.handle)

    def end_offset(self) -> int:
        try:
            return self.plane.state(self.handle).in_place_end_offset
        except PartitionOfflineError:  # it was withdrawn, with everything that it had in memory
            return -1


def in_place_window(files: PartitionStorage, descriptor: int, batch_bytes_min: int) -> InPlaceWindowParams:
    """A window on the active segment as it is now; `descriptor` is one for direct writes to it."""
    active = files.active
    return InPlaceWindowParams(
        active.base_offset, files.settings.segment_bytes, files.written_end_offset, active.size_bytes,
        active.reserved_end_position, descriptor, batch_bytes_min,
    )  # fmt: skip


class InPlaceWindows:
    """Those of one core."""

    def __init__(self, plane: StoragePlane, led: Mapping[int, LeaderPartition], requests: MaintenanceRequests) -> None:
        self._plane = plane
        self._led = led
        self._requests = requests
        self._asked_s = -CHECKPOINT_ASKED_S
        self._failures = self._failures_mended = self._failures_settled = 0
        self._ended = False

    def end(self) -> None:
        """Close all of them for good: the files behind them are about to be closed."""
        self._ended = True
        for led in self._led.values():
            self._plane.close_in_place_window(led.handle)

    def journal_failed(self) -> None:
        """The data plane has closed all in_place_windows; none is opened before a checkpoint."""
        self._failures += 1

    def journal_mended(self) -> None:
        """The cuts are durable."""
        self._failures_mended = self._failures

    def log_was_cut(self) -> None:
        """A cut of a replica's log is durable: none is opened before a checkpoint, as after a failure."""
        self._failures += 1
        self._failures_mended = self._failures

    def checkpoint_begins(self) -> int:
        """What `checkpoint_done` is to be told when it succeeded."""
        return self._failures_mended

    def checkpoint_done(self, begun: int) -> None:
        self._failures_settled = begun

    async def open(self, led: LeaderPartition, written_bytes: int) -> None:
        """After so much of a partition was written behind; with its lock."""
        reserved_position = led.files.active.reserved_end_position
        if self._plane.set_in_place_space(led.handle, reserved_position) or written_bytes < IN_PLACE_BYTES_MIN_OPEN:
            return
        if led.is_internal or not self._may_open(led):
            return

        def open_it(descriptor: int) -> None:
            if self._may_open(led):
                window = in_place_window(led.files, descriptor, IN_PLACE_BATCH_BYTES_MIN)
                self._plane.open_in_place_window(led.handle, window)

        try:
            if not await led.files.place(open_it):
                self._ask_checkpoint()
        except OSError as error:
            log.debug("%s-%d: nothing is written in place: %s", led.files.topic, led.files.key.partition, error)

    def _may_open(self, led: LeaderPartition) -> bool:
        is_settled = not self._ended and self._failures_settled == self._failures
        return is_settled and led.handle in self._led and not led.is_leaving

    def _ask_checkpoint(self) -> None:
        now_s = trio.current_time()
        if now_s - self._asked_s >= CHECKPOINT_ASKED_S:
            self._asked_s = now_s
            self._requests.checkpoint.ask()

    async def wait_closed(self, led: LeaderPartition) -> None:
        """Until nothing is being written in place into a failed partition's segment: that is about to be replaced."""
        self._plane.close_in_place_window(led.handle)
        while not self._plane.journal_error() and led.handle in self._led:
            state = self._plane.state(led.handle)
            if state.in_place_end_offset <= state.durable_offset:
                return
            with contextlib.suppress(LeadershipLostError, PartitionOfflineError):  # it is looked at again
                await self._plane.wait_settled(led.handle)
