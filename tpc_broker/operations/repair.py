"""``tpc-broker repair``: which partitions and journals are offline or damaged and why, and what is left brought back.

Listing reads only. A repair first recovers every journal, as a start would, so that nothing older can come over what it
writes; the owner is found at the next start, which hands every partition to its core.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from tpc_broker.broker.metadata_rebuild import Rebuilt, Remains, find_remains, rebuild_image, rebuild_metadata
from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.engine.backend import ring_options
from tpc_broker.engine.data_directory import DataDirectory
from tpc_broker.engine.disk import RingDisk
from tpc_broker.engine.journal_lock import JournalLock, JournalLockedError
from tpc_broker.engine.trio_ring import current_ring
from tpc_broker.engine.trio_ring import run as run_on_ring
from tpc_broker.errors import StorageFailedError
from tpc_broker.log.checkpoint import CheckpointError
from tpc_broker.log.files import HANDOVER_FILE, partition_folder_name
from tpc_broker.log.journal import JournalUnreadableError
from tpc_broker.model import METADATA_TOPIC, CoreId
from tpc_broker.node.membership.identity import START_EMPTY, IdentityFile, is_in_cluster, refuse_of_cluster
from tpc_broker.operations.repair_damaged import costs_records, forget_damage, take_offline
from tpc_broker.operations.repair_found import find, groups_of, is_promised, survey_found
from tpc_broker.options import StartError
from tpc_broker.storage.recovery.checkpoint import JournalFile, read_checkpoint
from tpc_broker.storage.recovery.handover import recover_all, stored_cores
from tpc_broker.storage.recovery.journal_opening import JournalDamagedError
from tpc_broker.storage.recovery.recovery import OfflinePartition, recover_core
from tpc_broker.storage.recovery.repair import (
    RepairPlan,
    RepairReport,
    checkpoints_of,
    list_salvage,
    repair_partition,
)
from tpc_broker.storage.segments.folders import list_partitions

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence
    from pathlib import Path

    from tpc_broker.model import TopicPartition
    from tpc_broker.operations.repair_found import Found
    from tpc_broker.storage.recovery.recovery import RecoveredCore
    from tpc_broker.storage.recovery.repair import BeginGroup

REFUSED: Final = "is not given by the disk, and may be whole: try again when the disk is well, or from a copy of it"


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
class DamagedPartition:
    """One that the next start opens, and in whose segments a scrub has found damage."""

    partition: str
    core: int
    reason: str
    lost: tuple[tuple[int, int], ...]
    """Half-open ranges of offsets that a repair cannot bring back."""
    error: str | None
    """Why nobody can tell: the disk refuses its files."""
    is_replicated: bool
    """Nodes of a cluster have other replicas of it, so that it is filled again from them."""


@dataclass(frozen=True, slots=True)
class UnreadablePartition:
    """One whose files the disk refuses; `reason` names the file."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Unread:
    """What the disk refuses, and was left as it is."""

    journals: list[DamagedJournal]
    partitions: list[UnreadablePartition]

    def as_json(self) -> dict[str, Any]:
        return {
            "unreadable": [asdict(one) for one in self.partitions],
            "unreadable_journals": [asdict(one) for one in self.journals],
        }

    def lines(self) -> Iterable[str]:
        for one in self.partitions:
            yield f"{one.label} stays as it is, the disk refuses its files: {one.reason}"
        for journal in self.journals:
            yield f"the journal of core {journal.core} {REFUSED}: {journal.reason}"
            yield "  partitions of that core stay as they are"


class PartlyRepairedError(Exception):
    """What to print, where the disk refuses files of some partitions: what was done with the others; those by name."""


