"""A replicated partition of simulated nodes, in memory, as of what the disk has of it."""

from __future__ import annotations

from bisect import bisect_left

from tpc_broker.error_codes import ErrorCode
from tpc_broker.log.batch import decode_header
from tpc_broker.log.epochs import LeaderEpochs
from tpc_broker.log.seals import CleanedState
from tpc_broker.testing.guards import judged
from tpc_broker.testing.logs import MemoryLog


class TwinFiles:
    """As much of `PartitionStorage` as replicas need."""

    failed = None
    size_bytes = moves = 0
    segments, cleaned = (), CleanedState(0, 0, 0)

    def __init__(self, key, kept):
        self.key, self.topic, self.kept = key, kept.topic, kept
        self.leader_epoch, self.notes = kept.leader_epoch, dict(kept.notes)
        self.epochs = LeaderEpochs(kept.epochs.entries)
        self.log = TwinLog(kept)

    @property
    def checkpointed(self):
        return self.kept

    @property
    def written_end_offset(self):
        return self.kept.log_end_offset

    @property
    def log_start_offset(self):
        return self.log.log_start_offset

    async def offset_for_timestamp(self, _timestamp, _start_offset):
        return None

    async def largest_timestamp(self, _start_offset, _upto_offset):
        return None


class TwinLog(MemoryLog):
    """A partition in memory, as of what the disk has."""

    def __init__(self, kept):
        super().__init__()
        self.kept, self.batches = kept, list(kept.batches)
        self.log_start_offset, self.log_end_offset = kept.log_start_offset, kept.log_end_offset
        self.durable_offset, self.high_watermark = kept.log_end_offset, kept.log_end_offset
        self.is_replicated = False
        self.role, self.term, self.generation = None, -1, 0
        """`generation` rises when whoever waits for a commit is told that there is no telling."""
        self.refusal, self.refuses_all = ErrorCode.NONE, False
        self.told_offset, self.undurable = self.log_end_offset, 0
        self.find_state()

    def undo(self):
        """What is not durable."""
        self.batches = [batch for batch in self.batches if decode_header(batch).next_offset <= self.durable_offset]
        self.log_end_offset = self.told_offset = self.durable_offset
        self.undurable = 0
        self.find_state()

    def place_of(self, offset):
        """Of the first batch that ends behind it."""
        return bisect_left(self.batches, offset, key=lambda batch: decode_header(batch).last_offset)

    def judge(self, header):
        """(error, base offset of what it repeats), as `native/log/producer.c`; None: nothing."""
        if header.producer_id < 0:
            return ErrorCode.NONE, None
        error, repeated = judged(self.log_state.producers.producers.get(header.producer_id), header)
        if not self.log_end_offset and header.base_sequence:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None
        return error, None if repeated is None else repeated.last_offset - repeated.offset_delta
