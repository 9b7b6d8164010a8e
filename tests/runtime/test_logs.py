"""Log lines: readable on a terminal, one JSON object a line otherwise."""

import io
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from tpc_broker.runtime.logs import set_up_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """The root logger is put back as pytest left it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(stream: TextIO, *, style: str = "auto", level: str = "INFO") -> str:
    set_up_logging("core 3", style=style, level=level, stream=stream)
    log = logging.getLogger("tpc_broker.somewhere")
    log.debug("not this")
    log.info("started with %d cores", 2)
    try:
        raise OSError(28, "No space left")
    except OSError:
        log.exception("ümläut\nand a new line")
    return stream.getvalue() if isinstance(stream, io.StringIO) else ""


def test_a_pipe_gets_one_json_object_a_line() -> None:
    first, second = (json.loads(line) for line in logged(io.StringIO()).splitlines())
    assert first["origin"] == "core 3"
    assert first["level"] == "info"
    assert first["logger"] == "tpc_broker.somewhere"
    assert first["message"] == "started with 2 cores"
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
