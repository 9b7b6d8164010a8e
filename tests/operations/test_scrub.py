"""`tpc-broker scrub`: damage is found and named, beside a broker and without one, and nothing is changed."""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.support.broker_process import TpcBroker, run_here
from tests.support.ports import free_port_range
from tests.support.today import now_ms
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker import limits
from tpc_broker.engine.direct_file import SegmentFile
from tpc_broker.log.batch import decode_header, walk_headers
from tpc_broker.log.files import EpochStart
from tpc_broker.log.journal import EntryKind, JournalEntry
from tpc_broker.model import CoreId, LeaderEpoch, Offset
from tpc_broker.node.replicas.damaged import is_damaged
from tpc_broker.operations import scrub as scrub_module
from tpc_broker.operations.scrub import Scrub
from tpc_broker.storage.recovery.scrub_report import (
    FINISHED,
    INTERRUPTED,
    Damage,
    ScrubReport,
    note_rebuilt,
    read_report,
    report_lines,
    write_report,
)

SEGMENT_BYTES = 1024 * 1024
RECORDS = 120
VALUE = bytes(range(256)) * 160


@pytest.fixture(scope="module")
def broker(module_tmp_path: Path) -> Iterator[TpcBroker]:
    broker = TpcBroker(module_tmp_path, cores_count=2)
    broker.more_options = ["--admin", str(free_port_range(1))]
    try:
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 2, 1, config={"segment.bytes": str(SEGMENT_BYTES)})])["t"].result()
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "acks": "all"})
        for number in range(RECORDS):
            producer.produce("t", VALUE, partition=number % 2)
            assert producer.flush(PATIENCE_S) == 0
        broker.restart()  # everything is in the segments, and in a checkpoint that says so
        yield broker
    finally:
        broker.kill()


@pytest.fixture(scope="module")
def stopped(broker: TpcBroker) -> Path:
    """No test that wants it running comes behind the first of these."""
    broker.stop()
    return broker.data_folder


def scrub(data: Path, *more: str, code: int = 0) -> dict[str, Any]:
    done = run_here("scrub", "--data", str(data), "--rate", "1G", "--json", *more)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def segments(data: Path, partition: int = 0) -> list[Path]:
    return sorted((data / "topics" / f"t-{partition}").glob("*.log"))


class Flipped:
    """A file with some bytes changed, as long as the block lasts."""

    def __init__(self, path: Path, position: int, new: bytes) -> None:
        self._path, self._position, self._new = path, position, new

    def __enter__(self) -> None:
        with self._path.open("r+b") as file:
            file.seek(self._position)
            self._old = file.read(len(self._new))
            self._write(self._new)

    def __exit__(self, *_error: object) -> None:
        self._write(self._old)

    def _write(self, data: bytes) -> None:
        with self._path.open("r+b") as file:
            file.seek(self._position)
            file.write(data)


def batch_at(path: Path, number: int) -> tuple[int, int, int]:
    """Position, size and base offset of a batch."""
    data, position = path.read_bytes(), 0
    for _each in range(number):
        position += decode_header(data, position).size_bytes
    header = decode_header(data, position)
    return position, header.size_bytes, header.base_offset


def metric(broker: TpcBroker, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.more_options[-1]}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(name + " ")))


def test_sound_files_of_a_running_broker_are_all_read(broker: TpcBroker) -> None:
    found = scrub(broker.data_folder)
    stored = sum(path.stat().st_size for path in broker.data_folder.glob("topics/t-*/*.log"))
    assert (found["state"], found["damaged_count"], found["notes"]) == (FINISHED, 0, [])
    assert found["checked_bytes"] == found["total_bytes"] >= RECORDS * len(VALUE)
    assert found["checked_bytes"] >= stored - SEGMENT_BYTES * 2  # the ends of active ones may be space that is reserved
    text = run_here("scrub", "--data", str(broker.data_folder)).stdout
    assert text.endswith("segments checked; no damage found\n")


