"""Which epochs of streaming writes are whole: a ledger in a compacted topic.

One record per committed epoch, key the query's id, value JSON {"batch_id": n}. Spark commits epochs in order, so the
last record of a query says all: what it names and everything before is done. The topic is made when it is first needed
and has one partition.
"""

import json
import time
from typing import Final

from tpc_broker.client import requests
from tpc_broker.client.batches import RecordsPart
from tpc_broker.client.cluster import Cluster
from tpc_broker.client.errors import DamagedDataError, UnknownTopicError
from tpc_broker.client.producing import Producer
from tpc_broker.client.reading import RangeReader, ReadSettings
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka.records import HEADER_BYTES, Record, build_batch, read_records

LEDGER_TOPIC: Final = "_tpc-spark-epochs"
_WHERE: Final = TopicPartition(LEDGER_TOPIC, 0)


class EpochLedger:
    """The ledger as this process knows it. Reading goes on where the last one ended."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._next_offset = 0
        self._batches: dict[str, int] = {}

    def is_committed(self, query_id: str, batch_id: int) -> bool:
        self._catch_up()
        return batch_id <= self._batches.get(query_id, -1)

    def commit(self, query_id: str, batch_id: int) -> None:
        """Durable when this returns."""
        self._cluster.create_topic(LEDGER_TOPIC, 1, {"cleanup.policy": "compact"})
        value = json.dumps({"batch_id": batch_id}).encode()
        record = Record(value, query_id.encode(), int(time.time() * 1000))
        data = build_batch([record])[HEADER_BYTES:]
        Producer(self._cluster).send({_WHERE: RecordsPart(data, 1, record.timestamp_ms, record.timestamp_ms)})

    def _catch_up(self) -> None:
        try:
            end = self._cluster.list_offsets({_WHERE: requests.LATEST})[_WHERE]
            start = self._cluster.list_offsets({_WHERE: requests.EARLIEST})[_WHERE]
        except UnknownTopicError:
            return
        begin = max(start, self._next_offset)
        for chunk in RangeReader(self._cluster, _WHERE, begin, end, ReadSettings()).chunks():
            for record in read_records(chunk.records):
                self._take(record)
        self._next_offset = end

    def _take(self, record: Record) -> None:
        try:
            query_id, batch_id = (record.key or b"").decode(), json.loads(record.value or b"")["batch_id"]
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedDataError(f"{_WHERE}, offset {record.offset}: no epoch: {error}") from error
        self._batches[query_id] = max(batch_id, self._batches.get(query_id, -1))
