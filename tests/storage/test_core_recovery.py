"""Recovery under a disk that loses power anywhere: nothing acknowledged is lost, nothing is invented."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage.checkpointed_core import DATA, SETTINGS, CheckpointedCore, PowerLoss
from tests.support.disk_operations import forgetting
from tests.support.fake_disk import FakeDisk, at_every_effect
from tpc_broker.errors import StorageFailedError
from tpc_broker.log import journal
from tpc_broker.log.batch import BATCH_HEADER_BYTES
from tpc_broker.storage.recovery import checkpoint
from tpc_broker.storage.recovery.recovery import recover_core
from tpc_broker.storage.segments import segment_appender

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def small_journal(monkeypatch):
    monkeypatch.setattr(journal, "JOURNAL_BYTES_MIN", 64 * 1024)
    monkeypatch.setattr(journal, "SCAN_WINDOW_BYTES", 8 * 4096)
    monkeypatch.setattr(journal, "REPLAY_WINDOW_BYTES", 5000)
    monkeypatch.setattr(segment_appender, "DIRECT_BLOCK_BYTES", 512)
    monkeypatch.setattr(FakeDisk, "direct_block_bytes", 512)
    monkeypatch.setattr(segment_appender, "DIRECT_BYTES_MIN", 512)


async def live(world, steps):
    for _step in range(steps):
        await world.step()


async def lives(seed, *, powers=3, steps=40, disk=None):
    """Several lives of one core, each ended by a power loss at a random effect (also while it recovers)."""
    world = CheckpointedCore(seed, disk=disk)
    for _life in range(powers):
        world.disk.lose_power_at = world.disk.effects + world.rng.randint(1, steps * 3)
        try:
            await world.open()
            await live(world, steps)
        except PowerLoss:
            pass
        world.disk.crash(world.rng)
    await world.open()
    for partition in world.partitions:
        await world.verify(partition)


@QUICK
@given(st.integers(0, 2**32))
async def test_power_loss_anywhere(seed):
    await lives(seed)


async def test_power_loss_at_every_effect_of_one_life():
    async def run(effect):
        world = CheckpointedCore(7)
        await world.open()
        await live(world, 25)
        world.disk.effects, world.disk.lose_power_at = 0, effect
        try:
            await live(world, 25)
        except PowerLoss:
            world.disk.crash(world.rng)
        else:
            return False
        await world.open()
        return True

    assert await at_every_effect(run) > 25


@pytest.mark.parametrize("seed", range(4))
async def test_what_a_start_had_made_when_it_was_killed_counts_from_the_next_one_on(seed):
    """A folder, the journal, a checkpoint: their names are there, and the power may still take them."""

    async def run(effect):
        world = CheckpointedCore(seed)
        world.disk.lose_power_at = effect
        try:
            await world.open()
            await world.append()
            await world.write_behind(everything=True)
            await world.checkpoint()
        except PowerLoss:
            world.disk.kill()
        else:
            return False
        await world.open()
        await world.append()
        world.disk.crash(world.rng)
        await world.open()
        return True

    assert await at_every_effect(run) > 25


async def test_recovery_killed_at_every_effect_and_run_again():
    async def run(effect):
        world = CheckpointedCore(11)
        await world.open()
        await live(world, 45)
        for _append in range(6):
            await world.append()
        await world.write_behind(everything=True)
        await world.roll()
        await world.cut()
        await world.append()
        return await world.loses_power_while_it_opens(effect)

    assert await at_every_effect(run) > 5


@pytest.mark.parametrize("seed", [3, 4])
async def test_the_nth_effect_fails_and_the_files_are_made_anew(seed):
    """An error of the disk while writing behind or syncing: rewritten from the journal, then power is lost."""

    async def run(effect):
        world = CheckpointedCore(seed)
        await world.open()
        await live(world, 20)
        world.disk.effects, world.disk.fail_at = 0, effect
        failed = False
        for _step in range(25):
            try:
                await world.step()
            except (OSError, StorageFailedError, AssertionError) as error:
                failed = True
                if "durable write" in str(error):
                    return True  # the journal itself: its writer's tests
                await world.rewrite_failed()
                break
        for partition in world.partitions:
            storage = world.storages[partition.key]
            partition.unwritten = [one for one in partition.acknowledged if one[0] >= storage.written_end_offset]
        if failed:
            world.disk.fail_at = None
            await world.write_behind(everything=True)
            await world.checkpoint()
            for partition in world.partitions:
                await world.verify(partition)
            world.disk.crash(world.rng)
            await world.open()
        return failed

    assert await at_every_effect(run) > 20


async def test_a_kill_without_power_loss():
    world = CheckpointedCore(5)
    for _life in range(6):
        await world.open()
        await live(world, 60)
        world.disk.kill()
    await world.open()


async def fails_for_some_seed(*forgotten):
    """On a disk that says that it has synced so, and has not."""
    for seed in range(60):
        disk = FakeDisk()
        disk.during(*forgotten, do=forgetting)
        try:
            await lives(seed, disk=disk)
        except Exception:
            return True
    return False


async def test_mutant_without_directory_syncs_is_caught():
    assert await fails_for_some_seed("fsync_directory")


async def test_mutant_without_file_syncs_is_caught():
    assert await fails_for_some_seed("fdatasync")


async def test_mutant_checkpoint_before_data_is_caught(monkeypatch):
    async def unsynced(self, storages, pace_seconds):
        return {storage.key: await storage.capture() for storage in storages}

    monkeypatch.setattr(checkpoint.Checkpointer, "_capture_and_sync", unsynced)
    assert await fails_for_some_seed()


async def test_the_syncfs_way_is_as_safe(monkeypatch):
    monkeypatch.setattr(checkpoint, "SYNCFS_PARTITIONS", 1)
    for seed in range(25):
        await lives(seed)


async def test_opening_reads_of_the_segments_one_header_at_most():
    disk, bytes_read = FakeDisk(), Counter()

    async def count_bytes(go, fd, *_more):
        data = await go()
        bytes_read[disk.descriptors[fd].path.name] += len(data)
        return data

    disk.during("read", do=count_bytes)
    world = CheckpointedCore(1, partitions=2, disk=disk)
    await world.open()
    for _number in range(40):
        await world.append()
    await world.checkpoint()
    await world.append()
    assert min(len(storage.segments) for storage in world.storages.values()) > 3
    active = {storage.active.log_name for storage in world.storages.values()}
    await world.core.close()
    bytes_read.clear()
    await checkpoint.read_checkpoint(world.disk, DATA / "journals", 0)
    stored_bytes = bytes_read.pop("0000.checkpoint")
    core = await recover_core(
        world.disk, DATA, 0, new_journal_id=bytes(16), settings_of=lambda _topic: SETTINGS
    )
    assert core.report.replayed_bytes
    read = {name: size for name, size in bytes_read.items() if name.endswith(".log")}
    stored = bytes_read["0000.checkpoint"]
    assert stored == stored_bytes, "it names every partition, and is read and decoded once"
    assert set(read) <= active
    assert max(read.values(), default=0) <= BATCH_HEADER_BYTES  # the last index entry against the log