def test_damage_is_named_counted_and_told_until_it_is_gone(broker: TpcBroker) -> None:
    first = segments(broker.data_folder)[0]
    position, size, offset = batch_at(first, 5)
    before = {path: path.read_bytes() for path in segments(broker.data_folder)}
    with Flipped(first, position + 100, b"\0\xff\0"):
        damaged = {path: path.read_bytes() for path in segments(broker.data_folder)}
        done = run_here("scrub", "--data", str(broker.data_folder))
        assert done.returncode == 1
        name = f"topics/t-0/{first.name}"
        told = f"t-0 [{offset}, {offset + 1}): {name} at {position:,}: a batch whose checksum does not fit"
        assert f"  {told}\n" in done.stdout
        [one] = scrub(broker.data_folder, code=1)["damaged"]
        assert (one["position"], one["damaged_bytes"]) == (position, size)
        assert uuid.UUID(hex=one["topic_id"]).int, "another topic may get the name"
        assert told in run_here("status", "--data", str(broker.data_folder)).stdout
        assert metric(broker, "tpc_scrub_damaged") == 1
        assert {path: path.read_bytes() for path in segments(broker.data_folder)} == damaged
    assert scrub(broker.data_folder)["damaged_count"] == 0
    assert metric(broker, "tpc_scrub_damaged") == 0
    assert metric(broker, "tpc_scrub_finished_timestamp_seconds") > now_ms() / 1000 - 600
    assert {path: path.read_bytes() for path in segments(broker.data_folder)} == before


def test_each_damaged_stretch_of_a_file_is_told(broker: TpcBroker) -> None:
    first = segments(broker.data_folder, 1)[0]
    places = [batch_at(first, number) for number in (2, 3, 9)]
    with Flipped(first, places[0][0], bytes(places[0][1] + places[1][1])), Flipped(first, places[2][0] + 70, b"\0\0"):
        found = scrub(broker.data_folder, code=1)["damaged"]
    assert [(one["position"], one["damaged_bytes"], one["offset"], one["end_offset"]) for one in found] == [
        (places[0][0], places[0][1] + places[1][1], places[0][2], places[0][2] + 2),
        (places[2][0], places[2][1], places[2][2], places[2][2] + 1),
    ]
    assert found[0]["reason"] == "zeros where a batch should be"


@pytest.mark.parametrize("by", [-2, 1, 64, 1 << 62])
def test_a_batch_with_an_offset_of_another_place(broker: TpcBroker, by: int) -> None:
    """Offsets are not under the checksum."""
    first = segments(broker.data_folder)[0]
    position, size, offset = batch_at(first, 4)
    with Flipped(first, position, (offset + by).to_bytes(8, "big")):
        [one] = scrub(broker.data_folder, code=1)["damaged"]
        assert is_damaged(first, Damage(**one), ())
    assert (one["position"], one["damaged_bytes"]) == (position, size)
    assert (one["offset"], one["end_offset"]) == (offset, offset + 1)
    assert one["reason"] == f"a batch with offset {offset + by}, expected {offset}"
    assert not is_damaged(first, Damage(**one), ())


def test_a_batch_with_the_epoch_of_another_leader(broker: TpcBroker) -> None:
    """Nor are epochs."""
    first = segments(broker.data_folder)[0]
    position, size, offset = batch_at(first, 4)
    epoch = decode_header(first.read_bytes(), position).partition_leader_epoch
    epochs = [EpochStart(LeaderEpoch(epoch), Offset(0))]
    with Flipped(first, position + 12, (epoch ^ 64).to_bytes(4, "big")):
        [one] = scrub(broker.data_folder, code=1)["damaged"]
        assert is_damaged(first, Damage(**one), epochs)
    assert (one["position"], one["damaged_bytes"]) == (position, size)
    assert (one["offset"], one["end_offset"]) == (offset, offset + 1)
    assert one["reason"] == f"a batch of leader epoch {epoch ^ 64}, which did not write there"
    assert not is_damaged(first, Damage(**one), epochs)


