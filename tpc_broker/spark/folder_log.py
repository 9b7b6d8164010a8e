"""A data folder in the place of a cluster, and beside one: which offsets its files hold, and who reads which range.

`FolderLog` answers a planner's questions from the checkpoints alone, as of the moment when it was made. `place` turns
planned ranges into tasks: what segment files hold becomes `SegmentPiece`s, one for each segment, and the rest stays a
range for the broker. A topic of another id than the broker's (deleted and made again, another cluster's folder) is
the broker's alone.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from tpc_broker.client.errors import UnknownTopicError
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.requests import EARLIEST, LATEST, TopicFacts, TopicPartition
from tpc_broker.log.files import encode_topic_id, partition_folder_name
from tpc_broker.model import Offset, TopicId
from tpc_broker.spark.log_starts import read_log_starts
from tpc_broker.spark.options import OptionError, ReadOptions
from tpc_broker.spark.ranges import OffsetRange
from tpc_broker.spark.segments import PartitionFolder, SegmentPiece, is_folder_of, read_checkpoints

Task = OffsetRange | SegmentPiece
LISTINGS_MAX: Final = 5
logger = logging.getLogger("tpc.spark")


class FolderLog:
    """The partitions of a data folder. `OptionError` when it is none."""

    def __init__(self, data_folder: str, *, is_alone: bool = False) -> None:
        """``is_alone``: no broker says where logs begin now, so the journals have to (`log_starts`)."""
        self._path = Path(data_folder)
        try:
            starts = read_log_starts(self._path) if is_alone else {}
            checkpoints = read_checkpoints(self._path)  # behind the journals: what these lost by then is in here
        except OSError as error:
            raise OptionError(f"path: {error}") from None
        self._checkpoints = {}
        for where, one in checkpoints.items():
            start = max(one.log_start_offset, starts.get((one.topic_id, one.partition), 0))
            self._checkpoints[where] = replace(one, log_start_offset=Offset(min(start, one.committed_end_offset)))
        self._folders: dict[TopicPartition, PartitionFolder] = {}

    @property
    def topics_hint(self) -> str:
        """Behind the names of missing topics."""
        return f" (in the checkpoints under {self._path}, which a broker writes now and then and when it is stopped)"

    def existing(self, names: Iterable[str], _believed: Mapping[str, bytes]) -> dict[str, TopicFacts]:
        """As `Cluster.existing`, of one moment. Nobody leads."""
        found: dict[str, TopicFacts] = {}
        for where in sorted(self._checkpoints):
            facts = TopicFacts(self._checkpoints[where].topic_id.bytes, where.topic.startswith("__"), {}, {})
            found.setdefault(where.topic, facts).leaders[where.partition] = -1
        return {name: found[name] for name in names if name in found}

    def topic_names(self) -> list[str]:
        """All topics that are not internal, sorted."""
        return sorted({where.topic for where in self._checkpoints if not where.topic.startswith("__")})

    def list_offsets(self, wanted: Mapping[TopicPartition, int], isolation: Isolation) -> dict[TopicPartition, int]:
        """As `Cluster.list_offsets`."""
        return {where: self._offset(where, time_ms, isolation) for where, time_ms in wanted.items()}

    def _offset(self, where: TopicPartition, time_ms: int, isolation: Isolation) -> int:
        folder = self.folder(where)
        end = folder.end_offset(isolation)
        if time_ms == EARLIEST:
            return min(folder.start_offset, end)
        if time_ms == LATEST:
            return end
        for _listing in range(LISTINGS_MAX):
            try:
                found = folder.offset_at(time_ms)
            except FileNotFoundError:
                del self._folders[where]
                folder = self.folder(where)
            else:
                return found if found < end else -1
        raise UnknownTopicError(f"{where}: its segments are removed faster than they can be looked at")

    def folder(self, where: TopicPartition) -> PartitionFolder:
        """`UnknownTopicError` when the folder's files are not those that the checkpoint speaks of."""
        if where not in self._folders:
            checkpoint = self._checkpoints.get(where)
            if checkpoint is None:
                raise UnknownTopicError(f"{where} is in no checkpoint of {self._path}")
            if not self._is_of(where, checkpoint.topic_id):
                raise UnknownTopicError(f"{where} has no folder of the topic {checkpoint.topic_id} under {self._path}")
            self._folders[where] = PartitionFolder(self._path, checkpoint)
        return self._folders[where]

    def holds(self, where: TopicPartition, topic_id: str) -> bool:
        """Whether this is the partition of the topic with that id."""
        checkpoint = self._checkpoints.get(where)
        if checkpoint is None or encode_topic_id(checkpoint.topic_id) != topic_id:
            return False
        return self._is_of(where, checkpoint.topic_id)

    def _is_of(self, where: TopicPartition, topic_id: TopicId) -> bool:
        return is_folder_of(self._path / "topics" / partition_folder_name(*where), encode_topic_id(topic_id))


def place(ranges: Iterable[OffsetRange], options: ReadOptions, log: FolderLog, *, has_broker: bool) -> list[Task]:
    """The ranges as tasks, in order: files as far as they go, the broker (if there is one) for what else there is.

    Without a broker the ranges have to come from the same ``log``.
    """
    tasks: list[Task] = []
    for wanted in ranges:
        if not has_broker or log.holds(wanted.where, wanted.topic_id):
            tasks += _in_files(wanted, log.folder(wanted.where), options.isolation)
        else:
            tasks.append(wanted)
    return [task for task in tasks if task.size > 0]


def _in_files(wanted: OffsetRange, folder: PartitionFolder, isolation: Isolation) -> list[Task]:
    """Reading committed records, files are asked only for what was decided at their checkpoint."""
    end = min(wanted.end_offset, folder.end_offset(isolation))
    begin = min(max(wanted.first_offset, folder.start_offset), max(end, wanted.first_offset))
    if begin >= end:
        return [wanted]
    bounds = ((wanted.first_offset, begin), (end, wanted.end_offset))
    outside = [replace(wanted, first_offset=left, end_offset=right) for left, right in bounds]
    pieces = list(folder.pieces(begin, end, isolation))
    parts: list[Task] = [wanted] if wanted.size_bytes >= 0 else [piece for piece in pieces if piece.size_bytes >= 0]
    if parts:  # what the broker does not say, the files show
        size_bytes, size = sum(part.size_bytes for part in parts), sum(part.size for part in parts)
        outside = [replace(part, size_bytes=size_bytes * part.size // size) for part in outside]
    return [outside[0], *pieces, outside[1]]
