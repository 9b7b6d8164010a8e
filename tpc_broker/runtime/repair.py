"""``tpc-broker repair``: which partitions and journals are offline and why, and bringing them back with what is left.

Listing reads only. A repair first recovers every journal, as a start would, so that nothing older can come over what it
writes; the owner is found at the next start, which hands every partition to its core.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tpc_broker.broker.metadata_rebuild import Rebuilt, Remains, find_remains, rebuild_image, rebuild_metadata
from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.cluster.raft_codec import decode_entry, encode_entry
from tpc_broker.errors import StorageFailedError
from tpc_broker.log.checkpoint import VOTE_NOTE, CheckpointError
from tpc_broker.log.files import HANDOVER_FILE, partition_folder_name
from tpc_broker.log.journal import JournalUnreadableError
from tpc_broker.log.recovery import plan_recovery
from tpc_broker.model import METADATA_TOPIC, CoreId, NodeId
from tpc_broker.raft.items import Marker, Voter, simple
from tpc_broker.raft.journal import MarkerEntry
from tpc_broker.runtime.cluster.identity import START_EMPTY, IdentityFile, is_in_cluster, refuse_of_cluster
from tpc_broker.runtime.cluster.replica_lives import ReplicaLives
from tpc_broker.runtime.cluster.replication import group_of
from tpc_broker.runtime.data_directory import DataDirectory
from tpc_broker.runtime.disk import RingDisk
from tpc_broker.runtime.journal_lock import JournalLock, JournalLockedError
from tpc_broker.runtime.options import StartError
from tpc_broker.runtime.trio_ring import current_ring
from tpc_broker.runtime.trio_ring import run as run_on_ring
from tpc_broker.storage.checkpoint import JournalFile, read_checkpoint
from tpc_broker.storage.folders import list_partitions, lost_marks
from tpc_broker.storage.handover import recover_all, stored_cores
from tpc_broker.storage.lost_and_found import METADATA_PARTITION
from tpc_broker.storage.recovery import JournalDamagedError, OfflinePartition, recover_core
from tpc_broker.storage.repair import (
    RepairPlan,
    RepairReport,
    checkpoints_of,
    journalled_ranges,
    list_salvage,
    repair_partition,
    survey,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tpc_broker.model import TopicPartition
    from tpc_broker.storage.folders import PartitionListing
    from tpc_broker.storage.recovery import RecoveredCore
    from tpc_broker.storage.repair import BeginGroup


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
class UnreadablePartition:
    """One whose files the disk refuses; `reason` names the file."""

    label: str
    reason: str


class PartlyRepairedError(Exception):
    """What to print, where the disk refuses files of some partitions: what was done with the others; those by name."""


@dataclass(frozen=True, slots=True)
class DamagedJournal:
    core: int
    reason: str


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
            return run_on_ring(_run, data, directory, request)
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
            journals.append(DamagedJournal(core, problem))
    offline = await _offline(disk, data, sound, all_are_sound=not journals)
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
        generation, _partitions = await read_checkpoint(disk, data / "journals", core)
    except FileNotFoundError:
        return "it is missing, and its checkpoint is there"
    except (JournalUnreadableError, CheckpointError) as error:
        return str(error)
    named = file.superblock.checkpoint_generation
    if generation < named:
        return f"it builds on checkpoint {named}, found is {generation or 'none'}"
    return scan.too_new or scan.damage


@dataclass(frozen=True, slots=True)
class _Found:
    """A partition that the next start would not open, with all that a repair of it starts from."""

    core: int
    offline: OfflinePartition
    listing: PartitionListing | None
    journalled: tuple[tuple[int, int], ...]
    """As of `journalled_ranges`."""
    notes: Mapping[int, bytes] = field(default_factory=dict)
    """What its replica knows of its terms, as far as checkpoint and journal have it."""
    error: OSError | None = None
    """Its files cannot be read, so it is not known what the journal has of it."""
    is_only_marked: bool = False
    """Nothing but a mark beside the journals tells of it, and its folder, if there is one, holds no records. It may
    have been deleted since.
    """

    @property
    def label(self) -> str:
        return partition_folder_name(self.offline.topic, self.offline.key.partition)


async def _find(disk: RingDisk, data: Path, cores: list[CoreId]) -> list[_Found]:
    """What each core's recovery would set aside, and folders with records that no core knows of. Read only."""
    known = await checkpoints_of(disk, data, cores)
    listings = await list_partitions(disk, data / "topics", [state for _core, state in known.values()])
    folders = {key: listing.folder for key, listing in listings.items()}
    found, seen, marks = [], set(known), await lost_marks(disk, data / "journals")
    for core in cores:
        own = {key: state for key, (holder, state) in known.items() if holder == core}
        file = await JournalFile.open(disk, data / "journals", core)
        try:
            entries = (await file.scan()).entries
            for key, plan in plan_recovery(folders, own, entries).partitions.items():
                seen.add(key)
                listing = listings.get(key)
                reason = (listing.offline if listing else None) or plan.offline
                if not plan.is_released and key in marks and marks[key].counts_for(listing):
                    reason = reason or marks[key].reason
                if reason is None or plan.deleted:
                    continue
                path = listing.path if listing else data / "topics" / plan.label
                offline, error = OfflinePartition(plan.start.topic, key, reason, own.get(key)), None
                try:
                    ranges = await journalled_ranges(file, path, [one for one in entries if one.partition == key])
                except OSError as refused:
                    ranges, error = (), refused
                found.append(_Found(core, offline, listing, ranges, plan.notes, error))
        finally:
            await file.close()
    for key, listing in listings.items():
        is_marked = key in marks and marks[key].counts_for(listing)
        reason = listing.offline or (marks[key].reason if is_marked else None)
        if key not in seen and (listing.holds_records or reason is not None):
            is_only_marked = listing.offline is None and not listing.holds_records
            reason = reason or "its folder holds records that neither a checkpoint nor a journal knows of"
            offline = OfflinePartition(listing.folder.topic, key, reason)
            found.append(_Found(-1, offline, listing, (), is_only_marked=is_only_marked))
    for key in marks.keys() - seen - listings.keys() - {METADATA_PARTITION}:
        offline = OfflinePartition(marks[key].topic or str(key.topic_id), key, marks[key].reason)
        found.append(_Found(-1, offline, None, (), is_only_marked=True))
    if METADATA_PARTITION not in seen and METADATA_PARTITION not in listings and listings:
        missing = OfflinePartition(METADATA_TOPIC, METADATA_PARTITION, "its folder is missing")
        found.append(_Found(-1, missing, None, ()))
    return sorted(found, key=lambda one: one.label)


