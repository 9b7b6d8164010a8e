"""Log lines: readable on a terminal, one JSON object a line otherwise."""

import fcntl
import io
import json
import logging
import os
import re
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker import __version__
from tpc_broker.process.logs import LINES_WAITING_MAX, end_logging, line_of, log_facts, set_up_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def root_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The root logger is put back as pytest left it, and so is what is called with what nobody catches."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    end_logging()
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(stream: TextIO, *, style: str = "auto", level: str = "INFO") -> str:
    set_up_logging("core 3", log_facts(7), style=style, level=level, stream=stream)
    log = logging.getLogger("tpc_broker.somewhere")
    log.debug("not this")
    log.info("started with %d cores", 2)
    try:
        raise OSError(28, "No space left")
    except OSError:
        log.exception("ümläut\nand a new line")
    end_logging()
    return stream.getvalue() if isinstance(stream, io.StringIO) else ""


def test_a_pipe_gets_one_json_object_a_line() -> None:
    first, second = (json.loads(line) for line in logged(io.StringIO()).splitlines())
    assert first["origin"] == "core 3"
    assert first["level"] == "info"
    assert first["logger"] == "tpc_broker.somewhere"
    assert first["message"] == "started with 2 cores"
    assert (first["node"], first["version"]) == (7, __version__)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert "exception" not in first
    assert second["message"] == "ümläut\nand a new line"
    assert "OSError: [Errno 28] No space left" in second["exception"]


def test_a_terminal_gets_readable_lines_with_colour() -> None:
    text = logged(Terminal())
    first, second, *_rest = text.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} info    core 3     started with 2 cores", first)
    assert second.startswith("\x1b[31m")
    assert "OSError: [Errno 28] No space left" in text


def test_the_style_can_be_chosen() -> None:
    assert "\x1b" not in logged(io.StringIO(), style="readable")
    assert json.loads(logged(Terminal(), style="json").splitlines()[0])["origin"] == "core 3"


def test_what_is_said_elsewhere_looks_as_the_log_does() -> None:
    set_up_logging("supervisor", log_facts(7), stream=Terminal())
    assert line_of("it is ready") == "it is ready"
    set_up_logging("supervisor", log_facts(7), stream=io.StringIO())
    told = json.loads(line_of("it is ready"))
    assert (told["message"], told["origin"], told["level"], told["node"]) == ("it is ready", "supervisor", "info", 7)


def test_a_broker_s_log_is_json_from_its_first_line_which_says_who_it_is(shared_broker) -> None:
    lines = [json.loads(line) for line in shared_broker.log_text().splitlines()]
    assert lines[0]["message"].startswith(f"tpc-broker {__version__} starts as node {lines[0]['node']}: ")
    (ready,) = (line for line in lines if "tpc-broker is ready: " in line["message"])
    assert (ready["origin"], ready["level"]) == ("supervisor", "info")
    assert {(line["node"], line["version"]) for line in lines} == {(lines[0]["node"], __version__)}
    assert {"supervisor", "core 0", "core 1"} <= {line["origin"] for line in lines}


def test_the_level_is_a_lower_bound() -> None:
    assert "started" not in logged(io.StringIO(), level="ERROR")
    assert "not this" in logged(io.StringIO(), level="DEBUG")


def test_the_journal_is_told_the_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "stream").open("w+") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        logged(stream)
        stream.seek(0)
        first, second = stream.read().splitlines()
        assert first.startswith('<6>{"time": ')
        assert second.startswith('<3>{"time": ')
        assert json.loads(second[3:])["level"] == "error"
        stream.seek(0)
        stream.truncate()
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino + 1}")  # a pipe in between, or a file
        logged(stream)
        stream.seek(0)
        assert stream.readline().startswith('{"time": ')