@dataclass(frozen=True, slots=True)
class DamagedJournal:
    core: int
    reason: str
    is_refused: bool = False
    """The disk does not give it now: what it holds may be whole."""


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """At most one of `partition`, `every_partition`, `core` and `rebuild_metadata`; none: list what is wrong. Without
    `apply` nothing is changed.
    """

    partition: str | None = None
    every_partition: bool = False
    core: int | None = None
    rebuild_metadata: bool = False
    apply: bool = False
    accept_loss: bool = False
    as_json: bool = False


def repair(data: Path, request: RepairRequest) -> str:
    """What to print. StartError: one line for what was refused. PartlyRepairedError: not all could be done."""
    if not (data / "journals").is_dir():
        raise StartError(f"{data} is no data directory of a broker")
    with DataDirectory.open(data) as directory:
        try:
            return run_on_ring(_run, data, directory, request, options=ring_options())
        except (JournalDamagedError, JournalUnreadableError, CheckpointError, JournalLockedError) as error:
            raise StartError(f"{error}; nothing was repaired") from error
        except (OSError, StorageFailedError) as error:
            raise StartError(f"the data directory cannot be used: {error}") from error


async def _run(data: Path, directory: DataDirectory, request: RepairRequest) -> str:
    ring = current_ring()
    disk = RingDisk(ring)
    cores = await stored_cores(disk, data)
    locks = [JournalLock(data, one) for one in cores]
    try:
        for lock in locks:
            await lock.take(ring)
        if request.rebuild_metadata:
            refuse_of_cluster(data, "--rebuild-metadata")
            return await _rebuild(disk, data, directory, cores, request)
        if request.core is not None:
            return await _accept_journal(disk, data, CoreId(request.core), cores, request)
        if request.partition is not None or request.every_partition:
            return await _bring_back(disk, data, cores, request)
        return await _list(disk, data, cores, as_json=request.as_json)
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
            journals.append(problem)
    found = await find(disk, data, sound)
    offline = await _offline(disk, data, found, all_are_sound=not journals)
    damaged = await _damaged(disk, data, found)
    if as_json:
        parts: dict[str, Sequence[Any]] = {"offline": offline, "journals": journals, "damaged": damaged}
        return json.dumps({name: [asdict(one) for one in part] for name, part in parts.items()})
    return "\n".join([*_describe(offline, journals), *_describe_damaged(damaged)]) or "nothing is offline"


async def _journal_problem(disk: RingDisk, data: Path, core: CoreId) -> DamagedJournal | None:
    try:
        reason = await _journal_damage(disk, data, core)
    except OSError as error:
        return DamagedJournal(core, str(error), is_refused=True)
    return None if reason is None else DamagedJournal(core, reason)


async def _journal_damage(disk: RingDisk, data: Path, core: CoreId) -> str | None:
    """OSError: the disk refuses it."""
    try:
        file = await JournalFile.open(disk, data / "journals", core)
        try:
            scan = await file.scan()
        finally:
            await file.close()
        generation, _partitions = await read_checkpoint(disk, data / "journals", core)
    except FileNotFoundError:
        return "it is missing, and its checkpoint is there"
    except (JournalUnreadableError, CheckpointError) as error:
        return str(error)
    named = file.superblock.checkpoint_generation
    if generation < named:
        return f"it builds on checkpoint {named}, found is {generation or 'none'}"
    return scan.too_new or scan.damage


async def _offline(disk: RingDisk, data: Path, found: Iterable[Found], *, all_are_sound: bool) -> list[OfflineReport]:
    """What the journals that are not sound know of is not known: then no folder is called unknown."""
    reports = []
    for one in found:
        if one.is_open or (one.core < 0 and not all_are_sound):
            continue
        state, path = one.offline.checkpoint, one.listing.path if one.listing else data / "topics" / one.label
        error = one.error
        try:
            salvaged = await list_salvage(disk, data, one.offline.key, path)
        except OSError as refused:
            salvaged, error = [], refused
        files = tuple((str(salvage.path), salvage.first_offset, salvage.end_offset) for salvage in salvaged)
        ends = (state.log_start_offset, state.log_end_offset) if state else (-1, -1)
        reason = one.offline.reason + (f"; its files cannot be read: {error}" if error else "")
        reports.append(OfflineReport(one.label, one.core, reason, *ends, files))
    return reports


