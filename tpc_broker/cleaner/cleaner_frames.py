"""What goes between a core and a cleaner: frames over a Unix stream socket, one job a connection.

The cleaner says `READY` when it is this connection's turn; the core sends the `JOB`; the cleaner says `PROGRESS` now
and then, sends a `GROUP` and waits until the core says `TAKEN`, and ends with a `REPORT` or with `FAILED`. A core that
does not want a group, or the rest of a job, closes the connection; so does a cleaner that cannot go on.

Frame, in the machine's own order of bytes: u32 length of what follows | u8 kind | u32 length of the JSON | JSON | the
rest, which only a `JOB` (its tables) and a `GROUP` (its seal) have. The socket is ours; all that comes from it is
checked all the same.
"""

from __future__ import annotations

import json
import struct
from array import array
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from tpc_broker import limits
from tpc_broker.log.cleaning_job import CleanedGroup, CleaningJob, CleaningReport, CleaningSource, KeptProducer
from tpc_broker.log.indexes import AbortedTransaction
from tpc_broker.log.seals import Seal

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER: Final = struct.Struct("=IBI")
_REST_BYTES: Final = _HEADER.size - 4
_SOURCE: Final = struct.Struct("=4qB2q")
_ABORTED: Final = struct.Struct("=4q")
_PRODUCER: Final = struct.Struct("=3q")
_NUMBER_MAX: Final = 2**63 - 1
_TEXT_BYTES_MAX: Final = 4096
_TABLES: Final = ("sources", "aborted", "producers")
_JOB_NUMBERS: Final = (
    "log_start_offset", "first_dirty_offset", "now_ms", "delete_retention_ms", "segment_bytes", "segment_index_bytes",
    "index_interval_bytes", "batch_bytes_max", "decompressed_bytes_max", "dedupe_bytes",
)  # fmt: skip
_REPORT_NUMBERS: Final = tuple(name for name in CleaningReport._fields if name != "seconds")
assert {*_TABLES, *_JOB_NUMBERS, "label", "folder", "is_urgent"} == set(CleaningJob._fields)


class FrameError(ValueError):
    """What came is no frame, or not one that may come now."""


class Kind(IntEnum):
    """Of a frame."""

    READY = 1
    JOB = 2
    GROUP = 3
    TAKEN = 4
    PROGRESS = 5
    REPORT = 6
    FAILED = 7


class Frame(NamedTuple):
    kind: Kind
    fields: dict[str, Any]
    rest: bytes


