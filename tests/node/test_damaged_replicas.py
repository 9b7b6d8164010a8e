"""What a scrub says of files that cannot be opened, or are missing, is looked at before a replica is given up."""

from __future__ import annotations

import errno
import os
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.support.record_batches import Record, batch
from tpc_broker.engine.clocks import SystemClock
from tpc_broker.engine.trio_ring import run
from tpc_broker.log.files import LOG_SUFFIX, segment_file_name
from tpc_broker.model import NO_NODE, CoreId, NodeId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.node.replicas import damaged as damaged_module
from tpc_broker.node.replicas.core_replicas import CoreReplicas, group_of
from tpc_broker.node.replicas.damaged import DamagedReplicas, is_damaged, is_missing
from tpc_broker.node.replicas.replication import CoreReplication
from tpc_broker.raft.items import Address
from tpc_broker.storage.recovery.scrub_report import Damage, ScrubReport, note_rebuilt, read_report, write_report

NAME = "t-0"
KEY = TopicPartition(TopicId(uuid.UUID(int=5)), PartitionIndex(0))
BASES = (0, 3, 6, 9)
"""Three batches in each segment."""
SIZE = 3 * len(batch([Record(value=b"v")]))
TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES)
LASTING = (errno.ENOENT, errno.EIO, errno.EUCLEAN, errno.ENODATA, errno.EILSEQ)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "topics" / NAME
    made.mkdir(parents=True)
    for base in BASES:
        write(made, base)
    return made


def write(folder: Path, base: int, end: int = 0) -> None:
    batches = [batch([Record(value=b"v")], base_offset=number) for number in range(base, end or base + 3)]
    log_of(folder, base).write_bytes(b"".join(batches))


def log_of(folder: Path, base: int) -> Path:
    return folder / segment_file_name(base, LOG_SUFFIX)


def damage_in(base: int, position: int, length: int, end_offset: int, reason: str) -> Damage:
    name = f"topics/{NAME}/{segment_file_name(base, LOG_SUFFIX)}"
    return Damage(NAME, name, position, length, base, end_offset, reason)


def gap(folder: Path, first: int, end: int) -> Damage:
    """As the scrub tells of it."""
    before = max((base for base in BASES if base < first), default=-1)
    position = log_of(folder, before).stat().st_size if before >= 0 else 0
    return damage_in(first, position, 0, end, "no segment has these records")


def unopened(base: int, number: int) -> Damage:
    return damage_in(base, 0, 0, -1, f"cannot be opened: {os.strerror(number)}")


