"""Cleaned segments take the place of others, all of them or none: whatever the disk does, beside everything else."""

import contextlib
import errno
import os
from dataclasses import replace

import pytest
import trio
import trio.testing

from tests.storage.checkpointed_core import DATA, SETTINGS, CheckpointedCore, PowerLoss
from tests.storage.test_core_recovery import live, small_journal  # noqa: F401 - a fixture
from tests.support.cleaned_copies import cleanable, cleaned_copy, sources_of, swap_copy
from tests.support.disk_operations import Held, forgetting
from tests.support.fake_disk import at_every_effect
from tests.support.journal_file import encode_entry
from tpc_broker.errors import StorageFailedError
from tpc_broker.log.files import parse_cleaned_file_name, segment_file_name
from tpc_broker.log.journal import EntryKind
from tpc_broker.log.seals import Seal, SealedFile
from tpc_broker.native_bytes import crc32c
from tpc_broker.storage.recovery.recovery import recover_core
from tpc_broker.storage.segments import segment_swap
from tpc_broker.storage.segments.segment_reader import SegmentReader
from tpc_broker.storage.segments.segment_swap import SegmentSwap, SwapRefusedError

CARRY_OUT = SegmentSwap._carry_out
WRITE_SEAL = SegmentSwap._write_seal

GONE_OF_THREE = 1
"""Of the offsets of a cleaned segment those are gone that have this rest."""


def keep(header):
    return header.base_offset % 3 != GONE_OF_THREE


async def world_with_segments(seed=5, disk=None):
    """One partition with some sealed segments below a checkpoint, and records behind it."""
    world = CheckpointedCore(seed, partitions=1, disk=disk)
    await world.open()
    while len(world.storages[world.partitions[0].key].segments) < 6:
        await world.append()
        await world.write_behind(everything=True)
    await world.checkpoint()
    await world.append()
    await world.write_behind(everything=True)
    storage = world.storages[world.partitions[0].key]
    assert len(cleanable(storage)) > 3
    return world, storage


async def offsets_of(world, storage):
    return [offset for offset, _data in await world.stored(world.partitions[0])]


async def opened(world):
    """What a start finds: the storage and the offsets in it."""
    world.core = await recover_core(
        world.disk, DATA, world.core_id, new_journal_id=bytes(15) + b"j", settings_of=lambda _topic: SETTINGS
    )
    assert not world.core.offline, world.core.offline
    world.storages = world.core.storages
    storage = world.storages[world.partitions[0].key]
    return storage, await offsets_of(world, storage)


def left(offsets, seal):
    return [offset for offset in offsets if not seal.base_offset <= offset < seal.end_offset or offset % 3 != 1]


def names_of(storage):
    return {path.name for path in storage.folder.disk.names if path.parent == storage.folder.path}


async def test_a_swap_leaves_the_cleaned_segment_and_its_seal_and_nothing_else():
    world, storage = await world_with_segments()
    before, segments, shown = await offsets_of(world, storage), cleanable(storage)[1:4], []
    epochs, producers = storage.epochs.entries, storage.producers.encode_snapshot(lambda: None)
    seal = await swap_copy(storage, segments, lambda: shown.append(storage.segments), keep=keep, removed_upto=7)
    assert shown == [storage.segments]
    assert await offsets_of(world, storage) == left(before, seal)
    fresh = storage.segments[1]
    assert (fresh.base_offset, storage.end_of(fresh), fresh.seal) == (seal.base_offset, seal.end_offset, seal)
    assert all(segment.is_replaced for segment in segments)
    names = names_of(storage)
    assert not [name for name in names if parse_cleaned_file_name(name) or name.endswith(".tmp")]
    gone = {name for segment in segments[1:] for name in segment.file_names}
    assert not names & gone
    assert await storage.folder.modified_ms(fresh) == seal.modified_ms
    assert storage.cleaned == (seal.end_offset, seal.end_offset, 7)
    world.disk.kill()
    again, found = await opened(world)
    assert found == left(before, seal)
    assert (again.segments[1].seal, again.cleaned) == (seal, storage.cleaned)
    assert again.epochs.entries[: len(epochs)] == epochs
    assert again.producers.encode_snapshot(lambda: None) == producers


async def test_a_segment_of_which_nothing_is_left():
    world, storage = await world_with_segments()
    before, segments = await offsets_of(world, storage), cleanable(storage)[:2]
    seal = await swap_copy(storage, segments, keep=lambda _header: False)
    rest = [offset for offset in before if offset >= seal.end_offset]
    assert await offsets_of(world, storage) == rest
    assert await storage.offset_for_timestamp(0, 0) is not None
    plan, start = await storage.plan_retention(10**15, storage.written_end_offset)
    assert (plan.segments_count, start) == (0, 0)
    assert await storage.advance_log_start(seal.end_offset, 0) == 1
    world.disk.kill()


