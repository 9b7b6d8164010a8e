"""The judgement on record batches against Apache Kafka's own, batch by batch."""

import time

import pytest

from tests.native_bytes.built_batches import batch, patched, with_records
from tests.native_bytes.test_record_batches import FIELD_FAULTS, MALFORMED
from tests.support.kafka_peer import KafkaPeer, PeerUnavailable, kafka_jars
from tests.support.native_batches import BatchLimits, validate_batch
from tests.support.raw_client import RawConnection

pytestmark = pytest.mark.kafka
DIFFERENCES = {
    "records: offset delta 1": (87, 0, "Kafka stores it; two records would have one offset"),
    "records: varint of six bytes": (87, -1, "Kafka's reader throws what it does not expect itself"),
    "field: length huge": (87, -1, "an overflow in Kafka; to us the batch is incomplete"),
}
TOPICS = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
}


@pytest.fixture(scope="module")
def kafka(module_tmp_path):
    try:
        kafka_jars()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    peer = KafkaPeer(module_tmp_path / "kafka")
    peer.start()
    yield peer
    peer.stop()


def cases():
    """``name, topic, version, records``."""
    now = int(time.time() * 1000)
    good, future = batch(3), batch(3, timestamp=now + 7_200_000)
    found = [(f"field: {name}", "plain", 9, patched(good, *change)) for name, *change, _ in FIELD_FAULTS]
    found += [(f"records: {name}", "plain", 9, with_records(batch(1), data)) for name, data in MALFORMED.items()]
    found += [(f"tail of {size}", "plain", 9, good + bytes(size)) for size in (0, 1, 11, 12, 40)]
    found += [(f"cut at {size}", "plain", 9, good[:size]) for size in (0, 5, 11, 12, 16, 17, 60, 61, len(good) - 1)]
    flipped = bytearray(good)
    flipped[-1] ^= 1
    found += [("checksum", "plain", 9, flipped), ("two", "plain", 9, good + good)]
    for codec in (1, 4):
        found.append((f"future, codec {codec}", "plain", 9, batch(3, timestamp=now + 7_200_000, compression=codec)))
    found += [("future", "plain", 9, future), ("future, stamped", "stamped", 9, future)]
    found += [(f"claims append time, {topic}", topic, 9, patched(good, 21, ">h", 8)) for topic in TOPICS]
    found += [(f"no key, {topic}", topic, 9, batch(3, key=None)) for topic in TOPICS]
    found += [(f"no timestamp, {topic}", topic, 9, batch(1, timestamp=-1)) for topic in TOPICS]
    found += [(f"zstd in version {version}", "plain", version, batch(9, compression=4)) for version in (3, 6, 7, 9)]
    found.append(("too large", "plain", 9, batch(1, value=bytes(1_048_588))))
    return found


def produce(peer, topic, version, records):
    data = {"Name": topic, "PartitionData": [{"Index": 0, "Records": bytes(records)}]}
    answer = peer.ask("Produce", version, {"Acks": -1, "TimeoutMs": 5000, "TopicData": [data]})
    return answer["Responses"][0]["PartitionResponses"][0]


def test_the_same_codes_as_kafka(kafka):
    found = {}
    with RawConnection("127.0.0.1", kafka.ports[0]) as peer:
        for name, settings in TOPICS.items():
            configs = [{"Name": key, "Value": value} for key, value in settings.items()]
            topic = {"Name": name, "NumPartitions": 1, "ReplicationFactor": 1, "Configs": configs}
            created = peer.ask("CreateTopics", 7, {"Topics": [topic], "timeoutMs": 10_000})
            assert created["Topics"][0]["ErrorCode"] == 0
        for name, topic, version, records in cases():
            limits = BatchLimits(
                now_ms=int(time.time() * 1000),
                produce_version=version,
                compacted=topic == "compacted",
                log_append_time=topic == "stamped",
            )
            ours = validate_batch(records, limits)
            theirs = produce(peer, topic, version, records)
            if ours.error_code != theirs["ErrorCode"]:
                found[name] = (ours.error_code, theirs["ErrorCode"])
            elif version >= 5:
                assert ours.tells_log_start == (theirs["LogStartOffset"] != -1), name
            if name not in DIFFERENCES and ours.bad_records_count and ours.walked:
                indices = [error["BatchIndex"] for error in theirs["RecordErrors"]]
                assert indices == [bad.record_index for bad in ours.bad_records], name
    assert found == {name: codes[:2] for name, codes in DIFFERENCES.items()}