class Found:
    """`DamagedReplicas` of a core with one replica, whose segments are those of the folder at first."""

    def __init__(self, folder: Path, damage: Damage) -> None:
        self.segments = {base: SimpleNamespace(base_offset=base, size_bytes=SIZE, seal=None) for base in BASES}
        self.files: Any = SimpleNamespace(
            folder=SimpleNamespace(path=folder), segments=tuple(self.segments.values()), log_start_offset=0,
            written_end_offset=12, epochs=SimpleNamespace(entries=()),
        )  # fmt: skip
        data = folder.parent.parent
        self.is_open = True
        self.asked: list[str] = []
        """Of which replicas others were asked."""

        async def ask(_address: Any, _method: str, payload: dict[str, Any]) -> dict[str, Any]:
            self.asked.append(payload["group"])
            return {}

        topic = SimpleNamespace(name="t", is_replicated=lambda _index: True, life_of=lambda *_: 0,
                                replicas=[[SimpleNamespace(node=1), Address(NodeId(2), CoreId(0))]])  # fmt: skip
        replicas: Any = SimpleNamespace(
            open_files=lambda: [(KEY, self.files)] if self.is_open else [],
            files_of=lambda _key: self.files if self.is_open else None,
            image=SimpleNamespace(topic_by_id=lambda _id: topic), look_at=lambda _key: None, node=1,
            group_name=str, want_links=lambda _addresses: None, links=SimpleNamespace(ask=ask),
            core_id=CoreId(0),
        )  # fmt: skip
        self.replicas = DamagedReplicas(replicas, SimpleNamespace(), data, SystemClock())
        write_report(data, ScrubReport(damaged=[damage], damaged_count=1))

    def restart(self, *lost: int) -> None:
        """The segments are listed anew."""
        self.files.segments = tuple(one for base, one in self.segments.items() if base not in lost)

    def give_up(self) -> None:
        run(self.replicas._give_up_damaged)

    def look(self) -> bool:
        """Whether the replica is to be given up."""
        run(self.replicas._look_at_scrub)
        return bool(self.replicas._found)


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Nothing can be opened any more, with that error; by 0 again."""
    opened = os.open

    def begin(number: int) -> None:
        def refused(path: Any, *arguments: Any, **more: Any) -> int:
            if number and str(path).endswith(LOG_SUFFIX):
                raise OSError(number, os.strerror(number), str(path))
            return opened(path, *arguments, **more)

        monkeypatch.setattr(os, "open", refused)

    return begin


def test_what_was_found_in_files_of_before_is_told_no_more_when_the_replica_was_rebuilt(folder: Path) -> None:
    """And what is found later in the new ones is."""
    data = folder.parent.parent
    damage = damage_in(3, 100, 50, 5, "a flipped bit")
    other = replace(damage, partition="u-0")
    found = Found(folder, damage)
    before = ScrubReport(started_ms=1, damaged=[damage, other], damaged_count=7)
    write_report(data, before)
    assert told(data) == (7, {"t-0", "u-0"})
    run(found.replicas._note_rebuilt, "t-0")
    assert told(data) == (6, {"u-0"})
    note_rebuilt(data, 1, "u-0", SystemClock.wall_ms())
    assert told(data) == (5, set())
    later = replace(damage, found_ms=1 << 50)
    write_report(data, replace(before, damaged=[later], damaged_count=1))
    assert told(data) == (1, {"t-0"})
    (data / "scrub-rebuilt-0.json").write_text("[no JSON")
    write_report(data, before)
    assert told(data) == (6, {"t-0"})


def told(data: Path) -> tuple[int, set[str]]:
    report = read_report(data)
    assert report is not None
    return report.damaged_count, {one.partition for one in report.damaged}


@pytest.mark.parametrize("number", [*TRANSIENT, *LASTING])
def test_a_file_that_can_be_opened_again_is_not_damaged(folder: Path, number: int) -> None:
    damage = unopened(3, number)
    assert not is_damaged(folder.parent.parent / damage.file, damage, ())
    assert not Found(folder, damage).look()


@pytest.mark.parametrize("number", LASTING)
def test_a_file_that_still_cannot_be_opened_is_damaged(folder: Path, refuse: Any, number: int) -> None:
    found = Found(folder, unopened(3, number))
    refuse(number)
    assert found.look()


@pytest.mark.parametrize("number", TRANSIENT)
@pytest.mark.parametrize("is_sound", [True, False])
def test_what_cannot_be_looked_at_now_is_looked_at_again(
    folder: Path, refuse: Any, number: int, *, is_sound: bool
) -> None:
    """It tells nothing of the files, and the scrub's finding is not forgotten."""
    length = log_of(folder, 3).stat().st_size
    if not is_sound:
        log_of(folder, 3).write_bytes(bytes(length))
    found = Found(folder, damage_in(3, 0, length, 6, "zeros where a batch should be"))
    refuse(number)
    for _each in range(2):
        assert not found.look()
    refuse(0)
    assert found.look() is not is_sound


@pytest.mark.parametrize("lost", [(0,), (3,), (3, 6), (0, 3, 6)])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_segments_that_are_missing(folder: Path, lost: tuple[int, ...], *, is_restarted: bool) -> None:
    """Also when the one before is as long, and when the core's own list has them no more."""
    damage = gap(folder, lost[0], lost[-1] + 3)
    for base in lost:
        log_of(folder, base).unlink()
    found = Found(folder, damage)
    if is_restarted:
        found.restart(*lost)
    assert is_missing(folder, damage, 0)
    assert found.look()


@pytest.mark.parametrize("first", [0, 3])
def test_a_segment_that_is_there_again_is_not_missing(folder: Path, first: int) -> None:
    damage = gap(folder, first, first + 3)
    assert not is_missing(folder, damage, 0)
    assert not Found(folder, damage).look()
    log_of(folder, first).write_bytes(b"")
    assert is_missing(folder, replace(damage, position=0), 0)


def test_another_segment_has_the_records_now(folder: Path) -> None:
    """The replica was filled by another one, whose segments are others."""
    damage = gap(folder, 3, 6)
    log_of(folder, 3).unlink()
    write(folder, 0, 6)
    assert not is_missing(folder, damage, 0)
    assert not Found(folder, damage).look()


def test_records_that_need_not_be_there_any_more(folder: Path) -> None:
    damage = gap(folder, 3, 6)
    log_of(folder, 3).unlink()
    found = Found(folder, damage)
    found.files.log_start_offset = 6  # deleted
    assert not found.look()
    found = Found(folder, damage)
    found.files.log_start_offset, found.files.written_end_offset = 0, 3  # cut
    assert not found.look()
    (folder / "lost-records").write_text("3 6\n")  # given up by a repair
    assert not Found(folder, damage).look()
    (folder / "lost-records").write_text("3 5\n")
    assert Found(folder, damage).look()


