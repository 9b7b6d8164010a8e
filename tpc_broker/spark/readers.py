"""What Spark asks of a read: which ranges it covers, on the driver, and their rows, in each task.

Batch: `TpcReader.partitions`, then `read` in each task. Streaming: `initialOffset` for a query without checkpoint, then
for each micro-batch `latestOffset` (bounded by the read limit), `partitions` and `read`. Facts about Spark 4.2 that
shape this: a reader must not define `pushFilters`; an empty list of partitions gives one task with
`InputPartition(None)`, which must read nothing; the first Arrow batch must have Spark's schema exactly; offsets are
compared as JSON text; where a run with `Trigger.AvailableNow` ends is asked before where it begins.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from tpc_broker.client.errors import UnknownTopicError
from tpc_broker.spark.losses import Losses
from tpc_broker.spark.ranges import Offsets, OffsetsJson, Places, Planner, from_json, limit_offsets, to_json
from tpc_broker.spark.shipping import ShippedType
from tpc_broker.spark.task_sizes import RecordSizes, into_tasks
from tpc_broker.spark.tasks import cluster_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tpc_broker.spark.folder_log import FolderLog, Task
    from tpc_broker.spark.options import ReadOptions
    from tpc_broker.spark.ranges import OffsetRange
    from tpc_broker.spark.rows import RowPlan

PLANS_MAX: Final = 3
logger = logging.getLogger("tpc.spark")
Planned = TypeVar("Planned")


def _tasks(
    options: ReadOptions, ranges: list[OffsetRange], log: FolderLog | None, sizes: RecordSizes
) -> list[InputPartition]:
    """Ranges as Spark's partitions: one for each segment or partition, long ones split, short ones together."""
    placed: list[Task] = [piece for piece in ranges if piece.size > 0]
    cluster = None if options.cluster is None else cluster_of(options.cluster)
    if cluster is not None and placed:
        known = sizes.of(cluster, [piece.where for piece in placed])
        ranges = [replace(piece, size_bytes=int(piece.size * known.get(piece.where, -1))) for piece in ranges]
        placed = list(ranges)
    if log is not None:
        from tpc_broker.spark.folder_log import place  # noqa: PLC0415 - only with a path

        placed = place(ranges, options, log, has_broker=cluster is not None)
    return [InputPartition(task) for task in into_tasks(placed, options.tasks)]


def _folder_log(options: ReadOptions) -> FolderLog | None:
    if not options.path:
        return None
    from tpc_broker.spark.folder_log import FolderLog  # noqa: PLC0415 - only with a path

    return FolderLog(options.path, is_alone=options.cluster is None)


def settled(plan: Callable[[], Planned]) -> Planned:
    """What is planned; anew when a topic is deleted between two questions, which the next plan takes note of."""
    for _attempt in range(PLANS_MAX - 1):
        try:
            return plan()
        except UnknownTopicError as error:
            logger.info("planning once more: %s", error)
    return plan()


class TpcReader(DataSourceReader, metaclass=ShippedType):
    """A batch read."""

    def __init__(self, options: ReadOptions, plan: RowPlan) -> None:
        self._options = options
        self._plan = plan

    def partitions(self) -> list[InputPartition]:
        losses = Losses(are_errors=self._options.fails_on_data_loss)
        return settled(lambda: self._planned(losses))

    def _planned(self, losses: Losses) -> list[InputPartition]:
        log = _folder_log(self._options)
        source = log if self._options.cluster is None else cluster_of(self._options.cluster)
        assert source is not None, self._options
        return _tasks(self._options, Planner(source, self._options, losses).batch(), log, RecordSizes())

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from tpc_broker.spark.task_rows import task_rows  # noqa: PLC0415 - planning does not need it

        return task_rows(self._options, self._plan, partition.value)


class TpcStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow, metaclass=ShippedType):
    """A streaming read. Its state is in Spark's checkpoint, save the target of a run with `Trigger.AvailableNow`."""

    def __init__(self, options: ReadOptions, plan: RowPlan) -> None:
        self._options = options
        self._plan = plan
        self._target: Places | None = None
        self._losses = Losses(are_errors=options.fails_on_data_loss)
        self._sizes = RecordSizes()
        self._last_trigger = -math.inf

    def initialOffset(self) -> OffsetsJson:  # noqa: N802 - Spark's name
        return to_json(self._settled(lambda planner: planner.start(self._target)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        rows_max = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:  # noqa: N802 - Spark's name
        begin, latest = self._settled(lambda planner: self._going_on(planner, from_json(start)))
        if self._is_too_early(begin.offsets, latest.offsets):
            return start
        if isinstance(limit, ReadMaxRows):
            latest = replace(latest, offsets=limit_offsets(begin.offsets, latest.offsets, limit.max_rows))
        return to_json(latest)

    def _going_on(self, planner: Planner, start: Places) -> tuple[Places, Places]:
        if self._target is None:
            return planner.going_on(start, planner.latest(start.ids))
        return planner.going_on(start, planner.left_of(self._target, start))

    def _is_too_early(self, begin: Offsets, latest: Offsets) -> bool:
        """Whether to wait for ``minOffsetsPerTrigger``: not before the first micro-batch of a run, nor for longer than
        ``maxTriggerDelay``, nor where nothing more is to come (`Trigger.AvailableNow`).
        """
        waiting = sum(max(0, end - begin[where]) for where, end in latest.items())
        now = time.monotonic()
        may_wait = self._target is None and waiting < self._options.min_offsets_per_trigger
        if may_wait and now < self._last_trigger + self._options.trigger_delay_max_seconds:
            return True
        if waiting:
            self._last_trigger = now
        return False

    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802 - Spark's name
        """Only told in a query's progress, so topics that are gone are no error here."""
        try:
            return to_json(self._settled(Planner.latest))
        except UnknownTopicError:
            return None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._settled(Planner.latest)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        def planned(planner: Planner) -> list[InputPartition]:
            ranges = planner.stream(from_json(start), from_json(end))
            return _tasks(self._options, ranges, _folder_log(self._options), self._sizes)

        return self._settled(planned)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from tpc_broker.spark.task_rows import task_rows  # noqa: PLC0415 - planning does not need it

        return task_rows(self._options, self._plan, partition.value)

    def _planner(self) -> Planner:
        assert self._options.cluster is not None, self._options
        return Planner(cluster_of(self._options.cluster), self._options, self._losses)

    def _settled(self, plan: Callable[[Planner], Planned]) -> Planned:
        return settled(lambda: plan(self._planner()))
