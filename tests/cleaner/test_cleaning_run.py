"""A cleaning job over files: what it takes, what it leaves, and when it ends early."""

import errno
import os
from random import Random

import pytest

from tests.support.cleaned_logs import CleanedLog
from tests.support.descriptors import descriptors_left, open_descriptors
from tests.support.record_batches import LOG_APPEND_TIME, LZ4, ZSTD, Record, batch, encode_record
from tpc_broker.cleaner import cleaning_run, log_writer
from tpc_broker.cleaner.cleaning_run import CleaningStoppedError, SourceChangedError, clean
from tpc_broker.kafka.compression import compress_small
from tpc_broker.log import cleaned_segment
from tpc_broker.log.cleaning import KEY_BYTES
from tpc_broker.log.files import cleaned_file_name, segment_file_name


@pytest.fixture
def log(tmp_path):
    """Three segments of three batches each, with one key: of each segment one batch stays, and one of all."""
    log = CleanedLog(tmp_path)
    for segment in range(3):
        made = [batch([Record(b"%d" % n, b"k%d" % segment)], base_offset=3 * segment + n) for n in range(3)]
        log.append(b"".join(made))
    return log


def ignore(_any):
    pass


def never():
    return False


def names(log):
    return sorted(path.name for path in log.folder.iterdir())


def run(log, take=ignore, pace=ignore, should_stop=never, **changes):
    return clean(log.job(**changes), take, pace, should_stop)


def test_groups_are_taken_in_order_and_the_last_one_says_how_far(log):
    log.first_dirty_offset = 2
    taken = []

    def take(group):
        for suffix in (".log", ".index", ".timeindex"):
            assert log.cleaned(group.seal, suffix).exists()
        taken.append(group.seal)

    report = run(log, take, segment_bytes=log.sources[0].size_bytes * 2)
    assert [(seal.replaced, seal.end_offset, seal.first_dirty_offset) for seal in taken] == [
        ((0, 3), 6, 2), ((6,), 9, 9)
    ]  # fmt: skip
    assert report.cleaned_upto == 9
    assert (report.records_read, report.map_keys) == (9, 3)
    assert report.bytes_read >= 2 * sum(source.size_bytes for source in log.sources) - log.sources[0].size_bytes
    assert report.bytes_written == sum(seal.log.size_bytes for seal in taken)


def test_segments_behind_the_maps_end_are_left(log):
    """Their files, their seals: nothing is known of their keys."""
    taken = []
    report = run(log, taken.append, dedupe_bytes=2 * KEY_BYTES, segment_bytes=1)
    assert report.map_keys == 1
    assert report.cleaned_upto == 3
    assert [group.seal.replaced for group in taken] == [(0,)]
    assert taken[0].seal.first_dirty_offset == 3


def test_pieces_are_paced(log):
    paced = []
    report = run(log, pace=paced.append)
    assert sum(paced) == report.bytes_read + report.bytes_written


def test_each_byte_is_read_once_for_its_keys_and_once_to_be_written(tmp_path, monkeypatch):
    """However large batches are beside what is read at a time."""
    monkeypatch.setattr(cleaning_run, "READ_BYTES", 1000)
    log = CleanedLog(tmp_path)
    for base in (0, 7):
        sizes = enumerate((600, 300, 900, 2000, 700, 5000, 100), base)
        log.append(b"".join(batch([Record(bytes(size), b"k%d" % at)], base_offset=at) for at, size in sizes))
    size_bytes = sum(source.size_bytes for source in log.sources)
    paced = []
    report = run(log, pace=paced.append)
    assert report.records_kept == 14
    assert report.bytes_read == 2 * size_bytes
    assert sum(paced) == 3 * size_bytes


def test_files_of_other_jobs_are_the_cores(log):
    """Another core may be about to seal them: the job of one that the partition has left may come late."""
    other = log.folder / cleaned_file_name(segment_file_name(0, ".log"), "0" * 16)
    other.write_bytes(b"x")
    run(log)
    assert other.exists()


