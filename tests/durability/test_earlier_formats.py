"""Data directories of every earlier feature level (tests/durability/data, killed with records that only their journals
held): they are opened, nothing of them is lost, and they are upgraded by the rule of docs/formats.md.
"""

from __future__ import annotations

import json
import re
import tarfile
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.durability.conftest import against_kafka
from tests.durability.earlier_data import ADDED, DATA, WANTED, expected_of, kinds_in, sealed_in
from tests.durability.test_repair import consume, numbered, produce
from tests.support.broker_process import TpcBroker
from tests.support.kept_security import ACCESS
from tests.support.waiting import PATIENCE_S
from tpc_broker.feature_levels import SPOKEN
from tpc_broker.log.checkpoint import Tag
from tpc_broker.log.journal import BLOCK_BYTES, FEATURES_OPTIONAL, FEATURES_REQUIRED, EntryKind, decode_superblock

ROOT = Path(__file__).parent.parent.parent
FIRST_RELEASE = DATA / "first-release.tar.xz"

pytestmark = pytest.mark.skipif(against_kafka(), reason="data directories of ours")


def superblocks(broker):
    data = (broker.data_folder / "journals" / "0000.journal").read_bytes()[: 2 * BLOCK_BYTES]
    return [decode_superblock(data[:BLOCK_BYTES]), decode_superblock(data[BLOCK_BYTES:])]


def committed(broker):
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    try:
        return consumer.committed([TopicPartition("events", 0)], timeout=PATIENCE_S)[0].offset
    finally:
        consumer.close()


def test_a_data_directory_of_the_first_release(tmp_path):
    broker = TpcBroker(tmp_path / "broker", 1)
    broker.data_folder.parent.mkdir(parents=True)
    with tarfile.open(FIRST_RELEASE) as archive:
        archive.extractall(broker.data_folder.parent, filter="data")
    assert all(one.is_of_version_1 for one in superblocks(broker))
    try:
        broker.start()
        assert committed(broker) == 17
        assert consume(broker, 0) == numbered(0, 30)
        assert produce(broker, 0, [b"more"]) is None
        broker.kill()
        assert not any(one.is_of_version_1 for one in superblocks(broker)), "the first release must not believe either"
        broker.start()
        assert consume(broker, 0)[-1] == (30, b"more")
        broker.stop()
    finally:
        broker.kill()


LEVELS = sorted(DATA.glob("level-*.tar.xz"))
IN_THE_GATE = {(LEVELS[0], 2), (LEVELS[-1], 2)}
"""The oldest and the newest, on two cores; all others, and other numbers of cores, are of `crash`."""
OPENED = [
    pytest.param(cores, path, id=f"{cores}-{path.name.removesuffix('.tar.xz')}",
                 marks=() if (path, cores) in IN_THE_GATE else pytest.mark.crash)
    for cores in (1, 2, 3) for path in LEVELS
]  # fmt: skip


def unpacked(archive, folder):
    """A broker on an earlier release's directory, and what clients have to find there."""
    folder.mkdir()
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    expected = json.loads((folder / "expected.json").read_text())
    return TpcBroker(folder, 2, ACCESS), {**ADDED, **expected}


@pytest.mark.parametrize(("cores_count", "archive"), OPENED)
def test_a_data_directory_of_every_feature_level(cores_count, archive, tmp_path):
    broker, expected = unpacked(archive, tmp_path / "broker")
    broker.cores_count = cores_count
    try:
        broker.start()
        assert expected_of(broker) == expected
        assert produce(broker, 0, [b"more"]) is None
        broker.kill()
        broker.start()
        first, end, values = expected["partitions"]["events-0"]
        expected["partitions"]["events-0"] = [first, end + 1, [*values, crc32(b"more")]]
        assert expected_of(broker) == expected
        broker.stop()
        assert "is offline" not in broker.log_text()
    finally:
        broker.kill()


def test_the_newest_directory_has_what_this_release_writes(tmp_path):
    """Who changes the formats adds a level to docs/formats.md, and a directory of it (`earlier_data.py`)."""
    broker, _expected = unpacked(LEVELS[-1], tmp_path / "broker")
    level = int(LEVELS[-1].name.removeprefix("level-").removesuffix(".tar.xz"))
    table = (ROOT / "docs" / "formats.md").read_text().partition("| level | releases |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (\d+) \|", table, re.MULTILINE)
    assert max(map(int, rows)) == level == SPOKEN.highest
    kinds = kinds_in(broker.data_folder)
    assert kinds >= WANTED
    assert sealed_in(broker.data_folder)
    for superblock in superblocks(broker):
        assert (superblock.features_required, superblock.features_optional) == (FEATURES_REQUIRED, FEATURES_OPTIONAL)
    assert {kind.name for kind in EntryKind} == {
        "APPEND", "CUT", "EPOCH", "LOG_START", "PARTITION_DELETED", "NOTE", "IN_PLACE", "RELEASED", "ADOPTED",
    }  # fmt: skip
    assert {tag.name for tag in Tag} == {
        "STATE", "TOPIC", "EPOCHS", "PRODUCERS", "COMMIT_OFFSET", "NOTES", "RELEASED", "MOVES", "FILLED",
        "LOST", "ENDED", "HANDED",
    }  # fmt: skip


def test_a_later_release_of_the_same_level_wrote_it(tmp_path):
    """What it may add within a level: optional features, fields and entries that may be passed over."""
    broker, expected = unpacked(LEVELS[-1], tmp_path / "broker")
    journal = broker.data_folder / "journals" / "0000.journal"
    content = bytearray(journal.read_bytes())
    for number, one in enumerate(superblocks(broker)):
        later = replace(one, features_optional=one.features_optional | 1 << 40)
        content[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES] = later.encode()
    journal.write_bytes(content)
    try:
        broker.start()
        assert expected_of(broker) == expected
        broker.kill()
        assert all(one.features_optional >> 40 & 1 for one in superblocks(broker)), "what is not known is kept"
    finally:
        broker.kill()