async def test_what_was_cleaned_is_cleaned_again_and_merged_with_what_follows():
    world, storage = await world_with_segments()
    before = await offsets_of(world, storage)
    first = await swap_copy(storage, cleanable(storage)[:2], keep=keep, removed_upto=3)
    second = await swap_copy(storage, cleanable(storage)[1:2], keep=keep)
    both = await swap_copy(storage, cleanable(storage)[:2], removed_upto=3)
    assert both.replaced == (first.base_offset, second.base_offset)
    assert await offsets_of(world, storage) == left(before, both)
    world.disk.kill()
    assert (await opened(world))[1] == left(before, both)


async def test_retention_and_truncation_take_seals_along():
    _world, storage = await world_with_segments()
    seal = await swap_copy(storage, cleanable(storage)[:2], keep=keep)
    await storage.advance_log_start(seal.end_offset, 0)
    assert not [name for name in names_of(storage) if name.endswith(".seal")]
    assert storage.cleaned == (0, 0, 0)
    await storage.purge(10**12)
    assert not [name for name in names_of(storage) if ".seal" in name]


@pytest.mark.parametrize("change", ["roll", "retention", "swap", "hold back", "another file", "short", "failed"])
async def test_a_swap_is_refused_when_anything_is_not_as_the_job_saw_it(change):
    _world, storage = await world_with_segments()
    segments = cleanable(storage)[:2]
    sources, seal = await sources_of(storage, segments), await cleaned_copy(storage, segments, keep=keep)
    refused = SwapRefusedError
    if change == "roll":
        segments = [*segments, *storage.segments[2:]]
        sources, seal = await sources_of(storage, segments[:-1]), seal._replace(end_offset=seal.end_offset + 1)
    elif change == "retention":
        await storage.advance_log_start(storage.end_of(segments[0]), 0)
    elif change == "swap":
        await swap_copy(storage, segments[:1])
    elif change == "hold back":
        storage.checkpointed = replace(storage.checkpointed, segment_base=seal.end_offset - 1)
    elif change == "another file":
        sources = [sources[0]._replace(inode=0), sources[1]]
    elif change == "short":
        seal = seal._replace(log=seal.log._replace(size_bytes=seal.log.size_bytes + 1))
    else:
        storage.fail("a test")
        refused = StorageFailedError
    before = storage.segments
    with pytest.raises(refused):
        await storage.swap(sources, seal, lambda: pytest.fail("published"))
    assert storage.segments == before
    assert not storage.swaps.is_under_way
    assert change == "swap" or not any(segment.is_replaced for segment in before)
    assert not [name for name in names_of(storage) if name.endswith(".tmp")]


async def test_the_partition_is_not_locked_while_the_seal_is_written():
    """Who waits for the lock has it durable; a swap that is cancelled then leaves nothing."""
    _world, storage = await world_with_segments()
    segments = cleanable(storage)[1:3]
    sources, seal = await sources_of(storage, segments), await cleaned_copy(storage, segments, keep=keep)
    async with trio.open_nursery() as nursery, storage.lock:
        nursery.start_soon(storage.swap, sources, seal, lambda: pytest.fail("published"))
        await trio.testing.wait_all_tasks_blocked()
        assert [name for name in names_of(storage) if name.endswith(".seal.tmp")]
        nursery.cancel_scope.cancel()
    assert not [name for name in names_of(storage) if name.endswith(".tmp")]
    assert await storage.swap(sources, seal, lambda: None) >= 0


STEPS = {
    "seal": ("rename", lambda source, _target: source.name.endswith(".seal.tmp")),
    "commit": ("fsync_directory", lambda *_path: True),
    "log": ("rename", lambda _source, target: target.name.endswith(".log")),
}
"""Where a swap waits for the disk: before its commit point, at it, and behind it."""


@contextlib.asynccontextmanager
async def in_the_midst_of_a_swap(storage, step, ended):
    """In the block it stands there. `ended` gets what became of it."""
    segments = cleanable(storage)[1:4]
    sources, seal = await sources_of(storage, segments), await cleaned_copy(storage, segments, keep=keep)

    async def swap():
        try:
            await storage.swap(sources, seal, lambda: None)
            ended.append(None)
        except StorageFailedError as error:
            ended.append(error)

    operation, when = STEPS[step]
    held = Held(when=when)
    async with trio.open_nursery() as nursery:
        storage.folder.disk.during(operation, do=held)
        nursery.start_soon(swap)
        await held.waiting.wait()
        storage.folder.disk.during(operation, do=None)
        try:
            yield seal
            assert not ended
        finally:
            held.may_go.set()  # it cannot be cancelled


