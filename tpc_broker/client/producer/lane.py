"""One partition's batches on their way, as a machine without I/O: order, sequence numbers, repetitions, fates.

Theory of operation. Records are filled into `_waiting` batches. `next_batch` seals the oldest one (its records get
sequence numbers then) and puts it among the `_unresolved`, in order of their sequence numbers, of which at most
`IN_FLIGHT_MAX` are there and which the driver sends. Each attempt ends in one of `delivered`, `refused`, `unanswered`.

After anything but success the lane *rewinds*: nothing is sent until every attempt under way has ended, and then what is
unresolved is sent again from its oldest on, as the broker takes a batch only behind its predecessor. A leader change is
no more than that: a lane moves to another broker while nothing of it is under way.

Sequence numbers are taken back only where that cannot lead to a repetition in the log:
- A batch that is certainly not in the log and will not be sent (`is_void`) gives its numbers to those behind it, which
  the broker refused because of the gap. If one of those is in doubt, a late copy of it may still be on its way to the
  broker: then they get a new producer epoch (KIP-360), which fences the copy.
- When the broker says that the oldest batch does not follow what it has (its predecessor was given up, or the broker
  forgot the producer), those that are in doubt fail with the fate UNKNOWN, the others get a new epoch.
Within a transaction there is no other epoch: what cannot go on spoils the transaction, and `on_spoiled` is told.

A batch in doubt is sent again alone: brokers recognise it among the last `IN_FLIGHT_MAX` that they have appended, and
others behind it, should its answer be lost once more, would push it out of these.

Until the first batch of an identity is acknowledged only one is under way: a broker that does not know a producer takes
any first sequence number, so a second batch could get in front of the first.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from tpc_broker.client.batches import ProducerIdentity, next_sequence
from tpc_broker.client.producer.batch import UNDER_WAY, Batch, Failure
from tpc_broker.client.values import Fate
from tpc_broker.kafka import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.client.errors import ClientError, RefusedError
    from tpc_broker.client.producer.budget import Budget
    from tpc_broker.client.producer.session import Session
    from tpc_broker.client.requests import TopicPartition

IN_FLIGHT_MAX: Final = 5
"""Batches of a partition whose repetition brokers recognise."""
EPOCH_MAX: Final = 32_766
BACKOFF_SECONDS_FIRST: Final = 0.05
BACKOFF_SECONDS_MAX: Final = 1.0
_DOES_NOT_FOLLOW: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH}
)
_MAY_BE_APPENDED: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Answers after which a batch may be, or come to be, in the log. A leader that has appended and is replaced before its
followers have the batch says NOT_LEADER_OR_FOLLOWER.
"""
_OF_A_RECORD: Final = frozenset({ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP})
"""Brokers refuse a whole batch for one of its records, which may be another task's: good ones are found by halves."""
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class Lane:
    """Changed by the methods and the budget only. ``on_end`` is told of each batch once, when it is decided, unless it
    was delivered as a whole.
    """

    __slots__ = (
        "_delivery_seconds", "_failures_count", "_must_bump", "_must_rewind", "_next_sequence", "_on_end", "_resend",
        "_unresolved", "_waiting", "batch_bytes", "budget", "bytes_held", "filling", "flying_count", "identity",
        "is_proven", "is_queued", "last_trouble", "not_before", "session", "where",
    )  # fmt: skip

    def __init__(
        self, where: TopicPartition, session: Session, budget: Budget, on_end: Callable[[Batch], None]
    ) -> None:
        self.where = where
        self.session = session
        self.budget = budget
        self._on_end = on_end
        self.batch_bytes = session.settings.batch_bytes
        self._delivery_seconds = session.settings.delivery_seconds
        self.bytes_held = 0
        """Changed by the budget."""
        self.is_queued = False
        """The driver knows that there is work. Its own note, but for a new batch, which it is to hear of."""
        self.identity: ProducerIdentity | None = None
        self._next_sequence = 0
        self._waiting: deque[Batch] = deque()
        self.filling: Batch | None = None
        """The newest of the waiting ones."""
        self._unresolved: deque[Batch] = deque()
        self._resend: deque[Batch] = deque()
        self.flying_count = 0
        self.is_proven = False
        self._must_rewind = False
        self._must_bump = False
        self._failures_count = 0
        self.not_before = 0.0
        self.last_trouble = "no broker has been reached yet"

    # -- filling -------------------------------------------------------------------------------------------------------

    def room_in(self, size: int, now: float) -> Batch:
        """The batch that the next record of this size goes in."""
        batch = self.filling
        if batch is None or (batch.size + size > self.batch_bytes and batch.values):
            batch = self.filling = Batch(self.where, now + self._delivery_seconds)
            self._waiting.append(batch)
            self.is_queued = False
        return batch

    def withdraw(self, batch: Batch, row: int, size: int) -> bool:
        if not batch.withdraw(row, size):
            return False
        self.budget.release(self, size)
        if not batch.rows_count:
            self._drop_waiting(batch)
            batch.decide(Fate.WITHDRAWN)
            self._on_end(batch)
        return True

    def _drop_waiting(self, batch: Batch) -> None:
        self._waiting.remove(batch)
        if self.filling is batch:
            self.filling = None

    # -- sending -------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._unresolved)

    @property
    def is_full(self) -> bool:
        """There is a batch that nothing more goes in, or one to be sent again: no reason to linger."""
        return len(self._waiting) > 1 or bool(self._unresolved) or (
            self.filling is not None and self.filling.size >= self.batch_bytes
        )

    def batches(self) -> list[Batch]:
        """What is not decided, as it was handed over."""
        roots: dict[Batch, None] = {}
        for batch in [*self._unresolved, *self._waiting]:
            root = batch
            while root.parent is not None:
                root = root.parent
            roots[root] = None
        return [batch for batch in roots if not batch.is_decided]

    def can_send(self, now: float) -> bool:
        if not self._resend and (
            not self._waiting or self._must_rewind or len(self._unresolved) >= self.session.unresolved_max
        ):
            return False
        if now < self.not_before or self.flying_count >= (IN_FLIGHT_MAX if self.is_proven else 1):
            return False
        return not self.flying_count or not any(batch.in_doubt for batch in self._unresolved)

    def next_batch(self) -> Batch:
        """What is sent next: `can_send` and an identity are there. Its attempt begins."""
        if self._resend:
            batch = self._resend.popleft()
        else:
            batch = self._waiting.popleft()
            if batch is self.filling:
                self.filling = None
            session = self.session
            if self.identity is None:
                assert session.identity is not None, "sealed without an identity"
                self.identity = session.identity
                self._next_sequence = 0
            sequence = self._next_sequence if session.is_idempotent else -1
            batch.seal(session.codec, self.identity, sequence, transactional=session.transactional_id is not None)
            self._next_sequence = next_sequence(self._next_sequence, batch.count)
            self._unresolved.append(batch)
        batch.is_flying = True
        self.flying_count += 1
        return batch

    def forget_identity(self, *, keep_sequences: bool) -> None:
        """What comes next has the session's identity. Nothing is unresolved."""
        assert not self._unresolved, "another identity with batches under way"
        self.is_proven = self.is_proven and keep_sequences
        if not keep_sequences:
            self.identity = None

    # -- what became of an attempt -------------------------------------------------------------------------------------

    def delivered(self, batch: Batch, base_offset: int, log_append_time: int, now: float) -> None:
        """``base_offset`` -1: appended before, and the broker no longer knows where."""
        self._land(batch)
        self.is_proven = True
        self._failures_count = 0
        self._unresolved.remove(batch)
        if batch.fate is UNDER_WAY:
            batch.deliver(base_offset, log_append_time)
            if batch.parent is not None:
                self._end(batch)
        self.budget.release(self, batch.release())
        if self._must_rewind:
            self._rewind_when_landed(now)

    def refused(self, batch: Batch, error: RefusedError, now: float) -> None:
        code = error.code
        if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self.delivered(batch, -1, -1, now)
            return
        self._land(batch)
        if batch.fate is not UNDER_WAY:
            self._end_late(batch, is_void=not batch.in_doubt and code not in _MAY_BE_APPENDED)
        elif code in _DOES_NOT_FOLLOW and self.session.is_idempotent:
            if self._unresolved[0] is batch:
                self._does_not_follow(error, now)
        elif self._is_of_parts(code) and batch.count > 1:
            self._split(batch, is_too_large=code in _TOO_LARGE)
        elif error.is_retriable:
            batch.in_doubt |= code in _MAY_BE_APPENDED
            self._troubled(str(error), now)
        else:
            self._fail_for_good(batch, error)
        self._rewind(now)

    def unanswered(self, batch: Batch, error: ClientError, now: float) -> None:
        """The connection failed after the batch was sent, or while it was."""
        self._land(batch)
        batch.in_doubt = True
        if batch.fate is not UNDER_WAY:
            self._end_late(batch, is_void=False)
        self._troubled(str(error), now)
        self._rewind(now)

    def _land(self, batch: Batch) -> None:
        assert batch.is_flying, "an answer for a batch that is not under way"
        batch.is_flying = False
        self.flying_count -= 1

    def _end_late(self, batch: Batch, *, is_void: bool) -> None:
        """A batch whose time was over while it was under way."""
        if is_void:
            batch.is_void = True
        else:
            self._unresolved.remove(batch)
        self.budget.release(self, batch.release())

    def _troubled(self, text: str, now: float) -> None:
        self.last_trouble = text
        pause = min(BACKOFF_SECONDS_FIRST * 2**self._failures_count, BACKOFF_SECONDS_MAX)
        self.not_before = max(self.not_before, now + pause)

    def wait_out(self, text: str, now: float) -> None:
        """The broker cannot be reached: pause before the next attempt to."""
        self._failures_count += 1
        self._troubled(text, now)

    def _does_not_follow(self, error: RefusedError, now: float) -> None:
        if self.session.transactional_id is not None:
            self.session.spoil(Failure(f"{self.where}: {error}", error.code))
            self._give_up_all(Failure(str(error), error.code))
            return
        if self._failures_count:
            self._troubled(str(error), now)
        else:
            self._failures_count = 1
        self._must_bump = True
        self.last_trouble = str(error)

    def _fail_for_good(self, batch: Batch, error: RefusedError) -> None:
        text = str(error)
        if error.code in _TOO_LARGE:
            text = f"{text}: a batch of one record, of {len(batch.encoded())} bytes; the topic's max.message.bytes "
            text += "(by default the broker's message.max.bytes) says how many are allowed"
        fate = Fate.UNKNOWN if batch.in_doubt else Fate.REFUSED
        failure = Failure(text, error.code)
        batch.decide(fate, failure)
        self._end(batch)
        self.budget.release(self, batch.release())
        if self.session.transactional_id is not None:
            self.session.spoil(failure)
        if batch.in_doubt:
            self._unresolved.remove(batch)
        else:
            batch.is_void = True

    def _is_of_parts(self, code: int) -> bool:
        """Whether halves of a refused batch may fare better."""
        return code in _TOO_LARGE or (code in _OF_A_RECORD and self.session.transactional_id is None)

    def _split(self, batch: Batch, *, is_too_large: bool) -> None:
        """The halves keep the sequence numbers, and the doubt: should the topic's settings have changed since the whole
        was appended, the broker says that a half does not follow. After what was too much, batches are filled up to
        half of it.
        """
        if is_too_large:
            self.batch_bytes = max(1, min(self.batch_bytes, batch.size // 2))
        place = self._unresolved.index(batch)
        size = batch.size
        self._unresolved.remove(batch)
        first, second = batch.split()
        first.in_doubt = second.in_doubt = batch.in_doubt
        self._unresolved.insert(place, second)
        self._unresolved.insert(place, first)
        first.size, second.size = size // 2, size - size // 2

    # -- rewinding -----------------------------------------------------------------------------------------------------

    def _rewind(self, now: float) -> None:
        self._resend.clear()
        self._must_rewind = True
        self._rewind_when_landed(now)

    def _rewind_when_landed(self, now: float) -> None:
        if not self._must_rewind or self.flying_count or self._resend:
            return
        if self.not_before > now:
            self._failures_count += 1
        free = 0
        while self._unresolved and self._unresolved[0].is_void:
            free += self._unresolved.popleft().count
        if self._must_bump:
            self._must_bump = False
            for batch in [batch for batch in self._unresolved if batch.in_doubt]:
                self._unresolved.remove(batch)
                text = f"{self.last_trouble}; what came before is not there, and whether this is cannot be known"
                self._fail(batch, Fate.UNKNOWN, text)
            self._bump()
        elif free and self.session.is_idempotent:
            self._take_numbers_back(free)
        self._resend.extend(takewhile(lambda batch: not batch.is_void, self._unresolved))
        self._must_rewind = len(self._resend) < len(self._unresolved)

    def _take_numbers_back(self, free: int) -> None:
        if any(batch.in_doubt for batch in self._unresolved):
            if self.session.transactional_id is None:
                self._bump()
            return
        assert self.identity is not None
        self._next_sequence = self._next_sequence - free & 0x7FFF_FFFF
        for batch in self._unresolved:
            if not batch.is_void:
                batch.renumber(self.identity, batch.base_sequence - free & 0x7FFF_FFFF)

    def _bump(self) -> None:
        """A new epoch, from sequence number 0 on (KIP-360); a new producer id where there is no higher epoch."""
        assert self.identity is not None
        epoch = self.identity.producer_epoch + 1
        self.is_proven = False
        self._next_sequence = 0
        if epoch > EPOCH_MAX:
            self.session.use_up(self.identity)
            self.identity = None
            return
        self._renumber_all(ProducerIdentity(self.identity.producer_id, epoch))

    def _renumber_all(self, identity: ProducerIdentity) -> None:
        self.identity = identity
        for batch in self._unresolved:
            if not batch.is_void:
                batch.renumber(identity, self._next_sequence)
                batch.in_doubt = False
            self._next_sequence = next_sequence(self._next_sequence, batch.count)

    def identify(self) -> bool:
        """Before `next_batch`: whether there is an identity. One that is new is taken."""
        if self.identity is None:
            if self.session.identity is None:
                return False
            self._next_sequence = 0
            self._renumber_all(self.session.identity)
        return True

    # -- the end -------------------------------------------------------------------------------------------------------

    def _end(self, batch: Batch) -> None:
        """It is decided: is what was handed over, too?"""
        while batch.parent is not None:
            batch = batch.parent
        if batch.is_decided:
            self._on_end(batch)

    def _fail(self, batch: Batch, fate: Fate, text: str, code: int | None = None) -> None:
        """Decides a batch. Its bytes are given back once: now, or when it lands."""
        batch.decide(fate, Failure(text, code))
        self._end(batch)
        if not batch.is_flying:
            self.budget.release(self, batch.release())

    def next_deadline(self) -> float:
        """When `expire` has something to do; infinite: not before something changes."""
        batches = [batch.deadline for batch in self._unresolved if batch.fate is UNDER_WAY]
        if self._waiting:
            batches.append(self._waiting[0].deadline)
        return min(batches, default=float("inf"))

    def expire(self, now: float) -> None:
        """Fail what is older than its deadline."""
        seconds = self._delivery_seconds
        self._end_those(
            lambda batch: batch.deadline <= now,
            lambda: Failure(f"not delivered within delivery_seconds={seconds:g}; last: {self.last_trouble}"),
        )
        self._rewind_when_landed(now)

    def give_up(self, failure: Failure) -> None:
        """Fail everything, for a reason that no repetition mends."""
        self._give_up_all(failure)
        self._rewind_when_landed(0.0)

    def _give_up_all(self, failure: Failure) -> None:
        self._end_those(lambda _batch: True, lambda: failure)

    def _end_those(self, is_meant: Callable[[Batch], bool], why: Callable[[], Failure]) -> None:
        for batch in [batch for batch in self._unresolved if batch.fate is UNDER_WAY and is_meant(batch)]:
            reason = why()
            may_be_there = batch.in_doubt or batch.is_flying
            text = f"{self.where}: {reason.text}"
            self._fail(batch, Fate.UNKNOWN if may_be_there else Fate.REFUSED, text, reason.code)
            if may_be_there and not batch.is_flying:
                self._unresolved.remove(batch)
            elif not may_be_there:
                batch.is_void = True
            self._resend.clear()
            self._must_rewind = True
            if self.session.transactional_id is not None:
                self.session.spoil(Failure(text, reason.code))
        while self._waiting and is_meant(self._waiting[0]):
            batch = self._waiting.popleft()
            if batch is self.filling:
                self.filling = None
            batch.count = batch.rows_count
            reason = why()
            self._fail(batch, Fate.REFUSED, f"{self.where}: {reason.text}", reason.code)
            if self.session.transactional_id is not None:
                self.session.spoil(Failure(f"{self.where}: {reason.text}", reason.code))
