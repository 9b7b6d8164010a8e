"""Positions of a stream, whatever its user, its membership and its broker do: against a model of what was asked for."""

from __future__ import annotations

import math
from typing import Any, Final

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpc_broker.client.consumer.decoding import Part
from tpc_broker.client.consumer.fetching import FetchSettings
from tpc_broker.client.consumer.frames import Held
from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.consumer.reader import StreamReader
from tpc_broker.client.consumer.starts import Offset, Start
from tpc_broker.client.consumer.stock import Fetched, Limits
from tpc_broker.client.consumer.stream import Stream
from tpc_broker.client.errors import OffsetsMissingError
from tpc_broker.client.requests import LATEST, TopicPartition
from tpc_broker.kafka.records import Record, build_batch
from tpc_broker.native_bytes import crc32c

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
LOG: Final = [0, 1, 2, 5, 6, 9, 10, 11, 12, 20, 21, 22, 23, 24, 30]
"""Offsets of the records there are: in both partitions, in batches of three."""
LOG_END: Final = 33


def behind(offset: int) -> int:
    """Where the batches end that hold the records up to there."""
    return next((LOG[at] for at in range(3, len(LOG), 3) if LOG[at] > offset), LOG_END)


def part(where: TopicPartition, offset: int, batches_max: int) -> tuple[Part, int] | None:
    """What a broker has from there on."""
    data, end = b"", offset
    for at in range(0, len(LOG), 3):
        end_of_batch = LOG[at + 3] if at + 3 < len(LOG) else LOG_END
        if end_of_batch > offset and batches_max:
            records = [Record(b"%d" % one, offset=one) for one in LOG[at : at + 3]]
            batch = bytearray(build_batch(records, base_offset=LOG[at], partition_leader_epoch=at))
            batch[23:27] = (end_of_batch - 1 - LOG[at]).to_bytes(4, "big")  # as a cleaning leaves the last ones behind
            batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
            data += batch
            end, batches_max = end_of_batch, batches_max - 1
    return (Part(where, offset, memoryview(data)), end) if data else None


class Model:
    """A stream over a stock that is fed by hand, and what it should say."""

    def __init__(self) -> None:
        self.reader = StreamReader(None, FetchSettings(), Start(offset=0))  # type: ignore[arg-type]
        self.stream = Stream(self.reader, None, None)  # type: ignore[arg-type]
        self.next = {A: 0, B: 0}
        """The lowest offset that was not handed out."""
        self.finished: dict[TopicPartition, tuple[float, float]] = {}
        """Bounds of what is to be committed."""
        self.under_way: tuple[TopicPartition, int, int] | None = None
        self.left_behind: TopicPartition | None = None
        """What the user still has records of, though the partition was forgotten meanwhile."""

    async def begin(self) -> None:
        await self.reader.assign({A: None, B: None})
        self.place()

    def place(self) -> None:
        for found in self.reader.stock.partitions.values():
            found.leader, found.topic_id = 0, found.where.topic.encode() * 16

    def fetch(self, batches_max: int) -> None:
        rows, _bytes_max = self.reader.stock.wanted(0, 0.0)
        fetched = []
        for row in rows:
            made = part(row.where, row.offset, batches_max)
            if made is not None:
                fetched.append(Fetched(row, *made))
        self.reader.stock.take_in(fetched)

    def asked(self) -> None:
        """The next item is asked for."""
        self.left_behind = None
        if self.under_way is not None:
            where, last, end = self.under_way
            self.finished[where] = (last + 1, max(end, behind(last)))
            self.under_way = None

    def given(self, where: TopicPartition, offsets: list[int]) -> None:
        at = LOG.index(next(one for one in LOG if one >= self.next[where]))
        assert offsets == LOG[at : at + len(offsets)]
        self.next[where] = offsets[-1] + 1
        self.under_way = where, offsets[-1], offsets[-1] + 1
        if where in self.finished:
            self.finished[where] = (self.finished[where][0], offsets[0])

    async def record(self) -> None:
        self.asked()
        with anyio.move_on_after(0):
            record = await self.stream.__anext__()
            assert record.value == b"%d" % record.offset
            self.given(TopicPartition(record.topic, record.partition), [record.offset])
            self.one_by_one(record.offset)

    def one_by_one(self, offset: int) -> None:
        """Records that were handed out before this one are finished: also the first of a piece."""
        assert self.under_way is not None
        where = self.under_way[0]
        if self.next[where] > 0 and (where in self.finished or offset > LOG[0]):
            low = self.finished.get(where, (-math.inf, offset))[0]
            self.finished[where] = (low, offset)

    async def batch(self, records_max: int) -> None:
        self.asked()
        with anyio.move_on_after(0):
            batch = await self.stream.next_batch(records_max)
            self.given(batch.where, [record.offset for record in batch.records])

    def seek(self, where: TopicPartition, offset: int) -> None:
        self.stream.seek(where, Offset(offset))
        self.next[where] = offset
        self.finished[where] = (offset, offset)
        if self.under_way is not None and self.under_way[0] == where:
            self.under_way = None

    async def revoke(self, where: TopicPartition) -> None:
        """With no grace: what is under way is not finished, and read again by the next one."""
        await self.reader.revoke([where], 0)
        self.check()
        finished = self.reader.finished().get(where, Position(0))
        self.reader.forget([where])
        await self.reader.assign({where: Position(finished.offset)})
        self.place()
        self.reader.stock.partitions[where].needs_check = False
        self.next[where] = finished.offset
        self.finished.pop(where, None)
        if self.under_way is not None and self.under_way[0] == where:
            self.under_way, self.left_behind = None, where

    def pause(self, where: TopicPartition) -> None:
        self.stream.pause([where])
        self.stream.resume([where])

    def check(self) -> None:
        said = self.reader.finished()
        for where, at in said.items():
            if where in self.finished:
                low, high = self.finished[where]
                assert low <= at.offset <= high, (where, at, self.finished)
            else:
                assert at.offset <= LOG[0] or at.offset <= self.next[where]
        handed = {self.under_way[0]} if self.under_way is not None else set()
        assert set(self.reader.handed_out()) == handed | ({self.left_behind} - {None})


