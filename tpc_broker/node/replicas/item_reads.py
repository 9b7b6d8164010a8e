"""What a leader's machine reads for a follower that lacks more than is in memory (`ReadItems`).

The machine waits for the answer and asks nothing twice, so there is always one: the batches, that segments are better,
or, after a pause, that they could not be read. Then it asks again, or for segments when deletion has taken what is
lacked. A trouble that goes on is logged when it begins and when it is over.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

import trio

from tpc_broker.node.replicas.lagging import UNREADABLE
from tpc_broker.node.replicas.steady_carrier import batches_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpc_broker.engine.data_plane import RingDataPlane
    from tpc_broker.node.replicas.lagging import Lagging
    from tpc_broker.raft.core import RaftCore
    from tpc_broker.raft.items import Batch, Voter
    from tpc_broker.raft.output import ReadItems
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
BATCHES_AT_ONCE: Final = 128
"""Each is an item here and at the other end, some 15 µs of either core in one step: for small ones that counts, and not
their bytes.
"""


class Replica(Protocol):
    @property
    def group(self) -> str: ...
    @property
    def handle(self) -> int: ...
    @property
    def files(self) -> PartitionStorage: ...


class ItemReads:
    """Of one core; touched by its thread only. `now_ms` and `wake` are its driver's."""

    def __init__(  # noqa: PLR0913 (what a read needs of its driver)
        self,
        core: RaftCore,
        plane: RingDataPlane,
        replicas: Mapping[str, Replica],
        lagging: Lagging,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self.ships_instead: Callable[[str, Voter, int], bool] = lambda _group, _target, _offset: False
        """Called with a replica that lacks what is behind an offset: whether segments are better than items."""
        self._core = core
        self._plane = plane
        self._replicas = replicas
        self._lagging = lagging
        self._now_ms = now_ms
        self._wake = wake
        self._failing: dict[tuple[str, Voter], float] = {}
        """Since when what a follower lacks cannot be read."""

    async def read(self, replica: Replica, wanted: ReadItems) -> None:
        """The answer to one question, unless somebody else leads by then."""
        group, target, prev = wanted.group, wanted.target, wanted.prev
        if self._replicas.get(replica.group) is not replica:
            return
        self._lagging.machine_reads(replica.group)
        if self.ships_instead(replica.group, target, prev.offset):
            self._failing.pop((replica.group, target), None)
            self._core.not_read(group, target, prev, self._now_ms(), ships=True)
            self._wake()
            return
        machine = self._core.group(group)
        term, batches = machine.term, None
        try:
            batches = await self._batches(replica, wanted, machine.log.end_offset)
        except UNREADABLE as error:
            self._failed(replica, target, error)
            await trio.sleep(RETRY_S)
        if self._replicas.get(replica.group) is not replica or machine.term != term:  # it may have been cut
            self._failing.pop((replica.group, target), None)
        elif batches is not None:
            self._succeeded(replica, target)
            self._core.items_read(group, target, prev, batches, self._now_ms())
        else:
            self._lagging.follow_deletion(replica.group, replica.handle)
            self._core.not_read(group, target, prev, self._now_ms(), ships=False)
        self._wake()

    async def _batches(self, replica: Replica, wanted: ReadItems, upto: int) -> list[Batch]:
        """What is behind `upto` is not proposed yet."""
        offset = wanted.prev.offset
        data = self._plane.read_log(replica.handle, offset, upto, wanted.bytes_max)
        if data is None:
            data = await replica.files.read(offset, wanted.bytes_max, upto)  # type: ignore[assignment]
        return without_gaps(batches_of(data, offset, BATCHES_AT_ONCE), offset)

    def _failed(self, replica: Replica, target: Voter, error: Exception) -> None:
        if (replica.group, target) not in self._failing:
            self._failing[replica.group, target] = trio.current_time()
            log.warning("%s: %s cannot be read for node %d", replica.files.label, error, target.node)

    def _succeeded(self, replica: Replica, target: Voter) -> None:
        since_s = self._failing.pop((replica.group, target), None)
        if since_s is not None:
            log.warning("%s: what node %d lacks can be read again, after %.1f s",
                        replica.files.label, target.node, trio.current_time() - since_s)  # fmt: skip


def without_gaps(batches: list[Batch], offset: int) -> list[Batch]:
    """Those that follow each other from an offset on: what is behind a gap travels in segments. ValueError: the first
    one begins behind the offset.
    """
    for count, batch in enumerate(batches):
        if batch.base_offset > offset:
            if not count:
                raise ValueError(f"offset {offset} is in no batch: the next one begins at {batch.base_offset}")
            return batches[:count]
        offset = batch.end_offset
    return batches
