"""What the data plane is told of a replicated partition, and what it tells: `tpc_broker.broker.ports.ReplicationPort`.

Python decides who leads and what is committed (`tpc_broker.raft`); the plane appends, journals, answers and shows. How
it is driven, call by call, is in `docs/decisions/2026-11-23-replicated-partitions.md`.
"""

from __future__ import annotations

import errno
import os
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from tpc_broker._ring import ffi, lib
from tpc_broker.broker.ports import AppendedRange, ReplicaAppend
from tpc_broker.errors import JournalStoppedError, LeadershipLostError, PartitionOfflineError
from tpc_broker.log.state import encode_producers
from tpc_broker.native_bytes import pinned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpc_broker._ring import tpc_plane
    from tpc_broker.engine.plane_waits import PlaneWaits
    from tpc_broker.error_codes import ErrorCode
    from tpc_broker.log.batch import Buffer
    from tpc_broker.log.state import LogState

RANGES_AT_ONCE: Final = 256
READ_SLICES_MAX: Final = lib.TPC_READ_BATCHES_MAX
NO_ROOM: Final = (-errno.EAGAIN, -errno.ENOSPC)


class ReplicatingPlane:
    """A part of `RingDataPlane`."""

    _plane: tpc_plane
    _journal: Any
    _waits: PlaneWaits

    def _begin_replication(self) -> None:
        self._ranges = ffi.new("tpc_appended_range[]", RANGES_AT_ONCE)
        self._cut_sequence = ffi.new("uint64_t *")
        self._on_appended: Callable[[], None] = lambda: None

    def on_appended(self, callback: Callable[[], None]) -> None:
        """Called when `take_appended` has something, once until it was called."""
        self._on_appended = callback

    def on_durable(self, callback: Callable[[int], None]) -> None:
        """Called with the journal's durable sequence whenever it rises, up to what `watch_durable` asked for."""
        self._waits.on_durable = callback

    def watch_durable(self, sequence: int) -> bool:
        """Whether the journal has come so far; if not, `on_durable`'s callback is called when it has."""
        if self.durable_sequence() >= sequence:
            return True
        lib.tpc_journal_watch(self._journal, sequence)
        return False

    def durable_sequence(self) -> int:
        """Everything up to this commit of the journal is durable."""
        statistics = ffi.new("tpc_journal_statistics *")
        lib.tpc_journal_get_statistics(self._journal, statistics)
        return int(statistics.durable_sequence)

    # -- roles -------------------------------------------------------------------------------------------------------

    def set_replicated(self, handle: int, *, on: bool) -> None:
        """Whether `commit` alone moves the high watermark. Off: what is durable is committed, at once."""
        _checked(lib.tpc_partition_set_replicated(self._plane, handle, on), "replicate")

    def lead(self, handle: int, term: int) -> None:
        """Take appends in a term, whose marker is in the journal. What waits goes on."""
        _checked(lib.tpc_partition_arm(self._plane, handle, lib.TPC_ROLE_LEADER, term), "lead")

    def follow(self, handle: int, term: int) -> None:
        """Take what this term's leader sends. What waits is told NOT_LEADER_OR_FOLLOWER."""
        _checked(lib.tpc_partition_arm(self._plane, handle, lib.TPC_ROLE_FOLLOWER, term), "follow")

    def disarm(self, handle: int, *, keep_waits: bool = False) -> None:
        """It has no role. What waits is told NOT_LEADER_OR_FOLLOWER, unless its leader is about to lead again."""
        _checked(lib.tpc_partition_disarm(self._plane, handle, keep_waits), "disarm")

    def leads(self, handle: int) -> bool:
        """Whether it takes appends: what was undone, as when the journal failed, has ended that."""
        state = ffi.new("tpc_partition_state *")
        found = lib.tpc_partition_get_state(self._plane, handle, state) >= 0
        return bool(found and state.role == lib.TPC_ROLE_LEADER)

    def has_role(self, handle: int) -> bool:
        """Whether it leads or follows: of a partition whose records were undone neither is so."""
        state = ffi.new("tpc_partition_state *")
        found = lib.tpc_partition_get_state(self._plane, handle, state) >= 0
        return bool(found and state.role != lib.TPC_ROLE_NONE)

    # -- a leader ----------------------------------------------------------------------------------------------------

    def take_appended(self) -> list[AppendedRange]:
        """What leaders of replicated partitions have appended since the last call, a range for each."""
        taken: list[AppendedRange] = []
        while count := lib.tpc_plane_take_appended(self._plane, self._ranges, RANGES_AT_ONCE):
            taken += [
                AppendedRange(one.handle, one.base_offset, one.next_offset, one.leader_epoch, one.sequence)
                for one in self._ranges[0:count]
            ]
        return taken

    def refuse(self, handle: int, error_code: ErrorCode, *, all_acks: bool = False) -> None:
        """Refuse appends that wait for the commit, with `all_acks` all of them, until it is NONE."""
        _checked(lib.tpc_partition_refuse(self._plane, handle, error_code, all_acks), "refuse")

    def commit(self, handle: int, term: int, end_offset: int) -> bool:
        """The log is committed up to an offset, as far as it is durable here; whether that moved anything."""
        return _checked(lib.tpc_partition_commit(self._plane, handle, term, end_offset), "commit") > 0

    def read_log(self, handle: int, offset: int, upto: int, bytes_max: int) -> bytes | None:
        """Whole batches from memory, committed or not, at least one if there is any; None: they are in the segments."""
        slices = ffi.new("tpc_slice[]", READ_SLICES_MAX)
        count = lib.tpc_partition_read_log(self._plane, handle, offset, bytes_max, upto, slices, READ_SLICES_MAX)
        if count == -errno.ERANGE:
            return None
        _checked(count, "read the log")
        data = b"".join([ffi.buffer(slices[n].data, slices[n].length)[:] for n in range(count)])
        lib.tpc_slices_release(slices, count)
        return data

    # -- a follower --------------------------------------------------------------------------------------------------

    def append_replica(self, handle: int, term: int, batches: Buffer) -> ReplicaAppend | None:
        """Append what the term's leader has sent; None: no room in the journal, or in the segments (`make_room`)."""
        result = ffi.new("tpc_append_result *")
        data, size, _held = pinned(batches)
        returned = lib.tpc_partition_append_replica(self._plane, handle, term, data, size, result)
        if returned in NO_ROOM:
            return None
        _checked(returned, "append what was sent")
        return ReplicaAppend(result.next_offset, result.sequence, result.error_code)

    def serve_reads(self, handle: int, term: int | None) -> None:
        """Answer consumers as a follower in this term, up to the own high watermark; None: in none. Who waits looks
        again.
        """
        lib.tpc_partition_serve_reads(self._plane, handle, -1 if term is None else term)

    # -- racks -------------------------------------------------------------------------------------------------------

    def set_racks(self, names: Sequence[str]) -> None:
        """What the bits of `set_near_racks` mean: bit i is the i-th name, and bit 63 all that come behind."""
        encoded = [name.encode() for name in names]
        ends = ffi.new("uint32_t[]", list(accumulate(map(len, encoded))) or [0])
        if lib.tpc_plane_set_racks(self._plane, b"".join(encoded), ends, len(encoded)) < 0:
            raise MemoryError

    def set_near_racks(self, handle: int, racks: int) -> None:
        """Of a leader: fetches of consumers in these racks are Python's, which says where to read."""
        lib.tpc_partition_set_near_racks(self._plane, handle, racks)

    # -- cuts, for the storage -----------------------------------------------------------------------------------------

    def cut(self, handle: int, offset: int, last_epoch_kept: int) -> int | None:
        """See `tpc_broker.storage.ports.ReplicaLogs`."""
        result = lib.tpc_partition_truncate(self._plane, handle, offset, last_epoch_kept, self._cut_sequence)
        if result == -errno.EAGAIN:
            return None
        _checked(result, f"cut at offset {offset}")
        return int(self._cut_sequence[0])

    def cuts_sequence(self) -> int:
        """See `tpc_broker.storage.ports.ReplicaLogs`."""
        return int(lib.tpc_plane_cuts_sequence(self._plane))

    async def wait_settled(self, handle: int) -> None:
        """See `tpc_broker.storage.ports.ReplicaLogs`."""
        state = ffi.new("tpc_partition_state *")
        _checked(lib.tpc_partition_get_state(self._plane, handle, state), "wait")
        await self._waits.wait_level(handle, lib.TPC_LEVEL_DURABLE, state.log_end_offset, state.leader_epoch)

    def reset_producers(self, handle: int, state: LogState) -> None:
        """See `tpc_broker.storage.ports.ReplicaLogs`."""
        encoded = encode_producers(state.producers, state.ended)
        _checked(lib.tpc_partition_reset_producers(self._plane, handle, encoded, len(encoded)), "reset producers")


def _checked(result: int, what: str) -> int:
    if result >= 0:
        return result
    if result == -errno.ENOENT:
        raise PartitionOfflineError("the partition was withdrawn")
    if result in (-errno.EPERM, -errno.ESTALE):
        raise LeadershipLostError(f"{what}: it has another role, or another term")
    if result == -errno.EINVAL:
        raise ValueError(f"{what}: not possible with this log")
    if result == -errno.ESHUTDOWN:
        raise JournalStoppedError("the core is stopping")
    if result == -errno.EIO:
        raise PartitionOfflineError("the journal failed")
    raise OSError(-result, f"{what}: {os.strerror(-result)}")