async def _damaged(disk: RingDisk, data: Path, found: Iterable[Found]) -> list[DamagedPartition]:
    """Of those that a scrub has named: what a repair of each comes to."""
    reports, identity = [], IdentityFile(data).read()
    for one in found:
        if not one.is_open:
            continue
        error: str | None = None
        lost: tuple[tuple[int, int], ...] = ()
        try:
            lost = (await survey_found(disk, data, one)).lost
        except OSError as refused:
            error = str(refused)
        is_replicated = not one.is_metadata and is_promised(data, one, identity)
        reports.append(DamagedPartition(one.label, one.core, one.offline.reason, lost, error, is_replicated))
    return reports


def _describe_damaged(damaged: Iterable[DamagedPartition]) -> Iterable[str]:
    for one in damaged:
        yield f"{one.partition} is damaged, though not offline (core {one.core}): {one.reason}"
        if one.is_replicated:
            yield "  it is filled again from its other replicas when this node runs and they are in sync"
        elif one.error is not None:
            yield f"  the disk refuses its files, so that nothing of them can be mended: {one.error}"
        elif one.partition == partition_folder_name(METADATA_TOPIC, 0):
            yield "  to rebuild the cluster's metadata from what is left and the topics' folders: --rebuild-metadata"
        else:
            lost = f"cannot be read: {_counted(one.lost)}" if one.lost else "all of its records can be read"
            yield f"  {lost}; to see what a repair does: --partition {one.partition}"


def _describe(offline: list[OfflineReport], journals: list[DamagedJournal]) -> Iterable[str]:
    for journal in journals:
        if journal.is_refused:
            yield f"the journal of core {journal.core} {REFUSED}: {journal.reason}"
            continue
        yield f"the journal of core {journal.core} is damaged: {journal.reason}"
        yield f"  to go on without what is lost: --core {journal.core} --accept-journal-damage"
    for one in offline:
        where = f" (core {one.core}, records [{one.log_start_offset}, {one.log_end_offset}))" if one.core >= 0 else ""
        yield f"{one.partition} is offline{where}: {one.reason}"
        for path, first, end in one.salvaged:
            yield f"  salvaged from the journal: records [{first}, {end}) in {path}"
        if one.partition == partition_folder_name(METADATA_TOPIC, 0):
            yield "  to rebuild the cluster's metadata from what is left and the topics' folders: --rebuild-metadata"
        else:
            yield f"  to see what can be brought back: --partition {one.partition}"
    if len(offline) > 1:
        yield "to see what can be brought back of all of them: --all"


# -- the metadata ------------------------------------------------------------------------------------------------------


async def _rebuild(
    disk: RingDisk, data: Path, directory: DataDirectory, cores: list[CoreId], request: RepairRequest
) -> str:
    count, now_ms = directory.cores or max(len(cores), 1), time.time_ns() // 1_000_000
    if not request.apply:
        remains = await find_remains(disk, data, cores)
        rebuilt = rebuild_image(remains, directory.cluster_id, count, now_ms)
        return _show_rebuilt(rebuilt, remains, request, None)
    recovered = await recover_all(disk, data, lambda: uuid4().bytes)
    try:
        if METADATA_CORE not in recovered:
            recovered[METADATA_CORE] = await recover_core(disk, data, METADATA_CORE, new_journal_id=uuid4().bytes)
        remains = await find_remains(disk, data, sorted(recovered))
        rebuilt = rebuild_image(remains, directory.cluster_id, count, now_ms)
        await _mark_handover(disk, data)  # the next start gives each partition to its core
        aside = await rebuild_metadata(recovered[METADATA_CORE], data, rebuilt, remains)
    except StorageFailedError as error:
        raise StartError(f"{error}; the metadata were not rebuilt") from error
    finally:
        for one in recovered.values():
            await one.close()
    return _show_rebuilt(rebuilt, remains, request, aside)


