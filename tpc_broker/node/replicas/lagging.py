"""Followers of carried groups that lack more than is in memory: their leader's core reads it for them.

Such a group stays C's (`native/replication/steady_lag.c`): C says what a follower needs next, it is read from the
segments here, and C sends it as it sends what is in memory. So nobody else of the group waits for the one that is
behind. What deletion or compaction has taken travels as segments, which is the machine's to see to: then the group is
taken back.

A follower that lacks something is not in sync until it has what the log had when that was found. While the group is
carried its machine sleeps, so it is looked at here, and whoever asks who is in sync is told that this has changed. A
group that the machine drives because a follower lacks something is given away as soon as that one follows at all.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tpc_broker.errors import PartitionOfflineError
from tpc_broker.raft.items import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import trio

    from tpc_broker.engine.data_plane import RingDataPlane
    from tpc_broker.engine.steady_plane import SteadyWant
    from tpc_broker.raft.core import RaftCore
    from tpc_broker.raft.group import Group
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

log = logging.getLogger(__name__)

READ_BYTES: Final = 4 << 20
"""Of a follower at once: as much as it may have unacknowledged."""
LOOK_MS: Final = 200
UNREADABLE: Final = (PartitionOfflineError, ValueError, OSError, LookupError)
"""What cannot be read from segments now. ValueError: damage, or a segment that has just been deleted."""


class Lagging:
    """Of one core; touched by its thread only. `note_awake` tells those who watch machines that one has changed."""

    def __init__(
        self, core: RaftCore, plane: RingDataPlane, names: Mapping[int, str], note_awake: Callable[[str], None]
    ) -> None:
        self._core = core
        self._plane = plane
        self._names = names
        self._note_awake = note_awake
        self._carried: dict[str, None] = {}
        """Groups in C with a follower that is not in sync."""
        self._looked_ms = 0

    def given(self, group: str, machine: Group) -> None:
        """C carries it from now on."""
        if machine.is_leader and not machine.all_in_sync():
            self._carried[group] = None

    def machine_reads(self, group: str) -> None:
        """A follower needs what is in segments only, and the machine has asked for it."""
        self._core.groups[group].is_awaited = True

    def turn(
        self,
        tasks: trio.Nursery,
        files_of: Callable[[str], PartitionStorage | None],
        now_ms: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        """In each turn of the driver: who is in sync by now, and what is to be read, by tasks that wake it."""

        async def read(group: str, files: PartitionStorage, want: SteadyWant) -> None:
            await self.read(group, files, want, now_ms)
            wake()

        self.look(now_ms())
        for group, want in self.wants():
            files = files_of(group)
            if files is not None:
                tasks.start_soon(read, group, files, want)

    def wants(self) -> list[tuple[str, SteadyWant]]:
        """What is to be read now (`read`)."""
        found = []
        for want in self._plane.steady_wants():
            group = self._names.get(want.handle)
            if group is not None and group in self._core.groups:
                self._lags(group, want)
                found.append((group, want))
        return found

    def lacks(self, lacking: SteadyWant) -> None:
        """It was sent that, and has not answered for long: perhaps it was lost."""
        group = self._names.get(lacking.handle)
        if group is not None and group in self._core.groups:
            self._lags(group, lacking, is_silent=True)

    def _lags(self, group: str, want: SteadyWant, *, is_silent: bool = False) -> None:
        machine = self._core.look(group)
        self._carried[group] = None
        if machine.carried and machine.lags(want.peer, is_silent=is_silent):
            self._note_awake(group)

    async def read(self, group: str, files: PartitionStorage, want: SteadyWant, now_ms: Callable[[], int]) -> None:
        """For one follower; if that cannot be, the group is the machine's again."""
        try:
            upto = self._plane.bounds(want.handle).log_end_offset
            data = await files.read(want.offset, READ_BYTES, upto)
        except UNREADABLE as error:
            log.warning("%s: offset %d cannot be read for a follower: %s", files.label, want.offset, error)
            data = b""
        if self._names.get(want.handle) != group or group not in self._core.groups:
            return
        if self._is_gone(group, want) or self._plane.steady_give(want, data) is False:
            self._core.take_back(group, now_ms())

    def _is_gone(self, group: str, want: SteadyWant) -> bool:
        is_here = self.follow_deletion(group, want.handle)
        return not is_here or self._core.look(group).needs_segments(Position(want.term, want.offset))

    def follow_deletion(self, group: str, handle: int) -> bool:
        """What was deleted from the log's front the machine has no more either. False: the partition is not here."""
        machine = self._core.look(group)
        try:
            log_start_offset = self._plane.bounds(handle).log_start_offset
        except PartitionOfflineError:
            return False
        if machine.log.log_start_offset < log_start_offset <= machine.high_watermark:
            self._core.truncate_start(group, log_start_offset)
        return True

    def look(self, now_ms: int) -> None:
        """Whether those that were behind are in sync by now."""
        if not self._carried or now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        for group in list(self._carried):
            machine = self._core.groups.get(group)
            if machine is None or not machine.carried or not machine.is_leader:
                del self._carried[group]
            elif self._core.look(group).all_in_sync():
                del self._carried[group]
                machine.carries += 1
                self._note_awake(group)