steps = st.lists(
    st.one_of(
        st.tuples(st.just("fetch"), st.integers(1, 3)),
        st.tuples(st.just("record")),
        st.tuples(st.just("record")),
        st.tuples(st.just("batch"), st.integers(1, 5)),
        st.tuples(st.just("seek"), st.sampled_from([A, B]), st.sampled_from([0, 1, 5, 7, 12, 24])),
        st.tuples(st.just("revoke"), st.sampled_from([A, B])),
        st.tuples(st.just("pause"), st.sampled_from([A, B])),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps)
def test_nothing_is_finished_that_was_not_asked_past(story: Any) -> None:
    async def play() -> None:
        model = Model()
        await model.begin()
        for name, *arguments in story:
            done = getattr(model, name)(*arguments)
            if done is not None:
                await done
            model.check()
            assert model.reader.stock.held_bytes >= 0
        while True:  # what is left comes in the end, in order
            model.fetch(9)
            before = dict(model.next)
            await model.record()
            if model.next == before:
                break
        assert all(at > LOG[-1] for at in model.next.values())
        model.asked()
        assert model.reader.stock.held_bytes == 0

    anyio.run(play, backend="asyncio")


def test_an_error_comes_behind_what_lies_ready_and_ends_with_a_seek() -> None:
    async def play() -> None:
        model = Model()
        await model.begin()
        model.fetch(1)
        model.reader.stock.fail(model.reader.stock.partitions[A], OffsetsMissingError("gone"))
        read = []
        for _ in range(2):
            with pytest.raises(OffsetsMissingError):
                while True:
                    read.append(await model.stream.__anext__())
        assert [(one.topic, one.offset) for one in read] == [(w, o) for w in "ab" for o in LOG[:3]]
        model.seek(A, 0)
        model.fetch(1)
        assert "a" in {(await model.stream.__anext__()).topic for _ in range(4)}

    anyio.run(play, backend="asyncio")


def test_a_pause_before_it_is_known_where_to_begin_changes_nothing_of_that() -> None:
    async def play() -> None:
        reader = StreamReader(None, FetchSettings(), Start(time_ms=LATEST))  # type: ignore[arg-type]
        await reader.assign({A: None})
        reader.pause([A])
        reader.resume([A])
        found = reader.stock.partitions[A]
        assert (found.is_known, found.start) == (False, Start(time_ms=LATEST))
        assert reader.positions() == {}
        await reader.revoke([A], 0)
        assert reader.finished() == {}

    anyio.run(play, backend="asyncio")


def test_memory_is_shared_by_partitions() -> None:
    limits = Limits(memory_bytes=256 * 1024, fetch_bytes=10**9, partition_bytes=10**6)
    reader = StreamReader(None, FetchSettings(limits=limits), Start(offset=0))  # type: ignore[arg-type]
    places = [TopicPartition("t", number) for number in range(4)]
    stock = reader.stock
    stock.add(dict.fromkeys(places), Start(offset=0))
    for found in stock.partitions.values():
        found.leader = 0
    data = build_batch([Record(b"x" * 40_000, offset=0)], partition_leader_epoch=0)
    rounds_count = 0
    while True:
        rows, bytes_max = stock.wanted(0, 0.0)
        assert {row.bytes_max for row in rows} <= {32 * 1024}
        assert bytes_max <= 4 * 32 * 1024
        if not rows:
            break
        rounds_count += 1
        stock.sent(0, rows, bytes_max)
        assert stock.wanted(0, 0.0) == ([], 0)
        stock.answered(0, rows)
        for row in rows:
            batch = bytearray(data)
            batch[:8] = row.offset.to_bytes(8, "big")
            one = Part(row.where, row.offset, memoryview(bytes(batch)))
            stock.take_in([Fetched(row, one, row.offset + 1)])
    assert rounds_count == 1  # of each one whole batch, which is more than its share
    assert stock.held_bytes <= limits.memory_bytes
    taken = [stock.take(1, None, 0.0) for _ in places]
    assert {piece.where for piece in taken if piece is not None} == set(places)
    assert stock.take(1, None, 0.0) is None
    assert stock.held_bytes == 0
    assert len(stock.wanted(0, 0.0)[0]) == 4


def test_an_answer_is_held_until_half_of_it_is_read() -> None:
    held = Held()
    frame = bytearray(600)
    parts = [Part(A, 0, memoryview(frame)[at : at + 100]) for at in range(0, 600, 100)]
    held.add(parts)
    counts = [held.bytes]
    for part in parts:
        held.drop(part)
        counts.append(held.bytes)
    assert counts == [600, 600, 600, 300, 300, 100, 0]
    assert [part.records.obj is frame for part in parts] == [True, True, True, False, False, False]