@pytest.mark.parametrize("what", ["replaced", "longer", "gone"])
def test_a_segment_that_is_another_one_ends_the_job(log, what):
    job, path = log.job(), log.path(3)
    data = path.read_bytes()
    if what != "longer":
        path.rename(log.folder / "kept")
    if what != "gone":
        path.write_bytes(data if what == "replaced" else data + data)
    before = names(log)
    with pytest.raises(SourceChangedError, match=r"00003\.log"):
        clean(job, ignore, ignore, never)
    assert names(log) == before


def test_a_job_is_stopped_between_pieces(log):
    calls = []
    before = names(log)
    for wanted in range(1, 7):
        calls.clear()

        def should_stop(wanted=wanted):
            calls.append(None)
            return len(calls) == wanted

        with pytest.raises(CleaningStoppedError):
            run(log, should_stop=should_stop)
        assert names(log) == before


def test_what_take_raises_ends_the_job(log):
    taken = []

    def take(group):
        taken.append(group.seal)
        if len(taken) == 2:
            raise RuntimeError("not wanted")

    with pytest.raises(RuntimeError, match="not wanted"):
        run(log, take, segment_bytes=1)
    assert [seal.base_offset for seal in taken] == [0, 3]
    assert log.cleaned(taken[0]).exists(), "it was taken"
    assert log.cleaned(taken[1]).exists(), "a seal may name it: who was to take it may have died behind that"


