"""One partition that is read: where reading is, what lies ready, what is handed out. No I/O.

    finished <= handed out (in order) <= `position` <= what lies ready <= `fetch_offset`

Whatever moves `fetch_offset` other than an answer makes a new `version`, and answers to older ones are dropped.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.consumer.starts import Start

if TYPE_CHECKING:
    from tpc_broker.client.consumer.decoding import Part, Piece
    from tpc_broker.client.errors import ClientError
    from tpc_broker.client.requests import TopicPartition


class Handed:
    """A run of records that somebody works on."""

    __slots__ = ("begin", "end", "leader_epoch")

    def __init__(self, begin: int, end: int, leader_epoch: int) -> None:
        self.begin, self.end, self.leader_epoch = begin, end, leader_epoch


class Partition:
    """``position`` None: it is to be found out from ``start``."""

    def __init__(self, where: TopicPartition, position: Position | None, start: Start) -> None:
        self.where = where
        if position is None and start.offset is not None:
            position = Position(start.offset)
        if position is not None and position.offset < 0:
            start, position = Start(time_ms=position.offset), None
        self.start = start
        self.topic_id = b""
        self.leader = -1
        """The broker that leads it, -1: not known."""
        self.leader_epoch = -1
        self.replica = -1
        """Another one that it is read from, as the leader said, until `replica_until`."""
        self.replica_until = 0.0
        self.is_paused = False
        self.is_held = True
        """Not about to be revoked."""
        self.is_gone = False
        """What is under way does not count any more."""
        self.error: ClientError | None = None
        """Raised to who takes, behind what lies ready."""
        self.failing_since: float | None = None
        self.missing_since: float | None = None
        self.failures_count = 0
        self.retry_at = 0.0
        self.is_asking = False
        """Somebody waits for an answer that says where to go on."""
        self.needs_check = position is not None and position.leader_epoch >= 0
        """The log may have been cut off below the position since."""
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1
        self.version = 0
        self.asked_version = -1
        """Of the fetch that is under way, -1: none is."""
        self.is_known = position is not None
        self.position = 0 if position is None else position.offset
        self.epoch = -1 if position is None else position.leader_epoch
        """Of the record before the position."""
        self.fetch_offset = self.position
        self.parts: deque[Part] = deque()
        self.ready_bytes = 0
        self.finished: Position | None = None
        self.handed: deque[Handed] = deque()
        self.handed_since = 0.0
        """Since when nothing of what is handed out was finished."""
        self.held_from: int | None = None
        """A transaction has what is handed out from there on: it is not finished before that is committed."""
        self.finish_asked = -1
        """Meanwhile, up to where."""
        self.committed: Position | None = None
        """The position that a transaction has committed."""

    @property
    def source(self) -> int:
        """The broker to fetch from."""
        return self.replica if self.replica >= 0 else self.leader

    @property
    def is_fetchable(self) -> bool:
        return self.is_known and self.leader >= 0 and not self.needs_check and not self.is_asking and self._is_wanted

    @property
    def is_lost(self) -> bool:
        """Nobody knows yet where to fetch it from."""
        return self.leader < 0 and not self.is_asking and self._is_wanted

    @property
    def is_unplaced(self) -> bool:
        """The leader has to be asked where to begin."""
        return self.leader >= 0 and not self.is_known and not self.is_asking and self._is_wanted

    @property
    def is_unchecked(self) -> bool:
        """The leader has to be asked whether its log has what was read."""
        is_ready = self.leader >= 0 and self.is_known and not self.is_asking
        return is_ready and self.needs_check and self._is_wanted

    @property
    def _is_wanted(self) -> bool:
        return self.error is None and self.is_held and not self.is_paused

    @property
    def reached(self) -> Position | None:
        """Behind what is finished, or where reading began; None: that is not known yet."""
        if self.finished is not None or not self.is_known:
            return self.finished
        return Position(self.handed[0].begin) if self.handed else Position(self.position, self.epoch)

    @property
    def last_epoch(self) -> int:
        """Of the record before `fetch_offset`."""
        return self.parts[-1].last_epoch if self.parts else self.epoch

    def begin_at(self, position: Position) -> None:
        """What lies ready was dropped; go on there."""
        self.is_known = True
        self.position = self.fetch_offset = position.offset
        self.epoch = position.leader_epoch
        self.error = None
        self.version += 1

    def begin_from(self, start: Start) -> None:
        """The same at a place that has to be asked for."""
        self.start, self.is_known, self.error = start, False, None
        self.version += 1

    def is_well(self) -> None:
        """An answer came without an error."""
        self.failing_since = self.missing_since = None
        self.failures_count, self.retry_at = 0, 0.0

    def hand_out(self, piece: Piece, now: float) -> None:
        begin = piece.offset(0)
        if not self.handed:
            self.handed_since = now
        self.handed.append(Handed(begin, piece.next_offset, piece.leader_epoch))
        self.position, self.epoch = piece.next_offset, piece.leader_epoch

    def pass_over(self, offset: int) -> None:
        """Nothing to be seen lies below."""
        if offset <= self.position:
            return
        self.position = offset
        if not self.handed and self.finished is not None:
            self.finished = Position(offset, self.finished.leader_epoch)

    def finish(self, next_offset: int, now: float) -> None:
        """Everything below is done with."""
        if self.held_from is not None and next_offset > self.held_from:
            self.finish_asked = max(self.finish_asked, next_offset)
            next_offset = self.held_from
        if self.finished is not None and next_offset <= self.finished.offset:
            return
        epoch, progressed = -1, False
        while self.handed and self.handed[0].begin < next_offset:
            run = self.handed[0]
            epoch, progressed = run.leader_epoch, True
            if run.end > next_offset:
                run.begin = next_offset
                break
            self.handed.popleft()
        if progressed:
            self.handed_since = now
            end = self.position if not self.handed else next_offset
            self.finished = Position(max(next_offset, end), epoch)

    def hold(self, first_offset: int | None, after: int | None) -> None:
        """Let a transaction have what is handed out from there on (None: all of it); ``after``: up to where it has
        it.
        """
        runs = [run for run in self.handed if after is None or run.end > after]
        if not runs:
            said = "what is handed out of it is done already" if self.handed else "nothing of it is under way"
            raise ValueError(f"{self.where}: {said}; say done before the next item is asked for")
        begin = runs[0].begin
        is_next = first_offset in (None, begin) or (after is not None and after > begin)
        if not is_next:
            raise ValueError(f"{self.where}: offset {begin} is under way, and what is done has to be so in order")
        if self.held_from is None:
            self.held_from = begin

    def commit_held(self, next_offset: int, now: float) -> None:
        asked, self.held_from, self.finish_asked = self.finish_asked, None, -1
        self.finish(next_offset, now)
        self.committed = self.finished
        if asked > next_offset:
            self.finish(asked, now)

    def give_back(self, offset: int) -> None:
        """What is handed out from there on is not worked on any more, and reading goes on there."""
        epoch = -1
        while self.handed and self.handed[-1].end > offset:
            run = self.handed[-1]
            if run.begin < offset:
                run.end, epoch = offset, run.leader_epoch
                break
            self.handed.pop()
        if self.finished is not None and offset <= self.finished.offset:
            self.finished = Position(offset, self.finished.leader_epoch)
            epoch = self.finished.leader_epoch
        elif self.handed and epoch < 0:
            epoch = self.handed[-1].leader_epoch
        self.begin_at(Position(offset, epoch))