class FrameReader:
    """Bytes into frames, however they are cut. `bytes_max`: of the longest frame."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._received = bytearray()

    def feed(self, data: bytes) -> None:
        self._received += data

    def next_frame(self) -> Frame | None:
        """None: it is not whole yet. FrameError."""
        if len(self._received) < _HEADER.size:
            return None
        length, kind, text_bytes = _HEADER.unpack_from(self._received)
        if not _REST_BYTES + text_bytes <= length <= self._bytes_max:
            raise FrameError(f"a frame of {length} bytes, {text_bytes} of them JSON")
        if len(self._received) < 4 + length:
            return None
        end = _HEADER.size + text_bytes
        text, rest = bytes(self._received[_HEADER.size : end]), bytes(self._received[end : 4 + length])
        del self._received[: 4 + length]
        try:
            fields = json.loads(text)
            known = Kind(kind)
        except (ValueError, RecursionError) as error:
            raise FrameError(f"a frame that cannot be read: {error}") from error
        if not isinstance(fields, dict):
            raise FrameError("a frame without fields")
        return Frame(known, fields, rest)


def encode_frame(kind: Kind, fields: dict[str, Any] | None = None, rest: bytes = b"") -> bytes:
    """FrameError: it is too long for whoever is to read it."""
    text = json.dumps(fields or {}).encode()
    length = _REST_BYTES + len(text) + len(rest)
    if length > (limits.CLEANER_JOB_BYTES_MAX if kind is Kind.JOB else limits.CLEANER_ANSWER_BYTES_MAX):
        raise FrameError(f"a frame of {length} bytes is too long")
    return _HEADER.pack(length, kind, len(text)) + text + rest


# -- jobs --------------------------------------------------------------------------------------------------------------


def encode_job(job: CleaningJob) -> bytes:
    """The frame. FrameError: its producers and aborted transactions are too many for one."""
    fields: dict[str, Any] = {name: getattr(job, name) for name in _JOB_NUMBERS}
    fields |= {name: len(getattr(job, name)) for name in _TABLES}
    fields |= {"label": job.label, "folder": job.folder, "is_urgent": job.is_urgent}
    numbers = array("q", chain.from_iterable(chain(job.aborted, job.producers)))  # 100,000s: not one by one
    rest = b"".join(_SOURCE.pack(*source) for source in job.sources) + numbers.tobytes()
    return encode_frame(Kind.JOB, fields, rest)


def decode_job(frame: Frame) -> CleaningJob:
    """FrameError."""
    fields, rest = frame.fields, frame.rest
    numbers = {name: _number(fields, name) for name in _JOB_NUMBERS}
    counts = [_number(fields, name) for name in _TABLES]
    sizes = [count * each.size for count, each in zip(counts, (_SOURCE, _ABORTED, _PRODUCER), strict=True)]
    if sum(sizes) != len(rest):
        raise FrameError(f"tables of {sum(sizes)} bytes in {len(rest)}")
    folder, is_urgent = _text(fields, "folder"), fields.get("is_urgent")
    if not folder.startswith("/") or "\0" in folder:
        raise FrameError(f"no folder: {folder!r}")
    if not isinstance(is_urgent, bool):
        raise FrameError(f"urgent {is_urgent!r}")
    sources, aborted, producers = rest[: sizes[0]], rest[sizes[0] : sum(sizes[:2])], rest[sum(sizes[:2]) :]
    return CleaningJob(
        label=_text(fields, "label"),
        folder=folder,
        sources=_sources(sources),
        aborted=_rows(_ABORTED, aborted, AbortedTransaction._make, 0),
        producers=_rows(_PRODUCER, producers, KeptProducer._make, -1),
        is_urgent=is_urgent,
        **numbers,
    )


def _sources(data: bytes) -> tuple[CleaningSource, ...]:
    """They follow each other."""
    found = _rows(_SOURCE, data, CleaningSource._make, 0)
    ends = [0, *(source.end_offset for source in found)]
    for end_before, source in zip(ends, found, strict=False):
        if source.is_cleaned not in {0, 1} or not end_before <= source.base_offset < source.end_offset:
            raise FrameError(f"a segment that cannot be: {source}")
    return tuple(source._replace(is_cleaned=bool(source.is_cleaned)) for source in found)


Row = TypeVar("Row", bound="tuple[int, ...]")


def _rows(layout: struct.Struct, data: bytes, make: Callable[[tuple[int, ...]], Row], minimum: int) -> tuple[Row, ...]:
    found = tuple(map(make, layout.iter_unpack(data)))
    if any(min(row) < minimum for row in found):
        raise FrameError("a number below its range")
    return found


# -- answers -----------------------------------------------------------------------------------------------------------


def encode_group(group: CleanedGroup) -> bytes:
    return encode_frame(Kind.GROUP, {}, group.seal.encode())


def decode_group(frame: Frame) -> CleanedGroup:
    """FrameError."""
    try:
        return CleanedGroup(Seal.decode(frame.rest))
    except ValueError as error:  # SealError is one
        raise FrameError(str(error)) from error


def encode_report(report: CleaningReport) -> bytes:
    return encode_frame(Kind.REPORT, report._asdict())


def decode_report(frame: Frame) -> CleaningReport:
    """FrameError."""
    seconds = frame.fields.get("seconds")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < _NUMBER_MAX:
        raise FrameError(f"{seconds!r} seconds")
    return CleaningReport(**{name: _number(frame.fields, name) for name in _REPORT_NUMBERS}, seconds=float(seconds))


def progress_bytes(frame: Frame) -> int:
    """What was read and written so far. FrameError."""
    return _number(frame.fields, "bytes")


class Failure(NamedTuple):
    """`errno`: of an OSError; 0: of none. `is_void`: the segments are not those that the job means."""

    reason: str
    errno: int = 0
    is_void: bool = False


def encode_failure(failure: Failure) -> bytes:
    reason = failure.reason[: _TEXT_BYTES_MAX // 4]  # a character has four bytes at most
    return encode_frame(Kind.FAILED, {"reason": reason, "errno": failure.errno, "is_void": failure.is_void})


def decode_failure(frame: Frame) -> Failure:
    """FrameError."""
    return Failure(_text(frame.fields, "reason"), _number(frame.fields, "errno"), frame.fields.get("is_void") is True)


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
        raise FrameError(f"{name} {value!r}")
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or len(value) > _TEXT_BYTES_MAX:
        raise FrameError(f"{name} is no text, or too long")
    return value
