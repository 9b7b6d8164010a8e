"""The orderly end of one core's storage.

What counts is what the journal and C have at the end, not what was seen on the way: appends that were taken go on
becoming durable, and are answered, while Python waits. So the order is:

1. the journal takes nothing more, for good;
2. everything that it had taken is durable, and the data plane knows: high watermarks stand still from here on;
3. write-behind and a checkpoint, which is clean because the journal says with its place that nothing follows it;
4. the space behind the last batches is given back.

Whoever cannot get to the end of step 3 leaves everything as it lies: that is what `kill -9` leaves, and what the next
start replays.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.errors import StorageFailedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from pathlib import Path

    from tpc_broker.storage.ports import Disk, StoragePlane
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

log = logging.getLogger(__name__)

SETTLE_LOOK_S: Final = 0.001
CHECKPOINT_ATTEMPTS: Final = 2
"""A first one that found no space gave the ballast up."""


async def end_journal(plane: StoragePlane) -> bool:
    """Steps 1 and 2. False: the journal failed, and what it had taken will not be durable."""
    plane.stop_journal()
    try:
        while not plane.is_settled():
            await trio.sleep(SETTLE_LOOK_S)
    except StorageFailedError as error:
        log.warning("not everything that was taken is durable: %s", error)
        return False
    return True


# Rule: Nothing acknowledged is lost by an orderly stop. First nothing more is taken; then everything that was taken
# becomes durable; then comes a clean checkpoint; only then is a segment's end cut. A stop that cannot get there ends as
# `kill -9` does. See also tpc_broker/broker/core.py, native/journal/journal.c. Held by tests/durability/test_stops.py,
# tests/engine/test_in_place.py, tests/engine/test_drain.py.
async def drain(
    plane: StoragePlane,
    disk: Disk,
    checkpoint: Callable[[], Awaitable[bool]],
    maintenance: trio.CancelScope,
    storages: Callable[[], Collection[PartitionStorage]],
) -> bool:
    """All steps; False: it ends as by `kill -9`. The same when it is cancelled before it returns."""
    if not await end_journal(plane):
        return False
    for _ in range(CHECKPOINT_ATTEMPTS):
        if await checkpoint():
            break
    else:
        return False
    maintenance.cancel()
    await _cut(disk, list(storages()))
    return True


async def _cut(disk: Disk, storages: list[PartitionStorage]) -> None:
    """Give back the space behind the last batches; the descriptors are closed with everything else."""
    ends: list[tuple[Path, int]] = []
    for files in storages:
        try:
            end = files.surplus_nowait()
            if end is not None:
                ends.append(end)
        except trio.WouldBlock:
            try:
                await files.close()
            except OSError as error:
                log.warning("%s-%d: %s", files.topic, files.key.partition, error)
    for (path, _length), failure in zip(ends, await disk.truncate_many(ends), strict=True):
        if failure is not None:
            log.warning("%s: %s", path, failure)
