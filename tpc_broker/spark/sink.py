"""Writing rows to topics: Arrow in, batches built in C, idempotent produce.

Columns: `value` (binary or string), and where wanted `key`, `topic`, `partition`, `timestamp`, `headers`. A row goes to
the partition it names, else to the one that Kafka's default partitioner chooses by its key, else (no key) to one that
changes from Arrow batch to Arrow batch. Rows of one task and partition keep their order.

The promise: exactly once where the cluster has transactions (`tpc_broker.spark.exactly_once`): each task leaves its
rows in an open transaction, and the driver commits those of the attempts that Spark took. Elsewhere at least once: a
task that Spark starts again writes its rows again, under another producer id. Both ways, an epoch of a stream that was
committed whole is not written again when Spark replays it after a crash, and so it is with a batch write that has a
name and a number (`txnAppId`, `txnVersion`).

A stream's query and batch are in the task's local properties `sql.streaming.queryId` and `streaming.sql.batchId`, which
Spark 4.2 sets and does not document. Only tasks can see them, so each task looks for them before it does anything else:
where they are missing, the query fails with its first epoch and before its first row, unless ``allowRepeatedEpochs``
says that an epoch may be written again when it is replayed.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tpc_broker.client import configs
from tpc_broker.client.batches import RecordsPart
from tpc_broker.client.cluster import Cluster
from tpc_broker.client.errors import ClientError
from tpc_broker.client.producing import Producer
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.transacting import OpenTransaction
from tpc_broker.kafka.records import HEADER_BYTES
from tpc_broker.native_columns import HEADERS_TYPE, RecordsWriter
from tpc_broker.spark.epochs import EpochLedger
from tpc_broker.spark.exactly_once import NoTransactionsError, TransactionalWrite, WriteName, uses_transactions
from tpc_broker.spark.options import OptionError, WriteOptions
from tpc_broker.spark.pace import paced_batches
from tpc_broker.spark.shipping import ShippedType
from tpc_broker.spark.tasks import cluster_of

REQUEST_BYTES_MAX: Final = 32 * 1024 * 1024
"""About, of batches in one request: a third of what brokers take (`socket.request.max.bytes`)."""
ROW_BYTES_MAX: Final = 64 * 1024 * 1024
"""Larger rows are refused here already: with one batch before it, a request would be larger than brokers take."""
QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
RUN_PROPERTY: Final = "spark.jobGroup.id"
"""A stream's jobs have the id of its run there."""
_TYPES: Final = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "headers": ("array<struct<key:string,value:binary>>",),
}
logger = logging.getLogger("tpc.spark")


