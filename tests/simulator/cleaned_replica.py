"""A simulated replica of one log, with real segments on a disk that loses power: what it appends, cleans, loses, and is
filled with. What its journal says besides is kept in memory here, and outlives crashes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from tests.simulator.cleaned_truth import Shown, Truth, shown_committed
from tests.support.fake_disk import FakeDisk, PowerLoss
from tpc_broker.cleaner.codecs import codec_of_a_job
from tpc_broker.cluster.raft_codec import encode_entry
from tpc_broker.log.batch import walk_headers
from tpc_broker.log.cleaned_segment import CleanedSegment
from tpc_broker.log.cleaning import Cleaning, Codec, GroupLimits, SourceSizes, map_bytes, plan_groups
from tpc_broker.log.cleaning_job import CleaningJob, CleaningSource
from tpc_broker.log.files import CLEANED_SUFFIXES, cleaned_file_name, segment_file_name
from tpc_broker.log.segment import LogSettings
from tpc_broker.model import CoreId, NodeId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.node.links.links import FilePart
from tpc_broker.node.links.part_buffers import PartBuffers
from tpc_broker.node.replicas.filling import ReplicaFilling
from tpc_broker.node.replicas.item_reads import without_gaps
from tpc_broker.node.replicas.shipping import SegmentSource
from tpc_broker.node.replicas.steady_carrier import batches_of
from tpc_broker.raft.items import Address, Marker, Position, Voter, simple
from tpc_broker.raft.journal import MarkerEntry
from tpc_broker.raft.log import LogImage, ReplicaLog
from tpc_broker.storage.recovery.filled_folders import FILLING, put_in_place, remove_shipments, remove_unfinished
from tpc_broker.storage.recovery.recovery import open_checkpointed
from tpc_broker.storage.replicas.shipments import Shipments
from tpc_broker.storage.segments.files import FileCache
from tpc_broker.storage.segments.folders import PartitionListing, create_partition, remove_folder
from tpc_broker.storage.segments.segment_swap import Source, remove_cleaned
from tpc_broker.storage.segments.segments import SegmentFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.log.seals import Seal
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

KEY = TopicPartition(TopicId(UUID(int=34)), PartitionIndex(0))
GROUP, TOPIC, DATA, CORE = "kept-0", "kept", Path("/data"), CoreId(0)
PATH = DATA / "topics" / GROUP
SETTINGS = LogSettings(segment_bytes=700, index_interval_bytes=120, retention_ms=-1)
RETENTION_MS = 400
"""`delete.retention.ms`"""
VOTERS = simple(Voter(NodeId(number), 1) for number in range(3))


class Replica:
    """Node `number`. `committed_offset`: what it knows to be committed."""

    def __init__(self, number: int, truth: Truth, random: Random) -> None:
        self.number, self.truth, self.random = number, truth, random
        self.files: PartitionStorage
        self.kept: PartitionCheckpoint
        """The durable checkpoint."""
        self.now_ms = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """Another machine, with an empty disk; `open_new` opens it."""
        self.disk = FakeDisk(now_ms=lambda: self.now_ms)
        for path in (DATA, DATA / "topics"):
            self.disk.put_folder(path)
        self.end_offset = self.committed_offset = 0
        self.newest_upto = 0
        """What was removed was so for records below: a job that is given up has cleaned less than it has looked at."""

    async def open_new(self) -> None:
        self.files = await create_partition(FileCache(self.disk, 100), DATA / "topics", TOPIC, KEY, SETTINGS)
        self._opened()
        await self.checkpoint()

    def _opened(self) -> None:
        self.files.commit_offset = lambda: self.committed_offset
        self._note_epochs()
        self.shipments = Shipments(self.files.folder.files, DATA, CORE)

    def _note_epochs(self) -> None:
        self.files.leader_epoch = self.truth.epoch
        self.files.notes = {marker.epoch: encode_entry(MarkerEntry(GROUP, marker)) for marker in self.markers()}

    def markers(self) -> tuple[Marker, ...]:
        return tuple(
            Marker(one.epoch, one.start_offset, VOTERS)
            for one in self.truth.epochs
            if one.start_offset < self.end_offset or one.start_offset == 0
        )

    # -- what it does ------------------------------------------------------------------------------------------------

    async def take(self, upto: int) -> None:
        """What the log has next, from memory, up to an offset: in the journal at once, and in files."""
        await self._append(self.truth.batches[self.truth.place_of(self.end_offset) : self.truth.place_of(upto)])

    async def _append(self, batches: list[bytes]) -> None:
        for data in batches:
            await self.files.append([data])
        self.end_offset = self.files.written_end_offset
        self._note_epochs()

    async def follow(self, leader: Replica, upto: int) -> None:
        """As it gets items that its leader reads from files."""
        while self.end_offset < upto:
            assert self.end_offset >= leader.contiguous_from_offset
            data = await leader.files.read(self.end_offset, 1, upto)
            try:
                found = without_gaps(batches_of(data, self.end_offset), self.end_offset)
            except ValueError as error:
                raise AssertionError(f"node {self.number} can get no items: {error}") from error
            await self._append([batch.payload for batch in found])

    @property
    def contiguous_from_offset(self) -> int:
        """Below, who lacks something is filled."""
        return self.files.cleaned.end_offset

    async def checkpoint(self) -> None:
        state = await self.files.capture()
        await self.files.sync()
        self.kept = state
        self.files.mark_checkpointed(state)

    async def crash(self) -> None:
        """Loss of power. What was appended is in the journal."""
        self.disk.crash(self.random)
        await self.reopen()

    async def reopen(self) -> None:
        await remove_unfinished(self.disk, DATA, CORE)
        await remove_shipments(self.disk, DATA, CORE)
        self.files = await reopened(FileCache(self.disk, 100), PATH, self.kept)
        at = self.truth.place_of(self.files.written_end_offset)
        for data in self.truth.batches[at : self.truth.place_of(self.end_offset)]:
            await self.files.append([data])
        self.committed_offset = max(min(self.kept.commit_offset, self.end_offset), self.files.cleaned.end_offset)
        self._opened()

    # -- cleaning ----------------------------------------------------------------------------------------------------

    async def clean(self) -> bool:
        """A job over all that may be cleaned, and the swaps of what it made. False: the power was lost in the midst."""
        files, kept = self.files, self.kept
        stable = self.truth.last_stable_offset(self.committed_offset)
        upto = min(kept.segment_base, kept.committed_end_offset, stable)
        segments = [one for one in files.segments[:-1] if files.end_of(one) <= upto]
        if not segments:
            return True
        by_base = {one.base_offset: one for one in segments}
        statuses = {one.base_offset: await self.disk.stat(PATH / one.log_name) for one in segments}
        sources = tuple(
            CleaningSource(
                one.base_offset, files.end_of(one), one.size_bytes, statuses[one.base_offset].inode,
                one.seal is not None, one.seal.removed_upto if one.seal else 0, statuses[one.base_offset].modified_ms,
            ) for one in segments
        )  # fmt: skip
        aborted = await files.aborted_transactions(segments[0].base_offset, upto)
        job = CleaningJob(
            GROUP, str(PATH), sources, files.log_start_offset, files.cleaned.first_dirty_offset, self.now_ms,
            RETENTION_MS, self.random.choice([150, 700, 1500]), 10_000, 120, 10_000, 10_000,
            self.random.choice([100, 10_000]), tuple(aborted), (),
        )  # fmt: skip
        logs = {source.base_offset: await self._read_log(by_base[source.base_offset]) for source in sources}
        try:
            for seal, contents in cleaned_groups(job, logs, self.random):
                await self._write_cleaned(seal, contents)
                replaced = [Source(by_base[base], statuses[base].inode) for base in seal.replaced]
                self.newest_upto = max(self.newest_upto, upto)
                await files.swap(replaced, seal, lambda: None)
                if self.random.random() < 0.1:
                    return True  # the job is given up, and its other groups
        except PowerLoss:
            return False
        return True

    async def _read_log(self, segment: Any) -> bytes:
        return await self.files.folder.read(segment, 0, segment.size_bytes)

    async def _write_cleaned(self, seal: Seal, contents: list[bytes]) -> None:
        names = [name.name for name in self.disk.names if name.parent == PATH]
        await remove_cleaned(self.files.folder, names)
        for suffix, file, content in zip(CLEANED_SUFFIXES, seal.files, contents, strict=True):
            if file.size_bytes or suffix != CLEANED_SUFFIXES[-1]:
                name = cleaned_file_name(segment_file_name(seal.base_offset, suffix), seal.generation)
                await self.files.folder.write_file(name, content)
                await self.files.folder.files.sync(PATH / name)
        await self.disk.fsync_directory(PATH)

    # -- filling -----------------------------------------------------------------------------------------------------

    async def fill_from(self, leader: Replica) -> bool:
        """As a leader that ships and a replica that is filled do it, but for the links between them. Whether the front
        of its own log stays.
        """
        source = SegmentSource(leader.shipments, leader, SimpleNamespace(monotonic_ms=lambda: 0))
        source.tells_gaps = True
        source.begin(leader.driver(), None)
        links = _Links(source)
        storage = SimpleNamespace(files=self.files.folder.files, remove_later=None)
        async with trio.open_nursery() as nursery:
            filling = ReplicaFilling(storage, DATA, CORE)
            filling.begin(self.driver(), links, links, {GROUP: KEY}, nursery)
            filling._filling[GROUP] = 0
            filling.install = self._install
            asked, fetch = list[bool](), filling._fetch_all

            async def fetch_all(what: Any, place: Any) -> Any:
                asked.append(what.keeps_front)
                return await fetch(what, place)

            filling._fetch_all = fetch_all  # type: ignore[method-assign]
            await filling._fetch_and_install(GROUP, Address(NodeId(leader.number), CORE))
        self.newest_upto = max(self.newest_upto, leader.newest_upto)
        return asked == [True]

    def driver(self) -> Any:
        """As much of it as both ends ask."""
        log = ReplicaLog(VOTERS)
        last = Position(self.markers()[-1].epoch, self.end_offset) if self.end_offset else Position(0, 0)
        log.load(LogImage(last, 0, self.end_offset, self.markers() if self.end_offset else (), ()))
        commit = log.position_at(self.committed_offset) if self.committed_offset else Position(0, 0)
        machine = SimpleNamespace(
            is_leader=True, is_ready=True, commit=commit, term=self.truth.epoch, log=log,
            high_watermark=self.committed_offset, role=SimpleNamespace(value="follower"),
        )  # fmt: skip
        core = SimpleNamespace(look=lambda _group: machine, find=lambda _group: machine, groups={GROUP: machine})
        return SimpleNamespace(
            core=core, files_of=lambda _group: self.files, label_of=str, handle_of=lambda _group: 0,
            item_reads=SimpleNamespace(), may_replace=lambda _group, position: position > log.last,
        )  # fmt: skip

    def bounds(self, _handle: int) -> Any:
        return SimpleNamespace(log_start_offset=self.files.log_start_offset)

    async def _install(self, _key: TopicPartition, judge: Any) -> bool:
        state = judge(self.files)
        if state is None:
            return False
        await self.files.close()
        gone = await put_in_place(self.disk, DATA / FILLING / state.filled, PATH, self.random.randbytes(4).hex())
        if gone is not None:
            await remove_folder(self.disk, gone)
        self.kept = replace(state, filled="")
        self.end_offset = self.kept.log_end_offset
        await self.reopen()
        return True

    # -- looking -----------------------------------------------------------------------------------------------------

    async def shown(self, upto: int) -> list[Shown]:
        """What a reader of committed records finds, by several fetches."""
        offset, data, aborted = self.files.log_start_offset, list[bytes](), set()
        while offset < upto:
            found = bytes(await self.files.read(offset, self.random.choice([1, 500]), upto))
            if not found:
                break
            data.append(found)
            behind = max(header.next_offset for header, _place in walk_headers(found))
            aborted |= set(await self.files.aborted_transactions(offset, behind))
            offset = behind
        return shown_committed(data, list(aborted), upto)

    async def why_wrong(self) -> str:
        """Nothing: readers find what they should."""
        stable = self.truth.last_stable_offset(self.committed_offset)
        whole_from, newest_from = self.files.cleaned.end_offset, self.newest_upto
        why = self.truth.why_wrong(await self.shown(stable), stable, whole_from, newest_from)
        return f"node {self.number}: {why}" if why else ""


def cleaned_groups(
    job: CleaningJob, logs: dict[int, bytes], random: Random
) -> Iterator[tuple[Seal, list[bytes]]]:  # fmt: skip
    """As `cleaner.cleaning_run`, in memory."""
    with codec_of_a_job() as codec:
        yield from _cleaned_by(codec, job, logs, random)


def _cleaned_by(
    codec: Codec, job: CleaningJob, logs: dict[int, bytes], random: Random
) -> Iterator[tuple[Seal, list[bytes]]]:  # fmt: skip
    cleaning = Cleaning(job, codec, memoryview(bytearray(map_bytes(job))), random.randbytes(16))
    for source in job.sources:
        if cleaning.is_dirty(source):
            cleaning.begin(source)
            _all_of(logs[source.base_offset], cleaning.collect, lambda: cleaning.is_full)
            if cleaning.is_full:
                break
            cleaning.end(source)
    sources = [source for source in job.sources if cleaning.is_cleaned(source)]
    sizes = [SourceSizes(source.size_bytes, 0, 0) for source in sources]
    groups = plan_groups(sources, sizes, GroupLimits(job.segment_bytes, job.segment_index_bytes))
    for group in groups:
        made, log = CleanedSegment(group, index_interval_bytes=job.index_interval_bytes, index_bytes_max=None), []

        def write(data: memoryview, made: CleanedSegment = made, log: list[bytes] = log) -> None:
            made.add(data)
            log.append(bytes(data))

        for source in group:
            cleaning.begin(source)
            _all_of(logs[source.base_offset], lambda data, write=write: cleaning.rewrite(data, write), lambda: False)
        batches_count, removed_upto, aborted = cleaning.take_results()
        indexes = made.finish(aborted)
        first_dirty_offset = cleaning.end_offset if group is groups[-1] else job.first_dirty_offset
        seal = made.seal(
            random.randbytes(8).hex(), indexes, first_dirty_offset=first_dirty_offset, removed_upto=removed_upto,
            batches_count=batches_count,
        )  # fmt: skip
        yield seal, [b"".join(log), *indexes]


def _all_of(log: bytes, use: Any, is_over: Any) -> None:
    view = memoryview(bytearray(log))
    while view and not is_over():
        view = view[use(view) :]


class _Links:
    """A leader's source, as who is filled asks it; both kinds of links."""

    def __init__(self, source: SegmentSource) -> None:
        self._source = source
        self.parts, self.peers = PartBuffers(), dict[object, object]()
        self.is_up = True

    def place_of(self, address: Address) -> Address:
        return address

    def peer(self, _place: Address) -> _Links:
        return self

    def close(self) -> None:
        pass

    async def ask(self, _address: Address, method: str, payload: dict[str, Any]) -> Any:
        answer = await self._source.handlers[method](SimpleNamespace(node=0), payload, [])
        return answer[0] if answer else {}

    async def call(self, method: str, payload: dict[str, Any]) -> Any:
        answer = await self._source.handlers[method](SimpleNamespace(node=0), payload, [])
        assert isinstance(answer, FilePart)
        data = bytes(answer.data)
        answer.sent()
        return {}, [data]


async def reopened(files: FileCache, path: Path, state: PartitionCheckpoint) -> PartitionStorage:
    """As a start opens a partition."""
    listing = await PartitionListing.read(files.disk, path)
    assert listing is not None, path
    return await open_checkpointed(SegmentFolder(files, path), listing, state, SETTINGS)