@pytest.mark.parametrize("failing", range(1, 6))
def test_a_full_disk_leaves_nothing_behind(log, monkeypatch, failing):
    before, calls, real = names(log), [], os.pwrite

    def write(descriptor, data, position):
        calls.append(None)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, "no space left")
        return real(descriptor, data[: max(1, len(data) // 2)], position)

    monkeypatch.setattr(log_writer.os, "pwrite", write)
    monkeypatch.setattr(log_writer, "PIECE_BYTES", 64)
    with pytest.raises(OSError, match="no space"):
        run(log)
    assert names(log) == before


def test_descriptors_are_closed(log):
    before = open_descriptors()
    run(log)
    with pytest.raises(CleaningStoppedError):
        run(log, should_stop=lambda: True)
    assert open_descriptors() == before


def test_a_job_of_more_segments_than_there_are_descriptors_is_carried_out(tmp_path):
    """Also where all of them become one."""
    log = CleanedLog(tmp_path)
    for offset in range(40):
        log.append(batch([Record(b"1", b"k%d" % (offset % 3))], base_offset=offset))
    with descriptors_left(8):
        report = run(log)
    assert (report.records_read, report.records_kept) == (40, 3)


def test_a_group_that_grows_beyond_a_segment_is_divided(log, monkeypatch):
    """Each source alone has room."""
    log.append(batch([Record(None, b"k%d" % n, 1 << 40) for n in range(5)], base_offset=9))
    kept = batch([Record(b"2", b"k0")], base_offset=2)
    monkeypatch.setattr(cleaned_segment, "LOG_BYTES_MAX", 2 * len(kept))
    log.clean(segment_bytes=1000, first_dirty_offset=0, sources=tuple(log.sources[:3]))
    assert [seal.replaced for seal in log.seals] == [(0, 3), (6,)]
    assert [seal.first_dirty_offset for seal in log.seals] == [0, 9]
    assert sum(seal.batches_count for seal in log.seals) == 3


def test_a_segment_that_would_grow_beyond_itself_gets_no_horizons(tmp_path, monkeypatch):
    log = CleanedLog(tmp_path)
    data = batch([Record(None, b"k%d" % n, n) for n in range(5)])
    again = batch([Record(b"1", b"a", 0), Record(b"2", b"a", 1 << 40)], base_offset=5)
    log.append(data + again)
    monkeypatch.setattr(cleaned_segment, "LOG_BYTES_MAX", len(data + again))
    log.clean()
    left = log.read()[0].batches
    assert [(one.attributes, len(one.records)) for one in left] == [(0, 5), (0, 1)]
    monkeypatch.setattr(cleaned_segment, "LOG_BYTES_MAX", 1 << 20)
    log.clean()
    assert [one.attributes for one in log.read()[0].batches] == [64, 0]


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_a_full_segment_is_cleaned_though_its_clients_packed_better(tmp_path, monkeypatch, codec):
    """A record went from each batch, and packed as usual each is larger than it was: no room in a segment that is as
    large as one can be.
    """
    log, random = CleanedLog(tmp_path), Random(1)
    words = [random.randbytes(6) for _ in range(400)]
    data, batches_count = b"", 3
    for number in range(batches_count):
        values = [b"".join(random.choices(words, k=6)) for _ in range(250)]
        records = [Record(b"1", b"a"), *(Record(value, b"%d-%d" % (number, at)) for at, value in enumerate(values))]
        plain = b"".join(encode_record(record, index) for index, record in enumerate(records))
        data += batch(records, base_offset=251 * number, attributes=codec, payload=compress_small(codec, plain))
    data += batch([Record(b"2", b"a")], base_offset=251 * batches_count)
    log.append(data)
    log.clean()
    kept = log.read()[0].batches
    assert [len(one.records) for one in kept] == [250] * batches_count + [1]
    assert log.path(0).stat().st_size > len(data), "the test is of batches that grow"

    full = CleanedLog(tmp_path / "full")
    full.folder.mkdir()
    full.append(data)
    monkeypatch.setattr(cleaned_segment, "LOG_BYTES_MAX", len(data))
    full.clean()
    assert [one.records for one in full.read()[0].batches] == [one.records for one in kept]
    assert full.path(0).stat().st_size <= len(data)


def test_append_time_makes_no_record_larger_in_a_segment_that_is_full(tmp_path, monkeypatch):
    """Deltas that mean nothing stay what they are: those to the append time would be six bytes longer."""
    log = CleanedLog(tmp_path)
    records = [Record(b"1", b"a"), *(Record(None, b"k%d" % n) for n in range(20))]
    data = batch(records, attributes=LOG_APPEND_TIME, base_timestamp_ms=-1, max_timestamp_ms=1_700_000_000_000)
    again = batch([Record(b"3", b"a")], base_offset=len(records))
    log.append(data + again)
    monkeypatch.setattr(cleaned_segment, "LOG_BYTES_MAX", len(data + again))
    log.clean()
    left = log.read()[0].batches
    assert [len(one.records) for one in left] == [20, 1]
    assert {one.timestamp for one in left[0].records} == {1_700_000_000_000}


def test_a_group_whose_indexes_are_too_large_is_divided(tmp_path):
    log = CleanedLog(tmp_path)
    for segment in range(3):
        offsets = range(10 * segment, 10 * segment + 10)
        made = [batch([Record(bytes(300), b"%d" % offset)], base_offset=offset) for offset in offsets]
        log.append(b"".join(made))
    log.clean(segment_index_bytes=40)
    assert sorted(seal.replaced for seal in log.seals) == [(0,), (10,), (20,)]


@pytest.mark.parametrize(("cached_bytes_max", "readings"), [(1 << 20, 1), (0, 2)])
def test_what_was_read_does_not_stay_in_the_page_cache(tmp_path, monkeypatch, cached_bytes_max, readings):
    """The kernel drops no folio of which it is told a part: each source is dropped whole when it was read, and in
    between in few pieces. A job that is larger than the cache is for drops it behind the first reading, too.
    """
    monkeypatch.setattr(cleaning_run, "CACHED_BYTES_MAX", cached_bytes_max)
    monkeypatch.setattr(cleaning_run, "READ_BYTES", 1000)
    monkeypatch.setattr(cleaning_run, "DROPPED_BYTES", 4000)
    log = CleanedLog(tmp_path)
    for base in (0, 20):
        log.append(b"".join(batch([Record(bytes(600), b"k%d" % at)], base_offset=at) for at in range(base, base + 20)))
    dropped = {source.inode: [] for source in log.sources}

    def note(descriptor, position, length, advice):
        inode = os.fstat(descriptor).st_ino
        if advice == os.POSIX_FADV_DONTNEED and inode in dropped:
            dropped[inode].append((position, length))

    monkeypatch.setattr(os, "posix_fadvise", note)
    assert log.clean().records_kept == 40
    for pieces in dropped.values():
        assert pieces[-1] == (0, 0)
        assert pieces.count((0, 0)) == readings
        assert all(4000 <= length < 5000 for _position, length in pieces if length)
