"""What people are told of cleanings."""

import logging
import uuid

from tpc_broker.log.cleaning_job import CleaningReport
from tpc_broker.model import PartitionIndex, TopicId, TopicPartition
from tpc_broker.storage.upkeep.cleaning_status import NEVER_MS, UNCLEANABLE_TOLD_EVERY_MS, CleaningBook

KEY = TopicPartition(TopicId(uuid.UUID(int=7)), PartitionIndex(0))
OTHER = TopicPartition(TopicId(uuid.UUID(int=7)), PartitionIndex(1))
REPORT = CleaningReport(
    cleaned_upto=900, bytes_read=64 << 20, bytes_written=16 << 20, records_read=1000, records_kept=250,
    batches_unreadable=2, map_keys=250, map_bytes=6000, seconds=1.5, bytes_before=40 << 20,
)  # fmt: skip


def measured(book, key=KEY, label="prices-0", dirty=300, clean=100):
    book.measured(key, label, dirty_bytes=dirty, clean_bytes=clean, first_dirty_offset=400)


def test_a_cleaning_is_told_in_one_line_and_counted(caplog):
    book = CleaningBook()
    measured(book)
    assert book.status_of(KEY).dirty_ratio == 0.75
    assert book.status_of(KEY).last_cleaned_ms == NEVER_MS
    book.began(KEY, "prices-0")
    assert book.counters()["cleaning_now"] == 1
    book.swapped(0.004)
    book.swapped(0.0015)
    with caplog.at_level(logging.INFO):
        book.cleaned(KEY, "prices-0", REPORT, 5000)
    assert caplog.messages == [
        "cleaned prices-0: read 64.0 MiB, wrote 16.0 MiB, saved 24.0 MiB in 1.5 s; 2 batches cannot be read and stay"
    ]
    status = book.status_of(KEY)
    assert (status.last_cleaned_ms, status.bytes_saved, status.records_removed) == (5000, 24 << 20, 750)
    assert not status.is_cleaning
    assert book.counters() == {
        "cleanings": 1, "cleanings_failed": 0, "cleaner_away": 0, "cleaning_ms": 1500,
        "cleaned_bytes_read": 64 << 20, "cleaned_bytes_written": 16 << 20, "cleaned_bytes_saved": 24 << 20,
        "cleaned_records_read": 1000, "cleaned_records_removed": 750,
        "swaps": 2, "swaps_locked_us": 5500, "swap_locked_us_max": 4000,
        "compacted_partitions_now": 1, "cleaning_now": 0, "cleaner_lacking_now": 0, "uncleanable_now": 0,
        "dirty_bytes_now": 300,
        "clean_bytes_now": 100, "dirty_permille_max_now": 750, "batches_unreadable_now": 2,
    }  # fmt: skip


def test_that_there_is_no_cleaner_is_told_the_second_time_and_each_day(caplog):
    book = CleaningBook()
    measured(book)
    book.lacks_cleaner("the cleaner went away", 0)
    book.has_cleaner()
    book.lacks_cleaner("the cleaner went away", 0)
    assert (caplog.messages, book.no_cleaner, book.status_of(KEY).as_json()["no_cleaner"]) == ([], None, None)
    for now_ms in (1, 2, UNCLEANABLE_TOLD_EVERY_MS, UNCLEANABLE_TOLD_EVERY_MS + 1):
        book.lacks_cleaner("a cleaner could not be started", now_ms)
    told = "compacted partitions here are not cleaned, and grow: there is no cleaner: a cleaner could not be started"
    assert caplog.messages == [told] * 2
    measured(book, OTHER, "prices-1")
    assert {book.status_of(key).as_json()["no_cleaner"] for key in (KEY, OTHER)} == {"a cleaner could not be started"}
    assert book.counters()["cleaner_lacking_now"] == 1
    book.has_cleaner()
    assert book.counters()["cleaner_lacking_now"] == 0
    assert book.status_of(KEY).no_cleaner is None


def test_an_uncleanable_partition_is_told_at_once_and_each_day(caplog):
    book = CleaningBook()
    measured(book)
    for now_ms in (0, 1000, UNCLEANABLE_TOLD_EVERY_MS - 1, UNCLEANABLE_TOLD_EVERY_MS, UNCLEANABLE_TOLD_EVERY_MS + 1):
        book.began(KEY, "prices-0")
        book.failed(KEY)
        book.given_up(KEY, "prices-0", "its third segment is gone", now_ms)
    assert caplog.messages == [
        "prices-0 is uncleanable: its third segment is gone; it serves, and grows, and is tried again once a day"
    ] * 2
    assert book.uncleanable() == {"prices-0": "its third segment is gone"}
    assert book.counters()["cleanings_failed"] == 5
    book.cleaned(KEY, "prices-0", REPORT, UNCLEANABLE_TOLD_EVERY_MS + 5)
    assert book.uncleanable() == {}
    book.given_up(KEY, "prices-0", "again", UNCLEANABLE_TOLD_EVERY_MS + 6)
    assert caplog.messages[-1].startswith("prices-0 is uncleanable: again")


def test_totals_only_grow_and_the_rest_goes_with_its_partition():
    book = CleaningBook()
    measured(book)
    measured(book, OTHER, "prices-1", dirty=0, clean=0)
    assert book.status_of(OTHER).dirty_ratio == 0.0
    book.cleaned(KEY, "prices-0", REPORT, 1)
    book.failed(OTHER, is_away=True)
    book.forget(KEY)
    book.forget(KEY)
    assert book.status_of(KEY) is None
    told = book.counters()
    assert (told["cleanings"], told["cleaner_away"], told["compacted_partitions_now"]) == (1, 1, 1)


def test_json_has_the_ratio_and_not_the_label():
    book = CleaningBook()
    measured(book, dirty=1, clean=2)
    assert book.status_of(KEY).as_json() == {
        "dirty_ratio": 0.3333, "dirty_bytes": 1, "clean_bytes": 2, "first_dirty_offset": 400, "last_cleaned_ms": -1,
        "bytes_saved": 0, "records_removed": 0, "cleanings_count": 0, "batches_unreadable": 0, "uncleanable": None,
        "is_cleaning": False, "no_cleaner": None,
    }  # fmt: skip
