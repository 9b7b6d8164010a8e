"""A Produce that the data plane left to Python: partitions it does not lead, no room yet, keys to be checked.

The data plane answers a plain Produce by itself. What it leaves changes nothing; Python finds out what only the
metadata knows, makes room where there is none, and hands the request back with one verdict per partition.
"""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import trio

from tpc_broker.broker.partition import Partition
from tpc_broker.broker.ports import ProduceFallback, Verdict
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.kafka.errors import DecodeError
from tpc_broker.kafka.records import read_batches

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request
    from tpc_broker.kafka import messages

TOPIC_IDS_VERSION = 13
ROOM_RETRY_S = 0.002
ROOM_WAIT_MS_MAX = 30_000
REFUSAL_WAIT_MS_MAX = 1_000


async def handle_produce(core: Core, request: Request, message: messages.ProduceRequest) -> None:
    """Answered by the data plane once it takes the request; never returns a response."""
    parts = [
        (_topic_key(topic, request.api_version), partition)
        for topic in message.topic_data
        for partition in topic.partition_data
    ]
    sizes: Counter[tuple[str | uuid.UUID, int]] = Counter()  # of all that a partition gets: it may be named twice
    for key, partition in parts:
        sizes[key, partition.index] += len(partition.records or b"")
    deadline_ms = core.clock.monotonic_ms() + min(max(message.timeout_ms, 1000), ROOM_WAIT_MS_MAX)
    await _wait_between_leaders(core, [(key, partition.index) for key, partition in parts])
    verdicts: list[Verdict | None] = [None] * len(parts)
    is_refused = False
    while True:
        for number, (key, partition) in enumerate(parts):
            verdict = verdicts[number]
            if verdict is None or not verdict.is_final:
                verdicts[number] = await _judge(core, request.listener, key, partition, sizes[key, partition.index])
        left = core.plane.produce_with(request, verdicts, core.view.endpoints(request.listener))
        if left is ProduceFallback.NONE:
            return
        if left not in (ProduceFallback.JOURNAL_FULL, ProduceFallback.NOT_ADMITTED, ProduceFallback.NO_MEMORY):
            raise DecodeError(f"left to Python for {left.name}", "ProduceRequest", request.api_version)
        if core.clock.monotonic_ms() > deadline_ms:
            if is_refused:  # not even a refusal can be encoded; the connection ends, which its client understands
                raise MemoryError("there is no memory to refuse a Produce")
            verdicts, is_refused = [_storage_error() for _ in parts], True
            deadline_ms += REFUSAL_WAIT_MS_MAX
        elif left is ProduceFallback.JOURNAL_FULL:
            await core.partitions.wait_journal_room()
        else:
            await trio.sleep(ROOM_RETRY_S)


async def _wait_between_leaders(core: Core, parts: list[tuple[str | uuid.UUID, int]]) -> None:
    """What has lost its leader, and has a replica here, is held for as long as an election takes: later requests of the
    connection are behind this one. Then the client is told to look for the leader: a replica that is cut off may be the
    only one that knows of none, and with NOT_ENOUGH_REPLICAS clients come back to it for ever.
    """
    if core.replicated is not None:
        find = core.partitions.waiting_for_leader
        waiting = [partition for key, index in parts if (partition := find(key, index)) is not None]
        await core.replicated.wait_leaders(waiting)


def _topic_key(topic: messages.ProduceRequest.TopicProduceData, version: int) -> str | uuid.UUID:
    return uuid.UUID(bytes=bytes(topic.topic_id)) if version >= TOPIC_IDS_VERSION else topic.name


async def _judge(
    core: Core, listener: int, key: str | uuid.UUID, asked: messages.ProduceRequest.PartitionProduceData, size: int
) -> Verdict:
    """What Python knows of one partition: an error, or room for so many bytes."""
    await core.partitions.wait_moved(key, asked.index)
    found = core.partitions.find(key, asked.index)
    if not isinstance(found, Partition):
        if found is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            leader = core.view.leader_of(listener, key, asked.index)
            if leader is not None:
                return Verdict(found, leader_id=leader[0], leader_epoch=leader[1])
        return Verdict(found)
    if "compact" in found.config.cleanup_policy and not found.is_internal:
        keyless = _keyless_records(asked.records)
        if keyless:
            return Verdict(ErrorCode.INVALID_RECORD, keyless=keyless)
    try:
        await core.partitions.make_room(found, size)
    except (OSError, PartitionOfflineError):
        return _storage_error()
    return Verdict(ErrorCode.NONE, is_final=False)


def _storage_error() -> Verdict:
    return Verdict(ErrorCode.KAFKA_STORAGE_ERROR)


def _keyless_records(records: Any) -> tuple[int, ...]:
    """Positions of the records without a key; what cannot be read is the data plane's to refuse."""
    try:
        batches = list(read_batches(records or b""))
        return tuple(place for batch in batches for place, one in enumerate(batch.records()) if one.key is None)
    except DecodeError:
        return ()
