"""What a core's broker stands on, put together in order: ring, disk, recovered journal, connections, data plane.

The journal's lock comes first: while it is held elsewhere, the ring of a core that died may still be writing
(`journal_lock`).
"""

from __future__ import annotations

import errno
import logging
import os
import random
import secrets
import time
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import trio

from tpc_broker.broker.metadata_service import METADATA_CORE, read_image
from tpc_broker.cleaner.cleaner_client import CleanerClient
from tpc_broker.engine.cache_bound import CacheBound
from tpc_broker.engine.client_connections import ClientConnections
from tpc_broker.engine.clocks import SystemClock
from tpc_broker.engine.connection_bounds import ConnectionBounds, connection_limits
from tpc_broker.engine.connections import Connections
from tpc_broker.engine.data_plane import JournalStart, RingDataPlane
from tpc_broker.engine.disk import RingDisk
from tpc_broker.engine.journal_lock import JournalLock, JournalLockedError
from tpc_broker.engine.journal_probe import FLAGS, probe_journal_mode
from tpc_broker.engine.refusal_watch import RefusalWatch
from tpc_broker.engine.spare_memory import SpareMemory
from tpc_broker.engine.trio_ring import current_ring
from tpc_broker.log.checkpoint import CheckpointError
from tpc_broker.log.files import journal_file_name
from tpc_broker.log.journal import JournalMode, JournalUnreadableError
from tpc_broker.metadata.core_counts import core_of_those_left
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import MetadataDamagedError
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId, TopicPartition
from tpc_broker.node.membership.identity import IdentityFile, core_ended, is_in_cluster
from tpc_broker.options import StartError
from tpc_broker.routing import adapt_to_cores
from tpc_broker.storage.journalled_storage import JournalledStorage
from tpc_broker.storage.recovery.checkpoint import release_ballast
from tpc_broker.storage.recovery.handover import Given, hand_over, journal_cores
from tpc_broker.storage.recovery.handover import recover_all as recover_every_journal
from tpc_broker.storage.recovery.journal_opening import JournalDamagedError
from tpc_broker.storage.recovery.lost_and_found import METADATA_PARTITION, metadata_problem
from tpc_broker.storage.recovery.recovery import RecoveredCore, recover_core
from tpc_broker.telemetry.counters import CoreCounters, core_counters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from tpc_broker.broker.core import Core
    from tpc_broker.engine.connections import ConnectionLimits
    from tpc_broker.engine.ring import Ring
    from tpc_broker.metadata.broker_config import Settings
    from tpc_broker.options import CoreOptions
    from tpc_broker.storage.ports import Clock, Disk
    from tpc_broker.storage.recovery.checkpoint import JournalFile

log = logging.getLogger(__name__)

QUIET_POLL_S = 0.002
QUIET_WAIT_S = 5.0


class CannotRunError(Exception):
    """A reason that starting again does not mend."""


class SystemChance:
    """`broker.ports.Chance`."""

    uuid = staticmethod(uuid.uuid4)
    uniform = staticmethod(random.uniform)


@dataclass(frozen=True, slots=True)
class CoreAssembly:
    """The ports of one core."""

    connections: ClientConnections
    ring_connections: Connections
    bounds: ConnectionBounds
    plane: RingDataPlane
    storage: JournalledStorage
    disk: RingDisk
    clock: SystemClock
    cache: CacheBound
    spare: SpareMemory
    refusals: RefusalWatch
    cleaner: CleanerClient
    counters: Callable[[Core], CoreCounters]
    """As long as the others are open."""


@dataclass(frozen=True, slots=True)
class CoreParts:
    """Of a core's ports those in C, and the storage on them."""

    connections: Connections
    plane: RingDataPlane
    storage: JournalledStorage


class OpenJournal(Protocol):
    """A descriptor that commits are written through, and in which mode."""

    @property
    def fd(self) -> int: ...

    @property
    def mode(self) -> JournalMode: ...

    def reopen(self) -> tuple[int, int]:
        """The same again, for a journal that failed."""
        ...


class JournalDescriptor:
    """The descriptor that commits are written through, in the mode that was found best."""

    def __init__(self, data: Path, core: CoreId) -> None:
        self._path = data / "journals" / journal_file_name(core)
        self.mode = JournalMode.UNKNOWN
        self.fd = -1

    async def open(self, journal_file: JournalFile) -> None:
        """Find the mode, and note it in the journal for the next start."""
        before = journal_file.superblock.mode
        self.mode = await trio.to_thread.run_sync(probe_journal_mode, self._path.parent, before)
        await journal_file.set_mode(self.mode)
        self.fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | FLAGS[self.mode])

    def reopen(self) -> tuple[int, int]:
        """`OpenJournal.reopen`."""
        return self.fd, int(self.mode)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