def test_what_was_removed_since_the_checkpoint_is_no_damage(broker: TpcBroker, tmp_path: Path) -> None:
    """A backup makes one; then a topic is deleted, and another one trimmed to its end; retention takes the rest."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    names = ("gone", "trimmed")
    for made in admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
        made.result()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "acks": "all"})
    for number in range(6):
        producer.produce(names[number % 2], VALUE, partition=number // 2 % 2)
    assert producer.flush(PATIENCE_S) == 0
    assert run_here("backup", str(tmp_path / "b"), "--data", str(broker.data_folder)).returncode == 0
    admin.delete_topics(["gone"])["gone"].result()
    resource = ConfigResource(ResourceType.TOPIC, "trimmed", incremental_configs=[
        ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET),
    ])  # fmt: skip
    admin.incremental_alter_configs([resource])[resource].result()
    trimmed = [TopicPartition("trimmed", number, -1) for number in range(2)]
    for removed in admin.delete_records(trimmed).values():
        removed.result()
    files = [broker.data_folder / "topics" / f"{name}-{number}" for name in names for number in range(2)]
    eventually(lambda: not any((folder / f"{0:020}.log").exists() for folder in files), "the files are removed")
    found = scrub(broker.data_folder)
    assert (found["damaged_count"], found["damaged"]) == (0, [])
    admin.delete_topics(["trimmed"])["trimmed"].result()


def test_an_interrupted_scrub_says_so_and_keeps_what_was_known(broker: TpcBroker) -> None:
    last = segments(broker.data_folder, 1)[-2]
    with Flipped(last, batch_at(last, 1)[0] + 90, b"\1\2\3"):
        [known] = scrub(broker.data_folder, code=1)["damaged"]
    command = [sys.executable, "-m", "tpc_broker.process.main", "scrub", "--data", str(broker.data_folder)]
    child = subprocess.Popen([*command, "--rate", "1K"], stderr=subprocess.PIPE, text=True)
    eventually(lambda: (report := read_report(broker.data_folder)) and report.pid == child.pid, "its report")
    status = run_here("status", "--data", str(broker.data_folder)).stdout
    assert "scrub: under way, 0% checked; 1 DAMAGED\n" in status
    refused = run_here("scrub", "--data", str(broker.data_folder))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "another scrub" in refused.stderr
    child.send_signal(signal.SIGINT)
    assert child.wait(PATIENCE_S) == 130
    assert "interrupted" in child.communicate()[1]
    report = read_report(broker.data_folder)
    assert report is not None
    assert (report.state, report.damaged) == (INTERRUPTED, [Damage(**known)])
    assert scrub(broker.data_folder)["damaged"] == []


def test_a_stopped_broker_s_files_and_journals(stopped: Path) -> None:
    assert scrub(stopped)["damaged_count"] == 0
    active = segments(stopped)[-1]
    kept = active.read_bytes()
    active.write_bytes(kept[:-10])
    [one] = scrub(stopped, code=1)["damaged"]
    assert (one["reason"], one["end_offset"]) == ("the file ends 10 bytes too early", RECORDS // 2)
    active.unlink()
    [one] = scrub(stopped, code=1)["damaged"]
    assert (one["file"], one["reason"]) == (f"topics/t-0/{active.name}", "the file is missing")
    active.write_bytes(kept)
    journal = stopped / "journals" / "0001.journal"
    with Flipped(journal, 0, bytes(8192)):
        [one] = scrub(stopped, code=1)["damaged"]
    assert (one["file"], one["partition"]) == ("journals/0001.journal", "-")
    checkpoint = stopped / "journals" / "0001.checkpoint"
    with Flipped(checkpoint, 30, b"\xff\xff"):
        [one] = scrub(stopped, code=1)["damaged"]
    assert one["reason"] == "the CRC does not fit; nothing of its partitions was checked"
    assert scrub(stopped)["damaged_count"] == 0


def test_each_damaged_partition_is_told_however_many_stretches_there_are(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever repairs, or fills again from other replicas, goes by the report."""
    monkeypatch.setattr(limits, "SCRUB_DAMAGES_TOLD_MAX", 2)
    damaged = [segments(stopped, partition)[0] for partition in (0, 1)]
    places = [(path, batch_at(path, number)[0] + 100) for path in damaged for number in (2, 4, 6, 8)]
    with ExitStack() as stack:
        for path, position in places:
            stack.enter_context(Flipped(path, position, b"\0\xff\0"))
        Scrub(stopped, 1e12, lambda _checked, _total: None).run()
        found = read_report(stopped)
        assert found is not None
        assert (found.damaged_count, found.damaged_by_partition) == (8, {"t-0": 4, "t-1": 4})
        first, second, other = (one.partition for one in found.damaged)
        assert (first, {first, other}) == (second, {"t-0", "t-1"})
        assert report_lines(found)[-1] == "  … and 6 more"
        found.keep(found.damaged[2:])
        assert (found.damaged_count, found.damaged_by_partition) == (4, {other: 4}), "also what was not named"
    assert scrub(stopped)["damaged_count"] == 0


