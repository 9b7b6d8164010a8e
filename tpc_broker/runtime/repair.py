"""``tpc-broker repair``: which partitions and journals are offline and why, and bringing them back with what is left.

Listing reads only. A repair first recovers every journal, as a start would, so that nothing older can come over what it
writes; the owner is found at the next start, which hands every partition to its core.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from tpc_broker.broker.storage_checkpoint import JournalFile
from tpc_broker.broker.storage_folders import list_partitions
from tpc_broker.broker.storage_handover import journal_cores, recover_all
from tpc_broker.broker.storage_recovery import JournalDamagedError, OfflinePartition, recover_core
from tpc_broker.broker.storage_repair import RepairReport, checkpoints_of, list_salvage, repair_partition
from tpc_broker.log.checkpoint import CheckpointError
from tpc_broker.log.files import HANDOVER_FILE, partition_folder_name
from tpc_broker.log.journal import JournalUnreadableError
from tpc_broker.model import CoreId
from tpc_broker.runtime.data_directory import DataDirectory
from tpc_broker.runtime.disk import RingDisk
from tpc_broker.runtime.journal_lock import JournalLock, JournalLockedError
from tpc_broker.runtime.options import StartError
from tpc_broker.runtime.trio_ring import current_ring
from tpc_broker.runtime.trio_ring import run as run_on_ring

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tpc_broker.broker.storage_recovery import RecoveredCore


@dataclass(frozen=True, slots=True)
class OfflineReport:
    """One partition that the next start will not open. Offsets are -1 where nothing is known."""

    partition: str
    core: int
    reason: str
    log_start_offset: int
    log_end_offset: int
    salvaged: tuple[tuple[str, int, int], ...]
    """Files with what the journal still had: path, first offset, offset behind the last one."""


@dataclass(frozen=True, slots=True)
class DamagedJournal:
    core: int
    reason: str


def repair(data: Path, *, partition: str | None, core: int | None, as_json: bool) -> str:
    """What to print. `partition`: bring that one back, losing what cannot be read; `core`: accept its journal's damage;
    neither: list. StartError: one line for what was refused.
    """
    if not (data / "journals").is_dir():
        raise StartError(f"{data} is no data directory of a broker")
    with DataDirectory.open(data):
        try:
            return run_on_ring(_run, data, partition, core, as_json)
        except (JournalDamagedError, JournalUnreadableError, CheckpointError, JournalLockedError) as error:
            raise StartError(f"{error}; nothing was repaired") from error
        except OSError as error:
            raise StartError(f"the data directory cannot be used: {error}") from error


async def _run(data: Path, partition: str | None, core: int | None, as_json: bool) -> str:  # noqa: FBT001
    ring = current_ring()
    disk = RingDisk(ring)
    cores = await journal_cores(disk, data)
    locks = [JournalLock(data, one) for one in cores]
    try:
        for lock in locks:
            await lock.take(ring)
        if core is not None:
            return await _accept_journal(disk, data, CoreId(core), cores, as_json=as_json)
        if partition is not None:
            return await _bring_back(disk, data, partition, as_json=as_json)
        return await _list(disk, data, cores, as_json=as_json)
    finally:
        for lock in locks:
            lock.release()


# -- listing -----------------------------------------------------------------------------------------------------------


async def _list(disk: RingDisk, data: Path, cores: list[CoreId], *, as_json: bool) -> str:
    journals, sound = [], []
    for core in cores:
        problem = await _journal_problem(disk, data, core)
        if problem is None:
            sound.append(core)
        else:
            journals.append(DamagedJournal(core, problem))
    offline = await _offline(disk, data, sound)
    if as_json:
        return json.dumps({"offline": [asdict(one) for one in offline], "journals": [asdict(one) for one in journals]})
    return "\n".join([*_describe(offline, journals)])


async def _journal_problem(disk: RingDisk, data: Path, core: CoreId) -> str | None:
    try:
        file = await JournalFile.open(disk, data / "journals", core)
        try:
            scan = await file.scan()
        finally:
            await file.close()
        await checkpoints_of(disk, data, [core])
    except (JournalUnreadableError, CheckpointError) as error:
        return str(error)
    return scan.damage


async def _offline(disk: RingDisk, data: Path, cores: list[CoreId]) -> list[OfflineReport]:
    """Partitions with a marker, and partitions of checkpoints that have no folder."""
    listings = await list_partitions(disk, data / "topics")
    known = await checkpoints_of(disk, data, cores)
    reasons = {key: listing.offline for key, listing in listings.items() if listing.offline is not None}
    reasons |= {
        key: "its folder is missing"
        for key, (_core, state) in known.items()
        if key not in listings and state.log_end_offset > state.log_start_offset
    }
    found = []
    for key, reason in reasons.items():
        core, state = known.get(key, (CoreId(-1), None))
        listing = listings.get(key)
        label = listing.path.name if listing else partition_folder_name(state.topic if state else "", key.partition)
        path = listing.path if listing else data / "topics" / label
        salvaged = [
            (str(one.path), one.first_offset, one.end_offset) for one in await list_salvage(disk, data, key, path)
        ]
        ends = (state.log_start_offset, state.log_end_offset) if state else (-1, -1)
        found.append(OfflineReport(label, core, reason, *ends, tuple(salvaged)))
    return sorted(found, key=lambda one: one.partition)


def _describe(offline: list[OfflineReport], journals: list[DamagedJournal]) -> Iterable[str]:
    if not offline and not journals:
        yield "nothing is offline"
    for journal in journals:
        yield f"the journal of core {journal.core} is damaged: {journal.reason}"
        yield f"  to go on without what is lost: --core {journal.core} --accept-journal-damage"
    for one in offline:
        where = f" (core {one.core}, records [{one.log_start_offset}, {one.log_end_offset}))" if one.core >= 0 else ""
        yield f"{one.partition} is offline{where}: {one.reason}"
        for path, first, end in one.salvaged:
            yield f"  salvaged from the journal: records [{first}, {end}) in {path}"
        yield f"  to bring back what can be read: --partition {one.partition} --accept-loss"


# -- repairs -----------------------------------------------------------------------------------------------------------


async def _accept_journal(
    disk: RingDisk, data: Path, core: CoreId, cores: list[CoreId], *, as_json: bool
) -> str:
    if core not in cores:
        raise StartError(f"{data} has no journal of core {core}; there are {', '.join(map(str, cores)) or 'none'}")
    problem = await _journal_problem(disk, data, core)
    if problem is None:
        raise StartError(f"the journal of core {core} is sound; nothing was changed")
    recovered = await recover_core(disk, data, core, new_journal_id=uuid4().bytes, accept_damage=True)
    try:
        offline = sorted(partition_folder_name(one.topic, one.key.partition) for one in recovered.offline.values())
        report = recovered.report
    finally:
        await recovered.close()
    if as_json:
        found = {"core": core, "accepted": problem, "replayed_bytes": report.replayed_bytes, "offline": offline}
        return json.dumps(found)
    lines = [
        f"core {core}: accepted that {problem}",
        f"{report.replayed_bytes} bytes in front of the damage were replayed",
    ]
    return "\n".join(lines + [f"{label} is offline now; see: tpc-broker repair" for label in offline])


async def _bring_back(disk: RingDisk, data: Path, partition: str, *, as_json: bool) -> str:
    recovered = await recover_all(disk, data, lambda: uuid4().bytes)
    try:
        core, offline = _find_offline(recovered, partition)
        listings = await list_partitions(disk, data / "topics")
        report = await repair_partition(recovered[core], offline, data, listings.get(offline.key))
        if offline.checkpoint is None:  # no core's so far: the next start finds out whose it is
            await disk.close(await disk.open(data / "journals" / HANDOVER_FILE, os.O_RDWR | os.O_CREAT))
            await disk.fsync_directory(data / "journals")
    finally:
        for one in recovered.values():
            await one.close()
    return json.dumps(asdict(report)) if as_json else "\n".join(_describe_repair(report))


def _find_offline(recovered: dict[CoreId, RecoveredCore], partition: str) -> tuple[CoreId, OfflinePartition]:
    for core, one in recovered.items():
        for offline in one.offline.values():
            if partition_folder_name(offline.topic, offline.key.partition) == partition:
                return core, offline
    if partition in {storage.folder.path.name for one in recovered.values() for storage in one.storages.values()}:
        raise StartError(f"{partition} is not offline; nothing was changed")
    raise StartError(f"there is no partition {partition}; names are as TOPIC-NUMBER")


def _describe_repair(report: RepairReport) -> Iterable[str]:
    yield f"{report.label} is back with records [{report.log_start_offset}, {report.log_end_offset})"
    if report.salvaged_count:
        yield f"  {report.salvaged_count} of these offsets came from the journal's salvage"
    for first, end in report.lost:
        yield f"  lost: offsets [{first}, {end})"
    if not report.lost:
        yield "  nothing is lost"
