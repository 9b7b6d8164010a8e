"""Another number of cores than last time: every journal is replayed, every partition finds its new owner."""

import uuid

import pytest

from tests.storage.checkpointed_core import DATA, JOURNAL_BYTES, SETTINGS, CheckpointedCore
from tests.support.fake_disk import FakeDisk, PowerLoss, at_every_effect
from tpc_broker.log import journal
from tpc_broker.log.files import HANDOVER_FILE
from tpc_broker.metadata.core_counts import core_of_those_left
from tpc_broker.storage.recovery.handover import hand_over, journal_cores, recover_all
from tpc_broker.storage.recovery.recovery import recover_core
from tpc_broker.storage.segments.folders import create_partition


@pytest.fixture(autouse=True)
def small_journal(monkeypatch):
    monkeypatch.setattr(journal, "JOURNAL_BYTES_MIN", 64 * 1024)


def journal_id():
    return b"0123456789abcdef"


async def two_cores(disk):
    """Partitions 0 and 1 on core 0, 2 and 3 on core 1; unclean."""
    worlds = []
    for core in range(2):
        world = CheckpointedCore(core, partitions=4, disk=disk)
        world.partitions = world.partitions[core * 2 : core * 2 + 2]
        world.core_id = core
        await world.open()
        for _step in range(30):
            await world.step()
        worlds.append(world)
    return worlds


async def create_empty(core, key):
    storage = await create_partition(core.files, DATA / "topics", "topic0", key, SETTINGS)
    return storage.written_end_offset


async def change(disk, cores_count):
    recovered = await recover_all(disk, DATA, journal_id)
    return await hand_over(disk, DATA, recovered, lambda key, _core: key.partition % cores_count,
                           cores_count=cores_count, new_journal_id=journal_id, journal_bytes_max=JOURNAL_BYTES)


async def is_over(disk, cores_count):
    """Each core has its journal, and there is no marker of a hand-over that was cut short."""
    is_marked = HANDOVER_FILE in await disk.listdir(DATA / "journals")
    return await journal_cores(disk, DATA) == list(range(cores_count)) and not is_marked


async def check(disk, worlds, cores_count, owner_of=None):
    owner_of = owner_of or (lambda key: key.partition % cores_count)
    assert await is_over(disk, cores_count)
    partitions = [partition for world in worlds for partition in world.partitions]
    seen = 0
    for core in range(cores_count):
        world = CheckpointedCore(1, partitions=0, disk=disk)
        world.core_id = core
        world.partitions = [partition for partition in partitions if owner_of(partition.key) == core]
        await world.open()
        assert set(world.storages) == {partition.key for partition in world.partitions}
        seen += len(world.partitions)
    assert seen == 4


@pytest.mark.parametrize("cores_count", [1, 2, 3, 4])
async def test_every_partition_moves_to_its_owner(cores_count):
    disk = FakeDisk()
    worlds = await two_cores(disk)
    disk.kill()
    assert await is_over(disk, cores_count) is (cores_count == 2)
    await change(disk, cores_count)
    assert await journal_cores(disk, DATA) == list(range(cores_count))
    disk.crash(worlds[0].rng)
    await check(disk, worlds, cores_count)


@pytest.mark.parametrize("cores_count", [1, 3])
async def test_a_handover_may_be_cut_short_anywhere(cores_count):
    async def run(effect):
        disk = FakeDisk()
        worlds = await two_cores(disk)
        disk.crash(worlds[0].rng)
        disk.lose_power_at = effect
        try:
            await change(disk, cores_count)
        except PowerLoss:
            disk.crash(worlds[0].rng)
            if not await is_over(disk, cores_count):
                await change(disk, cores_count)
            await check(disk, worlds, cores_count)
            return True
        return False

    assert await at_every_effect(run) > 10


