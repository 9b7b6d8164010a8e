"""A data folder with one partition, written by hand."""

import uuid

from tpc_broker.kafka import records as codec
from tpc_broker.kafka.compression import Compression
from tpc_broker.log.batch import decode_header
from tpc_broker.log.checkpoint import PartitionCheckpoint, encode_checkpoint
from tpc_broker.log.files import PARTITION_METADATA_FILE, encode_partition_metadata, segment_file_name
from tpc_broker.log.producer_state import ProducerState
from tpc_broker.log.segment import SegmentIndexes

PRODUCER = 7
NOW_MS = 1_790_000_000_000


class Log:
    """A partition's folder written batch by batch, with the project's own upkeep of indexes and producers."""

    now_ms = NOW_MS

    def __init__(self, folder, topic="t", partition=0, topic_id=None):
        self.folder, self.topic, self.partition = folder, topic, partition
        self.place = folder / "topics" / f"{topic}-{partition}"
        self.place.mkdir(parents=True, exist_ok=topic_id is not None)
        (folder / "journals").mkdir(exist_ok=True)
        self.topic_id = topic_id or uuid.uuid4()
        (self.place / PARTITION_METADATA_FILE).write_bytes(encode_partition_metadata(self.topic_id))
        self.producers, self.end_offset, self.sequence = ProducerState(), 0, 0
        self.roll()

    def roll(self):
        if self.end_offset:
            self.indexes.seal()
            (self.place / segment_file_name(self.base, ".timeindex")).write_bytes(self.indexes.times.data)
        self.base, self.data, self.indexes = self.end_offset, b"", SegmentIndexes(self.end_offset, 100)

    def append(self, batch):
        header = decode_header(batch)
        aborted = self.producers.apply(header, batch)
        self.indexes.add(header, len(self.data), aborted)
        self.data += batch
        self.end_offset = header.next_offset
        for suffix, data in (
            (".log", self.data), (".index", self.indexes.offsets.data), (".timeindex", self.indexes.times.data),
            (".txnindex", self.indexes.transactions.encode()),
        ):  # fmt: skip
            (self.place / segment_file_name(self.base, suffix)).write_bytes(data)

    def values(self, *values, compression=Compression.NONE, transactional=False, key=None):
        records = [codec.Record(value, key, self.now_ms + self.end_offset + n) for n, value in enumerate(values)]
        whose = {"producer_id": PRODUCER, "producer_epoch": 0, "base_sequence": self.sequence} if transactional else {}
        self.sequence += len(values) if transactional else 0
        self.append(
            codec.build_batch(
                records, base_offset=self.end_offset, compression=compression, is_transactional=transactional, **whose
            )
        )

    def end(self, control):
        self.append(
            codec.control_batch(
                control, producer_id=PRODUCER, producer_epoch=0, coordinator_epoch=0, timestamp_ms=self.now_ms,
                base_offset=self.end_offset,
            )
        )  # fmt: skip

    def entry(self, log_start_offset=0, commit_offset=-1):
        return PartitionCheckpoint(
            self.topic_id, self.partition, self.topic, segment_base=self.base, segment_position=len(self.data),
            log_start_offset=log_start_offset, log_end_offset=self.end_offset, producers=self.producers.copy(),
            index_bytes=len(self.indexes.offsets.data), time_index_bytes=len(self.indexes.times.data),
            transaction_index_bytes=len(self.indexes.transactions.encode()), commit_offset=commit_offset,
        )  # fmt: skip

    def checkpoint(self, log_start_offset=0, commit_offset=-1):
        entry = self.entry(log_start_offset, commit_offset)
        (self.folder / "journals" / "0000.checkpoint").write_bytes(encode_checkpoint(1, [entry]))