class UnknownEpochError(RuntimeError):
    """Spark does not say what the promise of a streaming write needs."""


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote, for which epoch (or write that has a number), and the transaction that it left open.
    ``is_done``: it wrote nothing, because that was committed before.
    """

    rows_count: int
    query_id: str | None = None
    batch_id: int | None = None
    transaction: OpenTransaction | None = None
    is_done: bool = False


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """`OptionError` when rows of this schema cannot be written."""
    fields = {field.name: field.dataType.simpleString() for field in schema.fields}
    unknown = sorted(fields.keys() - _TYPES.keys())
    if unknown:
        raise OptionError(f"columns that cannot be written: {', '.join(unknown)}; there are {', '.join(_TYPES)}")
    for name, found in fields.items():
        if found not in _TYPES[name]:
            raise OptionError(f"the column {name} is {found}; it has to be {' or '.join(_TYPES[name])}")
    if "value" not in fields:
        raise OptionError("there is no column value")
    if not options.topic and "topic" not in fields:
        raise OptionError("where to write is missing: the option topic, or a column topic")


class RowsProducer:
    """Arrow batches into batches of the log."""

    def __init__(
        self, cluster: Cluster, options: WriteOptions, transaction: OpenTransaction | None = None
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._producer = Producer(cluster, options.compression, transaction)
        self._turn = time.monotonic_ns() % 1021
        self._batch_bytes: dict[str, int] = {}
        self.rows_count = 0

    def write(self, batch: Any) -> None:
        """All rows of an Arrow batch are sent when this returns, and those of earlier ones are acknowledged."""
        columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
        writer = RecordsWriter(
            key=columns.get("key"),
            value=columns["value"],
            timestamps_ms=_timestamps_ms(columns.get("timestamp"), batch.num_rows),
            headers=_headers(columns.get("headers")),
        )
        self._turn += 1
        rows: dict[TopicPartition, Any] = {}
        for topic, chosen in self._by_topic(columns.get("topic")):
            rows |= self._by_partition(topic, chosen, columns.get("partition"), writer)
        self._send(writer, rows)
        self.rows_count += batch.num_rows

    def finish(self) -> None:
        """Wait until all rows are acknowledged."""
        self._producer.finish()

    def _by_topic(self, topics: Any) -> Iterator[tuple[str, Any]]:
        """Each topic with the numbers of its rows (None: all)."""
        if self._options.topic:
            yield self._options.topic, None
            return
        if topics.null_count:
            raise OptionError("a row without topic")
        names = pc.unique(topics).to_pylist()
        for name in names:
            yield name, None if len(names) == 1 else _rows_where(pc.equal(topics, name))

    def _by_partition(self, topic: str, rows: Any, named: Any, writer: RecordsWriter) -> dict[TopicPartition, Any]:
        places = self._cluster.partitions(topic)
        partitions = pc.fill_null(writer.partitions(len(places)), pa.scalar(self._turn % len(places), pa.int32()))
        if named is not None:
            partitions = pc.coalesce(named.cast(pa.int32()), partitions)
        if rows is not None:
            partitions = pc.take(partitions, rows)
        found = {}
        for number in pc.unique(partitions).to_pylist():
            inside = _rows_where(pc.equal(partitions, pa.scalar(number, pa.int32())))
            found[TopicPartition(topic, number)] = inside if rows is None else pc.take(rows, inside)
        return found

    def _send(self, writer: RecordsWriter, rows: Mapping[TopicPartition, Any]) -> None:
        """One batch for each partition at a time, as far as they go into one request, until all rows are sent."""
        first = dict.fromkeys(rows, 0)
        while first:
            parts: dict[TopicPartition, RecordsPart] = {}
            free_bytes = REQUEST_BYTES_MAX
            for where, begin in first.items():
                if free_bytes <= 0:
                    break
                parts[where] = self._part(writer, where, rows[where], begin)
                free_bytes -= len(parts[where].data)
            self._producer.begin(parts)
            for where, part in parts.items():
                begin = first.pop(where) + part.records_count
                if begin < len(rows[where]):
                    first[where] = begin  # behind those that have to wait

    def _part(self, writer: RecordsWriter, where: TopicPartition, rows: Any, begin: int) -> RecordsPart:
        """Rows for one batch. One that is larger than a batch is to be goes alone, and the broker says whether it takes
        it: that is a question of its size when it is compressed.
        """
        limit, chosen = self._limit(where.topic), rows.slice(begin)
        while True:
            try:
                written = writer.write(chosen, 0, limit)
            except ValueError as error:
                if limit == ROW_BYTES_MAX:
                    raise OptionError(f"{where}: {error}, more than a request may have") from None
                limit, chosen = min(2 * limit, ROW_BYTES_MAX), rows.slice(begin, 1)
            else:
                return RecordsPart(
                    written.data, written.records_count, written.base_timestamp, written.max_timestamp
                )

    def _limit(self, topic: str) -> int:
        """Bytes of a batch of several rows: as the options say, if the topic takes so much."""
        if topic not in self._batch_bytes:
            self._batch_bytes[topic] = min(self._options.batch_bytes, _bytes_taken(self._cluster, topic))
        return self._batch_bytes[topic]


def _bytes_taken(cluster: Cluster, topic: str) -> int:
    """What the topic takes in one batch, beside its header; the most where the broker does not say it."""
    try:
        said = {one.name: one.value for one in configs.describe(cluster, configs.Resource.TOPIC, topic)}
    except ClientError as error:
        logger.info("how large batches of %s may be is not known: %s", topic, error)
        return ROW_BYTES_MAX
    return max(1, int(said.get("max.message.bytes") or ROW_BYTES_MAX) - HEADER_BYTES)


def _rows_where(mask: Any) -> Any:
    return pc.indices_nonzero(mask).cast(pa.int32())


def _timestamps_ms(column: Any, rows_count: int) -> Any:
    """Times in ms; rows without one get the time of now."""
    now = pa.scalar(int(time.time() * 1000), pa.int64())
    if column is None:
        return pa.repeat(now, rows_count)
    times = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())
    return pc.fill_null(times, now)


def _headers(column: Any) -> Any:
    return None if column is None else column.cast(HEADERS_TYPE)


def _write_rows(
    options: WriteOptions, batches: Iterable[Any], begin: Callable[[], OpenTransaction | None]
) -> tuple[int, OpenTransaction | None]:
    """How many, and in which transaction: none is begun for no rows."""
    producer: RowsProducer | None = None
    transaction: OpenTransaction | None = None
    for batch in batches if options.rate is None else paced_batches(options.rate, batches):
        if batch.num_rows:
            if producer is None:
                transaction = begin()
                producer = RowsProducer(cluster_of(options.cluster), options, transaction)
            producer.write(batch)
    if producer is None:
        return 0, None
    producer.finish()
    return producer.rows_count, transaction


def _write_once(options: WriteOptions, about: WriteName, batches: Iterable[Any]) -> Written:
    """A task's rows, left in an open transaction where the cluster has them; nothing if the write is committed."""
    cluster = cluster_of(options.cluster)
    whole = TransactionalWrite(cluster, options.transactions, about)
    is_transactional = uses_transactions(cluster, options.transactions)
    is_done = whole.was_committed() if is_transactional else _is_noted(cluster, about)
    if is_done:
        logger.warning("%s was committed before; it is not written again", about)
        return Written(0, about.name, about.version, is_done=True)
    begin = partial(whole.begin, *_task_attempt_and_run()) if is_transactional else lambda: None
    rows_count, transaction = _write_rows(options, batches, begin)
    return Written(rows_count, about.name, about.version, transaction)


