"""How far a journal grows at once: by what it needs, its bound and the disk."""

import itertools
import logging
from contextlib import asynccontextmanager

import pytest
import trio

from tests.support.storage_plane import MemoryStoragePlane
from tpc_broker.log.journal import BLOCK_BYTES
from tpc_broker.storage.ports import JournalUse
from tpc_broker.storage.upkeep import journal_growth
from tpc_broker.storage.upkeep.journal_growth import SPACE_FACTOR, JournalGrowth, wanted_blocks

MANY = 1 << 30


WRITE_S = 0.1


class File:
    def __init__(self, blocks_left):
        self.blocks_left = blocks_left
        self.added = self.unsynced = self.synced = self.steps = 0
        self.begun_s = []

    @asynccontextmanager
    async def growing(self, blocks):
        assert 0 < blocks <= self.blocks_left
        yield

    async def write_more(self, blocks, behind):
        assert 0 < blocks <= self.blocks_left - behind
        assert behind == self.unsynced
        self.begun_s.append(trio.current_time())
        self.unsynced += blocks
        await trio.sleep(WRITE_S)
        return blocks

    async def sync(self):
        await trio.lowlevel.checkpoint()
        self.synced += self.unsynced
        self.unsynced = 0

    async def add(self, blocks, _plane):
        await trio.lowlevel.checkpoint()
        assert blocks == self.synced
        self.synced = 0
        self.blocks_left -= blocks
        self.added += blocks
        self.steps += 1


class Space:
    def __init__(self, blocks):
        self.blocks = blocks

    async def bytes_left(self):
        await trio.lowlevel.checkpoint()
        return self.blocks * BLOCK_BYTES


class Room:
    def made(self):
        pass


async def added(use, *, blocks_left=MANY, space_blocks=MANY):
    """By which a journal has grown, when it was asked to once."""
    file = File(blocks_left)
    growth = JournalGrowth(file, MemoryStoragePlane(use), trio.Lock(), Space(space_blocks), Room())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(growth.run)
        growth.wanted()
        await trio.sleep(journal_growth.RETRY_S / 2)
        nursery.cancel_scope.cancel()
    return file.added


@pytest.mark.parametrize(
    ("use", "blocks_left", "blocks"),
    [
        (JournalUse(125, 1000, 0), MANY, 3000),
        (JournalUse(99, 1000, 0), MANY, 0),
        (JournalUse(125, 1000, 0), 700, 700),
        (JournalUse(125, 1000, 9000), MANY, 8000),
        (JournalUse(0, 1000, 1200), MANY, 200),
        (JournalUse(0, 1000, 1200), 100, 100),
        (JournalUse(125, 1000, 0), 0, 0),
    ],
)
def test_what_is_wanted(use, blocks_left, blocks):
    assert wanted_blocks(use, blocks_left) == blocks


FILLING = JournalUse(125, 1000, 0)


async def test_the_disk_has_room(autojump_clock):
    assert await added(FILLING) == 3000


async def test_its_bound_is_near(autojump_clock):
    """The disk has enough for what the bound still allows."""
    assert await added(FILLING, blocks_left=500, space_blocks=500 * SPACE_FACTOR) == 500


async def test_the_disk_has_room_for_less(autojump_clock):
    assert await added(FILLING, space_blocks=1500 * SPACE_FACTOR) == 1500


async def test_the_disk_has_room_for_too_little(autojump_clock, caplog):
    caplog.set_level(logging.WARNING)
    assert await added(FILLING, space_blocks=999 * SPACE_FACTOR) == 0
    assert "the journal cannot grow now: the disk has little space left" in caplog.text


async def test_the_disk_has_no_room_for_what_is_needed(autojump_clock, caplog):
    assert await added(JournalUse(0, 1000, 9000), space_blocks=7999 * SPACE_FACTOR) == 0
    assert "the journal cannot grow now" in caplog.text


async def test_it_is_at_its_bound(autojump_clock, caplog):
    assert await added(FILLING, blocks_left=0, space_blocks=0) == 0
    assert not caplog.text


async def test_checkpoints_are_made_while_its_blocks_are_written(autojump_clock):
    """Only what the superblock says waits for them."""
    file, checkpointing = File(MANY), trio.Lock()
    growth = JournalGrowth(file, MemoryStoragePlane(FILLING), checkpointing, Space(MANY), Room())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(growth.run)
        growth.wanted()
        await trio.sleep(WRITE_S / 2)
        assert file.begun_s
        checkpointing.acquire_nowait()
        await trio.sleep(WRITE_S)
        assert not file.added
        checkpointing.release()
        await trio.sleep(WRITE_S)
        assert file.added
        nursery.cancel_scope.cancel()


LARGE = 100 * journal_growth.PIECE_BLOCKS


@pytest.mark.parametrize(
    ("use", "piece_s"),
    [
        (JournalUse(LARGE // 8, LARGE, 0), (1 + journal_growth.REST_FACTOR) * WRITE_S),
        (JournalUse(LARGE // 2, LARGE, 0), WRITE_S),
        (JournalUse(0, LARGE, 2 * LARGE), WRITE_S),
    ],
)
async def test_it_rests_unless_more_is_needed_soon(autojump_clock, use, piece_s):
    file = File(MANY)
    growth = JournalGrowth(file, MemoryStoragePlane(use), trio.Lock(), Space(MANY), Room())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(growth.run)
        growth.wanted()
        await trio.sleep(3.5 * piece_s)
        nursery.cancel_scope.cancel()
    pieces_s = [after - before for before, after in itertools.pairwise(file.begun_s)]
    assert pieces_s == pytest.approx([piece_s] * 3)


PIECE = journal_growth.PIECE_BLOCKS


@pytest.mark.parametrize(
    ("use", "blocks", "pieces", "steps"),
    [
        (JournalUse(1, 1000, 0), PIECE, 1, 1),
        (JournalUse(1, PIECE, 0), 3 * PIECE, 3, 3),
        (JournalUse(1, 4 * PIECE, 0), 6 * PIECE, 6, 2),
        (JournalUse(1, LARGE, 0), 3 * PIECE + 1, 4, 1),
        (JournalUse(LARGE // 2, LARGE, 0), 3 * PIECE, 3, 3),
        (JournalUse(1, LARGE, 2 * LARGE), 3 * PIECE, 3, 3),
    ],
    ids=["shorter than a piece", "short", "longer", "long", "half full", "waited for"],
)
async def test_a_step_is_as_long_as_the_journal_where_nothing_is_needed_soon(
    autojump_clock, use, blocks, pieces, steps
):
    file = File(MANY)
    growth = JournalGrowth(file, MemoryStoragePlane(use), trio.Lock(), Space(MANY), Room())
    await growth._by_steps(blocks)
    assert (len(file.begun_s), file.steps, file.added) == (pieces, steps, blocks)


async def test_a_step_ends_when_more_is_needed_meanwhile(autojump_clock):
    """What is written already is given at once."""
    use = JournalUse(1, LARGE, 0)
    file, plane = File(MANY), MemoryStoragePlane(use)
    growth = JournalGrowth(file, plane, trio.Lock(), Space(MANY), Room())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(growth._by_steps, 10 * PIECE)
        await trio.sleep(4.5 * WRITE_S)  # while the second piece is written
        assert file.added == 0
        plane.use = use._replace(blocks_wanted=2 * LARGE)
        await trio.sleep(WRITE_S)
        assert file.added == 2 * PIECE
        nursery.cancel_scope.cancel()
