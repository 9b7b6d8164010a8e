"""When a checkpoint that failed is tried again, and what goes on meanwhile."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from tpc_broker.log.journal import BLOCK_BYTES
from tpc_broker.storage.recovery.core_partitions import CorePartitions
from tpc_broker.storage.upkeep.checkpoint_schedule import CheckpointSchedule
from tpc_broker.storage.upkeep.journal_room import JournalRoom
from tpc_broker.storage.upkeep.maintenance_requests import MaintenanceRequests
from tpc_broker.storage.upkeep.refusals import Failures


class FailingCheckpoints:
    """A schedule over a checkpointer that fails as long as `fails`, and a journal of which so much is used."""

    def __init__(self):
        self.fails, self.blocks_used, self.attempts_s, self.was_made = True, 0, [], 0
        self.held_back_by = None
        self.requests = MaintenanceRequests()
        self.partitions = CorePartitions({}, {}, {})
        self.region_blocks, self.synced, self.begins_at, self.waits_for = 100, 0, [], []
        plane = SimpleNamespace(
            journal_use=lambda: SimpleNamespace(blocks_used=self.blocks_used, region_blocks=self.region_blocks),
            extend=lambda _blocks: None, want_space_at=self.begins_at.append,
        )  # fmt: skip
        write_behind = SimpleNamespace(wait_for_more=self.waits_for.append)
        self.file = SimpleNamespace(superblock=SimpleNamespace(initialised_blocks=1))
        windows = SimpleNamespace(checkpoint_begins=lambda: 0, checkpoint_done=lambda _begun: None)
        self.schedule = CheckpointSchedule(
            plane, Path("/data"), self.partitions, self, write_behind=write_behind, retention=None,
            in_place_windows=windows, room=self, requests=self.requests, failures=Failures(),
        )  # fmt: skip

    async def run(self, _write_behind):
        self.attempts_s.append(trio.current_time())
        if self.fails:
            raise OSError(errno.EIO, "for a test")
        if self.held_back_by is not None:
            return False
        self.synced += 5000
        self.blocks_used = 18_000
        return True

    def statistics(self):
        return SimpleNamespace(partitions_synced_count=self.synced, held_back_by=self.held_back_by)

    def made(self):
        self.was_made += 1

    def distances_s(self):
        return [later - earlier for earlier, later in zip(self.attempts_s, self.attempts_s[1:], strict=False)]


@pytest.fixture
async def world(nursery):
    made = FailingCheckpoints()
    nursery.start_soon(made.schedule.run)
    return made


async def test_a_checkpoint_that_fails_is_tried_more_and_more_seldom(world, autojump_clock):
    world.requests.checkpoint.ask()
    await trio.sleep(60)
    assert world.distances_s()[:7] == [0.5, 1, 2, 4, 8, 10, 10]
    world.fails = False
    await trio.sleep(11)
    assert world.was_made == 1, "and when it succeeds it is enough"


async def test_while_the_journal_needs_the_space_it_is_tried_all_the_time(world, autojump_clock):
    world.requests.checkpoint.ask()
    await trio.sleep(9)
    world.blocks_used = 50
    before = len(world.attempts_s)
    await trio.sleep(10)
    assert len(world.attempts_s) - before >= 19


async def test_one_that_is_held_back_makes_no_room(world, autojump_clock):
    """Whoever waits for it finds none, asks for another one, and waits again: that must not go round without a rest."""
    world.fails, world.held_back_by = False, "a partition has failed"
    room = JournalRoom(world)
    world.made = room.made
    with trio.move_on_after(1):
        while True:
            world.requests.checkpoint.ask()
            await room.wait()
            assert len(world.attempts_s) < 20
    assert len(world.attempts_s) > 5


async def test_between_two_attempts_partitions_may_be_deleted_and_mended(world, autojump_clock):
    world.requests.checkpoint.ask()
    await trio.sleep(0.1)
    assert len(world.attempts_s) == 1
    assert not world.partitions.checkpointing.locked()


async def test_behind_one_of_many_short_runs_the_next_begins_late_and_records_wait_for_it(world, autojump_clock):
    world.fails, world.region_blocks, world.blocks_used = False, 65_000, 25_000
    world.requests.checkpoint.ask()
    await trio.sleep(0.1)
    assert world.begins_at == [38_000]
    assert world.waits_for == [38_000 * BLOCK_BYTES]
    world.region_blocks = 40_000
    world.requests.checkpoint.ask()
    await trio.sleep(0.1)
    assert world.begins_at == [38_000, 0]
    assert world.waits_for == [38_000 * BLOCK_BYTES, 0]