def _is_noted(cluster: Cluster, about: WriteName) -> bool:
    return about.version is not None and EpochLedger(cluster).is_committed(about.name, about.version)


def _commit(options: WriteOptions, about: WriteName, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Of a write that was not committed at once by its tasks."""
    cluster = cluster_of(options.cluster)
    written = [message for message in messages if isinstance(message, Written)]
    prepared = [message.transaction for message in written if message.transaction is not None]
    if prepared or (any(message.is_done for message in written) and uses_transactions(cluster, options.transactions)):
        TransactionalWrite(cluster, options.transactions, about).commit(prepared)
    elif about.version is not None:
        EpochLedger(cluster).commit(about.name, about.version)


def _abort(options: WriteOptions, about: WriteName, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Also where no task has said anything: those that failed have left transactions too."""
    cluster = cluster_of(options.cluster)
    written = [message for message in messages if isinstance(message, Written)]
    prepared = [message.transaction for message in written if message.transaction is not None]
    try:
        if not prepared and not uses_transactions(cluster, options.transactions):
            return
    except (ClientError, NoTransactionsError) as error:
        logger.info("whether %s has left transactions is not known: %s", about, error)
        return
    TransactionalWrite(cluster, options.transactions, about).abort(prepared)


class TpcWriter(DataSourceArrowWriter, metaclass=ShippedType):
    """A batch write: rows are appended; nothing is ever replaced."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('a topic cannot be overwritten; use mode("append")')
        check_schema(schema, options)
        self._options = options
        self._about = WriteName(*(options.transactions.numbered or (str(uuid4()), None)))

    def write(self, iterator: Iterator[Any]) -> Written:
        return _write_once(self._options, self._about, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, self._about, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, self._about, messages)


# Rule: An epoch of a stream that was written whole is not written again, and of another no row is committed. An archive
# has each record once. See also tpc_broker/spark/exactly_once.py, tpc_broker/spark/epochs.py,
# tpc_broker/spark/pipelines/file_list.py. Held by tests/spark/test_exactly_once.py, tests/spark/test_sink.py,
# tests/spark/test_epochs.py, tests/spark/test_file_list.py, tests/spark/test_kills.py.
class TpcStreamWriter(DataSourceStreamArrowWriter, metaclass=ShippedType):
    """A streaming write, epoch by epoch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options)
        if options.transactions.numbered is not None:
            raise OptionError("txnAppId and txnVersion are for batch writes; a stream has its query's id and epochs")
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        query_id, batch_id = _epoch_of_task()
        if query_id is not None and batch_id is not None:
            return _write_once(self._options, WriteName(query_id, batch_id), iterator)
        if not self._options.allows_repeated_epochs:
            raise UnknownEpochError(
                f"Spark {pyspark.__version__} does not tell its tasks which query and epoch they write (local "
                f"properties {QUERY_PROPERTY} and {BATCH_PROPERTY}), so an epoch that is replayed after a crash "
                "would be written twice. Nothing has been written yet; to go on like that, set "
                "allowRepeatedEpochs to true"
            )
        logger.warning("Spark does not say which epoch this is; if it is replayed, it will be written again")
        return Written(_write_rows(self._options, iterator, lambda: None)[0])

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """The epoch is whole from now on."""
        for query_id in _queries(messages):
            _commit(self._options, WriteName(query_id, batchId), messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """The epoch will be written again."""
        for query_id in _queries(messages):
            _abort(self._options, WriteName(query_id, batchId), messages)


def _queries(messages: Iterable[WriterCommitMessage | None]) -> set[str]:
    """The one query that the messages are of; none where no task knows it, or none is done."""
    return {message.query_id for message in messages if isinstance(message, Written) and message.query_id}


def _task_attempt_and_run() -> tuple[int, int, str | None]:
    context = TaskContext.get()
    if context is None:
        return 0, 0, None
    return context.partitionId(), context.attemptNumber(), context.getLocalProperty(RUN_PROPERTY)


def _epoch_of_task() -> tuple[str | None, int | None]:
    """Query and epoch, None what is not known."""
    context = TaskContext.get()
    if context is None:
        return None, None
    query_id, batch_id = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(BATCH_PROPERTY)
    return query_id, int(batch_id) if batch_id is not None and batch_id.isdigit() else None
