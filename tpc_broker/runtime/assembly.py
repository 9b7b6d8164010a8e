"""What a core's broker stands on, put together in order: ring, disk, recovered journal, connections, data plane.

A held lock on the journal means that the ring of a core that died may still be writing to it (HARD_PARTS 13): starts
retry for ``LOCK_RETRY_MS``. The locked descriptor is the one that the journal is written through, so the lock lasts as
long as the last write.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import time
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from tpc_broker import limits
from tpc_broker.broker.core_storage import JournalledStorage
from tpc_broker.broker.storage_moves import gather
from tpc_broker.broker.storage_recovery import JournalDamagedError, RecoveredCore, recover_core
from tpc_broker.log.checkpoint import CheckpointError
from tpc_broker.log.files import journal_file_name
from tpc_broker.log.journal import JournalMode, JournalUnreadableError
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId
from tpc_broker.runtime.client_connections import ClientConnections
from tpc_broker.runtime.connections import ConnectionLimits, Connections
from tpc_broker.runtime.data_plane import JournalStart, RingDataPlane
from tpc_broker.runtime.disk import RingDisk
from tpc_broker.runtime.journal_probe import FLAGS, probe_journal_mode
from tpc_broker.runtime.trio_ring import current_ring

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tpc_broker.metadata.broker_config import Settings
    from tpc_broker.runtime.options import CoreOptions

log = logging.getLogger(__name__)

LOCK_POLL_S = 0.005
QUIET_POLL_S = 0.002
QUIET_WAIT_S = 5.0


class CannotRunError(Exception):
    """A reason that starting again does not mend."""


class SystemClock:
    """Milliseconds: since the epoch, and of a clock that never goes back."""

    @staticmethod
    def wall_ms() -> int:
        return time.time_ns() // 1_000_000

    @staticmethod
    def monotonic_ms() -> int:
        return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class CoreAssembly:
    """The ports of one core."""

    connections: ClientConnections
    plane: RingDataPlane
    storage: JournalledStorage
    disk: RingDisk
    clock: SystemClock


class JournalDescriptor:
    """The descriptor that commits are written through, locked for the life of the core."""

    def __init__(self, data: Path, core: int) -> None:
        self.path = data / "journals" / journal_file_name(core)
        self.mode = JournalMode.UNKNOWN
        self.fd = -1

    async def lock_before_recovery(self) -> None:
        """Wait until no ring of an earlier life can write any more. A journal that is not there needs no lock."""
        self.mode = await trio.to_thread.run_sync(probe_journal_mode, self.path.parent)
        if self.path.exists():
            await self._open_and_lock()

    async def open_after_recovery(self) -> int:
        if self.fd < 0:
            await self._open_and_lock()
        return self.fd

    async def _open_and_lock(self) -> None:
        self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | FLAGS[self.mode])
        deadline_s = trio.current_time() + limits.LOCK_RETRY_MS / 1000
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if trio.current_time() > deadline_s:
                    raise CannotRunError(f"{self.path} is locked by another process") from None
                await trio.sleep(LOCK_POLL_S)
                continue
            return

    def reopen(self) -> tuple[int, int]:
        """The same descriptor and mode again, for a journal that failed."""
        return self.fd, int(self.mode)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


async def _recover(options: CoreOptions, disk: RingDisk, settings: Settings) -> RecoveredCore:
    started = time.monotonic()
    try:
        recovered = await recover_core(
            disk,
            Path(options.data),
            options.core,
            new_journal_id=uuid.uuid4().bytes,
            journal_bytes_max=settings.journal_bytes_max,
        )
    except (JournalDamagedError, JournalUnreadableError, CheckpointError) as error:
        raise CannotRunError(f"{error}; nothing was changed") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EACCES, errno.EROFS):
            raise CannotRunError(f"the data directory cannot be used: {error}") from error
        raise
    report = recovered.report
    if report.commits_count or report.trimmed_bytes or recovered.offline:
        log.info(
            "recovered in %.0f ms: %d commits with %d entries and %d bytes replayed, %d bytes behind the checkpoint and "
            "%d torn commits trimmed",
            (time.monotonic() - started) * 1000, report.commits_count, report.entries_count, report.replayed_bytes,
            report.trimmed_bytes, report.torn_commits_count,
        )  # fmt: skip
    for remark in report.remarks:
        log.info("recovery: %s", remark)
    for offline in recovered.offline.values():
        log.error("%s-%d is offline: %s", offline.topic, offline.key.partition, offline.reason)
    return recovered


async def recover_all(options: CoreOptions) -> None:
    """Every journal that is there, down to nothing to replay; then no core owns anything. No core may be running."""
    disk = RingDisk(current_ring())
    journals = Path(options.data) / "journals"
    settings = load_settings(options.settings, options.overrides).settings
    cores = sorted(CoreId(int(file.stem)) for file in journals.glob("[0-9]*.journal"))
    for core in cores:
        descriptor = JournalDescriptor(Path(options.data), core)
        await descriptor.lock_before_recovery()
        try:
            recovered = await _recover(replace(options, core=core), disk, settings)
            await recovered.close()
        finally:
            descriptor.close()
    count = await gather(disk, journals, cores)
    log.info("%d journals recovered, %d partitions to be placed again", len(cores), count)


@asynccontextmanager
async def open_assembly(options: CoreOptions) -> AsyncIterator[CoreAssembly]:
    """The ports of a core whose journal is recovered; everything is closed at the end."""
    ring = current_ring()
    disk = RingDisk(ring)
    clock = SystemClock()
    settings = load_settings(options.settings, options.overrides).settings
    descriptor = JournalDescriptor(Path(options.data), options.core)
    await descriptor.lock_before_recovery()
    recovered = await _recover(options, disk, settings)
    connections = Connections(ring, _connection_limits(settings))
    plane = RingDataPlane(ring, connections, _journal_start(recovered, await descriptor.open_after_recovery(), descriptor))
    storage = JournalledStorage(
        recovered,
        plane,
        disk,
        Path(options.data),
        clock,
        new_run_id=lambda: secrets.randbits(63),
        reopen_journal_file=descriptor.reopen,
    )
    plane.set_hot(on=True)
    try:
        yield CoreAssembly(ClientConnections(connections), plane, storage, disk, clock)
    finally:
        with trio.CancelScope(shield=True):
            await _close(connections, plane, recovered)
        descriptor.close()


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


def _connection_limits(settings: Settings) -> ConnectionLimits:
    return ConnectionLimits(
        connections_max=min(settings.max_connections, limits.CONNECTIONS_MAX),
        request_bytes_max=settings.socket_request_max_bytes,
        pipelined_requests_max=limits.PIPELINED_REQUESTS_MAX,
        send_deadline_ms=limits.SEND_DEADLINE_MS,
        idle_ms_max=max(0, settings.connections_max_idle_ms),
        budget_bytes=max(limits.CORE_BUDGET_BYTES, settings.socket_request_max_bytes * 2),
    )


def _journal_start(recovered: RecoveredCore, fd: int, descriptor: JournalDescriptor) -> JournalStart:
    superblock = recovered.journal_file.superblock
    place = recovered.scan.next
    return JournalStart(
        descriptor=fd,
        mode=int(descriptor.mode),
        journal_id=superblock.journal_id,
        run_id=secrets.randbits(63),
        region_blocks=superblock.initialised_blocks,
        sequence_next=place.sequence,
        block_next=place.block,
        previous_crc=place.previous_crc,
    )
