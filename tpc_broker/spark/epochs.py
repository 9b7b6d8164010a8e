"""Which epochs of streaming writes are whole: a ledger in a compacted topic.

One record per committed epoch, key the query's id, value JSON {"batch_id": n}. Spark commits epochs in order, so the
last record of a query says all: what it names and everything before is done. The topic is made when it is first needed
and has one partition. It is compacted: until then it is one record of about 130 bytes for each epoch.

Beside it, under the key of `_transactions_key`, stand the transactions that an epoch consists of, before it is decided
that they are committed (`tpc_broker.spark.exactly_once`). They are found by their offset and read by nobody else.
"""

import json
import time
from collections.abc import Iterable
from typing import Any, Final

from tpc_broker.client import requests
from tpc_broker.client.batches import RecordsPart
from tpc_broker.client.cluster import Cluster
from tpc_broker.client.errors import DamagedDataError, UnknownTopicError
from tpc_broker.client.producing import Producer
from tpc_broker.client.reading import RangeReader, ReadSettings
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.transacting import OpenTransaction
from tpc_broker.kafka.compression import Compression
from tpc_broker.kafka.records import HEADER_BYTES, Record, build_batch, read_records
from tpc_broker.spark.names import LEDGER_TOPIC

RECORDS_READ_FIRST: Final = 1000
NONE_YET: Final = -1
KEPT_MS: Final = 7 * 24 * 3_600_000
"""For so long nothing goes that a newer record of its key follows."""
_WHERE: Final = TopicPartition(LEDGER_TOPIC, 0)


class EpochLedger:
    """The ledger, as tasks ask it and the driver writes it. It keeps nothing between two questions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def is_committed(self, query_id: str, batch_id: int) -> bool:
        """Whether the epoch is whole."""
        return batch_id <= self.newest(query_id)

    def is_missing(self) -> bool:
        """Whether the broker that was asked knows of no ledger; of one that was just made it may not know yet."""
        return LEDGER_TOPIC not in self._cluster.existing([LEDGER_TOPIC], {LEDGER_TOPIC: b""})

    def newest(self, query_id: str) -> int:
        """The last epoch that is whole, `NONE_YET` before the first. Every task asks, so the ledger is read from its
        end, which is where a query that runs finds its own last record, however long the ledger has become.
        """
        try:
            start = self._cluster.list_offsets({_WHERE: requests.EARLIEST})[_WHERE]
            end = self._cluster.list_offsets({_WHERE: requests.LATEST})[_WHERE]
        except UnknownTopicError:
            return NONE_YET
        count = RECORDS_READ_FIRST
        while end > start:
            begin = max(start, end - count)
            newest = self._newest(query_id, begin, end)
            if newest is not None:
                return newest
            end, count = begin, count * 4
        return NONE_YET

    def commit(self, query_id: str, batch_id: int) -> None:
        """Durable when this returns. The numbers of a query never fall, also when Spark replays what was committed."""
        if self.is_committed(query_id, batch_id):
            return
        self._append(query_id.encode(), {"batch_id": batch_id})

    def write_transactions(self, query_id: str, batch_id: int, transactions: Iterable[OpenTransaction]) -> int:
        """Durable at the offset that this gives."""
        rows = [[one.transactional_id, one.producer_id, one.producer_epoch] for one in transactions]
        while True:
            offset = self._append(_transactions_key(query_id), {"batch_id": batch_id, "transactions": rows})
            if offset >= 0:  # else it is there, and the broker no longer knows where
                return offset

    def transactions(self, query_id: str, batch_id: int, offset: int) -> list[OpenTransaction]:
        """What `write_transactions` wrote there. `DamagedDataError`: something else is there, or nothing."""
        for chunk in RangeReader(self._cluster, _WHERE, offset, offset + 1, ReadSettings()).chunks():
            for record in read_records(chunk.records):
                if record.offset != offset or record.key != _transactions_key(query_id):
                    continue
                if _batch_id(record) == batch_id:
                    return [OpenTransaction(*row) for row in json.loads(record.value or b"")["transactions"]]
        raise DamagedDataError(f"{_WHERE}, offset {offset}: not the transactions of epoch {batch_id} of {query_id}")

    @property
    def where(self) -> TopicPartition:
        """Where a group's offset can stand for an epoch, once the topic was made."""
        return _WHERE

    # Rule: Transactions of an epoch are found by their offset for as long as a decision about them may be unfinished:
    # a driver that was left behind may write others of the same key behind them, which no decision names. So they must
    # not be compacted away at once. Held by tests/spark/test_epochs.py.
    def make_topic(self) -> TopicPartition:
        self._cluster.create_topic(
            LEDGER_TOPIC, 1, {"cleanup.policy": "compact", "min.compaction.lag.ms": str(KEPT_MS)}
        )
        return _WHERE

    def _append(self, key: bytes, value: Any) -> int:
        """Its offset, below 0 when that is not known."""
        where = self.make_topic()
        record = Record(json.dumps(value).encode(), key, int(time.time() * 1000))
        data = build_batch([record])[HEADER_BYTES:]
        part = RecordsPart(data, 1, record.timestamp_ms, record.timestamp_ms)
        return Producer(self._cluster, Compression.GZIP).send({where: part})[where]

    def _newest(self, query_id: str, begin: int, end: int) -> int | None:
        """The last epoch of a query that the records [begin, end) name."""
        newest = None
        key = query_id.encode()
        for chunk in RangeReader(self._cluster, _WHERE, begin, end, ReadSettings()).chunks():
            for record in read_records(chunk.records):
                if record.key == key and begin <= record.offset < end:
                    newest = _batch_id(record)
        return newest


def _transactions_key(query_id: str) -> bytes:
    return f"{query_id}/transactions".encode()


def _batch_id(record: Record) -> int:
    try:
        return int(json.loads(record.value or b"")["batch_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedDataError(f"{_WHERE}, offset {record.offset}: no epoch: {error}") from error
