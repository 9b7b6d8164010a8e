"""The log that a cleaning writes: in pieces past the page cache, or through it, and the rest of them."""

import errno
import fcntl
import os
import threading
from random import Random

import pytest

from tests.support.descriptors import open_descriptors
from tpc_broker.cleaner import log_writer
from tpc_broker.cleaner.log_writer import LogWriter

PIECE = 4096
MODIFIED_NS = 1_700_000_000_000_000_000


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(log_writer, "PIECE_BYTES", PIECE)


@pytest.fixture
def writes(monkeypatch):
    """(was it O_DIRECT, position, bytes) of each."""
    noted, real = [], os.pwrite

    def write(fd, data, position):
        written = real(fd, data, position)
        noted.append((bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT), position, written))
        return written

    monkeypatch.setattr(log_writer.os, "pwrite", write)
    return noted


def parts_of(size, largest):
    chance, parts = Random(size), []
    while size:
        parts.append(chance.randbytes(min(size, chance.randint(1, largest))))
        size -= len(parts[-1])
    return parts


def written(path, parts):
    writer = LogWriter(path)
    try:
        for part in parts:
            writer.write(memoryview(bytearray(part)))
        writer.finish(MODIFIED_NS)
    finally:
        writer.close()
    assert path.stat().st_mtime_ns == MODIFIED_NS
    return path.read_bytes()


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 11 * PIECE + 100, 40 * PIECE])
@pytest.mark.parametrize("largest", [100, 3 * PIECE])
def test_a_file_has_what_was_written_in_its_order(tmp_path, size, largest):
    parts = parts_of(size, largest)
    assert written(tmp_path / "log", parts) == b"".join(parts)


def test_whole_pieces_go_past_the_page_cache_and_what_is_left_goes_through_it(tmp_path, writes):
    """Where the file system of temporary files can do so, as most can."""
    with (tmp_path / "probe").open("wb") as probe:
        try:
            fcntl.fcntl(probe, fcntl.F_SETFL, os.O_DIRECT)
            is_direct = True
        except OSError:
            is_direct = False
    parts = parts_of(3 * PIECE + 7, 1000)
    assert written(tmp_path / "log", parts) == b"".join(parts)
    assert writes == [(is_direct, at * PIECE, PIECE) for at in range(3)] + [(False, 3 * PIECE, 7)]


@pytest.mark.parametrize("refused", ["flag", "write"])
def test_without_o_direct_it_goes_through_the_page_cache_and_does_not_pile_up(tmp_path, monkeypatch, refused):
    told, real_write, real_fcntl = [], os.pwrite, fcntl.fcntl

    def set_flags(fd, command, argument=0):
        if refused == "flag" and command == fcntl.F_SETFL and argument & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no O_DIRECT here")
        return real_fcntl(fd, command, argument)

    def write(fd, data, position):
        if real_fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no such piece here")
        return real_write(fd, data, position)

    monkeypatch.setattr(log_writer.fcntl, "fcntl", set_flags)
    monkeypatch.setattr(log_writer.os, "pwrite", write)
    monkeypatch.setattr(log_writer.os, "posix_fadvise", lambda _fd, begin, count, _advice: told.append((begin, count)))
    monkeypatch.setattr(log_writer.os, "fdatasync", lambda _fd: told.append("durable"))
    monkeypatch.setattr(log_writer, "DURABLE_BYTES", 2 * PIECE)
    parts = parts_of(4 * PIECE + 7, 1000)
    assert written(tmp_path / "log", parts) == b"".join(parts)
    assert told == [
        (0, PIECE), "durable", (0, 2 * PIECE), (PIECE, 2 * PIECE), "durable", (2 * PIECE, 2 * PIECE), (0, 0)
    ]  # fmt: skip


def test_an_error_of_a_piece_comes_with_a_later_call(tmp_path, monkeypatch):
    real = os.pwrite

    def write(fd, data, position):
        if position == PIECE:
            raise OSError(errno.ENOSPC, "no space left")
        return real(fd, data, position)

    monkeypatch.setattr(log_writer.os, "pwrite", write)
    before, threads = open_descriptors(), threading.active_count()
    for size in (2 * PIECE, 40 * PIECE):
        with pytest.raises(OSError, match="no space left"):
            written(tmp_path / f"log-{size}", [bytes(size)])
    assert open_descriptors() == before
    assert threading.active_count() == threads


def test_a_small_file_needs_no_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(log_writer, "ThreadPoolExecutor", None)
    assert written(tmp_path / "log", [b"a", bytes(PIECE - 2)]) == b"a" + bytes(PIECE - 2)