class Pipe:
    """What lines are written to; it takes as many as it has room for, and no more before it is read."""

    def __init__(self) -> None:
        self._read_end, write_end = os.pipe()
        self.writer = open(write_end, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        self._lines: list[str] = []
        self._thread: threading.Thread | None = None

    def read_soon(self) -> list[str]:
        """From now on everything, in a thread: `lines` when all of it is there."""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        return self._lines

    def _read(self) -> None:
        with open(self._read_end, encoding="utf-8") as reader:  # noqa: PTH123
            self._lines += [json.loads(line)["message"] for line in reader]

    def end(self) -> None:
        """All is written; of a test that failed perhaps before anything was read."""
        if self._thread is None:
            self.read_soon()
        end_logging()
        self.writer.close()
        assert self._thread is not None
        self._thread.join(PATIENCE_S)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.end()


def write_numbers(count: int, padding: str = "x" * 200) -> None:
    log = logging.getLogger("tpc_broker.somewhere")
    for number in range(count):
        log.info("%d %s", number, padding)


def test_who_logs_is_not_held_up_by_what_takes_no_lines_and_what_is_missing_is_said(pipe: Pipe) -> None:
    set_up_logging("core 3", style="json", stream=pipe.writer)
    count = LINES_WAITING_MAX + 3_000
    logs = threading.Thread(target=write_numbers, args=[count], daemon=True)
    logs.start()
    logs.join(PATIENCE_S)
    waits = logs.is_alive()
    lines = pipe.read_soon()
    if not waits:
        queue = logging.getLogger().handlers[0].queue  # type: ignore[attr-defined]
        eventually(lambda: lines or not queue.qsize(), "all is written")
    logging.getLogger("tpc_broker.somewhere").info("afterwards")
    pipe.end()
    assert not waits, "it waited for the pipe"
    assert lines.pop() == "afterwards"
    number, gaps = 0, 0
    for line in lines:
        if "log lines are missing here" in line:
            gaps, number = gaps + 1, number + int(line.partition(" ")[0].replace(",", ""))
        else:
            assert int(line.partition(" ")[0]) == number, "what is missing is said where it is missing"
            number += 1
    assert number == count
    assert len(lines) - gaps >= LINES_WAITING_MAX
    assert gaps in (1, 2)


@pytest.mark.parametrize("ends_early", [False, True])
def test_a_loss_is_said_when_all_is_written_though_nothing_follows(pipe: Pipe, *, ends_early: bool) -> None:
    set_up_logging("core 3", style="json", stream=pipe.writer)
    write_numbers(LINES_WAITING_MAX + 3_000)
    lines = pipe.read_soon()
    if not ends_early:
        (handler,) = logging.getLogger().handlers
        eventually(lambda: not handler._lost, "it is said")  # type: ignore[attr-defined]
    pipe.end()
    assert "log lines are missing here" in lines[-1]


PIPE_FULL_BYTES = (1 << 16) - 4096
"""Of 64 KiB: what is written at once, at most a page, stays whole."""
LOGS_AND_ENDS = """
import logging, os, sys
from tpc_broker.process.logs import end_logging, set_up_logging
set_up_logging("core 3", style="json")
for number in range(2000):
    logging.getLogger("x").info("%d %s", number, "x" * 200)
ENDS
"""


def waiting_bytes(read_end: int) -> int:
    """What is in a pipe."""
    return int.from_bytes(fcntl.ioctl(read_end, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.parametrize("ends", ["sys.exit(3)", "raise ValueError", "end_logging(); os._exit(3)"])
def test_the_last_lines_are_written_before_the_process_ends(ends: str) -> None:
    """To a pipe that is read late: they do not fit into it."""
    with subprocess.Popen(
        [sys.executable, "-c", LOGS_AND_ENDS.replace("ENDS", ends)], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        eventually(lambda: waiting_bytes(process.stderr.fileno()) > PIPE_FULL_BYTES, "the pipe is full")
        lines = list(process.stderr)
    raises = ends == "raise ValueError"
    assert process.returncode == (1 if raises else 3)
    assert [int(json.loads(line)["message"].partition(" ")[0]) for line in lines[:2000]] == list(range(2000))
    first_and_last = ["Traceback (most recent call last):\n", "ValueError\n"]
    assert lines[2000:2001] + lines[2002:] == (first_and_last if raises else [])


def test_a_process_ends_though_its_lines_go_nowhere() -> None:
    read_end, write_end = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", LOGS_AND_ENDS.replace("ENDS", "sys.exit(3)")], stderr=write_end)
    os.close(write_end)
    try:
        assert process.wait(PATIENCE_S) == 3
    finally:
        os.close(read_end)
        process.kill()
        process.wait()