LONGEST = "t" * 249 + "-99999"


def damage_of(partition: str) -> Damage:
    path = f"topics/{partition}/00000000000000000000.log"
    reason = "the CRC does not fit; the batch is of another place, and nothing behind it could be read" * 2
    return Damage(partition, path, 1 << 40, 1 << 30, 1 << 62, 1 << 62, reason, "f" * 32, 1 << 42)


def test_a_report_of_as_much_as_can_be_named_is_read(tmp_path: Path) -> None:
    damages, partitions = limits.SCRUB_DAMAGES_TOLD_MAX, limits.SCRUB_PARTITIONS_TOLD_MAX + 10
    found = [damage_of(LONGEST)] * damages + [damage_of(f"{number:05}{LONGEST[5:]}") for number in range(partitions)]
    report = ScrubReport()
    report.tell(found, Counter(one.partition for one in found))
    write_report(tmp_path, report)
    read = read_report(tmp_path)
    assert read == report
    assert len(read.damaged_by_partition) == limits.SCRUB_PARTITIONS_TOLD_MAX
    assert read.damaged_count == damages + partitions


def test_of_each_named_partition_it_is_kept_that_it_was_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SCRUB_DAMAGES_TOLD_MAX", 2)
    found = [damage_of(f"t-{number}") for number in range(5)]
    report = ScrubReport()
    report.tell([replace(one, found_ms=1) for one in found], Counter(one.partition for one in found))
    write_report(tmp_path, report)
    for one in found:
        note_rebuilt(tmp_path, 0, one.partition, at_ms=2)
    read = read_report(tmp_path)
    assert read is not None
    assert (read.damaged, read.damaged_count) == ([], 0)


def test_a_sealed_segment_that_is_missing(stopped: Path) -> None:
    """Between two, in front of all, and where a repair has said that the records are lost."""
    first, second, third = segments(stopped)[:3]
    for lost, following in ((second, third), (first, second)):
        kept = lost.read_bytes()
        lost.unlink()
        try:
            [one] = scrub(stopped, code=1)["damaged"]
            assert (one["file"], one["reason"]) == (f"topics/t-0/{lost.name}", "no segment has these records")
            assert (one["offset"], one["end_offset"]) == (int(lost.stem), int(following.stem))
            (lost.parent / "lost-records").write_text(f"?\n{int(lost.stem)} {int(following.stem)}\n")
            assert scrub(stopped)["damaged_count"] == 0
            (lost.parent / "lost-records").write_text(f"{int(lost.stem) + 1} {int(following.stem)}\n")
            assert scrub(stopped, code=1)["damaged_count"] == 1
        finally:
            (lost.parent / "lost-records").unlink()
            lost.write_bytes(kept)
    assert scrub(stopped)["damaged_count"] == 0


