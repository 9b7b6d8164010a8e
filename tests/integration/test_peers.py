"""The referee's own tools: the definitions codec, hand-made batches and the raw client agree with Apache Kafka."""

from __future__ import annotations

import pytest

from tests.support import definitions
from tests.support.raw_client import RawConnection
from tests.support.record_batches import GZIP, LZ4, SNAPPY, ZSTD, Record, batch, crc32c, read_batches

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]


def test_crc32c_check_value():
    assert crc32c(b"123456789") == 0xE3069283


def test_every_message_of_every_version_survives_a_round_trip_of_defaults():
    counted = 0
    for name, described in definitions._definitions().items():
        for version in range(max(0, described.versions.lowest), described.versions.highest + 1):
            raw = definitions.encode(name, version, {})
            decoded = definitions.decode(name, version, raw)
            assert definitions.encode(name, version, decoded) == raw, (name, version)
            counted += 1
    assert counted > 500


def test_trailing_bytes_are_refused():
    raw = definitions.encode("HeartbeatResponse", 4, {"ErrorCode": 3})
    with pytest.raises(definitions.Malformed):
        definitions.decode("HeartbeatResponse", 4, raw + b"\0")


@pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4, ZSTD])
def test_a_hand_made_batch_comes_back_as_it_was_sent(broker, codec):
    records = [Record(b"one", b"k"), Record(None, b"two", 5, (("h", None), ("i", b"x")))]
    sent = batch(records, codec=codec)
    topic = f"round-trip-{codec}"
    with RawConnection("127.0.0.1", broker.ports[0]) as peer:
        created = peer.ask("CreateTopics", 7, {"Topics": [_topic(topic)], "timeoutMs": 10_000})
        assert created["Topics"][0]["ErrorCode"] == 0
        leader = peer.ask("Metadata", 9, {"Topics": [{"Name": topic}]})["Topics"][0]["Partitions"][0]["LeaderId"]
    with RawConnection("127.0.0.1", broker.ports[leader % 1024]) as peer:
        partition = {"Index": 0, "Records": sent}
        data = {"Acks": -1, "TimeoutMs": 5000, "TopicData": [{"Name": topic, "PartitionData": [partition]}]}
        answer = peer.ask("Produce", 9, data)["Responses"][0]["PartitionResponses"][0]
        assert answer["ErrorCode"] == 0, answer
        wanted = {"Topic": topic, "Partitions": [{"Partition": 0, "PartitionMaxBytes": 1 << 20}]}
        fetched = peer.ask("Fetch", 12, {"MaxWaitMs": 5000, "MinBytes": 1, "MaxBytes": 1 << 20, "Topics": [wanted]})
    stored = fetched["Responses"][0]["Partitions"][0]["Records"]
    [header] = read_batches(stored)
    assert header["crc_right"]
    assert header["records_count"] == 2
    assert stored[21:] == sent[21:], "only the base offset and the leader epoch, which the CRC leaves out, may change"


def _topic(name: str) -> dict:
    return {"Name": name, "NumPartitions": 1, "ReplicationFactor": 1}
