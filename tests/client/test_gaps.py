"""A reader of a range goes on over gaps and emptied batches, and ends where the log has nothing more up to its end."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.record_batches import CONTROL, TRANSACTIONAL, Record, batch
from tpc_broker.client import requests
from tpc_broker.client.errors import OffsetsMissingError
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.reading import RangeReader, ReadSettings
from tpc_broker.client.requests import FetchAnswer, TopicPartition
from tpc_broker.kafka import messages

HERE = TopicPartition("t", 0)


def one(offset: int, count: int = 1) -> bytes:
    return batch([Record(b"v")] * count, base_offset=offset)


def emptied(offset: int, end: int, attributes: int = 0) -> bytes:
    return batch([], base_offset=offset, records_count=0, last_offset_delta=end - offset - 1, attributes=attributes)


class Broker:
    """Answers from batches that begin at rising offsets, one batch at a time."""

    def __init__(self, batches: dict[int, tuple[int, bytes]], end: int, stable: int = -1, start: int = 0) -> None:
        self.batches, self.end, self.stable, self.start = batches, end, stable, start
        self.asked: list[int] = []

    def answer(self, offset: int) -> FetchAnswer:
        self.asked.append(offset)
        found = [data for first, (behind, data) in sorted(self.batches.items()) if behind > offset and first < self.end]
        return FetchAnswer(0, self.end, self.stable, self.start, [], memoryview(found[0] if found else b""))

    def list_offsets(self, wanted: dict[TopicPartition, int], _isolation: Isolation) -> dict[TopicPartition, int]:
        return {where: self.start if time_ms == -2 else self.end for where, time_ms in wanted.items()}

    settings = SimpleNamespace(retry_seconds=0)

    def attempts(self) -> Any:
        return itertools.repeat(lambda _error: None)


def reader(broker: Broker, first: int, end: int, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> RangeReader:
    made = RangeReader(broker, HERE, first, end, ReadSettings(isolation=isolation))  # type: ignore[arg-type]
    made._send_ahead = lambda: None  # type: ignore[method-assign]
    made._fetch = lambda: broker.answer(made._next_offset)  # type: ignore[method-assign]
    return made


GAPS = {
    0: (1, one(0)), 5: (7, one(5, 2)), 7: (20, emptied(7, 20)), 20: (21, emptied(20, 21, TRANSACTIONAL | CONTROL)),
    40: (41, one(40)),
}  # fmt: skip


def test_gaps_and_emptied_batches_are_passed_over() -> None:
    broker = Broker(GAPS, 50)
    chunks = list(reader(broker, 0, 41).chunks())
    assert [tuple(chunk[:2]) for chunk in chunks] == [(0, 1), (1, 7), (7, 20), (20, 21), (21, 41)]
    assert broker.asked == [0, 1, 7, 20, 21]


@pytest.mark.parametrize("first", [0, 1, 3, 6, 8, 19, 21, 30, 40])
def test_every_range_ends(first: int) -> None:
    """Wherever it begins and ends: in a gap, in an emptied batch, or behind all that is left."""
    for end in range(first + 1, 51):
        broker = Broker(GAPS, 50)
        made = reader(broker, first, end)
        offsets = [chunk.next_offset for chunk in made.chunks()]
        assert made.next_offset >= end
        assert offsets == sorted(set(offsets))
        assert len(broker.asked) <= len(GAPS) + 3


def test_what_cannot_be_had_yet_is_waited_for_and_missed() -> None:
    """Up to the last stable offset only there is nothing for certain."""
    broker = Broker({0: (1, one(0))}, 50, stable=10)
    assert len(list(reader(broker, 0, 10, Isolation.READ_COMMITTED).chunks())) == 1
    with pytest.raises(OffsetsMissingError):
        list(reader(broker, 0, 11, Isolation.READ_COMMITTED).chunks())
    assert len(list(reader(broker, 0, 11).chunks())) == 1


def test_what_lies_below_the_log_s_start_is_missing() -> None:
    broker = Broker({}, 50, start=20)
    with pytest.raises(OffsetsMissingError):
        list(reader(broker, 10, 50).chunks())


def test_who_is_above_a_quota_waits_and_misses_nothing() -> None:
    """The broker says nothing of the partition then, and answers later."""
    throttled = requests.fetch_answer(messages.FetchResponse(throttle_time_ms=10))
    broker = Broker({0: (10, one(0, 10))}, 10)
    answers = [throttled] * 5

    class Throttling(Broker):
        def answer(self, offset: int) -> FetchAnswer:
            return answers.pop() if answers else broker.answer(offset)

    assert [chunk.next_offset for chunk in reader(Throttling({}, 10), 0, 10).chunks()] == [10]
