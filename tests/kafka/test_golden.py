"""Every version of every message against bytes that Apache Kafka's own classes wrote (tools/golden_vectors.py)."""

import base64
from pathlib import Path

import pytest

from tests.kafka import golden_values
from tpc_broker.kafka import DecodeError, decode, encode
from tpc_broker.kafka.schema import message_names, message_schema

LINES = (Path(__file__).parent / "golden" / "vectors.txt").read_text().splitlines()
VECTORS = {}
for line in LINES:
    name, version, variant, data = line.split(" ", 3)
    VECTORS.setdefault(name, []).append((int(version), variant, base64.b64decode(data)))


def test_every_version_of_every_message_is_there():
    wanted = {
        (name, version)
        for name in message_names()
        for version in range(message_schema(name).valid.first, message_schema(name).valid.end)
    }
    assert {(name, version) for name, vectors in VECTORS.items() for version, _, _ in vectors} == wanted


@pytest.mark.parametrize("name", sorted(VECTORS))
def test_both_directions_agree_with_kafka(name):
    for version, variant, data in VECTORS[name]:
        message = golden_values.build(message_schema(name), version, variant)
        assert encode(name, version, message) == data, (version, variant)
        for buffer in (data, bytearray(data), memoryview(data)):
            assert decode(name, version, buffer) == message, (version, variant)


@pytest.mark.parametrize("name", sorted(VECTORS))
def test_every_prefix_and_every_extension_is_refused(name):
    for version, _, data in VECTORS[name]:
        step = max(1, len(data) // 40)
        for size in range(0, len(data), step):
            with pytest.raises(DecodeError):
                decode(name, version, data[:size])
        with pytest.raises(DecodeError, match="after the end"):
            decode(name, version, data + b"\0")