async def _mark_handover(disk: RingDisk, data: Path) -> None:
    await disk.close(await disk.open(data / "journals" / HANDOVER_FILE, os.O_RDWR | os.O_CREAT))
    await disk.fsync_directory(data / "journals")


def _show_rebuilt(rebuilt: Rebuilt, remains: Remains, request: RepairRequest, aside: Path | None) -> str:
    image = rebuilt.image
    topics: list[dict[str, Any]] = [
        {
            "topic": topic.name, "topic_id": str(topic.topic_id), "partitions": topic.partitions_count,
            "from_folders": topic.topic_id in rebuilt.from_folders, "grown": topic.topic_id in rebuilt.grown,
            "settings": dict(topic.configs),
        }
        for topic in sorted(image.topics.values(), key=lambda topic: topic.name)
    ]  # fmt: skip
    returning = [str(one.path) for one in rebuilt.returning]
    if request.as_json:
        found = {
            "applied": request.apply, "topics": topics, "returning": returning, "left_out": rebuilt.left_out,
            "unreadable_records": remains.unreadable_count, "put_aside": str(aside) if aside else None,
        }  # fmt: skip
        return json.dumps(found)
    does, lines = ("has", []) if request.apply else ("will have", [])
    lines.append(f"the cluster's metadata {does} {len(topics)} topics, from {len(remains.records)} readable records:")
    for one in topics:
        notes = ["made from its folders: settings are the defaults, but for those below"] * bool(one["from_folders"])
        notes += ["more partitions than the records know of"] * bool(one["grown"])
        lines.append(f"  {one['topic']}: {one['partitions']} partitions" + "".join(f"; {note}" for note in notes))
        lines += [f"    {name}={value}" for name, value in one["settings"].items()]
    if remains.unreadable_count:
        lines.append(f"  {remains.unreadable_count} records cannot be read and are left out")
    lines += [f"  comes back from lost+found: {path}" for path in returning]
    lines += [f"  left out, its name is another topic's: {one}" for one in rebuilt.left_out]
    if request.apply:
        lines += [f"the old metadata log was put aside in {aside}"] * (aside is not None)
    else:
        lines.append("nothing was changed; to do it: tpc-broker repair --rebuild-metadata --apply")
    return "\n".join(lines)


# -- repairs -----------------------------------------------------------------------------------------------------------


async def _accept_journal(disk: RingDisk, data: Path, core: CoreId, cores: list[CoreId], request: RepairRequest) -> str:
    if core not in cores:
        there = ", ".join(map(str, cores)) or "none"
        raise StartError(f"{data} has no journal or checkpoint of core {core}; there are {there}")
    found = await _journal_problem(disk, data, core)
    if found is None:
        raise StartError(f"the journal of core {core} is sound; nothing was changed")
    if found.is_refused:
        raise StartError(f"the journal of core {core} {REFUSED}: {found.reason}; nothing was changed")
    problem = found.reason
    if not request.apply:
        return (
            f"the journal of core {core} will be replayed as far as it is there, and a new one begun: {problem}\n"
            "partitions whose segments may hold more are offline then, and come back by --partition\n"
            f"nothing was changed; to do it: --core {core} --accept-journal-damage"
        )
    if is_in_cluster(data):
        raise StartError(
            f"the journal of core {core} has what this node has promised to others, and cannot be cut: {START_EMPTY}; "
            "nothing was changed"
        )
    recovered = await recover_core(disk, data, core, new_journal_id=uuid4().bytes, accept_damage=True)
    try:
        offline = sorted(partition_folder_name(one.topic, one.key.partition) for one in recovered.offline.values())
        report = recovered.report
    finally:
        await recovered.close()
    if request.as_json:
        told = {"core": core, "accepted": problem, "replayed_bytes": report.replayed_bytes, "offline": offline}
        return json.dumps(told)
    lines = [
        f"core {core}: accepted that {problem}",
        f"{report.replayed_bytes} bytes in front of the damage were replayed",
    ]
    return "\n".join(lines + [f"{label} is offline now; see: tpc-broker repair" for label in offline])


