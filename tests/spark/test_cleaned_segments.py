"""Cleaned segments read without a broker: every version of a segment is whole, and a gap is no loss."""

import json
import random

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tests.spark.segment_log import Log
from tests.spark.test_segments import make_reader, read
from tests.support.cleaned_folder import emptied, make_cleaned, swap, swap_steps
from tests.support.record_batches import batch as made_batch
from tpc_broker.client.errors import DamagedDataError, OffsetsMissingError
from tpc_broker.kafka import records as codec
from tpc_broker.kafka.compression import Compression
from tpc_broker.log.batch import decode_header
from tpc_broker.log.files import segment_file_name
from tpc_broker.spark import segments as segments_module
from tpc_broker.spark import swapped


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path)
    for number in range(30):
        if number in (10, 20):
            log.roll()
        log.values(b"%d" % number * 10, compression=Compression(number % 5))
    log.checkpoint()
    return log


def path_of(log, base, suffix=".log"):
    return log.place / segment_file_name(base, suffix)


def offsets(reader, tasks):
    return [row["offset"] for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


EVEN = [offset for offset in range(30) if offset % 2 == 0 or offset >= 20]


def test_gaps_are_no_losses(log):
    """Inside, at the ends of the ranges that are asked for, and of a segment that was cleaned to nothing."""
    swap(log.place, make_cleaned(log.place, (0,), 10))
    assert [offset for offset, _value in read(log)] == [0, 2, 4, 6, 8, *range(10, 30)]
    swap(log.place, make_cleaned(log.place, (10,), 20, keep=lambda _header, _batch: None, number=2))
    kept = [0, 2, 4, 6, 8, *range(20, 30)]
    for first, end in ((0, 30), (1, 2), (9, 10), (3, 14), (11, 19), (9, 21), (19, 30)):
        asked = {"startingOffsets": json.dumps({"t": {"0": first}}), "endingOffsets": json.dumps({"t": {"0": end}})}
        for more in ({}, {"maxRecordsPerPartition": 3}):
            found = [offset for offset, _value in read(log, **asked, **more)]
            assert found == [offset for offset in kept if first <= offset < end], (first, end, more)


def test_a_stretch_of_a_limit_that_lies_in_a_gap_is_done(log):
    """A limit goes by offsets: what it leaves for a batch may be a gap, and the next one goes on behind it."""
    cleaned = make_cleaned(log.place, (0, 10), 20, keep=lambda header, kept: None if header.base_offset % 7 else kept)
    swap(log.place, cleaned)
    rows, at = [], 0
    while at < 30:
        asked = {"startingOffsets": json.dumps({"t": {"0": at}}), "endingOffsets": json.dumps({"t": {"0": at + 3}})}
        reader = make_reader(log, **asked)
        rows += offsets(reader, reader.partitions())
        at += 3
    assert rows == [0, 7, 14, *range(20, 30)]


def test_each_step_of_a_swap_between_planning_and_reading(log):
    """Also of one that was cut short: each segment is what was there before or what is there after it, and whole."""
    cleaned = make_cleaned(log.place, (0, 10), 20)
    before, reader = list(range(30)), make_reader(log)
    planned = reader.partitions()
    seen = set()
    for step in swap_steps(log.place, cleaned):
        for tasks in (planned, make_reader(log).partitions()):
            found = offsets(reader, tasks)
            assert found in (before, [*EVEN[:5], *before[10:]], EVEN), step
            seen.add(len(found))
    assert offsets(reader, planned) == EVEN
    assert seen >= {len(before), len(EVEN)}


@pytest.mark.parametrize("seed", range(20))
def test_a_swap_at_any_moment_of_a_read(log, seed, monkeypatch):
    """Between any two looks at the folder."""
    rng = random.Random(seed)
    cleaned = make_cleaned(log.place, (0, 10), 20)
    steps = swap_steps(log.place, cleaned)
    real = {name: getattr(swapped, name) for name in ("read_seal", "_names_now", "_is_at", "_names")}

    def meanwhile(name):
        def look(*arguments):
            for _step in range(rng.choice([0, 0, 0, 1, 2, 9])):
                next(steps, None)
            return real[name](*arguments)

        return look

    for name in real:
        monkeypatch.setattr(swapped, name, meanwhile(name))
    for _round in range(4):
        found = [offset for offset, _value in read(log, maxRecordsPerPartition=rng.choice([3, 10, 30]))]
        assert found[-10:] == list(range(20, 30))
        assert set(found) >= set(EVEN)
        assert found == sorted(found)


def test_a_smaller_log_with_the_old_index_is_not_cut_off(log, monkeypatch):
    """The index is read, and then the log is another file."""
    cleaned = make_cleaned(log.place, (0,), 10, keep=lambda header, kept: kept if header.base_offset == 4 else None)
    swapping = [lambda: swap(log.place, cleaned)]
    real = swapped._is_same

    def late(*arguments):
        if swapping:
            swapping.pop()()
        return real(*arguments)

    monkeypatch.setattr(swapped, "_is_same", late)
    assert [offset for offset, _value in read(log)] == [4, *range(10, 30)]


def test_a_cleaned_file_that_was_cut_is_cut(log):
    swap(log.place, make_cleaned(log.place, (0,), 10))
    path = path_of(log, 0)
    data = path.read_bytes()
    last = max(place for header, place in segments_of(data))
    path.write_bytes(data[:last])
    with pytest.raises(DamagedDataError, match=r"t-0, offset 7: .*00000.log is cut off there"):
        read(log)


def segments_of(data):
    place = 0
    while place < len(data):
        header = decode_header(data, place)
        yield header, place
        place += header.size_bytes


@pytest.mark.parametrize("damage", [b"", b"\xff" * 40])
def test_an_index_that_is_not_the_seal_s_is_not_believed(log, damage):
    swap(log.place, make_cleaned(log.place, (0,), 10))
    path_of(log, 0, ".index").write_bytes(damage)
    for first in range(10):
        asked = {"startingOffsets": json.dumps({"t": {"0": first}})}
        kept = [offset for offset in (0, 2, 4, 6, 8, *range(10, 30)) if offset >= first]
        assert [offset for offset, _value in read(log, **asked)] == kept


def test_the_checkpointed_segment_was_merged_into_another_one_since(log):
    """The checkpoint that was read is older than the swap."""
    log.roll()
    log.values(b"behind the checkpoint")
    cleaned = make_cleaned(log.place, (10, 20), 30, keep=lambda header, kept: kept if header.base_offset % 2 else None)
    swap(log.place, cleaned)
    kept = [*range(10), *(number for number in range(10, 30) if number % 2)]
    assert [offset for offset, _value in read(log)] == kept


def test_a_hole_that_no_seal_explains_is_a_loss(log):
    path_of(log, 0).unlink()
    reader = make_reader(log)
    with pytest.raises(OffsetsMissingError):
        read(log, startingOffsets=json.dumps({"t": {"0": 3}}))
    assert reader.partitions()


def transactional(log, *values):
    log.values(*values, transactional=True)


def test_a_marker_that_was_cleaned_away_does_not_hide_what_is_committed_later(tmp_path):
    """The aborted list was planned before: it ends where the marker was, though no marker says so any more."""
    log = Log(tmp_path)
    transactional(log, b"aborted")
    log.end(codec.ControlType.ABORT)
    transactional(log, b"committed")
    log.end(codec.ControlType.COMMIT)
    log.roll()
    log.values(b"active")
    log.checkpoint()
    committed = {"isolation__level": "read_committed"}
    reader = make_reader(log, **committed)
    planned = reader.partitions()
    cleaned = make_cleaned(log.place, (0,), 4, keep=lambda header, kept: kept if header.base_offset >= 2 else None)
    swap(log.place, cleaned)
    assert offsets(reader, planned) == [2, 4]
    assert [offset for offset, _value in read(log, **committed)] == [2, 4]


def test_neighbouring_versions_of_data_and_aborted_list_may_be_mixed(tmp_path):
    """First the data of an aborted transaction go, then its entry, then its marker."""
    log = Log(tmp_path)
    log.values(b"plain")
    transactional(log, b"aborted")
    log.values(b"plain")
    log.end(codec.ControlType.ABORT)
    transactional(log, b"committed")
    log.end(codec.ControlType.COMMIT)
    log.roll()
    log.values(b"active")
    log.checkpoint()
    committed = {"isolation__level": "read_committed"}
    steps = [
        {"keep": lambda header, kept: None if header.base_offset == 1 else kept},
        {"keep": lambda _header, kept: kept, "keep_aborted": lambda _entry: False},
        {"keep": lambda header, kept: None if header.base_offset == 3 else kept},
    ]
    for number, how in enumerate(steps, start=1):
        reader = make_reader(log, **committed)
        planned = reader.partitions()
        swap(log.place, make_cleaned(log.place, (0,), 6, number=number, **how))
        assert offsets(reader, planned) == offsets(reader, reader.partitions()) == [0, 2, 4, 6]


def test_emptied_batches_hold_no_rows(tmp_path):
    """Of a transaction, a marker, and one that was compressed once."""
    log = Log(tmp_path)
    transactional(log, b"aborted")
    log.end(codec.ControlType.ABORT)
    log.values(b"plain", b"plain", compression=Compression.GZIP)
    log.values(b"kept")
    log.roll()
    log.values(b"active")
    log.checkpoint()

    def keep(header, kept):
        if header.base_offset == 4:
            return kept
        return made_batch(
            [], base_offset=header.base_offset, attributes=header.attributes & ~7, records_count=0,
            last_offset_delta=header.last_offset_delta, producer=(header.producer_id, header.producer_epoch, 0),
        )  # fmt: skip

    swap(log.place, make_cleaned(log.place, (0,), 5, keep=keep))
    for isolation in ("read_committed", "read_uncommitted"):
        assert [offset for offset, _value in read(log, isolation__level=isolation)] == [4, 5]
    swap(log.place, make_cleaned(log.place, (0,), 5, keep=lambda header, _kept: emptied(header), number=2))
    assert [offset for offset, _value in read(log)] == [5]


def test_times_are_found_in_cleaned_segments(log):
    swap(log.place, make_cleaned(log.place, (0, 10), 20))
    now_ms = log.now_ms
    for start in range(30):
        rows = read(log, startingTimestamp=now_ms + start)
        assert [offset for offset, _value in rows] == [offset for offset in EVEN if offset >= start]


def test_times_are_found_in_a_swap_that_was_cut_short(log):
    """The old index of times is there still, of a segment that has the records of two now."""
    cleaned = make_cleaned(log.place, (0, 10), 20)
    for step in swap_steps(log.place, cleaned):
        for start in range(20):
            first = read(log, startingTimestamp=log.now_ms + start)[0][0]
            assert first in (start, min(offset for offset in EVEN if offset >= start)), step


def test_sizes_are_estimates_that_need_no_offsets(log):
    """A segment with one record in two thousand million offsets is as large as its file."""
    swap(log.place, make_cleaned(log.place, (0, 10), 20))
    folder = segments_module.PartitionFolder(log.folder, log.entry())
    pieces = list(folder.pieces(0, 30, segments_module.Isolation.READ_UNCOMMITTED))
    assert [piece.size_bytes for piece in pieces] == [path_of(log, base).stat().st_size for base in (0, 20)]
