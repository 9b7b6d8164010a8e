"""The data plane as storage sees it, in memory: as much of `StoragePlane` as storage's tests need.

What it promises, as the real one does, is in tests/storage/test_plane_contract.py.
"""

import itertools

import trio

from tpc_broker.broker.ports import AppendResult
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.log.batch import decode_header
from tpc_broker.log.journal import REGION_BLOCK_FIRST
from tpc_broker.storage.ports import JournalCursor, JournalUse, PartitionParams, PartitionState, ShortRun
from tpc_broker.testing.logs import MemoryLog

JOURNAL_USE = JournalUse(0, 256, 0)


def params_of(key, log_end_offset=0):
    """Of a partition without any rule, whose files end there."""
    return PartitionParams(
        topic="t", key=key, leader_epoch=3, log_start_offset=0,
        log_end_offset=log_end_offset, high_watermark=log_end_offset,
        timestamp_before_ms_max=1 << 62, timestamp_after_ms_max=1 << 62, batch_bytes_max=1 << 20,
        segment_bytes=1 << 30, is_internal=False, is_relaxed=False, is_compacted=False, log_append_time=False,
        is_replicated=False,
    )  # fmt: skip


class _Partition:
    def __init__(self, params):
        self.log = MemoryLog()
        self.log.log_start_offset = params.log_start_offset
        self.log.high_watermark = self.log.log_end_offset = self.written_offset = params.log_end_offset
        self.leader_epoch, self.bytes_admitted = params.leader_epoch, 0

    def unwritten(self):
        return [one for one in self.log.batches if decode_header(one).base_offset >= self.written_offset]

    def durable(self):
        return [one for one in self.unwritten() if decode_header(one).base_offset < self.log.high_watermark]


class MemoryStoragePlane:
    """What is appended is durable at once, or with `make_durable` while it `holds`. The journal may have no room."""

    def __init__(self, use=JOURNAL_USE):
        self.holds, self.has_room, self.use = False, True, use
        self.entries = []
        """Those that were tried."""
        self.waits, self.closed = [], []
        """Handles of `wait_settled`, and of `close_in_place_window`."""
        self.windows_closed, self.replaced = [], []
        """Handles of `close_windows`; of `segments_replaced` with the offsets."""
        self.in_place_ends = {}
        self.error, self._failures = 0, []
        self._partitions, self._handles = {}, itertools.count()
        self._sequence = self._durable_sequence = 0
        self._is_durable = trio.Event()

    def make_durable(self):
        self._durable_sequence = self._sequence
        for one in self._partitions.values():
            one.log.high_watermark = one.log.log_end_offset
        self._wake()

    def fail_waits(self, failure):
        """Those that are under way end with it."""
        self._failures.append(failure)
        self._wake()

    def _wake(self):
        self._is_durable.set()
        self._is_durable = trio.Event()

    def _appended(self):
        self._sequence += 1
        if not self.holds:
            self.make_durable()

    def _partition(self, handle):
        if handle not in self._partitions:
            raise PartitionOfflineError("the partition was withdrawn")
        return self._partitions[handle]

    # -- PartitionTable

    def register(self, params, _state):
        handle = next(self._handles)
        self._partitions[handle] = _Partition(params)
        return handle

    def withdraw(self, handle):
        self._partitions.pop(handle, None)
        self._wake()

    def state(self, handle):
        one = self._partition(handle)
        log, unwritten = one.log, sum(map(len, one.unwritten()))
        dirty = sum(map(len, one.durable()))
        return PartitionState(
            log.high_watermark, log.high_watermark, one.written_offset, unwritten, dirty, one.bytes_admitted,
            self.in_place_ends.get(handle, -1), one.leader_epoch,
        )  # fmt: skip

    def admit(self, handle, bytes_more):
        if handle in self._partitions:
            self._partitions[handle].bytes_admitted += bytes_more

    def append(self, handle, data):
        """None: there is no room."""
        one = self._partition(handle)
        if one.bytes_admitted < len(data):
            return None
        one.bytes_admitted -= len(data)
        base_offset = one.log.append(data, one.leader_epoch)
        self._appended()
        return AppendResult(base_offset, one.log.log_end_offset, one.leader_epoch, 0)

    # -- JournalControl

    def journal_append(self, kind, key, offset, argument, payload=b""):
        self.entries.append((kind, key, offset, argument, payload))
        if not self.has_room:
            return None
        self._appended()
        return self._sequence

    async def wait_durable(self, sequence, then=lambda: None):
        await trio.lowlevel.checkpoint()
        while self._durable_sequence < sequence:
            await self._is_durable.wait()
        then()

    def journal_error(self):
        return self.error

    def journal_use(self):
        return self.use

    def durable_cursor(self):
        """Each entry has been a commit of one block."""
        durable = self._durable_sequence
        return JournalCursor(durable + 1, REGION_BLOCK_FIRST + durable, durable, 0)

    # -- WriteBehind

    def short_runs_take(self, handles, bytes_max, memory):
        taken, place = [], 0
        for handle in handles:
            one = self._partitions.get(handle)
            batches = one.durable() if one else []
            data = b"".join(batches)
            if not data or len(data) > bytes_max:
                taken.append(None)
                continue
            if place + len(data) > len(memory):
                break
            memory[place : place + len(data)] = data
            taken.append(ShortRun(memory[place : place + len(data)], decode_header(batches[-1]).next_offset))
            place += len(data)
        return taken

    def short_runs_done(self, ended):
        return [(self._written(handle, end_offset), self.state(handle).bytes_admitted) for handle, end_offset in ended]

    def _written(self, handle, end_offset):
        one = self._partition(handle)
        before = sum(map(len, one.unwritten()))
        one.written_offset = end_offset
        return before - sum(map(len, one.unwritten()))

    # -- InPlaceWrites, ReplicaLogs

    def set_in_place_space(self, _handle, _reserved_position):
        return False

    def close_windows(self, handle):
        self.windows_closed.append(handle)

    def segments_replaced(self, handle, upto_offset):
        assert handle not in self._partitions or upto_offset <= self._partitions[handle].written_offset
        self.replaced.append((handle, upto_offset))

    def close_in_place_window(self, handle):
        self.closed.append(handle)

    async def wait_settled(self, handle):
        self.waits.append(handle)
        await trio.lowlevel.checkpoint()
        end_offset, failures = self._partition(handle).log.log_end_offset, len(self._failures)
        while self._partition(handle).log.high_watermark < end_offset:
            await self._is_durable.wait()
            if len(self._failures) > failures:
                raise self._failures[-1]