async def _bring_back(disk: RingDisk, data: Path, cores: list[CoreId], request: RepairRequest) -> str:
    refused_journals, sound = [], []
    for core in cores:
        problem = await _journal_problem(disk, data, core)
        if problem is None:
            sound.append(core)
        elif problem.is_refused and request.every_partition:
            refused_journals.append(problem)
        elif problem.is_refused:
            raise StartError(f"the journal of core {core} {REFUSED}: {problem.reason}; nothing was changed")
        else:
            hint = f"nothing was changed; see: --core {core}"
            raise StartError(f"the journal of core {core} comes first: {problem.reason}; {hint}")
    asked = await _asked_for(disk, data, sound, request.partition)
    if refused_journals:  # what they know of is not known: then no folder is called unknown
        asked = [one for one in asked if one.core >= 0]
    plans, found, unreadable = await _plan_all(disk, data, asked)
    if request.partition is not None and not plans and not unreadable:
        raise StartError(f"{request.partition} is not offline, and all of its records can be read; nothing was changed")
    if unreadable and not request.every_partition:
        raise StartError(
            f"the disk refuses files of {unreadable[0].label}: {unreadable[0].reason}; nothing was changed"
        )
    unread = _Unread(refused_journals, unreadable)
    if not request.apply:
        return _told(_show_plans(plans, unread, request), unread)
    groups = groups_of(data, found)
    left = [plan for plan in plans if plan.lost and not request.accept_loss]
    if left and not request.every_partition:
        (plan,) = left
        raise StartError(f"{plan.label}: {_ranges(plan.lost)} would be lost; nothing was changed; see: --accept-loss")
    labels_left = {plan.label for plan in left}
    wanted = [one for one in found if one.label not in labels_left]
    reports, refused = await _repair_all(disk, data, sound, wanted, groups, every_partition=request.every_partition)
    unread.partitions.extend(refused)
    open_labels = {one.label for one in found if one.is_open}
    return _told(_show_reports(reports, left, open_labels, unread, request), unread)


def _told(text: str, unread: _Unread) -> str:
    if unread.journals or unread.partitions:
        raise PartlyRepairedError(text)
    return text


async def _plan_all(
    disk: RingDisk, data: Path, found: Sequence[Found]
) -> tuple[list[RepairPlan], list[Found], list[UnreadablePartition]]:
    """What a repair of each comes to, of those that can be read; and the others."""
    plans, readable, unreadable = [], [], []
    for one in found:
        try:
            plan = await survey_found(disk, data, one)
            if one.is_open and one.offline.checkpoint and not costs_records(plan, one.offline.checkpoint):
                continue  # what a scrub has found has been mended, or was not in the records
            plans.append(plan)
            readable.append(one)
        except OSError as error:
            unreadable.append(UnreadablePartition(one.label, str(error)))
    return plans, readable, unreadable


async def _asked_for(disk: RingDisk, data: Path, cores: list[CoreId], partition: str | None) -> list[Found]:
    """All that are offline or named by a scrub, but for the metadata log, those that are only marked and those that
    others fill again; or the one that is named.
    """
    found = await find(disk, data, cores, partition)
    if partition is None:
        identity = IdentityFile(data).read()
        left = [one for one in found if one.is_only_marked and (one.listing is None or is_in_cluster(data))]
        left += [one for one in found if one.is_open and is_promised(data, one, identity)]
        return [one for one in found if not one.is_metadata and one not in left]
    named = sorted((one for one in found if one.label == partition), key=lambda one: one.is_only_marked)
    if not named:
        listings = await list_partitions(disk, data / "topics")
        if partition in {listing.path.name for listing in listings.values()}:
            raise StartError(f"{partition} is not offline; nothing was changed")
        raise StartError(f"there is no partition {partition}; names are as TOPIC-NUMBER")
    if named[0].is_metadata:
        raise StartError(f"{partition} is the cluster's metadata; see --rebuild-metadata; nothing was changed")
    if named[0].listing is None and named[0].is_only_marked:
        await _refuse_unsure(disk, data, named)
    return named[:1]


