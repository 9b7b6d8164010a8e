"""When the data plane may write a partition's large batches once, straight to their segment.

`native/ring/straight.h` says how, `storage.PartitionStorage.place` where. Here is when: a partition has to be busy, and
no cut may lie behind the journal's replay position, because recovery cuts before it looks for such batches. A cut
follows a failure of the journal, and is behind the replay position until a checkpoint that began after it. A busy
partition whose segment no checkpoint names yet asks for one: until then each of its bytes is written twice.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpc_broker.broker.core_storage import Led
    from tpc_broker.broker.ports import DataPlane

log = logging.getLogger(__name__)

PLACEMENT_BYTES_MIN = limits.MIB // 2
"""A partition that brings so much at once may write large batches straight to its segment from then on."""
STRAIGHT_BATCH_BYTES_MIN = 64 * limits.KIB
"""Two parts of it, up to a block each, go to the journal and through the page cache."""
CHECKPOINT_ASKED_S: Final = 0.2
"""Between two checkpoints that are made so that a placement can be opened."""
WAIT_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class PlaneHold:
    """`storage_straight.Placement` of one partition."""

    plane: DataPlane
    handle: int

    def close(self) -> None:
        self.plane.close_placement(self.handle)

    def end_offset(self) -> int:
        return self.plane.straight_end(self.handle)


class Placements:
    """Those of one core."""

    def __init__(self, plane: DataPlane, led: Mapping[int, Led], want_checkpoint: Callable[[], None]) -> None:
        self._plane = plane
        self._led = led
        self._want_checkpoint = want_checkpoint
        self._asked_s = -CHECKPOINT_ASKED_S
        self._failures = self._failures_mended = self._failures_settled = 0
        self._ended = False

    def end(self) -> None:
        """Close all of them for good: the files behind them are about to be closed."""
        self._ended = True
        for led in self._led.values():
            self._plane.close_placement(led.handle)

    def journal_failed(self) -> None:
        """The data plane has closed all placements; none is opened before a checkpoint."""
        self._failures += 1

    def journal_mended(self) -> None:
        """The cuts are durable."""
        self._failures_mended = self._failures

    def checkpoint_begins(self) -> int:
        """What `checkpoint_done` is to be told when it succeeded."""
        return self._failures_mended

    def checkpoint_done(self, begun: int) -> None:
        self._failures_settled = begun

    async def open(self, led: Led, written_bytes: int) -> None:
        """After so much of a partition was written behind; with its lock."""
        reserved_position = led.files.active.reserved_end_position
        if self._plane.set_placement_space(led.handle, reserved_position) or written_bytes < PLACEMENT_BYTES_MIN:
            return
        if self._ended or led.is_internal or led.handle not in self._led or self._failures_settled != self._failures:
            return

        def open_it(descriptor: int) -> None:
            if led.handle in self._led and not self._ended:
                self._plane.open_placement(led.handle, led.files, descriptor, STRAIGHT_BATCH_BYTES_MIN)

        try:
            if not await led.files.place(open_it):
                self._ask_checkpoint()
        except OSError as error:
            log.debug("%s-%d: nothing is written straight: %s", led.files.topic, led.files.key.partition, error)

    def _ask_checkpoint(self) -> None:
        now_s = trio.current_time()
        if now_s - self._asked_s >= CHECKPOINT_ASKED_S:
            self._asked_s = now_s
            self._want_checkpoint()

    async def wait_closed(self, led: Led) -> None:
        """Until nothing is being written straight to a failed partition's segment: that is about to be replaced."""
        self._plane.close_placement(led.handle)
        while not self._plane.journal_error() and led.handle in self._led:
            if self._plane.straight_end(led.handle) <= self._plane.bounds(led.handle).high_watermark:
                return
            await trio.sleep(WAIT_S)
