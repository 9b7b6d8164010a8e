"""Recovery of many partitions that were written since the last checkpoint: by few jobs, all that the journal has."""

import errno
from dataclasses import replace

import pytest

from tests.storage import checkpointed_core
from tests.storage.checkpointed_core import CheckpointedCore
from tests.support.fake_disk import at_every_effect
from tpc_broker.storage.recovery import replayed_runs

MANY = 100
BY_ITSELF = ("open", "truncate", "write_at", "writev", "unlink")


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setattr(replayed_runs, "RUNS_TOGETHER", 40)


def active_log(world, partition):
    storage = world.storages[partition.key]
    return world.disk.names[storage.folder.path / storage.active.log_name]


async def append_to_all(world):
    held = [len(partition.acknowledged) for partition in world.partitions]
    while not all(len(one.acknowledged) > before for one, before in zip(world.partitions, held, strict=True)):
        await world.append()


async def written_behind(*, checkpointed, partitions=MANY):
    world = CheckpointedCore(3, partitions=partitions)
    await world.open()
    await append_to_all(world)
    if checkpointed:
        await world.checkpoint()
        await append_to_all(world)
    await world.write_behind(everything=True)
    return world


@pytest.mark.parametrize("checkpointed", [False, True], ids=["files that no checkpoint knows", "files that grew"])
async def test_a_few_jobs_bring_all_of_them_back(checkpointed, monkeypatch):
    """Nothing that is about to be written again is cut or removed before: that is a file made anew for each."""
    monkeypatch.setattr(checkpointed_core, "SETTINGS", replace(checkpointed_core.SETTINGS, segment_bytes=1_000_000))
    world = await written_behind(checkpointed=checkpointed)
    world.disk.kill()
    counts = world.disk.counts
    counts.clear()
    world.disk.log.clear()
    await world.open()
    assert 0 < counts["open_many"] + counts["write_many"] <= 60
    assert not [label for label in world.disk.log if label.startswith("unlink") and label.endswith(".log")]
    if not checkpointed:
        assert sum(counts[name] for name in BY_ITSELF) < MANY


@pytest.mark.parametrize("checkpointed", [False, True], ids=["files that no checkpoint knows", "files that grew"])
async def test_what_lies_behind_the_end_of_the_journal_is_cut(checkpointed):
    world = await written_behind(checkpointed=checkpointed)
    ends = {}
    for partition in world.partitions:
        inode = active_log(world, partition)
        ends[partition.key] = len(inode.content)
        inode.change(("write", len(inode.content), b"what nobody acknowledged"))
    world.disk.kill()
    await world.open()
    for partition in world.partitions:
        assert len(active_log(world, partition).content) == ends[partition.key]
        assert world.storages[partition.key].reserved_bytes == 0
    world.disk.crash(world.rng)
    await world.open()


async def test_power_is_lost_at_every_effect_of_a_recovery():
    async def run(effect):
        world = await written_behind(checkpointed=effect % 2 == 0, partitions=6)
        return await world.loses_power_while_it_opens(effect)

    assert await at_every_effect(run) > 6


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_an_error_of_the_disk_ends_the_recovery_and_it_can_be_run_again(error):
    async def run(effect):
        world = await written_behind(checkpointed=True, partitions=6)
        world.disk.kill()
        world.disk.fail_with, world.disk.fail_at = error, effect
        told = []
        try:
            await world.open()
        except OSError as refused:
            told.append(refused.errno)
        if not told:
            return False
        assert told == [error], "whoever starts the core knows what to do about it"
        world.disk.kill()
        await world.open()
        return True

    assert await at_every_effect(run) > 6


async def no_descriptors(_go, paths, _flags):
    return [OSError(errno.EMFILE, str(path)) for path in paths]


async def test_files_that_cannot_be_opened_together_are_opened_one_by_one():
    world = await written_behind(checkpointed=False, partitions=3)
    world.disk.during("open_many", do=no_descriptors)
    world.disk.kill()
    await world.open()