def test_what_another_core_or_retention_took_is_not_missing(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = segments(stopped)[:2]
    states = [(core, state) for core in (CoreId(0), CoreId(1)) for state in Scrub(stopped, 1, print)._checkpoint(core)]
    owner, key = next((core, state.key) for core, state in states if (state.topic, state.partition) == ("t", 0))
    kept = first.read_bytes()
    first.unlink()
    try:
        for kind, core, offset, count in (
            (EntryKind.LOG_START, owner, int(second.stem), 0),
            (EntryKind.LOG_START, owner, int(second.stem) - 1, 1),
            (EntryKind.RELEASED, owner, 1, 0),
            (EntryKind.RELEASED, CoreId(1 - owner), 1, 1),
        ):
            journal = stopped / "journals" / f"{core:04}.journal"
            entry = JournalEntry(kind, 1, key, offset, 0, 0, 0)
            found = {journal: (entry,)}
            monkeypatch.setattr(scrub_module, "_entries", lambda path, found=found: found.get(path, ()))
            assert Scrub(stopped, 2**30, lambda _done, _total: None).run().damaged_count == count, kind
    finally:
        first.write_bytes(kept)


def test_records_below_the_log_s_start_need_not_be_anywhere(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were deleted while only the journal had them; the segment before has not been taken away yet."""
    _first, second, third = segments(stopped)[:3]
    checkpoint = Scrub._checkpoint

    def trimmed(scrub: Scrub, core: CoreId) -> list[Any]:
        found = checkpoint(scrub, core)
        return [replace(one, log_start_offset=int(third.stem)) if one.topic == "t" else one for one in found]

    kept = second.read_bytes()
    second.unlink()
    try:
        assert Scrub(stopped, 2**30, lambda _done, _total: None).run().damaged_count == 1
        monkeypatch.setattr(Scrub, "_checkpoint", trimmed)
        assert Scrub(stopped, 2**30, lambda _done, _total: None).run().damaged_count == 0
    finally:
        second.write_bytes(kept)


def test_what_retention_removes_meanwhile_is_no_damage(stopped: Path) -> None:
    first, second = segments(stopped)[:2]
    kept = {path: path.read_bytes() for path in (first, second)}

    class Removing(Scrub):
        """The first file goes while it is read, the second before."""

        def _spent(self, count: int) -> None:
            super()._spent(count)
            first.unlink(missing_ok=True)
            second.unlink(missing_ok=True)

    with first.open("r+b") as file:  # damage, so that it is looked at again
        file.seek(batch_at(first, 3)[0] + 80)
        file.write(b"\0\0\0")
    try:
        report = Removing(stopped, 2**30, lambda _done, _total: None).run()
        assert (report.state, report.damaged) == (FINISHED, [])
    finally:
        for path, data in kept.items():
            path.write_bytes(data)


def test_what_was_cut_since_the_checkpoint_is_no_damage(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a replica's records are, when another leader has others: the file is shorter than the checkpoint says."""
    active = segments(stopped)[-1]
    kept = active.read_bytes()
    *_earlier, last = (one for one in walk_headers(kept) if one[0].size_bytes)
    cut = last[0].base_offset
    active.write_bytes(kept[: last[1]])
    states = (state for core in (CoreId(0), CoreId(1)) for state in Scrub(stopped, 1, print)._checkpoint(core))
    (key,) = {state.key for state in states if (state.topic, state.partition) == ("t", 0)}
    try:
        for offset, count in ((cut, 0), (cut + 1, 1)):
            entry = JournalEntry(EntryKind.CUT, 1, key, offset, 0, 0, 0)
            monkeypatch.setattr(scrub_module, "_entries", lambda _path, entry=entry: (entry,))
            assert Scrub(stopped, 2**30, lambda _done, _total: None).run().damaged_count == count
    finally:
        active.write_bytes(kept)


@pytest.mark.parametrize("rate", ["0", "-1", "fast", "10T", "1e6", "", "0.0001"])
def test_a_wrong_rate_is_named(rate: str, tmp_path: Path) -> None:
    done = run_here("scrub", "--data", str(tmp_path), "--rate", rate)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"tpc-broker: --rate {rate}: expected bytes a second, such as 800000, 50M or 1.5G\n"


def test_a_folder_that_is_none_of_a_broker(tmp_path: Path) -> None:
    done = run_here("scrub", "--data", str(tmp_path))
    assert (done.returncode, done.stderr) == (2, f"tpc-broker: {tmp_path} is no data directory of a broker\n")
    assert list(tmp_path.iterdir()) == []


def test_any_stretch_of_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(number * 7 % 251 for number in range(10_001)))
    file = SegmentFile(path)
    for position, length in ((0, 10), (1, 4096), (4095, 2), (8192, 5000), (10_000, 1), (10_001, 5), (20_000, 5)):
        assert bytes(file.read(position, length)) == path.read_bytes()[position : position + length]
    file.close()


def test_a_file_that_there_is_no_memory_for_is_not_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")

    def refused(*_arguments: Any) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(mmap, "mmap", refused)
    with pytest.raises(OSError, match="memory"):
        SegmentFile(path)
    assert path.resolve() not in [one.resolve() for one in Path("/proc/self/fd").iterdir()]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"state": 1}', "\xff"])
def test_a_report_that_cannot_be_read_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "scrub.json").write_text(text, encoding="latin-1")
    assert read_report(tmp_path) is None