async def test_another_number_of_cores_after_a_hand_over_that_was_cut_short():
    """As a node of a cluster does it: what a core has stays there, unless there is no such core any more."""
    starts = [(3, []), (1, [1]), (2, [1]), (3, [1])]
    ended: set[int] = set()
    kept: dict[tuple[int, int], int] = {}
    """What each core keeps of a partition, beside its checkpoint."""

    async def giving(given):
        kept.update({(target, key.partition): kept[source, key.partition] for key, source, target in given})

    async def core_ended(core):
        ended.add(core)

    async def start(disk, cores_count, counts):
        recovered = await recover_all(disk, DATA, journal_id)
        await hand_over(disk, DATA, recovered, lambda key, core: core_of_those_left(key, core, counts),
                        cores_count=cores_count, new_journal_id=journal_id, journal_bytes_max=JOURNAL_BYTES,
                        giving=giving, core_ended=core_ended)  # fmt: skip

    async def run(effect):
        disk = FakeDisk()
        worlds = await two_cores(disk)
        disk.crash(worlds[0].rng)
        await start(disk, *starts[0])
        disk.kill()
        ended.clear()
        kept.clear()
        kept.update({(partition // 2, partition): partition for partition in range(4)})
        disk.lose_power_at = effect
        try:
            await start(disk, *starts[1])
        except PowerLoss:
            disk.crash(worlds[0].rng)
            assert ended >= {1, 2} - set(await journal_cores(disk, DATA))
            cores_count, counts = worlds[0].rng.choice(starts[1:])
            await start(disk, cores_count, counts)
            await check(disk, worlds, cores_count, owner_of=lambda _key: 0)
            assert [kept[0, partition] for partition in range(4)] == [0, 1, 2, 3]
            return True
        return False

    assert await at_every_effect(run) > 10


async def test_a_missing_journal_beside_its_checkpoint_is_damage():
    disk = FakeDisk()
    world = CheckpointedCore(1, disk=disk)
    await world.open()
    await world.append()
    await world.checkpoint()
    disk.kill()
    await disk.unlink(DATA / "journals" / "0000.journal")
    with pytest.raises(Exception, match="journal of core 0 is missing"):
        await recover_core(disk, DATA, 0, new_journal_id=journal_id())


async def test_damage_of_one_partition_leaves_the_others_open():
    disk = FakeDisk()
    world = CheckpointedCore(1, disk=disk)
    await world.open()
    for _append in range(8):
        await world.append()
    await world.checkpoint()
    for _append in range(4):
        await world.append()
    disk.kill()
    hurt, well = world.partitions
    storage = world.storages[hurt.key]
    log = storage.folder.path / storage.active.log_name
    del disk.names[log].content[-10:]
    for _start in range(3):
        core = await recover_core(disk, DATA, 0, new_journal_id=journal_id())
        assert set(core.storages) == {well.key}
        assert "were durable" in core.offline[hurt.key].reason
        assert core.kept[hurt.key].log_end_offset == world.storages[hurt.key].checkpointed.log_end_offset
        world.storages, world.partitions = core.storages, [well]
        await world.verify(well)
        world.storages = {hurt.key: storage}
    salvaged = [name for name in await disk.listdir(storage.folder.path) if name.startswith("salvage-")]
    kept = b"".join(bytes(disk.names[storage.folder.path / name].content) for name in salvaged)
    assert kept == b"".join(data for _offset, data in hurt.unwritten)


async def test_the_old_topics_records_never_reach_a_new_one_of_the_same_name():
    disk = FakeDisk()
    world = CheckpointedCore(1, partitions=1, disk=disk)
    await world.open()
    await world.append()
    path = world.storages[world.partitions[0].key].folder.path
    await disk.rename(path, path.with_name("moved.1-delete"))
    again = CheckpointedCore(2, partitions=1, disk=disk)
    again.partitions[0].key = again.partitions[0].key._replace(topic_id=uuid.UUID(int=5))
    new = await create_partition(world.core.files, DATA / "topics", "topic0", again.partitions[0].key, SETTINGS)
    assert new.written_end_offset == 0
    disk.kill()
    core = await recover_core(disk, DATA, 0, new_journal_id=journal_id())
    assert not core.storages
    assert "its folder is missing" in core.offline[world.partitions[0].key].reason
    assert await create_empty(core, again.partitions[0].key) == 0
