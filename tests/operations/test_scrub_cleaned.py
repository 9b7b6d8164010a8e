"""`tpc-broker scrub` and cleaned segments: they are held against their seals, and nothing else may have gaps."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cleaned_folder import Cleaned, make_cleaned, swap, swap_steps
from tests.support.segment_log import Log
from tpc_broker.log.batch import walk_headers
from tpc_broker.log.files import segment_file_name
from tpc_broker.log.indexes import AbortedTransaction, TransactionIndex
from tpc_broker.native_bytes import find_batches_end
from tpc_broker.node.replicas.damaged import is_damaged
from tpc_broker.operations import scrub as scrub_module
from tpc_broker.operations.scrub import Scrub
from tpc_broker.storage.recovery.scrub_report import Damage

SEGMENTS = (0, 10, 20)
END = 30


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Three sealed segments of ten batches, and an active one; a broker seems to run on them."""
    log = Log(tmp_path / "data")
    for base in SEGMENTS:
        for number in range(10):
            log.values(b"%d" % (base + number) * 20)
        log.roll()
    log.values(b"active")
    log.checkpoint()
    lock = (tmp_path / "data" / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield log
    lock.close()


def scrub(log: Log) -> list[Damage]:
    report = Scrub(log.folder, 2**30, lambda _done, _total: None).run()
    assert report.damaged_count == len(report.damaged)
    return report.damaged


def cleaned(log: Log, bases: tuple[int, ...] = (0,), end: int = 10, **how: object) -> Cleaned:
    return make_cleaned(log.place, bases, end, **how)  # type: ignore[arg-type]


def path_of(log: Log, base: int, suffix: str = ".log") -> Path:
    return log.place / segment_file_name(base, suffix)


def test_a_wrong_index_of_aborted_transactions_is_damage(log: Log) -> None:
    """Of a segment without a seal its own checksum says it."""
    index = TransactionIndex([AbortedTransaction(7, 1, 2, 3)])
    data = bytearray(index.encode() + index.encode_end())
    path = path_of(log, 0, ".txnindex")
    path.write_bytes(data)
    path_of(log, 10, ".txnindex").write_bytes(index.encode())
    assert scrub(log) == []
    data[12] ^= 4
    path.write_bytes(data)
    (damage,) = scrub(log)
    assert (damage.file, damage.reason) == (f"topics/{log.place.name}/{path.name}", "its checksum is wrong")


def test_gaps_are_right_in_a_cleaned_segment_and_behind_its_last_batch(log: Log) -> None:
    swap(log.place, cleaned(log))
    swap(log.place, cleaned(log, (10,), 20, keep=lambda _header, _batch: None, number=2))
    assert path_of(log, 10).stat().st_size == 0
    assert scrub(log) == []


def test_merged_segments_leave_no_hole(log: Log) -> None:
    swap(log.place, cleaned(log, SEGMENTS[:2], 20))
    assert not path_of(log, 10).exists()
    assert scrub(log) == []


def test_the_same_files_without_the_seal_are_damaged(log: Log) -> None:
    """Gaps are right nowhere else."""
    swap(log.place, cleaned(log))
    path_of(log, 0, ".seal").unlink()
    found = scrub(log)
    assert found
    assert found[0].reason == "a batch with offset 2, expected 1"
    assert found[0].file == "topics/t-0/00000000000000000000.log"


def test_a_segment_that_is_missing_behind_a_cleaned_one(log: Log) -> None:
    swap(log.place, cleaned(log))
    path_of(log, 10).unlink()
    [one] = scrub(log)
    assert (one.reason, one.offset, one.end_offset, one.is_gap) == ("no segment has these records", 10, 20, True)


@pytest.mark.parametrize("position", [8, 70, 200])
def test_a_byte_that_differs(log: Log, position: int) -> None:
    """Also of an offset, which no batch's checksum covers, in a log where any offset that rises would do."""
    swap(log.place, cleaned(log))
    path = path_of(log, 0)
    data = bytearray(path.read_bytes())
    data[position - 1] ^= 1
    path.write_bytes(data)
    found = scrub(log)
    assert found
    assert all(one.file.endswith("0.log") for one in found)
    assert is_damaged(path, found[0], ())


def test_an_offset_that_still_rises_is_noticed_by_the_seal_alone(log: Log) -> None:
    swap(log.place, cleaned(log))
    path = path_of(log, 0)
    data = bytearray(path.read_bytes())
    *_earlier, (header, last) = walk_headers(bytes(data))
    data[last + 7] = header.base_offset + 1
    path.write_bytes(data)
    [one] = scrub(log)
    assert one.reason == "its checksum is not the one of its seal"
    assert (one.position, one.offset, one.end_offset) == (0, 0, 10)
    assert is_damaged(path, one, ())


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
def test_an_index_that_is_not_the_seal_s(log: Log, suffix: str, how: str) -> None:
    swap(log.place, cleaned(log))
    path = path_of(log, 0, suffix)
    data = path.read_bytes()
    assert data
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if how == "cut" else bytes([data[0] ^ 1]) + data[1:])
    [one] = scrub(log)
    assert (one.file, one.offset) == (f"topics/t-0/{path.name}", 0)