async def _recover_with_ballast(options: CoreOptions, disk: Disk, settings: Settings) -> RecoveredCore:
    """On a full disk once more without the ballast, which is there for this: recovery may be begun again any time."""
    for attempt in range(2):
        try:
            return await recover_core(
                disk,
                Path(options.data),
                options.core,
                new_journal_id=uuid.uuid4().bytes,
                journal_bytes_max=settings.journal_bytes_max,
                journals_count=options.cores,
            )
        except OSError as error:
            if error.errno != errno.ENOSPC or attempt:
                raise
            await release_ballast(disk, Path(options.data))
            log.warning("the disk is full; recovering again without the ballast")
    raise AssertionError


async def recover(options: CoreOptions, disk: Disk, settings: Settings) -> RecoveredCore:
    """A core's journal, replayed. CannotRunError."""
    started = time.monotonic()
    try:
        recovered = await _recover_with_ballast(options, disk, settings)
    except (JournalDamagedError, JournalUnreadableError, CheckpointError) as error:
        where = f"journal or checkpoint of core {options.core} in {options.data}"
        hint = f"nothing was changed; see: tpc-broker repair --data {options.data}"
        raise CannotRunError(f"{where}: {error}; {hint}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EACCES, errno.EROFS):
            hint = "; free some space: recovery writes a checkpoint" if error.errno == errno.ENOSPC else ""
            raise CannotRunError(f"the data directory cannot be used: {error}{hint}") from error
        raise
    report = recovered.report
    if report.commits_count or report.trimmed_bytes or recovered.offline:
        log.info(
            "recovered in %.0f ms: %d commits with %d entries and %d bytes replayed, %d of these found where they were "
            "written in place; %d bytes behind the checkpoint and %d torn commits trimmed",
            (time.monotonic() - started) * 1000, report.commits_count, report.entries_count, report.replayed_bytes,
            report.in_place_bytes, report.trimmed_bytes, report.torn_commits_count,
        )  # fmt: skip
    if options.core == METADATA_CORE and not is_in_cluster(Path(options.data)):
        await _refuse_without_metadata([recovered], disk, Path(options.data))
    for remark in report.remarks:
        log.info("recovery: %s", remark)
    for offline in recovered.offline.values():
        log.error("%s-%d is offline: %s; stop the broker and see: tpc-broker repair --data %s",
                  offline.topic, offline.key.partition, offline.reason, options.data)  # fmt: skip
    return recovered


async def _refuse_without_metadata(recovered: Iterable[RecoveredCore], disk: Disk, data: Path) -> None:
    problem = metadata_problem(recovered, await disk.listdir(data / "topics"))
    if problem is not None:
        raise CannotRunError(f"the cluster's metadata cannot be read: {problem}; {rebuild_hint(data)}")


def rebuild_hint(data: object) -> str:
    command = f"tpc-broker repair --rebuild-metadata --data {data}"
    return f"nothing was deleted; to rebuild them from the topics' folders: {command}"


async def recover_all(options: CoreOptions) -> None:
    """Every journal that is there is replayed, and every partition handed to its owner among today's cores.

    No core may be running. Who owns what is the assignment rule's, applied to the metadata log as it was recovered;
    core 0 writes the same into that log at its start. In a cluster, whose metadata are not here, each replica stays
    with its core, and what has none any more goes where `metadata.core_counts` says; the node tells it when it joins.
    """
    ring = current_ring()
    disk = RingDisk(ring)
    data = Path(options.data)
    locks = [JournalLock(data, core) for core in await journal_cores(disk, data)]
    try:
        for lock in locks:
            await lock.take(ring)
        await hand_over_all(options, disk)
    except JournalLockedError as error:
        raise CannotRunError(f"{error}; nothing was changed") from error
    finally:
        for lock in locks:
            lock.release()


async def hand_over_all(options: CoreOptions, disk: Disk) -> None:
    """`recover_all`, behind the locks of the journals."""
    data = Path(options.data)
    try:
        recovered = await recover_every_journal(disk, data, _new_journal_id)
        settings = load_settings(options.settings, options.overrides).settings
        if is_in_cluster(data):
            owner_of = _owners_in_cluster(data, options.cores)
        else:
            await _refuse_without_metadata(recovered.values(), disk, data)
            owner_of = _owners_alone(await _recovered_image(recovered), options.cores)
        moved = await hand_over(
            disk, data, recovered, owner_of, cores_count=options.cores, new_journal_id=_new_journal_id,
            journal_bytes_max=settings.journal_bytes_max, giving=partial(_giving, data),
            core_ended=partial(_core_ended, data),
        )  # fmt: skip
    except (JournalDamagedError, JournalUnreadableError, CheckpointError, StartError) as error:
        raise CannotRunError(f"{error}; nothing was changed") from error
    log.info("%d journals recovered, %d partitions have another core now", len(recovered), moved)


def _owners_alone(image: ClusterImage, cores: int) -> Callable[[TopicPartition, CoreId], CoreId]:
    def owner_of(key: TopicPartition, _core: CoreId) -> CoreId:
        topic = image.topic_by_id(key.topic_id)
        if topic is None:  # the metadata log itself, or a deleted topic whose files go with the next start
            return CoreId(0)
        owners = adapt_to_cores(topic.assignment, topic.topic_id, cores).owners
        return owners[key.partition] if key.partition < len(owners) else CoreId(0)

    return owner_of


def _owners_in_cluster(data: Path, cores: int) -> Callable[[TopicPartition, CoreId], CoreId]:
    counts = IdentityFile(data).hands_over(cores).counts_to_tell
    return lambda key, core: core_of_those_left(key, core, counts)


async def _giving(data: Path, given: list[Given]) -> None:
    """Before replicas are on other cores' disks: what else is kept of each replica by its core."""
    if given and is_in_cluster(data):  # a node alone needs none of it
        from tpc_broker.node.replicas.core_replicas import group_of  # noqa: PLC0415
        from tpc_broker.node.replicas.replica_lives import hand_lives_over  # noqa: PLC0415

        await trio.to_thread.run_sync(hand_lives_over, data, given, group_of)


async def _core_ended(data: Path, core: CoreId) -> None:
    await trio.to_thread.run_sync(core_ended, data, core)


def _new_journal_id() -> bytes:
    return uuid.uuid4().bytes


async def _recovered_image(recovered: dict[CoreId, RecoveredCore]) -> ClusterImage:
    """The cluster as the recovered metadata log says; empty where there is none yet."""
    image = ClusterImage()
    key = METADATA_PARTITION
    storage = next((one.storages[key] for one in recovered.values() if key in one.storages), None)
    if storage is None:
        return image
    try:
        return await read_image(storage)
    except (MetadataDamagedError, ValueError) as error:
        hint = rebuild_hint(storage.folder.path.parent.parent)
        raise CannotRunError(f"the cluster's metadata cannot be read: {error}; {hint}") from error


def put_together(  # noqa: PLR0913 (a core is put together here)
    ring: Ring, disk: Disk, clock: Clock, options: CoreOptions, recovered: RecoveredCore, journal: OpenJournal,
    limits: ConnectionLimits,
) -> CoreParts:  # fmt: skip
    """A core's connections, its data plane and its storage, behind a recovered journal that is open."""
    connections = Connections(ring, limits)
    plane = RingDataPlane(ring, connections, _journal_start(recovered, journal))
    storage = JournalledStorage(
        recovered, plane, disk, Path(options.data), clock, new_run_id=_new_run_id, reopen_journal_file=journal.reopen
    )
    plane.set_hot(on=True)
    return CoreParts(connections, plane, storage)


def _new_run_id() -> int:
    return secrets.randbits(63)


@asynccontextmanager
async def open_assembly(options: CoreOptions) -> AsyncIterator[CoreAssembly]:
    """The ports of a core whose journal is recovered; everything is closed at the end."""
    ring = current_ring()
    disk = RingDisk(ring)
    clock = SystemClock()
    settings = load_settings(options.settings, options.overrides).settings
    lock = JournalLock(Path(options.data), options.core)
    try:
        await lock.take(ring)
    except JournalLockedError as error:
        raise CannotRunError(str(error)) from error
    recovered = await recover(options, disk, settings)
    descriptor = JournalDescriptor(Path(options.data), options.core)
    await descriptor.open(recovered.journal_file)
    parts = put_together(ring, disk, clock, options, recovered, descriptor, connection_limits(settings))
    connections, plane, storage = parts.connections, parts.plane, parts.storage
    bounds = ConnectionBounds(connections, settings)
    storage.cleaner = cleaner = CleanerClient(options.cleaner_fd)
    try:
        counters = partial(core_counters, ring, connections, plane, storage)
        cache = CacheBound(plane, settings.log_cache_max_bytes, options.cores)
        refusals = RefusalWatch(connections)
        clients = ClientConnections(connections)
        yield CoreAssembly(
            clients, connections, bounds, plane, storage, disk, clock, cache, SpareMemory(plane), refusals, cleaner,
            counters,
        )
    finally:
        cleaner.let_go()
        with trio.CancelScope(shield=True):
            await _close(connections, plane, recovered)
        descriptor.close()
        lock.release()


async def _close(connections: Connections, plane: RingDataPlane, recovered: RecoveredCore) -> None:
    connections.stop_accepting()
    connections.close_all()
    with trio.move_on_after(QUIET_WAIT_S):
        while not (connections.quiet and plane.is_quiet()):
            await trio.sleep(QUIET_POLL_S)
    plane.close()
    if connections.quiet:
        connections.free()
    await recovered.close()


def _journal_start(recovered: RecoveredCore, journal: OpenJournal) -> JournalStart:
    superblock = recovered.journal_file.superblock
    place = recovered.scan.next
    return JournalStart(
        descriptor=journal.fd,
        mode=int(journal.mode),
        journal_id=superblock.journal_id,
        run_id=_new_run_id(),
        region_blocks=superblock.initialised_blocks,
        region_blocks_max=superblock.region_blocks,
        sequence_next=place.sequence,
        block_next=place.block,
        previous_crc=place.previous_crc,
    )
