"""Batches written once, straight to their segment: a core's storage on a real disk, crashed by copying its folder."""

from __future__ import annotations

import os

import pytest

from tests.log.log_batches import batch
from tests.runtime.straight_core import KEY, SEGMENT_BYTES, held, on_core, recovered_copy
from tpc_broker.broker.storage_recovery import recover_core, rewrite_partition
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.model import CoreId


def test_what_was_written_once_comes_back(tmp_path):
    async def body(bench):
        await bench.begin_straight()
        before = bench.straight_bytes()
        for value_bytes, count in ((100_000, 3), (70, 2), (66_000, 1), (300_000, 4), (5000, 1), (131_072, 2)):
            await bench.append(value_bytes, count)
        assert bench.straight_bytes() - before > 1_200_000, "hardly anything was written once"
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        assert not recovered.offline
        assert await held(recovered.storages[KEY]) == bench.acknowledged
        await recovered.close()
        again = await recover_core(bench.core.disk, tmp_path / "crashed", CoreId(0), new_journal_id=bytes(16))
        assert await held(again.storages[KEY]) == bench.acknowledged
        await again.close()
        await bench.storage.write_behind()
        assert await held(bench.files) == bench.acknowledged

    on_core(tmp_path, body)


@pytest.mark.parametrize("fault", ["flipped", "shorter", "header"])
def test_a_batch_that_is_not_in_its_segment_is_damage(tmp_path, fault):
    async def body(bench):
        await bench.begin_straight()
        position = bench.files.active.size_bytes
        await bench.append(300_000)

        def harm(log):
            data = bytearray(log.read_bytes())
            if fault == "shorter":
                del data[position + 150_000 :]
            else:
                data[position + (200_000 if fault == "flipped" else -(-position // 4096) * 4096 - position)] ^= 1
            log.write_bytes(data)

        recovered = await recovered_copy(bench, tmp_path / "crashed", harm)
        assert "was written once" in recovered.offline[KEY].reason
        await recovered.close()

    on_core(tmp_path, body)


def test_segments_roll_between_batches_written_once(tmp_path):
    async def body(bench):
        await bench.begin_straight()
        for _ in range(24):
            await bench.append(290_000, 2)
            await bench.storage.write_behind(all_of_it=False)
        await bench.storage.checkpoint()
        for _ in range(5):
            await bench.append(290_000, 2)
        assert len(bench.files.segments) > 1
        assert all(segment.size_bytes <= SEGMENT_BYTES for segment in bench.files.segments)
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        assert not recovered.offline
        assert await held(recovered.storages[KEY]) == bench.acknowledged
        await recovered.close()

    on_core(tmp_path, body)


def test_a_failed_segment_is_made_anew_with_what_was_written_once(tmp_path):
    async def body(bench):
        await bench.begin_straight()
        await bench.append(300_000, 2)
        await bench.append(9000, 2)
        await bench.storage.write_behind()
        await bench.append(200_000, 3)
        inode = bench.log.stat().st_ino
        bench.files.fail("a sync that failed")
        assert not bench.plane.set_placement_space(bench.handle, 0), "a failed segment takes nothing more"
        await rewrite_partition(bench.files, bench.storage._recovered.journal_file)
        assert bench.log.stat().st_ino != inode
        await bench.storage.write_behind()
        assert await held(bench.files) == bench.acknowledged
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        assert await held(recovered.storages[KEY]) == bench.acknowledged
        await recovered.close()

    on_core(tmp_path, body)


def test_a_write_to_the_segment_that_fails_fails_the_commit(tmp_path):
    async def body(bench):
        await bench.begin_straight()
        await bench.append(300_000)
        read_only = os.open(bench.log, os.O_RDONLY)
        await bench.storage.write_behind()
        assert bench.plane.open_placement(bench.handle, bench.files, read_only, 65536)
        os.close(read_only)
        end_offset = bench.files.written_end_offset
        with pytest.raises(PartitionOfflineError):
            await bench.append(300_000, 2)
        assert bench.plane.bounds(bench.handle).log_end_offset == end_offset
        assert await bench.storage._mend_journal()
        written = bench.straight_bytes()
        await bench.append(300_000, 2)
        await bench.storage.write_behind(all_of_it=False)
        await bench.append(300_000, 2)
        assert bench.straight_bytes() == written, "a cut lies behind the replay position"
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        assert await held(recovered.storages[KEY]) == bench.acknowledged
        await recovered.close()
        await bench.begin_straight()
        await bench.append(300_000, 2)
        assert bench.straight_bytes() > written

    on_core(tmp_path, body)


def test_a_deleted_partition_takes_its_writes_along(tmp_path):
    async def body(bench):
        await bench.begin_straight()
        data = batch(0, [bytes(400_000)], epoch=bench.files.leader_epoch)
        await bench.storage.make_room(bench.files, bench.handle, len(data))
        result = bench.plane.append(bench.handle, data)
        await bench.storage.delete(bench.files, bench.handle)
        await bench.plane.wait_durable(result.sequence)
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        assert not recovered.offline
        assert KEY not in recovered.storages
        await recovered.close()

    on_core(tmp_path, body)


@pytest.mark.parametrize("clients_count", [1, 3])
def test_batches_of_requests_are_written_from_where_they_arrived(tmp_path, clients_count):
    """One connection's lie in memory as they will in the file; of several some do not, and are copied."""

    async def body(bench):
        await bench.begin_straight()
        before = bench.journal_statistics()
        batches = [batch(0, [bench.chooser.randbytes(bench.chooser.randint(140_000, 350_000))]) for _ in range(12)]
        await bench.produce([batches[first::clients_count] for first in range(clients_count)], 4)
        after = bench.journal_statistics()
        written = after.straight_bytes_written - before.straight_bytes_written
        staged = after.straight_bytes_staged - before.straight_bytes_staged
        assert written > 1_200_000, "hardly anything was written once"
        assert clients_count > 1 or staged <= 12 * 4096 + 350_000, "more than shared blocks and the first one"
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        assert not recovered.offline
        assert await held(recovered.storages[KEY]) == bench.acknowledged
        await recovered.close()
        await bench.storage.write_behind()
        assert await held(bench.files) == bench.acknowledged

    on_core(tmp_path, body)


def test_draining_ends_placements_before_it_closes_files(tmp_path):
    async def body(bench):
        await bench.begin_straight()
        await bench.append(300_000, 2)
        await bench.storage.drain()
        assert not bench.plane.set_placement_space(bench.handle, 1 << 30), "it is still open"
        recovered = await recovered_copy(bench, tmp_path / "drained")
        assert await held(recovered.storages[KEY]) == bench.acknowledged
        await recovered.close()

    on_core(tmp_path, body)
