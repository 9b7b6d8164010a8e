"""Logging of one process: readable lines on a terminal, one JSON object a line otherwise.

Every record carries the core it came from (``core 3``, or ``supervisor``). Where the lines go straight into systemd's
journal, each begins with its priority (sd-daemon(3)), which the journal takes away again: `journalctl -p warning`.
"""
from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import TextIO

LEVEL_COLOURS = {"DEBUG": "\x1b[2m", "INFO": "", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[1;31m"}

JOURNAL_PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}


class ReadableFormatter(logging.Formatter):
    def __init__(self, origin: str, *, colour: bool) -> None:
        super().__init__()
        self._origin = origin
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%H:%M:%S", time.localtime(record.created)) + f".{int(record.msecs):03d}"
        text = f"{when} {record.levelname.lower():<7} {self._origin:<10} {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        colour = LEVEL_COLOURS.get(record.levelname, "") if self._colour else ""
        return f"{colour}{text}\x1b[0m" if colour else text


class JsonFormatter(logging.Formatter):
    def __init__(self, origin: str) -> None:
        super().__init__()
        self._origin = origin

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "origin": self._origin,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class JournalFormatter(JsonFormatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"<{JOURNAL_PRIORITIES.get(record.levelname, 6)}>{super().format(record)}"


def leads_to_the_journal(stream: TextIO) -> bool:
    """Whether systemd connected it to its journal: JOURNAL_STREAM is that one's device and inode (systemd.exec(5))."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def set_up_logging(origin: str, *, style: str = "auto", level: str = "INFO", stream: TextIO | None = None) -> None:
    """Root logger of this process. ``style``: ``auto`` (terminal: readable), ``readable`` or ``json``."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    terminal = stream.isatty()
    if style == "readable" or (style == "auto" and terminal):
        handler.setFormatter(ReadableFormatter(origin, colour=terminal))
    elif style == "auto" and leads_to_the_journal(stream):
        handler.setFormatter(JournalFormatter(origin))
    else:
        handler.setFormatter(JsonFormatter(origin))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
