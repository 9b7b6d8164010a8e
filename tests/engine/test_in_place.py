"""Batches written in place into their segment: a core's storage on a real disk, crashed by copying its folder."""

from __future__ import annotations

import os

import pytest
import trio

from tests.engine.in_place_core import KEY, SEGMENT_BYTES, assert_kept, held, on_core, recovered_copy
from tests.log.log_batches import batch
from tpc_broker import limits
from tpc_broker.errors import LeadershipLostError, PartitionOfflineError
from tpc_broker.model import CoreId
from tpc_broker.storage.recovery.recovery import recover_core, rewrite_partition
from tpc_broker.storage.upkeep.in_place_windows import in_place_window


def test_what_was_written_once_comes_back(tmp_path):
    async def body(bench):
        await bench.begin_in_place()
        before = bench.in_place_bytes()
        for value_bytes, count in ((100_000, 3), (70, 2), (66_000, 1), (300_000, 4), (5000, 1), (131_072, 2)):
            await bench.append(value_bytes, count)
        assert bench.in_place_bytes() - before > 1_200_000, "hardly anything was written in place"
        await assert_kept(bench, tmp_path / "crashed")
        again = await recover_core(bench.core.disk, tmp_path / "crashed", CoreId(0), new_journal_id=bytes(16))
        assert await held(again.storages[KEY]) == bench.acknowledged
        await again.close()
        await bench.storage.write_behind()
        assert await held(bench.files) == bench.acknowledged

    on_core(tmp_path, body)


@pytest.mark.parametrize("fault", ["flipped", "shorter", "header"])
def test_a_batch_that_is_not_in_its_segment_is_damage(tmp_path, fault):
    async def body(bench):
        await bench.begin_in_place()
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
        assert "was written in place" in recovered.offline[KEY].reason
        await recovered.close()

    on_core(tmp_path, body)


def test_segments_roll_between_batches_written_once(tmp_path):
    async def body(bench):
        await bench.grow_journal()
        await bench.begin_in_place()
        for _ in range(24):
            await bench.append(290_000, 2)
            await bench.storage.write_behind(all_of_it=False)
        await bench.storage.checkpoint()
        for _ in range(5):
            await bench.append(290_000, 2)
        assert len(bench.files.segments) > 1
        assert all(segment.size_bytes <= SEGMENT_BYTES for segment in bench.files.segments)
        await assert_kept(bench, tmp_path / "crashed")

    on_core(tmp_path, body)


def test_a_checkpoint_is_asked_for_long_before_batches_go_through_the_journal_again(tmp_path, monkeypatch):
    bytes_max, batch_bytes = 2 << 20, 100_000
    monkeypatch.setattr(limits, "IN_PLACE_BYTES_MAX", bytes_max)

    async def body(bench):
        await bench.begin_in_place()
        await bench.storage.write_behind()
        await bench.storage.checkpoint()
        before, asked_at = bench.in_place_bytes(), []
        bench.plane.on_journal_space(lambda: asked_at.append(bench.in_place_bytes() - before))
        while True:
            written = bench.in_place_bytes()
            await bench.append(batch_bytes)
            if bench.in_place_bytes() == written:
                break
        assert asked_at, "it is asked for"
        assert bytes_max / 4 - batch_bytes <= asked_at[0] <= bytes_max / 4 + 2 * batch_bytes
        assert bytes_max - 2 * batch_bytes < written - before <= bytes_max, "meanwhile clients write on"
        await bench.storage.write_behind()
        await bench.storage.checkpoint()
        await bench.append(batch_bytes)
        assert bench.in_place_bytes() > written
        await assert_kept(bench, tmp_path / "crashed")

    on_core(tmp_path, body)


def test_a_failed_segment_is_made_anew_with_what_was_written_once(tmp_path):
    async def body(bench):
        await bench.begin_in_place()
        await bench.append(300_000, 2)
        await bench.append(9000, 2)
        await bench.storage.write_behind()
        await bench.append(200_000, 3)
        inode = bench.log.stat().st_ino
        bench.files.fail("a sync that failed")
        assert not bench.plane.set_in_place_space(bench.handle, 0), "a failed segment takes nothing more"
        journal_file = bench.storage._recovered.journal_file
        await rewrite_partition(bench.files, journal_file, await journal_file.scan())
        assert bench.log.stat().st_ino != inode
        await bench.storage.write_behind()
        assert await held(bench.files) == bench.acknowledged
        await assert_kept(bench, tmp_path / "crashed")

    on_core(tmp_path, body)


