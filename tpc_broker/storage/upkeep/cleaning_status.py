"""What is known of the cleaning of a core's partitions, for people: status, metrics, `tpc topic describe` and the log.

Whoever chooses and runs cleanings tells it here (`CleaningBook`), in the order `measured`, `began`, then `cleaned` or
`failed`, and `given_up` when a partition is not tried again for a day; whoever shows it reads. Totals are since the
core's process began. Nothing here decides anything.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpc_broker.log.cleaning_job import CleaningReport
    from tpc_broker.model import TopicPartition

log = logging.getLogger(__name__)

NEVER_MS: Final = -1
UNCLEANABLE_TOLD_EVERY_MS: Final = 24 * 60 * 60 * 1000
LACK_TOLD_AFTER: Final = 2
_MEBIBYTE: Final = 1 << 20


@dataclass(slots=True)
class CleaningStatus:
    """Of one partition that is to be compacted."""

    label: str
    """`topic-partition`."""
    dirty_bytes: int = 0
    """Of segments that were written since they were last cleaned, the active one left out, as Kafka counts."""
    clean_bytes: int = 0
    first_dirty_offset: int = 0
    last_cleaned_ms: int = NEVER_MS
    """By the wall clock, when a cleaning came to its end; of one before the core's process began, when its last seal
    was written here. -1: none did.
    """
    bytes_saved: int = 0
    """What cleanings have left less; they may have left more."""
    records_removed: int = 0
    cleanings_count: int = 0
    batches_unreadable: int = 0
    """As of the last cleaning: they are in the log, and are left as they are."""
    uncleanable: str | None = None
    """Why it is not tried again for a day; None: it is cleaned when its turn comes."""
    is_cleaning: bool = False
    no_cleaner: str | None = None
    """Why nothing of this core is cleaned now; None: cleaners come when there is something for them."""

    @property
    def dirty_ratio(self) -> float:
        """0.0 to 1.0; of an empty log 0.0."""
        total = self.dirty_bytes + self.clean_bytes
        return self.dirty_bytes / total if total else 0.0

    def as_json(self) -> dict[str, Any]:
        """With `dirty_ratio`, and without the label."""
        told = asdict(self)
        del told["label"]
        return {"dirty_ratio": round(self.dirty_ratio, 4), **told}


@dataclass(slots=True)
class CleaningTotals:
    """Of a core. They only grow, whatever becomes of the partitions."""

    cleanings: int = 0
    cleanings_failed: int = 0
    cleaner_away: int = 0
    """Times that a cleaning was ended or not begun for want of a cleaner."""
    cleaning_ms: int = 0
    cleaned_bytes_read: int = 0
    cleaned_bytes_written: int = 0
    cleaned_bytes_saved: int = 0
    cleaned_records_read: int = 0
    cleaned_records_removed: int = 0
    swaps: int = 0
    """Times that cleaned segments took the place of others."""
    swaps_locked_us: int = 0
    """How long they held the partition's lock. Cuts and retention wait for the whole swap, what is written does not."""
    swap_locked_us_max: int = 0


