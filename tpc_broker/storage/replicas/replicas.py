"""What the machines of replicated partitions put into a core's journal: the terms of their logs, votes, and cuts.

A term's marker and a vote are entries, asked for without waiting: whoever drives the machine puts them into the journal
in the machine's order, and waits for sequences. A cut is more: the records are gone from journal, memory and files when
it is done, and nothing else may be appended to that log before.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpc_broker.errors import PartitionOfflineError, StorageFailedError
from tpc_broker.log.checkpoint import VOTE_NOTE
from tpc_broker.log.epochs import NO_EPOCH_KEPT
from tpc_broker.log.journal import EntryKind, encode_note
from tpc_broker.storage.upkeep.journal_upkeep import wait_kept

if TYPE_CHECKING:
    from tpc_broker.storage.ports import StoragePlane
    from tpc_broker.storage.recovery.core_partitions import CorePartitions
    from tpc_broker.storage.segments.leader_partition import LeaderPartition
    from tpc_broker.storage.upkeep.in_place_windows import InPlaceWindows
    from tpc_broker.storage.upkeep.journal_room import JournalRoom
    from tpc_broker.storage.upkeep.segment_space import SegmentSpace


@dataclass(slots=True)
class PlaneCommit:
    """Where a replicated partition's committed records end: `PartitionStorage.commit_offset`."""

    plane: StoragePlane
    handle: int
    known_offset: int

    def __call__(self) -> int:
        with contextlib.suppress(PartitionOfflineError):  # it was withdrawn
            self.known_offset = self.plane.bounds(self.handle).high_watermark
        return self.known_offset


# Rule: What is not committed survives the checkpoint that gives its journal blocks back, and is not taken for committed
# by a restart. A cut is durable before any file is cut, and no checkpoint comes in between. See also
# tpc_broker/storage/upkeep/write_behind.py. Held by tests/node/test_replica_storage.py.
class Replicas:
    """Of one core."""

    def __init__(
        self,
        plane: StoragePlane,
        partitions: CorePartitions,
        *,
        room: JournalRoom,
        space: SegmentSpace,
        in_place_windows: InPlaceWindows,
    ) -> None:
        self._plane = plane
        self._partitions = partitions
        self._room = room
        self._space = space
        self._in_place_windows = in_place_windows
        self.cuts_begun = 0
        """Logs that were ended earlier, files and all: never while checkpoints are held."""

    def begin_term(self, handle: int, term: int, note: bytes) -> int | None:
        """The log's next item is the beginning of a term; the journal's sequence, None: it has no room now.

        The replica is in that term from here on, if it was in an earlier one; one that catches up gets terms that are
        long over. ValueError: the log has got to a later one.
        """
        files = self._partitions.writable(handle).files
        if term <= files.epochs.latest:
            raise ValueError(f"term {term} cannot begin behind {files.epochs.latest}")
        end_offset = self._plane.bounds(handle).log_end_offset
        sequence = self._plane.journal_append(EntryKind.EPOCH, files.key, end_offset, term, encode_note(note))
        if sequence is None:
            return None
        if term > files.leader_epoch:
            files.notes.pop(VOTE_NOTE, None)
        # Before it is durable: a checkpoint that covers the entry must say it too.
        files.leader_epoch = max(term, files.leader_epoch)
        files.log_state.begin_epoch(term, end_offset)
        files.notes[term] = note
        files.mark_changed()
        return sequence

    def note_term(self, handle: int, term: int, note: bytes) -> int | None:
        """The replica has got to a term, and voted as the note says; as `begin_term`."""
        files = self._partitions.writable(handle).files
        if term < files.leader_epoch:
            raise ValueError(f"term {term} is below {files.leader_epoch}")
        sequence = self._plane.journal_append(EntryKind.EPOCH, files.key, -1, term, encode_note(note))
        if sequence is not None:
            files.leader_epoch = term
            files.notes[VOTE_NOTE] = note
            files.mark_changed()
        return sequence

    async def cut(self, handle: int, offset: int, last_epoch_kept: int) -> None:
        """End the log at an offset, behind the beginning of an epoch (0: of none), in journal, memory and files.

        It has no role from the call on; appends that are under way are waited for. PartitionOfflineError when it is
        closed, or the journal fails before the cut is in it; once it is, a failure is waited out. ValueError: below
        what is committed, or no batch ends there.
        """
        self._partitions.writable(handle)
        self._plane.disarm(handle)
        await self._plane.wait_settled(handle)
        kept = last_epoch_kept or NO_EPOCH_KEPT
        while True:
            # No checkpoint in between: it would name segments that are longer than the log.
            async with self._partitions.checkpointing:
                led = self._partitions.writable(handle)
                async with led.lock:
                    sequence = self._plane.cut(handle, offset, kept)
                    if sequence is not None:
                        await self._cut_files(led, offset, kept, sequence)
                        return
            await self._room.wait()

    async def _cut_files(self, led: LeaderPartition, offset: int, kept: int, sequence: int) -> None:
        self.cuts_begun += 1
        files = led.files
        files.log_state.cut_epochs(offset, kept)
        files.notes = {term: note for term, note in files.notes.items() if term <= kept or term == VOTE_NOTE}
        files.mark_changed()
        self._in_place_windows.log_was_cut()
        await wait_kept(self._plane, sequence)
        try:
            await files.truncate(offset)
        except StorageFailedError as error:
            raise PartitionOfflineError(str(error)) from error
        if led.handle not in self._partitions.led:
            raise PartitionOfflineError("the partition was deleted")
        self._plane.close_windows(led.handle)  # one may have been opened meanwhile
        self._plane.reset_producers(led.handle, files.log_state)
        await self._space.reserve_anew(led)
