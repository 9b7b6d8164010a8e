"""One core's storage around a fake disk: a small journal writer, partitions, and an oracle of what was acknowledged."""

import random
import uuid
from pathlib import Path

from tests.log.log_batches import batch
from tests.storage.direct_writes import append_past_the_page_cache
from tests.support.cleaned_copies import cleanable, some_of, swap_copy
from tests.support.fake_disk import FakeDisk, PowerLoss
from tests.support.journal_file import encode_commit, encode_entry
from tpc_broker.errors import StorageFailedError
from tpc_broker.log.batch import walk_headers
from tpc_broker.log.journal import BLOCK_BYTES, REGION_BLOCK_FIRST, CommitCursor, EntryKind
from tpc_broker.log.segment import LogSettings
from tpc_broker.model import TopicPartition
from tpc_broker.storage.ports import JournalCursor
from tpc_broker.storage.recovery.checkpoint import Checkpointer
from tpc_broker.storage.recovery.recovery import recover_core, rewrite_partition
from tpc_broker.storage.segments.folders import create_partition
from tpc_broker.storage.segments.segment_reader import SegmentReader

DATA = Path("/data")
JOURNAL_BYTES = 256 * 1024
SETTINGS = LogSettings(segment_bytes=3000, index_interval_bytes=200, retention_ms=-1)


class JournalWriter:
    """Writes commits as the C journal does; one in flight. Satisfies the port `Journal`."""

    def __init__(self, disk, journal_file, scan):
        self.disk, self.file = disk, journal_file
        self.run_id = scan.last_run_id + 1
        self.place = scan.next
        self.position = 0
        self.live = []

    def durable_cursor(self):
        return JournalCursor(self.place.sequence, self.place.block, self.position, self.place.previous_crc)

    def recycle(self, position):
        self.live = [one for one in self.live if one[2] > position]

    def extend(self, region_blocks):
        assert region_blocks == self.file.superblock.initialised_blocks

    async def commit(self, entries):
        """Write one commit durably; False when there is no room for it."""
        superblock = self.file.superblock
        data, crc = encode_commit(
            self.place,
            entries,
            journal_id=superblock.journal_id,
            run_id=self.run_id,
            durable_sequence=self.place.sequence - 1,
        )
        blocks = len(data) // BLOCK_BYTES
        block = self.place.block
        if block + blocks > superblock.end_block:
            block = REGION_BLOCK_FIRST
        if any(first < block + blocks and block < end for first, end, _position in self.live):
            return False
        await self.disk.durable_write(self.file.fd, data, block * BLOCK_BYTES)
        self.position += blocks
        self.live.append((block, block + blocks, self.position))
        self.place = CommitCursor(block + blocks, self.place.sequence + 1, crc)
        return True


class Partition:
    """The oracle's view of one partition, and the batches that are durable but not written behind."""

    def __init__(self, key, topic):
        self.key, self.topic = key, topic
        self.acknowledged = []  # (base offset, bytes)
        self.uncertain = []  # sent to the journal when the power went
        self.unwritten = []
        self.next_offset = 0
        self.log_start = 0
        self.epoch = 0
        self.sequence = 0


