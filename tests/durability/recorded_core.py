"""One core's journal, partitions, segments and checkpoints at work, with every write and flush recorded.

Run as a program: ``python -m tests.durability.recorded_core FOLDER RECORD SEED MUTANT MODE``. It stands on what a core
process stands on (`tpc_broker.runtime.assembly`), without clients: appends, log starts, deletions and checkpoints
are asked for directly, and what was acknowledged is noted in the record itself (`crash_images.MARK`), so that its place
among the writes is exact. Marks are words:

    asked PARTITION BASE NEXT CRC     these bytes were appended; they may survive
    acknowledged PARTITION BASE NEXT CRC
    seen PARTITION OFFSET             a reader was let up to here
    trimming / trimmed PARTITION OFFSET
    deleting / deleted PARTITION

PARTITION is the topic id. A mutant is a fault built in on purpose, which the crash images must show. MODE is a name of
`JournalMode`, the way in which commits are written.
"""

from __future__ import annotations

import fcntl
import os
import random
import sys
import uuid
import zlib
from pathlib import Path

import trio

from tests.broker.plain_disk import make_folders_one_by_one
from tests.durability.crash_images import DIRECT, DSYNC, FLUSH_ALL, MARK
from tests.log.log_batches import batch
from tpc_broker._ring import ffi, lib
from tpc_broker.broker import core_storage, placements, storage, storage_checkpoint, storage_segments
from tpc_broker.broker.core_storage import JournalledStorage
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.log import journal
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.runtime import assembly
from tpc_broker.runtime.disk import RingDisk
from tpc_broker.runtime.options import CoreOptions
from tpc_broker.runtime.trio_ring import run as run_on_ring

JOURNAL_BYTES = 512 * 1024
WRITE_DIRECT = storage_segments.SegmentFolder.write_direct
PARTITIONS = 4
APPENDS = 520
SEGMENT_BYTES = 300_000
DIRECT_BYTES_MIN = 4096
"""Many runs are long enough for a direct write, and many are not."""
STRAIGHT_BYTES_MIN = 8192
"""A batch of the two largest kinds is written once where its partition has a placement."""
MUTANTS = [
    "none", "no dsync", "early acknowledgement", "no directory sync", "checkpoint before data", "direct is durable",
    "straight without dsync", "straight too early",
]  # fmt: skip


def mark(*words: object) -> None:
    lib.tpc_disk_record_name(MARK, " ".join(map(str, words)).encode(), ffi.NULL)


