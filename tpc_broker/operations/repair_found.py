"""What there is to repair in a data directory, and whether this node may: what recoveries would set aside, and what is
damaged though it opens. Reads only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tpc_broker.cluster.raft_codec import decode_entry, encode_entry
from tpc_broker.log.checkpoint import VOTE_NOTE
from tpc_broker.log.files import partition_folder_name
from tpc_broker.log.recovery import plan_recovery
from tpc_broker.model import METADATA_TOPIC, CoreId, NodeId, Offset
from tpc_broker.node.membership.identity import START_EMPTY, IdentityFile
from tpc_broker.node.replicas.core_replicas import group_of
from tpc_broker.node.replicas.replica_lives import ReplicaLives
from tpc_broker.operations.repair_damaged import named_by_scrub, reason_of
from tpc_broker.options import StartError
from tpc_broker.raft.items import Marker, Voter, simple
from tpc_broker.raft.journal import MarkerEntry
from tpc_broker.storage.recovery.checkpoint import JournalFile
from tpc_broker.storage.recovery.lost_and_found import METADATA_PARTITION
from tpc_broker.storage.recovery.recovery import OfflinePartition
from tpc_broker.storage.recovery.repair import checkpoints_of, journalled_ranges, survey
from tpc_broker.storage.segments.folders import list_partitions, lost_marks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tpc_broker.engine.disk import RingDisk
    from tpc_broker.model import TopicPartition
    from tpc_broker.node.membership.identity import NodeIdentity
    from tpc_broker.storage.recovery.repair import BeginGroup, RepairPlan
    from tpc_broker.storage.segments.folders import LostMark, PartitionListing

ASKED_FOR: Final = "whoever repairs takes it for damaged"


@dataclass(frozen=True, slots=True)
class Found:
    """A partition that the next start would not open, or that is damaged, with all that a repair of it starts from."""

    core: int
    offline: OfflinePartition
    listing: PartitionListing | None
    journalled: tuple[tuple[int, int], ...]
    """As of `journalled_ranges`."""
    notes: Mapping[int, bytes] = field(default_factory=dict)
    """What its replica knows of its terms, as far as checkpoint and journal have it."""
    error: OSError | None = None
    """Its files cannot be read, so it is not known what the journal has of it."""
    is_open: bool = False
    """The next start opens it all the same, and a scrub or whoever asks for its repair takes it for damaged."""
    end_offset: int = -1
    """Where the log of an open one ends when the next start has opened it: what lies behind that in its files was never
    acknowledged.
    """
    is_only_marked: bool = False
    """Nothing but a mark beside the journals tells of it, and its folder, if there is one, holds no records. It may
    have been deleted since.
    """

    @property
    def label(self) -> str:
        return partition_folder_name(self.offline.topic, self.offline.key.partition)

    @property
    def is_metadata(self) -> bool:
        return self.offline.key == METADATA_PARTITION


async def find(disk: RingDisk, data: Path, cores: list[CoreId], asked: str | None = None) -> list[Found]:
    """What each core's recovery would set aside, and folders with records that no core knows of; what a scrub has found
    damaged, and the partition `asked` for, whatever is known of it. Read only.
    """
    scrubbed = named_by_scrub(data)
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
                is_open = reason is None and plan.in_checkpoint and listing is not None and not plan.is_released
                state = replace(plan.start, log_start_offset=Offset(plan.log_start_offset)) if is_open else own.get(key)
                end = plan.log_end_offset if is_open else -1
                if is_open:
                    reason = reason_of(scrubbed.get(plan.label, ()), key) or (
                        ASKED_FOR if plan.label == asked else None
                    )
                if reason is None or plan.deleted:
                    continue
                path = listing.path if listing else data / "topics" / plan.label
                offline, error = OfflinePartition(plan.start.topic, key, reason, state), None
                try:
                    ranges = await journalled_ranges(file, path, [one for one in entries if one.partition == key])
                except OSError as refused:
                    ranges, error = (), refused
                found.append(Found(core, offline, listing, ranges, plan.notes, error, is_open=is_open, end_offset=end))
        finally:
            await file.close()
    return sorted([*found, *_of_no_core(listings, marks, seen)], key=lambda one: one.label)


async def survey_found(disk: RingDisk, data: Path, found: Found) -> RepairPlan:
    """`survey` of it. OSError: the disk refuses what is to be read."""
    if found.error is not None:
        raise found.error
    plan = await survey(disk, data, found.offline, found.listing, found.journalled)
    if not found.is_open:
        return plan
    end = found.end_offset
    return replace(plan, lost=tuple((first, min(behind, end)) for first, behind in plan.lost if first < end))


def _of_no_core(
    listings: Mapping[TopicPartition, PartitionListing],
    marks: dict[TopicPartition, LostMark],
    seen: set[TopicPartition],
) -> Iterable[Found]:
    """What neither a checkpoint nor a journal tells of."""
    for key, listing in listings.items():
        is_marked = key in marks and marks[key].counts_for(listing)
        reason = listing.offline or (marks[key].reason if is_marked else None)
        if key not in seen and (listing.holds_records or reason is not None):
            is_only_marked = listing.offline is None and not listing.holds_records
            reason = reason or "its folder holds records that neither a checkpoint nor a journal knows of"
            offline = OfflinePartition(listing.folder.topic, key, reason)
            yield Found(-1, offline, listing, (), is_only_marked=is_only_marked)
    for key in marks.keys() - seen - listings.keys() - {METADATA_PARTITION}:
        offline = OfflinePartition(marks[key].topic or str(key.topic_id), key, marks[key].reason)
        yield Found(-1, offline, None, (), is_only_marked=True)
    if METADATA_PARTITION not in seen and METADATA_PARTITION not in listings and listings:
        missing = OfflinePartition(METADATA_TOPIC, METADATA_PARTITION, "its folder is missing")
        yield Found(-1, missing, None, ())


def groups_of(data: Path, found: Sequence[Found]) -> dict[TopicPartition, BeginGroup]:
    """How the groups begin anew of those that have one, in a cluster. StartError where others vote too: a replica that
    has lost something must not vote again as who it was.
    """
    identity = IdentityFile(data).read()
    if identity is None or identity.founding is None:
        return {}
    groups: dict[TopicPartition, BeginGroup] = {}
    for one in found:
        if is_promised(data, one, identity):
            does = START_EMPTY if not one.is_open else "start this node, and it is filled again from them"
            raise StartError(
                f"{one.label} may have replicas on other nodes, which this one has promised what is lost: "
                f"{does}; nothing was changed"
            )
        voter = _votes_alone(data, one, identity.node, identity.incarnation)
        if voter is not None:
            groups[one.offline.key] = partial(_first_note, one.offline.key, voter)
    return groups


def is_promised(data: Path, found: Found, identity: NodeIdentity | None) -> bool:
    """Whether others may vote too in the partition's group, so that this node's replica must not vote again with less
    than what it had.
    """
    if identity is None or identity.founding is None:
        return False
    voter = _votes_alone(data, found, identity.node, identity.incarnation)
    return voter is None and (found.offline.checkpoint is None or bool(found.notes))


def _votes_alone(data: Path, found: Found, node: int, incarnation: int) -> Voter | None:
    """The replica of this node, where by its latest term nobody else votes."""
    group, terms = group_of(found.offline.key), [term for term in found.notes if term != VOTE_NOTE]
    if found.offline.checkpoint is None or not terms:
        return None
    me = Voter(NodeId(node), incarnation + ReplicaLives(data, found.core).of(group))
    entry = decode_entry(group, found.notes[max(terms)]).entry
    return me if isinstance(entry, MarkerEntry) and entry.marker.config == simple([me]) else None


def _first_note(key: TopicPartition, voter: Voter, term: int, offset: int) -> bytes:
    return encode_entry(MarkerEntry(group_of(key), Marker(term, offset, simple([voter]))))