async def _refuse_unsure(disk: RingDisk, data: Path, named: Sequence[Found]) -> None:
    """StartError where a partition without a folder, of which only a mark tells, has no name that it could come back
    under.
    """
    label, problem = named[0].label, None
    if named[0].offline.topic == str(named[0].offline.key.topic_id):
        problem = "nothing tells the name of its topic"
    elif label in await disk.listdir(data / "topics"):
        problem = "another partition has its name"
    elif len(named) > 1:
        problem = "several were set aside under its name; a start of the broker removes those of deleted topics"
    if problem is not None:
        raise StartError(f"{label} cannot be brought back: {problem}; nothing was changed")


async def _repair_all(  # noqa: PLR0913 - what was found
    disk: RingDisk,
    data: Path,
    cores: list[CoreId],
    found: list[Found],
    groups: Mapping[TopicPartition, BeginGroup],
    *,
    every_partition: bool,
) -> tuple[list[RepairReport], list[UnreadablePartition]]:
    """Where every partition is wanted, one whose own files the disk refuses keeps no other from being repaired, and
    neither does a journal: `cores` are those whose journals can be read.

    OSError of the recovery that comes first is everybody's, whatever file it names: once the journal is begun anew,
    what it had for a partition is gone, so it must not go on without a file that it reads or writes for one.
    """
    reports: list[RepairReport] = []
    unreadable: list[UnreadablePartition] = []
    if not found:
        return reports, unreadable
    open_ones = [one.listing.path for one in found if one.is_open and one.listing is not None]
    if open_ones:
        await take_offline(disk, data, cores, open_ones)
    recovered = await recover_all(disk, data, lambda: uuid4().bytes, cores=cores)
    try:
        states = [state for _core, state in (await checkpoints_of(disk, data, sorted(recovered))).values()]
        listings = await list_partitions(disk, data / "topics", states)
        for one in found:
            core, offline = _offline_of(recovered, one)
            listing, begin_group = listings.get(offline.key), groups.get(offline.key)
            path = listing.path if listing else data / "topics" / one.label
            if offline.checkpoint is None:  # no core's so far: the next start finds out whose it is
                await _mark_handover(disk, data)
            try:
                reports.append(await repair_partition(recovered[core], offline, data, listing, begin_group))
            except (OSError, StorageFailedError) as error:
                if not every_partition or not _is_of(path, error):
                    raise
                unreadable.append(UnreadablePartition(one.label, str(error)))
    finally:
        for core_recovered in recovered.values():
            await core_recovered.close()
    with suppress(OSError):
        forget_damage(data, [report.label for report in reports])
    return reports, unreadable


def _is_of(path: Path, error: OSError | StorageFailedError) -> bool:
    """Whether it is about this partition's folder or a file in it: journals and checkpoints are everybody's."""
    cause = error if isinstance(error, OSError) else error.__cause__
    name = cause.filename if isinstance(cause, OSError) else None
    return isinstance(name, str) and (name == str(path) or name.startswith(f"{path}/"))


