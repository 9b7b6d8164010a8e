"""Rights in the data plane (`GrantsPort`): native/requests/grants.h says how they are kept."""

from __future__ import annotations

import errno
import os
import sys
import uuid
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from tpc_broker._ring import ffi, lib
from tpc_broker.model import TopicId

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker._ring import tpc_plane
    from tpc_broker.engine.connections import Request
    from tpc_broker.engine.ring import Ring

TOO_OLD: Final = -errno.ESTALE


@dataclass(frozen=True, slots=True)
class GrantStatistics:
    """Counters since rights were first asked for; explained in `cdef/58_grants.h`."""

    generation: int
    installed: int
    evicted: int
    forgotten: int
    unknown: int
    refused_produces: int
    refused_fetches: int
    refused_datagrams: int


class GrantsPlane:
    _plane: tpc_plane

    def _begin_grants(self, ring: Ring) -> None:
        self._on_grant_wanted: Callable[[TopicId, int], None] = lambda _topic_id, _subject: None
        ring.on_event(lib.TPC_EVENT_GRANT_WANTED, self._grant_wanted)

    def _grant_wanted(self, subject: int, a: int, b: int, _pointer: int) -> None:
        topic_id = b"".join(half.to_bytes(8, sys.byteorder, signed=True) for half in (a, b))
        self._on_grant_wanted(TopicId(uuid.UUID(bytes=topic_id)), subject)

    def on_grant_wanted(self, callback: Callable[[TopicId, int], None]) -> None:
        self._on_grant_wanted = callback

    def begin_grants(self, generation: int) -> None:
        _check(lib.tpc_grants_begin(self._plane, generation), "begin to ask about subjects")

    def end_grants(self) -> None:
        lib.tpc_grants_end(self._plane)

    def forget_grants(self, generation: int) -> None:
        _check(lib.tpc_grants_forget(self._plane, generation), "forget what was granted")

    def grant(self, generation: int, subject: int, topic_id: TopicId, *, writes: bool, is_allowed: bool) -> None:
        right = lib.TPC_RIGHT_WRITE if writes else lib.TPC_RIGHT_READ
        allowed = right if is_allowed else 0
        _check(lib.tpc_grants_install(self._plane, generation, subject, topic_id.bytes, right, allowed), "grant")

    def grant_transactional(self, generation: int, subject: int, transactional_id: str, *, is_allowed: bool) -> None:
        encoded = transactional_id.encode()
        result = lib.tpc_grants_install_transactional(
            self._plane, generation, subject, encoded, len(encoded), is_allowed
        )
        _check(result, "grant")

    def name_subject(self, request: Request, subject: int) -> None:
        lib.tpc_request_set_subject(request.pointer, subject)

    def set_datagrams_subject(self, subject: int) -> None:
        lib.tpc_grants_set_datagrams(self._plane, subject)

    def grant_statistics(self) -> GrantStatistics:
        now = ffi.new("tpc_grant_statistics *")
        lib.tpc_grants_get_statistics(self._plane, now)
        return GrantStatistics(*(int(getattr(now, field.name)) for field in fields(GrantStatistics)))


def _check(result: int, what: str) -> None:
    """What is too old is not granted, and decided again."""
    if result == -errno.ENOMEM:
        raise MemoryError(f"cannot {what}")
    if result not in (0, TOO_OLD):
        raise ValueError(f"cannot {what}: {os.strerror(-result)}")