async def _offline(disk: RingDisk, data: Path, cores: list[CoreId], *, all_are_sound: bool) -> list[OfflineReport]:
    """What the journals that are not sound know of is not known: then no folder is called unknown."""
    reports = []
    for one in await _find(disk, data, cores):
        if one.core < 0 and not all_are_sound:
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
    if METADATA_CORE not in recovered:
        recovered[METADATA_CORE] = await recover_core(disk, data, METADATA_CORE, new_journal_id=uuid4().bytes)
    try:
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
    problem = await _journal_problem(disk, data, core)
    if problem is None:
        raise StartError(f"the journal of core {core} is sound; nothing was changed")
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
        found = {"core": core, "accepted": problem, "replayed_bytes": report.replayed_bytes, "offline": offline}
        return json.dumps(found)
    lines = [
        f"core {core}: accepted that {problem}",
        f"{report.replayed_bytes} bytes in front of the damage were replayed",
    ]
    return "\n".join(lines + [f"{label} is offline now; see: tpc-broker repair" for label in offline])


async def _bring_back(disk: RingDisk, data: Path, cores: list[CoreId], request: RepairRequest) -> str:
    for core in cores:
        problem = await _journal_problem(disk, data, core)
        if problem is not None:
            hint = f"nothing was changed; see: --core {core}"
            raise StartError(f"the journal of core {core} comes first: {problem}; {hint}")
    plans, found, unreadable = await _plan_all(disk, data, await _asked_for(disk, data, cores, request.partition))
    if unreadable and not request.every_partition:
        raise StartError(
            f"the disk refuses files of {unreadable[0].label}: {unreadable[0].reason}; nothing was changed"
        )
    if not request.apply:
        return _told(_show_plans(plans, unreadable, request), unreadable)
    groups = _groups_of(data, found)
    left = [plan for plan in plans if plan.lost and not request.accept_loss]
    if left and not request.every_partition:
        (plan,) = left
        raise StartError(f"{plan.label}: {_ranges(plan.lost)} would be lost; nothing was changed; see: --accept-loss")
    labels_left = {plan.label for plan in left}
    wanted = [one for one in found if one.label not in labels_left]
    reports, refused = await _repair_all(disk, data, wanted, groups, every_partition=request.every_partition)
    unreadable += refused
    return _told(_show_reports(reports, left, unreadable, request), unreadable)


