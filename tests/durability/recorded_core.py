"""One core's journal, partitions, segments and checkpoints at work, with every write and flush recorded.

Run as a program: ``python -m tests.durability.recorded_core FOLDER RECORD SEED MUTANT MODE [many|swaps]``. It stands on
what a core process stands on (`tpc_broker.process.assembly`), without clients: appends, log starts, deletions and
checkpoints are asked for directly, and what was acknowledged is noted in the record itself (`crash_images.MARK`), so
that its place among the writes is exact. Marks are words:

    asked PARTITION BASE NEXT CRC     these bytes were appended; they may survive
    acknowledged PARTITION BASE NEXT CRC
    seen PARTITION OFFSET             a reader was let up to here
    trimming / trimmed PARTITION OFFSET
    deleting / deleted PARTITION
    swapped PARTITION OFFSET          a segment has come in the place of others there

PARTITION is the topic id. A mutant is a fault built in on purpose, which the crash images must show. MODE is a name of
`JournalMode`, the way in which commits are written. Behind "many" everything is done as if there were many partitions:
they are captured for a checkpoint together, made durable by one syncfs, and `leader-epoch-checkpoint` comes last.
Behind "swaps" segments, which are small then, give way all the time to copies of them, as to cleaned ones.
"""

from __future__ import annotations

import os
import random
import sys
import uuid
import zlib
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from tests.durability.crash_images import FLUSH_ALL, MARK
from tests.log.log_batches import batch
from tests.support.cleaned_copies import cleanable, some_of, swap_copy
from tests.support.disk_operations import ManyOneByOne, make_folders_one_by_one
from tpc_broker._ring import ffi, lib
from tpc_broker.engine.disk import RingDisk
from tpc_broker.engine.trio_ring import run as run_on_ring
from tpc_broker.errors import PartitionOfflineError, StorageFailedError
from tpc_broker.log import journal
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.options import CoreOptions
from tpc_broker.process import assembly
from tpc_broker.storage import journalled_storage
from tpc_broker.storage.journalled_storage import JournalledStorage
from tpc_broker.storage.recovery import checkpoint
from tpc_broker.storage.segments import partition_storage, segment_appender, segment_swap, segments
from tpc_broker.storage.upkeep import in_place_windows, write_behind

JOURNAL_BYTES = 512 * 1024
WRITE_DIRECT = segments.SegmentFolder.write_direct
CAPTURED_NOW = partition_storage.PartitionStorage.captured_now
PARTITIONS = 4
APPENDS = 520
SWAPS = 40
"""How many come beside so many appends is the machine's matter: it is appended until there were so many."""
SEGMENT_BYTES = 300_000
DIRECT_BYTES_MIN = 4096
"""Many runs are long enough for a direct write, and many are not."""
IN_PLACE_BYTES_MIN = 8192
"""A batch of the two largest kinds is written in place where its partition has an in-place window."""
MUTANTS = [
    "none", "no dsync", "early acknowledgement", "no directory sync", "checkpoint before data", "direct is durable",
    "in-place without dsync", "in-place too early",
]  # fmt: skip
MUTANTS_OF_MANY = ["no syncfs", "epochs in their file alone"]
MUTANTS_OF_SWAPS = ["seal without a sync", "seal behind the files"]
NO_SWAP = segment_swap.SwapRefusedError, StorageFailedError, FileNotFoundError, LookupError, ValueError
"""The log went on, or the partition is being deleted."""
SMALL_SEGMENT_BYTES = 40_000


def mark(*words: object) -> None:
    lib.tpc_disk_record_name(MARK, " ".join(map(str, words)).encode(), ffi.NULL)


