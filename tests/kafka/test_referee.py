"""Apache Kafka's own classes as referee: what is committed is what they say today, and they read what we write."""

import base64
import json
import subprocess
from pathlib import Path

import pytest

from tests.support.kafka_peer import KAFKA_VERSION, PeerUnavailable, kafka_jars
from tools import extract_schema, golden_assignments, golden_vectors
from tpc_broker.kafka.compression import Compression
from tpc_broker.kafka.records import ControlType, Record, build_batch, control_batch

pytestmark = pytest.mark.kafka
ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def jars():
    try:
        return kafka_jars(extract_schema.KAFKA_VERSION)
    except PeerUnavailable as reason:
        pytest.skip(str(reason))


def referee(jars, program, *arguments):
    command = ["java", "-cp", f"{jars}/*", str(ROOT / "tools" / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith(("[", "{"))))


def test_the_schema_is_what_the_jars_say(jars):
    names = [f"{name}-{extract_schema.KAFKA_VERSION}.jar" for name in extract_schema.ARTIFACTS]
    messages = extract_schema.read_messages([jars / name for name in names])
    folder = ROOT / "tpc_broker" / "kafka"
    assert extract_schema.schema_text(messages) == (folder / "schema.jsonl").read_text()
    assert extract_schema.api_table_text(messages) == (folder / "api_table.py").read_text()


def test_the_vectors_are_what_kafka_writes(jars):
    assert golden_vectors.vectors(jars) == (GOLDEN / "vectors.txt").read_text()


def test_the_facts_are_what_kafka_says(jars):
    assert referee(jars, "FactsReferee.java") == json.loads((GOLDEN / "facts.json").read_text())


@pytest.mark.parametrize("version", sorted({KAFKA_VERSION, extract_schema.KAFKA_VERSION}))
def test_the_assignments_are_what_kafka_answers(jars, version):
    golden = ROOT / "tests" / "coordinator" / "golden" / "assignments.json"
    assert golden_assignments.table(kafka_jars(version)) == golden.read_text()


def test_kafka_reads_our_batches(jars):
    long = b"".join(b"%d " % (index * 7919) for index in range(9000))
    records = [Record(long, b"k", 1000, (("h", b"x"), ("n", None))), Record(None, None, 1005), Record(b"", b"", 999)]
    batches = [build_batch(records, base_offset=40, compression=compression) for compression in Compression]
    marker = control_batch(ControlType.COMMIT, producer_id=5, producer_epoch=1, coordinator_epoch=7, timestamp_ms=9)
    found = referee(jars, "BatchReferee.java", *[base64.b64encode(data).decode() for data in (*batches, marker)])
    wanted = [
        [40, 1000, b"k".hex(), long.hex(), [["h", b"x".hex()], ["n", None]]],
        [41, 1005, None, None, []],
        [42, 999, "", "", []],
    ]
    assert [row["records"] for row in found[:-1]] == [wanted] * len(Compression)
    assert found[-1]["flags"][:2] == [True, True]
