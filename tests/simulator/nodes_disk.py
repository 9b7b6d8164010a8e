"""A simulated node's disk: what was synced survives a crash, what was not is gone, or half there.

A core's journal is a list of entries that become durable in their order, a commit at a time; each says what it changes
in what the disk keeps of a partition (`KeptLog`). Other files (`NodeDisk`) are written and synced as any program does.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

import trio

from tpc_broker.errors import PartitionOfflineError
from tpc_broker.log.batch import decode_header
from tpc_broker.log.checkpoint import VOTE_NOTE, PartitionCheckpoint
from tpc_broker.log.epochs import LeaderEpochs
from tpc_broker.model import TopicPartition
from tpc_broker.storage.disk_watch import DiskWatch
from tpc_broker.storage.ports import FileStatus, FileSystemStatus


class KeptLog:
    """What a disk has of one partition."""

    def __init__(self, topic):
        self.topic = topic
        self.batches: list[bytes] = []
        self.epochs, self.notes, self.leader_epoch = LeaderEpochs(), {}, -1
        self.log_start_offset = self.log_end_offset = self.committed_end_offset = 0
        self.moves = 0
        """From core to core."""

    def append(self, batches):
        for batch in batches:
            header = decode_header(batch)
            assert header.base_offset == self.log_end_offset, "the journal's order is the log's"
            self.batches.append(batch)
            self.log_end_offset = header.next_offset

    def take(self, entry):
        """It is as a core's journal says that it took it over."""
        self.leader_epoch, self.epochs, self.notes = entry.leader_epoch, LeaderEpochs(entry.epochs), dict(entry.notes)
        self.committed_end_offset, self.moves = entry.committed_end_offset, entry.moves

    def entry(self, key):
        return PartitionCheckpoint(
            *key, self.topic, log_start_offset=self.log_start_offset, log_end_offset=self.log_end_offset,
            leader_epoch=self.leader_epoch, epochs=self.epochs.entries, notes=tuple(self.notes.items()),
            commit_offset=self.committed_end_offset, moves=self.moves,
        )  # fmt: skip

    def cut(self, offset, last_epoch_kept):
        self.batches = [batch for batch in self.batches if decode_header(batch).next_offset <= offset]
        self.log_end_offset = offset
        self.epochs.truncate_end(offset, last_epoch_kept)


class KeptCore:
    """What the journal of one core says of partitions."""

    def __init__(self):
        self.partitions: dict[TopicPartition, KeptLog] = {}
        self.away: dict[TopicPartition, PartitionCheckpoint] = {}
        """Those that it let go, for another core."""

    def entries(self):
        return {**{key: kept.entry(key) for key, kept in self.partitions.items()}, **self.away}


class _File:
    def __init__(self):
        self.data, self.synced = bytearray(), b""


class ReadFiles:
    """Files in a node's folder that are read by their paths, without a wait. One is replaced when it is synced."""

    def __init__(self, sync):
        self._sync = sync

    async def open(self, path, flags, mode=0o644):
        return os.open(path, flags, mode)

    async def write_at(self, descriptor, data, position):
        os.pwrite(descriptor, data, position)

    async def fdatasync(self, _descriptor):
        await self._sync()

    async def close(self, descriptor):
        os.close(descriptor)

    async def rename(self, source, target):
        source.rename(target)

    async def fsync_directory(self, _path):
        await self._sync()


def begin_term(kept, term, offset, note):
    """As a log on the disk, or one that is open, takes the beginning of a leader epoch."""
    if term > kept.leader_epoch:
        kept.notes.pop(VOTE_NOTE, None)
    kept.leader_epoch = max(term, kept.leader_epoch)
    kept.epochs.assign(term, offset)
    if note:
        kept.notes[term] = note


class HungWatch(DiskWatch):
    """Of a core whose first segment spaces are not reserved while its disk hangs, whoever still waits for one."""

    def __init__(self, disk):
        super().__init__()
        self._disk, self._reserving = disk, None

    def reserve(self, what):
        if self._reserving is None:
            self._reserving = self.begin("reserve_many", what)

    def look(self):
        super().look()
        if self._reserving is not None and not self._disk.is_hung:
            self.end(self._reserving)
            self._reserving = None


