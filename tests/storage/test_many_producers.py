"""What takes long where a partition has many producers is done in short steps, and comes to the same."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio

from tests.log.log_batches import batch, marker
from tests.storage.test_handed_producers import CORE, state_of
from tests.storage.test_partition_storage import make
from tests.support.plain_disk import PlainDisk
from tpc_broker.log.checkpoint import decode_checkpoint, encode_checkpoint
from tpc_broker.log.files import checkpoint_file_name
from tpc_broker.log.producer_state import ProducerState
from tpc_broker.log.segment import LogSettings
from tpc_broker.storage.recovery import checkpoint
from tpc_broker.storage.segments import segment_appender, segments

MANY = 300
LARGE = LogSettings(segment_bytes=1 << 20, index_interval_bytes=300, retention_ms=-1, file_delete_delay_ms=50)


@asynccontextmanager
async def others():
    """How many turns another task has had meanwhile."""
    turns = [0]

    async def count():
        while True:
            await trio.lowlevel.checkpoint()
            turns[0] += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await trio.lowlevel.checkpoint()
        turns[0] = 0
        yield turns
        nursery.cancel_scope.cancel()


async def test_a_checkpoint_is_encoded_in_short_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "PRODUCERS_AT_ONCE", 10)
    state = state_of(MANY)
    async with others() as turns:
        await checkpoint.write_checkpoint(PlainDisk(), tmp_path, CORE, 3, [state, state_of(5)])
    assert turns[0] >= MANY // 10
    data = (tmp_path / checkpoint_file_name(CORE)).read_bytes()
    assert data == encode_checkpoint(3, [state_of(MANY), state_of(5)])
    assert decode_checkpoint(data)[0] == 3


def written(count):
    """Of as many producers, each with a transaction that is aborted, or not."""
    found = []
    for number in range(count):
        found.append(batch(2 * number, producer=(number, 0, 0), transactional=True))
        found.append(marker(2 * number + 1, number % 2, number))
    return found


@pytest.mark.parametrize("stops_at_once", [1, 1_000])
async def test_batches_of_many_are_taken_in_short_steps(monkeypatch, stops_at_once):
    monkeypatch.setattr(segment_appender, "STOPS_AT_ONCE", stops_at_once)
    storage, batches = await make(LARGE), written(MANY)
    async with others() as turns:
        await storage.append([b"".join(batches)])
    assert (turns[0] >= MANY) == (stops_at_once == 1)
    assert await storage.read(0, 1 << 20) == b"".join(batches)
    assert len(storage.producers) == MANY
    assert len(await storage.aborted_transactions(0, 2 * MANY)) == MANY // 2


async def test_a_snapshot_is_read_in_short_steps(monkeypatch):
    monkeypatch.setattr(segments, "PRODUCERS_AT_ONCE", 10)
    storage = await make(LARGE)
    await storage.append([b"".join(written(MANY))])
    await storage.roll()
    async with others() as turns:
        found = await storage.folder.stored_producers(2 * MANY)
    assert turns[0] >= MANY // 10
    assert found == ProducerState.decode_snapshot(storage.producers.encode_snapshot())
    assert len(found) == MANY
