"""Kafka's own `kafka-dump-log` reads the files of a real run: nothing on standard error, every record counted."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import Producer

from tests.durability.conftest import against_kafka, new_broker
from tests.durability.workload import COMPRESSIONS, client_settings, create_topics
from tests.support.kafka_peer import run_tool
from tests.support.waiting import PATIENCE_S

RECORDS = 6000
COMPLAINTS = ["Mismatches", "Non-consecutive", "mismatch", "out of order", "not valid", "Could not read"]

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]


@pytest.fixture(scope="module")
def partition_folders(module_tmp_path):
    """Folders of a stopped broker, by topic; each topic holds `RECORDS` records in some segments."""
    broker = new_broker(module_tmp_path / "dumped", 2, {"log.index.interval.bytes": "1000"})
    broker.start()
    try:
        topics = [f"dump-{compression}" for compression in COMPRESSIONS]
        create_topics(broker.bootstrap, dict.fromkeys(topics, 1), {"segment.bytes": str(1 << 20)})
        for topic, compression in zip(topics, COMPRESSIONS, strict=True):
            settings = {"compression.type": compression, "enable.idempotence": True, "linger.ms": 1}
            producer = Producer(client_settings(broker.bootstrap, **settings, **{"batch.num.messages": 40}))
            for number in range(RECORDS):
                value = f"{number} ".encode() * (number % 90)
                producer.produce(topic, value, key=str(number), headers={"h": b"x"} if number % 3 == 0 else None)
                if number % 200 == 0:
                    producer.flush(PATIENCE_S)
            assert producer.flush(PATIENCE_S) == 0
        broker.stop()
    finally:
        broker.kill()
    root = broker.data_folder if against_kafka() else broker.data_folder / "topics"
    return {topic: root / f"{topic}-0" for topic in topics}


def dump(*files, arguments=()):
    done = run_tool("dump-log", "--files", ",".join(map(str, files)), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    complaints = done.stderr
    for file in files:  # with every record printed, the tool expects each file to begin with offset 0
        quirk = f"Non-consecutive offsets in {file}\n  -1 is followed by {int(file.stem)}\n"
        complaints = complaints.replace(quirk, "")
    assert complaints == ""
    for complaint in COMPLAINTS:
        assert complaint not in done.stdout, done.stdout[:3000]
    return done.stdout


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_record_is_counted(partition_folders, compression):
    folder = partition_folders[f"dump-{compression}"]
    logs = sorted(folder.glob("*.log"))
    text = dump(*logs, arguments=["--print-data-log", "--deep-iteration"])
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+) ", text, re.MULTILINE)]
    assert offsets == list(range(RECORDS))
    assert text.count("isvalid: true") >= RECORDS // 200
    assert "isvalid: false" not in text
    if compression == "none":
        assert len(logs) > 1, "no segment was rolled"


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_indexes_agree_with_the_log(partition_folders, kind):
    files = [file for folder in partition_folders.values() for file in sorted(folder.glob(f"*.{kind}"))]
    assert files
    text = dump(*files)
    assert text.count("offset: ") > 20
    checked = dump(*files, arguments=["--index-sanity-check"])
    assert checked.count("passed sanity check.") == len(files)