class NodeDisk:
    """As much of `Disk` as a node's own files need, and the time that a sync takes. It outlives crashes."""

    def __init__(self, chance):
        self._chance = chance
        self.watch = DiskWatch()
        self._names: dict[Path, _File] = {}
        self._synced_names: dict[Path, _File] = {}
        self._open: dict[int, _File] = {}
        self._descriptors = 100
        self.cores: dict[int, KeptCore] = {}
        self.folders: dict[TopicPartition, KeptLog] = {}
        """Files of partitions, whichever core has them."""
        self._begun: set[tuple[TopicPartition, int]] = set()
        self.sync_s_max = 0.005
        self.is_stuck = False
        """Nothing becomes durable meanwhile."""
        self.is_hung = False
        """No sync comes back, and no reservation of the first segment space of a log; others have some in front."""
        self.is_full = False
        """There is no segment space: what is in the journal, and what the broker writes of its own, has its place."""

    def core(self, number):
        return self.cores.setdefault(number, KeptCore())

    def begin(self, key, life, topic):
        """The files of a replica. What a voter has promised, it never begins to be without."""
        assert key not in self.folders, f"{key} would begin anew, where its files are"
        assert (key, life) not in self._begun, f"{key} would begin anew in life {life}, as the voter that it was"
        self._begun.add((key, life))
        self.folders[key] = KeptLog(topic)
        return self.folders[key]

    async def sync(self):
        """As long as one takes, on such a disk."""
        await trio.sleep(self._chance.uniform(0.0005, self.sync_s_max))
        while self.is_stuck or self.is_hung:
            await trio.sleep(0.05)

    @property
    def disk(self):
        """As `FileCache` names it: for files that a core replaces while it runs, and reads by their paths."""
        return ReadFiles(self.sync)

    def crash(self):
        """What was appended to a file and not synced may be there in part."""
        self._names = dict(self._synced_names)
        self._open.clear()
        for file in self._names.values():
            more = max(0, len(file.data) - len(file.synced))
            behind = bytes(file.data[len(file.synced) :][: self._chance.randint(0, more)])
            file.synced += behind
            file.data = bytearray(file.synced)

    # -- Disk --------------------------------------------------------------------------------------------------------

    def poll_ring(self):
        pass

    async def stat(self, path):
        await trio.lowlevel.checkpoint()
        if path not in self._names:
            raise FileNotFoundError(path)
        return FileStatus(len(self._names[path].data), 0, False)

    async def statvfs(self, _path):
        await trio.lowlevel.checkpoint()
        return FileSystemStatus(total_bytes=1 << 40, available_bytes=0 if self.is_full else 1 << 39)

    async def open(self, path, _flags, _mode=0o644):
        await trio.lowlevel.checkpoint()
        if path.suffix == ".new":  # the only files that are made: others exist, or are asked for by `stat`
            self._names[path] = _File()
        self._descriptors += 1
        self._open[self._descriptors] = self._names[path]
        return self._descriptors

    async def close(self, descriptor):
        await trio.lowlevel.checkpoint()
        self._open.pop(descriptor, None)

    async def read(self, descriptor, length, position):
        await trio.lowlevel.checkpoint()
        return bytes(self._open[descriptor].data[position : position + length])

    async def write_at(self, descriptor, data, position):
        await trio.lowlevel.checkpoint()
        self._open[descriptor].data[position : position + len(data)] = data

    async def truncate(self, descriptor, length):
        await trio.lowlevel.checkpoint()
        del self._open[descriptor].data[length:]

    async def fdatasync(self, descriptor):
        file = self._open[descriptor]
        covered = bytes(file.data)
        await self.sync()
        file.synced = covered

    async def rename(self, source, target):
        await trio.lowlevel.checkpoint()
        self._names[target] = self._names.pop(source)

    async def fsync_directory(self, _path):
        names = dict(self._names)
        await self.sync()
        self._synced_names = names


class Journal:
    """Of one life of a core. `on_commit` is called when a commit is durable, `on_failed` when there is an error: what
    was not durable is undone then, and nothing is taken before `reopen`.
    """

    def __init__(self, disk):
        self._disk = disk
        self._waiting, self._under_way = deque(), []
        self._filled = trio.Event()
        self._sequence = self.durable_sequence = 0
        self.on_commit = self.on_failed = lambda: None
        self._reached = trio.Event()
        self.has_failed, self._failures = False, 0

    def put(self, change, *, is_kept=False):
        """An entry; `change` is made in what the disk keeps when it is durable. Its sequence. `is_kept`: a failure
        delays it, and does not undo it.
        """
        if self.has_failed:
            raise PartitionOfflineError("the journal refuses")
        self._sequence += 1
        self._waiting.append((self._sequence, change, is_kept))
        self._filled.set()
        return self._sequence

    async def put_at_last(self, change):
        """And wait until it is durable; one that fails is tried again."""
        while True:
            try:
                sequence = self.put(change, is_kept=True)
            except PartitionOfflineError:
                await trio.sleep(0.05)
            else:
                await self.wait(sequence, is_kept=True)
                return

    async def wait(self, sequence, *, is_kept=False):
        await trio.lowlevel.checkpoint()
        failures = self._failures
        while self.durable_sequence < sequence:
            if self._failures > failures and not is_kept:
                raise PartitionOfflineError("the journal failed")
            await self._reached.wait()

    def fail(self):
        """What is not durable never will be, but for what is kept."""
        self.has_failed, self._failures = True, self._failures + 1
        undone = [*self._under_way, *self._waiting]
        self._under_way = []
        self._waiting = deque(entry for entry in undone if entry[2])
        self.on_failed()
        self._wake()

    def reopen(self):
        self.has_failed = False
        self._filled.set()

    def _wake(self):
        self._reached.set()
        self._reached = trio.Event()

    async def run(self):
        while True:
            await self._filled.wait()
            self._filled = trio.Event()
            if self.has_failed or not self._waiting:
                continue
            failures, self._under_way = self._failures, list(self._waiting)
            self._waiting.clear()
            await self._disk.sync()
            if self._failures == failures:
                self._apply()
                self._wake()
                self.on_commit()
            elif self._waiting:
                self._filled.set()

    def _apply(self):
        for sequence, change, _is_kept in self._under_way:
            change()
            self.durable_sequence = sequence
        self._under_way = []

    def crash(self, chance):
        """The commit that is under way is there as a whole, or not at all."""
        if chance.random() < 0.3:
            self._apply()


class NoShipments:
    """Replicas are filled by items here."""

    async def end_unused(self, _before_ms):
        await trio.lowlevel.checkpoint()
