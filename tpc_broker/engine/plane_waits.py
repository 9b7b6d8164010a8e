"""Tasks that wait for the data plane: for a commit of the journal, or for an offset of a partition.

The journal's own entries are waited for by sequence, records by the offset where they end: durable here, or committed.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from tpc_broker._ring import ffi, lib
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import LeadershipLostError, PartitionOfflineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker._ring import tpc_journal, tpc_plane
    from tpc_broker.engine.ring import Ring

EPOCH_ENDED = "its leader epoch has ended"


@dataclass(slots=True)
class _OffsetWait:
    event: trio.Event
    error_code: int = 0


class PlaneWaits:
    """Of one core."""

    def __init__(self, ring: Ring, plane: tpc_plane, journal: tpc_journal) -> None:
        self._plane = plane
        self._journal = journal
        self._numbers = itertools.count()
        self._by_sequence: list[tuple[int, int, trio.Event, Callable[[], None]]] = []
        self._failed: set[trio.Event] = set()
        self._by_offset: dict[int, _OffsetWait] = {}
        self.on_durable: Callable[[int], None] = lambda _sequence: None
        """Called with each durable sequence that is told."""
        ring.on_event(lib.TPC_EVENT_JOURNAL_DURABLE, self._durable)
        ring.on_event(lib.TPC_EVENT_WAIT_OVER, self._over)

    # -- commits of the journal ----------------------------------------------------------------------------------------

    def _durable(self, _token: int, sequence: int, _b: int, _pointer: int) -> None:
        self.is_durable(sequence)
        self.on_durable(sequence)

    def is_durable(self, sequence: int) -> None:
        """Everything up to a commit: whoever waits for it goes on."""
        while self._by_sequence and self._by_sequence[0][0] <= sequence:
            _wanted, _number, event, then = heapq.heappop(self._by_sequence)
            then()
            event.set()

    def journal_failed(self, first_failed: int) -> None:
        """Everything from a commit on is void."""
        self.is_durable(first_failed - 1)
        for _wanted, _number, event, _then in self._by_sequence:
            self._failed.add(event)
            event.set()
        self._by_sequence.clear()

    async def wait_durable(self, sequence: int, then: Callable[[], None]) -> None:
        """See `tpc_broker.storage.ports.JournalControl`."""
        statistics = ffi.new("tpc_journal_statistics *")
        lib.tpc_journal_get_statistics(self._journal, statistics)
        if statistics.durable_sequence >= sequence:
            then()
            return
        if statistics.error:
            raise PartitionOfflineError(f"the journal failed: {os.strerror(statistics.error)}")
        event = trio.Event()
        heapq.heappush(self._by_sequence, (sequence, next(self._numbers), event, then))
        lib.tpc_journal_watch(self._journal, sequence)
        await event.wait()
        if event in self._failed:
            self._failed.discard(event)
            raise PartitionOfflineError("the journal failed")

    # -- offsets of partitions -----------------------------------------------------------------------------------------

    async def wait_level(self, handle: int, level: int, end_offset: int, leader_epoch: int) -> None:
        """Until what was appended in an epoch is durable here or committed (`TPC_LEVEL_...`) up to an offset."""
        token = next(self._numbers)
        result = lib.tpc_partition_wait(self._plane, handle, level, end_offset, leader_epoch, token)
        if result == 1:
            return
        if result in (-errno.ENOENT, -errno.ESTALE):
            raise LeadershipLostError(EPOCH_ENDED)
        if result < 0:
            raise OSError(-result, f"wait for an offset: {os.strerror(-result)}")
        wait = self._by_offset[token] = _OffsetWait(trio.Event())
        await wait.event.wait()
        if wait.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
            raise PartitionOfflineError("the journal failed")
        if wait.error_code:
            raise LeadershipLostError(EPOCH_ENDED)

    def _over(self, token: int, error_code: int, _b: int, _pointer: int) -> None:
        wait = self._by_offset.pop(token)
        wait.error_code = error_code
        wait.event.set()