def _show_plans(plans: list[RepairPlan], unread: _Unread, request: RepairRequest) -> str:
    if request.as_json:
        shown = [_plan_json(plan) for plan in plans]
        return json.dumps({"partitions": shown, **unread.as_json()} if request.every_partition else shown[0])
    lines = [line for plan in plans for line in _describe_plan(plan)]
    if not request.every_partition:
        does = "accept-loss" if plans[0].lost else "apply"
        return "\n".join([*lines, f"nothing was changed; to do it: --partition {plans[0].label} --{does}"])
    lines += unread.lines()
    if not plans:
        return "\n".join(lines) or "nothing is offline that could be brought back"
    does = "--apply"
    if any(plan.lost for plan in plans):
        does += " for those of which nothing is lost, --all --accept-loss for every one"
    return "\n".join([*lines, f"nothing was changed; to do it: --all {does}"])


def _show_reports(
    reports: list[RepairReport],
    left: list[RepairPlan],
    open_labels: Container[str],
    unread: _Unread,
    request: RepairRequest,
) -> str:
    """`open_labels`: the partitions that are online, though damaged."""
    if request.as_json:
        shown = [asdict(report) for report in reports]
        told = {"partitions": shown, "left": [_plan_json(plan) for plan in left], **unread.as_json()}
        return json.dumps(told if request.every_partition else shown[0])
    lines = [line for report in reports for line in _describe_repair(report)]
    for plan in left:
        stays = "online and damaged" if plan.label in open_labels else "offline"
        lines.append(f"{plan.label} stays {stays}: {_ranges(plan.lost)} would be lost; see: --accept-loss")
    lines += unread.lines()
    return "\n".join(lines) or "nothing is offline that could be brought back"


def _offline_of(recovered: dict[CoreId, RecoveredCore], found: Found) -> tuple[CoreId, OfflinePartition]:
    """The partition as recovery has set it aside; one that no core knows of goes to the first."""
    for core, one in recovered.items():
        if found.offline.key in one.offline:
            return core, one.offline[found.offline.key]
    return min(recovered), found.offline


def _plan_json(plan: RepairPlan) -> dict[str, Any]:
    return {
        "label": plan.label, "log_start_offset": plan.log_start_offset, "log_end_offset": plan.log_end_offset,
        "salvaged_count": plan.salvaged_count, "lost": plan.lost, "replaced": plan.replaced, "applied": False,
        "doubts": [doubt._asdict() for doubt in plan.doubts],
    }  # fmt: skip


def _ranges(ranges: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"offsets [{first}, {end})" for first, end in ranges)


def _counted(ranges: Sequence[tuple[int, int]]) -> str:
    count = sum(end - first for first, end in ranges)
    return f"{_ranges(ranges)} ({count:,} record{'s' * (count != 1)})"


def _describe_plan(plan: RepairPlan) -> Iterable[str]:
    yield f"{plan.label} will be back with records [{plan.log_start_offset}, {plan.log_end_offset})"
    if plan.salvaged_count:
        yield f"  {plan.salvaged_count} of these offsets come from the journal"
    for segment in plan.segments:
        does = "stays as it is" if segment.parts is None else f"is written from {len(segment.parts)} sound stretches"
        yield f"  segment {segment.base_offset}: {does}"
    for doubt in plan.doubts:
        yield f"  segment {doubt.base_offset}, which was cleaned: {doubt.reason}"
    if plan.replaced:
        yield f"  kept in lost+found as they are now: {', '.join(plan.replaced)}"
    yield f"  lost: {_counted(plan.lost)}" if plan.lost else "  nothing is lost"


def _describe_repair(report: RepairReport) -> Iterable[str]:
    yield f"{report.label} is back with records [{report.log_start_offset}, {report.log_end_offset})"
    if report.salvaged_count:
        yield f"  {report.salvaged_count} of these offsets came from the journal's salvage"
    if report.kept is not None:
        yield f"  the files that were replaced are in {report.kept}"
    for doubt in report.doubts:
        yield f"  segment {doubt.base_offset}, which was cleaned: {doubt.reason}"
    yield f"  lost: {_counted(report.lost)}" if report.lost else "  nothing is lost"