class CheckpointedCore:
    def __init__(self, seed, partitions=2, disk=None, swaps=0):
        """`swaps`: how often segments give way to byte-equal ones, beside ten appends."""
        self.rng = random.Random(seed)
        self.swaps, self.swaps_count = swaps, 0
        self.disk = disk or FakeDisk()
        self.disk.put_folder(DATA)
        self.partitions = [
            Partition(TopicPartition(uuid.UUID(int=1000 + number), number), f"topic{number}")
            for number in range(partitions)
        ]
        self.storages = {}
        self.core_id = 0

    async def loses_power_while_it_opens(self, effect):
        """After a crash, the power goes at an effect of the recovery; whatever that left opens then. False: it has not
        as many effects.
        """
        self.disk.crash(self.rng)
        self.disk.lose_power_at = effect
        try:
            await self.open()
        except PowerLoss:
            self.disk.crash(self.rng)
        else:
            return False
        await self.open()
        return True

    async def open(self):
        """Recover and check everything, then go on as a new run."""
        self.core = await recover_core(
            self.disk,
            DATA,
            self.core_id,
            new_journal_id=bytes(15) + b"j",
            settings_of=lambda _topic: SETTINGS,
            journal_bytes_max=JOURNAL_BYTES,
        )
        assert not self.core.offline, self.core.offline
        self.storages = self.core.storages
        self.journal = JournalWriter(self.disk, self.core.journal_file, self.core.scan)
        self.checkpointer = Checkpointer(self.core.journal_file, self.journal, self.storages)
        for partition in self.partitions:
            await self.verify(partition)
            if partition.key not in self.storages:
                assert not partition.acknowledged
                self.storages[partition.key] = await create_partition(
                    self.core.files, DATA / "topics", partition.topic, partition.key, SETTINGS
                )

    async def stored(self, partition):
        """Every batch from the log start on."""
        storage = self.storages[partition.key]
        found, offset = [], max(storage.log_start_offset, storage.segments[0].base_offset)
        while offset < storage.written_end_offset:
            data = await storage.read(offset, self.rng.choice([1, 500, 5000]))
            assert data, (offset, storage.written_end_offset)
            for header, place in walk_headers(data):
                assert header.next_offset > offset
                found.append((header.base_offset, data[place : place + header.size_bytes]))
                offset = header.next_offset
        return found

    async def verify(self, partition):
        """Nothing acknowledged is lost, nothing invented, offsets are contiguous."""
        storage = self.storages.get(partition.key)
        found = await self.stored(partition) if storage else []
        if storage:
            assert storage.log_start_offset in (
                partition.log_start,
                partition.log_start_uncertain if hasattr(partition, "log_start_uncertain") else partition.log_start,
            )
            partition.log_start = storage.log_start_offset
        wanted = [one for one in partition.acknowledged if one[0] + 1 > partition.log_start]
        found = [one for one in found if one[0] >= partition.log_start]
        assert found[: len(wanted)] == wanted, (partition.topic, [one[0] for one in found], [one[0] for one in wanted])
        extra = found[len(wanted) :]
        assert extra == partition.uncertain[: len(extra)], "a record was invented"
        partition.acknowledged = wanted + extra
        partition.uncertain, partition.unwritten = [], []
        partition.next_offset = (
            partition.acknowledged[-1][0] + 1
            if partition.acknowledged
            else (storage.written_end_offset if storage else 0)
        )
        if storage:
            assert storage.written_end_offset == partition.next_offset
            producer = storage.producers.producers.get(7)
            assert (producer.batches[-1].last_offset if producer else None) == (
                partition.acknowledged[-1][0]
                if partition.acknowledged
                else producer and producer.batches[-1].last_offset
            )
            for segment in storage.segments[:-1]:
                end = storage.segments[storage.segments.index(segment) + 1].base_offset
                indexes = await SegmentReader(storage).load(segment)
                assert indexes.offsets.problem(segment.size_bytes) is None
                assert indexes.times.problem(end) is None

    # -- steps

    async def append(self):
        entries, sent = [], []
        for partition in self.rng.sample(self.partitions, self.rng.randint(1, len(self.partitions))):
            base, payload, made = partition.next_offset, b"", []
            for _batch in range(self.rng.randint(1, 3)):
                data = batch(
                    partition.next_offset,
                    [self.rng.randbytes(self.rng.randint(1, 700))],
                    timestamp=1000 + self.rng.randint(0, 50),
                    epoch=partition.epoch,
                    producer=(7, 0, partition.next_offset % 2**31),
                )
                made.append((partition.next_offset, data))
                payload += data
                partition.next_offset += 1
            partition.uncertain = made
            sent.append((partition, made))
            entries.append(encode_entry(EntryKind.APPEND, partition.key, base, partition.next_offset, payload))
        if not await self.journal.commit(entries):
            for partition, made in sent:
                partition.next_offset, partition.uncertain = made[0][0], []
            await self.checkpoint()
            return
        for partition, made in sent:
            partition.acknowledged += made
            partition.unwritten += made
            partition.uncertain = []

    async def write_behind(self, everything=False):
        for partition in self.partitions:
            count = len(partition.unwritten) if everything else self.rng.randint(0, len(partition.unwritten))
            while count:
                storage, run = self.storages[partition.key], [data for _offset, data in partition.unwritten[:count]]
                done = await append_past_the_page_cache(storage, run) if self.rng.random() < 0.5 else 0
                if not done:
                    await storage.append(run)
                    done = count
                del partition.unwritten[:done]
                count -= done
                if not everything:
                    break

    async def checkpoint(self):
        async def drain(_place):
            await self.write_behind(everything=True)

        assert await self.checkpointer.run(drain), self.checkpointer.statistics()

    async def cut(self):
        partition = self.rng.choice(self.partitions)
        kept_from = max(partition.log_start, self.storages[partition.key].cleaned.end_offset)
        offsets = [offset for offset, _data in partition.acknowledged if offset >= kept_from]
        if not offsets:
            return
        offset = self.rng.choice(offsets)
        kept = [one for one in partition.acknowledged if one[0] < offset]
        removed = partition.acknowledged[len(kept) :]
        partition.acknowledged, partition.uncertain = kept, removed
        partition.unwritten = [one for one in partition.unwritten if one[0] < offset]
        if not await self.journal.commit([encode_entry(EntryKind.CUT, partition.key, offset)]):
            partition.acknowledged, partition.uncertain = kept + removed, []
            partition.unwritten = [
                one for one in partition.acknowledged if one[0] >= self.storages[partition.key].written_end_offset
            ]
            return
        partition.uncertain = []
        await self.storages[partition.key].truncate(offset)
        partition.next_offset = offset

    async def log_start(self):
        partition = self.rng.choice(self.partitions)
        storage = self.storages[partition.key]
        offset = self.rng.randint(partition.log_start, storage.written_end_offset)
        partition.log_start_uncertain = offset
        if await self.journal.commit([encode_entry(EntryKind.LOG_START, partition.key, offset)]):
            partition.log_start = offset
            await storage.advance_log_start(offset, 0)
            await storage.purge(10**9)
        else:
            del partition.log_start_uncertain

    async def roll(self):
        await self.storages[self.rng.choice(self.partitions).key].roll()

    async def swap(self):
        storage = self.storages[self.rng.choice(self.partitions).key]
        segments = cleanable(storage)
        if segments:
            await swap_copy(storage, some_of(segments, self.rng))
            self.swaps_count += 1

    async def step(self):
        name = self.rng.choices(
            ["append", "write_behind", "checkpoint", "cut", "log_start", "roll", "swap"],
            [10, 6, 2, 1, 1, 1, self.swaps],
        )[0]
        await getattr(self, name)()

    async def rewrite_failed(self):
        """What the broker does when a write failed: make the files anew from the journal."""
        for partition in self.partitions:
            storage = self.storages[partition.key]
            if storage.failed:
                await rewrite_partition(storage, self.core.journal_file, await self.core.journal_file.scan())
                partition.unwritten = [one for one in partition.acknowledged if one[0] >= storage.written_end_offset]


__all__ = ["DATA", "SETTINGS", "CheckpointedCore", "FakeDisk", "PowerLoss", "StorageFailedError"]