@pytest.mark.parametrize("step", STEPS)
async def test_records_are_written_and_segments_rolled_in_the_midst_of_a_swap(step):
    world, storage = await world_with_segments()
    ended, partition = [], world.partitions[0]
    async with in_the_midst_of_a_swap(storage, step, ended) as seal:
        segments_count = len(storage.segments)
        while len(storage.segments) < segments_count + 2:
            await world.append()
            await world.write_behind(everything=True)
        await world.checkpoint()
    assert ended == [None]
    every = [offset for offset, _data in partition.acknowledged]
    assert await offsets_of(world, storage) == left(every, seal)
    world.disk.crash(world.rng)
    assert (await opened(world))[1] == left(every, seal)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("change", ["retention", "cut"])
async def test_what_would_change_its_sources_waits_for_the_end_of_a_swap(step, change):
    world, storage = await world_with_segments()
    before, ended = await offsets_of(world, storage), []
    first, end = storage.segments[2].base_offset, storage.written_end_offset
    calls = {"retention": lambda: storage.advance_log_start(first, 0), "cut": lambda: storage.truncate(end)}

    async def change_it():
        await calls[change]()
        changed.append(storage.segments)

    changed = []
    async with trio.open_nursery() as nursery, in_the_midst_of_a_swap(storage, step, ended) as seal:
        nursery.start_soon(change_it)
        await trio.testing.wait_all_tasks_blocked()
        assert not changed
    assert ended == [None]
    assert changed[0] == storage.segments
    assert {segment.seal for segment in storage.segments} == {None, seal}
    shown = [offset for offset in before if offset >= storage.log_start_offset]
    assert (shown != before) == (change == "retention")
    assert await offsets_of(world, storage) == left(shown, seal)


@pytest.mark.parametrize("step", STEPS)
async def test_a_partition_that_fails_in_the_midst_of_a_swap_is_mended_when_that_has_ended(step):
    """By what it has put in place: it has not shown it to anybody."""
    world, storage = await world_with_segments()
    before, ended, mended = await offsets_of(world, storage), [], []

    async def mend():
        await world.rewrite_failed()
        mended.append(None)

    async with trio.open_nursery() as nursery, in_the_midst_of_a_swap(storage, step, ended) as seal:
        storage.fail("a write")
        nursery.start_soon(mend)
        await trio.testing.wait_all_tasks_blocked()
        assert not mended
    assert isinstance(ended[0], StorageFailedError)
    assert mended == [None]
    assert storage.failed is None
    await world.write_behind(everything=True)
    assert await offsets_of(world, storage) == left(before, seal)
    world.disk.crash(world.rng)
    assert (await opened(world))[1] == left(before, seal)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
async def test_a_wrong_index_of_a_cleaned_segment_is_mended_if_it_is_then_what_its_seal_says(suffix):
    """As one that arrived so in a fill: it was made anew at each start."""
    world, storage = await world_with_segments()
    await swapped(world, storage)
    segment = storage.segments[1]
    made = await storage.folder.indexes_by_log(segment, storage.settings.index_interval_bytes)
    files = [SealedFile(len(data), crc32c(data)) for data in made.contents]
    segment.seal = segment.seal._replace(offset_index=files[0], time_index=files[1], transaction_index=files[2])
    name = segment_file_name(segment.base_offset, suffix)
    for right in (True, False):
        if not right:
            segment.seal = segment.seal._replace(time_index=SealedFile(12, 1))
        await storage.folder.write_file(name, b"what is no index")
        segment.indexes = None
        await SegmentReader(storage).load(segment)
        expected = made.contents[0 if suffix == ".index" else 1] if right else b"what is no index"
        assert await storage.folder.read_file(name) == expected


async def swapped(world, storage, *, count=3):
    return await swap_copy(storage, cleanable(storage)[1 : 1 + count], keep=keep)


async def test_the_power_goes_at_every_effect():
    """Before the seal is durable the old segments are there, behind it the new one, and never a part of both."""
    assert await power_losses(4) == {False, True}


