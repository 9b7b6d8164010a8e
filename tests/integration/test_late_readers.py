"""Who reads from the beginning what was written a moment ago: from memory, within the bound that is set for it."""

from __future__ import annotations

import pytest

from tests.support.broker_process import TpcBroker
from tests.support.raw_client import RawConnection
from tests.support.record_batches import Record, batch
from tests.support.waiting import let_pass, patiently

pytestmark = pytest.mark.machine

BATCHES = 60
RECORD_BYTES, RECORDS = 10_000, 80
MIB = 1 << 20


def create(connection: RawConnection) -> None:
    topic = {"Name": "t", "NumPartitions": 1, "ReplicationFactor": 1, "Assignments": [], "Configs": []}
    connection.ask("CreateTopics", 5, {"Topics": [topic], "timeoutMs": 10_000, "validateOnly": False})


def write(connection: RawConnection, count: int) -> None:
    data = {"Index": 0, "Records": batch([Record(bytes(RECORD_BYTES)) for _ in range(RECORDS)])}
    topics = [{"Name": "t", "PartitionData": [data]}]
    for _ in range(count):
        (answer,) = connection.ask("Produce", 9, {"Acks": -1, "TimeoutMs": 20_000, "TopicData": topics})["Responses"]
        assert answer["PartitionResponses"][0]["ErrorCode"] == 0


def read(connection: RawConnection, offset: int, batches: int = BATCHES) -> int:
    size, end = 0, offset + batches * RECORDS
    while offset < end:
        part = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": MIB}
        asked = {"MaxWaitMs": 1000, "MinBytes": 1, "MaxBytes": MIB, "SessionId": 0, "SessionEpoch": -1}
        answer = connection.ask("Fetch", 12, {**asked, "Topics": [{"Topic": "t", "Partitions": [part]}]})
        (told,) = answer["Responses"][0]["Partitions"]
        assert told["ErrorCode"] == 0
        offset += RECORDS * (len(told["Records"]) // (RECORDS * RECORD_BYTES))
        size += len(told["Records"])
    return size


def grow(broker: TpcBroker, connection: RawConnection) -> int:
    """Write on, and read far behind, until the cache may have all that is read; how many batches were written. It grows
    for who reads, as its memory is made ready.
    """
    written = 0
    for _ in patiently("the cache has grown"):
        if broker.counters()[0]["plane"]["tail_bytes_max"] >= 3 * BATCHES * RECORDS * RECORD_BYTES // 2:
            break
        write(connection, 10)
        written += 10
        read(connection, 0, 1)
        let_pass(0.1)
    write(connection, BATCHES)
    return written + BATCHES


def not_from_memory(broker: TpcBroker) -> int:
    """It grows when a Fetch gets something from a segment, by C or by Python."""
    (counters,) = broker.counters()
    return sum(counters["fetch_fallbacks"].values()) + int(counters["fetches"]["segment_bytes"])


@pytest.mark.parametrize(("bound", "from_segments"), [(-1, False), (24 * MIB, True)])
def test_what_was_just_written_is_read_from_memory(tmp_path, bound, from_segments) -> None:
    broker = TpcBroker(tmp_path, cores_count=1, overrides={"log.cache.max.bytes": str(bound)})
    broker.start()
    try:
        with RawConnection(broker.host, broker.ports[0]) as connection:
            create(connection)
            write(connection, BATCHES)
            written = BATCHES + (grow(broker, connection) if bound < 0 else 0)
            before = not_from_memory(broker)
            assert read(connection, (written - BATCHES) * RECORDS) > BATCHES * RECORDS * RECORD_BYTES
        assert (not_from_memory(broker) > before) is from_segments
        (counters,) = broker.counters()
    finally:
        broker.kill()
    if bound >= 0:
        assert counters["plane"]["tail_clean_bytes"] <= bound
