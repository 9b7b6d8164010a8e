"""Fetches that C left to Python: what each asks for, and what goes into its answer. Sessions are C's (`fetch*.c`)."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker._ring import ffi, lib
from tpc_broker.broker.fetch_port import FetchPart
from tpc_broker.kafka.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker._ring import Null, tpc_fetch, tpc_fetch_asked, tpc_plane
    from tpc_broker.broker.fetch_port import FetchOutcome
    from tpc_broker.engine.connections import Request

NS_PER_MS: Final = 1_000_000
FALLBACK_REASONS: Final = (
    "none", "malformed", "version", "no memory", "follower", "unknown", "internal", "leader epoch", "last epoch",
    "transactions", "segment", "cold", "nearer", "offset", "authorize",
)  # fmt: skip
"""Why C left a Fetch to Python (`enum tpc_fetch_fallback`)."""

assert len(FALLBACK_REASONS) == lib.TPC_FETCH_FALLBACK_REASONS_COUNT


@dataclass(frozen=True, slots=True)
class FetchStatistics:
    """Counters since the start, and what is now; explained in `cdef/55_fetch.h`."""

    taken: int
    parked: int
    handed_over: int
    timed_out: int
    woken: int
    """So often parked ones have looked whether there is enough now."""
    parked_now: int
    sessions: int
    session_partitions: int
    sessions_evicted: int
    sessions_refused: int
    session_bytes: int
    waiting_bytes: int
    hurried: int
    record_bytes: int
    segment_bytes: int
    windows: int
    left: dict[str, int]


class BegunFetch:
    """One fetch, its session looked up and moved on. Ended exactly once."""

    __slots__ = (
        "_plane", "_pointer", "_request", "bytes_max", "deadline_ms", "error_code", "lacks_rights", "listener", "parts",
        "session_id",
    )  # fmt: skip

    def __init__(self, plane: tpc_plane, request: Request) -> None:
        """Raise `DecodeError` when the request is malformed."""
        out = ffi.new("tpc_fetch **")
        result = lib.tpc_fetch_begin(plane, request.pointer, out)
        if result < 0:
            raise DecodeError(os.strerror(-result), "FetchRequest", request.api_version)
        self._plane, self._request = plane, request
        fetch = out[0]
        self._pointer: tpc_fetch | Null = fetch
        self.error_code: int = fetch.error_code
        self.session_id: int = fetch.session_id
        self.listener: int = request.listener
        self.bytes_max: int = fetch.response_bytes_max
        self.deadline_ms: int = -(-fetch.deadline_ns // NS_PER_MS)
        self.lacks_rights: bool = fetch.left_reason == lib.TPC_FETCH_FALLBACK_AUTHORIZE
        self.parts = [_part(fetch.parts[number]) for number in range(fetch.parts_count)]

    def select(self, outcomes: Sequence[FetchOutcome]) -> list[bool]:
        """For each part, in order: is it in the answer? The session remembers what was sent."""
        count = len(self.parts)
        told = ffi.new("tpc_fetch_outcome[]", max(1, count))
        for place, outcome in zip(told, outcomes, strict=False):
            place.high_watermark, place.log_start_offset = outcome.high_watermark, outcome.log_start_offset
            place.error_code, place.has_records = outcome.error_code, outcome.has_records
            place.is_elsewhere = outcome.is_elsewhere
        chosen = ffi.new("uint8_t[]", max(1, count))
        lib.tpc_fetch_select(self._pointer, told, chosen)
        return [bool(chosen[number]) for number in range(count)]

    def reserve(self) -> int | None:
        """Charge what is read for the answer before it is read. How many bytes the answer may have, at most
        ``bytes_max``; None: answers that nobody reads hold all there is.
        """
        allowed = ffi.new("int64_t *")
        return int(allowed[0]) if lib.tpc_fetch_reserve(self._plane, self._pointer, allowed) == 0 else None

    def unreserve(self) -> None:
        lib.tpc_fetch_unreserve(self._plane, self._pointer)

    def go_on(self) -> bool:
        """Let C take it back, with its request: the rights that it lacked are installed. False: it stays here."""
        if lib.tpc_fetch_again(self._plane, self._request.pointer, self._pointer) != 1:
            return False
        self._request.taken()
        self._pointer = ffi.NULL
        return True

    def end(self) -> None:
        """Give it back. After the plane was closed there is nothing left to give."""
        if self._pointer:
            lib.tpc_fetch_end(self._plane, self._pointer)
            self._pointer = ffi.NULL


def _part(asked: tpc_fetch_asked) -> FetchPart:
    topic: str | uuid.UUID
    if asked.topic_name == ffi.NULL:
        topic = uuid.UUID(bytes=bytes(ffi.buffer(asked.topic_id, 16)))
    else:
        topic = bytes(ffi.buffer(asked.topic_name, asked.topic_name_bytes)).decode()
    return FetchPart(
        topic, asked.partition, asked.fetch_offset, asked.bytes_max, asked.current_leader_epoch,
        asked.last_fetched_epoch,
    )  # fmt: skip


def fetch_statistics(plane: tpc_plane) -> FetchStatistics:
    """The plane's counters of fetches."""
    now = ffi.new("tpc_fetch_statistics *")
    lib.tpc_plane_get_fetch_statistics(plane, now)
    left = {name: int(now.left[number]) for number, name in enumerate(FALLBACK_REASONS) if number}
    return FetchStatistics(
        now.taken, now.parked, now.handed_over, now.timed_out, now.woken, now.parked_now, now.sessions,
        now.session_partitions, now.sessions_evicted, now.sessions_refused, now.session_bytes, now.waiting_bytes,
        now.hurried, now.record_bytes, now.segment_bytes, now.windows, left,
    )  # fmt: skip