async def power_losses(seeds):
    outcomes = set()

    async def run(effect, seed=0):
        world, storage = await world_with_segments()
        await swap_copy(storage, cleanable(storage)[1:2], keep=keep)  # an older seal, which gives way, too
        before, segments = await offsets_of(world, storage), cleanable(storage)[1:4]
        after = [one for one in before if not segments[0].base_offset <= one < storage.end_of(segments[-1])
                 or one % 3 != GONE_OF_THREE]  # fmt: skip
        world.rng.seed(effect * 31 + seed)
        world.disk.effects, world.disk.lose_power_at = 0, effect
        ended = False
        try:
            await swap_copy(storage, segments, keep=keep)
            ended = True
        except PowerLoss:
            pass
        world.disk.crash(world.rng)
        again, found = await opened(world)
        assert found in ([after] if ended else [before, after])
        outcomes.add(found == after)
        assert not [name for name in names_of(again) if parse_cleaned_file_name(name) or name.endswith(".tmp")]
        assert {segment.base_offset: segment.seal is not None for segment in again.segments}[segments[0].base_offset]
        return not ended

    for seed in range(seeds):
        assert await at_every_effect(lambda effect, seed=seed: run(effect, seed)) > 15
    return outcomes


async def no_directory_sync(self, *swap):
    self._log.folder.disk.during("fsync_directory", do=forgetting)  # to the swap's end
    await CARRY_OUT(self, *swap)


async def sizes_in(folder):
    names = await folder.disk.listdir(folder.path)
    return {name: (await folder.disk.stat(folder.path / name)).size_bytes for name in names}


async def seal_behind_the_files(self, _segments, seal, written):
    await segment_swap.put_in_place(self._log.folder, seal, await sizes_in(self._log.folder))
    await self._log.folder.rename(written, f"{seal.base_offset:020d}.seal")
    await self._log.folder.disk.fsync_directory(self._log.folder.path)


async def seal_without_a_sync(self, name, seal):
    self._log.folder.disk.during("fdatasync", do=forgetting)
    await WRITE_SEAL(self, name, seal)
    self._log.folder.disk.during("fdatasync", do=None)


@pytest.mark.parametrize(
    ("step", "mutant"),
    [("_carry_out", no_directory_sync), ("_carry_out", seal_behind_the_files), ("_write_seal", seal_without_a_sync)],
)
async def test_a_swap_that_does_it_in_another_way_is_caught(step, mutant, monkeypatch):
    monkeypatch.setattr(SegmentSwap, step, mutant)
    with pytest.raises(AssertionError):
        await power_losses(8)


async def test_the_power_goes_while_a_start_finishes_a_swap():
    async def run(effect):
        world, storage = await world_with_segments()
        before, segments = await offsets_of(world, storage), cleanable(storage)[1:4]
        sources, seal = await sources_of(storage, segments), await cleaned_copy(storage, segments, keep=keep)
        world.disk.fail_at, world.disk.fail_with = world.disk.effects + 6, errno.EIO  # behind the seal
        with pytest.raises(StorageFailedError):
            await storage.swap(sources, seal, lambda: None)
        world.disk.crash(world.rng)
        world.disk.lose_power_at = effect
        try:
            found = (await opened(world))[1]
        except PowerLoss:
            world.disk.crash(world.rng)
            assert (await opened(world))[1] == left(before, seal)
            return True
        assert found == left(before, seal)
        return False

    assert await at_every_effect(run) > 6


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_the_disk_refuses_at_every_effect_and_mending_finishes_what_was_begun(number):
    """Nothing has changed, or the partition has failed: then it is put in order before anybody reads it again."""
    outcomes = set()

    async def run(effect):
        world, storage = await world_with_segments()
        before, segments = await offsets_of(world, storage), cleanable(storage)[1:4]
        sources, seal = await sources_of(storage, segments), await cleaned_copy(storage, segments, keep=keep)
        world.disk.effects, world.disk.fail_at, world.disk.fail_with = 0, effect, number
        try:
            await storage.swap(sources, seal, lambda: None)
        except SwapRefusedError:
            outcomes.add("refused")
            assert storage.failed is None
            assert await offsets_of(world, storage) == before
            world.disk.fail_at = None
            await storage.swap(sources, seal, lambda: None)
            assert await offsets_of(world, storage) == left(before, seal)
            return True
        except StorageFailedError:
            world.disk.fail_at = None
            if segments[0] in storage.segments:
                outcomes.add("failed")
                with pytest.raises(OSError, match="in part"):
                    await storage.read(segments[0].base_offset, 1)
            else:
                outcomes.add("failed behind it")
                assert await offsets_of(world, storage) == left(before, seal)
            await world.rewrite_failed()
            await world.write_behind(everything=True)
            found = await offsets_of(world, storage)
            assert found in (before, left(before, seal))
            assert storage.failed is None
            world.disk.crash(world.rng)
            assert (await opened(world))[1] == found
            return True
        return False

    assert await at_every_effect(run) > 8
    assert outcomes == {"refused", "failed", "failed behind it"}