def test_a_log_that_is_cut_off_between_two_batches(log: Log) -> None:
    swap(log.place, cleaned(log))
    path = path_of(log, 0)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 5 * 3])
    [one] = scrub(log)
    assert one.reason.startswith(f"it has {len(data) // 5 * 3:,} bytes, and {len(data):,} by its seal")


@pytest.mark.parametrize("damage", [b"", b"\0" * 300, b"tpc-seal 1 00000000 {}\n"])
def test_a_damaged_seal(log: Log, damage: bytes) -> None:
    swap(log.place, cleaned(log))
    path = path_of(log, 0, ".seal")
    path.write_bytes(damage)
    [one] = scrub(log)
    assert one.file == "topics/t-0/00000000000000000000.seal"
    assert is_damaged(log.folder / one.file, one, ())


def test_each_state_of_a_swap_that_was_cut_short_is_sound(log: Log) -> None:
    """As recovery would finish it: what is there of the old files counts for nothing once the seal is there."""
    count = 0
    for _step in swap_steps(log.place, cleaned(log, SEGMENTS, END)):
        assert scrub(log) == [], _step
        count += 1
    assert count >= 18
    assert [path.name for path in log.place.glob("*.cleaned-*")] == []


def test_what_the_swap_has_still_to_bring_is_looked_at(log: Log) -> None:
    made = cleaned(log, SEGMENTS, END)
    for step in swap_steps(log.place, made):
        if step == "sealed":
            break
    path = log.place / made.made_names()[0]
    data = bytearray(path.read_bytes())
    data[150] ^= 1
    path.write_bytes(data)
    assert [one.offset for one in scrub(log)] == [1]


@pytest.mark.parametrize("upto", ["sealed", "renamed 00000000000000000000.log.cleaned-0000000000000001", "end"])
def test_a_segment_that_is_swapped_while_it_is_scrubbed_is_looked_at_again(log: Log, upto: str) -> None:
    steps = swap_steps(log.place, cleaned(log, SEGMENTS, END))
    with path_of(log, 0).open("r+b") as file:  # damage in what is replaced, so that it is looked at again
        file.seek(150)
        file.write(b"\xff")

    class Swapping(Scrub):
        def _spent(self, count: int) -> None:
            super()._spent(count)
            for step in steps:
                if step == upto:
                    break

    report = Swapping(log.folder, 2**30, lambda _done, _total: None).run()
    assert report.damaged == []


def test_damage_in_what_came_meanwhile_is_told(log: Log) -> None:
    made = cleaned(log, SEGMENTS, END)

    class Swapping(Scrub):
        def _spent(self, count: int) -> None:
            super()._spent(count)
            if not path_of(log, 0, ".seal").exists():
                swap(log.place, made)
                with path_of(log, 0).open("r+b") as file:
                    file.seek(150)
                    file.write(b"\xff")

    with path_of(log, 0).open("r+b") as file:
        file.seek(200)
        file.write(b"\xff")
    report = Swapping(log.folder, 2**30, lambda _done, _total: None).run()
    assert [one.file for one in report.damaged] == ["topics/t-0/00000000000000000000.log"]


def test_a_seal_whose_segment_is_gone_is_none(log: Log) -> None:
    """Retention takes the log first."""
    swap(log.place, cleaned(log))
    path_of(log, 0).unlink()
    log.checkpoint(log_start_offset=10)
    assert scrub(log) == []


def test_gaps_that_are_allowed_everywhere_are_noticed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the checks: what a scrub without seals would call sound."""
    data = path_of(log, 0).read_bytes()
    places = [place for _header, place in walk_headers(data)]
    path_of(log, 0).write_bytes(data[: places[3]] + data[places[4] :])
    assert [one.offset for one in scrub(log)] == [3]
    monkeypatch.setattr(scrub_module._Walk, "_in_place", lambda _walk, data, **_how: find_batches_end(data, -1))
    assert scrub(log) == []