class RecordingDisk(RingDisk):
    """The disk port on the ring, which records by itself what goes through the ring, and what makes and moves names.

    Here is the rest. Results other than success end the program, so they need no record. Nothing may be recorded twice:
    the later record of a write would count as another one, which no flush has covered yet.
    """

    async def open(self, path, flags, mode=0o644):
        fd = await super().open(path, flags, mode)
        if flags & os.O_TRUNC:
            self._done(lib.tpc_disk_record_range(lib.TPC_DISK_RECORD_TRUNCATE, fd, 0, 0))
        return fd

    @staticmethod
    def _done(token):
        lib.tpc_disk_record_completed(token, 0)

    async def write_many(self, writes):
        tokens = [
            lib.tpc_disk_record_write(fd, ffi.from_buffer(data), len(data), position, 0)
            for fd, data, position in writes
        ]
        outcomes = await super().write_many(writes)
        for token in tokens:
            self._done(token)
        return outcomes

    async def open_many(self, paths, flags):
        return await ManyOneByOne.open_many(self, paths, flags)

    async def reserve_many(self, spaces):
        return await ManyOneByOne.reserve_many(self, spaces)

    async def make_folders(self, paths, name, content):
        return await make_folders_one_by_one(self, paths, name, content)

    async def replace_many(self, files):
        await ManyOneByOne.replace_many(self, files)

    async def syncfs(self, fd):
        token = lib.tpc_disk_record_name(FLUSH_ALL, b"", ffi.NULL)
        await super().syncfs(fd)
        self._done(token)


class NoDirectorySync(RecordingDisk):
    async def fsync_directory(self, path):
        await trio.lowlevel.checkpoint()


class NoFileSystemSync(RecordingDisk):
    async def syncfs(self, fd):
        await trio.lowlevel.checkpoint()


def _state_without_epochs(storage):
    """In place of `PartitionStorage.captured_now`: as if recovery could read the epochs from their own file."""
    return replace(CAPTURED_NOW(storage), epochs=())


async def _capture_without_sync(checkpointer, storages, _pace_seconds):
    """In place of `Checkpointer._capture_and_sync`: the checkpoint names data that nobody flushed."""
    return {storage.key: await storage.capture() for storage in storages}


async def _write_direct_and_forget(folder, name, data, position):
    """In place of `SegmentFolder.write_direct`: as if past the page cache meant on the disk, with the file's length."""
    await WRITE_DIRECT(folder, name, data, position)
    folder._written.discard(name)
    folder.files.mark_synced(folder.path / name)


async def _write_seal_without_sync(swap, name, seal):
    """In place of `SegmentSwap._write_seal`."""
    await swap._log.folder.write_file(name, seal.encode())


async def sizes_in(folder):
    names = await folder.disk.listdir(folder.path)
    return {name: (await folder.disk.stat(folder.path / name)).size_bytes for name in names}


async def _seal_behind_the_files(swap, given_way, seal, written):
    """In place of `SegmentSwap._carry_out`: the commit point comes when all has been done."""
    folder = swap._log.folder
    for segment in given_way:
        segment.give_way()
    await segment_swap.put_in_place(folder, seal, await sizes_in(folder))
    await folder.rename(written, f"{seal.base_offset:020d}.seal")
    await folder.disk.fsync_directory(folder.path)


class Life:
    """The actors of one run."""

    def __init__(self, core: assembly.CoreAssembly, seed: int, way: str) -> None:
        self.core, self.way = core, way
        self.chooser = random.Random(seed)
        configuration = load_settings("", ("log.segment.bytes=1048576",))
        self.config = configuration.topic_config({}, is_internal=False)
        object.__setattr__(self.config, "segment_bytes", SMALL_SEGMENT_BYTES if way == "swaps" else SEGMENT_BYTES)
        object.__setattr__(self.config, "index_interval_bytes", 500)
        object.__setattr__(self.config, "file_delete_delay_ms", 0)
        self.open: dict[str, tuple[object, int]] = {}
        self.appends_left = APPENDS
        self.swaps_left = SWAPS if way == "swaps" else 0
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
        while self.appends_left > 0 or self.swaps_left > 0:
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
                await self.core.plane.wait_committed(handle, result.end_offset, result.leader_epoch)
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
            await trio.sleep(self.chooser.uniform(0, 1 if self.way == "swaps" else 0.08))
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

    async def swap(self) -> None:
        """Segments for others with the same records; the metadata, which have no cleaner, need not be asked."""
        while True:
            await trio.sleep(self.chooser.uniform(0, 0.01))
            files, handle = self.chooser.choice(list(self.open.values()))
            segments = cleanable(files)
            if segments:
                shown = partial(self._show, files, handle)
                with suppress(*NO_SWAP):
                    seal = await swap_copy(files, some_of(segments, self.chooser), shown)
                    mark("swapped", files.key.topic_id.hex, seal.base_offset)
                    self.swaps_left -= 1

    def _show(self, files, handle: int) -> None:
        self.core.plane.segments_replaced(handle, files.cleaned.end_offset)

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
            if self.way == "swaps":
                nursery.start_soon(self.swap)
            async with trio.open_nursery() as appending:
                for _ in range(4):
                    appending.start_soon(self.append)
            nursery.cancel_scope.cancel()


