"""What the journal has for many partitions, appended to their segments in few jobs.

After a crash behind the first writes of thousands of partitions each has a short run to get. One by one that is a file
to be opened and a write for each, both handed to a worker of the ring, with turns of the scheduler in between; together
it is two jobs of a helper thread for hundreds of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.errors import StorageFailedError
from tpc_broker.log.batch import BatchDamageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.storage.segments.files import FileCache
    from tpc_broker.storage.segments.partition_storage import PartitionStorage
    from tpc_broker.storage.segments.segment_appender import AppendRun

RUNS_TOGETHER: Final = 256


async def append_together(
    files: FileCache, runs: Sequence[tuple[PartitionStorage, memoryview]]
) -> list[tuple[PartitionStorage, memoryview]]:
    """Append batches to the segments of different partitions. Those that are left are not, or not all of them: they
    need a roll, or something is wrong with them that `PartitionStorage.append` will say. OSError: the disk.
    """
    left = []
    for first in range(0, len(runs), RUNS_TOGETHER):
        left += await _append_some(files, runs[first : first + RUNS_TOGETHER])
    return left


async def _append_some(
    files: FileCache, runs: Sequence[tuple[PartitionStorage, memoryview]]
) -> list[tuple[PartitionStorage, memoryview]]:
    await files.open_many([storage.folder.path / storage.active.log_name for storage, _batches in runs])
    left: list[tuple[PartitionStorage, memoryview]] = []
    begun: list[tuple[PartitionStorage, memoryview, AppendRun]] = []
    for storage, batches in runs:
        try:
            run = storage.begin_run(batches)
        except BatchDamageError:
            run = None
        if run is None:
            left.append((storage, batches))
        else:
            begun.append((storage, batches, run))
    if not begun:
        return left
    errors = await files.disk.write_many([run.write for _storage, _batches, run in begun])
    failures = []
    for (storage, batches, run), error in zip(begun, errors, strict=True):
        try:
            storage.end_run(run, error)
        except StorageFailedError as failure:
            failures.append(failure)
        if not run.is_whole:
            left.append((storage, batches))
    if failures:
        raise failures[0].__cause__ or failures[0]
    return left
