"""Where logs begin, as the journals say it: deleted records are not rows, also where no broker says so.

A checkpoint names the log start of its moment. What DeleteRecords and retention moved since then is in the journal, as
LOG_START entries, before anybody is told; segment files below it may be there much longer. The journals are
read while a broker may be writing them: what is half written ends the chain, and is as if it came after this read.
What a broker recycles meanwhile is in its checkpoint by then, so checkpoints are read behind journals.
"""

from pathlib import Path

from tpc_broker.client.errors import DamagedDataError
from tpc_broker.log.journal import (
    BLOCK_BYTES,
    REGION_BLOCK_FIRST,
    EntryKind,
    JournalEntry,
    JournalUnreadableError,
    choose_superblock,
    journal_entries,
)
from tpc_broker.model import TopicId

LogStarts = dict[tuple[TopicId, int], int]
"""By topic id and partition."""


def read_log_starts(data_folder: Path) -> LogStarts:
    """Of all journals of a data folder; where none says anything, the checkpoint's stands."""
    found: LogStarts = {}
    for path in sorted((data_folder / "journals").glob("[0-9][0-9][0-9][0-9].journal")):
        for entry in _entries_of(path):
            if entry.kind == EntryKind.LOG_START:
                where = (entry.partition.topic_id, entry.partition.partition)
                found[where] = max(found.get(where, 0), entry.offset)
    return found


def _entries_of(path: Path) -> tuple[JournalEntry, ...]:
    with path.open("rb") as file:
        try:
            superblock = choose_superblock(file.read(REGION_BLOCK_FIRST * BLOCK_BYTES))
        except JournalUnreadableError as error:
            raise DamagedDataError(f"{path}: {error}") from error
        if superblock.clean:
            return ()
        scan = journal_entries(superblock)
        try:
            wanted = next(scan)
            while True:
                file.seek(wanted.position)
                wanted = scan.send(file.read(wanted.length).ljust(wanted.length, b"\0"))
        except StopIteration as done:
            entries: tuple[JournalEntry, ...] = done.value
            return entries
