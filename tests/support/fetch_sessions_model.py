"""Incremental fetch sessions (KIP-227) of one core, as a machine without I/O.

Theory of operation
-------------------
A consumer of a thousand partitions would name a thousand partitions in every fetch. With a session the broker remembers
them: the first (*full*) fetch has epoch 0 and names all, the answer carries a session id; each later (*incremental*)
fetch carries that id and the next epoch, and names only what was added, changed or forgotten. The answer to an
incremental fetch names only partitions that have something to say: records, a watermark or log start that moved, an
error.

====================  ==========================================================================
request               context
====================  ==========================================================================
epoch -1              sessionless; a session of that id is closed
epoch 0               full; a session of that id is closed, a new one is made when there is room
any other epoch       incremental; the id must be known (70), the epoch the expected one (71), and
                      topics named the way the session names them, by id or by name (106)
====================  ==========================================================================

The cache has a fixed number of slots. A full one gives up the least recently used session, when that was unused for
``eviction_ms``; else the new consumer goes without a session, which costs it bytes and nothing else.

Topics are keyed as the client names them: by topic id from Fetch 13 on, by name before.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
NO_SESSION = 0
FETCH_SESSION_ID_NOT_FOUND = 70
INVALID_FETCH_SESSION_EPOCH = 71
FETCH_SESSION_TOPIC_ID_ERROR = 106

TopicKey = str | uuid.UUID
PartitionKey = tuple[TopicKey, int]


@dataclass(slots=True)
class FetchPartition:
    """What the client asks of one partition; offsets and epochs as in the request, -1 for none."""

    topic: TopicKey
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    follower_log_start_offset: int = -1
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1

    @property
    def key(self) -> PartitionKey:
        return (self.topic, self.partition)

    def update(self, newer: FetchPartition) -> None:
        self.fetch_offset = newer.fetch_offset
        self.max_bytes = newer.max_bytes
        self.current_leader_epoch = newer.current_leader_epoch
        self.last_fetched_epoch = newer.last_fetched_epoch
        self.follower_log_start_offset = newer.follower_log_start_offset


@dataclass(slots=True)
class FetchSession:
    session_id: int
    uses_topic_ids: bool
    expected_epoch: int
    last_used_ms: int
    partitions: dict[PartitionKey, FetchPartition]


@dataclass(frozen=True, slots=True)
class FetchOutcome:
    """What became of one partition, as far as sessions care."""

    key: PartitionKey
    error_code: int
    high_watermark: int
    log_start_offset: int
    has_records: bool


@dataclass(slots=True)
class FetchContext:
    """One fetch: which partitions to read, and afterwards which answers to send under which session id."""

    error_code: int
    session: FetchSession | None
    partitions: list[FetchPartition]
    incremental: bool

    @property
    def session_id(self) -> int:
        return self.session.session_id if self.session is not None else NO_SESSION

    def select(self, outcomes: Iterable[FetchOutcome]) -> list[bool]:
        """For each outcome, in order: is it part of the answer? Remembers what was sent."""
        if self.session is None:
            return [True for _ in outcomes]
        cached = self.session.partitions
        chosen = []
        with_records = []
        for outcome in outcomes:
            partition = cached.get(outcome.key)
            if partition is None:
                chosen.append(True)
                continue
            chosen.append(_has_news(partition, outcome) or not self.incremental)
            failed = outcome.error_code != 0
            partition.sent_high_watermark = -1 if failed else outcome.high_watermark
            partition.sent_log_start_offset = -1 if failed else outcome.log_start_offset
            if outcome.has_records:
                with_records.append(outcome.key)
        for key in with_records:  # served ones go to the end, so that a small limit does not starve the others
            cached[key] = cached.pop(key)
        return chosen


def _has_news(partition: FetchPartition, outcome: FetchOutcome) -> bool:
    return (
        outcome.has_records
        or outcome.error_code != 0
        or partition.sent_high_watermark != outcome.high_watermark
        or partition.sent_log_start_offset != outcome.log_start_offset
    )


class FetchSessions:
    def __init__(self, slots_max: int, eviction_ms: int) -> None:
        self._slots_max = slots_max
        self._eviction_ms = eviction_ms
        self._sessions: dict[int, FetchSession] = {}  # least recently used first
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions_count(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def context(
        self,
        session_id: int,
        session_epoch: int,
        *,
        uses_topic_ids: bool,
        asked: list[FetchPartition],
        forgotten: Iterable[PartitionKey],
        now_ms: int,
        new_session_id: int,
    ) -> FetchContext:
        """The context of one request. ``new_session_id``: a positive number drawn at random by the caller."""
        if session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            if session_epoch == FINAL_EPOCH:
                return FetchContext(0, None, asked, incremental=False)
            return self._full(uses_topic_ids, asked, now_ms, new_session_id)
        session = self._sessions.get(session_id)
        if session is None:
            return FetchContext(FETCH_SESSION_ID_NOT_FOUND, None, [], incremental=True)
        if session.expected_epoch != session_epoch:
            return FetchContext(INVALID_FETCH_SESSION_EPOCH, None, [], incremental=True)
        if session.uses_topic_ids != uses_topic_ids and (asked or any(True for _ in forgotten)):
            return FetchContext(FETCH_SESSION_TOPIC_ID_ERROR, None, [], incremental=True)
        return self._incremental(session, asked, forgotten, now_ms)

    def _full(
        self, uses_topic_ids: bool, asked: list[FetchPartition], now_ms: int, new_session_id: int
    ) -> FetchContext:
        if new_session_id in self._sessions or not self._make_room(now_ms):
            return FetchContext(0, None, asked, incremental=False)
        partitions = {partition.key: partition for partition in asked}
        session = FetchSession(new_session_id, uses_topic_ids, INITIAL_EPOCH + 1, now_ms, partitions)
        self._sessions[new_session_id] = session
        return FetchContext(0, session, asked, incremental=False)

    def _incremental(
        self, session: FetchSession, asked: list[FetchPartition], forgotten: Iterable[PartitionKey], now_ms: int
    ) -> FetchContext:
        for newer in asked:
            known = session.partitions.get(newer.key)
            if known is None:
                session.partitions[newer.key] = newer
            else:
                known.update(newer)
        for key in forgotten:
            session.partitions.pop(key, None)
        del self._sessions[session.session_id]
        if not session.partitions:
            return FetchContext(0, None, [], incremental=True)
        session.expected_epoch = 1 if session.expected_epoch == 2**31 - 1 else session.expected_epoch + 1
        session.last_used_ms = now_ms
        self._sessions[session.session_id] = session
        return FetchContext(0, session, list(session.partitions.values()), incremental=True)

    def _make_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self._slots_max:
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.last_used_ms < self._eviction_ms:
            return False
        del self._sessions[oldest.session_id]
        self.evicted += 1
        return True