class CleaningBook:
    """Of one core."""

    def __init__(self) -> None:
        self.totals = CleaningTotals()
        self._partitions: dict[TopicPartition, CleaningStatus] = {}
        self._told_ms: dict[TopicPartition, int] = {}
        self._in_vain_count = 0
        self._lack_told_ms: int | None = None
        self.no_cleaner: str | None = None

    def status_of(self, key: TopicPartition) -> CleaningStatus | None:
        """None: it is not to be compacted, or was not looked at yet."""
        return self._partitions.get(key)

    @property
    def partitions(self) -> Mapping[TopicPartition, CleaningStatus]:
        return self._partitions

    # -- told by who cleans ----------------------------------------------------------------------------------------

    def measured(
        self, key: TopicPartition, label: str, *, dirty_bytes: int, clean_bytes: int, first_dirty_offset: int
    ) -> None:
        """As of the last look at a partition that is to be compacted."""
        status = self._status(key, label)
        status.dirty_bytes, status.clean_bytes = dirty_bytes, clean_bytes
        status.first_dirty_offset = first_dirty_offset

    def was_cleaned(self, key: TopicPartition, cleaned_ms: int) -> None:
        """In an earlier life, or elsewhere."""
        if (status := self._partitions.get(key)) is not None and status.last_cleaned_ms == NEVER_MS:
            status.last_cleaned_ms = cleaned_ms

    def began(self, key: TopicPartition, label: str) -> None:
        self._status(key, label).is_cleaning = True

    def cleaned(self, key: TopicPartition, label: str, report: CleaningReport, now_ms: int) -> None:
        """A job came to its end, and everything it made was put in place."""
        status, totals = self._status(key, label), self.totals
        saved = report.bytes_before - report.bytes_written  # less than none where it grew by being compressed again
        removed = report.records_read - report.records_kept
        status.is_cleaning, status.uncleanable = False, None
        status.last_cleaned_ms = now_ms
        status.cleanings_count += 1
        status.bytes_saved += saved
        status.records_removed += removed
        status.batches_unreadable = report.batches_unreadable
        self._told_ms.pop(key, None)
        totals.cleanings += 1
        totals.cleaning_ms += int(report.seconds * 1000)
        totals.cleaned_bytes_read += report.bytes_read
        totals.cleaned_bytes_written += report.bytes_written
        totals.cleaned_bytes_saved += max(0, saved)
        totals.cleaned_records_read += report.records_read
        totals.cleaned_records_removed += removed
        log.info(
            "cleaned %s: read %.1f MiB, wrote %.1f MiB, saved %.1f MiB in %.1f s%s", label,
            report.bytes_read / _MEBIBYTE, report.bytes_written / _MEBIBYTE, saved / _MEBIBYTE, report.seconds,
            f"; {report.batches_unreadable} batches cannot be read and stay" if report.batches_unreadable else "",
        )  # fmt: skip

    def swapped(self, locked_s: float) -> None:
        """Cleaned segments are in their place; the partition was locked for so long."""
        totals, locked_us = self.totals, round(locked_s * 1e6)
        totals.swaps += 1
        totals.swaps_locked_us += locked_us
        totals.swap_locked_us_max = max(totals.swap_locked_us_max, locked_us)

    def failed(self, key: TopicPartition, *, is_away: bool = False) -> None:
        """A job ended before its end. `is_away`: the cleaner was not there, or went (`CleanerAwayError`)."""
        if (status := self._partitions.get(key)) is not None:
            status.is_cleaning = False
        if is_away:
            self.totals.cleaner_away += 1
        else:
            self.totals.cleanings_failed += 1

    def given_up(self, key: TopicPartition, label: str, reason: str, now_ms: int) -> None:
        """It is uncleanable: told when that begins, and each day again."""
        status = self._status(key, label)
        status.is_cleaning, status.uncleanable = False, reason
        told_ms = self._told_ms.get(key)
        if told_ms is None or now_ms - told_ms >= UNCLEANABLE_TOLD_EVERY_MS:
            self._told_ms[key] = now_ms
            log.warning("%s is uncleanable: %s; it serves, and grows, and is tried again once a day", label, reason)

    def lacks_cleaner(self, reason: str, now_ms: int) -> None:
        """None was ready when one was wanted. The second time in a row it is told, and each day again: of one that went
        another one takes the place.
        """
        self._in_vain_count += 1
        if self._in_vain_count < LACK_TOLD_AFTER:
            return
        self._lacks(reason)
        if self._lack_told_ms is None or now_ms - self._lack_told_ms >= UNCLEANABLE_TOLD_EVERY_MS:
            self._lack_told_ms = now_ms
            log.warning("compacted partitions here are not cleaned, and grow: there is no cleaner: %s", reason)

    def has_cleaner(self) -> None:
        """One is ready."""
        self._in_vain_count, self._lack_told_ms = 0, None
        if self.no_cleaner is not None:
            log.info("there is a cleaner again")
            self._lacks(None)

    def _lacks(self, reason: str | None) -> None:
        self.no_cleaner = reason
        for status in self._partitions.values():
            status.no_cleaner = reason

    def forget(self, key: TopicPartition) -> None:
        """It is not to be compacted any more, or is none of this core's."""
        self._partitions.pop(key, None)
        self._told_ms.pop(key, None)

    def _status(self, key: TopicPartition, label: str) -> CleaningStatus:
        return self._partitions.setdefault(key, CleaningStatus(label, no_cleaner=self.no_cleaner))

    # -- asked by who shows ----------------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        """For operators: totals, and what is now of all partitions together. Names that end in `_now` are what is."""
        found = self._partitions.values()
        return {
            **asdict(self.totals),
            "compacted_partitions_now": len(found),
            "cleaning_now": sum(one.is_cleaning for one in found),
            "cleaner_lacking_now": int(self.no_cleaner is not None),
            "uncleanable_now": sum(one.uncleanable is not None for one in found),
            "dirty_bytes_now": sum(one.dirty_bytes for one in found),
            "clean_bytes_now": sum(one.clean_bytes for one in found),
            "dirty_permille_max_now": max((round(one.dirty_ratio * 1000) for one in found), default=0),
            "batches_unreadable_now": sum(one.batches_unreadable for one in found),
        }

    def uncleanable(self) -> dict[str, str]:
        """By label, why."""
        return {one.label: one.uncleanable for one in self._partitions.values() if one.uncleanable is not None}