def _told(text: str, unreadable: Sequence[UnreadablePartition]) -> str:
    if unreadable:
        raise PartlyRepairedError(text)
    return text


async def _plan_all(
    disk: RingDisk, data: Path, found: Sequence[_Found]
) -> tuple[list[RepairPlan], list[_Found], list[UnreadablePartition]]:
    """What a repair of each comes to, of those that can be read; and the others."""
    plans, readable, unreadable = [], [], []
    for one in found:
        try:
            if one.error is not None:
                raise one.error
            plans.append(await survey(disk, data, one.offline, one.listing, one.journalled))
            readable.append(one)
        except OSError as error:
            unreadable.append(UnreadablePartition(one.label, str(error)))
    return plans, readable, unreadable


def _groups_of(data: Path, found: Sequence[_Found]) -> dict[TopicPartition, BeginGroup]:
    """How the groups begin anew of those that have one, in a cluster. StartError where others vote too: a replica that
    has lost something must not vote again as who it was.
    """
    identity = IdentityFile(data).read()
    if identity is None or identity.founding is None:
        return {}
    groups: dict[TopicPartition, BeginGroup] = {}
    for one in found:
        voter = _votes_alone(data, one, identity.node, identity.incarnation)
        if voter is not None:
            groups[one.offline.key] = partial(_first_note, one.offline.key, voter)
        elif one.offline.checkpoint is None or one.notes:
            raise StartError(
                f"{one.label} may have replicas on other nodes, which this one has promised what is lost: "
                f"{START_EMPTY}; nothing was changed"
            )
    return groups


def _votes_alone(data: Path, found: _Found, node: int, incarnation: int) -> Voter | None:
    """The replica of this node, where by its latest term nobody else votes."""
    group, terms = group_of(found.offline.key), [term for term in found.notes if term != VOTE_NOTE]
    if found.offline.checkpoint is None or not terms:
        return None
    me = Voter(NodeId(node), incarnation + ReplicaLives(data, found.core).of(group))
    entry = decode_entry(group, found.notes[max(terms)]).entry
    return me if isinstance(entry, MarkerEntry) and entry.marker.config == simple([me]) else None


def _first_note(key: TopicPartition, voter: Voter, term: int, offset: int) -> bytes:
    return encode_entry(MarkerEntry(group_of(key), Marker(term, offset, simple([voter]))))


async def _asked_for(disk: RingDisk, data: Path, cores: list[CoreId], partition: str | None) -> list[_Found]:
    """All that are offline, but for the metadata log and those that are only marked, or the one that is named."""
    found = await _find(disk, data, cores)
    if partition is None:
        left = [one for one in found if one.is_only_marked and (one.listing is None or is_in_cluster(data))]
        return [one for one in found if one.offline.key != METADATA_PARTITION and one not in left]
    named = sorted((one for one in found if one.label == partition), key=lambda one: one.is_only_marked)
    if not named:
        listings = await list_partitions(disk, data / "topics")
        if partition in {listing.path.name for listing in listings.values()}:
            raise StartError(f"{partition} is not offline; nothing was changed")
        raise StartError(f"there is no partition {partition}; names are as TOPIC-NUMBER")
    if named[0].offline.key == METADATA_PARTITION:
        raise StartError(f"{partition} is the cluster's metadata; see --rebuild-metadata; nothing was changed")
    if named[0].listing is None and named[0].is_only_marked:
        await _refuse_unsure(disk, data, named)
    return named[:1]


async def _refuse_unsure(disk: RingDisk, data: Path, named: Sequence[_Found]) -> None:
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


async def _repair_all(
    disk: RingDisk,
    data: Path,
    found: list[_Found],
    groups: Mapping[TopicPartition, BeginGroup],
    *,
    every_partition: bool,
) -> tuple[list[RepairReport], list[UnreadablePartition]]:
    """Where every partition is wanted, one whose own files the disk refuses keeps no other from being repaired.

    OSError of the recovery that comes first is everybody's, whatever file it names: once the journal is begun anew,
    what it had for a partition is gone, so it must not go on without a file that it reads or writes for one.
    """
    reports: list[RepairReport] = []
    unreadable: list[UnreadablePartition] = []
    if not found:
        return reports, unreadable
    recovered = await recover_all(disk, data, lambda: uuid4().bytes)
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
    return reports, unreadable


