"""What a scrub found, as a file in the data directory: for `tpc-broker status`, the metrics, and the next scrub.

``scrub.json`` is replaced whole while a scrub goes on. The broker only reads it, when somebody asks; it is a report and
no part of the data, so it is not synced, and one that cannot be read counts as none.

A core that has rebuilt a replica from another node's says so in ``scrub-rebuilt-CORE.json``: what was found in its
files before is damaged no more, and nobody is to be alarmed by it until the next scrub.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tpc_broker import limits
from tpc_broker.log.files import TEMPORARY_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

REPORT_FILE: Final = "scrub.json"
REBUILT_FILE: Final = "scrub-rebuilt-{}.json"
RUNNING, FINISHED, INTERRUPTED = "running", "finished", "interrupted"


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a file that holds no sound batch where one should be, or a file that is missing."""

    partition: str
    """TOPIC-N."""
    file: str
    """Below the data directory."""
    position: int
    """In the file, in bytes; 0 for one that is missing. Of a gap: the size of the segment in front of it, or 0."""
    damaged_bytes: int
    offset: int
    """The first record's that cannot be read."""
    end_offset: int
    """The next one's that can; -1: not known."""
    reason: str
    topic_id: str = ""
    """Hexadecimal: the same name may be another topic's by now. Empty: of a file that is no partition's, or of an
    earlier release.
    """
    found_ms: int = field(default=0, compare=False)
    """By the wall clock; 0: of an earlier release."""

    @property
    def is_gap(self) -> bool:
        """No segment has the records [offset, end_offset); the file would be the first of theirs."""
        return self.damaged_bytes == 0 and self.end_offset >= 0

    def __str__(self) -> str:
        if self.offset < 0:
            return f"{self.file}: {self.reason}"
        records = f"from offset {self.offset}" if self.end_offset < 0 else f"[{self.offset}, {self.end_offset})"
        place = "" if self.is_gap else f" at {self.position:,}"
        return f"{self.partition} {records}: {self.file}{place}: {self.reason}"


@dataclass(slots=True)
class ScrubReport:
    """Of the last scrub, or of the one that is under way."""

    state: str = RUNNING
    pid: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    total_bytes: int = 0
    checked_bytes: int = 0
    checked_files: int = 0
    damaged_count: int = 0
    """Stretches; those that an earlier scrub found and that this one has not come to yet are among them."""
    damaged: list[Damage] = field(default_factory=list)
    """As `told` chooses them."""
    damaged_by_partition: dict[str, int] = field(default_factory=dict)
    """How many stretches each of those partitions has that are named."""
    notes: list[str] = field(default_factory=list)
    """What is not damage and should be known."""

    def tell(self, found: Sequence[Damage], counts: Mapping[str, int]) -> None:
        """What is damaged: of what was `found` as much as can be named, and how many stretches by partition."""
        self.damaged = told(found)
        self.damaged_by_partition = {one.partition: counts[one.partition] for one in self.damaged}
        self.damaged_count = sum(counts.values())

    def keep(self, left: Sequence[Damage]) -> None:
        """Of what is named only this is damaged still. Of a partition of which nothing is, what was not named goes,
        too.
        """
        named = Counter(one.partition for one in self.damaged)
        still = Counter(one.partition for one in left)
        for partition, count in named.items():
            counted = self.damaged_by_partition.get(partition, count)
            kept = counted - count + still[partition] if still[partition] else 0
            self.damaged_count -= counted - kept
            if not still[partition]:
                self.damaged_by_partition.pop(partition, None)
            elif partition in self.damaged_by_partition:
                self.damaged_by_partition[partition] = kept
        self.damaged = list(left)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def told(found: Iterable[Damage]) -> list[Damage]:
    """The first `limits.SCRUB_DAMAGES_TOLD_MAX` and, behind these, the first of each partition that is not among them:
    whoever is to mend them all has to know of each.
    """
    chosen: list[Damage] = []
    partitions: set[str] = set()
    for one in found:
        is_first = one.partition not in partitions and len(partitions) < limits.SCRUB_PARTITIONS_TOLD_MAX
        if is_first or len(chosen) < limits.SCRUB_DAMAGES_TOLD_MAX:
            chosen.append(one)
            partitions.add(one.partition)
    return chosen


def read_report(data: Path) -> ScrubReport | None:
    """None: there is none, or none that can be read."""
    try:
        with (data / REPORT_FILE).open("rb") as file:
            text = file.read(limits.SCRUB_REPORT_BYTES_MAX + 1)
        if len(text) > limits.SCRUB_REPORT_BYTES_MAX:
            return None
        report = report_of(json.loads(text))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    rebuilt = _all_rebuilt(data)
    still = [one for one in report.damaged if rebuilt.get(one.partition, 0) <= (one.found_ms or report.started_ms)]
    report.keep(still)
    return report


def note_rebuilt(data: Path, core: int, partition: str, at_ms: int) -> None:
    """A replica of this core, TOPIC-N, is another one since `at_ms` (wall clock), without the damage. OSError."""
    path = data / REBUILT_FILE.format(core)
    rebuilt = _rebuilt(path)
    rebuilt.pop(partition, None)
    rebuilt[partition] = at_ms
    newest = list(rebuilt.items())[-limits.SCRUB_PARTITIONS_TOLD_MAX :]
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    temporary.write_text(json.dumps(dict(newest)))
    temporary.replace(path)


def _all_rebuilt(data: Path) -> dict[str, int]:
    """When, by partition, in ms."""
    found: dict[str, int] = {}
    for path in data.glob(REBUILT_FILE.format("*")):
        found |= {name: max(at_ms, found.get(name, 0)) for name, at_ms in _rebuilt(path).items()}
    return found


def _rebuilt(path: Path) -> dict[str, int]:
    with suppress(OSError, ValueError, TypeError, AttributeError):
        text = path.read_bytes()[: limits.SCRUB_REPORT_BYTES_MAX + 1]
        return {str(name): int(at_ms) for name, at_ms in json.loads(text).items()}
    return {}


def report_of(fields: dict[str, Any]) -> ScrubReport:
    """Of what `as_json` gave. TypeError, KeyError: of something else."""
    return ScrubReport(**{**fields, "damaged": [Damage(**one) for one in fields["damaged"]]})


def write_report(data: Path, report: ScrubReport) -> None:
    """OSError: a full disk, say; the scrub itself writes nothing else."""
    temporary = data / (REPORT_FILE + TEMPORARY_SUFFIX)
    temporary.write_text(json.dumps(report.as_json()))
    temporary.replace(data / REPORT_FILE)


def report_lines(report: ScrubReport) -> list[str]:
    """For people: one line about the scrub, then one for each damage."""
    checked = f"{report.checked_bytes / 2**20:,.1f} MiB in {report.checked_files:,} segments checked"
    if report.state == RUNNING:
        checked = f"under way, {report.checked_bytes / max(1, report.total_bytes):.0%} checked"
    elif report.state == INTERRUPTED:
        checked += f" of {report.total_bytes / 2**20:,.1f} MiB, then interrupted"
    found = "no damage found" if not report.damaged_count else f"{report.damaged_count:,} DAMAGED"
    shown = report.damaged[: limits.SCRUB_DAMAGES_TOLD_MAX]
    lines = [f"{checked}; {found}", *(f"  {one}" for one in shown)]
    if report.damaged_count > len(shown):
        lines.append(f"  … and {report.damaged_count - len(shown):,} more")
    return [*lines, *(f"  note: {note}" for note in report.notes)]
