"""Batches written once, straight to their segment: a core's storage on a real disk, crashed by copying its folder."""

from __future__ import annotations

import os
import random
import shutil
import uuid
from functools import partial
from pathlib import Path

import pytest

from tests.log.log_batches import batch
from tpc_broker._ring import ffi, lib
from tpc_broker.broker.storage_recovery import recover_core, rewrite_partition
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.log.batch import walk_headers
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.runtime import assembly
from tpc_broker.runtime.options import CoreOptions
from tpc_broker.runtime.trio_ring import run as run_on_ring

KEY = TopicPartition(TopicId(uuid.UUID(int=77)), PartitionIndex(0))
SEGMENT_BYTES = 6 * 1024 * 1024


class Bench:
    """One partition on one core, with what was acknowledged."""

    def __init__(self, core: assembly.CoreAssembly) -> None:
        self.core = core
        self.storage, self.plane = core.storage, core.plane
        self.chooser = random.Random(5)
        self.acknowledged: dict[int, bytes] = {}

    async def open(self) -> None:
        config = load_settings("", ("log.segment.bytes=1048576",)).topic_config({}, is_internal=False)
        object.__setattr__(config, "segment_bytes", SEGMENT_BYTES)
        self.files = await self.storage.open(KEY, "topic", config)
        await self.storage.begin_epoch(self.files)
        self.handle = self.storage.register(self.files, config, is_internal=False)

    async def append(self, value_bytes: int, count: int = 1) -> None:
        """So many batches in one commit."""
        pending = []
        for _ in range(count):
            data = batch(0, [self.chooser.randbytes(value_bytes)], epoch=self.files.leader_epoch)
            await self.storage.make_room(self.files, self.handle, len(data))
            result = self.plane.append(self.handle, data)
            assert result is not None, "the journal is full"
            assert result.error_code == 0, result
            pending.append((result, data))
        for result, data in pending:
            await self.plane.wait_durable(result.sequence)
            self.acknowledged[result.base_offset] = data[21:]

    async def begin_straight(self) -> None:
        """Write as a busy partition does, until its batches are written once."""
        for _ in range(20):
            await self.append(300_000, 4)
            await self.storage.write_behind(all_of_it=False)
            await self.storage.checkpoint()
            if self.plane.set_placement_space(self.handle, self.files.active.reserved_end_position):
                return
        pytest.skip("the file system takes no direct writes here")

    def straight_bytes(self) -> int:
        statistics = ffi.new("tpc_journal_statistics *")
        lib.tpc_journal_get_statistics(self.plane._journal, statistics)
        return int(statistics.straight_bytes_written)

    @property
    def log(self) -> Path:
        return self.files.folder.path / self.files.active.log_name


async def held(storage) -> dict[int, bytes]:
    found, offset = {}, storage.segments[0].base_offset
    while offset < storage.written_end_offset:
        data = await storage.read(offset, 1 << 22)
        for header, place in walk_headers(data):
            found[header.base_offset] = bytes(data[place + 21 : place + header.size_bytes])
            offset = header.next_offset
    return found


async def recovered_copy(bench: Bench, target: Path, change=None):
    """What a crash now would leave, recovered; `change` gets the copied log first."""
    data = bench.files.folder.path.parents[1]
    shutil.copytree(data, target)
    if change is not None:
        change(target / bench.log.relative_to(data))
    return await recover_core(bench.core.disk, target, CoreId(0), new_journal_id=bytes(16))


async def _on_core(folder: Path, body) -> None:
    nowhere = dict.fromkeys(("listen_fd", "mailbox_fd", "control_fd"), -1)
    options = CoreOptions(
        core=CoreId(0), cores=1, data=str(folder), **nowhere, mailbox_names=(), advertised_host="", advertised_port=1,
        cpu=None, settings="", overrides=(), log_style="json", log_level="warning", supervisor_pid=os.getpid(),
    )  # fmt: skip
    for name in ("journals", "topics"):
        (folder / name).mkdir(parents=True)
    async with assembly.open_assembly(options) as core:
        bench = Bench(core)
        await bench.open()
        await body(bench)


def on_core(tmp_path, body) -> None:
    run_on_ring(partial(_on_core, tmp_path / "data", body))


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
