"""The records that Apache Kafka wrote for consumer groups of KIP-848 are read, and written to the same bytes.

``tools/golden_consumer_groups.py`` made the file; its steps have the requests that led to the records.
"""

import json
from pathlib import Path

import pytest

from tpc_broker.kafka import decode, encode

GOLDEN = json.loads((Path(__file__).parent / "golden" / "consumer_groups.json").read_text())
RECORDS = [
    record
    for steps in GOLDEN["parts"].values()
    for step in steps
    for batch in step["batches"]
    for record in batch
]  # fmt: skip
KINDS = sorted({record["is"] for record in RECORDS})


def test_each_kind_of_record_is_there_with_its_tombstone():
    kinds = {int(record["key"][:4], 16): set() for record in RECORDS}
    for record in RECORDS:
        kinds[int(record["key"][:4], 16)].add(record["value"] is None)
    assert {kind for kind, seen in kinds.items() if seen == {True, False}} == {1, 2, 3, 5, 6, 7, 8, 16}
    assert kinds[4] == {True}


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_read_and_written_as_kafka_has_them(kind):
    for record in (one for one in RECORDS if one["is"] == kind):
        key = bytes.fromhex(record["key"])
        assert key[:2] + encode(f"{kind}Key", 0, decode(f"{kind}Key", 0, key[2:])) == key
        if record["value"] is not None:
            value = bytes.fromhex(record["value"])
            version = int.from_bytes(value[:2], "big")
            assert value[:2] + encode(f"{kind}Value", version, decode(f"{kind}Value", version, value[2:])) == value
