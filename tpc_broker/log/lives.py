"""The lives of a partition in one core's journal: from an adoption, or its making, to a release.

Theory of operation
-------------------
A partition is moved to another core of its node while both run. Its journal entries lie in the journals of both, and
each journal alone says what became of it there:

    RELEASED    nothing of the partition that stands before it in this journal counts any more. Before it was written
                everything was made durable in the segments; what goes over (`PartitionCheckpoint`) is its payload
    ADOPTED     in the journal of its next core, written when RELEASED was durable: a life begins with what came over

So of all entries only those behind the last of these two are replayed, on top of what it says. A release leaves the
partition nowhere until its adoption: the checkpoints of the core that released it carry it on until the metadata say
that another has it, and recovery touches none of its files.

A replica whose log was replaced by another's (`storage.replicas.installation`) begins a life in the same way, with
ADOPTED, on the core that it is on: its files are first in a folder of their own, which the entry names
(`PartitionCheckpoint.filled`).

Hand-overs are counted (`PartitionCheckpoint.moves`, the argument of both entries). A checkpoint may have been captured
behind entries that are replayed again; by the count it is known which of the two is later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpc_broker.log.checkpoint import CheckpointError, decode_entry
from tpc_broker.log.journal import EntryKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.log.journal import JournalEntry


def last_life(
    checkpoint: PartitionCheckpoint | None, entries: Iterable[JournalEntry]
) -> tuple[PartitionCheckpoint | None, list[JournalEntry]]:
    """What the last life of one partition in this journal began with, or its release, and the entries behind that.

    CheckpointError: an entry that cannot be read.
    """
    start, own = checkpoint, []
    for entry in entries:
        if entry.kind not in (EntryKind.RELEASED, EntryKind.ADOPTED):
            own.append(entry)
            continue
        own = []
        if start is None or entry.argument > start.moves:
            start = decode_entry(entry.payload)
            is_release = entry.kind == EntryKind.RELEASED
            if (start.moves, start.released is not None, start.key) != (entry.argument, is_release, entry.partition):
                raise CheckpointError(f"commit {entry.sequence} hands over another partition than it says")
            start = replace(start, filled="")
    return start, own