@pytest.mark.parametrize("start", [4, 5])
def test_what_is_left_of_a_gap_that_the_log_begins_in(folder: Path, start: int) -> None:
    """The segment in front of it may have been removed by then."""
    damage = gap(folder, 3, 6)
    log_of(folder, 3).unlink()
    found = Found(folder, damage)
    found.files.log_start_offset = start
    assert found.look()
    log_of(folder, 0).unlink()
    assert Found(folder, damage).look()


def test_files_that_were_opened_anew_meanwhile_are_looked_at_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_of(folder, 3).write_bytes(b"")
    found = Found(folder, damage_in(3, 0, 200, 6, "the file ends too early"))
    earlier = found.files
    look = is_damaged

    def opened_anew(*arguments: Any) -> bool:
        found.files = SimpleNamespace(**vars(earlier))
        found.files.epochs = SimpleNamespace(entries=(), again=found.files)
        return look(*arguments)

    monkeypatch.setattr(damaged_module, "is_damaged", opened_anew)
    assert not found.look()
    monkeypatch.undo()
    assert found.look()


@pytest.mark.parametrize(
    ("topic_id", "is_of_it"), [("", True), (KEY.topic_id.hex, True), (uuid.UUID(int=6).hex, False)]
)
def test_what_was_found_in_a_topic_of_that_name_that_was_deleted(
    folder: Path, topic_id: str, *, is_of_it: bool
) -> None:
    """Where its batches began is in the midst of others now."""
    damage = replace(damage_in(3, SIZE // 2, SIZE // 6, 5, "a batch whose checksum does not fit"), topic_id=topic_id)
    assert Found(folder, damage).look() is is_of_it


@pytest.mark.parametrize("change", ["segments", "log_start_offset", "epochs"])
def test_files_that_were_changed_meanwhile_are_looked_at_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A cut and what is appended behind it, say: what was read may have been neither."""
    log_of(folder, 3).write_bytes(b"")
    found = Found(folder, damage_in(3, 0, 200, 6, "the file ends too early"))
    look = is_damaged

    def changed(*arguments: Any) -> bool:
        if change == "segments":
            found.files.segments = found.files.segments[1:]
        elif change == "epochs":
            found.files.epochs = SimpleNamespace(entries=((1, 0),))
        else:
            found.files.log_start_offset = 2
        return look(*arguments)

    monkeypatch.setattr(damaged_module, "is_damaged", changed)
    assert not found.look()
    monkeypatch.undo()
    assert found.look()


@pytest.mark.parametrize("is_looked_at_before", [False, True])
def test_what_was_found_in_a_replica_that_is_not_open_is_looked_at_when_it_is(
    folder: Path, *, is_looked_at_before: bool
) -> None:
    """At a start, say: thousands of replicas are opened by and by."""
    log_of(folder, 3).unlink()
    found = Found(folder, gap(folder, 3, 6))
    found.is_open = False
    if is_looked_at_before:
        assert not found.look()
        assert not found.look()
    found.is_open = True
    found.replicas.opened("another-0")
    assert found.look() is not is_looked_at_before
    found.replicas.opened(NAME)
    assert found.look()


def test_it_is_said_that_a_replica_takes_part() -> None:
    told: list[Any] = []
    made: Any = object.__new__(CoreReplication)
    machine = SimpleNamespace(votes_alone=False)
    made._driver = driver = Mock(core=Mock(groups={group_of(KEY): machine}))
    made.replicas = CoreReplicas(CoreId(0), Mock(), Mock(), SystemClock())
    made.replicas.begin(Mock(node=1, incarnation=1), driver, Mock())
    made.damaged = SimpleNamespace(opened=lambda label: told.append((label, made.replicas.replicas_here())))
    places = [Address(NodeId(2), CoreId(0))]
    name, _, _partition = NAME.rpartition("-")
    topic = SimpleNamespace(
        name=name, voters=[[(2, 1)]], places=lambda _index: places, life_of=lambda *_: 0,
        first_leader=lambda _index: NO_NODE,
    )  # fmt: skip
    made.add(topic, KEY, SimpleNamespace(leader_epoch=1), 9)
    assert told == [(NAME, [KEY])]


def test_a_report_that_cannot_be_read_now_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of descriptors, which says nothing of what is in it."""
    log_of(folder, 3).unlink()
    found = Found(folder, gap(folder, 3, 6))
    with monkeypatch.context() as patch:
        patch.setattr(damaged_module, "read_report", lambda _data: None)
        assert not found.look()
    assert found.look()


def test_a_replica_that_began_anew_meanwhile_is_not_given_up(folder: Path) -> None:
    """Others are asked for one after the other, which may take seconds."""
    log_of(folder, 3).unlink()
    found = Found(folder, gap(folder, 3, 6))
    assert found.look()
    found.give_up()
    assert found.asked == [str(KEY)]
    found.files = SimpleNamespace(**vars(found.files))
    found.give_up()
    assert found.asked == [str(KEY)]
