"""`send_all`: many records of one topic, in chunks of columns where they allow it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Iterable
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import anyio.lowlevel

from tpc_broker.client.errors import UndeliveredError
from tpc_broker.client.producer.batch import RECORD_BYTES, Batch, as_cell, as_timestamp, header_pairs, record_size
from tpc_broker.client.producer.partitioning import key_partitions
from tpc_broker.client.producer.slip import decided
from tpc_broker.client.values import Fate, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpc_broker.client.producer.front import Producer
    from tpc_broker.client.producer.lane import Lane
    from tpc_broker.client.producer.partitioning import TopicLanes
    from tpc_broker.client.requests import TopicPartition

Item: TypeAlias = "bytes | tuple[bytes | None, bytes | None] | Record | None"
"""A value, (key, value), or a record as it was read."""
Records: TypeAlias = "Iterable[Item] | AsyncIterable[Item]"
CHUNK_RECORDS_FIRST: Final = 16
CHUNK_RECORDS_MAX: Final = 2048
CHUNK_BYTES: Final = 256 * 1024
BATCHES_MAX: Final = 64
"""Remembered before those that are decided are counted."""


class Extent(NamedTuple):
    """Where records of a partition are. Records of others may be between them. Offsets -1: not known."""

    records_count: int
    first_offset: int
    last_offset: int


class Sent(NamedTuple):
    """What `send_all` has delivered."""

    records_count: int
    partitions: dict[int, Extent]


class Bulk:
    """One call of `send_all`."""

    def __init__(self, producer: Producer, topic: TopicLanes, partition: int | None) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._lane = None if partition is None else topic.given(partition)
        self._rows: dict[Batch, list[tuple[int, int]]] = {}
        """Ranges of rows that are ours, of batches not counted yet."""
        self._partitions: dict[int, Extent] = {}
        self._lost: dict[tuple[TopicPartition, Fate], int] = {}
        self._reasons: dict[TopicPartition, str] = {}

    async def send(self, records: Records) -> Sent:
        try:
            if isinstance(records, AsyncIterable):
                async for item in records:
                    await self._put_each([item])
                    if not self._may_go_on():
                        break
            else:
                await self._put_chunks(iter(records))
            for batch in list(self._rows):
                if not batch.is_decided:
                    await decided(batch, self._producer.make_event)
            self._count_decided()
        except BaseException:
            self._withdraw()
            raise
        if self._lost:
            raise UndeliveredError(self._lost, self._reasons)
        return Sent(sum(extent.records_count for extent in self._partitions.values()), self._partitions)

    def _may_go_on(self) -> bool:
        if len(self._rows) > BATCHES_MAX:
            self._count_decided()
        return not self._lost

    # -- filling -------------------------------------------------------------------------------------------------------

    async def _put_chunks(self, records: Iterator[Any]) -> None:
        """As many at a time as make about `CHUNK_BYTES`: what an iterator makes counts only when it is taken."""
        count = CHUNK_RECORDS_FIRST
        while chunk := list(islice(records, count)):
            used = await self._put(chunk)
            count = max(1, min(CHUNK_RECORDS_MAX, 2 * count, CHUNK_BYTES * len(chunk) // used))
            await anyio.lowlevel.checkpoint()
            if not self._may_go_on():
                return

    async def _put(self, chunk: list[Any]) -> int:
        """What they count."""
        kinds = set(map(type, chunk))
        chooses = self._lane is None and self._topic.has_own_partitioner
        if kinds == {bytes} and not chooses:
            return await self._put_column(self._lane, None, chunk)
        if kinds == {tuple} and not chooses and set(map(len, chunk)) == {2}:
            keys, values = map(list, zip(*chunk, strict=True))
            if set(map(type, keys)) == {bytes} == set(map(type, values)):
                return await self._put_pairs(keys, values)
        return await self._put_each(chunk)

    async def _put_pairs(self, keys: list[bytes], values: list[bytes]) -> int:
        if self._lane is not None:
            return await self._put_column(self._lane, keys, values)
        lanes = self._topic.lanes
        groups: dict[int, tuple[Lane, list[bytes], list[bytes]]] = {}
        for place, key, value in zip(key_partitions(keys, len(lanes)), keys, values, strict=True):
            group = groups.get(place)
            if group is None:
                group = groups[place] = (lanes[place], [], [])
            group[1].append(key)
            group[2].append(value)
        used = 0
        for lane, some_keys, some_values in groups.values():
            used += await self._put_column(lane, some_keys, some_values)
        return used

    async def _put_column(self, lane: Lane | None, keys: list[bytes] | None, values: list[bytes]) -> int:
        """Records of one partition, or of whichever it sticks to."""
        size = sum(map(len, values)) + RECORD_BYTES * len(values) + (0 if keys is None else sum(map(len, keys)))
        producer = self._producer
        bound = min(CHUNK_BYTES, producer.settings.batch_bytes, producer.budget.bytes_max // 4)
        if size > bound and len(values) > 1:
            half = len(values) // 2
            await self._put_column(lane, None if keys is None else keys[:half], values[:half])
            await self._put_column(lane, None if keys is None else keys[half:], values[half:])
            return size
        chosen = await producer.take(lane or self._topic.of(None, size), size, is_free=lane is None)
        batch = chosen.room_in(size, time.monotonic())
        row = batch.add_many(keys, values, int(time.time() * 1000), size)
        producer.filled(chosen)
        self._remember(batch, row, len(values))
        return size

    async def _put_each(self, chunk: list[Any]) -> int:
        producer = self._producer
        used = 0
        for item in chunk:
            key, value, headers, timestamp = _parts(item)
            size = record_size(key, value, headers)
            lane = self._lane or self._topic.of(key, size)
            is_free = self._lane is None and key is None and not self._topic.has_own_partitioner
            lane = await producer.take(lane, size, is_free=is_free)
            batch = lane.room_in(size, time.monotonic())
            row = batch.add(key, value, headers, timestamp if timestamp >= 0 else int(time.time() * 1000), size)
            producer.filled(lane)
            self._remember(batch, row, 1)
            used += size
        return used

    def _remember(self, batch: Batch, row: int, count: int) -> None:
        ranges = self._rows.setdefault(batch, [])
        if ranges and ranges[-1][1] == row:
            ranges[-1] = (ranges[-1][0], row + count)
        else:
            ranges.append((row, row + count))

    # -- the end -------------------------------------------------------------------------------------------------------

    def _count_decided(self) -> None:
        for batch in [batch for batch in self._rows if batch.is_decided]:
            ranges = self._rows.pop(batch)
            if batch.fate is Fate.DELIVERED:
                self._count_delivered(batch, sum(end - first for first, end in ranges), ranges[0][0], ranges[-1][1] - 1)
                continue
            for row in chain.from_iterable(range(first, end) for first, end in ranges):
                fate = batch.fate_of(row)
                if fate is Fate.DELIVERED:
                    self._count_delivered(batch, 1, row, row)
                else:
                    self._producer.see(batch, row)
                    self._lost[batch.where, fate] = self._lost.get((batch.where, fate), 0) + 1
                    self._reasons[batch.where] = batch.reason_of(row)

    def _count_delivered(self, batch: Batch, count: int, first_row: int, last_row: int) -> None:
        partition = batch.where.partition
        first, last = batch.result_of(first_row).offset, batch.result_of(last_row).offset
        before = self._partitions.get(partition)
        if before is None:
            self._partitions[partition] = Extent(count, first, last)
        else:
            start = before.first_offset if before.first_offset >= 0 else first
            end = last if last >= 0 else before.last_offset
            self._partitions[partition] = Extent(before.records_count + count, start, end)

    def _withdraw(self) -> None:
        """Nobody waits any more: what is not sealed is not sent."""
        for batch, ranges in self._rows.items():
            for row in chain.from_iterable(range(first, end) for first, end in reversed(ranges)):
                if not self._producer.withdraw(batch, row):
                    break


def _parts(item: Any) -> tuple[bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...], int]:
    """Key, value, headers, time stamp (-1: now)."""
    if isinstance(item, Record):
        timestamp = -1 if item.timestamp == -1 else as_timestamp(item.timestamp)
        return as_cell("key", item.key), as_cell("value", item.value), header_pairs(item.headers), timestamp
    if isinstance(item, tuple):
        if len(item) != 2:
            raise TypeError(f"a value, (key, value) or Record is expected, not a tuple of {len(item)}")
        key, value = item
        return as_cell("key", key), as_cell("value", value), (), -1
    return None, as_cell("value", item), (), -1
