"""What a task does: the rows of its range, from the broker or from a segment file.

A segment file that is gone when the task comes to it (retention, deleted records, another machine that has no such
folder) is planned around: with a broker the range is read from there, which also says whether it is really lost;
without one the folder is listed again. What is lost is an error or a warning, as ``failOnDataLoss`` says.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.client.columns import ColumnReader
from tpc_broker.client.errors import OffsetsMissingError, UnknownTopicError
from tpc_broker.client.reading import RangeReader, ReadSettings
from tpc_broker.spark.ranges import OffsetRange, id_bytes
from tpc_broker.spark.rows import RowMaker, RowPlan
from tpc_broker.spark.task_sizes import TaskGroup
from tpc_broker.spark.tasks import cluster_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpc_broker.spark.folder_log import Task
    from tpc_broker.spark.options import ReadOptions
    from tpc_broker.spark.segments import SegmentPiece

REPLANS_MAX: Final = 5
logger = logging.getLogger("tpc.spark")


def task_rows(options: ReadOptions, plan: RowPlan, task: Task | TaskGroup | None) -> Iterator[Any]:
    """Arrow batches of a task's ranges; none for the task that Spark makes when there is nothing to read."""
    if isinstance(task, TaskGroup):
        for piece in task.pieces:
            yield from task_rows(options, plan, piece)
    elif isinstance(task, OffsetRange):
        yield from _broker_rows(options, plan, task)
    elif task is not None:
        yield from _segment_rows(options, plan, task, REPLANS_MAX)


def _broker_rows(options: ReadOptions, plan: RowPlan, task: OffsetRange) -> Iterator[Any]:
    assert options.cluster is not None, options
    settings = ReadSettings(
        isolation=options.isolation,
        skips_missing=not options.fails_on_data_loss,
        keeps_damage=plan.keeps_damage,
    )
    cluster, where = cluster_of(options.cluster), task.where
    reader = RangeReader(cluster, where, task.first_offset, task.end_offset, settings, id_bytes(task.topic_id))
    columns = ColumnReader(task.where, plan.columns, task.first_offset, task.end_offset, keeps_damage=plan.keeps_damage)
    try:
        yield from RowMaker(plan, where).rows(columns.read(reader.chunks()))
    except UnknownTopicError as error:
        report_loss(options, f"{replace(task, first_offset=reader.next_offset)} are lost: {error}")


def _segment_rows(options: ReadOptions, plan: RowPlan, piece: SegmentPiece, replans_left: int) -> Iterator[Any]:
    from tpc_broker.spark.segments import read_chunks  # noqa: PLC0415 - what is read through the broker needs no files

    keeps = plan.keeps_damage
    chunks = read_chunks(piece, keeps_damage=keeps)
    try:
        first = next(chunks, None)
    except FileNotFoundError:
        yield from _without_file(options, plan, piece, replans_left)
        return
    columns = ColumnReader(
        piece.where, plan.columns, piece.first_offset, piece.end_offset, keeps_damage=keeps, place=str(piece.path)
    )
    read = (chunk for part in ([] if first is None else [first], chunks) for chunk in part)
    yield from RowMaker(plan, piece.where).rows(columns.read(read))


def _without_file(options: ReadOptions, plan: RowPlan, piece: SegmentPiece, replans_left: int) -> Iterator[Any]:
    wanted = OffsetRange(piece.where, piece.first_offset, piece.end_offset, topic_id=piece.topic_id)
    if options.cluster is not None:
        logger.info("%s: %s is gone; its offsets are read from the broker", piece.where, piece.path)
        yield from _broker_rows(options, plan, wanted)
        return
    from tpc_broker.spark.folder_log import FolderLog  # noqa: PLC0415 - likewise

    pieces: list[SegmentPiece] = []
    if replans_left:
        try:
            folder = FolderLog(options.path, is_alone=True).folder(piece.where)
            if piece.topic_id in ("", folder.topic_id):
                pieces = list(folder.pieces(wanted.first_offset, wanted.end_offset, options.isolation))
        except UnknownTopicError:
            pieces = []
    found = pieces[0].first_offset if pieces else wanted.end_offset
    if found > wanted.first_offset:
        report_loss(options, f"{piece.where}: offsets [{wanted.first_offset}, {found}): {piece.path} was removed")
    for one in pieces:
        yield from _segment_rows(options, plan, one, replans_left - 1)


def report_loss(options: ReadOptions, what: str) -> None:
    """`OffsetsMissingError`, or a warning where losses are allowed."""
    if options.fails_on_data_loss:
        raise OffsetsMissingError(f"{what}; to go on without them, set failOnDataLoss to false")
    logger.warning("%s; going on without them", what)
