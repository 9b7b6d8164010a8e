"""The links of a backup beside cleanings: every copy opens with the newest value of each key, whatever gave way."""

import os
import shutil
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import trio

from tests.storage.test_compaction import SETTINGS, World, checkpointed, fill, newest, records_of
from tests.support.disk_operations import OPERATIONS
from tests.support.plain_disk import PlainDisk
from tpc_broker.operations import backup
from tpc_broker.operations.backup import _Backup
from tpc_broker.storage.recovery.recovery import open_checkpointed
from tpc_broker.storage.segments.files import FileCache
from tpc_broker.storage.segments.folders import PartitionListing
from tpc_broker.storage.segments.segments import SegmentFolder


class Pause:
    """Everything on the disk waits in front of a numbered operation, until `go_on`."""

    def __init__(self, disk, number):
        self._number, self._count = number, 0
        self.reached, self._go_on = trio.Event(), trio.Event()
        for name in OPERATIONS - {"poll_ring"}:
            setattr(disk, name, self._pausing(getattr(disk, name)))

    def _pausing(self, operation):
        async def pausing(*arguments, **more):
            self._count += 1
            if self._count == self._number:
                self.reached.set()
                await self._go_on.wait()
            return await operation(*arguments, **more)

        return pausing

    def go_on(self):
        self._number = -1
        self._go_on.set()


@pytest.fixture
async def place(tmp_path):
    """A partition with two hundred records of few keys, and the links that a backup makes of it."""
    place = Place(tmp_path)
    await place.begin()
    yield place
    await place.world.close()


class Place:
    def __init__(self, folder: Path):
        self.folder, self.numbers = folder, iter(range(1000))

    async def begin(self):
        self.data = self.folder / f"data-{next(self.numbers)}"
        self.data.mkdir()
        self.world = World(self.data)
        self.files = await self.world.make()
        await fill(self.files, 200)
        await self.sealed()

    async def sealed(self):
        """What was written is in front of a durable checkpoint."""
        await checkpointed(self.files)
        await fill(self.files, 20, seed=2)

    def backup(self):
        staging = self.folder / f"staging-{next(self.numbers)}"
        staging.mkdir()
        return _Backup(self.data, staging, self.data, lambda _done, _all: None, with_links=True)

    async def opened(self, run):
        """The newest of each key in a copy of what a backup has linked, opened as a start does."""
        state = self.files.checkpointed
        copy = self.folder / f"copy-{next(self.numbers)}" / "t-0"
        await trio.to_thread.run_sync(shutil.copytree, run._staging / "topics" / "t-0", copy)
        cache = FileCache(PlainDisk())
        try:
            listing = await PartitionListing.read(cache.disk, copy)
            storage = await open_checkpointed(SegmentFolder(cache, copy), listing, state, SETTINGS)
            bases = [segment.base_offset for segment in storage.segments]
            assert bases == [segment.base_offset for segment in self.files.segments if segment.base_offset <= bases[-1]]
            return newest(await records_of(storage))
        finally:
            await cache.close()

    async def expected(self):
        end = self.files.checkpointed.log_end_offset
        return newest([one for one in await records_of(self.files) if one[0] < end])


async def clean(place):
    assert await place.world.cleanings.clean_next()


STEPS = 31
"""Between two that are looked at. With 1 it takes minutes."""


@pytest.mark.parametrize("number", [1, 11, 21])
async def test_at_the_steps_of_a_cleaning(place, number):
    """What is copied then, of a directory where all of it was cut short; and the links of then with those of later."""
    while True:
        expected = await place.expected()
        pause = Pause(place.files.folder.disk, number)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clean, place)
            while not pause.reached.is_set() and nursery.child_tasks:
                await trio.sleep(0.001)
            was_reached = pause.reached.is_set()
            cut_short, later = place.backup(), place.backup()
            later._link_partitions(is_first=True)
            if was_reached:
                cut_short._link_partitions()
                assert await place.opened(cut_short) == expected, number
            pause.go_on()
        await place.sealed()
        await clean(place)  # so that what was linked has given way twice
        later._link_partitions()
        assert await place.opened(later) == await place.expected(), number
        if not was_reached:
            return
        await place.world.close()
        await place.begin()
        number += STEPS


@pytest.mark.parametrize("seed", range(3))
async def test_cleanings_between_any_two_links(place, seed, monkeypatch):
    """The first call has them; then swaps are held."""
    rng, left = Random(seed), [3]

    async def go_on():
        await place.sealed()
        await place.world.cleanings.clean_next()

    def link(source, target):
        if left[0] and rng.random() < 0.1:
            left[0] -= 1
            trio.from_thread.run(go_on)
        os.link(source, target)

    monkeypatch.setattr(backup, "os", SimpleNamespace(scandir=os.scandir, link=link))
    run = place.backup()
    await trio.to_thread.run_sync(lambda: run._link_partitions(is_first=True))
    left[0] = 0
    async with place.world.cleanings.swaps.held():
        await trio.to_thread.run_sync(run._link_partitions)
    assert await place.opened(run) == await place.expected()
    names = {path.name for path in (run._staging / "topics" / "t-0").iterdir()}
    assert not [name for name in names if ".cleaned-" in name]


async def test_who_links_keeps_swaps_away_and_the_job_goes_on_then(place):
    before = [segment.base_offset for segment in place.files.segments]
    waiting = trio.Event()

    async def before_take(_group):
        waiting.set()

    place.world.cleaner.before_take = before_take
    async with trio.open_nursery() as nursery, place.world.cleanings.swaps.held():
        nursery.start_soon(clean, place)
        await waiting.wait()
        for _time in range(50):
            await trio.lowlevel.checkpoint()
        assert [segment.base_offset for segment in place.files.segments] == before
        assert all(segment.seal is None for segment in place.files.segments)
    assert any(segment.seal is not None for segment in place.files.segments)
