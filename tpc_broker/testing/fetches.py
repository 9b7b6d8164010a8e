"""Fetches that wait in memory, and their sessions (KIP-227), as `native/requests/fetch_sessions.c` has them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from tpc_broker.broker.fetch_port import FetchPart
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.kafka.protocol import decode_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.auth.principals import Subject
    from tpc_broker.broker.fetch_port import FetchOutcome
    from tpc_broker.testing.connections import MemoryRequest
    from tpc_broker.testing.plane import MemoryPlane

TOPIC_IDS_IN_FETCH = 13
FULL, FINAL = 0, -1
"""Epochs of a request that begins a session, and of one without any."""
EPOCH_MAX = (1 << 31) - 1
SLOTS_DEFAULT = 1000
_Key: TypeAlias = "tuple[str | uuid.UUID, int]"


@dataclass(slots=True)
class _Known:
    """A partition of a session: what is asked of it, and what was told last."""

    part: FetchPart
    high_watermark: int = -1
    log_start_offset: int = -1

    def has_news(self, outcome: FetchOutcome) -> bool:
        told = self.high_watermark, self.log_start_offset
        return (
            outcome.has_records
            or outcome.is_elsewhere
            or bool(outcome.error_code)
            or told != (outcome.high_watermark, outcome.log_start_offset)
        )

    def tell(self, outcome: FetchOutcome) -> None:
        has_failed = bool(outcome.error_code)
        self.high_watermark = -1 if has_failed else outcome.high_watermark
        self.log_start_offset = -1 if has_failed else outcome.log_start_offset


@dataclass(slots=True)
class FetchSession:
    session_id: int
    by_id: bool
    subject: Subject
    expected_epoch: int = 1
    last_used_ms: int = 0
    parts: dict[_Key, _Known] = field(default_factory=dict)


class FetchSessions:
    """Of one core, in the order of their last use."""

    def __init__(self) -> None:
        self.slots_max, self.eviction_ms = SLOTS_DEFAULT, 120_000
        self.are_owned = False
        """Whether a session is of use to who has made it alone."""
        self._sessions: dict[int, FetchSession] = {}
        self._made = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: int, subject: Subject) -> FetchSession | None:
        found = self._sessions.get(session_id)
        return found if found is not None and (not self.are_owned or found.subject == subject) else None

    def end(self, session: FetchSession) -> None:
        self._sessions.pop(session.session_id, None)

    def begin(self, subject: Subject, now_ms: int, *, by_id: bool) -> FetchSession | None:
        """None: there is no slot, and none that is idle."""
        if len(self._sessions) >= self.slots_max:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.last_used_ms < self.eviction_ms:
                return None
            self.end(oldest)
        self._made += 1
        made = self._sessions[self._made] = FetchSession(self._made, by_id, subject, last_used_ms=now_ms)
        return made

    def use(self, session: FetchSession, now_ms: int) -> None:
        session.last_used_ms = now_ms
        session.expected_epoch = 1 if session.expected_epoch == EPOCH_MAX else session.expected_epoch + 1
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)


class MemoryFetch:
    """`Fetch`."""

    lacks_rights = False

    def __init__(self, plane: MemoryPlane, request: MemoryRequest, now_ms: int) -> None:
        message = decode_request(ApiKey.FETCH, request.api_version, request.body)
        self.listener, self.bytes_max = request.listener, message.max_bytes
        self.deadline_ms = now_ms + message.max_wait_ms
        self.error_code, self.session_id = int(ErrorCode.NONE), 0
        self.is_reserved = False
        self.parts: list[FetchPart] = []
        self._plane = plane
        self._session: FetchSession | None = None
        self._is_incremental = False
        plane.fetches.add(self)
        self._find_session(plane.sessions, request, message, now_ms)

    def _find_session(self, sessions: FetchSessions, request: MemoryRequest, message: Any, now_ms: int) -> None:
        by_id = request.api_version >= TOPIC_IDS_IN_FETCH
        asked = _asked(message, by_id=by_id)
        found = sessions.find(message.session_id, request.subject)
        if message.session_epoch in (FULL, FINAL):
            if found is not None:
                sessions.end(found)
            self.parts = asked
            if message.session_epoch == FULL:
                self._begin(sessions.begin(request.subject, now_ms, by_id=by_id))
            return
        self._is_incremental = True
        forgotten = [
            (_name_of(topic, by_id=by_id), index)
            for topic in message.forgotten_topics_data
            for index in topic.partitions
        ]
        if found is None:
            self.error_code = int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        elif found.expected_epoch != message.session_epoch:
            self.error_code = int(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        elif found.by_id != by_id and (asked or forgotten):
            self.error_code = int(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        else:
            self._go_on_in(sessions, found, asked, forgotten, now_ms)

    def _begin(self, session: FetchSession | None) -> None:
        if session is not None:
            session.parts = {(part.topic, part.partition): _Known(part) for part in self.parts}
            self._session, self.session_id = session, session.session_id

    def _go_on_in(
        self, sessions: FetchSessions, session: FetchSession, asked: list[FetchPart], forgotten: list[_Key], now_ms: int
    ) -> None:
        for part in asked:
            known = session.parts.get((part.topic, part.partition))
            if known is None:
                session.parts[part.topic, part.partition] = _Known(part)
            else:
                known.part = part
        for key in forgotten:
            session.parts.pop(key, None)
        if not session.parts:
            sessions.end(session)
            return
        sessions.use(session, now_ms)
        self._session, self.session_id = session, session.session_id
        self.parts = [known.part for known in session.parts.values()]

    def select(self, outcomes: Sequence[FetchOutcome]) -> list[bool]:
        assert len(outcomes) == len(self.parts)
        chosen = [True] * len(outcomes)
        if self._session is None:
            return chosen
        parts = self._session.parts
        for place, (part, outcome) in enumerate(zip(self.parts, outcomes, strict=True)):
            key = part.topic, part.partition
            known = parts.get(key)
            if known is None:
                continue
            chosen[place] = known.has_news(outcome) or not self._is_incremental
            known.tell(outcome)
            if outcome.has_records:  # to the end, so that a small limit does not starve the others
                parts[key] = parts.pop(key)
        return chosen

    def reserve(self) -> int | None:
        self.is_reserved = self._plane.has_memory
        return self.bytes_max if self.is_reserved else None

    def unreserve(self) -> None:
        self.is_reserved = False

    def go_on(self) -> bool:
        return False

    def end(self) -> None:
        self._plane.fetches.remove(self)


def _name_of(topic: Any, *, by_id: bool) -> str | uuid.UUID:
    return uuid.UUID(bytes=bytes(topic.topic_id)) if by_id else str(topic.topic)


def _asked(message: Any, *, by_id: bool) -> list[FetchPart]:
    return [
        FetchPart(
            _name_of(topic, by_id=by_id), asked.partition, asked.fetch_offset, asked.partition_max_bytes,
            asked.current_leader_epoch, asked.last_fetched_epoch,
        )
        for topic in message.topics
        for asked in topic.partitions
    ]  # fmt: skip
