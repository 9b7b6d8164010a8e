"""A journal begins small and grows with its use; nothing that fits its bound is refused because it is still small."""

from __future__ import annotations

import pytest
import trio

from tests.engine.in_place_core import KEY, assert_kept, held, on_core, recovered_copy
from tests.engine.test_trouble import checkpoint_at_last, wait_until, with_maintenance
from tests.log.log_batches import batch
from tests.storage.checkpointed_core import DATA
from tests.support.fake_disk import FakeDisk
from tests.support.waiting import PATIENCE_S
from tpc_broker import limits
from tpc_broker.storage.recovery.recovery import recover_core

EMPTY_BYTES_MAX = 20 * limits.MIB
SMALL_DISK_BYTES = 400 * 1000 * 1000
MANY_CORES = 24


def allocated_bytes(folder):
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def test_an_empty_broker_takes_little_space(tmp_path):
    async def body(bench):
        await trio.sleep(1.5)
        assert allocated_bytes(tmp_path / "data") < EMPTY_BYTES_MAX

    with_maintenance(tmp_path, body)


def test_a_journal_that_is_used_grows_and_comes_back(tmp_path):
    async def body(bench):
        before = bench.plane.journal_use().region_blocks
        for _ in range(6):
            await bench.append(40_000, 30)
        await wait_until(lambda: bench.plane.journal_use().region_blocks >= 2 * before)
        for _ in range(6):
            await bench.append(40_000, 30)
        await assert_kept(bench, tmp_path / "crashed")

    with_maintenance(tmp_path, body)


def test_a_batch_larger_than_a_fresh_journal_is_taken_when_that_has_grown(tmp_path):
    async def body(bench):
        object.__setattr__(bench.files.settings, "segment_bytes", 64 * limits.MIB)
        data = batch(0, [bench.chooser.randbytes(20 * limits.MIB)], epoch=bench.files.leader_epoch)
        assert len(data) > bench.plane.journal_use().region_blocks * 4096
        await bench.storage.make_room(bench.files, bench.handle, len(data))
        with trio.fail_after(PATIENCE_S):
            while (result := bench.plane.append(bench.handle, data)) is None:
                await bench.storage.wait_journal_room()
        await bench.plane.wait_committed(bench.handle, result.end_offset, result.leader_epoch)
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        assert await held(recovered.storages[KEY]) == {result.base_offset: data[21:]}
        await recovered.close()

    with_maintenance(tmp_path, body)


@pytest.mark.parametrize("sizes", [(6,), (5, 5, 5)], ids=["one", "together"])
def test_batches_find_room_wherever_a_young_journal_stands(tmp_path, sizes):
    """In the middle of its region, with nothing in use: not enough is left to the end, nor in front of it."""

    async def body(bench):
        object.__setattr__(bench.files.settings, "segment_bytes", 64 * limits.MIB)
        for _ in range(4):
            await bench.append(700_000)
        await checkpoint_at_last(bench)
        assert bench.plane.journal_use().blocks_used == 0
        batches = [batch(0, [bench.chooser.randbytes(size * limits.MIB)], epoch=0) for size in sizes]
        data = b"".join(batches)
        await bench.storage.make_room(bench.files, bench.handle, len(data))
        with trio.fail_after(PATIENCE_S):
            while (result := bench.plane.append(bench.handle, data)) is None:
                await bench.storage.wait_journal_room()
        assert result.error_code == 0
        await bench.plane.wait_committed(bench.handle, result.end_offset, result.leader_epoch)
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        assert len(await held(recovered.storages[KEY])) == len(bench.acknowledged) + len(sizes)
        await recovered.close()

    with_maintenance(tmp_path, body)


def test_the_journals_of_many_cores_fit_a_small_disk():
    async def main():
        disk = FakeDisk(SMALL_DISK_BYTES)
        disk.allocatable_bytes = SMALL_DISK_BYTES
        disk.put_folder(DATA)
        regions = 0
        for core in range(MANY_CORES):
            recovered = await recover_core(
                disk, DATA, core, new_journal_id=bytes([core]) * 16, journals_count=MANY_CORES
            )
            regions += recovered.journal_file.superblock.region_blocks * 4096
        assert regions <= SMALL_DISK_BYTES // 3, "4 MiB each is the least"
        assert disk.allocatable_bytes >= SMALL_DISK_BYTES // 2

    trio.run(main)


def test_a_checkpoint_that_is_held_back_is_not_asked_for_again_by_a_journal_that_is_no_longer(tmp_path):
    async def body(bench):
        asked, data = [], batch(0, [bytes(1000)], epoch=bench.files.leader_epoch)
        bench.storage._requests.checkpoint.ask = lambda: asked.append(bench.plane.journal_use())
        while not asked:
            await bench.append(50_000, 10)
        await bench.storage.make_room(bench.files, bench.handle, limits.MIB)
        bench.files.fail("a sync that failed")
        for _ in range(3):
            assert not await bench.storage.checkpoint()
            result = bench.plane.append(bench.handle, data)
            await bench.plane.wait_committed(bench.handle, result.end_offset, result.leader_epoch)
        assert len(asked) == 1

    on_core(tmp_path, body)