class RecordingDisk(RingDisk):
    """The disk port on the ring, recorded. Results other than success end the program, so they need no record."""

    async def open(self, path, flags, mode=0o644):
        fd = await super().open(path, flags, mode)
        if flags & os.O_CREAT:
            lib.tpc_disk_record_range(lib.TPC_DISK_RECORD_CREATE, fd, 0, 0)
        if flags & os.O_TRUNC:
            self._done(lib.tpc_disk_record_range(lib.TPC_DISK_RECORD_TRUNCATE, fd, 0, 0))
        return fd

    @staticmethod
    def _done(token):
        lib.tpc_disk_record_completed(token, 0)

    async def write_at(self, fd, data, position):
        flags = DIRECT if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT else 0
        await self._recorded_write(fd, data, position, flags, super().write_at)

    async def durable_write(self, fd, data, position):
        await self._recorded_write(fd, data, position, DSYNC, super().durable_write)

    async def _recorded_write(self, fd, data, position, flags, write):
        view = memoryview(data).cast("B")
        token = lib.tpc_disk_record_write(fd, ffi.from_buffer(view), len(view), position, flags)
        await write(fd, data, position)
        self._done(token)

    async def writev(self, fd, buffers, position):
        data = b"".join(bytes(buffer) for buffer in buffers)
        token = lib.tpc_disk_record_write(fd, data, len(data), position, 0)
        await super().writev(fd, buffers, position)
        self._done(token)

    async def write_many(self, writes):
        tokens = [
            lib.tpc_disk_record_write(fd, ffi.from_buffer(data), len(data), position, 0)
            for fd, data, position in writes
        ]
        outcomes = await super().write_many(writes)
        for token in tokens:
            self._done(token)
        return outcomes

    async def fdatasync(self, fd):
        token = lib.tpc_disk_record_flush(fd, lib.TPC_DISK_RECORD_DATA_ONLY)
        await super().fdatasync(fd)
        self._done(token)

    async def fallocate(self, fd, position, length, *, keep_size):
        await super().fallocate(fd, position, length, keep_size=keep_size)
        if not keep_size:
            self._done(lib.tpc_disk_record_range(lib.TPC_DISK_RECORD_ALLOCATE, fd, position, length))

    async def truncate(self, fd, length):
        token = lib.tpc_disk_record_range(lib.TPC_DISK_RECORD_TRUNCATE, fd, length, 0)
        await super().truncate(fd, length)
        self._done(token)

    async def unlink(self, path):
        lib.tpc_disk_record_name(lib.TPC_DISK_RECORD_UNLINK, os.fsencode(path), ffi.NULL)
        await super().unlink(path)

    async def rmdir(self, path):
        lib.tpc_disk_record_name(lib.TPC_DISK_RECORD_UNLINK, os.fsencode(path), ffi.NULL)
        await super().rmdir(path)

    async def rename(self, source, target):
        lib.tpc_disk_record_name(lib.TPC_DISK_RECORD_RENAME, os.fsencode(source), os.fsencode(target))
        await super().rename(source, target)

    async def mkdir(self, path):
        await super().mkdir(path)
        lib.tpc_disk_record_name(lib.TPC_DISK_RECORD_CREATE, os.fsencode(path), ffi.NULL)

    async def make_folders(self, paths, name, content):
        return await make_folders_one_by_one(self, paths, name, content)

    async def fsync_directory(self, path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            token = lib.tpc_disk_record_flush(fd, 0)
        finally:
            os.close(fd)
        await super().fsync_directory(path)
        self._done(token)

    async def syncfs(self, fd):
        token = lib.tpc_disk_record_name(FLUSH_ALL, b"", ffi.NULL)
        await super().syncfs(fd)
        self._done(token)


class NoDirectorySync(RecordingDisk):
    async def fsync_directory(self, path):
        await trio.lowlevel.checkpoint()


async def _capture_without_sync(checkpointer, storages, _pace_seconds):
    """In place of `Checkpointer._capture_and_sync`: the checkpoint names data that nobody flushed."""
    return {storage.key: await storage.capture() for storage in storages}


async def _write_direct_and_forget(folder, name, data, position):
    """In place of `SegmentFolder.write_direct`: as if past the page cache meant on the disk, with the file's length."""
    await WRITE_DIRECT(folder, name, data, position)
    folder._written.discard(name)
    folder.files.mark_synced(folder.path / name)


class Life:
    """The actors of one run."""

    def __init__(self, core: assembly.CoreAssembly, seed: int) -> None:
        self.core = core
        self.chooser = random.Random(seed)
        configuration = load_settings("", ("log.segment.bytes=1048576",))
        self.config = configuration.topic_config({}, is_internal=False)
        object.__setattr__(self.config, "segment_bytes", SEGMENT_BYTES)
        object.__setattr__(self.config, "index_interval_bytes", 500)
        object.__setattr__(self.config, "file_delete_delay_ms", 0)
        self.open: dict[str, tuple[object, int]] = {}
        self.appends_left = APPENDS
        self.changing = trio.Lock()

    @property
    def storage(self) -> JournalledStorage:
        return self.core.storage

    async def create(self, topic: str) -> None:
        topic_id = uuid.UUID(int=self.chooser.getrandbits(128))
        key = TopicPartition(TopicId(topic_id), PartitionIndex(0))
        if self.chooser.random() < 0.5:
            await self.storage.prepare([(key, topic)])
        files = await self.storage.open(key, topic, self.config)
        await self.storage.begin_epoch(files)
        self.open[topic_id.hex] = files, self.storage.register(files, self.config, is_internal=False)

    async def append(self) -> None:
        while self.appends_left > 0:
            self.appends_left -= 1
            name, (files, handle) = self.chooser.choice(list(self.open.items()))
            values = [self.chooser.randbytes(self.chooser.choice([10, 300, 3000, 7000, 7000])) for _ in range(3)]
            data = batch(0, values)
            try:
                await self.storage.make_room(files, handle, len(data))
                while (result := self.core.plane.append(handle, data)) is None:
                    await trio.sleep(0.001)
                assert result.error_code == 0, result
                what = name, result.base_offset, result.base_offset + len(values), zlib.crc32(data[21:])
                mark("asked", *what)
                await self.core.plane.wait_durable(result.sequence)
                mark("acknowledged", *what)
            except PartitionOfflineError:
                assert name not in self.open
            if self.chooser.random() < 0.2:
                await trio.sleep(self.chooser.uniform(0, 0.01))

    async def watch(self) -> None:
        """What readers may see, noted whenever it grows."""
        seen: dict[str, int] = {}
        while True:
            for name, (_files, handle) in list(self.open.items()):
                high_watermark = self.core.plane.bounds(handle).high_watermark
                if high_watermark > seen.get(name, 0):
                    seen[name] = high_watermark
                    mark("seen", name, high_watermark)
            await trio.lowlevel.checkpoint()

    async def trim(self) -> None:
        while True:
            await trio.sleep(self.chooser.uniform(0, 0.08))
            name, (_files, handle) = self.chooser.choice(list(self.open.items()))
            bounds = self.core.plane.bounds(handle)
            offset = self.chooser.randint(bounds.log_start_offset, bounds.high_watermark)
            if offset > bounds.log_start_offset:
                mark("trimming", name, offset)
                try:
                    await self.storage.set_log_start(handle, offset)
                except PartitionOfflineError:
                    continue
                mark("trimmed", name, offset)

    async def replace(self) -> None:
        """Delete a topic and make it again under the same name."""
        while True:
            await trio.sleep(self.chooser.uniform(0.2, 0.5))
            name, (files, handle) = self.chooser.choice(list(self.open.items()))
            del self.open[name]
            mark("deleting", name)
            await self.storage.delete(files, handle)
            mark("deleted", name)
            await self.create(files.topic)
            await self.storage.purge_folders()

    async def checkpoint(self) -> None:
        while True:
            await trio.sleep(self.chooser.uniform(0.01, 0.1))
            await self.storage.checkpoint()

    async def run(self) -> None:
        for number in range(PARTITIONS):
            await self.create(f"topic{number}")
        async with trio.open_nursery() as nursery:
            for actor in (self.watch, self.trim, self.replace, self.checkpoint, self.storage.run_maintenance):
                nursery.start_soon(actor)
            async with trio.open_nursery() as appending:
                for _ in range(4):
                    appending.start_soon(self.append)
            nursery.cancel_scope.cancel()


async def _record(options: CoreOptions, seed: int, mutant: str) -> None:
    async with assembly.open_assembly(options) as core:
        faults = {
            "no dsync": lib.TPC_MUTANT_NO_DSYNC, "early acknowledgement": lib.TPC_MUTANT_EARLY_ACKNOWLEDGE,
            "straight without dsync": lib.TPC_MUTANT_STRAIGHT_NO_DSYNC,
            "straight too early": lib.TPC_MUTANT_STRAIGHT_EARLY,
        }  # fmt: skip
        if mutant in faults:
            assert lib.tpc_journal_set_mutants(core.plane._journal, faults[mutant]) == 0, "built without TPC_MUTANTS"
        await Life(core, seed).run()
        lib.tpc_recorder_stop()


def main(folder: str, record: str, seed: str, mutant: str, mode: str) -> None:
    assert mutant in MUTANTS, mutant
    assembly.probe_journal_mode = lambda *_: journal.JournalMode[mode]
    journal.JOURNAL_BYTES_MIN = JOURNAL_BYTES
    journal.FILE_SYSTEM_SHARE_MAX = 0.0
    storage_checkpoint.BALLAST_BYTES = 4096
    assembly.RingDisk = NoDirectorySync if mutant == "no directory sync" else RecordingDisk
    if mutant == "checkpoint before data":
        storage_checkpoint.Checkpointer._capture_and_sync = _capture_without_sync
    placements.STRAIGHT_BATCH_BYTES_MIN, placements.PLACEMENT_BYTES_MIN = STRAIGHT_BYTES_MIN, 1
    core_storage.WRITE_BEHIND_INTERVAL_S = 0.01
    storage.DIRECT_BYTES_MIN = core_storage.WRITE_BEHIND_BYTES_MIN = DIRECT_BYTES_MIN
    core_storage.FEW_PARTITIONS = 0
    if mutant == "direct is durable":
        storage_segments.SegmentFolder.write_direct = _write_direct_and_forget
    for name in ("journals", "topics"):
        (Path(folder) / name).mkdir(parents=True)
    assert lib.tpc_recorder_start(record.encode()) == 0
    nowhere = dict.fromkeys(("listen_fd", "mailbox_fd", "control_fd"), -1)
    options = CoreOptions(
        core=CoreId(0), cores=1, data=folder, **nowhere, mailbox_names=(), advertised_host="", advertised_port=1,
        cpu=None, settings="", overrides=(), log_style="json", log_level="warning", supervisor_pid=os.getpid(),
    )  # fmt: skip
    run_on_ring(_record, options, int(seed), mutant)


if __name__ == "__main__":
    main(*sys.argv[1:])