def _is_of(path: Path, error: OSError | StorageFailedError) -> bool:
    """Whether it is about this partition's folder or a file in it: journals and checkpoints are everybody's."""
    cause = error if isinstance(error, OSError) else error.__cause__
    name = cause.filename if isinstance(cause, OSError) else None
    return isinstance(name, str) and (name == str(path) or name.startswith(f"{path}/"))


def _show_plans(plans: list[RepairPlan], unreadable: list[UnreadablePartition], request: RepairRequest) -> str:
    if request.as_json:
        shown = [_plan_json(plan) for plan in plans]
        others = [asdict(one) for one in unreadable]
        return json.dumps({"partitions": shown, "unreadable": others} if request.every_partition else shown[0])
    lines = [line for plan in plans for line in _describe_plan(plan)]
    if not request.every_partition:
        does = "accept-loss" if plans[0].lost else "apply"
        return "\n".join([*lines, f"nothing was changed; to do it: --partition {plans[0].label} --{does}"])
    lines += _describe_unreadable(unreadable)
    if not plans:
        return "\n".join(lines) or "nothing is offline that could be brought back"
    does = "--apply"
    if any(plan.lost for plan in plans):
        does += " for those of which nothing is lost, --all --accept-loss for every one"
    return "\n".join([*lines, f"nothing was changed; to do it: --all {does}"])


def _show_reports(
    reports: list[RepairReport],
    left: list[RepairPlan],
    unreadable: list[UnreadablePartition],
    request: RepairRequest,
) -> str:
    if request.as_json:
        shown = [asdict(report) for report in reports]
        stay, others = [_plan_json(plan) for plan in left], [asdict(one) for one in unreadable]
        told = {"partitions": shown, "left": stay, "unreadable": others}
        return json.dumps(told if request.every_partition else shown[0])
    lines = [line for report in reports for line in _describe_repair(report)]
    lines += [f"{plan.label} stays offline: {_ranges(plan.lost)} would be lost; see: --accept-loss" for plan in left]
    lines += _describe_unreadable(unreadable)
    return "\n".join(lines) or "nothing is offline that could be brought back"


def _offline_of(recovered: dict[CoreId, RecoveredCore], found: _Found) -> tuple[CoreId, OfflinePartition]:
    """The partition as recovery has set it aside; one that no core knows of goes to the first."""
    for core, one in recovered.items():
        if found.offline.key in one.offline:
            return core, one.offline[found.offline.key]
    return min(recovered), found.offline


def _plan_json(plan: RepairPlan) -> dict[str, Any]:
    return {
        "label": plan.label, "log_start_offset": plan.log_start_offset, "log_end_offset": plan.log_end_offset,
        "salvaged_count": plan.salvaged_count, "lost": plan.lost, "replaced": plan.replaced, "applied": False,
    }  # fmt: skip


def _ranges(ranges: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"offsets [{first}, {end})" for first, end in ranges)


def _describe_plan(plan: RepairPlan) -> Iterable[str]:
    yield f"{plan.label} will be back with records [{plan.log_start_offset}, {plan.log_end_offset})"
    if plan.salvaged_count:
        yield f"  {plan.salvaged_count} of these offsets come from the journal"
    for segment in plan.segments:
        does = "stays as it is" if segment.parts is None else f"is written from {len(segment.parts)} sound stretches"
        yield f"  segment {segment.base_offset}: {does}"
    if plan.replaced:
        yield f"  kept in lost+found as they are now: {', '.join(plan.replaced)}"
    yield f"  lost: {_ranges(plan.lost)}" if plan.lost else "  nothing is lost"


def _describe_unreadable(unreadable: Iterable[UnreadablePartition]) -> Iterable[str]:
    return (f"{one.label} stays offline, the disk refuses its files: {one.reason}" for one in unreadable)


def _describe_repair(report: RepairReport) -> Iterable[str]:
    yield f"{report.label} is back with records [{report.log_start_offset}, {report.log_end_offset})"
    if report.salvaged_count:
        yield f"  {report.salvaged_count} of these offsets came from the journal's salvage"
    if report.kept is not None:
        yield f"  the files that were replaced are in {report.kept}"
    yield f"  lost: {_ranges(report.lost)}" if report.lost else "  nothing is lost"