async def test_what_jobs_left_and_seals_of_nothing_are_removed_by_a_start():
    world, storage = await world_with_segments()
    await cleaned_copy(storage, cleanable(storage)[:2], keep=keep)
    seal = await swapped(world, storage)
    await cleaned_copy(storage, cleanable(storage)[1:3], keep=lambda _header: False)
    path, disk = storage.folder.path, world.disk
    assert await world.journal.commit([encode_entry(EntryKind.LOG_START, storage.key, seal.base_offset)])
    await storage.advance_log_start(seal.base_offset, 0)
    before = await offsets_of(world, storage)
    orphan = seal._replace(base_offset=3, replaced=(3,), end_offset=4)
    assert seal.base_offset > 4
    fd = await disk.open(path / "00000000000000000003.seal", os.O_RDWR | os.O_CREAT)
    await disk.write_at(fd, orphan.encode(), 0)
    disk.kill()
    again, found = await opened(world)
    assert found == before
    assert [name for name in names_of(again) if ".seal" in name] == [f"{seal.base_offset:020d}.seal"]
    assert not [name for name in names_of(again) if parse_cleaned_file_name(name)]


@pytest.mark.parametrize("damage", ["seal", "log", "checkpoint", "no log"])
async def test_a_seal_that_does_not_fit_its_files_takes_the_partition_offline(damage):
    world, storage = await world_with_segments()
    seal = await swapped(world, storage)
    path = storage.folder.path / f"{seal.base_offset:020d}"
    if damage == "seal":
        world.disk.names[path.with_suffix(".seal")].content[30] ^= 1
    elif damage == "log":
        del world.disk.names[path.with_suffix(".log")].content[-1:]
    elif damage == "no log":
        del world.disk.names[path.with_suffix(".log")]
    else:
        made = seal._replace(end_offset=10**9)
        world.disk.names[path.with_suffix(".seal")].content[:] = made.encode()
    world.disk.kill()
    core = await recover_core(
        world.disk, DATA, world.core_id, new_journal_id=bytes(15) + b"j", settings_of=lambda _topic: SETTINGS
    )
    [offline] = core.offline.values()
    assert "seal" in offline.reason or "cleaned segment" in offline.reason


async def test_few_logs_of_a_swap_are_kept_open(monkeypatch):
    """It may be of 2,048, and a process may have fewer descriptors."""
    monkeypatch.setattr(segment_swap, "KEPT_OPEN_MAX", 2, raising=False)
    _world, storage = await world_with_segments()
    segments, disk, held = cleanable(storage)[:4], storage.folder.disk, []
    await storage.folder.close()

    async def rename(go, *_arguments):
        held.append(sum(path.suffix == ".log" for path in storage.folder.files.paths_in(storage.folder.path)))
        return await go()

    disk.during("rename", do=rename)
    await swap_copy(storage, segments, keep=keep)
    assert held[0] == 2


async def test_a_seal_that_cannot_be_opened_for_the_moment_takes_nothing_offline():
    """The mark would stay when there are descriptors again."""
    world, storage = await world_with_segments()
    await swapped(world, storage)
    before = await offsets_of(world, storage)

    async def open_seals_not(go, path, *_arguments):
        if path.suffix == ".seal":
            raise OSError(errno.EMFILE, "too many open files")
        return await go()

    world.disk.kill()
    world.disk.during("open", do=open_seals_not)
    with pytest.raises(OSError, match="too many open files"):
        await opened(world)
    world.disk.during("open", do=None)
    world.disk.kill()
    assert (await opened(world))[1] == before


# -- beside everything else --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
async def test_swaps_beside_appends_checkpoints_cuts_retention_and_losses_of_power(seed):
    world = CheckpointedCore(seed, swaps=4)
    for _life in range(4):
        world.disk.lose_power_at = world.disk.effects + world.rng.randint(1, 400)
        with contextlib.suppress(PowerLoss):
            await world.open()
            await live(world, 60)
        world.disk.crash(world.rng)
    await world.open()
    assert world.swaps_count


def test_seals_are_what_was_written():
    seal = Seal("0" * 16, 5, 9, (5, 7), 9, 0, 1, 2, *[(0, 0)] * 4)
    assert Seal.decode(seal.encode()) == seal
