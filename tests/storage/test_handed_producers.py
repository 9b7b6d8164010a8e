"""Producers that go over in a file beside the journal."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest
import trio

from tests.support.plain_disk import PlainDisk
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.log.checkpoint import CheckpointError, PartitionCheckpoint, Release, decode_entry, decode_entry_in_parts
from tpc_broker.log.producer_state import ProducedBatch, Producer, ProducerState
from tpc_broker.model import CoreId, PartitionIndex, TopicId
from tpc_broker.storage.recovery import handed_producers
from tpc_broker.storage.recovery.handed_producers import HandedProducers, remove_handed, whole_payload

CORE = CoreId(3)


def test_the_most_producers_that_an_entry_has_fit_into_it():
    most = handed_producers.PRODUCERS_IN_ENTRY_MAX * len(next(iter(state_of(2).producers)).encode())
    assert 1.3 * most < handed_producers.ENTRY_BYTES_MAX


def state_of(count):
    producers = ProducerState()
    for number in range(count):
        batches = [ProducedBatch(5 * n + 4, 9 * n + 4, 4, 1_000 + n) for n in range(5)]
        producers.producers[number] = Producer(number, 1, -1, 7 if number % 9 == 0 else -1, 1_004, batches)
    producers.mark_lost([1, count - 1])
    return PartitionCheckpoint(
        TopicId(uuid.UUID(int=7)), PartitionIndex(2), "topic", log_end_offset=50, segment_position=9, moves=4,
        producers=producers, released=Release(CoreId(1), 9),
    )  # fmt: skip


class Place:
    def __init__(self, folder):
        self.folder, self.disk, self.journal_ends = folder, PlainDisk(), 10
        cursor = lambda: SimpleNamespace(sequence=self.journal_ends)  # noqa: E731
        self.handed = HandedProducers(self.disk, folder, CORE, SimpleNamespace(durable_cursor=cursor))

    def names(self):
        return sorted(path.name for path in self.folder.iterdir())


MANY, TOO_MANY = 60, 90
"""For an entry, of which those are judged by their bytes where no file may be named."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(handed_producers, "PRODUCERS_IN_ENTRY_MAX", MANY)
    monkeypatch.setattr(handed_producers, "ENTRY_BYTES_MAX", 151 * (MANY + 10))
    made = Place(tmp_path)
    made.handed.may_write = True
    return made


@pytest.mark.parametrize("count", [TOO_MANY, pytest.param(200_000, marks=pytest.mark.machine)])
async def test_too_many_for_an_entry_are_in_a_file_that_it_names(place, count):
    state = state_of(count)
    payload, handed = await place.handed.payload(state)
    assert len(payload) < 1_000
    assert place.names() == [handed.name]
    whole = await whole_payload(place.disk, place.folder, payload)
    assert whole == state.encode()
    found = decode_entry(whole)
    assert found == state
    assert found.producers.lost == state.producers.lost


async def test_few_are_in_the_entry_as_ever(place):
    state = state_of(MANY)
    assert await place.handed.payload(state) == (state.encode(), None)
    assert await whole_payload(place.disk, place.folder, state.encode()) == state.encode()


async def test_where_others_would_not_know_the_file_there_is_none(place):
    """As many go into the entry as have ever gone."""
    place.handed.may_write = False
    state = state_of(MANY + 5)
    assert await place.handed.payload(state) == (state.encode(), None)
    with pytest.raises(PartitionOfflineError, match="90 producers is too long"):
        await place.handed.payload(state_of(TOO_MANY))
    assert place.names() == []


@pytest.mark.parametrize("damage", ["gone", "short", "changed"])
async def test_an_entry_whose_file_is_not_whole_is_not_believed(place, damage):
    payload, handed = await place.handed.payload(state_of(TOO_MANY))
    path = place.folder / handed.name
    if damage == "gone":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[1_000] ^= damage == "changed"
        path.write_bytes(data if damage == "changed" else data[:-1])
    with pytest.raises(CheckpointError, match="the file with its producers"):
        decode_entry(await whole_payload(place.disk, place.folder, payload))


async def test_a_file_goes_when_no_start_reads_its_entry(place):
    _payload, handed = await place.handed.payload(state_of(TOO_MANY))
    await place.handed.forget(1_000)
    assert place.names() == [handed.name], "its entry may be anywhere"
    place.journal_ends = 12
    place.handed.named(handed)
    await place.handed.forget(11)
    assert place.names() == [handed.name]
    await place.handed.forget(12)
    assert place.names() == []
    _payload, handed = await place.handed.payload(state_of(TOO_MANY))
    place.handed.given_up(handed)
    await place.handed.forget(0)
    assert place.names() == []


async def test_a_file_that_is_not_written_to_its_end_goes(place, monkeypatch):
    write = handed_producers._write

    async def cancelled(*arguments):
        await write(*arguments)
        scope.cancel()
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(handed_producers, "_write", cancelled)
    with trio.CancelScope() as scope:
        await place.handed.payload(state_of(TOO_MANY))
    assert scope.cancelled_caught
    assert len(place.names()) == 1
    await place.handed.forget(0)
    assert place.names() == []


async def test_a_start_removes_what_a_core_has_left(place):
    await place.handed.payload(state_of(TOO_MANY))
    for name in ("0003.journal", "0003.checkpoint", "0004.handed-00"):
        (place.folder / name).touch()
    await remove_handed(place.disk, place.folder, CORE)
    assert place.names() == ["0003.checkpoint", "0003.journal", "0004.handed-00"]


@pytest.mark.parametrize("at_once", [1, 7, 1_000])
def test_what_goes_over_is_decoded_in_parts_as_at_once(at_once):
    data, steps = state_of(30).encode(), 0
    parts = decode_entry_in_parts(data, at_once)
    while True:
        try:
            next(parts)
        except StopIteration as end:
            found = end.value
            break
        steps += 1
    assert steps == -(-30 // at_once)
    assert found == decode_entry(data)
    assert found.producers.lost == [1, 29]
    for damaged in (data[:-1], data + b"x", data[:200]):
        with pytest.raises(CheckpointError):
            list(decode_entry_in_parts(damaged, at_once))