def test_a_write_to_the_segment_that_fails_fails_the_commit(tmp_path):
    async def body(bench):
        await bench.begin_in_place()
        await bench.append(300_000)
        read_only = os.open(bench.log, os.O_RDONLY)
        await bench.storage.write_behind()
        assert bench.plane.open_in_place_window(bench.handle, in_place_window(bench.files, read_only, 65536))
        os.close(read_only)
        end_offset = bench.files.written_end_offset
        with pytest.raises(PartitionOfflineError):
            await bench.append(300_000, 2)
        assert bench.plane.bounds(bench.handle).log_end_offset == end_offset
        assert await bench.storage._journal.mend()
        written = bench.in_place_bytes()
        await bench.append(300_000, 2)
        await bench.storage.write_behind(all_of_it=False)
        await bench.append(300_000, 2)
        assert bench.in_place_bytes() == written, "a cut lies behind the replay position"
        await assert_kept(bench, tmp_path / "crashed")
        await bench.begin_in_place()
        await bench.append(300_000, 2)
        assert bench.in_place_bytes() > written

    on_core(tmp_path, body)


def test_a_deleted_partition_takes_its_writes_along(tmp_path):
    async def body(bench):
        await bench.begin_in_place()
        data = batch(0, [bytes(400_000)], epoch=bench.files.leader_epoch)
        await bench.storage.make_room(bench.files, bench.handle, len(data))
        result = bench.plane.append(bench.handle, data)
        await bench.storage.delete(bench.files, bench.handle)
        with pytest.raises(LeadershipLostError):
            await bench.plane.wait_committed(bench.handle, result.end_offset, result.leader_epoch)
        while not bench.plane.is_settled():
            await trio.sleep(0.001)
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        assert not recovered.offline
        assert KEY not in recovered.storages
        await recovered.close()

    on_core(tmp_path, body)


@pytest.mark.parametrize("clients_count", [1, 3])
def test_batches_of_requests_are_written_from_where_they_arrived(tmp_path, clients_count):
    """One connection's lie in memory as they will in the file; of several some do not, and are copied."""

    async def body(bench):
        await bench.begin_in_place()
        before = bench.journal_statistics()
        batches = [batch(0, [bench.chooser.randbytes(bench.chooser.randint(140_000, 350_000))]) for _ in range(12)]
        await bench.produce([batches[first::clients_count] for first in range(clients_count)], 4)
        after = bench.journal_statistics()
        written = after.in_place_bytes_written - before.in_place_bytes_written
        staged = after.in_place_bytes_staged - before.in_place_bytes_staged
        assert written > 1_200_000, "hardly anything was written in place"
        assert clients_count > 1 or staged <= 12 * 4096 + 350_000, "more than shared blocks and the first one"
        await assert_kept(bench, tmp_path / "crashed")
        await bench.storage.write_behind()
        assert await held(bench.files) == bench.acknowledged

    on_core(tmp_path, body)


def test_draining_ends_in_place_windows_before_it_closes_files(tmp_path):
    async def body(bench):
        await bench.begin_in_place()
        await bench.append(300_000, 2)
        await bench.storage.drain()
        assert not bench.plane.set_in_place_space(bench.handle, 1 << 30), "it is still open"
        await assert_kept(bench, tmp_path / "drained")

    on_core(tmp_path, body)


def test_a_commit_under_way_when_a_drain_begins_is_kept(tmp_path):
    """It becomes durable, and is answered, while the last checkpoint is made."""

    async def body(bench):
        await bench.begin_in_place()
        pending = []
        for _ in range(8):
            data = batch(0, [bench.chooser.randbytes(700_000)], epoch=bench.files.leader_epoch)
            await bench.storage.make_room(bench.files, bench.handle, len(data))
            pending.append((bench.plane.append(bench.handle, data), data))
        await bench.storage.drain()
        for result, data in pending:
            await bench.plane.wait_committed(bench.handle, result.end_offset, result.leader_epoch)
            bench.acknowledged[result.base_offset] = data[21:]
        await assert_kept(bench, tmp_path / "drained")

    on_core(tmp_path, body)