async def _record(options: CoreOptions, seed: int, mutant: str, way: str) -> None:
    async with assembly.open_assembly(options) as core:
        faults = {
            "no dsync": lib.TPC_MUTANT_NO_DSYNC, "early acknowledgement": lib.TPC_MUTANT_EARLY_ACKNOWLEDGE,
            "in-place without dsync": lib.TPC_MUTANT_IN_PLACE_NO_DSYNC,
            "in-place too early": lib.TPC_MUTANT_IN_PLACE_EARLY,
        }  # fmt: skip
        if mutant in faults:
            assert lib.tpc_journal_set_mutants(core.plane._journal, faults[mutant]) == 0, "built without TPC_MUTANTS"
        await Life(core, seed, way).run()
        lib.tpc_recorder_stop()


def main(folder: str, record: str, seed: str, mutant: str, mode: str, way: str = "") -> None:
    assert mutant in MUTANTS + MUTANTS_OF_MANY + MUTANTS_OF_SWAPS, mutant
    assembly.probe_journal_mode = lambda *_: journal.JournalMode[mode]
    journal.JOURNAL_BYTES_MIN = JOURNAL_BYTES
    journal.FILE_SYSTEM_SHARE_MAX = 0.0
    checkpoint.BALLAST_BYTES = 4096
    disks = {"no directory sync": NoDirectorySync, "no syncfs": NoFileSystemSync}
    assembly.RingDisk = disks.get(mutant, RecordingDisk)
    if way == "many":
        checkpoint.SYNCFS_PARTITIONS = 1
    if mutant == "epochs in their file alone":
        partition_storage.PartitionStorage.captured_now = _state_without_epochs
    if mutant == "checkpoint before data":
        checkpoint.Checkpointer._capture_and_sync = _capture_without_sync
    in_place_windows.IN_PLACE_BATCH_BYTES_MIN, in_place_windows.IN_PLACE_BYTES_MIN_OPEN = IN_PLACE_BYTES_MIN, 1
    write_behind.INTERVAL_S = 0.01
    segments.INDEX_LAG_ENTRIES, segments.INDEX_LAG_SPREAD = 2, 6
    segment_appender.DIRECT_BYTES_MIN = write_behind.BYTES_MIN = DIRECT_BYTES_MIN
    write_behind.FEW_PARTITIONS = journalled_storage.NEW_FOLDERS_FEW = 0
    if mutant == "seal without a sync":
        segment_swap.SegmentSwap._write_seal = _write_seal_without_sync
    if mutant == "seal behind the files":
        segment_swap.SegmentSwap._carry_out = _seal_behind_the_files
    if mutant == "direct is durable":
        segments.SegmentFolder.write_direct = _write_direct_and_forget
    for name in ("journals", "topics"):
        (Path(folder) / name).mkdir(parents=True)
    assert lib.tpc_recorder_start(record.encode()) == 0
    nowhere = dict.fromkeys(("mailbox_fd", "control_fd"), -1)
    options = CoreOptions(
        core=CoreId(0), cores=1, data=folder, **nowhere, mailbox_names=(), listeners=(), listen_fds=(),
        cpu=None, settings="", overrides=(), log_style="json", log_level="warning", supervisor_pid=os.getpid(),
    )  # fmt: skip
    run_on_ring(_record, options, int(seed), mutant, way)


if __name__ == "__main__":
    main(*sys.argv[1:])
