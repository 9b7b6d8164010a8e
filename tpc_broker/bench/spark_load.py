"""The same topic in every broker: equal record batches, sent with the project's own client."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tpc_broker.bench.spark_ready import ready_batch
from tpc_broker.client.batches import RecordsPart
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.producing import Producer
from tpc_broker.client.requests import EARLIEST, LATEST, TopicPartition
from tpc_broker.native_columns import RecordsWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS_PER_BATCH: Final = 500
BATCHES_KEPT: Final = 32


def _parts(value_bytes: int) -> list[RecordsPart]:
    """Different batches with the rows of one ready-made Arrow batch."""
    rows = ready_batch(BATCHES_KEPT * RECORDS_PER_BATCH, value_bytes)
    times = rows.column("timestamp").cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    writer = RecordsWriter(key=rows.column("key"), value=rows.column("value"), timestamps_ms=times)
    parts = []
    for first, end in pairwise(range(0, rows.num_rows + 1, RECORDS_PER_BATCH)):
        written = writer.write(pa.array(range(first, end), pa.int32()), 0, RECORDS_PER_BATCH * (value_bytes + 100))
        assert written.records_count == RECORDS_PER_BATCH, written.records_count
        parts.append(
            RecordsPart(written.data, written.records_count, written.base_timestamp, written.max_timestamp),
        )
    return parts


def rows_that_fit(rows: int, partitions: int) -> int:
    """The next number of rows that whole batches make."""
    unit = partitions * RECORDS_PER_BATCH
    return -(-rows // unit) * unit


def load_topic(bootstrap: str, topic: str, rows: int, partitions: int, value_bytes: int) -> int:
    """Make the topic and write `rows`, evenly over the partitions; the bytes of log that they are."""
    parts = _parts(value_bytes)
    places = [TopicPartition(topic, number) for number in range(partitions)]
    log_bytes = 0
    with Cluster(ClusterSettings(bootstrap)) as cluster:
        cluster.create_topic(topic, partitions)
        producer = Producer(cluster)
        for turn, part in enumerate(_endless(parts)):
            if turn * partitions * RECORDS_PER_BATCH >= rows:
                break
            producer.send(dict.fromkeys(places, part))
            log_bytes += partitions * (len(part.data) + 61)
    return log_bytes


def _endless(parts: list[RecordsPart]) -> Iterator[RecordsPart]:
    while True:
        yield from parts


def rows_in(bootstrap: str, topic: str) -> int:
    """How many offsets the topic holds."""
    with Cluster(ClusterSettings(bootstrap)) as cluster:
        places = cluster.partitions(topic)
        first = cluster.list_offsets(dict.fromkeys(places, EARLIEST))
        end = cluster.list_offsets(dict.fromkeys(places, LATEST))
    return sum(end[where] - first[where] for where in places)


def make_topic(bootstrap: str, topic: str, partitions: int) -> None:
    with Cluster(ClusterSettings(bootstrap)) as cluster:
        cluster.create_topic(topic, partitions)


def delete_topic(bootstrap: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - a client that can

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deleted: dict[str, Any] = admin.delete_topics([topic], operation_timeout=30)
    for future in deleted.values():
        future.result()
