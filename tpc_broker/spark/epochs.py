"""Which epochs of streaming writes are whole: a ledger in a compacted topic.

One record per committed epoch, key the query's id, value JSON {"batch_id": n}. Spark commits epochs in order, so the
last record of a query says all: what it names and everything before is done. The topic is made when it is first needed
and has one partition. Kafka compacts it; a broker that does not keeps one record of about 130 bytes for each epoch.
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
from tpc_broker.spark.names import LEDGER_TOPIC

RECORDS_READ_FIRST: Final = 1000
_WHERE: Final = TopicPartition(LEDGER_TOPIC, 0)


class EpochLedger:
    """The ledger, as tasks ask it and the driver writes it. It keeps nothing between two questions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def is_committed(self, query_id: str, batch_id: int) -> bool:
        """Whether the epoch is whole. Every task asks, so the ledger is read from its end, which is where a query that
        runs finds its own last record, however long the ledger has become.
        """
        try:
            start = self._cluster.list_offsets({_WHERE: requests.EARLIEST})[_WHERE]
            end = self._cluster.list_offsets({_WHERE: requests.LATEST})[_WHERE]
        except UnknownTopicError:
            return False
        count = RECORDS_READ_FIRST
        while end > start:
            begin = max(start, end - count)
            newest = self._newest(query_id, begin, end)
            if newest is not None:
                return batch_id <= newest
            end, count = begin, count * 4
        return False

    def commit(self, query_id: str, batch_id: int) -> None:
        """Durable when this returns. The numbers of a query never fall, also when Spark replays what was committed."""
        if self.is_committed(query_id, batch_id):
            return
        self._cluster.create_topic(LEDGER_TOPIC, 1, {"cleanup.policy": "compact"})
        value = json.dumps({"batch_id": batch_id}).encode()
        record = Record(value, query_id.encode(), int(time.time() * 1000))
        data = build_batch([record])[HEADER_BYTES:]
        Producer(self._cluster).send({_WHERE: RecordsPart(data, 1, record.timestamp_ms, record.timestamp_ms)})

    def _newest(self, query_id: str, begin: int, end: int) -> int | None:
        """The last epoch of a query that the records [begin, end) name."""
        newest = None
        key = query_id.encode()
        for chunk in RangeReader(self._cluster, _WHERE, begin, end, ReadSettings()).chunks():
            for record in read_records(chunk.records):
                if record.key == key and begin <= record.offset < end:
                    newest = _batch_id(record)
        return newest


def _batch_id(record: Record) -> int:
    try:
        return int(json.loads(record.value or b"")["batch_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedDataError(f"{_WHERE}, offset {record.offset}: no epoch: {error}") from error
