"""Logging of one process: readable lines on a terminal, one JSON object a line otherwise.

Every record carries the core it came from (``core 3``, or ``supervisor``); in JSON the node and the release, too. Where
the lines go straight into systemd's journal, each begins with its priority (sd-daemon(3)), which the journal takes away
again: `journalctl -p warning`.

Whoever logs never waits for the disk, the pipe or the terminal that the lines go to: a thread of its own writes them,
in their order, from a queue with a bound. What comes while that is full is counted, and a line says so when it goes on.
"""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import queue
import signal
import sys
import time
from logging.handlers import QueueHandler, QueueListener
from typing import TYPE_CHECKING, Any, Final, TextIO

from tpc_broker import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

LINES_WAITING_MAX: Final = 4_096
"""When there were so many, no more are taken before half of them are written: one gap, and not one behind each line."""
END_S_MAX: Final = 5.0
"""The end of the process waits so long for the last lines to be written."""

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
    def __init__(self, origin: str, facts: Mapping[str, Any]) -> None:
        """`facts`: what each record says besides."""
        super().__init__()
        self._origin = origin
        self._facts = facts

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            **self._facts,
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


# Rule: Nobody waits for what log lines are written to. What was lost is logged, and nothing is lost where a process
# ends by itself. Held by tests/process/test_logs.py.
class _LineQueue(QueueHandler):
    """Makes lines of records, in the caller's thread, and gives them to the thread that writes.

    The queue is one that may be entered again in the midst of a `put`: a collection of garbage may log at any moment.
    """

    def __init__(self, formatter: logging.Formatter) -> None:
        self._lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        super().__init__(self._lines)
        self.setFormatter(formatter)
        self._lost = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        if self._lines.qsize() >= (LINES_WAITING_MAX // 2 if self._lost else LINES_WAITING_MAX):
            self._lost += 1
            return
        self._tell_lost()
        self._lines.put(record)

    def is_empty(self) -> bool:
        return self._lines.empty()

    def tell_lost(self) -> None:
        """Nothing has come since."""
        if self._lost:
            self.acquire()
            self._tell_lost()
            self.release()

    def _tell_lost(self) -> None:
        """In the place where they are missing."""
        lost, self._lost = self._lost, 0
        if lost:
            text = f"{lost:,} log lines are missing here: what they are written to took none for some time"
            said = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
            self._lines.put(self.prepare(said))


class _Destination(logging.StreamHandler[TextIO]):
    """Where the lines go. `is_stuck`: a thread is in it and does not come back; nobody is to wait for it at the end."""

    is_stuck = False

    def flush(self) -> None:
        if not self.is_stuck:
            super().flush()


class _LineWriter(QueueListener):
    """The thread that writes. While it does, the destination is its alone, and needs no lock."""

    def __init__(self, lines: _LineQueue, stream: TextIO) -> None:
        self._destination = _Destination(stream)
        self._destination.lock = None
        super().__init__(lines.queue, self._destination)
        self._from = lines

    def start(self) -> None:
        """It takes no signals: they are for who logs, which may have blocked them."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def handle(self, record: logging.LogRecord) -> None:
        super().handle(record)
        if self._from.is_empty():
            self._from.tell_lost()

    def end(self) -> None:
        """Write what is there, for a bounded time; later lines are written by whoever logs."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self.enqueue_sentinel()
        thread.join(END_S_MAX)
        self._destination.is_stuck = thread.is_alive()
        if self._destination.is_stuck:
            return
        self._destination.createLock()
        logging.getLogger().handlers[:] = [self._destination]
        self._from.tell_lost()
        while not self._from.is_empty():  # what came in the midst of this
            super().handle(self._from.queue.get())


_writers: list[_LineWriter] = []
"""At most one."""


def end_logging() -> None:
    """Before the process ends, or becomes another program: all lines are written, if that is not held up for long."""
    while _writers:
        _writers.pop().end()


def _lines_before_the_traceback(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
    """The interpreter writes a traceback in pieces of less than a line, and a log line would come in between."""
    end_logging()
    sys.__excepthook__(kind, problem, trace)


def _stream_of_its_own(stream: TextIO) -> TextIO:
    """To the same place: the interpreter's end flushes its own, and would wait for a thread that is in it."""
    try:
        descriptor = stream.fileno()
    except (OSError, io.UnsupportedOperation):
        return stream
    stream.flush()
    return open(descriptor, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


def set_up_logging(
    origin: str,
    facts: Mapping[str, Any] | None = None,
    *,
    style: str = "auto",
    level: str = "INFO",
    stream: TextIO | None = None,
) -> None:
    """Root logger of this process. ``style``: ``auto`` (terminal: readable), ``readable`` or ``json``. `facts`: in
    each record that is JSON.
    """
    end_logging()
    stream = stream or sys.stderr
    terminal = stream.isatty()
    if style == "readable" or (style == "auto" and terminal):
        lines = _LineQueue(ReadableFormatter(origin, colour=terminal))
    elif style == "auto" and leads_to_the_journal(stream):
        lines = _LineQueue(JournalFormatter(origin, facts or {}))
    else:
        lines = _LineQueue(JsonFormatter(origin, facts or {}))
    writer = _LineWriter(lines, _stream_of_its_own(stream))
    writer.start()
    _writers.append(writer)
    root = logging.getLogger()
    root.handlers[:] = [lines]
    root.setLevel(level)
    sys.excepthook = _lines_before_the_traceback


def log_facts(node: int) -> dict[str, Any]:
    """What each record of a broker says."""
    return {"node": node, "version": __version__}


def line_of(text: str) -> str:
    """As the log has it, where that is JSON: for what is said at another place and goes to the same reader."""
    formatter = next((each.formatter for each in logging.getLogger().handlers if isinstance(each, _LineQueue)), None)
    if not isinstance(formatter, JsonFormatter):
        return text
    return formatter.format(logging.LogRecord(__name__, logging.INFO, __file__, 0, text, None, None))


atexit.register(end_logging)
