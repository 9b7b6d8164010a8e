"""A partition's log in memory: a list of batches, with all that is known of them."""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import TYPE_CHECKING

from tpc_broker.log.batch import decode_header, walk_headers
from tpc_broker.log.epochs import LeaderEpochs
from tpc_broker.log.state import LogState
from tpc_broker.storage.ports import Bounds

if TYPE_CHECKING:
    from tpc_broker.log.indexes import AbortedTransaction
    from tpc_broker.metadata.topic_config import TopicConfig
    from tpc_broker.model import TopicPartition

_BASE_OFFSET, _EPOCH = Struct(">q"), Struct(">i")
EPOCH_AT, EPOCH_END = 12, 16


def base_offset_of(batch: bytes) -> int:
    offset: int = _BASE_OFFSET.unpack_from(batch)[0]
    return offset


class MemoryLog:
    """One partition's batches; `high_watermark` is where the durable ones end. A crash leaves those."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.log_start_offset = self.high_watermark = self.log_end_offset = 0
        self.log_state = LogState()
        """Of all batches: producers and transactions, as `native/log/producer.c`."""
        self.aborted: list[AbortedTransaction] = []

    @property
    def bounds(self) -> Bounds:
        stable = max(self.log_state.last_stable_offset(self.high_watermark), self.log_start_offset)
        return Bounds(self.log_start_offset, stable, self.high_watermark, self.log_end_offset)

    def find_state(self) -> None:
        """From the batches."""
        self.log_state, self.aborted = LogState(), []
        for batch in self.batches:
            self.take(batch)

    def take(self, batch: bytes) -> None:
        if (aborted := self.log_state.take(decode_header(batch), batch)) is not None:
            self.aborted.append(aborted)

    def append(self, data: bytes, leader_epoch: int) -> int:
        """Whole batches; the first one's offset."""
        base_offset = self.log_end_offset
        for header, place in walk_headers(data):
            batch = data[place : place + header.size_bytes]
            offset, epoch = _BASE_OFFSET.pack(self.log_end_offset), _EPOCH.pack(leader_epoch)
            self.batches.append(offset + batch[_BASE_OFFSET.size : EPOCH_AT] + epoch + batch[EPOCH_END:])
            self.take(self.batches[-1])
            self.log_end_offset += header.last_offset_delta + 1
        return base_offset

    def read(self, offset: int, upto: int, bytes_max: int, *, at_least_one: bool) -> tuple[list[bytes], int]:
        """Whole batches from the one that holds an offset on, and their bytes."""
        found: list[bytes] = []
        size = 0
        first = max(bisect_right(self.batches, offset, key=base_offset_of) - 1, 0)
        for place in range(first, len(self.batches)):
            data = self.batches[place]
            header = decode_header(data)
            if header.next_offset <= offset:
                continue
            if header.base_offset >= upto or (size + len(data) > bytes_max and not (at_least_one and not found)):
                break
            found.append(data)
            size += len(data)
        return found, size

    def begin_at(self, offset: int) -> None:
        """What is below goes, but for the batch that holds the offset."""
        self.log_start_offset = max(self.log_start_offset, offset)
        gone = 0
        while gone < len(self.batches) and decode_header(self.batches[gone]).next_offset <= self.log_start_offset:
            gone += 1
        del self.batches[:gone]

    def crash(self) -> None:
        self.batches = [one for one in self.batches if decode_header(one).base_offset < self.high_watermark]
        self.log_end_offset = self.high_watermark
        self.find_state()


class MemoryFiles:
    """What `PartitionStorage` is to a partition; all of the log is in memory, nothing is in segments."""

    failed = None
    segments = ()

    def __init__(self, key: TopicPartition, topic: str) -> None:
        self.key, self.topic = key, topic
        self.log = MemoryLog()
        self.config: TopicConfig | None = None
        """None: batches are taken as they come."""
        self.is_internal = False
        self.leader_epoch = self.moves = 0
        self.epochs = LeaderEpochs()
        self.written_end_offset = self.size_bytes = 0

    async def read_once(self, _offset: int, _bytes_max: int, _upto: int) -> bytes:
        return b""

    async def offset_for_timestamp(self, _timestamp: int, _start_offset: int) -> None:
        return None

    async def largest_timestamp(self, _start_offset: int, _upto_offset: int) -> None:
        return None
