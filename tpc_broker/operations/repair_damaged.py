"""Partitions that a start opens though something in their segments is damaged: what a scrub named, and a way out.

A start reads no old records, so damage in a sealed segment takes nothing offline; only who reads there meets it. Such a
partition is first set aside like any other: all journals are replayed, so that its files have all that there is, and it
is marked offline, durably. From there on it is repaired as one that is offline, also by another run when this one is
cut short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from tpc_broker.log.files import LOG_SUFFIX, parse_segment_file_name
from tpc_broker.storage.recovery.handover import recover_all
from tpc_broker.storage.recovery.scrub_report import read_report, write_report
from tpc_broker.storage.segments.files import replace_file
from tpc_broker.storage.segments.folders import OFFLINE_FILE, PartitionListing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.model import CoreId, TopicPartition
    from tpc_broker.storage.ports import Disk
    from tpc_broker.storage.recovery.repair import RepairPlan
    from tpc_broker.storage.recovery.scrub_report import Damage

MARK = b"it opens, but records in its segments are damaged, and a repair of them has begun"


def named_by_scrub(data: Path) -> dict[str, list[Damage]]:
    """By TOPIC-N, what the last scrub has found in segments."""
    report = read_report(data)
    found: dict[str, list[Damage]] = {}
    for damage in report.damaged if report is not None else ():
        if damage.offset >= 0:
            found.setdefault(damage.partition, []).append(damage)
    return found


def reason_of(damages: Iterable[Damage], key: TopicPartition) -> str | None:
    """What a scrub found in a partition's segments, in one line; None: what it found was another topic's."""
    own = [one for one in damages if one.topic_id in ("", key.topic_id.hex)]
    if not own:
        return None
    more = f", and {len(own) - 1} more" if len(own) > 1 else ""
    return f"a scrub found {own[0].file} at {own[0].position:,}: {own[0].reason}{more}"


def costs_records(plan: RepairPlan, state: PartitionCheckpoint) -> bool:
    """Whether a repair has anything to do in what the checkpoint has of a partition. What lies behind that in the
    active segment, the next start takes from the journal anyway.
    """
    replaced = [parse_segment_file_name(name) for name in plan.replaced]
    is_sealed_replaced = any(one and one[1] == LOG_SUFFIX and one[0] < state.segment_base for one in replaced)
    return bool(plan.lost) or is_sealed_replaced


async def take_offline(disk: Disk, data: Path, cores: Collection[CoreId], paths: Iterable[Path]) -> None:
    """Mark partitions of these cores, whose folders these are, with all their journals replayed into the segments.
    OSError.
    """
    recovered = await recover_all(disk, data, lambda: uuid4().bytes, cores=cores)
    for one in recovered.values():
        await one.close()
    for path in paths:
        listing = await PartitionListing.read(disk, path)
        if listing is not None and listing.offline is None:
            await replace_file(disk, path / OFFLINE_FILE, MARK)


def forget_damage(data: Path, labels: Iterable[str]) -> None:
    """What a scrub has found in partitions that have been repaired is told no more. OSError: it is, until the next."""
    report, gone = read_report(data), set(labels)
    if report is None:
        return
    left = [one for one in report.damaged if one.partition not in gone]
    if len(left) < len(report.damaged):
        report.keep(left)
        write_report(data, report)
