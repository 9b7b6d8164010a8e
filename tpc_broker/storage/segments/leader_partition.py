"""A partition that is led here: its files, its handle in the data plane, and what that is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpc_broker import limits
from tpc_broker.storage.ports import PartitionParams

if TYPE_CHECKING:
    import trio

    from tpc_broker.metadata.topic_config import TopicConfig
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

ROOM_STEP_BYTES_MIN = 256 * limits.KIB
ROOM_STEP_BYTES = 8 * limits.MIB


@dataclass(slots=True)
class LeaderPartition:
    """A partition in the data plane, with the files behind it."""

    files: PartitionStorage
    handle: int
    lock: trio.Lock
    is_internal: bool
    admitted_bytes: int = 0
    is_leaving: bool = False
    """It is about to be released to another core."""
    log_starts_under_way: int = 0
    """Entries of the journal that move it and are not durable yet."""
    held_back_told_ms: int | None = None
    """When the log said last that a record's date holds retention back, by the monotonic clock."""

    @property
    def step_bytes(self) -> int:
        """Space to take ahead of what is wanted: it doubles with what was admitted, so that thousands of partitions
        with a few records do not hold megabytes each.
        """
        return min(max(ROOM_STEP_BYTES_MIN, self.admitted_bytes), ROOM_STEP_BYTES)


def partition_params(
    files: PartitionStorage, config: TopicConfig, *, is_internal: bool, is_replicated: bool = False
) -> PartitionParams:
    """What the data plane is told of a partition as its files and settings are now."""
    committed = files.written_end_offset
    if is_replicated:  # as far as the last checkpoint knew; more will be told
        committed = max(min(files.checkpointed.committed_end_offset, committed), files.log_start_offset)
    return PartitionParams(
        topic=files.topic,
        key=files.key,
        leader_epoch=files.leader_epoch,
        log_start_offset=files.log_start_offset,
        log_end_offset=files.written_end_offset,
        high_watermark=committed,
        timestamp_before_ms_max=config.message_timestamp_before_max_ms,
        timestamp_after_ms_max=config.message_timestamp_after_max_ms,
        batch_bytes_max=min(config.max_message_bytes, limits.REPLICATED_BATCH_BYTES_MAX)
        if is_replicated
        else config.max_message_bytes,
        segment_bytes=config.segment_bytes,
        is_internal=is_internal,
        is_relaxed=config.durability == "relaxed" and not is_internal,
        is_compacted="compact" in config.cleanup_policy and not is_internal,
        log_append_time=config.message_timestamp_type == "LogAppendTime",
        is_replicated=is_replicated,
    )
